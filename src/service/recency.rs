//! The order in which open files were last used. Memory is taken from the front.
//!
//! Each file is in the order once. A used file moves to the end, unless it is among the [`NEAR`] last ones: threads that use a few
//! files in turns would move them all the time. Cost: two loads for one of the last files; an update of a sorted map for any other.
//!
//! Lock order: `files` is a leaf. No file is dropped under it: its end takes the same lock.

use std::collections::BTreeMap;
use std::sync::Weak;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

/// A file among this many last ones does not move.
const NEAR: u64 = 8;

/// Files of type `F` in the order of their last use.
pub(super) struct Recency<F> {
    files: Mutex<BTreeMap<u64, Weak<F>>>,
    newest: AtomicU64,
}

/// The place of one file in the order; 0: none.
#[derive(Default)]
pub(super) struct Turn(AtomicU64);

impl<F> Default for Recency<F> {
    fn default() -> Self {
        Self { files: Mutex::default(), newest: AtomicU64::new(0) }
    }
}

impl<F> Recency<F> {
    /// Notes that the file is used now.
    pub(super) fn note(&self, turn: &Turn, file: &Weak<F>) {
        let own = turn.0.load(Ordering::Relaxed);
        if own != 0 && self.newest.load(Ordering::Relaxed).saturating_sub(own) < NEAR {
            return;
        }
        let mut files = self.files.lock();
        files.remove(&turn.0.load(Ordering::Relaxed));
        let next = self.newest.load(Ordering::Relaxed) + 1;
        files.insert(next, file.clone());
        turn.0.store(next, Ordering::Relaxed);
        self.newest.store(next, Ordering::Relaxed);
    }

    /// Removes a file that has nothing to give back.
    pub(super) fn forget(&self, turn: &Turn) {
        if turn.0.load(Ordering::Relaxed) != 0 {
            let mut files = self.files.lock();
            files.remove(&turn.0.swap(0, Ordering::Relaxed));
        }
    }

    /// Whether the file is the last in the order.
    pub(super) fn is_newest(&self, turn: &Turn) -> bool {
        let own = turn.0.load(Ordering::Relaxed);
        own != 0 && own == self.newest.load(Ordering::Relaxed)
    }

    /// Returns the first file behind `place`, with its place.
    pub(super) fn next(&self, place: u64) -> Option<(u64, Weak<F>)> {
        let files = self.files.lock();
        files.range(place + 1..).next().map(|(place, file)| (*place, file.clone()))
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.files.lock().len()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn files_stand_in_the_order_of_their_last_use() {
        let recency = Recency::default();
        let files: Vec<_> = (0..10).map(|number| (Arc::new(number), Turn::default())).collect();
        let note = |number: usize| recency.note(&files[number].1, &Arc::downgrade(&files[number].0));
        (0..10).for_each(note);
        recency.forget(&files[3].1);
        recency.forget(&files[3].1);
        let order = || {
            let mut place = 0;
            std::iter::from_fn(|| {
                let (next, file) = recency.next(place)?;
                place = next;
                file.upgrade().map(|file| *file)
            })
            .collect::<Vec<_>>()
        };
        assert_eq!(order(), [0, 1, 2, 4, 5, 6, 7, 8, 9]);
        // One of the last stays, an older one moves, and a forgotten one returns.
        note(7);
        note(1);
        note(1);
        assert_eq!(order(), [0, 2, 4, 5, 6, 7, 8, 9, 1]);
        assert!(recency.is_newest(&files[1].1) && !recency.is_newest(&files[3].1));
        note(3);
        assert_eq!((order(), recency.len()), (vec![0, 2, 4, 5, 6, 7, 8, 9, 1, 3], 10));
    }
}
