//! MFDedup: deduplication against the version before only (NDF), and chunks that lie by the versions that use them (AVAR).

use std::collections::{BTreeMap, BTreeSet, HashSet};

use super::store::Moved;
use super::trace::Trace;

/// The category (first, last): the chunks that exactly the versions from `first` to `last` use. `last` is that of its volume.
#[derive(Debug)]
struct Category {
    first: u32,
    chunks: Vec<u32>,
}

/// The OPT layout of the paper (sections 4.2 to 4.4). Versions are counted from 1.
///
/// A chunk that skips versions is stored again, so the versions that use a copy follow each other. Volume *n* has the categories
/// (1, n) … (n, n) in a row. Those of the newest version are *active*: the next version splits them.
pub struct Layout<'a> {
    trace: &'a Trace,
    newest: u32,
    kept: BTreeSet<u32>,
    volumes: BTreeMap<u32, Vec<Category>>,
}

impl<'a> Layout<'a> {
    /// Makes an empty layout for the chunks of a trace.
    pub const fn new(trace: &'a Trace) -> Self {
        Self { trace, newest: 0, kept: BTreeSet::new(), volumes: BTreeMap::new() }
    }

    /// Stores a version, and arranges the version before: each active category (i, n) is read, and written as the active category
    /// (i, n + 1) and the archived one (i, n). Returns the bytes stored newly, and the work of arranging: each active category is a file,
    /// and the volume is written in a row.
    pub fn back_up(&mut self, chunks: &[u32]) -> (u64, Moved) {
        let old = self.volumes.remove(&self.newest).unwrap_or_default();
        let known: HashSet<u32> = old.iter().flat_map(|category| &category.chunks).copied().collect();
        let mut table = HashSet::new();
        let is_first = |chunk: &u32| table.insert(*chunk);
        let unique: Vec<u32> = chunks.iter().copied().filter(is_first).filter(|chunk| !known.contains(chunk)).collect();
        let new_bytes = self.trace.bytes(&unique);
        let moved_bytes: u64 = old.iter().map(|category| self.bytes(category)).sum();
        let mut seeks = old.len() as u64;

        let (mut active, mut archived) = (Vec::new(), Vec::new());
        for Category { first, chunks } in old {
            let (used, unused): (Vec<u32>, Vec<u32>) = chunks.into_iter().partition(|chunk| table.contains(chunk));
            seeks += u64::from(!used.is_empty());
            active.push(Category { first, chunks: used });
            archived.push(Category { first, chunks: unused });
        }
        active.push(Category { first: self.newest + 1, chunks: unique });
        for volume in [&mut active, &mut archived] {
            volume.retain(|category| !category.chunks.is_empty());
        }
        seeks += u64::from(!archived.is_empty());
        self.volumes.insert(self.newest, archived);
        self.newest += 1;
        self.volumes.insert(self.newest, active);
        self.kept.insert(self.newest);
        self.volumes.retain(|_, volume| !volume.is_empty());
        (new_bytes, Moved { read_bytes: moved_bytes, written_bytes: moved_bytes, seeks })
    }

    /// Removes a version that is not the newest, and returns the bytes freed. Nothing is moved: the volume of the oldest goes as a whole,
    /// other volumes are cut.
    ///
    /// Categories that no version uses are the last ones of their volume: if all versions from i to n are gone, so are those behind i.
    pub fn remove(&mut self, version: u32) -> u64 {
        let before = self.stored_bytes();
        self.kept.remove(&version);
        for (last, volume) in &mut self.volumes {
            let is_used = |category: &Category| self.kept.range(category.first..=*last).next().is_some();
            volume.truncate(volume.partition_point(is_used));
        }
        self.volumes.retain(|_, volume| !volume.is_empty());
        before - self.stored_bytes()
    }

    /// Returns the bytes of all volumes and active categories.
    pub fn stored_bytes(&self) -> u64 {
        self.volumes.values().flatten().map(|category| self.bytes(category)).sum()
    }

    /// Returns the bytes of the volume of a version, or of its active categories.
    pub fn volume_bytes(&self, version: u32) -> u64 {
        self.volumes.get(&version).into_iter().flatten().map(|category| self.bytes(category)).sum()
    }

    /// Returns the bytes of the largest active category.
    pub fn largest_active_bytes(&self) -> u64 {
        let active = self.volumes.get(&self.newest).into_iter().flatten();
        active.map(|category| self.bytes(category)).max().unwrap_or(0)
    }

    /// Returns the bytes to be read of each volume to restore a version: its categories (i, j) with i ≤ version ≤ j lie in a row at the
    /// start of volume j. Volumes of which nothing is read are left out.
    pub fn reads(&self, version: u32) -> Vec<u64> {
        self.parts(version).map(|part| part.iter().map(|category| self.bytes(category)).sum()).collect()
    }

    fn parts(&self, version: u32) -> impl Iterator<Item = &[Category]> {
        let prefix = move |volume: &'_ [Category]| volume.partition_point(|category| category.first <= version);
        self.volumes.range(version..).map(move |(_, volume)| &volume[..prefix(volume)]).filter(|part| !part.is_empty())
    }

    fn bytes(&self, category: &Category) -> u64 {
        self.trace.bytes(&category.chunks)
    }
}

#[cfg(test)]
impl Layout<'_> {
    /// Returns the categories of a volume: first version and chunks.
    pub fn volume(&self, version: u32) -> Vec<(u32, Vec<u32>)> {
        let categories = self.volumes.get(&version).into_iter().flatten();
        categories.map(|category| (category.first, category.chunks.clone())).collect()
    }

    /// Returns the chunks that a restore of a version reads, in the order on disk.
    pub fn read(&self, version: u32) -> Vec<u32> {
        self.parts(version).flatten().flat_map(|category| category.chunks.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of the paper's Figure 1: chunks 1 to 6, of which 2 to 5 change to 12 to 15, then 3 to 5 to 23 to 25.
    fn trace() -> Trace {
        let versions = vec![vec![1, 2, 3, 4, 5, 6], vec![1, 12, 13, 14, 15, 6], vec![1, 12, 23, 24, 25, 6]];
        Trace { lens: vec![10; 30], versions }
    }

    #[test]
    fn the_example_of_the_paper_has_its_five_categories() {
        let trace = trace();
        let mut layout = Layout::new(&trace);
        // (1, 1) is read, (1, 2) and volume 1 are written; then (1, 2) and (2, 2), (1, 3) and (2, 3), and volume 2.
        let moved = |seeks| Moved { read_bytes: 60, written_bytes: 60, seeks };
        assert_eq!(layout.back_up(&trace.versions[0]), (60, Moved::default()));
        assert_eq!(layout.back_up(&trace.versions[1]), (40, moved(3)));
        assert_eq!(layout.back_up(&trace.versions[2]), (30, moved(5)));
        assert_eq!(layout.volume(1), [(1, vec![2, 3, 4, 5])]);
        // Category (1, 2) is empty, since 1 and 6 are used on.
        assert_eq!(layout.volume(2), [(2, vec![13, 14, 15])]);
        assert_eq!(layout.volume(3), [(1, vec![1, 6]), (2, vec![12]), (3, vec![23, 24, 25])]);
        assert_eq!((layout.stored_bytes(), layout.largest_active_bytes()), (130, 30));
        // Volume 1, and (1, 3). Volume 2, and (1, 3) with (2, 3).
        assert_eq!((layout.reads(1), layout.reads(2), layout.reads(3)), (vec![40, 20], vec![30, 30], vec![60]));
    }

    #[test]
    fn a_chunk_that_skips_a_version_is_stored_again() {
        let trace = Trace { lens: vec![10; 4], versions: vec![vec![0, 1, 0], vec![1, 2], vec![0, 1, 2, 0]] };
        let mut layout = Layout::new(&trace);
        let new: Vec<u64> = trace.versions.iter().map(|chunks| layout.back_up(chunks).0).collect();
        // Exact deduplication would store nothing of the third version.
        assert_eq!((new, layout.stored_bytes()), (vec![20, 10, 10], 40));
        assert_eq!(layout.volume(1), [(1, vec![0])]);
        assert_eq!(layout.volume(3), [(1, vec![1]), (2, vec![2]), (3, vec![0])]);
    }

    #[test]
    fn removing_the_oldest_frees_its_volume_and_removing_others_cuts_theirs() {
        let trace = trace();
        let layout = || {
            let mut layout = Layout::new(&trace);
            trace.versions.iter().for_each(|chunks| _ = layout.back_up(chunks));
            layout
        };
        let mut one = layout();
        assert_eq!((one.remove(1), one.remove(2)), (40, 30));
        assert_eq!(one.reads(3), [60]);
        let mut other = layout();
        assert_eq!((other.remove(2), other.reads(1)), (30, vec![40, 20]));
        assert_eq!((other.remove(1), other.reads(3)), (40, vec![60]));
    }
}
