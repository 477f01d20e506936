//! One file for each command. Each command returns its exit code or a failure.

pub(crate) mod batch;
pub(crate) mod cluster;
pub(crate) mod diff;
pub(crate) mod forget;
pub(crate) mod freeze;
pub(crate) mod fsck;
pub(crate) mod gc;
pub(crate) mod generate;
pub(crate) mod get;
pub(crate) mod history;
pub(crate) mod list;
pub(crate) mod mkfs;
pub(crate) mod prune;
pub(crate) mod put;
pub(crate) mod recover;
pub(crate) mod scrub;
pub(crate) mod series;
pub(crate) mod snapshot;
pub(crate) mod stats;
#[cfg(feature = "remote")]
pub(crate) mod store_check;
pub(crate) mod sync;
pub(crate) mod thaw;
pub(crate) mod trial;
pub(crate) mod umount;
