//! Snapshots of a tree that others change, beside reclaiming.
//!
//! A version shows one commit. So it shows each change of names wholly or not at all, and changes of one thread up to
//! one of them and none behind it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use dedupfs::reclaim::ReclaimOptions;
use dedupfs::{EngineError, NoProgress, Pool};
use dedupfs_service::{FileKind, FileService, Ino, Listing, ROOT_INO, RenameFlags};
use dedupfs_store::StoreError;

use super::site::*;

/// Files that are there at a time in the row that grows at its end and shrinks at its beginning.
const ROW: u64 = 12;
const SNAPSHOTS: u64 = 30;
/// Steps that each client does at least between two snapshots.
const STEPS_BETWEEN: u64 = 4;

fn number_of(name: &str) -> u64 {
    name.rsplit('-').next().expect("a part").parse().expect("a number")
}

/// A file that tells its number in each of its bytes but the first eight, which are the number.
fn told(number: u64) -> Vec<u8> {
    let mut content = number.to_le_bytes().to_vec();
    content.extend(bytes(number % 7, 5000 + (number % 5) as usize * 3000));
    content
}

fn is_told(content: &[u8]) -> u64 {
    let number = u64::from_le_bytes(content[..8].try_into().expect("eight bytes"));
    assert!(content == told(number), "the content of number {number} is whole");
    number
}

/// A client with steps of its own.
type Step = fn(&Pool, Ino, u64);

/// Two files exchange their names.
fn exchange(pool: &Pool, live: Ino, _: u64) {
    let flags = RenameFlags { exchange: true, ..RenameFlags::default() };
    pool.service().rename(live, b"left", live, b"right", flags).expect("exchanges");
}

/// A directory with a file goes from one directory to another and back.
fn wander(pool: &Pool, live: Ino, step: u64) {
    let inode = |name: &[u8]| {
        let found = pool.service().lookup(live, name).expect("is there");
        pool.service().forget(found.ino, 1);
        found.ino
    };
    let (home, abroad) = (inode(b"home"), inode(b"abroad"));
    let (from, to) = if step.is_multiple_of(2) { (home, abroad) } else { (abroad, home) };
    pool.service().rename(from, b"wanderer", to, b"wanderer", RenameFlags::default()).expect("moves");
}

/// A file is written beside the one that it replaces. Behind that its number joins the row, and the oldest one leaves.
fn replace(pool: &Pool, live: Ino, step: u64) {
    let service = pool.service();
    file(pool, live, "temporary", &told(step));
    service.rename(live, b"temporary", live, b"newest", RenameFlags::default()).expect("replaces");
    file(pool, live, &format!("row-{step}"), b"");
    if let Some(oldest) = step.checked_sub(ROW) {
        service.unlink(live, format!("row-{oldest}").as_bytes()).expect("unlinks");
    }
}

/// Directories with files and names of one file come and go.
fn build(pool: &Pool, live: Ino, step: u64) {
    let service = pool.service();
    let top = directory(pool, live, &format!("built-{step}"));
    let first = file(pool, top, "first", &told(step));
    service.link(first, top, b"second").expect("links");
    service.forget(first, 1);
    directory(pool, top, "deep");
    if let Some(old) = step.checked_sub(2) {
        service.remove_tree(live, format!("built-{old}").as_bytes()).expect("removes");
    }
}

const CLIENTS: [Step; 4] = [exchange, wander, replace, build];

fn names(pool: &Pool, directory: Ino) -> BTreeMap<String, (Ino, FileKind)> {
    let entries = pool.service().read_directory(directory, 0, 10_000, Listing::Names).expect("lists");
    entries
        .into_iter()
        .map(|entry| (String::from_utf8(entry.name).expect("is text"), (entry.ino, entry.kind)))
        .collect()
}

/// Checks that a version shows one moment.
fn check_moment(pool: &Pool, version: Ino) {
    let all = names(pool, version);
    let content = |name: &str| is_told(&read(pool, all[name].0));
    let mut sides = [content("left"), content("right")];
    sides.sort_unstable();
    assert_eq!(sides, [1001, 1002], "the two have exchanged their names or not");
    let places = ["home", "abroad"].map(|place| names(pool, all[place].0).contains_key("wanderer"));
    assert!(places[0] != places[1], "the wanderer is in one place: {places:?}");
    let row: Vec<u64> = {
        let mut row: Vec<u64> =
            all.keys().filter(|name| name.starts_with("row-")).map(|name| number_of(name)).collect();
        row.sort_unstable();
        row
    };
    if let (Some(first), Some(last)) = (row.first(), row.last()) {
        assert_eq!(row.len() as u64, last - first + 1, "the row has no hole: {row:?}");
        assert!(row.len() as u64 <= ROW + 1, "{row:?}");
        assert!(row.len() as u64 >= ROW || *first == 0, "{row:?}");
        let newest = content("newest");
        assert!(newest == *last || newest == last + 1, "{newest} is the newest beside {row:?}");
    }
    let built: Vec<&String> = all.keys().filter(|name| name.starts_with("built-")).collect();
    assert!(built.len() <= 3, "{built:?}");
    for name in built {
        let below = names(pool, all[name].0);
        let first = below.get("first").map(|(ino, _)| read(pool, *ino));
        if below.contains_key("second") && below.contains_key("first") {
            assert_eq!(below["first"].0, below["second"].0);
            assert_eq!(pool.service().attributes(below["first"].0).expect("stats").nlink, 2);
            assert_eq!(is_told(&first.expect("is there")), number_of(name));
        }
    }
}

fn reclaim_in_background(pool: &Pool, round: u64) {
    let options = ReclaimOptions { is_background: round.is_multiple_of(2), ..ReclaimOptions::below(100) };
    match pool.reclaim(&options, &NoProgress) {
        // A snapshot keeps it away.
        Ok(_) | Err(EngineError::Store(StoreError::Busy { .. })) => {}
        Err(error) => panic!("reclaiming fails: {error}"),
    }
}

#[test]
fn a_snapshot_of_a_busy_tree_shows_one_moment() {
    let device = formatted();
    let pool = open(&device);
    let live = directory(&pool, ROOT_INO, "live");
    directory(&pool, ROOT_INO, "series");
    [("left", 1001), ("right", 1002), ("newest", 0)].into_iter().for_each(|(name, number)| {
        file(&pool, live, name, &told(number));
    });
    let home = directory(&pool, live, "home");
    directory(&pool, live, "abroad");
    let wanderer = directory(&pool, home, "wanderer");
    file(&pool, wanderer, "pack", b"of the wanderer");
    let (is_over, steps) = (AtomicBool::new(false), CLIENTS.map(|_| AtomicU64::new(0)));
    let mut frozen = BTreeMap::new();
    std::thread::scope(|scope| {
        let pool = &pool;
        for (client, steps) in CLIENTS.iter().zip(&steps) {
            let is_over = &is_over;
            scope.spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    client(pool, live, steps.load(Ordering::Relaxed));
                    steps.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let is_over = &is_over;
        scope.spawn(move || {
            (0..).take_while(|_| !is_over.load(Ordering::Relaxed)).for_each(|round| reclaim_in_background(pool, round))
        });
        // The clients end, whatever happens here.
        struct Over<'a>(&'a AtomicBool);
        impl Drop for Over<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        let _over = Over(is_over);
        for number in 0..SNAPSHOTS {
            let before = steps.each_ref().map(|steps| steps.load(Ordering::Relaxed));
            let has_moved = || {
                steps.iter().zip(before).all(|(steps, before)| steps.load(Ordering::Relaxed) >= before + STEPS_BETWEEN)
            };
            while !has_moved() {
                std::thread::yield_now();
            }
            let name = format!("v{number}");
            snapshot(pool, "live", "series", &name);
            let version = find(pool, &format!("series/{name}"));
            check_moment(pool, version);
            frozen.insert(name, tree(pool, version));
            if number % 3 == 2 {
                let old = format!("v{}", number - 1);
                forget(pool, find(pool, "series"), &old);
                frozen.remove(&old);
            }
        }
    });
    assert!(frozen.values().collect::<Vec<_>>().windows(2).any(|pair| pair[0] != pair[1]), "the tree changed");
    assert_clean(&pool);
    pool.service().remove_tree(ROOT_INO, b"live").expect("removes");
    for _ in 0..2 {
        reclaim(&pool);
        assert_clean(&pool);
    }
    for (name, expected) in &frozen {
        let version = find(&pool, &format!("series/{name}"));
        check_moment(&pool, version);
        assert_eq!(&tree(&pool, version), expected);
    }
    let series = find(&pool, "series");
    frozen.keys().for_each(|name| forget(&pool, series, name));
    reclaim(&pool);
    assert_clean(&pool);
    let stats = pool.stats().expect("has figures");
    assert_eq!((stats.unique_chunk_bytes, stats.recipe_nodes), (0, 0), "nothing is left");
}

/// Runs of reclaiming that followed one another at once kept a snapshot waiting for up to its whole patience.
#[test]
fn regression_no_run_of_reclaiming_begins_while_a_snapshot_waits_for_the_last_one() {
    let device = formatted();
    let pool = open(&device);
    let live = directory(&pool, ROOT_INO, "live");
    file(&pool, live, "file", b"content");
    let run = pool.reclaiming().running.lock();
    std::thread::scope(|scope| {
        let made = scope.spawn(|| snapshot(&pool, "live", "", "v"));
        while !pool.reclaiming().is_ending() {
            std::thread::yield_now();
        }
        let refused = pool.reclaim(&ReclaimOptions::below(100), &NoProgress).expect_err("a snapshot waits");
        assert!(refused.to_string().contains("a snapshot"), "{refused}");
        drop(run);
        assert_eq!(made.join().expect("ends").entries, 1);
    });
    assert!(!pool.reclaiming().is_ending());
    reclaim(&pool);
}
