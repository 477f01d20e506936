//! A store of containers as Destor has it, the program that the paper compares with: an index of all chunks, rewriting, and reclaiming.

use std::collections::{HashMap, HashSet, VecDeque};
use std::ops::AddAssign;

use super::disk::Disk;
use super::trace::Trace;
use super::{capping, har};

/// The way in which a store gives up deduplication for nearness.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rewriting {
    /// Exact deduplication.
    None,
    /// [`har`]: containers below this share are sparse, and no more than this share of a version is rewritten.
    Har { utilization: f64, limit: f64 },
    /// [`capping`]: containers that a segment of so many bytes may use.
    Capping { cap: usize, segment_bytes: u64 },
}

/// The way in which garbage goes (section 5.2 of the paper).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Collection {
    /// Perfect GC: whatever has a dead chunk is emptied.
    Perfect,
    /// The container-marker algorithm: only containers without a live chunk go.
    WholeContainers,
}

/// The work of moving chunks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// Bytes of containers or categories that were read.
    pub read_bytes: u64,
    /// Bytes of chunks in new ones.
    pub written_bytes: u64,
    /// Stretches on disk that were read or written in a row.
    pub seeks: u64,
}

impl Moved {
    /// Returns the bytes read and written.
    pub const fn bytes(self) -> u64 {
        self.read_bytes + self.written_bytes
    }

    /// Returns the modelled time.
    pub fn seconds(self, disk: Disk) -> f64 {
        self.seeks as f64 * disk.seek_seconds + self.bytes() as f64 / disk.bytes_per_second
    }
}

impl AddAssign for Moved {
    fn add_assign(&mut self, other: Self) {
        self.read_bytes += other.read_bytes;
        self.written_bytes += other.written_bytes;
        self.seeks += other.seeks;
    }
}

/// A chunk as it was stored once.
#[derive(Debug)]
struct Stored {
    chunk: u32,
    container: u32,
    /// References of all versions kept.
    references: u32,
}

#[derive(Debug, Default)]
struct Container {
    copies: Vec<u32>,
    bytes: u64,
    dead_bytes: u64,
}

/// Containers with the chunks of the versions kept. A number of a container is its place on disk: they are written one after another, and a
/// place is not used again.
///
/// Each version, and each collection, begins a container. A container is as long as its chunks.
pub struct Store<'a> {
    trace: &'a Trace,
    container_bytes: u64,
    rewriting: Rewriting,
    copies: Vec<Stored>,
    containers: Vec<Container>,
    open: Option<u32>,
    /// The newest copy of each chunk.
    index: Vec<Option<u32>>,
    /// Versions kept, oldest first: the copies that each refers to.
    recipes: VecDeque<Vec<u32>>,
}

impl<'a> Store<'a> {
    /// Makes an empty store for the chunks of a trace.
    pub fn new(trace: &'a Trace, container_bytes: u64, rewriting: Rewriting) -> Self {
        let index = vec![None; trace.lens.len()];
        let (copies, containers, recipes) = (Vec::new(), Vec::new(), VecDeque::new());
        Self { trace, container_bytes, rewriting, copies, containers, open: None, index, recipes }
    }

    /// Stores a version.
    pub fn back_up(&mut self, chunks: &[u32]) {
        let sparse = self.sparse();
        let mut recipe = Vec::with_capacity(chunks.len());
        let mut rest = chunks;
        while !rest.is_empty() {
            let (segment, behind) = rest.split_at(self.segment_chunks(rest));
            rest = behind;
            let first_new = self.copies.len() as u32;
            let kept = self.kept(segment);
            for chunk in segment {
                let is_usable = |copy: &u32| {
                    let container = self.copies[*copy as usize].container;
                    *copy >= first_new
                        || match self.rewriting {
                            Rewriting::None => true,
                            Rewriting::Har { .. } => !sparse.contains(&container),
                            Rewriting::Capping { .. } => kept.contains(&container),
                        }
                };
                let found = self.index[*chunk as usize].filter(is_usable);
                let copy = found.unwrap_or_else(|| self.store(*chunk));
                self.refer(copy);
                recipe.push(copy);
            }
        }
        self.open = None;
        self.recipes.push_back(recipe);
    }

    /// Removes the oldest version.
    pub fn remove_oldest(&mut self) {
        for copy in self.recipes.pop_front().unwrap_or_default() {
            let stored = &mut self.copies[copy as usize];
            stored.references -= 1;
            if stored.references == 0 {
                self.containers[stored.container as usize].dead_bytes += self.trace.len_bytes(stored.chunk);
            }
        }
    }

    /// Frees garbage. Returns the work of it: containers with a live chunk are read, and the new ones are written in a row.
    pub fn collect(&mut self, collection: Collection) -> Moved {
        let (mut moved, mut last_read) = (Moved::default(), None);
        for victim in 0..self.containers.len() {
            let container = &self.containers[victim];
            let is_dead = container.dead_bytes == container.bytes;
            if container.dead_bytes == 0 || (collection == Collection::WholeContainers && !is_dead) {
                continue;
            }
            let emptied = std::mem::take(&mut self.containers[victim]);
            if !is_dead {
                moved.read_bytes += emptied.bytes;
                moved.written_bytes += emptied.bytes - emptied.dead_bytes;
                moved.seeks += u64::from(last_read.is_none_or(|last: usize| last + 1 != victim));
                last_read = Some(victim);
            }
            for copy in emptied.copies {
                let Stored { chunk, references, .. } = self.copies[copy as usize];
                let newest = &mut self.index[chunk as usize];
                if references > 0 {
                    self.place(copy);
                } else if *newest == Some(copy) {
                    *newest = None;
                }
            }
        }
        self.open = None;
        moved.seeks += u64::from(moved.written_bytes > 0);
        moved
    }

    /// Returns the bytes of all containers.
    pub fn stored_bytes(&self) -> u64 {
        self.containers.iter().map(|container| container.bytes).sum()
    }

    /// Returns the container of each chunk of a version, in order, and its bytes. Versions are counted from the oldest one kept.
    pub fn containers_of(&self, version: usize) -> impl Iterator<Item = (u32, u64)> {
        self.recipes[version].iter().map(|copy| {
            let container = self.copies[*copy as usize].container;
            (container, self.containers[container as usize].bytes)
        })
    }

    /// Returns the bytes that some copies, each counted once, take of each container.
    fn used(&self, copies: impl Iterator<Item = u32>) -> HashMap<u32, u64> {
        let mut used = HashMap::new();
        for copy in copies.collect::<HashSet<u32>>() {
            let Stored { chunk, container, .. } = self.copies[copy as usize];
            *used.entry(container).or_default() += self.trace.len_bytes(chunk);
        }
        used
    }

    /// Returns the containers that are sparse for the newest version.
    fn sparse(&self) -> HashSet<u32> {
        let (Rewriting::Har { utilization, limit }, Some(newest)) = (self.rewriting, self.recipes.back()) else {
            return HashSet::new();
        };
        let bytes: u64 = newest.iter().map(|copy| self.trace.len_bytes(self.copies[*copy as usize].chunk)).sum();
        let used = self.used(newest.iter().copied());
        har::sparse(&used, self.container_bytes, utilization, (limit * bytes as f64) as u64)
    }

    /// Returns the containers that a segment may use under capping.
    fn kept(&self, segment: &[u32]) -> HashSet<u32> {
        let Rewriting::Capping { cap, .. } = self.rewriting else { return HashSet::new() };
        capping::kept(&self.used(segment.iter().filter_map(|chunk| self.index[*chunk as usize])), cap)
    }

    /// Returns how many of these chunks are the next segment.
    fn segment_chunks(&self, chunks: &[u32]) -> usize {
        let Rewriting::Capping { segment_bytes, .. } = self.rewriting else { return chunks.len() };
        let mut bytes = 0;
        let within = chunks.iter().take_while(|chunk| {
            bytes += self.trace.len_bytes(**chunk);
            bytes <= segment_bytes
        });
        within.count().max(1)
    }

    fn store(&mut self, chunk: u32) -> u32 {
        let copy = self.copies.len() as u32;
        self.copies.push(Stored { chunk, container: 0, references: 0 });
        self.index[chunk as usize] = Some(copy);
        self.place(copy);
        // Dead until it is referred to.
        let container = self.copies[copy as usize].container;
        self.containers[container as usize].dead_bytes += self.trace.len_bytes(chunk);
        copy
    }

    fn refer(&mut self, copy: u32) {
        let stored = &mut self.copies[copy as usize];
        if stored.references == 0 {
            self.containers[stored.container as usize].dead_bytes -= self.trace.len_bytes(stored.chunk);
        }
        stored.references += 1;
    }

    /// Appends a copy to the open container, or to a new one if there is no room.
    fn place(&mut self, copy: u32) {
        let len_bytes = self.trace.len_bytes(self.copies[copy as usize].chunk);
        let has_room = |number: &u32| self.containers[*number as usize].bytes + len_bytes <= self.container_bytes;
        let number = self.open.filter(has_room).unwrap_or_else(|| {
            self.containers.push(Container::default());
            self.containers.len() as u32 - 1
        });
        self.open = Some(number);
        let container = &mut self.containers[number as usize];
        container.copies.push(copy);
        container.bytes += len_bytes;
        self.copies[copy as usize].container = number;
    }
}

#[cfg(test)]
impl Store<'_> {
    /// Returns the chunks of a version as they are found in the containers that its recipe leads to.
    pub fn read(&self, version: usize) -> Vec<Option<u32>> {
        let find = |copy: &u32| {
            let stored = &self.copies[*copy as usize];
            let container = &self.containers[stored.container as usize];
            container.copies.contains(copy).then_some(stored.chunk)
        };
        self.recipes[version].iter().map(find).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Chunks of 10 bytes.
    fn trace(versions: &[&[u32]]) -> Trace {
        Trace { lens: vec![10; 20], versions: versions.iter().map(|chunks| chunks.to_vec()).collect() }
    }

    fn all_in<'a>(trace: &'a Trace, container_bytes: u64, rewriting: Rewriting) -> Store<'a> {
        let mut store = Store::new(trace, container_bytes, rewriting);
        trace.versions.iter().for_each(|chunks| store.back_up(chunks));
        store
    }

    fn containers(store: &Store<'_>, version: usize) -> Vec<u32> {
        store.containers_of(version).map(|(container, _)| container).collect()
    }

    #[test]
    fn each_version_begins_a_container_and_a_known_chunk_is_not_stored() {
        let trace = trace(&[&[0, 1, 2, 1], &[1, 3, 0]]);
        let store = all_in(&trace, 20, Rewriting::None);
        assert_eq!(containers(&store, 0), [0, 0, 1, 0]);
        assert_eq!(containers(&store, 1), [0, 2, 0]);
        assert_eq!(store.stored_bytes(), 40);
    }

    #[test]
    fn har_stores_the_chunks_of_sparse_containers_again_with_the_next_version() {
        // Version 2 uses one chunk of container 0 (25%) and all of container 1, and makes container 2 (25%).
        let trace = trace(&[&[0, 1, 2, 3, 4, 5, 6, 7], &[0, 4, 5, 6, 7, 8], &[0, 4, 5, 6, 7, 8]]);
        let store = all_in(&trace, 40, Rewriting::Har { utilization: 0.5, limit: 1.0 });
        assert_eq!(containers(&store, 1), [0, 1, 1, 1, 1, 2]);
        // 0 and 8 are rewritten.
        assert_eq!(containers(&store, 2), [3, 1, 1, 1, 1, 3]);
        assert_eq!(store.stored_bytes(), 110);
        // A sixth of 60 bytes is one chunk: that of the container with the lower number.
        let store = all_in(&trace, 40, Rewriting::Har { utilization: 0.5, limit: 0.17 });
        assert_eq!(containers(&store, 2), [3, 1, 1, 1, 1, 2]);
    }

    #[test]
    fn capping_stores_again_all_but_the_chunks_of_the_fullest_containers_of_a_segment() {
        // Containers 0 (0, 1), 1 (2, 3) and 2 (4, 5). The second version has segments of 40 bytes.
        let trace = trace(&[&[0, 1, 2, 3, 4, 5], &[0, 1, 2, 4, 4, 5, 2, 2]]);
        let store = all_in(&trace, 20, Rewriting::Capping { cap: 1, segment_bytes: 40 });
        // The first segment uses two chunks of 0 and keeps it: 2 and 4 go to container 3. The second finds 4 and 2 there, 5 in 2.
        assert_eq!(containers(&store, 1), [0, 0, 3, 3, 3, 4, 3, 3]);
        assert_eq!(store.stored_bytes(), 90);
    }

    #[test]
    fn capping_stores_a_chunk_again_once_for_a_segment() {
        let trace = trace(&[&[0, 1, 2, 3], &[0, 1, 2, 2]]);
        let store = all_in(&trace, 20, Rewriting::Capping { cap: 1, segment_bytes: 40 });
        assert_eq!((containers(&store, 1), store.stored_bytes()), (vec![0, 0, 2, 2], 50));
    }

    #[test]
    fn perfect_gc_moves_live_chunks_and_the_container_marker_keeps_dead_ones() {
        let versions: [&[u32]; 2] = [&[0, 1, 2, 3, 4, 5], &[0, 6]];
        let trace = trace(&versions);
        let mut store = all_in(&trace, 40, Rewriting::None);
        store.remove_oldest();
        // Container 1 (4, 5) is dead. Container 0 has one live chunk of four.
        assert_eq!(store.collect(Collection::WholeContainers), Moved::default());
        assert_eq!((store.stored_bytes(), containers(&store, 0)), (50, vec![0, 2]));
        assert_eq!(store.collect(Collection::Perfect), Moved { read_bytes: 40, written_bytes: 10, seeks: 2 });
        assert_eq!((store.stored_bytes(), containers(&store, 0)), (20, vec![3, 2]));
        assert_eq!(store.collect(Collection::Perfect), Moved::default());
        assert_eq!(store.read(0), [Some(0), Some(6)]);
    }
}
