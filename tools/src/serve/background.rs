//! Reclaiming and arranging in the background of a mount, by its [`Policy`].
//!
//! A thread looks at each interval and runs when the policy allows it. When a run finds nothing to do, and nothing was committed since
//! before the run, the thread waits for the next commit. Content deleted during a run is left to the next run. A run that finds nothing to
//! do costs one look at the index of recipe nodes. A mount that arranges alone lists the versions at each look behind a commit.

use std::sync::Arc;

use crossbeam_channel::{RecvTimeoutError, Sender, bounded};
use dedupfs::{EngineError, NoProgress, Pool};

use crate::control::{Failure, FailureKind};
use crate::gc_policy::{IDLE_AFTER, Policy};
use crate::report;

/// The thread that reclaims. It ends when this is [stopped](Self::stop).
pub(super) struct Background {
    stop: Sender<()>,
}

impl Background {
    pub(super) fn start(pool: &Arc<Pool>, policy: Policy) -> Result<Option<Self>, Failure> {
        if !policy.does_anything() {
            return Ok(None);
        }
        let (stop, stopped) = bounded(1);
        let mut worker = Worker { pool: pool.clone(), policy, done: None, has_told_doubt: false };
        let work = move || {
            while stopped.recv_timeout(policy.interval) == Err(RecvTimeoutError::Timeout) {
                worker.look();
            }
        };
        super::spawn("background-gc", work)?;
        Ok(Some(Self { stop }))
    }

    /// Ends the thread, and a run after its current step. Closing the pool waits for that step only.
    pub(super) fn stop(self, pool: &Pool) {
        drop(self.stop);
        pool.reclaiming().close();
    }
}

struct Worker {
    pool: Arc<Pool>,
    policy: Policy,
    /// The last row of the log when there was nothing to do: nothing is tried again until another one comes.
    done: Option<u64>,
    /// The log says that nothing can be freed. That lasts as long as the mount.
    has_told_doubt: bool,
}

impl Worker {
    fn has_new_versions(&self) -> bool {
        self.pool.has_new_versions().unwrap_or_else(|error| {
            tracing::warn!(%error, "cannot tell whether versions are new");
            false
        })
    }

    fn look(&mut self) {
        let is_idle = self.pool.idle_for() >= IDLE_AFTER;
        let row = self.pool.last_row();
        if self.pool.has_doubt() {
            if !self.has_told_doubt {
                tracing::error!("nothing is reclaimed in the background: {}", EngineError::CountsInDoubt);
            }
            self.has_told_doubt = true;
            return;
        }
        if self.pool.is_read_only()
            || self.pool.reclaiming().is_paused()
            || self.done == Some(row)
            || self.policy.waits_for_idle() && !is_idle
        {
            return;
        }
        if !self.policy.is_on && !self.has_new_versions() {
            self.done = Some(row);
            return;
        }
        let now = jiff::Zoned::now();
        let max_time = match self.policy.window {
            Some(window) if !window.includes(now.hour()) => return,
            window => window.map(|window| window.left(now.hour(), now.minute())),
        };
        match self.pool.reclaim(&self.policy.options(max_time, is_idle), &NoProgress).map_err(Failure::from) {
            Ok(report) => {
                if report.nodes_freed + report.containers_freed > 0 {
                    let did =
                        if self.policy.is_on { "reclaimed in the background" } else { "arranged in the background" };
                    report::log_reclaimed(&report, did);
                }
                // Rows of this run and of others cannot be told apart in time, so any new row means another look.
                let leaves_order = !is_idle && self.policy.arranges_when_idle() && self.has_new_versions();
                let is_done = report.is_idle() && self.pool.last_row() == row && !leaves_order;
                // What is not arranged now waits for the next version.
                self.done = if self.policy.is_on { is_done.then_some(row) } else { Some(self.pool.last_row()) };
            }
            // Another process or thread works on the pool: the next look may find it free.
            Err(failure) if failure.kind == FailureKind::PoolInUse || self.pool.reclaiming().is_closed() => {
                tracing::debug!(%failure, "the pool is busy: no reclaiming now")
            }
            Err(failure) => {
                tracing::error!(%failure, "reclaiming in the background failed");
                // Do not try again before something changes.
                self.done = Some(row);
            }
        }
    }
}
