//! The pool for slow calls: every job runs, also one that waits for a later one, and draining waits for all.

use std::sync::Arc;

use shuttle::sync::atomic::{AtomicUsize, Ordering};
use shuttle::thread;

use crate::explore;
use crate::offload::Offload;
use crate::sync::{Condvar, Mutex};

#[test]
fn draining_waits_for_jobs_of_all_submitters() {
    explore(|| {
        let (pool, done) = (Arc::new(Offload::default()), Arc::new(AtomicUsize::new(0)));
        let submitters: Vec<_> = (0..2)
            .map(|_| {
                let (pool, done) = (pool.clone(), done.clone());
                thread::spawn(move || {
                    for _ in 0..2 {
                        let done = done.clone();
                        pool.submit(move || {
                            done.fetch_add(1, Ordering::SeqCst);
                        });
                    }
                })
            })
            .collect();
        submitters.into_iter().for_each(|thread| thread.join().expect("submits"));
        pool.drain();
        assert_eq!(done.load(Ordering::SeqCst), 4);
    });
}

/// A job that ran on the thread of its submitter would wait for it for ever.
#[test]
fn jobs_that_nobody_waits_for_never_stop_their_submitter() {
    explore(|| {
        let (pool, done) = (Arc::new(Offload::default()), Arc::new(AtomicUsize::new(0)));
        let gate = Arc::new((Mutex::new(false), Condvar::new()));
        for _ in 0..3 {
            let (gate, done) = (gate.clone(), done.clone());
            pool.submit_if_room(move || {
                let mut is_open = gate.0.lock();
                while !*is_open {
                    gate.1.wait(&mut is_open);
                }
                done.fetch_add(1, Ordering::SeqCst);
            });
        }
        *gate.0.lock() = true;
        gate.1.notify_all();
        pool.drain();
        assert_eq!(done.load(Ordering::SeqCst), 3);
    });
}

/// A thread that is about to end must not be taken for one that will do the job.
#[test]
fn jobs_that_wait_for_later_ones_end() {
    explore(|| {
        let pool = Arc::new(Offload::default());
        let gate = Arc::new((Mutex::new(0), Condvar::new()));
        for number in [2, 1, 0] {
            let gate = gate.clone();
            pool.submit(move || {
                let (turn, changed) = &*gate;
                let mut turn = turn.lock();
                while *turn < number {
                    changed.wait(&mut turn);
                }
                *turn += 1;
                changed.notify_all();
            });
        }
        pool.drain();
        assert_eq!(*gate.0.lock(), 3);
    });
}
