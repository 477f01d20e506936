//! Reading the tables of data containers, each once.

use std::collections::HashSet;
use std::sync::Arc;

use dedupfs_base::{EngineError, Result};
use dedupfs_content::{ContainerStore, WholeContainer};
use dedupfs_index::Location;
use dedupfs_store::container::{Table, TableEntry};
use dedupfs_store::{ContainerId, Fingerprint};

use super::ahead::for_each_container;
use super::state::{Notes, Phase};
use super::{Build, Rebuilder, is_loss};
use crate::upkeep::inspect::judge;

impl Rebuilder<'_> {
    /// Takes the tables of all data containers after the last one taken, in ascending order: a later container wins
    /// over an earlier one.
    pub(super) fn take_tables(&self, build: &mut Build) -> Result<()> {
        let records = self.stores.data.containers();
        let before = records.iter().filter(|record| record.id.0 <= build.state.through).count();
        let ids: Vec<ContainerId> = records.iter().skip(before).map(|record| record.id).collect();
        // Tables are alike in size; the content of containers is not.
        let mut sizes = records.iter().skip(before).map(|record| record.chunk_bytes);
        let total_bytes: u64 = sizes.clone().sum();
        let (what, total) = match self.read_data {
            true => ("reading containers, MiB", total_bytes >> 20),
            false => ("reading tables of containers", ids.len() as u64),
        };
        let told = format!("{what} (without {before} containers taken before)");
        self.progress.start(if before == 0 { what } else { &told }, total);
        let mut done_bytes = 0;
        let read = |id| self.sound_entries(id);
        let outcome = for_each_container(&ids, build, read, |build, container, entries| {
            if entries.is_none() {
                build.state.unread_data.add(container);
            }
            for entry in entries.unwrap_or_default() {
                build.chunks.set(entry.fingerprint, Location::new(container, entry.len_bytes), 0)?;
            }
            let before_bytes = done_bytes;
            done_bytes += sizes.next().unwrap_or(0);
            self.progress.advance(if self.read_data { (done_bytes >> 20) - (before_bytes >> 20) } else { 1 });
            Ok(())
        });
        self.progress.finish();
        outcome
    }

    /// Returns the entries of a container; with `read_data` only those whose content is readable and matches its
    /// fingerprint. `None` if the table is lost.
    fn sound_entries(&self, container: ContainerId) -> Result<Option<Vec<TableEntry>>> {
        let Some(table) = self.table(&self.stores.data, container)? else { return Ok(None) };
        // The table of a damaged container still lists its bad chunks.
        if !self.read_data && !self.stores.data.is_damaged(container) {
            return Ok(Some(table.entries.clone()));
        }
        let Some(record) = self.stores.data.closed_record(container) else {
            return Err(EngineError::Internal("a container is open during a rebuild"));
        };
        let mut whole = WholeContainer::default();
        self.stores.data.read_whole(&record, &mut whole);
        if whole.device_failed() {
            return Err(whole.unread.unwrap_or(EngineError::Internal("a device failed without an error")));
        }
        let judged = self
            .stores
            .data
            .inspect(&record, &whole, &|entries, raw| judge(record.kind, self.fingerprinter, entries, raw));
        if judged.bad.is_empty() {
            return Ok(Some(table.entries.clone()));
        }
        for bad in &judged.bad {
            tracing::error!(chunk = %bad.fingerprint, %container, why = bad.why, "a chunk is given up");
        }
        self.distrust(&self.stores.data, [container])?;
        let bad: HashSet<Fingerprint> = judged.bad.iter().map(|bad| bad.fingerprint).collect();
        let sound = table.entries.iter().filter(|entry| !bad.contains(&entry.fingerprint));
        Ok(Some(sound.copied().collect()))
    }

    /// Returns the table of a container; `None` if it is damaged or gone. Only these errors are final: a disk that does
    /// not answer may answer later.
    pub(super) fn table(&self, store: &ContainerStore, container: ContainerId) -> Result<Option<Arc<Table>>> {
        match store.table(container) {
            Ok(Some(table)) => Ok(Some(table)),
            Ok(None) => Err(EngineError::Internal("a container went away during a rebuild")),
            Err(error) if is_loss(&error) => {
                tracing::error!(%container, %error, "a container's table cannot be read");
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Returns a container that was given up and is readable now. Without it the unfinished index would call existing content
    /// lost.
    pub(super) fn readable_again(&self, state: &Notes) -> Result<Option<ContainerId>> {
        // Until all nodes are marked, the tables of recipe containers will be read anyway.
        let recipes = Some(&state.unread_recipes).filter(|_| state.phase >= Phase::Nodes);
        let of_data = [(&self.stores.data, &state.unread_data)].into_iter();
        for (store, unread) in of_data.chain(recipes.map(|unread| (&self.stores.recipes, unread))) {
            for &container in unread.first() {
                if self.table(store, container)?.is_some() {
                    return Ok(Some(container));
                }
            }
        }
        Ok(None)
    }
}
