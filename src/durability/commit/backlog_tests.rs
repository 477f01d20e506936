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
