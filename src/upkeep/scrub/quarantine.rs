//! Quarantine: marks bad copies in the index, durably. From then on nothing is deduplicated against them.
//!
//! In this order, each step durable before the next:
//! 1. Freeing of recipe nodes and other quarantines are locked out ([`Committer::hold_losses`]). If nodes are affected,
//!    the indexes get a checkpoint: a replay after a crash must not need unreadable nodes.
//! 2. One transaction records the damaged containers: from here on readers ask the index before they trust a hint. It,
//!    or the one behind the repair, records that there are losses.
//! 3. Recipe nodes and tree nodes of which the export has a sound copy are stored again ([`repair`](super::repair)). They
//!    are lost at no time.
//! 4. Under the store lock each bad copy that the index still places in that container is staged as lost and logged.
//!    From here on the index names it among what is lost: a writer of it looks it up, whatever a file's earlier recipe
//!    says, and stores it again. The new copy takes its place, with the count that was kept.
//! 5. The call waits for all sections that may have found it before; then the log is committed and counted. Files
//!    written in those sections refer to lost content as older ones do, and heal as they do.
//!
//! A crash between two steps leaves at most a flag without a loss. The next reclaiming or scrub clears it.
//!
//! [`Committer::hold_losses`]: crate::durability::commit::Committer::hold_losses

use std::collections::{HashMap, HashSet};

use dedupfs_base::Result;
use dedupfs_store::{ContainerId, ContainerKind, Fingerprint};

use crate::engine::Core;

/// A bad copy of a chunk or node.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct BadCopy {
    /// Chunk or node.
    pub kind: ContainerKind,
    /// The container of the bad copy.
    pub container: ContainerId,
    /// Its fingerprint.
    pub fingerprint: Fingerprint,
}

/// The fate of bad copies.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct Quarantined {
    /// Lost: no sound copy was found.
    pub(crate) lost: Vec<BadCopy>,
    /// Stored again from a sound copy.
    pub(crate) repaired: Vec<BadCopy>,
}

impl Core {
    /// Repairs or quarantines those of `bad` that the index places in their container; returns them. The others have
    /// another copy, or are garbage.
    ///
    /// # Errors
    /// `ReadOnly`; the index cannot be read, or a commit failed: then only some may be quarantined.
    pub(crate) fn quarantine(&self, bad: &[BadCopy]) -> Result<Quarantined> {
        let _losses = self.committer.hold_losses();
        let mut repaired = Vec::new();
        let mut placed = self.placed(bad)?;
        let mut containers: HashSet<(ContainerKind, ContainerId)> = HashSet::new();
        containers.extend(bad.iter().map(|copy| (copy.kind, copy.container)));
        if containers.is_empty() {
            return Ok(Quarantined { lost: placed, repaired });
        }
        let _pass = self.begin_change()?;
        if placed.iter().any(|copy| copy.kind == ContainerKind::Recipe) {
            self.committer.checkpoint()?;
        } else {
            self.committer.settle()?;
        }
        // Hints may name bad garbage, too.
        let ids: Vec<ContainerId> = containers.iter().map(|(_, container)| *container).collect();
        let has_nodes = bad.iter().any(|copy| copy.kind == ContainerKind::Recipe);
        self.namespace.note_damage(&ids, !has_nodes && !placed.is_empty())?;
        self.stores.data.set_damaged(&ids);
        self.stores.recipes.set_damaged(&ids);
        if has_nodes {
            repaired = self.repair_nodes(bad)?;
            placed = self.placed(&placed)?;
            if !placed.is_empty() {
                self.namespace.note_damage(&ids, true)?;
            }
        }
        let mut outcome = Ok(());
        placed.retain(|copy| {
            outcome.is_ok()
                && self.dedup.lose(copy.kind, copy.fingerprint, copy.container).unwrap_or_else(|error| {
                    outcome = Err(error);
                    false
                })
        });
        outcome?;
        if !placed.is_empty() {
            self.dedup.barrier();
            self.committer.settle()?;
        }
        Ok(Quarantined { lost: placed, repaired })
    }

    /// Records that these containers have damage: reclaiming empties them.
    ///
    /// # Errors
    /// `ReadOnly`, or the record could not be made durable.
    pub(super) fn note_damaged(&self, containers: &[ContainerId]) -> Result<()> {
        if containers.is_empty() {
            return Ok(());
        }
        let _pass = self.begin_change()?;
        self.namespace.note_damage(containers, false)?;
        self.stores.data.set_damaged(containers);
        self.stores.recipes.set_damaged(containers);
        Ok(())
    }

    /// Returns the copies that the index places in their container.
    fn placed(&self, bad: &[BadCopy]) -> Result<Vec<BadCopy>> {
        let mut placed = Vec::new();
        for copy in bad {
            if self.places(copy)? {
                placed.push(*copy);
            }
        }
        Ok(placed)
    }

    /// Whether the index places the fingerprint in the container of the bad copy.
    pub(super) fn places(&self, copy: &BadCopy) -> Result<bool> {
        let cell = self.indexes.of(copy.kind).get(&copy.fingerprint)?;
        Ok(cell.is_some_and(|cell| cell.location.container() == copy.container))
    }

    /// Whether the fingerprint is needed and lost.
    pub(super) fn lacks(&self, copy: &BadCopy) -> Result<bool> {
        let cell = self.indexes.of(copy.kind).get(&copy.fingerprint)?;
        Ok(cell.is_some_and(|cell| cell.location.is_lost() && cell.references > 0))
    }

    /// Returns all copies that the indexes place in these containers, except those found sound there. Reads the whole
    /// indexes.
    pub(super) fn misplaced(&self, sound: &HashMap<ContainerId, HashSet<Fingerprint>>) -> Result<Vec<BadCopy>> {
        let mut misplaced = Vec::new();
        if sound.is_empty() {
            return Ok(misplaced);
        }
        for (kind, index) in [(ContainerKind::Data, &self.indexes.chunks), (ContainerKind::Recipe, &self.indexes.nodes)]
        {
            index.for_each(&mut |fingerprint, cell| {
                let container = cell.location.container();
                if sound.get(&container).is_some_and(|sound| !sound.contains(&fingerprint)) {
                    misplaced.push(BadCopy { kind, container, fingerprint });
                }
                Ok(())
            })?;
        }
        Ok(misplaced)
    }

    /// Records that nothing is lost, if that is so. Returns the number of lost chunks and nodes.
    pub(crate) fn note_losses(&self) -> Result<u64> {
        let _losses = self.committer.hold_losses();
        let inconsistencies = self.committer.inconsistencies();
        let lost = self.indexes.chunks.lost() + self.indexes.nodes.lost();
        // If counts are in doubt, so are the losses.
        let is_settled = !self.namespace.has_losses() || self.namespace.has_doubt();
        if lost > 0 || self.is_read_only() || is_settled {
            return Ok(lost);
        }
        self.namespace.set_losses(false)?;
        // Meanwhile a row may have counted content that no container has.
        if self.committer.inconsistencies() != inconsistencies {
            self.namespace.set_losses(true)?;
        }
        Ok(lost)
    }
}
