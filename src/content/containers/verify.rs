//! Walks over whole containers: for checks, and for callers that need every chunk.
//!
//! Cost: each region is read once, past the cache, so that a walk over the pool does not push out the regions of
//! readers.

use std::sync::Arc;

use dedupfs_base::Result;
use dedupfs_store::container::decode_toc;
use dedupfs_store::{ContainerId, ContainerRecord, Fingerprint, StoreError};

use super::directory::KnownContainer;
use super::open_container::OpenContainer;
use super::read::{RegionKey, chunk_of, region_entries};
use super::shared::Shared;

impl Shared {
    /// See [`super::ContainerStore::for_each_chunk`].
    pub(super) fn for_each_chunk(
        &self,
        container: ContainerId,
        visit: &mut dyn FnMut(&Fingerprint, &[u8]) -> Result<()>,
    ) -> Result<bool> {
        let Some(known) = self.known(container) else { return Ok(false) };
        let result = match known {
            KnownContainer::Open(open) => self.visit_open(&open, visit),
            KnownContainer::Closed(record) => self.visit_closed(&record, visit),
        };
        Ok(self.unless_removed(container, result.map(Some))?.is_some())
    }

    fn visit_open(&self, open: &OpenContainer, visit: &mut dyn FnMut(&Fingerprint, &[u8]) -> Result<()>) -> Result<()> {
        for entry in &open.table().entries {
            if let Some(data) = self.read_open(open, &entry.fingerprint, Some(entry.len_bytes))? {
                visit(&entry.fingerprint, &data)?;
            }
        }
        Ok(())
    }

    fn visit_closed(
        &self,
        record: &ContainerRecord,
        visit: &mut dyn FnMut(&Fingerprint, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let cached = self.cached_table(record)?;
        for (number, region) in cached.table.regions.iter().enumerate() {
            let key = RegionKey { container: record.id, offset_bytes: region.offset_bytes };
            let entries = region_entries(&cached.table, number).unwrap_or_default();
            // Past the cache: a walk over everything must not push out the regions of readers.
            let raw = match self.caches.regions.peek(&key) {
                Some(raw) => raw,
                None => self.load_region(key, record.address, region.frame_bytes, Some(entries))?,
            };
            let mut start = 0;
            for entry in entries {
                let data = chunk_of(record.id, &entry.fingerprint, Arc::clone(&raw), start, entry.len_bytes)?;
                visit(&entry.fingerprint, &data)?;
                start = start.saturating_add(entry.len_bytes);
            }
        }
        cached.damage.map_or(Ok(()), |damage| Err((*damage).clone().into()))
    }

    /// See [`super::ContainerStore::verify`].
    pub(super) fn verify(&self, container: ContainerId) -> Result<()> {
        match self.known(container) {
            None => Ok(()),
            Some(KnownContainer::Open(open)) => self.visit_open(&open, &mut |_, _| Ok(())),
            Some(KnownContainer::Closed(record)) => {
                let result = self.verify_closed(&record).map(Some);
                self.unless_removed(container, result).map(|_| ())
            }
        }
    }

    fn verify_closed(&self, record: &ContainerRecord) -> Result<()> {
        let scanned = self.scan(record)?;
        if let Some(damage) = scanned.damage {
            return Err(damage.into());
        }
        let table = &scanned.table;
        if let Some((offset_bytes, len_bytes)) = record.toc {
            let decode = |frame: &[u8]| Ok(decode_toc(&self.options.pool, record.id, frame)?);
            let toc = self.with_bytes(record.address, offset_bytes, len_bytes, decode)?;
            if toc.entries != table.entries || toc.regions != table.regions {
                let what = format!("table of contents of container {}", record.id);
                return Err(StoreError::corrupt(what, "the chunks of its regions", "others").into());
            }
        }
        let found = (table.entries.len() as u64, table.entries.iter().map(|entry| u64::from(entry.len_bytes)).sum());
        let expected = (u64::from(record.chunks), record.chunk_bytes);
        if found != expected {
            let tell = |(chunks, bytes): (u64, u64)| format!("{chunks} chunks of {bytes} bytes");
            return Err(StoreError::corrupt(format!("container {}", record.id), tell(expected), tell(found)).into());
        }
        for (number, region) in table.regions.iter().enumerate() {
            let key = RegionKey { container: record.id, offset_bytes: region.offset_bytes };
            self.load_region(key, record.address, region.frame_bytes, region_entries(table, number))?;
        }
        Ok(())
    }
}
