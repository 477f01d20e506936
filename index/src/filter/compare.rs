//! The byte compare filter (dedupv1 tech report section 3.2): reads the stored chunk for every find and compares.
//!
//! For each entry that another filter found:
//! 1. Read the stored chunk. Equal bytes: `Existing`.
//! 2. If the bytes do not match their fingerprint, or are unreadable because of damage, try the index's current
//!    location (the chunk may have moved meanwhile). With no place left the verdict is `NonExisting`: the chunk is
//!    stored again, and its new place replaces the old one in the index.
//! 3. Different bytes that *do* match the fingerprint are a collision of the hash. This is an error, because neither
//!    can be shared and one fingerprint cannot name both.
//!
//! An error of the disk that is not damage ends the run without a verdict.
//!
//! Cost: each duplicate chunk is read from its container. Neighbouring chunks lie in the same region, which the store
//! keeps. So a backup in the order of the previous one reads the pool once, at the speed of its disk.

use std::sync::Arc;

use dedupfs_store::profile::Component;
use dedupfs_store::{ContainerId, Fingerprint, Result, StoreError};

use super::{Filter, Query, Reads, Verdict};
use crate::cell::Location;
use crate::index::Index;
use crate::sealed::reads_of_this_thread;

/// Most places tried for one chunk. During a lookup it moves at most once, except for a reclaim that starts over.
const PLACES_MAX: usize = 4;

/// The source of stored chunks.
pub trait StoredChunks: Send + Sync {
    /// Passes the bytes of a chunk to `look`. `false` if the container is unknown (by now) or lacks the chunk.
    ///
    /// # Errors
    /// `Corrupt` or `NotFound` for permanent damage; any other error may go away.
    fn read(&self, container: ContainerId, fingerprint: &Fingerprint, look: &mut dyn FnMut(&[u8])) -> Result<bool>;
    /// Computes the fingerprint of these bytes.
    fn fingerprint_of(&self, bytes: &[u8]) -> Fingerprint;
    /// The reads of this thread so far, without the index's.
    fn reads_of_this_thread(&self) -> Reads;
}

enum Seen {
    Equal,
    NotThere,
    Damaged,
    Collision,
}

/// The result of a comparison of a chunk with its stored copies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Compared {
    /// A place that holds exactly these bytes.
    pub place: Option<Location>,
    /// Whether another place held other bytes, or unreadable ones.
    pub damage_seen: bool,
}

/// Decides the finds of the earlier filters by reading the stored chunks.
#[derive(Clone)]
pub struct CompareFilter {
    index: Arc<Index>,
    chunks: Arc<dyn StoredChunks>,
}

impl std::fmt::Debug for CompareFilter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CompareFilter").finish_non_exhaustive()
    }
}

impl CompareFilter {
    /// Makes a filter that reads the finds of `index` from `chunks`.
    pub(super) fn new(index: Arc<Index>, chunks: Arc<dyn StoredChunks>) -> Self {
        Self { index, chunks }
    }

    /// Whether `data` is stored, at `place` or at the index's location.
    ///
    /// # Errors
    /// [`StoreError::Collision`]; I/O errors that are not damage.
    pub fn compare(&self, fingerprint: &Fingerprint, data: &[u8], place: ContainerId) -> Result<Compared> {
        let mut tried = Vec::new();
        let mut damage_seen = false;
        let mut place = place;
        while place != ContainerId::NONE && !tried.contains(&place) && tried.len() < PLACES_MAX {
            match self.look(fingerprint, data, place)? {
                Seen::Equal => {
                    // Lengths of chunks have 32 bits.
                    let place = Some(Location::new(place, data.len() as u32));
                    return Ok(Compared { place, damage_seen });
                }
                Seen::Collision => {
                    let (fingerprint, place) = (fingerprint.to_string(), format!("container {place}"));
                    return Err(StoreError::Collision { fingerprint, place });
                }
                Seen::NotThere => {}
                Seen::Damaged => damage_seen = true,
            }
            tried.push(place);
            place = self.index.get(fingerprint)?.map_or(ContainerId::NONE, |cell| cell.location.container());
        }
        // A cell that names a container without the chunk is damage, too.
        Ok(Compared { place: None, damage_seen: true })
    }

    fn look(&self, fingerprint: &Fingerprint, data: &[u8], place: ContainerId) -> Result<Seen> {
        let mut seen = Seen::NotThere;
        let outcome = self.chunks.read(place, fingerprint, &mut |stored| {
            seen = if stored == data {
                Seen::Equal
            } else if self.chunks.fingerprint_of(stored) == *fingerprint {
                Seen::Collision
            } else {
                Seen::Damaged
            };
        });
        match outcome {
            Ok(_) => {
                if matches!(seen, Seen::Damaged) {
                    tracing::error!(chunk = %fingerprint, container = %place, "a stored chunk does not match its fingerprint");
                }
                Ok(seen)
            }
            Err(error @ (StoreError::Corrupt { .. } | StoreError::NotFound { .. })) => {
                tracing::error!(chunk = %fingerprint, container = %place, %error, "a stored chunk cannot be read");
                Ok(Seen::Damaged)
            }
            Err(error) => Err(error),
        }
    }
}

impl Filter for CompareFilter {
    fn name(&self) -> &'static str {
        "compare"
    }

    fn component(&self) -> Component {
        Component::CompareFilter
    }

    fn check(&self, query: &mut Query<'_>) -> Result<()> {
        let Some(data) = query.data else {
            return Err(StoreError::Usage("a query without data cannot be compared".to_owned()));
        };
        for position in query.open_entries().collect::<Vec<_>>() {
            let Verdict::StrongMaybe(location) = query.verdicts[position] else { continue };
            let compared = self.compare(&query.fingerprints[position], data[position], location.container())?;
            query.damage_seen |= compared.damage_seen;
            query.verdicts[position] = compared.place.map_or(Verdict::NonExisting, Verdict::Existing);
        }
        Ok(())
    }

    fn reads_of_this_thread(&self) -> Reads {
        let (index, chunks) = (reads_of_this_thread(), self.chunks.reads_of_this_thread());
        Reads { reads: index.reads + chunks.reads, bytes: index.bytes + chunks.bytes }
    }
}
