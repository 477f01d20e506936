//! Lookups.
//!
//! # Consistency
//! Lookups take no lock across I/O, while a checkpoint moves cells between the open tanker, patches and sealed tankers.
//! These rules ensure that a moving cell is never missed and a stale one never seen:
//! 1. A lookup clones the pointer to the set of sealed tankers, asks the shards, then filters, caches and files of that
//!    set.
//! 2. A checkpoint first adds (dissolved cells to the open tanker), then replaces the set, then makes the locality
//!    cache forget the changes, then removes (sealed cells and folded patches).
//! 3. A lookup that finds another set in place at its end starts again. Otherwise it either saw none of the removals,
//!    or had the new set from the start.
//!
//! # Order of a batch
//! Memory first; then the Bloom filter array for the rest; then the locality cache and the tankers for the fingerprints
//! that the array names. With a source of container tables, these are asked in the order of the batch, which is that of
//! the stream: the first hit may cache the container that answers the rest. Without a source they are asked in the
//! order of their files.

use std::sync::Arc;

use dedupfs_store::{ContainerId, Fingerprint, Result};

use crate::cell::{Cell, Location};
use crate::index::Index;
use crate::locality::ContainerTables;
use crate::open::{Grouped, Held, Shard, shard_of};
use crate::sealed::{Found, Question, SealedSet, Share};

/// The aids of a lookup beside the tankers. They affect its cost, never its answers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Means {
    /// The Bloom filter array. Without it every tanker is asked.
    pub(crate) filters: bool,
    pub(crate) locality: bool,
}

impl Means {
    pub(crate) const ALL: Self = Self { filters: true, locality: true };
}

impl Index {
    /// Sets the source of container tables. From now on a lookup that hits a container may read its table, so that the
    /// following lookups need no I/O. Only the first call counts.
    pub fn set_container_tables(&self, tables: Arc<dyn ContainerTables>) {
        let _first = self.tables.set(tables);
    }

    /// Runs `lookup` on the set of sealed tankers; repeats it if the set was replaced meanwhile. Errors on a replaced
    /// set are ignored: its files may be gone.
    pub(crate) fn consistently<T>(&self, mut lookup: impl FnMut(&SealedSet) -> Result<T>) -> Result<T> {
        loop {
            let set = self.sealed_set();
            let answer = lookup(&set);
            if Arc::ptr_eq(&set, &self.sealed.read()) {
                return answer;
            }
        }
    }

    /// Returns the cell of a fingerprint: a staged one first, with the references of the committed one if it exists.
    pub fn get(&self, fingerprint: &Fingerprint) -> Result<Option<Cell>> {
        self.look_up(fingerprint, |shard| shard.staged(fingerprint))
    }

    /// Returns the committed cell of a fingerprint.
    pub fn committed(&self, fingerprint: &Fingerprint) -> Result<Option<Cell>> {
        self.look_up(fingerprint, |_| None)
    }

    fn look_up(&self, fingerprint: &Fingerprint, staged: impl Fn(&Shard) -> Option<Location>) -> Result<Option<Cell>> {
        if fingerprint.is_zero() {
            return Ok(None);
        }
        self.consistently(|set| {
            let (held, staged) = {
                let shard = self.open.read(shard_of(fingerprint));
                (shard.held(fingerprint), staged(&shard))
            };
            let committed = match held {
                Held::Cell(cell) => Some(cell),
                Held::Removed => None,
                Held::Unknown => match set.find(&self.cache, fingerprint)? {
                    Some((found, tanker)) => {
                        let references = tanker.references(&self.cache, &found)?;
                        Some(Cell { location: found.location, references })
                    }
                    None => None,
                },
            };
            Ok(Cell::with_staged(committed, staged))
        })
    }

    /// Looks up the committed cells of fingerprints, with their counts. `hint` is the container that may have one, or `NONE`. `each` is called
    /// with the number of the fingerprint, the cell and its place in a tanker, or `None` if memory holds the cell.
    pub(crate) fn find_cells<'f>(
        &self,
        set: &SealedSet,
        grouped: &Grouped,
        fingerprint: impl Fn(u32) -> &'f Fingerprint,
        hint: impl Fn(u32) -> ContainerId,
        mut each: impl FnMut(u32, Cell, Option<&Found>),
    ) -> Result<()> {
        let mut unknown = Vec::new();
        for (shard, items) in grouped.iter() {
            let shard = self.open.read(shard);
            for &item in items {
                match shard.held(fingerprint(item)) {
                    Held::Cell(cell) => each(item, cell, None),
                    Held::Unknown if !fingerprint(item).is_zero() => unknown.push(item),
                    Held::Removed | Held::Unknown => {}
                }
            }
        }
        let asked = Question { fingerprint, hint, means: Means::ALL };
        set.find_many(&self.cache, &mut unknown, &asked, |item, found, tanker| {
            let references = tanker.references(&self.cache, &found)?;
            each(item, Cell { location: found.location, references }, Some(&found));
            Ok(())
        })
    }

    /// Finds the locations of fingerprints, staged ones included: `found` becomes as long as `fingerprints`. Reads no
    /// counts.
    ///
    /// Cost: one lock per shard and batch. Absent fingerprints need no I/O, except for false positives of the filters.
    /// Each fingerprint in a sealed tanker costs a bucket (some 45 KiB), unless bucket or container are cached.
    pub fn locate_batch(&self, fingerprints: &[Fingerprint], found: &mut Vec<Option<Location>>) -> Result<()> {
        self.locate_batch_with(fingerprints, found, Means::ALL)
    }

    /// As [`locate_batch`](Self::locate_batch), with these means only.
    pub(crate) fn locate_batch_with(
        &self,
        fingerprints: &[Fingerprint],
        found: &mut Vec<Option<Location>>,
        means: Means,
    ) -> Result<()> {
        let grouped = Grouped::new(fingerprints.len(), |item| shard_of(&fingerprints[item]));
        let mut unknown = Vec::new();
        self.consistently(|set| {
            self.locate_in_memory_grouped(fingerprints, &grouped, found, &mut unknown);
            if set.tankers().is_empty() || unknown.is_empty() {
                return Ok(());
            }
            let in_stream_order = means.locality && self.tables.get().is_some() && self.locality.is_enabled();
            if in_stream_order {
                unknown.sort_unstable();
                self.locate_in_stream_order(set, fingerprints, &unknown, found, means)
            } else {
                let asked = Question::unhinted(|item: u32| &fingerprints[item as usize], means);
                set.find_many(&self.cache, &mut unknown, &asked, |item, hit, _| {
                    found[item as usize] = Some(hit.location);
                    Ok(())
                })
            }
        })
    }

    fn locate_in_stream_order(
        &self,
        set: &SealedSet,
        fingerprints: &[Fingerprint],
        unknown: &[u32],
        found: &mut [Option<Location>],
        means: Means,
    ) -> Result<()> {
        let candidates = set.candidates_with(means, unknown.iter().map(|&item| &fingerprints[item as usize]));
        let mut named: Vec<u32> = candidates.iter().map(|&(query, _)| query).collect();
        named.dedup();
        // Turns numbers of queries into numbers of fingerprints.
        named.iter_mut().for_each(|query| *query = unknown[*query as usize]);
        self.ask_locality(fingerprints, &named, found);
        for &(query, position) in &candidates {
            let item = unknown[query as usize] as usize;
            if found[item].is_some() {
                continue;
            }
            if let Some((hit, _)) = set.find_at(&self.cache, position, &fingerprints[item])? {
                found[item] = Some(hit.location);
                if self.fill_locality(set, hit.location.container()) {
                    let later = named.partition_point(|named| *named as usize <= item);
                    self.ask_locality(fingerprints, &named[later..], found);
                }
            }
        }
        Ok(())
    }

    /// Asks the locality cache about the `items` without an answer.
    fn ask_locality(&self, fingerprints: &[Fingerprint], items: &[u32], found: &mut [Option<Location>]) {
        let open: Vec<u32> = items.iter().copied().filter(|&item| found[item as usize].is_none()).collect();
        let wanted = open.iter().map(|&item| (item, &fingerprints[item as usize]));
        self.locality.find_many(wanted, |item, location| found[item as usize] = Some(location));
    }

    /// After a hit in a sealed tanker: takes its container into the locality cache if that will pay. Returns whether
    /// any came in.
    fn fill_locality(&self, set: &SealedSet, container: ContainerId) -> bool {
        let Some(tables) = self.tables.get() else { return false };
        // A lost fingerprint is in no container.
        if container == ContainerId::NONE {
            return false;
        }
        let mut any = false;
        for container in self.locality.note_hit(container).into_iter().flatten() {
            any |= self.fill_one(set, &**tables, container);
        }
        any
    }

    fn fill_one(&self, set: &SealedSet, tables: &dyn ContainerTables, container: ContainerId) -> bool {
        let (mut indexed, mut tankers) = (Share::default(), Vec::new());
        for (_, tanker, share) in set.tankers_with(container) {
            indexed.join(share);
            tankers.push(tanker.id);
        }
        if tankers.is_empty() {
            return false;
        }
        let mut prints = Vec::with_capacity(indexed.cells as usize);
        let outcome = tables.read_table(container, &mut |fingerprint, len_bytes| prints.push((fingerprint, len_bytes)));
        self.locality.count_table();
        prints.sort_unstable();
        prints.dedup();
        let mut listed = Share::default();
        prints.iter().for_each(|(fingerprint, _)| listed.add(fingerprint));
        // Also unequal if a fingerprint occurs with two lengths.
        let sound = match outcome {
            Ok(known) => known && listed == indexed,
            Err(error) => {
                tracing::debug!(%container, %error, "no table for the locality cache");
                false
            }
        };
        if !sound {
            prints.clear();
        }
        self.locality.insert(set.epoch(), container, prints, tankers);
        sound
    }

    /// Tells which of the fingerprints are certainly not stored: `absent` becomes as long as `fingerprints`. It needs
    /// no I/O. A fingerprint that is not ruled out may still be absent.
    pub(crate) fn rule_out(&self, fingerprints: &[Fingerprint], absent: &mut Vec<bool>) -> Result<()> {
        let grouped = Grouped::new(fingerprints.len(), |item| shard_of(&fingerprints[item]));
        let (mut found, mut unknown) = (Vec::new(), Vec::new());
        self.consistently(|set| {
            self.locate_in_memory_grouped(fingerprints, &grouped, &mut found, &mut unknown);
            absent.clear();
            absent.extend(found.iter().map(Option::is_none));
            let candidates = set.candidates_with(Means::ALL, unknown.iter().map(|&item| &fingerprints[item as usize]));
            for (query, _) in candidates {
                absent[unknown[query as usize] as usize] = false;
            }
            Ok(())
        })
    }

    /// As [`locate_batch`](Self::locate_batch), but only from memory and the locality cache, without any I/O: absent
    /// means "not known here".
    pub(crate) fn locate_cached(&self, fingerprints: &[Fingerprint], found: &mut Vec<Option<Location>>) -> Result<()> {
        let grouped = Grouped::new(fingerprints.len(), |item| shard_of(&fingerprints[item]));
        let mut unknown = Vec::new();
        self.consistently(|_| {
            self.locate_in_memory_grouped(fingerprints, &grouped, found, &mut unknown);
            self.ask_locality(fingerprints, &unknown, found);
            Ok(())
        })
    }

    /// Number of the set of sealed tankers. While it stays the same, no cell has left memory for a tanker.
    pub fn sealed_epoch(&self) -> u64 {
        self.sealed.read().epoch()
    }

    /// As [`locate_batch`](Self::locate_batch), but only from memory, without any I/O: absent means "not known here".
    pub fn locate_in_memory(&self, fingerprints: &[Fingerprint], found: &mut Vec<Option<Location>>) {
        let grouped = Grouped::new(fingerprints.len(), |item| shard_of(&fingerprints[item]));
        self.locate_in_memory_grouped(fingerprints, &grouped, found, &mut Vec::new());
    }

    fn locate_in_memory_grouped(
        &self,
        fingerprints: &[Fingerprint],
        grouped: &Grouped,
        found: &mut Vec<Option<Location>>,
        unknown: &mut Vec<u32>,
    ) {
        found.clear();
        found.resize(fingerprints.len(), None);
        unknown.clear();
        for (shard, items) in grouped.iter() {
            let shard = self.open.read(shard);
            for &item in items {
                let fingerprint = &fingerprints[item as usize];
                if fingerprint.is_zero() {
                    continue;
                }
                if let Some(location) = shard.staged(fingerprint) {
                    found[item as usize] = Some(location);
                    continue;
                }
                match shard.held(fingerprint) {
                    Held::Cell(cell) => found[item as usize] = Some(cell.location),
                    Held::Removed => {}
                    Held::Unknown => unknown.push(item),
                }
            }
        }
    }
}
