//! The worst-case cost of content, before its actual size is known.

use std::ops::Add;

use dedupfs_content::Chunker;
use dedupfs_content::{IMAGE_SEGMENT_MIN_BYTES, SEGMENT_MAX_BYTES, SEGMENT_MIN_BYTES};
use dedupfs_store::container::{region_frame_bytes_bound, toc_bytes_bound};
use dedupfs_store::device::DIRECT_ALIGNMENT_BYTES;

/// Bytes on the meta root for each chunk: its entry in the recipe and in the tables of containers, its cell in the index, and its share
/// of the log.
const CHUNK_META_BYTES: u64 = 128;
/// Bytes of one entry of a recipe, with overhead.
const CHILD_BYTES: u64 = 56;
/// Bytes on the meta root for a run of content: its nodes up to the root, and the padding of their regions.
const RUN_META_BYTES: u64 = 16 << 10;
/// Bytes on the meta root for each change of the namespace that adds an entry: the pages that its commit copies. Many changes share
/// pages; once they are made, [`dedupfs_namespace::Namespace::commit_bytes`] is exact about that.
const CHANGE_META_BYTES: u64 = 32 << 10;
/// Chunks around a dirty extent that are cut anew.
const RECHUNKED: u64 = 3;

/// A number of bytes on each root.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Demand {
    /// On the data root.
    pub data_bytes: u64,
    /// On the meta root.
    pub meta_bytes: u64,
}

impl Add for Demand {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            data_bytes: self.data_bytes.saturating_add(other.data_bytes),
            meta_bytes: self.meta_bytes.saturating_add(other.meta_bytes),
        }
    }
}

impl Demand {
    /// Returns the demand of one change of the namespace, with `value_bytes` of values (attributes, link targets).
    pub(crate) const fn change(value_bytes: u64) -> Self {
        Self { data_bytes: 0, meta_bytes: CHANGE_META_BYTES + 2 * value_bytes }
    }
}

/// The worst-case cost of content in one pool.
#[derive(Clone, Copy, Debug)]
pub struct ContentCost {
    chunk_min_bytes: u64,
    chunk_max_bytes: u64,
    region_raw_bytes: u64,
    container_bytes: u64,
    /// Overhead of a frame with its padding.
    region_overhead_bytes: u64,
    toc_overhead_bytes: u64,
    entry_bytes: u64,
}

impl ContentCost {
    /// Makes the cost model for this chunker and these sizes.
    pub(crate) fn new(chunker: &dyn Chunker, container_bytes: u32, region_raw_bytes: u32) -> Self {
        let alignment = DIRECT_ALIGNMENT_BYTES as u64;
        Self {
            chunk_min_bytes: chunker.min_bytes().max(1) as u64,
            chunk_max_bytes: chunker.max_bytes() as u64,
            region_raw_bytes: u64::from(region_raw_bytes).max(1),
            container_bytes: u64::from(container_bytes).max(1),
            region_overhead_bytes: region_frame_bytes_bound(0, 0) as u64 + alignment,
            toc_overhead_bytes: toc_bytes_bound(0, 1) as u64 + alignment,
            // Each chunk has an entry in its region and one in the container's table.
            entry_bytes: 2 * (region_frame_bytes_bound(1024, 0) as u64 / 1024 + 1),
        }
    }

    /// Cost of `bytes` of new content in `runs` runs: files, or parts of files that are cut on their own.
    pub(crate) fn of_content(&self, bytes: u64, runs: u64) -> Demand {
        let chunks = bytes / self.chunk_min_bytes + 2 * runs;
        // A chunk that does not fit leaves a region or container up to half empty.
        let regions = 2 * bytes / self.region_raw_bytes + 2 * runs;
        let containers = 2 * bytes / self.container_bytes + runs;
        // Chunks of the least length leave room for the shorter segments of images.
        let segments = bytes / SEGMENT_MIN_BYTES + runs;
        Demand {
            data_bytes: bytes
                + chunks * self.entry_bytes
                + regions * self.region_overhead_bytes
                + containers * self.toc_overhead_bytes,
            meta_bytes: chunks * CHUNK_META_BYTES + segments * RUN_META_BYTES,
        }
    }

    /// Returns the bytes of content that `meta_bytes` on the meta root can describe, for usual chunk sizes.
    pub(crate) fn described_bytes(&self, meta_bytes: u64) -> u64 {
        // The mean lies between the shortest and the longest chunk.
        meta_bytes.saturating_mul((self.chunk_min_bytes + self.chunk_max_bytes) / 2) / CHUNK_META_BYTES
    }

    /// Returns the bytes of content that fit into `bytes` of one disk, together with their metadata.
    pub(crate) fn stored_bytes(&self, bytes: u64) -> u64 {
        let mean_bytes = (self.chunk_min_bytes + self.chunk_max_bytes) / 2;
        let stored = u128::from(bytes) * u128::from(mean_bytes) / u128::from(mean_bytes + CHUNK_META_BYTES);
        u64::try_from(stored).unwrap_or(bytes)
    }

    /// Cost of `bytes` written at random in `extents` extents. The surroundings of each extent are cut and described anew.
    pub(crate) fn of_extents(&self, bytes: u64, extents: u64) -> Demand {
        let rechunked = self.of_content(bytes + extents * RECHUNKED * self.chunk_max_bytes, extents);
        // The rewritten segment of the extent: its chunks are usually at least half the mean size.
        let segment_bytes = SEGMENT_MAX_BYTES / (2 * self.chunk_min_bytes) * CHILD_BYTES;
        Demand { meta_bytes: rechunked.meta_bytes + extents * segment_bytes, ..rechunked }
    }

    /// Cost of one write of `bytes` anywhere in a file.
    pub(crate) fn of_write(&self, bytes: u64) -> Demand {
        self.of_extents(bytes, 1) + Demand::change(0)
    }

    /// Cost of sharing `bytes` of another file. Both ends are cut anew, or everything is copied if it is less than `copied_bytes_max`;
    /// the shared part is listed.
    pub(crate) fn of_clone(&self, bytes: u64, copied_bytes_max: u64) -> Demand {
        let listed = self.of_lists(bytes / IMAGE_SEGMENT_MIN_BYTES);
        // The file may shrink before the copy: then at most `copied_bytes_max` is copied.
        self.of_extents(bytes.min(copied_bytes_max), 2) + listed + Demand::change(0)
    }

    /// Cost of the lists of a file with so many pieces.
    pub(crate) fn of_lists(&self, pieces: u64) -> Demand {
        Demand { meta_bytes: pieces * CHILD_BYTES, data_bytes: 0 }
    }

    /// Cost of truncating a file: the end of its last chunk and the segment around it are stored anew.
    pub(crate) fn of_cut(&self) -> Demand {
        self.of_extents(0, 1) + Demand::change(0)
    }
}
