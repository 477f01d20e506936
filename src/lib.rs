//! dedupfs: a FUSE-mounted deduplicating filesystem for backups.
//!
//! The rooms, from the bottom to the top; each uses only those below it:
//!
//! ```text
//! pool                 format, open, recover, repair, close
//! transfer             put and get
//! service | upkeep     answers clients | reclaims, checks, scrubs
//! engine               the parts of an open pool
//! durability           space, commit, export
//! content              file -> ingest (chunker, fingerprint) -> dedup (index) -> containers; file -> recipe -> containers
//! namespace            inodes, names, log
//! ```
//!
//! `ARCHITECTURE.md` has the drawing, `docs/format.md` the bytes.

pub mod config;
pub mod durability;
pub mod engine;
pub mod pool;
pub mod progress;
pub mod service;
mod sync;
pub mod transfer;
pub mod upkeep;

pub use dedupfs_base::{EngineError, Result, allocator, panics};
