//! Upkeep: work on stored content beside all other work. Nothing here serves a client.

pub(crate) mod affected;
pub(crate) mod beside;
pub mod check;
mod count_down;
pub(crate) mod export_watch;
pub(crate) mod growth;
pub(crate) mod index_watch;
pub(crate) mod inspect;
pub(crate) mod quiet;
pub mod reclaim;
pub mod scrub;
pub(crate) mod tree_stats;
pub(crate) mod would_free;
