//! The tables of MAD2's evaluation (section IV), made with this index.
//!
//! ```text
//! cargo bench -p dedupfs-index --bench mad2 -- imbalance
//! cargo bench -p dedupfs-index --bench mad2 -- throughput --dir /var/tmp --millions 8
//! cargo bench -p dedupfs-index --bench mad2 -- ram --dir /var/tmp --millions 16
//! ```
//!
//! - `imbalance`: figure 4, and the cost of imbalance with buckets of variable length;
//! - `throughput`: fingerprints deduplicated in a second (section IV.E), looked up, staged and applied as the write
//!   path does;
//! - `ram`: memory for 10 TB (section IV.F), by formula and from an index of this machine.
//!
//! Tables are Markdown. Fingerprints are synthetic. All files lie below `--dir` and are removed at the end.
#![expect(clippy::unwrap_used, reason = "a benchmark fails by panicking")]

mod imbalance;
mod ram;
mod throughput;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use dedupfs_index::{Change, ContainerTables, Index, IndexOptions, Location};
use dedupfs_store::device::{Device, FileDevice};
use dedupfs_store::{ContainerId, Fingerprint, PoolId};

const POOL: PoolId = PoolId([1; 16]);
const DIRECTORY: &str = "index";
pub(crate) const MILLION: u64 = 1 << 20;
pub(crate) const CHUNKS_PER_CONTAINER: u64 = 512;
const ROW: u64 = 1 << 16;
/// Bytes of a cell in a bucket.
pub(crate) const CELL_BYTES: f64 = 44.0;

/// A fingerprint of a number: splitmix64, as uniform as a hash.
pub(crate) fn fingerprint(number: u64) -> Fingerprint {
    let mut bytes = [0; 32];
    let mut state = number.wrapping_mul(0xd129_0d3c_8b2a_71e5) ^ 0x5851_f42d_4c95_7f2d;
    for word in bytes.chunks_exact_mut(8) {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word.copy_from_slice(&(mixed ^ (mixed >> 31)).to_le_bytes());
    }
    Fingerprint(bytes)
}

/// Number *n* is chunk *n* mod 512 of container *n* / 512.
pub(crate) fn location(number: u64) -> Location {
    Location::new(ContainerId(1 + number / CHUNKS_PER_CONTAINER), 4096)
}

struct Tables;

impl ContainerTables for Tables {
    fn read_table(
        &self,
        container: ContainerId,
        each: &mut dyn FnMut(Fingerprint, u32),
    ) -> dedupfs_store::Result<bool> {
        let first = (container.0 - 1) * CHUNKS_PER_CONTAINER;
        (first..first + CHUNKS_PER_CONTAINER).for_each(|number| each(fingerprint(number), 4096));
        Ok(true)
    }
}

/// An index on disk, with its directory.
pub(crate) struct Made {
    pub(crate) index: Arc<Index>,
    pub(crate) row: u64,
    _home: tempfile::TempDir,
}

/// Makes an index of the first `stored` fingerprints and opens it anew.
pub(crate) fn made(directory: &Path, options: IndexOptions, stored: u64) -> Made {
    let home = tempfile::tempdir_in(directory).unwrap();
    let device: Arc<dyn Device> = Arc::new(FileDevice::open(home.path()).unwrap());
    Index::create(&device, DIRECTORY, &POOL, options).unwrap();
    let index = Index::open(&device, DIRECTORY, &POOL, options).unwrap();
    let mut row = 0;
    for first in (0..stored).step_by(ROW as usize) {
        let insert = |number| Change::Insert { fingerprint: fingerprint(number), location: location(number) };
        let changes: Vec<Change> = (first..(first + ROW).min(stored)).map(insert).collect();
        row += 1;
        index.apply(row, &changes).unwrap();
        if index.wants_checkpoint() {
            index.checkpoint(row).unwrap();
        }
    }
    index.checkpoint(row).unwrap();
    drop(index);
    let index = Arc::new(Index::open(&device, DIRECTORY, &POOL, options).unwrap());
    index.set_container_tables(Arc::new(Tables));
    Made { index, row, _home: home }
}

fn main() {
    let (mut directory, mut millions, mut parts) = (std::env::temp_dir(), 4, Vec::new());
    let mut given = std::env::args().skip(1);
    while let Some(name) = given.next() {
        match name.as_str() {
            "--dir" => directory = PathBuf::from(given.next().expect("--dir has a value")),
            "--millions" => millions = given.next().and_then(|text| text.parse().ok()).expect("a number"),
            // Cargo's own option.
            "--bench" => {}
            _ => parts.push(name),
        }
    }
    for part in parts {
        match part.as_str() {
            "imbalance" => imbalance::run(&directory),
            "throughput" => throughput::run(&directory, millions * MILLION),
            "ram" => ram::run(&directory, millions * MILLION),
            other => panic!("{other}? known are imbalance, throughput and ram, --dir and --millions"),
        }
    }
}
