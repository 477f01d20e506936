//! Frames in a file, their fields, and valid checksums after a change (docs/format.md).

use dedupfs_store::codec::{checksum, checksum_seeded};

pub(crate) const HEADER_BYTES: usize = 64;

#[derive(Clone, Copy)]
pub(crate) struct Frame {
    pub(crate) at: usize,
    pub(crate) kind: u8,
    pub(crate) meta_bytes: usize,
    pub(crate) payload_bytes: usize,
}

impl Frame {
    pub(crate) fn meta(&self) -> std::ops::Range<usize> {
        self.at + HEADER_BYTES..self.at + HEADER_BYTES + self.meta_bytes
    }

    pub(crate) fn payload(&self) -> std::ops::Range<usize> {
        self.meta().end..self.meta().end + self.payload_bytes
    }

    /// End of meta and payload. The zeros behind it belong to no frame.
    pub(crate) fn end(&self) -> usize {
        self.payload().end
    }
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

pub(crate) fn find(bytes: &[u8]) -> Vec<Frame> {
    let (mut found, mut at) = (Vec::new(), 0);
    while at + HEADER_BYTES <= bytes.len() {
        let is_header = &bytes[at..at + 4] == b"DDFS" && checksum(&bytes[at..at + 56]) == u64_at(bytes, at + 56);
        let frame = Frame {
            at,
            kind: bytes[at + 4],
            meta_bytes: u32_at(bytes, at + 32) as usize,
            payload_bytes: u32_at(bytes, at + 36) as usize,
        };
        if is_header && frame.end() <= bytes.len() {
            found.push(frame);
            at = frame.end().next_multiple_of(HEADER_BYTES);
        } else {
            at += HEADER_BYTES;
        }
    }
    found
}

pub(crate) fn seal(bytes: &mut [u8], frame: &Frame) {
    if frame.kind == 2 && frame.meta_bytes > 8 {
        // A region's list has a checksum of its own.
        let sum_at = frame.meta().end - 8;
        let sum = checksum_seeded(&bytes[frame.meta().start..sum_at], u64_at(bytes, frame.at + 24));
        bytes[sum_at..sum_at + 8].copy_from_slice(&sum.to_le_bytes());
    }
    let body = checksum(&bytes[frame.meta().start..frame.end()]);
    bytes[frame.at + 48..frame.at + 56].copy_from_slice(&body.to_le_bytes());
    let header = checksum(&bytes[frame.at..frame.at + 56]);
    bytes[frame.at + 56..frame.at + 64].copy_from_slice(&header.to_le_bytes());
}

/// Returns the checksum by which a manifest names an index file: of all frames for an open tanker, otherwise of the first.
pub(crate) fn seal_of_file(bytes: &[u8], frames: &[Frame]) -> Option<u64> {
    let first = frames.first()?;
    let body = |frame: &Frame| &bytes[frame.at + 48..frame.at + 56];
    match first.kind {
        8 => Some(checksum(&frames.iter().flat_map(body).copied().collect::<Vec<_>>())),
        4 | 6 | 9 | 10 => Some(u64_at(bytes, first.at + 48)),
        _ => None,
    }
}
