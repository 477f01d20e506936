//! Finding places for chunks: the filter chain says which are stored, and the others are appended (steps 2 and 3 of
//! storing a segment).
//!
//! If the chain compares, no place is used before it was read and found equal, even if another writer has just made it.
//! Damaged chunks are stored again, and the index follows when the new place is committed.

use std::collections::HashMap;
use std::sync::atomic::Ordering;

use dedupfs_base::Result;
use dedupfs_index::Location;
use dedupfs_index::filter::{CompareFilter, Query, Verdict};
use dedupfs_store::recipe::Child;
use dedupfs_store::{ContainerId, Fingerprint, StoreError, waiting};

use super::{BlockIndex, Deduplicator, SegmentEntry};
use crate::containers::StreamId;

/// The knowledge about a segment's chunks before the index is asked.
pub(super) enum Foreknown<'a> {
    Nothing,
    /// The chunks that the file held before.
    Block(&'a BlockIndex),
    /// The children of the stored segment, for a chain that compares. Readers of that segment follow its hints first,
    /// so these copies are compared too. Reclaiming keeps only the copy that the index names.
    Segment(&'a [Child]),
}

/// A chunk to be stored, and its position in the segment.
type Missing<'a> = (usize, &'a SegmentEntry<'a>);

impl Deduplicator {
    /// Runs the chain for all entries with data, then stores the new chunks. Fills the hints of `children`. Returns
    /// whether damaged chunks were found.
    pub(super) fn place_chunks(
        &self,
        stream: StreamId,
        entries: &[SegmentEntry<'_>],
        children: &mut [Child],
        known: Foreknown<'_>,
    ) -> Result<bool> {
        let picked: Vec<Missing<'_>> = entries.iter().enumerate().filter(|(_, entry)| entry.data.is_some()).collect();
        if picked.is_empty() {
            return Ok(false);
        }
        let fingerprints: Vec<Fingerprint> = picked.iter().map(|(_, entry)| entry.child.fingerprint).collect();
        let data: Vec<&[u8]> = picked.iter().map(|(_, entry)| entry.data.unwrap_or_default()).collect();
        let lengths: Vec<u32> = data.iter().map(|data| data.len() as u32).collect();
        let epoch = self.indexes.chunks.sealed_epoch();
        let mut query = match self.chain.compare() {
            Some(_) => Query::with_data(&fingerprints, &lengths, &data),
            None => Query::new(&fingerprints, &lengths),
        };
        match &known {
            // A chain that compares must compare the copy that the index names: reclaiming keeps only that one. The
            // file's old chunks may lie elsewhere.
            Foreknown::Block(known) if self.chain.compare().is_none() && !known.is_empty() => {
                self.chain.run(&mut query, &[*known])?
            }
            _ => self.chain.run(&mut query, &[])?,
        }
        let mut damage_seen = query.damage_seen();
        let mut missing = Vec::new();
        for (&(at, entry), verdict) in picked.iter().zip(&query.verdicts) {
            if let (Foreknown::Segment(stored), Some(compare)) = (&known, self.chain.compare()) {
                let hint = stored.get(at).map_or(ContainerId::NONE, |child| child.hint);
                damage_seen |= match verdict {
                    Verdict::Existing(location) if hint == ContainerId::NONE || hint == location.container() => false,
                    Verdict::Existing(_) => {
                        let data = entry.data.unwrap_or_default();
                        compare.compare(&entry.child.fingerprint, data, hint)?.damage_seen
                    }
                    _ => true,
                };
            }
            match verdict {
                Verdict::Existing(location) if self.usable(location.container()) => {
                    set_hint(children, at, location.container())
                }
                _ => missing.push((at, entry)),
            }
        }
        if !missing.is_empty() {
            self.store_missing(stream, &missing, children, epoch)?;
        }
        Ok(damage_seen)
    }

    /// Under the store lock, uses chunks that another writer has stored since the lookup; appends and stages the rest.
    fn store_missing(
        &self,
        stream: StreamId,
        missing: &[Missing<'_>],
        children: &mut [Child],
        epoch: u64,
    ) -> Result<()> {
        let _exclusive = waiting::lock(&self.store_lock);
        let prints: Vec<Fingerprint> = missing.iter().map(|(_, entry)| entry.child.fingerprint).collect();
        let mut found = Vec::new();
        self.indexes.chunks.locate_in_memory(&prints, &mut found);
        // Chunks stored by other writers since the lookup are in memory, unless a checkpoint has sealed them.
        if self.indexes.chunks.sealed_epoch() != epoch {
            self.indexes.chunks.locate_batch(&prints, &mut found)?;
        }
        let compare = self.chain.compare();
        let mut fresh: Vec<(Fingerprint, &[u8])> = Vec::with_capacity(missing.len());
        let mut places: Vec<(usize, usize)> = Vec::with_capacity(missing.len());
        let mut seen = HashMap::with_capacity(missing.len());
        for ((at, entry), location) in missing.iter().zip(&found) {
            let (print, data) = (entry.child.fingerprint, entry.data.unwrap_or_default());
            if let Some(location) = location
                && let Some(container) = taken(compare, &print, data, *location)?
                && self.usable(container)
            {
                set_hint(children, *at, container);
                continue;
            }
            let position = *seen.entry(print).or_insert_with(|| {
                fresh.push((print, data));
                fresh.len() - 1
            });
            if compare.is_some() && fresh.get(position).is_some_and(|(_, first)| *first != data) {
                let place = "the same write".to_owned();
                return Err(StoreError::Collision { fingerprint: print.to_string(), place }.into());
            }
            places.push((*at, position));
        }
        let containers = self.stores.data.append(stream, &fresh)?;
        let mut stored_bytes = 0;
        for ((print, data), container) in fresh.iter().zip(&containers) {
            self.indexes.chunks.stage(print, Location::new(*container, data.len() as u32));
            stored_bytes += data.len() as u64;
        }
        for (at, position) in places {
            if let Some(container) = containers.get(position) {
                set_hint(children, at, *container);
            }
        }
        self.counters.chunks_stored.fetch_add(fresh.len() as u64, Ordering::Relaxed);
        self.counters.bytes_stored.fetch_add(stored_bytes, Ordering::Relaxed);
        Ok(())
    }
}

/// Returns the container that really has the chunk found at `location`. A different length means a different chunk.
///
/// Comparing seldom reads from disk: only for a chunk stored a while ago, which was compared before and is damaged or
/// claimed.
fn taken(
    compare: Option<&CompareFilter>,
    print: &Fingerprint,
    data: &[u8],
    location: Location,
) -> Result<Option<ContainerId>> {
    match compare {
        Some(compare) => Ok(compare.compare(print, data, location.container())?.place.map(|place| place.container())),
        None => Ok((location.len_bytes() as usize == data.len()).then_some(location.container())),
    }
}

fn set_hint(children: &mut [Child], at: usize, container: ContainerId) {
    if let Some(child) = children.get_mut(at) {
        child.hint = container;
    }
}
