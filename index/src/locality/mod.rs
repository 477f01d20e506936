//! The locality cache: fingerprints of whole containers (dedupv1 tech report section 3.2, the container cache filter;
//! Zhu et al.'s locality preserved cache).
//!
//! A backup repeats the chunks of a container in the same order. So when lookups in the sealed tankers hit a container,
//! its whole table enters this cache, and the following lookups need no I/O.
//!
//! # When a container enters
//! Reading a table costs a read from the data root. It happens only if it is likely to pay: at the second hit of a
//! container, or at the first hit if a container just before it is cached and answered a good part of its fingerprints.
//! Then a stream goes on, and the next container is read ahead, too. Lookups in random order read no tables.
//!
//! # Why its answers are those of the index
//! The index is the authority: a chunk in a container's table may have been removed from the index, or have moved, or
//! have a second copy that the index names. An answer must be the index's location, or writers could evade claims
//! (invariant I-4). Therefore:
//! 1. A container enters only if number and sum of its table's fingerprints equal those of the sealed tankers' cells in
//!    it (`sealed::containers`): then the cells name exactly these chunks there. A container that is open, or of which
//!    a chunk was removed or moved, does not enter.
//! 2. Sealed tankers never change. Later changes are in memory, and memory is always asked before this cache.
//! 3. A checkpoint that rewrites or dissolves a tanker makes this cache forget all containers with cells in it. This
//!    happens after the new set is published and before the patches that held the changes are dropped. From then on,
//!    containers checked against an older set are refused ([`LocalityCache::insert`]).
//!
//! So an answer from here equals a read of the bucket at that moment: claims, sections and rechecks of the engine need
//! not know of this cache.
//!
//! # Memory
//! Fixed at creation: a table of words that name places in containers, and a number of fingerprints for all containers
//! together. A new word replaces a dead one or the oldest of eight; the least recently used containers make space for
//! new ones. A word may lead to another container than its own: the whole fingerprint is compared there.

mod cache;

#[cfg(test)]
mod tests;

use std::fmt;

use dedupfs_store::{ContainerId, Fingerprint, Result};

pub(crate) use cache::LocalityCache;

/// Supplies the tables of containers: in the engine, the container store.
pub trait ContainerTables: Send + Sync {
    /// Calls `each` with fingerprint and length in bytes of every chunk of a container, in any order; `false` if the
    /// container does not exist.
    ///
    /// # Errors
    /// The table cannot be read: the lookup goes on without it.
    fn read_table(&self, container: ContainerId, each: &mut dyn FnMut(Fingerprint, u32)) -> Result<bool>;
}

impl fmt::Debug for dyn ContainerTables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("tables")
    }
}
