//! The export is held, and copies of recipes stay as long as an export names them.

use std::sync::Arc;

use dedupfs::format_on;
use dedupfs_store::container::SlotAddress;
use dedupfs_store::device::observed::{Call, ObservedDevice, Observer};
use dedupfs_store::device::{Device, MemoryDevice, OpenMode};
use dedupfs_store::superblock::PoolProperties;
use dedupfs_store::{ContainerId, ContainerKind, ContainerRecord};
use parking_lot::Mutex;

use crate::tests::common::{content, write};
use crate::tests::export::site::{formatted, open, recover, shared, try_open, with_empty_base};

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

/// A round first forgets the containers that its commit removed, and then notes that they leave. Copies that were cleared in between
/// were gone, though the export names them.
#[test]
fn regression_copies_of_containers_that_a_round_is_removing_are_not_cleared() {
    let (meta, data) = with_empty_base();
    let pool = open(&meta, &data);
    (0..5).for_each(|number| write(&pool, &format!("{number}"), &content(number, 300_000)));
    pool.close().expect("closes");
    drop(pool);
    let observer = Arc::new(AtLog::default());
    let observed: Arc<dyn Device> = Arc::new(ObservedDevice::new(shared(&data), observer.clone()));
    let pool = try_open(&shared(&meta), &observed).expect("opens");
    let recipes = pool.core().stores.recipes.clone();
    let ids: Vec<_> = recipes.containers().iter().map(|record| record.id).collect();
    assert!(!ids.is_empty());
    *observer.0.lock() = Some(Box::new(move || drop(recipes.forget(&ids).expect("forgets"))));
    pool.core().committer.export().expect("exports");
    assert!(observer.0.lock().is_none(), "the log was synced");
    recover(&data.crash(0));
}

#[test]
fn the_copy_of_a_container_goes_when_no_export_names_it() {
    let (meta, data) = (MemoryDevice::new(), MemoryDevice::new());
    // Tankers of the usual size, so that no checkpoint exports in between.
    format_on(&shared(&meta), &shared(&data), b"elsewhere".to_vec(), &PoolProperties::default(), (0, 0))
        .expect("formats");
    let pool = open(&meta, &data);
    let (core, row) = (pool.core(), pool.core().namespace.last_row());
    write(&pool, "first", &content(1, 500_000));
    pool.sync().expect("syncs");
    core.committer.export().expect("exports");
    let copy = |file: u32| format!("export/recipes/{file:06}.slots");
    data.open(&copy(900), OpenMode::CreateNew).expect("creates").write_at(&[1; 4096], 0).expect("writes");
    let removed = ContainerRecord {
        id: ContainerId(900),
        kind: ContainerKind::Recipe,
        address: SlotAddress { file: 900, slot: 0 },
        used_bytes: 4096,
        toc: None,
        chunk_bytes: 4096,
        chunks: 1,
        sealed: true,
        damaged: false,
    };
    core.exporter.leave(row, vec![removed]);
    write(&pool, "second", &content(2, 500_000));
    pool.sync().expect("syncs");
    core.committer.export().expect("exports");
    assert!(!data.exists(&copy(900)).expect("tells"));
}
