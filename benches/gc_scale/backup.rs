//! The backed-up data: an image in segments of 512 chunks. Each version changes some of them.
//!
//! A fifth of the image, in runs of 64 segments, takes four fifths of the changes. A changed segment gets some new
//! chunks (a run of 32 to 480 of its 512, 256 on average) and keeps the others: a new recipe segment refers to all 512.
//! Versions share an unchanged segment as a whole, which counts nothing.
//!
//! All of this follows from the numbers of segments and generations, so that hardly anything is kept in memory.

use dedupfs_index::Location;
use dedupfs_store::{ContainerId, Fingerprint};

/// Chunks of a segment.
pub(crate) const SEGMENT_CHUNKS: u16 = 512;

/// Fewest and most new chunks in a changed segment.
const CHANGE_CHUNKS_MIN: u64 = 32;
const CHANGE_CHUNKS_MAX: u64 = 480;

const SEGMENTS_PER_RUN: u32 = 64;

/// The last steps of splitmix64.
fn mix(number: u64) -> u64 {
    let mixed = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// A chunk: its place in the image, and the generation of its segment that made it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Chunk {
    pub(crate) segment: u32,
    pub(crate) generation: u16,
    pub(crate) position: u16,
}

impl Chunk {
    fn number(self) -> u64 {
        (u64::from(self.segment) << 32) | (u64::from(self.generation) << 16) | u64::from(self.position)
    }

    pub(crate) fn fingerprint(self) -> Fingerprint {
        let mut bytes = [0; 32];
        let mut state = self.number().wrapping_mul(0xd129_0d3c_8b2a_71e5) ^ 0x5851_f42d_4c95_7f2d;
        for word in bytes.chunks_exact_mut(8) {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            word.copy_from_slice(&mix(state).to_le_bytes());
        }
        Fingerprint(bytes)
    }

    /// Returns the length: 4 to 12 KiB.
    pub(crate) fn len_bytes(self) -> u32 {
        4096 + (mix(!self.number()) % 8192) as u32
    }

    pub(crate) fn location(self, container: ContainerId) -> Location {
        Location::new(container, self.len_bytes())
    }
}

/// Adjacent chunks of one generation of a segment, as a container's table lists them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Extent {
    pub(crate) segment: u32,
    pub(crate) generation: u16,
    pub(crate) start: u16,
    pub(crate) len: u16,
}

impl Extent {
    pub(crate) fn chunks(self) -> impl Iterator<Item = Chunk> {
        let Self { segment, generation, start, len } = self;
        (start..start + len).map(move |position| Chunk { segment, generation, position })
    }
}

/// The image.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Image {
    pub(crate) segments: u32,
    /// Share of the image's segments that each version changes.
    pub(crate) changed_percent: f64,
}

impl Image {
    /// Returns the image of which `versions` versions have about `chunks` different chunks.
    pub(crate) fn of(chunks: u64, versions: u32, changed_percent: f64) -> Self {
        let new_share = changed_percent / 100.0 * 0.5;
        let segments = chunks as f64 / (1.0 + f64::from(versions - 1) * new_share) / f64::from(SEGMENT_CHUNKS);
        Self { segments: segments as u32, changed_percent }
    }

    /// Returns the segments that a version changes, in order. Version 0 makes all of them.
    pub(crate) fn changed(self, version: u32) -> impl Iterator<Item = u32> {
        let changes = move |segment: u32| {
            let is_hot = mix(u64::from(segment / SEGMENTS_PER_RUN) ^ (0x4077 << 40)).is_multiple_of(5);
            let percent = self.changed_percent * if is_hot { 4.0 } else { 0.25 };
            let drawn = mix((u64::from(segment) << 20) ^ u64::from(version)) % (1 << 32);
            version == 0 || (drawn as f64) < percent / 100.0 * (1_u64 << 32) as f64
        };
        (0..self.segments).filter(move |segment| changes(*segment))
    }
}

/// Returns the new chunks of a generation of a segment, in one or two extents.
pub(crate) fn made(segment: u32, generation: u16) -> impl Iterator<Item = Extent> {
    let all = u64::from(SEGMENT_CHUNKS);
    let (start, len) = if generation == 0 {
        (0, all)
    } else {
        let drawn = mix((u64::from(segment) << 16) ^ u64::from(generation) ^ (0x9a3d << 48));
        (drawn % all, CHANGE_CHUNKS_MIN + (drawn >> 32) % (CHANGE_CHUNKS_MAX - CHANGE_CHUNKS_MIN + 1))
    };
    let piece = move |start: u64, end: u64| {
        let (start, len) = (start as u16, end.saturating_sub(start) as u16);
        Extent { segment, generation, start, len }
    };
    let wrapped = (start + len).saturating_sub(all);
    [piece(0, wrapped), piece(start, (start + len).min(all))].into_iter().filter(|piece| piece.len > 0)
}

/// Returns all chunks of a generation of a segment: the newest at each position.
pub(crate) fn content(segment: u32, generation: u16) -> impl Iterator<Item = Chunk> {
    let mut generations = [0; SEGMENT_CHUNKS as usize];
    for generation in 1..=generation {
        for Extent { start, len, .. } in made(segment, generation) {
            generations[usize::from(start)..usize::from(start + len)].fill(generation);
        }
    }
    (0..SEGMENT_CHUNKS).zip(generations).map(move |(position, generation)| Chunk { segment, generation, position })
}
