//! A backup by rsync equals the original, in everything that rsync and tar can see, also after a remount.

use std::path::Path;

use crate::command::Tool;
use crate::compare::{assert_same_file, assert_same_tree, inside};
use crate::site::Site;
use crate::tree;

const FILES: usize = 20_000;

/// Archives a tree with tar, without anything that differs between two equal trees.
fn tar(tree: &Path, to: &Path) {
    Tool::new("tar")
        .args(["--sort=name", "--acls", "--xattrs", "--numeric-owner", "--format=posix"])
        // Access lists are stored in the archive separately.
        .arg("--xattrs-exclude=system.*")
        // By default the name of a header contains the process id.
        .arg("--pax-option=delete=atime,delete=ctime,exthdr.name=%d/PaxHeaders/%f")
        .arg(format!("--exclude=./{}", tree::UNORDERED))
        .arg("--directory")
        .arg(tree)
        .arg("-cf")
        .arg(to)
        .arg(".")
        .ok();
}

#[test]
fn a_tree_of_everything_comes_back_the_same() {
    let Some(site) = Site::if_fit() else { return };
    let source = site.base.join("source");
    let made = tree::generate(&source, 1, FILES);
    assert!(made.files >= FILES, "{made:?}");
    site.mount();
    Tool::new("rsync").args(["-aHAX", "--numeric-ids"]).args([inside(&source), inside(&site.mnt)]).ok();
    site.remount();
    assert_same_tree(&source, &site.mnt);
    let stats = site.stats();
    assert!(stats.files >= FILES as u64, "{stats:?}");
    assert!(stats.data_bytes >= made.bytes, "{stats:?}");
    // A tenth of the files is there twice, and the hole of 64 MiB takes no space.
    assert!(stats.unique_chunk_bytes < made.bytes, "{stats:?}");

    let (of_source, of_mount) = (site.base.join("source.tar"), site.base.join("mount.tar"));
    tar(&source, &of_source);
    tar(&site.mnt, &of_mount);
    assert_same_file(&of_source, &of_mount);
    site.umount();
    site.assert_clean();
}
