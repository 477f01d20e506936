//! Answers that are given long before the chunks come: detection in stages asks for the chunks of a disk in the order of the index, and the
//! chunks come in the order of the disk ("Parallel batch deduplication for VM backup", section 3).
//!
//! An answer leaves the engine and comes back, so it bears a seal: one that is damaged, changed, or of another mount says nothing, and the
//! filters of the chain are asked as for any chunk. So do answers that no longer hold ([`Index::located_since`]).
//!
//! Memory: at most [`KEPT_ANSWERS_MAX`] answers, in two generations.

use std::collections::HashMap;
use std::sync::Arc;

use dedupfs_base::{EngineError, Result};
use dedupfs_index::filter::{Filter, Query, Verdict};
use dedupfs_index::{Index, Location, Since};
use dedupfs_store::profile::Component;
use dedupfs_store::{ContainerId, Fingerprint};
use dedupfs_sync::{RwLock, entropy};

use super::Deduplicator;
use crate::limits::KEPT_ANSWERS_MAX;

/// Bytes of a sealed answer.
pub const SEALED_BYTES: usize = 20;
/// Chunks that are asked for at once, at most.
pub const ASKED_AT_ONCE: usize = 65_536;

/// The reason why a pool that compares bytes takes no chunks by name.
pub(super) const COMPARES: EngineError = EngineError::Invalid(
    "this pool compares bytes, and trusts no fingerprint: duplicates cannot be detected in stages",
);

/// The index's answer about a chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Answer {
    /// Whether the pool has it now.
    pub is_known: bool,
    /// The answer, for [`KeptAnswers::add`].
    pub sealed: [u8; SEALED_BYTES],
}

/// The key of the seals of one mount.
#[derive(Clone)]
pub(super) struct Sealer([u8; 32]);

impl Sealer {
    /// Draws a key. Without random bytes no seal would be worth anything: then every answer is refused.
    pub(super) fn new() -> Option<Self> {
        let mut key = [0; 32];
        entropy::fill(&mut key).ok().map(|()| Self(key))
    }

    fn seal(&self, chunk: (Fingerprint, u32), epoch: u32, container: ContainerId) -> [u8; SEALED_BYTES] {
        let mut sealed = [0; SEALED_BYTES];
        let (text, seal) = sealed.split_at_mut(12);
        let (number, place) = text.split_at_mut(4);
        number.copy_from_slice(&epoch.to_le_bytes());
        place.copy_from_slice(&container.0.to_le_bytes());
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        hasher.update(&chunk.0.0).update(&chunk.1.to_le_bytes()).update(text);
        seal.copy_from_slice(hasher.finalize().as_bytes().get(..8).unwrap_or_default());
        sealed
    }
}

impl Deduplicator {
    /// Answers for at most [`ASKED_AT_ONCE`] chunks, given with their lengths, whether the pool has them. Ascending fingerprints are cheap:
    /// each bucket of the index is read once.
    ///
    /// # Errors
    /// `Invalid` if the pool compares bytes, and for too many; the index cannot be read.
    pub fn answer_ahead(&self, chunks: &[(Fingerprint, u32)]) -> Result<Vec<Answer>> {
        if self.chain.compare().is_some() {
            return Err(COMPARES);
        }
        if chunks.len() > ASKED_AT_ONCE {
            return Err(EngineError::Invalid("too many chunks are asked for at once"));
        }
        let fingerprints: Vec<Fingerprint> = chunks.iter().map(|(fingerprint, _)| *fingerprint).collect();
        let (found, epoch) = self.indexes.chunks.locate_to_keep(&fingerprints)?;
        let answers = chunks.iter().zip(found).map(|(&chunk, kept)| {
            let usable = kept.location.filter(|found| found.len_bytes() == chunk.1 && self.usable(found.container()));
            // Another copy, or a lost one: the chain decides.
            let is_plain = kept.location.is_none() || usable.is_some();
            let container = usable.map_or(ContainerId::NONE, |found| found.container());
            let sealed = match (self.sealer(), u32::try_from(epoch)) {
                (Some(sealer), Ok(epoch)) if kept.is_lasting && is_plain => sealer.seal(chunk, epoch, container),
                _ => [0; SEALED_BYTES],
            };
            Answer { is_known: usable.is_some(), sealed }
        });
        Ok(answers.collect())
    }

    fn sealer(&self) -> Option<&Sealer> {
        self.sealer.get_or_init(Sealer::new).as_ref()
    }

    /// Makes a filter of kept answers, for [`FileContext::with_kept`](crate::FileContext::with_kept).
    #[must_use]
    pub fn kept_answers(&self) -> Arc<KeptAnswers> {
        let (sealer, index) = (self.sealer().cloned(), self.indexes.chunks.clone());
        Arc::new(KeptAnswers { sealer, index, answers: RwLock::default() })
    }
}

/// The set that was asked, and the location that it gave.
type Told = (u32, Option<Location>);
type Generation = HashMap<Fingerprint, Told>;

/// A filter of the chain: answers of an earlier time.
pub struct KeptAnswers {
    sealer: Option<Sealer>,
    index: Arc<Index>,
    /// The newest generation, and the older one.
    answers: RwLock<(Generation, Generation)>,
}

impl KeptAnswers {
    /// Adds an answer. Returns whether its seal is one of this mount; others are left out.
    pub fn add(&self, chunk: (Fingerprint, u32), sealed: &[u8; SEALED_BYTES]) -> bool {
        let (epoch, container) = split(sealed);
        let is_ours = self.sealer.as_ref().is_some_and(|sealer| sealer.seal(chunk, epoch, container) == *sealed);
        if is_ours {
            let location = (container != ContainerId::NONE).then(|| Location::new(container, chunk.1));
            let mut answers = self.answers.write();
            let (newest, older) = &mut *answers;
            if newest.len() >= KEPT_ANSWERS_MAX / 2 {
                *older = std::mem::take(newest);
            }
            newest.insert(chunk.0, (epoch, location));
        }
        is_ours
    }
}

fn split(sealed: &[u8; SEALED_BYTES]) -> (u32, ContainerId) {
    let [a, b, c, d, e, f, g, h, i, j, k, l, ..] = *sealed;
    (u32::from_le_bytes([a, b, c, d]), ContainerId(u64::from_le_bytes([e, f, g, h, i, j, k, l])))
}

impl Filter for KeptAnswers {
    fn name(&self) -> &'static str {
        "ahead"
    }

    fn component(&self) -> Component {
        Component::AheadFilter
    }

    fn check(&self, query: &mut Query<'_>) -> dedupfs_store::Result<()> {
        let mut told: Vec<(usize, Fingerprint, Told)> = {
            let answers = self.answers.read();
            let told = query.open_entries().filter_map(|position| {
                let fingerprint = query.fingerprints.get(position)?;
                let told = answers.0.get(fingerprint).or_else(|| answers.1.get(fingerprint))?;
                Some((position, *fingerprint, *told))
            });
            told.collect()
        };
        told.sort_by_key(|(_, _, (epoch, _))| *epoch);
        for of_a_set in told.chunk_by(|one, other| one.2.0 == other.2.0) {
            let Some((_, _, (epoch, _))) = of_a_set.first() else { continue };
            let fingerprints: Vec<Fingerprint> = of_a_set.iter().map(|(_, fingerprint, _)| *fingerprint).collect();
            let Some(changes) = self.index.located_since(&fingerprints, u64::from(*epoch))? else { continue };
            for (&(position, _, (_, before)), since) in of_a_set.iter().zip(changes) {
                let location = match since {
                    Since::Now(location) => location,
                    Since::AsBefore => before,
                };
                match (location, query.verdicts.get_mut(position)) {
                    (Some(location), _) => query.existing(position, location),
                    (None, Some(verdict)) => *verdict = Verdict::NonExisting,
                    (None, None) => {}
                }
            }
        }
        Ok(())
    }
}
