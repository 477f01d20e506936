//! The library behind the programs `dedupfs`, `dedupfs-stats` and `dedupfs-gc`: one entry point for each.
//!
//! A command resolves its argument to a pool ([`target`]), reaches the pool through its daemon or opens it itself ([`access`]), and ends
//! with one of the codes of [`exit`]. Tools and daemon speak through the [`control`] socket. `dedupfs mount` starts itself again as the daemon ([`mount`], [`serve`]). Under other names `dedupfs`
//! is a helper of mount(8), umount(8), mkfs(8) and fsck(8) ([`helper`]).

#![forbid(unsafe_code)]
#![warn(unreachable_pub)]

const _: () = assert!(!dedupfs::IS_WORLD, "the feature `world` is for tests: it has no real time and no random bytes");

mod access;
mod args;
mod changes;
mod commands;
mod confirm;
mod control;
mod duration;
mod exit;
mod gc_policy;
mod helper;
mod hidden;
mod image_source;
mod image_version;
mod inside;
mod interrupt;
mod logging;
mod mount;
mod mount_options;
mod mountinfo;
mod notify;
mod plan_text;
mod programs;
mod progress;
mod ready;
mod remount;
mod report;
mod room;
mod serve;
mod silence;
mod size;
mod staged;
mod target;
mod time;
mod versions;
#[cfg(feature = "remote")]
mod view;

#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub use changes::fuzzing::fuzz_map;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub use control::fuzzing::fuzz_control_lines;
pub use programs::{dedupfs, dedupfs_gc, dedupfs_stats};
pub use size::parse_size;
pub use target::options_of_mount;
