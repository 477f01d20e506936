//! Damage that was found: recorded durably before anything rests on it.

use std::sync::atomic::Ordering;

use dedupfs_base::Result;
use dedupfs_store::{ContainerId, ContainerRecord};
use redb::ReadableTable;

use super::changes::{self, ExportMark};
use super::{Namespace, commit, container_record, tables};

impl Namespace {
    /// Records durably, in one transaction, that these containers are damaged and (if `has_losses`) that there are
    /// losses. Containers that no longer exist are skipped.
    ///
    /// # Errors
    /// Nothing is recorded, or it is unknown whether it is.
    pub fn note_damage(&self, containers: &[ContainerId], has_losses: bool) -> Result<()> {
        let mut store = self.store.lock();
        self.health.check()?;
        if store.database.is_none() || store.session.is_failed() {
            let snapshot = store.reopen()?;
            self.state.write().base = Some(snapshot);
        }
        // A commit of its own, so that exports carry it, too.
        let mut header = store.header;
        header.row += 1;
        header.has_losses |= has_losses;
        header.has_doubt |= self.has_doubt();
        let mark = ExportMark { tracked_row: header.row, ..store.mark };
        // A damaged record ends the transaction. Its reader must get that error.
        let mut damage = None;
        let outcome = store.transact(|transaction| {
            let mut table = transaction.open_table(tables::CONTAINERS)?;
            let mut changed = Vec::new();
            for &id in containers {
                let Some(found) = table.get(id.0)?.map(|value| container_record::decode(id, value.value())) else {
                    continue;
                };
                match found {
                    Ok(record) => {
                        let record = ContainerRecord { damaged: true, ..record };
                        table.insert(id.0, container_record::encode(&record).as_slice())?;
                        changed.push((id, record.used_bytes));
                    }
                    Err(error) => damage = Some(error),
                }
            }
            drop(table);
            commit::write_changes(transaction, header.row, &mark, changes::encode_parts(None, &changed))?;
            mark.write(transaction)?;
            header.write(transaction)
        });
        if let Err(error) = outcome {
            self.resolve(&mut store, &header, error)?;
        }
        (store.header, store.mark) = (header, mark);
        // The next export reads from this snapshot.
        let snapshot = store.snapshot().or_else(|_| store.reopen());
        self.state.write().base =
            snapshot.inspect_err(|error| tracing::error!(%error, "cannot read the namespace store")).ok();
        self.has_losses.store(header.has_losses, Ordering::Relaxed);
        damage.map_or(Ok(()), Err)
    }
}
