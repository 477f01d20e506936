//! Versions of whole pools: what is seen of them, what they keep, what their removal gives back, and what damage costs.

mod damage;
mod export;
mod life;
mod rebuild;
pub(crate) mod site;
pub(crate) mod spots;
