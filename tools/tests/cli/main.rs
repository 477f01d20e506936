//! The programs as users meet them: bad input, the life of a mount, and its deaths.
//!
//! Tests that mount are skipped where there is no /dev/fuse, unless `DEDUPFS_REQUIRE_FUSE` is set.
#![expect(clippy::unwrap_used, reason = "tests")]

mod batch;
mod cluster;
mod command_lines;
mod images;
mod json;
mod messages;
mod mounts;
mod object_stores;
mod profile;
mod site;
mod sources;
mod stores;
mod versions;
mod waiting;
