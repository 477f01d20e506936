//! Puts that end early: the next put of the source goes on, and gives the version that reading everything gives.

use std::fs::{self, File};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dedupfs::transfer::{BaseChoice, PutOptions, TransferError, TransferReport, VersionOptions};
use dedupfs::{NoProgress, Origin, Pool, Progress, VersionReport};
use dedupfs_service::{Errno, FileService, Ino, Listing, ROOT_INO, XattrMode};

use super::incremental::{FOUND, make};
use super::site::*;

/// Entries of `make`, which all can be taken over.
const ENTRIES: u64 = 47;

/// Ends the work behind so many looks.
struct Ending(AtomicU64);

impl Progress for Ending {
    fn start(&self, _: &str, _: u64) {}
    fn advance(&self, _: u64) {}
    fn finish(&self) {}
    fn is_cancelled(&self) -> bool {
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_err()
    }
}

/// Options of a put beside which others left something. Each look of the thread that builds the tree names it.
fn options() -> VersionOptions {
    let origin = Origin { source: b"/source".to_vec(), host: b"here".to_vec() };
    let base = BaseChoice::LastIn(ROOT_INO);
    VersionOptions { origin, base, racy_ms: 0, resume_in: Some(ROOT_INO), incomplete_every_ms: 1, verify_percent: 0 }
}

fn work(pool: &Pool, number: u64) -> Ino {
    let work = directory(pool, ROOT_INO, &format!(".dedupfs-put-{number:016x}"));
    pool.service().set_xattr(CALLER, work, b"user.dedupfs.put", b"", XattrMode::Any).expect("marks");
    work
}

fn put(
    pool: &Pool,
    from: &Path,
    into: Ino,
    version: VersionOptions,
    progress: &dyn Progress,
) -> dedupfs::transfer::Result<TransferReport> {
    let options = PutOptions { version: Some(version), ..PutOptions::default() };
    pool.put(&options, File::open(from).expect("opens").into(), (into, b"v"), progress)
}

/// Puts into a work directory, and gives the version its name.
fn whole(pool: &Pool, from: &Path, name: &str, version: VersionOptions) -> VersionReport {
    let into = work(pool, 1000);
    let report = put(pool, from, into, version, &NoProgress).expect("puts").version.expect("is a version");
    assert_eq!(names(pool, into), ["v"], "the incomplete version has gone");
    pool.service().rename(into, b"v", ROOT_INO, name.as_bytes(), Default::default()).expect("renames");
    pool.service().remove_directory(ROOT_INO, format!(".dedupfs-put-{:016x}", 1000).as_bytes()).expect("removes");
    report
}

fn names(pool: &Pool, directory: Ino) -> Vec<String> {
    let listed = pool.service().read_directory(directory, 0, 99, Listing::Names).expect("lists");
    listed.into_iter().map(|entry| String::from_utf8(entry.name).expect("is text")).collect()
}

/// A put that ends behind so many looks.
fn ended(pool: &Pool, from: &Path, into: Ino, looks: u64, version: VersionOptions) {
    let error = put(pool, from, into, version, &Ending(looks.into())).expect_err("ends early");
    assert!(matches!(error, TransferError::Interrupted), "{error}");
}

/// A pool in which a put was ended, the directory of the put, and the incomplete version that it left, with `least` entries
/// or more. How much a put leaves depends on time.
fn left_behind(from: &Path, (looks, version): (u64, VersionOptions), least: usize) -> (Arc<Pool>, Ino, Ino) {
    for _ in 0..1000 {
        let pool = open(&formatted());
        let into = work(&pool, 1);
        ended(&pool, from, into, looks, version.clone());
        let name = names(&pool, into).pop();
        let left = name.map(|name| find(&pool, &format!(".dedupfs-put-{:016x}/{name}", 1)));
        if let Some(left) = left.filter(|left| tree(&pool, *left).len() >= least) {
            return (pool, into, left);
        }
    }
    panic!("no put left {least} entries");
}

fn resumed(report: &VersionReport) -> u64 {
    report.resumed.map_or(0, |resumed| resumed.entries)
}

fn source() -> tempfile::TempDir {
    let top = tempfile::tempdir().expect("makes");
    make(top.path());
    std::thread::sleep(std::time::Duration::from_millis(15));
    top
}

#[test]
fn a_put_goes_on_where_another_ended() {
    let top = source();
    let full = {
        let pool = open(&formatted());
        whole(&pool, top.path(), "full", options())
    };
    let mut most = 0;
    for looks in (0..150).step_by(6) {
        let device = formatted();
        let mut pool = open(&device);
        let into = work(&pool, looks);
        ended(&pool, top.path(), into, looks, options());
        assert!(pool.versions(None).expect("lists").is_empty(), "nothing lists it");
        let left = names(&pool, into);
        assert!(left.len() <= 1 && left.iter().all(|name| name.starts_with(".incomplete-")), "{left:?}");
        reclaim(&pool);
        assert_clean(&pool);
        // As after a crash, or a mount.
        if looks % 12 == 0 {
            pool.sync().expect("syncs");
            drop(pool);
            pool = open(&device);
        }
        let second = whole(&pool, top.path(), "v", options());
        assert_eq!(second.fingerprint, full.fingerprint, "{looks}");
        assert_eq!((second.base, second.taken_over), (None, resumed(&second)));
        assert_eq!(second.resumed.is_some(), !left.is_empty());
        most = most.max(resumed(&second));
        // Without room for it nothing else goes wrong.
        let third = whole(&pool, top.path(), "w", VersionOptions { resume_in: None, ..options() });
        assert_eq!((third.base, third.taken_over, third.resumed), (Some(second.ino), ENTRIES, None));
        assert_clean(&pool);
    }
    assert!(most > ENTRIES / 2, "at most {most} entries were taken over");
}

#[test]
fn what_changed_since_is_read_again() {
    for (name, change) in FOUND {
        let top = source();
        let device = formatted();
        let pool = open(&device);
        let first = whole(&pool, top.path(), "v1", options());
        fs::write(top.path().join("etc/file-20"), "changed behind the first").expect("writes");
        std::thread::sleep(std::time::Duration::from_millis(15));
        let into = work(&pool, 1);
        ended(&pool, top.path(), into, 90, VersionOptions { base: BaseChoice::None, ..options() });
        let left = names(&pool, into).pop();
        let left = left.map_or(0, |left| tree(&pool, find(&pool, &format!(".dedupfs-put-{:016x}/{left}", 1))).len());
        change(top.path());
        let second = whole(&pool, top.path(), "v2", options());
        let full =
            whole(&pool, top.path(), "v3", VersionOptions { resume_in: None, base: BaseChoice::None, ..options() });
        assert_eq!((&second.fingerprint, full.resumed), (&full.fingerprint, None), "{name}");
        assert_eq!(tree(&pool, find(&pool, "v2")), tree(&pool, find(&pool, "v3")), "{name}");
        assert_eq!(second.base, Some(first.ino));
        if *name == "nothing" {
            // Where the put ended depends on time: some of the entries at the border are read again.
            assert!((resumed(&second) > 0 || left < 10) && second.taken_over > ENTRIES * 3 / 4, "{second:?}");
        }
        assert_clean(&pool);
    }
}

#[test]
fn only_a_put_of_the_same_source_on_the_same_host_goes_on() {
    let top = source();
    let (pool, into, left) = left_behind(top.path(), (90, options()), 5);
    let others = [("/elsewhere", "here"), ("/source", "there")];
    for (number, (path, host)) in others.into_iter().enumerate() {
        let origin = Origin { source: path.as_bytes().to_vec(), host: host.as_bytes().to_vec() };
        let report = whole(&pool, top.path(), &format!("other-{number}"), VersionOptions { origin, ..options() });
        assert_eq!((report.resumed, report.taken_over), (None, 0));
    }
    // Reading everything goes on from nothing, and no plain base is incomplete.
    let plain = VersionOptions { base: BaseChoice::Version(left), resume_in: None, ..options() };
    let report = whole(&pool, top.path(), "plain", plain);
    assert_eq!((report.without_base.as_deref(), report.taken_over), (Some("the base is incomplete"), 0));
    assert!(resumed(&whole(&pool, top.path(), "same", options())) > 0);
    // Renamed to a place where it is listed it says that it is incomplete, and is nobody's last version.
    let name = names(&pool, into)[0].clone();
    pool.service().rename(into, name.as_bytes(), ROOT_INO, b"zzz", Default::default()).expect("renames");
    let listed = pool.versions(None).expect("lists");
    assert!(listed.iter().all(|version| version.incomplete == (version.name == "zzz")) && listed.len() == 5);
    let rows = pool.history(ROOT_INO, b"home/large", &NoProgress).expect("is told");
    assert_eq!((rows.len(), rows[0].versions), (1, 4), "{rows:?}");
    assert_clean(&pool);
}

#[test]
fn damaged_notes_of_an_incomplete_version_cost_reading_and_nothing_else() {
    let top = source();
    let device = formatted();
    let pool = open(&device);
    let into = work(&pool, 1);
    ended(&pool, top.path(), into, 90, options());
    let left = find(&pool, &format!(".dedupfs-put-{:016x}/{}", 1, names(&pool, into)[0]));
    let name = format!("{left:016x}");
    let sound = device.read_file(&format!("notes/{name}"), 1 << 20).expect("reads");
    let version = || VersionOptions { base: BaseChoice::None, ..options() };
    let full = whole(&pool, top.path(), "full", VersionOptions { resume_in: None, ..version() });
    for at in (0..sound.len()).step_by(61) {
        let mut bytes = sound.clone();
        bytes[at] ^= 4;
        device.replace_file("notes", &name, &bytes).expect("writes");
        let report = whole(&pool, top.path(), "v", version());
        assert_eq!(report.fingerprint, full.fingerprint, "byte {at}");
        forget(&pool, ROOT_INO, "v");
    }
    device.remove(&format!("notes/{name}")).expect("removes");
    let report = whole(&pool, top.path(), "v", version());
    assert_eq!((&report.fingerprint, report.taken_over), (&full.fingerprint, 0));
    assert_clean(&pool);
}

#[test]
fn puts_that_end_early_one_behind_the_other_lose_nothing_of_the_first() {
    let top = source();
    let version = || VersionOptions { base: BaseChoice::None, ..options() };
    let (pool, _, _) = left_behind(top.path(), (100, version()), ENTRIES as usize * 3 / 4);
    for number in 2..4 {
        ended(&pool, top.path(), work(&pool, number), 20, version());
    }
    let report = whole(&pool, top.path(), "v", version());
    assert!(resumed(&report) > ENTRIES / 2, "{report:?}");
    assert_clean(&pool);
}

#[test]
fn puts_of_one_source_at_once_are_all_whole() {
    let top = source();
    let device = formatted();
    let pool = open(&device);
    let all: Vec<Ino> = (0..3).map(|number| work(&pool, number)).collect();
    let fingerprints: Vec<String> = std::thread::scope(|scope| {
        let putting = all.iter().map(|&into| {
            let (pool, top) = (&pool, top.path());
            scope.spawn(move || {
                let version = VersionOptions { base: BaseChoice::None, ..options() };
                put(pool, top, into, version, &NoProgress).expect("puts").version.expect("is a version").fingerprint
            })
        });
        let putting: Vec<_> = putting.collect();
        while !putting.iter().all(|putting| putting.is_finished()) {
            let _outcome = pool.reclaim(&dedupfs::reclaim::ReclaimOptions::below(100), &NoProgress);
        }
        putting.into_iter().map(|putting| putting.join().expect("ends")).collect()
    });
    assert!(fingerprints.iter().all(|fingerprint| *fingerprint == fingerprints[0]));
    reclaim(&pool);
    assert_clean(&pool);
    let trees: Vec<_> = all
        .iter()
        .map(|&into| {
            assert_eq!(names(&pool, into), ["v"]);
            let found = pool.service().lookup(into, b"v").expect("is there").ino;
            tree(&pool, found)
        })
        .collect();
    assert!(trees.iter().all(|one| *one == trees[0]));
}

#[test]
fn a_put_that_names_none_and_a_short_one_leave_nothing() {
    let top = source();
    let device = formatted();
    let pool = open(&device);
    for (number, every) in [(1, 0), (2, 3_600_000)] {
        let into = work(&pool, number);
        ended(&pool, top.path(), into, 90, VersionOptions { incomplete_every_ms: every, ..options() });
        assert_eq!(names(&pool, into), [""; 0]);
    }
    // Nor does one into a directory that the kernel may know.
    let known = directory(&pool, ROOT_INO, "known");
    ended(&pool, top.path(), known, 90, options());
    assert_eq!(names(&pool, known), [""; 0]);
    assert_clean(&pool);
}

#[test]
fn the_kernel_sees_nothing_of_a_directory_in_which_a_put_works() {
    let top = source();
    let device = formatted();
    let pool = open(&device);
    let into = work(&pool, 1);
    struct Looking<'a>(&'a Pool, Ino);
    impl Progress for Looking<'_> {
        fn start(&self, _: &str, _: u64) {}
        fn advance(&self, _: u64) {}
        fn finish(&self) {}
        fn is_cancelled(&self) -> bool {
            assert_eq!(self.0.service().lookup(self.1, b".incomplete-1"), Err(Errno::EBUSY));
            false
        }
    }
    put(&pool, top.path(), into, options(), &Looking(&pool, into)).expect("puts");
    assert_eq!(names(&pool, into), ["v"]);
}
