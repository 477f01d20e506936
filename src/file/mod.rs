//! Files: content as it is being written and read.
//!
//! A [`FileBody`] is the content of one inode as clients see it now:
//!
//! ```text
//!   pieces (old or stored segments)      | stream (being chunked, behind the pieces)
//!   with dirty extents laid over them    |
//! ```
//!
//! - Sequential writes go straight into the stream: copied once, chunked, fingerprinted, deduplicated.
//! - Writes into existing content become dirty extents, which [`rewrite`] merges: re-chunked from the boundary
//!   before the change until the boundaries meet the old ones again, segments likewise.
//! - Publishing merges and finishes everything, builds the tree and logs the new root. Until then the namespace
//!   keeps the old root: a crash leaves the old content or the new, never a mixture.
//!
//! A clone ([`splice`]) takes pieces over from another file.
//!
//! An append continues the last segments from their start, and the chunks whose ends the end of the file has decided from theirs, so that
//! boundaries are the same as if the file had been written at once.

pub mod body;
pub mod dirty;
pub mod read;
mod read_ahead;
pub mod rewrite;
pub mod seek;
pub mod splice;

pub use body::{FileBody, FileContext};
pub use read_ahead::ReadAhead;
