//! What a removal would free is what it then frees, to the byte.

use std::sync::Arc;

use dedupfs::transfer::{BaseChoice, PutOptions, VersionOptions};
use dedupfs::{NoProgress, Origin, Pool, WouldFree};
use dedupfs_service::{FileService, Ino, ROOT_INO, XattrMode};
use tempfile::TempDir;

use super::site::*;
use crate::tests::scrub::Random;

/// Bytes of chunks and of nodes that the indexes have.
pub(super) fn held(pool: &Pool) -> (u64, u64, u64, u64) {
    pool.core().committer.settle().expect("settles");
    let (mut chunks, mut nodes) = ((0, 0), (0, 0));
    let core = pool.core();
    for (index, sum) in [(&core.indexes.chunks, &mut chunks), (&core.indexes.nodes, &mut nodes)] {
        let mut add = |_, cell: dedupfs_index::Cell| {
            *sum = (sum.0 + 1, sum.1 + u64::from(cell.location.len_bytes()));
            Ok(())
        };
        index.for_each(&mut add).expect("reads");
    }
    (chunks.0, chunks.1, nodes.0, nodes.1)
}

fn assert_told(before: (u64, u64, u64, u64), told: &WouldFree, after: (u64, u64, u64, u64), what: &str) {
    let freed = (before.0 - after.0, before.1 - after.1, before.2 - after.2, before.3 - after.3);
    assert_eq!((told.chunks, told.chunk_bytes, told.nodes, told.node_bytes), freed, "{what}");
}

/// Sets of versions that are removed. `DEDUPFS_WOULD_FREE_SETS` sets another number.
const SETS: u64 = 250;

/// Content that other files have as well: most of it small, some of a few segments.
fn content(random: &mut Random) -> Vec<u8> {
    match random.below(40) {
        0 => bytes(random.below(2), 9 << 20),
        1..=4 => bytes(random.below(8), 200_000),
        5..=15 => bytes(random.below(20), 30_000),
        16 => Vec::new(),
        _ => format!("small {}", random.below(10)).into_bytes(),
    }
}

/// A pool with a live tree, a tree on a disk, and versions of both.
struct Trial {
    pool: Arc<Pool>,
    random: Random,
    /// Directories of the live tree, each with as many files in the beginning.
    directories: Vec<String>,
    files: u64,
    disk: TempDir,
    versions: Vec<String>,
    /// The answers for removals since the last reclaiming, summed up, and the chunks and nodes of the pool before them.
    told: Option<WouldFree>,
    before: (u64, u64, u64, u64),
}

impl Trial {
    fn new(seed: u64) -> Self {
        let random = Random(seed);
        let (directories, files) = match seed % 40 {
            7 => (1, 10_000),
            number if number % 4 == 1 => (3, 100),
            _ => (6, 10),
        };
        let pool = open(&formatted());
        let live = directory(&pool, ROOT_INO, "live");
        let directories: Vec<String> = (0..directories).map(|number| format!("directory-{number}")).collect();
        for name in &directories {
            let parent = directory(&pool, live, name);
            for number in 0..files {
                file(&pool, parent, &format!("file-{number}"), format!("{}", number % 70).as_bytes());
            }
        }
        // Live files that share content with versions, and are in none.
        directory(&pool, ROOT_INO, "beside");
        let disk = tempfile::tempdir().expect("makes");
        let mut trial =
            Self { pool, random, directories, files, disk, versions: Vec::new(), told: None, before: (0, 0, 0, 0) };
        for _ in 0..10 {
            trial.change_disk();
        }
        trial
    }

    /// Changes some files of the live tree, and of those beside it.
    fn change_live(&mut self) {
        let (pool, random) = (&self.pool, &mut self.random);
        let beside = find(pool, "beside");
        for _ in 0..random.below(8) {
            let parent =
                find(pool, &format!("live/{}", self.directories[random.below(self.directories.len() as u64) as usize]));
            let name = format!("file-{}", random.below(self.files));
            let _absent = pool.service().unlink(parent, name.as_bytes());
            let ino = file(pool, parent, &name, &content(random));
            match random.below(6) {
                0 => {
                    let (len, name) = if random.below(2) == 0 { (300, "user.long") } else { (60_000, "user.longer") };
                    let value = bytes(random.below(4), len);
                    pool.service().set_xattr(CALLER, ino, name.as_bytes(), &value, XattrMode::Any).expect("sets");
                }
                1 => {
                    // A name that may be in another directory, and replaces the former one.
                    let above = find(pool, "live");
                    let _absent = pool.service().unlink(above, b"linked");
                    pool.service().link(ino, above, b"linked").expect("links");
                    pool.service().forget(ino, 1);
                }
                2 => {
                    let name = format!("file-{}", random.below(5));
                    let _absent = pool.service().unlink(beside, name.as_bytes());
                    file(pool, beside, &name, &content(random));
                }
                _ => {}
            }
        }
    }

    /// Changes a file of the tree on the disk.
    fn change_disk(&mut self) {
        let at = |name: String| self.disk.path().join(name);
        let below = at(format!("directory-{}", self.random.below(3)));
        std::fs::create_dir_all(&below).expect("makes");
        let path = below.join(format!("file-{}", self.random.below(15)));
        let _absent = std::fs::remove_file(&path);
        std::fs::write(&path, content(&mut self.random)).expect("writes");
        if self.random.below(3) == 0 {
            let linked = at("linked".to_owned());
            let _absent = std::fs::remove_file(&linked);
            std::fs::hard_link(&path, linked).expect("links");
        }
    }

    fn add_version(&mut self) {
        let name = format!("v{}", self.versions.len());
        if self.random.below(3) == 0 {
            self.change_disk();
            let origin = Origin { source: b"/source".to_vec(), host: b"here".to_vec() };
            let version = VersionOptions { origin, base: BaseChoice::LastIn(ROOT_INO), ..VersionOptions::default() };
            let options = PutOptions { version: Some(version), ..PutOptions::default() };
            let from = std::fs::File::open(self.disk.path()).expect("opens").into();
            self.pool.put(&options, from, (ROOT_INO, name.as_bytes()), &NoProgress).expect("puts");
        } else {
            self.change_live();
            snapshot(&self.pool, "live", "", &name);
        }
        self.versions.push(name);
    }

    /// Takes some versions out of the list.
    fn choose(&mut self) -> Vec<String> {
        let count = 1 + self.random.below(3.min(self.versions.len() as u64));
        (0..count).map(|_| self.versions.remove(self.random.below(self.versions.len() as u64) as usize)).collect()
    }

    /// Removes, and asserts that this and reclaiming free as much as was told. Sometimes reclaiming comes behind later removals.
    /// Returns the answer.
    fn remove(&mut self, inos: &[Ino], what: &str, remove: impl FnOnce(&Self)) -> WouldFree {
        let told = self.pool.would_free(inos, &NoProgress).expect("counts down");
        assert!(!told.is_reclaiming);
        if self.told.is_none() {
            self.before = held(&self.pool);
        }
        let sum = self.told.get_or_insert_default();
        sum.chunks += told.chunks;
        sum.chunk_bytes += told.chunk_bytes;
        sum.nodes += told.nodes;
        sum.node_bytes += told.node_bytes;
        remove(self);
        if self.random.below(2) == 0 {
            self.reclaim(what);
        }
        told
    }

    fn reclaim(&mut self, what: &str) {
        let report = reclaim(&self.pool);
        if let Some(told) = self.told.take() {
            // Nodes that stay are encoded anew when they move.
            let mut after = held(&self.pool);
            after.3 = after.3.checked_add_signed(-report.hints_grown_bytes).expect("is the smaller part");
            assert_told(self.before, &told, after, what);
        }
    }

    /// Asserts that each version has the size that it is told alone.
    fn assert_sizes(&self) {
        let sizes = self.pool.version_sizes(None, &NoProgress).expect("counts");
        assert!(sizes.len() >= self.versions.len());
        for (ino, size) in sizes {
            assert_eq!(self.pool.would_free(&[ino], &NoProgress).expect("counts down"), size);
        }
    }
}

#[test]
fn what_would_be_freed_is_what_removal_and_reclaiming_then_free() {
    let wanted = std::env::var("DEDUPFS_WOULD_FREE_SETS").ok().map_or(SETS, |sets| sets.parse().expect("is a number"));
    let (mut sets, mut freed_something) = (0, 0);
    let mut seed = 0;
    while sets < wanted {
        seed += 1;
        let mut trial = Trial::new(seed);
        for _ in 0..4 + trial.random.below(12) {
            trial.add_version();
        }
        reclaim(&trial.pool);
        while !trial.versions.is_empty() {
            let set = trial.choose();
            let inos: Vec<Ino> = set.iter().map(|name| find(&trial.pool, name)).collect();
            let what = format!("seed {seed}, {set:?}");
            if trial.random.below(4) == 0 {
                trial.assert_sizes();
            }
            let told =
                trial.remove(&inos, &what, |trial| set.iter().for_each(|name| forget(&trial.pool, ROOT_INO, name)));
            sets += 1;
            freed_something += u64::from(told != WouldFree::default());
        }
        for name in ["live", "beside"] {
            let what = format!("seed {seed}, {name}");
            let ino = find(&trial.pool, name);
            trial.remove(&[ino], &what, |trial| {
                trial.pool.service().remove_tree(ROOT_INO, name.as_bytes()).expect("removes");
            });
        }
        trial.reclaim(&format!("seed {seed}, the end"));
        assert_eq!(held(&trial.pool), (0, 0, 0, 0));
        assert_clean(&trial.pool);
        trial.pool.close().expect("closes");
    }
    eprintln!("{sets} sets of versions in {seed} pools; {freed_something} of them alone held something");
    assert!(freed_something > sets / 2);
}

/// A version that was forgotten, and not reclaimed yet, held the content that it shares with the versions in question.
#[test]
fn regression_what_was_forgotten_holds_nothing() {
    let pool = open(&formatted());
    let live = directory(&pool, ROOT_INO, "live");
    let content = directory(&pool, live, "content");
    for number in 0..20 {
        file(&pool, content, &format!("file-{number}"), &bytes(number, 50_000));
    }
    for name in ["one", "two"] {
        file(&pool, live, name, b"is new");
        snapshot(&pool, "live", "", name);
    }
    pool.service().remove_tree(ROOT_INO, b"live").expect("removes");
    let two = find(&pool, "two");
    let would_free = || pool.would_free(&[two], &NoProgress).expect("counts down").chunk_bytes;
    assert_eq!(would_free(), 0, "both versions hold it");
    forget(&pool, ROOT_INO, "one");
    assert!(would_free() >= 1_000_000);
    assert!(pool.version_sizes(None, &NoProgress).expect("counts")[0].1.chunk_bytes >= 1_000_000);
    let tree = |path: &str| pool.tree_stats(find(&pool, path), &NoProgress).expect("counts");
    assert_eq!(tree("two").only_here.chunk_bytes, would_free());
    assert_eq!(tree("two/content").only_here.chunk_bytes, 1_000_000);
    // A run of reclaiming has dropped an unknown part of it.
    let begun = pool.reclaiming().begin(false);
    let told = pool.would_free(&[two], &NoProgress).expect("counts down");
    assert_eq!((told.chunk_bytes, told.is_reclaiming), (0, true));
    drop(begun);
    assert_eq!(would_free(), 1_000_006);
}

#[test]
fn a_name_more_elsewhere_keeps_a_file_and_parts_of_versions_are_refused() {
    let device = formatted();
    let pool = open(&device);
    let (one, other) = (directory(&pool, ROOT_INO, "one"), directory(&pool, ROOT_INO, "other"));
    let ino = file(&pool, one, "file", &bytes(1, 50_000));
    pool.service().link(ino, other, b"linked").expect("links");
    pool.service().forget(ino, 1);
    let of = |inos: &[Ino]| pool.would_free(inos, &NoProgress).expect("counts down");
    assert_eq!(of(&[one]), WouldFree::default());
    assert_eq!(of(&[one, other]).chunk_bytes, 50_000);
    assert_eq!(of(&[ROOT_INO, one, ROOT_INO]).chunk_bytes, 50_000, "each inode is counted once");
    snapshot(&pool, "one", "", "v");
    assert_eq!(of(&[one, other]), WouldFree::default());
    assert_eq!(of(&[ROOT_INO]).chunk_bytes, 50_000);
    pool.would_free(&[find(&pool, "v/file")], &NoProgress).expect_err("is a part of a version");
    pool.would_free(&[77_777], &NoProgress).expect_err("is not there");
}
