//! Tests of whole pools that look inside. Those of `tests/` know the façade alone.

mod check;
#[path = "../../tests/common/mod.rs"]
pub(crate) mod common;
mod counting;
mod depth;
pub(crate) mod export;
#[path = "../../tests/common/falsify.rs"]
mod falsify;
mod growth;
mod guides;
mod held;
mod memory;
mod rebuild;
pub(crate) mod reclaim;
mod scrub;
mod slow_writers;
pub(crate) mod space;
pub(crate) mod versions;
