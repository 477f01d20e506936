//! Choosing the victims from the garbage map alone: no container is read, and no index is scanned.
//!
//! 1. All closed containers are counted into classes by their live share, a thousandth each. Those that are taken in any case (wholly dead,
//!    damaged, chosen for order or for stale hints) are summed up apart. Their garbage counts as freed, so fewer others are emptied.
//! 2. Classes are taken, the emptiest first, until no more garbage is left than may stay, or the threshold is reached.
//!    So each freed byte costs the fewest moved bytes. From the last class only as many containers are taken as needed.
//! 3. The victims are visited in the order of their ids, a window at a time. That is the order of their chunks' cells
//!    in the tankers, so that each tanker is written about once.
//!
//! Thresholds 100 and 0 are the two extreme policies: perfect collection, and container-marker collection, which frees
//! only wholly dead containers (MFDedup sections 2.3 and 5.5).
//!
//! Memory: 40 KiB of classes, and a window.

use std::collections::BinaryHeap;

use dedupfs_store::ContainerId;

use super::ReclaimOptions;

/// Classes of live shares: thousandths, and one for wholly live containers.
const CLASSES: usize = 1001;

/// The facts of a container that are known without reading it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Candidate {
    /// The container.
    pub id: ContainerId,
    /// Uncompressed bytes put into it.
    pub chunk_bytes: u64,
    /// Number of chunks in it: entries of its table.
    pub chunks: u64,
    /// The live bytes among them.
    pub live_bytes: u64,
    /// The number of live chunks.
    pub live_chunks: u64,
    /// Bytes it takes on disk.
    pub used_bytes: u64,
    /// Whether some of its content cannot be read. Then it is emptied as far as possible, at any live share.
    pub is_damaged: bool,
}

impl Candidate {
    /// Uncompressed bytes that nothing refers to.
    pub(crate) const fn garbage_bytes(&self) -> u64 {
        self.chunk_bytes.saturating_sub(self.live_bytes)
    }

    /// Estimated bytes on disk of the live chunks, at the container's mean compression.
    pub(crate) fn kept_bytes(&self) -> u64 {
        let kept = u128::from(self.used_bytes) * u128::from(self.live_bytes) / u128::from(self.chunk_bytes.max(1));
        u64::try_from(kept).unwrap_or(u64::MAX).min(self.used_bytes)
    }

    fn class(&self) -> usize {
        let share = u128::from(self.live_bytes) * 1000 / u128::from(self.chunk_bytes.max(1));
        usize::try_from(share).unwrap_or(CLASSES).min(CLASSES - 1)
    }
}

/// Sums over some containers.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Sum {
    /// Number of containers.
    pub containers: u64,
    /// Uncompressed live bytes in them.
    pub live_bytes: u64,
    /// Number of live chunks.
    pub live_chunks: u64,
    /// Uncompressed bytes that nothing refers to.
    pub garbage_bytes: u64,
    /// Bytes on disk.
    pub used_bytes: u64,
    /// Estimated bytes on disk of the live chunks.
    pub kept_bytes: u64,
}

impl Sum {
    /// Adds a container.
    pub(crate) fn add(&mut self, candidate: &Candidate) {
        self.containers += 1;
        self.live_bytes += candidate.live_bytes;
        self.live_chunks += candidate.live_chunks;
        self.garbage_bytes += candidate.garbage_bytes();
        self.used_bytes += candidate.used_bytes;
        self.kept_bytes += candidate.kept_bytes();
    }

    /// Adds another sum.
    pub(crate) fn join(&mut self, other: &Self) {
        self.containers += other.containers;
        self.live_bytes += other.live_bytes;
        self.live_chunks += other.live_chunks;
        self.garbage_bytes += other.garbage_bytes;
        self.used_bytes += other.used_bytes;
        self.kept_bytes += other.kept_bytes;
    }
}

/// All containers of one kind by their live share.
#[derive(Clone, Debug)]
pub struct Classes {
    classes: Vec<Sum>,
    /// Containers taken in any case: wholly dead, damaged, or chosen for order or for stale hints.
    always: Sum,
}

impl Default for Classes {
    fn default() -> Self {
        Self { classes: vec![Sum::default(); CLASSES], always: Sum::default() }
    }
}

/// The containers to take.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Choice {
    /// All classes below this one are taken.
    class: usize,
    /// Garbage to take from this class.
    rest_bytes: u64,
}

impl Classes {
    /// Adds a container.
    pub fn add(&mut self, candidate: &Candidate) {
        match self.classes.get_mut(candidate.class()) {
            Some(class) if candidate.live_bytes > 0 && !candidate.is_damaged => class.add(candidate),
            _ => self.always.add(candidate),
        }
    }

    /// Adds a container that is taken in any case.
    pub(super) fn add_taken(&mut self, candidate: &Candidate) {
        self.always.add(candidate);
    }

    /// Returns the uncompressed live bytes and the garbage bytes.
    pub(crate) fn total(&self) -> (u64, u64) {
        let all = self.classes.iter().chain([&self.always]);
        all.fold((0, 0), |(live, garbage), sum| (live + sum.live_bytes, garbage + sum.garbage_bytes))
    }

    /// Chooses the classes to take.
    #[must_use]
    pub fn choose(&self, options: &ReclaimOptions) -> Choice {
        let (live_bytes, garbage_bytes) = self.total();
        let may_stay = u128::from(live_bytes) * u128::from(options.leave_percent) / 100;
        let may_stay = u64::try_from(may_stay).unwrap_or(u64::MAX);
        // A live share is below the threshold exactly if its class is.
        let below = usize::from(options.threshold_percent.min(100)) * 10;
        let mut left_bytes = garbage_bytes.saturating_sub(self.always.garbage_bytes);
        for (class, sum) in self.classes.iter().enumerate().take(below) {
            let needed_bytes = left_bytes.saturating_sub(may_stay);
            if needed_bytes < sum.garbage_bytes || needed_bytes == 0 {
                return Choice { class, rest_bytes: needed_bytes };
            }
            left_bytes -= sum.garbage_bytes;
        }
        Choice { class: below, rest_bytes: 0 }
    }

    /// Estimates the sum of a choice: its last class counts in part.
    pub(crate) fn taken(&self, choice: &Choice) -> Sum {
        let mut taken = self.always;
        self.classes.iter().take(choice.class).for_each(|sum| taken.join(sum));
        if let Some(last) = self.classes.get(choice.class).filter(|last| last.garbage_bytes > 0) {
            let share = |bytes: u64| {
                let part = u128::from(bytes) * u128::from(choice.rest_bytes) / u128::from(last.garbage_bytes);
                u64::try_from(part).unwrap_or(u64::MAX)
            };
            taken.join(&Sum {
                containers: share(last.containers),
                live_bytes: share(last.live_bytes),
                live_chunks: share(last.live_chunks),
                garbage_bytes: choice.rest_bytes,
                used_bytes: share(last.used_bytes),
                kept_bytes: share(last.kept_bytes),
            });
        }
        taken
    }
}

impl Choice {
    /// Whether a container can be among those taken.
    #[must_use]
    pub fn may_take(&self, candidate: &Candidate) -> bool {
        candidate.live_bytes == 0 || candidate.is_damaged || candidate.class() <= self.class
    }

    /// Whether a container is to be emptied. Call it once for each container of the classes, in the order of the visit.
    pub fn takes(&mut self, candidate: &Candidate) -> bool {
        if candidate.live_bytes == 0 || candidate.is_damaged {
            return true;
        }
        if candidate.class() != self.class {
            return candidate.class() < self.class;
        }
        let takes = self.rest_bytes > 0;
        self.rest_bytes = self.rest_bytes.saturating_sub(candidate.garbage_bytes());
        takes
    }
}

/// The first candidates in the order of their ids, at most `limit`.
pub(super) struct Window {
    limit: usize,
    first: BinaryHeap<ById>,
}

struct ById(Candidate);

impl PartialEq for ById {
    fn eq(&self, other: &Self) -> bool {
        self.0.id == other.0.id
    }
}
impl Eq for ById {}
impl PartialOrd for ById {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for ById {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.id.cmp(&other.0.id)
    }
}

impl Window {
    pub(super) fn new(limit: usize) -> Self {
        Self { limit, first: BinaryHeap::new() }
    }

    pub(super) fn add(&mut self, candidate: Candidate) {
        self.first.push(ById(candidate));
        if self.first.len() > self.limit {
            self.first.pop();
        }
    }

    /// Returns the candidates in the order of their ids.
    pub(super) fn into_sorted(self) -> Vec<Candidate> {
        self.first.into_sorted_vec().into_iter().map(|ById(candidate)| candidate).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(id: u64, live_bytes: u64) -> Candidate {
        Candidate {
            id: ContainerId(id),
            chunk_bytes: 1000,
            chunks: 100,
            live_bytes,
            live_chunks: live_bytes / 10,
            used_bytes: 500,
            is_damaged: false,
        }
    }

    fn taken(candidates: &[Candidate], options: &ReclaimOptions) -> Vec<u64> {
        let mut classes = Classes::default();
        candidates.iter().for_each(|candidate| classes.add(candidate));
        let mut choice = classes.choose(options);
        let planned = classes.taken(&choice);
        let taken: Vec<_> = candidates.iter().filter(|candidate| choice.takes(candidate)).collect();
        let garbage_bytes: u64 = taken.iter().map(|candidate| candidate.garbage_bytes()).sum();
        let last_bytes = candidates.iter().map(Candidate::garbage_bytes).max().unwrap_or(0);
        assert!((planned.garbage_bytes..=planned.garbage_bytes + last_bytes).contains(&garbage_bytes), "{planned:?}");
        taken.iter().map(|candidate| candidate.id.0).collect()
    }

    fn leaving(leave_percent: u8) -> ReclaimOptions {
        ReclaimOptions { leave_percent, ..ReclaimOptions::below(100) }
    }

    #[test]
    fn the_emptiest_go_until_little_enough_garbage_is_left() {
        let candidates: Vec<_> =
            [(1, 900), (2, 100), (3, 500), (4, 1000), (5, 0), (6, 700)].map(|(id, live)| candidate(id, live)).to_vec();
        // Alive: 3200. Garbage without the dead one: 100 + 900 + 500 + 300 = 1800.
        assert_eq!(taken(&candidates, &leaving(0)), [1, 2, 3, 5, 6], "what is alive as a whole stays");
        assert_eq!(taken(&candidates, &leaving(4)), [2, 3, 5, 6], "100 may stay");
        assert_eq!(taken(&candidates, &leaving(12)), [2, 3, 5, 6], "384 may stay, 400 would");
        assert_eq!(taken(&candidates, &leaving(13)), [2, 3, 5]);
        assert_eq!(taken(&candidates, &leaving(100)), [5], "what is dead goes always");
    }

    #[test]
    fn thresholds_are_exact() {
        let candidates = [candidate(1, 0), candidate(2, 499), candidate(3, 500), candidate(4, 501), candidate(5, 999)];
        assert_eq!(taken(&candidates, &ReclaimOptions::below(50)), [1, 2]);
        assert_eq!(taken(&candidates, &ReclaimOptions::below(0)), [1], "container-marker");
        assert_eq!(taken(&candidates, &ReclaimOptions::below(100)), [1, 2, 3, 4, 5], "perfect");
        let huge = Candidate { chunk_bytes: u64::MAX, live_bytes: u64::MAX - 1, ..candidate(6, 0) };
        assert_eq!(taken(&[huge], &ReclaimOptions::below(100)), [6]);
    }

    #[test]
    fn of_the_last_class_as_many_as_are_needed() {
        let candidates: Vec<_> = (1..=100).map(|id| candidate(id, 800)).collect();
        // Garbage 20,000, alive 80,000: 8,000 may stay, so 12,000 must go, 200 each.
        assert_eq!(taken(&candidates, &leaving(10)).len(), 60);
    }

    #[test]
    fn what_is_damaged_is_taken_whatever_is_alive() {
        let damaged = Candidate { is_damaged: true, ..candidate(1, 1000) };
        assert_eq!(taken(&[damaged, candidate(2, 1000)], &leaving(50)), [1]);
    }

    #[test]
    fn a_plan_counts_what_goes_in_any_case() {
        let damaged = Candidate { is_damaged: true, ..candidate(3, 900) };
        let mut classes = Classes::default();
        [candidate(1, 0), candidate(2, 0), damaged, candidate(4, 500)].iter().for_each(|one| classes.add(one));
        let planned = classes.taken(&classes.choose(&leaving(100)));
        assert_eq!((planned.containers, planned.garbage_bytes, planned.live_bytes), (3, 2100, 900));
    }

    /// Counts may be wrong.
    #[test]
    fn where_more_is_alive_than_was_stored_nothing_is_garbage() {
        let candidates = [candidate(1, 1001), candidate(2, 2000)];
        assert_eq!(taken(&candidates, &ReclaimOptions::below(100)), [0_u64; 0]);
        let mut classes = Classes::default();
        candidates.iter().for_each(|candidate| classes.add(candidate));
        assert_eq!(classes.taken(&classes.choose(&ReclaimOptions::below(100))), Sum::default());
    }

    #[test]
    fn a_window_has_the_first_in_order() {
        let mut window = Window::new(3);
        [5, 2, 9, 1, 7].iter().for_each(|&id| window.add(candidate(id, 1)));
        let ids: Vec<_> = window.into_sorted().iter().map(|candidate| candidate.id.0).collect();
        assert_eq!(ids, [1, 2, 5]);
    }

    #[test]
    fn nothing_is_nothing() {
        assert_eq!(taken(&[], &leaving(0)), [0_u64; 0]);
        assert_eq!(Candidate { chunk_bytes: 0, ..candidate(1, 0) }.kept_bytes(), 0);
    }
}
