//! The directory: the containers that a store knows.
//!
//! Closed containers grow with the pool, some 130,000 for a terabyte. So nothing that a commit or a statistic does walks them: open ones are
//! apart, and sums are kept.

use std::collections::HashMap;
use std::sync::Arc;

use dedupfs_store::{ContainerId, ContainerRecord};

use super::open_container::OpenContainer;

/// A walk of the closed containers copies one part at a time.
pub(super) const PARTS: usize = 64;

/// A container that the store knows.
#[derive(Clone)]
pub(super) enum KnownContainer {
    /// Being filled, or not acknowledged as sealed yet.
    Open(Arc<OpenContainer>),
    /// Never written again.
    Closed(ContainerRecord),
}

/// Sums over containers whose records are durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ContainerSums {
    /// Containers.
    pub containers: u64,
    /// Uncompressed bytes of chunks in them.
    pub chunk_bytes: u64,
    /// Bytes used in them, on disk.
    pub used_bytes: u64,
}

impl ContainerSums {
    fn add(&mut self, record: &ContainerRecord) {
        self.containers += 1;
        self.chunk_bytes += record.chunk_bytes;
        self.used_bytes += u64::from(record.used_bytes);
    }

    fn remove(&mut self, record: &ContainerRecord) {
        self.containers -= 1;
        self.chunk_bytes -= record.chunk_bytes;
        self.used_bytes -= u64::from(record.used_bytes);
    }
}

pub(super) struct Directory {
    open: HashMap<ContainerId, Arc<OpenContainer>>,
    closed: [HashMap<ContainerId, ContainerRecord>; PARTS],
    /// Of the closed ones.
    sums: ContainerSums,
}

fn part_of(container: ContainerId) -> usize {
    (container.0 % PARTS as u64) as usize
}

impl Directory {
    pub(super) fn of(closed: &[ContainerRecord]) -> Self {
        let mut directory = Self {
            open: HashMap::new(),
            closed: std::array::from_fn(|_| HashMap::new()),
            sums: ContainerSums::default(),
        };
        closed.iter().for_each(|record| directory.close(*record));
        directory
    }

    pub(super) fn get(&self, container: ContainerId) -> Option<KnownContainer> {
        let open = || self.open.get(&container).cloned().map(KnownContainer::Open);
        self.closed[part_of(container)].get(&container).copied().map(KnownContainer::Closed).or_else(open)
    }

    pub(super) fn has(&self, container: ContainerId) -> bool {
        self.closed[part_of(container)].contains_key(&container) || self.is_open(container)
    }

    pub(super) fn is_open(&self, container: ContainerId) -> bool {
        self.open.contains_key(&container)
    }

    pub(super) fn len(&self) -> u64 {
        self.sums.containers + self.open.len() as u64
    }

    pub(super) fn open(&self) -> impl Iterator<Item = &Arc<OpenContainer>> {
        self.open.values()
    }

    pub(super) fn closed(&self) -> impl Iterator<Item = &ContainerRecord> {
        self.closed.iter().flat_map(HashMap::values)
    }

    pub(super) fn closed_part(&self, part: usize) -> impl Iterator<Item = &ContainerRecord> {
        self.closed.get(part).into_iter().flat_map(HashMap::values)
    }

    /// Cost: by the open ones.
    pub(super) fn sums(&self) -> ContainerSums {
        let mut sums = self.sums;
        self.open().filter_map(|open| open.acknowledged()).for_each(|record| sums.add(&record));
        sums
    }

    pub(super) fn insert(&mut self, open: Arc<OpenContainer>) {
        self.open.insert(open.id, open);
    }

    /// An open container, or one of the pool's records, is not written again.
    pub(super) fn close(&mut self, record: ContainerRecord) {
        self.open.remove(&record.id);
        self.sums.add(&record);
        if let Some(former) = self.closed[part_of(record.id)].insert(record.id, record) {
            self.sums.remove(&former);
        }
    }

    /// Forgets an open container in which nothing is.
    pub(super) fn remove_empty(&mut self, container: ContainerId) {
        self.open.remove(&container);
    }

    /// Forgets a closed container.
    pub(super) fn remove(&mut self, container: ContainerId) -> Option<ContainerRecord> {
        let removed = self.closed[part_of(container)].remove(&container)?;
        self.sums.remove(&removed);
        Some(removed)
    }

    /// Returns whether it is closed.
    pub(super) fn set_damaged(&mut self, container: ContainerId) -> bool {
        let Some(record) = self.closed[part_of(container)].get_mut(&container) else { return false };
        record.damaged = true;
        true
    }

    #[cfg(test)]
    pub(super) fn self_check(&self) {
        let mut sums = ContainerSums::default();
        self.closed().for_each(|record| sums.add(record));
        assert_eq!(self.sums, sums);
        assert!(self.closed().all(|record| !self.is_open(record.id)));
    }
}
