//! Finding places for chunks: the filter chain says which are stored, and the others are appended (steps 2 and 3 of
//! storing a segment).
//!
//! [`Finds`](super::finds::Finds) confirms the finds of step 3.

use std::collections::HashMap;
use std::sync::atomic::Ordering;

use dedupfs_base::Result;
use dedupfs_index::Location;
use dedupfs_index::filter::{Filter, Verdict};
use dedupfs_store::recipe::Child;
use dedupfs_store::{ContainerId, Fingerprint, waiting};
use dedupfs_sync::canary::{Canary, is_planted};
use dedupfs_sync::step::Step;
use dedupfs_sync::thread;

use super::{BlockIndex, Deduplicator, Neighbour, SegmentEntry};
use crate::containers::StreamId;

/// A chunk with its bytes, and its position in the segment.
type Chunk<'a> = (usize, &'a SegmentEntry<'a>);

/// The chunks of a segment that have bytes, and the chain's answers about them.
pub(super) struct LookedUp<'a> {
    pub(super) chunks: Vec<Chunk<'a>>,
    pub(super) verdicts: Vec<Verdict>,
    /// Whether damaged chunks were found.
    pub(super) damage_seen: bool,
    /// The index's epoch before the chain was asked.
    epoch: u64,
}

impl Deduplicator {
    /// Runs the chain for all entries with data, then stores the new chunks. Fills the hints of `children`. `own` are
    /// the chunks that the file held before, and the scope.
    pub(super) fn place_chunks(
        &self,
        stream: StreamId,
        entries: &[SegmentEntry<'_>],
        children: &mut [Child],
        own: (Option<&BlockIndex>, Option<&Neighbour>),
    ) -> Result<()> {
        let looked_up = self.look_up(entries, own)?;
        thread::linger(Step::Lookup);
        self.place(stream, &looked_up, children)
    }

    /// Runs the chain for all entries with data.
    pub(super) fn look_up<'a>(
        &self,
        entries: &'a [SegmentEntry<'a>],
        (known, scope): (Option<&BlockIndex>, Option<&Neighbour>),
    ) -> Result<LookedUp<'a>> {
        let chunks: Vec<Chunk<'_>> = entries.iter().enumerate().filter(|(_, entry)| entry.data.is_some()).collect();
        let fingerprints: Vec<Fingerprint> = chunks.iter().map(|(_, entry)| entry.child.fingerprint).collect();
        let data: Vec<&[u8]> = chunks.iter().map(|(_, entry)| entry.data.unwrap_or_default()).collect();
        let lengths: Vec<u32> = data.iter().map(|data| data.len() as u32).collect();
        let epoch = self.indexes.chunks.sealed_epoch();
        let mut query = self.chain.query(&fingerprints, &lengths, &data);
        let known = known.filter(|known| !known.is_empty()).map(|known| known as &dyn Filter);
        let own: Vec<&dyn Filter> = known.into_iter().chain(scope.map(|scope| scope as &dyn Filter)).collect();
        self.chain.run(&mut query, &own)?;
        let damage_seen = query.damage_seen();
        let verdicts = query.verdicts;
        Ok(LookedUp { chunks, verdicts, damage_seen, epoch })
    }

    /// Uses the found chunks and stores the others. Fills the hints of `children`.
    pub(super) fn place(&self, stream: StreamId, looked_up: &LookedUp<'_>, children: &mut [Child]) -> Result<()> {
        let mut missing = Vec::new();
        for (&(at, entry), verdict) in looked_up.chunks.iter().zip(&looked_up.verdicts) {
            match verdict {
                Verdict::Existing(location) if self.usable(location.container()) => {
                    set_hint(children, at, location.container())
                }
                // Zeros lie in no container.
                Verdict::BuiltIn => set_hint(children, at, ContainerId::NONE),
                _ => missing.push((at, entry)),
            }
        }
        if !missing.is_empty() {
            self.store_missing(stream, &missing, children, looked_up.epoch)?;
        }
        Ok(())
    }

    /// Under the store lock, uses chunks that another writer has stored since the lookup; appends and stages the rest.
    fn store_missing(&self, stream: StreamId, missing: &[Chunk<'_>], children: &mut [Child], epoch: u64) -> Result<()> {
        let _exclusive = (!is_planted(Canary::ChunksUnlocked)).then(|| waiting::lock(&self.store_lock));
        let prints: Vec<Fingerprint> = missing.iter().map(|(_, entry)| entry.child.fingerprint).collect();
        let mut found = Vec::new();
        self.indexes.chunks.locate_in_memory(&prints, &mut found);
        // Chunks stored by other writers since the lookup are in memory, unless a checkpoint has sealed them.
        if self.indexes.chunks.sealed_epoch() != epoch {
            self.indexes.chunks.locate_batch(&prints, &mut found)?;
        }
        let mut fresh: Vec<(Fingerprint, &[u8])> = Vec::with_capacity(missing.len());
        let mut places: Vec<(usize, usize)> = Vec::with_capacity(missing.len());
        let mut seen = HashMap::with_capacity(missing.len());
        for ((at, entry), location) in missing.iter().zip(&found) {
            let (print, data) = (entry.child.fingerprint, entry.data.unwrap_or_default());
            if let Some(location) = location
                && let Some(container) = self.finds.chunk(&print, data, *location)?
                && self.usable(container)
            {
                set_hint(children, *at, container);
                continue;
            }
            let position = *seen.entry(print).or_insert(fresh.len());
            match fresh.get(position) {
                Some((_, first)) => self.finds.repeated(&print, first, data)?,
                None => fresh.push((print, data)),
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

fn set_hint(children: &mut [Child], at: usize, container: ContainerId) {
    if let Some(child) = children.get_mut(at) {
        child.hint = container;
    }
}
