//! The export is held, and notes of it outlive a commit that fails.

use std::sync::Arc;

use dedupfs::format_on;
use dedupfs_store::container::SlotAddress;
use dedupfs_store::device::observed::{Call, ObservedDevice, Observer};
use dedupfs_store::device::{Device, MemoryDevice, OpenMode};
use dedupfs_store::superblock::PoolProperties;
use dedupfs_store::{ContainerId, ContainerKind, ContainerRecord};
use parking_lot::Mutex;

use crate::tests::common::{content, write};
use crate::tests::export::site::{formatted, open, shared, try_open};

#[test]
fn a_held_export_is_replaced_by_another_base_and_by_nothing_else() {
    let (meta, data) = formatted();
    let pool = open(&meta, &data);
    let core = pool.core();
    let change = |name: &str| {
        write(&pool, name, &content(1, 100_000));
        pool.sync().expect("syncs");
        core.committer.export().expect("exports");
    };
    change("before");
    core.exporter.rebase().expect("writes a base");
    let held = core.exporter.hold();
    assert!(!held.is_replaced());
    change("behind");
    assert!(!held.is_replaced(), "a group was appended");
    core.exporter.rebase().expect("writes a base");
    assert!(held.is_replaced());
}

/// The next commit must store them: else the slots of these containers stay taken until the next mount.
#[test]
fn containers_that_left_are_given_to_the_commit_behind_one_that_failed() {
    let (meta, data) = formatted();
    let pool = open(&meta, &data);
    let exporter = &pool.core().exporter;
    exporter.not_left(vec![ContainerId(1), ContainerId(2)]);
    assert_eq!(exporter.position().left, [ContainerId(1), ContainerId(2)]);
    assert_eq!(exporter.position().left, []);
}

/// Else the notes of changes behind the held export would be trimmed under the one that still reads it.
#[test]
fn the_first_of_two_holds_that_ends_leaves_the_other() {
    let (meta, data) = formatted();
    let pool = open(&meta, &data);
    let core = pool.core();
    let change = |name: &str| {
        write(&pool, name, &content(1, 100_000));
        pool.sync().expect("syncs");
        core.committer.export().expect("exports");
    };
    change("before");
    let (first, second) = (core.exporter.hold(), core.exporter.hold());
    let row = second.row();
    change("behind");
    drop(first);
    assert_eq!(core.exporter.position().trim_through, row);
    drop(second);
    assert!(core.exporter.position().trim_through > row);
}

/// Runs an action once, when a log is synced.
#[derive(Default)]
struct AtLog(Mutex<Option<Box<dyn FnOnce() + Send>>>);

impl std::fmt::Debug for AtLog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("AtLog")
    }
}

impl Observer for AtLog {
    fn around(
        &self,
        call: &Call<'_>,
        perform: &mut dyn FnMut() -> dedupfs_store::Result<()>,
    ) -> dedupfs_store::Result<()> {
        if matches!(call, Call::Sync { path } if path.starts_with("export/log-")) {
            let action = self.0.lock().take();
            action.into_iter().for_each(|action| action());
        }
        perform()
    }
}

/// The group that is being synced may still name a container that leaves only now: a recovery would need its copy.
#[test]
fn the_copy_of_a_container_that_leaves_amid_an_export_stays() {
    let (meta, data) = (MemoryDevice::new(), MemoryDevice::new());
    // Tankers of the usual size, so that no checkpoint exports in between.
    format_on(&shared(&meta), &shared(&data), b"elsewhere".to_vec(), &PoolProperties::default(), (0, 0))
        .expect("formats");
    // With an export at its opening, the thread that exports has nothing to do.
    let pool = open(&meta, &data);
    pool.core().committer.export().expect("exports");
    pool.close().expect("closes");
    drop(pool);
    let observer = Arc::new(AtLog::default());
    let observed: Arc<dyn Device> = Arc::new(ObservedDevice::new(shared(&data), observer.clone()));
    let pool = try_open(&shared(&meta), &observed).expect("opens");
    let (core, row) = (pool.core(), pool.core().namespace.last_row());
    write(&pool, "first", &content(1, 500_000));
    pool.sync().expect("syncs");
    core.committer.export().expect("exports");
    let copy = |file: u32| format!("export/recipes/{file:06}.slots");
    let removed = |file: u32| {
        data.open(&copy(file), OpenMode::CreateNew).expect("creates").write_at(&[1; 4096], 0).expect("writes");
        ContainerRecord {
            id: ContainerId(u64::from(file)),
            kind: ContainerKind::Recipe,
            address: SlotAddress { file, slot: 0 },
            used_bytes: 4096,
            toc: None,
            chunk_bytes: 4096,
            chunks: 1,
            sealed: true,
            damaged: false,
        }
    };
    let (before, amid) = (removed(900), removed(901));
    core.exporter.leave(row, vec![before]);
    let exporter = core.exporter.clone();
    *observer.0.lock() = Some(Box::new(move || exporter.leave(row, vec![amid])));
    write(&pool, "second", &content(2, 500_000));
    pool.sync().expect("syncs");
    core.committer.export().expect("exports");
    assert!(observer.0.lock().is_none(), "a log was synced");
    assert!(!data.exists(&copy(900)).expect("tells") && data.exists(&copy(901)).expect("tells"));
    core.committer.export().expect("exports");
    assert!(!data.exists(&copy(901)).expect("tells"), "now no export names it");
}
