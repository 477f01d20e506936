//! Versions of whole pools: what is seen of them, what they keep, what their removal gives back.

mod busy;
mod life;
mod order;
pub(crate) mod site;
