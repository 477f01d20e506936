//! The tools' side of the control socket.

use std::io::{self, BufReader, Read};
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use dedupfs::SeriesRecord;
use dedupfs::check::{CheckOptions, CheckReport};
use dedupfs::reclaim::{ReclaimOptions, ReclaimReport, ReclaimStatus};
use dedupfs::scrub::{ScrubOptions, ScrubReport, ScrubStatus};
use dedupfs::stats::PoolStats;
use dedupfs::transfer::{Cutting, ThawReport, TransferReport};
use dedupfs::{
    DifferencePage, HistoryRow, NoProgress, Progress, TreeStats, TrialReport, VersionInfo, VersionReport, WouldFree,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Uid, pidfd_open};
use serde::de::DeserializeOwned;

use super::failure::Failure;
use super::protocol::{
    Envelope, FreezeRequest, GetRequest, PROTOCOL_VERSION, PutImageRequest, PutRequest, REPLY_BYTES_MAX, Reply,
    Request, SnapshotRequest, decode, encode, read_line,
};
use super::{address, descriptor};

const SEND_TIMEOUT: Duration = Duration::from_secs(10);

/// While a client waits for an answer, it checks at this interval whether the answer is still wanted.
const ATTENTION_INTERVAL: Duration = Duration::from_millis(100);
/// Longest wait for the end of work that was interrupted.
const END_PATIENCE: Duration = Duration::from_secs(10);

/// The time after which a request without an answer is reported, and the function that reports it.
type OnSilence = (Duration, fn(&Path));

/// A mount whose daemon listens at an abstract name, beside the pool's disk.
#[derive(Debug)]
struct Beside {
    device: String,
    user: Uid,
}

impl Beside {
    /// Connects; `None` if another user has taken the name.
    fn connect(&self, root: &Path) -> io::Result<Option<UnixStream>> {
        let stream = address::connect_beside(root, &self.device)?;
        let peer = rustix::net::sockopt::socket_peercred(stream.as_fd())?;
        Ok((peer.uid.is_root() || peer.uid == self.user).then_some(stream))
    }
}

#[derive(Debug)]
pub(crate) struct ControlClient {
    root: PathBuf,
    /// Set if the daemon was found by its mount and not by the socket in the pool.
    beside: Option<Beside>,
    /// From the socket's credentials; `None` if the daemon is in another pid namespace.
    pub(super) daemon: Option<Pid>,
    uid: Option<Uid>,
    /// The connection that proved that a daemon listens. The first request uses it.
    first: Option<UnixStream>,
    on_silence: Option<OnSilence>,
}

impl ControlClient {
    /// Connects to the daemon that listens in the pool's meta root; `None` if none does.
    pub(crate) fn connect(root: &Path) -> Result<Option<Self>, Failure> {
        match address::connect(root) {
            Ok(stream) => Ok(Some(Self::over(stream, root, None))),
            Err(error) => match error.kind() {
                io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused | io::ErrorKind::NotADirectory => Ok(None),
                io::ErrorKind::PermissionDenied => Err(Failure::failed(format!(
                    "pool {} belongs to another user: only root and the user who mounted it may do this",
                    root.display()
                ))),
                _ => Err(Failure::failed(format!("cannot reach the daemon of pool {}: {error}", root.display()))),
            },
        }
    }

    /// Connects to the daemon that serves the pool at `root` through the mount with the number `device` (such as "0:57"), mounted by the
    /// user with the id `user`. `None` if it does not listen, or not in this network namespace. For pools whose own socket cannot be
    /// reached.
    pub(crate) fn connect_beside(root: &Path, device: &str, user: u32) -> Option<Self> {
        let beside = Beside { device: device.to_owned(), user: Uid::from_raw(user) };
        let stream = beside.connect(root).ok()??;
        // A daemon of an unknown user is not trusted.
        Some(Self::over(stream, root, Some(beside))).filter(|client| client.uid.is_some())
    }

    fn over(stream: UnixStream, root: &Path, beside: Option<Beside>) -> Self {
        let peer = rustix::net::sockopt::socket_peercred(stream.as_fd()).ok();
        let (daemon, uid) = (peer.map(|peer| peer.pid), peer.map(|peer| peer.uid));
        Self { root: root.to_owned(), beside, daemon, uid, first: Some(stream), on_silence: None }
    }

    fn open(&self) -> io::Result<UnixStream> {
        match &self.beside {
            None => address::connect(&self.root),
            Some(beside) => beside.connect(&self.root)?.ok_or_else(|| io::ErrorKind::ConnectionRefused.into()),
        }
    }

    /// Makes each request that has had no answer for the time `patience` call `tell` with the pool's root. The request goes on waiting.
    pub(crate) fn on_silence(mut self, patience: Duration, tell: fn(&Path)) -> Self {
        self.on_silence = Some((patience, tell));
        self
    }

    pub(crate) fn daemon_uid(&self) -> Option<u32> {
        self.uid.map(Uid::as_raw)
    }

    /// Whether this process may give the daemon orders. The daemon checks it, too.
    pub(crate) fn is_allowed(&self) -> bool {
        let own = rustix::process::geteuid();
        own.is_root() || self.uid.is_none_or(|uid| uid == own)
    }

    /// Returns a descriptor that reports the daemon's end. Take it before asking the daemon to end.
    pub(crate) fn watch_daemon(&self) -> io::Result<DaemonWatch> {
        let pid = self.daemon.ok_or_else(|| io::Error::other("the daemon is in another pid namespace"))?;
        Ok(DaemonWatch(pidfd_open(pid, PidfdFlags::empty())?))
    }

    pub(crate) fn stats(&mut self) -> Result<PoolStats, Failure> {
        self.ask(&Request::Stats, &NoProgress)
    }

    pub(crate) fn sync(&mut self) -> Result<(), Failure> {
        self.request(&Request::Sync)
    }

    /// Reclaims space. If this end closes, the run ends after its current step.
    pub(crate) fn reclaim(
        &mut self,
        options: &ReclaimOptions,
        progress: &dyn Progress,
    ) -> Result<ReclaimReport, Failure> {
        self.ask(&Request::Reclaim(*options), progress)
    }

    pub(crate) fn reclaim_status(&mut self) -> Result<ReclaimStatus, Failure> {
        self.ask(&Request::ReclaimStatus, &NoProgress)
    }

    pub(crate) fn stop_reclaim(&mut self) -> Result<(), Failure> {
        self.request(&Request::StopReclaim)
    }

    /// Pauses reclaiming between two steps and lets no run begin, or lets it continue.
    pub(crate) fn pause_reclaim(&mut self, paused: bool) -> Result<(), Failure> {
        self.request(&Request::PauseReclaim(paused))
    }

    pub(crate) fn check(&mut self, options: &CheckOptions, progress: &dyn Progress) -> Result<CheckReport, Failure> {
        self.ask(&Request::Check(options.clone()), progress)
    }

    /// Reads everything and quarantines damaged copies. If this end closes, the scrub stops; the next one continues there.
    pub(crate) fn scrub(&mut self, options: &ScrubOptions, progress: &dyn Progress) -> Result<ScrubReport, Failure> {
        self.ask(&Request::Scrub(*options), progress)
    }

    pub(crate) fn scrub_status(&mut self) -> Result<ScrubStatus, Failure> {
        self.ask(&Request::ScrubStatus, &NoProgress)
    }

    pub(crate) fn stop_scrub(&mut self) -> Result<(), Failure> {
        self.request(&Request::StopScrub)
    }

    pub(crate) fn stop_trial(&mut self) -> Result<(), Failure> {
        self.request(&Request::StopTrial)
    }

    /// Has lost content written to `file`, from its beginning.
    #[cfg(feature = "remote")]
    pub(crate) fn lost_content(&mut self, max: u32, file: BorrowedFd<'_>) -> Result<(), Failure> {
        self.ask_with(&Request::LostContent { max }, &[file], &NoProgress)
    }

    /// Has lost content stored again from copies in `file`; returns how much of it was lost.
    #[cfg(feature = "remote")]
    pub(crate) fn heal(&mut self, len_bytes: u32, file: BorrowedFd<'_>) -> Result<u64, Failure> {
        self.ask_with(&Request::Heal { len_bytes }, &[file], &NoProgress)
    }

    /// Makes a trial recovery from the data root alone, in scratch space below this absolute path.
    pub(crate) fn trial_recovery(&mut self, scratch: &Path, progress: &dyn Progress) -> Result<TrialReport, Failure> {
        self.ask(&Request::TrialRecovery(scratch.to_owned()), progress)
    }

    /// Holds the export until the other end of `stream` is closed; the position comes through it. Returns when the hold is over.
    #[cfg(feature = "remote")]
    pub(crate) fn hold_export(&mut self, stream: BorrowedFd<'_>) -> Result<(), Failure> {
        self.ask_with(&Request::HoldExport, &[stream], &NoProgress)
    }

    /// Copies the directory or regular file `from` into the pool. If this end closes, or `progress` is cancelled, the copy is removed.
    pub(crate) fn put(
        &mut self,
        request: PutRequest,
        from: BorrowedFd<'_>,
        progress: &dyn Progress,
    ) -> Result<TransferReport, Failure> {
        self.ask_with(&Request::Put(request), &[from], progress)
    }

    /// Returns how the pool cuts content.
    pub(crate) fn cutting(&mut self) -> Result<Cutting, Failure> {
        self.ask(&Request::Cutting, &NoProgress)
    }

    /// Has so many questions about chunks answered, from the beginning of `file` and in their place.
    pub(crate) fn answer_ahead(&mut self, count: u32, file: BorrowedFd<'_>) -> Result<(), Failure> {
        self.ask_with(&Request::AnswerAhead { count }, &[file], &NoProgress)
    }

    /// Puts an image. With `named` or `changes`, their files travel along. If this end closes, or `progress` is cancelled, nothing of it is left.
    pub(crate) fn put_image(
        &mut self,
        request: PutImageRequest,
        (image, named, changes): (BorrowedFd<'_>, Option<BorrowedFd<'_>>, Option<BorrowedFd<'_>>),
        progress: &dyn Progress,
    ) -> Result<TransferReport, Failure> {
        let descriptors: Vec<_> = std::iter::once(image).chain(named).chain(changes).collect();
        self.ask_with(&Request::PutImage(request), &descriptors, progress)
    }

    /// Copies out of the pool into the directory `to`. If this end closes, or `progress` is cancelled, copying stops there.
    pub(crate) fn get(
        &mut self,
        request: GetRequest,
        to: BorrowedFd<'_>,
        progress: &dyn Progress,
    ) -> Result<TransferReport, Failure> {
        self.ask_with(&Request::Get(request), &[to], progress)
    }

    /// Makes a version. If this end closes, or `progress` is cancelled, nothing of it stays.
    pub(crate) fn snapshot(
        &mut self,
        request: SnapshotRequest,
        progress: &dyn Progress,
    ) -> Result<VersionReport, Failure> {
        self.ask(&Request::Snapshot(request), progress)
    }

    /// Makes a version that may take the place of its source; nothing if that was changed meanwhile.
    pub(crate) fn freeze(
        &mut self,
        request: FreezeRequest,
        progress: &dyn Progress,
    ) -> Result<Option<VersionReport>, Failure> {
        self.ask(&Request::Freeze(request), progress)
    }

    /// Makes a live tree of a version. If this end closes, or `progress` is cancelled, nothing of it is left.
    pub(crate) fn thaw(
        &mut self,
        from: u64,
        (into, name): (u64, &[u8]),
        progress: &dyn Progress,
    ) -> Result<ThawReport, Failure> {
        self.ask(&Request::Thaw { from, into, name: name.to_vec() }, progress)
    }

    /// Returns what removing these inodes, with everything below them, would free.
    pub(crate) fn would_free(&mut self, inos: Vec<u64>, progress: &dyn Progress) -> Result<WouldFree, Failure> {
        self.ask(&Request::WouldFree(inos), progress)
    }

    /// Returns what a directory holds.
    pub(crate) fn tree_stats(&mut self, directory: u64, progress: &dyn Progress) -> Result<TreeStats, Failure> {
        self.ask(&Request::TreeStats(directory), progress)
    }

    /// Returns what the removal of each version in a directory, or of the pool, would free alone.
    pub(crate) fn version_sizes(
        &mut self,
        directory: Option<u64>,
        progress: &dyn Progress,
    ) -> Result<Vec<(u64, WouldFree)>, Failure> {
        self.ask(&Request::VersionSizes(directory), progress)
    }

    /// Returns the versions in a directory, or all of the pool.
    pub(crate) fn versions(&mut self, directory: Option<u64>) -> Result<Vec<VersionInfo>, Failure> {
        self.ask(&Request::Versions(directory), &NoProgress)
    }

    /// Returns a page of the difference of two frozen directories; `resume` is the `next` of the page before, or empty.
    pub(crate) fn difference(
        &mut self,
        directories: [u64; 2],
        resume: Vec<u8>,
        progress: &dyn Progress,
    ) -> Result<DifferencePage, Failure> {
        self.ask(&Request::Difference { directories, resume }, progress)
    }

    /// Returns what became of a path in the versions of a directory.
    pub(crate) fn history(
        &mut self,
        directory: u64,
        path: &[u8],
        progress: &dyn Progress,
    ) -> Result<Vec<HistoryRow>, Failure> {
        self.ask(&Request::History { directory, path: path.to_vec() }, progress)
    }

    /// Lets the next rmdir(2) of this name remove it, this version. It must come soon.
    pub(crate) fn allow_forgetting(&mut self, directory: u64, name: &[u8], version: u64) -> Result<(), Failure> {
        self.request(&Request::Forget { directory, name: name.to_vec(), version })
    }

    /// Returns the inode numbers of removed versions whose content stays because they are read.
    pub(crate) fn held_versions(&mut self) -> Result<Vec<u64>, Failure> {
        self.ask(&Request::HeldVersions, &NoProgress)
    }

    /// Returns the record of a directory, if it is a series.
    pub(crate) fn series(&mut self, directory: u64) -> Result<Option<SeriesRecord>, Failure> {
        let record: Option<Vec<u8>> = self.ask(&Request::Series(directory), &NoProgress)?;
        Ok(record.map(|record| SeriesRecord::decode(&record)).transpose()?)
    }

    /// Makes a directory a series, or none; returns the record that it had, and whether the pool may have versions from now on.
    pub(crate) fn set_series(
        &mut self,
        directory: u64,
        record: Option<SeriesRecord>,
    ) -> Result<(Option<SeriesRecord>, bool), Failure> {
        let record = record.map(|record| record.encode());
        let (before, is_upgraded): (Option<Vec<u8>>, bool) =
            self.ask(&Request::SetSeries { directory, record }, &NoProgress)?;
        Ok((before.map(|before| SeriesRecord::decode(&before)).transpose()?, is_upgraded))
    }

    /// Waits until the pool is closed and returns how that went; `None` if the daemon ends, or is killed, without an answer.
    pub(crate) fn await_end(&mut self) -> Option<Result<(), Failure>> {
        match self.converse(&Request::AwaitEnd, &[], &NoProgress) {
            Ok(Reply::Failed(failure)) => Some(Err(failure)),
            Ok(_) => Some(Ok(())),
            Err(_) => None,
        }
    }

    /// Checks whether [`make_read_only`](Self::make_read_only) would be refused now, and why. For a moment the daemon begins nothing that
    /// would make it refuse.
    pub(crate) fn prepare_read_only(&mut self) -> Result<(), Failure> {
        self.request(&Request::PrepareReadOnly)
    }

    pub(crate) fn make_read_only(&mut self) -> Result<(), Failure> {
        self.request(&Request::SetReadOnly(true))
    }

    pub(crate) fn make_writable(&mut self) -> Result<(), Failure> {
        self.request(&Request::SetReadOnly(false))
    }

    pub(super) fn request(&mut self, request: &Request) -> Result<(), Failure> {
        self.ask(request, &NoProgress)
    }

    fn ask<T: DeserializeOwned>(&mut self, request: &Request, progress: &dyn Progress) -> Result<T, Failure> {
        self.ask_with(request, &[], progress)
    }

    fn ask_with<T: DeserializeOwned>(
        &mut self,
        request: &Request,
        descriptors: &[BorrowedFd<'_>],
        progress: &dyn Progress,
    ) -> Result<T, Failure> {
        match self.converse(request, descriptors, progress)? {
            Reply::Failed(failure) => Err(failure),
            Reply::Done(value) => serde_json::from_value(value)
                .map_err(|error| Failure::failed(format!("the daemon's answer cannot be understood: {error}"))),
            Reply::Start { .. } | Reply::Advance(_) | Reply::Finish => {
                Err(Failure::failed("the daemon's answer has no end"))
            }
        }
    }

    /// Sends a request and returns the last reply. Errors are those of the connection.
    fn converse(
        &mut self,
        request: &Request,
        descriptors: &[BorrowedFd<'_>],
        progress: &dyn Progress,
    ) -> Result<Reply, Failure> {
        let lost = |error: io::Error| {
            Failure::failed(format!(
                "the connection to the daemon of pool {} was lost ({error}): it may have been stopped; see the log \
                 dedupfs.log in the pool",
                self.root.display()
            ))
        };
        let stream = match self.first.take() {
            Some(stream) => stream,
            None => self.open().map_err(lost)?,
        };
        let request = serde_json::to_value(request)
            .map_err(|error| Failure::failed(format!("cannot encode the request: {error}")))?;
        let line = encode(&Envelope { protocol: PROTOCOL_VERSION, request })?;
        let sent = stream.set_write_timeout(Some(SEND_TIMEOUT));
        sent.and_then(|()| descriptor::send(&stream, &line, descriptors)).or_else(|error| {
            // A refused client finds the other end closed, but the reason may still wait to be read.
            if error.kind() == io::ErrorKind::BrokenPipe { Ok(()) } else { Err(lost(error)) }
        })?;
        if let Some((patience, tell)) = self.on_silence
            && !has_answered(&stream, patience)
            && !progress.is_cancelled()
        {
            tell(&self.root);
        }
        let is_copying = !descriptors.is_empty();
        let mut replies = BufReader::new(Attentive { stream: &stream, progress });
        loop {
            let line = read_line(&mut replies, REPLY_BYTES_MAX).map_err(|error| match progress.is_cancelled() {
                true => interrupted(&stream, is_copying),
                false => lost(error),
            })?;
            let line = line.ok_or_else(|| lost(io::ErrorKind::UnexpectedEof.into()))?;
            match decode::<Reply>(&line)? {
                Reply::Start { what, total } => progress.start(&what, total),
                Reply::Advance(by) => progress.advance(by),
                Reply::Finish => progress.finish(),
                last @ (Reply::Failed(_) | Reply::Done(_)) => return Ok(last),
            }
            // Work that can be continued is asked to stop and reports how far it came. For other work the closed connection says so.
            if progress.is_cancelled() {
                return Err(interrupted(&stream, is_copying));
            }
        }
    }
}

/// Tells a daemon that copies that this is not wanted any more, and waits until it has ended: it may be writing files. For other work nobody
/// waits.
fn interrupted(stream: &UnixStream, is_copying: bool) -> Failure {
    let (began, mut rest) = (Instant::now(), [0; 4096]);
    let told = stream.shutdown(Shutdown::Write).and_then(|()| stream.set_read_timeout(Some(ATTENTION_INTERVAL)));
    while is_copying && told.is_ok() && began.elapsed() < END_PATIENCE {
        match (&mut &*stream).read(&mut rest) {
            Ok(0) => break,
            Err(error) if !matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => break,
            _ => {}
        }
    }
    Failure::failed("interrupted")
}

struct Attentive<'a> {
    stream: &'a UnixStream,
    progress: &'a dyn Progress,
}

impl Read for Attentive<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        // A signal ends the wait as well.
        while !has_answered(self.stream, ATTENTION_INTERVAL) {
            if self.progress.is_cancelled() {
                return Err(io::Error::other("not wanted any more"));
            }
        }
        self.stream.read(buffer)
    }
}

/// Waits at most `at_most` for the first bytes of an answer. Errors count as an answer: reading reports them.
fn has_answered(stream: &UnixStream, at_most: Duration) -> bool {
    let Ok(timeout) = Timespec::try_from(at_most) else { return true };
    !matches!(poll(&mut [PollFd::new(stream, PollFlags::IN)], Some(&timeout)), Ok(0) | Err(rustix::io::Errno::INTR))
}

#[derive(Debug)]
pub(crate) struct DaemonWatch(OwnedFd);

impl DaemonWatch {
    pub(crate) fn wait(&self, at_most: Duration) -> io::Result<bool> {
        let timeout = Timespec::try_from(at_most).map_err(io::Error::other)?;
        loop {
            let mut ended = [PollFd::new(&self.0, PollFlags::IN)];
            match poll(&mut ended, Some(&timeout)) {
                Ok(count) => return Ok(count > 0),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}
