//! The tools' side of the control socket.

use std::io::{self, BufReader, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Uid, pidfd_open};
use serde::de::DeserializeOwned;

use super::failure::{Failure, FailureKind};
use super::protocol::{
    Envelope, GetRequest, PROTOCOL_VERSION, PutRequest, REPLY_BYTES_MAX, Reply, Request, decode, encode, read_line,
};
use super::{address, descriptor};
use dedupfs::TrialReport;
use dedupfs::check::{CheckOptions, CheckReport};
use dedupfs::reclaim::{ReclaimOptions, ReclaimReport, ReclaimStatus};
use dedupfs::scrub::{ScrubOptions, ScrubReport, ScrubStatus};
use dedupfs::stats::PoolStats;
use dedupfs::transfer::TransferReport;
use dedupfs::{NoProgress, Progress};

/// Time that the daemon has to take a request.
const SEND_TIMEOUT: Duration = Duration::from_secs(10);

/// While a client waits for an answer, it checks at this interval whether the answer is still wanted.
const ATTENTION_INTERVAL: Duration = Duration::from_millis(100);

/// The time after which a request without an answer is reported, and the function that reports it.
type OnSilence = (Duration, fn(&Path));

/// A mount whose daemon listens at an abstract name, beside the pool's disk.
#[derive(Debug)]
struct Beside {
    /// Device number of the mount, such as "0:57".
    device: String,
    /// The user that mounted it.
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

/// A connection to the daemon that holds a pool.
#[derive(Debug)]
pub struct ControlClient {
    root: PathBuf,
    /// Set if the daemon was found by its mount and not by the socket in the pool.
    beside: Option<Beside>,
    /// From the socket's credentials; `None` if the daemon is in another pid namespace.
    daemon: Option<Pid>,
    /// The user that the daemon runs as, if the socket tells.
    uid: Option<Uid>,
    /// The connection that proved that a daemon listens. The first request uses it.
    first: Option<UnixStream>,
    on_silence: Option<OnSilence>,
}

impl ControlClient {
    /// Connects to the daemon that listens in the pool's meta root; `None` if none does.
    pub fn connect(root: &Path) -> Result<Option<Self>, Failure> {
        match address::connect(root) {
            Ok(stream) => {
                let peer = rustix::net::sockopt::socket_peercred(stream.as_fd()).ok();
                let (daemon, uid) = (peer.map(|peer| peer.pid), peer.map(|peer| peer.uid));
                Ok(Some(Self {
                    root: root.to_owned(),
                    beside: None,
                    daemon,
                    uid,
                    first: Some(stream),
                    on_silence: None,
                }))
            }
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
    #[must_use]
    pub fn connect_beside(root: &Path, device: &str, user: u32) -> Option<Self> {
        let beside = Beside { device: device.to_owned(), user: Uid::from_raw(user) };
        let stream = beside.connect(root).ok()??;
        let peer = rustix::net::sockopt::socket_peercred(stream.as_fd()).ok()?;
        let (daemon, uid) = (Some(peer.pid), Some(peer.uid));
        Some(Self { root: root.to_owned(), beside: Some(beside), daemon, uid, first: Some(stream), on_silence: None })
    }

    /// Opens a connection for one request.
    fn open(&self) -> io::Result<UnixStream> {
        match &self.beside {
            None => address::connect(&self.root),
            Some(beside) => beside.connect(&self.root)?.ok_or_else(|| io::ErrorKind::ConnectionRefused.into()),
        }
    }

    /// Makes each request that has had no answer for the time `patience` call `tell` with the pool's root. The request goes on waiting.
    #[must_use]
    pub fn on_silence(mut self, patience: Duration, tell: fn(&Path)) -> Self {
        self.on_silence = Some((patience, tell));
        self
    }

    /// The user that the daemon runs as, if the socket tells.
    #[must_use]
    pub fn daemon_uid(&self) -> Option<u32> {
        self.uid.map(Uid::as_raw)
    }

    /// The daemon's process id, if it is in this pid namespace.
    #[must_use]
    pub fn daemon_pid(&self) -> Option<i32> {
        self.daemon.map(Pid::as_raw_nonzero).map(std::num::NonZeroI32::get)
    }

    /// Whether this process may give the daemon orders. The daemon checks it, too.
    #[must_use]
    pub fn is_allowed(&self) -> bool {
        let own = rustix::process::geteuid();
        own.is_root() || self.uid.is_none_or(|uid| uid == own)
    }

    /// Returns a descriptor that reports the daemon's end. Take it before asking the daemon to end.
    pub fn watch_daemon(&self) -> io::Result<DaemonWatch> {
        let pid = self.daemon.ok_or_else(|| io::Error::other("the daemon is in another pid namespace"))?;
        Ok(DaemonWatch(pidfd_open(pid, PidfdFlags::empty())?))
    }

    /// Returns statistics.
    pub fn stats(&mut self) -> Result<PoolStats, Failure> {
        self.ask(&Request::Stats, &NoProgress)
    }

    /// Makes everything written so far durable.
    pub fn sync(&mut self) -> Result<(), Failure> {
        self.ask(&Request::Sync, &NoProgress)
    }

    /// Reclaims space. If this end closes, the run ends after its current step.
    pub fn reclaim(&mut self, options: &ReclaimOptions, progress: &dyn Progress) -> Result<ReclaimReport, Failure> {
        self.ask(&Request::Reclaim(*options), progress)
    }

    /// Returns the state of reclaiming.
    pub fn reclaim_status(&mut self) -> Result<ReclaimStatus, Failure> {
        self.ask(&Request::ReclaimStatus, &NoProgress)
    }

    /// Asks a run of reclaiming to end soon.
    pub fn stop_reclaim(&mut self) -> Result<(), Failure> {
        self.ask(&Request::StopReclaim, &NoProgress)
    }

    /// Pauses reclaiming between two steps and lets no run begin, or lets it continue.
    pub fn pause_reclaim(&mut self, paused: bool) -> Result<(), Failure> {
        self.ask(&Request::PauseReclaim(paused), &NoProgress)
    }

    /// Checks without changing anything.
    pub fn check(&mut self, options: &CheckOptions, progress: &dyn Progress) -> Result<CheckReport, Failure> {
        self.ask(&Request::Check(*options), progress)
    }

    /// Reads everything and quarantines damaged copies. If this end closes, the scrub stops; the next one continues there.
    pub fn scrub(&mut self, options: &ScrubOptions, progress: &dyn Progress) -> Result<ScrubReport, Failure> {
        self.ask(&Request::Scrub(*options), progress)
    }

    /// Returns the state of a scrub.
    pub fn scrub_status(&mut self) -> Result<ScrubStatus, Failure> {
        self.ask(&Request::ScrubStatus, &NoProgress)
    }

    /// Asks a running scrub to end soon.
    pub fn stop_scrub(&mut self) -> Result<(), Failure> {
        self.ask(&Request::StopScrub, &NoProgress)
    }

    /// Asks a running trial recovery to end soon.
    pub fn stop_trial(&mut self) -> Result<(), Failure> {
        self.ask(&Request::StopTrial, &NoProgress)
    }

    /// Makes a trial recovery from the data root alone, in scratch space below this absolute path.
    pub fn trial_recovery(&mut self, scratch: &Path, progress: &dyn Progress) -> Result<TrialReport, Failure> {
        self.ask(&Request::TrialRecovery(scratch.to_owned()), progress)
    }

    /// Copies the directory or regular file `from` into the pool. If this end closes, or `progress` is cancelled, the copy is removed.
    pub fn put(
        &mut self,
        request: PutRequest,
        from: BorrowedFd<'_>,
        progress: &dyn Progress,
    ) -> Result<TransferReport, Failure> {
        self.ask_with(&Request::Put(request), Some(from), progress)
    }

    /// Copies out of the pool into the directory `to`. If this end closes, or `progress` is cancelled, copying stops there.
    pub fn get(
        &mut self,
        request: GetRequest,
        to: BorrowedFd<'_>,
        progress: &dyn Progress,
    ) -> Result<TransferReport, Failure> {
        self.ask_with(&Request::Get(request), Some(to), progress)
    }

    /// Unmounts; returns when the pool is closed. The daemon then ends: see [`watch_daemon`](Self::watch_daemon).
    pub fn unmount(&mut self, lazy: bool) -> Result<(), Failure> {
        self.ask(&Request::Unmount { lazy }, &NoProgress)
    }

    /// Waits until the pool is closed and returns how that went; `None` if the daemon ends, or is killed, without an answer.
    pub fn await_end(&mut self) -> Option<Result<(), Failure>> {
        match self.converse(&Request::AwaitEnd, None, &NoProgress) {
            Ok(Reply::Failed(failure)) => Some(Err(failure)),
            Ok(_) => Some(Ok(())),
            Err(_) => None,
        }
    }

    /// Checks whether [`set_read_only`](Self::set_read_only) would be refused now, and why. For a moment the daemon begins nothing that
    /// would make it refuse.
    pub fn prepare_read_only(&mut self) -> Result<(), Failure> {
        self.ask(&Request::PrepareReadOnly, &NoProgress)
    }

    /// Makes the pool read-only for a while, everything durable first, or writable again.
    pub fn set_read_only(&mut self, read_only: bool) -> Result<(), Failure> {
        self.ask(&Request::SetReadOnly(read_only), &NoProgress)
    }

    fn ask<T: DeserializeOwned>(&mut self, request: &Request, progress: &dyn Progress) -> Result<T, Failure> {
        self.ask_with(request, None, progress)
    }

    fn ask_with<T: DeserializeOwned>(
        &mut self,
        request: &Request,
        descriptor: Option<BorrowedFd<'_>>,
        progress: &dyn Progress,
    ) -> Result<T, Failure> {
        match self.converse(request, descriptor, progress)? {
            Reply::Failed(failure) => Err(failure),
            Reply::Done(value) => serde_json::from_value(value).map_err(|error| {
                Failure::new(FailureKind::Failed, format!("the daemon's answer cannot be understood: {error}"))
            }),
            Reply::Start { .. } | Reply::Advance(_) | Reply::Finish => {
                Err(Failure::failed("the daemon's answer has no end"))
            }
        }
    }

    /// Sends a request and returns the last reply. Errors are those of the connection.
    fn converse(
        &mut self,
        request: &Request,
        descriptor: Option<BorrowedFd<'_>>,
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
        sent.and_then(|()| descriptor::send(&stream, &line, descriptor)).or_else(|error| {
            // A refused client finds the other end closed, but the reason may still wait to be read.
            if error.kind() == io::ErrorKind::BrokenPipe { Ok(()) } else { Err(lost(error)) }
        })?;
        if let Some((patience, tell)) = self.on_silence
            && !has_answered(&stream, patience)
            && !progress.is_cancelled()
        {
            tell(&self.root);
        }
        let mut replies = BufReader::new(Attentive { stream: &stream, progress });
        loop {
            let line = read_line(&mut replies, REPLY_BYTES_MAX).map_err(|error| match progress.is_cancelled() {
                true => Failure::failed("interrupted"),
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
                return Err(Failure::failed("interrupted"));
            }
        }
    }
}

/// Reads answers until `progress` is cancelled.
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

/// Reports when a daemon has ended.
#[derive(Debug)]
pub struct DaemonWatch(OwnedFd);

impl DaemonWatch {
    /// Waits at most `at_most` for the daemon's end; returns whether it ended.
    pub fn wait(&self, at_most: Duration) -> io::Result<bool> {
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
