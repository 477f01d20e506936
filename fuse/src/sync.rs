//! The locks of code whose every order of steps is tried in tests. There `tests/schedules` replaces this module.

pub(crate) use parking_lot::{Condvar, Mutex};

/// Starts a thread that nobody joins.
pub(crate) fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    std::thread::Builder::new().name(name.to_owned()).spawn(run).map(drop)
}
