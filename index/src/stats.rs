//! Figures of an index.

use std::sync::atomic::Ordering;

use crate::guide::{Guide, guided_by};
use crate::index::Index;
use crate::options::{WRITTEN_CELL_BYTES, WRITTEN_FILES_BYTES};

/// Figures of an index: current sizes, and counters since it was opened.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct IndexStats {
    /// Committed cells.
    pub cells: u64,
    /// Cells in the open tanker.
    pub open_cells: u64,
    /// Cells of a tanker when it is sealed: from its shape, or fewer if memory is short.
    pub sealed_cells: u64,
    /// Bytes of open tankers, patches, staged fingerprints and of the state that is being written.
    pub open_bytes: u64,
    /// Bytes of the directories of sealed tankers and of their lists of containers. They grow with the pool, 0.1 for
    /// each fingerprint.
    pub directory_bytes: u64,
    /// Bytes of the garbage map: some 44 for each container. It never shrinks below its size at the largest number of
    /// containers so far.
    pub occupancy_bytes: u64,
    /// Containers in the garbage map.
    pub occupied_containers: u64,
    /// Sealed tankers that the map lacks: see [`Index::complete_occupancy`].
    pub tankers_without_occupancy: u64,
    /// Staged fingerprints.
    pub recent_cells: u64,
    /// Cells of sealed tankers that changed since the last checkpoint.
    pub patched_cells: u64,
    /// Sealed tankers.
    pub sealed_tankers: u64,
    /// Cells of the fullest bucket. 44 bytes for each are the largest read of a lookup.
    pub bucket_cells_max: u64,
    /// MAD2's imbalance (section IV.A) of the most imbalanced tanker: cells of its fullest bucket less those of its
    /// emptiest. Buckets have no fixed size here, so imbalance costs only longer reads, and starts anew with each
    /// tanker.
    pub bucket_imbalance_max: u64,
    /// Memory in use with the caches and filters, in bytes.
    pub memory_bytes: u64,
    /// The part of it for the cache of buckets and counts.
    pub cache_bytes: u64,
    /// The part of it for the filters of the sealed tankers and guides.
    pub filter_bytes: u64,
    /// The part of it for the locality cache.
    pub locality_bytes: u64,
    /// Containers in the locality cache.
    pub locality_containers: u64,
    /// Tables of containers read for the locality cache.
    pub locality_tables_read: u64,
    /// Guides: each answers for many old tankers together.
    pub guides: u64,
    /// Sealed tankers to which guides lead.
    pub guided_tankers: u64,
    /// Bits for each cell in the filter of the largest guide. 0 until it is loaded, or without memory: then each lookup reads a page.
    pub guide_bits_per_cell: u64,
    /// Bits of the filters for each cell of the fullest tanker.
    pub filter_bits_per_cell: u64,
    /// Sealed tankers without a filter, for lack of memory or because of damage: each lookup reads them.
    pub tankers_without_filter: u64,
    /// Expected false bucket reads of a million lookups of absent fingerprints.
    pub false_reads_per_million: u64,
    /// Bytes of the last checkpoint's files, without the manifest.
    pub disk_bytes: u64,
    /// Buckets and pages of counts read from disk.
    pub bucket_reads: u64,
    /// Bytes of these reads.
    pub bucket_read_bytes: u64,
    /// Checkpoints written.
    pub checkpoints: u64,
}

impl Index {
    /// Returns an upper bound of the bytes that the next checkpoint may write beside the current files, if it rewrites
    /// at most `rewritten_max` bytes of sealed tankers. Quick: it is called at each look at the free space.
    pub fn checkpoint_bytes(&self, rewritten_max: u64) -> u64 {
        let sizes = self.open.sizes();
        let set = self.sealed_set();
        let tankers = set.tankers();
        let cells: u64 = tankers.iter().map(|tanker| u64::from(tanker.cells())).sum();
        // Open and staged cells: the open tanker's file, or a sealed tanker with all its files.
        let fresh = (sizes.cells + sizes.recent) * WRITTEN_CELL_BYTES + WRITTEN_FILES_BYTES;
        // The counts of all sealed tankers.
        let counts = 4 * cells + tankers.iter().map(|tanker| tanker.occupancy_list_bytes() + 8192).sum::<u64>();
        let sealed: u64 = tankers.iter().map(|tanker| tanker.disk_bytes()).sum();
        fresh + counts + sealed.min(rewritten_max)
    }

    /// Returns the figures. It waits for nobody and holds up nobody.
    pub fn stats(&self) -> IndexStats {
        let open_file_bytes = self.open_file_bytes.load(Ordering::Relaxed);
        let set = self.sealed_set();
        let sizes = self.open.sizes();
        let filters = self.filters.sizes();
        let guides: Vec<&Guide> = set.guides().iter().map(|guided| &*guided.guide).collect();
        let guided = guided_by(set.guides().iter().map(|guided| &guided.guide));
        let guided = set.tankers().iter().filter(|tanker| guided.contains(&tanker.id)).count() as u64;
        let covered = set.tankers().iter().filter(|tanker| tanker.filter.is_some()).count() as u64;
        let uncovered = (set.tankers().len() as u64).saturating_sub(covered + guided);
        let bits = |guide: &Guide| guide.bits().unwrap_or(0);
        let unpublished = self.guide_work.lock().unpublished();
        let with_filters = guides.iter().copied().chain(unpublished.as_deref());
        let filter_bytes = filters.bytes + with_filters.map(Guide::filter_bytes).sum::<u64>();
        let tanker_false_reads = self.filters.fullness().expected_false_reads(filters.fold, covered, uncovered);
        let guide_false_reads: f64 = guides.iter().map(|guide| 0.5_f64.powi(bits(guide) as i32)).sum();
        let locality = self.locality.sizes();
        let extremes = || set.tankers().iter().map(|tanker| tanker.bucket_extremes());
        let open_bytes = sizes.memory_bytes + self.frozen_bytes.load(Ordering::Relaxed);
        let (occupancy_bytes, cache_bytes) = (self.occupancy.memory_bytes(), self.cache.bytes());
        let directories = set.tankers().iter().map(|tanker| tanker.memory_bytes()).sum::<u64>()
            + guides.iter().map(|guide| guide.file.memory_bytes()).sum::<u64>();
        IndexStats {
            cells: self.len(),
            open_cells: sizes.cells,
            sealed_cells: self.options.sealed_cells(),
            open_bytes,
            directory_bytes: directories,
            occupancy_bytes,
            occupied_containers: self.occupancy.containers(),
            tankers_without_occupancy: self.occupancy.missing() as u64,
            recent_cells: sizes.recent,
            patched_cells: sizes.patches,
            bucket_cells_max: extremes().map(|(most, _)| u64::from(most)).max().unwrap_or(0),
            bucket_imbalance_max: extremes().map(|(most, least)| u64::from(most - least)).max().unwrap_or(0),
            sealed_tankers: set.tankers().len() as u64,
            memory_bytes: open_bytes + directories + occupancy_bytes + cache_bytes + filter_bytes + locality.bytes,
            cache_bytes,
            filter_bytes,
            guides: guides.len() as u64,
            guided_tankers: guided,
            guide_bits_per_cell: guides
                .iter()
                .max_by_key(|guide| guide.file.cells())
                .map_or(0, |guide| u64::from(bits(guide))),
            locality_bytes: locality.bytes,
            locality_containers: locality.containers,
            locality_tables_read: locality.tables_read,
            filter_bits_per_cell: self.filters.fullness().bits_per_cell(filters.fold) as u64,
            tankers_without_filter: uncovered,
            false_reads_per_million: ((tanker_false_reads + guide_false_reads) * 1e6) as u64,
            disk_bytes: open_file_bytes
                + set.tankers().iter().map(|tanker| tanker.disk_bytes()).sum::<u64>()
                + guides.iter().map(|guide| guide.file.disk_bytes()).sum::<u64>(),
            bucket_reads: self.cache.reads(),
            bucket_read_bytes: self.cache.read_bytes(),
            checkpoints: self.checkpoints.load(Ordering::Relaxed),
        }
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use crate::options::WRITTEN_CELL_BYTES;
    use crate::tests::{TINY, empty, insert};

    #[test]
    fn each_cell_adds_to_a_checkpoint_what_is_written_of_it() {
        let (_disk, index) = empty(TINY);
        let nothing = index.checkpoint_bytes(0);
        let changes: Vec<_> = (0..10).map(|number| insert(number, 1)).collect();
        index.apply(1, &changes).unwrap();
        assert_eq!(index.checkpoint_bytes(0), nothing + 10 * WRITTEN_CELL_BYTES);
        index.checkpoint(1).unwrap();
        assert_eq!(index.checkpoint_bytes(0), nothing + 10 * WRITTEN_CELL_BYTES);
    }
}
