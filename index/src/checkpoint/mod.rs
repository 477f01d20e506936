//! Checkpoints: the committed state becomes durable, and full open tankers become sealed ones.
//!
//! 1. *Freeze* ([`Index::freeze`]): copy the open cells and the patches, as of the end of a row. Short, without I/O.
//! 2. *Write* ([`Index::write`]), while rows are still applied (dedupv1 tech report section 3.4: no writer waits for
//!    the index):
//!    - *fold* the patches of each sealed tanker. If only counts changed, write a new counts file; otherwise rewrite the
//!      tanker without its removed cells. A tanker that became sparse is dissolved into the open one; an empty one is
//!      dropped;
//!    - *seal* as many full tankers as the open cells fill. Cells are taken in the order of their containers, which is
//!      their order of arrival, so that one backup's cells lie together (MAD2 section III.A);
//!    - write the remaining open cells, sync the directory, and replace the manifest: the atomic switch.
//! 3. *Publish* in memory (see `publish`): changes since the freeze stay, as cells or as patches.
//! 4. Remove the files that were replaced. The first checkpoint behind opening, and one behind a failure, removes all that the manifest does
//!    not name.
//!
//! A new tanker's filter is merged into the array as soon as it is written, into a column that no set names yet. The
//! filter of a tanker that lost cells is replaced after the switch, because the old set needs it until then. Nothing
//! else in memory changes before step 3. No file that a manifest on disk names is ever touched: file names carry the
//! number of the attempt. After an error the old checkpoint is valid, and the next attempt writes everything anew under
//! new names (invariant I-7). If it is unknown whether the new manifest reached the disk, both sets of files exist.
//!
//! Cost: one small file if only the row changed; 4 bytes a cell read and written for a tanker with changed counts; 48
//! bytes a cell for a tanker with moved or removed cells; 48 bytes per open cell; 32 bytes per container of a rewritten
//! tanker. All in large sequential pieces. Memory, from freezing to publishing: 56 bytes for each open cell and 72 for
//! each patch.

#[cfg(test)]
mod dissolving_tests;
mod publish;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use dedupfs_store::profile::{self, Component};
use dedupfs_store::{Fingerprint, Result, StoreError};
use dedupfs_sync::canary::{Canary, is_planted};

use crate::cell::Entry;
use crate::guide::{Guide, guided_by};
use crate::index::{Applier, Checkpointer, Index};
use crate::leftovers::Removed;
use crate::manifest::{Extent, Manifest};
use crate::names::{
    MANIFEST_NAME, containers_name, counts_name, filter_name, generation_of, guide_name, is_ours, join, occupancy_name,
    open_name, tanker_name,
};
use crate::occupancy::Tally;
use crate::open::file::OpenFile;
use crate::open::{Patch, SHARDS};
use crate::options::{DISSOLVE_DIVISOR, WRITTEN_CELL_BYTES, WRITTEN_FILES_BYTES};
use crate::sealed::{FilterOf, SealedSet, SealedTanker, TankerNames};

/// The committed state after a row, to be written by a checkpoint. Later changes do not affect it.
#[derive(Debug)]
pub struct Frozen {
    row: u64,
    extent: Extent,
    /// The sealed tankers that `patches` belong to.
    set: Arc<SealedSet>,
    /// Patches by tanker, in the order of its cells.
    patches: HashMap<u64, Vec<(Fingerprint, Patch)>>,
    /// The open cells, unordered.
    cells: Vec<Entry>,
    /// Number of changes that the open tanker had seen.
    open_version: u64,
}

impl Frozen {
    /// Upper bound of the bytes that writing it takes on the device, beside the current files.
    pub fn disk_bytes(&self) -> u64 {
        let is_relocated = |patches: &Vec<(Fingerprint, Patch)>| patches.iter().any(|(_, patch)| patch.relocated);
        let patched = self.patches.iter().map(|(tanker, patches)| (*tanker, is_relocated(patches)));
        written_bytes(self.cells.len() as u64, &self.set, &patched.collect())
    }

    pub(crate) fn memory_bytes(&self) -> u64 {
        let patches: usize = self.patches.values().map(Vec::capacity).sum();
        (self.cells.capacity() * size_of::<Entry>() + patches * size_of::<(Fingerprint, Patch)>()) as u64
    }
}

/// The outcome of folding patches into a tanker.
#[derive(Debug)]
struct Folding {
    /// The patches, in the order of the old file's cells.
    patches: Vec<(Fingerprint, Patch)>,
    /// Positions in the old file of cells that the new one lacks, ascending.
    removed: Vec<u32>,
    /// Its cells went to the open tanker; there is no new file.
    dissolved: bool,
}

/// A newly sealed tanker, with its cells in order of fingerprint.
struct Sealed {
    tanker: Arc<SealedTanker>,
    entries: Vec<Entry>,
}

/// The files that a checkpoint wrote, to be published.
struct Written {
    tankers: Vec<Arc<SealedTanker>>,
    sealed: Vec<Sealed>,
    folded: HashMap<u64, Folding>,
    dissolved: Vec<Entry>,
    open_file: OpenFile,
    next_tanker: u64,
}

/// Upper bound of the bytes of a checkpoint with so many open cells. `patched`: tankers with patches, and whether more than counts changed.
fn written_bytes(cells: u64, set: &SealedSet, patched: &HashMap<u64, bool>) -> u64 {
    let changed = set.tankers().iter().filter_map(|tanker| Some((tanker, *patched.get(&tanker.id)?)));
    let folded = changed.map(|(tanker, is_relocated)| {
        let counts_bytes = 4 * u64::from(tanker.cells()) + tanker.occupancy_list_bytes() + WRITTEN_FILES_BYTES;
        // A dissolved tanker's cells are written with the open cells.
        let whole_bytes = u64::from(tanker.cells()) * WRITTEN_CELL_BYTES + WRITTEN_FILES_BYTES;
        if is_relocated { whole_bytes } else { counts_bytes }
    });
    cells * WRITTEN_CELL_BYTES + 2 * WRITTEN_FILES_BYTES + folded.sum::<u64>()
}

impl Index {
    /// Makes everything applied so far durable as the state after `row`. That row must be applied completely (rows
    /// without changes for this index need not be applied).
    ///
    /// On an error the old checkpoint stays valid and the state in memory is unchanged; the caller can try again.
    pub fn checkpoint(&self, row: u64) -> Result<()> {
        self.write(self.freeze(row)?)
    }

    /// Copies the state after `row`, for [`write`](Self::write). From here on `row` is complete.
    pub fn freeze(&self, row: u64) -> Result<Frozen> {
        let mut applier = self.applier.lock();
        if row < applier.applied {
            let applied = applier.applied;
            return Err(StoreError::Usage(format!("checkpoint of row {row} after row {applied} was applied")));
        }
        Ok(self.freeze_locked(&mut applier, row, Extent::Whole))
    }

    pub(crate) fn freeze_locked(&self, applier: &mut Applier, row: u64, extent: Extent) -> Frozen {
        applier.applied = applier.applied.max(row);
        applier.frozen = applier.frozen.max(row);
        Frozen {
            row,
            extent,
            set: self.sealed_set(),
            patches: self.open.patches_by_tanker(),
            cells: self.open.collect_cells(),
            open_version: applier.open_version,
        }
    }

    /// Upper bound of the bytes that a checkpoint would write now. Cost: a look at each patch.
    pub fn written_next_bytes(&self) -> u64 {
        let (mut cells, mut patched) = (0, HashMap::new());
        for number in 0..SHARDS {
            let shard = self.open.read(number);
            cells += shard.cells.len() as u64;
            for (_, patch) in shard.patches.iter() {
                *patched.entry(patch.tanker).or_default() |= patch.relocated;
            }
        }
        written_bytes(cells, &self.sealed_set(), &patched)
    }

    /// Whether a checkpoint is due: a tanker is full, or there are many patches.
    pub fn wants_checkpoint(&self) -> bool {
        let sizes = self.open.sizes();
        sizes.cells >= self.options.sealed_cells() || sizes.patches >= self.options.patches_max().div_ceil(2)
    }

    /// Whether applying must wait until a checkpoint is published: memory allows no more open cells or patches.
    pub fn is_full(&self) -> bool {
        let sizes = self.open.sizes();
        sizes.cells >= self.options.open_cells_max() || sizes.patches >= self.options.patches_max()
    }

    /// Writes a checkpoint of a frozen state. Applying and lookups go on meanwhile; a second checkpoint waits.
    ///
    /// On an error the old checkpoint stays valid and the state in memory is unchanged; the caller can try a newer
    /// state.
    pub fn write(&self, frozen: Frozen) -> Result<()> {
        let mut state = self.checkpointer.lock();
        let before = state.generation;
        let outcome = self.write_locked(&mut state, frozen);
        state.has_leftovers |= outcome.is_err();
        if matches!(outcome, Err(StoreError::NoSpace { .. })) && state.generation > before {
            // It will be tried again: the leftovers must not take space from that attempt and from commits.
            if let Err(error) = self.remove_attempt(state.generation) {
                tracing::warn!(
                    "cannot remove the files of a checkpoint that ran out of space in {}: {error}",
                    self.directory
                );
            }
        }
        outcome
    }

    fn write_locked(&self, state: &mut Checkpointer, frozen: Frozen) -> Result<()> {
        // While an index is built, the number of its checkpoint takes the place of the row. It may be built on behind its completion.
        let is_in_use = (state.extent, frozen.extent) == (Extent::Whole, Extent::Whole);
        let overtaken = is_in_use && frozen.row < self.position();
        if overtaken || !Arc::ptr_eq(&frozen.set, &self.sealed_set()) {
            let row = frozen.row;
            return Err(StoreError::Usage(format!("another checkpoint was written since row {row} was frozen")));
        }
        let full = frozen.cells.len() as u64 >= self.options.sealed_cells();
        let incomplete = frozen.set.tankers().iter().any(|tanker| !tanker.has_summary());
        let open_changed = frozen.open_version != state.open_version;
        let built = self.guide_work.lock().built.clone();
        let changed = open_changed || full || incomplete || built.is_some() || !frozen.patches.is_empty();
        let (row, extent, open_version) = (frozen.row, frozen.extent, frozen.open_version);
        if !changed && row == self.position() && extent == state.extent {
            return Ok(());
        }
        state.generation += 1;
        let (old, old_open) = (frozen.set.clone(), state.open_file);
        let guides = old.guides_with(built.as_ref());
        self.frozen_bytes.store(frozen.memory_bytes(), Ordering::Relaxed);
        let written = if changed { Some(self.write_files(state, frozen, open_changed, &guides)) } else { None };
        self.frozen_bytes.store(0, Ordering::Relaxed);
        let written = written.transpose()?;
        if written.is_some() {
            self.device.sync_directory(&self.directory)?;
        }
        let tankers = written.as_ref().map_or_else(|| old.tankers(), |written| &written.tankers);
        let manifest = Manifest {
            extent,
            generation: state.generation,
            position: row + u64::from(is_planted(Canary::ManifestAhead)),
            next_tanker: written.as_ref().map_or(state.next_tanker, |written| written.next_tanker),
            open: written.as_ref().map_or(state.open_file, |written| written.open_file),
            tankers: tankers.iter().map(|tanker| tanker.names()).collect(),
            guides: guides.iter().map(|guide| guide.file.names.clone()).collect(),
        };
        manifest.replace(&*self.device, &self.directory, &self.pool)?;

        if (state.extent, extent) == (Extent::Unfinished, Extent::Whole) {
            let mut applier = self.applier.lock();
            (applier.applied, applier.frozen) = (row, row);
        }
        state.extent = extent;
        state.next_tanker = manifest.next_tanker;
        state.open_file = manifest.open;
        state.open_version = open_version;
        self.open_file_bytes.store(manifest.open.bytes, Ordering::Relaxed);
        if let Some(written) = written {
            self.publish(&written, guides);
        }
        if built.is_some() {
            self.guide_work.lock().built = None;
        }
        self.position.store(row, Ordering::Release);
        self.checkpoints.fetch_add(1, Ordering::Relaxed);
        let removed = match state.has_leftovers {
            true => self.remove_unnamed(&manifest).map(|_| ()),
            false => self.remove_replaced(&old, old_open, &manifest),
        };
        // The checkpoint is complete; the next one tries again.
        state.has_leftovers = removed.is_err();
        if let Err(error) = removed {
            tracing::warn!("cannot remove old files of the index in {}: {error}", self.directory);
        }
        Ok(())
    }

    /// Folds, seals, and writes the remaining open cells.
    fn write_files(
        &self,
        state: &Checkpointer,
        frozen: Frozen,
        open_changed: bool,
        guides: &[Arc<Guide>],
    ) -> Result<Written> {
        let guided = guided_by(guides.iter());
        let Frozen { set, mut patches, cells: mut entries, .. } = frozen;
        let generation = state.generation;
        let mut next_tanker = state.next_tanker;
        let mut kept = Vec::with_capacity(set.tankers().len());
        let (mut folded, mut dissolved) = (HashMap::new(), Vec::new());
        for tanker in set.tankers() {
            match patches.remove(&tanker.id) {
                None if tanker.has_summary() => kept.push(tanker.clone()),
                None => {
                    let tanker = SealedTanker::clone(tanker);
                    kept.push(Arc::new(tanker.complete(self.writer(), generation)?));
                }
                Some(patches) => {
                    let room = self.dissolve_below().saturating_sub(dissolved.len() as u64);
                    let filter = match &tanker.filter {
                        _ if guided.contains(&tanker.id) => FilterOf::Guide,
                        Some(column) => FilterOf::Before(column.clone()),
                        None => FilterOf::Itself,
                    };
                    let (next, cells) = self.fold(tanker, &patches, generation, (room, filter))?;
                    let is_removed = |(_, patch): &&(Fingerprint, Patch)| patch.cell.is_none();
                    let removed = patches.iter().filter(is_removed).map(|(_, patch)| patch.index).collect();
                    folded.insert(tanker.id, Folding { patches, removed, dissolved: next.is_none() });
                    kept.extend(next.map(Arc::new));
                    dissolved.extend(cells);
                }
            }
        }

        entries.extend_from_slice(&dissolved);
        let sealed_cells = self.options.sealed_cells() as usize;
        let to_seal = entries.len() - entries.len() % sealed_cells;
        let rest = split_by_arrival(&mut entries, to_seal);
        let mut groups = Vec::with_capacity(entries.len() / sealed_cells);
        while entries.len() > sealed_cells {
            groups.push(entries.split_off(entries.len() - sealed_cells));
        }
        groups.extend((!entries.is_empty()).then_some(entries));
        let mut sealed = Vec::new();
        for mut entries in groups.into_iter().rev() {
            let _timed = profile::of(Component::Sealing);
            entries.sort_unstable_by_key(|entry| entry.fingerprint);
            let ids = (next_tanker, generation);
            let tanker =
                SealedTanker::write(self.writer(), ids, self.options.buckets_per_tanker, &entries, FilterOf::Itself)?;
            sealed.push(Sealed { tanker: Arc::new(tanker), entries });
            next_tanker += 1;
        }
        let open_file = if to_seal > 0 || !dissolved.is_empty() || open_changed {
            OpenFile::write(self.writer(), generation, &rest)?
        } else {
            state.open_file
        };
        // Newest first.
        let mut tankers: Vec<_> = sealed.iter().rev().map(|sealed| sealed.tanker.clone()).collect();
        tankers.append(&mut kept);
        for tanker in tankers.iter_mut().filter(|tanker| tanker.filter.is_some() && guided.contains(&tanker.id)) {
            *tanker = Arc::new(tanker.without_filter());
        }
        Ok(Written { tankers, sealed, folded, dissolved, open_file, next_tanker })
    }

    /// A tanker with fewer cells is sparse. One checkpoint dissolves at most this many cells, because they stay in
    /// memory until it is published. Other sparse tankers wait for a later one.
    fn dissolve_below(&self) -> u64 {
        self.options.sealed_cells().div_ceil(u64::from(DISSOLVE_DIVISOR))
    }

    /// Folds patches into a tanker. Returns a new generation of it, or the cells for the open tanker, fewer than `room`
    /// (none if it became empty).
    fn fold(
        &self,
        tanker: &SealedTanker,
        patches: &[(Fingerprint, Patch)],
        generation: u64,
        (room, filter): (u64, FilterOf),
    ) -> Result<(Option<SealedTanker>, Vec<Entry>)> {
        if patches.iter().all(|(_, patch)| !patch.relocated) {
            let counts = patches.iter().filter_map(|(_, patch)| Some((patch.index, patch.cell?)));
            let list = self.occupancy_of(tanker)?;
            let counted = tanker.write_counts(self.writer(), generation, counts, &list)?;
            return Ok((Some(counted.complete(self.writer(), generation)?), Vec::new()));
        }
        let mut entries = Vec::with_capacity(tanker.cells() as usize);
        let mut patches = patches.iter().peekable();
        // Its files will be removed: this is the last chance to learn their occupancy.
        let mut lacking = self.occupancy.lacks(tanker.id).then(Tally::default);
        tanker.for_each(&mut |index, entry| {
            if let Some(tally) = &mut lacking {
                tally.change(None, Some(entry.cell));
            }
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
        if let Some(tally) = lacking {
            self.occupancy.fill(tanker.id, tally.iter());
        }
        if (entries.len() as u64) < room || entries.is_empty() {
            return Ok((None, entries));
        }
        let ids = (tanker.id, generation);
        let buckets = self.options.buckets_per_tanker;
        Ok((Some(SealedTanker::write(self.writer(), ids, buckets, &entries, filter)?), Vec::new()))
    }

    /// Removes the files of a failed attempt, unless its manifest exists (and may be durable).
    fn remove_attempt(&self, generation: u64) -> Result<()> {
        if Manifest::read(&*self.device, &self.directory, &self.pool)?.generation >= generation {
            return Ok(());
        }
        for entry in self.device.list(&self.directory)? {
            if !entry.is_directory && is_ours(&entry.name) && generation_of(&entry.name) == Some(generation) {
                self.device.remove(&join(&self.directory, &entry.name))?;
            }
        }
        Ok(())
    }

    /// Removes the files of the last checkpoint that the (durable) manifest does not name. Cost: by what changed.
    fn remove_replaced(&self, old: &SealedSet, old_open: OpenFile, manifest: &Manifest) -> Result<()> {
        let new: HashMap<u64, &TankerNames> = manifest.tankers.iter().map(|tanker| (tanker.id, tanker)).collect();
        let mut replaced = Vec::new();
        if old_open.generation != manifest.open.generation {
            replaced.push(open_name(old_open.generation));
        }
        for tanker in old.tankers() {
            let (old, new) = (tanker.names(), new.get(&tanker.id));
            if new != Some(&&old) {
                let kept = new.map_or_else(Vec::new, |new| files_of(new).to_vec());
                replaced.extend(files_of(&old).into_iter().filter(|name| !kept.contains(name)));
            }
        }
        let kept: HashSet<u64> = manifest.guides.iter().map(|guide| guide.id).collect();
        let gone = old.guides().iter().map(|guided| &guided.guide.file.names).filter(|names| !kept.contains(&names.id));
        replaced.extend(gone.map(|names| guide_name(names.id, names.generation)));
        for name in replaced {
            match self.device.remove(&join(&self.directory, &name)) {
                // Not every tanker has all files.
                Ok(()) | Err(StoreError::NotFound { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Removes files that the (durable) manifest does not name.
    pub(crate) fn remove_unnamed(&self, manifest: &Manifest) -> Result<Removed> {
        let mut named = HashSet::new();
        named.insert(open_name(manifest.open.generation));
        for tanker in &manifest.tankers {
            named.extend(files_of(tanker));
        }
        named.extend(manifest.guides.iter().map(|guide| guide_name(guide.id, guide.generation)));
        // It is being made, or waits for the next checkpoint.
        named.extend(self.guide_work.lock().file());
        let mut removed = Removed::default();
        for entry in self.device.list(&self.directory)? {
            if !entry.is_directory
                && entry.name != MANIFEST_NAME
                && is_ours(&entry.name)
                && !named.contains(&entry.name)
            {
                self.device.remove(&join(&self.directory, &entry.name))?;
                removed.files += 1;
                removed.bytes += entry.len_bytes;
            }
        }
        Ok(removed)
    }
}

/// Names of the files of a tanker.
fn files_of(tanker: &TankerNames) -> [String; 5] {
    [
        tanker_name(tanker.id, tanker.generation),
        counts_name(tanker.id, tanker.counts_generation),
        occupancy_name(tanker.id, tanker.counts_generation),
        filter_name(tanker.id, tanker.summary.generation),
        containers_name(tanker.id, tanker.summary.generation),
    ]
}

/// Cuts `entries` down to the `count` that arrived first, in order of arrival, and returns the rest. Container ids
/// ascend with time, and each container belongs to one stream.
fn split_by_arrival(entries: &mut Vec<Entry>, count: usize) -> Vec<Entry> {
    if count > 0 {
        entries.sort_unstable_by_key(|entry| (entry.cell.location.container(), entry.fingerprint));
    }
    entries.split_off(count)
}
