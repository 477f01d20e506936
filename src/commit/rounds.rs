//! The commit thread: when a round is made, and its steps in their order. See the parent's head.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use dedupfs_store::ContainerId;

use super::{Committer, Consumed, Consumer};
use crate::error::{EngineError, Result};
use crate::namespace::{CommitInput, LogOp};

impl Committer {
    pub(super) fn run(&self, interval: Duration) {
        std::thread::scope(|scope| {
            let export = || self.parts.exporter.run(|error| self.fail(error, "an export of the namespace failed"));
            if let Err(error) = std::thread::Builder::new().name("export".to_owned()).spawn_scoped(scope, export) {
                tracing::warn!(%error, "cannot start the export thread: the namespace is exported when the pool is closed");
            }
            // Without it nothing could be committed for long.
            match std::thread::Builder::new().name("flush".to_owned()).spawn_scoped(scope, || self.write_checkpoints())
            {
                Ok(_) => self.run_rounds(interval),
                Err(error) => {
                    let error = dedupfs_store::StoreError::from_io("start", "flush thread", error);
                    self.fail(&error.into(), "cannot write checkpoints");
                    self.run_rounds(interval);
                }
            }
            self.flushes.stop();
            self.parts.exporter.stop();
        });
    }

    fn run_rounds(&self, interval: Duration) {
        let (mut last, mut last_before) = (Instant::now(), Instant::now());
        loop {
            let mut state = self.state.lock();
            while state.requested == state.finished && !state.stopping {
                let due = interval.saturating_sub(last.elapsed());
                if due.is_zero() || self.wake.wait_for(&mut state, due).timed_out() {
                    break;
                }
            }
            let goal = state.requested;
            let asked = goal != state.finished;
            if state.stopping && !asked {
                return;
            }
            drop(state);
            // Not only in rounds of its own: who syncs all the time must not keep the others from being published.
            if last_before.elapsed() >= interval
                && let Some(before) = &*self.before_interval.lock()
            {
                if std::panic::catch_unwind(std::panic::AssertUnwindSafe(before)).is_err() {
                    tracing::error!("publishing open files panicked");
                }
                last_before = Instant::now();
            }
            last = Instant::now();
            let answer = |outcome: &Result<()>| {
                let mut state = self.state.lock();
                state.outcome = outcome.as_ref().err().cloned();
                state.finished = goal;
                self.done.notify_all();
            };
            if std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| self.round(asked, &answer))).is_err() {
                let failure = EngineError::Internal("the commit thread panicked");
                self.fail(&failure, "a commit failed");
                answer(&Err(failure));
            }
            self.state.lock().consumed = goal;
            self.done.notify_all();
        }
    }

    /// One round; `answer` is called as soon as it is durable, or failed.
    fn round(&self, asked: bool, answer: &dyn Fn(&Result<()>)) {
        if let Some(failure) = self.failure() {
            return answer(&Err(failure));
        }
        match self.round_until_durable(asked) {
            Err(error) => {
                if error.is_no_space() {
                    self.rounds_without_space.fetch_add(1, Ordering::Relaxed);
                    tracing::error!(
                        %error,
                        "a commit failed for lack of space, and is tried again: something else uses the disks' reserve; free \
                         some space there"
                    );
                } else {
                    self.fail(&error, "a commit failed");
                }
                answer(&Err(error));
            }
            Ok(row) => {
                answer(&Ok(()));
                if let Some((row, ops, extended)) = row
                    && let Err(error) = self.after(row, &ops, &extended)
                {
                    self.fail(&error, "counting failed");
                }
            }
        }
    }

    #[expect(clippy::type_complexity, reason = "one caller, right above")]
    fn round_until_durable(&self, asked: bool) -> Result<Option<(u64, Vec<LogOp>, Vec<crate::containers::Extended>)>> {
        let parts = &self.parts;
        let removed = std::mem::take(&mut *self.removed.lock());
        let mut left = Vec::new();
        let outcome = (|| {
            // No section may be cut in two: what it logs belongs into one row.
            let is_any = parts.dedup.between_sections(|| {
                // What an earlier round could not commit is still to come.
                self.consuming.fetch_add(parts.namespace.take_logged_changes(), Ordering::Relaxed);
                parts.namespace.freeze()
            });
            if !is_any && !asked && removed.is_empty() {
                return Ok(None);
            }
            let data = parts.data.flush()?;
            let recipes = parts.recipes.flush()?;
            let extended: Vec<_> = data.extends.into_iter().chain(recipes.extends).collect();
            let extends = extended
                .iter()
                .map(|extended| LogOp::Extend {
                    container: extended.container,
                    kind: extended.kind,
                    from_bytes: extended.from_bytes,
                    to_bytes: extended.to_bytes,
                })
                .collect();
            let record = |id: &ContainerId| parts.data.record(*id).or_else(|| parts.recipes.record(*id));
            let leaving: Vec<_> = removed.iter().filter_map(record).collect();
            // After the flush: whoever uses a slot that was freed is recorded in no earlier commit than this.
            let position = parts.exporter.position();
            left = position.left;
            let committed = parts.namespace.commit(CommitInput {
                exported: position.exported,
                trim_changes_through: position.trim_through,
                leaving: leaving.clone(),
                left: left.clone(),
                containers: data.records.iter().chain(&recipes.records).cloned().collect(),
                removed_containers: removed.clone(),
                extends,
                trim_log_through: parts.chunk_index.position().min(parts.recipe_index.position()),
            })?;
            parts.data.acknowledge(&data.records);
            parts.recipes.acknowledge(&recipes.records);
            for store in [&parts.data, &parts.recipes] {
                // The transaction is durable: a container that is not forgotten is only space, and is found at the next mount.
                if let Err(error) = store.forget(&removed) {
                    tracing::warn!(%error, "a removed container is not forgotten yet");
                }
            }
            parts.exporter.leave(committed.row, leaving);
            self.rounds.fetch_add(1, Ordering::Relaxed);
            Ok(Some((committed.row, committed.ops, extended)))
        })();
        if outcome.is_err() {
            self.removed.lock().extend(removed);
            parts.exporter.not_left(left);
        }
        outcome
    }

    /// Consumes a durable row and checkpoints when it is time.
    fn after(&self, row: u64, ops: &[LogOp], extended: &[crate::containers::Extended]) -> Result<()> {
        // Whoever appended what this row made durable must have staged it before it is applied, or the staged place
        // would stay for ever.
        self.parts.dedup.barrier();
        self.note(self.consumer().consume(row, ops, Some(extended))?)?;
        self.consuming.store(0, Ordering::Relaxed);
        self.flush_if_due(row)
    }

    pub(super) fn note(&self, consumed: Consumed) -> Result<()> {
        self.changes_since_checkpoint.fetch_add(consumed.changes, Ordering::Relaxed);
        self.inconsistencies.fetch_add(consumed.inconsistencies, Ordering::Relaxed);
        // What was counted and is nowhere has become a cell without a place.
        if consumed.inconsistencies > 0 {
            match self.parts.namespace.set_losses(true) {
                // In force all the same; the next commit notes it.
                Err(error) if error.is_no_space() => {
                    tracing::warn!(%error, "no space to note that something is lost; it is tried again");
                }
                noted => noted?,
            }
        }
        Ok(())
    }

    pub(super) fn consumer(&self) -> Consumer<'_> {
        Consumer {
            chunk_index: &self.parts.chunk_index,
            recipe_index: &self.parts.recipe_index,
            nodes: self.parts.dedup.nodes(),
            data: &self.parts.data,
            recipes: &self.parts.recipes,
        }
    }
}
