//! The disks of a world: slow, and they lose what was not synced when the power fails.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use dedupfs_store::device::faulty::FaultyDevice;
use dedupfs_store::device::observed::{Call, ObservedDevice, Observer};
use dedupfs_store::device::{Device, MemoryDevice, OpenMode};
use dedupfs_store::{Result, StoreError};
use dedupfs_sync::{thread, world};

use crate::dice::Dice;
use crate::history::World;
use crate::plan::{Fate, Life};

/// The disks between two lives.
#[derive(Clone, Debug)]
pub struct Disks {
    meta: MemoryDevice,
    data: Option<MemoryDevice>,
}

impl Disks {
    pub fn new(two: bool) -> Self {
        Self { meta: MemoryDevice::new(), data: two.then(MemoryDevice::new) }
    }

    /// Meta and data root without trouble.
    pub fn plain(&self) -> [Arc<dyn Device>; 2] {
        let meta: Arc<dyn Device> = Arc::new(self.meta.clone());
        let data = self.data.as_ref().map_or_else(|| meta.clone(), |data| Arc::new(data.clone()));
        [meta, data]
    }

    /// Meta and data root as a life sees them.
    pub fn of_life(&self, life: &Life, world: &Arc<World>) -> [Arc<dyn Device>; 2] {
        let troubles: Arc<dyn Observer> = Arc::new(Troubles::new(life, world.clone()));
        let under = |memory: &MemoryDevice, number: usize| -> Arc<dyn Device> {
            memory.set_capacity(life.capacity_bytes.map_or(u64::MAX, |bytes| bytes.max(memory.used_bytes())));
            let faulty = FaultyDevice::over_memory(memory);
            life.faults
                .iter()
                .filter(|(of, _)| *of == number || self.data.is_none())
                .for_each(|(_, fault)| faulty.add(fault.plan()));
            world.faulty.lock().unwrap_or_else(PoisonError::into_inner).push(faulty.clone());
            Arc::new(ObservedDevice::new(Arc::new(faulty), troubles.clone()))
        };
        let meta = under(&self.meta, 0);
        let data = self.data.as_ref().map_or_else(|| meta.clone(), |data| under(data, 1));
        [meta, data]
    }

    /// The disks without the meta root, if it has a disk of its own.
    pub fn without_meta(&self) -> Option<Self> {
        self.data.is_some().then(|| Self { meta: MemoryDevice::new(), data: self.data.clone() })
    }

    /// Flips a bit of some file on a disk; returns the file, and the byte.
    pub fn flip(&self, dice: &mut Dice) -> Option<(String, u64)> {
        let disk = self.data.as_ref().filter(|_| dice.one_in(2)).unwrap_or(&self.meta);
        let mut paths = Vec::new();
        files_below(disk, "", &mut paths);
        let path = paths.get(dice.below(paths.len() as u64) as usize)?;
        let file = disk.open(path, OpenMode::Write).expect("is there");
        let len_bytes = file.len().expect("has a length");
        let (mut byte, mut offset) = ([0], 0);
        // Most bytes of a file of slots are in no region: where there is something, a flip matters.
        for _ in 0..1 + dice.below(16) {
            offset = dice.below(len_bytes);
            file.read_exact_at(&mut byte, offset).ok()?;
            // The bytes of notes are times of the real disk: nothing may follow from them.
            if byte != [0] || path.starts_with("notes/") {
                break;
            }
        }
        byte[0] ^= 1 << dice.below(8);
        // Only this byte. A disk that is too small for its files takes no new page.
        file.write_at(&byte, offset).ok()?;
        file.sync().expect("syncs");
        Some((path.clone(), offset))
    }

    /// The files of each disk, with the bytes that they occupy.
    pub fn files(&self) -> Vec<Vec<(String, u64)>> {
        let of = |disk: &MemoryDevice| {
            let mut paths = Vec::new();
            files_below(disk, "", &mut paths);
            let occupied = |path: String| {
                let file = disk.open(&path, OpenMode::Read).expect("is there");
                let bytes = file.allocated_bytes().expect("is told");
                (path, bytes)
            };
            paths.into_iter().map(occupied).collect()
        };
        [&self.meta].into_iter().chain(&self.data).map(of).collect()
    }

    pub fn data_root(&self) -> Vec<u8> {
        if self.data.is_some() { b"/data".to_vec() } else { b".".to_vec() }
    }

    /// The disks that the next life finds.
    pub fn after(&self, fate: Fate, seed: u64) -> Self {
        // A crash by seed 0 keeps nothing that was not synced: one of eight worlds has such disks.
        let crash =
            |disk: &MemoryDevice, number: u64| disk.crash(if seed.is_multiple_of(8) { 0 } else { seed ^ number });
        // Leaked tasks of a life that was killed hold the old disks.
        let map = |disk: &MemoryDevice, number: u64| match fate {
            Fate::Closed { power_fails: false } => disk.clone(),
            Fate::Killed { .. } => disk.fork(),
            Fate::Closed { power_fails: true } => crash(disk, number),
            Fate::PowerLost { operation } => crash(disk, operation ^ number),
        };
        Self { meta: map(&self.meta, 1 << 40), data: self.data.as_ref().map(|disk| map(disk, 1 << 41)) }
    }
}

fn files_below(disk: &MemoryDevice, directory: &str, paths: &mut Vec<String>) {
    for entry in disk.list(directory).expect("can be listed") {
        let path = if directory.is_empty() { entry.name } else { format!("{directory}/{}", entry.name) };
        if entry.is_directory { files_below(disk, &path, paths) } else { paths.push(path) }
    }
}

/// Troubles of the disks that the world makes itself at each operation: time, other tasks, and the crash.
#[derive(Debug)]
struct Troubles {
    /// Operations so far, on all disks.
    operations: AtomicU64,
    /// The operation at which the life is killed.
    last: u64,
    device_ns: u64,
    world: Arc<World>,
}

impl Troubles {
    fn new(life: &Life, world: Arc<World>) -> Self {
        let last = life.fate.operation().unwrap_or(u64::MAX);
        Self { operations: AtomicU64::new(0), last, device_ns: life.device_ns, world }
    }

    /// Lets the operation take its time.
    fn wait(&self) {
        if self.device_ns > 0 {
            let time = Duration::from_nanos(world::random(self.device_ns));
            if world::is_atomic() { world::pass(time) } else { thread::sleep(time) }
        } else {
            world::point();
        }
    }
}

/// A number for the operation, for the hash of all that happened.
fn number(call: &Call<'_>) -> u64 {
    let text = |path: &str| path.bytes().fold(7_u64, |sum, byte| sum.wrapping_mul(31).wrapping_add(u64::from(byte)));
    match *call {
        Call::Open { path, .. } => text(path),
        Call::Remove { path } => 1 + text(path),
        Call::Rename { from, to } => 2 + text(from) * 3 + text(to),
        Call::CreateDirectory { path } => 3 + text(path),
        Call::List { path } => 4 + text(path),
        Call::SyncDirectory { path } => 5 + text(path),
        Call::Read { path, offset, len_bytes } | Call::ReadAlong { path, offset, len_bytes, .. } => {
            6 + text(path) + offset * 5 + len_bytes as u64
        }
        Call::Write { path, offset, len_bytes } => 7 + text(path) + offset * 7 + len_bytes as u64,
        Call::Sync { path } => 8 + text(path),
        Call::SetLen { path, len_bytes } => 9 + text(path) + len_bytes,
        Call::Punch { path, offset, len_bytes } => 10 + text(path) + offset + len_bytes,
    }
}

impl Observer for Troubles {
    fn around(&self, call: &Call<'_>, perform: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        let operation = self.operations.fetch_add(1, Ordering::Relaxed) + 1;
        world::note(number(call));
        self.world.tally.device_operations.fetch_add(1, Ordering::Relaxed);
        if operation >= self.last {
            self.world.tell(|| format!("killed at operation {operation}: {call:?}"));
            world::kill();
        }
        self.wait();
        let outcome = perform();
        if let Err(error) = outcome.as_ref()
            && !matches!(error, StoreError::NotFound { .. })
        {
            self.world.tell(|| format!("operation {operation} fails: {error}"));
        }
        world::point();
        outcome
    }
}
