//! Trees between a disk and a pool in memory.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use dedupfs_service::{
    AttributeChanges, Caller, Errno, FileService, Ino, Listing, NewNode, NodeContent, ROOT_INO, RenameFlags, WriteFlags,
};
use dedupfs_store::device::faulty::{Fault, FaultPlan, FaultyDevice, Operation};
use dedupfs_store::device::{Device, MemoryDevice};
use dedupfs_store::superblock::PoolProperties;
use tempfile::TempDir;

use super::*;
use crate::pool::{OpenOptions, Pool, format_on};
use crate::progress::{NoProgress, Progress};
use crate::upkeep::check::CheckOptions;

pub(super) fn open(device: &Arc<dyn Device>) -> Arc<Pool> {
    let options = OpenOptions { memory_bytes: 0, ..OpenOptions::default() };
    Pool::open_on(device, device, Vec::new(), &options, &NoProgress).unwrap()
}

pub(super) fn pool_on(device: &Arc<dyn Device>) -> Arc<Pool> {
    let properties = PoolProperties { container_bytes: 1 << 20, ..PoolProperties::default() };
    format_on(device, device, b".".to_vec(), &properties, (0, 0)).unwrap();
    open(device)
}

pub(super) fn pool() -> Arc<Pool> {
    pool_on(&(Arc::new(MemoryDevice::new()) as Arc<dyn Device>))
}

/// An empty directory of the pool.
pub(super) fn staging(pool: &Pool) -> Ino {
    let node = NewNode { parent: ROOT_INO, name: b"staging", mode: 0o755, umask: 0 };
    pool.service().make(Caller::default(), node, NodeContent::Directory).unwrap().ino
}

/// The two results of a put.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Made {
    Live,
    Version,
}

pub(super) const BOTH: [Made; 2] = [Made::Live, Made::Version];

pub(super) fn put_as(
    made: Made,
    pool: &Pool,
    into: Ino,
    from: &Path,
    progress: &dyn Progress,
) -> Result<TransferReport> {
    let version = (made == Made::Version).then(|| VersionOptions { racy_ms: 0, ..VersionOptions::default() });
    let options = PutOptions { version, ..PutOptions::default() };
    pool.put(&options, File::open(from).unwrap().into(), (into, b"tree"), progress)
}

pub(super) fn put_into(pool: &Pool, into: Ino, from: &Path, progress: &dyn Progress) -> Result<TransferReport> {
    put_as(Made::Live, pool, into, from, progress)
}

pub(super) fn get_from(pool: &Pool, from: Ino, to: &Path) -> Result<TransferReport> {
    get_with(pool, from, to, &NoProgress)
}

pub(super) fn get_with(pool: &Pool, from: Ino, to: &Path, progress: &dyn Progress) -> Result<TransferReport> {
    let directory = File::open(to.parent().unwrap()).unwrap().into();
    let name = to.file_name().unwrap().as_encoded_bytes();
    get(&pool.service(), from, (directory, name), &Patterns::default(), progress)
}

pub(super) fn lookup(pool: &Pool, parent: Ino, name: &[u8]) -> std::result::Result<Ino, Errno> {
    let service = pool.service();
    let found = service.lookup(parent, name)?.ino;
    service.forget(found, 1);
    Ok(found)
}

pub(super) fn assert_clean(pool: &Pool) {
    let report = pool.check(&CheckOptions { read_data: true, ..CheckOptions::default() }, &NoProgress).unwrap();
    assert!(report.is_clean(), "{:#?}", report.findings);
}

pub(super) fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let words = std::iter::repeat_with(|| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 32).to_le_bytes()
    });
    words.flatten().take(len).collect()
}

/// Lists all names below, with attributes and content of each.
pub(super) fn picture(root: &Path) -> Vec<String> {
    let mut lines = Vec::new();
    let mut ways = vec![root.to_owned()];
    while let Some(path) = ways.pop() {
        let metadata = fs::symlink_metadata(&path).unwrap();
        let content = match metadata.file_type() {
            kind if kind.is_dir() => {
                ways.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
                String::new()
            }
            kind if kind.is_symlink() => fs::read_link(&path).unwrap().display().to_string(),
            _ => blake3::hash(&fs::read(&path).unwrap()).to_string(),
        };
        let name = path.strip_prefix(root).unwrap().display().to_string();
        let size = if metadata.is_dir() { 0 } else { metadata.len() };
        let links = if metadata.is_dir() { 0 } else { metadata.nlink() };
        let (mode, mtime) = (metadata.mode(), (metadata.mtime(), metadata.mtime_nsec()));
        lines.push(format!("{name} {mode:o} {size} {links} {mtime:?} {content}"));
    }
    lines.sort();
    lines
}

fn source() -> TempDir {
    let source = tempfile::tempdir().unwrap();
    let path = |name: &str| source.path().join(name);
    fs::write(path("small"), b"content").unwrap();
    fs::write(path("empty"), b"").unwrap();
    fs::write(path("large"), noise(1, 3_500_000)).unwrap();
    let holes = File::create(path("holes")).unwrap();
    holes.set_len(40 << 20).unwrap();
    holes.write_all_at(&noise(2, 300_000), 10 << 20).unwrap();
    File::create(path("only a hole")).unwrap().set_len(5 << 20).unwrap();
    symlink("no/where", path("link")).unwrap();
    let mut deep = path("deep");
    for level in 0..150 {
        fs::create_dir(&deep).unwrap();
        fs::write(deep.join("file"), noise(level, 100)).unwrap();
        deep.push("d");
    }
    fs::create_dir(path("many")).unwrap();
    for number in 0..700_u64 {
        fs::write(path(&format!("many/{number}")), noise(number, 50 + number as usize * 7)).unwrap();
        if number % 7 == 0 {
            fs::hard_link(path(&format!("many/{number}")), path(&format!("deep/d/{number}"))).unwrap();
        }
    }
    fs::set_permissions(path("many/3"), fs::Permissions::from_mode(0o6751)).unwrap();
    fs::set_permissions(path("many"), fs::Permissions::from_mode(0o1755)).unwrap();
    source
}

#[test]
fn a_tree_comes_back_as_it_was() {
    for made in BOTH {
        let (source, pool) = (source(), pool());
        let staging = staging(&pool);
        let report = put_as(made, &pool, staging, source.path(), &NoProgress).unwrap();
        assert_eq!((report.problem_count, report.hard_links, report.others), (0, 100, 1), "{report:?}");
        assert_eq!((report.files, report.directories), (5 + 150 + 700, 2 + 150), "{report:?}");
        assert!(report.content_bytes < 8 << 20, "holes were copied: {report:?}");
        assert_clean(&pool);
        let out = tempfile::tempdir().unwrap();
        let tree = lookup(&pool, staging, b"tree").unwrap();
        let back = get_from(&pool, tree, &out.path().join("out")).unwrap();
        assert_eq!(picture(source.path()), picture(&out.path().join("out")));
        let counts = |report: &TransferReport| (report.files, report.directories, report.hard_links, report.others);
        assert_eq!(counts(&report), counts(&back));
        let blocks = |path: &Path| fs::metadata(path.join("holes")).unwrap().blocks();
        assert!(blocks(&out.path().join("out")) < 2048, "{} blocks", blocks(&out.path().join("out")));

        let file = lookup(&pool, tree, b"large").unwrap();
        get_from(&pool, file, &out.path().join("file")).unwrap();
        assert!(fs::read(out.path().join("file")).unwrap() == noise(1, 3_500_000));
        // Existing names are left alone.
        for taken in ["out", "file"] {
            let error =
                get_from(&pool, if taken == "file" { file } else { tree }, &out.path().join(taken)).unwrap_err();
            assert!(error.to_string().contains("exists"), "{error}");
        }
        assert_eq!(picture(source.path()), picture(&out.path().join("out")));
    }
}

#[test]
fn a_single_file_is_put() {
    let (source, pool) = (tempfile::tempdir().unwrap(), pool());
    fs::write(source.path().join("file"), noise(3, 100_000)).unwrap();
    let staging = staging(&pool);
    put_into(&pool, staging, &source.path().join("file"), &NoProgress).unwrap();
    let file = lookup(&pool, staging, b"tree").unwrap();
    assert_eq!(pool.service().attributes(file).unwrap().size_bytes, 100_000);
    // The name is taken: the directory is not empty.
    assert!(put_into(&pool, staging, &source.path().join("file"), &NoProgress).is_err());
    assert_eq!(pool.service().attributes(file).unwrap().size_bytes, 100_000);
}

/// Looks at the pool as the kernel does, and cancels after `calls_max` calls.
struct Looking {
    pool: Arc<Pool>,
    staging: Ino,
    calls: AtomicU64,
    calls_max: u64,
    is_hidden: AtomicBool,
}

impl Progress for Looking {
    fn start(&self, _what: &str, _total: u64) {}
    fn advance(&self, _by: u64) {}
    fn finish(&self) {}
    fn is_cancelled(&self) -> bool {
        let service = self.pool.service();
        let is_hidden = service.lookup(self.staging, b"tree") == Err(Errno::EBUSY)
            && service.read_directory(self.staging, 0, 10, Listing::Attributes) == Err(Errno::EBUSY);
        self.is_hidden.fetch_and(is_hidden, Ordering::Relaxed);
        self.calls.fetch_add(1, Ordering::Relaxed) >= self.calls_max
    }
}

#[test]
fn nothing_is_seen_before_it_is_whole_and_nothing_stays_of_what_is_not() {
    let (source, pool) = (source(), pool());
    let staging = staging(&pool);
    for calls_max in [0, 1, 5, 50, 300, 1000, u64::MAX] {
        let looking = Looking {
            pool: pool.clone(),
            staging,
            calls: AtomicU64::new(0),
            calls_max,
            is_hidden: AtomicBool::new(true),
        };
        let outcome = put_into(&pool, staging, source.path(), &looking);
        assert!(looking.is_hidden.into_inner(), "the kernel saw it");
        if calls_max == u64::MAX {
            outcome.unwrap();
            lookup(&pool, staging, b"tree").unwrap();
            break;
        }
        assert!(matches!(outcome, Err(TransferError::Interrupted)), "{outcome:?}");
        assert_eq!(lookup(&pool, staging, b"tree"), Err(Errno::ENOENT));
        assert_eq!(pool.stats().unwrap().files, 0, "{calls_max}");
    }
    assert_clean(&pool);
}

#[test]
fn a_full_disk_ends_it_and_nothing_stays() {
    for made in BOTH {
        let disk = MemoryDevice::with_capacity(64 << 20);
        let pool = pool_on(&(Arc::new(disk.clone()) as Arc<dyn Device>));
        let source = tempfile::tempdir().unwrap();
        for number in 0..20 {
            fs::write(source.path().join(number.to_string()), noise(number, 5_000_000)).unwrap();
        }
        let staging = staging(&pool);
        let error = put_as(made, &pool, staging, source.path(), &NoProgress).unwrap_err();
        assert!(matches!(&error, TransferError::Pool(error) if error.is_no_space()), "{error}");
        assert_eq!(lookup(&pool, staging, b"tree"), Err(Errno::ENOENT));
        assert_eq!(pool.stats().unwrap().files, 0);
        disk.set_capacity(1 << 30);
        put_as(made, &pool, staging, source.path(), &NoProgress).unwrap();
        assert_clean(&pool);
    }
}

#[test]
fn a_pool_that_fails_ends_it_with_the_reason() {
    for made in BOTH {
        let device = FaultyDevice::over_memory(&MemoryDevice::new());
        let pool = pool_on(&(Arc::new(device.clone()) as Arc<dyn Device>));
        let (source, staging) = (source(), staging(&pool));
        device.add(FaultPlan::new(Fault::Io, 0).on(&[Operation::Sync]).lasting());
        assert!(pool.sync().is_err());
        let error = put_as(made, &pool, staging, source.path(), &NoProgress).unwrap_err();
        assert!(matches!(&error, TransferError::Pool(EngineError::ReadOnly(_))), "{error}");
    }
}

#[test]
fn a_file_that_is_damaged_is_told_and_the_rest_is_copied() {
    let device = FaultyDevice::over_memory(&MemoryDevice::new());
    let shared: Arc<dyn Device> = Arc::new(device.clone());
    let pool = pool_on(&shared);
    let source = tempfile::tempdir().unwrap();
    for number in 0..8 {
        fs::write(source.path().join(number.to_string()), noise(number, 2_000_000)).unwrap();
    }
    let into = staging(&pool);
    put_into(&pool, into, source.path(), &NoProgress).unwrap();
    pool.close().unwrap();
    drop(pool);
    let pool = open(&shared);
    let tree = lookup(&pool, into, b"tree").unwrap();
    // Not at the first reads, which may be of names.
    device.add(FaultPlan::new(Fault::Io, 12).on(&[Operation::Read]).lasting());
    let out = tempfile::tempdir().unwrap();
    let report = get_from(&pool, tree, &out.path().join("out")).unwrap();
    device.heal();
    assert!(report.problem_count > 0 && report.problem_count + report.files >= 8, "{report:?}");
    let names: Vec<String> = report.problems.iter().map(|problem| problem.path.clone()).collect();
    for number in 0..8_u64 {
        match fs::read(out.path().join("out").join(number.to_string())) {
            Ok(content) => assert!(content == noise(number, 2_000_000), "{number} is not as it was"),
            Err(_) => assert!(names.contains(&format!("out/{number}")), "{number} is missing, and {names:?} are told"),
        }
    }
}

/// Calls `change` when the first MiB is copied.
struct Changing<F: Fn() + Sync> {
    is_changed: AtomicBool,
    change: F,
}

impl<F: Fn() + Sync> Progress for Changing<F> {
    fn start(&self, _what: &str, _total: u64) {}
    fn advance(&self, _by: u64) {
        if !self.is_changed.swap(true, Ordering::Relaxed) {
            (self.change)();
        }
    }
    fn finish(&self) {}
}

/// Found by review: a file that waited for its turn was copied with the attributes it had when its directory was listed.
#[test]
fn regression_what_changes_before_its_turn_is_copied_as_it_is_then() {
    let pool = pool();
    let (service, tree) = (pool.service(), staging(&pool));
    let root = Caller::default();
    let write = |name: &str, content: &[u8]| {
        let how = dedupfs_service::OpenOptions { write: true, ..Default::default() };
        let node = NewNode { parent: tree, name: name.as_bytes(), mode: 0o4755, umask: 0 };
        let (made, opened) = service.create(root, node, how).unwrap();
        service.write(root, made.ino, opened.handle, 0, content, WriteFlags::default()).unwrap();
        service.flush(made.ino, opened.handle).unwrap();
        service.release(made.ino, opened.handle);
        // The kernel remembers the others.
        if name != "replaced" {
            service.forget(made.ino, 1);
        }
        made.ino
    };
    let append = |ino: Ino, content: &[u8]| {
        let how = dedupfs_service::OpenOptions { write: true, ..Default::default() };
        let (opened, at) = (service.open(root, ino, how).unwrap(), service.attributes(ino).unwrap().size_bytes);
        let flags = WriteFlags { drop_privileges: true, ..WriteFlags::default() };
        service.write(root, ino, opened.handle, at, content, flags).unwrap();
        service.release(ino, opened.handle);
    };
    let cut = |ino: Ino, size_bytes: u64| {
        let changes = AttributeChanges { size_bytes: Some(size_bytes), ..AttributeChanges::default() };
        service.set_attributes(root, ino, changes).unwrap();
    };
    // One batch, which one thread copies: the first file while the others wait.
    let large = write("large", &noise(1, 3 << 20));
    let [grows, shrinks] = ["grows", "shrinks"].map(|name| write(name, &noise(2, 50_000)));
    for name in ["replaced", "removed"] {
        write(name, b"old");
    }
    let link = NewNode { parent: tree, name: b"link", mode: 0o777, umask: 0 };
    service.make(root, link, NodeContent::Symlink(b"old")).unwrap();
    let sparse = write("sparse", b"");
    cut(sparse, 1 << 30);
    let change = || {
        append(large, b"more");
        append(grows, b"more");
        cut(shrinks, 10);
        cut(sparse, 0);
        append(sparse, &noise(3, 10_000));
        write("new", b"new");
        service.rename(tree, b"new", tree, b"replaced", RenameFlags::default()).unwrap();
        service.unlink(tree, b"removed").unwrap();
        service.unlink(tree, b"link").unwrap();
    };
    let out = tempfile::tempdir().unwrap();
    let report =
        get_with(&pool, tree, &out.path().join("out"), &Changing { is_changed: false.into(), change }).unwrap();
    let [only] = report.problems.as_slice() else { panic!("{report:?}") };
    assert!(only.path == "out/large" && only.what.contains("changed while it was copied"), "{only:?}");
    let read = |name: &str| fs::read(out.path().join("out").join(name));
    assert_eq!(read("grows").unwrap(), [noise(2, 50_000), b"more".to_vec()].concat());
    assert_eq!(read("shrinks").unwrap(), noise(2, 10));
    assert_eq!(read("sparse").unwrap(), noise(3, 10_000));
    assert_eq!(read("replaced").unwrap(), b"new");
    assert!(read("removed").is_err() && out.path().join("out/link").symlink_metadata().is_err());
    let mode = |name: &str| out.path().join("out").join(name).metadata().unwrap().mode() & 0o7777;
    // A file that changed while it was copied lends no rights, nor does one that lost them before.
    assert_eq!((mode("large"), mode("grows"), mode("replaced")), (0o755, 0o755, 0o4755));
}

/// A backup is of files in use.
#[test]
fn a_file_that_changes_while_it_is_put_is_told_and_read_the_next_time() {
    for made in BOTH {
        let (pool, source) = (pool(), tempfile::tempdir().unwrap());
        let path = |name: &str| source.path().join(name);
        fs::write(path("large"), noise(1, 3 << 20)).unwrap();
        fs::write(path("small"), b"content").unwrap();
        let change = || File::options().append(true).open(path("large")).unwrap().write_all(b"more").unwrap();
        let staging = staging(&pool);
        let changing = Changing { is_changed: false.into(), change };
        let report = put_as(made, &pool, staging, source.path(), &changing).unwrap();
        let [only] = report.problems.as_slice() else { panic!("{report:?}") };
        assert!(only.path == "tree/large" && only.what.contains("changed while it was copied"), "{only:?}");
        assert_eq!((report.files, report.problem_count), (2, 1));
        let tree = lookup(&pool, staging, b"tree").unwrap();
        let out = tempfile::tempdir().unwrap();
        get_from(&pool, tree, &out.path().join("out")).unwrap();
        assert_eq!(fs::read(out.path().join("out/small")).unwrap(), b"content");
        assert!(fs::read(out.path().join("out/large")).unwrap().starts_with(&noise(1, 3 << 20)));
        // The next version reads it, though nothing changes any more and the others are taken over.
        let Some(first) = report.version else { continue };
        let options = VersionOptions { base: BaseChoice::Version(first.ino), racy_ms: 0, ..VersionOptions::default() };
        let options = PutOptions { version: Some(options), ..PutOptions::default() };
        let from = File::open(source.path()).unwrap().into();
        let next = pool.put(&options, from, (ROOT_INO, b"next"), &NoProgress).unwrap();
        assert_eq!((next.problem_count, next.content_bytes), (0, (3 << 20) + 4), "{next:?}");
        let large = lookup(&pool, next.version.unwrap().ino, b"large").unwrap();
        get_from(&pool, large, &out.path().join("large")).unwrap();
        assert!(fs::read(out.path().join("large")).unwrap() == fs::read(path("large")).unwrap());
        assert_clean(&pool);
    }
}

/// The kernel would refuse such names, but it is not involved here.
#[test]
fn regression_names_out_of_a_pool_lead_nowhere_else() {
    let (pool, source) = (pool(), tempfile::tempdir().unwrap());
    for name in ["good", "other"] {
        fs::write(source.path().join(name), name).unwrap();
    }
    let staging = staging(&pool);
    put_into(&pool, staging, source.path(), &NoProgress).unwrap();
    let tree = lookup(&pool, staging, b"tree").unwrap();
    let good = lookup(&pool, tree, b"good").unwrap();
    let out = tempfile::tempdir().unwrap();
    let absolute = out.path().join("absolute");
    let evil = [b"../evil".as_slice(), b"a/b", b"..", b".", b"", absolute.as_os_str().as_encoded_bytes()];
    for name in evil {
        pool.core().namespace.force_name(tree, name, good, None);
    }
    assert!(!pool.check(&CheckOptions::default(), &NoProgress).unwrap().is_clean());
    let report = get_from(&pool, tree, &out.path().join("out")).unwrap();
    assert_eq!((report.problem_count, report.files), (6, 2), "{report:?}");
    let names = |path: &Path| {
        let names = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.collect::<std::collections::BTreeSet<_>>()
    };
    assert_eq!(names(out.path()), ["out".to_owned()].into());
    assert_eq!(names(&out.path().join("out")), ["good".to_owned(), "other".to_owned()].into());
}

#[test]
fn a_disk_that_fails_again_and_again_is_gone() {
    use super::tally::{Tally, reading};
    let broken = || Err(reading("cannot read it")(rustix::io::Errno::IO));
    let path = || std::path::PathBuf::from("file");
    // A readable file among them proves that the disk is there.
    let tally = Tally::new(&NoProgress);
    for number in 0..500 {
        tally.note(broken(), path);
        if number % 50 == 0 {
            tally.content(1);
            tally.file(1);
        }
    }
    let report = tally.finish().unwrap();
    assert_eq!((report.problem_count, report.files), (500, 10));
    let tally = Tally::new(&NoProgress);
    (0..150).for_each(|_| tally.note(broken(), path));
    assert!(tally.go_on().is_err());
    let error = tally.finish().unwrap_err().to_string();
    assert!(error.contains("file") && error.contains("gone"), "{error}");
    // One error of the process's limits is enough. Any number of permission errors ends nothing.
    let tally = Tally::new(&NoProgress);
    (0..150).for_each(|_| tally.note(Err(reading("cannot open it")(rustix::io::Errno::ACCESS)), path));
    assert!(tally.go_on().is_ok());
    tally.note(Err(reading("cannot open it")(rustix::io::Errno::STALE)), path);
    assert!(tally.go_on().is_ok());
    tally.note(Err(reading("cannot open it")(rustix::io::Errno::MFILE)), path);
    assert!(tally.finish().is_err());
}

#[test]
fn what_an_ordinary_user_copies_lends_no_rights() {
    let owner = Owner { uid: 7, gid: 70, groups: vec![71] };
    assert_eq!(owner.of_copy(7, 70, 0o6755), (7, 70, 0o6755));
    assert_eq!(owner.of_copy(7, 71, 0o2770), (7, 71, 0o2770));
    assert_eq!(owner.of_copy(7, 72, 0o2770), (7, 70, 0o770));
    assert_eq!(owner.of_copy(0, 70, 0o4755), (7, 70, 0o755));
}

/// Size of a file that takes many reads.
const LARGE_BYTES: usize = (20 << 20) + 12_345;

/// Returns a pool that has not read the file yet, and the file.
fn pool_with_large(device: &FaultyDevice) -> (Arc<Pool>, Ino) {
    let shared: Arc<dyn Device> = Arc::new(device.clone());
    let (source, pool) = (tempfile::tempdir().unwrap(), pool_on(&shared));
    fs::write(source.path().join("file"), noise(5, LARGE_BYTES)).unwrap();
    let into = staging(&pool);
    put_into(&pool, into, &source.path().join("file"), &NoProgress).unwrap();
    pool.close().unwrap();
    drop(pool);
    let pool = open(&shared);
    let file = lookup(&pool, into, b"tree").unwrap();
    (pool, file)
}

/// Cancels after `calls_max` calls.
pub(super) struct Ending {
    calls: AtomicU64,
    calls_max: u64,
}

impl Ending {
    pub(super) fn after(calls_max: u64) -> Self {
        Self { calls: AtomicU64::new(0), calls_max }
    }
}

impl Progress for Ending {
    fn start(&self, _what: &str, _total: u64) {}
    fn advance(&self, _by: u64) {}
    fn finish(&self) {}
    fn is_cancelled(&self) -> bool {
        self.calls.fetch_add(1, Ordering::Relaxed) >= self.calls_max
    }
}

#[test]
fn a_large_file_is_whole_or_not_there() {
    let (pool, file) = pool_with_large(&FaultyDevice::over_memory(&MemoryDevice::new()));
    let out = tempfile::tempdir().unwrap();
    let to = out.path().join("file");
    for calls_max in [0, 1, 2, 5, 20] {
        let outcome = get_with(&pool, file, &to, &Ending::after(calls_max));
        assert!(matches!(outcome, Err(TransferError::Interrupted)), "{calls_max}: {outcome:?}");
        assert!(!to.exists(), "{calls_max}: a part of it was left");
    }
    let report = get_with(&pool, file, &to, &Ending::after(u64::MAX)).unwrap();
    assert_eq!((report.files, report.content_bytes, report.problem_count), (1, LARGE_BYTES as u64, 0));
    assert!(fs::read(&to).unwrap() == noise(5, LARGE_BYTES));
}

#[test]
fn a_large_file_that_is_damaged_is_not_left_there() {
    let device = FaultyDevice::over_memory(&MemoryDevice::new());
    let (pool, file) = pool_with_large(&device);
    let out = tempfile::tempdir().unwrap();
    let to = out.path().join("file");
    let mut failed_amid = 0;
    for reads in [0, 3, 9, 15, 21] {
        device.add(FaultPlan::new(Fault::Io, reads).on(&[Operation::Read]).lasting());
        let progress = Ending::after(u64::MAX);
        let outcome = get_with(&pool, file, &to, &progress);
        device.heal();
        match outcome {
            Ok(_) => assert!(fs::read(&to).unwrap() == noise(5, LARGE_BYTES)),
            Err(error) => {
                failed_amid += u64::from(progress.calls.into_inner() > 2);
                assert!(error.to_string().contains("damaged"), "{error}");
                assert!(!to.exists(), "{reads}: a part of it was left");
            }
        }
        let _is_there = fs::remove_file(&to);
    }
    assert!(failed_amid > 0, "none failed when a part of it was written");
    get_from(&pool, file, &to).unwrap();
    assert!(fs::read(&to).unwrap() == noise(5, LARGE_BYTES));
}
