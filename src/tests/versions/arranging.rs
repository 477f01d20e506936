//! The newest version of a series lies together, in its order, within what may be moved for that.

use std::collections::BTreeMap;
use std::sync::Arc;

use dedupfs::reclaim::{Arranging, CREDIT_FILE, Credit, ReclaimOptions, ReclaimReport};
use dedupfs::{NoProgress, Pool};
use dedupfs_service::{FileService, Listing, ROOT_INO};
use dedupfs_store::device::Device;

use super::site::*;

const FILES: u64 = 20;
const FILE_BYTES: usize = 100_000;
const VERSIONS: u64 = 12;
const SERIES: Series = Series { file_bytes: FILE_BYTES, place_bytes: 6000 };

/// A live tree of which half of the files change in four places before each version.
pub(super) struct Series {
    pub(super) file_bytes: usize,
    pub(super) place_bytes: usize,
}

impl Series {
    /// Overwrites four places in half of the files.
    fn change(&self, pool: &Pool, number: u64) {
        for file in (0..FILES).filter(|file| (file + number).is_multiple_of(2)) {
            let ino = find(pool, &format!("live/f{file}"));
            for place in 0..4 {
                let at = (file * 31 + number * 17 + place * 23) % 90 * self.file_bytes as u64 / 100;
                write(pool, ino, at, &bytes(1000 * number + 10 * file + place, self.place_bytes));
            }
        }
    }

    /// Makes the live tree and its versions. Returns the paths of these.
    pub(super) fn make(&self, pool: &Pool) -> Vec<String> {
        let live = directory(pool, ROOT_INO, "live");
        directory(pool, ROOT_INO, "series");
        for number in 0..FILES {
            file(pool, live, &format!("f{number}"), &bytes(number + 1, self.file_bytes));
        }
        let names = (1..=VERSIONS).map(|number| {
            self.change(pool, number);
            snapshot(pool, "live", "series", &format!("v{number:02}"));
            format!("series/v{number:02}")
        });
        names.collect()
    }

    /// Bytes of a version.
    pub(super) fn version_bytes(&self) -> u64 {
        FILES * self.file_bytes as u64
    }
}

/// A pool with a series of versions of a live tree.
fn series(device: &Arc<dyn Device>) -> Arc<Pool> {
    let pool = open(device);
    SERIES.make(&pool);
    pool
}

pub(super) fn run(pool: &Pool, arranging: Arranging) -> ReclaimReport {
    let options = ReclaimOptions { arranging, leave_percent: 100, ..ReclaimOptions::below(1) };
    pool.reclaim(&options, &NoProgress).expect("reclaims")
}

/// Reads a version from a pool that is opened anew. Returns the tree, and the bytes of data containers read for it.
fn restored(device: &Arc<dyn Device>, name: &str) -> (BTreeMap<String, Seen>, u64) {
    let pool = open(device);
    let seen = tree(&pool, find(&pool, &format!("series/{name}")));
    (seen, pool.stats().expect("tells").data_containers.read_bytes)
}

#[test]
fn the_newest_version_lies_together_and_the_others_apart() {
    let device = formatted();
    let pool = series(&device);
    let logical = SERIES.version_bytes();
    pool.close().expect("closes");
    drop(pool);
    let names: Vec<String> = (1..=VERSIONS).map(|number| format!("v{number:02}")).collect();
    let before: Vec<_> = names.iter().map(|name| restored(&device, name)).collect();
    let (_, read_before) = before[VERSIONS as usize - 1];
    assert!(read_before > logical * 2, "{read_before}");
    let pool = open(&device);
    let dead_only = ReclaimOptions { arranging: Arranging::Budget, ..ReclaimOptions::below(0) };
    for off in [run(&pool, Arranging::Off), pool.reclaim(&dead_only, &NoProgress).expect("reclaims")] {
        assert_eq!((off.chunks_moved, off.arranged_bytes), (0, 0));
    }
    let report = run(&pool, Arranging::All);
    assert!(report.arranged_bytes > logical / 4 && report.moved_bytes >= report.arranged_bytes, "{report:?}");
    assert_clean(&pool);
    pool.close().expect("closes");
    drop(pool);
    let after: Vec<_> = names.iter().map(|name| restored(&device, name)).collect();
    assert!(before.iter().zip(&after).all(|(before, after)| before.0 == after.0), "content is as before");
    let (_, read_after) = after[VERSIONS as usize - 1];
    assert!(read_after < logical * 13 / 10, "{read_after} of {logical} bytes, {read_before} before");
    // When all others are removed, hardly anything must be copied.
    let pool = open(&device);
    let directory = find(&pool, "series");
    names[..VERSIONS as usize - 1].iter().for_each(|name| forget(&pool, directory, name));
    let live = find(&pool, "live");
    (0..FILES).for_each(|number| pool.service().unlink(live, format!("f{number}").as_bytes()).expect("unlinks"));
    let report = pool.reclaim(&ReclaimOptions::below(50), &NoProgress).expect("reclaims");
    let freed = report.physical_before_bytes - report.physical_after_bytes;
    assert!(freed > logical / 2 && report.moved_bytes * 10 < freed, "{report:?}");
    assert_eq!(tree(&pool, find(&pool, "series/v12")), after[VERSIONS as usize - 1].0);
    assert_clean(&pool);
}

#[test]
fn no_more_is_moved_than_three_bytes_for_each_new_one() {
    let device = formatted();
    let pool = series(&device);
    let logical = SERIES.version_bytes();
    // A quarter of the content, and recipes.
    let most = logical / 4 + logical / 50;
    let first = run(&pool, Arranging::Budget);
    assert!(first.arranged_bytes > 0 && first.arranged_bytes <= most, "{first:?}");
    // Nothing was stored since then.
    for _ in 0..3 {
        assert_eq!(run(&pool, Arranging::Budget).arranged_bytes, 0);
    }
    let mut moved = 0;
    for number in VERSIONS + 1..VERSIONS + 13 {
        let stored_before = pool.stats().expect("tells").session.bytes_stored;
        SERIES.change(&pool, number);
        snapshot(&pool, "live", "series", &format!("v{number:02}"));
        let left = Credit::read(&*device, &pool.core().pool).expect("reads").bytes;
        let stored = pool.stats().expect("tells").session.bytes_stored - stored_before;
        let report = run(&pool, Arranging::Budget);
        assert!(
            report.arranged_bytes <= left + 3 * stored + logical / 50 && report.arranged_bytes <= most,
            "{report:?}"
        );
        assert!(report.moved_bytes <= report.arranged_bytes + logical / 10, "{report:?}");
        moved += report.arranged_bytes;
        assert_eq!(run(&pool, Arranging::Budget).arranged_bytes, 0);
    }
    assert!(moved > 0);
    assert_clean(&pool);
    // What is left is forgotten with the file; a damaged one counts as none.
    for damage in [&b""[..], &[7; 100]] {
        device.replace_file("", CREDIT_FILE, damage).expect("writes");
        SERIES.change(&pool, 100 + damage.len() as u64);
        snapshot(&pool, "live", "series", &format!("w{}", damage.len()));
        let report = run(&pool, Arranging::Budget);
        assert!(report.arranged_bytes > 0 && report.arranged_bytes <= most, "{report:?}");
        Credit::read(&*device, &pool.core().pool).expect("is sound again");
    }
    assert_clean(&pool);
}

/// A plan left it out: it told of no garbage where a run then moved three bytes for each new one. Then it waited for the end of a pause.
#[test]
fn regression_a_plan_counts_what_is_arranged_and_changes_nothing() {
    for arranging in [Arranging::Budget, Arranging::All, Arranging::Off] {
        let device = formatted();
        let pool = series(&device);
        let options = ReclaimOptions { arranging, leave_percent: 100, ..ReclaimOptions::below(1) };
        let [planned, again, done] = [options.planned(), options.planned(), options].map(|options| {
            pool.reclaiming().pause(options.dry_run);
            pool.reclaim(&options, &NoProgress).expect("reclaims")
        });
        assert_eq!((planned.arranged_bytes, planned.moved_bytes), (again.arranged_bytes, again.moved_bytes));
        assert_eq!(planned.arranged_bytes, done.arranged_bytes, "{arranging:?}");
        // A run refreshes stale hints besides.
        assert!(planned.moved_bytes <= done.moved_bytes && planned.containers_freed <= done.containers_freed);
        assert_eq!(planned.arranged_bytes > 0, arranging != Arranging::Off, "{planned:?}");
    }
}

/// The run that a mount makes by itself.
#[test]
fn a_run_alone_arranges_new_versions_and_leaves_garbage() {
    let device = formatted();
    let pool = series(&device);
    let alone = ReclaimOptions { is_background: false, share_percent: 100, ..ReclaimOptions::arranging() };
    assert!(pool.has_new_versions().expect("tells"));
    let newest = tree(&pool, find(&pool, "series/v12"));
    // A removed version is left to a command.
    forget(&pool, find(&pool, "series"), "v01");
    let nodes = pool.stats().expect("tells").recipe_nodes;
    let report = pool.reclaim(&alone, &NoProgress).expect("arranges");
    assert!(report.arranged_bytes > 0 && report.arranged_bytes <= SERIES.version_bytes() * 27 / 100, "{report:?}");
    assert_eq!((report.nodes_freed, pool.stats().expect("tells").recipe_nodes), (0, nodes), "{report:?}");
    assert!(!pool.has_new_versions().expect("tells"));
    assert_eq!(pool.reclaim(&alone, &NoProgress).expect("arranges").arranged_bytes, 0);
    assert_clean(&pool);
    assert_eq!(tree(&pool, find(&pool, "series/v12")), newest);
}

#[test]
fn what_the_newest_version_uses_is_moved_out_of_garbage() {
    let device = formatted();
    let pool = open(&device);
    let live = directory(&pool, ROOT_INO, "live");
    let series = directory(&pool, ROOT_INO, "series");
    for number in 0..FILES {
        file(&pool, live, &format!("f{number}"), &bytes(number + 1, FILE_BYTES));
    }
    snapshot(&pool, "live", "series", "v01");
    for number in (0..FILES).step_by(2) {
        pool.service().unlink(live, format!("f{number}").as_bytes()).expect("unlinks");
    }
    snapshot(&pool, "live", "series", "v02");
    forget(&pool, series, "v01");
    // All that lives is used. Half of each container is garbage.
    let report = run(&pool, Arranging::All);
    assert!(report.arranged_bytes > SERIES.version_bytes() / 3, "{report:?}");
    assert_eq!(run(&pool, Arranging::All).arranged_bytes, 0, "it lies together");
    assert_clean(&pool);
    pool.close().expect("closes");
    drop(pool);
    let (_, read) = restored(&device, "v02");
    assert!(read < SERIES.version_bytes() / 2 * 11 / 10, "{read} bytes");
}

/// Found by ageing a pool of 32,000 small files: the recipes of the newest version were too many to be read for the order of what was moved.
/// Content that was not met by then went to the archive, so the newest version lay scattered over all of the pool.
#[test]
fn regression_a_version_of_many_small_files_is_told_apart_from_older_content() {
    const SMALL_FILES: u64 = 2000;
    const SMALL_BYTES: usize = 7_000;
    let device = formatted();
    let pool = open(&device);
    let live = directory(&pool, ROOT_INO, "live");
    directory(&pool, ROOT_INO, "series");
    let content = |number: u64, version: u64| bytes(10_000 * version + number + 1, SMALL_BYTES);
    let inos: Vec<_> =
        (0..SMALL_FILES).map(|number| file(&pool, live, &format!("f{number:04}"), &content(number, 0))).collect();
    for version in 1..=2 {
        for number in (0..SMALL_FILES).filter(|number| version == 2 && number.is_multiple_of(4)) {
            write(&pool, inos[number as usize], 0, &content(number, version));
        }
        snapshot(&pool, "live", "series", &format!("v{version}"));
    }
    run(&pool, Arranging::Budget);
    // From here on all that lives is of the newest version.
    forget(&pool, find(&pool, "series"), "v1");
    let options = ReclaimOptions { arranging: Arranging::Budget, ..ReclaimOptions::below(100) };
    let moved_bytes = pool.reclaim(&options, &NoProgress).expect("reclaims").moved_bytes;
    let active_bytes = Credit::read(&*device, &pool.core().pool).expect("reads").copied_bytes;
    assert!(moved_bytes > 1_000_000 && active_bytes * 10 > moved_bytes * 8, "{active_bytes} of {moved_bytes}");
}

/// Nodes of a directory lay between the recipes. So a listing read all recipes, which had left the cache when the files were read.
#[test]
fn regression_a_listing_of_an_arranged_version_leaves_most_recipes_unread() {
    const MANY: u64 = 300;
    let device = formatted();
    let pool = open(&device);
    let live = directory(&pool, ROOT_INO, "live");
    (0..MANY).for_each(|number| {
        file(&pool, live, &format!("f{number}"), &bytes(number + 1, FILE_BYTES));
    });
    snapshot(&pool, "live", "", "first");
    // Half of the recipes are garbage then.
    let content = |number: u64| bytes(number + 1 + MANY * (number % 2), FILE_BYTES);
    (1..MANY).step_by(2).for_each(|number| write(&pool, find(&pool, &format!("live/f{number}")), 0, &content(number)));
    snapshot(&pool, "live", "", "v");
    forget(&pool, ROOT_INO, "first");
    let everything = ReclaimOptions { arranging: Arranging::All, leave_percent: 0, ..ReclaimOptions::below(100) };
    pool.reclaim(&everything, &NoProgress).expect("reclaims");
    pool.close().expect("closes");
    drop(pool);
    let pool = open(&device);
    let read_bytes = || pool.stats().expect("tells").recipe_containers.read_bytes;
    let top = find(&pool, "v");
    let listed = pool.service().read_directory(top, 0, MANY as usize, Listing::Attributes).expect("lists");
    let by_listing = read_bytes();
    assert_eq!(listed.len() as u64, MANY);
    (0..MANY).for_each(|number| {
        assert!(read(&pool, find(&pool, &format!("v/f{number}"))) == content(number));
    });
    assert!(by_listing * 2 < read_bytes(), "{by_listing} of {}", read_bytes());
}
