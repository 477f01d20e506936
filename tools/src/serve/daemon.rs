//! The target of the control socket: the pool, its session, and their end.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::control::{ControlTarget, Failure, FailureKind, GetRequest, PutRequest};
use dedupfs::check::{CheckOptions, CheckReport};
use dedupfs::reclaim::{ReclaimOptions, ReclaimReport, ReclaimStatus};
use dedupfs::scrub::{ScrubOptions, ScrubReport, ScrubStatus};
use dedupfs::stats::PoolStats;
use dedupfs::transfer::{self, TransferReport};
use dedupfs::{Pool, Progress, TrialReport};
use dedupfs_fuse::MountedSession;
use parking_lot::{Condvar, Mutex};

use super::BUSY_PATIENCE;
use super::transfers::Transfers;
use crate::gc_policy::Policy;
use crate::{mount, report};

/// Time between the check whether the pool may become read-only and the switch, while the kernel writes back its cache.
const HOLD_TIMEOUT: Duration = Duration::from_secs(2);

/// The result of closing the pool, once it is closed.
#[derive(Default)]
pub(super) struct End {
    result: Mutex<Option<Result<(), Failure>>>,
    told: Condvar,
}

impl End {
    pub(super) fn tell(&self, result: Result<(), Failure>) {
        *self.result.lock() = Some(result);
        self.told.notify_all();
    }

    fn wait(&self) -> Result<(), Failure> {
        let mut result = self.result.lock();
        loop {
            match &*result {
                Some(result) => return result.clone(),
                None => self.told.wait(&mut result),
            }
        }
    }
}

/// The target of the control socket. Never dropped before the process ends: the thread that waits for the session holds it, and dropping a
/// session that does not end would wait for it.
pub(super) struct Daemon {
    pub(super) pool: Arc<Pool>,
    pub(super) session: MountedSession,
    /// The mount's device number, such as "0:57".
    pub(super) device: Option<String>,
    pub(super) gc: Policy,
    pub(super) transfers: Transfers,
    pub(super) end: End,
}

impl ControlTarget for Daemon {
    fn stats(&self) -> Result<PoolStats, Failure> {
        Ok(self.pool.stats()?)
    }

    fn sync(&self) -> Result<(), Failure> {
        Ok(self.pool.sync()?)
    }

    fn reclaim(&self, options: &ReclaimOptions, progress: &dyn Progress) -> Result<ReclaimReport, Failure> {
        if options.dry_run {
            return Ok(self.pool.reclaim(options, progress)?);
        }
        let ReclaimOptions { threshold_percent, max_time_ms, max_io_bytes, .. } = *options;
        tracing::info!(threshold_percent, max_time_ms, max_io_bytes, "asked to reclaim");
        let report = self.pool.reclaim(options, progress).inspect_err(|error| {
            tracing::info!(%error, "reclaiming failed");
        })?;
        report::log_reclaimed(&report, "reclaimed");
        Ok(report)
    }

    fn reclaim_status(&self) -> Result<ReclaimStatus, Failure> {
        let background = self.gc.is_on.then(|| self.gc.to_string());
        Ok(ReclaimStatus { background, ..self.pool.reclaim_status() })
    }

    fn stop_reclaim(&self) -> Result<(), Failure> {
        tracing::info!("asked to stop reclaiming");
        self.pool.reclaiming().stop();
        Ok(())
    }

    fn pause_reclaim(&self, paused: bool) -> Result<(), Failure> {
        tracing::info!(paused, "asked to pause or resume reclaiming");
        self.pool.reclaiming().pause(paused);
        Ok(())
    }

    fn check(&self, options: &CheckOptions, progress: &dyn Progress) -> Result<CheckReport, Failure> {
        Ok(self.pool.check(options, progress)?)
    }

    fn scrub(&self, options: &ScrubOptions, progress: &dyn Progress) -> Result<ScrubReport, Failure> {
        tracing::info!(rate_bytes_per_s = options.rate_bytes_per_s, restart = options.restart, "scrubbing");
        let report = self.pool.scrub(options, progress)?;
        let (bad, files) = (report.bad_chunks + report.bad_nodes, report.affected.file_count);
        let lost = report.lost_chunks + report.lost_nodes;
        tracing::info!(finished = report.finished, containers = report.containers, bad, lost, files, "scrubbed");
        Ok(report)
    }

    fn scrub_status(&self) -> Result<ScrubStatus, Failure> {
        Ok(self.pool.scrub_status()?)
    }

    fn stop_scrub(&self) -> Result<(), Failure> {
        self.pool.stop_scrub();
        Ok(())
    }

    fn stop_trial(&self) -> Result<(), Failure> {
        self.pool.stop_trial();
        Ok(())
    }

    fn trial_recovery(&self, scratch: &Path, progress: &dyn Progress) -> Result<TrialReport, Failure> {
        tracing::info!(scratch = %scratch.display(), "making a trial recovery");
        let report = self.pool.trial_recovery(scratch, progress)?;
        let TrialReport { row, files, directories, elapsed_ms, .. } = report;
        if report.is_sound() {
            tracing::info!(row, files, directories, elapsed_ms, "a recovery would give everything that was exported");
        } else {
            report.missing.iter().for_each(|missing| tracing::error!("a recovery would miss: {missing}"));
            tracing::error!(row, files, directories, elapsed_ms, "a recovery would give less than was exported");
        }
        Ok(report)
    }

    fn put(&self, request: &PutRequest, from: OwnedFd, progress: &dyn Progress) -> Result<TransferReport, Failure> {
        let name = String::from_utf8_lossy(&request.name);
        tracing::info!(%name, "copying a tree into the pool");
        let to = (request.into, request.name.as_slice());
        let transfer = self.transfers.begin(progress);
        let copied = self.pool.put(&request.options, from, to, &transfer);
        tell_copied(&name, copied)
    }

    fn get(&self, request: &GetRequest, to: OwnedFd, progress: &dyn Progress) -> Result<TransferReport, Failure> {
        let name = String::from_utf8_lossy(&request.name);
        tracing::info!(ino = request.ino, %name, "copying a tree out of the pool");
        let transfer = self.transfers.begin(progress);
        let copied = self.pool.get(request.ino, (to, &request.name), &transfer);
        tell_copied(&name, copied)
    }

    fn unmount(&self, lazy: bool) -> Result<(), Failure> {
        tracing::info!(lazy, "asked to unmount");
        if lazy {
            self.session.detach();
        } else if let Err(error) = self.session.unmount(BUSY_PATIENCE) {
            return Err(mount::failure(&error));
        }
        self.end.wait()
    }

    fn await_end(&self) -> Result<(), Failure> {
        self.end.wait()
    }

    fn prepare_read_only(&self) -> Result<(), Failure> {
        if self.transfers.hold(HOLD_TIMEOUT) { Ok(()) } else { Err(is_copying()) }
    }

    fn set_read_only(&self, read_only: bool) -> Result<(), Failure> {
        if read_only {
            if self.transfers.are_running() {
                return Err(is_copying());
            }
            self.pool.set_read_only()?;
            tracing::info!("read-only from now on: everything is durable, nothing more is written");
        } else {
            self.pool.set_writable()?;
            tracing::info!("writable again");
        }
        Ok(())
    }
}

fn is_copying() -> Failure {
    let why = "a tree is being copied by `dedupfs put` or `get`: wait for it, or interrupt it";
    Failure::new(FailureKind::MountpointUnusable, why)
}

fn tell_copied(name: &str, copied: transfer::Result<TransferReport>) -> Result<TransferReport, Failure> {
    match &copied {
        Ok(report) => {
            let (bytes, problems) = (report.content_bytes, report.problem_count);
            tracing::info!(name, files = report.files, bytes, problems, ms = report.elapsed_ms, "copied a tree");
        }
        Err(error) => tracing::warn!(name, %error, "a tree was not copied"),
    }
    Ok(copied?)
}
