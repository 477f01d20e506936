//! Everything by which threads of the engine meet, and all that comes from outside of the program besides bytes of
//! devices: locks, threads, channels, time and random bytes.
//!
//! Without the feature `world` this is parking_lot, crossbeam and the standard library under one name, at no cost. With
//! it, `tests/world` runs the engine as tasks of one thread of the system: one seed decides which task goes on at each
//! lock, channel and device operation, and time passes only when the world says so.
//!
//! Outside of a running world the locks of the feature, its sleep and its `Instant` are the system's. Threads start, and
//! random bytes and the time of day have a meaning, only inside. A build with the feature is slower and is for tests alone.

#![forbid(unsafe_code)]
#![warn(unreachable_pub)]

/// Whether this build is for tests in a world alone.
pub const IS_WORLD: bool = cfg!(feature = "world");

pub mod canary;
mod either;
pub mod step;
#[cfg(not(feature = "world"))]
mod system;
#[cfg(feature = "world")]
pub mod world;

#[cfg(not(feature = "world"))]
pub use system::*;
#[cfg(feature = "world")]
pub use world::primitives::*;
