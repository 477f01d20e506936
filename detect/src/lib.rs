//! Detection of duplicates in stages, for machines that have little memory.
//!
//! Machines read the changed segments of their disks, cut them into chunks, and ask which chunks the pool knows: in the order of fingerprints, one
//! partition at a time. So a machine needs memory for one partition alone, and the index of the pool is read from its begin to its end. Then each
//! machine reads again only the chunks that are new. Prefer `dedupfs batch` on a machine that has memory for filters: it reads once.
//!
//! The pool checks answers, and the bytes of new chunks that come from other machines. It cannot check that a disk has the chunk that a record names at its place: a mistake there is wrong content. So blocks of spools and parcels
//! bear sums, and each machine compares a sum over all chunks that it cut with one over those that come back.
//!
//! Source: "Parallel batch deduplication for VM backup", section 3. ("The paper" in this crate.)
//!
//! # Stages
//! The paper's names. On one machine ([`alone()`]) all parts are in one process; on several ([`cluster`]) asks, verdicts and records go to other machines.
//!
//! | stage | work |
//! |---|---|
//! | 1a | [`Disks::next`] reads segments and cuts them; asks are spooled in `q` partitions by the first bits of their fingerprints |
//! | 1b | one partition at a time comes into memory, is sorted, and the pool is asked for its different chunks |
//! | 2a | verdicts are spooled by position |
//! | 2b | each spool comes into memory and is put in order; new chunks are read again |
//! | 3a to 4a | not needed: [`Verdict::Repeated`] takes the place of references to chunks that are new in the round |
//!
//! # Memory
//! With the plan's memory as M, and `p` machines:
//!
//! | part | stage | bytes |
//! |---|---|---|
//! | buffers of `q` spools of asks | 1a | M / 2 |
//! | a partition of asks, 56 bytes each | 1b | M / 2 |
//! | buffers of the spools by position | 1b, 2a | M / 4 |
//! | chunks and answers under way | 1b | M / 5; in a cluster 2 MB more at machine 0 for each other one at worst |
//! | records of a spool by position, 88 bytes each | 2b | M / 2 |
//! | send buffers | 1a, 2a, 2b | 1 MiB, in a cluster |
//! | parcels under way | 1a, 2a, 2b | [`Window`]: 1.5 MiB sent, and as much from each other machine, in a cluster |
//! | slabs of timely | all | some 3 MiB for each other machine |
//! | program and threads | all | 4 MiB |
//!
//! Alone, M is [`MEMORY_BYTES`]: 20 MB resident. With an M of 10 MiB, four machines stay below the paper's 35 MB each, machine 0 at most
//! 33; of eight machines, each takes 45 and machine 0 takes 56, as connections have slabs of their own (`dedupfs-bench rounds --machines 1,2,4,8`).
//!
//! # Parts
//! - [`alone()`]: a round on one machine.
//! - [`run()`], [`cluster`]: a round on several machines.
//! - [`Rounds`]: the rounds that are committed.
//! - [`MemoryPlan`]: the memory of a round, and its use.

mod alone;
pub mod cluster;
mod compare;
mod error;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod places;
mod plan;
mod reading;
mod records;
mod rounds;

pub use alone::alone;
pub use cluster::{Cluster, Landing, RoundTally, Stage, Watch, Window, part_from_all, run};
pub use error::{Error, Result};
pub use plan::{MEMORY_BYTES, MEMORY_BYTES_MIN, MemoryPlan, PARTITIONS_MAX};
pub(crate) use records::{Numbered, Place};
pub use rounds::{Committed, Rounds};

/// Chunks that the pool is asked for at once, at most.
pub const ASKED_AT_ONCE: usize = 65_536;
/// Asks of a call of [`Disks::next`] at most: those of a segment.
pub const ASKS_OF_A_CALL: usize = 4096;
/// Length of a chunk at most.
pub const CHUNK_BYTES_MAX: u32 = 4 << 20;

/// A chunk of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    /// Its fingerprint.
    pub fingerprint: [u8; 32],
    /// Its length, 1 to [`CHUNK_BYTES_MAX`].
    pub len_bytes: u32,
    /// The number of its disk.
    pub disk: u32,
    /// Its offset in the disk, bytes.
    pub at: u64,
}

/// Fingerprint and length of a chunk, as the pool is asked for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Its fingerprint.
    pub fingerprint: [u8; 32],
    /// Its length.
    pub len_bytes: u32,
}

/// The pool's answer about a chunk. The pool alone understands and checks it: it bears a seal of the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Whether the pool has it.
    pub is_known: bool,
    /// The seal.
    pub proof: [u8; 20],
}

/// The outcome about one place of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The pool has the chunk. Its bytes are not needed.
    Known([u8; 20]),
    /// The pool needs the bytes.
    New([u8; 20]),
    /// An earlier place (disk, offset) of the same round has the same chunk, and it is new there.
    Repeated,
}

/// A chunk with its verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Its offset in the disk, bytes.
    pub at: u64,
    /// Its length.
    pub len_bytes: u32,
    /// Its fingerprint.
    pub fingerprint: [u8; 32],
    /// The outcome.
    pub verdict: Verdict,
}

/// The index of a pool.
pub trait Pool {
    /// Answers in the order of the chunks, which ascend by fingerprint. There are at most [`ASKED_AT_ONCE`] of them.
    ///
    /// # Errors
    /// [`Error::Pool`] if it cannot tell.
    fn ask(&mut self, chunks: &[Chunk]) -> Result<Vec<Answer>>;
}

/// The disks of a machine.
pub trait Disks {
    /// Appends the next asks of this machine, in the order of (disk, offset), none over another. At most [`ASKS_OF_A_CALL`] come at once. False when
    /// there are no more.
    ///
    /// # Errors
    /// [`Error::Disk`] if a disk cannot be read.
    fn next(&mut self, asks: &mut Vec<Ask>) -> Result<bool>;

    /// Fills `into` with the bytes of a disk from an offset on.
    ///
    /// # Errors
    /// [`Error::Disk`] if it cannot be read.
    fn read(&mut self, disk: u32, at: u64, into: &mut [u8]) -> Result<()>;

    /// Returns the fingerprint of a chunk.
    fn fingerprint(&self, bytes: &[u8]) -> [u8; 32];
}

/// The amounts of a round on one machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Asks.
    pub asks: u64,
    /// Bytes of their chunks.
    pub asks_bytes: u64,
    /// Chunks that the pool was asked for.
    pub chunks: u64,
    /// Parts of partitions that were compared. More than there are partitions if some did not fit into memory.
    pub parts: u64,
    /// Records that are known.
    pub known: u64,
    /// Records that are new.
    pub new: u64,
    /// Bytes of their chunks.
    pub new_bytes: u64,
    /// Records that repeat new ones.
    pub repeated: u64,
    /// Bytes written to spools.
    pub spooled_bytes: u64,
}
