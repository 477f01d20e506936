//! The locks of code whose every order of steps is tried in tests: there this module is another one (`tests/schedules`).

pub(crate) use parking_lot::{Condvar, Mutex};
