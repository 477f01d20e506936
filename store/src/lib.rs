//! Durable bytes for dedupfs: devices, frames, superblocks, containers and recipe nodes.
//!
//! The byte maps are in `docs/format.md` only.

#![forbid(unsafe_code)]
#![warn(unreachable_pub)]

pub mod codec;
pub mod container;
pub mod device;
mod error;
mod fingerprint;
pub mod frame;
mod id;
pub mod node;
pub mod objects;
mod operations;
pub mod profile;
pub mod recipe;
pub mod superblock;
pub mod tree;
pub mod waiting;

pub use container::record::ContainerRecord;
pub use error::{Result, StoreError};
pub use fingerprint::{FINGERPRINT_BYTES, Fingerprint};
pub use id::{ContainerId, ContainerKind, PoolId};
pub use operations::{LogOp, OperationsLog};
