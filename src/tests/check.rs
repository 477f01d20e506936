//! Checks of pools whose cells do not fit into memory: with files for the facts, without, and with files that fail.

use std::fs::{self, File};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use dedupfs::check::{CheckOptions, CheckReport};
use dedupfs::{OpenOptions, Pool, Progress};
use dedupfs_service::{FileService, ROOT_INO};
use tempfile::tempdir;

use crate::tests::common::{content, write};
use crate::tests::rebuild::{damage, open, pool};
use crate::tests::versions::site::{file, snapshot};

/// Collects the steps of a check, and cuts its temporary files at one of them.
#[derive(Default)]
struct Steps<'a> {
    begun: Mutex<Vec<String>>,
    cut: Option<(&'a str, &'a Path)>,
}

impl Progress for Steps<'_> {
    fn start(&self, what: &str, _total: u64) {
        self.begun.lock().unwrap().push(what.to_owned());
        if let Some((_, directory)) = self.cut.filter(|(at, _)| *at == what) {
            let cut = open_files_in(directory).map(|file| file.set_len(10).expect("is cut")).count();
            assert_eq!(cut, 2, "needs and places");
        }
    }
    fn advance(&self, _by: u64) {}
    fn finish(&self) {}
}

/// The files of this process in a directory, with or without a name.
fn open_files_in(directory: &Path) -> impl Iterator<Item = File> {
    let links = fs::read_dir("/proc/self/fd").expect("lists").map(|entry| entry.expect("is an entry").path());
    let inside = links.filter(move |link| fs::read_link(link).is_ok_and(|file| file.starts_with(directory)));
    inside.collect::<Vec<_>>().into_iter().map(|link| File::options().write(true).open(link).expect("opens again"))
}

fn check(pool: &Pool, scratch: Option<&Path>, steps: &Steps<'_>) -> CheckReport {
    let options = CheckOptions { scratch: scratch.map(Path::to_owned), ..CheckOptions::default() };
    pool.check(&options, steps).expect("checks")
}

/// Times that the pool was read for its facts.
fn readings(steps: &Steps<'_>) -> usize {
    steps.begun.lock().unwrap().iter().filter(|step| step.starts_with("counting references")).count()
}

/// A sound pool and a damaged one.
fn pools() -> [std::sync::Arc<Pool>; 2] {
    [false, true].map(|is_damaged| {
        let disk = pool();
        if is_damaged {
            damage(&disk);
        }
        open(&disk, &OpenOptions::default()).expect("opens")
    })
}

#[test]
fn a_check_with_files_reads_the_pool_once_and_finds_the_same() {
    for (pool, is_sound) in pools().iter().zip([true, false]) {
        let scratch = tempdir().expect("is made");
        let (alone, with_files) = (Steps::default(), Steps::default());
        let expected = check(pool, None, &alone);
        assert_eq!(check(pool, Some(scratch.path()), &with_files), expected);
        assert_eq!(expected.is_clean(), is_sound, "{:?}", expected.findings);
        assert!(expected.chunks > 1000 && expected.nodes > 20 && expected.containers > 10);
        assert!(readings(&alone) > 3);
        assert_eq!(readings(&with_files), 1);
        assert_eq!(fs::read_dir(scratch.path()).expect("lists").count(), 0);
    }
}

#[test]
fn a_check_whose_files_fail_reads_the_pool_again_and_finds_the_same() {
    for pool in pools() {
        let scratch = tempdir().expect("is made");
        let mut expected = check(&pool, None, &Steps::default());
        let nowhere = check(&pool, Some(&scratch.path().join("nowhere")), &Steps::default());
        assert!(nowhere.notes[0].contains("nowhere") && nowhere.notes[0].contains("--scratch"), "{:?}", nowhere.notes);
        // The first ranges are compared from the files, the others by reading again.
        let ranges = readings(&{
            let steps = Steps::default();
            check(&pool, None, &steps);
            steps
        });
        let at = format!("comparing with the indexes, pass 3 of {ranges}");
        let cut = Steps { cut: Some((&at, scratch.path())), ..Steps::default() };
        let mut found = check(&pool, Some(scratch.path()), &cut);
        assert_eq!(readings(&cut), 1 + ranges - 2);
        assert!(found.notes.iter().any(|note| note.contains("the file ends before it")), "{:?}", found.notes);
        for report in [&mut expected, &mut found] {
            report.notes.clear();
        }
        assert_eq!(found, expected);
    }
}

/// Changes the pool while it is checked: stores new and known content, removes what it has stored, makes versions, and writes checkpoints.
struct Beside<'a> {
    pool: &'a Pool,
    advanced: AtomicU64,
    changes: AtomicU64,
}

impl Beside<'_> {
    fn change(&self) {
        let number = self.changes.fetch_add(1, Ordering::Relaxed);
        let known = content(1, 4_000_000);
        let from = (number as usize * 400_000) % 3_000_000;
        write(
            self.pool,
            &format!("beside {number}"),
            &[&known[from..][..300_000], &content(1000 + number, 50_000)].concat(),
        );
        if number > 2 {
            self.pool.service().unlink(ROOT_INO, format!("beside {}", number - 2).as_bytes()).expect("unlinks");
        }
        let live = self.pool.service().lookup(ROOT_INO, b"live").expect("is there").ino;
        file(self.pool, live, &format!("beside {number}"), b"new");
        snapshot(self.pool, "live", "", &format!("beside v{number}"));
        let committer = &self.pool.core().committer;
        if number % 2 == 0 { committer.settle() } else { committer.checkpoint().map(drop) }.expect("is durable");
    }
}

impl Progress for Beside<'_> {
    fn start(&self, _what: &str, _total: u64) {
        self.change();
    }
    fn advance(&self, by: u64) {
        if self.advanced.fetch_add(by, Ordering::Relaxed) % 16 == 0 {
            self.change();
        }
    }
    fn finish(&self) {
        self.change();
    }
}

/// References and counts were read at different times, so a sound pool had findings.
#[test]
fn regression_changes_during_a_check_are_no_findings() {
    for (pool, is_sound) in pools().iter().zip([true, false]) {
        let scratch = tempdir().expect("is made");
        let quiet = check(pool, None, &Steps::default());
        let beside = Beside { pool, advanced: AtomicU64::new(0), changes: AtomicU64::new(1) };
        for scratch in [None, Some(scratch.path().to_owned())] {
            let before = beside.changes.load(Ordering::Relaxed);
            let found = pool.check(&CheckOptions { scratch, ..CheckOptions::default() }, &beside).expect("checks");
            // Without the number of all cells, which grows.
            let told = |report: &CheckReport| -> Vec<_> {
                report.findings.iter().map(|finding| finding.split(" of ").next().map(str::to_owned)).collect()
            };
            assert_eq!((found.is_clean(), told(&found)), (is_sound, told(&quiet)), "{:?}", found.findings);
            assert!(beside.changes.load(Ordering::Relaxed) > before + 20);
        }
    }
}
