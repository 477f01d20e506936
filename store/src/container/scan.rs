//! Scanning: builds a container's table from its regions. It serves containers without a table of contents (still open
//! when the pool was left), containers with a damaged one, and rebuilds of an index (I-6).
//!
//! Steps, from offset 0:
//! 1. Read the header at the offset. For a sound region of this container, read its list and add it to the table. The
//!    list has its own checksum, so the payload is not read. Go on at the region's end.
//! 2. A table of contents of this container: the end.
//! 3. Zeros: a write-out ended here. Go on at the next multiple of 4096.
//! 4. Anything else (damage, or a frame of an earlier user of the slot): stop and report it.
//!
//! The container's `used_bytes` bounds the scan: everything below it was synced before it was recorded, so a stop
//! before it is damage. A caller without that number passes the slot's size and ignores the damage that the scan
//! reports in the unused rest. A region with a sound header and a damaged list is skipped, and the scan goes on behind
//! it.
//!
//! Why step 3 demands zeros: a region's payload is user data, and may look like a frame. Where frames follow each other
//! without a gap, or with a gap of zeros, no payload byte is ever taken for a header.
//!
//! Cost: one read of 8 KiB for a region of the usual size; no payload reads.

#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic))]

use super::region::{check_region_header, decode_meta};
use super::table::TableBuilder;
use super::{Table, WRITE_OUT_ALIGNMENT_BYTES, align_to_write_out};
use crate::error::{Result, StoreError};
use crate::frame::{Expect, FRAME_BODY_BYTES_MAX, FRAME_HEADER_BYTES, FrameHeader, FrameKind};
use crate::id::{ContainerId, ContainerKind, PoolId};

/// Bytes of one read: a header, the list of a region of the usual size, and the gap before it.
const WINDOW_BYTES: u64 = 2 * WRITE_OUT_ALIGNMENT_BYTES as u64;

/// The result of a scan.
#[derive(Clone, Debug)]
pub struct ScannedTable {
    /// The chunks of all sound regions.
    pub table: Table,
    /// End of the last frame that belongs to the container.
    pub valid_bytes: u64,
    /// The first damage that was found.
    pub damage: Option<StoreError>,
}

/// A read window: one call covers a header, its list and the gap before it.
struct Window<'a> {
    read: &'a mut dyn FnMut(u64, usize) -> Result<Vec<u8>>,
    used_bytes: u64,
    start: u64,
    bytes: Vec<u8>,
}

impl Window<'_> {
    /// Returns `len` bytes at `offset`; fewer only at the container's end.
    fn at(&mut self, offset: u64, len: u64) -> Result<&[u8]> {
        let wanted_end = offset.saturating_add(len).min(self.used_bytes);
        if offset < self.start || wanted_end > self.start + self.bytes.len() as u64 {
            let end = offset.saturating_add(len.max(WINDOW_BYTES)).min(self.used_bytes);
            let wanted = usize::try_from(end.saturating_sub(offset)).unwrap_or(0);
            self.bytes = (self.read)(offset, wanted)?;
            self.start = offset;
            if self.bytes.len() != wanted {
                let what = format!("container at {offset}");
                return Err(StoreError::corrupt(what, format!("{wanted} bytes"), self.bytes.len()));
            }
        }
        let from = usize::try_from(offset - self.start).unwrap_or(usize::MAX);
        let to = usize::try_from(wanted_end.saturating_sub(self.start)).unwrap_or(usize::MAX);
        Ok(self.bytes.get(from..to).unwrap_or_default())
    }
}

/// Scans the first `used_bytes` of `container` through `read(offset, len)`, which must give exactly `len` bytes.
/// [`ScannedTable::damage`] reports damaged bytes.
///
/// # Errors
/// Those of `read`.
pub fn scan_table(
    pool: &PoolId,
    container: ContainerId,
    kind: ContainerKind,
    used_bytes: u64,
    read: &mut dyn FnMut(u64, usize) -> Result<Vec<u8>>,
) -> Result<ScannedTable> {
    let used_bytes = used_bytes.min(u32::MAX.into());
    let mut window = Window { read, used_bytes, start: 0, bytes: Vec::new() };
    let mut builder = TableBuilder::new(container, kind);
    let mut damage = None;
    let (mut offset, mut valid_bytes) = (0_u64, 0_u64);
    while offset < used_bytes {
        let what = format!("frame at {offset} of container {container}");
        match own_header(pool, container, &what, window.at(offset, FRAME_HEADER_BYTES as u64)?, used_bytes - offset) {
            Ok(header) if header.kind == FrameKind::Toc => {
                valid_bytes = offset + header.frame_bytes();
                break;
            }
            Ok(header) => {
                let body = window.at(offset, FRAME_HEADER_BYTES as u64 + u64::from(header.meta_bytes))?;
                let meta = body.get(FRAME_HEADER_BYTES..).unwrap_or_default();
                let place = (offset, header.frame_bytes());
                if let Err(error) = add_region(&mut builder, &what, (container, kind), place, meta) {
                    damage.get_or_insert(error);
                }
                offset += header.frame_bytes();
                valid_bytes = offset;
            }
            Err(error) => {
                // The end of a write-out: zeros up to the next block. At a block's start there is no such gap to skip.
                let next = align_to_write_out(offset).min(used_bytes);
                if next == offset || window.at(offset, next - offset)?.iter().any(|&byte| byte != 0) {
                    damage.get_or_insert(error);
                    break;
                }
                offset = next;
            }
        }
    }
    Ok(ScannedTable { table: builder.build(), valid_bytes, damage })
}

/// Returns the header in `bytes` if its frame belongs to this container. A frame longer than `left_bytes` does not.
fn own_header(pool: &PoolId, container: ContainerId, what: &str, bytes: &[u8], left_bytes: u64) -> Result<FrameHeader> {
    let header = FrameHeader::decode(what, bytes)?;
    if header.kind == FrameKind::Toc {
        let expect = Expect { kind: FrameKind::Toc, pool: Some(pool), owner: Some(container.0) };
        header.check(what, &expect, FRAME_BODY_BYTES_MAX)?;
    } else {
        check_region_header(what, pool, container, &header)?;
    }
    if header.frame_bytes() > left_bytes {
        let expected = format!("a frame of at most {left_bytes} bytes");
        return Err(StoreError::corrupt(what, expected, header.frame_bytes()));
    }
    Ok(header)
}

fn add_region(
    builder: &mut TableBuilder,
    what: &str,
    (container, kind): (ContainerId, ContainerKind),
    (offset, frame_bytes): (u64, u64),
    meta: &[u8],
) -> Result<()> {
    let meta = decode_meta(what, container, meta)?;
    if meta.kind != kind {
        return Err(StoreError::corrupt(what, format!("a {kind:?} region"), format!("a {:?} region", meta.kind)));
    }
    let offset = u32::try_from(offset).map_err(|_| StoreError::corrupt(what, "an offset below 4 GiB", offset))?;
    builder.push(offset, u32::try_from(frame_bytes).unwrap_or(u32::MAX), meta.raw_bytes, &meta.entries)
}

#[cfg(test)]
#[path = "scan_tests.rs"]
mod tests;
