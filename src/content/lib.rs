//! Content: from bytes to chunks, containers and recipes, and back.
//!
//! ```text
//! file -> ingest (chunker, fingerprint) -> dedup (index) -> containers
//! file -> recipe -> fetch -> containers
//! ```

#![warn(unreachable_pub)]

mod chunker;
mod containers;
mod dedup;
mod fetch;
mod file;
mod fingerprint;
mod free_list;
mod ingest;
mod limits;
mod recipe;
mod stores;
mod sync;
mod workers;

pub use chunker::{Chunker, chunker};
pub use containers::{
    ACTIVE_STREAM, Caches, ContainerOptions, ContainerStore, Extended, FORWARDING_NOTES_MAX, ForwardingNote,
    Inspection, RECLAIM_STREAM, StreamId, Suspect, Wanted, WholeContainer,
};
pub use dedup::{
    ASKED_AT_ONCE, Answer, ContainerChunks, CopiedForward, DedupParts, Deduplicator, Forwarded, KeptAnswers, Neighbour,
    Pin, RootPin, SEALED_BYTES, Section,
};
pub use fetch::{AnyView, Fetcher, NodeReader, NodeView, Sweep, SweepTarget};
pub use file::{
    Change, Changes, DeltaSource, FileBody, FileContext, NamedBytes, NamedChunk, NamedRules, Published, ReadAhead,
    first_other_than_zero,
};
pub use fingerprint::Fingerprinter;
pub use ingest::{BatchPool, IngestContext};
pub use limits::{
    BATCH_BYTES, BATCHES_IN_FLIGHT_MAX, FILE_BYTES_MAX, IMAGE_SEGMENT_MIN_BYTES, SEGMENT_MAX_BYTES, SEGMENT_MIN_BYTES,
};
pub use recipe::segmenter::SegmentRule;
pub use stores::{Indexes, Stores};
pub use workers::WorkerPool;
