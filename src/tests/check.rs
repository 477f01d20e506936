//! Checks of pools whose cells do not fit into memory: with files for the facts, without, and with files that fail.

use std::collections::HashSet;
use std::fs::{self, File};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use dedupfs::check::{CheckOptions, CheckReport};
use dedupfs::{EngineError, NoProgress, OpenOptions, Pool, Progress};
use dedupfs_index::Change;
use dedupfs_service::{FileService, ROOT_INO, RenameFlags, XattrMode};
use dedupfs_store::ContainerId;
use tempfile::tempdir;

use crate::tests::common::{CALLER, content, write};
use crate::tests::rebuild::{damage, open, pool};
use crate::tests::versions::site::{directory, file, forget, snapshot};
use crate::upkeep::check::Checker;

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

/// A sound pool and a damaged one. Nothing is quarantined while that is only read.
fn pools() -> [Arc<Pool>; 2] {
    [false, true].map(|is_damaged| {
        let disk = pool();
        if is_damaged {
            damage(&disk);
        }
        open(&disk, &OpenOptions { read_only: is_damaged, ..OpenOptions::default() }).expect("opens")
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

/// Checks with so many bytes of room for temporary files.
fn check_with_room(pool: &Pool, scratch: &Path, room_bytes: u64, steps: &Steps<'_>) -> CheckReport {
    let core = pool.core();
    let checker = Checker { core, memory_bytes: 1 << 20, has_room: &|bytes| bytes < room_bytes, is_ended: &|| false };
    let options = CheckOptions { scratch: Some(scratch.to_owned()), ..CheckOptions::default() };
    checker.run(core.committer.hold_losses(), &options, steps).expect("checks")
}

#[test]
fn a_check_keeps_the_facts_of_as_many_ranges_as_there_is_room_for() {
    for pool in pools() {
        let scratch = tempdir().expect("is made");
        let (alone, enough) = (Steps::default(), Steps::default());
        check(&pool, None, &alone);
        let expected = check_with_room(&pool, scratch.path(), u64::MAX, &enough);
        let is_of_room = |note: &String| note.contains("--scratch");
        assert_eq!((readings(&enough), expected.notes.iter().any(is_of_room)), (1, false));
        let mut before = readings(&alone);
        for room_bytes in [10, 50_000, 100_000] {
            let steps = Steps::default();
            let mut found = check_with_room(&pool, scratch.path(), room_bytes, &steps);
            let read = readings(&steps);
            assert!(read > 1 && read <= before, "{read} times with {room_bytes} bytes");
            let told = format!("the check read the pool {read} times");
            assert_eq!(
                found.notes.iter().filter(|note| is_of_room(note) && note.contains(&told)).count(),
                1,
                "{:?}",
                found.notes
            );
            before = read - 1;
            found.notes.retain(|note| !is_of_room(note));
            assert_eq!(found, expected);
        }
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
        if number.is_multiple_of(2) { committer.settle() } else { committer.checkpoint().map(drop) }
            .expect("is durable");
    }
}

impl Progress for Beside<'_> {
    fn start(&self, _what: &str, _total: u64) {
        self.change();
    }
    fn advance(&self, by: u64) {
        if self.advanced.fetch_add(by, Ordering::Relaxed).is_multiple_of(16) {
            self.change();
        }
    }
    fn finish(&self) {
        self.change();
    }
}

/// Stores a chunk that no other file has, and counts it wrong.
fn miscount(pool: &Pool) {
    let index = &pool.core().indexes.chunks;
    let fingerprints = || {
        let mut fingerprints = HashSet::new();
        let mut add = |fingerprint, _| {
            fingerprints.insert(fingerprint);
            Ok(())
        };
        index.for_each(&mut add).expect("reads");
        fingerprints
    };
    let before = fingerprints();
    write(pool, "miscounted", &content(77, 3000));
    pool.core().committer.settle().expect("counts");
    let now = fingerprints();
    let fingerprint = *now.difference(&before).next().expect("is new");
    let change = Change::Count { fingerprint, delta: 5, hint: ContainerId::NONE };
    index.apply(pool.core().namespace.last_row(), &[change]).expect("counts");
}

/// References and counts were read at different times, so a sound pool had findings.
#[test]
fn regression_changes_during_a_check_are_no_findings() {
    for is_sound in [true, false] {
        let pool = open(&pool(), &OpenOptions::default()).expect("opens");
        if !is_sound {
            miscount(&pool);
        }
        let scratch = tempdir().expect("is made");
        let options = CheckOptions { read_data: true, ..CheckOptions::default() };
        let quiet = pool.check(&options, &Steps::default()).expect("checks");
        assert_eq!(quiet.findings.len(), usize::from(!is_sound), "{:?}", quiet.findings);
        let beside = Beside { pool: &pool, advanced: AtomicU64::new(0), changes: AtomicU64::new(1) };
        for scratch in [None, Some(scratch.path().to_owned())] {
            let before = beside.changes.load(Ordering::Relaxed);
            let found = pool.check(&CheckOptions { scratch, ..options.clone() }, &beside).expect("checks");
            assert_eq!(found.findings, quiet.findings);
            assert!(beside.changes.load(Ordering::Relaxed) > before + 20);
        }
    }
}

/// Stores files as rsync does, over earlier ones, and changes directories, attributes and versions, until it is done.
fn write_beside(pool: &Pool, writer: u64, is_done: &AtomicBool) {
    const NAMES: usize = 8;
    let (service, committer) = (pool.service(), &pool.core().committer);
    let top = format!("writer {writer}");
    let directory_ino = directory(pool, ROOT_INO, &top);
    let known = content(1, 4_000_000);
    let mut inos = [0; NAMES];
    for number in 0_u64.. {
        if is_done.load(Ordering::Relaxed) {
            break;
        }
        let from = (number as usize * 90_000) % 3_000_000;
        let new = content(10_000 * (writer + 1) + number, 9000);
        let ino = file(pool, directory_ino, "temporary", &[&known[from..][..90_000], &new].concat());
        service.set_xattr(CALLER, ino, b"user.number", &number.to_le_bytes(), XattrMode::Any).expect("sets");
        let at = number as usize % NAMES;
        let name = format!("file {at}");
        let over = RenameFlags::default();
        service.rename(directory_ino, b"temporary", directory_ino, name.as_bytes(), over).expect("renames");
        // The kernel knows the replaced one for a while.
        assert_eq!(service.lookup(directory_ino, name.as_bytes()).expect("is there").ino, ino);
        service.fsync_directory(directory_ino).expect("syncs");
        let replaced = std::mem::replace(&mut inos[at], ino);
        if replaced != 0 {
            service.forget(replaced, 1);
        }
        let inside = directory(pool, directory_ino, "inside");
        file(pool, inside, "short", b"short");
        service.unlink(inside, b"short").expect("unlinks");
        service.remove_directory(directory_ino, b"inside").expect("removes");
        if number % 5 == 4 {
            snapshot(pool, &top, "", &format!("version {writer}"));
            forget(pool, ROOT_INO, &format!("version {writer}"));
            committer.checkpoint().expect("checkpoints");
        }
    }
}

/// Names, orphans and attributes were read while they changed, and counts of another row than the references.
#[test]
fn regression_writers_beside_checks_make_no_findings() {
    let pool = open(&pool(), &OpenOptions::default()).expect("opens");
    let scratch = tempdir().expect("is made");
    let is_done = AtomicBool::new(false);
    let reports: Vec<_> = std::thread::scope(|scope| {
        let writers = [0, 1].map(|writer| {
            scope.spawn({
                let (pool, is_done) = (&pool, &is_done);
                move || write_beside(pool, writer, is_done)
            })
        });
        let check = |number| {
            let scratch = (number % 2 == 0).then(|| scratch.path().to_owned());
            pool.check(&CheckOptions { read_data: number % 3 == 0, scratch }, &NoProgress)
        };
        let reports = (0..6).map(check).collect();
        is_done.store(true, Ordering::Relaxed);
        writers.into_iter().for_each(|writer| writer.join().expect("writes"));
        reports
    });
    for report in reports {
        let report = report.expect("checks");
        assert!(report.is_clean(), "{:#?}", report.findings);
    }
    pool.close().expect("closes");
}

/// Closes the pool when containers are checked.
struct Closing<'a> {
    pool: &'a Arc<Pool>,
    closing: Mutex<Option<JoinHandle<dedupfs::Result<()>>>>,
}

impl Progress for Closing<'_> {
    fn start(&self, what: &str, _total: u64) {
        let mut closing = self.closing.lock().unwrap();
        if closing.is_none() && what.starts_with("checking containers") {
            let pool = self.pool.clone();
            *closing = Some(std::thread::spawn(move || pool.close()));
            while !self.pool.reclaiming().is_closed() {
                std::thread::yield_now();
            }
        }
    }
    fn advance(&self, _by: u64) {}
    fn finish(&self) {}
}

/// Closing waited for quarantine, which waited for the check of a pool with damage.
#[test]
fn regression_closing_ends_a_check_that_has_met_damage() {
    let disk = pool();
    damage(&disk);
    let pool = open(&disk, &OpenOptions::default()).expect("opens");
    let closes = Closing { pool: &pool, closing: Mutex::default() };
    let outcome = pool.check(&CheckOptions::default(), &closes);
    assert!(matches!(outcome, Err(EngineError::Ended(_))), "{outcome:?}");
    let closing = closes.closing.into_inner().unwrap().expect("was begun");
    let _with_damage = closing.join().expect("closes");
}
