//! Content-defined chunking: cutting a stream of bytes into chunks.
//!
//! Pure computation: no I/O, no state between calls, no allocation. A cut depends only on the bytes from the start of
//! the chunk on, at most [`Chunker::max_bytes`] of them, so that
//! - the same bytes give the same cuts however they arrive (in one buffer or piece by piece), and
//! - after an insertion or deletion the cuts fall back into step within a few chunks.
//!
//! Steps of a caller: gather at least `max_bytes` (or reach the end of the stream), ask [`Chunker::next_cut`] for the
//! length of the chunk at the start, drop that many bytes, repeat.
//!
//! **Boundaries are part of the pool format.** Another boundary for the same bytes destroys deduplication against all
//! stored data, without any error. So the crates that compute them are pinned to exact versions, the parameters below
//! never change for a given [`ChunkerKind`], and golden tests pin the boundaries.
//!
//! | kind | shortest | longest | mean on random data | cost |
//! |---|---|---|---|---|
//! | `mincdc` | average / 2 | average * 3 / 2 | 2 to 3% above the average | SIMD minimum of a window: a fraction of a memory copy's speed |
//! | `fastcdc` | average / 4 | average * 4 | the average, 6% less between powers of two | one table lookup and two tests a byte |

mod fast_cdc;
mod min_cdc;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use dedupfs_store::superblock::{CHUNK_SIZE_BYTES, ChunkerKind};

pub(crate) use fast_cdc::FastCdc;
pub(crate) use min_cdc::MinCdc;

/// A content-defined chunker with fixed parameters.
pub trait Chunker: Send + Sync {
    /// Length of the longest chunk: this many bytes always suffice to decide on a cut.
    fn max_bytes(&self) -> usize;

    /// Length of the shortest chunk, except the last one of a stream.
    fn min_bytes(&self) -> usize;

    /// Approximate mean length of the chunks of random data.
    fn average_bytes(&self) -> usize;

    /// Returns the length of the chunk at the start of `data`, `1..=max_bytes`. `at_end` says that the stream ends with
    /// `data`.
    ///
    /// `None` if `data` is empty, or too short to decide: shorter than `max_bytes` and not at the end.
    fn next_cut(&self, data: &[u8], at_end: bool) -> Option<usize>;
}

/// Whether `data` suffices to decide on a cut; all chunkers share this rule.
const fn can_decide(data: &[u8], at_end: bool, max_bytes: usize) -> bool {
    data.len() >= max_bytes || (at_end && !data.is_empty())
}

/// Returns the chunker of a pool.
///
/// # Panics
/// If `average_bytes` lies outside of [`CHUNK_SIZE_BYTES`]; a superblock with such a size is refused before.
#[must_use]
pub fn chunker(kind: ChunkerKind, average_bytes: u32) -> Arc<dyn Chunker> {
    assert!(
        CHUNK_SIZE_BYTES.contains(&average_bytes),
        "average chunk size of {average_bytes} bytes, expected {CHUNK_SIZE_BYTES:?}"
    );
    match kind {
        ChunkerKind::MinCdc => Arc::new(MinCdc::new(average_bytes as usize)),
        ChunkerKind::FastCdc => Arc::new(FastCdc::new(average_bytes as usize)),
    }
}
