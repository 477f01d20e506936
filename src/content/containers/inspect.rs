//! Inspecting whole containers: every frame is checked, and every chunk is judged by its fingerprint.
//!
//! 1. [`ContainerStore::read_whole`] reads a closed container in one read. If that fails, it reads the container in
//!    pieces and tries each a few times. Pieces that stay unreadable become zeros, which fit no checksum, and are
//!    noted.
//! 2. [`ContainerStore::inspect`] works on those bytes alone, so it can run on another thread. It decodes the table,
//!    the chain of region headers and each region, and gives the chunks to a [`Judge`].
//!
//! A chunk is bad if a reader would get other bytes than its fingerprint says. Readers believe a sound table, otherwise
//! the scan. Damage that costs no chunk (padding, a table beside sound regions) is only noted.

use std::collections::HashSet;

use dedupfs_base::EngineError;
use dedupfs_store::container::{RegionPlace, Table, TableEntry, decode_region, decode_toc, scan_table};
use dedupfs_store::device::{AlignedBuffer, DIRECT_ALIGNMENT_BYTES};
use dedupfs_store::{ContainerId, ContainerRecord, Fingerprint, StoreError};

use super::ContainerStore;
use super::directory::{KnownContainer, PARTS};
use super::shared::Shared;

/// Bytes of one read after the whole container could not be read at once.
const PIECE_BYTES: usize = 64 << 10;
/// Tries for each piece: a disk may succeed at the third try.
const PIECE_TRIES: usize = 3;

/// Judges whether each chunk of a region matches its fingerprint. Arguments: the region's entries, and their bytes in
/// the same order.
pub(crate) type Judge<'j> = dyn Fn(&[TableEntry], &[u8]) -> Vec<bool> + 'j;

/// A chunk or node whose stored bytes do not match its fingerprint.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BadEntry {
    pub fingerprint: Fingerprint,
    /// The reason.
    pub why: String,
}

/// The result of inspecting a container.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Inspection {
    /// The bad chunks or nodes.
    pub bad: Vec<BadEntry>,
    /// Number of chunks or nodes that are sound.
    pub sound: u64,
    /// Uncompressed bytes that were judged.
    pub judged_bytes: u64,
    /// The sound chunks or nodes, if the container's full list of chunks is unknown: all others that the index places
    /// here are bad.
    pub sound_of_unknown: Option<HashSet<Fingerprint>>,
    /// All damage found, also damage that costs no chunk.
    pub damage: Vec<String>,
}

/// The bytes of a container, as far as the disk gives them.
#[derive(Default, Debug)]
pub struct WholeContainer {
    /// All bytes from its beginning to its end; unreadable pieces are zeros. Aligned, so that they come from the medium: the page cache
    /// may have sound bytes of what rots there.
    pub bytes: AlignedBuffer,
    /// The error of the read, if there was one.
    pub unread: Option<EngineError>,
}

impl WholeContainer {
    /// Whether the device failed. A file that is too short or missing does not count.
    #[must_use]
    pub fn device_failed(&self) -> bool {
        matches!(self.unread, Some(EngineError::Store(StoreError::Io { .. })))
    }
}

impl ContainerStore {
    /// The record of a closed container.
    #[must_use]
    pub fn closed_record(&self, container: ContainerId) -> Option<ContainerRecord> {
        match self.shared.known(container) {
            Some(KnownContainer::Closed(record)) => Some(record),
            _ => None,
        }
    }

    /// Returns all records of closed containers in disk order.
    #[must_use]
    pub fn closed_in_disk_order(&self) -> Vec<ContainerRecord> {
        let mut records: Vec<_> = self.shared.directory.read().closed().copied().collect();
        records.sort_by_key(|record| (record.address.file, record.address.slot));
        records
    }

    /// Calls `visit` with the records of all closed containers, in no order. A container that closes or goes during the call
    /// may be missed. No lock is held during a visit: the directory is copied a part at a time.
    pub fn for_each_closed(&self, visit: &mut dyn FnMut(&ContainerRecord)) {
        for part in 0..PARTS {
            let records: Vec<ContainerRecord> = self.shared.directory.read().closed_part(part).copied().collect();
            records.iter().for_each(&mut *visit);
        }
    }

    /// Reads a whole container into `into` and uses its buffer again. Returns false if the container is gone.
    pub fn read_whole(&self, record: &ContainerRecord, into: &mut WholeContainer) -> bool {
        let len = record.used_bytes.min(self.shared.options.container_bytes) as usize;
        into.bytes.resize_zeroed(len.next_multiple_of(DIRECT_ALIGNMENT_BYTES));
        into.unread = None;
        if let Err(error) = self.shared.slots.read_into(record.address, 0, &mut into.bytes) {
            into.unread = Some(error.into());
            for (number, piece) in into.bytes.chunks_mut(PIECE_BYTES).enumerate() {
                let offset = (number * PIECE_BYTES) as u32;
                let outcome =
                    (0..PIECE_TRIES).find_map(|_| self.shared.slots.read_into(record.address, offset, piece).ok());
                if outcome.is_none() {
                    piece.fill(0);
                    tracing::warn!(container = %record.id, offset, bytes = piece.len(), "a piece of a container cannot be read");
                }
            }
        }
        into.bytes.resize_zeroed(len);
        self.is_known(record.id)
    }

    /// Inspects a container's bytes. If the container was removed before it was read, the result means nothing: check
    /// [`is_known`](Self::is_known) afterwards.
    #[must_use]
    pub fn inspect(&self, record: &ContainerRecord, whole: &WholeContainer, judge: &Judge<'_>) -> Inspection {
        self.shared.inspect(record, whole, judge)
    }
}

impl Shared {
    fn inspect(&self, record: &ContainerRecord, whole: &WholeContainer, judge: &Judge<'_>) -> Inspection {
        let pool = &self.options.pool;
        let mut found = Inspection::default();
        found.damage.extend(whole.unread.iter().map(|error| format!("cannot be read: {error}")));
        let bytes = &*whole.bytes;
        let mut read = |offset: u64, len: usize| {
            let from = usize::try_from(offset).unwrap_or(usize::MAX);
            Ok(bytes.get(from..from.saturating_add(len)).unwrap_or_default().to_vec())
        };
        let scanned = scan_table(pool, record.id, record.kind, u64::from(record.used_bytes), &mut read);
        let (scan, scan_damage) = match scanned {
            Ok(scanned) => (Some(scanned.table), scanned.damage),
            Err(error) => (None, Some(error)),
        };
        let toc = record.toc.map(|(offset, len)| {
            let (from, len) = (offset as usize, len as usize);
            decode_toc(pool, record.id, bytes.get(from..from.saturating_add(len)).unwrap_or_default())
        });
        let is_whole = matches!(toc, Some(Ok(_))) || scan_damage.is_none();
        found.damage.extend(scan_damage.as_ref().map(ToString::to_string));
        let table = match toc {
            Some(Ok(toc)) => Some(toc),
            Some(Err(error)) => {
                found.damage.push(format!("table of contents: {error}"));
                scan
            }
            None => scan,
        };
        let mut sound = (!is_whole).then(HashSet::new);
        if let Some(table) = &table {
            if is_whole
                && (table.entries.len() as u64, table.chunk_bytes()) != (record.chunks.into(), record.chunk_bytes)
            {
                found.damage.push(format!(
                    "{} chunks of {} bytes, recorded {} of {}",
                    table.entries.len(),
                    table.chunk_bytes(),
                    record.chunks,
                    record.chunk_bytes
                ));
            }
            for (number, region) in table.regions.iter().enumerate() {
                self.inspect_region(record, bytes, table, (number, region), judge, &mut found, sound.as_mut());
            }
        }
        found.sound_of_unknown = sound;
        found
    }

    #[expect(clippy::too_many_arguments, reason = "one caller, right above")]
    fn inspect_region(
        &self,
        record: &ContainerRecord,
        bytes: &[u8],
        table: &Table,
        (number, region): (usize, &RegionPlace),
        judge: &Judge<'_>,
        found: &mut Inspection,
        mut sound: Option<&mut HashSet<Fingerprint>>,
    ) {
        let entries = table.region_entries(region);
        let from = region.offset_bytes as usize;
        let frame = bytes.get(from..from.saturating_add(region.frame_bytes as usize)).unwrap_or_default();
        let decoded = decode_region(&self.options.pool, record.id, frame).and_then(|decoded| {
            if decoded.entries == entries && decoded.kind == record.kind {
                return Ok(decoded.raw);
            }
            let what = format!("region at {from} of container {}", record.id);
            Err(StoreError::corrupt(what, "the chunks of the container's table", "others"))
        });
        let mut bad = |entry: &TableEntry, offset: u32, why: &str| {
            // If a chunk is there twice, readers get the first.
            let first = table.find(&entry.fingerprint);
            if first.is_some_and(|place| (place.region as usize, place.offset_in_region) == (number, offset)) {
                found.bad.push(BadEntry { fingerprint: entry.fingerprint, why: why.to_owned() });
            }
        };
        let mut offset = 0_u32;
        match decoded {
            Ok(raw) => {
                let verdicts = judge(entries, &raw);
                found.judged_bytes += raw.len() as u64;
                for (position, entry) in entries.iter().enumerate() {
                    if verdicts.get(position).copied().unwrap_or(false) {
                        found.sound += 1;
                        if let Some(sound) = &mut sound {
                            sound.insert(entry.fingerprint);
                        }
                    } else {
                        bad(entry, offset, "its bytes do not match its fingerprint");
                    }
                    offset = offset.saturating_add(entry.len_bytes);
                }
                if verdicts.iter().any(|is_sound| !is_sound) {
                    found.damage.push(format!("region at {from}: chunks do not match their fingerprints"));
                }
            }
            Err(error) => {
                let why = error.to_string();
                for entry in entries {
                    bad(entry, offset, &why);
                    offset = offset.saturating_add(entry.len_bytes);
                }
                found.damage.push(why);
            }
        }
    }
}
