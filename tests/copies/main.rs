//! Two copies of a chunk or of a node, one of them lost or damaged: the engine must rely on the copy that it keeps.

mod rotting;

#[path = "../common/mod.rs"]
mod common;

use std::sync::Arc;

use dedupfs::reclaim::ReclaimOptions;
use dedupfs::{NoProgress, OpenOptions as PoolOptions, Pool, format_on};
use dedupfs_service::{FileService, ROOT_INO};
use dedupfs_store::container::Compression;
use dedupfs_store::device::{Device, MemoryDevice, OpenMode};
use dedupfs_store::superblock::PoolProperties;

use common::{content, read, write};

const PLAIN: &str = "block,open,bloom,locality,sealed";
const COMPARING: &str = "block,open,bloom,locality,sealed,compare";
const WHOLE: ReclaimOptions = ReclaimOptions::below(100);

fn open(device: &Arc<dyn Device>, filters: &str, rebuild_index: bool) -> Arc<Pool> {
    let options = PoolOptions { filters: filters.parse().expect("a plan"), rebuild_index, ..PoolOptions::default() };
    Pool::open_on(device, device, Vec::new(), &options, &NoProgress).expect("opens")
}

fn change(device: &Arc<dyn Device>, change: &dyn Fn(&mut Vec<u8>)) {
    for entry in device.list("containers").expect("lists") {
        let path = format!("containers/{}", entry.name);
        let mut bytes = device.read_file(&path, 1 << 30).expect("reads");
        change(&mut bytes);
        let file = device.open(&path, OpenMode::Write).expect("opens");
        file.write_at(&bytes, 0).expect("writes");
        file.sync().expect("syncs");
    }
}

/// Makes a new pool without compression, so that damage can be aimed.
fn formatted() -> Arc<dyn Device> {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::new());
    let properties = PoolProperties {
        chunk_size_bytes: 4096,
        container_bytes: 256 << 10,
        slots_per_file: 64,
        compression: Compression::None,
        tanker_cells: 64,
        tanker_buckets: 4,
        ..PoolProperties::default()
    };
    format_on(&device, &device, b".".to_vec(), &properties, (0, 0)).expect("formats");
    device
}

fn close(pool: Arc<Pool>) {
    pool.close().expect("closes");
}

/// Makes a pool with one file whose index was rebuilt while the disk returned nonsense: the index calls all its chunks
/// lost. The disk is sound again.
fn called_lost(data: &[u8]) -> Arc<dyn Device> {
    let device = formatted();
    let pool = open(&device, PLAIN, false);
    write(&pool, "old", data);
    close(pool);
    let invert = |bytes: &mut Vec<u8>| bytes.iter_mut().for_each(|byte| *byte ^= 0xff);
    change(&device, &invert);
    let pool = open(&device, PLAIN, true);
    assert!(pool.stats().expect("stats").lost_chunks > 100);
    close(pool);
    change(&device, &invert);
    device
}

#[test]
fn regression_a_backup_heals_what_a_rebuild_called_lost_also_when_it_compares() {
    let data = content(1, 600_000);
    for filters in [PLAIN, COMPARING] {
        let device = called_lost(&data);
        let pool = open(&device, filters, false);
        write(&pool, "new", &data);
        pool.sync().expect("syncs");
        assert_eq!(pool.stats().expect("stats").lost_chunks, 0, "{filters}");
        pool.reclaim(&WHOLE, &NoProgress).expect("reclaims");
        close(pool);
        let pool = open(&device, filters, false);
        for name in ["old", "new"] {
            assert!(read(&pool, name).as_ref() == Some(&data), "{name}, {filters}");
        }
    }
}

#[test]
fn regression_reclaiming_keeps_what_the_index_calls_lost_and_can_be_read_again() {
    let data = content(1, 600_000);
    let device = called_lost(&data);
    let pool = open(&device, PLAIN, false);
    pool.reclaim(&WHOLE, &NoProgress).expect("reclaims");
    close(pool);
    assert!(read(&open(&device, PLAIN, false), "old").as_ref() == Some(&data));
}

/// The recipe's hint leads to a sound copy, the index to a damaged one. Reclaiming keeps only the index's copy.
#[test]
fn regression_the_copy_that_is_kept_is_the_one_that_is_compared() {
    let data = content(1, 190_000);
    let device = formatted();
    let pool = open(&device, PLAIN, false);
    write(&pool, "old", &data);
    write(&pool, "junk", &content(2, 20_000));
    close(pool);
    // Reclaiming copies the readable chunks, and keeps the container for the rest.
    change(&device, &|bytes| bytes[150_000..150_400].fill(0x5a));
    let pool = open(&device, PLAIN, false);
    pool.service().unlink(ROOT_INO, b"junk").expect("unlinks");
    pool.reclaim(&WHOLE, &NoProgress).expect("reclaims");
    close(pool);
    change(&device, &|bytes| {
        if let Some(copy) = bytes.get_mut((256 << 10) + 400..(256 << 10) + 800) {
            copy.fill(0x5a);
        }
    });
    let pool = open(&device, COMPARING, false);
    write(&pool, "new", &data);
    close(pool);
    let pool = open(&device, COMPARING, false);
    assert!(read(&pool, "new").as_ref() == Some(&data), "before reclaiming");
    pool.reclaim(&WHOLE, &NoProgress).expect("reclaims");
    close(pool);
    assert!(read(&open(&device, COMPARING, false), "new").as_ref() == Some(&data), "after it");
}
