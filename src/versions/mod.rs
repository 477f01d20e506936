//! Versions: frozen trees of names and attributes, stored as content is.
//!
//! - [`build`]: entries in the order of a walk become tree nodes;
//! - [`read`]: names and inode numbers lead to entries;
//! - [`snapshot`]: a version of a live directory;
//! - [`name`]: a finished tree becomes a version;
//! - [`notes`]: what the source of a put said;
//! - [`list`]: the versions of a pool;
//! - [`history`]: what became of one path in a series;
//! - [`retention`]: the rules by which versions are kept;
//! - [`record`]: the facts about a version that its tree does not hold;
//! - [`series`]: the record of a directory whose versions form a series;
//! - [`work`]: directories in which a version is made.

pub(crate) mod build;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
pub(crate) mod history;
pub(crate) mod list;
pub(crate) mod name;
pub(crate) mod notes;
pub(crate) mod read;
pub(crate) mod record;
pub mod retention;
pub(crate) mod series;
pub(crate) mod snapshot;
pub(crate) mod work;
