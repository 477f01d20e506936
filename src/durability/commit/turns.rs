//! The turns of the commit thread: callers ask for a round and wait until one has begun and ended since.

use std::time::Duration;

use dedupfs_sync::canary::{Canary, is_planted};
use dedupfs_sync::{Condvar, Mutex};

struct Asked<E> {
    /// Number of rounds that were asked for.
    requested: u64,
    /// All of them up to this number have ended.
    finished: u64,
    /// Error of the round that ended last.
    outcome: Option<E>,
    is_stopping: bool,
}

/// The next step of the commit thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Turn {
    Round,
    /// It ends: it was told to, and no round is asked for.
    End,
}

/// The requests for rounds.
pub(super) struct Turns<E> {
    asked: Mutex<Asked<E>>,
    wake: Condvar,
    ended: Condvar,
}

impl<E> Default for Turns<E> {
    fn default() -> Self {
        let asked = Asked { requested: 0, finished: 0, outcome: None, is_stopping: false };
        Self { asked: Mutex::new(asked), wake: Condvar::new(), ended: Condvar::new() }
    }
}

impl<E: Clone> Turns<E> {
    /// Asks for a round and waits for its end. Calls `about_to_wait` before. Returns the error of the round that ended last, if it
    /// failed. Returns `None` if the commit thread begins no more rounds.
    pub(super) fn take(&self, about_to_wait: impl FnOnce()) -> Option<Option<E>> {
        let mut asked = self.asked.lock();
        if asked.is_stopping {
            return None;
        }
        asked.requested += 1;
        let ticket = asked.requested;
        self.wake.notify_one();
        about_to_wait();
        while asked.finished < ticket {
            self.ended.wait(&mut asked);
        }
        // A later round may have ended since. If it repaired a failure, there is no failure any more.
        Some(asked.outcome.clone())
    }

    /// Asks for a round, unless one is asked for already. Waits for nothing.
    pub(super) fn ask(&self) {
        let mut asked = self.asked.lock();
        if asked.requested == asked.finished {
            asked.requested += 1;
            self.wake.notify_one();
        }
    }

    /// Number of the last round that has ended.
    pub(super) fn finished(&self) -> u64 {
        self.asked.lock().finished
    }

    /// For the commit thread: waits until a round is asked for, or due by its clock. `due` returns the time that is left.
    pub(super) fn next(&self, due: impl Fn() -> Duration) -> Turn {
        let mut asked = self.asked.lock();
        while asked.requested == asked.finished && !asked.is_stopping {
            let due = if is_planted(Canary::NoIntervals) { Duration::MAX } else { due() };
            if due.is_zero() || self.wake.wait_for(&mut asked, due).timed_out() {
                break;
            }
        }
        if asked.is_stopping && asked.requested == asked.finished { Turn::End } else { Turn::Round }
    }

    /// For the commit thread: the number of the last round asked for, which the round that begins now will answer, and whether anybody
    /// waits for it.
    pub(super) fn goal(&self) -> (u64, bool) {
        let asked = self.asked.lock();
        (asked.requested, asked.requested != asked.finished)
    }

    /// For the commit thread: a round that served all requests up to `goal` has ended.
    pub(super) fn answer(&self, goal: u64, outcome: Option<E>) {
        let mut asked = self.asked.lock();
        (asked.outcome, asked.finished) = (outcome, goal);
        if !is_planted(Canary::AnswerWakesNobody) {
            self.ended.notify_all();
        }
    }

    /// Ends the commit thread after the rounds that are asked for.
    pub(super) fn stop(&self) {
        self.asked.lock().is_stopping = true;
        self.wake.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_that_is_asked_for_begins_at_once_and_is_asked_for_once() {
        let turns = Turns::<()>::default();
        turns.ask();
        turns.ask();
        assert_eq!(turns.goal(), (1, true));
        assert_eq!(turns.next(|| panic!("it is not due by the clock alone")), Turn::Round);
        turns.answer(1, None);
        assert_eq!((turns.finished(), turns.goal()), (1, (1, false)));
        assert_eq!(turns.next(|| Duration::ZERO), Turn::Round);
        turns.stop();
        assert_eq!(turns.next(|| panic!("it ends")), Turn::End);
        assert_eq!(turns.take(|| panic!("it would wait for ever")), None);
    }
}
