//! Threads for calls that take long, so that they do not occupy the thread that serves the kernel.
//!
//! Algorithm: a job goes into a queue. If no thread is idle, one is started, up to [`THREADS_MAX`]. An idle thread ends after [`IDLE`]. So
//! a mount without slow calls has no such thread (waking a thread on another core costs more than a small request), and concurrency starts
//! threads.
//!
//! Limits: the kernel bounds the queue, since a client waits for each job. Beyond [`QUEUE_MAX`] the submitting thread runs the job itself,
//! which is back-pressure. A job for which no client waits is dropped then.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use crate::sync::{self, Condvar, Mutex};

/// Limit of threads: enough that some hanging calls do not stop the others.
pub(super) const THREADS_MAX: usize = 16;
pub(super) const QUEUE_MAX: usize = 1024;
const IDLE: Duration = Duration::from_secs(10);

type Job = Box<dyn FnOnce() + Send>;

#[derive(Default)]
pub(super) struct Jobs {
    queue: VecDeque<Job>,
    pub(super) threads: usize,
    idle: usize,
}

/// A pool of threads that grows when needed.
#[derive(Default)]
pub(crate) struct Offload {
    pub(super) jobs: Mutex<Jobs>,
    work: Condvar,
    finished: Condvar,
}

impl Offload {
    /// Runs `job` on another thread, or on this one if no other can be started.
    pub(crate) fn submit(self: &Arc<Self>, job: impl FnOnce() + Send + 'static) {
        if let Err(job) = self.enqueue(Box::new(job)) {
            job();
        }
    }

    /// Runs `job` on another thread, or not at all if none can be started or too many wait. For work that no client waits for:
    /// nothing bounds it, and it must not stop a thread that serves the kernel.
    pub(crate) fn submit_if_room(self: &Arc<Self>, job: impl FnOnce() + Send + 'static) {
        drop(self.enqueue(Box::new(job)));
    }

    /// Gives a job to another thread; returns one that none can take.
    fn enqueue(self: &Arc<Self>, job: Job) -> Result<(), Job> {
        let mut jobs = self.jobs.lock();
        if jobs.queue.len() >= QUEUE_MAX {
            return Err(job);
        }
        jobs.queue.push_back(job);
        if jobs.idle >= jobs.queue.len() || jobs.threads >= THREADS_MAX {
            drop(jobs);
            self.work.notify_one();
            return Ok(());
        }
        jobs.threads += 1;
        drop(jobs);
        let pool = Arc::clone(self);
        if let Err(error) = sync::spawn("fuse-slow", move || pool.work()) {
            tracing::warn!(%error, "cannot start a thread for slow calls");
            let mut jobs = self.jobs.lock();
            jobs.threads -= 1;
            if jobs.threads == 0
                && let Some(job) = jobs.queue.pop_front()
            {
                return Err(job);
            }
        }
        Ok(())
    }

    /// Waits until no job is left. No job may be submitted any more.
    pub(crate) fn drain(&self) {
        let mut jobs = self.jobs.lock();
        while !jobs.queue.is_empty() || jobs.threads > jobs.idle {
            self.finished.wait(&mut jobs);
        }
    }

    fn work(&self) {
        let mut jobs = self.jobs.lock();
        loop {
            while let Some(job) = jobs.queue.pop_front() {
                drop(jobs);
                // A job's own calls are guarded; this keeps the counts right even if a reply panics.
                if catch_unwind(AssertUnwindSafe(job)).is_err() {
                    tracing::error!("a slow call panicked; its request was answered with EIO");
                }
                jobs = self.jobs.lock();
            }
            jobs.idle += 1;
            self.finished.notify_all();
            let timed_out = self.work.wait_for(&mut jobs, IDLE).timed_out();
            jobs.idle -= 1;
            if timed_out && jobs.queue.is_empty() {
                jobs.threads -= 1;
                self.finished.notify_all();
                return;
            }
        }
    }
}
