//! The kernel's FUSE protocol turned into calls of one plain trait.
//!
//! [`mount()`] shows a [`FileService`](dedupfs_service::FileService) at a mountpoint; [`MountedSession`] unmounts and waits.
//!
//! No type of the FUSE library is visible outside this crate.

#![forbid(unsafe_code)]
#![warn(unreachable_pub)]

mod adapter;
mod mount;
mod sync;

pub use adapter::{KeepAwake, about_to_wait, is_receiving};
pub use mount::{MountError, MountOptions, MountedSession, detach_path, mount, unmount_path};
