//! Runs and writers while something is lost: it costs only those who need it, and its last copy stays.

use std::sync::Arc;

use dedupfs::reclaim::ReclaimOptions;
use dedupfs::{EngineError, NoProgress, Pool};
use dedupfs_store::ContainerKind;

use super::site::{CONTAINER_BYTES, Site, remove};
use super::{PIECE_BYTES, assert_sound};
use crate::tests::common;
use crate::tests::common::content;

/// The disk gave other bytes when the index was rebuilt, which then placed nothing in the container, and gives the right
/// ones again. In the same mount the container was freed: the table that was read first named no chunk, and the second
/// look found all of it sound.
#[test]
fn regression_a_container_that_has_the_only_copy_of_a_lost_chunk_stays() {
    for is_mounted_again in [true, false] {
        let site = Site::new();
        let pool = site.open();
        common::write(&pool, "file", &content(1, PIECE_BYTES));
        pool.close().expect("closes");
        let records = pool.core().stores.data.containers();
        drop(pool);
        let bytes: Vec<_> = records.iter().map(|record| site.spoil(record)).collect();
        let mut pool = site.open_rebuilding();
        assert!(pool.core().indexes.chunks.lost() > 0);
        records.iter().zip(&bytes).for_each(|(record, bytes)| drop(site.replace(record, bytes)));
        if is_mounted_again {
            pool.close().expect("closes");
            drop(pool);
            pool = site.open();
        }
        let report = pool.reclaim(&ReclaimOptions::below(100), &NoProgress).expect("reclaims");
        let expected = (records.len() as u64, 0);
        assert_eq!((report.containers_damaged, report.containers_freed), expected, "{is_mounted_again}: {report:?}");
        pool.close().expect("closes");
        drop(pool);
        let pool = site.open_rebuilding();
        assert!(common::read(&pool, "file") == Some(content(1, PIECE_BYTES)), "{is_mounted_again}");
        assert_sound(&pool);
    }
}

/// Opens a pool that holds `file`, behind damage to all containers of this kind, and rebuilds its index.
fn with_losses(site: &Site, kind: ContainerKind) -> Arc<Pool> {
    let pool = site.open();
    common::write(&pool, "file", &content(1, PIECE_BYTES));
    pool.close().expect("closes");
    let records = pool.core().stores.of(kind).containers();
    drop(pool);
    records.iter().for_each(|record| drop(site.spoil(record)));
    let pool = site.open_rebuilding();
    assert!(pool.core().indexes.of(kind).lost() > 0);
    pool
}

/// A lost node counts no children. If the new copy counted none either, they would be garbage.
#[test]
fn the_chunks_of_a_lost_node_are_counted_when_it_is_stored_again() {
    let site = Site::new();
    let pool = with_losses(&site, ContainerKind::Recipe);
    common::write(&pool, "again", &content(1, PIECE_BYTES));
    pool.close().expect("closes");
    assert!(pool.core().namespace.has_doubt(), "until the next rebuild");
    drop(pool);
    let pool = site.open_rebuilding();
    assert!(!pool.core().namespace.has_doubt());
    pool.reclaim(&ReclaimOptions::below(100), &NoProgress).expect("reclaims");
    for name in ["file", "again"] {
        assert!(common::read(&pool, name) == Some(content(1, PIECE_BYTES)), "{name}");
    }
    assert_sound(&pool);
}

/// The chunks that a file held before are looked up in the index while something is lost: they may be what is lost.
#[test]
fn a_file_that_is_written_over_with_nearly_its_own_bytes_heals() {
    let site = Site::new();
    let pool = with_losses(&site, ContainerKind::Data);
    // Another segment of chunks that are lost.
    let mut changed = content(1, PIECE_BYTES);
    changed[0] ^= 1;
    common::write(&pool, "file", &changed);
    pool.sync().expect("syncs");
    assert!(common::read(&pool, "file") == Some(changed));
}

/// What only a lost node names looks unused, so nothing is freed. When no file needs the node, a rebuild knows of none.
#[test]
fn a_lost_node_keeps_everything_until_no_file_needs_it_and_the_index_is_rebuilt() {
    let site = Site::new();
    let pool = with_losses(&site, ContainerKind::Recipe);
    remove(&*pool.service(), "file");
    let refused = pool.reclaim(&ReclaimOptions::below(100), &NoProgress).expect_err("counts are in doubt");
    assert!(matches!(refused, EngineError::CountsInDoubt), "{refused}");
    pool.close().expect("closes");
    drop(pool);
    let pool = site.open_rebuilding();
    assert_eq!(pool.core().indexes.nodes.lost(), 0);
    assert!(!pool.core().namespace.has_losses() && !pool.core().namespace.has_doubt());
    let report = pool.reclaim(&ReclaimOptions::below(100), &NoProgress).expect("reclaims");
    assert!(report.chunks_removed > 0, "{report:?}");
    assert_sound(&pool);
}

/// Otherwise no space would come back until the last loss is healed.
#[test]
fn sound_containers_are_emptied_while_something_is_lost() {
    let site = Site::new();
    let pool = with_losses(&site, ContainerKind::Data);
    let all: Vec<Vec<u8>> = (0..40).map(|piece| content(100 + piece, PIECE_BYTES)).collect();
    let kept: Vec<u8> = all.iter().step_by(2).flatten().copied().collect();
    common::write(&pool, "all", &all.concat());
    common::write(&pool, "kept", &kept);
    pool.sync().expect("syncs");
    remove(&*pool.service(), "all");
    let report = pool.reclaim(&ReclaimOptions::below(100), &NoProgress).expect("reclaims");
    assert!(pool.core().namespace.has_losses());
    assert!(report.containers_freed > 5 && report.chunks_moved > 50, "{report:?}");
    assert_eq!(report.containers_damaged, 1, "the one that has lost its chunks stays: {report:?}");
    assert!(common::read(&pool, "kept") == Some(kept));
}

/// A pool with a lost file and a sound one, opened with nothing in its caches, with all its losses known.
fn with_losses_and(site: &Site, name: &str, data: &[u8]) -> Arc<Pool> {
    let pool = with_losses(site, ContainerKind::Data);
    common::write(&pool, name, data);
    pool.close().expect("closes");
    drop(pool);
    let pool = site.open();
    pool.core().indexes.gather_lost(&mut || true);
    assert!(pool.core().namespace.has_losses());
    pool
}

/// Each container was read as a whole, and each of its chunks looked up.
#[test]
fn regression_what_is_dead_as_a_whole_is_freed_without_reading_its_content_while_something_is_lost() {
    let site = Site::new();
    let pool = with_losses_and(&site, "dead", &content(2, 20 * CONTAINER_BYTES as usize));
    remove(&*pool.service(), "dead");
    pool.reclaim(&ReclaimOptions::below(100), &NoProgress).expect("frees its recipes");
    let (containers, chunks) = (site.data_read_bytes(), pool.core().indexes.chunks.len());
    println!("{containers} bytes of containers were read, {chunks} chunks are left");
    // A table for each.
    assert!(containers < 20 * u64::from(CONTAINER_BYTES) / 10, "{containers} bytes were read");
    assert_eq!(chunks, pool.core().indexes.chunks.lost(), "only lost ones are left");
}

/// Each chunk of each known segment was looked up.
#[test]
fn regression_known_segments_are_not_looked_up_while_something_else_is_lost() {
    let site = Site::new();
    let data = content(2, 20 * CONTAINER_BYTES as usize);
    let pool = with_losses_and(&site, "sound", &data);
    assert!(pool.core().indexes.chunks.stats().sealed_tankers > 0);
    let before = site.chunk_index_read_bytes();
    common::write(&pool, "again", &data);
    assert_eq!(site.chunk_index_read_bytes(), before, "its segments are known");
    // Lost chunks are found among known ones.
    common::write(&pool, "file again", &content(1, PIECE_BYTES));
    pool.core().committer.settle().expect("counts");
    assert_eq!(pool.core().indexes.chunks.lost(), 0);
    for name in ["file", "file again"] {
        assert!(common::read(&pool, name) == Some(content(1, PIECE_BYTES)), "{name}");
    }
}
