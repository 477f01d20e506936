//! Losses and doubts that are found while the disk is full, and checkpoints for which there is no room.

use std::sync::Arc;

use dedupfs::{NoProgress, OpenOptions as PoolOptions, Pool, format_on};
use dedupfs_service::{Errno, FileService, NewNode, OpenOptions, ROOT_INO, WriteFlags};

use dedupfs_store::device::faulty::{Fault, FaultPlan, FaultyDevice};
use dedupfs_store::device::{Device, MemoryDevice};
use dedupfs_store::superblock::PoolProperties;

use super::Applied;
use crate::tests::common::{CALLER, content, read, write};

const LOSS: Applied = Applied { changes: 0, inconsistencies: 1, doubts: 0 };
const DOUBT: Applied = Applied { changes: 0, inconsistencies: 1, doubts: 1 };

/// A pool whose indexes hold little in memory.
fn small() -> (FaultyDevice, Arc<Pool>) {
    let faulty = FaultyDevice::new(Arc::new(MemoryDevice::new()));
    let device: Arc<dyn Device> = Arc::new(faulty.clone());
    let properties =
        PoolProperties { chunk_size_bytes: 4096, tanker_cells: 64, tanker_buckets: 4, ..PoolProperties::default() };
    format_on(&device, &device, b".".to_vec(), &properties, (0, 0)).expect("formats");
    (faulty, open(&device))
}

fn open(device: &Arc<dyn Device>) -> Arc<Pool> {
    Pool::open_on(device, device, Vec::new(), &PoolOptions::default(), &NoProgress).expect("opens")
}

fn fail(faulty: &FaultyDevice, fault: Fault, path: &str) {
    faulty.add(FaultPlan::new(fault, 0).path_contains(path).lasting());
}

#[test]
fn a_loss_on_a_full_disk_is_in_force_and_noted_later() {
    let (faulty, pool) = small();
    let core = pool.core();
    fail(&faulty, Fault::NoSpace, "namespace");
    core.committer.note(LOSS).expect("lack of space ends nothing");
    assert!(core.namespace.has_losses() && core.committer.inconsistencies() == 1);
    faulty.heal();
    write(&pool, "file", b"content");
    pool.sync().expect("the pool works");
    drop(pool);
    assert!(open(&(Arc::new(faulty) as Arc<dyn Device>)).core().namespace.has_losses(), "the commit has not noted it");
}

/// The rows in a checkpoint are not counted again, so nothing would reveal the doubt a second time.
#[test]
fn a_doubt_on_a_full_disk_is_in_force_and_no_checkpoint_begins_until_it_is_noted() {
    let (faulty, pool) = small();
    let core = pool.core();
    write(&pool, "file", b"content");
    pool.sync().expect("syncs");
    pool.stats().expect("settles");
    fail(&faulty, Fault::NoSpace, "namespace");
    core.committer.note(DOUBT).expect("lack of space ends nothing");
    assert!(core.namespace.has_doubt() && !core.committer.note_doubt().expect("lack of space ends nothing"));
    let positions = || (core.indexes.chunks.position(), core.indexes.nodes.position());
    let before = positions();
    assert!(core.namespace.last_row() > before.0);
    // It would need no space in the namespace itself.
    assert!(!core.committer.begin_checkpoint(core.namespace.last_row()).expect("lack of space ends nothing"));
    assert_eq!(positions(), before);
    faulty.heal();
    assert!(core.committer.note_doubt().expect("is noted"));
    core.committer.checkpoint().expect("is written");
    assert!(positions().0 > before.0);
    drop(pool);
    assert!(open(&(Arc::new(faulty) as Arc<dyn Device>)).core().namespace.has_doubt());
}

#[test]
fn a_disk_that_fails_is_not_taken_for_a_full_one() {
    for applied in [LOSS, DOUBT] {
        let (faulty, pool) = small();
        fail(&faulty, Fault::Io, "namespace");
        let error = pool.core().committer.note(applied).expect_err("is told");
        assert!(!error.is_no_space(), "{error}");
    }
}

/// What is counted stays in memory until a checkpoint is written.
#[test]
fn nothing_new_is_taken_while_an_index_is_full_and_has_no_room_for_a_checkpoint() {
    let (faulty, pool) = small();
    let (service, committer) = (pool.service(), &pool.core().committer);
    let node = |name| NewNode { parent: ROOT_INO, name, mode: 0o644, umask: 0 };
    let how = OpenOptions { write: true, ..OpenOptions::default() };
    let (made, opened) = service.create(CALLER, node(b"second"), how).expect("creates");
    fail(&faulty, Fault::NoSpace, "index/");
    write(&pool, "first", &content(1, 2 << 20));
    pool.sync().expect("nothing was full when it was written");
    pool.stats().expect("settles");
    assert!(pool.core().indexes.chunks.is_full() && !pool.core().indexes.nodes.is_full());
    assert!(committer.is_held_up());
    let try_write = || service.write(CALLER, made.ino, opened.handle, 0, &content(2, 1 << 20), WriteFlags::default());
    assert_eq!(try_write().err(), Some(Errno::ENOSPC));
    assert!(committer.checkpoint().is_err_and(|error| error.is_no_space()));
    faulty.heal();
    committer.checkpoint().expect("there is room again");
    assert!(!committer.is_held_up());
    try_write().expect("is taken");
    service.release(made.ino, opened.handle);
    pool.sync().expect("syncs");
    assert!(read(&pool, "first") == Some(content(1, 2 << 20)) && read(&pool, "second") == Some(content(2, 1 << 20)));
}
