//! Tree nodes: the names and attributes of frozen trees, deduplicated as content is.
//!
//! The entries of a directory, sorted by name, lie in *leaves* (level 16). *Lists* (levels 17 to 22) stand above the
//! leaves of a large directory. The entry of a subdirectory names the uppermost node of that directory. So a directory
//! in which nothing changed has the same fingerprint in each version, and is stored once. The *top* (level 28) of a
//! frozen tree has the entry of its uppermost directory or file, and names its *links* (levels 24 to 27): for each
//! file with several names its number of names and its first one.
//!
//! *Names versus places*: the fingerprint covers [`Node::identity_bytes`], that is everything but the hints.
//!
//! Encoding: entry by entry, with numbers of variable length, and all hints at the end. Byte maps: `docs/format.md`.
//!
//! Invariants, checked when decoding and asserted when encoding: names, also those in paths of links, are names of one
//! path component; names, keys of parts and links ascend strictly; a node has at least one entry; sums stay below 2^63;
//! levels are those of the kind; a top has links exactly if entries have them. A node has one encoding.
//!
//! A node cannot know whether the counts that it tells of a child are true: a reader compares them ([`Below`],
//! [`Node::rows`], [`Node::last_key`]).

#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic))]

mod attributes;
mod entry;
mod links;
mod node;
mod part;

pub use attributes::{ATTRIBUTES_INLINE_BYTES_MAX, Attribute, Attributes, decode_attributes, encode_attributes};
pub use entry::{Content, Directory, Entry, NAME_BYTES_MAX, SYMLINK_BYTES_MAX};
pub use links::Link;
pub use node::{Node, Top};
pub use part::{Below, Part};

use crate::error::{Result, StoreError};

/// Level of a leaf: entries of a directory.
pub const LEAF_LEVEL: u8 = 16;
/// Highest level of a list above leaves.
pub const LIST_LEVEL_MAX: u8 = 22;
/// Level of a leaf of links.
pub const LINKS_LEVEL: u8 = 24;
/// Highest level of a list above leaves of links.
pub const LINKS_LEVEL_MAX: u8 = 27;
/// Level of the top of a frozen tree.
pub const TOP_LEVEL: u8 = 28;

/// Most entries, parts or links of a node. Builders cut nodes of far fewer.
pub const ROWS_MAX: usize = 4096;
/// Bound of all sums and counts.
pub const SUM_MAX: u64 = i64::MAX as u64;

const TREE_NODE: &str = "tree node";

fn corrupt(expected: impl std::fmt::Display, found: impl std::fmt::Display) -> StoreError {
    StoreError::corrupt(TREE_NODE, expected, found)
}

fn check(is_sound: bool, expected: &str, found: impl std::fmt::Display) -> Result<()> {
    if is_sound { Ok(()) } else { Err(corrupt(expected, found)) }
}

#[cfg(test)]
mod tests;
