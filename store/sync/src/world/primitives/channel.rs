//! Bounded queues between tasks.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

pub use crossbeam_channel::{RecvError, RecvTimeoutError, SendError, TryRecvError, TrySendError};

pub use crate::either::Either;

use super::clock::Instant;
use super::{Condvar, Mutex};
use crate::world::state;

struct State<T> {
    queue: VecDeque<T>,
    senders: usize,
    receivers: usize,
}

struct Shared<T> {
    capacity: usize,
    state: Mutex<State<T>>,
    /// A message came, or the last sender left.
    came: Condvar,
    /// A message was taken, or the last receiver left.
    taken: Condvar,
}

/// The sending end.
pub struct Sender<T>(Arc<Shared<T>>);

/// The receiving end.
pub struct Receiver<T>(Arc<Shared<T>>);

/// A queue of at most `capacity` messages, or of one if that is 0.
pub fn bounded<T>(capacity: usize) -> (Sender<T>, Receiver<T>) {
    let state = State { queue: VecDeque::new(), senders: 1, receivers: 1 };
    let shared = Arc::new(Shared {
        capacity: capacity.max(1),
        state: Mutex::new(state),
        came: Condvar::new(),
        taken: Condvar::new(),
    });
    (Sender(shared.clone()), Receiver(shared))
}

impl<T> Sender<T> {
    /// Waits for a place and sends.
    ///
    /// # Errors
    /// Nobody receives.
    pub fn send(&self, message: T) -> Result<(), SendError<T>> {
        let mut state = self.0.state.lock();
        loop {
            if state.receivers == 0 {
                return Err(SendError(message));
            }
            if state.queue.len() < self.0.capacity {
                break;
            }
            self.0.taken.wait(&mut state);
        }
        state.queue.push_back(message);
        drop(state);
        self.0.came.notify_all();
        Ok(())
    }

    /// Sends if there is a place.
    ///
    /// # Errors
    /// There is none, or nobody receives.
    pub fn try_send(&self, message: T) -> Result<(), TrySendError<T>> {
        let mut state = self.0.state.lock();
        if state.receivers == 0 {
            return Err(TrySendError::Disconnected(message));
        }
        if state.queue.len() >= self.0.capacity {
            return Err(TrySendError::Full(message));
        }
        state.queue.push_back(message);
        drop(state);
        self.0.came.notify_all();
        Ok(())
    }
}

impl<T> Receiver<T> {
    fn take(&self, state: &mut State<T>) -> Result<T, TryRecvError> {
        match state.queue.pop_front() {
            Some(message) => Ok(message),
            None if state.senders == 0 => Err(TryRecvError::Disconnected),
            None => Err(TryRecvError::Empty),
        }
    }

    /// Waits for a message.
    ///
    /// # Errors
    /// The queue is empty and nobody sends.
    pub fn recv(&self) -> Result<T, RecvError> {
        let mut state = self.0.state.lock();
        loop {
            match self.take(&mut state) {
                Ok(message) => {
                    drop(state);
                    self.0.taken.notify_all();
                    return Ok(message);
                }
                Err(TryRecvError::Disconnected) => return Err(RecvError),
                Err(TryRecvError::Empty) => self.0.came.wait(&mut state),
            }
        }
    }

    /// Takes a message if there is one.
    ///
    /// # Errors
    /// There is none, or nobody sends.
    pub fn try_recv(&self) -> Result<T, TryRecvError> {
        let taken = self.take(&mut self.0.state.lock());
        if taken.is_ok() {
            self.0.taken.notify_all();
        }
        taken
    }

    /// Waits for a message for this time.
    ///
    /// # Errors
    /// The time is over, or nobody sends.
    pub fn recv_timeout(&self, time: Duration) -> Result<T, RecvTimeoutError> {
        let end = Instant::now() + time;
        let mut state = self.0.state.lock();
        loop {
            match self.take(&mut state) {
                Ok(message) => {
                    drop(state);
                    self.0.taken.notify_all();
                    return Ok(message);
                }
                Err(TryRecvError::Disconnected) => return Err(RecvTimeoutError::Disconnected),
                Err(TryRecvError::Empty) if Instant::now() >= end => return Err(RecvTimeoutError::Timeout),
                Err(TryRecvError::Empty) => {
                    self.0.came.wait_until(&mut state, end);
                }
            }
        }
    }

    /// The messages until nobody sends.
    pub fn iter(&self) -> impl Iterator<Item = T> + '_ {
        std::iter::from_fn(|| self.recv().ok())
    }
}

/// Receives from the queue that has a message first.
///
/// # Errors
/// One queue has ended.
pub fn recv_either<A, B>(one: &Receiver<A>, other: &Receiver<B>) -> Result<Either<A, B>, RecvError> {
    let first = || match one.try_recv() {
        Err(TryRecvError::Empty) => None,
        Err(TryRecvError::Disconnected) => Some(Err(RecvError)),
        Ok(message) => Some(Ok(Either::One(message))),
    };
    let second = || match other.try_recv() {
        Err(TryRecvError::Empty) => None,
        Err(TryRecvError::Disconnected) => Some(Err(RecvError)),
        Ok(message) => Some(Ok(Either::Other(message))),
    };
    let take = || if state::random(2) == 0 { first().or_else(second) } else { second().or_else(first) };
    loop {
        // A message that comes while the queues are looked at wakes the waiter, too.
        let waiter = one.0.came.waiters().enter();
        other.0.came.waiters().join(&waiter);
        let taken = take();
        if taken.is_none() {
            waiter.wait(None);
        }
        one.0.came.waiters().leave(&waiter);
        other.0.came.waiters().leave(&waiter);
        if let Some(taken) = taken {
            return taken;
        }
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        self.0.state.lock().senders += 1;
        Self(self.0.clone())
    }
}

impl<T> Clone for Receiver<T> {
    fn clone(&self) -> Self {
        self.0.state.lock().receivers += 1;
        Self(self.0.clone())
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        self.0.state.lock().senders -= 1;
        self.0.came.notify_all();
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.receivers -= 1;
        // As crossbeam: what nobody can receive is dropped.
        let unread = if state.receivers == 0 { std::mem::take(&mut state.queue) } else { VecDeque::new() };
        drop(state);
        drop(unread);
        self.0.taken.notify_all();
    }
}

impl<T> fmt::Debug for Sender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Sender")
    }
}

impl<T> fmt::Debug for Receiver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Receiver")
    }
}
