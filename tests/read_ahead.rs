//! Sequential readers are kept ahead, however scattered their content and however small the cache.

mod common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use dedupfs::config::MEMORY_BYTES_MIN;
use dedupfs::{NoProgress, OpenOptions as PoolOptions, Pool, format_on};
use dedupfs_service::{FileService, OpenOptions, ROOT_INO};
use dedupfs_store::device::{Device, MemoryDevice};
use dedupfs_store::superblock::PoolProperties;

use common::{CALLER, content, read, write};

const REGION_BYTES: usize = 256 << 10;
/// More regions than the smallest cache holds.
const REGIONS: usize = 97;
const PIECE_BYTES: usize = 64 << 10;
/// Each read begins or ends within a piece, because the chunks at the border of two pieces were new.
const READ_BYTES: usize = PIECE_BYTES / 2;

fn open(device: &Arc<dyn Device>) -> Arc<Pool> {
    let options = PoolOptions { memory_bytes: MEMORY_BYTES_MIN, ..PoolOptions::default() };
    Pool::open_on(device, device, Vec::new(), &options, &NoProgress).expect("opens")
}

/// Reads the file from its beginning. Before each read but the first, waits until the read would find everything in
/// memory. Also returns how many waits failed: now and then a region is pushed out.
fn read_when_it_is_there(pool: &Pool, name: &str) -> (Vec<u8>, usize) {
    let service = pool.service();
    let attributes = service.lookup(ROOT_INO, name.as_bytes()).expect("is there");
    let how = OpenOptions { read: true, ..OpenOptions::default() };
    let handle = service.open(CALLER, attributes.ino, how).expect("opens").handle;
    let (mut bytes, mut in_vain) = (Vec::new(), 0);
    while bytes.len() < attributes.size_bytes as usize {
        let (offset, deadline) = (bytes.len() as u64, Instant::now() + Duration::from_secs(1));
        while offset > 0 && !service.read_is_quick(attributes.ino, handle, offset, READ_BYTES as u32) {
            if Instant::now() > deadline {
                in_vain += 1;
                break;
            }
            std::thread::sleep(Duration::from_micros(100));
        }
        let mut read = Vec::new();
        service.read(attributes.ino, handle, offset, READ_BYTES as u32, &mut read).expect("reads");
        bytes.append(&mut read);
    }
    service.release(attributes.ino, handle);
    service.forget(attributes.ino, 1);
    (bytes, in_vain)
}

/// A file of many generations asked for more regions at once than the cache had space for. The refused regions were
/// never asked for again, so the reader fetched them one by one.
#[test]
fn regression_what_there_was_no_room_for_is_asked_for_again() {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::new());
    format_on(&device, &device, b".".to_vec(), &PoolProperties::default(), (0, 0)).expect("formats");
    let pool = open(&device);
    let first = content(1, REGIONS * REGION_BYTES);
    // A part of each region, in scattered order.
    let parts = (0..REGIONS).map(|number| number * 37 % REGIONS * REGION_BYTES);
    let scattered: Vec<_> = parts.flat_map(|at| first[at..at + PIECE_BYTES].iter().copied()).collect();
    write(&pool, "first", &first);
    write(&pool, "scattered", &scattered);
    pool.close().expect("closes");
    drop(pool);
    let pool = open(&device);
    let (read_back, in_vain) = read_when_it_is_there(&pool, "scattered");
    assert!(read_back == scattered);
    assert!(in_vain < REGIONS / 8, "{in_vain} of {REGIONS} regions were not loaded ahead");
    assert!(read(&pool, "first") == Some(first));
    pool.close().expect("closes");
}
