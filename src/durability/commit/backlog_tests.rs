use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use super::backlog::{Backlog, Weight};

const WEIGHT: Weight = Weight { changes: 3, places: 2, bytes: 100 };

fn backlog() -> Backlog<u32> {
    Backlog::new(Weight { changes: 10, places: 10, bytes: 1000 })
}

fn waits() {
    panic!("nothing is left to be counted");
}

/// The counting thread takes nothing more, so whoever settles would wait for ever.
#[test]
fn behind_the_end_everything_counts_as_counted() {
    let backlog = backlog();
    backlog.end();
    backlog.hand_over(3, WEIGHT, Some(1));
    backlog.wait_for(3, waits);
    assert_eq!(backlog.weight(), Weight::default());
    assert!(backlog.take().is_empty());
}

#[test]
fn a_round_without_a_row_is_counted_with_the_rows_before_it() {
    let backlog = backlog();
    backlog.hand_over(1, Weight::default(), None);
    backlog.wait_for(1, waits);
    backlog.hand_over(2, WEIGHT, Some(1));
    backlog.hand_over(3, Weight::default(), None);
    let mut taken = backlog.take();
    assert_eq!((taken.len(), backlog.weight()), (1, WEIGHT));
    backlog.counted(taken.pop_front().expect("there is one"));
    backlog.wait_for(3, waits);
    assert_eq!(backlog.weight(), Weight::default());
}

/// Small changes may hold much memory, and large ones little.
#[test]
fn no_round_begins_while_either_bound_is_reached() {
    for weight in [Weight { changes: 10, places: 0, bytes: 1 }, Weight { changes: 1, places: 0, bytes: 1000 }] {
        let backlog = backlog();
        backlog.hand_over(1, Weight { changes: 9, places: 10, bytes: 999 }, Some(1));
        backlog.wait_for_room();
        let first = backlog.take().pop_front().expect("there is one");
        backlog.counted(first);
        backlog.hand_over(2, weight, Some(2));
        let is_counted = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                backlog.wait_for_room();
                is_counted.load(Ordering::Acquire)
            });
            // Time in which it would have gone on.
            std::thread::sleep(Duration::from_millis(100));
            is_counted.store(true, Ordering::Release);
            let second = backlog.take().pop_front().expect("there is one");
            backlog.counted(second);
            assert!(waiting.join().expect("ends"), "{weight:?} has room");
        });
    }
}

#[test]
fn only_a_thread_that_has_to_wait_says_so() {
    let backlog = backlog();
    backlog.wait_while(waits, |_| true);
    backlog.hand_over(1, WEIGHT, Some(1));
    backlog.wait_while(waits, |weight| weight != WEIGHT);
    backlog.wait_for(0, waits);
    let announced = AtomicUsize::new(0);
    let say = || _ = announced.fetch_add(1, Ordering::Release);
    std::thread::scope(|scope| {
        scope.spawn(|| backlog.wait_while(say, |_| true));
        scope.spawn(|| backlog.wait_for(1, say));
        while announced.load(Ordering::Acquire) < 2 {
            std::thread::yield_now();
        }
        let first = backlog.take().pop_front().expect("there is one");
        backlog.counted(first);
    });
}
