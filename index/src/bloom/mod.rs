//! The Bloom filter array (MAD2 section III.B): tells without I/O which sealed tankers may hold a fingerprint.
//!
//! Each sealed tanker has one filter, all of one shape and with the same hash functions. In memory they are
//! *bit-sliced*: a row holds one bit position of up to 512 tankers, one cache line. So asking 512 tankers is an AND of
//! rows that ends as soon as it is zero. For an absent fingerprint that is after four rows with 16 tankers, and seven
//! with 256.
//!
//! - `hashes`: the places of a fingerprint; they need no hashing;
//! - `bitmap`: the filter of one tanker in its stored form;
//! - `columns`: a set of columns of a group;
//! - `group`: up to 512 bit-sliced filters;
//! - `sieve`: asking a group, many queries at a time;
//! - `transpose`: many stored filters into rows at once;
//! - `shape`: bits for each cell from a memory budget, and their cost in false reads;
//! - `array`: all groups; adding, forgetting, asking.
//!
//! # Shapes
//! A place is `hash * bits / 2^64`, so the filter of `bits / d` bits is the one of `bits` with each `d` neighbouring
//! bits joined by OR (floors of floors agree). Filters are stored with 48 bits for each cell, and the array *folds*
//! them by 1, 2, 3, 4, 6 or 8 to fit memory, without reading any tanker. The number of hash functions stays 12, which
//! is best at 17 bits, within 1% of the best rate at 16 and within a factor of 1.5 at 24.

mod array;
mod bitmap;
mod columns;
mod group;
mod hashes;
mod shape;
mod sieve;
mod transpose;

#[cfg(test)]
mod tests;

pub(crate) use array::{FilterArray, FilterColumn};
pub(crate) use bitmap::Bitmap;
pub(crate) use columns::{COLUMNS_MAX, Columns};
pub(crate) use hashes::Hashes;
#[cfg(test)]
pub(crate) use shape::FOLDS;
pub(crate) use shape::Fullness;
