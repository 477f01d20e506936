//! Durability: room on the disks, commits, and the export of the namespace.

pub(crate) mod commit;
pub mod export;
pub(crate) mod indexes;
pub(crate) mod space;
