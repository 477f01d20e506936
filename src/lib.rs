//! dedupfs: a FUSE-mounted deduplicating filesystem for backups.
//!
//! The path of the data through the folders:
//!
//! ```text
//! service -> file -> ingest (chunker, fingerprint) -> dedup (index) -> containers -> commit (namespace)
//! service -> file -> recipe -> containers
//! ```
//!
//! `ARCHITECTURE.md` has the drawing, `docs/format.md` the bytes.

pub mod allocator;
pub mod check;
pub mod chunker;
pub mod commit;
pub mod config;
pub mod containers;
pub mod control;
pub mod dedup;
pub mod error;
pub mod export;
pub mod file;
pub mod fingerprint;
pub mod gauge;
pub mod ingest;
pub mod namespace;
pub mod panics;
pub mod pool;
pub mod recipe;
pub mod reclaim;
pub mod scrub;
pub mod service;
mod sync;
pub mod transfer;

pub use error::{EngineError, Result};
