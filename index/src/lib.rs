//! The fingerprint index of dedupfs: "have I seen this fingerprint, and where is it?"
//!
//! # Structure
//! Fingerprints live in *tankers* (MAD2 section III.A): groups in order of arrival, each split into buckets by
//! fingerprint prefix. New fingerprints go to the `open` tanker, which is mutable and in memory (MAD2's appendable
//! tanker, dedupv1's auxiliary index, tech report section 3.4). Full tankers are `sealed`: files with sorted buckets,
//! and separate files with reference counts. An entry is a *counting fingerprint* ([`Cell`]): location, length and
//! number of references.
//!
//! # Committed and recent
//! The *committed* state is a pure function of the last checkpoint on disk and the later rows of the operations log,
//! fed to [`Index::apply`] row by row (invariant I-3). Apart from it, [`Index::stage`] makes a fingerprint visible to
//! lookups before its log row exists: the *recent* overlay. A crash loses it together with the data it names.
//!
//! # Checkpoints
//! [`Index::freeze`] copies the state after a row. [`Index::write`] writes the changes under new names while rows are
//! applied and looked up, syncs them, and then replaces one *manifest* that names all live files and the log position:
//! the only switch. Files that a manifest names are never modified. The byte maps are in `docs/format.md`. Several
//! tankers can be open: one fills while the earlier ones are written.
//!
//! # Locks, in this order
//! 1. `checkpointer` (one checkpoint is written at a time; held across its I/O);
//! 2. `applier` (one thread at a time changes committed cells; held across the reads of applying and while a state is
//!    frozen or published, never across writing; lookups never take it);
//! 3. one shard of the open tanker (never two, never across I/O);
//! 4. `sealed` (the pointer to the set of sealed tankers; held for the time of a clone);
//! 5. a part of the garbage map, or its total (never two, never across I/O; see `occupancy`);
//! 6. the set of lost fingerprints.
//!
//! Apart from these: `guides_loading` and the gathering of lost cells, each before all others; `guide_work` and a guide's filters, leaves.

#![forbid(unsafe_code)]
#![warn(unreachable_pub)]

mod apply;
mod bloom;
mod cell;
mod check;
mod checkpoint;
pub mod filter;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod guide;
mod index;
mod leftovers;
mod locality;
mod lookup;
mod lost;
mod manifest;
mod many;
mod map;
mod moment;
mod names;
mod occupancy;
mod open;
mod options;
mod placed;
mod prefixes;
mod progress;
mod rebuild;
mod sealed;
mod since;
mod stats;

#[cfg(test)]
mod tests;
mod unreferenced;

pub use apply::{ApplyReport, Change, Inconsistency, InconsistencyKind};
pub use cell::{Cell, Location};
pub use checkpoint::Frozen;
pub use index::Index;
pub use leftovers::Removed;
pub use locality::ContainerTables;
pub use many::SealedCells;
pub use moment::Moment;
pub use occupancy::{NewLists, Occupied};
pub use options::IndexOptions;
pub use prefixes::Prefixes;
pub use rebuild::{Continued, IndexBuilder};
pub use since::{Kept, Since};
pub use stats::IndexStats;
pub use unreferenced::Part;
