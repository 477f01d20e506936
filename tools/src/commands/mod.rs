//! One file for each command. Each command returns its exit code or a failure.

pub mod fsck;
pub mod gc;
pub mod generate;
pub mod get;
pub mod mkfs;
pub mod put;
pub mod recover;
pub mod scrub;
pub mod stats;
pub mod sync;
pub mod trial;
pub mod umount;
