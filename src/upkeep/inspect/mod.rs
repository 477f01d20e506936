//! Reads whole containers and judges what they hold; for checks and scrubs.

mod judge;
mod pipeline;

pub use self::judge::judge;
pub use self::pipeline::{Judged, Pipeline};
