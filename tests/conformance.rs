//! The engine passes the suite that every service must pass; then the pool is sound, and so is its committed state.

use std::cell::RefCell;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use dedupfs::check::CheckOptions;
use dedupfs::transfer::{PutOptions, VersionOptions};
use dedupfs::{NoProgress, OpenOptions, Origin, Pool, format_on};
use dedupfs_service::conformance::{check_frozen, check_service, make_tree};
use dedupfs_service::{Caller, FileService, Ino, InodeFlags, NewNode, NodeContent, ROOT_INO, RenameFlags};
use dedupfs_store::device::{Device, MemoryDevice};
use dedupfs_store::superblock::PoolProperties;

fn open(device: &Arc<dyn Device>) -> Arc<Pool> {
    Pool::open_on(device, device, Vec::new(), &OpenOptions::default(), &NoProgress).expect("opens")
}

fn formatted() -> (Arc<dyn Device>, Arc<Pool>) {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::new());
    format_on(&device, &device, b".".to_vec(), &PoolProperties::default(), (0, 0)).expect("formats");
    let pool = open(&device);
    (device, pool)
}

fn directory(pool: &Pool, name: &str) -> Ino {
    let node = NewNode { parent: ROOT_INO, name: name.as_bytes(), mode: 0o755, umask: 0 };
    pool.service().make(Caller::default(), node, NodeContent::Directory).expect("makes").ino
}

#[test]
fn the_engine_conforms() {
    let pools = RefCell::new(Vec::new());
    check_service(&|| {
        let (device, pool) = formatted();
        let service = pool.service();
        pools.borrow_mut().push((device, pool));
        service
    });
    pools.into_inner().into_iter().for_each(|(device, pool)| end(&device, pool, |_| ()));
}

/// Returns a pool with the live tree of the suite in the directory `live`.
fn with_tree() -> (Arc<dyn Device>, Arc<Pool>, Ino) {
    let (device, pool) = formatted();
    let live = directory(&pool, "live");
    make_tree(pool.service(), live);
    (device, pool, live)
}

fn origin() -> Origin {
    Origin { source: b"/source".to_vec(), host: b"here".to_vec() }
}

#[test]
fn a_version_by_snapshot_conforms_as_far_as_it_is_read() {
    let (device, pool, live) = with_tree();
    let flags = InodeFlags { no_dump: true, ..InodeFlags::default() };
    pool.service().set_flags(Caller::default(), live, flags).expect("sets");
    pool.snapshot(live, (ROOT_INO, b"version"), &origin(), &NoProgress).expect("makes a version");
    check_frozen(&(pool.service() as Arc<dyn FileService>), ROOT_INO, "version");
    let version = pool.service().lookup(ROOT_INO, b"version").expect("is there").ino;
    assert_eq!(pool.service().flags(version), Ok(flags));
    end(&device, pool, |pool| {
        let fresh = directory(pool, "fresh");
        pool.service().rename(ROOT_INO, b"version", fresh, b"moved", RenameFlags::default()).expect("renames");
        check_frozen(&(pool.service() as Arc<dyn FileService>), fresh, "moved");
    });
}

#[test]
fn a_version_by_put_conforms_as_far_as_it_is_read() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: devices, other owners and trusted attributes need root");
        return;
    }
    let (_device, pool, live) = with_tree();
    let disk = tempfile::tempdir().expect("makes");
    let open = |path: &Path| File::open(path).expect("opens").into();
    let got = pool
        .get(live, (open(disk.path()), b"tree"), &dedupfs::transfer::Patterns::default(), &NoProgress)
        .expect("gets");
    assert_eq!(got.problem_count, 0, "{:?}", got.problems);
    let (device, pool) = formatted();
    let version = Some(VersionOptions { origin: origin(), ..VersionOptions::default() });
    let options = PutOptions { version, ..PutOptions::default() };
    let put = pool.put(&options, open(&disk.path().join("tree")), (ROOT_INO, b"version"), &NoProgress).expect("puts");
    assert_eq!(put.problem_count, 0, "{:?}", put.problems);
    check_frozen(&(pool.service() as Arc<dyn FileService>), ROOT_INO, "version");
    end(&device, pool, |_| ());
}

/// Ends a test of a pool: the pool is sound, also when it is opened again, and then `again` holds.
fn end(device: &Arc<dyn Device>, pool: Arc<Pool>, again: impl FnOnce(&Pool)) {
    pool.close().expect("closes");
    drop(pool);
    let pool = open(device);
    let report = pool.check(&CheckOptions { read_data: true, ..CheckOptions::default() }, &NoProgress).expect("checks");
    assert!(report.is_clean(), "{:#?}", report.findings);
    again(&pool);
    pool.close().expect("closes");
}
