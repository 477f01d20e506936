//! End to end: the real programs, real mounts, and the real tools that users point at them.
//!
//! One module per promise: [`rsync_roundtrip`], [`dd_operations`], [`kill9`], [`dedup_and_reclaim`], [`bad_input`],
//! [`full_disk`], [`failing_disk`], [`concurrent`], [`special`], [`flags`], [`access_times`], [`handles`], [`posix`],
//! [`private`], [`lent`], [`administration`], [`advice`], [`systemd`], [`install`], [`rebuild_index`], [`recover`], [`replicas`],
//! [`scrub`], [`clone`], [`exercise`], [`sparse`], [`clients`], [`transfer`], [`memory`], [`generic`], [`synchronous`],
//! [`versions`], [`without_open`].
//! Helpers: [`site`] is a pool and its mount, removed without a trace when dropped; [`command`] runs tools with a time
//! limit; [`disk`] is a disk to fill and to break; [`tree`] and [`files`] make reproducible trees; [`random`] is the
//! only source of chance.
//!
//! The tests need root (device nodes, trusted attributes, loop devices). For an ordinary user they are skipped with a
//! message. As root, a missing /dev/fuse or tool is a failure. `DEDUPFS_E2E_KEEP=1` keeps the pool of a failed test.
//! `DEDUPFS_E2E_SEED=N` varies the random changes of files and the moments of kills.

mod access_times;
mod administration;
mod advice;
mod bad_input;
mod clients;
mod clone;
mod command;
mod compare;
mod concurrent;
mod dd_operations;
mod dead_disk;
mod dedup_and_reclaim;
mod disk;
mod exercise;
mod exported;
mod failing_disk;
mod files;
mod flags;
mod full_disk;
mod gc;
mod generic;
mod handles;
mod install;
mod kill9;
mod lent;
mod lock;
mod machine;
mod memory;
mod no_room;
mod posix;
mod private;
mod random;
mod rebuild_index;
mod recover;
mod refilled_disk;
#[cfg(feature = "remote")]
mod replicas;
mod rsync_roundtrip;
mod scrub;
mod site;
mod sparse;
mod special;
mod synchronous;
mod systemd;
mod transfer;
mod tree;
mod versions;
mod without_open;
