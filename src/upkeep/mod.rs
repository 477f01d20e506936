//! Upkeep: work on stored content beside all other work. Nothing here serves a client.

pub(crate) mod affected;
pub mod check;
pub(crate) mod export_watch;
pub(crate) mod inspect;
pub mod reclaim;
pub mod scrub;
