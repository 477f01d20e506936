//! The locality cache: fingerprints of whole containers (dedupv1 tech report section 3.2, the container cache filter; Zhu et al.'s
//! locality preserved cache).
//!
//! A backup repeats what lies together in a container in the same order. So when lookups in the sealed tankers hit a
//! container, its table enters this cache as a whole, and what comes next is answered without I/O.
//!
//! # When a container enters
//! Reading a table costs a read from the data root. It is read when it will pay: at the second hit of a container, or at
//! the first if one of the containers just before it is here and answered a good part of its fingerprints, because then a
//! stream goes on; in that case the next container is read ahead, too. Lookups in random order read no tables.
//!
//! # Why its answers are those of the index
//! The index is the authority: a chunk in a container's table may have been removed from the index, or have moved, or have a
//! second copy that the index names. An answer must be the location that the index has, or claims would be evaded
//! (invariant I-4). Therefore:
//! 1. A container enters only if number and sum of its table's fingerprints are those of the cells which the sealed
//!    tankers have in it (`sealed::containers`): then they name exactly these chunks there. A container of which
//!    something was removed or moved, or is still open, does not enter.
//! 2. Sealed tankers never change. What was applied since is in memory, and memory is always asked before this cache.
//! 3. A checkpoint that writes a tanker again or dissolves it makes this cache forget all containers with cells in it, after it
//!    published the new set and before it drops the patches which told of the change until then. What was
//!    checked against an older set is refused from then on ([`LocalityCache::insert`]).
//!
//! So an answer from here is what reading the bucket would have given at that moment: claims, sections and rechecks
//! of the engine need not know of this cache.
//!
//! # Memory
//! Fixed when it is made: a table of words that name places in containers, of which a new one pushes out a dead one or the oldest
//! of eight, and a number of fingerprints for all containers together, of which the ones used longest ago go. A word may lead to
//! another container than it was made for: the whole fingerprint is compared there.

mod cache;
mod source;

#[cfg(test)]
mod tests;

pub(crate) use cache::LocalityCache;
pub use source::ContainerTables;
pub(crate) use source::Tables;
