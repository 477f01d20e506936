//! Replicas: copies of pools in stores of objects.
//!
//! A replica holds the content of a pool's data root: containers, each an object, and the *export* of the namespace. Its states are *commits*, objects
//! in a row without gaps. A commit names everything that the state needs, and is created behind all of it. The newest commit counts.
//!
//! ```text
//! replicate  hold the pool's export -> upload containers that the last commit does not name -> create the next commit
//! recover    newest commit -> the base below it, and its successors -> containers into slots, export beside them -> a data root
//! reclaim    remove retired objects, and those that no commit names, behind a grace period
//! verify     read objects back and compare them with their names
//! ```
//!
//! - Names of objects have a hash of their content: a name means one content. One writer can use or ignore objects that another left behind.
//! - Only the creation of the next commit coordinates writers: the second one is *fenced*. Nothing is overwritten, and listing is a hint only.
//! - A writer of another lineage (a recovered pool) continues a replica only if it is told to *take over*. It begins a new *reign*: objects
//!   that it uploads have names of its own, so that none has the name of a retired one.
//!
//! `docs/format.md` has the bytes, `docs/decisions/0067` the reasons.

#![forbid(unsafe_code)]
#![warn(unreachable_pub)]
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic))]

mod before;
mod chain;
mod commit;
mod encrypted;
mod error;
mod format;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod key_file;
mod lease;
mod local;
mod note;
mod packs;
mod parallel;
mod place;
mod reclaim;
mod recover;
mod replicate;
mod source;
mod state;
mod stored;
mod stream;
mod upload;
mod verify;
mod view;

#[cfg(test)]
mod tests;

pub use encrypted::{EncryptedObjects, Secret};
pub use error::{ReplicaError, Result};
pub use key_file::{KeyFile, KeyFileError};
pub use note::{NOTES_DIRECTORY, Noted, noted};
pub use place::Replica;
pub use reclaim::{Reclaimed, reclaim};
pub use recover::{RestoreOptions, Restored, restore_data_root};
pub use replicate::{ReplicateOptions, ReplicateReport, replicate};
pub use source::{Held, PoolSource, Source};
pub use verify::{VerifyReport, verify};
pub use view::{View, ViewOptions};
