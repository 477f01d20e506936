//! The order in which open files were last used. Memory is taken from the front. There are two such orders: of files with bytes that are
//! not stored yet, by their last write, and of files with loaded content, by their last use.
//!
//! Each file is in the order once. A used file moves to the end, unless it is among the [`NEAR`] last ones: threads that use a few
//! files in turns would move them all the time. Cost: two loads for one of the last files; a push and a binary search for any other, and
//! now and then a move of the whole queue.
//!
//! A file that leaves the order leaves a gap. Gaps at the ends go at once, and all go when they outnumber the files: so the queue is
//! at most twice as long as the files are many, and [`GAPS`] more.
//!
//! Lock order: `queue` is a leaf. No file is dropped under it: its end takes the same lock.

use std::collections::VecDeque;
use std::sync::Weak;
use std::sync::atomic::{AtomicU64, Ordering};

use dedupfs_sync::Mutex;

/// A file among this many last ones does not move.
const NEAR: u64 = 8;

/// So many gaps stay in any queue.
const GAPS: usize = 64;

/// Files of type `F` in the order of their last use.
pub(super) struct Recency<F> {
    queue: Mutex<Queue<F>>,
    newest: AtomicU64,
}

/// The place of one file in the order; 0: none.
#[derive(Default)]
pub(super) struct Place(AtomicU64);

/// Places, which rise, with their files; `None`: a gap. The queue neither begins nor ends with a gap.
struct Queue<F> {
    places: VecDeque<(u64, Option<Weak<F>>)>,
    gaps: usize,
}

impl<F> Queue<F> {
    /// Makes `place` a gap, if a file is there.
    fn remove(&mut self, place: u64) {
        if place == 0 {
            return;
        }
        let last = self.places.len().wrapping_sub(1);
        // Most files are used a moment only: their place is the last one.
        let position = match self.places.get(last) {
            Some((newest, _)) if *newest == place => Ok(last),
            _ => self.places.binary_search_by_key(&place, |(place, _)| *place),
        };
        let Ok(position) = position else { return };
        if self.places[position].1.take().is_none() {
            return;
        }
        self.gaps += 1;
        while self.places.back().is_some_and(|(_, file)| file.is_none()) {
            self.places.pop_back();
            self.gaps -= 1;
        }
        while self.places.front().is_some_and(|(_, file)| file.is_none()) {
            self.places.pop_front();
            self.gaps -= 1;
        }
        if self.gaps > self.files() + GAPS {
            self.places.retain(|(_, file)| file.is_some());
            self.gaps = 0;
        }
        if self.places.capacity() > 4 * (self.places.len() + GAPS) {
            self.places.shrink_to(2 * self.places.len());
        }
    }

    fn files(&self) -> usize {
        self.places.len() - self.gaps
    }
}

impl<F> Default for Recency<F> {
    fn default() -> Self {
        Self { queue: Mutex::new(Queue { places: VecDeque::new(), gaps: 0 }), newest: AtomicU64::new(0) }
    }
}

impl<F> Recency<F> {
    /// Notes that the file is used now.
    pub(super) fn note(&self, place: &Place, file: &Weak<F>) {
        let own = place.0.load(Ordering::Relaxed);
        if own != 0 && self.newest.load(Ordering::Relaxed).saturating_sub(own) < NEAR {
            return;
        }
        let mut queue = self.queue.lock();
        queue.remove(place.0.load(Ordering::Relaxed));
        let next = self.newest.load(Ordering::Relaxed) + 1;
        queue.places.push_back((next, Some(file.clone())));
        place.0.store(next, Ordering::Relaxed);
        self.newest.store(next, Ordering::Relaxed);
    }

    /// Removes a file that has nothing to give back.
    pub(super) fn forget(&self, place: &Place) {
        if place.0.load(Ordering::Relaxed) != 0 {
            let mut queue = self.queue.lock();
            queue.remove(place.0.swap(0, Ordering::Relaxed));
        }
    }

    /// Whether the file is the last in the order.
    pub(super) fn is_newest(&self, place: &Place) -> bool {
        let own = place.0.load(Ordering::Relaxed);
        own != 0 && own == self.newest.load(Ordering::Relaxed)
    }

    /// Returns the first file behind `place`, with its place.
    pub(super) fn next(&self, place: u64) -> Option<(u64, Weak<F>)> {
        let mut queue = self.queue.lock();
        let behind = queue.places.partition_point(|(own, _)| *own <= place);
        let gaps = queue.places.range(behind..).take_while(|(_, file)| file.is_none()).count();
        // No later call steps over these gaps again. The queue never ends with one.
        queue.places.drain(behind..behind + gaps);
        queue.gaps -= gaps;
        queue.places.get(behind).and_then(|(place, file)| Some((*place, file.clone()?)))
    }

    #[cfg(test)]
    fn lengths(&self) -> (usize, usize) {
        let queue = self.queue.lock();
        (queue.files(), queue.places.len())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn files_stand_in_the_order_of_their_last_use() {
        let recency = Recency::default();
        let files: Vec<_> = (0..10).map(|number| (Arc::new(number), Place::default())).collect();
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
        assert_eq!((order(), recency.lengths().0), (vec![0, 2, 4, 5, 6, 7, 8, 9, 1, 3], 10));
    }

    #[test]
    fn gaps_are_few() {
        let recency = Recency::default();
        let oldest = (Arc::new(0), Place::default());
        recency.note(&oldest.1, &Arc::downgrade(&oldest.0));
        // The oldest file stays in front, and the newest changes: nothing but gaps between them.
        let mut newest = Vec::new();
        for number in 1..10_000 {
            let file = (Arc::new(number), Place::default());
            recency.note(&file.1, &Arc::downgrade(&file.0));
            newest.push(file);
            if newest.len() > 10 {
                recency.forget(&newest.swap_remove(number % 10).1);
            }
            let (files, length) = recency.lengths();
            assert_eq!(files, newest.len() + 1);
            assert!(length <= 2 * files + GAPS, "{length} places for {files} files");
        }
        for (_, place) in newest.iter().chain([&oldest]) {
            recency.forget(place);
        }
        assert_eq!(recency.lengths(), (0, 0));
        assert!(recency.queue.lock().places.capacity() <= 4 * GAPS);
        assert!(recency.next(0).is_none());
    }

    #[test]
    fn gaps_behind_a_file_that_stays_are_passed_once() {
        let recency = Recency::default();
        let files: Vec<_> = (0..1000).map(|number| (Arc::new(number), Place::default())).collect();
        files.iter().for_each(|(file, place)| recency.note(place, &Arc::downgrade(file)));
        let (front, _) = recency.next(0).expect("there are files");
        for (_, place) in &files[1..999] {
            let (_, next) = recency.next(front).expect("there are files");
            assert!(next.upgrade().is_some());
            recency.forget(place);
            let (files, length) = recency.lengths();
            assert!(length <= files + 1, "{length} places for {files} files");
        }
        assert_eq!(recency.next(front).and_then(|(_, file)| file.upgrade()), Some(files[999].0.clone()));
    }
}
