//! Pools on disks of limited size, and writers that fill them.

use std::collections::HashMap;
use std::sync::Arc;

use dedupfs::check::CheckOptions;
use dedupfs::config::MEMORY_BYTES_MIN;
use dedupfs::{NoProgress, OpenOptions as PoolOptions, Pool, format_on};
use dedupfs_service::{Caller, Errno, FilePlace, FileService, NewNode, OpenOptions, ROOT_INO, WriteFlags};
use dedupfs_store::device::{Device, MemoryDevice};
use dedupfs_store::superblock::PoolProperties;

use crate::tests::common::content;

pub const MIB: u64 = 1 << 20;

pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 8) % bound
    }
}

/// A pool on disks of limited size: data and meta, which may be the same.
pub struct Site {
    pub data: MemoryDevice,
    pub meta: MemoryDevice,
    is_one: bool,
}

impl Site {
    pub fn one(bytes: u64) -> Self {
        let disk = MemoryDevice::with_capacity(bytes);
        Self { data: disk.clone(), meta: disk, is_one: true }.formatted()
    }

    pub fn two(data_bytes: u64, meta_bytes: u64) -> Self {
        let (data, meta) = (MemoryDevice::with_capacity(data_bytes), MemoryDevice::with_capacity(meta_bytes));
        Self { data, meta, is_one: false }.formatted()
    }

    fn formatted(self) -> Self {
        let properties = PoolProperties { container_bytes: 1 << 20, slots_per_file: 16, ..PoolProperties::default() };
        let data_root = if self.is_one { b".".to_vec() } else { b"/data".to_vec() };
        let (meta, data) = self.devices();
        format_on(&meta, &data, data_root, &properties, (0, 0)).expect("formats");
        self
    }

    pub fn open_with(&self, options: &PoolOptions) -> dedupfs::Result<Arc<Pool>> {
        let (meta, data) = self.devices();
        Pool::open_on(&meta, &data, Vec::new(), options, &NoProgress)
    }

    pub fn open(&self) -> Arc<Pool> {
        self.open_with(&options()).expect("opens")
    }

    /// Returns meta and data: the same device if the pool has one root.
    fn devices(&self) -> (Arc<dyn Device>, Arc<dyn Device>) {
        let meta: Arc<dyn Device> = Arc::new(self.meta.clone());
        let data: Arc<dyn Device> = if self.is_one { meta.clone() } else { Arc::new(self.data.clone()) };
        (meta, data)
    }

    /// Returns the site after a power loss.
    pub fn crash(&self, seed: u64) -> Self {
        let meta = self.meta.crash(seed);
        let data = if self.is_one { meta.clone() } else { self.data.crash(seed + 1) };
        Self { data, meta, is_one: self.is_one }
    }
}

pub fn options() -> PoolOptions {
    PoolOptions { memory_bytes: MEMORY_BYTES_MIN, ..PoolOptions::default() }
}

/// Files with their acknowledged content, as their writers believe them.
pub type Files = HashMap<String, Vec<u8>>;

pub fn caller(writer: u32) -> Caller {
    Caller { uid: 0, gid: 0, pid: 100 + writer }
}

pub fn handle_of(service: &dyn FileService, writer: u32, name: &str) -> Result<(u64, u64), Errno> {
    let how = OpenOptions { read: true, write: true, ..OpenOptions::default() };
    let node = NewNode { parent: ROOT_INO, name: name.as_bytes(), mode: 0o644, umask: 0 };
    service.create(caller(writer), node, how).map(|(attributes, opened)| (attributes.ino, opened.handle))
}

pub fn remove(service: &dyn FileService, name: &str) {
    service.unlink(ROOT_INO, name.as_bytes()).expect("deleting works on a full disk");
}

/// Calls copy_file_range(2) on the file `source`.
pub fn clone_range(
    service: &dyn FileService,
    source: &str,
    at: usize,
    (ino, handle): (u64, u64),
    onto: usize,
    len_bytes: u64,
) -> Result<u32, Errno> {
    let from = service.lookup(ROOT_INO, source.as_bytes()).expect("is there").ino;
    let how = OpenOptions { read: true, ..OpenOptions::default() };
    let opened = service.open(Caller::default(), from, how).expect("opens").handle;
    let from_place = FilePlace { ino: from, handle: opened, offset: at as u64 };
    let copied =
        service.copy_range(Caller::default(), from_place, FilePlace { ino, handle, offset: onto as u64 }, len_bytes);
    service.release(from, opened);
    service.forget(from, 1);
    copied
}

/// Writes files until the disk was full a few times; returns those that were wholly acknowledged.
pub fn fill(pool: &Pool, writer: u32, seed: u64, largest: u64) -> Files {
    let service = pool.service();
    let service: &dyn FileService = &*service;
    let mut random = Random::new(seed * 31 + u64::from(writer));
    let (mut files, mut refused) = (Files::new(), 0);
    let mut last: Option<String> = None;
    for number in 0.. {
        if refused >= 3 {
            break;
        }
        let name = format!("{seed} {writer} {number}");
        let (ino, handle) = match handle_of(service, writer, &name) {
            Ok(made) => made,
            Err(error) => {
                assert_eq!(error, Errno::ENOSPC, "{name}");
                refused += 1;
                continue;
            }
        };
        let bound = if random.below(3) == 0 { 9000 } else { largest };
        let len = 1 + random.below(bound) as usize;
        // Some of the data is known already, to this writer or to others.
        let origin = if random.below(3) == 0 { random.below(4) } else { seed << 20 | u64::from(writer) << 16 | number };
        let mut data = content(origin, len);
        let write = |offset: u64, data: &[u8]| -> Result<(), Errno> {
            for (number, piece) in data.chunks(128 << 10).enumerate() {
                let at = offset + (number as u64 * (128 << 10));
                service.write(caller(writer), ino, handle, at, piece, WriteFlags::default())?;
            }
            Ok(())
        };
        let mut outcome = write(0, &data);
        if outcome.is_ok() && random.below(3) == 0 {
            for _ in 0..random.below(20) {
                let at = random.below(data.len() as u64) as usize;
                let patch = content(number ^ at as u64, (1 + random.below(5000) as usize).min(data.len() - at));
                outcome = write(at as u64, &patch);
                if outcome.is_err() {
                    break;
                }
                data[at..at + patch.len()].copy_from_slice(&patch);
            }
        }
        // A part of another file is shared, or copied if it is short.
        if outcome.is_ok()
            && random.below(3) == 0
            && let Some((source, bytes)) = last.as_ref().and_then(|name| files.get_key_value(name))
        {
            let at = random.below(bytes.len() as u64) as usize;
            let len = 1 + random.below((bytes.len() - at) as u64) as usize;
            let onto = random.below(data.len() as u64 + 1) as usize;
            outcome = clone_range(service, source, at, (ino, handle), onto, len as u64).map(|copied| {
                assert_eq!(copied as usize, len, "of {source} onto {name}");
                data.resize(data.len().max(onto + len), 0);
                data[onto..onto + len].copy_from_slice(&bytes[at..at + len]);
            });
        }
        let is_taken = outcome.is_ok();
        if is_taken && random.below(4) == 0 {
            // Every write was taken, so the file can be made durable.
            service.fsync(ino, handle).unwrap_or_else(|error| panic!("fsync of {name}: {error:?}"));
        }
        let flushed = service.flush(ino, handle);
        service.release(ino, handle);
        service.forget(ino, 1);
        match outcome {
            Ok(()) => {
                flushed.unwrap_or_else(|error| panic!("{name} was taken, and its flush says {error:?}"));
                last = Some(name.clone());
                files.insert(name, data);
            }
            Err(error) => {
                assert_eq!(error, Errno::ENOSPC, "{name}");
                refused += 1;
                remove(service, &name);
            }
        }
    }
    files
}

pub fn assert_files(pool: &Pool, files: &Files, when: &str) {
    let service = pool.service();
    for (name, expected) in files {
        let attributes =
            service.lookup(ROOT_INO, name.as_bytes()).unwrap_or_else(|error| panic!("{when}: {name}: {error:?}"));
        let how = OpenOptions { read: true, ..OpenOptions::default() };
        let handle = service.open(Caller::default(), attributes.ino, how).expect("opens").handle;
        let mut bytes = Vec::new();
        service
            .read(attributes.ino, handle, 0, 1 << 30, &mut bytes)
            .unwrap_or_else(|error| panic!("{when}: {name}: {error:?}"));
        assert!(bytes == *expected, "{when}: {name} has other content");
        service.release(attributes.ino, handle);
        service.forget(attributes.ino, 1);
    }
}

pub fn assert_sound(pool: &Pool, when: &str) {
    let report = pool.check(&CheckOptions::default(), &NoProgress).expect("checks");
    assert_eq!(report.finding_count, 0, "{when}: {:?}", report.findings);
    assert_eq!(
        pool.core().committer.rounds_without_space(),
        0,
        "{when}: something was taken that could not be committed"
    );
}

pub fn write_at(pool: &Pool, ino: u64, handle: u64, offset: u64, data: &[u8]) -> Result<(), Errno> {
    pool.service().write(caller(1), ino, handle, offset, data, WriteFlags::default()).map(drop)
}
