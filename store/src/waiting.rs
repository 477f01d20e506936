//! Announcements that the calling thread is about to wait: for a disk, or for a thread that may be waiting for one.
//!
//! One thread carries all others: the one that receives the kernel's requests. When it announces a wait, another thread
//! takes its place first. So a request needs no second thread unless it really waits, and nobody has to predict that.
//!
//! A thread calls [`announce`] before any wait that is not brief. [`lock`], [`read`] and [`write()`] do so if the lock is
//! taken. The announcement changes nothing for the caller: it waits as before, and may hold locks.
//!
//! Cost: an atomic load, and a look at a thread-local of the listener's.

use std::sync::OnceLock;

use dedupfs_sync::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::profile::{self, Component};

/// The receiver of announcements. Both functions must be quick and must not wait.
#[derive(Clone, Copy, Debug)]
pub struct Listener {
    /// Whether an announcement of the calling thread would have any effect.
    pub is_concerned: fn() -> bool,
    /// Called when the calling thread is about to wait.
    pub about_to_wait: fn(),
}

static LISTENER: OnceLock<Listener> = OnceLock::new();

/// Sets the listener of the whole process. Only the first call counts.
pub fn listen(listener: Listener) {
    let _first = LISTENER.set(listener);
}

/// Whether it is worth finding out if the calling thread would have to wait.
pub(crate) fn is_concerned() -> bool {
    LISTENER.get().is_some_and(|listener| (listener.is_concerned)())
}

/// Tells the listener that the calling thread is about to wait.
pub fn announce() {
    if let Some(listener) = LISTENER.get() {
        (listener.about_to_wait)();
    }
}

/// Locks a mutex that may be held across I/O.
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    lock_as(Component::Locks, mutex)
}

/// As [`lock`]; a wait counts for `component`.
pub fn lock_as<T: ?Sized>(component: Component, mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.try_lock().unwrap_or_else(|| {
        announce();
        let _waits = profile::of(component);
        mutex.lock()
    })
}

/// Takes a read lock that may be held across I/O.
pub fn read<T: ?Sized>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.try_read().unwrap_or_else(|| {
        announce();
        let _waits = profile::of(Component::Locks);
        lock.read()
    })
}

/// Takes a write lock that may be held across I/O.
pub fn write<T: ?Sized>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    lock.try_write().unwrap_or_else(|| {
        announce();
        let _waits = profile::of(Component::Locks);
        lock.write()
    })
}

#[cfg(test)]
pub(crate) mod testing {
    use std::cell::{Cell, RefCell};
    use std::sync::mpsc::Sender;

    thread_local! {
        static ANNOUNCED: Cell<u32> = const { Cell::new(0) };
        static TOLD: RefCell<Option<Sender<()>>> = const { RefCell::new(None) };
    }

    fn about_to_wait() {
        ANNOUNCED.set(ANNOUNCED.get() + 1);
        TOLD.with_borrow(|told| {
            if let Some(told) = told {
                told.send(()).expect("somebody listens");
            }
        });
    }

    /// Number of waits that this thread announces during `action`.
    pub(crate) fn announcements(action: impl FnOnce()) -> u32 {
        super::listen(super::Listener { is_concerned: || true, about_to_wait });
        let before = ANNOUNCED.get();
        action();
        ANNOUNCED.get() - before
    }

    /// Sends to `told` whenever this thread announces a wait.
    pub(super) fn tell(told: Sender<()>) {
        TOLD.set(Some(told));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::testing::{announcements, tell};
    use super::*;

    #[test]
    fn only_who_has_to_wait_says_so() {
        let (mutex, shared) = (Mutex::new(()), RwLock::new(()));
        let take_all = || {
            drop(lock(&mutex));
            drop(read(&shared));
            drop(write(&shared));
        };
        assert_eq!(announcements(take_all), 0);
        std::thread::scope(|scope| {
            let (told, hears) = channel();
            let (held, written) = (mutex.lock(), shared.write());
            let waiting = scope.spawn(|| {
                tell(told);
                announcements(take_all)
            });
            hears.recv().expect("waits for the mutex");
            drop(held);
            hears.recv().expect("waits to read");
            let read = RwLockWriteGuard::downgrade(written);
            hears.recv().expect("waits to write");
            drop(read);
            assert_eq!(waiting.join().expect("takes all locks"), 3);
        });
    }
}
