//! The cost of opening after a power loss: it grows with the unsynced tail, not with the pool.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dedupfs::format_on;
use dedupfs_store::Result;
use dedupfs_store::device::observed::{Call, Observer};
use dedupfs_store::superblock::PoolProperties;

use crate::client::Client;
use crate::disks::{Disks, observed};
use crate::random::Random;
use crate::workload::{open, options};

/// Number of reads and of bytes read, of one part of the pool.
#[derive(Default, Debug)]
struct Counted {
    reads: AtomicU64,
    bytes: AtomicU64,
}

/// Counts reads by the part of the pool that they touch.
#[derive(Default, Debug)]
struct Reads {
    containers: Counted,
    index: Counted,
    namespace: Counted,
    rest: Counted,
}

impl Observer for Reads {
    fn around(&self, call: &Call<'_>, perform: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        if let Some((path, _, len_bytes)) = call.read() {
            let counted = match path.split('/').next() {
                Some("containers" | "recipes") => &self.containers,
                Some("index") => &self.index,
                Some(dedupfs_namespace::NAMESPACE_FILE) => &self.namespace,
                _ => &self.rest,
            };
            counted.reads.fetch_add(1, Ordering::Relaxed);
            counted.bytes.fetch_add(len_bytes as u64, Ordering::Relaxed);
        }
        perform()
    }
}

/// The reads of one opening (calls, bytes), and the size of the pool.
#[derive(Debug)]
struct Opening {
    rows_replayed: u64,
    containers: [u64; 2],
    index: [u64; 2],
    namespace: [u64; 2],
    container_count: u64,
    chunks: u64,
}

impl Opening {
    fn of(disks: &Disks) -> Self {
        let reads = Arc::new(Reads::default());
        let observer: Arc<dyn Observer> = reads.clone();
        let pool = open(&observed(&disks.roots(), &observer), &options()).expect("opens");
        let counted =
            |counted: &Counted| [counted.reads.load(Ordering::Relaxed), counted.bytes.load(Ordering::Relaxed)];
        let (containers, index, namespace) =
            (counted(&reads.containers), counted(&reads.index), counted(&reads.namespace));
        let stats = pool.stats().expect("counts");
        Self {
            rows_replayed: pool.recovery().rows_replayed,
            containers,
            index,
            namespace,
            container_count: stats.data_containers.containers + stats.recipe_containers.containers,
            chunks: stats.unique_chunks,
        }
    }
}

const FILE_BYTES: usize = 40_000;
const TAIL_FILES: u64 = 20;

/// Opens a pool of `files` files in checkpoints and `TAIL_FILES` that are only synced: once after a power loss and once
/// after a clean end.
fn openings(files: u64) -> [Opening; 2] {
    let disks = Disks::new(false);
    let roots = disks.roots();
    let properties = PoolProperties {
        chunk_size_bytes: 4096,
        container_bytes: 256 << 10,
        slots_per_file: 64,
        tanker_cells: 1 << 14,
        tanker_buckets: 16,
        ..PoolProperties::default()
    };
    format_on(&roots[0], &roots[1], disks.data_root(), &properties, (0, 0)).expect("formats");
    let put = |client: &Client, number: u64| {
        client.put(&format!("file {number}"), 0, &Random::new(number).bytes(FILE_BYTES), false).expect("writes");
    };
    let pool = open(&roots, &options()).expect("opens");
    (0..files).for_each(|number| put(&Client::new(pool.service()), number));
    pool.close().expect("closes");
    drop(pool);
    let pool = open(&roots, &options()).expect("opens");
    for number in 0..TAIL_FILES {
        put(&Client::new(pool.service()), (1 << 32) + number);
        pool.sync().expect("syncs");
    }
    let crashed = disks.crash(0, 0);
    pool.close().expect("closes");
    drop(pool);
    [Opening::of(&crashed), Opening::of(&disks)]
}

/// Replaying reads only content that rows since the last checkpoint name: no more in a pool ten times as large. The fixed
/// cost of opening grows by a record for each container and some bytes of filter and directory for each fingerprint.
#[test]
fn opening_after_a_power_loss_reads_what_was_not_flushed() {
    let ([small, small_clean], [large, large_clean]) = (openings(200), openings(2000));
    println!("{small:?} {small_clean:?}\n{large:?} {large_clean:?}");
    assert!(large.chunks > 7 * small.chunks && large.container_count > 5 * small.container_count);
    assert!(small.rows_replayed >= TAIL_FILES && small.rows_replayed == large.rows_replayed);
    assert_eq!([small_clean.rows_replayed, large_clean.rows_replayed], [0, 0]);
    assert_eq!([small_clean.containers[0], large_clean.containers[0]], [0, 0], "no container is looked into");
    assert!(small.containers[0] > 0, "the rows name containers");
    assert!(large.containers[0] <= small.containers[0] + 2, "{large:?}");
    assert!(large.containers[1] <= small.containers[1] * 11 / 10, "{large:?}");
    let more = |of: fn(&Opening) -> u64| of(&large) - of(&small);
    let (chunks, containers) = (more(|opening| opening.chunks), more(|opening| opening.container_count));
    let index = large.index[1].saturating_sub(small.index[1]);
    assert!(index <= 16 * chunks + 16_384, "{index} bytes of index for {chunks} chunks more");
    let extra = |crashed: &Opening, clean: &Opening| crashed.namespace[0].saturating_sub(clean.namespace[0]);
    let (small_extra, large_extra) = (extra(&small, &small_clean), extra(&large, &large_clean));
    assert!(large_extra <= small_extra + 20, "pages that a power loss adds: {small_extra} and {large_extra}");
    // With debug assertions the embedded store walks through all of its pages at each opening.
    if !cfg!(debug_assertions) {
        let namespace = large.namespace[1].saturating_sub(small.namespace[1]);
        assert!(
            namespace <= 200 * containers + 65_536,
            "{namespace} bytes of namespace for {containers} containers more"
        );
    }
}
