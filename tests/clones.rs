//! Clones beside reclaiming and each other: shared content is never freed, and counts equal marks (invariant I-4).

#[path = "common/beside.rs"]
mod beside;
mod common;

use std::sync::Arc;

use beside::beside_reclaiming;
use common::{CALLER, content, read, write};
use dedupfs::check::CheckOptions;
use dedupfs::reclaim::ReclaimOptions;
use dedupfs::{NoProgress, OpenOptions as PoolOptions, Pool, format_on};
use dedupfs_service::{Errno, FilePlace, FileService, Handle, Ino, NewNode, OpenOptions, ROOT_INO, WriteFlags};
use dedupfs_store::device::{Device, MemoryDevice};
use dedupfs_store::superblock::PoolProperties;

const WORKERS: u64 = 3;
const ROUNDS: u64 = 150;
/// Files that each worker has at the same time.
const FILES: u64 = 4;
const FILE_BYTES_MAX: usize = 8 << 20;
const READ_WRITE: OpenOptions = OpenOptions {
    read: true,
    write: true,
    append: false,
    truncate: false,
    sync: false,
    no_access_time: false,
    direct: false,
};

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 8) % bound
    }
}

/// A file that stays open, with a name or without one.
struct File {
    ino: Ino,
    handle: Handle,
    name: Vec<u8>,
    expected: Vec<u8>,
}

impl File {
    fn new(service: &dyn FileService, name: String, expected: Vec<u8>) -> Self {
        let name = name.into_bytes();
        let node = NewNode { parent: ROOT_INO, name: &name, mode: 0o644, umask: 0 };
        let (attributes, opened) = service.create(CALLER, node, READ_WRITE).expect("creates");
        let file = Self { ino: attributes.ino, handle: opened.handle, name, expected };
        for (number, piece) in file.expected.chunks(1 << 20).enumerate() {
            let offset = (number << 20) as u64;
            service.write(CALLER, file.ino, file.handle, offset, piece, WriteFlags::default()).expect("writes");
        }
        file
    }

    fn place(&self, offset: usize) -> FilePlace {
        FilePlace { ino: self.ino, handle: self.handle, offset: offset as u64 }
    }

    fn check(&self, service: &dyn FileService, what: &str) {
        let mut read = Vec::new();
        service.read(self.ino, self.handle, 0, 1 << 30, &mut read).expect("reads");
        assert!(read == self.expected, "{} {what}", String::from_utf8_lossy(&self.name));
    }

    /// Removes the name. The content of a file without a name goes with its last reference.
    fn remove(self, service: &dyn FileService) {
        service.unlink(ROOT_INO, &self.name).expect("unlinks");
        service.release(self.ino, self.handle);
        service.forget(self.ino, 1);
    }
}

fn work(service: &dyn FileService, worker: u64, contents: &[Vec<u8>]) {
    let mut random = Random(worker * 7919 + 1);
    let mut names = 0;
    let mut new = |random: &mut Random| {
        names += 1;
        let mut expected = contents[random.below(contents.len() as u64) as usize].clone();
        let len = [3_000, 100_000, expected.len() as u64][random.below(3) as usize];
        expected.truncate(1 + random.below(len) as usize);
        File::new(service, format!("worker {worker} file {names}"), expected)
    };
    let mut files: Vec<File> = (0..FILES).map(|_| new(&mut random)).collect();
    for round in 0..ROUNDS {
        let (from, to) = (random.below(FILES) as usize, random.below(FILES) as usize);
        if random.below(3) == 0 {
            service.flush(files[from].ino, files[from].handle).expect("flushes");
        }
        let size = files[from].expected.len();
        let whole = random.below(3) == 0;
        let at = if whole { 0 } else { random.below(size as u64) as usize };
        let onto = if whole { 0 } else { random.below(files[to].expected.len() as u64 + 1) as usize };
        let len = if whole { size } else { 1 + random.below((size - at) as u64) as usize };
        let copied = service.copy_range(CALLER, files[from].place(at), files[to].place(onto), len as u64);
        if from == to && at.abs_diff(onto) < len {
            assert_eq!(copied, Err(Errno::EINVAL));
        } else {
            assert_eq!(copied, Ok(len as u32));
            let copy = files[from].expected[at..at + len].to_vec();
            let expected = &mut files[to].expected;
            expected.resize(expected.len().max(onto + len), 0);
            expected[onto..onto + len].copy_from_slice(&copy);
        }
        if random.below(3) == 0 || files[from].expected.len() > FILE_BYTES_MAX {
            let fresh = new(&mut random);
            std::mem::replace(&mut files[from], fresh).remove(service);
        }
        if random.below(4) == 0 {
            let file = &mut files[to];
            let patch = [round as u8; 100];
            let offset = random.below(file.expected.len() as u64) as usize;
            service.write(CALLER, file.ino, file.handle, offset as u64, &patch, WriteFlags::default()).expect("writes");
            file.expected.resize(file.expected.len().max(offset + patch.len()), 0);
            file.expected[offset..offset + patch.len()].copy_from_slice(&patch);
        }
        files[to].check(service, &format!("in round {round}"));
    }
    for file in files {
        file.check(service, "at the end");
        service.flush(file.ino, file.handle).expect("flushes");
        if random.below(2) == 0 {
            file.remove(service);
        } else {
            service.release(file.ino, file.handle);
            service.forget(file.ino, 1);
        }
    }
}

fn pool() -> (Arc<dyn Device>, Arc<Pool>) {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::new());
    let properties = PoolProperties {
        chunk_size_bytes: 4096,
        container_bytes: 256 << 10,
        slots_per_file: 8,
        // Always full, so that checkpoints are written in parallel.
        tanker_cells: 64,
        tanker_buckets: 4,
        ..PoolProperties::default()
    };
    format_on(&device, &device, b".".to_vec(), &properties, (0, 0)).expect("formats");
    let pool = open(&device);
    (device, pool)
}

fn open(device: &Arc<dyn Device>) -> Arc<Pool> {
    Pool::open_on(device, device, Vec::new(), &PoolOptions::default(), &NoProgress).expect("opens")
}

fn assert_clean(pool: &Pool) {
    let report = pool.check(&CheckOptions { read_data: true, ..CheckOptions::default() }, &NoProgress).expect("checks");
    assert!(report.is_clean(), "{:#?}", report.findings);
}

#[test]
fn clones_beside_reclaiming() {
    let (device, pool) = pool();
    let contents: Vec<Vec<u8>> = (0..4).map(|seed| content(seed, 3 << 20)).collect();
    beside_reclaiming(&pool, WORKERS, |service, worker| work(service, worker, &contents));
    pool.close().expect("closes");
    drop(pool);
    let pool = open(&device);
    assert_clean(&pool);
    pool.close().expect("closes");
}

/// Two copies in opposite directions: each of them locks both files.
#[test]
fn two_files_cloned_onto_each_other_at_once() {
    let (_device, pool) = pool();
    let service = pool.service();
    let data = content(9, 2 << 20);
    let files = ["one", "other"].map(|name| File::new(&*service, name.to_owned(), data.clone()));
    std::thread::scope(|scope| {
        for (from, to) in [(0, 1), (1, 0)] {
            let (service, files) = (&service, &files);
            scope.spawn(move || {
                for turn in 0..200 {
                    let (at, len) = (turn * 1000, 1_500_000);
                    let copied = service.copy_range(CALLER, files[from].place(at), files[to].place(at), len);
                    assert_eq!(copied, Ok(1_500_000));
                }
            });
        }
    });
    files.iter().for_each(|file| file.check(&*service, "cloned onto its equal"));
    pool.close().expect("closes");
}

/// A clone keeps the shared content after its source is removed, and after a power loss.
#[test]
fn a_clone_is_as_durable_as_a_copy() {
    let device = MemoryDevice::new();
    let shared: Arc<dyn Device> = Arc::new(device.clone());
    format_on(&shared, &shared, b".".to_vec(), &PoolProperties::default(), (0, 0)).expect("formats");
    let pool = open(&shared);
    let data = content(10, 9 << 20);
    write(&pool, "source", &data);
    write(&pool, "small", &data[..1000]);
    let service = pool.service();
    for (source, target, len) in [("source", "copy", data.len()), ("small", "small copy", 1000)] {
        let ino = service.lookup(ROOT_INO, source.as_bytes()).expect("is there").ino;
        let handle = service.open(CALLER, ino, READ_WRITE).expect("opens").handle;
        let copy = File::new(&*service, target.to_owned(), Vec::new());
        let from = FilePlace { ino, handle, offset: 0 };
        assert_eq!(service.copy_range(CALLER, from, copy.place(0), 1 << 40), Ok(len as u32));
        service.fsync(copy.ino, copy.handle).expect("syncs");
    }
    let crashed: Arc<dyn Device> = Arc::new(device.crash(3));
    let pool = open(&crashed);
    assert_clean(&pool);
    assert!(read(&pool, "copy").as_deref() == Some(&data));
    assert!(read(&pool, "small copy").as_deref() == Some(&data[..1000]));
    pool.close().expect("closes");
}

/// No root names the shared nodes yet: only pins keep them.
#[test]
fn what_a_clone_shares_stays_before_the_clone_is_published() {
    let (_device, pool) = pool();
    let service = pool.service();
    let data = content(11, 9 << 20);
    let source = File::new(&*service, "source".to_owned(), data.clone());
    service.fsync(source.ino, source.handle).expect("syncs");
    let mut copy = File::new(&*service, "copy".to_owned(), Vec::new());
    let copied = service.copy_range(CALLER, source.place(0), copy.place(0), 1 << 40);
    assert_eq!(copied, Ok(data.len() as u32));
    copy.expected = data;
    source.remove(&*service);
    pool.reclaim(&ReclaimOptions::below(100), &NoProgress).expect("reclaims");
    copy.check(&*service, "behind its source");
    service.fsync(copy.ino, copy.handle).expect("syncs");
    assert_clean(&pool);
    service.release(copy.ino, copy.handle);
    pool.close().expect("closes");
}
