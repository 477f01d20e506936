//! Which open files were used last, so that memory is taken from the others first.
//!
//! Files stand in the order of their last use, each once; a file that is used again goes to the end. Cost: the file that was used last
//! costs one load, any other a place in a sorted map.
//!
//! Lock order: `files` is a leaf. No file is dropped under it: its end takes the same lock.

use std::collections::BTreeMap;
use std::sync::Weak;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

/// The order of some `F`.
pub(super) struct Recency<F> {
    files: Mutex<BTreeMap<u64, Weak<F>>>,
    newest: AtomicU64,
}

/// The place of one file; 0: none.
#[derive(Default)]
pub(super) struct Turn(AtomicU64);

impl<F> Default for Recency<F> {
    fn default() -> Self {
        Self { files: Mutex::default(), newest: AtomicU64::new(0) }
    }
}

impl<F> Recency<F> {
    /// The file is used now.
    pub(super) fn note(&self, turn: &Turn, file: &Weak<F>) {
        if self.is_newest(turn) {
            return;
        }
        let mut files = self.files.lock();
        files.remove(&turn.0.load(Ordering::Relaxed));
        let next = self.newest.load(Ordering::Relaxed) + 1;
        files.insert(next, file.clone());
        turn.0.store(next, Ordering::Relaxed);
        self.newest.store(next, Ordering::Relaxed);
    }

    /// The file has nothing that could be taken from it.
    pub(super) fn forget(&self, turn: &Turn) {
        if turn.0.load(Ordering::Relaxed) != 0 {
            let mut files = self.files.lock();
            files.remove(&turn.0.swap(0, Ordering::Relaxed));
        }
    }

    /// Whether no file was used since.
    pub(super) fn is_newest(&self, turn: &Turn) -> bool {
        let own = turn.0.load(Ordering::Relaxed);
        own != 0 && own == self.newest.load(Ordering::Relaxed)
    }

    /// The file that was used first behind `place`, and its place.
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
        let files: Vec<_> = (0..4).map(|number| (Arc::new(number), Turn::default())).collect();
        for number in [0, 1, 2, 3, 1, 1, 0] {
            let (file, turn) = &files[number];
            recency.note(turn, &Arc::downgrade(file));
        }
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
        assert_eq!(order(), [2, 1, 0]);
        assert!(recency.is_newest(&files[0].1) && !recency.is_newest(&files[3].1));
        recency.note(&files[3].1, &Arc::downgrade(&files[3].0));
        assert_eq!((order(), recency.len()), (vec![2, 1, 0, 3], 4));
    }
}
