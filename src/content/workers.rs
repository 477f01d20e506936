//! A fixed set of threads that run jobs of megabyte size: hashing, compression, decoding, large writes.
//!
//! 1. [`WorkerPool::submit`] puts a job into a bounded queue. When the queue is full the submitter runs the job itself.
//!    So submitting never deadlocks, and slows a producer down to the speed of the machine.
//! 2. [`WorkerPool::try_submit`] is for work that may be dropped or done later instead.
//! 3. [`WorkerPool::try_submit_ahead`] is for speculative work that may be dropped. It has a longer queue of its own,
//!    so that neither kind crowds the other out. Threads take from both queues alike. When the pool ends, the jobs
//!    waiting there are dropped.
//! 4. [`WorkerPool::try_submit_before`] is for a job that many speculative jobs wait for: it takes a place in the first
//!    queue if there is one.
//! 5. A panic in a job is caught and the thread survives. The job's owner learns of it through a guard of its own
//!    (`PoisonOnPanic` in `containers/shared.rs`).
//!
//! Cost: waking a thread on another core takes 30 to 80 us, so a job should be worth hundreds.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

use dedupfs_store::waiting;
use dedupfs_sync::OnceLock;
use dedupfs_sync::canary::{Canary, is_planted};
use dedupfs_sync::channel::{Either, Receiver, Sender, TrySendError, bounded, recv_either};
use dedupfs_sync::thread::JoinHandle;

/// One piece of work.
pub(crate) type Job = Box<dyn FnOnce() + Send>;

/// Queued jobs for each thread of a pool made by [`WorkerPool::new`]: enough to keep a thread busy while its producers
/// sleep. It also bounds the raw bytes that wait.
const QUEUED_JOBS_PER_THREAD: usize = 8;
/// Speculative jobs that wait in a pool, for any number of threads. There is a place for every load that
/// the prefetcher allows, so that readers need not ask again. A waiting job holds little (the table of its
/// container).
const QUEUED_AHEAD: usize = 1024;

dedupfs_sync::thread_local! {
    static IS_WORKER: Cell<bool> = const { Cell::new(false) };
}

/// The sending ends of the queues.
#[derive(Debug)]
struct Queue {
    jobs: Sender<Job>,
    ahead: Sender<Job>,
}

/// A fixed set of threads with bounded queues. They start with the first job: opening a pool only to inspect it starts
/// none.
#[derive(Debug)]
pub struct WorkerPool {
    /// `None` only while dropping: closing the queue ends the threads once it is empty.
    queue: Option<Queue>,
    jobs: Receiver<Job>,
    ahead: Receiver<Job>,
    name: String,
    wanted: usize,
    threads: OnceLock<Vec<JoinHandle<()>>>,
}

impl WorkerPool {
    /// Makes a pool of `threads` threads. If the system refuses some, the pool has fewer; with none, submitters run
    /// every job.
    #[must_use]
    pub fn new(threads: usize) -> Self {
        Self::with_queue("dedupfs-work", threads, threads.saturating_mul(QUEUED_JOBS_PER_THREAD))
    }

    /// Makes a pool whose threads are called `name` and whose queue holds `queued_jobs`.
    pub(crate) fn with_queue(name: &str, threads: usize, queued_jobs: usize) -> Self {
        let (to_jobs, jobs) = bounded(queued_jobs.max(1));
        let (to_ahead, ahead) = bounded(QUEUED_AHEAD);
        let queue = Some(Queue { jobs: to_jobs, ahead: to_ahead });
        Self { queue, jobs, ahead, name: name.to_owned(), wanted: threads, threads: OnceLock::new() }
    }

    fn start(&self) -> Vec<JoinHandle<()>> {
        let start = |number| {
            let (jobs, ahead) = (self.jobs.clone(), self.ahead.clone());
            let work = move || {
                IS_WORKER.set(true);
                let next = || match recv_either(&jobs, &ahead) {
                    Ok(Either::One(job) | Either::Other(job)) => Some(job),
                    Err(_) => None,
                };
                std::iter::from_fn(next).for_each(run);
                // The pool has ended: speculative jobs are no longer needed.
                jobs.iter().for_each(run);
            };
            let builder = dedupfs_sync::thread::Builder::new().name(format!("{}-{number}", self.name));
            builder.spawn(work).inspect_err(|error| tracing::warn!(%error, "cannot start a worker thread")).ok()
        };
        (0..self.wanted).filter_map(start).collect()
    }

    /// Number of threads, started or to be started.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.threads.get().map_or(self.wanted, Vec::len)
    }

    /// Whether the calling thread belongs to a pool; such a thread must not wait for other jobs.
    pub(crate) fn on_worker() -> bool {
        IS_WORKER.get()
    }

    /// Has the job run by a worker, or by the caller before this returns if the queue is full.
    pub fn submit(&self, job: Job) {
        if let Err(job) = self.enqueue(job, |queue| &queue.jobs) {
            waiting::announce();
            run(job);
        }
    }

    /// Queues the job unless the queue is full; then drops it. Returns whether it was queued.
    pub(crate) fn try_submit(&self, job: Job) -> bool {
        self.enqueue(job, |queue| &queue.jobs).is_ok()
    }

    /// Like [`try_submit`](Self::try_submit), for the queue of speculative jobs. A queued job may still be dropped
    /// unstarted.
    pub(crate) fn try_submit_ahead(&self, job: Job) -> bool {
        self.enqueue(job, |queue| &queue.ahead).is_ok()
    }

    /// Queues the job among other work if there is room, otherwise among the speculative jobs.
    pub(crate) fn try_submit_before(&self, job: Job) -> bool {
        self.enqueue(job, |queue| &queue.jobs).or_else(|job| self.enqueue(job, |queue| &queue.ahead)).is_ok()
    }

    fn enqueue(&self, job: Job, of: impl FnOnce(&Queue) -> &Sender<Job>) -> Result<(), Job> {
        let Some(queue) = &self.queue else { return Err(job) };
        if self.threads.get_or_init(|| self.start()).is_empty() {
            return Err(job);
        }
        of(queue).try_send(job).map_err(|refused| match refused {
            TrySendError::Full(job) | TrySendError::Disconnected(job) => job,
        })
    }
}

impl Drop for WorkerPool {
    /// Ends the threads after the queued jobs; drops speculative ones. A job may be the last owner: a thread does not
    /// join itself.
    fn drop(&mut self) {
        if is_planted(Canary::ThreadLeft) {
            std::mem::forget((self.queue.take(), std::mem::take(&mut self.threads)));
        }
        self.queue = None;
        let own = dedupfs_sync::thread::current().id();
        for thread in self.threads.take().into_iter().flatten().filter(|thread| thread.thread().id() != own) {
            // A worker catches the panics of its jobs, so the result carries no news.
            let _ = thread.join();
        }
    }
}

fn run(job: Job) {
    if catch_unwind(AssertUnwindSafe(job)).is_err() {
        tracing::error!("a worker's job panicked");
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;
    use std::time::{Duration, Instant};

    use super::WorkerPool;

    /// Keeps the only worker busy until the returned sender is dropped.
    fn hold(pool: &WorkerPool) -> mpsc::Sender<()> {
        let (release, wait) = mpsc::channel();
        let (started, start) = mpsc::channel();
        pool.submit(Box::new(move || {
            let _ = started.send(());
            let _ = wait.recv();
        }));
        start.recv_timeout(Duration::from_secs(10)).expect("the worker starts");
        release
    }

    #[test]
    fn every_job_runs_once_even_when_the_queue_is_full() {
        let done = Arc::new(AtomicUsize::new(0));
        let pool = WorkerPool::with_queue("test", 2, 1);
        for _ in 0..500 {
            let done = Arc::clone(&done);
            pool.submit(Box::new(move || {
                done.fetch_add(1, Ordering::Relaxed);
            }));
        }
        drop(pool);
        assert_eq!(done.load(Ordering::Relaxed), 500);
    }

    #[test]
    fn a_full_queue_makes_the_submitter_run_the_job() {
        let pool = WorkerPool::with_queue("test", 1, 1);
        let release = hold(&pool);
        assert!(pool.try_submit(Box::new(|| ())), "one job fits into the queue");
        assert!(!pool.try_submit(Box::new(|| ())), "a second does not");
        let submitter = std::thread::current().id();
        let (ran, who) = mpsc::channel();
        pool.submit(Box::new(move || {
            let _ = ran.send(std::thread::current().id());
        }));
        assert_eq!(who.try_recv(), Ok(submitter));
        drop(release);
    }

    #[test]
    fn what_is_done_ahead_crowds_nothing_else_out() {
        let pool = WorkerPool::with_queue("test", 1, 1);
        let release = hold(&pool);
        let done = Arc::new(AtomicUsize::new(0));
        let job = || {
            let done = Arc::clone(&done);
            Box::new(move || {
                done.fetch_add(1, Ordering::Relaxed);
            })
        };
        let ahead = (0..10_000).take_while(|_| pool.try_submit_ahead(job())).count();
        assert!((2..10_000).contains(&ahead), "{ahead}");
        assert!(pool.try_submit(job()), "there is room for other jobs");
        drop(release);
        let deadline = Instant::now() + Duration::from_secs(10);
        while done.load(Ordering::Relaxed) < ahead + 1 {
            assert!(Instant::now() < deadline, "{} of {ahead} and one are done", done.load(Ordering::Relaxed));
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn a_pool_ends_when_all_its_jobs_are_done_but_for_those_ahead() {
        for _ in 0..20 {
            let pool = WorkerPool::with_queue("test", 1, 8);
            let release = hold(&pool);
            let (done, done_ahead) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
            let job = |count: &Arc<AtomicUsize>| {
                let count = Arc::clone(count);
                Box::new(move || {
                    count.fetch_add(1, Ordering::Relaxed);
                })
            };
            assert!((0..20).all(|_| pool.try_submit_ahead(job(&done_ahead))));
            assert!((0..8).all(|_| pool.try_submit(job(&done))));
            std::thread::scope(|scope| {
                scope.spawn(move || drop(pool));
                // The drop may have begun by now.
                std::thread::sleep(Duration::from_millis(2));
                drop(release);
            });
            assert_eq!(done.load(Ordering::Relaxed), 8);
            assert_eq!(Arc::strong_count(&done_ahead), 1, "a job is kept");
        }
    }

    #[test]
    fn a_panic_costs_neither_the_thread_nor_later_jobs() {
        let pool = WorkerPool::with_queue("test", 1, 4);
        pool.submit(Box::new(|| panic!("on purpose")));
        let (ran, done) = mpsc::channel();
        pool.submit(Box::new(move || {
            let _ = ran.send(WorkerPool::on_worker());
        }));
        assert_eq!(done.recv_timeout(Duration::from_secs(10)), Ok(true));
        assert!(!WorkerPool::on_worker());
    }

    #[test]
    fn a_pool_without_threads_runs_jobs_at_once() {
        let pool = WorkerPool::new(0);
        let (ran, done) = mpsc::channel();
        pool.submit(Box::new(move || {
            let _ = ran.send(());
        }));
        assert_eq!(done.try_recv(), Ok(()));
    }

    #[test]
    fn a_job_may_own_the_last_reference_to_its_pool() {
        let pool = Arc::new(WorkerPool::with_queue("test", 1, 4));
        let (dropped, done) = mpsc::channel();
        let (go, wait) = mpsc::channel::<()>();
        let own = Arc::clone(&pool);
        pool.submit(Box::new(move || {
            let _ = wait.recv();
            drop(own);
            let _ = dropped.send(());
        }));
        drop(pool);
        let _ = go.send(());
        assert_eq!(done.recv_timeout(Duration::from_secs(10)), Ok(()));
    }
}
