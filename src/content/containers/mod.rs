//! Containers in stream order: stores chunks and recipe nodes, reads them, makes them durable and frees them.
//!
//! There is one [`ContainerStore`] for each kind: data on the data root, recipes on the meta root. The way of a chunk:
//!
//! 1. [`append`](ContainerStore::append) copies it into the filling region of its stream's open container ([`streams`],
//!    [`open_container`]) and returns the container's id at once. From then on it can be read.
//! 2. The workers compress full regions, which are placed one after another. The store's own threads write large pieces
//!    ([`shared`]). A container that could exceed its slot with one more chunk is sealed with a table.
//! 3. [`write_out`](ContainerStore::write_out()) writes all containers out and reports records for the namespace ([`mod@write_out`]).
//! 4. [`read_chunk`](ContainerStore::read_chunk) finds the chunk in memory or on disk ([`read`]). [`prefetch`] loads
//!    regions ahead; [`sweep`] reads what many files need in the order of the disk. Notes lead to the copies of what was in an emptied container ([`forwarding`]).
//! 5. [`forget`](ContainerStore::forget) and [`free`](ContainerStore::free) end a container; the slot is free after the namespace has
//!    durably forgotten it.
//!
//! [`directory`] has the records of all containers.
//!
//! Recovery: the namespace's records say how far each container is valid. Unsealed containers are never appended to
//! again. Slots without a record are free.
//!
//! Lock order (a thread that holds one takes only later ones; each is short unless said otherwise): `writing_out` (held
//! while containers are written out) -> `streams` -> `directory` -> a container's `writer` (held across writes of that
//! container) -> a container's `state` -> `room` and the locks inside caches and pools. Only `writing_out` and `writer`
//! are held across I/O. Only `writing_out` is held while a job is submitted.
//!
//! Cost: appending is one copy and one hash insertion for each chunk. Unique data is written once, in pieces of at
//! least 1 MiB unless it is written out earlier. Writing out adds at most 4 KiB of padding and one small region for
//! each open container.

use std::sync::Arc;
use std::sync::atomic::Ordering;

#[cfg(test)]
use dedupfs_base::EngineError;
use dedupfs_base::Result;
use dedupfs_store::container::{Compression, REGION_RAW_BYTES_MAX, SlotAddress, SlotFiles, Table, toc_bytes_bound};
use dedupfs_store::frame::{FRAME_HEADER_BYTES, FrameHeader, FrameKind};
use dedupfs_store::profile::{self, Component};
use dedupfs_store::{ContainerId, ContainerKind, ContainerRecord, Fingerprint, PoolId, StoreError};
use dedupfs_sync::Mutex;

use crate::workers::WorkerPool;

mod buffers;
mod damaged;
mod directory;
mod forwarding;
mod inspect;
mod open_container;
mod prefetch;
mod read;
mod seeks;
mod shared;
mod stats;
mod streams;
mod sweep;
mod verify;
mod write_out;

#[cfg(test)]
mod tests;

pub(crate) use buffers::ChunkData;
pub use damaged::Suspect;
pub(crate) use directory::ContainerSums;
pub use forwarding::{ForwardingNote, NOTES_MAX as FORWARDING_NOTES_MAX};
pub use inspect::{Inspection, WholeContainer};
pub(crate) use prefetch::Asking;
pub use read::Caches;
pub(crate) use read::reads_of_this_thread;
pub(crate) use stats::ContainerStats;
pub use streams::{ACTIVE_STREAM, RECLAIM_STREAM, StreamId};
pub(crate) use sweep::SweptContainer;
pub use sweep::Wanted;
pub use write_out::Extended;

use directory::KnownContainer;
use open_container::{Limits, OpenContainer};
use shared::Shared;
use streams::Streams;

/// Makes ids for new containers. It is called under a lock: it must be quick and must not call back.
pub(crate) type ContainerIds = Arc<dyn Fn() -> Result<ContainerId> + Send + Sync>;

/// Threads of a store that only write. There are enough that some wait for the disk while others wait for a core.
const WRITER_THREADS: usize = 4;
/// Queued writes at most; each is one container. A write that does not fit is left to a later attempt.
const QUEUED_WRITES: usize = 64;
/// Regions smaller than this part of a full one are not cut early: their frames would hardly pay.
const SMALL_REGION: u64 = 16;
/// A failed disk stops appends when this multiple of the in-flight limit waits for it.
const FAILED_LIMIT_FACTOR: u64 = 2;

/// The settings of a store.
#[derive(Clone, Debug)]
pub struct ContainerOptions {
    /// The pool, carried by every frame.
    pub pool: PoolId,
    /// The kind of the containers.
    pub kind: ContainerKind,
    /// The compression of regions.
    pub compression: Compression,
    /// Bytes of a container's slot; a multiple of 4096.
    pub container_bytes: u32,
    /// Raw bytes of a region; a larger chunk gets a region of its own.
    pub region_raw_bytes: u32,
    /// Limit of containers that take chunks at the same time; memory may allow fewer.
    pub open_limit: usize,
    /// Bytes in flight above which [`ContainerStore::wait_for_room`] waits.
    pub in_flight_limit_bytes: u64,
    /// Bytes of decompressed regions in the store's own cache. Of these, or of its share of a common cache, half are read ahead at a
    /// time.
    pub region_cache_bytes: u64,
    /// Bytes of tables of closed containers in the store's own cache.
    pub table_cache_bytes: u64,
}

/// All containers of one kind.
pub struct ContainerStore {
    shared: Arc<Shared>,
    ids: ContainerIds,
    limits: Limits,
    /// Second in the lock order.
    streams: Mutex<Streams>,
    /// First in the lock order: one write-out at a time.
    writing_out: Mutex<()>,
}

impl std::fmt::Debug for ContainerStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ContainerStore").field("options", &self.shared.options).finish_non_exhaustive()
    }
}

impl ContainerStore {
    /// Opens a store over `slots` with the containers that the namespace knows, and with caches of its own.
    pub fn open(
        slots: SlotFiles,
        options: ContainerOptions,
        workers: Arc<WorkerPool>,
        records: &[ContainerRecord],
        ids: ContainerIds,
    ) -> Result<Arc<Self>> {
        let caches = Arc::new(Caches::new(
            options.region_cache_bytes,
            options.table_cache_bytes,
            options.region_raw_bytes,
            options.container_bytes,
        ));
        Self::open_sharing(caches, slots, options, workers, records, ids)
    }

    /// As [`open`](Self::open), with caches that other stores use as well. No two of them may have a container of the same id.
    pub fn open_sharing(
        caches: Arc<Caches>,
        slots: SlotFiles,
        options: ContainerOptions,
        workers: Arc<WorkerPool>,
        records: &[ContainerRecord],
        ids: ContainerIds,
    ) -> Result<Arc<Self>> {
        check_options(&options)?;
        for record in records {
            if record.kind != options.kind || record.used_bytes > options.container_bytes {
                let what = format!("record of container {}", record.id);
                let expected = format!("{:?} within {} bytes", options.kind, options.container_bytes);
                let found = format!("{:?} with {} bytes", record.kind, record.used_bytes);
                return Err(StoreError::corrupt(what, expected, found).into());
            }
            slots.occupy(record.address)?;
        }
        let limits = Limits { container_bytes: options.container_bytes, region_raw_bytes: options.region_raw_bytes };
        let writers = WorkerPool::with_queue("dedupfs-write", WRITER_THREADS, QUEUED_WRITES);
        let shared = Shared::new(options, slots, workers, writers, caches, records);
        shared.any_damaged.store(records.iter().any(|record| record.damaged), Ordering::Release);
        Ok(Arc::new(Self {
            shared: Arc::new(shared),
            ids,
            limits,
            streams: Mutex::new(Streams::default()),
            writing_out: Mutex::new(()),
        }))
    }

    /// The kind of its containers.
    pub(crate) fn kind(&self) -> ContainerKind {
        self.shared.options.kind
    }

    /// Uncompressed bytes of a full region. A reader reads a region as a whole.
    #[must_use]
    pub fn region_raw_bytes(&self) -> u32 {
        self.shared.options.region_raw_bytes
    }

    /// Changes the store's share of the common cache of regions, by which it reads ahead. Readers along containers keep their
    /// window.
    pub(crate) fn read_ahead_within(&self, region_cache_bytes: u64) {
        self.shared.prefetching.set_region_cache_bytes(region_cache_bytes, self.shared.options.region_raw_bytes);
    }

    /// The caches that the stores of the pool share.
    pub(crate) fn caches(&self) -> &Caches {
        &self.shared.caches
    }

    /// Frees the buffers kept for reuse if none was used since the last call. Returns whether there were any.
    pub fn trim_if_idle(&self) -> bool {
        self.shared.buffers.trim_if_idle() | self.shared.write_buffers.trim_if_idle()
    }

    /// Returns the slot files that records name and that do not exist.
    #[must_use]
    pub fn missing_files(&self) -> Vec<String> {
        self.shared.slots.missing_files()
    }

    /// Returns the containers whose slot file does not exist.
    pub fn missing_containers(&self) -> Vec<ContainerId> {
        if self.missing_files().is_empty() {
            return Vec::new();
        }
        let records = self.containers();
        records.iter().filter(|record| self.shared.slots.is_missing(record.address)).map(|record| record.id).collect()
    }

    /// Stores chunks in the stream's container and returns the container of each. They can be read at once, and are
    /// durable after the next [`write_out`](Self::write_out()). Never waits for the disk. Compresses in this thread when all
    /// workers are busy.
    pub fn append(&self, stream: StreamId, chunks: &[(Fingerprint, &[u8])]) -> Result<Vec<ContainerId>> {
        let _timed = profile::of(Component::Appending);
        let shared = &self.shared;
        shared.check_poison()?;
        if let Some(failure) = shared.write_failure()
            && shared.in_flight_bytes() > shared.options.in_flight_limit_bytes.saturating_mul(FAILED_LIMIT_FACTOR)
        {
            return Err(failure);
        }
        chunks.iter().try_for_each(|(fingerprint, data)| check_chunk(fingerprint, data))?;
        let mut containers = Vec::with_capacity(chunks.len());
        while let Some(rest) = chunks.get(containers.len()..).filter(|rest| !rest.is_empty()) {
            let container = self.container_of(stream)?;
            let is_scarce = shared.opened.bytes() >= shared.open_apart_bytes();
            let appended = container.append(rest, &shared.buffers, is_scarce)?;
            containers.extend(std::iter::repeat_n(container.id, appended.taken));
            if appended.full {
                self.streams.lock().retire(&container);
            }
            shared.add_pending(appended.pending_bytes);
            appended.cuts.into_iter().for_each(|cut| shared.submit_compression(&container, cut));
            if appended.full {
                shared.schedule_write(&container);
            }
        }
        self.keep_open_bound();
        let bytes = chunks.iter().map(|(_, data)| data.len() as u64).sum();
        shared.counters.appended_chunks.fetch_add(chunks.len() as u64, Ordering::Relaxed);
        shared.counters.appended_bytes.fetch_add(bytes, Ordering::Relaxed);
        Ok(containers)
    }

    /// Keeps the memory of open containers within its bound. The largest region being filled is cut early: so regions are as large as
    /// memory allows, and no container gets shorter. Only when tables need all of it, the one with the longest table is sealed.
    fn keep_open_bound(&self) {
        let shared = &self.shared;
        while shared.opened.bytes() > shared.open_bytes_max() {
            let open = self.streams.lock().all();
            let sizes = open.iter().map(|container| (container.memory_bytes(), container));
            let Some(((filling_bytes, _), container)) = sizes.clone().max_by_key(|((filling, _), _)| *filling) else {
                return;
            };
            if filling_bytes >= u64::from(shared.options.region_raw_bytes) / SMALL_REGION {
                let (cut, _) = container.cut(&shared.buffers);
                cut.into_iter().for_each(|cut| shared.submit_compression(container, cut));
            } else if let Some((_, container)) = sizes.max_by_key(|((_, table), _)| *table) {
                self.streams.lock().retire(container);
                self.close(container);
            }
        }
    }

    fn container_of(&self, stream: StreamId) -> Result<Arc<OpenContainer>> {
        let (shared, now_ms) = (&self.shared, self.shared.now_ms());
        let mut streams = self.streams.lock();
        let own = streams.of(stream).cloned();
        if let Some(container) = own.or_else(|| streams.share(stream, now_ms, shared.open_max())) {
            container.touch(now_ms);
            return Ok(container);
        }
        let options = &shared.options;
        let id = (self.ids)()?;
        let row = stream.is_arranged().then_some(stream);
        let of = (row, shared.owed.hold(0, 1), shared.opened.hold(0, 1));
        let container = OpenContainer::new(id, options.kind, options.pool, self.limits, now_ms, of);
        // Insert the container before its id is known elsewhere: a known id must always be found.
        shared.directory.write().insert(Arc::clone(&container));
        streams.insert(stream, Arc::clone(&container));
        Ok(container)
    }

    /// Waits while more bytes than the limit are in flight. Call it before appending, with no lock held. On a worker it
    /// writes, but does not wait for other jobs.
    ///
    /// # Errors
    /// The disk's error, if that keeps the bytes in flight.
    pub fn wait_for_room(&self) -> Result<()> {
        self.shared.wait_for_room()
    }

    /// Raw bytes being compressed, frames not written, and memory of open containers beyond the usual.
    pub(crate) fn in_flight_bytes(&self) -> u64 {
        self.shared.in_flight_bytes()
    }

    /// Upper bound of the bytes still to be written for appended chunks, with padding and tables.
    #[must_use]
    pub fn owed_bytes(&self) -> u64 {
        self.shared.owed.bytes()
    }

    /// Returns the chunk's bytes; `None` if the container is unknown or does not hold the chunk. A given `len_bytes`
    /// must be the chunk's length. (The stored length of a recipe node is not known outside.)
    pub fn read_chunk(
        &self,
        container: ContainerId,
        fingerprint: &Fingerprint,
        len_bytes: Option<u32>,
    ) -> Result<Option<ChunkData>> {
        self.shared.read_chunk(container, fingerprint, len_bytes)
    }

    /// Whether the chunk can be read without the disk.
    pub(crate) fn cached(&self, container: ContainerId, fingerprint: &Fingerprint) -> bool {
        self.shared.cached(container, fingerprint)
    }

    /// Returns the container's table; for an open container, the table of the regions placed so far. `None` if it is
    /// unknown.
    pub fn table(&self, container: ContainerId) -> Result<Option<Arc<Table>>> {
        self.shared.table(container)
    }

    /// Calls `visit` with every chunk of the container in the order of its regions, past the cache. Returns `false` if
    /// the container is unknown. Regions before a damaged one are visited.
    pub fn for_each_chunk(
        &self,
        container: ContainerId,
        visit: &mut dyn FnMut(&Fingerprint, &[u8]) -> Result<()>,
    ) -> Result<bool> {
        self.shared.for_each_chunk(container, visit)
    }

    /// Reads and checks the whole container: regions, table and record. Computes no fingerprints of chunks: use
    /// [`for_each_chunk`](Self::for_each_chunk) for that. An unknown container counts as sound.
    pub fn verify(&self, container: ContainerId) -> Result<()> {
        self.shared.verify(container)
    }

    /// Forgets containers and frees their slots. The namespace must have durably forgotten them (I-4), and no export
    /// may name them.
    #[cfg(test)]
    pub(crate) fn remove(&self, containers: &[ContainerId]) -> Result<()> {
        let forgotten = self.forget(containers)?;
        self.free(&forgotten)
    }

    /// Forgets containers that the namespace has durably forgotten (I-4). Their slots stay taken until they are
    /// [freed](Self::free). If one is open, nothing is forgotten and an error is returned.
    pub fn forget(&self, containers: &[ContainerId]) -> Result<Vec<ContainerRecord>> {
        let mut forgotten = Vec::with_capacity(containers.len());
        {
            let mut directory = self.shared.directory.write();
            if let Some(open) = containers.iter().find(|id| directory.is_open(**id)) {
                return Err(StoreError::Usage(format!("container {open} is still being written")).into());
            }
            forgotten.extend(containers.iter().filter_map(|id| directory.remove(*id)));
        }
        // Forget first, free later: a reader that finds other bytes in the slot then finds the container gone.
        let gone: std::collections::HashSet<_> = containers.iter().copied().collect();
        self.shared.caches.forget(&|container| gone.contains(&container));
        Ok(forgotten)
    }

    /// Frees the slots of forgotten containers.
    pub fn free(&self, forgotten: &[ContainerRecord]) -> Result<()> {
        let mut failure = None;
        for record in forgotten {
            if let Err(error) = self.shared.slots.free(record.address) {
                tracing::warn!(address = %record.address, %error, "cannot free a container's slot");
                failure = failure.or(Some(error));
            }
        }
        self.shared.slots.trim().inspect_err(|error| {
            if matches!(error, StoreError::SyncFailed { .. }) {
                self.shared.poison(error.clone().into());
            }
        })?;
        failure.map_or(Ok(()), |error| Err(error.into()))
    }

    /// Cuts unused slots off the ends of the slot files and returns the bytes freed. A failure costs only space and is
    /// logged.
    pub fn trim(&self) -> u64 {
        self.shared.slots.trim().unwrap_or_else(|error| {
            tracing::warn!(%error, "cannot give back the free space at the end of container files");
            0
        })
    }

    /// Makes it durable that slots were given back. A failure is logged: it matters only to a recovery without the meta
    /// root, which then finds content that nothing names.
    pub fn sync_given_back(&self) {
        if let Err(error) = self.shared.slots.sync_given_back() {
            tracing::warn!(%error, "a power loss may bring the content of free slots back");
        }
    }

    /// Keeps the slot of a container that was forgotten before the store was opened, until it is [freed](Self::free).
    pub fn keep(&self, forgotten: &ContainerRecord) -> Result<()> {
        Ok(self.shared.slots.keep(forgotten.address)?)
    }

    /// Takes slots that no record names, until they are [released](Self::release). Returns those that could be taken.
    #[must_use]
    pub fn hold(&self, slots: Vec<SlotAddress>) -> Vec<SlotAddress> {
        slots.into_iter().filter(|address| self.shared.slots.hold(*address)).collect()
    }

    /// Frees slots that were held.
    ///
    /// # Errors
    /// None: a slot that cannot be punched out, or a file that cannot be cut, costs only space and is logged.
    pub fn release(&self, held: &[SlotAddress]) -> Result<()> {
        for address in held {
            if let Err(error) = self.shared.slots.free(*address) {
                tracing::warn!(%address, %error, "the space of a slot is not given back yet");
            }
        }
        self.trim();
        Ok(())
    }

    /// Returns the slots that no record names and that begin with a region of this pool, with the container's id. A
    /// slot that the disk cannot read may hold a container too: it is returned without an id.
    #[must_use]
    pub fn unnamed(&self) -> Vec<(SlotAddress, Option<ContainerId>)> {
        let pool = self.shared.options.pool;
        let look_at = |address: SlotAddress| {
            match self.shared.slots.read(address, 0, FRAME_HEADER_BYTES) {
                Ok(head) => {
                    let header = FrameHeader::decode("a slot", &head).ok()?;
                    let is_container = header.pool == pool && header.kind == FrameKind::Region;
                    is_container.then_some((address, Some(ContainerId(header.owner))))
                }
                // The file ends within this header.
                Err(StoreError::Corrupt { .. } | StoreError::NotFound { .. }) => None,
                Err(error) => {
                    tracing::warn!(%address, %error, "a slot that no record names cannot be read");
                    Some((address, None))
                }
            }
        };
        self.shared.slots.free_in_files().into_iter().filter_map(look_at).collect()
    }

    /// Reads recorded bytes of a container from disk.
    pub fn recorded_bytes(&self, record: &ContainerRecord, offset_bytes: u32, len_bytes: usize) -> Result<Vec<u8>> {
        Ok(self.shared.slots.read(record.address, offset_bytes, len_bytes)?)
    }

    /// Whether the container exists, open or closed.
    #[must_use]
    pub fn is_known(&self, container: ContainerId) -> bool {
        self.shared.is_known(container)
    }

    /// The container's record that the namespace has acknowledged.
    #[must_use]
    pub fn record(&self, container: ContainerId) -> Option<ContainerRecord> {
        match self.shared.known(container)? {
            KnownContainer::Open(open) => open.acknowledged(),
            KnownContainer::Closed(record) => Some(record),
        }
    }

    /// All records that the namespace has acknowledged, in order of id.
    #[must_use]
    pub fn containers(&self) -> Vec<ContainerRecord> {
        let directory = self.shared.directory.read();
        let open = directory.open().filter_map(|open| open.acknowledged());
        let mut records: Vec<_> = directory.closed().copied().chain(open).collect();
        drop(directory);
        records.sort_by_key(|record| record.id);
        records
    }

    /// Returns sums over all records. Cost: by the open containers.
    #[must_use]
    pub fn sums(&self) -> ContainerSums {
        self.shared.directory.read().sums()
    }

    /// Returns the number of chunks that the records name. Cost: by the records.
    #[must_use]
    pub fn chunks(&self) -> u64 {
        self.containers().iter().map(|record| u64::from(record.chunks)).sum()
    }

    /// Ends all writing before it returns. Data not written out is lost, as in a crash. Without this, threads that
    /// still work for this store could write into slots that the next opening of the pool has given away.
    pub fn stop(&self) {
        self.shared.stop();
    }

    /// The store's figures.
    #[must_use]
    pub fn stats(&self) -> ContainerStats {
        // One lock after the other: in the literal below, each would be held until its end.
        let containers = self.shared.directory.read().len();
        let filling = self.streams.lock().len() as u64;
        let (region_cache_bytes, table_cache_bytes) = self.shared.caches.used_bytes();
        ContainerStats {
            containers,
            filling,
            in_flight_bytes: self.in_flight_bytes(),
            region_cache_bytes,
            table_cache_bytes,
            ..self.shared.counters.snapshot()
        }
    }

    /// The error that stopped the store, if any: every later append and `flush` returns it.
    #[cfg(test)]
    pub(crate) fn failure(&self) -> Option<EngineError> {
        self.shared.check_poison().err()
    }

    /// Bytes that the slot files take on disk.
    pub fn physical_bytes(&self) -> Result<u64> {
        Ok(self.shared.slots.allocated_bytes()?)
    }

    /// Panics if an invariant of an open container is broken; for tests.
    #[cfg(test)]
    pub(crate) fn self_check(&self) {
        self.shared.open_containers().iter().for_each(|container| container.self_check());
        self.shared.directory.read().self_check();
    }
}

/// Refuses a chunk that cannot be encoded: inside the store it would stop the store.
fn check_chunk(fingerprint: &Fingerprint, data: &[u8]) -> Result<()> {
    if data.is_empty() || fingerprint.is_zero() || data.len() > REGION_RAW_BYTES_MAX {
        let message = format!("a chunk has 1 to {REGION_RAW_BYTES_MAX} bytes and a fingerprint, not {}", data.len());
        return Err(StoreError::Usage(message).into());
    }
    Ok(())
}

fn check_options(options: &ContainerOptions) -> Result<()> {
    const CONTAINER_BYTES_MAX: u32 = 1 << 30;
    let ContainerOptions { container_bytes, region_raw_bytes, .. } = *options;
    let is_aligned = open_container::align(container_bytes.min(CONTAINER_BYTES_MAX)) == container_bytes;
    let least = u64::from(open_container::bound_bytes(1, region_raw_bytes as usize)) + toc_bytes_bound(1, 1) as u64;
    if !is_aligned {
        return Err(StoreError::Usage(format!(
            "a container must have a multiple of 4096 bytes and at most 1 GiB, not {container_bytes}"
        ))
        .into());
    }
    if region_raw_bytes == 0 || region_raw_bytes as usize > REGION_RAW_BYTES_MAX {
        return Err(StoreError::Usage(format!(
            "a region must have 1 to {REGION_RAW_BYTES_MAX} bytes, not {region_raw_bytes}"
        ))
        .into());
    }
    if least > u64::from(container_bytes) {
        return Err(StoreError::Usage(format!(
            "a container of {container_bytes} bytes is too small for regions of {region_raw_bytes}: at least {least}"
        ))
        .into());
    }
    Ok(())
}
