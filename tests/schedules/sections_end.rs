//! Sections: a barrier waits for the sections entered before it and blocks no new ones; between sections nobody is
//! inside.

use std::sync::Arc;

use shuttle::sync::atomic::{AtomicUsize, Ordering};
use shuttle::thread;

use crate::explore;
use crate::sections::Sections;
use crate::sync::{Condvar, Mutex};

const WRITERS: usize = 3;

#[derive(Clone, Copy, Default, PartialEq)]
enum Phase {
    #[default]
    Outside,
    Entered,
    Ended,
}

#[test]
fn barriers_wait_for_those_before_them_and_nobody_is_between() {
    explore(|| {
        let sections = Arc::new(Sections::default());
        let phases = Arc::new(Mutex::new([Phase::Outside; WRITERS]));
        let inside = Arc::new(AtomicUsize::new(0));
        let mut threads = Vec::new();
        for writer in 0..WRITERS {
            let (sections, phases, inside) = (sections.clone(), phases.clone(), inside.clone());
            threads.push(thread::spawn(move || {
                let section = sections.enter(|| ());
                inside.fetch_add(1, Ordering::SeqCst);
                phases.lock()[writer] = Phase::Entered;
                phases.lock()[writer] = Phase::Ended;
                inside.fetch_sub(1, Ordering::SeqCst);
                drop(section);
            }));
        }
        for _ in 0..2 {
            let (sections, phases) = (sections.clone(), phases.clone());
            threads.push(thread::spawn(move || {
                let before = *phases.lock();
                sections.barrier();
                let after = *phases.lock();
                for (before, after) in before.iter().zip(after) {
                    assert!(*before != Phase::Entered || after == Phase::Ended, "a section before the barrier goes on");
                }
            }));
        }
        let between = (sections.clone(), inside.clone());
        threads.push(thread::spawn(move || {
            let (sections, inside) = between;
            sections.between(|| assert_eq!(inside.load(Ordering::SeqCst), 0, "somebody is inside"));
        }));
        threads.into_iter().for_each(|thread| thread.join().expect("ends"));
        // Nothing is left over.
        sections.barrier();
        sections.between(|| ());
    });
}

/// A section ends only after a later one: a lock that blocks newcomers while a barrier waits would let all three wait
/// for ever.
#[test]
fn a_section_may_end_behind_one_that_comes_after_a_barrier() {
    explore(|| {
        let sections = Arc::new(Sections::default());
        let (has_been, changed) = (Arc::new(Mutex::new(false)), Arc::new(Condvar::new()));
        let slow = {
            let (sections, has_been, changed) = (sections.clone(), has_been.clone(), changed.clone());
            thread::spawn(move || {
                let _section = sections.enter(|| ());
                let mut has_been = has_been.lock();
                while !*has_been {
                    changed.wait(&mut has_been);
                }
            })
        };
        let barrier = {
            let sections = sections.clone();
            thread::spawn(move || sections.barrier())
        };
        let quick = thread::spawn(move || {
            drop(sections.enter(|| ()));
            *has_been.lock() = true;
            changed.notify_all();
        });
        for thread in [slow, barrier, quick] {
            thread.join().expect("ends");
        }
    });
}
