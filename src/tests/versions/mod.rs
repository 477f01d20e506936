//! Versions of whole pools: what is seen of them, what they keep, what their removal gives back, and what damage costs.

mod across;
mod again;
mod arranging;
mod busy;
mod damage;
mod differences;
mod export;
mod extremes;
mod freezing;
mod incremental;
mod life;
mod neighbour;
mod order;
mod put;
mod rebuild;
mod resumed;
mod seeking;
mod series;
pub(crate) mod site;
pub(crate) mod spots;
mod tree_stats;
mod work;
mod would_free;
