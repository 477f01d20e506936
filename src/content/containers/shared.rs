//! The part of a store that its jobs share: compression, writing, accounting, and the remembered failure.
//!
//! 1. A cut region becomes a job on the workers: it is compressed, then placed in its container.
//! 2. A container is queued for the store's own writer threads when it is sealed, or when at least
//!    [`WRITE_PIECE_BYTES`] are placed and not written. The writers overlap the disk with the workers' compression.
//!    `write_queued` allows one job for each container.
//! 3. Raw bytes being compressed and placed bytes not written count as *in flight*, and so does the memory of open
//!    containers beyond a region for each of [`OPEN_APART`].
//!
//! Two kinds of failure (invariant I-7):
//! - A failed *write* loses nothing: the frames stay in memory and the next write tries again. It is remembered until a
//!   write succeeds, so that writers get the error instead of waiting for room for ever.
//! - A failed *sync*, a failed compression or a panic *poisons* the store: every later append and `flush` returns that
//!   error.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use dedupfs_base::{EngineError, Gauge, ReadOnly, Result};
use dedupfs_store::container::{SlotAddress, SlotFiles, encode_region};
use dedupfs_store::profile::{self, Component};
use dedupfs_store::{ContainerId, ContainerRecord, waiting};
use dedupfs_sync::channel::Sender;
use dedupfs_sync::clock::Instant;
use dedupfs_sync::{Condvar, Mutex, OnceLock, RwLock};

use super::ContainerOptions;
use super::buffers::{RegionPool, WriteBuffers};
use super::damaged::Suspect;
use super::directory::{Directory, KnownContainer};
use super::forwarding::Forwarding;
use super::open_container::{Batch, Cut, Goal, Mark, OpenContainer};
use super::prefetch::Prefetching;
use super::read::Caches;
use super::seeks::Seeks;
use super::stats::Counters;
use super::streams::StreamId;
use crate::workers::WorkerPool;

/// Least bytes of a write that is not forced: large writes are 3 to 10 times faster.
pub(super) const WRITE_PIECE_BYTES: u32 = 1 << 20;

/// So many open containers may fill a region each, beside the bytes in flight.
const OPEN_APART: usize = 16;

/// Interval at which a thread that waits for room looks for something to write itself.
const ROOM_RECHECK: Duration = Duration::from_millis(10);

pub(super) struct Shared {
    pub(super) options: ContainerOptions,
    pub(super) slots: SlotFiles,
    pub(super) workers: Arc<WorkerPool>,
    pub(super) writers: WorkerPool,
    /// Third in the lock order. Every lookup reads it; it is written once or twice for each container.
    pub(super) directory: RwLock<Directory>,
    pub(super) caches: Arc<Caches>,
    pub(super) prefetching: Prefetching,
    pub(super) forwarding: Forwarding,
    pub(super) seeks: Seeks,
    /// The last place of each stream whose containers lie in a row. A short lock, taken alone.
    rows: Mutex<HashMap<StreamId, SlotAddress>>,
    pub(super) counters: Counters,
    pub(super) buffers: Arc<RegionPool>,
    pub(super) write_buffers: WriteBuffers,
    started: Instant,
    compressing_bytes: AtomicU64,
    /// Signed: a writer may subtract before the thread that placed the bytes adds them.
    pending_bytes: AtomicI64,
    /// See [`super::ContainerStore::owed_bytes`].
    pub(super) owed: Arc<Gauge>,
    /// Memory of the containers that take chunks, at most [`open_bytes_max`](Self::open_bytes_max).
    pub(super) opened: Arc<Gauge>,
    /// Waiters for room sleep here; last in the lock order.
    room: Mutex<()>,
    room_changed: Condvar,
    write_failure: Mutex<Option<EngineError>>,
    poisoned: OnceLock<EngineError>,
    /// Whether any container is damaged: spares readers of sound pools a lookup.
    pub(super) any_damaged: AtomicBool,
    pub(super) suspects: OnceLock<Sender<Suspect>>,
}

/// Poisons the store if the job that holds it unwinds.
struct PoisonOnPanic<'a> {
    shared: &'a Shared,
    container: &'a OpenContainer,
}

impl Drop for PoisonOnPanic<'_> {
    fn drop(&mut self) {
        if dedupfs_sync::thread::panicking() {
            self.shared.poison(ReadOnly::WorkerPanicked.into());
            self.container.wake();
        }
    }
}

impl Shared {
    pub(super) fn new(
        options: ContainerOptions,
        slots: SlotFiles,
        workers: Arc<WorkerPool>,
        writers: WorkerPool,
        caches: Arc<Caches>,
        closed: &[ContainerRecord],
    ) -> Self {
        let region_bytes = options.region_raw_bytes.max(1);
        // Regions being filled and compressed at once; further buffers are freed.
        let kept = options.open_limit.min(OPEN_APART) + workers.threads() * 12 + 4;
        Self {
            caches,
            prefetching: Prefetching::new(&options),
            forwarding: Forwarding::default(),
            buffers: RegionPool::new(region_bytes as usize, kept),
            write_buffers: WriteBuffers::new(options.in_flight_limit_bytes),
            options,
            slots,
            workers,
            writers,
            directory: RwLock::new(Directory::of(closed)),
            seeks: Seeks::default(),
            rows: Mutex::default(),
            counters: Counters::default(),
            started: Instant::now(),
            compressing_bytes: AtomicU64::new(0),
            pending_bytes: AtomicI64::new(0),
            owed: Arc::default(),
            opened: Arc::default(),
            room: Mutex::new(()),
            room_changed: Condvar::new(),
            write_failure: Mutex::new(None),
            poisoned: OnceLock::new(),
            any_damaged: AtomicBool::new(false),
            suspects: OnceLock::new(),
        }
    }

    pub(super) fn now_ms(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    pub(super) fn known(&self, container: ContainerId) -> Option<KnownContainer> {
        self.directory.read().get(container)
    }

    pub(super) fn is_known(&self, container: ContainerId) -> bool {
        self.directory.read().has(container)
    }

    /// Returns the containers that are not closed, in order of id.
    pub(super) fn open_containers(&self) -> Vec<Arc<OpenContainer>> {
        let mut open: Vec<_> = self.directory.read().open().cloned().collect();
        open.sort_by_key(|container| container.id);
        open
    }

    pub(super) fn in_flight_bytes(&self) -> u64 {
        let pending = self.pending_bytes.load(Ordering::Relaxed);
        let opened = self.opened.bytes().saturating_sub(self.open_apart_bytes());
        self.compressing_bytes.load(Ordering::Relaxed) + u64::try_from(pending).unwrap_or(0) + opened
    }

    /// Memory of open containers that stands beside the bytes in flight.
    pub(super) fn open_apart_bytes(&self) -> u64 {
        OPEN_APART as u64 * u64::from(self.options.region_raw_bytes)
    }

    /// Bound of the memory of open containers. They may use half of the limit in flight, so that there is always room to write.
    pub(super) fn open_bytes_max(&self) -> u64 {
        self.open_apart_bytes().max(self.options.in_flight_limit_bytes / 2)
    }

    /// Containers that may be open: as many as that memory has room for, if each holds a quarter of a region and a usual table is no larger.
    pub(super) fn open_max(&self) -> usize {
        let table_bytes = u64::from(self.options.region_raw_bytes / 4).max(1);
        let room_for = usize::try_from(self.open_bytes_max() / table_bytes).unwrap_or(usize::MAX);
        self.options.open_limit.min(room_for)
    }

    /// Remembers the first failure that cannot be mended; see the module's head.
    pub(super) fn poison(&self, error: EngineError) {
        tracing::error!(%error, "containers can no longer be written");
        // Only the first error counts: later ones follow from it.
        let _ = self.poisoned.set(error);
        self.notify_room();
    }

    /// Lets no more writes begin and waits for the current ones.
    pub(super) fn stop(&self) {
        // An earlier failure says more.
        let _failed_before = self.poisoned.set(ReadOnly::Closed.into());
        self.notify_room();
        for container in self.open_containers() {
            container.wake();
            drop(container.lock_writer());
        }
    }

    pub(super) fn is_poisoned(&self) -> bool {
        self.poisoned.get().is_some()
    }

    pub(super) fn check_poison(&self) -> Result<()> {
        self.poisoned.get().map_or(Ok(()), |error| Err(error.clone()))
    }

    /// The failure of the last write, if frames still wait because of it.
    pub(super) fn write_failure(&self) -> Option<EngineError> {
        self.write_failure.lock().clone()
    }

    /// Has the region compressed and placed by a worker, or by this thread when all are busy.
    pub(super) fn submit_compression(self: &Arc<Self>, container: &Arc<OpenContainer>, cut: Cut) {
        self.compressing_bytes.fetch_add(cut.raw.len() as u64, Ordering::Relaxed);
        let (shared, container) = (Arc::clone(self), Arc::clone(container));
        self.workers.submit(Box::new(move || {
            let guard = PoisonOnPanic { shared: &shared, container: &container };
            if let Err(error) = shared.compress(&container, cut) {
                shared.poison(error);
                container.wake();
            }
            drop(guard);
            shared.schedule_write(&container);
        }));
    }

    fn compress(&self, container: &OpenContainer, cut: Cut) -> Result<()> {
        let Cut { number, entries, raw } = cut;
        let raw_bytes = raw.len() as u64;
        let options = &self.options;
        let timed = profile::of(Component::Compression);
        let encoded = encode_region(&options.pool, container.id, options.kind, entries, &raw, options.compression)?;
        drop(timed);
        let grown = container.place(number, encoded)?;
        self.add_pending(grown);
        self.compressing_bytes.fetch_sub(raw_bytes, Ordering::Relaxed);
        self.notify_room();
        Ok(())
    }

    pub(super) fn add_pending(&self, bytes: u64) {
        self.pending_bytes.fetch_add(bytes.cast_signed(), Ordering::Relaxed);
    }

    /// Queues a write if it is worthwhile and none is queued.
    pub(super) fn schedule_write(self: &Arc<Self>, container: &Arc<OpenContainer>) {
        if !container.wants_write(WRITE_PIECE_BYTES) || container.write_queued.swap(true, Ordering::AcqRel) {
            return;
        }
        let (shared, target) = (Arc::clone(self), Arc::clone(container));
        let is_queued = self.writers.try_submit(Box::new(move || {
            let guard = PoisonOnPanic { shared: &shared, container: &target };
            loop {
                let mut is_written = true;
                while is_written && target.wants_write(WRITE_PIECE_BYTES) {
                    is_written = shared.write_out(&target, Goal::WholeBlocks).is_ok();
                }
                // Lower the flag only now: a second writer would wait for this one and then write few bytes. A region
                // placed after the last check either finds the flag down, or the check below finds it.
                target.write_queued.store(false, Ordering::Release);
                let goes_on = is_written && target.wants_write(WRITE_PIECE_BYTES);
                if !goes_on || target.write_queued.swap(true, Ordering::AcqRel) {
                    break;
                }
            }
            drop(guard);
        }));
        if !is_queued {
            // The next placed region, `flush` or a waiter for room retries.
            container.write_queued.store(false, Ordering::Release);
        }
    }

    /// Writes the placed bytes of the container. An error loses nothing: the next call writes the same bytes.
    pub(super) fn write_out(&self, container: &OpenContainer, goal: Goal) -> Result<Option<Mark>> {
        let writer = container.lock_writer();
        // Checked under the lock: `stop` waits for the holders of this lock.
        self.check_poison()?;
        let (batch, padding, mark) = container.begin_write(goal, &writer);
        self.add_pending(padding);
        let Some(batch) = batch else { return Ok(mark) };
        let result = container
            .address_or(&writer, || self.allocate(container.row))
            .and_then(|address| self.write_batch(address, &batch));
        match result {
            Ok(()) => {
                *self.write_failure.lock() = None;
                let written = container.finish_write(batch.range.end, &writer);
                self.pending_bytes.fetch_sub(written.cast_signed(), Ordering::Relaxed);
                self.counters.written_bytes.fetch_add(written, Ordering::Relaxed);
                self.notify_room();
                Ok(mark)
            }
            Err(error) => {
                // The name of a new slot file may be lost, and with it everything written to the file from now on.
                if error.is_failed_sync() {
                    self.poison(error.clone());
                    container.wake();
                }
                *self.write_failure.lock() = Some(error.clone());
                self.notify_room();
                Err(error)
            }
        }
    }

    fn allocate(&self, row: Option<StreamId>) -> Result<SlotAddress> {
        let Some(stream) = row else { return Ok(self.slots.allocate()?) };
        let last = self.rows.lock().get(&stream).copied();
        let address = self.slots.allocate_in_row(last)?;
        self.rows.lock().insert(stream, address);
        Ok(address)
    }

    fn write_batch(&self, address: SlotAddress, batch: &Batch) -> Result<()> {
        let _timed = profile::of(Component::ContainerWrites);
        let mut buffer = self.write_buffers.take(self.options.container_bytes as usize);
        batch.gather(&mut |bytes| buffer.extend_from_slice(bytes));
        let result = self.slots.write(address, batch.range.start, &buffer);
        self.write_buffers.put(buffer);
        Ok(result?)
    }

    fn notify_room(&self) {
        // The lock orders this after a waiter's check; it is contended only when there are waiters.
        drop(self.room.lock());
        self.room_changed.notify_all();
    }

    /// Waits until at most the limit is in flight. Writes itself if it can relieve a container.
    pub(super) fn wait_for_room(&self) -> Result<()> {
        let limit = self.options.in_flight_limit_bytes;
        loop {
            self.check_poison()?;
            if self.in_flight_bytes() <= limit {
                return Ok(());
            }
            let is_relieved = self.relieve()?;
            if is_relieved || self.in_flight_bytes() <= limit {
                continue;
            }
            // A worker must not wait for jobs that may be queued behind it; the jobs it submitted may wait there too.
            if WorkerPool::on_worker() || self.compressing_bytes.load(Ordering::Relaxed) == 0 {
                return Ok(());
            }
            waiting::announce();
            let mut room = self.room.lock();
            if self.in_flight_bytes() > limit && !self.is_poisoned() {
                let _waits = profile::of(Component::Room);
                self.room_changed.wait_for(&mut room, ROOM_RECHECK);
            }
        }
    }

    /// Writes the whole blocks of the container with the most pending bytes. Returns `false` if that wrote nothing.
    fn relieve(&self) -> Result<bool> {
        let open = self.open_containers();
        let most = open.iter().map(|container| (container.pending_bytes(), container)).max_by_key(|(bytes, _)| *bytes);
        match most {
            Some((bytes, container)) if bytes >= super::open_container::align(1) => {
                let before = container.written_bytes();
                self.write_out(container, Goal::WholeBlocks)?;
                Ok(container.written_bytes() > before)
            }
            _ => Ok(false),
        }
    }
}
