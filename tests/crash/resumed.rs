//! The power goes while a put names incomplete versions: afterwards the pool is sound, each of them is there as a whole or
//! not at all, and the next put of the source gives the version that reading everything gives.

use std::collections::HashSet;
use std::fs::{self, File};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dedupfs::check::CheckOptions;
use dedupfs::reclaim::ReclaimOptions;
use dedupfs::transfer::{BaseChoice, PutOptions, VersionOptions};
use dedupfs::{NoProgress, Origin, Pool, Progress, VersionReport, format_on};
use dedupfs_service::{Caller, FileService, Ino, Listing, NewNode, NodeContent, ROOT_INO, XattrMode};
use dedupfs_store::device::observed::Observer;

use crate::camera::{Camera, Ledger};
use crate::disks::{Disks, observed};
use crate::verdict::guarded;
use crate::workload::{open, options, piece, properties};

const CALLER: Caller = Caller { uid: 0, gid: 0, pid: 7 };
/// Looks of a put whether to go on, between two syncs. Each sync makes other changes durable.
const LOOKS_BETWEEN_SYNCS: u64 = 4;

/// Commits now and then, which nothing else does.
struct Syncing<'a>(&'a Pool, AtomicU64);

impl Progress for Syncing<'_> {
    fn start(&self, _: &str, _: u64) {}
    fn advance(&self, _: u64) {}
    fn finish(&self) {}
    fn is_cancelled(&self) -> bool {
        if self.1.fetch_add(1, Ordering::Relaxed).is_multiple_of(LOOKS_BETWEEN_SYNCS) {
            self.0.sync().expect("syncs");
        }
        // The tree gets time in which it is named.
        std::thread::sleep(std::time::Duration::from_micros(1500));
        false
    }
}

fn make_source() -> tempfile::TempDir {
    let top = tempfile::tempdir().expect("makes");
    for directory in 0..8 {
        let directory = top.path().join(format!("d{directory}"));
        fs::create_dir(&directory).expect("makes");
        for number in 0..2 {
            let content = piece(directory.as_os_str().len() as u64 + number);
            fs::write(directory.join(format!("f{number}")), content).expect("writes");
        }
    }
    fs::hard_link(top.path().join("d0/f0"), top.path().join("d2/linked")).expect("links");
    std::thread::sleep(std::time::Duration::from_millis(15));
    top
}

fn work(pool: &Pool, name: &str) -> Ino {
    let new = NewNode { parent: ROOT_INO, name: name.as_bytes(), mode: 0o700, umask: 0 };
    let ino = pool.service().make(CALLER, new, NodeContent::Directory).expect("makes").ino;
    pool.service().set_xattr(CALLER, ino, b"user.dedupfs.put", b"", XattrMode::Any).expect("marks");
    ino
}

fn put(pool: &Pool, source: &Path, into: Ino, resumes: bool, progress: &dyn Progress) -> VersionReport {
    let version = VersionOptions {
        origin: Origin { source: b"/source".to_vec(), host: b"here".to_vec() },
        base: BaseChoice::None,
        racy_ms: 0,
        resume_in: resumes.then_some(ROOT_INO),
        incomplete_every_ms: u64::from(!resumes),
        verify_percent: 0,
    };
    let options = PutOptions { version: Some(version), ..PutOptions::default() };
    let from = File::open(source).expect("opens").into();
    pool.put(&options, from, (into, b"v"), progress).expect("puts").version.expect("is a version")
}

fn sound(pool: &Pool, when: &str) -> Result<(), String> {
    let report = pool
        .check(&CheckOptions { read_data: true, ..CheckOptions::default() }, &NoProgress)
        .map_err(|error| error.to_string())?;
    if report.is_clean() { Ok(()) } else { Err(format!("{when}: {:#?}", report.findings)) }
}

fn names(pool: &Pool, directory: Ino) -> Vec<Vec<u8>> {
    let listed = pool.service().read_directory(directory, 0, 99, Listing::Names).expect("lists");
    listed.into_iter().map(|entry| entry.name).collect()
}

/// Returns the number of versions that the first put has left, and of entries that the next one took over.
fn examine(image: &Disks, source: &Path, fingerprint: &str) -> Result<(usize, u64), String> {
    guarded(|| {
        let pool = open(&image.roots(), &options()).map_err(|error| format!("does not open: {error}"))?;
        sound(&pool, "opened")?;
        let service = pool.service();
        let left = service.lookup(ROOT_INO, b".dedupfs-put-1").ok().map(|found| found.ino);
        let left_names = left.map(|left| names(&pool, left)).unwrap_or_default();
        if left_names.len() > 2 {
            return Err(format!("{} versions are left", left_names.len()));
        }
        let report = put(&pool, source, work(&pool, ".dedupfs-put-2"), true, &NoProgress);
        if report.fingerprint != fingerprint {
            return Err("the version is another".to_owned());
        }
        sound(&pool, "resumed")?;
        for name in &left_names {
            service.remove_directory(left.expect("is there"), name).map_err(|error| format!("stays: {error:?}"))?;
        }
        pool.reclaim(&ReclaimOptions::below(100), &NoProgress).map_err(|error| error.to_string())?;
        sound(&pool, "what was left is removed")?;
        Ok((left_names.len(), report.resumed.map_or(0, |resumed| resumed.entries)))
    })
}

fn interrupted(two: bool) {
    let source = make_source();
    let disks = Disks::new(two);
    let plain = disks.roots();
    format_on(&plain[0], &plain[1], disks.data_root(), &properties(), (0, 0)).expect("formats");
    let camera = Arc::new(Camera::new(&disks, Ledger { states: vec![Arc::from("")], durable: 0 }, None));
    let observer: Arc<dyn Observer> = camera.clone();
    let pool = open(&observed(&plain, &observer), &options()).expect("opens");
    let into = work(&pool, ".dedupfs-put-1");
    let syncing = Syncing(&pool, AtomicU64::new(0));
    let fingerprint = put(&pool, source.path(), into, false, &syncing).fingerprint;
    pool.sync().expect("syncs");
    camera.photograph_now();
    assert_eq!(names(&pool, into), [b"v"]);
    let (mut seen, mut left, mut most) = (HashSet::new(), [0; 3], 0);
    for photograph in camera.develop() {
        let variants = if photograph.is_barrier { 0..7 } else { 4..5 };
        for variant in variants {
            let image = photograph.disks.crash(variant, photograph.operation << 8);
            if seen.insert(image.content_hash()) {
                let at = format!("operation {}, {}, variant {variant}", photograph.operation, photograph.call);
                let found = examine(&image, source.path(), &fingerprint);
                let (count, resumed) = found.unwrap_or_else(|error| panic!("{at}: {error}"));
                left[count] += 1;
                most = most.max(resumed);
            }
        }
    }
    println!("{} crash points; with 0, 1, 2 versions left: {left:?}; at most {most} entries taken over", seen.len());
    assert!(seen.len() > 100 && left[0] > 0 && left[1] > 10 && most > 6);
}

#[test]
fn an_interrupted_put_is_resumed_from_something_whole() {
    [false, true].into_iter().for_each(interrupted);
}
