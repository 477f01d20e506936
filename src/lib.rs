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
pub mod config;
pub mod content;
pub mod control;
pub mod durability;
pub mod engine;
pub mod error;
pub mod gauge;
pub mod namespace;
pub mod panics;
pub mod pool;
pub mod progress;
pub mod service;
mod sync;
pub mod transfer;
pub mod upkeep;

pub use error::{EngineError, Result};
