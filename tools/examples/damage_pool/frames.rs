//! Frames in a file, their fields, and valid checksums after a change (docs/format.md).

use dedupfs_store::codec::{checksum, checksum_seeded};

/// Bytes of a frame's header.
pub const HEADER_BYTES: usize = 64;

/// A frame of a file.
#[derive(Clone, Copy)]
pub struct Frame {
    pub at: usize,
    pub kind: u8,
    pub meta_bytes: usize,
    pub payload_bytes: usize,
}

impl Frame {
    pub fn meta(&self) -> std::ops::Range<usize> {
        self.at + HEADER_BYTES..self.at + HEADER_BYTES + self.meta_bytes
    }

    pub fn payload(&self) -> std::ops::Range<usize> {
        self.meta().end..self.meta().end + self.payload_bytes
    }

    /// End of meta and payload. The zeros behind it belong to no frame.
    pub fn end(&self) -> usize {
        self.payload().end
    }
}

pub fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

pub fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

/// Finds all frames of a file with a valid checksum of the header.
pub fn find(bytes: &[u8]) -> Vec<Frame> {
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

/// Makes all checksums of a changed frame valid.
pub fn seal(bytes: &mut [u8], frame: &Frame) {
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
pub fn seal_of_file(bytes: &[u8], frames: &[Frame]) -> Option<u64> {
    let first = frames.first()?;
    let body = |frame: &Frame| &bytes[frame.at + 48..frame.at + 56];
    match first.kind {
        8 => Some(checksum(&frames.iter().flat_map(body).copied().collect::<Vec<_>>())),
        4 | 6 | 9 | 10 => Some(u64_at(bytes, first.at + 48)),
        _ => None,
    }
}
