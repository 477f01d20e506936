//! Stores of objects on other machines.
//!
//! Users write an [`Address`]: a directory, or a bucket of a store that speaks the protocol of S3. [`Address::open`] gives the
//! [`Objects`](dedupfs_store::objects::Objects) there. Async code exists in this crate alone, below [`s3`].

#![forbid(unsafe_code)]
#![warn(unreachable_pub)]
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic))]

mod address;
mod s3;

pub use address::{Address, AddressError};
pub use s3::{Bucket, Environment};
