//! The library behind the commands `dedupfs`, `dedupfs-stats` and `dedupfs-gc`.
//!
//! A command resolves its argument to a pool ([`target`]), reaches the pool through its daemon or opens it itself ([`access`]), and ends
//! with one of the codes of [`exit`]. Tools and daemon speak through the [`control`] socket. `dedupfs mount` starts itself again as the daemon ([`mount`], [`serve`]). Under other names `dedupfs`
//! is a helper of mount(8), umount(8), mkfs(8) and fsck(8) ([`helper`]).

#![forbid(unsafe_code)]

pub mod access;
pub mod args;
pub mod commands;
pub mod confirm;
pub mod control;
pub mod duration;
pub mod exit;
pub mod gc_policy;
pub mod helper;
pub mod inside;
pub mod interrupt;
pub mod logging;
pub mod mount;
pub mod mount_options;
pub mod mountinfo;
pub mod notify;
pub mod panics;
pub mod progress;
pub mod ready;
pub mod remount;
pub mod report;
pub mod room;
pub mod serve;
pub mod silence;
pub mod size;
pub mod target;
pub mod time;
