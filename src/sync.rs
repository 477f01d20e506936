//! The locks of code whose every order of steps is tried in tests. There `tests/schedules` replaces this module.

pub(crate) use dedupfs_sync::{Condvar, Mutex};
