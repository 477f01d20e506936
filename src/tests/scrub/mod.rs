//! Scrubbing, quarantine and healing of whole pools.

mod beside;
mod crash;
mod flips;
mod heal;
mod quarantine;
mod repair;

use std::sync::Arc;

use dedupfs::check::{CheckOptions, CheckReport};
use dedupfs::reclaim::{ReclaimOptions, ReclaimReport};
use dedupfs::scrub::{ScrubOptions, ScrubReport};
use dedupfs::{NoProgress, OpenOptions as PoolOptions, Pool, format_on};
use dedupfs_store::container::Compression;
use dedupfs_store::device::{Device, MemoryDevice, OpenMode};
use dedupfs_store::superblock::PoolProperties;

pub(crate) const CONTAINER_BYTES: u64 = 256 << 10;

pub(crate) fn formatted(compression: Compression) -> Arc<dyn Device> {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::new());
    format(&device, compression);
    device
}

pub(crate) fn format(device: &Arc<dyn Device>, compression: Compression) {
    let properties = PoolProperties {
        chunk_size_bytes: 4096,
        container_bytes: CONTAINER_BYTES as u32,
        slots_per_file: 16,
        tanker_cells: 256,
        tanker_buckets: 4,
        compression,
        ..PoolProperties::default()
    };
    format_on(device, device, b".".to_vec(), &properties, (0, 0)).expect("formats");
}

pub(crate) fn open(device: &Arc<dyn Device>) -> Arc<Pool> {
    open_with(device, &PoolOptions::default())
}

pub(crate) fn open_with(device: &Arc<dyn Device>, options: &PoolOptions) -> Arc<Pool> {
    Pool::open_on(device, device, Vec::new(), options, &NoProgress).expect("opens")
}

pub(crate) fn scrub(pool: &Pool) -> ScrubReport {
    let report = pool.scrub(&ScrubOptions { restart: true, ..ScrubOptions::default() }, &NoProgress).expect("scrubs");
    assert!(report.finished);
    report
}

pub(crate) fn check(pool: &Pool) -> CheckReport {
    pool.check(&CheckOptions { read_data: true, ..CheckOptions::default() }, &NoProgress).expect("checks")
}

pub(crate) fn reclaim(pool: &Pool) -> ReclaimReport {
    pool.reclaim(&ReclaimOptions::below(100), &NoProgress).expect("reclaims")
}

/// Returns all names of affected files.
pub(crate) fn affected(report: &ScrubReport) -> Vec<String> {
    let mut paths: Vec<String> = report.affected.files.iter().flat_map(|file| file.paths.clone()).collect();
    paths.sort();
    paths
}

/// Changes all files of a directory.
pub(crate) fn change(device: &Arc<dyn Device>, directory: &str, change: &mut dyn FnMut(&mut Vec<u8>)) {
    let mut names: Vec<String> = device.list(directory).expect("lists").into_iter().map(|entry| entry.name).collect();
    names.sort();
    for name in names {
        let path = format!("{directory}/{name}");
        let mut bytes = device.read_file(&path, 1 << 30).expect("reads");
        change(&mut bytes);
        let file = device.open(&path, OpenMode::Write).expect("opens");
        file.write_at(&bytes, 0).expect("writes");
        file.sync().expect("syncs");
    }
}

/// Gives the copies of recipe containers the bytes of the containers, with their damage: nothing can be repaired.
pub(crate) fn spoil_copies(device: &Arc<dyn Device>) {
    for entry in device.list("recipes").expect("lists") {
        let bytes = device.read_file(&format!("recipes/{}", entry.name), 1 << 30).expect("reads");
        let file = device.open(&format!("export/recipes/{}", entry.name), OpenMode::Write).expect("opens");
        file.write_at(&bytes, 0).expect("writes");
        file.sync().expect("syncs");
    }
}

/// Pseudo-random numbers.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) % bound
    }
}
