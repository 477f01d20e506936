//! Locks and condition variables.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use super::clock::Instant;
use crate::world::state::{in_world, now, point};
use crate::world::wait::Waiters;

const HELD: &str = "a guard holds its lock";

/// Tries until it succeeds, and waits in between. `None`: the time is over.
fn until<T>(waiters: &Waiters, at_most: Option<Duration>, mut attempt: impl FnMut() -> Option<T>) -> Option<T> {
    let end = at_most.map(|time| now().saturating_add(time));
    loop {
        if let Some(done) = attempt() {
            return Some(done);
        }
        let left = end.map(|end| end.saturating_sub(now()));
        if left == Some(Duration::ZERO) {
            return None;
        }
        let waiter = waiters.enter();
        if !waiter.wait(left) {
            waiters.leave(&waiter);
        }
    }
}

/// A mutex.
#[derive(Default)]
pub struct Mutex<T: ?Sized> {
    waiters: Waiters,
    inner: parking_lot::Mutex<T>,
}

/// A locked [`Mutex`].
pub struct MutexGuard<'a, T: ?Sized> {
    lock: &'a Mutex<T>,
    /// `None` only while a condition variable waits.
    inner: Option<parking_lot::MutexGuard<'a, T>>,
}

impl<T> Mutex<T> {
    /// Makes an unlocked mutex.
    pub const fn new(value: T) -> Self {
        Self { waiters: Waiters::new(), inner: parking_lot::Mutex::new(value) }
    }

    /// Returns the value.
    pub fn into_inner(self) -> T {
        self.inner.into_inner()
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Locks.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        let inner = if in_world() {
            point();
            until(&self.waiters, None, || self.inner.try_lock()).expect("waits without end")
        } else {
            self.inner.lock()
        };
        MutexGuard { lock: self, inner: Some(inner) }
    }

    /// Locks unless it is locked.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        point();
        self.inner.try_lock().map(|inner| MutexGuard { lock: self, inner: Some(inner) })
    }

    /// Locks within this time.
    pub fn try_lock_for(&self, time: Duration) -> Option<MutexGuard<'_, T>> {
        let inner = if in_world() {
            point();
            until(&self.waiters, Some(time), || self.inner.try_lock())
        } else {
            self.inner.try_lock_for(time)
        };
        inner.map(|inner| MutexGuard { lock: self, inner: Some(inner) })
    }

    /// Whether it is locked.
    pub fn is_locked(&self) -> bool {
        self.inner.is_locked()
    }

    /// The value of a mutex that nobody else can lock.
    pub fn get_mut(&mut self) -> &mut T {
        self.inner.get_mut()
    }
}

impl<T: ?Sized> MutexGuard<'_, T> {
    fn release(&mut self) {
        self.inner = None;
        self.lock.waiters.wake_all();
    }
}

impl<T: ?Sized> Drop for MutexGuard<'_, T> {
    fn drop(&mut self) {
        self.release();
    }
}

impl<T: ?Sized> Deref for MutexGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        self.inner.as_ref().expect(HELD)
    }
}

impl<T: ?Sized> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.inner.as_mut().expect(HELD)
    }
}

/// A lock for one writer or many readers. As with parking_lot, a writer that waits holds back new readers.
#[derive(Default)]
pub struct RwLock<T: ?Sized> {
    waiters: Waiters,
    waiting_writers: AtomicU32,
    inner: parking_lot::RwLock<T>,
}

/// A [`RwLock`] locked for reading.
pub struct RwLockReadGuard<'a, T: ?Sized> {
    waiters: &'a Waiters,
    inner: Option<parking_lot::RwLockReadGuard<'a, T>>,
}

/// A [`RwLock`] locked for writing.
pub struct RwLockWriteGuard<'a, T: ?Sized> {
    waiters: &'a Waiters,
    inner: Option<parking_lot::RwLockWriteGuard<'a, T>>,
}

impl<T> RwLock<T> {
    /// Makes an unlocked lock.
    pub const fn new(value: T) -> Self {
        Self { waiters: Waiters::new(), waiting_writers: AtomicU32::new(0), inner: parking_lot::RwLock::new(value) }
    }

    /// Returns the value.
    pub fn into_inner(self) -> T {
        self.inner.into_inner()
    }
}

impl<T: ?Sized> RwLock<T> {
    fn attempt_read(&self) -> Option<parking_lot::RwLockReadGuard<'_, T>> {
        (self.waiting_writers.load(Ordering::Relaxed) == 0).then(|| self.inner.try_read()).flatten()
    }

    fn wait_to_write(&self, at_most: Option<Duration>) -> Option<parking_lot::RwLockWriteGuard<'_, T>> {
        self.waiting_writers.fetch_add(1, Ordering::Relaxed);
        let inner = until(&self.waiters, at_most, || self.inner.try_write());
        self.waiting_writers.fetch_sub(1, Ordering::Relaxed);
        if inner.is_none() {
            // Readers waited for this writer alone.
            self.waiters.wake_all();
        }
        inner
    }

    fn reading<'a>(&'a self, inner: parking_lot::RwLockReadGuard<'a, T>) -> RwLockReadGuard<'a, T> {
        RwLockReadGuard { waiters: &self.waiters, inner: Some(inner) }
    }

    fn writing<'a>(&'a self, inner: parking_lot::RwLockWriteGuard<'a, T>) -> RwLockWriteGuard<'a, T> {
        RwLockWriteGuard { waiters: &self.waiters, inner: Some(inner) }
    }

    /// Locks for reading.
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        if !in_world() {
            return self.reading(self.inner.read());
        }
        point();
        self.reading(until(&self.waiters, None, || self.attempt_read()).expect("waits without end"))
    }

    /// Locks for reading unless a writer has or wants it.
    pub fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
        point();
        self.attempt_read().map(|inner| self.reading(inner))
    }

    /// Locks for writing.
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        if !in_world() {
            return self.writing(self.inner.write());
        }
        point();
        self.writing(self.wait_to_write(None).expect("waits without end"))
    }

    /// Locks for writing unless anybody has it.
    pub fn try_write(&self) -> Option<RwLockWriteGuard<'_, T>> {
        point();
        self.inner.try_write().map(|inner| self.writing(inner))
    }

    /// Locks for writing within this time.
    pub fn try_write_for(&self, time: Duration) -> Option<RwLockWriteGuard<'_, T>> {
        let inner = if in_world() {
            point();
            self.wait_to_write(Some(time))
        } else {
            self.inner.try_write_for(time)
        };
        inner.map(|inner| self.writing(inner))
    }

    /// The value of a lock that nobody else can lock.
    pub fn get_mut(&mut self) -> &mut T {
        self.inner.get_mut()
    }
}

impl<T: ?Sized> Drop for RwLockReadGuard<'_, T> {
    fn drop(&mut self) {
        self.inner = None;
        self.waiters.wake_all();
    }
}

impl<T: ?Sized> Drop for RwLockWriteGuard<'_, T> {
    fn drop(&mut self) {
        self.inner = None;
        self.waiters.wake_all();
    }
}

impl<T: ?Sized> Deref for RwLockReadGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        self.inner.as_ref().expect(HELD)
    }
}

impl<T: ?Sized> Deref for RwLockWriteGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        self.inner.as_ref().expect(HELD)
    }
}

impl<T: ?Sized> DerefMut for RwLockWriteGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.inner.as_mut().expect(HELD)
    }
}

/// A condition variable. A notification wakes any of those that wait, not the first.
#[derive(Debug, Default)]
pub struct Condvar {
    waiters: Waiters,
    outside: parking_lot::Condvar,
}

/// Whether a wait ended because its time was over.
#[derive(Clone, Copy, Debug)]
pub struct WaitTimeoutResult(bool);

impl WaitTimeoutResult {
    /// Whether the time was over.
    #[must_use]
    pub fn timed_out(self) -> bool {
        self.0
    }
}

impl Condvar {
    /// Makes a condition variable.
    #[must_use]
    pub const fn new() -> Self {
        Self { waiters: Waiters::new(), outside: parking_lot::Condvar::new() }
    }

    /// The tasks that wait.
    pub(super) fn waiters(&self) -> &Waiters {
        &self.waiters
    }

    /// Wakes one task.
    pub fn notify_one(&self) {
        self.waiters.wake_one();
        self.outside.notify_one();
        point();
    }

    /// Wakes all tasks.
    pub fn notify_all(&self) {
        self.waiters.wake_all();
        self.outside.notify_all();
        point();
    }

    /// Unlocks, waits for a notification, and locks again.
    pub fn wait<T: ?Sized>(&self, guard: &mut MutexGuard<'_, T>) {
        self.wait_at_most(guard, None);
    }

    /// As [`wait`](Self::wait), for this time at most.
    pub fn wait_for<T: ?Sized>(&self, guard: &mut MutexGuard<'_, T>, time: Duration) -> WaitTimeoutResult {
        WaitTimeoutResult(!self.wait_at_most(guard, Some(time)))
    }

    /// As [`wait`](Self::wait), until this time at most.
    pub fn wait_until<T: ?Sized>(&self, guard: &mut MutexGuard<'_, T>, until: Instant) -> WaitTimeoutResult {
        self.wait_for(guard, until.saturating_duration_since(Instant::now()))
    }

    /// Waits while the condition holds.
    pub fn wait_while<T: ?Sized>(&self, guard: &mut MutexGuard<'_, T>, mut holds: impl FnMut(&mut T) -> bool) {
        while holds(guard) {
            self.wait(guard);
        }
    }

    fn wait_at_most<T: ?Sized>(&self, guard: &mut MutexGuard<'_, T>, time: Option<Duration>) -> bool {
        if !in_world() {
            let inner = guard.inner.as_mut().expect(HELD);
            return match time {
                Some(time) => !self.outside.wait_for(inner, time).timed_out(),
                None => {
                    self.outside.wait(inner);
                    true
                }
            };
        }
        let waiter = self.waiters.enter();
        guard.release();
        let was_woken = waiter.wait(time);
        if !was_woken {
            self.waiters.leave(&waiter);
        }
        let lock = guard.lock;
        guard.inner = until(&lock.waiters, None, || lock.inner.try_lock());
        was_woken
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for RwLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for MutexGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for RwLockReadGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for RwLockWriteGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}
