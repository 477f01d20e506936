//! The base of the engine: its error, the gauge of bytes in memory, caught panics, the allocator, names as text.

pub mod allocator;
mod error;
mod gauge;
pub mod panics;
mod text;

pub use error::{EngineError, ReadOnly, Result};
pub use gauge::{Gauge, Hold};
pub use text::shown;
