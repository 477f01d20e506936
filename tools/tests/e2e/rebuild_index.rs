//! The index is never the only copy of anything: when it is deleted, it is rebuilt from the containers and the
//! namespace.

use std::fs;

use crate::command::{DEDUPFS, Tool};
use crate::compare::assert_same_tree;
use crate::files::Plan;
use crate::random::noise;
use crate::site::Site;

#[test]
fn a_deleted_index_is_made_anew() {
    let Some(site) = Site::mounted_if_fit() else { return };
    let source = site.base.join("source");
    Plan::new(31, 800, 150_000).make(&source);
    fs::write(source.join("large"), noise(32, 20 << 20)).unwrap();
    for copy in ["first", "second", "gone"] {
        Tool::new("cp").arg("-a").args([&source, &site.mnt.join(copy)]).ok();
    }
    // Garbage, and a container that reclaiming has changed.
    fs::write(site.mnt.join("unique"), noise(33, 3 << 20)).unwrap();
    site.sync();
    Tool::new("rm").arg("-r").args([site.mnt.join("gone"), site.mnt.join("unique")]).ok();
    site.gc();
    site.umount();
    let before = site.stats();
    assert!(before.unique_chunks > 1000, "{before:?}");

    // A rebuild uses the other side, so each time the index lies in another place.
    for part in ["index", "index/chunks.b", "index/recipes"] {
        fs::remove_dir_all(site.pool.join(part)).unwrap();
        site.try_mount().expect(6, &["dedupfs fsck --rebuild-index"]);
        Tool::new(DEDUPFS).arg("fsck").arg(&site.pool).run().expect(4, &["dedupfs fsck --rebuild-index"]);
        assert!(!site.is_mounted());
        let rebuild = Tool::new(DEDUPFS).args(["fsck", "--rebuild-index", "--read-data"]).arg(&site.pool);
        rebuild.run().expect(0, &["index rebuilt", "clean"]);
        site.assert_clean();
        let after = site.stats();
        assert_eq!(after.unique_chunks, before.unique_chunks, "without {part}");
        assert_eq!(after.unique_chunk_bytes, before.unique_chunk_bytes);
        assert_eq!(after.recipe_nodes, before.recipe_nodes);
        site.mount();
        for copy in ["first", "second"] {
            assert_same_tree(&source, &site.mnt.join(copy));
        }
        // The new index works as the old one did: nothing is stored again.
        Tool::new("cp").arg("-a").args([&source, &site.mnt.join("again")]).ok();
        assert_eq!(site.stats().session.chunks_stored, 0, "without {part}");
        Tool::new("rm").arg("-r").arg(site.mnt.join("again")).ok();
        site.umount();
    }
    site.assert_clean();
}
