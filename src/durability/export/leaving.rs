//! Containers that leave: their slots are freed once no durable export names them.

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
    /// Returns the position that the next commit stores. If the commit fails, [`not_left`](Self::not_left) must return
    /// [`left`](Position::left).
    pub(crate) fn position(&self) -> Position {
        if !self.is_enabled {
            return Position::default();
        }
        let mut state = self.state.lock();
        let durable = if state.exported.generation == 0 { u64::MAX } else { state.exported.row };
        Position {
            exported: Some(state.exported),
            trim_through: [state.building, state.held.map(|(_, row)| row)]
                .into_iter()
                .flatten()
                .fold(durable, u64::min),
            left: std::mem::take(&mut state.left),
        }
    }

    /// Takes back the `left` of a failed commit.
    pub(crate) fn not_left(&self, left: Vec<ContainerId>) {
        self.state.lock().left.extend(left);
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
        let leaving: Vec<ContainerRecord> = self.state.lock().leaving.iter().map(|(_, record)| *record).collect();
        let kept = self.stores.recipes.containers();
        work.mirror.trim(kept.iter().chain(leaving.iter().filter(|record| record.kind == ContainerKind::Recipe)))
    }
}
