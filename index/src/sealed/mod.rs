//! Sealed tankers: immutable files of sorted buckets (MAD2's reference-only tankers).
//!
//! - `pages`: a file of checksummed pages under one directory frame; both files of a tanker are one of these;
//! - `cache`: the bounded cache of pages (MAD2's set-associative cache, section III.C);
//! - `tanker`: a tanker = cells file + counts file; building, looking up, reading through;
//! - `set`: all sealed tankers, newest first, and which of them may hold a fingerprint.

mod cache;
mod pages;
mod set;
mod tanker;

pub(crate) use cache::PageCache;
pub(crate) use set::SealedSet;
pub(crate) use tanker::{SealedTanker, TankerNames, Writer};
