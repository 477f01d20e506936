//! The commit thread: the time of each round, and its steps in order. See the head of the parent module.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::time::Duration;

use dedupfs_base::{EngineError, Result};
use dedupfs_namespace::CommitInput;
use dedupfs_store::device::PoolLock;
use dedupfs_store::profile::{self, Component};
use dedupfs_store::{ContainerId, LogOp, StoreError};
use dedupfs_sync::canary::{Canary, is_planted};
use dedupfs_sync::clock::Instant;
use dedupfs_sync::thread::{Builder, Scope, ScopedJoinHandle};

use super::Committer;
use super::counting::Row;
use super::turns::Turn;

impl Committer {
    pub(super) fn run(&self, interval: Duration) {
        dedupfs_sync::thread::scope(|scope| {
            let export = || self.parts.exporter.run(|error| self.fail(error, "an export of the namespace failed"));
            if let Err(error) = Builder::new().name("export".to_owned()).spawn_scoped(scope, export) {
                tracing::warn!(%error, "cannot start the export thread: the namespace is exported when the pool is closed");
            }
            // Without these threads commits would soon be impossible.
            self.start_beside(scope, "checkpoint", || self.write_checkpoints());
            let counting = self.start_beside(scope, "count", || self.count_rows());
            if counting.is_none() {
                self.backlog.end();
            }
            self.run_rounds(interval);
            self.backlog.end();
            // The counting may wait for a checkpoint, so checkpoints are still written until it ends.
            if counting.is_some_and(|thread| thread.join().is_err()) {
                tracing::error!("the counting thread panicked");
            }
            self.checkpoints.stop();
            self.parts.exporter.stop();
        });
    }

    /// Starts a thread. Without it the pool becomes read-only.
    fn start_beside<'scope>(
        &self,
        scope: &'scope Scope<'scope, '_>,
        name: &str,
        run: impl FnOnce() + Send + 'scope,
    ) -> Option<ScopedJoinHandle<'scope, ()>> {
        match Builder::new().name(name.to_owned()).spawn_scoped(scope, run) {
            Ok(thread) => Some(thread),
            Err(error) => {
                let what = format!("{name} thread");
                self.fail(&StoreError::from_io("start", what, error).into(), "nothing can be committed");
                None
            }
        }
    }

    fn run_rounds(&self, interval: Duration) {
        let (mut last, mut last_before) = (Instant::now(), Instant::now());
        loop {
            if self.turns.next(|| interval.saturating_sub(last.elapsed())) == Turn::End {
                return;
            }
            // Before requested rounds, too: a client that syncs all the time must not keep other files from being
            // published.
            if last_before.elapsed() >= interval
                && let Some(before) = &*self.before_interval.lock()
            {
                if catch_unwind(AssertUnwindSafe(before)).is_err() {
                    tracing::error!("publishing open files panicked");
                }
                last_before = Instant::now();
            }
            self.wait_for_counting();
            last = Instant::now();
            // Also serves the requests that arrived while this thread waited.
            let (goal, asked) = self.turns.goal();
            let answer = |outcome: &Result<()>| self.turns.answer(goal, outcome.as_ref().err().cloned());
            let row = catch_unwind(AssertUnwindSafe(|| self.round(asked, &answer))).unwrap_or_else(|_| {
                let failure = EngineError::Internal("the commit thread panicked");
                self.fail(&failure, "a commit failed");
                answer(&Err(failure));
                None
            });
            self.hand_over(goal, row);
        }
    }

    /// Waits while the backlog is too large.
    fn wait_for_counting(&self) {
        if self.parts.space.is_tight() {
            // A checkpoint trims only counted rows of the log, so keep the log as short as possible.
            self.backlog.wait_while(|| (), |_| true);
        }
        self.backlog.wait_for_room();
    }

    /// Runs one round. Calls `answer` as soon as it is durable or failed. Returns the row to count.
    fn round(&self, asked: bool, answer: &dyn Fn(&Result<()>)) -> Option<Row> {
        if let Some(failure) = self.failure() {
            answer(&Err(failure));
            return None;
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
                None
            }
            Ok(row) => {
                answer(&Ok(()));
                row
            }
        }
    }

    fn round_until_durable(&self, asked: bool) -> Result<Option<Row>> {
        let _timed = profile::of(Component::Rounds);
        let parts = &self.parts;
        let mut removed = std::mem::take(&mut *self.removed.lock());
        let mut request = self.request.lock().take();
        if !removed.is_empty() && self.check_counts().is_err() {
            tracing::error!(containers = removed.len(), "emptied containers stay: {}", EngineError::CountsInDoubt);
            removed.clear();
        }
        // The stores do not forget a container that is being written or is unknown, so the namespace must not forget it
        // either.
        removed.retain(|&id| {
            let is_closed =
                parts.stores.data.closed_record(id).is_some() || parts.stores.recipes.closed_record(id).is_some();
            if !is_closed {
                tracing::error!(container = %id, "a container stays: it was to be removed, and is not closed");
            }
            is_closed
        });
        let outcome = (|| {
            // Writing out goes to slots that may belong to another process by now.
            self.check_locks()?;
            // A section must not be cut in two: its log entries belong into one row.
            let is_any = parts.dedup.between_sections(|| {
                let _timed = profile::of(Component::Freezing);
                // Added to the entries that an earlier round could not commit.
                self.committing.fetch_add(parts.namespace.take_logged_changes(), Ordering::Relaxed);
                parts.namespace.freeze()
            });
            if !is_any && !asked && removed.is_empty() {
                return Ok(None);
            }
            let data = parts.stores.data.write_out()?;
            let recipes = parts.stores.recipes.write_out()?;
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
            let record = |id: &ContainerId| parts.stores.data.record(*id).or_else(|| parts.stores.recipes.record(*id));
            let leaving: Vec<_> = removed.iter().filter_map(record).collect();
            // After writing out: a container that uses a freed slot is recorded in this commit at the earliest.
            let position = parts.exporter.position();
            self.check_locks()?;
            let timed = profile::of(Component::NamespaceCommits);
            let committed = parts.namespace.commit(CommitInput {
                exported: position.exported,
                trim_changes_through: position.trim_through,
                leaving: leaving.clone(),
                left: position.left.clone(),
                containers: data.records.iter().chain(&recipes.records).cloned().collect(),
                removed_containers: removed.clone(),
                extends,
                trim_log_through: if is_planted(Canary::TrimmedEarly) {
                    parts.namespace.last_row()
                } else {
                    parts.indexes.chunks.position().min(parts.indexes.nodes.position())
                },
            })?;
            drop(timed);
            parts.stores.data.acknowledge(&data.records);
            parts.stores.recipes.acknowledge(&recipes.records);
            for store in [&parts.stores.data, &parts.stores.recipes] {
                // The transaction is durable. A container that is not forgotten only costs space, and the next mount
                // finds it.
                if !is_planted(Canary::FreedStillKnown)
                    && let Err(error) = store.forget(&removed)
                {
                    tracing::warn!(%error, "a removed container is not forgotten yet");
                }
            }
            parts.exporter.note_left(&position.left);
            parts.exporter.leave(committed.row, leaving);
            self.rounds.fetch_add(1, Ordering::Relaxed);
            let request = request.take().map(|request| request.with_names(&parts.namespace));
            Ok(Some(Row { row: committed.row, ops: committed.ops, extended, request }))
        })();
        if outcome.is_err() {
            self.removed.lock().extend(removed);
        }
        // Of a round that did nothing, or failed.
        if let Some(request) = request {
            self.request.lock().get_or_insert(request);
        }
        outcome
    }

    /// Checks that this process still owns the pool alone.
    fn check_locks(&self) -> Result<()> {
        let locks = self.parts.locks.upgrade();
        Ok(locks.iter().flat_map(|locks| locks.iter()).try_for_each(PoolLock::check)?)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicU64;

    use dedupfs::{NoProgress, OpenOptions, Pool, format_on};
    use dedupfs_store::device::{Device, MemoryDevice};
    use dedupfs_store::superblock::PoolProperties;

    use super::*;

    /// Otherwise a file that is written for days would be lost with the power.
    #[test]
    fn files_that_are_open_for_long_are_looked_for_at_each_interval() {
        let device: Arc<dyn Device> = Arc::new(MemoryDevice::new());
        format_on(&device, &device, b".".to_vec(), &PoolProperties::default(), (0, 0)).expect("formats");
        let options = OpenOptions { commit_interval: Duration::from_millis(20), ..OpenOptions::default() };
        let pool = Pool::open_on(&device, &device, Vec::new(), &options, &NoProgress).expect("opens");
        let looked = Arc::new(AtomicU64::new(0));
        let count = looked.clone();
        let look = Box::new(move || _ = count.fetch_add(1, Ordering::Relaxed));
        *pool.core().committer.before_interval.lock() = Some(look);
        let begun = Instant::now();
        while looked.load(Ordering::Relaxed) < 3 {
            assert!(begun.elapsed().as_secs() < 10, "looked {looked:?} times");
            dedupfs_sync::thread::sleep(Duration::from_millis(5));
        }
    }
}
