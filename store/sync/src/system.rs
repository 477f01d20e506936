//! The system's own primitives.

pub use std::sync::OnceLock;
pub use std::thread_local;

pub use parking_lot::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Threads.
pub mod thread {
    pub use std::thread::{
        Builder, JoinHandle, Scope, ScopedJoinHandle, ThreadId, available_parallelism, current, panicking, scope,
        sleep, yield_now,
    };

    /// Does nothing: in a world, a step takes its time here.
    #[inline(always)]
    pub const fn linger(_: crate::step::Step) {}
}

/// Bounded queues between threads.
pub mod channel {
    pub use crossbeam_channel::{
        Receiver, RecvError, RecvTimeoutError, SendError, Sender, TryRecvError, TrySendError, bounded,
    };

    pub use crate::either::Either;

    /// Receives from the queue that has a message first.
    ///
    /// # Errors
    /// One queue has ended.
    #[inline]
    pub fn recv_either<A, B>(one: &Receiver<A>, other: &Receiver<B>) -> Result<Either<A, B>, RecvError> {
        crossbeam_channel::select! {
            recv(one) -> message => message.map(Either::One),
            recv(other) -> message => message.map(Either::Other),
        }
    }
}

/// Time.
pub mod clock {
    pub use std::time::Instant;
    use std::time::{Duration, SystemTime, UNIX_EPOCH};

    /// Time since 1970; zero for a clock that is set before it.
    #[inline]
    #[must_use]
    pub fn since_epoch() -> Duration {
        SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
    }
}

/// Random bytes.
pub mod entropy {
    /// Fills the bytes with random ones.
    ///
    /// # Errors
    /// The system has none.
    pub fn fill(mut bytes: &mut [u8]) -> std::io::Result<()> {
        while !bytes.is_empty() {
            let got = rustix::rand::getrandom(&mut *bytes, rustix::rand::GetRandomFlags::empty())?;
            bytes = &mut bytes[got..];
        }
        Ok(())
    }
}

/// Other processes.
pub mod process {
    use rustix::process::{Pid, test_kill_process};

    /// Whether no process has this number any more.
    #[must_use]
    pub fn is_gone(pid: i32) -> bool {
        Pid::from_raw(pid).is_some_and(|pid| test_kill_process(pid) == Err(rustix::io::Errno::SRCH))
    }
}

/// Caches whose misses are loaded once.
pub mod cache {
    use std::hash::Hash;

    pub use quick_cache::DefaultHashBuilder as CacheHasher;
    use quick_cache::Weighter;

    /// A cache bounded by the weight of its values.
    pub type Cache<K, V, W> = quick_cache::sync::Cache<K, V, W, CacheHasher>;

    /// Makes a cache of some `entries` that weigh `capacity` together at most.
    #[inline]
    pub fn weighing<K: Eq + Hash, V: Clone, W: Weighter<K, V> + Clone>(
        entries: usize,
        capacity: u64,
        weighter: W,
    ) -> Cache<K, V, W> {
        Cache::with_weighter(entries, capacity, weighter)
    }

    /// Returns the cached value, or loads it. Other threads that want it wait for the load.
    ///
    /// # Errors
    /// As `load`.
    #[inline]
    pub fn get_or_load<K: Eq + Hash + Clone, V: Clone, W: Weighter<K, V> + Clone, E>(
        cache: &Cache<K, V, W>,
        key: &K,
        load: impl FnOnce() -> Result<V, E>,
    ) -> Result<V, E> {
        cache.get_or_insert_with(key, load)
    }
}

/// Runs a step that holds locks the world does not know. In a world no other thread runs meanwhile.
#[inline]
pub fn atomically<T>(step: impl FnOnce() -> T) -> T {
    step()
}
