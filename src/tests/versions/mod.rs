//! Versions of whole pools: what is seen of them, what they keep, what their removal gives back.

mod life;
mod series;
mod site;
mod work;
