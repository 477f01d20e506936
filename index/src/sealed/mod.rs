//! Sealed tankers: immutable files of sorted buckets (MAD2's reference-only tankers).
//!
//! - `pages`: a file of checksummed pages under one directory frame; both files of a tanker have this form;
//! - `cache`: the bounded cache of pages (MAD2's set-associative cache, section III.C);
//! - `tanker`: a tanker = cells file + counts file; building, looking up, reading through;
//! - `containers`: the containers of a tanker's cells, with a check that none is missing;
//! - `summary`: the files of a tanker's Bloom filter and containers;
//! - `occupancy`: the occupancy of these containers by the cells, with their counts;
//! - `load`: loading these at a mount, and mending damage;
//! - `set`: all sealed tankers, newest first, and the candidates for a fingerprint.

mod cache;
mod containers;
mod load;
mod occupancy;
mod pages;
mod set;
mod summary;
mod tanker;

pub use cache::Reads;
pub(crate) use cache::{PageCache, PageKey, reads_of_this_thread};
#[cfg(feature = "fuzzing")]
pub(crate) use containers::ContainerShares;
pub(crate) use containers::Share;
pub(crate) use load::load_summaries;
#[cfg(feature = "fuzzing")]
pub(crate) use occupancy::ListOf;
pub(crate) use occupancy::OccupancyList;
#[cfg(feature = "fuzzing")]
pub(crate) use pages::{PagedFile, PagedFileKind};
pub(crate) use set::{Found, Question, SealedSet};
pub(crate) use summary::{SummaryNames, refresh_filter};
pub(crate) use tanker::{FilterOf, SealedTanker, TankerNames, Writer, bucket_of_prefix};
