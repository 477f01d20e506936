//! The parts of an open container, and the arithmetic that keeps it within its slot.
//!
//! Every method of [`ContainerState`] needs the container's `state` lock, does no I/O and keeps the invariants of [`super`].

use std::collections::hash_map::Entry as MapEntry;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};
use std::ops::Range;
use std::sync::Arc;

use dedupfs_base::Hold;
use dedupfs_store::container::{Table, TableBuilder, TableEntry, region_frame_bytes_bound, toc_bytes_bound};
use dedupfs_store::device::DIRECT_ALIGNMENT_BYTES;
use dedupfs_store::{ContainerId, ContainerKind, ContainerRecord, Fingerprint, PoolId};

use crate::containers::buffers::{RegionBytes, RegionPool};

/// Memory of a chunk of an open container: in the map by fingerprint and twice in tables, with their spare capacity.
const CHUNK_MEMORY_BYTES: u64 = 160;

pub(super) const ALIGNMENT_BYTES: u32 = DIRECT_ALIGNMENT_BYTES as u32;

/// The sizes at which regions are cut and containers are full.
#[derive(Clone, Copy, Debug)]
pub(in crate::containers) struct Limits {
    pub(in crate::containers) container_bytes: u32,
    pub(in crate::containers) region_raw_bytes: u32,
}

/// The bytes of one frame to write: the head, then the region's raw bytes where they lie, then zeros up to its length.
/// Without `raw`, the head is the whole frame.
pub(in crate::containers) struct Frame {
    head: Vec<u8>,
    raw: Option<Arc<RegionBytes>>,
    len_bytes: u32,
}

impl Frame {
    /// Makes the frame of a region from its parts.
    pub(super) fn of_region(head: Vec<u8>, raw: Option<Arc<RegionBytes>>, len_bytes: u32) -> Self {
        Self { head, raw, len_bytes }
    }

    /// The whole frame, if it lies in one buffer.
    pub(in crate::containers) fn whole(&self) -> Option<&[u8]> {
        self.raw.is_none().then_some(&self.head)
    }

    /// The region's bytes, if they are stored uncompressed.
    pub(super) fn raw(&self) -> Option<&Arc<RegionBytes>> {
        self.raw.as_ref()
    }

    /// Gives the bytes of the frame in `from..to` to `sink`, except the zeros at its end. Returns their number.
    fn gather(&self, from: u32, to: u32, sink: &mut dyn FnMut(&[u8])) -> u32 {
        let (mut start, mut given) = (0, 0);
        for part in [self.head.as_slice(), self.raw.as_ref().map_or(&[], |raw| raw)] {
            let end = start + length(part);
            let wanted = from.clamp(start, end) - start..to.clamp(start, end) - start;
            let wanted = part.get(wanted.start as usize..wanted.end as usize).unwrap_or_default();
            if !wanted.is_empty() {
                sink(wanted);
                given += length(wanted);
            }
            start = end;
        }
        given
    }
}

/// A region handed to a worker.
pub(in crate::containers) struct Cut {
    pub(in crate::containers) number: u32,
    pub(in crate::containers) entries: Vec<TableEntry>,
    pub(in crate::containers) raw: Arc<RegionBytes>,
}

/// A range of the container to write, with its frames.
pub(in crate::containers) struct Batch {
    pub(in crate::containers) range: Range<u32>,
    pub(super) pieces: Vec<Piece>,
}

/// Life of a region after it was cut:
///
/// ```text
/// (filling) --cut--> Compressing --place--> Pending --finish_write--> Written
/// ```
pub(super) enum Region {
    Compressing { raw: Arc<RegionBytes> },
    Pending { frame: Arc<Frame>, offset_bytes: u32 },
    Written { offset_bytes: u32, frame_bytes: u32 },
}

#[derive(Clone)]
pub(super) struct Piece {
    pub(super) offset_bytes: u32,
    pub(super) frame: Arc<Frame>,
    /// `None`: the table of contents.
    pub(super) region: Option<u32>,
}

impl Piece {
    pub(super) fn end(&self) -> u32 {
        self.offset_bytes.saturating_add(self.len_bytes())
    }

    pub(super) fn len_bytes(&self) -> u32 {
        self.frame.len_bytes
    }
}

pub(super) struct Filling {
    pub(super) raw: Vec<u8>,
    pub(super) entries: Vec<TableEntry>,
}

#[derive(Clone, Copy)]
pub(super) struct MemoryPlace {
    /// Number of the region in cut order; the number of regions cut so far means the filling one.
    pub(super) region: u32,
    pub(super) start: u32,
    pub(super) len_bytes: u32,
}

/// The hasher of fingerprints: they hash as one word of themselves.
#[derive(Default)]
pub(super) struct WordHasher(u64);

impl Hasher for WordHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.0 = self.0.rotate_left(8) ^ u64::from(*byte));
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = word;
    }
}

pub(super) struct ContainerState {
    pub(super) index: HashMap<Fingerprint, MemoryPlace, BuildHasherDefault<WordHasher>>,
    pub(super) filling: Option<Filling>,
    pub(super) regions: Vec<Region>,
    /// Numbers of the regions that are being compressed.
    pub(super) unplaced: BTreeSet<u32>,
    pub(super) unplaced_bound_bytes: u32,
    pub(super) entries: usize,
    pub(super) builder: TableBuilder,
    /// The table of the placed regions, with their number.
    pub(super) snapshot: Option<(usize, Arc<Table>)>,
    pub(super) placed_regions: usize,
    pub(super) chunk_bytes: u64,
    pub(super) pending: VecDeque<Piece>,
    pub(super) next_offset: u32,
    pub(super) written: u32,
    pub(super) synced: u32,
    pub(super) full: bool,
    pub(super) toc: Option<(u32, u32)>,
    pub(super) acknowledged: Option<ContainerRecord>,
    /// Upper bound of the bytes that are not on the device yet.
    owed: Hold,
    /// Memory of a container that takes chunks: the region being filled, and the entries of chunks.
    opened: Hold,
}

impl Batch {
    /// Gives the bytes of the batch to `sink`, piece by piece; gaps between frames become zeros.
    pub(in crate::containers) fn gather(&self, sink: &mut dyn FnMut(&[u8])) {
        const ZEROS: [u8; DIRECT_ALIGNMENT_BYTES] = [0; DIRECT_ALIGNMENT_BYTES];
        let fill_to = |position: &mut u32, end: u32, sink: &mut dyn FnMut(&[u8])| {
            while *position < end {
                let len = (end - *position).min(ALIGNMENT_BYTES);
                sink(ZEROS.get(..len as usize).unwrap_or_default());
                *position += len;
            }
        };
        let mut position = self.range.start;
        for piece in &self.pieces {
            fill_to(&mut position, piece.offset_bytes.min(self.range.end), sink);
            let from = position.saturating_sub(piece.offset_bytes);
            let to = piece.end().min(self.range.end).saturating_sub(piece.offset_bytes);
            position += piece.frame.gather(from, to, sink);
        }
        fill_to(&mut position, self.range.end, sink);
    }
}

impl ContainerState {
    pub(super) fn new(id: ContainerId, kind: ContainerKind, owed: Hold, opened: Hold) -> Self {
        Self {
            index: HashMap::default(),
            filling: None,
            regions: Vec::new(),
            unplaced: BTreeSet::new(),
            unplaced_bound_bytes: 0,
            entries: 0,
            builder: TableBuilder::new(id, kind),
            snapshot: None,
            placed_regions: 0,
            chunk_bytes: 0,
            pending: VecDeque::new(),
            next_offset: 0,
            written: 0,
            synced: 0,
            full: false,
            toc: None,
            acknowledged: None,
            owed,
            opened,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.regions.is_empty() && self.filling.is_none()
    }

    /// Upper bound of the container's size if it were sealed now, after appending `chunk`: `Some((len, joins))`.
    pub(super) fn bytes_when_sealed(&self, chunk: Option<(usize, bool)>) -> u64 {
        if self.toc.is_some() {
            return u64::from(align(self.next_offset));
        }
        let (mut entries, mut regions) = (self.entries, self.regions.len());
        let mut bytes = u64::from(align(self.next_offset)) + u64::from(self.unplaced_bound_bytes);
        let (filling_entries, filling_bytes) =
            self.filling.as_ref().map_or((0, 0), |filling| (filling.entries.len(), filling.raw.len()));
        regions += usize::from(filling_entries > 0);
        bytes += match chunk {
            Some((len, true)) => u64::from(bound_bytes(filling_entries + 1, filling_bytes + len)),
            _ if filling_entries > 0 => u64::from(bound_bytes(filling_entries, filling_bytes)),
            _ => 0,
        };
        if let Some((len, joins)) = chunk {
            entries += 1;
            if !joins {
                regions += 1;
                bytes += u64::from(bound_bytes(1, len));
            }
        }
        bytes + toc_bytes_bound(entries, regions) as u64
    }

    /// Memory of the region being filled, and of the entries of chunks.
    pub(super) fn memory_bytes(&self) -> (u64, u64) {
        let filling_bytes = self.filling.as_ref().map_or(0, |filling| filling.raw.capacity() as u64);
        (filling_bytes, self.entries as u64 * CHUNK_MEMORY_BYTES)
    }

    /// Updates `owed` and `opened`. Call it after every change of the bytes to be written.
    pub(super) fn note_owed(&self) {
        let (filling_bytes, table_bytes) = self.memory_bytes();
        self.opened.set(if self.full { 0 } else { filling_bytes + table_bytes });
        let all = if self.is_empty() { 0 } else { self.bytes_when_sealed(None) };
        self.owed.set(all.saturating_sub(u64::from(self.written)));
    }

    pub(super) fn fits(&self, len: usize, joins: bool, limits: Limits) -> bool {
        self.bytes_when_sealed(Some((len, joins))) <= u64::from(limits.container_bytes)
    }

    /// Adds a chunk to the region being filled. A new region gets the buffer that `begin` makes.
    pub(super) fn push(&mut self, fingerprint: Fingerprint, data: &[u8], begin: impl FnOnce() -> Vec<u8>) {
        let region = count(self.regions.len());
        let filling = self.filling.get_or_insert_with(|| Filling { raw: begin(), entries: Vec::with_capacity(64) });
        let (start, len_bytes) = (length(&filling.raw), length(data));
        filling.raw.extend_from_slice(data);
        filling.entries.push(TableEntry { fingerprint, len_bytes });
        self.entries += 1;
        if let MapEntry::Vacant(vacant) = self.index.entry(fingerprint) {
            vacant.insert(MemoryPlace { region, start, len_bytes });
        }
    }

    pub(super) fn cut(&mut self, buffers: &Arc<RegionPool>) -> Option<Cut> {
        let Filling { raw, entries } = self.filling.take()?;
        let number = count(self.regions.len());
        self.unplaced.insert(number);
        self.unplaced_bound_bytes += bound_bytes(entries.len(), raw.len());
        let raw = Arc::new(RegionBytes::pooled(raw, buffers));
        self.regions.push(Region::Compressing { raw: Arc::clone(&raw) });
        Some(Cut { number, entries, raw })
    }

    pub(super) fn close(&mut self, pool: &PoolId, buffers: &Arc<RegionPool>, cuts: &mut Vec<Cut>) -> u64 {
        let before = self.next_offset;
        self.full = true;
        cuts.extend(self.cut(buffers));
        self.seal_if_complete(pool);
        u64::from(self.next_offset - before)
    }

    /// Adds the table when no region can come before it any longer.
    pub(super) fn seal_if_complete(&mut self, pool: &PoolId) {
        let is_complete = self.full && self.unplaced.is_empty() && self.filling.is_none();
        if !is_complete || self.toc.is_some() || self.regions.is_empty() {
            return;
        }
        let frame = self.builder.encode_toc(pool);
        let (offset_bytes, len_bytes) = (self.next_offset, length(&frame));
        self.toc = Some((offset_bytes, len_bytes));
        self.next_offset = align(offset_bytes.saturating_add(len_bytes));
        let frame = Arc::new(Frame { head: frame, raw: None, len_bytes });
        self.pending.push_back(Piece { offset_bytes, frame, region: None });
    }

    pub(super) fn snapshot(&mut self) -> Arc<Table> {
        match &self.snapshot {
            Some((regions, table)) if *regions == self.placed_regions => Arc::clone(table),
            _ => {
                let table = Arc::new(self.builder.snapshot());
                self.snapshot = Some((self.placed_regions, Arc::clone(&table)));
                table
            }
        }
    }
}

/// Returns the next multiple of 4096. Offsets stay below 4 GiB - 4096: options are checked at open.
pub(in crate::containers) fn align(offset_bytes: u32) -> u32 {
    offset_bytes.next_multiple_of(ALIGNMENT_BYTES)
}

/// Upper bound of a region's frame, rounded up so that padding keeps the sum of bounds valid.
pub(in crate::containers) fn bound_bytes(entries: usize, raw_bytes: usize) -> u32 {
    align(u32::try_from(region_frame_bytes_bound(entries, raw_bytes)).unwrap_or(u32::MAX - ALIGNMENT_BYTES))
}

/// Returns the length as a `u32`: the container's size, a `u32`, bounds the lengths of frames and regions.
pub(super) fn length(bytes: &[u8]) -> u32 {
    u32::try_from(bytes.len()).unwrap_or(u32::MAX)
}

pub(super) fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

#[cfg(test)]
#[path = "state_tests.rs"]
mod tests;
