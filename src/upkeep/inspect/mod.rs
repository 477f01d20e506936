//! Reads whole containers and judges what they hold; for checks and scrubs.

mod judge;
mod pipeline;

pub(crate) use self::judge::judge;
pub(crate) use self::pipeline::{Judged, Pipeline};
