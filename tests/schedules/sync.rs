//! The replacement for the sources' `crate::sync`, on shuttle's locks.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::time::Duration;

use shuttle::rand::Rng;
use shuttle::sync as model;

#[derive(Default)]
pub(crate) struct Mutex<T>(model::Mutex<T>);

/// `None` only while a condition variable has it.
pub(crate) struct MutexGuard<'a, T>(&'a Mutex<T>, Option<model::MutexGuard<'a, T>>);

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(model::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        // A panic is an error of the model in any case.
        MutexGuard(self, Some(self.0.lock().expect("nobody panicked")))
    }
}

impl<T> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Mutex")
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.1.as_ref().expect("held")
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.1.as_mut().expect("held")
    }
}

#[derive(Default)]
pub(crate) struct Condvar(model::Condvar);

pub(crate) struct WaitTimeoutResult(bool);

impl WaitTimeoutResult {
    pub(crate) fn timed_out(&self) -> bool {
        self.0
    }
}

impl Condvar {
    pub(crate) fn new() -> Self {
        Self(model::Condvar::new())
    }

    pub(crate) fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        let held = guard.1.take().expect("held");
        guard.1 = Some(self.0.wait(held).expect("nobody panicked"));
    }

    /// Times out at random.
    pub(crate) fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, _limit: Duration) -> WaitTimeoutResult {
        drop(guard.1.take());
        shuttle::thread::yield_now();
        guard.1 = Some(guard.0.0.lock().expect("nobody panicked"));
        WaitTimeoutResult(shuttle::rand::thread_rng().gen_bool(0.5))
    }

    pub(crate) fn notify_one(&self) {
        self.0.notify_one();
    }

    pub(crate) fn notify_all(&self) {
        self.0.notify_all();
    }
}

pub(crate) fn spawn(_name: &str, run: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    drop(shuttle::thread::spawn(run));
    Ok(())
}
