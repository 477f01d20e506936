//! Checkpoints: the committed state becomes durable, and open tankers become sealed ones.
//!
//! 1. *Fold* the patches of each sealed tanker: only counts changed: write a new counts file; else: write the whole tanker
//!    again without its removed cells; a tanker that became sparse is dissolved into the open one, an empty one dropped.
//! 2. *Seal* as many full tankers as the open tanker holds, taking cells in the order of their containers, which is their
//!    order of arrival, so that what is backed up together lies together (MAD2 section III.A).
//! 3. Write what stays open, sync the directory, replace the manifest: the atomic switch.
//! 4. *Publish* in memory (see `index` for the order), then remove files that the manifest does not name.
//!
//! A new tanker's filter is merged into the array as soon as it is written, into a column that no set names yet; that of a
//! tanker that lost cells is replaced after the switch, because until then the old set needs it. Until step 4 nothing else
//! in memory changes, and no file that a manifest on disk names is touched: names carry the
//! number of the attempt. After an error the old checkpoint is valid and the next attempt writes everything anew, under
//! new names (invariant I-7). If it is unknown whether the new manifest reached the disk, both sets of files are there.
//!
//! Cost: with nothing changed but the row one small file; per tanker with changed counts 4 bytes a cell read and written;
//! per tanker with moved or removed cells 48; 48 bytes per open cell. All in large sequential pieces.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use dedupfs_store::{Fingerprint, Result, StoreError};

use crate::cell::Entry;
use crate::index::{Applier, Index};
use crate::manifest::Manifest;
use crate::names::{MANIFEST_NAME, containers_name, counts_name, filter_name, is_ours, join, open_name, tanker_name};
use crate::open::Patch;
use crate::open::file::OpenFile;
use crate::options::DISSOLVE_DIVISOR;
use crate::sealed::{SealedSet, SealedTanker, refresh_filter};

/// What became of a tanker whose patches were folded in.
enum Folded {
    Kept(SealedTanker),
    /// These cells are to go to the open tanker; none if it became empty.
    Dissolved(Vec<Entry>),
}

/// What a checkpoint wrote and is to be published.
struct Written {
    tankers: Vec<Arc<SealedTanker>>,
    dissolved: Vec<Entry>,
    /// The open tanker's cells, if they change.
    open_cells: Option<Vec<Entry>>,
    open_file: OpenFile,
    next_tanker: u64,
}

impl Index {
    /// Makes everything applied so far durable as the state after `row`, which must have been applied completely (rows
    /// without changes for this index need not be applied).
    ///
    /// On an error the old checkpoint stays valid and the state in memory is what it was; it can be tried again.
    pub fn checkpoint(&self, row: u64) -> Result<()> {
        let mut applier = self.applier.lock();
        if row < applier.applied {
            let applied = applier.applied;
            return Err(StoreError::Usage(format!("checkpoint of row {row} after row {applied} was applied")));
        }
        self.write_checkpoint(&mut applier, row, false)
    }

    /// Whether a checkpoint is due: the open tanker is full, or patches take as much memory as a quarter of one.
    pub fn wants_checkpoint(&self) -> bool {
        let sizes = self.open.sizes();
        let full = u64::from(self.options.cells_per_tanker);
        sizes.cells >= full || sizes.patches >= full.div_ceil(4)
    }

    pub(crate) fn write_checkpoint(&self, applier: &mut Applier, row: u64, rebuilding: bool) -> Result<()> {
        let old = self.sealed_set();
        let patches = patches_by_tanker(self.open.collect_patches());
        let full = self.open.cell_count() >= self.options.cells_per_tanker as usize;
        let incomplete = old.tankers().iter().any(|tanker| !tanker.has_summary());
        let changed = applier.open_dirty || full || incomplete || !patches.is_empty();
        if !changed && row == self.position() && rebuilding == applier.rebuilding {
            return Ok(());
        }
        applier.generation += 1;
        let written = if changed { Some(self.write_files(applier, &old, patches)?) } else { None };
        if written.is_some() {
            self.device.sync_directory(&self.directory)?;
        }
        let tankers = written.as_ref().map_or_else(|| old.tankers(), |written| &written.tankers);
        let manifest = Manifest {
            rebuilding,
            generation: applier.generation,
            position: row,
            next_tanker: written.as_ref().map_or(applier.next_tanker, |written| written.next_tanker),
            open: written.as_ref().map_or(applier.open_file, |written| written.open_file),
            tankers: tankers.iter().map(|tanker| tanker.names()).collect(),
        };
        manifest.replace(&*self.device, &self.directory, &self.pool)?;

        applier.applied = row;
        applier.rebuilding = rebuilding;
        applier.next_tanker = manifest.next_tanker;
        applier.open_file = manifest.open;
        if let Some(written) = written {
            applier.open_dirty = false;
            self.publish(written);
        }
        self.position.store(row, Ordering::Release);
        self.checkpoints.fetch_add(1, Ordering::Relaxed);
        if let Err(error) = self.remove_unnamed(&manifest) {
            // The checkpoint is complete; the next one tries again.
            tracing::warn!("cannot remove old files of the index in {}: {error}", self.directory);
        }
        Ok(())
    }

    /// Steps 1 and 2, and the open tanker's file.
    fn write_files(
        &self,
        applier: &Applier,
        old: &SealedSet,
        mut patches: HashMap<u64, Vec<(Fingerprint, Patch)>>,
    ) -> Result<Written> {
        let mut next_tanker = applier.next_tanker;
        let mut kept = Vec::with_capacity(old.tankers().len());
        let mut dissolved = Vec::new();
        for tanker in old.tankers() {
            match patches.remove(&tanker.id) {
                None if tanker.has_summary() => kept.push(tanker.clone()),
                None => {
                    let tanker = SealedTanker::clone(tanker);
                    kept.push(Arc::new(tanker.complete(self.writer(), applier.generation)?));
                }
                Some(patches) => match self.fold(tanker, &patches, applier.generation)? {
                    Folded::Kept(tanker) => kept.push(Arc::new(tanker)),
                    Folded::Dissolved(cells) => dissolved.extend(cells),
                },
            }
        }

        let mut entries = self.open.collect_cells();
        entries.extend_from_slice(&dissolved);
        let cells_per_tanker = self.options.cells_per_tanker as usize;
        let to_seal = entries.len() - entries.len() % cells_per_tanker;
        let rest = split_by_arrival(&mut entries, to_seal);
        let mut sealed = Vec::new();
        for group in entries.chunks_mut(cells_per_tanker) {
            group.sort_unstable_by_key(|entry| entry.fingerprint);
            let ids = (next_tanker, applier.generation);
            let tanker = SealedTanker::write(self.writer(), ids, self.options.buckets_per_tanker, group, None)?;
            sealed.push(Arc::new(tanker));
            next_tanker += 1;
        }
        let moved = to_seal > 0 || !dissolved.is_empty();
        let open_file = if moved || applier.open_dirty {
            OpenFile::write(self.writer(), applier.generation, &rest)?
        } else {
            applier.open_file
        };
        // Newest first.
        sealed.reverse();
        sealed.append(&mut kept);
        Ok(Written { tankers: sealed, dissolved, open_cells: moved.then_some(rest), open_file, next_tanker })
    }

    fn fold(&self, tanker: &SealedTanker, patches: &[(Fingerprint, Patch)], generation: u64) -> Result<Folded> {
        if patches.iter().all(|(_, patch)| !patch.relocated) {
            let counts = patches.iter().filter_map(|(_, patch)| Some((patch.index, patch.cell?.references)));
            let counted = tanker.write_counts(self.writer(), generation, counts)?;
            return counted.complete(self.writer(), generation).map(Folded::Kept);
        }
        let mut entries = Vec::with_capacity(tanker.cells() as usize);
        let mut patches = patches.iter().peekable();
        tanker.for_each(&mut |index, entry| {
            let cell = match patches.next_if(|(_, patch)| patch.index == index) {
                Some((fingerprint, _)) if *fingerprint != entry.fingerprint => {
                    let what = format!("cell {index} of tanker {}", tanker.id);
                    return Err(StoreError::corrupt(what, fingerprint, entry.fingerprint));
                }
                Some((_, patch)) => patch.cell,
                None => Some(entry.cell),
            };
            entries.extend(cell.map(|cell| Entry { cell, ..entry }));
            Ok(())
        })?;
        if entries.len() < (self.options.cells_per_tanker / DISSOLVE_DIVISOR) as usize || entries.is_empty() {
            return Ok(Folded::Dissolved(entries));
        }
        let ids = (tanker.id, generation);
        let filter = tanker.filter_column();
        SealedTanker::write(self.writer(), ids, self.options.buckets_per_tanker, &entries, filter).map(Folded::Kept)
    }

    /// Step 4: add, switch, remove. The applier's lock is held, so that nothing else changes meanwhile.
    fn publish(&self, written: Written) {
        self.open.add(&written.dissolved);
        let epoch = self.sealed_set().epoch() + 1;
        let new = Arc::new(SealedSet::new(epoch, written.tankers, self.filters.clone()));
        let old = std::mem::replace(&mut *self.sealed.write(), new.clone());
        // Before the patches go that tell what became of the cells in these tankers.
        let kept: HashMap<u64, &Arc<SealedTanker>> = new.tankers().iter().map(|tanker| (tanker.id, tanker)).collect();
        let unchanged: HashSet<u64> = old
            .tankers()
            .iter()
            .filter(|tanker| kept.get(&tanker.id).is_some_and(|kept| kept.same_cells(tanker)))
            .map(|tanker| tanker.id)
            .collect();
        self.locality.begin_epoch(epoch, |tanker| !unchanged.contains(&tanker));
        if let Some(cells) = written.open_cells {
            self.open.replace_cells(&cells);
        }
        self.open.clear_patches();
        // Last: nobody asks for what was removed any more, and who still has the old set will start again.
        let before: HashMap<u64, u32> = old.tankers().iter().map(|tanker| (tanker.id, tanker.cells())).collect();
        for tanker in new.tankers() {
            if before.get(&tanker.id).is_some_and(|cells| *cells > tanker.cells()) {
                refresh_filter(self.writer(), tanker);
            }
        }
    }

    fn remove_unnamed(&self, manifest: &Manifest) -> Result<()> {
        let mut named = HashSet::new();
        named.insert(open_name(manifest.open.generation));
        for tanker in &manifest.tankers {
            named.insert(tanker_name(tanker.id, tanker.generation));
            named.insert(counts_name(tanker.id, tanker.counts_generation));
            named.insert(filter_name(tanker.id, tanker.summary.generation));
            named.insert(containers_name(tanker.id, tanker.summary.generation));
        }
        for entry in self.device.list(&self.directory)? {
            if !entry.is_directory
                && entry.name != MANIFEST_NAME
                && is_ours(&entry.name)
                && !named.contains(&entry.name)
            {
                self.device.remove(&join(&self.directory, &entry.name))?;
            }
        }
        Ok(())
    }
}

/// Patches by tanker, in the order of its cells.
fn patches_by_tanker(patches: Vec<(Fingerprint, Patch)>) -> HashMap<u64, Vec<(Fingerprint, Patch)>> {
    let mut by_tanker: HashMap<u64, Vec<(Fingerprint, Patch)>> = HashMap::new();
    for patch in patches {
        by_tanker.entry(patch.1.tanker).or_default().push(patch);
    }
    for patches in by_tanker.values_mut() {
        patches.sort_unstable_by_key(|(_, patch)| patch.index);
    }
    by_tanker
}

/// Cuts `entries` down to the `count` that arrived first, in order of arrival, and answers with the others. Container
/// ids ascend with time, and a container is one stream's.
fn split_by_arrival(entries: &mut Vec<Entry>, count: usize) -> Vec<Entry> {
    if count > 0 {
        entries.sort_unstable_by_key(|entry| (entry.cell.location.container, entry.fingerprint));
    }
    entries.split_off(count)
}
