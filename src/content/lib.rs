//! Content: from bytes to chunks, containers and recipes, and back.
//!
//! ```text
//! file -> ingest (chunker, fingerprint) -> dedup (index) -> containers
//! file -> recipe -> containers
//! ```

pub mod chunker;
pub mod containers;
pub mod dedup;
pub mod file;
pub mod fingerprint;
pub mod ingest;
mod limits;
pub mod recipe;
mod sync;

pub use limits::*;
