//! Durability: room on the disks, commits, and the export of the namespace.

pub mod commit;
pub mod export;
pub mod indexes;
pub mod space;
