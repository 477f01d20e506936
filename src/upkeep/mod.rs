//! Upkeep: work on stored content beside all other work. Nothing here serves a client.

pub mod affected;
pub mod check;
pub(crate) mod export_watch;
pub mod inspect;
pub mod reclaim;
pub mod scrub;
