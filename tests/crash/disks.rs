//! The disks of a pool: one for both roots, or one for each. Their caches are lost independently.

use std::path::Path;
use std::sync::Arc;

use dedupfs_store::device::{
    Device, FileDevice, MemoryDevice, OpenMode,
    observed::{ObservedDevice, Observer},
};

/// Names of the directories of a saved image.
const ROOTS: [&str; 2] = ["meta", "data"];

#[derive(Clone, Debug)]
pub struct Disks {
    pub meta: MemoryDevice,
    /// `None` if one disk holds both roots.
    pub data: Option<MemoryDevice>,
}

/// The roots on which a pool is opened: meta, data.
pub type Roots = [Arc<dyn Device>; 2];

impl Disks {
    pub fn new(two: bool) -> Self {
        Self { meta: MemoryDevice::new(), data: two.then(MemoryDevice::new) }
    }

    pub fn all(&self) -> impl Iterator<Item = &MemoryDevice> {
        std::iter::once(&self.meta).chain(&self.data)
    }

    fn map(&self, mut map: impl FnMut(&MemoryDevice) -> MemoryDevice) -> Self {
        Self { meta: map(&self.meta), data: self.data.as_ref().map(map) }
    }

    pub fn roots(&self) -> Roots {
        let meta: Arc<dyn Device> = Arc::new(self.meta.clone());
        let data = self.data.as_ref().map_or_else(|| meta.clone(), |data| Arc::new(data.clone()));
        [meta, data]
    }

    pub fn data_root(&self) -> Vec<u8> {
        if self.data.is_some() { b"/data".to_vec() } else { b".".to_vec() }
    }

    /// Copies the disks and their caches as of now.
    pub fn fork(&self) -> Self {
        self.map(MemoryDevice::fork)
    }

    /// The disks after a power loss. Variant 0: no unsynced change survives; 1: all survive; 2 and 3: all survive on
    /// one disk and none on the other; else `seed` and the number choose an arbitrary part.
    pub fn crash(&self, variant: u32, seed: u64) -> Self {
        let nothing = |disk: &MemoryDevice| disk.crash(0);
        let all = |disk: &MemoryDevice| disk.snapshot_all_synced();
        let either = |first: &dyn Fn(&MemoryDevice) -> MemoryDevice, second: &dyn Fn(&MemoryDevice) -> MemoryDevice| {
            Self { meta: first(&self.meta), data: self.data.as_ref().map(second) }
        };
        match variant {
            0 => either(&nothing, &nothing),
            1 => either(&all, &all),
            2 => either(&nothing, &all),
            3 => either(&all, &nothing),
            _ => {
                let mut random = crate::random::Random::new(seed ^ (u64::from(variant) << 40));
                self.map(|disk| disk.crash(random.word() | 1))
            }
        }
    }

    pub fn content_hash(&self) -> (u128, u128) {
        (self.meta.content_hash(), self.data.as_ref().map_or(0, MemoryDevice::content_hash))
    }

    /// Writes the disks to a directory, for inspection and for [`load`](Self::load).
    pub fn save(&self, to: &Path) -> dedupfs_store::Result<()> {
        for (disk, name) in self.all().zip(ROOTS) {
            copy(disk, &FileDevice::create(&to.join(name))?, "")?;
        }
        Ok(())
    }

    pub fn load(from: &Path) -> dedupfs_store::Result<Self> {
        let disks = Self::new(from.join(ROOTS[1]).is_dir());
        for (disk, name) in disks.all().zip(ROOTS) {
            copy(&FileDevice::open(&from.join(name))?, disk, "")?;
        }
        Ok(disks.map(MemoryDevice::snapshot_all_synced))
    }
}

fn copy(from: &dyn Device, to: &dyn Device, directory: &str) -> dedupfs_store::Result<()> {
    for entry in from.list(directory)? {
        let path = if directory.is_empty() { entry.name } else { format!("{directory}/{}", entry.name) };
        if entry.is_directory {
            to.create_directory(&path)?;
            copy(from, to, &path)?;
            continue;
        }
        let bytes = from.read_file(&path, 1 << 30)?;
        let file = to.open(&path, OpenMode::CreateNew)?;
        for (number, page) in bytes.chunks(4096).enumerate().filter(|(_, page)| page.iter().any(|byte| *byte != 0)) {
            file.write_at(page, number as u64 * 4096)?;
        }
        file.set_len(bytes.len() as u64)?;
    }
    Ok(())
}

/// Returns the same roots, each with an observer before it.
pub fn observed(roots: &Roots, observer: &Arc<dyn Observer>) -> Roots {
    let is_one = Arc::ptr_eq(&roots[0], &roots[1]);
    let observe =
        |root: &Arc<dyn Device>| -> Arc<dyn Device> { Arc::new(ObservedDevice::new(root.clone(), observer.clone())) };
    let meta = observe(&roots[0]);
    let data = if is_one { meta.clone() } else { observe(&roots[1]) };
    [meta, data]
}
