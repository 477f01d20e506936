//! Faults that once went wrong, each alone.

use dedupfs::EngineError;
use dedupfs_store::device::faulty::{Fault, FaultPlan, Operation};

use crate::case::{Disk, Layout};
use crate::disks::Disks;
use crate::session::Session;
use crate::work::{content, image};

/// Returns why the pool takes no more changes.
fn why_read_only(session: &Session<'_>) -> String {
    match session.pool.check_writable() {
        Err(EngineError::ReadOnly(why)) => why.to_string(),
        other => panic!("not read-only: {other:?}"),
    }
}

/// Network filesystems and overcommitted disks report ENOSPC at a sync, and may have dropped the pages. The engine took
/// that for lack of space, and every later sync failed without naming the only way out.
#[test]
fn regression_a_disk_that_is_full_only_at_a_sync_makes_the_pool_read_only() {
    for path in ["containers", "recipes", "namespace"] {
        let image = image(Layout::One);
        let (disks, mut expected) = (Disks::like(&image.disks), image.expected.clone());
        let mut session = Session::new(disks.open(false).expect("opens"), &mut expected);
        disks.add(Disk::Meta, FaultPlan::new(Fault::NoSpace, 0).on(&[Operation::Sync]).path_contains(path));
        session.write("new", &content(50, 50_000), true);
        assert_eq!((session.errors, disks.injected()), (1, 1), "{path}: the fault shows at the sync");
        let why = why_read_only(&session);
        assert!(why.contains("No space left") && why.contains("mount it again"), "{path}: {why}");
        session.read("new");
        session.read("old large");
        assert_eq!(session.errors, 1, "{path}: reading goes on");
    }
}

/// Closing the file succeeded although no commit could follow any more.
#[test]
fn regression_closing_a_file_tells_that_the_pool_has_failed_meanwhile() {
    let image = image(Layout::One);
    let (disks, mut expected) = (Disks::like(&image.disks), image.expected.clone());
    let mut session = Session::new(disks.open(false).expect("opens"), &mut expected);
    let mut errors_meanwhile = 0;
    session.hold("held", &content(51, 100_000), |session| {
        disks.add(Disk::Meta, FaultPlan::new(Fault::Io, 0).on(&[Operation::Write]).path_contains("namespace"));
        session.fsync_directory();
        errors_meanwhile = session.errors;
    });
    assert_eq!(errors_meanwhile, 1, "the commit fails");
    assert_eq!(session.errors, 3, "so do fsync and close of what was open");
    assert!(why_read_only(&session).contains("cannot write namespace.redb"));
}

/// The error of the directory's sync was forgotten: the next attempt found the file, and acknowledged writes
/// into it.
#[test]
fn regression_a_file_of_slots_whose_name_may_be_lost_is_not_used() {
    let image = image(Layout::One);
    let (disks, mut expected) = (Disks::like(&image.disks), image.expected.clone());
    let mut session = Session::new(disks.open(false).expect("opens"), &mut expected);
    disks.add(Disk::Meta, FaultPlan::new(Fault::Io, 0).on(&[Operation::SyncDirectory]).path_contains("containers"));
    session.write("large", &content(52, 1_500_000), true);
    assert_eq!(disks.injected(), 1, "a new file of slots is needed");
    assert!(session.errors > 0, "a file was acknowledged whose containers may be gone");
    assert!(why_read_only(&session).contains("cannot make containers durable"));
}

/// A worker that was still busy wrote into a slot that the next opening had given to another container.
#[test]
fn regression_a_dropped_pool_writes_nothing_more() {
    let image = image(Layout::One);
    for _ in 0..20 {
        let (disks, mut expected) = (Disks::like(&image.disks), image.expected.clone());
        let mut session = Session::new(disks.open(false).expect("opens"), &mut expected);
        let service = session.pool.service();
        session.write("large", &content(53, 2_000_000), false);
        drop(session);
        let changes = || Operation::CHANGING.map(|operation| disks.operations(Disk::Meta, operation));
        let before = changes();
        std::thread::sleep(std::time::Duration::from_millis(20));
        drop(service);
        std::thread::sleep(std::time::Duration::from_millis(5));
        assert_eq!(changes(), before, "a pool that is gone goes on changing its disk");
    }
}
