//! Threads for calls that take long, so that the thread that serves the kernel does not.
//!
//! Algorithm: a job goes into a queue; if no thread is idle, one is started, up to [`THREADS_MAX`]; an idle thread
//! ends after [`IDLE`]. So a mount that never needs one has none (waking a thread on another core costs more than
//! a small request), and concurrency starts threads.
//!
//! Limits: the kernel bounds the queue, since each job is a request somebody waits for; beyond [`QUEUE_MAX`] the
//! submitting thread runs the job itself, which is back-pressure.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// Most threads at once: enough that some slow fsyncs do not stop reads.
const THREADS_MAX: usize = 16;
/// Most jobs waiting.
const QUEUE_MAX: usize = 1024;
/// How long a thread without work stays.
const IDLE: Duration = Duration::from_secs(10);

type Job = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct State {
    queue: VecDeque<Job>,
    threads: usize,
    idle: usize,
}

/// A pool of threads that grows when needed.
#[derive(Default)]
pub(crate) struct Offload {
    state: Mutex<State>,
    work: Condvar,
    finished: Condvar,
}

impl Offload {
    /// Runs `job` on another thread, or on this one if there can be no other.
    pub(crate) fn submit(self: &Arc<Self>, job: impl FnOnce() + Send + 'static) {
        let mut state = self.state.lock();
        if state.queue.len() >= QUEUE_MAX {
            drop(state);
            return job();
        }
        state.queue.push_back(Box::new(job));
        if state.idle >= state.queue.len() || state.threads >= THREADS_MAX {
            drop(state);
            self.work.notify_one();
            return;
        }
        state.threads += 1;
        drop(state);
        let pool = Arc::clone(self);
        let spawned = std::thread::Builder::new().name("fuse-slow".to_owned()).spawn(move || pool.work());
        if let Err(error) = spawned {
            tracing::warn!(%error, "cannot start a thread for slow calls; running them in the session thread");
            let mut state = self.state.lock();
            state.threads -= 1;
            let job = if state.threads == 0 { state.queue.pop_front() } else { None };
            drop(state);
            if let Some(job) = job {
                job();
            }
        }
    }

    /// Waits until no job is left. Nothing may be submitted any more.
    pub(crate) fn drain(&self) {
        let mut state = self.state.lock();
        while !state.queue.is_empty() || state.threads > state.idle {
            self.finished.wait(&mut state);
        }
    }

    fn work(&self) {
        let mut state = self.state.lock();
        loop {
            while let Some(job) = state.queue.pop_front() {
                drop(state);
                // A job's own calls are guarded; this keeps the counts right even if a reply panics.
                if catch_unwind(AssertUnwindSafe(job)).is_err() {
                    tracing::error!("a slow call panicked; its request was answered with EIO");
                }
                state = self.state.lock();
            }
            state.idle += 1;
            self.finished.notify_all();
            let timed_out = self.work.wait_for(&mut state, IDLE).timed_out();
            state.idle -= 1;
            if timed_out && state.queue.is_empty() {
                state.threads -= 1;
                self.finished.notify_all();
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn all_jobs_run_before_drain_returns() {
        let pool = Arc::new(Offload::default());
        let done = Arc::new(AtomicUsize::new(0));
        for number in 0..200 {
            let done = Arc::clone(&done);
            pool.submit(move || {
                assert!(number % 10 != 3, "some jobs panic");
                done.fetch_add(1, Ordering::SeqCst);
            });
        }
        pool.drain();
        assert_eq!(done.load(Ordering::SeqCst), 180);
        assert!(pool.state.lock().threads <= THREADS_MAX);
    }

    #[test]
    fn a_waiting_job_does_not_stop_the_next() {
        let pool = Arc::new(Offload::default());
        let (send, receive) = channel::<()>();
        pool.submit(move || receive.recv().unwrap());
        pool.submit(move || send.send(()).unwrap());
        pool.drain();
    }

    #[test]
    fn a_full_pool_still_finishes_everything() {
        let pool = Arc::new(Offload::default());
        let done = Arc::new(AtomicUsize::new(0));
        for _ in 0..QUEUE_MAX + THREADS_MAX + 100 {
            let done = Arc::clone(&done);
            pool.submit(move || {
                std::thread::sleep(Duration::from_micros(200));
                done.fetch_add(1, Ordering::SeqCst);
            });
        }
        pool.drain();
        assert_eq!(done.load(Ordering::SeqCst), QUEUE_MAX + THREADS_MAX + 100);
    }
}
