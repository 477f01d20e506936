//! Forwarding notes: the containers into which the chunks of an emptied container were copied.
//!
//! Recipes go on naming a container that reclaiming has emptied. Its note leads readers to the copies without a lookup
//! in the index for each chunk. Notes are advisory: a container to which one leads is read only if its table, in memory,
//! names the chunk, and the bytes there count only if they fit the fingerprint: the copy may have been found bad, and
//! replaced, since. A chunk that no note leads to is found by the index.
//!
//! Memory: at most [`NOTES_MAX`] notes for each kind of container, about 50 bytes each. The notes of the oldest
//! containers are dropped first.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use dedupfs_store::{ContainerId, Fingerprint};
use dedupfs_sync::RwLock;

use super::ContainerStore;
use super::directory::KnownContainer;
use super::shared::Shared;

/// Notes of a store at most: of 512 GiB of emptied containers of 4 MiB.
pub const NOTES_MAX: usize = 1 << 17;
/// Containers that one search looks at, at most. It also ends a search whose notes lead in a circle.
const SEARCHED_MAX: usize = 128;

/// The note of an emptied container.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ForwardingNote {
    /// The emptied container.
    pub from: ContainerId,
    /// The first container that took chunks of it.
    pub first: ContainerId,
    /// Bit *n* tells that container `first` + 1 + *n* took chunks of it, too.
    pub others: u64,
}

impl ForwardingNote {
    /// Makes the note of a container whose chunks were copied into these. Containers more than 64 numbers behind the
    /// first one are left out: the index finds the chunks there.
    #[must_use]
    pub fn new(from: ContainerId, to: &BTreeSet<ContainerId>) -> Option<Self> {
        let first = *to.first()?;
        let distances = to.iter().map(|container| container.0 - first.0).filter(|distance| (1..=64).contains(distance));
        Some(Self { from, first, others: distances.fold(0, |others, distance| others | 1 << (distance - 1)) })
    }

    /// The containers that took its chunks.
    pub fn to(self) -> impl Iterator<Item = ContainerId> {
        let others = (0..64).filter(move |bit| self.others >> bit & 1 == 1);
        let first = self.first;
        std::iter::once(first).chain(others.map(move |bit| ContainerId(first.0.saturating_add(1 + bit))))
    }
}

/// First container and others of a [`ForwardingNote`], by the emptied container.
#[derive(Default)]
pub(super) struct Forwarding {
    /// A short lock, taken alone.
    notes: RwLock<BTreeMap<ContainerId, (ContainerId, u64)>>,
}

impl Forwarding {
    fn add(&self, notes: impl IntoIterator<Item = ForwardingNote>) {
        let mut kept = self.notes.write();
        for ForwardingNote { from, first, others } in notes {
            kept.insert(from, (first, others));
            if kept.len() > NOTES_MAX {
                kept.pop_first();
            }
        }
    }

    /// Readers wait meanwhile.
    fn remove(&self, useless: Vec<ContainerId>) {
        let mut kept = self.notes.write();
        for from in useless {
            kept.remove(&from);
        }
    }

    fn of(&self, from: ContainerId) -> Option<ForwardingNote> {
        self.notes.read().get(&from).map(|&(first, others)| ForwardingNote { from, first, others })
    }
}

impl ContainerStore {
    /// Adds forwarding notes.
    pub fn add_forwarding_notes(&self, notes: impl IntoIterator<Item = ForwardingNote>) {
        self.shared.forwarding.add(notes);
    }

    /// Drops the notes that lead to no container any more, and returns the others, in order of the emptied container.
    #[must_use]
    pub fn forwarding_notes(&self) -> Vec<ForwardingNote> {
        let forwarding = &self.shared.forwarding;
        let (mut useful, mut useless) = (HashSet::new(), Vec::new());
        let all: Vec<_> =
            forwarding.notes.read().iter().map(|(&from, &(first, others))| (from, first, others)).collect();
        // Content mostly moves into later containers: the notes of those come first.
        for (from, first, others) in all.into_iter().rev() {
            let mut to = ForwardingNote { from, first, others }.to();
            match to.any(|container| useful.contains(&container) || self.is_known(container)) {
                true => drop(useful.insert(from)),
                false => useless.push(from),
            }
        }
        forwarding.remove(useless);
        let notes = forwarding.notes.read();
        notes.iter().map(|(&from, &(first, others))| ForwardingNote { from, first, others }).collect()
    }

    /// Returns the container to which notes lead from `gone` and whose table, in memory, names the chunk.
    pub(crate) fn successor(&self, gone: ContainerId, fingerprint: &Fingerprint) -> Option<ContainerId> {
        self.shared.successor(gone, fingerprint)
    }
}

impl Shared {
    /// See [`ContainerStore::successor`].
    pub(super) fn successor(&self, gone: ContainerId, fingerprint: &Fingerprint) -> Option<ContainerId> {
        let (mut searched, mut to_follow) = (0, vec![gone]);
        while let Some(note) = to_follow.pop().map(|gone| self.forwarding.of(gone)) {
            for container in note.into_iter().flat_map(ForwardingNote::to) {
                searched += 1;
                if searched > SEARCHED_MAX {
                    return None;
                }
                match self.names_in_memory(container, fingerprint) {
                    Some(true) => return Some(container),
                    Some(false) => {}
                    // It was emptied, too.
                    None => to_follow.push(container),
                }
            }
        }
        None
    }

    /// Whether the container's table names the chunk, as far as memory tells; `None` if the container is unknown. A
    /// damaged container is not believed.
    fn names_in_memory(&self, container: ContainerId, fingerprint: &Fingerprint) -> Option<bool> {
        Some(match self.known(container)? {
            KnownContainer::Open(open) => open.disk_offset(fingerprint).is_some(),
            KnownContainer::Closed(record) => {
                let table = || self.caches.tables.get(&container);
                !record.damaged && table().is_some_and(|cached| cached.table.find(fingerprint).is_some())
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(from: u64, to: &[u64]) -> ForwardingNote {
        let to = to.iter().copied().map(ContainerId).collect();
        ForwardingNote::new(ContainerId(from), &to).expect("it names containers")
    }

    #[test]
    fn a_note_names_the_containers_that_follow_its_first_one_closely() {
        assert_eq!(ForwardingNote::new(ContainerId(1), &BTreeSet::new()), None);
        for (to, kept) in [
            (vec![7], vec![7]),
            (vec![7, 8, 70, 71], vec![7, 8, 70, 71]),
            (vec![7, 71, 72, 1 << 50], vec![7, 71]),
            (vec![u64::MAX], vec![u64::MAX]),
        ] {
            assert_eq!(note(1, &to).to().map(|container| container.0).collect::<Vec<_>>(), kept);
        }
        // Bytes of a file can name containers behind the last possible one.
        let last = ForwardingNote { from: ContainerId(1), first: ContainerId(u64::MAX), others: u64::MAX };
        assert!(last.to().all(|container| container.0 == u64::MAX));
    }

    #[test]
    fn the_notes_of_the_oldest_containers_go_first() {
        let forwarding = Forwarding::default();
        let count = NOTES_MAX as u64 + 10;
        forwarding.add((1..=count).rev().map(|from| note(from, &[from + 1])));
        forwarding.add([note(count, &[3])]);
        let notes = forwarding.notes.read();
        assert_eq!((notes.len(), notes.first_key_value().map(|(from, _)| from.0)), (NOTES_MAX, Some(11)));
        assert_eq!(notes.get(&ContainerId(count)), Some(&(ContainerId(3), 0)), "the later note counts");
    }
}
