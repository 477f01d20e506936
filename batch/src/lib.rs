//! The backups of many disks in one night.
//!
//! - [`plan`]: which disks, from where, and which versions are kept.
//! - [`cluster`]: plans of several machines whose disks go into one pool, with duplicates detected in stages.
//! - [`source`]: drivers that bring a disk to a point in time, and let go of it.
//! - [`schedule`]: which disk is read when. Pure functions. Batches use lists, clusters rounds, as the batch paper has them.
//! - [`model`]: the seconds of a machine with detection in stages, by the paper's own figures, for its tables.
//!
//! `dedupfs batch` runs a plan. Source: "Parallel batch deduplication for VM backup", sections 4 and 5. ("The paper" in this crate.)

pub mod cluster;
pub mod model;
pub mod plan;
pub mod schedule;
pub mod source;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
