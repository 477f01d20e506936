//! The byte compare filter (dedupv1 tech report section 3.2): what is found is read and compared.
//!
//! For each entry that another filter found:
//! 1. the stored chunk is read; equal bytes: `Existing`;
//! 2. bytes that are not what their fingerprint says, or cannot be read because of damage, are no chunk: the next place is
//!    what the index says now (a chunk may have been moved meanwhile). With no place left the verdict is `NonExisting`: the
//!    chunk is stored again, and its new place takes the old one's place in the index;
//! 3. other bytes that *are* what the fingerprint says are a collision of the hash: an error, because neither can be shared
//!    and one fingerprint cannot name both.
//!
//! An error of the disk that is not damage ends the run: nothing can be said then.
//!
//! Cost: each duplicate chunk is read from its container. Chunks that follow each other lie in the same region, which the
//! store keeps, so a backup in the order of the one before reads the pool once, at the speed of its disk.

use std::sync::Arc;

use dedupfs_store::{ContainerId, Fingerprint, Result, StoreError};

use super::{Filter, Query, Reads, Verdict};
use crate::cell::Location;
use crate::index::Index;
use crate::sealed::reads_of_this_thread;

/// Places of one chunk that are tried: it moves at most once while it is looked up, but for a reclaim that starts over.
const PLACES_MAX: usize = 4;

/// Where stored chunks are read.
pub trait StoredChunks: Send + Sync {
    /// Shows the bytes of a chunk to `look`; false if the container is not known (any more) or does not hold it.
    ///
    /// # Errors
    /// `Corrupt` or `NotFound` if they are damaged, for good; all else may be otherwise next time.
    fn read(&self, container: ContainerId, fingerprint: &Fingerprint, look: &mut dyn FnMut(&[u8])) -> Result<bool>;
    /// The fingerprint of these bytes.
    fn fingerprint_of(&self, bytes: &[u8]) -> Fingerprint;
    /// What this thread has read so far, beside the index.
    fn reads_of_this_thread(&self) -> Reads;
}

/// What was found at one place.
enum Seen {
    Equal,
    NotThere,
    Damaged,
    Collision,
}

/// Whether a chunk is stored, by its bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Compared {
    /// A place that holds exactly these bytes.
    pub place: Option<Location>,
    /// Whether another place held something else, or nothing that can be read.
    pub damage_seen: bool,
}

/// Decides what the filters before it found, by reading it.
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
    /// Reads what `index` names from `chunks`.
    #[must_use]
    pub fn new(index: Arc<Index>, chunks: Arc<dyn StoredChunks>) -> Self {
        Self { index, chunks }
    }

    /// Whether `data` is stored, at `place` or where the index says.
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
                    let place = Some(Location { container: place, len_bytes: data.len() as u32 });
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
            place = self.index.get(fingerprint)?.map_or(ContainerId::NONE, |cell| cell.location.container);
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
                    tracing::error!(chunk = %fingerprint, container = %place, "a stored chunk is not what its name says");
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

    fn check(&self, query: &mut Query<'_>) -> Result<()> {
        let Some(data) = query.data else {
            return Err(StoreError::Usage("a query without data cannot be compared".to_owned()));
        };
        for position in query.open_entries().collect::<Vec<_>>() {
            let Verdict::StrongMaybe(location) = query.verdicts[position] else { continue };
            let compared = self.compare(&query.fingerprints[position], data[position], location.container)?;
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
