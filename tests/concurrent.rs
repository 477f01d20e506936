//! Writers beside reclaiming: no chunk that a file needs is ever freed, and counts equal marks (invariant I-4).
//!
//! All writers draw from the same few contents, so that they find each other's chunks and segments while reclaiming
//! claims and frees them. Files are patched, read back and appended to while they are open, and removed again.

#[path = "common/beside.rs"]
mod beside;

use std::sync::Arc;

use beside::beside_reclaiming;
use dedupfs::check::CheckOptions;
use dedupfs::{NoProgress, OpenOptions as PoolOptions, Pool, format_on};
use dedupfs_service::{Caller, FileService, NewNode, OpenOptions, ROOT_INO, WriteFlags};
use dedupfs_store::device::{Device, MemoryDevice};
use dedupfs_store::superblock::PoolProperties;

const WRITERS: u64 = 3;
const ROUNDS: u64 = 300;

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

/// Returns one of a few contents: 3 MiB, more than a segment on average.
fn content(number: u64) -> Vec<u8> {
    let mut random = Random(number + 1);
    (0..3 << 17).flat_map(|_| random.below(u64::MAX).to_le_bytes()).collect()
}

fn write(service: &dyn FileService, ino: u64, handle: u64, offset: u64, data: &[u8]) {
    let caller = Caller { uid: 0, gid: 0, pid: u32::try_from(ino).unwrap_or(1) };
    for (number, piece) in data.chunks(1 << 20).enumerate() {
        let at = offset + (number << 20) as u64;
        service.write(caller, ino, handle, at, piece, WriteFlags::default()).expect("writes");
    }
}

fn work(service: &dyn FileService, writer: u64, contents: &[Vec<u8>]) {
    let mut random = Random(writer * 7919 + 1);
    let how = OpenOptions { read: true, write: true, ..OpenOptions::default() };
    for round in 0..ROUNDS {
        let name = format!("writer {writer} round {round}").into_bytes();
        let node = NewNode { parent: ROOT_INO, name: &name, mode: 0o644, umask: 0 };
        let (attributes, opened) = service.create(Caller::default(), node, how).expect("creates");
        let ino = attributes.ino;
        let mut expected = contents[random.below(contents.len() as u64) as usize].clone();
        expected.truncate(1 + random.below(expected.len() as u64) as usize);
        write(service, ino, opened.handle, 0, &expected);
        if random.below(2) == 0 {
            // A patched header ends the stream; an append then continues a segment that no root names yet.
            let patch = [round as u8; 100];
            let len = patch.len().min(expected.len());
            write(service, ino, opened.handle, 0, &patch[..len]);
            expected[..len].copy_from_slice(&patch[..len]);
        }
        if random.below(2) == 0 {
            let more = &contents[random.below(contents.len() as u64) as usize][..200_000];
            write(service, ino, opened.handle, expected.len() as u64, more);
            expected.extend_from_slice(more);
        }
        let mut read = Vec::new();
        service.read(ino, opened.handle, 0, 1 << 30, &mut read).expect("reads");
        assert!(read == expected, "open file of writer {writer}, round {round}");
        service.flush(ino, opened.handle).expect("flushes");
        service.release(ino, opened.handle);
        let handle = service.open(Caller::default(), ino, how).expect("opens").handle;
        read.clear();
        service.read(ino, handle, 0, 1 << 30, &mut read).expect("reads again");
        assert!(read == expected, "closed file of writer {writer}, round {round}");
        service.release(ino, handle);
        if random.below(4) != 0 {
            service.unlink(ROOT_INO, &name).expect("unlinks");
        }
        service.forget(ino, 1);
    }
}

#[test]
fn writers_beside_reclaiming() {
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
    let pool = Pool::open_on(&device, &device, Vec::new(), &PoolOptions::default(), &NoProgress).expect("opens");
    let contents: Vec<Vec<u8>> = (0..4).map(content).collect();
    beside_reclaiming(&pool, WRITERS, |service, writer| work(service, writer, &contents));
    let report = pool.check(&CheckOptions { read_data: true, ..CheckOptions::default() }, &NoProgress).expect("checks");
    assert!(report.is_clean(), "{:#?}", report.findings);
    pool.close().expect("closes");
}

/// A write that was acknowledged while the pool was being closed is there afterwards.
#[test]
fn regression_closing_loses_no_acknowledged_write() {
    for round in 0..20 {
        let device: Arc<dyn Device> = Arc::new(MemoryDevice::new());
        format_on(&device, &device, b".".to_vec(), &PoolProperties::default(), (0, 0)).expect("formats");
        let open = || Pool::open_on(&device, &device, Vec::new(), &PoolOptions::default(), &NoProgress).expect("opens");
        let pool = open();
        let service = pool.service();
        let created = std::sync::Barrier::new(WRITERS as usize + 1);
        let acknowledged: Vec<u64> = std::thread::scope(|scope| {
            let writers: Vec<_> = (0..WRITERS)
                .map(|writer| {
                    let (service, created) = (service.clone(), &created);
                    scope.spawn(move || {
                        let name = format!("{writer}").into_bytes();
                        let node = NewNode { parent: ROOT_INO, name: &name, mode: 0o644, umask: 0 };
                        let how = OpenOptions { write: true, ..OpenOptions::default() };
                        let (attributes, opened) = service.create(Caller::default(), node, how).expect("creates");
                        let (ino, handle) = (attributes.ino, opened.handle);
                        created.wait();
                        let mut written = 0;
                        while service
                            .write(Caller::default(), ino, handle, written, &[7; 1000], WriteFlags::default())
                            .is_ok()
                        {
                            written += 1000;
                        }
                        written
                    })
                })
                .collect();
            created.wait();
            std::thread::sleep(std::time::Duration::from_millis(round));
            pool.close().expect("closes");
            writers.into_iter().map(|writer| writer.join().expect("ends")).collect()
        });
        drop((service, pool));
        let pool = open();
        for (writer, written) in acknowledged.iter().enumerate() {
            let attributes = pool.service().lookup(ROOT_INO, format!("{writer}").as_bytes()).expect("is there");
            assert_eq!(attributes.size_bytes, *written, "writer {writer} of round {round}");
        }
        pool.close().expect("closes");
    }
}
