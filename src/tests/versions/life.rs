//! From the snapshot to the removal.

use dedupfs::{NoProgress, Origin};
use dedupfs_service::{
    AttributeChanges, Errno, FileService, NodeContent, OpenOptions, ROOT_INO, RenameFlags, XattrMode,
};

use super::site::*;

#[test]
fn a_version_shows_what_the_live_tree_showed_also_after_remount_and_reclaiming() {
    let device = formatted();
    let pool = open(&device);
    let live = directory(&pool, ROOT_INO, "live");
    directory(&pool, ROOT_INO, "series");
    fill(&pool, live);
    let before = tree(&pool, live);
    let report = snapshot(&pool, "live", "series", "v1");
    assert_eq!(report.entries, before.len() as u64 - 1);
    assert_eq!(tree(&pool, find(&pool, "series/v1")), before);
    assert_clean(&pool);
    // The live tree goes, the version keeps its content.
    pool.service().remove_tree(ROOT_INO, b"live").expect("removes");
    reclaim(&pool);
    assert_eq!(tree(&pool, find(&pool, "series/v1")), before);
    assert_clean(&pool);
    pool.close().expect("closes");
    drop(pool);
    let pool = open(&device);
    let version = find(&pool, "series/v1");
    assert_eq!(tree(&pool, version), before);
    assert_clean(&pool);
    // Removal gives everything back.
    forget(&pool, find(&pool, "series"), "v1");
    assert_eq!(pool.service().lookup(find(&pool, "series"), b"v1"), Err(Errno::ENOENT));
    assert_eq!(pool.service().attributes(version), Err(Errno::ENOENT));
    reclaim(&pool);
    assert_clean(&pool);
    let stats = pool.stats().expect("has figures");
    assert_eq!((stats.unique_chunk_bytes, stats.recipe_nodes), (0, 0), "nothing is left");
}

#[test]
fn equal_trees_have_equal_fingerprints_and_an_unchanged_one_stores_nothing() {
    let device = formatted();
    let pool = open(&device);
    let live = directory(&pool, ROOT_INO, "live");
    fill(&pool, live);
    let first = snapshot(&pool, "live", "", "v1");
    let nodes = pool.core().dedup.stats().nodes_stored;
    let second = snapshot(&pool, "live", "", "v2");
    assert_eq!(first.fingerprint, second.fingerprint);
    assert_eq!((pool.core().dedup.stats().nodes_stored, second.new_bytes), (nodes, 0));
    file(&pool, find(&pool, "live/many"), "file-77b", b"new");
    let third = snapshot(&pool, "live", "", "v3");
    assert_ne!(first.fingerprint, third.fingerprint);
    // The leaf, its list, and the nodes up to the top.
    let changed = pool.core().dedup.stats().nodes_stored - nodes;
    assert!((2..=6).contains(&changed), "{changed} nodes");
    let listed = pool.versions(None).expect("lists");
    let names: Vec<&str> = listed.iter().map(|version| version.name.as_str()).collect();
    assert_eq!(names, ["v1", "v2", "v3"], "in the order of completion");
    assert_eq!((listed[2].entries, &*listed[2].source, &*listed[2].host), (third.entries, "live", "here"));
    assert_eq!(listed[2].fingerprint, third.fingerprint);
    assert!(pool.versions(Some(live)).expect("lists").is_empty());
    assert_clean(&pool);
}

#[test]
fn every_change_of_a_version_is_refused() {
    let device = formatted();
    let pool = open(&device);
    let live = directory(&pool, ROOT_INO, "live");
    fill(&pool, live);
    snapshot(&pool, "live", "", "v");
    let service = pool.service();
    let (version, small, many) = (find(&pool, "v"), find(&pool, "v/small"), find(&pool, "v/many"));
    let before = tree(&pool, version);
    for ino in [version, small, many] {
        let changes = AttributeChanges { mode: Some(0), ..AttributeChanges::default() };
        assert_eq!(service.set_attributes(CALLER, ino, changes), Err(Errno::EROFS));
        assert_eq!(service.set_xattr(CALLER, ino, b"user.a", b"", XattrMode::Any), Err(Errno::EROFS));
        assert_eq!(service.remove_xattr(ino, b"user.a"), Err(Errno::EROFS));
        assert_eq!(service.set_flags(CALLER, ino, Default::default()), Err(Errno::EROFS));
    }
    for how in [
        OpenOptions { write: true, ..OpenOptions::default() },
        OpenOptions { read: true, truncate: true, ..OpenOptions::default() },
    ] {
        assert_eq!(service.open(CALLER, small, how), Err(Errno::EROFS));
    }
    for directory in [version, many] {
        assert_eq!(service.make(CALLER, node(directory, b"new", 0o600), NodeContent::Regular), Err(Errno::EROFS));
        let how = OpenOptions::default();
        assert_eq!(service.create(CALLER, node(directory, b"new", 0o600), how), Err(Errno::EROFS));
    }
    assert_eq!(service.unlink(version, b"small"), Err(Errno::EROFS));
    assert_eq!(service.remove_directory(version, b"nothing"), Err(Errno::EROFS));
    let flags = RenameFlags::default();
    assert_eq!(service.rename(version, b"small", version, b"other", flags), Err(Errno::EROFS));
    assert_eq!(service.rename(version, b"small", ROOT_INO, b"other", flags), Err(Errno::EXDEV));
    assert_eq!(service.rename(live, b"small", version, b"other", flags), Err(Errno::EXDEV));
    assert_eq!(service.link(small, ROOT_INO, b"other"), Err(Errno::EXDEV));
    assert_eq!(service.link(find(&pool, "live/small"), version, b"other"), Err(Errno::EXDEV));
    assert_eq!(service.link(small, version, b"other"), Err(Errno::EROFS));
    // The version as a whole.
    assert_eq!(service.remove_directory(ROOT_INO, b"v"), Err(Errno::ENOTEMPTY));
    assert_eq!(service.unlink(ROOT_INO, b"v"), Err(Errno::EISDIR));
    directory(&pool, ROOT_INO, "void");
    assert_eq!(service.rename(ROOT_INO, b"void", ROOT_INO, b"v", flags), Err(Errno::ENOTEMPTY));
    assert_eq!(tree(&pool, version), before);
    // Its name is live.
    service.rename(ROOT_INO, b"v", live, b"moved", flags).expect("a version can be renamed");
    assert_eq!(tree(&pool, find(&pool, "live/moved")), before);
    assert_clean(&pool);
}

#[test]
fn a_forgotten_version_stays_while_the_kernel_knows_an_inode_of_it() {
    let device = formatted();
    let pool = open(&device);
    let live = directory(&pool, ROOT_INO, "live");
    fill(&pool, live);
    snapshot(&pool, "live", "", "v");
    pool.service().remove_tree(ROOT_INO, b"live").expect("removes");
    let service = pool.service();
    let version = find(&pool, "v");
    let large = service.lookup(version, b"large").expect("is there").ino;
    let how = OpenOptions { read: true, ..OpenOptions::default() };
    let handle = service.open(CALLER, large, how).expect("opens").handle;
    forget(&pool, ROOT_INO, "v");
    reclaim(&pool);
    assert_eq!(service.attributes(large).expect("stats").nlink, 0);
    assert_eq!(service.lookup_inode(large), Err(Errno::ESTALE));
    assert_eq!(read(&pool, large), bytes(1, 9 << 20));
    service.release(large, handle);
    service.forget(large, 1);
    assert_eq!(service.attributes(large), Err(Errno::ENOENT));
    reclaim(&pool);
    assert_eq!(pool.stats().expect("has figures").unique_chunk_bytes, 0);
}

#[test]
fn a_thawed_version_is_a_live_tree_that_shares_content() {
    let device = formatted();
    let pool = open(&device);
    let live = directory(&pool, ROOT_INO, "live");
    fill(&pool, live);
    let before = tree(&pool, live);
    let first = snapshot(&pool, "live", "", "v1");
    pool.service().remove_tree(ROOT_INO, b"live").expect("removes");
    reclaim(&pool);
    let stored = pool.core().dedup.stats().bytes_stored;
    let into = directory(&pool, ROOT_INO, "work");
    let report = pool.thaw(find(&pool, "v1"), (into, b"tree"), &NoProgress).expect("thaws");
    assert_eq!((report.entries, report.hard_links), (first.entries, 2));
    assert_eq!(pool.core().dedup.stats().bytes_stored, stored, "no content is stored");
    assert_eq!(tree(&pool, find(&pool, "work/tree")), before);
    assert_clean(&pool);
    assert_eq!(snapshot(&pool, "work/tree", "", "v2").fingerprint, first.fingerprint);
    // It is live, and on its own.
    write(&pool, find(&pool, "work/tree/small"), 0, b"other");
    ["v1", "v2"].into_iter().for_each(|name| forget(&pool, ROOT_INO, name));
    reclaim(&pool);
    assert_clean(&pool);
    assert_eq!(read(&pool, find(&pool, "work/tree/large")), bytes(1, 9 << 20));
    // A directory of a version, and refusals.
    snapshot(&pool, "work/tree", "", "v3");
    let into = directory(&pool, ROOT_INO, "part");
    pool.thaw(find(&pool, "v3/many"), (into, b"many"), &NoProgress).expect("thaws a part");
    assert_eq!(tree(&pool, find(&pool, "part/many")).len(), 202);
    let into = directory(&pool, ROOT_INO, "none");
    for from in ["v3/small", "work/tree"] {
        pool.thaw(find(&pool, from), (into, b"x"), &NoProgress).expect_err("is no directory of a version");
    }
    assert_eq!(pool.service().lookup(into, b"x"), Err(Errno::ENOENT));
    assert_clean(&pool);
}

#[test]
fn permission_to_forget_is_for_one_name_and_one_time() {
    let device = formatted();
    let pool = open(&device);
    let live = directory(&pool, ROOT_INO, "live");
    file(&pool, live, "a", b"a");
    ["v1", "v2"].into_iter().for_each(|name| drop(snapshot(&pool, "live", "", name)));
    let service = pool.service();
    pool.allow_forgetting(ROOT_INO, b"v1", None).expect("allows");
    assert_eq!(service.remove_directory(ROOT_INO, b"v2"), Err(Errno::ENOTEMPTY));
    service.remove_directory(ROOT_INO, b"v1").expect("removes");
    snapshot(&pool, "live", "", "v1");
    assert_eq!(service.remove_directory(ROOT_INO, b"v1"), Err(Errno::ENOTEMPTY));
    pool.allow_forgetting(ROOT_INO, b"live", None).expect_err("is no version");
    pool.allow_forgetting(ROOT_INO, b"none", None).expect_err("is not there");
    // It is for one version: another one may take the name meanwhile.
    let (v1, v2) = (find(&pool, "v1"), find(&pool, "v2"));
    pool.allow_forgetting(ROOT_INO, b"v1", Some(v2)).expect_err("is another version");
    pool.allow_forgetting(ROOT_INO, b"v1", Some(v1)).expect("allows");
    let rename = |from: &[u8], to: &[u8]| {
        service.rename(ROOT_INO, from, ROOT_INO, to, RenameFlags::default()).expect("renames");
    };
    rename(b"v1", b"old");
    rename(b"v2", b"v1");
    assert_eq!(service.remove_directory(ROOT_INO, b"v1"), Err(Errno::ENOTEMPTY));
    assert_eq!((find(&pool, "v1"), find(&pool, "old")), (v2, v1));
}

#[test]
fn a_directory_that_holds_a_version_and_a_file_are_refused() {
    let device = formatted();
    let pool = open(&device);
    let live = directory(&pool, ROOT_INO, "live");
    file(&pool, live, "a", b"a");
    snapshot(&pool, "live", "live", "v");
    let of = |source: &str| pool.snapshot(find(&pool, source), (ROOT_INO, b"new"), &Origin::default(), &NoProgress);
    assert!(of("live").expect_err("holds a version").to_string().contains("v is a version"));
    of("live/v").expect_err("is a version");
    of("live/a").expect_err("is a file");
    assert_eq!(pool.service().lookup(ROOT_INO, b"new"), Err(Errno::ENOENT));
    reclaim(&pool);
    assert_clean(&pool);
}

/// Found by review: it stayed until the next mount.
#[test]
fn regression_a_removed_version_that_is_closed_while_the_pool_is_read_only_goes_when_it_is_writable() {
    let device = formatted();
    let pool = open(&device);
    let live = directory(&pool, ROOT_INO, "live");
    file(&pool, live, "a", b"a");
    snapshot(&pool, "live", "", "v");
    let service = pool.service();
    let known = service.lookup(ROOT_INO, b"v").expect("is there").ino;
    forget(&pool, ROOT_INO, "v");
    pool.set_read_only().expect("sets");
    service.forget(known, 1);
    assert_eq!(pool.held_versions().expect("reads"), [known]);
    pool.set_writable().expect("sets");
    assert!(pool.held_versions().expect("reads").is_empty());
    reclaim(&pool);
    assert_clean(&pool);
}
