//! Full disks: everything taken can be committed even with several writers; acknowledged data survives a crash;
//! deleting and reclaiming work on a disk that is full to the last byte.
//!
//! `DEDUPFS_SPACE_SEED=N` starts at another seed, `DEDUPFS_SPACE_RUNS=N` makes more runs than CI has time for.

pub(crate) mod site;
mod told;

use crate::tests::common;
use crate::tests::common::content;
use dedupfs::check::CheckOptions;
use dedupfs::reclaim::ReclaimOptions;
use dedupfs::{NoProgress, OpenOptions as PoolOptions, SpaceLimits};
use dedupfs_service::{AttributeChanges, Errno, FileService, ROOT_INO, TimeChange, Timestamp, XattrMode};
use dedupfs_store::device::MemoryDevice;

use site::{
    Files, MIB, Random, Site, assert_files, assert_sound, caller, clone_range, fill, handle_of, options, remove,
    write_at,
};

const WRITERS: u32 = 3;

/// Lets several writers fill the pool, crashes it, deletes half, reclaims, and refills it.
fn cycles(site: &Site, seed: u64, largest: u64, fullness_percent: u64) {
    let pool = site.open();
    let mut files = Files::new();
    for round in 0..3 {
        let seed = seed * 10 + round;
        let filled: Vec<Files> = std::thread::scope(|scope| {
            let pool = &pool;
            let writers: Vec<_> =
                (0..WRITERS).map(|writer| scope.spawn(move || fill(pool, writer, seed, largest))).collect();
            writers.into_iter().map(|writer| writer.join().expect("writes")).collect()
        });
        files.extend(filled.into_iter().flatten());
        let when = format!("seed {seed}");
        pool.sync().unwrap_or_else(|error| panic!("{when}: what was taken cannot be made durable: {error}"));
        let used = |disk: &MemoryDevice| disk.used_bytes() * 100 / disk.capacity_bytes();
        let fullest = used(&site.data).max(used(&site.meta));
        assert!(fullest >= fullness_percent, "{when}: full at {fullest}% already");
        let crashed = site.crash(seed);
        let recovered = crashed.open();
        assert_files(&recovered, &files, &format!("{when} after a crash"));
        assert_sound(&recovered, &format!("{when} after a crash"));
        drop(recovered);
        let mut names: Vec<String> = files.keys().cloned().collect();
        names.sort();
        for name in names.into_iter().step_by(2) {
            remove(&*pool.service(), &name);
            files.remove(&name);
        }
        let before = site.data.used_bytes().max(site.meta.used_bytes());
        let report = pool.reclaim(&ReclaimOptions::default(), &NoProgress);
        let report = report.unwrap_or_else(|error| panic!("{when}: reclaiming a full disk: {error}"));
        assert_eq!(report.containers_without_space, 0, "{when}: {report:?}");
        let after = site.data.used_bytes().max(site.meta.used_bytes());
        assert!(after < before, "{when}: {before} bytes before reclaiming, {after} after: {report:?}");
        assert_files(&pool, &files, &format!("{when} reclaimed"));
        assert_sound(&pool, &format!("{when} reclaimed"));
    }
    pool.close().expect("closes");
    drop(pool);
    let pool = site.open();
    assert_files(&pool, &files, "opened again");
    assert_sound(&pool, "opened again");
}

fn seeds() -> std::ops::Range<u64> {
    let of = |name: &str, default| std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default);
    let first = of("DEDUPFS_SPACE_SEED", 1);
    first..first + of("DEDUPFS_SPACE_RUNS", 3)
}

#[test]
fn one_disk_is_filled_reclaimed_and_filled_again() {
    for seed in seeds() {
        let site = Site::one((40 + Random::new(seed).below(60)) * MIB);
        cycles(&site, seed, 3 * MIB, 60);
    }
}

#[test]
fn a_full_data_root_beside_an_empty_meta_root() {
    for seed in seeds() {
        let site = Site::two((24 + Random::new(seed).below(40)) * MIB, 256 * MIB);
        cycles(&site, seed, 3 * MIB, 60);
    }
}

#[test]
fn a_full_meta_root_beside_an_empty_data_root() {
    for seed in seeds() {
        // Small files and many names.
        let site = Site::two(2048 * MIB, (14 + Random::new(seed).below(8)) * MIB);
        cycles(&site, seed, 30_000, 30);
    }
}

/// Each writer holds 16 MiB between its writes and a container, which the disk does not show as used.
#[test]
fn regression_many_open_writers_do_not_pass_the_reserve() {
    let site = Site::one(64 * MIB);
    let pool = site.open();
    let service = pool.service();
    let open: Vec<_> =
        (0..8).map(|writer| handle_of(&*service, writer, &format!("{writer}")).expect("creates")).collect();
    let mut len = vec![0_u64; open.len()];
    let mut is_full = false;
    'full: for number in 0..64_u64 {
        for (writer, (ino, handle)) in open.iter().enumerate() {
            let data = content(number << 8 | writer as u64, 1 << 20);
            if let Err(error) = write_at(&pool, *ino, *handle, len[writer], &data) {
                assert_eq!(error, Errno::ENOSPC);
                is_full = true;
                break 'full;
            }
            len[writer] += data.len() as u64;
        }
    }
    assert!(is_full, "512 MiB fit on 64");
    for (ino, handle) in &open {
        service.fsync(*ino, *handle).expect("what was taken can be made durable");
    }
    assert!(len.iter().sum::<u64>() > 30 * MIB, "only {len:?} bytes were taken");
    assert_sound(&pool, "many writers");
}

#[test]
fn copies_of_what_is_stored_fit_a_disk_that_is_nearly_full() {
    let site = Site::one(96 * MIB);
    let pool = site.open();
    common::write(&pool, "original", &content(1, 16 << 20));
    // Writes until less than 14 MiB are available.
    for number in 0.. {
        let statistics = pool.service().statistics().expect("tells");
        if statistics.blocks_available * 4096 < 14 * MIB {
            break;
        }
        common::write(&pool, &format!("filler {number}"), &content(100 + number, 4 << 20));
        pool.sync().expect("syncs");
    }
    for number in 0..4 {
        common::write(&pool, &format!("copy {number}"), &content(1, 16 << 20));
    }
    pool.sync().expect("syncs");
    assert!(common::read(&pool, "copy 3").expect("reads") == content(1, 16 << 20));
    assert_sound(&pool, "copies");
}

#[test]
fn a_limit_holds_on_each_root() {
    for (limits, largest) in [
        (SpaceLimits { data_bytes: Some(24 * MIB), meta_bytes: None }, 1 << 20),
        (SpaceLimits { data_bytes: None, meta_bytes: Some(14 * MIB) }, 30_000),
    ] {
        let site = Site::two(1024 * MIB, 256 * MIB);
        let limited = PoolOptions { limits, ..options() };
        let pool = site.open_with(&limited).expect("opens");
        let files = fill(&pool, 1, 1, largest);
        pool.sync().expect("syncs");
        assert!(!files.is_empty());
        let (limit, used) = match limits.data_bytes {
            Some(limit) => (limit, site.data.used_bytes()),
            None => (limits.meta_bytes.expect("one is set"), site.meta.used_bytes()),
        };
        assert!(used <= limit && used > limit / 4, "{used} bytes with a limit of {limit}");
        pool.close().expect("closes");
        drop(pool);
        // The limit is below the used space: the pool opens and takes nothing, and its files can be read and deleted.
        let one = SpaceLimits { data_bytes: limits.data_bytes.map(|_| 1), meta_bytes: limits.meta_bytes.map(|_| 1) };
        let pool = site.open_with(&PoolOptions { limits: one, ..options() }).expect("opens");
        let taken = handle_of(&*pool.service(), 1, "more").and_then(|(ino, handle)| {
            let taken = write_at(&pool, ino, handle, 0, &content(7, 1 << 20));
            pool.service().release(ino, handle);
            taken
        });
        assert_eq!(taken, Err(Errno::ENOSPC));
        assert_files(&pool, &files, "with a limit of nothing");
        files.keys().for_each(|name| remove(&*pool.service(), name));
        let report = pool.reclaim(&ReclaimOptions::default(), &NoProgress).expect("reclaims");
        assert!(report.physical_after_bytes < report.physical_before_bytes);
        drop(pool);
        assert_sound(&site.open(), "without the limit");
    }
}

/// Another program took all the rest of the disk.
#[test]
fn a_disk_without_a_byte_left_loses_nothing() {
    let site = Site::one(64 * MIB);
    let pool = site.open();
    let files = fill(&pool, 1, 3, 2 * MIB);
    pool.sync().expect("syncs");
    let capacity = site.data.capacity_bytes();
    site.data.set_capacity(site.data.used_bytes());
    // The next check of the disk sees the space that others took.
    std::thread::sleep(2 * dedupfs::config::SPACE_CHECK_INTERVAL);
    let made = handle_of(&*pool.service(), 1, "more");
    assert_eq!(made.err(), Some(Errno::ENOSPC));
    // The removals were taken before, so a commit may fail; acknowledged files stay.
    files.keys().take(2).for_each(|name| remove(&*pool.service(), name));
    let outcome = pool.sync();
    assert!(outcome.is_ok() || outcome.is_err_and(|error| error.is_no_space()));
    assert_files(&pool, &files.clone().into_iter().skip(2).collect(), "with no byte left");
    // Once there is space again everything goes on, without a new mount.
    site.data.set_capacity(capacity);
    pool.sync().expect("space is back");
    pool.reclaim(&ReclaimOptions::default(), &NoProgress).expect("reclaims");
    common::write(&pool, "new", b"new");
    pool.sync().expect("syncs");
    drop(pool);
    site.data.set_capacity(site.data.used_bytes());
    match site.open_with(&options()) {
        Ok(pool) => assert_files(&pool, &files.clone().into_iter().skip(2).collect(), "opened with no byte left"),
        Err(error) => assert!(error.is_no_space(), "{error}"),
    }
    site.data.set_capacity(capacity);
    let pool = site.open();
    assert_files(&pool, &files.into_iter().skip(2).collect(), "opened with space again");
    assert_eq!(pool.check(&CheckOptions::default(), &NoProgress).expect("checks").finding_count, 0);
}

#[test]
fn attributes_and_links_are_refused_in_time_and_removed_when_full() {
    let site = Site::two(256 * MIB, 14 * MIB);
    let pool = site.open();
    let service = pool.service();
    let value = content(5, 60_000);
    let mut made = Vec::new();
    'full: for number in 0..2000 {
        let name = format!("file {number}");
        let Ok((ino, handle)) = handle_of(&*service, 1, &name) else { break };
        service.release(ino, handle);
        made.push((name, ino));
        for attribute in 0..4 {
            let name = format!("user.{attribute}");
            if let Err(error) = service.set_xattr(caller(1), ino, name.as_bytes(), &value, XattrMode::Any) {
                assert_eq!(error, Errno::ENOSPC);
                break 'full;
            }
        }
    }
    assert!(made.len() > 5 && made.len() < 2000, "{} files", made.len());
    pool.sync().expect("what was taken can be committed");
    let modes = AttributeChanges { mode: Some(0o600), ..AttributeChanges::default() };
    service.set_attributes(caller(1), made[0].1, modes).expect("chmod works on a full disk");
    for (name, ino) in &made {
        remove(&*service, name);
        service.forget(*ino, 1);
    }
    pool.reclaim(&ReclaimOptions::default(), &NoProgress).expect("reclaims");
    pool.sync().expect("syncs");
    assert!(site.meta.used_bytes() < 8 * MIB, "{} bytes are left", site.meta.used_bytes());
    assert_sound(&pool, "attributes");
}

/// cp asks for 2 GiB of any file; a clone must ask for room for the file's real size, and for all of it that is copied.
#[test]
fn regression_a_clone_asks_for_room_for_what_there_is_to_copy() {
    const ASKED_BYTES: u64 = 1 << 40;
    let site = Site::one(96 * MIB);
    let pool = site.open();
    let service = pool.service();
    let (tiny, large) = (content(1, 4096), content(2, 900_000));
    common::write(&pool, "tiny", &tiny);
    common::write(&pool, "large", &large);
    let target = handle_of(&*service, 1, "target").expect("creates");
    service.fsync(target.0, target.1).expect("syncs");
    let needed = |bytes: u64| {
        let demand = pool.core().cost.of_clone(bytes, dedupfs::config::CLONE_BYTES_MIN);
        demand.data_bytes + demand.meta_bytes
    };
    // Room for the tiny file, but less than for copying the other one, or for the most that is copied at once.
    let wanted_bytes = needed(4096).midpoint(needed(900_000));
    let usable_bytes = pool.stats().expect("tells").roots[0].usable_bytes;
    site.data.set_capacity(site.data.capacity_bytes() - (usable_bytes - wanted_bytes));
    std::thread::sleep(2 * dedupfs::config::SPACE_CHECK_INTERVAL);
    assert_eq!(clone_range(&*service, "large", 0, target, 1, ASKED_BYTES), Err(Errno::ENOSPC));
    assert_eq!(clone_range(&*service, "tiny", 0, target, 1, ASKED_BYTES), Ok(4096));
    service.fsync(target.0, target.1).expect("what was taken can be made durable");
    service.release(target.0, target.1);
    service.forget(target.0, 1);
    assert!(common::read(&pool, "target").expect("reads")[1..] == tiny);
    assert_sound(&pool, "clones");
}

#[test]
fn times_of_access_stay_where_little_room_is_left() {
    let site = Site::one(96 * MIB);
    let pool = site.open();
    let service = pool.service();
    common::write(&pool, "file", b"content");
    let ino = service.lookup(ROOT_INO, b"file").expect("is there").ino;
    let old = Timestamp { secs: 1000, nanos: 0 };
    let is_changed_by_reading = || {
        let changes = AttributeChanges { atime: Some(TimeChange::At(old)), ..AttributeChanges::default() };
        service.set_attributes(caller(1), ino, changes).expect("sets the time");
        assert!(common::read(&pool, "file").expect("reads") == b"content");
        service.attributes(ino).expect("tells").atime != old
    };
    assert!(is_changed_by_reading());
    let (filler, handle) = handle_of(&*service, 1, "filler").expect("creates");
    let mut written = 0;
    while write_at(&pool, filler, handle, written, &content(written, 1 << 20)).is_ok() {
        written += MIB;
    }
    assert!(!is_changed_by_reading(), "on a full disk");
    service.release(filler, handle);
    service.forget(filler, 1);
    remove(&*service, "filler");
    pool.reclaim(&ReclaimOptions::default(), &NoProgress).expect("reclaims");
    // The next writer finds that there is room.
    std::thread::sleep(2 * dedupfs::config::SPACE_CHECK_INTERVAL);
    common::write(&pool, "more", b"more");
    assert!(is_changed_by_reading(), "with room again");
    service.forget(ino, 1);
    assert_sound(&pool, "times of access");
}
