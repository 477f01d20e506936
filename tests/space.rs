//! Full disks: what was taken can be committed, whoever writes at the same time; what was acknowledged is there after a crash;
//! deleting and reclaiming work on a disk that is full to the last byte.
//!
//! `DEDUPFS_SPACE_SEED=N` starts at another seed, `DEDUPFS_SPACE_RUNS=N` makes more runs than CI has time for.

mod common;

use std::collections::HashMap;
use std::sync::Arc;

use common::content;
use dedupfs::check::CheckOptions;
use dedupfs::config::MEMORY_BYTES_MIN;
use dedupfs::pool::{Level, NoProgress, OpenOptions as PoolOptions, Pool, SpaceLimits, format_on};
use dedupfs::reclaim::ReclaimOptions;
use dedupfs_fuse::service::{
    AttributeChanges, Caller, Errno, FilePlace, FileService, NewNode, OpenOptions, ROOT_INO, TimeChange, Timestamp,
    WriteFlags, XattrMode,
};
use dedupfs_store::device::{Device, MemoryDevice};
use dedupfs_store::superblock::PoolProperties;

const MIB: u64 = 1 << 20;
const WRITERS: u32 = 3;

struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 8) % bound
    }
}

/// A pool on disks of some size: data and meta, which may be the same.
struct Site {
    data: MemoryDevice,
    meta: MemoryDevice,
    is_one: bool,
}

impl Site {
    fn one(bytes: u64) -> Self {
        let disk = MemoryDevice::with_capacity(bytes);
        Self { data: disk.clone(), meta: disk, is_one: true }.formatted()
    }

    fn two(data_bytes: u64, meta_bytes: u64) -> Self {
        let (data, meta) = (MemoryDevice::with_capacity(data_bytes), MemoryDevice::with_capacity(meta_bytes));
        Self { data, meta, is_one: false }.formatted()
    }

    fn formatted(self) -> Self {
        let properties = PoolProperties { container_bytes: 1 << 20, slots_per_file: 16, ..PoolProperties::default() };
        let data_root = if self.is_one { b".".to_vec() } else { b"/data".to_vec() };
        let (meta, data) = self.devices();
        format_on(&meta, &data, data_root, &properties, (0, 0)).expect("formats");
        self
    }

    fn open_with(&self, options: &PoolOptions) -> dedupfs::Result<Arc<Pool>> {
        let (meta, data) = self.devices();
        Pool::open_on(&meta, &data, Vec::new(), options, &NoProgress)
    }

    fn open(&self) -> Arc<Pool> {
        self.open_with(&options()).expect("opens")
    }

    /// Meta, data: the same device if the pool has one root.
    fn devices(&self) -> (Arc<dyn Device>, Arc<dyn Device>) {
        let meta: Arc<dyn Device> = Arc::new(self.meta.clone());
        let data: Arc<dyn Device> = if self.is_one { meta.clone() } else { Arc::new(self.data.clone()) };
        (meta, data)
    }

    /// What a power loss leaves.
    fn crash(&self, seed: u64) -> Self {
        let meta = self.meta.crash(seed);
        let data = if self.is_one { meta.clone() } else { self.data.crash(seed + 1) };
        Self { data, meta, is_one: self.is_one }
    }
}

fn options() -> PoolOptions {
    PoolOptions { memory_bytes: MEMORY_BYTES_MIN, ..PoolOptions::default() }
}

/// A file as its writer believes it is: all of it was acknowledged.
type Files = HashMap<String, Vec<u8>>;

fn caller(writer: u32) -> Caller {
    Caller { uid: 0, gid: 0, pid: 100 + writer }
}

fn handle_of(service: &dyn FileService, writer: u32, name: &str) -> Result<(u64, u64), Errno> {
    let how = OpenOptions { read: true, write: true, ..OpenOptions::default() };
    let node = NewNode { parent: ROOT_INO, name: name.as_bytes(), mode: 0o644, umask: 0 };
    service.create(caller(writer), node, how).map(|(attributes, opened)| (attributes.ino, opened.handle))
}

fn remove(service: &dyn FileService, name: &str) {
    service.unlink(ROOT_INO, name.as_bytes()).expect("deleting works on a full disk");
}

/// copy_file_range(2) from the file `source`.
fn clone_range(
    service: &dyn FileService,
    source: &str,
    at: usize,
    (ino, handle): (u64, u64),
    onto: usize,
    len_bytes: u64,
) -> Result<u32, Errno> {
    let from = service.lookup(ROOT_INO, source.as_bytes()).expect("is there").ino;
    let how = OpenOptions { read: true, ..OpenOptions::default() };
    let opened = service.open(Caller::default(), from, how).expect("opens").handle;
    let from_place = FilePlace { ino: from, handle: opened, offset: at as u64 };
    let copied =
        service.copy_range(Caller::default(), from_place, FilePlace { ino, handle, offset: onto as u64 }, len_bytes);
    service.release(from, opened);
    service.forget(from, 1);
    copied
}

/// Writes files until the disk was full a few times; returns those that were acknowledged whole.
fn fill(pool: &Pool, writer: u32, seed: u64, largest: u64) -> Files {
    let service = pool.service();
    let service: &dyn FileService = &*service;
    let mut random = Random::new(seed * 31 + u64::from(writer));
    let (mut files, mut refused) = (Files::new(), 0);
    let mut last: Option<String> = None;
    for number in 0.. {
        if refused >= 3 {
            break;
        }
        let name = format!("{seed} {writer} {number}");
        let (ino, handle) = match handle_of(service, writer, &name) {
            Ok(made) => made,
            Err(error) => {
                assert_eq!(error, Errno::ENOSPC, "{name}");
                refused += 1;
                continue;
            }
        };
        let bound = if random.below(3) == 0 { 9000 } else { largest };
        let len = 1 + random.below(bound) as usize;
        // Some of it is known already, to this writer or to others.
        let origin = if random.below(3) == 0 { random.below(4) } else { seed << 20 | u64::from(writer) << 16 | number };
        let mut data = content(origin, len);
        let write = |offset: u64, data: &[u8]| -> Result<(), Errno> {
            for (number, piece) in data.chunks(128 << 10).enumerate() {
                let at = offset + (number as u64 * (128 << 10));
                service.write(caller(writer), ino, handle, at, piece, WriteFlags::default())?;
            }
            Ok(())
        };
        let mut outcome = write(0, &data);
        if outcome.is_ok() && random.below(3) == 0 {
            for _ in 0..random.below(20) {
                let at = random.below(data.len() as u64) as usize;
                let patch = content(number ^ at as u64, (1 + random.below(5000) as usize).min(data.len() - at));
                outcome = write(at as u64, &patch);
                if outcome.is_err() {
                    break;
                }
                data[at..at + patch.len()].copy_from_slice(&patch);
            }
        }
        // A part of another file is shared, or copied if it is short.
        if outcome.is_ok()
            && random.below(3) == 0
            && let Some((source, bytes)) = last.as_ref().and_then(|name| files.get_key_value(name))
        {
            let at = random.below(bytes.len() as u64) as usize;
            let len = 1 + random.below((bytes.len() - at) as u64) as usize;
            let onto = random.below(data.len() as u64 + 1) as usize;
            outcome = clone_range(service, source, at, (ino, handle), onto, len as u64).map(|copied| {
                assert_eq!(copied as usize, len, "of {source} onto {name}");
                data.resize(data.len().max(onto + len), 0);
                data[onto..onto + len].copy_from_slice(&bytes[at..at + len]);
            });
        }
        let is_taken = outcome.is_ok();
        if is_taken && random.below(4) == 0 {
            // Every write was taken: so it can be made durable.
            service.fsync(ino, handle, false).unwrap_or_else(|error| panic!("fsync of {name}: {error:?}"));
        }
        let flushed = service.flush(ino, handle);
        service.release(ino, handle);
        service.forget(ino, 1);
        match outcome {
            Ok(()) => {
                flushed.unwrap_or_else(|error| panic!("{name} was taken, and its flush says {error:?}"));
                last = Some(name.clone());
                files.insert(name, data);
            }
            Err(error) => {
                assert_eq!(error, Errno::ENOSPC, "{name}");
                refused += 1;
                remove(service, &name);
            }
        }
    }
    files
}

fn assert_files(pool: &Pool, files: &Files, when: &str) {
    let service = pool.service();
    for (name, expected) in files {
        let attributes =
            service.lookup(ROOT_INO, name.as_bytes()).unwrap_or_else(|error| panic!("{when}: {name}: {error:?}"));
        let how = OpenOptions { read: true, ..OpenOptions::default() };
        let handle = service.open(Caller::default(), attributes.ino, how).expect("opens").handle;
        let mut bytes = Vec::new();
        service
            .read(attributes.ino, handle, 0, 1 << 30, &mut bytes)
            .unwrap_or_else(|error| panic!("{when}: {name}: {error:?}"));
        assert!(bytes == *expected, "{when}: {name} has other content");
        service.release(attributes.ino, handle);
        service.forget(attributes.ino, 1);
    }
}

fn assert_sound(pool: &Pool, when: &str) {
    let report = pool.check(&CheckOptions::default(), &NoProgress).expect("checks");
    assert_eq!(report.finding_count, 0, "{when}: {:?}", report.findings);
    assert_eq!(
        pool.core().committer.rounds_without_space(),
        0,
        "{when}: something was taken that could not be committed"
    );
}

/// Filled by several writers, crashed, half deleted, reclaimed, refilled.
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
        // Small files and much that describes them.
        let site = Site::two(2048 * MIB, (14 + Random::new(seed).below(8)) * MIB);
        cycles(&site, seed, 30_000, 30);
    }
}

fn write_at(pool: &Pool, ino: u64, handle: u64, offset: u64, data: &[u8]) -> Result<(), Errno> {
    pool.service().write(caller(1), ino, handle, offset, data, WriteFlags::default()).map(drop)
}

/// Each holds 16 MiB between its writes and a container, which no reading of the disk shows.
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
        service.fsync(*ino, *handle, false).expect("what was taken can be made durable");
    }
    assert!(len.iter().sum::<u64>() > 30 * MIB, "only {len:?} bytes were taken");
    assert_sound(&pool, "many writers");
}

#[test]
fn copies_of_what_is_stored_fit_a_disk_that_is_nearly_full() {
    let site = Site::one(96 * MIB);
    let pool = site.open();
    common::write(&pool, "original", &content(1, 16 << 20));
    // Until 8 MiB are left.
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
fn df_tells_what_can_be_written() {
    let site = Site::one(96 * MIB);
    let pool = site.open();
    let available = || pool.service().statistics().expect("tells").blocks_available * 4096;
    let promised = available();
    assert!(promised > 70 * MIB, "only {promised} bytes of 96 MiB");
    let mut written = 0;
    let (ino, handle) = handle_of(&*pool.service(), 1, "file").expect("creates");
    while write_at(&pool, ino, handle, written, &content(written, 1 << 20)).is_ok() {
        written += MIB;
    }
    pool.service().fsync(ino, handle, false).expect("syncs");
    assert!(written.abs_diff(promised) < 8 * MIB, "df promised {promised} bytes, {written} were written");
    let left = available();
    assert!(left < 4 * MIB, "df shows {left} bytes on a full disk");
    let statistics = pool.service().statistics().expect("tells");
    let used = (statistics.blocks - statistics.blocks_free) * 4096;
    assert!(used.abs_diff(site.data.used_bytes()) < MIB, "df shows {used} used");
    pool.service().release(ino, handle);
    pool.service().forget(ino, 1);
    remove(&*pool.service(), "file");
    pool.reclaim(&ReclaimOptions::default(), &NoProgress).expect("reclaims");
    let after = available();
    assert!(after + 2 * MIB > promised, "of {promised} bytes {after} came back");
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
        // Below what is used: it opens, takes nothing, and what is there can be read and deleted.
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

/// Somebody else took all the rest of the disk.
#[test]
fn a_disk_without_a_byte_left_loses_nothing() {
    let site = Site::one(64 * MIB);
    let pool = site.open();
    let files = fill(&pool, 1, 3, 2 * MIB);
    pool.sync().expect("syncs");
    let capacity = site.data.capacity_bytes();
    site.data.set_capacity(site.data.used_bytes());
    // What another one takes is seen by the next reading.
    std::thread::sleep(2 * dedupfs::config::SPACE_CHECK_INTERVAL);
    let made = handle_of(&*pool.service(), 1, "more");
    assert_eq!(made.err(), Some(Errno::ENOSPC));
    // Taken before, so a commit may fail; what was acknowledged stays.
    files.keys().take(2).for_each(|name| remove(&*pool.service(), name));
    let outcome = pool.sync();
    assert!(outcome.is_ok() || outcome.is_err_and(|error| error.is_no_space()));
    assert_files(&pool, &files.clone().into_iter().skip(2).collect(), "with no byte left");
    // Once there is space again all goes on, without a new mount.
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

/// cp asks for 2 GiB of whatever file; room is asked for what the file has, and for all of it that is copied.
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
    service.fsync(target.0, target.1, false).expect("syncs");
    let needed = |bytes: u64| {
        let demand = pool.core().cost.of_clone(bytes, dedupfs::config::CLONE_BYTES_MIN);
        demand.data_bytes + demand.meta_bytes
    };
    // Room for the tiny one, and less than for copying the other, or all that is copied at most.
    let wanted_bytes = needed(4096).midpoint(needed(900_000));
    let usable_bytes = pool.stats().expect("tells").roots[0].usable_bytes;
    site.data.set_capacity(site.data.capacity_bytes() - (usable_bytes - wanted_bytes));
    std::thread::sleep(2 * dedupfs::config::SPACE_CHECK_INTERVAL);
    assert_eq!(clone_range(&*service, "large", 0, target, 1, ASKED_BYTES), Err(Errno::ENOSPC));
    assert_eq!(clone_range(&*service, "tiny", 0, target, 1, ASKED_BYTES), Ok(4096));
    service.fsync(target.0, target.1, false).expect("what was taken can be made durable");
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
    // Whoever writes next finds that there is room.
    std::thread::sleep(2 * dedupfs::config::SPACE_CHECK_INTERVAL);
    common::write(&pool, "more", b"more");
    assert!(is_changed_by_reading(), "with room again");
    service.forget(ino, 1);
    assert_sound(&pool, "times of access");
}

/// Figures of a pool that is only read are its disk's: what is kept in memory has a limit of its own.
#[test]
fn regression_a_pool_that_is_only_read_shows_the_disk_and_not_the_memory() {
    let site = Site::one(4096 * MIB);
    let pool = site.open();
    common::write(&pool, "file", &content(1, 1 << 20));
    pool.close().expect("closes");
    drop(pool);
    let pool = site.open_with(&PoolOptions { read_only: true, ..options() }).expect("opens");
    let roots = pool.stats().expect("tells").roots;
    let free_bytes = site.data.capacity_bytes() - site.data.used_bytes();
    for root in &roots {
        assert_eq!((root.free_bytes, root.total_bytes), (free_bytes, 4096 * MIB), "{root:?}");
        assert!(root.usable_bytes > 3000 * MIB && root.level == Level::Enough, "{root:?}");
    }
    let statistics = pool.service().statistics().expect("tells");
    assert!(statistics.blocks_available * 4096 > 3000 * MIB, "{statistics:?}");
    pool.close().expect("closes");
}

/// Others took the whole disk, the reserve as well: what must be freed, and whose it is, is said.
#[test]
fn regression_reclaiming_without_a_byte_left_says_what_must_be_freed() {
    let site = Site::one(256 * MIB);
    let pool = site.open();
    for number in 0..8 {
        common::write(&pool, &format!("file {number}"), &content(number, 1 << 20));
    }
    pool.sync().expect("syncs");
    (0..7).for_each(|number| remove(&*pool.service(), &format!("file {number}")));
    let capacity = site.data.capacity_bytes();
    site.data.set_capacity(site.data.used_bytes());
    std::thread::sleep(2 * dedupfs::config::SPACE_CHECK_INTERVAL);
    if let Err(error) = pool.reclaim(&ReclaimOptions::default(), &NoProgress) {
        assert!(error.is_no_space(), "{error}");
        let said = error.to_string();
        assert!(said.contains("0.0 MiB left") && said.contains("free ") && said.contains("MiB there"), "{said}");
    }
    assert!(pool.notice().is_some_and(|notice| notice.contains("can be written: the disk of")), "{:?}", pool.notice());
    site.data.set_capacity(capacity);
    pool.reclaim(&ReclaimOptions::default(), &NoProgress).expect("reclaims");
    assert!(common::read(&pool, "file 7").expect("reads") == content(7, 1 << 20));
    assert_eq!(
        pool.check(&CheckOptions { read_data: true }, &NoProgress).expect("checks").findings,
        Vec::<String>::new()
    );
}

/// A limit below what must stay free is told with what to do, and not as thousands of percent.
#[test]
fn regression_a_limit_that_lets_nothing_in_is_told_at_the_mount() {
    let site = Site::two(1024 * MIB, 256 * MIB);
    let pool = site.open();
    common::write(&pool, "file", &content(1, 4 << 20));
    pool.close().expect("closes");
    drop(pool);
    let notice = |limits: SpaceLimits| {
        let pool = site.open_with(&PoolOptions { limits, ..options() }).expect("opens");
        let notice = pool.notice();
        pool.close().expect("closes");
        notice
    };
    assert_eq!(notice(SpaceLimits::default()), None);
    let small = notice(SpaceLimits { data_bytes: Some(MIB), meta_bytes: Some(MIB) }).expect("is told");
    for words in ["nothing can be written: data_limit is 1.0 MiB", "meta_limit is 1.0 MiB", "raise it to more than"] {
        assert!(small.contains(words), "{small}");
    }
    let reached = notice(SpaceLimits { data_bytes: Some(6 * MIB), meta_bytes: None }).expect("is told");
    assert!(reached.contains("data_limit is 6.0 MiB") && reached.contains("raise the limit, or delete"), "{reached}");
}
