//! The base of the engine: its error, the gauge of bytes in memory, caught panics, the allocator.

pub mod allocator;
mod error;
mod gauge;
pub mod panics;

pub use error::{EngineError, ReadOnly, Result};
pub use gauge::{Gauge, Hold};
