//! The primitives of the engine in a world. Outside of a running world the locks are the system's.
//!
//! Each is the system's own primitive, tried without waiting, and a queue of tasks that wait for it. All tasks run on one
//! thread of the system, so no primitive of the system is ever waited for.

pub mod cache;
pub mod channel;
pub mod clock;
pub mod entropy;
mod local;
mod locks;
mod once;
pub mod process;
pub mod thread;

pub use crate::local_to_tasks as thread_local;
pub use local::{LocalKey, Values};
pub use locks::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard, WaitTimeoutResult};
pub use once::OnceLock;

use super::state;

/// Runs a step that holds locks the world does not know. No other task runs meanwhile.
///
/// # Panics
/// In a world, if the step waits for another task.
pub fn atomically<T>(step: impl FnOnce() -> T) -> T {
    struct Leave;
    impl Drop for Leave {
        fn drop(&mut self) {
            state::atomic(false);
        }
    }
    if !state::in_world() {
        return step();
    }
    state::atomic(true);
    let _leave = Leave;
    step()
}
