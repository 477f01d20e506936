//! Whether detection in stages pays: the seconds of the index against those of a second reading.
//!
//! In the order of a stream each lookup that misses memory costs a read of the index, and how many do depends on the locality of the data and
//! the memory for filters: it is counted. In stages the index is read once from its begin to its end, and new chunks are read twice.

use std::os::linux::fs::MetadataExt as _;
use std::path::Path;

use dedupfs::stats::PoolStats;
use dedupfs_batch::plan::Staged;

// The emulated disk of `dedupfs-bench seeking` takes 8 ms in the mean; `docs/index.md` counts 54 bytes on disk for each fingerprint. The rates are
// assumptions.

/// Seconds of a read of the index from a disk that seeks, and from one that does not.
const SECS_OF_A_SEEK: f64 = 0.008;
const SECS_OF_A_READ: f64 = 0.000_1;
/// Bytes a second of a source, and of the index in the order of its files.
const SOURCE_BYTES_PER_SEC: f64 = 150e6;
const INDEX_BYTES_PER_SEC: f64 = 100e6;
/// Bytes of the index for each chunk.
const CELL_BYTES: f64 = 54.0;
/// With fewer chunks asked since the pool was mounted nothing is known.
const CHUNKS_MIN: u64 = 100_000;

/// What the rule looks at.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Facts {
    /// Chunks that the filters were asked for since the pool was mounted.
    pub(crate) asked_chunks: u64,
    /// Reads of the index for them.
    pub(crate) index_reads: u64,
    /// Whether the index lies on a disk that seeks.
    pub(crate) seeks: bool,
    /// Chunks of the pool.
    pub(crate) chunks: u64,
    /// Mean length of a chunk.
    pub(crate) chunk_bytes: u64,
    /// Whether the pool compares bytes.
    pub(crate) compares: bool,
}

/// The wish of a plan, and the facts that decide if it has none.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Choice {
    pub(crate) wish: Staged,
    pub(crate) facts: Facts,
}

impl Choice {
    /// Returns whether a disk is detected in stages of which so much is to be read, and why.
    pub(crate) fn of(&self, bytes: u64) -> (bool, String) {
        // Only the superuser may take content by its fingerprints.
        if !rustix::process::geteuid().is_root() {
            return (false, "only the superuser may name chunks".to_owned());
        }
        match self.wish {
            Staged::Auto => self.facts.decide(bytes),
            Staged::Always => (true, "the plan says so".to_owned()),
            Staged::Never => (false, "the plan says so".to_owned()),
        }
    }
}

impl Facts {
    pub(crate) fn of(stats: &PoolStats, index_root: &Path) -> Self {
        let asked = stats.filters.iter().map(|filter| filter.asked).max().unwrap_or(0);
        let reads = stats.filters.iter().map(|filter| filter.reads).sum();
        Self {
            asked_chunks: asked,
            index_reads: reads,
            seeks: rotates(index_root),
            chunks: stats.unique_chunks + stats.unreferenced_chunks,
            chunk_bytes: stats.chunk_size_bytes,
            compares: stats.filters.iter().any(|filter| filter.name == "compare"),
        }
    }

    /// Returns the seconds of reading the index once in the order of its files.
    pub(crate) fn index_pass_secs(&self) -> f64 {
        self.chunks as f64 * CELL_BYTES / INDEX_BYTES_PER_SEC
    }

    /// Returns whether detection in stages takes less time for so many changed bytes, and the reason in words.
    pub(crate) fn decide(&self, changed_bytes: u64) -> (bool, String) {
        if self.compares {
            return (false, "the pool compares bytes, and trusts no fingerprint".to_owned());
        }
        if self.asked_chunks < CHUNKS_MIN {
            let why = "since the pool was mounted, too few chunks were looked up to know the index";
            return (false, format!("{why}: {} of {CHUNKS_MIN}", self.asked_chunks));
        }
        let reads_of_a_chunk = self.index_reads as f64 / self.asked_chunks as f64;
        let read_secs = if self.seeks { SECS_OF_A_SEEK } else { SECS_OF_A_READ };
        let chunks = changed_bytes as f64 / self.chunk_bytes.max(1) as f64;
        let inline_secs = chunks * reads_of_a_chunk * read_secs;
        let staged_secs = changed_bytes as f64 / SOURCE_BYTES_PER_SEC + self.index_pass_secs();
        let wins = staged_secs < inline_secs;
        let reason = format!(
            "of 1,000 chunks {:.0} cost a read of the index, {} in all; in stages {}",
            reads_of_a_chunk * 1000.0,
            seconds(inline_secs),
            seconds(staged_secs)
        );
        (wins, reason)
    }
}

fn seconds(secs: f64) -> String {
    if secs < 10.0 { format!("{secs:.1} s") } else { format!("{secs:.0} s") }
}

/// Whether the disk below a path turns. One that cannot be seen counts as one that does not.
fn rotates(path: &Path) -> bool {
    let Ok(metadata) = std::fs::metadata(path) else { return false };
    let (major, minor) = (rustix::fs::major(metadata.st_dev()), rustix::fs::minor(metadata.st_dev()));
    let device = format!("/sys/dev/block/{major}:{minor}");
    // A partition has the queue of its disk.
    ["queue", "../queue"].iter().any(|queue| {
        std::fs::read_to_string(format!("{device}/{queue}/rotational")).is_ok_and(|flag| flag.trim() == "1")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const GB: u64 = 1_000_000_000;

    fn facts(reads: u64, seeks: bool) -> Facts {
        // An index of a TiB.
        Facts {
            asked_chunks: 1_000_000,
            index_reads: reads,
            seeks,
            chunks: 134_000_000,
            chunk_bytes: 8192,
            compares: false,
        }
    }

    #[test]
    fn detection_in_stages_wins_on_a_disk_that_seeks_without_locality_alone() {
        assert!(facts(1_000_000, true).decide(GB).0, "a read for each chunk");
        assert!(facts(60_000, true).decide(10 * GB).0, "filters with few bits");
        assert!(!facts(3_000, true).decide(10 * GB).0, "locality");
        assert!(!facts(1_000_000, true).decide(GB / 100).0, "too little is changed");
        assert!(!facts(60_000, false).decide(10 * GB).0, "no seeks");
        assert!(!Facts::default().decide(10 * GB).0);
        assert!(facts(1_000_000, true).decide(GB).1.contains("1000 cost a read"));
    }
}
