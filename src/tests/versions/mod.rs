//! Versions of whole pools: what is seen of them, what they keep, what their removal gives back.

mod life;
mod order;
pub(crate) mod site;
