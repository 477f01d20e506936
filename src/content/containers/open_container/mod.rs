//! One container while it is being filled: a small state machine under one short lock.
//!
//! 1. [`append`](OpenContainer::append) copies chunks into the *filling* region. A full region is *cut*: its raw bytes
//!    are frozen and handed to a worker.
//! 2. The worker's frame is *placed* behind the last one, in completion order ([`place`](OpenContainer::place)).
//! 3. Placed frames stay in memory until they are written ([`begin_write`](OpenContainer::begin_write),
//!    [`finish_write`](OpenContainer::finish_write)). A failed write changes nothing here, so it can be tried again.
//! 4. A *full* container takes no more chunks. When its last region is placed, its table follows.
//!
//! Invariants, kept at every step and checked by `self_check`:
//! - `acknowledged <= synced <= written <= next_offset <= container_bytes`. `written` is a multiple of 4096, so a write
//!   never touches a block that was synced before.
//! - `align(next_offset)`, the aligned bounds of all regions not placed yet, and the bound of the table together fit
//!   the container. Each bound is rounded up to 4096, so the padding of a mark can never break this.
//! - A chunk in `index` is readable at every moment: from the filling region (copied), the frozen raw bytes, the frame
//!   in memory, or the disk. [`find`](OpenContainer::find) copies or shares the bytes under the lock, so the region may
//!   change state afterwards.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use dedupfs_base::{Hold, Result};
use dedupfs_store::container::{EncodedRegion, SlotAddress, Table};
use dedupfs_store::profile::{self, Component};
use dedupfs_store::{ContainerId, ContainerKind, ContainerRecord, Fingerprint, PoolId, StoreError, waiting};
use dedupfs_sync::canary::{Canary, is_planted};
use dedupfs_sync::{Condvar, Mutex, MutexGuard, OnceLock};

use super::buffers::{RegionBytes, RegionPool};
use super::streams::StreamId;

mod state;

use state::{ALIGNMENT_BYTES, ContainerState, Filling, MemoryPlace, Piece, Region, count};
pub(super) use state::{Batch, Cut, Frame, Limits, align, bound_bytes};

/// Chunks of one region at most: bounds the region's entries and the time of a lookup among them.
const REGION_ENTRIES_MAX: usize = 8192;

/// The result of [`OpenContainer::append`].
#[derive(Default)]
pub(super) struct Appended {
    /// Chunks taken, from the start of those offered.
    pub(super) taken: usize,
    /// Regions to compress now.
    pub(super) cuts: Vec<Cut>,
    /// Whether the container takes no more.
    pub(super) full: bool,
    /// Growth of the bytes waiting to be written: the table of a container that was sealed at once.
    pub(super) pending_bytes: u64,
}

/// The place of a chunk's bytes at this moment.
pub(super) enum Found {
    /// A copy from the filling region.
    Copied(Vec<u8>),
    /// In the raw bytes of a region that is being compressed or is stored uncompressed.
    Raw {
        raw: Arc<RegionBytes>,
        start: u32,
    },
    /// In a frame that is not written yet.
    Frame {
        frame: Arc<Frame>,
        offset_bytes: u32,
        start: u32,
    },
    Disk {
        address: SlotAddress,
        offset_bytes: u32,
        frame_bytes: u32,
        start: u32,
    },
}

/// The part of the placed bytes to write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Goal {
    /// Whole blocks only; the rest follows later.
    WholeBlocks,
    /// Everything, padded to a whole block.
    Everything,
}

/// The state of a container when all placed bytes were written: the part that a sync makes durable.
#[derive(Clone)]
pub(super) struct Mark {
    pub(super) used_bytes: u32,
    pub(super) toc: Option<(u32, u32)>,
    pub(super) chunk_bytes: u64,
    pub(super) table: Arc<Table>,
}

/// A container that is being filled, or whose last record the namespace has not acknowledged yet.
pub(super) struct OpenContainer {
    pub(super) id: ContainerId,
    /// Its place is behind the container before it in this stream.
    pub(super) row: Option<StreamId>,
    pool: PoolId,
    limits: Limits,
    last_used_ms: AtomicU64,
    /// Whether a write job for it is queued.
    pub(super) write_queued: AtomicBool,
    /// Chosen at the first write.
    address: OnceLock<SlotAddress>,
    /// Fifth in the lock order of [`super`]; never held across I/O.
    state: Mutex<ContainerState>,
    /// A region was placed, or the store failed.
    changed: Condvar,
    /// Held across writes: one writer for each container. Fourth in the lock order.
    writer: Mutex<()>,
}

impl OpenContainer {
    /// Makes a new container; it keeps the bytes still to be written for it in `owed`, and its memory while it takes chunks in `opened`.
    pub(super) fn new(
        id: ContainerId,
        kind: ContainerKind,
        pool: PoolId,
        limits: Limits,
        now_ms: u64,
        (row, owed, opened): (Option<StreamId>, Hold, Hold),
    ) -> Arc<Self> {
        Arc::new(Self {
            id,
            row,
            pool,
            limits,
            last_used_ms: AtomicU64::new(now_ms),
            write_queued: AtomicBool::new(false),
            address: OnceLock::new(),
            state: Mutex::new(ContainerState::new(id, kind, owed, opened)),
            changed: Condvar::new(),
            writer: Mutex::new(()),
        })
    }

    pub(super) fn last_used_ms(&self) -> u64 {
        self.last_used_ms.load(Ordering::Relaxed)
    }

    pub(super) fn touch(&self, now_ms: u64) {
        self.last_used_ms.store(now_ms, Ordering::Relaxed);
    }

    pub(super) fn address(&self) -> Option<SlotAddress> {
        self.address.get().copied()
    }

    /// Returns the slot; calls `allocate` at the first write only. Needs the writer lock.
    pub(super) fn address_or(
        &self,
        _writer: &MutexGuard<'_, ()>,
        allocate: impl FnOnce() -> Result<SlotAddress>,
    ) -> Result<SlotAddress> {
        match self.address.get() {
            Some(address) => Ok(*address),
            None => {
                let address = allocate()?;
                Ok(*self.address.get_or_init(|| address))
            }
        }
    }

    pub(super) fn lock_writer(&self) -> MutexGuard<'_, ()> {
        waiting::lock(&self.writer)
    }

    /// Takes chunks from the front of `chunks` until the container is full. Does not copy a chunk again that it already
    /// holds. If memory `is_scarce`, a region gets no larger buffer than `chunks` need.
    pub(super) fn append(
        &self,
        chunks: &[(Fingerprint, &[u8])],
        buffers: &Arc<RegionPool>,
        is_scarce: bool,
    ) -> Result<Appended> {
        let mut appended = Appended::default();
        let mut left_bytes: usize = chunks.iter().map(|(_, data)| data.len()).sum();
        let mut guard = self.state.lock();
        let state = &mut *guard;
        for (fingerprint, data) in chunks {
            let before_bytes = left_bytes;
            left_bytes -= data.len();
            if state.full {
                appended.full = true;
                break;
            }
            if state.index.contains_key(fingerprint) {
                appended.taken += 1;
                continue;
            }
            let joins = state.filling.as_ref().is_some_and(|filling| {
                filling.raw.len() + data.len() <= self.limits.region_raw_bytes as usize
                    && filling.entries.len() < REGION_ENTRIES_MAX
            });
            if !state.fits(data.len(), joins, self.limits) {
                if state.is_empty() {
                    return Err(StoreError::Usage(format!(
                        "a chunk of {} bytes does not fit a container of {} bytes",
                        data.len(),
                        self.limits.container_bytes
                    ))
                    .into());
                }
                appended.full = true;
                appended.pending_bytes += state.close(&self.pool, buffers, &mut appended.cuts);
                break;
            }
            if !joins {
                appended.cuts.extend(state.cut(buffers));
            }
            let region_bytes = before_bytes.min(self.limits.region_raw_bytes as usize).max(data.len());
            state.push(*fingerprint, data, || buffers.take(region_bytes, is_scarce));
            appended.taken += 1;
            let is_full = |filling: &Filling| filling.raw.len() >= self.limits.region_raw_bytes as usize;
            if state.filling.as_ref().is_some_and(is_full) {
                appended.cuts.extend(state.cut(buffers));
            }
        }
        state.note_owed();
        Ok(appended)
    }

    /// Cuts the filling region before a write-out. Also returns the number below which all regions must be placed for
    /// it.
    pub(super) fn cut(&self, buffers: &Arc<RegionPool>) -> (Option<Cut>, u32) {
        let mut state = self.state.lock();
        let cut = state.cut(buffers);
        state.note_owed();
        (cut, count(state.regions.len()))
    }

    /// Ends the taking of chunks. Returns the region to compress, and the growth of the bytes waiting to be written.
    pub(super) fn close(&self, buffers: &Arc<RegionPool>) -> (Vec<Cut>, u64) {
        let mut cuts = Vec::new();
        let mut state = self.state.lock();
        let grown = state.close(&self.pool, buffers, &mut cuts);
        state.note_owed();
        drop(state);
        (cuts, grown)
    }

    /// Places a compressed region behind the others. Returns the growth of the bytes waiting to be written.
    pub(super) fn place(&self, number: u32, encoded: EncodedRegion) -> Result<u64> {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let before = state.next_offset;
        let Some(region) = state.regions.get_mut(number as usize) else { return Ok(0) };
        let Region::Compressing { raw } = region else { return Ok(0) };
        let raw = Arc::clone(raw);
        state.builder.push_region(before, &encoded)?;
        state.unplaced.remove(&number);
        state.unplaced_bound_bytes -= bound_bytes(encoded.entries.len(), raw.len());
        state.placed_regions += 1;
        state.chunk_bytes += u64::from(encoded.raw_bytes);
        let frame = Frame::of_region(encoded.head, encoded.raw_follows.then_some(raw), encoded.frame_bytes);
        let frame = Arc::new(frame);
        *region = Region::Pending { frame: Arc::clone(&frame), offset_bytes: before };
        state.next_offset = before.saturating_add(encoded.frame_bytes);
        state.pending.push_back(Piece { offset_bytes: before, frame, region: Some(number) });
        state.seal_if_complete(&self.pool);
        state.note_owed();
        let grown = state.next_offset - before;
        debug_assert!(state.next_offset <= self.limits.container_bytes, "the bounds must keep a container in its slot");
        drop(guard);
        self.changed.notify_all();
        Ok(u64::from(grown))
    }

    /// Waits until the regions below `number` are placed, or until `is_failed`.
    pub(super) fn wait_placed(&self, number: u32, is_failed: impl Fn() -> bool) {
        let mut state = self.state.lock();
        let mut waits = None;
        while state.unplaced.first().is_some_and(|first| *first < number) && !is_failed() {
            waiting::announce();
            waits.get_or_insert_with(|| profile::of(Component::Placing));
            self.changed.wait(&mut state);
        }
    }

    /// Wakes the threads in [`wait_placed`](Self::wait_placed), because the store failed.
    pub(super) fn wake(&self) {
        // The lock orders this after the waiter's check: otherwise the wake-up could be lost between check and sleep.
        drop(self.state.lock());
        self.changed.notify_all();
    }

    /// Returns the next batch to write (`None`: nothing), the padding added for it, and the mark once it is written.
    pub(super) fn begin_write(&self, goal: Goal, _writer: &MutexGuard<'_, ()>) -> (Option<Batch>, u64, Option<Mark>) {
        let mut state = self.state.lock();
        let (before, mut mark) = (state.next_offset, None);
        let end = match goal {
            Goal::WholeBlocks => before - before % ALIGNMENT_BYTES,
            Goal::Everything => {
                state.next_offset = align(before);
                let used_bytes = state.next_offset;
                let (toc, chunk_bytes) = (state.toc, state.chunk_bytes);
                mark = Some(Mark { used_bytes, toc, chunk_bytes, table: state.snapshot() });
                used_bytes
            }
        };
        let range = state.written..end;
        let pieces = state.pending.iter().filter(|piece| piece.offset_bytes < end).cloned().collect();
        let batch = (!range.is_empty()).then_some(Batch { range, pieces });
        (batch, u64::from(state.next_offset - before), mark)
    }

    /// Notes that everything below `end` is written and drops its frames from memory. Returns the bytes written.
    pub(super) fn finish_write(&self, end: u32, _writer: &MutexGuard<'_, ()>) -> u64 {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        while let Some(piece) = state.pending.pop_front_if(|piece| piece.end() <= end) {
            let written = Region::Written { offset_bytes: piece.offset_bytes, frame_bytes: piece.len_bytes() };
            if let Some(region) = piece.region.and_then(|number| state.regions.get_mut(number as usize)) {
                *region = written;
            }
        }
        let grown = end.saturating_sub(state.written);
        state.written = state.written.max(end);
        state.note_owed();
        u64::from(grown)
    }

    /// Bytes placed but not written.
    pub(super) fn pending_bytes(&self) -> u32 {
        let state = self.state.lock();
        state.next_offset - state.written
    }

    /// Whether a write is worthwhile: a large piece is pending, or the last piece of a sealed container.
    pub(super) fn wants_write(&self, piece_bytes: u32) -> bool {
        let state = self.state.lock();
        let pending = state.next_offset - state.written;
        pending >= piece_bytes || (state.toc.is_some() && pending > 0)
    }

    /// Bytes from the start that are written; frames beyond are in memory.
    pub(super) fn written_bytes(&self) -> u32 {
        self.state.lock().written
    }

    /// Whether bytes below `used_bytes` are not synced yet.
    pub(super) fn needs_sync(&self, used_bytes: u32) -> bool {
        self.state.lock().synced < used_bytes
    }

    /// Notes a successful sync that began after all bytes below `used_bytes` were written.
    pub(super) fn set_synced(&self, used_bytes: u32) {
        let mut state = self.state.lock();
        state.synced = state.synced.max(if is_planted(Canary::MarkBeyondSync) { u32::MAX } else { used_bytes });
    }

    /// The record that the namespace holds.
    pub(super) fn acknowledged(&self) -> Option<ContainerRecord> {
        self.state.lock().acknowledged
    }

    /// Notes that the namespace holds `record`. Returns the table if that seals the container.
    pub(super) fn acknowledge(&self, record: &ContainerRecord) -> Option<Arc<Table>> {
        let mut state = self.state.lock();
        let is_newer = state.acknowledged.as_ref().is_none_or(|old| {
            old.used_bytes < record.used_bytes || (old.used_bytes == record.used_bytes && record.sealed)
        });
        if is_newer {
            state.acknowledged = Some(*record);
        }
        record.sealed.then(|| state.snapshot())
    }

    /// The table of the placed regions.
    pub(super) fn table(&self) -> Arc<Table> {
        self.state.lock().snapshot()
    }

    /// Memory of the region being filled, and of the entries of chunks.
    pub(super) fn memory_bytes(&self) -> (u64, u64) {
        self.state.lock().memory_bytes()
    }

    /// Whether nothing was ever appended.
    pub(super) fn is_empty(&self) -> bool {
        self.state.lock().is_empty()
    }

    /// Returns the place of the chunk and its length.
    pub(super) fn find(&self, fingerprint: &Fingerprint) -> Option<(Found, u32)> {
        let state = self.state.lock();
        let MemoryPlace { region, start, len_bytes } = *state.index.get(fingerprint)?;
        let found = match state.regions.get(region as usize) {
            None => {
                let filling = state.filling.as_ref()?;
                let range = start as usize..(start as usize).checked_add(len_bytes as usize)?;
                Found::Copied(filling.raw.get(range)?.to_vec())
            }
            Some(Region::Compressing { raw }) => Found::Raw { raw: Arc::clone(raw), start },
            Some(Region::Pending { frame, offset_bytes }) => match frame.raw() {
                Some(raw) => Found::Raw { raw: Arc::clone(raw), start },
                None => Found::Frame { frame: Arc::clone(frame), offset_bytes: *offset_bytes, start },
            },
            Some(Region::Written { offset_bytes, frame_bytes }) => {
                let (offset_bytes, frame_bytes) = (*offset_bytes, *frame_bytes);
                Found::Disk { address: self.address()?, offset_bytes, frame_bytes, start }
            }
        };
        Some((found, len_bytes))
    }

    /// Returns the offset of the chunk's region if it must be read from disk. `Some(None)`: in memory; `None`: not
    /// here.
    pub(super) fn disk_offset(&self, fingerprint: &Fingerprint) -> Option<Option<u32>> {
        let state = self.state.lock();
        let place = state.index.get(fingerprint)?;
        match state.regions.get(place.region as usize) {
            Some(Region::Written { offset_bytes, .. }) => Some(Some(*offset_bytes)),
            _ => Some(None),
        }
    }

    /// Panics if an invariant of the module's head is broken; for tests.
    #[cfg(test)]
    pub(super) fn self_check(&self) {
        let state = self.state.lock();
        let acknowledged = state.acknowledged.as_ref().map_or(0, |record| record.used_bytes);
        assert!(acknowledged <= state.synced && state.synced <= state.written && state.written <= state.next_offset);
        assert!(state.next_offset <= self.limits.container_bytes, "{}: beyond its slot", self.id);
        assert_eq!(state.written % ALIGNMENT_BYTES, 0);
        assert!(state.bytes_when_sealed(None) <= u64::from(self.limits.container_bytes));
        assert!(state.pending.iter().all(|piece| piece.end() > state.written));
        assert_eq!(state.placed_regions + state.unplaced.len(), state.regions.len());
        assert!(state.toc.is_none() || (state.full && state.unplaced.is_empty() && state.filling.is_none()));
    }
}
