//! The index's disk hangs while rows are counted: syncs go on, up to a bound, and rows counted late are counted right.
//!
//! No times are measured. The disk hangs for as long as a test wants.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use dedupfs::EngineError;
use dedupfs::Service;
use dedupfs::check::CheckOptions;
use dedupfs::reclaim::ReclaimOptions;
use dedupfs::{NoProgress, OpenOptions as PoolOptions, Pool, format_on};
use dedupfs_service::{Errno, FileService, NewNode, ROOT_INO, WriteFlags};
use dedupfs_store::StoreError;
use dedupfs_store::device::observed::{Call, ObservedDevice, Observer};
use dedupfs_store::device::{Device, MemoryDevice};
use dedupfs_store::superblock::PoolProperties;

use crate::tests::held::gate::Gate;
use crate::tests::held::site::{CALLER, File, READ_WRITE, SIZE_BYTES, content, listen};

/// Longer than any step that does not hang.
const PATIENCE: Duration = Duration::from_secs(45);
const ALL: ReclaimOptions = ReclaimOptions::below(100);

/// Only counting needs the cells of chunks that another session stored: no test looks them up by name.
pub(super) fn counts(call: &Call<'_>) -> bool {
    call.read().is_some_and(|(path, ..)| path.starts_with("index/chunks"))
}

fn reads_content(call: &Call<'_>) -> bool {
    call.read().is_some_and(|(path, ..)| path.starts_with("containers/"))
}

fn create(service: &Service, name: &str) -> File {
    let node = NewNode { parent: ROOT_INO, name: name.as_bytes(), mode: 0o644, umask: 0 };
    let (made, opened) = service.create(CALLER, node, READ_WRITE).expect("creates");
    File { ino: made.ino, handle: opened.handle }
}

fn write(service: &Service, file: File, data: &[u8]) {
    service.write(CALLER, file.ino, file.handle, 0, data, WriteFlags::default()).expect("writes");
}

fn synced(service: &Service, name: &str, data: &[u8]) {
    let file = create(service, name);
    write(service, file, data);
    service.fsync(file.ino, file.handle).expect("syncs");
    service.release(file.ino, file.handle);
}

pub(super) fn open(device: &Arc<dyn Device>) -> Arc<Pool> {
    let options = PoolOptions { commit_interval: Duration::from_secs(3600), ..PoolOptions::default() };
    Pool::open_on(device, device, Vec::new(), &options, &NoProgress).expect("opens")
}

/// Makes a device with a pool that has a file `gone` and, in the same containers, a file `kept`. Their chunks are in
/// sealed tankers, and in no cache.
pub(super) fn prepared(observer: Arc<dyn Observer>) -> Arc<dyn Device> {
    prepared_with(observer, 64)
}

/// The same, with tankers of so many cells.
pub(super) fn prepared_with(observer: Arc<dyn Observer>, tanker_cells: u32) -> Arc<dyn Device> {
    listen();
    let device: Arc<dyn Device> = Arc::new(ObservedDevice::new(Arc::new(MemoryDevice::new()), observer));
    let properties =
        PoolProperties { chunk_size_bytes: 4096, tanker_cells, tanker_buckets: 4, ..PoolProperties::default() };
    format_on(&device, &device, b".".to_vec(), &properties, (0, 0)).expect("formats");
    let pool = open(&device);
    let service = pool.service();
    let (gone, kept) = (create(&service, "gone"), create(&service, "kept"));
    let data = [content(1), content(2)];
    for (piece, offset) in (0..SIZE_BYTES).step_by(256 << 10).enumerate() {
        for (file, data) in [gone, kept].into_iter().zip(&data) {
            let part = &data[offset..SIZE_BYTES.min(offset + (256 << 10))];
            service.write(CALLER, file.ino, file.handle, offset as u64, part, WriteFlags::default()).expect("writes");
        }
        assert!(piece < 100);
    }
    service.release(gone.ino, gone.handle);
    service.release(kept.ino, kept.handle);
    pool.close().expect("closes");
    device
}

#[track_caller]
fn check(pool: &Pool) {
    let report = pool.check(&CheckOptions { read_data: true, ..CheckOptions::default() }, &NoProgress).expect("checks");
    assert!(report.is_clean(), "{:#?}", report.findings);
}

/// Closes the pool. It must be sound, and the next mount must have nothing to recover and find it sound, too.
#[track_caller]
pub(super) fn end(pool: Arc<Pool>, device: &Arc<dyn Device>) {
    pool.close().expect("closes");
    drop(pool);
    let pool = open(device);
    assert!(!pool.recovery().is_needed(), "{}", pool.recovery());
    check(&pool);
    pool.close().expect("closes");
}

#[test]
fn syncs_go_on_while_counting_hangs_until_the_bound_is_reached() {
    let gate = Arc::new(Gate::default());
    let device = prepared(gate.clone());
    let pool = open(&device);
    let (service, committer) = (pool.service(), &pool.core().committer);
    let most = committer.backlog_changes_max();
    // Each makes two changes: more than are ever behind.
    let rewrites = most;
    let written = AtomicU64::new(0);
    service.unlink(ROOT_INO, b"gone").expect("unlinks");
    let closed = gate.close(1, counts);
    std::thread::scope(|scope| {
        let reclaiming = scope.spawn(|| pool.reclaim(&ALL, &NoProgress).expect("reclaims"));
        closed.wait();
        for number in 0..20 {
            closed.goes_on("a sync", || synced(&service, &format!("{number}"), format!("file {number}").as_bytes()));
        }
        assert!(committer.backlog_changes() > 20, "what was synced is counted: this test proves nothing");
        let rewriting = scope.spawn(|| {
            let file = create(&service, "rewritten");
            for number in 0..rewrites {
                write(&service, file, if number % 2 == 0 { b"even" } else { b"odd!" });
                service.flush(file.ino, file.handle).expect("publishes");
                if number % 64 == 63 {
                    service.fsync(file.ino, file.handle).expect("syncs");
                }
                written.fetch_add(1, Ordering::Relaxed);
            }
            service.release(file.ino, file.handle);
        });
        // Waits until it gets no further.
        let mut before = u64::MAX;
        while committer.backlog_changes() < most || written.load(Ordering::Relaxed) != before {
            assert!(!rewriting.is_finished(), "nobody waits: the backlog has no bound");
            before = written.load(Ordering::Relaxed);
            std::thread::sleep(Duration::from_secs(1));
        }
        assert!(before < rewrites, "nobody waits: this test proves nothing");
        // A row has half as many at most, plus one for each thread that has not been told to wait yet.
        assert!(committer.backlog_changes() <= most + most / 2 + 2 * 64, "{}", committer.backlog_changes());
        closed.goes_on("a read", || {
            let kept = File::open(&service, "kept");
            let mut read = Vec::new();
            service.read(kept.ino, kept.handle, 0, 1000, &mut read).expect("reads");
            assert!(read == content(2)[..1000]);
            service.release(kept.ino, kept.handle);
        });
        drop(closed);
        rewriting.join().expect("ends");
        assert!(reclaiming.join().expect("ends").nodes_freed > 0);
    });
    pool.stats().expect("settles");
    assert_eq!(committer.backlog_changes(), 0);
    check(&pool);
    drop(service);
    end(pool, &device);
}

/// Rows that were acknowledged while counting hung are counted before the pool is closed.
#[test]
fn closing_counts_what_is_behind() {
    let gate = Arc::new(Gate::default());
    let device = prepared(gate.clone());
    let pool = open(&device);
    let service = pool.service();
    service.unlink(ROOT_INO, b"gone").expect("unlinks");
    let closed = gate.close(1, counts);
    std::thread::scope(|scope| {
        let reclaiming = scope.spawn(|| pool.reclaim(&ALL, &NoProgress));
        closed.wait();
        closed.goes_on("a sync", || synced(&service, "synced", b"some bytes"));
        let closing = scope.spawn(|| pool.close());
        while !pool.core().gate.is_closing() {
            std::thread::yield_now();
        }
        drop(closed);
        closing.join().expect("ends").expect("closes");
        assert!(reclaiming.join().expect("ends").expect("is stopped, or has ended").nodes_freed > 0);
    });
    assert_eq!(pool.core().committer.backlog_changes(), 0);
    drop(service);
    end(pool, &device);
}

/// Closing stops a running reclaim and waits for it. Otherwise the next mount would have to recover the rows that it
/// commits behind the last checkpoint.
#[test]
fn regression_closing_waits_for_a_reclaim() {
    let gate = Arc::new(Gate::default());
    let device = prepared(gate.clone());
    let pool = open(&device);
    let service = pool.service();
    service.unlink(ROOT_INO, b"gone").expect("unlinks");
    let closed = gate.close(1, reads_content);
    let report = std::thread::scope(|scope| {
        let reclaiming = scope.spawn(|| pool.reclaim(&ALL, &NoProgress));
        closed.wait();
        let closing = scope.spawn(|| pool.close());
        while !pool.core().gate.is_closing() {
            std::thread::yield_now();
        }
        // Longer than closing takes without waiting.
        std::thread::sleep(Duration::from_secs(2));
        let has_waited = !closing.is_finished();
        drop(closed);
        closing.join().expect("ends").expect("closes");
        let report = reclaiming.join().expect("ends");
        assert!(has_waited, "the pool was closed beside a reclaim: {report:?}");
        report.expect("is stopped")
    });
    assert!(report.stopped.is_some(), "{report:?}");
    assert!(pool.reclaim(&ALL, &NoProgress).is_err(), "it is closed");
    drop(service);
    end(pool, &device);
    // The next run does the rest.
    let pool = open(&device);
    assert!(pool.reclaim(&ALL, &NoProgress).expect("reclaims").containers_freed > 0);
    end(pool, &device);
}

/// A reclaim is stopped and does not keep the pool writable; the next one goes on when the pool is writable again.
#[test]
fn becoming_read_only_waits_for_a_reclaim() {
    let gate = Arc::new(Gate::default());
    let device = prepared(gate.clone());
    let pool = open(&device);
    pool.service().unlink(ROOT_INO, b"gone").expect("unlinks");
    let closed = gate.close(1, reads_content);
    std::thread::scope(|scope| {
        let reclaiming = scope.spawn(|| pool.reclaim(&ALL, &NoProgress).expect("is stopped"));
        closed.wait();
        let pausing = scope.spawn(|| pool.set_read_only());
        std::thread::sleep(Duration::from_millis(200));
        drop(closed);
        pausing.join().expect("ends").expect("becomes read-only");
        assert!(reclaiming.join().expect("ends").stopped.is_some());
    });
    assert!(matches!(pool.reclaim(&ALL, &NoProgress), Err(EngineError::Store(_))), "it is read-only");
    pool.set_writable().expect("becomes writable");
    let report = pool.reclaim(&ALL, &NoProgress).expect("reclaims");
    assert!(report.stopped.is_none() && report.containers_freed > 0, "{report:?}");
    end(pool, &device);
}

/// Refuses the reads of counting once it is switched on.
#[derive(Default)]
struct Refuses(AtomicBool);

impl fmt::Debug for Refuses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Refuses")
    }
}

impl Observer for Refuses {
    fn around(
        &self,
        call: &Call<'_>,
        perform: &mut dyn FnMut() -> dedupfs_store::Result<()>,
    ) -> dedupfs_store::Result<()> {
        if self.0.load(Ordering::Acquire) && counts(call) {
            return Err(StoreError::from_io("read", "index/chunks", std::io::Error::other("refused")));
        }
        perform()
    }
}

/// The pool takes no more changes, no request waits for counting for ever, and the next mount counts the remaining
/// rows.
#[test]
fn a_failure_of_counting_ends_all_waits() {
    let refuses = Arc::new(Refuses::default());
    let device = prepared(refuses.clone());
    let pool = open(&device);
    let service = pool.service();
    service.unlink(ROOT_INO, b"gone").expect("unlinks");
    refuses.0.store(true, Ordering::Release);
    let (told, hears) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let reclaiming = scope.spawn(|| pool.reclaim(&ALL, &NoProgress));
        let syncing = scope.spawn(|| {
            let sync = |number: u64| {
                let name = format!("{number}");
                let node = NewNode { parent: ROOT_INO, name: name.as_bytes(), mode: 0o644, umask: 0 };
                let (made, opened) = service.create(CALLER, node, READ_WRITE)?;
                service.write(CALLER, made.ino, opened.handle, 0, b"some bytes", WriteFlags::default())?;
                let synced = service.fsync(made.ino, opened.handle);
                service.release(made.ino, opened.handle);
                synced
            };
            let refused = (0..).find_map(|number| sync(number).err());
            told.send(refused).expect("somebody listens");
        });
        let refused = hears.recv_timeout(PATIENCE).expect("the pool does not turn read-only");
        // The error of the round that found the failure, or of a later request.
        assert!([Some(Errno::EIO), Some(Errno::EROFS)].contains(&refused), "{refused:?}");
        syncing.join().expect("ends");
        assert!(reclaiming.join().expect("ends").is_err());
    });
    assert!(pool.stats().is_err() && pool.core().check_failure().is_err());
    // The last row may have been made durable a moment ago.
    let begun = Instant::now();
    while pool.core().committer.backlog_changes() > 0 {
        assert!(begun.elapsed() < PATIENCE, "whoever waits for less waits for ever");
        std::thread::yield_now();
    }
    assert!(pool.close().is_err());
    drop((service, pool));
    refuses.0.store(false, Ordering::Release);
    let pool = open(&device);
    assert!(pool.recovery().rows_replayed > 0);
    check(&pool);
    end(pool, &device);
}
