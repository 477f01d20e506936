//! Quarantine: what is bad is marked so in the index, durably, and is never deduplicated against from then on.
//!
//! In this order, each step durable before the next:
//! 1. Nobody reclaims recipe nodes, and nobody else quarantines ([`Committer::hold_losses`]). If nodes are concerned, the
//!    indexes are checkpointed: a replay after a crash must not need what cannot be read.
//! 2. One transaction notes that there are losses (writers look every chunk up from here on, and recipes that a file had
//!    before are not believed) and which containers are damaged (readers ask the index before they believe a hint).
//! 3. Under the store lock each bad copy that the index still places in that container is staged as lost and logged. A writer
//!    that looks it up from here on stores it again; the new copy takes its place, and with it the count that was kept.
//! 4. All sections that may have found it before have ended; the log is committed and counted. Files that were written in
//!    those sections refer to what is lost as older ones do, and heal as they do.
//!
//! A crash between two steps leaves at most a flag without a loss, which the next reclaim or scrub takes back.
//!
//! [`Committer::hold_losses`]: crate::commit::Committer::hold_losses

use std::collections::{HashMap, HashSet};

use dedupfs_index::Index;
use dedupfs_store::{ContainerId, ContainerKind, Fingerprint};

use crate::error::Result;
use crate::pool::Core;

/// A bad copy of a chunk or node.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct BadCopy {
    /// Chunk or node.
    pub kind: ContainerKind,
    /// Where it is bad.
    pub container: ContainerId,
    /// Which it is.
    pub fingerprint: Fingerprint,
}

impl Core {
    /// Quarantines those of `bad` that the index places where they are bad; returns them. The others have another copy, or
    /// are garbage.
    ///
    /// # Errors
    /// `ReadOnly`; the index cannot be read, or a commit failed: then some may be quarantined and others not.
    pub fn quarantine(&self, bad: &[BadCopy]) -> Result<Vec<BadCopy>> {
        let _losses = self.committer.hold_losses();
        let mut placed = self.placed(bad)?;
        let mut containers: HashSet<(ContainerKind, ContainerId)> = HashSet::new();
        containers.extend(bad.iter().map(|copy| (copy.kind, copy.container)));
        if containers.is_empty() {
            return Ok(placed);
        }
        let _pass = self.begin_change()?;
        if placed.iter().any(|copy| copy.kind == ContainerKind::Recipe) {
            self.committer.checkpoint()?;
        } else {
            self.committer.settle()?;
        }
        // Garbage that is bad may be named by hints, too.
        let ids: Vec<ContainerId> = containers.iter().map(|(_, container)| *container).collect();
        self.namespace.note_damage(&ids, !placed.is_empty())?;
        self.data.set_damaged(&ids);
        self.recipes.set_damaged(&ids);
        let mut outcome = Ok(());
        placed.retain(|copy| {
            outcome.is_ok()
                && self.dedup.lose(copy.kind, copy.fingerprint, copy.container).unwrap_or_else(|error| {
                    outcome = Err(error);
                    false
                })
        });
        outcome?;
        if placed.is_empty() {
            return Ok(placed);
        }
        self.dedup.barrier();
        self.committer.settle()?;
        Ok(placed)
    }

    /// Notes that something in these containers is not as it was written: reclaiming empties them.
    ///
    /// # Errors
    /// `ReadOnly`, or it could not be made durable.
    pub(super) fn note_damaged(&self, containers: &[ContainerId]) -> Result<()> {
        if containers.is_empty() {
            return Ok(());
        }
        let _pass = self.begin_change()?;
        self.namespace.note_damage(containers, false)?;
        self.data.set_damaged(containers);
        self.recipes.set_damaged(containers);
        Ok(())
    }

    /// Those that the index places where they are bad.
    fn placed(&self, bad: &[BadCopy]) -> Result<Vec<BadCopy>> {
        let mut placed = Vec::new();
        for copy in bad {
            if self.places(copy)? {
                placed.push(*copy);
            }
        }
        Ok(placed)
    }

    /// Whether the index places it where it is bad.
    pub(super) fn places(&self, copy: &BadCopy) -> Result<bool> {
        let cell = self.index_of(copy).get(&copy.fingerprint)?;
        Ok(cell.is_some_and(|cell| cell.location.container == copy.container))
    }

    /// Whether it is needed, and known to be nowhere.
    pub(super) fn lacks(&self, copy: &BadCopy) -> Result<bool> {
        let cell = self.index_of(copy).get(&copy.fingerprint)?;
        Ok(cell.is_some_and(|cell| cell.location.is_lost() && cell.references > 0))
    }

    fn index_of(&self, copy: &BadCopy) -> &Index {
        match copy.kind {
            ContainerKind::Data => &self.chunk_index,
            ContainerKind::Recipe => &self.recipe_index,
        }
    }

    /// What the indexes place in these containers, but for what was found sound there. Reads the indexes as a whole.
    pub(super) fn misplaced(&self, sound: &HashMap<ContainerId, HashSet<Fingerprint>>) -> Result<Vec<BadCopy>> {
        let mut misplaced = Vec::new();
        if sound.is_empty() {
            return Ok(misplaced);
        }
        for (kind, index) in [(ContainerKind::Data, &self.chunk_index), (ContainerKind::Recipe, &self.recipe_index)] {
            index.for_each(&mut |fingerprint, cell| {
                let container = cell.location.container;
                if sound.get(&container).is_some_and(|sound| !sound.contains(&fingerprint)) {
                    misplaced.push(BadCopy { kind, container, fingerprint });
                }
                Ok(())
            })?;
        }
        Ok(misplaced)
    }

    /// Notes that nothing is lost, if that is so; returns how much is lost.
    ///
    /// # Errors
    /// A commit failed.
    pub fn note_losses(&self) -> Result<u64> {
        let _losses = self.committer.hold_losses();
        let inconsistencies = self.committer.inconsistencies();
        let lost = self.chunk_index.lost() + self.recipe_index.lost();
        // Where counts are in doubt, what is lost is, too.
        let is_settled = !self.namespace.has_losses() || self.namespace.has_doubt();
        if lost > 0 || self.is_read_only() || is_settled {
            return Ok(lost);
        }
        self.namespace.set_losses(false)?;
        // Something that was counted meanwhile may be nowhere.
        if self.committer.inconsistencies() != inconsistencies {
            self.namespace.set_losses(true)?;
        }
        Ok(lost)
    }
}
