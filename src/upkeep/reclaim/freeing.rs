//! Freeing emptied containers.
//!
//! A container is forgotten only when checkpoints of both indexes hold the row that emptied it, because replaying
//! earlier rows may read it (I-4). A checkpoint writes every changed tanker, so many containers share one. It comes by
//! itself, or on request when many bytes wait, room is short or the run ends.

use std::collections::HashSet;
use std::time::Duration;

use dedupfs_base::Result;
use dedupfs_store::ContainerId;
use dedupfs_sync::canary::{Canary, is_planted};
use dedupfs_sync::clock::Instant;

use super::{Run, Stopped};

/// Emptied containers wait about this long if they are few: a run that is cut off later has freed the earlier ones.
const FREE_INTERVAL: Duration = Duration::from_secs(20);
/// The wait is at least this multiple of a checkpoint's time; otherwise a slow disk would write only checkpoints.
const CHECKPOINTS_PER_WAIT: u32 = 4;

/// A container in which the index places nothing.
#[derive(Clone, Copy, Debug)]
pub(super) struct Emptied {
    pub(super) id: ContainerId,
    /// The row of the log that emptied it, or a later one.
    pub(super) row: u64,
    pub(super) used_bytes: u64,
    /// [`times_lost`](dedupfs_content::Indexes::times_lost) before it was searched for lost chunks, without success.
    pub(super) times_lost: u64,
    /// Whether nothing in it was alive.
    pub(super) is_dead: bool,
}

impl Emptied {
    /// Whether it may not be freed, though it was emptied. `placed`: the indexes place something there.
    fn is_kept(&self, placed: &HashSet<ContainerId>, times_lost: u64) -> bool {
        // A chunk found lost in the meantime may lie in a container that was not searched for it.
        placed.contains(&self.id) || self.times_lost != times_lost
    }
}

impl Run<'_> {
    /// Notes an emptied container.
    pub(super) fn note_emptied(&mut self, emptied: Emptied) {
        if self.emptied.is_empty() {
            self.waiting_since = Instant::now();
        }
        self.emptied.push(emptied);
    }

    /// Notes containers that could not be emptied.
    pub(super) fn keep(&mut self, containers: &[ContainerId]) {
        self.kept.extend(containers);
        self.report.containers_damaged = self.kept.len() as u64;
    }

    /// See [`Pace::between_steps`](super::pace::Pace::between_steps). Frees the emptied containers before the run is
    /// held.
    pub(super) fn between_steps(&mut self) -> Result<Option<Stopped>> {
        if self.pace.is_held() {
            self.free_emptied(true)?;
        }
        Ok(self.pace.between_steps())
    }

    /// Frees the containers that both checkpoints cover. With `now`, or when many bytes wait, makes a checkpoint first.
    pub(super) fn free_emptied(&mut self, now: bool) -> Result<()> {
        if self.emptied.is_empty() {
            return Ok(());
        }
        let core = self.core;
        // The live chunks of waiting containers exist twice, which can be a large share of a small pool.
        let waiting_bytes: u64 = self.emptied.iter().map(|emptied| emptied.used_bytes).sum();
        let is_due = self.waiting_since.elapsed() >= FREE_INTERVAL.max(self.checkpoint_took * CHECKPOINTS_PER_WAIT);
        let is_late = is_planted(Canary::FreedBeforeCheckpoint);
        if !is_late && (now || is_due || waiting_bytes >= self.free_bytes || core.space.is_tight()) {
            let began = Instant::now();
            core.committer.checkpoint()?;
            self.checkpoint_took = began.elapsed();
            self.waiting_since = Instant::now();
        }
        let covered = core.indexes.chunks.position().min(core.indexes.nodes.position());
        let (mut ready, waiting) = std::mem::take(&mut self.emptied)
            .into_iter()
            .partition::<Vec<_>, _>(|emptied| emptied.row <= covered || is_planted(Canary::FreedBeforeCheckpoint));
        self.emptied = waiting;
        if ready.is_empty() {
            return Ok(());
        }
        // The garbage map says that nothing lies there, but the indexes decide: freeing cannot be undone.
        let ids: HashSet<ContainerId> = ready.iter().map(|emptied| emptied.id).collect();
        let mut placed = core.indexes.chunks.placed_in(&ids)?;
        placed.extend(core.indexes.nodes.placed_in(&ids)?);
        if !placed.is_empty() {
            tracing::error!(
                containers = placed.len(),
                "containers are kept: the indexes place chunks there, but the garbage map does not; run `dedupfs fsck`"
            );
        }
        let times_lost = core.indexes.times_lost();
        let is_kept = |emptied: &&Emptied| emptied.is_kept(&placed, times_lost);
        let kept: Vec<ContainerId> = ready.iter().filter(is_kept).map(|emptied| emptied.id).collect();
        self.keep(&kept);
        ready.retain(|emptied| !kept.contains(&emptied.id));
        let ids: Vec<ContainerId> = ready.iter().map(|emptied| emptied.id).collect();
        if !ids.is_empty() {
            core.committer.remove_containers(ids.clone())?;
            core.committer.settle()?;
            // If a count became doubtful before the round, it kept the containers.
            core.committer.check_counts()?;
            // Their slots are freed once the export on the data root no longer names them.
            core.committer.export()?;
            self.report.containers_freed += ready.len() as u64;
            self.report.containers_dead += ready.iter().filter(|emptied| emptied.is_dead).count() as u64;
        }
        core.dedup.release_containers_of(&[ids, kept].concat());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_something_may_lie_in_is_kept() {
        let emptied = Emptied { id: ContainerId(7), row: 1, used_bytes: 1, times_lost: 3, is_dead: false };
        let (nothing, placed) = (HashSet::new(), HashSet::from([ContainerId(7)]));
        for (placed, times_lost, is_kept) in
            [(&nothing, 3, false), (&nothing, 4, true), (&placed, 3, true), (&placed, 4, true)]
        {
            assert_eq!(emptied.is_kept(placed, times_lost), is_kept, "{times_lost}");
        }
    }
}
