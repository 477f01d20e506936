//! Pools on two devices, one of which is lost, and pictures to compare.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use dedupfs::check::CheckOptions;
use dedupfs::reclaim::ReclaimOptions;
use dedupfs::recover::RecoverReport;
use dedupfs::recover::recover_on;
use dedupfs::{NoProgress, OpenOptions as PoolOptions, Pool, format_on};
use dedupfs_service::{
    AttributeChanges, FileKind, FileService, Ino, InodeFlags, Listing, NewNode, NodeContent, OpenOptions, ROOT_INO,
    RenameFlags, WriteFlags, XattrMode,
};
use dedupfs_store::device::faulty::FaultyDevice;
use dedupfs_store::device::{Device, MemoryDevice};
use dedupfs_store::superblock::PoolProperties;

use crate::tests::common::{CALLER, content, write};

/// The visible state of a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Seen {
    kind: FileKind,
    mode: u16,
    nlink: u32,
    size_bytes: u64,
    mtime_secs: i64,
    content: Vec<u8>,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    flags: InodeFlags,
}

/// A tree, by path.
pub type Picture = BTreeMap<Vec<u8>, Seen>;

pub fn properties() -> PoolProperties {
    PoolProperties {
        chunk_size_bytes: 4096,
        container_bytes: 64 << 10,
        slots_per_file: 8,
        // Always full, so that checkpoints, and with them exports, are written in parallel.
        tanker_cells: 64,
        tanker_buckets: 4,
        ..PoolProperties::default()
    }
}

pub fn format(meta: &MemoryDevice, data: &MemoryDevice) {
    format_on(&shared(meta), &shared(data), b"elsewhere".to_vec(), &properties(), (0, 0)).expect("formats");
}

/// Formats a pool on two new roots; returns meta and data.
pub fn formatted() -> (MemoryDevice, MemoryDevice) {
    let (meta, data) = (MemoryDevice::new(), MemoryDevice::new());
    format(&meta, &data);
    (meta, data)
}

/// Formats a pool on two new roots whose first base holds the empty pool: no other base is due, and what follows lies in the log.
pub fn with_empty_base() -> (MemoryDevice, MemoryDevice) {
    let (meta, data) = formatted();
    open(&meta, &data).close().expect("closes");
    (meta, data)
}

/// Makes a pool with an export, on a data root that can fail; returns the roots, the one that fails, and the pool.
pub fn exported_on_failing() -> (MemoryDevice, MemoryDevice, FaultyDevice, Arc<Pool>) {
    let (meta, data) = formatted();
    let faulty = FaultyDevice::over_memory(&data);
    let device: Arc<dyn Device> = Arc::new(faulty.clone());
    let pool = try_open(&shared(&meta), &device).expect("opens");
    for number in 0..10 {
        write(&pool, &format!("{number}"), &content(number, 100_000));
    }
    pool.sync().expect("syncs");
    pool.core().committer.export().expect("exports");
    (meta, data, faulty, pool)
}

pub fn shared(device: &MemoryDevice) -> Arc<dyn Device> {
    Arc::new(device.clone())
}

pub fn try_open(meta: &Arc<dyn Device>, data: &Arc<dyn Device>) -> dedupfs::Result<Arc<Pool>> {
    // Commits only on request of a test.
    let options = PoolOptions { commit_interval: Duration::from_secs(3600), ..PoolOptions::default() };
    Pool::open_on(meta, data, Vec::new(), &options, &NoProgress)
}

pub fn open(meta: &MemoryDevice, data: &MemoryDevice) -> Arc<Pool> {
    try_open(&shared(meta), &shared(data)).expect("opens")
}

pub fn open_read_only(meta: &MemoryDevice, data: &MemoryDevice) -> Arc<Pool> {
    let options = PoolOptions { read_only: true, ..PoolOptions::default() };
    Pool::open_on(&shared(meta), &shared(data), Vec::new(), &options, &NoProgress).expect("opens")
}

pub fn try_recover(data: &MemoryDevice) -> dedupfs::Result<(MemoryDevice, RecoverReport)> {
    let meta = MemoryDevice::new();
    let report = try_recover_onto(&meta, shared(data))?;
    Ok((meta, report))
}

/// Recovers, even if that gives less than the data root leads to expect.
pub fn force_recover(data: &MemoryDevice) -> dedupfs::Result<(MemoryDevice, RecoverReport)> {
    let meta = MemoryDevice::new();
    let report = recover_how(&meta, shared(data), true)?;
    Ok((meta, report))
}

pub fn try_recover_onto(meta: &MemoryDevice, data: Arc<dyn Device>) -> dedupfs::Result<RecoverReport> {
    recover_how(meta, data, false)
}

pub fn recover_how(meta: &MemoryDevice, data: Arc<dyn Device>, forced: bool) -> dedupfs::Result<RecoverReport> {
    recover_on(&shared(meta), &data, b"elsewhere".to_vec(), forced, &PoolOptions::default(), &NoProgress)
}

/// Makes a new meta root from the data root.
pub fn recover(data: &MemoryDevice) -> (MemoryDevice, RecoverReport) {
    try_recover(data).expect("recovers")
}

/// Checks that the data root alone gives back the pool as it was when it was closed.
pub fn assert_recovers(data: &MemoryDevice, pool: Arc<Pool>) {
    let before = picture(&pool);
    pool.close().expect("closes");
    drop(pool);
    let (meta, report) = recover(data);
    assert_eq!(report.rebuilt.missing, 0);
    let pool = open(&meta, data);
    assert!(picture(&pool) == before, "something else is recovered");
    assert_eq!(findings(&pool), Vec::<String>::new());
}

pub fn reclaim(pool: &Pool) {
    pool.reclaim(&ReclaimOptions::below(100), &NoProgress).expect("reclaims");
}

pub fn findings(pool: &Pool) -> Vec<String> {
    pool.check(&CheckOptions { read_data: true, ..CheckOptions::default() }, &NoProgress).expect("checks").findings
}

/// Returns the visible state of the whole tree.
pub fn picture(pool: &Pool) -> Picture {
    let mut picture = Picture::new();
    look(&*pool.service(), ROOT_INO, b"", &mut picture);
    picture
}

fn look(service: &dyn FileService, directory: Ino, path: &[u8], picture: &mut Picture) {
    for name in names(service, directory) {
        let attributes = service.lookup(directory, &name).expect("is there");
        let ino = attributes.ino;
        let path = [path, b"/", &name].concat();
        let content = match attributes.kind {
            FileKind::Regular => read(service, ino),
            FileKind::Symlink => service.read_link(ino).expect("is a link"),
            _ => Vec::new(),
        };
        let xattrs = service.xattr_names(ino).expect("lists attributes");
        let xattrs = xattrs.into_iter().map(|name| {
            let value = service.xattr(ino, &name).expect("has the attribute");
            (name, value)
        });
        let seen = Seen {
            kind: attributes.kind,
            mode: attributes.mode,
            nlink: attributes.nlink,
            size_bytes: attributes.size_bytes,
            mtime_secs: attributes.mtime.secs,
            content,
            xattrs: xattrs.collect(),
            flags: service.flags(ino).expect("has flags"),
        };
        let is_directory = seen.kind == FileKind::Directory;
        picture.insert(path.clone(), seen);
        if is_directory {
            look(service, ino, &path, picture);
        }
        service.forget(ino, 1);
    }
}

fn names(service: &dyn FileService, directory: Ino) -> Vec<Vec<u8>> {
    let entries = service.read_directory(directory, 0, 10_000, Listing::Names).expect("lists");
    entries.into_iter().map(|entry| entry.name).filter(|name| name != b"." && name != b"..").collect()
}

fn read(service: &dyn FileService, ino: Ino) -> Vec<u8> {
    let how = OpenOptions { read: true, ..OpenOptions::default() };
    let handle = service.open(CALLER, ino, how).expect("opens").handle;
    let mut bytes = Vec::new();
    service.read(ino, handle, 0, 1 << 30, &mut bytes).expect("reads");
    service.release(ino, handle);
    bytes
}

/// Deterministic random choices.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }

    /// Returns content made mostly of pieces that were used before.
    pub fn content(&mut self) -> Vec<u8> {
        let pieces = 1 + self.below(4);
        let mut bytes = Vec::new();
        for _ in 0..pieces {
            let mut piece = Self(1 + self.below(40));
            let len = 1 + piece.below(40_000);
            bytes.extend((0..len).map(|_| piece.below(256) as u8));
        }
        bytes
    }
}

/// Chooses the directory for a random step: the root or one below it.
fn some_directory(service: &dyn FileService, random: &mut Random) -> Ino {
    let name = format!("dir {}", random.below(3));
    if random.below(3) == 0 {
        return ROOT_INO;
    }
    let found = service.lookup(ROOT_INO, name.as_bytes());
    found.ok().filter(|found| found.kind == FileKind::Directory).map_or(ROOT_INO, |found| found.ino)
}

/// Makes one random change of the tree. Many steps change nothing, because there is no such file.
pub fn step(pool: &Pool, random: &mut Random) {
    let service = pool.service();
    let service: &dyn FileService = &*service;
    let (parent, other) = (some_directory(service, random), some_directory(service, random));
    let name = format!("file {}", random.below(8)).into_bytes();
    let second = format!("file {}", random.below(8)).into_bytes();
    let node = NewNode { parent, name: &name, mode: 0o640, umask: 0 };
    match random.below(12) {
        0..=3 => store(service, parent, &name, &random.content()),
        4 => {
            let directory = format!("dir {}", random.below(3));
            let node = NewNode { parent: ROOT_INO, name: directory.as_bytes(), mode: 0o755, umask: 0 };
            let _there_already = service.make(CALLER, node, NodeContent::Directory);
        }
        5 => {
            let target = vec![b'x'; 1 + random.below(300) as usize];
            let _there_already = service.make(CALLER, node, NodeContent::Symlink(&target));
        }
        6 | 7 => {
            let _may_not_be_there = service.rename(parent, &name, other, &second, RenameFlags::default());
        }
        8 => {
            let Ok(found) = service.lookup(parent, &name) else { return };
            if found.kind != FileKind::Directory {
                let _there_already = service.link(found.ino, other, &second);
            }
        }
        9 => {
            let Ok(found) = service.lookup(parent, &name) else { return };
            let value = random.content();
            let value = &value[..value.len().min(3000)];
            let attribute = format!("user.{}", random.below(3));
            if random.below(4) == 0 {
                let _may_not_be_there = service.remove_xattr(found.ino, attribute.as_bytes());
            } else {
                let _on_some_kinds = service.set_xattr(CALLER, found.ino, attribute.as_bytes(), value, XattrMode::Any);
            }
            let flags = InodeFlags { no_dump: value.len().is_multiple_of(2), ..InodeFlags::default() };
            let _of_files_and_directories = service.set_flags(CALLER, found.ino, flags);
            let _any = service.set_attributes(
                CALLER,
                found.ino,
                AttributeChanges { mode: Some(0o600), ..AttributeChanges::default() },
            );
        }
        _ => {
            let _may_not_be_there = service.unlink(parent, &name);
        }
    }
}

fn store(service: &dyn FileService, parent: Ino, name: &[u8], bytes: &[u8]) {
    let how = OpenOptions { write: true, truncate: true, ..OpenOptions::default() };
    let node = NewNode { parent, name, mode: 0o644, umask: 0 };
    let (ino, handle) = match service.lookup(parent, name) {
        Ok(found) if found.kind == FileKind::Regular => {
            (found.ino, service.open(CALLER, found.ino, how).expect("opens").handle)
        }
        Ok(_) => return,
        Err(_) => {
            let (attributes, opened) = service.create(CALLER, node, how).expect("creates");
            (attributes.ino, opened.handle)
        }
    };
    for (number, piece) in bytes.chunks(50_000).enumerate() {
        let offset = (number * 50_000) as u64;
        service.write(CALLER, ino, handle, offset, piece, WriteFlags::default()).expect("writes");
    }
    service.flush(ino, handle).expect("checkpoints");
    service.release(ino, handle);
}
