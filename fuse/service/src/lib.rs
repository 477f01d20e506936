//! The trait between the kernel and an engine that keeps files.
//!
//! - [`FileService`]: the trait and its plain types; no FUSE types, no engine types.
//! - [`acl`]: POSIX access control lists, which the kernel leaves to the service.
//! - [`reference`](mod@reference): [`MemoryService`], the in-memory oracle; [`null`]: the same without content, for measuring.
//! - [`conformance`]: the requirements on every service, as one suite of checks.

#![forbid(unsafe_code)]

pub mod acl;
pub mod conformance;
mod errno;
mod file_service;
mod flags;
pub mod null;
pub mod reference;

pub use errno::Errno;
pub use file_service::*;
pub use flags::InodeFlags;
pub use null::{NullService, null_service};
pub use reference::{MemoryOptions, MemoryService};
