//! Writes out the open containers: makes appended chunks durable and tells the namespace about them.
//!
//! 1. [`write_out`](ContainerStore::write_out) cuts the filling region of every open container and has it compressed.
//! 2. It waits until the regions cut so far are placed, pads each container to a whole block and writes it. The end of
//!    the written part is the container's *mark*; regions placed later begin behind it.
//! 3. It syncs each slot file once, then reports the difference between each mark and the acknowledged record.
//! 4. The caller commits the records, then calls [`acknowledge`](ContainerStore::acknowledge). If the commit fails, it
//!    does not, and the next call reports the difference again, merged with newer chunks.
//!
//! Invariant I-1: a reported record covers synced bytes only. The mark is taken before the sync begins, and all bytes
//! below it are written by then. Appending goes on at the same time.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use dedupfs_base::{EngineError, Result};
use dedupfs_store::container::TableEntry;
use dedupfs_store::profile::{self, Component};
use dedupfs_store::{ContainerId, ContainerKind, ContainerRecord};
use dedupfs_sync::canary::{Canary, is_planted};

use super::ContainerStore;
use super::directory::KnownContainer;
use super::open_container::{Goal, Mark, OpenContainer};
use super::read::{CachedTable, region_entries};
use super::shared::Shared;

/// The newly durable chunks of one container: `from_bytes..to_bytes` of its slot.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Extended {
    /// The container.
    pub container: ContainerId,
    /// Its kind.
    pub kind: ContainerKind,
    /// End of the bytes acknowledged before.
    pub from_bytes: u32,
    /// End of the bytes durable now.
    pub to_bytes: u32,
    /// The chunks in between, in the order of their regions.
    pub entries: Vec<TableEntry>,
}

/// The result of writing out: durable chunks that the namespace does not know yet.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct WrittenOut {
    /// The whole new record of each container that changed.
    pub records: Vec<ContainerRecord>,
    /// The new chunks of each container that got some.
    pub extends: Vec<Extended>,
}

impl ContainerStore {
    /// Makes durable all chunks appended before the call. On an error nothing is lost and nothing is reported. Unless
    /// the sync failed, the next call tries again.
    ///
    /// Workers must not call this: it waits for their jobs.
    pub fn write_out(&self) -> Result<WrittenOut> {
        let _serial = self.writing_out.lock();
        let shared = &self.shared;
        shared.check_poison()?;
        let open = shared.open_containers();
        let mut last_regions = Vec::with_capacity(open.len());
        for container in &open {
            let (cut, regions) = container.cut(&shared.buffers);
            last_regions.push(regions);
            cut.into_iter().for_each(|cut| shared.submit_compression(container, cut));
        }
        for (container, regions) in open.iter().zip(last_regions) {
            container.wait_placed(regions, || shared.is_poisoned());
            shared.check_poison()?;
        }
        let marked = write_all(shared, open)?;
        sync(shared, &marked)?;
        let mut flushed = WrittenOut::default();
        marked.iter().for_each(|(container, mark)| report(shared, container, mark, &mut flushed));
        Ok(flushed)
    }

    /// Notes that the namespace holds these records durably, so they are not reported again. Sealed containers become
    /// closed.
    pub fn acknowledge(&self, records: &[ContainerRecord]) {
        for record in records {
            let Some(KnownContainer::Open(container)) = self.shared.known(record.id) else { continue };
            if let Some(table) = container.acknowledge(record) {
                self.shared.caches.tables.insert(record.id, CachedTable::sound(table));
                self.shared.directory.write().close(*record);
            }
        }
    }

    /// Closes all containers that take chunks, for unmounting. The next [`write_out`](Self::write_out) writes them with their
    /// tables.
    pub fn seal_all(&self) {
        let containers = self.streams.lock().retire_all();
        for container in containers {
            self.close(&container);
            // Nothing can be appended after the closing; before it, this check could race with an append.
            if container.is_empty() {
                self.shared.directory.write().remove_empty(container.id);
            }
        }
    }

    pub(super) fn close(&self, container: &Arc<OpenContainer>) {
        let (cuts, grown) = container.close(&self.shared.buffers);
        self.shared.add_pending(grown);
        cuts.into_iter().for_each(|cut| self.shared.submit_compression(container, cut));
        self.shared.schedule_write(container);
    }
}

/// Writes every container to its mark. Tries all of them and returns the first error.
fn write_all(shared: &Shared, open: Vec<Arc<OpenContainer>>) -> Result<Vec<(Arc<OpenContainer>, Mark)>> {
    let mut marked = Vec::with_capacity(open.len());
    let mut failure: Option<EngineError> = None;
    for container in open {
        match shared.write_out(&container, Goal::Everything) {
            Ok(Some(mark)) => marked.push((container, mark)),
            Ok(None) => {}
            Err(_) if is_planted(Canary::WriteErrorSwallowed) => {}
            Err(error) => failure = failure.or(Some(error)),
        }
    }
    failure.map_or(Ok(marked), Err)
}

fn sync(shared: &Shared, marked: &[(Arc<OpenContainer>, Mark)]) -> Result<()> {
    let needed = marked.iter().filter(|(container, mark)| container.needs_sync(mark.used_bytes));
    let addresses: Vec<_> = needed.filter_map(|(container, _)| container.address()).collect();
    if addresses.is_empty() {
        return Ok(());
    }
    if is_planted(Canary::ContainersNotSynced) {
        marked.iter().for_each(|(container, mark)| container.set_synced(mark.used_bytes));
        return Ok(());
    }
    shared.counters.syncs.fetch_add(1, Ordering::Relaxed);
    let timed = profile::of(Component::ContainerSyncs);
    let synced = shared.slots.sync(&addresses);
    drop(timed);
    let synced = if is_planted(Canary::SyncErrorSwallowed) { Ok(()) } else { synced };
    synced.inspect_err(|error| {
        // The kernel may have dropped pages it could not write: a second sync would succeed without them (I-7).
        shared.poison(error.clone().into());
    })?;
    marked.iter().for_each(|(container, mark)| container.set_synced(mark.used_bytes));
    Ok(())
}

/// Adds the difference between the mark and the acknowledged record.
fn report(shared: &Shared, container: &OpenContainer, mark: &Mark, flushed: &mut WrittenOut) {
    let Some(address) = container.address() else { return };
    let acknowledged = container.acknowledged();
    let from_bytes = acknowledged.as_ref().map_or(0, |record| record.used_bytes);
    let is_sealed_already = acknowledged.as_ref().is_some_and(|record| record.sealed);
    let is_sealed = mark.toc.is_some();
    if mark.used_bytes <= from_bytes && is_sealed == is_sealed_already {
        return;
    }
    let (id, kind) = (container.id, shared.options.kind);
    flushed.records.push(ContainerRecord {
        id,
        kind,
        address,
        used_bytes: mark.used_bytes,
        toc: mark.toc,
        chunk_bytes: mark.chunk_bytes,
        chunks: u32::try_from(mark.table.entries.len()).unwrap_or(u32::MAX),
        sealed: is_sealed,
        damaged: false,
    });
    let regions = mark.table.regions.iter().enumerate();
    let new = regions.filter(|(_, region)| region.offset_bytes >= from_bytes);
    let entries: Vec<_> =
        new.flat_map(|(number, _)| region_entries(&mark.table, number).unwrap_or_default()).copied().collect();
    if !entries.is_empty() {
        flushed.extends.push(Extended { container: id, kind, from_bytes, to_bytes: mark.used_bytes, entries });
    }
}
