//! Compares the copies of recipe containers on the data root with the containers.
//!
//! Where the two differ, the checksums of their frames and the fingerprints of their nodes show which one is as it should be: a sound
//! copy is never replaced by a damaged container. Checksums alone do not show it: memory may have gone bad before they were made.

use std::sync::Arc;

use dedupfs_base::Result;
use dedupfs_content::Fingerprinter;
use dedupfs_store::container::{DecodedRegion, decode_region, decode_toc, scan_table};
use dedupfs_store::device::{DeviceFile, OpenMode};
use dedupfs_store::node::Node;
use dedupfs_store::{ContainerKind, ContainerRecord};

use super::{CopyDepth, ExportCheck, Pacer};
use crate::durability::export::{Exporter, mirror};

/// Bytes compared at a time.
const PIECE_BYTES: u32 = 1 << 20;
/// Bytes compared at each end with [`CopyDepth::Ends`].
const END_BYTES: u32 = 4096;

/// Verifies the copies of these containers up to their used bytes.
pub(super) fn verify(
    exporter: &Exporter,
    mut records: Vec<ContainerRecord>,
    depth: CopyDepth,
    pacer: &mut Pacer<'_, '_>,
    check: &mut ExportCheck,
) -> Result<()> {
    records.sort_unstable_by_key(|record| record.address);
    for records in records.chunk_by(|left, right| left.address.file == right.address.file) {
        let Some(first) = records.first() else { continue };
        let path = mirror::path(mirror::DIRECTORY, first.address.file);
        let file = exporter.device.open(&path, OpenMode::Read).map_err(|error| error.to_string());
        for record in records {
            let copy = Copy { exporter, record, file: file.as_ref(), path: &path };
            let why = copy.differs(depth, pacer)?;
            check.copies += 1;
            // A container removed meanwhile may have lost its slot to another.
            let Some(why) = why.filter(|_| exporter.stores.recipes.is_known(record.id)) else { continue };
            if copy.is_own_sound() {
                check.add(format!("the copy of recipe container {}: {why}", record.id));
                check.bad.copies.push(*record);
            } else if copy.is_copy_sound() || record.damaged {
                tracing::error!(container = %record.id, "damaged on the meta root; its copy on the data root is kept as it is");
            } else {
                check.bad.is_beyond = true;
                check.add(format!("recipe container {} is damaged on both roots: {why}", record.id));
            }
        }
    }
    Ok(())
}

struct Copy<'a> {
    exporter: &'a Exporter,
    record: &'a ContainerRecord,
    file: std::result::Result<&'a Arc<dyn DeviceFile>, &'a String>,
    path: &'a str,
}

impl Copy<'_> {
    fn read_copy(&self, offset_bytes: u32, len: u32) -> std::result::Result<Vec<u8>, String> {
        let file = self.file.map_err(String::clone)?;
        let start = u64::from(self.record.address.slot) * u64::from(self.exporter.slot_bytes);
        let mut bytes = vec![0; len as usize];
        file.read_exact_at(&mut bytes, start + u64::from(offset_bytes)).map_err(|error| error.to_string())?;
        Ok(bytes)
    }

    fn read_own(&self, offset_bytes: u32, len: u32) -> std::result::Result<Vec<u8>, String> {
        let bytes = self.exporter.stores.recipes.recorded_bytes(self.record, offset_bytes, len as usize);
        bytes.map_err(|error| error.to_string())
    }

    /// Returns how the copy differs from the container; `None` if it does not.
    fn differs(&self, depth: CopyDepth, pacer: &mut Pacer<'_, '_>) -> Result<Option<String>> {
        let used_bytes = self.record.used_bytes.min(self.exporter.slot_bytes);
        let mut ranges = Vec::new();
        match depth {
            CopyDepth::Content => {
                let mut at = 0;
                while at < used_bytes {
                    ranges.push((at, PIECE_BYTES.min(used_bytes - at)));
                    at += PIECE_BYTES;
                }
            }
            CopyDepth::Ends => {
                let end = END_BYTES.min(used_bytes);
                ranges.extend([(0, end), (used_bytes - end, end)].into_iter().filter(|(_, len)| *len > 0));
            }
        }
        for (offset, len) in ranges {
            pacer.advance(len.into())?;
            let own = self.read_own(offset, len);
            match self.read_copy(offset, len) {
                Err(error) => return Ok(Some(error)),
                Ok(copy) if own.as_ref() != Ok(&copy) => {
                    let slot = self.record.address.slot;
                    return Ok(Some(format!("{} has other bytes at {offset} of slot {slot}", self.path)));
                }
                Ok(_) => {}
            }
        }
        Ok(None)
    }

    fn is_copy_sound(&self) -> bool {
        is_sound(self.exporter, self.record, &|offset, len| self.read_copy(offset, len).ok())
    }

    fn is_own_sound(&self) -> bool {
        is_sound(self.exporter, self.record, &|offset, len| self.read_own(offset, len).ok())
    }
}

/// Whether every frame of a container is as written, and every node has its fingerprint.
fn is_sound(exporter: &Exporter, record: &ContainerRecord, read: &dyn Fn(u32, u32) -> Option<Vec<u8>>) -> bool {
    let pool = &exporter.pool;
    let Some(bytes) = read(0, record.used_bytes) else { return false };
    let slice = |offset: u64, len: u64| {
        let from = usize::try_from(offset).unwrap_or(usize::MAX);
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        bytes.get(from..from.saturating_add(len)).unwrap_or_default()
    };
    let mut give = |offset: u64, len: usize| Ok(slice(offset, len as u64).to_vec());
    let scanned = scan_table(pool, record.id, ContainerKind::Recipe, record.used_bytes.into(), &mut give);
    let Ok(scanned) = scanned else { return false };
    let is_region_sound = |region: &dedupfs_store::container::RegionPlace| {
        decode_region(pool, record.id, slice(region.offset_bytes.into(), region.frame_bytes.into()))
            .is_ok_and(|region| are_nodes_sound(&exporter.fingerprinter, &region))
    };
    // A table written after the export is not in the copy.
    let toc = record.toc.filter(|(offset, len)| offset.saturating_add(*len) <= record.used_bytes);
    let is_toc_sound =
        toc.is_none_or(|(offset, len)| decode_toc(pool, record.id, slice(offset.into(), len.into())).is_ok());
    scanned.damage.is_none() && is_toc_sound && scanned.table.regions.iter().all(is_region_sound)
}

fn are_nodes_sound(fingerprinter: &Fingerprinter, region: &DecodedRegion) -> bool {
    let mut rest = region.raw.as_slice();
    region.entries.iter().all(|entry| {
        let (bytes, behind) = rest.split_at_checked(entry.len_bytes as usize).unwrap_or_default();
        rest = behind;
        Node::decode(bytes).is_ok_and(|node| fingerprinter.of(&node.identity_bytes()) == entry.fingerprint)
    })
}
