//! The seam that all bytes on other machines pass through.
//!
//! [`Objects`] are whole, immutable, and named once: nothing is renamed, appended or overwritten. What must happen once (a commit) is the
//! creation of an object that was absent; nothing else coordinates writers. Listing is never needed to be right, only to find objects that were left
//! behind. The implementations:
//!
//! - [`DirectoryObjects`]: files of a [`Device`](crate::device::Device), such as a disk that is carried elsewhere
//! - [`MemoryObjects`]: in memory, for tests
//! - [`faulty`]: fails, delays and repeats where a test says
//! - [`CountingObjects`]: counts requests and bytes
//!
//! [`probe`] tells whether a store keeps to this contract.

#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic))]

use std::fmt::Debug;
use std::ops::Range;

mod counting;
mod directory;
mod error;
pub mod faulty;
mod key;
mod memory;
pub mod probe;

pub use counting::{CountingObjects, Requests};
pub use directory::DirectoryObjects;
pub use error::{ObjectError, Result};
pub use key::{KEY_BYTES_MAX, Key};
pub use memory::MemoryObjects;

/// Longest object in bytes. Uploads in several parts have no condition, so an object is one request.
pub const OBJECT_BYTES_MAX: u64 = 65 << 20;

/// How soon and how often an object is read. The store's configuration says what that means there.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Class {
    /// Read often, and at once.
    Metadata,
    /// Read by restores only.
    Content,
}

/// The answer to a creation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Created {
    /// The object was absent.
    New,
    /// An object with the same bytes was there: most often this one, whose first acknowledgement was lost.
    Same,
}

/// The answer to a removal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Removed {
    /// The object is gone, or was not there.
    Gone,
    /// The store keeps it for now: it must not be removed yet.
    Retained,
}

/// An object as the store describes it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Head {
    /// Length in bytes.
    pub len_bytes: u64,
    /// When the store wrote it, by the store's clock, in seconds since 1970; `None` if the store does not tell.
    pub written_secs: Option<u64>,
}

/// A store of objects.
///
/// An operation that ends with [`Unreachable`](ObjectError::Unreachable) may have happened, may not have, and may still happen. Every
/// operation can be repeated.
pub trait Objects: Debug + Send + Sync {
    /// Creates an object of at most [`OBJECT_BYTES_MAX`] bytes: the parts of `body` one behind the other. When this returns, the object is
    /// whole, durable, and seen by every reader. If one is there, it stays as it is.
    /// No key may be another one's first parts, because directories cannot hold both.
    ///
    /// # Errors
    /// [`Foreign`](ObjectError::Foreign): an object with other bytes is there.
    fn create(&self, key: &Key, body: &[&[u8]], class: Class) -> Result<Created>;

    /// Reads an object, or a range of its bytes, and appends them to `into`. A range that ends behind the object is cut; one that begins
    /// behind it gives nothing. After an error `into` is as before.
    ///
    /// # Errors
    /// [`Absent`](ObjectError::Absent), [`Cold`](ObjectError::Cold).
    fn read(&self, key: &Key, range: Option<Range<u64>>, into: &mut Vec<u8>) -> Result<()>;

    /// Describes an object; `None` if it is absent.
    fn head(&self, key: &Key) -> Result<Option<Head>>;

    /// Removes an object. It need not exist.
    fn remove(&self, key: &Key) -> Result<Removed>;

    /// Visits the objects whose keys begin with `prefix` and are behind `after`, in the order of keys. A store may list late: objects
    /// that were created a moment ago may be absent, and removed ones present.
    fn list(&self, prefix: &str, after: Option<&Key>, visit: &mut dyn FnMut(Key, Head) -> Result<()>) -> Result<()>;

    /// For messages: the place of this store, without secrets.
    fn describe(&self) -> String;
}

/// Returns the length of an object, and refuses one that is too long.
///
/// # Errors
/// [`Refused`](ObjectError::Refused)
pub fn check_len(key: &Key, body: &[&[u8]]) -> Result<u64> {
    let len_bytes = body.iter().fold(0_u64, |sum, part| sum.saturating_add(part.len() as u64));
    if len_bytes > OBJECT_BYTES_MAX {
        let reason = format!("it has {len_bytes} bytes, and an object has at most {OBJECT_BYTES_MAX}");
        return Err(ObjectError::Refused { operation: "create", key: key.to_string(), reason });
    }
    Ok(len_bytes)
}

/// Returns the part of a range within an object of this length.
fn within(range: Option<Range<u64>>, len_bytes: u64) -> Range<u64> {
    let Range { start, end } = range.unwrap_or(0..len_bytes);
    let end = end.min(len_bytes);
    start.min(end)..end
}

#[cfg(test)]
mod tests;
