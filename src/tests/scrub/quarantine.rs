//! Effects of quarantine on readers and writers.

use std::sync::Arc;
use std::time::{Duration, Instant};

use dedupfs::reclaim::ReclaimOptions;
use dedupfs::scrub::ScrubOptions;
use dedupfs::{OpenOptions as PoolOptions, Pool};
use dedupfs_service::{FilePlace, FileService, NewNode, OpenOptions, ROOT_INO};

use dedupfs_store::container::Compression;
use dedupfs_store::device::faulty::{Fault, FaultPlan, FaultyDevice, Operation};
use dedupfs_store::device::{Device, MemoryDevice};

use crate::tests::common::{CALLER, content, read, write};
use crate::tests::falsify::falsify;
use crate::tests::scrub::{affected, change, check, format, formatted, open, open_with, reclaim, scrub, spoil_copies};

/// Sound frames around wrong bytes: after healing, files whose recipes name the old container are read from the new
/// one, at once and after a restart, before the old container is reclaimed.
#[test]
fn regression_a_healed_chunk_is_never_read_from_where_its_bytes_are_wrong() {
    let device = formatted(Compression::None);
    let data = content(1, 3 << 20);
    let pool = open(&device);
    write(&pool, "old", &data);
    write(&pool, "small", &data[..3000]);
    pool.close().expect("closes");
    drop(pool);
    change(&device, "containers", &mut |bytes| falsify(bytes));
    let pool = open(&device);
    let report = scrub(&pool);
    assert!(report.bad_chunks > 0 && report.sound > report.bad_chunks, "{report:?}");
    assert_eq!(affected(&report), ["old"]);
    assert_eq!(read(&pool, "old"), None, "never wrong bytes once it is known");
    write(&pool, "new", &data);
    write(&pool, "new small", &data[..3000]);
    pool.sync().expect("syncs");
    for name in ["old", "new"] {
        assert!(read(&pool, name).as_deref() == Some(&data), "{name}");
    }
    pool.close().expect("closes");
    drop(pool);
    let pool = open(&device);
    assert!(read(&pool, "old").as_deref() == Some(&data), "after a restart");
    assert!(read(&pool, "small").as_deref() == Some(&data[..3000]));
    assert_eq!(check(&pool).findings, Vec::<String>::new(), "clean before any reclaim");
    assert!(scrub(&pool).is_clean());
    reclaim(&pool);
    assert_eq!(check(&pool).notes, Vec::<String>::new());
    assert!(read(&pool, "old").as_deref() == Some(&data));
    pool.close().expect("closes");
}

/// The same after a rebuild of the index that reads all content.
#[test]
fn regression_a_rebuild_that_gives_content_up_does_not_leave_it_to_old_hints() {
    let device = formatted(Compression::None);
    let data = content(2, 3 << 20);
    let pool = open(&device);
    write(&pool, "old", &data);
    pool.close().expect("closes");
    drop(pool);
    change(&device, "containers", &mut |bytes| falsify(bytes));
    let rebuild = PoolOptions { rebuild_index: true, rebuild_reads_data: true, ..PoolOptions::default() };
    let pool = open_with(&device, &rebuild);
    assert!(pool.rebuilt().expect("rebuilt").lost_chunks > 0);
    assert_eq!(read(&pool, "old"), None);
    write(&pool, "new", &data);
    pool.sync().expect("syncs");
    assert!(read(&pool, "old").as_deref() == Some(&data));
    pool.close().expect("closes");
    drop(pool);
    let pool = open(&device);
    assert!(read(&pool, "old").as_deref() == Some(&data), "after a restart");
    assert_eq!(check(&pool).findings, Vec::<String>::new());
    pool.close().expect("closes");
}

/// A rebuild that reads only tables must not take quarantined copies for good.
#[test]
fn regression_a_rebuild_does_not_forget_the_quarantine() {
    let device = formatted(Compression::None);
    let data = content(3, 3 << 20);
    let pool = open(&device);
    write(&pool, "old", &data);
    pool.close().expect("closes");
    drop(pool);
    change(&device, "containers", &mut |bytes| falsify(bytes));
    let pool = open(&device);
    let lost = scrub(&pool).lost_chunks;
    pool.close().expect("closes");
    drop(pool);
    let pool = open_with(&device, &PoolOptions { rebuild_index: true, ..PoolOptions::default() });
    assert_eq!(pool.rebuilt().expect("rebuilt").lost_chunks, lost);
    write(&pool, "new", &data);
    pool.sync().expect("syncs");
    assert!(read(&pool, "new").as_deref() == Some(&data), "nothing was deduplicated against what is bad");
    pool.close().expect("closes");
}

fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let until = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < until, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn damaged_pool() -> (Arc<dyn Device>, Vec<u8>) {
    let device = formatted(Compression::None);
    let data = content(4, 3 << 20);
    let pool = open(&device);
    write(&pool, "old", &data);
    pool.close().expect("closes");
    drop(pool);
    let mut is_first = true;
    change(&device, "containers", &mut |bytes| {
        if std::mem::take(&mut is_first) {
            bytes[20_000] ^= 1;
        }
    });
    (device, data)
}

#[test]
fn a_read_that_meets_damage_has_it_quarantined() {
    let (device, data) = damaged_pool();
    let pool = open(&device);
    assert_eq!(read(&pool, "old"), None);
    wait_until("it is quarantined", || pool.core().namespace.has_losses());
    wait_until("it is lost", || pool.core().indexes.chunks.lost() > 0);
    // A backup after the error heals, without any scrub.
    write(&pool, "new", &data);
    pool.sync().expect("syncs");
    assert!(read(&pool, "old").as_deref() == Some(&data) && read(&pool, "new").as_deref() == Some(&data));
    pool.close().expect("closes");
}

/// After readers have met all damage a scrub finds nothing new, but it still reports the losses and the files that they
/// affect.
#[test]
fn regression_what_readers_have_met_is_told_by_a_scrub_and_its_status() {
    let (device, data) = damaged_pool();
    let pool = open(&device);
    assert_eq!(read(&pool, "old"), None);
    wait_until("it is lost", || pool.core().indexes.chunks.lost() > 0);
    pool.core().quarantine(&[]).expect("waits for the one under way");
    let report = scrub(&pool);
    assert_ne!(report.damage, Vec::<String>::new());
    assert_eq!((report.bad_chunks, report.is_clean()), (0, false), "{report:?}");
    assert!(report.damage.iter().all(|damage| damage.contains(", lost before: ")), "{report:?}");
    assert_eq!(affected(&report), ["old"]);
    let status = pool.scrub_status().expect("has a status");
    assert_eq!((status.lost_chunks, status.lost_nodes), (Some(report.lost_chunks), Some(0)));
    write(&pool, "new", &data);
    pool.sync().expect("syncs");
    let report = scrub(&pool);
    assert_ne!(report.damage, Vec::<String>::new());
    assert!(report.is_clean() && report.damage.iter().all(|damage| damage.contains("nothing is needed")), "{report:?}");
    assert_eq!(pool.scrub_status().expect("has a status").lost_chunks, Some(0));
    pool.close().expect("closes");
}

/// Copies `len` bytes of a file's content, from offset `from` on, into a new file.
fn clone(pool: &Pool, source: &str, target: &str, from: u64, len: u64) {
    let service = pool.service();
    let how = OpenOptions { read: true, write: true, ..OpenOptions::default() };
    let ino = service.lookup(ROOT_INO, source.as_bytes()).expect("is there").ino;
    let handle = service.open(CALLER, ino, how).expect("opens").handle;
    let node = NewNode { parent: ROOT_INO, name: target.as_bytes(), mode: 0o644, umask: 0 };
    let (attributes, opened) = service.create(CALLER, node, how).expect("creates");
    let (from, to) =
        (FilePlace { ino, handle, offset: from }, FilePlace { ino: attributes.ino, handle: opened.handle, offset: 0 });
    assert_eq!(service.copy_range(CALLER, from, to, len), Ok(len as u32));
    service.flush(to.ino, to.handle).expect("checkpoints");
    for place in [from, to] {
        service.release(place.ino, place.handle);
        service.forget(place.ino, 1);
    }
}

/// A clone of lost content gives the same error as its source, and is healed with it.
#[test]
fn a_clone_of_what_is_lost_is_healed_with_it() {
    let (device, data) = damaged_pool();
    let pool = open(&device);
    assert!(scrub(&pool).lost_chunks > 0);
    clone(&pool, "old", "whole", 0, data.len() as u64);
    clone(&pool, "old", "part", 0, (data.len() - 1000) as u64);
    pool.sync().expect("syncs");
    for name in ["old", "whole", "part"] {
        assert_eq!(read(&pool, name), None, "{name}");
    }
    let report = scrub(&pool);
    assert_eq!(affected(&report), ["old", "part", "whole"]);
    pool.service().unlink(ROOT_INO, b"old").expect("unlinks");
    reclaim(&pool);
    assert_eq!((read(&pool, "whole"), read(&pool, "part")), (None, None));
    write(&pool, "new", &data);
    pool.sync().expect("syncs");
    assert!(read(&pool, "whole").as_deref() == Some(&data));
    assert!(read(&pool, "part").as_deref() == Some(&data[..data.len() - 1000]));
    reclaim(&pool);
    let found = check(&pool);
    assert_eq!((found.findings, found.notes), (Vec::new(), Vec::new()));
    assert!(scrub(&pool).is_clean());
    pool.close().expect("closes");
}

#[test]
fn a_pool_that_may_not_be_changed_quarantines_nothing() {
    let (device, _) = damaged_pool();
    let pool = open_with(&device, &PoolOptions { read_only: true, ..PoolOptions::default() });
    assert_eq!(read(&pool, "old"), None);
    std::thread::sleep(Duration::from_millis(200));
    assert!(!pool.core().namespace.has_losses() && pool.core().indexes.chunks.lost() == 0);
    pool.close().expect("closes");
}

/// Damaged garbage is no error and stops nothing.
#[test]
fn damaged_garbage_is_no_error() {
    let (device, _) = damaged_pool();
    let pool = open(&device);
    pool.service().unlink(ROOT_INO, b"old").expect("unlinks");
    let options = ReclaimOptions::below(0);
    pool.reclaim(&options, &dedupfs::NoProgress).expect("reclaims");
    let report = scrub(&pool);
    assert!(report.is_clean(), "{report:?}");
    reclaim(&pool);
    let found = check(&pool);
    assert_eq!((found.findings, found.notes), (Vec::new(), Vec::new()));
    pool.close().expect("closes");
}

/// A disk that does not answer for a while loses nothing.
#[test]
fn a_disk_that_does_not_answer_is_no_loss() {
    let memory = MemoryDevice::new();
    let faulty = FaultyDevice::over_memory(&memory);
    let device: Arc<dyn Device> = Arc::new(faulty.clone());
    format(&device, Compression::None);
    let data = content(5, 3 << 20);
    let pool = open(&device);
    write(&pool, "file", &data);
    pool.close().expect("closes");
    drop(pool);
    let pool = open(&device);
    faulty.add(FaultPlan::new(Fault::Io, 0).on(&[Operation::Read]).path_contains("containers/").lasting());
    let outcome = pool.scrub(&ScrubOptions::default(), &dedupfs::NoProgress);
    let message = outcome.expect_err("the disk gives nothing").to_string();
    assert!(message.contains("nothing is concluded"), "{message}");
    assert!(!pool.core().namespace.has_losses() && pool.core().indexes.chunks.lost() == 0);
    faulty.heal();
    assert!(scrub(&pool).is_clean());
    assert!(read(&pool, "file").as_deref() == Some(&data));
    pool.close().expect("closes");
}

/// Damaged nodes keep the counts of their children: when they are stored again, nothing is counted twice; when they are
/// deleted, the children stay.
#[test]
fn counts_stay_right_when_recipes_go_bad_and_heal() {
    for heals in [true, false] {
        let device = formatted(Compression::None);
        let data = content(6, 12 << 20);
        let pool = open(&device);
        write(&pool, "old", &data);
        pool.close().expect("closes");
        drop(pool);
        change(&device, "recipes", &mut |bytes| falsify(bytes));
        spoil_copies(&device);
        let pool = open(&device);
        let report = scrub(&pool);
        assert!(report.bad_nodes > 0 && affected(&report) == ["old"], "{report:?}");
        if heals {
            write(&pool, "new", &data);
            pool.sync().expect("syncs");
            assert!(read(&pool, "old").as_deref() == Some(&data));
            assert_eq!(check(&pool).findings, Vec::<String>::new());
            pool.service().unlink(ROOT_INO, b"old").expect("unlinks");
            reclaim(&pool);
            assert_eq!(check(&pool).findings, Vec::<String>::new());
            assert!(read(&pool, "new").as_deref() == Some(&data));
            pool.service().unlink(ROOT_INO, b"new").expect("unlinks");
            reclaim(&pool);
            let stats = pool.stats().expect("has statistics");
            assert_eq!((stats.chunk_index.cells, stats.recipe_index.cells), (0, 0), "all of it went");
        } else {
            pool.service().unlink(ROOT_INO, b"old").expect("unlinks");
            let report = reclaim(&pool);
            assert!(report.nodes_unreadable > 0, "what they name cannot be told: {report:?}");
            assert!(scrub(&pool).is_clean(), "no file needs them");
            assert_eq!(check(&pool).findings, Vec::<String>::new());
            pool.close().expect("closes");
            drop(pool);
            // A rebuild counts anew and frees the rest.
            let pool = open_with(&device, &PoolOptions { rebuild_index: true, ..PoolOptions::default() });
            reclaim(&pool);
            assert_eq!(pool.stats().expect("has statistics").chunk_index.cells, 0);
            pool.close().expect("closes");
            continue;
        }
        pool.close().expect("closes");
    }
}

/// A stopped scrub goes on where it was, also after a crash.
#[test]
fn a_scrub_goes_on_where_it_was_stopped() {
    struct StopAfter(std::sync::atomic::AtomicU64);
    impl dedupfs::Progress for StopAfter {
        fn start(&self, _: &str, _: u64) {}
        fn advance(&self, by: u64) {
            self.0.fetch_add(by, std::sync::atomic::Ordering::Relaxed);
        }
        fn finish(&self) {}
        fn is_cancelled(&self) -> bool {
            self.0.load(std::sync::atomic::Ordering::Relaxed) >= 2
        }
    }
    let device = formatted(Compression::None);
    let data = content(7, 12 << 20);
    let pool = open(&device);
    write(&pool, "file", &data);
    pool.close().expect("closes");
    drop(pool);
    let pool: Arc<Pool> = open(&device);
    let first = pool.scrub(&ScrubOptions::default(), &StopAfter(0.into())).expect("scrubs");
    assert!(!first.finished && first.containers > 3 && first.containers < 40, "{first:?}");
    let status = pool.scrub_status().expect("has a status");
    assert_eq!(status.position.map(|position| position.containers), Some(first.containers));
    // Not closed, as after a crash.
    drop(pool);
    let pool = open(&device);
    let second = pool.scrub(&ScrubOptions::default(), &dedupfs::NoProgress).expect("scrubs");
    assert!(second.finished && second.containers_before == first.containers, "{second:?}");
    let whole = scrub(&pool);
    assert_eq!(whole.containers_before, 0);
    assert_eq!(first.containers + second.containers, whole.containers, "none twice, none left out");
    assert!(pool.scrub_status().expect("has a status").position.is_some_and(|position| position.finished_secs > 0));
    pool.close().expect("closes");
}
