//! The target of the control socket: the pool, its session, and their end.

use std::fs::File;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use dedupfs::SeriesRecord;
use dedupfs::reclaim::{ReclaimOptions, ReclaimReport, ReclaimStatus};
use dedupfs::scrub::{COPIES_BYTES_MAX, LOST_AT_ONCE, ScrubOptions, ScrubReport, decode_copies, encode_lost};
use dedupfs::transfer::{self, ASKED_AT_ONCE, ImageFiles, NamedImage, QUESTION_BYTES, TransferReport};
use dedupfs::{Pool, Progress, TRIAL_MEMORY_BYTES, TrialReport, VersionReport};
use dedupfs_fuse::MountedSession;
use parking_lot::{Condvar, Mutex};

use super::BUSY_PATIENCE;
use super::transfers::Transfers;
use crate::control::{
    ControlTarget, Failure, FailureKind, FreezeRequest, GetRequest, PutImageRequest, PutRequest, Request,
    SnapshotRequest, to_value, without_descriptor,
};
use crate::gc_policy::Policy;
use crate::{changes, report};

/// Time between the check whether the pool may become read-only and the switch, while the kernel writes back its cache.
const HOLD_TIMEOUT: Duration = Duration::from_secs(2);
/// While the export is held, the daemon looks at this interval whether the pool is to be closed.
const HOLD_LOOK_INTERVAL: Duration = Duration::from_millis(100);

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
    /// The pool is the view of a replica.
    pub(super) is_view: bool,
    pub(super) session: MountedSession,
    pub(super) device: Option<String>,
    pub(super) gc: Policy,
    pub(super) transfers: Transfers,
    pub(super) end: End,
}

impl ControlTarget for Daemon {
    fn perform(
        &self,
        request: Request,
        descriptors: Vec<OwnedFd>,
        progress: &dyn Progress,
    ) -> Result<serde_json::Value, Failure> {
        let mut descriptors = descriptors.into_iter();
        let mut descriptor = || descriptors.next().ok_or_else(without_descriptor);
        match request {
            Request::Stats => to_value(self.pool.stats()?),
            Request::Sync => to_value(self.pool.sync()?),
            Request::Reclaim(options) => to_value(self.reclaim(&options, progress)?),
            Request::ReclaimStatus => {
                let background = self.gc.is_on.then(|| self.gc.to_string());
                to_value(ReclaimStatus { background, ..self.pool.reclaim_status() })
            }
            Request::StopReclaim => {
                tracing::info!("asked to stop reclaiming");
                self.pool.reclaiming().stop();
                to_value(())
            }
            Request::PauseReclaim(paused) => {
                tracing::info!(paused, "asked to pause or resume reclaiming");
                self.pool.reclaiming().pause(paused);
                to_value(())
            }
            Request::Check(options) => to_value(self.pool.check(&options, progress)?),
            Request::Scrub(options) => to_value(self.scrub(&options, progress)?),
            Request::ScrubStatus => to_value(self.pool.scrub_status()?),
            Request::StopScrub => {
                self.pool.stop_scrub();
                to_value(())
            }
            Request::StopTrial => {
                self.pool.stop_trial();
                to_value(())
            }
            Request::LostContent { max } => to_value(self.lost_content(max, descriptor()?)?),
            Request::Heal { len_bytes } => to_value(self.heal(len_bytes, descriptor()?)?),
            Request::TrialRecovery(scratch) => to_value(self.trial_recovery(&scratch, progress)?),
            Request::HoldExport => to_value(self.hold_export(descriptor()?, progress)?),
            Request::Put(request) => to_value(self.put(&request, descriptor()?, progress)?),
            Request::PutImage(request) => {
                let image = descriptor()?;
                let named = (request.options.named != NamedImage::No).then(&mut descriptor).transpose()?;
                to_value(self.put_image(&request, (image, named, descriptor().ok()), progress)?)
            }
            Request::Cutting => to_value(self.pool.cutting()),
            Request::AnswerAhead { count } => to_value(self.answer_ahead(count, &descriptor()?)?),
            Request::Get(request) => to_value(self.get(&request, descriptor()?, progress)?),
            Request::Snapshot(request) => to_value(self.snapshot(&request, progress)?),
            Request::Freeze(request) => to_value(self.freeze(&request, progress)?),
            Request::Thaw { from, into, name } => {
                tracing::info!(from, name = %String::from_utf8_lossy(&name), "making a live tree of a version");
                let transfer = self.transfers.begin();
                to_value(self.pool.thaw(from, (into, &name), &transfer.progress(progress))?)
            }
            Request::WouldFree(inos) => to_value(self.pool.would_free(&inos, progress)?),
            Request::TreeStats(directory) => to_value(self.pool.tree_stats(directory, progress)?),
            Request::VersionSizes(directory) => to_value(self.pool.version_sizes(directory, progress)?),
            Request::Versions(directory) => to_value(self.pool.versions(directory)?),
            Request::Difference { directories, resume } => {
                to_value(self.pool.difference(directories, &resume, progress)?)
            }
            Request::History { directory, path } => to_value(self.pool.history(directory, &path, progress)?),
            Request::Forget { directory, name, version } => {
                self.pool.allow_forgetting(directory, &name, Some(version))?;
                tracing::info!(directory, name = %String::from_utf8_lossy(&name), "a version may be removed");
                to_value(())
            }
            Request::HeldVersions => to_value(self.pool.held_versions()?),
            Request::Series(directory) => to_value(self.pool.series(directory)?.map(|record| record.encode())),
            Request::SetSeries { directory, record } => {
                let record = record.map(|record| SeriesRecord::decode(&record)).transpose()?;
                let had_versions = self.pool.has_versions();
                let before = self.pool.set_series(directory, record)?;
                let is_upgraded = !had_versions && self.pool.has_versions();
                let rules = record.map_or_else(|| "none".to_owned(), |record| record.rules.to_string());
                tracing::info!(directory, rules, "the rules of a series");
                to_value((before.map(|before| before.encode()), is_upgraded))
            }
            Request::Unmount { lazy } => to_value(self.unmount(lazy)?),
            Request::AwaitEnd => to_value(self.end.wait()?),
            Request::PrepareReadOnly => match self.transfers.hold(HOLD_TIMEOUT) {
                true => to_value(()),
                false => Err(is_copying()),
            },
            Request::SetReadOnly(read_only) => to_value(self.set_read_only(read_only)?),
        }
    }
}

impl Daemon {
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

    fn scrub(&self, options: &ScrubOptions, progress: &dyn Progress) -> Result<ScrubReport, Failure> {
        if self.is_view {
            let message = "this is the view of a replica: `dedupfs replica verify STORE` reads a replica back";
            return Err(FailureKind::Usage.because(message));
        }
        tracing::info!(rate_bytes_per_s = options.rate_bytes_per_s, restart = options.restart, "scrubbing");
        let report = self.pool.scrub(options, progress)?;
        let (bad, files) = (report.bad_chunks + report.bad_nodes, report.affected.file_count);
        let lost = report.lost_chunks + report.lost_nodes;
        let (finished, containers, repaired) = (report.finished, report.containers, report.repaired_nodes);
        tracing::info!(finished, containers, bad, repaired, lost, files, "scrubbed");
        Ok(report)
    }

    fn lost_content(&self, max: u32, file: OwnedFd) -> Result<(), Failure> {
        let lost = encode_lost(&self.pool.lost_content((max as usize).min(LOST_AT_ONCE))?);
        File::from(file)
            .write_all_at(&lost, 0)
            .map_err(|error| Failure::failed(format!("cannot tell what is lost: {error}")))
    }

    fn heal(&self, len_bytes: u32, file: OwnedFd) -> Result<u64, Failure> {
        let mut bytes = vec![0; (len_bytes as usize).min(COPIES_BYTES_MAX)];
        let read = File::from(file).read_exact_at(&mut bytes, 0);
        read.map_err(|error| Failure::failed(format!("cannot read copies of lost content: {error}")))?;
        Ok(self.pool.heal(&decode_copies(&bytes)?)?)
    }

    fn trial_recovery(&self, scratch: &Path, progress: &dyn Progress) -> Result<TrialReport, Failure> {
        tracing::info!(scratch = %scratch.display(), "making a trial recovery");
        let report = self.pool.trial_recovery(scratch, TRIAL_MEMORY_BYTES, progress)?;
        let TrialReport { row, files, directories, elapsed_ms, .. } = report;
        if report.is_sound() {
            tracing::info!(row, files, directories, elapsed_ms, "a recovery would give everything that was exported");
        } else {
            report.missing.iter().for_each(|missing| tracing::error!("a recovery would miss: {missing}"));
            tracing::error!(row, files, directories, elapsed_ms, "a recovery would give less than was exported");
        }
        Ok(report)
    }

    /// Holds the export until the other end closes, or the pool is to be closed.
    fn hold_export(&self, stream: OwnedFd, progress: &dyn Progress) -> Result<(), Failure> {
        let transfer = self.transfers.begin();
        let progress = transfer.progress(progress);
        let mut stream = UnixStream::from(stream);
        let hold = self.pool.hold_export()?;
        let failed = |error: std::io::Error| Failure::failed(format!("the other end of a hold is gone: {error}"));
        let mut line = serde_json::to_vec(&hold.position()).map_err(|error| failed(error.into()))?;
        line.push(b'\n');
        stream.set_read_timeout(Some(HOLD_LOOK_INTERVAL)).and_then(|()| stream.write_all(&line)).map_err(failed)?;
        while !progress.is_cancelled() {
            match stream.read(&mut [0]) {
                Ok(0) => break,
                Err(error)
                    if !matches!(
                        error.kind(),
                        ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
                    ) =>
                {
                    break;
                }
                _ => {}
            }
        }
        // The tool must not believe in the hold any more when slots are freed.
        let _gone = stream.shutdown(Shutdown::Both);
        drop(hold);
        Ok(())
    }

    fn put(&self, request: &PutRequest, from: OwnedFd, progress: &dyn Progress) -> Result<TransferReport, Failure> {
        let name = String::from_utf8_lossy(&request.name);
        tracing::info!(%name, "copying a tree into the pool");
        let to = (request.into, request.name.as_slice());
        let transfer = self.transfers.begin();
        let copied = self.pool.put(&request.options, from, to, &transfer.progress(progress));
        tell_copied(&name, copied)
    }

    fn put_image(
        &self,
        request: &PutImageRequest,
        (image, named, changes): (OwnedFd, Option<OwnedFd>, Option<OwnedFd>),
        progress: &dyn Progress,
    ) -> Result<TransferReport, Failure> {
        let name = String::from_utf8_lossy(&request.name);
        let changes = changes.map(|file| changes::from_file(file.into())).transpose()?;
        tracing::info!(%name, changes = changes.as_ref().map(|changes| changes.ranges().len()), "putting an image");
        let to = (request.into, request.name.as_slice());
        let transfer = self.transfers.begin();
        let put = self.pool.put_image(
            &request.options,
            ImageFiles { image, changes, named },
            to,
            &transfer.progress(progress),
        );
        tell_copied(&name, put)
    }

    /// Reads so many questions from the beginning of a file, and writes the answers in their place.
    fn answer_ahead(&self, count: u32, file: &OwnedFd) -> Result<(), Failure> {
        let failed =
            |error: std::io::Error| Failure::failed(format!("cannot exchange questions about chunks: {error}"));
        let mut questions = vec![0; (count as usize).min(ASKED_AT_ONCE) * QUESTION_BYTES];
        let file = std::fs::File::from(file.try_clone().map_err(failed)?);
        file.read_exact_at(&mut questions, 0).map_err(failed)?;
        let answers = self.pool.answer_ahead(&questions)?;
        file.write_all_at(&answers, 0).map_err(failed)
    }

    fn get(&self, request: &GetRequest, to: OwnedFd, progress: &dyn Progress) -> Result<TransferReport, Failure> {
        let name = String::from_utf8_lossy(&request.name);
        tracing::info!(ino = request.ino, %name, "copying a tree out of the pool");
        let transfer = self.transfers.begin();
        let copied = self.pool.get(request.ino, (to, &request.name), &request.patterns, &transfer.progress(progress));
        tell_copied(&name, copied)
    }

    fn snapshot(&self, request: &SnapshotRequest, progress: &dyn Progress) -> Result<VersionReport, Failure> {
        let name = String::from_utf8_lossy(&request.name);
        tracing::info!(source = request.source, %name, "making a version");
        let transfer = self.transfers.begin();
        let to = (request.into, request.name.as_slice());
        let made = self.pool.snapshot(request.source, to, &request.origin, &transfer.progress(progress));
        let report = made.inspect_err(|error| tracing::warn!(%name, %error, "a version was not made"))?;
        let VersionReport { entries, new_bytes, elapsed_ms, ref fingerprint, .. } = report;
        tracing::info!(%name, entries, new_bytes, ms = elapsed_ms, fingerprint, "made a version");
        Ok(report)
    }

    fn freeze(&self, request: &FreezeRequest, progress: &dyn Progress) -> Result<Option<VersionReport>, Failure> {
        let name = String::from_utf8_lossy(&request.name);
        tracing::info!(source = request.source, %name, "freezing a directory");
        let transfer = self.transfers.begin();
        let FreezeRequest { source, into, name: ref bytes, ref origin, dated_secs } = *request;
        let made = self.pool.freeze(source, (into, bytes), origin, dated_secs, &transfer.progress(progress));
        let report = made.inspect_err(|error| tracing::warn!(%name, %error, "a directory was not frozen"))?;
        match &report {
            Some(VersionReport { entries, elapsed_ms, fingerprint, .. }) => {
                tracing::info!(%name, entries, ms = elapsed_ms, fingerprint, "made a version, which may take the place of its source");
            }
            None => tracing::info!(%name, "the directory was changed while it was frozen"),
        }
        Ok(report)
    }

    fn unmount(&self, lazy: bool) -> Result<(), Failure> {
        tracing::info!(lazy, "asked to unmount");
        if lazy {
            self.session.detach();
        } else {
            self.session.unmount(BUSY_PATIENCE)?;
        }
        self.end.wait()
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
    let why = "a tree is being copied by `dedupfs put`, `get`, `snapshot`, `freeze` or `replicate`: wait for it, or interrupt it";
    FailureKind::MountpointUnusable.because(why)
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
