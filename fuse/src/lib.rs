//! The kernel's FUSE protocol turned into calls of one plain trait.
//!
//! - [`service`]: the trait [`FileService`](service::FileService), which an engine implements, and its plain types.
//! - [`mount()`]: shows a service at a mountpoint; [`MountedSession`] unmounts and waits.
//! - [`acl`]: POSIX access control lists, which the kernel leaves to the service.
//! - [`reference`](mod@reference): [`MemoryService`], the in-memory oracle; [`null`]: the same without content, for measuring.
//! - [`conformance`]: the requirements on every service, as one suite of checks.
//!
//! No type of the FUSE library is visible outside this crate.

#![forbid(unsafe_code)]

pub mod acl;
mod adapter;
pub mod conformance;
mod mount;
pub mod null;
pub mod reference;
pub mod service;
mod sync;

pub use adapter::{KeepAwake, about_to_wait, is_receiving};
pub use mount::{MountError, MountOptions, MountedSession, mount, unmount_path};
pub use null::{NullService, null_service};
pub use reference::{MemoryOptions, MemoryService};
