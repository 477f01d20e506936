//! Content in the pool is not stored again, whichever tool brings it; deleted content is given back.

use std::fs;
use std::time::{Duration, Instant};

use crate::command::Tool;
use crate::compare::{assert_same_content, inside};
use crate::files::Plan;
use crate::random::noise;
use crate::site::Site;

/// The kernel forgets deleted files a moment later.
const FORGET_TIMEOUT: Duration = Duration::from_secs(10);

#[test]
fn copies_cost_nothing_and_deleting_gives_all_back() {
    let Some(site) = Site::mounted_if_fit() else { return };
    site.umount();
    // The pages of the last two commits of the names alternate, so an empty pool changes by two pages with every mount.
    // The largest size of an empty pool is the limit at the end.
    let empty_bytes = (0..4)
        .map(|_| {
            site.mount();
            site.umount();
            site.disk_usage()
        })
        .max()
        .unwrap();
    let source = site.base.join("source");
    let mut bytes = Plan::new(11, 1500, 100_000).make(&source);
    fs::write(source.join("large"), noise(12, 24 << 20)).unwrap();
    bytes += 24 << 20;

    site.mount();
    Tool::new("cp").arg("-a").args([&source, &site.mnt.join("cp")]).ok();
    let first = site.stats();
    assert!(first.unique_chunk_bytes <= bytes && first.data_bytes == bytes, "{first:?}");
    assert!(first.session.chunks_stored >= first.unique_chunks, "{first:?}");

    let archive = site.base.join("source.tar");
    Tool::new("tar").arg("-cf").arg(&archive).arg("-C").arg(&source).arg(".").ok();
    fs::create_dir(site.mnt.join("tar")).unwrap();
    Tool::new("tar").arg("-xf").arg(&archive).arg("-C").arg(site.mnt.join("tar")).ok();
    Tool::new("rsync").arg("-a").args([inside(&source), inside(&site.mnt.join("rsync"))]).ok();
    let all = site.stats();
    assert_eq!(all.unique_chunks, first.unique_chunks, "a copy brought new chunks");
    assert_eq!(all.unique_chunk_bytes, first.unique_chunk_bytes);
    assert_eq!(all.session.chunks_stored, first.session.chunks_stored, "a copy stored chunks");
    assert_eq!(all.data_containers.stored_bytes, first.data_containers.stored_bytes);
    assert_eq!(all.recipe_nodes, first.recipe_nodes, "a copy brought new recipes");
    assert_eq!(all.data_bytes, 3 * bytes);
    for copy in ["cp", "tar", "rsync"] {
        assert_same_content(&source, &site.mnt.join(copy));
    }

    // Two of three copies go: nothing that the third needs is freed.
    for copy in ["cp", "rsync"] {
        Tool::new("rm").arg("-r").arg(site.mnt.join(copy)).ok();
    }
    site.gc();
    assert_eq!(site.stats().unique_chunks, first.unique_chunks);
    site.remount();
    assert_same_content(&source, &site.mnt.join("tar"));

    Tool::new("rm").arg("-r").arg(site.mnt.join("tar")).ok();
    let begun = Instant::now();
    let emptied = loop {
        site.gc();
        let stats = site.stats();
        if stats.unique_chunks + stats.unreferenced_chunks == 0 || begun.elapsed() > FORGET_TIMEOUT {
            break stats;
        }
        std::thread::sleep(Duration::from_millis(100));
    };
    assert_eq!((emptied.files, emptied.logical_bytes), (0, 0), "{emptied:?}");
    assert_eq!((emptied.unique_chunks, emptied.unreferenced_chunks, emptied.recipe_nodes), (0, 0, 0), "{emptied:?}");
    site.umount();
    let emptied_bytes = site.disk_usage();
    let most_bytes = empty_bytes + empty_bytes / 50;
    assert!(emptied_bytes <= most_bytes, "{emptied_bytes} bytes after deleting all, {empty_bytes} when it was new");
    site.assert_clean();
}

#[test]
fn a_large_file_written_again_stores_no_chunk() {
    let Some(site) = Site::mounted_if_fit() else { return };
    let source = site.base.join("large");
    fs::write(&source, noise(13, 64 << 20)).unwrap();
    Tool::new("cp").args([&source, &site.mnt.join("once")]).ok();
    let once = site.stats();
    Tool::new("cp").args([&source, &site.mnt.join("twice")]).ok();
    let twice = site.stats();
    assert_eq!(twice.session.chunks_stored, once.session.chunks_stored);
    assert!(twice.recipe_nodes <= once.recipe_nodes + 1, "{} nodes, then {}", once.recipe_nodes, twice.recipe_nodes);
    // Behind other bytes all boundaries are found again.
    let shifted = site.mnt.join("shifted");
    fs::write(&shifted, [noise(14, 10_001), fs::read(&source).unwrap()].concat()).unwrap();
    let shifted = site.stats();
    let new_bytes = shifted.unique_chunk_bytes - twice.unique_chunk_bytes;
    assert!(new_bytes < 100_000, "{new_bytes} new bytes for 10,001");
    site.umount();
    site.assert_clean();
}
