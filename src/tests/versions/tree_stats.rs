//! What a tree holds, compared with what the indexes hold.

use dedupfs::{NoProgress, Pool, Progress, TreeStats, WouldFree};
use dedupfs_service::{FileService, Ino, ROOT_INO};

use super::site::*;
use super::would_free::held;

fn stats(pool: &Pool, ino: Ino) -> TreeStats {
    pool.tree_stats(ino, &NoProgress).expect("counts")
}

/// A live tree: 3 files, one with two names; 20,000 + 50,000 bytes, of which two files are equal.
fn live(pool: &Pool) -> Ino {
    let live = directory(pool, ROOT_INO, "live");
    let below = directory(pool, live, "below");
    file(pool, live, "one", &bytes(1, 20_000));
    file(pool, below, "same", &bytes(1, 20_000));
    let two = file(pool, below, "two", &bytes(2, 50_000));
    pool.service().link(two, live, b"linked").expect("links");
    pool.service().forget(two, 1);
    live
}

#[test]
fn a_live_tree_and_its_version_hold_the_same() {
    let device = formatted();
    let pool = open(&device);
    let live = live(&pool);
    let of_live = stats(&pool, live);
    let TreeStats { files, directories, further_names, logical_bytes, data_bytes, .. } = of_live;
    assert_eq!((files, directories, further_names, logical_bytes, data_bytes), (3, 1, 1, 90_000, 90_000));
    assert_eq!((of_live.stored.chunk_bytes, of_live.only_here.chunk_bytes), (70_000, 70_000));
    assert_eq!((of_live.frozen, &of_live.fingerprint), (false, &None));
    // Also what the namespace alone names is stored.
    assert_eq!(held(&pool), (of_live.stored.chunks, 70_000, of_live.stored.nodes, of_live.stored.node_bytes));
    let report = snapshot(&pool, "live", "", "v");
    let version = find(&pool, "v");
    let of_version = stats(&pool, version);
    assert_eq!(of_version.fingerprint.as_deref(), Some(report.fingerprint.as_str()), "as the list tells it");
    assert_eq!((of_version.frozen, of_version.files, of_version.further_names), (true, 3, 1));
    assert_eq!((of_version.logical_bytes, of_version.data_bytes), (90_000, 90_000));
    assert_eq!(
        (of_version.stored.chunk_bytes, of_version.only_here.chunk_bytes),
        (70_000, 0),
        "the live tree shares it"
    );
    let sums = |told: &WouldFree| (told.chunks, told.chunk_bytes, told.nodes, told.node_bytes);
    assert_eq!(held(&pool), sums(&of_version.stored));
    assert_eq!(of_version.only_here, pool.would_free(&[version], &NoProgress).expect("counts down"));
    // The root holds both.
    let of_all = stats(&pool, ROOT_INO);
    assert_eq!((of_all.files, of_all.directories, of_all.logical_bytes), (6, 4, 180_000));
    assert_eq!((of_all.stored.chunk_bytes, &of_all.only_here), (70_000, &of_all.stored));
}

#[test]
fn a_directory_in_a_version_is_only_here_if_no_other_version_holds_it() {
    let device = formatted();
    let pool = open(&device);
    live(&pool);
    for number in 0..300 {
        file(&pool, find(&pool, "live/below"), &format!("m-{number}"), format!("{number}").as_bytes());
    }
    snapshot(&pool, "live", "", "v1");
    pool.service().remove_tree(ROOT_INO, b"live").expect("removes");
    reclaim(&pool);
    let below = |version: &str| stats(&pool, find(&pool, &format!("{version}/below")));
    let alone = below("v1");
    assert_eq!((alone.files, alone.directories), (302, 0));
    // `one` at the top has the same content as `same`.
    assert_eq!(alone.stored.chunk_bytes - alone.only_here.chunk_bytes, 20_000 + 50_000);
    assert!(alone.only_here.nodes > 10, "{alone:?}");
    let into = directory(&pool, ROOT_INO, "work");
    pool.thaw(find(&pool, "v1"), (into, b"live"), &NoProgress).expect("thaws");
    file(&pool, find(&pool, "work/live"), "new", b"new");
    snapshot(&pool, "work/live", "", "v2");
    pool.service().remove_tree(ROOT_INO, b"work").expect("removes");
    reclaim(&pool);
    for version in ["v1", "v2"] {
        let shared = below(version);
        assert_eq!(shared.only_here, WouldFree::default(), "{version}");
        assert_eq!((&shared.stored, &shared.fingerprint), (&alone.stored, &alone.fingerprint), "{version}");
    }
    forget(&pool, ROOT_INO, "v2");
    reclaim(&pool);
    assert_eq!(below("v1"), alone);
}

#[test]
fn what_is_no_directory_is_refused_and_work_ends_when_asked() {
    struct Stopped;
    impl Progress for Stopped {
        fn start(&self, _: &str, _: u64) {}
        fn advance(&self, _: u64) {}
        fn finish(&self) {}
        fn is_cancelled(&self) -> bool {
            true
        }
    }
    let device = formatted();
    let pool = open(&device);
    live(&pool);
    directory(&pool, ROOT_INO, "empty");
    snapshot(&pool, "live", "", "v");
    for path in ["live/one", "v/one", "v/below/two"] {
        pool.tree_stats(find(&pool, path), &NoProgress).expect_err("is a file");
    }
    pool.tree_stats(77_777, &NoProgress).expect_err("is not there");
    assert_eq!(stats(&pool, find(&pool, "empty")), TreeStats::default());
    for path in ["live", "v", "v/below"] {
        pool.tree_stats(find(&pool, path), &Stopped).expect_err("was ended");
    }
    pool.version_sizes(None, &Stopped).expect_err("was ended");
}

#[test]
fn the_size_of_each_version_is_what_its_removal_would_free() {
    let device = formatted();
    let pool = open(&device);
    let live = live(&pool);
    directory(&pool, ROOT_INO, "series");
    for (number, into) in ["", "series", "series"].into_iter().enumerate() {
        let name = format!("only-{number}");
        file(&pool, live, &name, &bytes(10 + number as u64, 30_000));
        snapshot(&pool, "live", into, &format!("v{number}"));
        pool.service().unlink(live, name.as_bytes()).expect("removes");
    }
    let sizes = pool.version_sizes(None, &NoProgress).expect("counts down");
    assert_eq!(sizes.len(), 3);
    for (ino, size) in &sizes {
        assert_eq!(*size, pool.would_free(&[*ino], &NoProgress).expect("counts down"));
        assert_eq!(size.chunk_bytes, 30_000);
    }
    let of_series = pool.version_sizes(Some(find(&pool, "series")), &NoProgress).expect("counts down");
    assert_eq!(of_series, sizes[1..]);
}
