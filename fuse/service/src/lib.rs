//! The trait between the kernel and an engine that keeps files.
//!
//! - [`FileService`]: the trait and its plain types; no FUSE types, no engine types.
//! - [`acl`]: POSIX access control lists, which the kernel leaves to the service.
//! - [`MemoryService`]: the in-memory oracle; [`null_service`]: the same without content, for measuring.
//! - [`conformance`]: the requirements on every service, as one suite of checks.

#![forbid(unsafe_code)]
#![warn(unreachable_pub)]

pub mod acl;
pub mod conformance;
mod errno;
mod file_service;
mod flags;
mod null;
mod reference;

pub use errno::Errno;
pub use file_service::*;
pub use flags::InodeFlags;
pub use null::null_service;
pub use reference::{FileContent, MemoryOptions, MemoryService};
