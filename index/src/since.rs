//! Answers that are kept: fingerprints are looked up in the order of the files, and much later, when the chunks come in the order of their
//! stream, only changes since then are looked at.
//!
//! An answer of the sealed tankers holds as long as none of them goes or gets other cells: by then memory, and the tankers sealed since,
//! know everything that has changed. An answer of memory holds no longer than its cell is there: no trace stays of one that is removed.

use dedupfs_store::{Fingerprint, Result};

use crate::cell::Location;
use crate::index::Index;
use crate::lookup::Means;
use crate::open::{Grouped, Held, shard_of};
use crate::sealed::{Question, SealedSet};

/// An answer, and whether it can be kept: all can but locations that memory gave.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Kept {
    /// The location; `None` if the index does not have the fingerprint.
    pub location: Option<Location>,
    /// Whether the answer can be kept.
    pub is_lasting: bool,
}

/// The knowledge about a fingerprint since an earlier lookup.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Since {
    /// It is here now.
    Now(Option<Location>),
    /// Nothing has happened to it. That says nothing about an answer that was not lasting.
    AsBefore,
}

impl Index {
    /// Finds the locations of fingerprints, staged ones included, for [`located_since`](Self::located_since). Also returns the number of
    /// the set of tankers that was asked.
    ///
    /// Cost: reads each bucket of a candidate tanker once, tanker by tanker in the order of the files. No counts are read.
    ///
    /// # Errors
    /// A file of the index cannot be read.
    pub fn locate_to_keep(&self, fingerprints: &[Fingerprint]) -> Result<(Vec<Kept>, u64)> {
        let grouped = Grouped::new(fingerprints.len(), |item| shard_of(&fingerprints[item]));
        self.consistently(|set| {
            let mut kept = vec![Kept { location: None, is_lasting: true }; fingerprints.len()];
            let mut unknown = Vec::new();
            self.changes_in_memory(fingerprints, &grouped, |item, since| match since {
                Since::Now(location) => kept[item as usize] = Kept { location, is_lasting: location.is_none() },
                Since::AsBefore => unknown.push(item),
            });
            let asked = Question::unhinted(|item: u32| &fingerprints[item as usize], Means::ALL);
            set.find_many(&self.cache, &mut unknown, &asked, |item, found, _| {
                kept[item as usize].location = Some(found.location);
                Ok(())
            })?;
            Ok((kept, set.epoch()))
        })
    }

    /// Tells for each fingerprint the change since the set of tankers number `epoch` was asked. `None` if that cannot be told any more.
    ///
    /// Cost: one lock per shard. Reads a bucket only where the filter of a tanker that was sealed since says "perhaps".
    ///
    /// # Errors
    /// A file of the index cannot be read.
    pub fn located_since(&self, fingerprints: &[Fingerprint], epoch: u64) -> Result<Option<Vec<Since>>> {
        let grouped = Grouped::new(fingerprints.len(), |item| shard_of(&fingerprints[item]));
        self.consistently(|set| {
            if !set.has_only_grown_since(epoch) {
                return Ok(None);
            }
            let mut changes = vec![Since::AsBefore; fingerprints.len()];
            self.changes_in_memory(fingerprints, &grouped, |item, since| changes[item as usize] = since);
            if set.epoch() != epoch {
                self.look_in_newer_tankers(set, fingerprints, epoch, &mut changes)?;
            }
            Ok(Some(changes))
        })
    }

    fn changes_in_memory(&self, fingerprints: &[Fingerprint], grouped: &Grouped, mut each: impl FnMut(u32, Since)) {
        for (shard, items) in grouped.iter() {
            let shard = self.open.read(shard);
            for &item in items {
                let fingerprint = &fingerprints[item as usize];
                let since = match (shard.staged(fingerprint), shard.held(fingerprint)) {
                    _ if fingerprint.is_zero() => Since::Now(None),
                    (Some(location), _) => Since::Now(Some(location)),
                    (None, Held::Cell(cell)) => Since::Now(Some(cell.location)),
                    (None, Held::Removed) => Since::Now(None),
                    (None, Held::Unknown) => Since::AsBefore,
                };
                each(item, since);
            }
        }
    }

    fn look_in_newer_tankers(
        &self,
        set: &SealedSet,
        fingerprints: &[Fingerprint],
        epoch: u64,
        changes: &mut [Since],
    ) -> Result<()> {
        let open: Vec<usize> = (0..changes.len()).filter(|&item| changes[item] == Since::AsBefore).collect();
        let candidates = set.candidates_with(Means::ALL, open.iter().map(|&item| &fingerprints[item]));
        for (query, position) in candidates.into_iter().filter(|(_, position)| set.is_newer(*position, epoch)) {
            let item = open[query as usize];
            if changes[item] == Since::AsBefore
                && let Some((found, _)) = set.find_at(&self.cache, position, &fingerprints[item])?
            {
                changes[item] = Since::Now(Some(found.location));
            }
        }
        Ok(())
    }
}
