//! The bytes that a batch gives to be written.

use std::sync::Arc;

use super::{ALIGNMENT_BYTES, Batch, Frame, Piece};
use crate::containers::buffers::RegionBytes;

fn bytes(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + seed * 31) as u8 | 1).collect()
}

/// Three frames with a gap before the last, and their bytes.
fn pieces() -> (Vec<Piece>, Vec<u8>) {
    let mut content = Vec::new();
    let mut pieces = Vec::new();
    for (number, (head_bytes, raw_bytes, gap_bytes)) in
        [(130, 5000, 0), (4096, 0, 0), (64, 9001, 192)].into_iter().enumerate()
    {
        content.resize(content.len() + gap_bytes, 0);
        let (head, raw) = (bytes(number, head_bytes), bytes(number + 9, raw_bytes));
        let offset_bytes = content.len() as u32;
        content.extend_from_slice(&head);
        content.extend_from_slice(&raw);
        content.resize(content.len().next_multiple_of(64), 0);
        let raw = (raw_bytes > 0).then(|| Arc::new(RegionBytes::owned(raw)));
        let frame = Arc::new(Frame::of_region(head, raw, content.len() as u32 - offset_bytes));
        pieces.push(Piece { offset_bytes, frame, region: Some(number as u32) });
    }
    (pieces, content)
}

#[test]
fn a_batch_gives_the_bytes_of_its_range_wherever_that_begins_and_ends() {
    let (pieces, mut content) = pieces();
    let end = (content.len() as u32).next_multiple_of(ALIGNMENT_BYTES);
    content.resize(end as usize, 0);
    // Every boundary between the parts of frames, its neighbours, and multiples of 512.
    let mut bounds: Vec<u32> = pieces
        .iter()
        .flat_map(|piece| {
            let head_end = piece.offset_bytes + piece.frame.head.len() as u32;
            let raw_end = head_end + piece.frame.raw().map_or(0, |raw| raw.len() as u32);
            [piece.offset_bytes, head_end, raw_end, piece.end()]
        })
        .flat_map(|bound| bound.saturating_sub(1)..=bound + 1)
        .chain((0..=end).step_by(512))
        .filter(|bound| *bound <= end)
        .collect();
    bounds.sort_unstable();
    bounds.dedup();
    for &from in &bounds {
        for &to in bounds.iter().filter(|to| **to > from) {
            // As `begin_write` and `finish_write` leave them.
            let wanted = pieces.iter().filter(|piece| piece.offset_bytes < to && piece.end() > from).cloned().collect();
            let mut given = Vec::new();
            Batch { range: from..to, pieces: wanted }.gather(&mut |part| given.extend_from_slice(part));
            assert!(given == content[from as usize..to as usize], "{from}..{to}");
        }
    }
}
