//! Containers that leave: their slots are freed once no durable export names them.

use std::collections::HashSet;

use dedupfs_base::Result;
use dedupfs_namespace::Exported;
use dedupfs_store::{ContainerId, ContainerKind, ContainerRecord};
use dedupfs_sync::canary::{Canary, is_planted};

use super::{Exporter, Work};

/// The facts about the export that a commit stores.
#[derive(Clone, Debug, Default)]
pub(crate) struct Position {
    /// The durable export.
    pub exported: Option<Exported>,
    /// Rows up to this one no longer need their change notes.
    pub trim_through: u64,
    /// Containers that have left: their slots are free.
    pub left: Vec<ContainerId>,
}

impl Exporter {
    /// Returns the position that the next commit stores. Behind the commit, [`note_left`](Self::note_left) must get
    /// [`left`](Position::left).
    pub(crate) fn position(&self) -> Position {
        if !self.is_enabled {
            return Position::default();
        }
        let state = self.state.lock();
        let durable = if state.exported.generation == 0 { u64::MAX } else { state.exported.row };
        Position {
            exported: Some(state.exported),
            trim_through: [state.building, state.held.map(|(_, row)| row)]
                .into_iter()
                .flatten()
                .fold(durable, u64::min),
            left: state.left.clone(),
        }
    }

    /// Notes that a commit has recorded this `left`.
    pub(crate) fn note_left(&self, left: &[ContainerId]) {
        if !left.is_empty() {
            let left: HashSet<_> = left.iter().collect();
            self.state.lock().left.retain(|id| !left.contains(id));
        }
    }

    /// Notes the containers removed by the commit `row`. Their slots become free once no export names them.
    pub(crate) fn leave(&self, row: u64, containers: Vec<ContainerRecord>) {
        if is_planted(Canary::FreedBeforeExport) {
            let (recipes, data): (Vec<_>, Vec<_>) =
                containers.iter().cloned().partition(|record| record.kind == ContainerKind::Recipe);
            let _freed = (self.stores.recipes.free(&recipes), self.stores.data.free(&data));
            return;
        }
        self.state.lock().leaving.extend(containers.into_iter().map(|record| (row, record)));
    }

    /// Frees the first `waiting` leaving containers. No durable export names them.
    pub(super) fn free(&self, work: &mut Work, waiting: usize) -> Result<()> {
        // A stale export counts on the disk and names them.
        if waiting == 0 || work.stale.is_some() {
            return Ok(());
        }
        self.check_possession()?;
        let freed: Vec<ContainerRecord> = {
            let mut state = self.state.lock();
            let freed: Vec<_> = state.leaving.drain(..waiting).map(|(_, record)| record).collect();
            // Noted before any slot can be reused: no commit may record a new user of a slot while its old container still leaves.
            state.left.extend(freed.iter().map(|record| record.id));
            freed
        };
        let (recipes, data): (Vec<_>, Vec<_>) =
            freed.into_iter().partition(|record| record.kind == ContainerKind::Recipe);
        // Copies that cannot be removed only cost space.
        if !recipes.is_empty()
            && let Err(error) = self.trim_mirror(work, &recipes)
        {
            tracing::warn!(%error, "copies of recipes that are gone keep their space");
        }
        for (store, records) in [(&self.stores.recipes, &recipes), (&self.stores.data, &data)] {
            // A slot that cannot be freed only costs space, and the next mount finds it.
            if !records.is_empty()
                && let Err(error) = store.free(records)
            {
                tracing::warn!(%error, "a freed container's slot is not free yet");
            }
        }
        Ok(())
    }

    pub(super) fn trim_mirror(&self, work: &mut Work, freed: &[ContainerRecord]) -> Result<()> {
        if work.is_to_set_aside {
            return Ok(());
        }
        for record in freed {
            work.mirror.free(record.address)?;
        }
        // From the namespace, because a round changes the lists in memory behind its commit, one after the other. Those whose slots are
        // free are left out; they are looked up first, because a commit ends that, too.
        let left: HashSet<ContainerId> = self.state.lock().left.iter().copied().collect();
        let (kept, leaving) = self.namespace.containers_and_leaving(ContainerKind::Recipe)?;
        work.mirror.trim(kept.iter().chain(leaving.iter().filter(|record| !left.contains(&record.id))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::export::site::{formatted, open};

    /// Else the slots of these containers stay taken until the next mount.
    #[test]
    fn containers_that_left_are_given_to_each_commit_until_one_has_recorded_them() {
        let (meta, data) = formatted();
        let pool = open(&meta, &data);
        let exporter = &pool.core().exporter;
        exporter.state.lock().left.extend([ContainerId(1), ContainerId(2)]);
        for _ in 0..2 {
            assert_eq!(exporter.position().left, [ContainerId(1), ContainerId(2)]);
        }
        exporter.note_left(&[ContainerId(1)]);
        assert_eq!(exporter.position().left, [ContainerId(2)]);
    }
}
