//! Durable bytes for dedupfs: devices, frames, superblocks, containers and recipe nodes.
//!
//! The byte maps are in `docs/format.md` only.

#![forbid(unsafe_code)]

pub mod codec;
pub mod container;
pub mod device;
pub mod error;
pub mod fingerprint;
pub mod frame;
pub mod id;
pub mod operations;
pub mod recipe;
pub mod superblock;
pub mod waiting;

pub use container::ContainerRecord;
pub use error::{Result, StoreError};
pub use fingerprint::{FINGERPRINT_BYTES, Fingerprint};
pub use id::{ContainerId, ContainerKind, PoolId};
pub use operations::{LogOp, OperationsLog};
