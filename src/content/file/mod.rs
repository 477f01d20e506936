//! Files: their content while it is written and read.
//!
//! A [`FileBody`] is the content of one inode as clients see it now:
//!
//! ```text
//!   pieces (old or stored segments)      | run (being chunked, behind the pieces)
//!   with dirty extents laid over them    |
//! ```
//!
//! - Sequential writes go straight into the run: copied once, chunked, fingerprinted, deduplicated.
//! - Writes into existing content become dirty extents, which [`rewrite`] merges. It chunks anew from the boundary
//!   before the change until the new boundaries meet the old ones again, and does the same with segments.
//! - Publishing merges and finishes everything, builds the tree and logs the new root. Until then the namespace keeps
//!   the old root: a crash leaves the old content or the new, never a mixture.
//!
//! A clone ([`splice`]) takes over pieces from another file. A delta ([`delta`]) reads what changed from outside of the pool;
//! of named chunks ([`named`]) only those that are new.
//!
//! An append goes back to the start of the last segments, and to the start of the chunks that the end of the file had
//! cut. So the boundaries are the same as if the file had been written at once.

pub(crate) mod body;
mod delta;
pub(crate) mod dirty;
mod former;
mod named;
mod published;
pub(crate) mod read;
mod read_ahead;
pub(crate) mod rewrite;
pub(crate) mod seek;
pub(crate) mod splice;

pub use body::{FileBody, FileContext, Published};
pub use delta::{Change, Changes, DeltaSource, first_other_than_zero};
pub use named::{NamedBytes, NamedChunk, NamedRules};
pub use read_ahead::ReadAhead;
