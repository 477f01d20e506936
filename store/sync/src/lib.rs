//! Everything by which threads of the engine meet, and all that comes from outside of the program besides bytes of
//! devices: locks, threads, channels, time and random bytes.
//!
//! Without the feature `world` this is parking_lot, crossbeam and the standard library under one name, at no cost. With
//! it, `tests/world` runs the engine as tasks of one thread of the system: one seed decides which task goes on at each
//! lock, channel and device operation, and time passes only when the world says so.
//!
//! | for | take | in a world |
//! |---|---|---|
//! | shared state | `Mutex`, `RwLock`, `Condvar` | another task may go on at each |
//! | something made once | `OnceLock`, `thread_local!`, `cache` | the first task makes it, others wait |
//! | a thread | `thread::Builder`, or `Builder::spawn_scoped` in a `scope` | a task that the world counts and waits for |
//! | messages | `channel::bounded`, `channel::recv_either` | a queue of one has room for one, as `bounded(0)` has |
//! | time | `clock::Instant`, `clock::since_epoch`, `thread::sleep`, waits with a limit | the world's time |
//! | random bytes, other processes | `entropy::fill`, `process::is_gone` | of the seed; none but this one |
//! | a part of a step that others must not see | `thread::linger` | may take long, or be the last |
//! | a library that has locks of its own | `atomically` around each call | no other task goes on |
//!
//! Atomics are those of the standard library, and no points: a loop that waits for one hangs a world. A method that only
//! the system's types have builds here, and not in `tests/world`.
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
