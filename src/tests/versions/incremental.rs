//! Puts that take over what did not change: they give the version that reading everything gives.

use std::fs::{self, File, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::time::Duration;

use dedupfs::scrub::BadCopy;
use dedupfs::transfer::{BaseChoice, PutOptions, TransferReport, VersionOptions};
use dedupfs::{NoProgress, Origin, Pool, VersionReport};
use dedupfs_service::{FileService, ROOT_INO, RenameFlags};
use dedupfs_store::device::OpenMode;

use super::site::*;

fn options(base: BaseChoice) -> VersionOptions {
    let origin = Origin { source: b"/source".to_vec(), host: b"here".to_vec() };
    VersionOptions { origin, base, racy_ms: 0, ..VersionOptions::default() }
}

fn put_with(pool: &Pool, from: &Path, name: &str, version: VersionOptions) -> TransferReport {
    let options = PutOptions { version: Some(version), ..PutOptions::default() };
    let from = File::open(from).expect("opens").into();
    pool.put(&options, from, (ROOT_INO, name.as_bytes()), &NoProgress).expect("puts")
}

fn put(pool: &Pool, from: &Path, name: &str, base: BaseChoice) -> VersionReport {
    put_with(pool, from, name, options(base)).version.expect("is a version")
}

const LAST: BaseChoice = BaseChoice::LastIn(ROOT_INO);

/// A tree with something for each change below.
pub(super) fn make(top: &Path) {
    let at = |name: &str| top.join(name);
    for directory in ["etc", "etc/deep", "home", "empty"] {
        fs::create_dir(at(directory)).expect("makes");
    }
    for number in 0..40 {
        fs::write(at(&format!("etc/file-{number}")), format!("content {number}")).expect("writes");
    }
    fs::write(at("home/large"), bytes(1, 3 << 20)).expect("writes");
    fs::write(at("home/one"), "1234").expect("writes");
    fs::write(at("home/other"), "5678").expect("writes");
    fs::write(at("etc/deep/file"), "deep").expect("writes");
    fs::hard_link(at("home/one"), at("home/linked")).expect("links");
    symlink("aaaa", at("home/symlink")).expect("links");
    let sparse = File::create(at("home/sparse")).expect("makes");
    sparse.write_at(b"end", 1 << 20).expect("writes");
}

/// Sets the time of the last change of content to that of another file.
fn set_back(path: &Path, to: &fs::Metadata) {
    let file = OpenOptions::new().write(true).open(path).expect("opens");
    file.set_modified(to.modified().expect("has a time")).expect("sets");
}

pub(super) type Change = (&'static str, fn(&Path));

/// Changes that a put with a base must find.
pub(super) const FOUND: &[Change] = &[
    ("nothing", |_| {}),
    ("appended", |top| {
        OpenOptions::new().append(true).open(top.join("etc/file-1")).unwrap().write_all(b"more").unwrap();
    }),
    ("overwritten in place, same size", |top| {
        OpenOptions::new().write(true).open(top.join("etc/file-2")).unwrap().write_all(b"CONTENT").unwrap();
    }),
    ("same size, and the time of content set back", |top| {
        let path = top.join("etc/file-3");
        let before = fs::metadata(&path).unwrap();
        fs::write(&path, "CONTENT 3").unwrap();
        set_back(&path, &before);
    }),
    ("truncated", |top| {
        OpenOptions::new().write(true).open(top.join("home/large")).unwrap().set_len(1 << 20).unwrap();
    }),
    ("extended by a hole", |top| {
        OpenOptions::new().write(true).open(top.join("home/one")).unwrap().set_len(1 << 20).unwrap();
    }),
    ("a hole filled", |top| {
        OpenOptions::new().write(true).open(top.join("home/sparse")).unwrap().write_at(b"x", 0).unwrap();
    }),
    ("renamed over by a file of the same size and time", |top| {
        let (path, new) = (top.join("home/other"), top.join("new"));
        let before = fs::metadata(&path).unwrap();
        fs::write(&new, "8765").unwrap();
        set_back(&new, &before);
        fs::rename(new, path).unwrap();
    }),
    ("removed and made again, same size and time", |top| {
        let path = top.join("etc/file-4");
        let before = fs::metadata(&path).unwrap();
        fs::remove_file(&path).unwrap();
        fs::write(&path, "CONTENT 4").unwrap();
        set_back(&path, &before);
    }),
    ("two files exchanged", |top| {
        fs::rename(top.join("etc/file-5"), top.join("x")).unwrap();
        fs::rename(top.join("etc/file-6"), top.join("etc/file-5")).unwrap();
        fs::rename(top.join("x"), top.join("etc/file-6")).unwrap();
    }),
    ("a file became a directory", |top| {
        fs::remove_file(top.join("etc/file-7")).unwrap();
        fs::create_dir(top.join("etc/file-7")).unwrap();
        fs::write(top.join("etc/file-7/inner"), "inner").unwrap();
    }),
    ("a directory became a file", |top| {
        fs::remove_dir_all(top.join("etc/deep")).unwrap();
        fs::write(top.join("etc/deep"), "flat").unwrap();
    }),
    ("a file became a symbolic link", |top| {
        fs::remove_file(top.join("etc/file-8")).unwrap();
        symlink("content 8", top.join("etc/file-8")).unwrap();
    }),
    ("a symbolic link leads elsewhere, same length", |top| {
        fs::remove_file(top.join("home/symlink")).unwrap();
        symlink("bbbb", top.join("home/symlink")).unwrap();
    }),
    ("mode", |top| {
        fs::set_permissions(top.join("etc/file-9"), fs::Permissions::from_mode(0o600)).unwrap();
    }),
    ("mode of a directory", |top| {
        fs::set_permissions(top.join("etc/deep"), fs::Permissions::from_mode(0o711)).unwrap();
    }),
    ("extended attribute", |top| {
        let flags = rustix::fs::XattrFlags::empty();
        rustix::fs::setxattr(top.join("etc/file-10"), "user.new", b"value", flags).unwrap();
    }),
    ("only the time of content", |top| {
        let before = fs::metadata(top.join("home/large")).unwrap();
        set_back(&top.join("etc/file-11"), &before);
        let file = OpenOptions::new().write(true).open(top.join("etc/file-11")).unwrap();
        file.set_modified(std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000)).unwrap();
    }),
    ("a hard link more", |top| fs::hard_link(top.join("etc/file-12"), top.join("home/twelve")).unwrap()),
    ("a hard link less", |top| fs::remove_file(top.join("home/linked")).unwrap()),
    ("a hard link leads to another file of the same size and time", |top| {
        let (path, other) = (top.join("home/linked"), top.join("home/other"));
        set_back(&other, &fs::metadata(&path).unwrap());
        fs::remove_file(&path).unwrap();
        fs::hard_link(other, path).unwrap();
    }),
    ("a new file", |top| fs::write(top.join("etc/file-3a"), "new").unwrap()),
    ("a file less", |top| fs::remove_file(top.join("etc/file-13")).unwrap()),
    ("a file of another name", |top| fs::rename(top.join("etc/file-14"), top.join("etc/renamed")).unwrap()),
    ("a directory of another name", |top| fs::rename(top.join("etc"), top.join("was-etc")).unwrap()),
    ("a directory moved", |top| fs::rename(top.join("etc/deep"), top.join("home/deep")).unwrap()),
    ("directories exchanged", |top| {
        fs::rename(top.join("etc"), top.join("x")).unwrap();
        fs::rename(top.join("home"), top.join("etc")).unwrap();
        fs::rename(top.join("x"), top.join("home")).unwrap();
    }),
    ("a large file, one byte in its middle", |top| {
        let mut file = OpenOptions::new().write(true).open(top.join("home/large")).unwrap();
        file.seek(SeekFrom::Start(1 << 20)).unwrap();
        file.write_all(b"x").unwrap();
    }),
    ("all removed", |top| {
        for entry in fs::read_dir(top).unwrap() {
            fs::remove_dir_all(entry.unwrap().path()).unwrap();
        }
    }),
    ("a pipe", |top| {
        rustix::fs::mknodat(rustix::fs::CWD, top.join("pipe"), rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    }),
];

#[test]
fn a_put_with_a_base_finds_all_changes_that_the_source_tells() {
    for (name, change) in FOUND {
        let top = tempfile::tempdir().expect("makes");
        make(top.path());
        let device = formatted();
        let pool = open(&device);
        let first = put(&pool, top.path(), "v1", LAST);
        assert!(first.without_base.is_some() && first.taken_over == 0);
        // Times of the source go in steps of the kernel's clock.
        std::thread::sleep(Duration::from_millis(15));
        change(top.path());
        let told = |version: &str, base| {
            let report = put_with(&pool, top.path(), version, options(base));
            (
                [report.files, report.directories, report.hard_links, report.others],
                report.version.expect("is a version"),
            )
        };
        let (counts, second) = told("v2", LAST);
        assert_eq!((second.base, &second.without_base), (Some(first.ino), &None), "{name}");
        let (full_counts, full) = told("v3", BaseChoice::None);
        // A further name that is taken over is counted as one.
        assert_eq!((&second.fingerprint, counts), (&full.fingerprint, full_counts), "{name}");
        assert_eq!(tree(&pool, find(&pool, "v2")), tree(&pool, find(&pool, "v3")), "{name}");
        if *name == "nothing" {
            assert_eq!((&second.fingerprint, second.taken_over, second.new_bytes), (&first.fingerprint, 47, 0));
        }
        assert_clean(&pool);
    }
}

/// The kernel notes the first change of a mapped page, and no further one until it has written the page.
#[test]
fn a_change_that_the_source_does_not_tell_is_found_by_reading_or_verifying_it() {
    let top = tempfile::tempdir().expect("makes");
    make(top.path());
    let path = top.path().join("etc/file-1");
    let device = formatted();
    let pool = open(&device);
    let first = put(&pool, top.path(), "v1", LAST);
    let noted = fs::metadata(&path).expect("looks");
    std::thread::sleep(Duration::from_millis(15));
    fs::write(&path, "CONTENT 1").expect("writes");
    // The same content of the notes with the file's present times: what a clock that was set back would leave.
    let forged = fs::metadata(&path).expect("looks");
    assert_eq!((noted.len(), noted.ino()), (forged.len(), forged.ino()));
    set_back(&path, &noted);
    forge(&pool, first.ino, &noted, &fs::metadata(&path).expect("looks"));
    let missed = put(&pool, top.path(), "v2", LAST);
    assert_eq!(missed.fingerprint, first.fingerprint, "nothing tells the change");
    let verified = put_with(&pool, top.path(), "v3", VersionOptions { verify_percent: 100, ..options(LAST) });
    let version = verified.version.expect("is a version");
    assert_eq!((version.lied, verified.problem_count), (1, 1));
    assert!(verified.problems[0].path.ends_with("etc/file-1"), "{:?}", verified.problems);
    let full = put(&pool, top.path(), "v4", BaseChoice::None);
    assert_eq!(version.fingerprint, full.fingerprint);
    assert_ne!(full.fingerprint, first.fingerprint);
    assert_clean(&pool);
}

/// Writes the notes of a version anew, with other times for one file.
fn forge(pool: &Pool, version: u64, old: &fs::Metadata, new: &fs::Metadata) {
    use crate::versions::notes::{About, Noted, Notes, NotesWriter};
    let core = pool.core();
    let info = pool.versions(None).expect("lists").into_iter().find(|info| info.ino == version).expect("is there");
    let inode = core.namespace.inode_shared(version).expect("reads").expect("is there");
    let top = inode.root.reference().expect("has a tree").fingerprint();
    assert_eq!(info.fingerprint, top.to_string());
    let about = About::new(top, &options(LAST).origin);
    let notes = Notes::open(&*core.meta_device, &core.pool, version, &about).expect("opens").expect("are there");
    let mut writer = NotesWriter::begin(core.meta_device.clone(), core.pool, 1, 77).expect("begins");
    let nanos = |of: &fs::Metadata| of.ctime() * 1_000_000_000 + of.ctime_nsec();
    let mut place = 0;
    while let Some(noted) = notes.get(place).expect("reads") {
        place += 1;
        let is_it = noted == Noted { ctime_nanos: nanos(old), ino: old.ino() };
        writer.add(if is_it { Noted { ctime_nanos: nanos(new), ..noted } } else { noted }).expect("adds");
    }
    writer.finish(version, &about).expect("finishes");
}

#[test]
fn a_file_that_changed_lately_is_read_the_next_time() {
    let top = tempfile::tempdir().expect("makes");
    make(top.path());
    let device = formatted();
    let pool = open(&device);
    let careful = || VersionOptions { racy_ms: 60_000, ..options(LAST) };
    put_with(&pool, top.path(), "v1", careful());
    let second = put_with(&pool, top.path(), "v2", careful()).version.expect("is a version");
    assert_eq!((second.without_base, second.taken_over), (None, 0), "all were made just now");
}

#[test]
fn a_base_that_does_not_fit_is_told_and_everything_is_read() {
    let top = tempfile::tempdir().expect("makes");
    make(top.path());
    let device = formatted();
    let pool = open(&device);
    let first = put(&pool, top.path(), "v1", LAST);
    let why = |version: VersionOptions, name: &str| {
        let report = put_with(&pool, top.path(), name, version).version.expect("is a version");
        assert_eq!((&report.fingerprint, report.base, report.taken_over), (&first.fingerprint, None, 0), "{name}");
        report.without_base.expect("says why")
    };
    let mut other = options(LAST);
    other.origin.source = b"/elsewhere".to_vec();
    assert!(why(other.clone(), "a").contains("no earlier version"));
    other.base = BaseChoice::Version(first.ino);
    assert!(why(other, "b").contains("notes"));
    assert!(why(options(BaseChoice::Version(first.ino + (1 << 40))), "c").contains("gone"));
    assert!(why(options(BaseChoice::Version(ROOT_INO)), "d").contains("no version"));
    // A snapshot has no notes.
    let live = directory(&pool, ROOT_INO, "live");
    file(&pool, live, "file", b"content");
    let made = snapshot(&pool, "live", "", "snapshot");
    assert!(why(options(BaseChoice::Version(made.ino)), "e").contains("no notes"));
}

#[test]
fn damaged_and_missing_notes_cost_a_full_read_and_nothing_else() {
    let top = tempfile::tempdir().expect("makes");
    make(top.path());
    let device = formatted();
    let pool = open(&device);
    let first = put(&pool, top.path(), "v1", LAST);
    let path = format!("notes/{:016x}", first.ino);
    let sound = device.read_file(&path, 1 << 20).expect("reads");
    for at in (0..sound.len()).step_by(61) {
        let mut bytes = sound.clone();
        bytes[at] ^= 4;
        device.replace_file("notes", &format!("{:016x}", first.ino), &bytes).expect("writes");
        let report = put(&pool, top.path(), "v2", BaseChoice::Version(first.ino));
        assert_eq!(report.fingerprint, first.fingerprint, "byte {at}");
        assert!(report.without_base.is_some() || report.taken_over > 0);
        forget(&pool, ROOT_INO, "v2");
    }
    device.remove(&path).expect("removes");
    let report = put(&pool, top.path(), "v2", LAST);
    assert!(report.without_base.expect("says why").contains("no notes"));
    // Notes go with their versions.
    ["v1", "v2"].into_iter().for_each(|name| forget(&pool, ROOT_INO, name));
    pool.sync().expect("syncs");
    put(&pool, top.path(), "v3", LAST);
    let left = device.list("notes").expect("lists").len();
    assert_eq!(left, 1, "those of v3");
    assert!(device.open(&path, OpenMode::Read).is_err());
    assert_clean(&pool);
}

#[test]
fn a_base_that_is_forgotten_meanwhile_gives_what_was_taken_over() {
    let top = tempfile::tempdir().expect("makes");
    make(top.path());
    let device = formatted();
    let pool = open(&device);
    put(&pool, top.path(), "v0", LAST);
    std::thread::scope(|scope| {
        for round in 0..8 {
            let (pool, top) = (&pool, top.path());
            let putting = scope.spawn(move || put(pool, top, &format!("v{}", round + 1), LAST));
            if round % 2 == 1 {
                forget(pool, ROOT_INO, &format!("v{round}"));
                let _outcome = pool.reclaim(&dedupfs::reclaim::ReclaimOptions::below(100), &NoProgress);
            }
            putting.join().expect("puts");
        }
    });
    reclaim(&pool);
    assert_clean(&pool);
    assert_eq!(read(&pool, find(&pool, "v8/home/large")), bytes(1, 3 << 20));
    assert!(pool.service().lookup(ROOT_INO, b"v7").is_err());
}

/// Chunks for which the index was asked: the filter `open` is the first that asks it.
fn asked_of_index(pool: &Pool) -> u64 {
    let filters = pool.stats().expect("counts").filters;
    filters.iter().find(|filter| filter.name == "open").expect("is in the chain").asked
}

/// The recipe of the base tells the chunks that did not change, so that the index is not asked for them.
#[test]
fn a_large_file_that_changed_a_little_is_compared_with_its_former_recipe() {
    let top = tempfile::tempdir().expect("makes");
    let path = top.path().join("large");
    fs::write(&path, bytes(3, 24 << 20)).expect("writes");
    let device = formatted();
    let pool = open(&device);
    put(&pool, top.path(), "v1", LAST);
    let changed = OpenOptions::new().write(true).open(&path).expect("opens");
    // Something inserted in front moves all boundaries, and each segment changes.
    let content = [&bytes(4, 1000)[..], &bytes(3, 24 << 20)].concat();
    changed.write_at(&content, 0).expect("writes");
    for number in 0..48 {
        changed.write_at(b"changed", number << 19).expect("writes");
    }
    let asked = |name: &str, base: BaseChoice| {
        // Nothing of the first put is in memory.
        pool.close().expect("closes");
        let pool = open(&device);
        let report = put(&pool, top.path(), name, base);
        assert_clean(&pool);
        let asked = asked_of_index(&pool);
        pool.close().expect("closes");
        (report.fingerprint, asked)
    };
    let (with_base, with_few) = asked("v2", LAST);
    let device = formatted();
    let other = open(&device);
    let without = put(&other, top.path(), "v", BaseChoice::None);
    assert_eq!(with_base, without.fingerprint);
    let all = asked_of_index(&other);
    println!("of {all} chunks the index was asked for {with_few}");
    assert!(with_few < all / 4, "{with_few} of {all}");
}

/// Notes stayed until the next put: a pool from which all versions were pruned kept them.
#[test]
fn regression_reclaiming_gives_back_the_notes_of_versions_that_are_gone() {
    let top = tempfile::tempdir().expect("makes");
    make(top.path());
    let device = formatted();
    let pool = open(&device);
    ["v1", "v2"].into_iter().for_each(|name| drop(put(&pool, top.path(), name, LAST)));
    forget(&pool, ROOT_INO, "v1");
    let notes = || device.list("notes").expect("lists").len();
    assert_eq!(notes(), 2);
    reclaim(&pool);
    assert_eq!(notes(), 1, "those of v2");
    assert!(put(&pool, top.path(), "v3", LAST).taken_over > 0);
    ["v2", "v3"].into_iter().for_each(|name| forget(&pool, ROOT_INO, name));
    reclaim(&pool);
    assert_eq!(notes(), 0);
}

/// Notes of every version stayed: a hundred versions of a million files took more room for them than for names and index.
#[test]
fn regression_notes_are_kept_for_the_last_versions_of_a_source_in_a_directory() {
    let top = tempfile::tempdir().expect("makes");
    make(top.path());
    let device = formatted();
    let pool = open(&device);
    let elsewhere = directory(&pool, ROOT_INO, "elsewhere");
    put(&pool, top.path(), "other", BaseChoice::None);
    pool.service().rename(ROOT_INO, b"other", elsewhere, b"other", RenameFlags::default()).expect("moves");
    let made: Vec<VersionReport> = (1..=6).map(|number| put(&pool, top.path(), &format!("v{number}"), LAST)).collect();
    assert!(made[1..].iter().all(|report| report.taken_over > 0 && report.without_base.is_none()));
    let has_notes =
        |number: usize| device.open(&format!("notes/{:016x}", made[number - 1].ino), OpenMode::Read).is_ok();
    assert_eq!((1..=6).map(has_notes).collect::<Vec<_>>(), [false, false, true, true, true, true]);
    pool.sync().expect("syncs");
    reclaim(&pool);
    assert_eq!((1..=6).map(has_notes).collect::<Vec<_>>(), [false, false, false, true, true, true]);
    assert_eq!(device.list("notes").expect("lists").len(), 4, "those of the version elsewhere are kept");
    let report = put(&pool, top.path(), "old base", BaseChoice::Version(made[0].ino));
    assert!(report.without_base.expect("says why").contains("no notes"));
    // The last ones are forgotten by mistake.
    ["old base", "v6", "v5"].into_iter().for_each(|name| forget(&pool, ROOT_INO, name));
    assert!(put(&pool, top.path(), "v7", LAST).taken_over > 0);
}

/// Calls the first copy of each stored chunk bad that `is_chosen` chooses.
fn lose(pool: &Pool, is_chosen: impl Fn(&dedupfs_store::Fingerprint) -> bool) {
    let core = pool.core();
    let store = &core.stores.data;
    let kind = dedupfs_store::ContainerKind::Data;
    store.seal_all();
    pool.sync().expect("syncs");
    let mut bad = Vec::new();
    for record in store.closed_in_disk_order() {
        let Ok(Some(table)) = store.table(record.id) else { continue };
        let chosen = table.entries.iter().map(|entry| entry.fingerprint).filter(|fingerprint| is_chosen(fingerprint));
        bad.extend(chosen.map(|fingerprint| BadCopy { kind, container: record.id, fingerprint }));
    }
    core.quarantine(&bad).expect("quarantines");
    assert!(pool.stats().expect("has statistics").lost_chunks > 0);
}

#[test]
fn regression_puts_take_nothing_over_that_is_lost() {
    let disk = tempfile::tempdir().expect("makes");
    make(disk.path());
    let device = formatted();
    let pool = open(&device);
    let first = put(&pool, disk.path(), "v1", BaseChoice::None);
    let all = put(&pool, disk.path(), "v2", LAST).taken_over;
    pool.close().expect("closes");
    drop(pool);
    let pool = open(&device);
    let live = directory(&pool, ROOT_INO, "live");
    file(&pool, directory(&pool, live, "below"), "file", b"stays");
    snapshot(&pool, "live", "", "s1");
    assert!(snapshot(&pool, "live", "", "s2").taken_over > 0);
    let lost = || pool.stats().expect("has statistics").lost_chunks;
    // One chunk: only its file is read.
    let content = pool.core().dedup.fingerprinter().of(b"content 7");
    lose(&pool, |fingerprint| *fingerprint == content);
    let report = put(&pool, disk.path(), "v3", LAST);
    pool.sync().expect("syncs");
    assert_eq!((report.taken_over, report.without_base, lost()), (all - 1, None, 0), "it was read, and stored again");
    // All of them. Names and links are not lost.
    lose(&pool, |_| true);
    assert_eq!(snapshot(&pool, "live", "", "s3").taken_over, 0, "its nodes or attributes may be lost as well");
    let report = put(&pool, disk.path(), "v4", LAST);
    pool.sync().expect("syncs");
    assert_eq!((report.taken_over, report.without_base, report.base.is_some()), (1, None, true), "a symbolic link");
    assert_eq!(lost(), 1, "of the live file");
    file(&pool, live, "another", b"stays");
    pool.sync().expect("syncs");
    assert!(lost() == 0 && first.base.is_none());
    assert_clean(&pool);
}
