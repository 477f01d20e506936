//! Every cell's container really has its chunk; with data, every chunk is what its name says.

use std::collections::HashSet;

use dedupfs_index::Index;
use dedupfs_store::ContainerId;

use super::{CheckOptions, CheckReport, Checker};
use crate::containers::ContainerStore;
use crate::error::Result;
use crate::pool::Progress;

impl Checker<'_> {
    pub(super) fn check_places(
        &self,
        options: &CheckOptions,
        report: &mut CheckReport,
        progress: &dyn Progress,
    ) -> Result<()> {
        for (what, store, index) in
            [("chunk", self.data, self.chunk_index), ("recipe node", self.recipes, self.recipe_index)]
        {
            let found = self.check_containers(what, store, index, options, report, progress)?;
            let mut cells = 0;
            index.for_each(&mut |_, cell| {
                cells += u64::from(!cell.location.is_lost());
                Ok(())
            })?;
            if found != cells {
                let missing = cells.saturating_sub(found);
                report.add(format!("{missing} of {cells} {what} cells name a container that does not hold them"));
            }
        }
        Ok(())
    }

    /// Returns the cells that were found where they say.
    fn check_containers(
        &self,
        what: &str,
        store: &ContainerStore,
        index: &Index,
        options: &CheckOptions,
        report: &mut CheckReport,
        progress: &dyn Progress,
    ) -> Result<u64> {
        let records = store.containers();
        progress.start("checking containers", records.len() as u64);
        let mut found = 0;
        for record in records {
            report.containers += 1;
            progress.advance(1);
            let table = match store.table(record.id) {
                Ok(Some(table)) => table,
                Ok(None) => continue,
                Err(error) => {
                    report.add(format!("container {}: {error}", record.id));
                    continue;
                }
            };
            let mut seen = HashSet::with_capacity(table.entries.len());
            for entry in &table.entries {
                report.chunks += u64::from(what == "chunk");
                let cell = index.committed(&entry.fingerprint)?;
                let here = cell.is_some_and(|cell| {
                    cell.location.container == record.id && cell.location.len_bytes == entry.len_bytes
                });
                found += u64::from(here && seen.insert(entry.fingerprint));
            }
            if options.read_data {
                self.check_content(what, store, record.id, report);
            }
        }
        progress.finish();
        Ok(found)
    }

    /// Reads all regions of a container and compares what is in them with their names.
    fn check_content(&self, what: &str, store: &ContainerStore, container: ContainerId, report: &mut CheckReport) {
        let mut wrong = Vec::new();
        let outcome = store.for_each_chunk(container, &mut |fingerprint, bytes| {
            report.bytes_read += bytes.len() as u64;
            if what == "chunk" && self.fingerprinter.of(bytes) != *fingerprint {
                wrong.push(*fingerprint);
            }
            Ok(())
        });
        if let Err(error) = outcome {
            report.add(format!("container {container}: {error}"));
        }
        for fingerprint in wrong {
            report.add(format!("container {container}: {what} {fingerprint} does not have the content of its name"));
        }
    }
}
