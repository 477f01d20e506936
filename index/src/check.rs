//! Checking all invariants of an index.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use dedupfs_store::{Fingerprint, Result, StoreError};

use crate::bloom::Hashes;
use crate::cell::{CELL_BYTES, Cell, cell_fingerprint};
use crate::index::Index;
use crate::occupancy::{Occupancy, Tally};
use crate::open::{Patch, SHARDS, shard_of};
use crate::sealed::{OccupancyList, SealedSet, SealedTanker};

impl Index {
    /// Checks as [`check_files`](Self::check_files), and that no fingerprint is in two tankers.
    ///
    /// Cost: reads every file twice.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn self_check(&self) -> Result<()> {
        self.check_files()?;
        let _applier = self.applier.lock();
        self.check_disjoint(self.sealed_set().tankers())
    }

    /// Checks every file of cells and counts, and every invariant of single tankers and of sums: checksums, sorted buckets, no cell that its
    /// tanker's filter denies, patches that match their cells, the numbers of cells and of lost ones, the garbage map, and the lists from which
    /// opening builds the map. All as of one moment; it holds up applying and checkpoints only while it copies the state in memory.
    ///
    /// Cost: reads every file once; a copy of the patches and of the garbage map in memory, and the latter twice more by cells.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn check_files(&self) -> Result<()> {
        let what = format!("the index in {}", self.directory);
        let State { set, mut patches, occupancy, mut placed, counted, mut found } = self.state(&what)?;
        // The part of the occupancy by cells that the garbage map lacks so far.
        let mut lacking = Tally::default();
        for (position, tanker) in (0_u32..).zip(set.tankers()) {
            let mut unasked = Vec::with_capacity(FILTER_BATCH);
            let mut held = Tally::default();
            let guides = set.guides_to(position);
            tanker.for_each(&mut |index, entry| {
                unasked.push(entry.fingerprint);
                if unasked.len() == FILTER_BATCH {
                    self.check_filter(&set, (position, &guides), &unasked)?;
                    unasked.clear();
                }
                let cell = match patches.remove(&(tanker.id, index)) {
                    None => Some(entry.cell),
                    Some((fingerprint, patch)) => {
                        let moved = patch.cell.map(|cell| cell.location) != Some(entry.cell.location);
                        if fingerprint != entry.fingerprint || (moved && !patch.relocated) {
                            let expected = format!("a patch of {}", entry.fingerprint);
                            return Err(StoreError::corrupt(&*what, expected, format!("one of {fingerprint}")));
                        }
                        patch.cell
                    }
                };
                found.cells += u64::from(cell.is_some());
                found.lost += u64::from(Cell::is_lost(cell));
                placed.change(None, cell);
                held.change(None, Some(entry.cell));
                Ok(())
            })?;
            self.check_filter(&set, (position, &guides), &unasked)?;
            self.check_list(tanker, &held)?;
            if occupancy.lacks(tanker.id) {
                held.iter().for_each(|(container, occupied)| lacking.add(container, occupied));
            }
        }
        set.guides().iter().try_for_each(|guided| guided.check_places(set.tankers()))?;
        if let Some((fingerprint, patch)) = patches.into_values().next() {
            let found = format!("one of {fingerprint} for tanker {}", patch.tanker);
            return Err(StoreError::corrupt(what, "patches of sealed cells only", found));
        }
        if found != counted {
            return Err(StoreError::corrupt(what, counted, found));
        }
        if let Some((container, found, right, wrong)) = occupancy.difference(&placed, &lacking) {
            let what = format!("the garbage map of {what} ({wrong} containers are wrong), container {container}");
            return Err(StoreError::corrupt(what, format!("{right:?}"), format!("{found:?}")));
        }
        Ok(())
    }

    /// Copies the state in memory at one moment, and checks the open cells meanwhile.
    fn state(&self, what: &str) -> Result<State> {
        let checkpointer = self.checkpointer.lock();
        let applier = self.applier.lock();
        let mut patches = HashMap::new();
        for (fingerprint, patch) in self.open.collect_patches() {
            if patches.insert((patch.tanker, patch.index), (fingerprint, patch)).is_some() {
                return Err(StoreError::corrupt(what, "one patch for a cell", format!("two for {fingerprint}")));
            }
        }
        let (mut placed, mut found) = (Tally::default(), Numbers::default());
        for number in 0..SHARDS {
            let shard = self.open.read(number);
            found.cells += shard.cells.len() as u64;
            found.lost += shard.cells.iter().map(|(_, cell)| u64::from(cell.location.is_lost())).sum::<u64>();
            shard.cells.iter().for_each(|(_, cell)| placed.change(None, Some(*cell)));
            let mut all = shard.cells.keys().chain(shard.patches.keys()).chain(shard.recent.keys());
            if let Some(fingerprint) = all.find(|fingerprint| fingerprint.is_zero() || shard_of(fingerprint) != number)
            {
                return Err(StoreError::corrupt(what, format!("fingerprints of shard {number}"), fingerprint));
            }
        }
        let is_in_file = applier.open_version == checkpointer.open_version;
        if is_in_file && self.open.cell_count() != checkpointer.open_file.cells as usize {
            let expected = format!("{} open cells, as in the file", checkpointer.open_file.cells);
            return Err(StoreError::corrupt(what, expected, self.open.cell_count()));
        }
        let counted = Numbers { cells: self.len(), lost: self.lost() };
        Ok(State { set: self.sealed_set(), patches, occupancy: self.occupancy.copied(), placed, counted, found })
    }

    /// Checks that the filter of the tanker, or that of a guide to it, names all its fingerprints: if it denied one, chunks would be stored
    /// twice. Reads nothing: places of guides are checked guide by guide.
    fn check_filter(
        &self,
        set: &SealedSet,
        (position, guides): (u32, &[u32]),
        fingerprints: &[Fingerprint],
    ) -> Result<()> {
        let tanker = &set.tankers()[position as usize];
        let hashes: Vec<Hashes> = fingerprints.iter().map(Hashes::of).collect();
        let mut candidates = Vec::new();
        set.candidates(&hashes, &mut candidates);
        let mut candidates = candidates.into_iter().peekable();
        for (query, fingerprint) in (0_u32..).zip(fingerprints) {
            let mut is_named = false;
            while let Some((_, candidate)) = candidates.next_if(|(of, _)| *of == query) {
                is_named |= candidate == position || guides.contains(&candidate);
            }
            // A checkpoint that wrote the tanker anew gave its new filter to the old set as well, without the removed cells.
            let is_current =
                || self.sealed_set().tankers().iter().any(|now| now.id == tanker.id && now.same_cells(tanker));
            if !is_named && is_current() {
                let what = format!("the filter of tanker {}", tanker.id);
                return Err(StoreError::corrupt(
                    what,
                    format!("a filter that names {fingerprint}"),
                    "one that does not",
                ));
            }
        }
        Ok(())
    }

    /// Checks that the occupancy list of a tanker equals `held`. A missing list is no error: it is made anew.
    fn check_list(&self, tanker: &SealedTanker, held: &Tally) -> Result<()> {
        match tanker.read_occupancy(self.writer()) {
            Ok(list) if list != OccupancyList::from(held) => {
                let what = format!("occupancy list of tanker {} of {}", tanker.id, self.directory);
                Err(StoreError::corrupt(what, "the occupancy by its cells and counts", "another"))
            }
            _ => Ok(()),
        }
    }

    /// Checks that no fingerprint is in two tankers, partition by partition: memory is bounded by a bucket of each.
    fn check_disjoint(&self, tankers: &[Arc<SealedTanker>]) -> Result<()> {
        let mut open: Vec<Fingerprint> = self.open.collect_cells().iter().map(|entry| entry.fingerprint).collect();
        open.sort_unstable();
        let mut open = open.into_iter().peekable();
        let partitions = tankers.iter().map(|tanker| tanker.buckets()).min().unwrap_or(1);
        let mut seen: Vec<(Fingerprint, u64)> = Vec::new();
        for partition in 0..partitions {
            seen.clear();
            for tanker in tankers {
                let ratio = tanker.buckets() / partitions;
                for bucket in partition * ratio..(partition + 1) * ratio {
                    let page = tanker.bucket(&self.cache, bucket)?;
                    let cells = page.as_chunks::<CELL_BYTES>().0.iter();
                    seen.extend(cells.map(|cell| (Fingerprint(*cell_fingerprint(cell)), tanker.id)));
                }
            }
            let shift = u64::BITS - partitions.trailing_zeros();
            let in_partition = |fingerprint: &Fingerprint| {
                fingerprint.prefix().checked_shr(shift).unwrap_or(0) == u64::from(partition)
            };
            // Tankers are numbered from 1; 0 stands for the open one.
            seen.extend(std::iter::from_fn(|| open.next_if(in_partition)).map(|fingerprint| (fingerprint, 0)));
            seen.sort_unstable();
            for [(first, tanker), (second, other)] in seen.array_windows::<2>() {
                if first == second {
                    let what = format!("the index in {}", self.directory);
                    let found = format!("{first} in tankers {tanker} and {other}");
                    return Err(StoreError::corrupt(what, "each fingerprint in one tanker", found));
                }
            }
        }
        Ok(())
    }
}

/// Numbers of cells.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Numbers {
    cells: u64,
    lost: u64,
}

impl fmt::Display for Numbers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} cells, {} of them lost", self.cells, self.lost)
    }
}

/// The state of an index at one moment.
struct State {
    set: Arc<SealedSet>,
    /// Patches by tanker and number of the cell.
    patches: HashMap<(u64, u32), (Fingerprint, Patch)>,
    occupancy: Occupancy,
    /// The occupancy by open cells.
    placed: Tally,
    /// As the index counts them.
    counted: Numbers,
    /// Among open cells.
    found: Numbers,
}

/// Fingerprints per question to the filters.
const FILTER_BATCH: usize = 1 << 12;

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use crate::tests::{TINY, empty, insert};

    #[test]
    fn a_fingerprint_in_two_tankers_is_found_in_each_partition() {
        let (_disk, index) = empty(TINY);
        let changes: Vec<_> = (0..200).map(|number| insert(number, 1)).collect();
        index.apply(1, &changes).unwrap();
        index.checkpoint(1).unwrap();
        let set = index.sealed_set();
        assert!(set.tankers().len() > 2);
        index.check_disjoint(set.tankers()).unwrap();
        for tanker in set.tankers() {
            assert!(index.check_disjoint(&[tanker.clone(), tanker.clone()]).is_err(), "{}", tanker.id);
        }
    }
}
