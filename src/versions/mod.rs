//! Versions: frozen trees of a series of backups, and the rules by which they are kept.

pub mod retention;
