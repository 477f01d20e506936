//! Versions of whole pools: what is seen of them, what they keep, what their removal gives back.

mod busy;
mod incremental;
mod life;
mod order;
mod put;
mod series;
pub(crate) mod site;
mod work;
mod would_free;
