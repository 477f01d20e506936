//! Finding places for chunks: the filter chain says which are stored, and the others are appended (steps 2 and 3 of
//! storing a segment).
//!
//! [`Finds`](super::finds::Finds) confirms the finds of step 3.

use std::collections::HashMap;
use std::sync::atomic::Ordering;

use dedupfs_base::{EngineError, Result};
use dedupfs_index::Location;
use dedupfs_index::filter::{Filter, Verdict};
use dedupfs_store::recipe::Child;
use dedupfs_store::{ContainerId, Fingerprint};
use dedupfs_sync::canary::{Canary, is_planted};
use dedupfs_sync::step::Step;
use dedupfs_sync::thread;

use super::early::{Answers, Early};
use super::kept::COMPARES;
use super::{Deduplicator, Own, SegmentEntry};
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
    pub(super) epoch: u64,
}

impl Deduplicator {
    /// Runs the chain for all entries with data and for named ones, unless early answers hold, then stores the new chunks. Fills the hints of
    /// `children`.
    pub(super) fn place_chunks(
        &self,
        stream: StreamId,
        entries: &[SegmentEntry<'_>],
        children: &mut [Child],
        own: &Own,
        early: Option<Early>,
    ) -> Result<()> {
        let looked_up = match self.holding(early) {
            // Only comparing bytes shows damage.
            Some(Answers { verdicts, epoch }) => {
                LookedUp { chunks: asked_of(entries), verdicts, damage_seen: false, epoch }
            }
            None => self.look_up(entries, own)?,
        };
        thread::linger(Step::Lookup);
        self.place(stream, &looked_up, children)
    }

    /// Runs the chain for all entries with data, and for named ones.
    pub(super) fn look_up<'a>(&self, entries: &'a [SegmentEntry<'a>], own: &Own) -> Result<LookedUp<'a>> {
        let chunks = asked_of(entries);
        if self.chain.compare().is_some() && chunks.iter().any(|(_, entry)| entry.is_named) {
            return Err(COMPARES);
        }
        let fingerprints: Vec<Fingerprint> = chunks.iter().map(|(_, entry)| entry.child.fingerprint).collect();
        let data: Vec<&[u8]> = chunks.iter().map(|(_, entry)| entry.data.unwrap_or_default()).collect();
        let lengths: Vec<u32> = chunks.iter().map(|(_, entry)| len_of(entry)).collect();
        let epoch = self.indexes.chunks.sealed_epoch();
        let mut query = self.chain.query(&fingerprints, &lengths, &data);
        let known = own.known.as_deref().filter(|known| !known.is_empty());
        // A file's earlier recipe may name lost places.
        let known = known.filter(|_| !self.may_lack(&fingerprints)).map(|known| known as &dyn Filter);
        let kept = own.kept.as_deref().map(|kept| kept as &dyn Filter);
        let scope = own.scope.as_deref().map(|scope| scope as &dyn Filter);
        let own: Vec<&dyn Filter> = known.into_iter().chain(kept).chain(scope).collect();
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
        let index = &self.indexes.chunks;
        let prints: Vec<Fingerprint> = missing.iter().map(|(_, entry)| entry.child.fingerprint).collect();
        // Chunks stored by other writers since the lookup are in memory, unless a checkpoint has sealed them: then the index is asked again.
        let mut asked = (epoch, Vec::new());
        let is_current = |(epoch, _): &(u64, _)| index.sealed_epoch() == *epoch;
        let _exclusive = if is_planted(Canary::ChunksUnlocked) {
            None
        } else {
            Some(self.lock_store_with(&mut asked, is_current, |(epoch, sealed)| {
                *epoch = index.sealed_epoch();
                Ok(index.locate_batch(&prints, sealed)?)
            })?)
        };
        let mut found = Vec::new();
        index.locate_in_memory(&prints, &mut found);
        // Memory is read first: a checkpoint that has moved a cell out of it by then shows here.
        if is_current(&asked) {
            found.iter_mut().zip(asked.1).for_each(|(found, sealed)| *found = found.or(sealed));
        } else {
            index.locate_batch(&prints, &mut found)?;
        }
        let mut fresh: Vec<(Fingerprint, &[u8])> = Vec::with_capacity(missing.len());
        let mut places: Vec<(usize, usize)> = Vec::with_capacity(missing.len());
        let mut seen = HashMap::with_capacity(missing.len());
        for ((at, entry), location) in missing.iter().zip(&found) {
            let (print, data) = (entry.child.fingerprint, entry.data.unwrap_or_default());
            if entry.is_named {
                let is_usable = |location: &&Location| location.len_bytes() == len_of(entry);
                let container = location.as_ref().filter(is_usable).map(|location| location.container());
                let first = seen.get(&print).filter(|first| {
                    fresh.get(**first).is_some_and(|(_, data): &(_, &[u8])| data.len() as u64 == entry.child.len_bytes)
                });
                match (container.filter(|container| self.usable(*container)), first) {
                    (Some(container), _) => set_hint(children, *at, container),
                    (None, Some(position)) => places.push((*at, *position)),
                    (None, None) => return Err(EngineError::ChunkGone),
                }
                continue;
            }
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

fn asked_of<'a>(entries: &'a [SegmentEntry<'a>]) -> Vec<Chunk<'a>> {
    let is_asked = |(_, entry): &Chunk<'_>| entry.data.is_some() || entry.is_named;
    entries.iter().enumerate().filter(is_asked).collect()
}

fn len_of(entry: &SegmentEntry<'_>) -> u32 {
    let len_bytes = entry.data.map_or(entry.child.len_bytes, |data| data.len() as u64);
    u32::try_from(len_bytes).unwrap_or(u32::MAX)
}

fn set_hint(children: &mut [Child], at: usize, container: ContainerId) {
    if let Some(child) = children.get_mut(at) {
        child.hint = container;
    }
}
