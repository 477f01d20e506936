//! Versions of whole pools: what is seen of them, what they keep, what their removal gives back.

mod incremental;
mod life;
mod put;
mod series;
mod site;
mod work;
mod would_free;
