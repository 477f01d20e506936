use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use super::offload::{Offload, QUEUE_MAX, THREADS_MAX};

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
    assert!(pool.jobs.lock().threads <= THREADS_MAX);
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
