//! The daemon's side of the control socket.
//!
//! 1. A thread waits for connections and for the order to stop (a byte on a pair of sockets).
//! 2. Each connection gets a thread: it checks the peer, reads one request within a time limit, answers it and closes. A client that does
//!    not read misses progress. Its answer waits until it disconnects, because the work may have taken hours.
//! 3. [`ControlServer::stop_listening`] removes the socket file while the pool is still locked, so that it never removes the next daemon's.
//!    Requests that are being answered go on. [`ControlServer::finish`] waits for them.
//!
//! Locks: `Connections::active` is held for moments only, never across a call or I/O.

use std::cell::RefCell;
use std::io::{self, BufReader, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use dedupfs::Progress;
use parking_lot::{Condvar, Mutex};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Serialize;

use super::address;
use super::descriptor::Incoming;
use super::failure::Failure;
use super::protocol::{REQUEST_BYTES_MAX, Reply, Request, decode_request, encode, read_line};

/// Connections answered at once. Further clients are told to try again later. Each connection is one thread.
pub(crate) const CONNECTIONS_MAX: usize = 16;
/// Time within which a client must have sent its request, else it is cut off.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Time within which a client must have taken a line of progress, else it gets no more.
const REPLY_TIMEOUT: Duration = Duration::from_secs(10);
const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);

/// Shortest time between two log lines about refused connections.
const REFUSALS_TOLD_EVERY: Duration = Duration::from_secs(60);

pub(crate) trait ControlTarget: Send + Sync + 'static {
    /// Performs a request and returns its result. `descriptors` came with it.
    fn perform(
        &self,
        request: Request,
        descriptors: Vec<OwnedFd>,
        progress: &dyn Progress,
    ) -> Result<serde_json::Value, Failure>;
}

#[derive(Debug, Default)]
struct Connections {
    active: Mutex<usize>,
    changed: Condvar,
    /// Time of the last log line about a connection of another user.
    told: Mutex<Option<Instant>>,
}

impl Connections {
    /// Admits root and the daemon's own user; returns why another user is refused. Logs a refusal only now and then, since any user can try
    /// any number of times.
    fn admit(&self, stream: &UnixStream) -> Result<(), String> {
        let peer = rustix::net::sockopt::socket_peercred(stream.as_fd());
        let uid = peer.as_ref().ok().map(|peer| peer.uid);
        if uid.is_some_and(|uid| uid.is_root() || uid == rustix::process::geteuid()) {
            return Ok(());
        }
        let mut told = self.told.lock();
        if told.is_none_or(|told| told.elapsed() >= REFUSALS_TOLD_EVERY) {
            *told = Some(Instant::now());
            tracing::warn!(uid = uid.map(|uid| uid.as_raw()), "refused a control connection of another user");
        }
        Err("only root and the user who mounted the pool may do this".to_owned())
    }
}

struct Slot(Arc<Connections>);

impl Drop for Slot {
    fn drop(&mut self) {
        *self.0.active.lock() -= 1;
        self.0.changed.notify_all();
    }
}

/// The bound socket of a pool that is not served yet: clients that connect wait. Bound before the kernel shows the mount, so a mount that
/// cannot have its socket is never seen. Its file goes with it unless a server takes it over.
#[derive(Debug)]
pub(crate) struct PoolSocket {
    root: PathBuf,
    listener: Option<UnixListener>,
}

impl PoolSocket {
    /// Binds the socket in the pool at `root`; `None` if it fails with an error that `is_dispensable` accepts. The caller holds the pool's
    /// lock.
    ///
    /// # Errors
    /// `AddrInUse` if another daemon answers there; other errors of the disk.
    pub(crate) fn bind(root: &Path, is_dispensable: impl Fn(&io::Error) -> bool) -> io::Result<Option<Self>> {
        match address::bind(root) {
            Ok(listener) => Ok(Some(Self { root: root.to_owned(), listener: Some(listener) })),
            Err(error) if is_dispensable(&error) => {
                tracing::info!(%error, "no control socket in the pool");
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    fn into_listener(mut self) -> Option<UnixListener> {
        self.listener.take()
    }
}

impl Drop for PoolSocket {
    fn drop(&mut self) {
        if self.listener.is_some()
            && let Err(error) = address::remove(&self.root)
        {
            tracing::warn!(%error, "cannot remove the control socket");
        }
    }
}

#[derive(Debug)]
pub(crate) struct ControlServer {
    root: Option<PathBuf>,
    stop: UnixStream,
    listener: Option<JoinHandle<()>>,
    connections: Arc<Connections>,
}

impl ControlServer {
    /// Serves the pool at `root`: at its `socket`, and at the abstract name of its mount, whose number is `device` (such as "0:57").
    pub(crate) fn start(
        root: &Path,
        socket: Option<PoolSocket>,
        device: Option<&str>,
        target: Arc<dyn ControlTarget>,
    ) -> io::Result<Self> {
        let place = socket.as_ref().map(|_| root.to_owned());
        let mut listeners: Vec<UnixListener> = socket.and_then(PoolSocket::into_listener).into_iter().collect();
        if let Some(device) = device {
            match address::bind_beside(root, device) {
                Ok(listener) => listeners.push(listener),
                Err(error) => tracing::warn!(%error, "no control socket beside the pool's disk"),
            }
        }
        if listeners.is_empty() {
            tracing::warn!("no tool can reach this mount; umount(8) ends it");
        }
        Self::listen(place, listeners, target)
    }

    fn listen(root: Option<PathBuf>, listeners: Vec<UnixListener>, target: Arc<dyn ControlTarget>) -> io::Result<Self> {
        listeners.iter().try_for_each(|listener| listener.set_nonblocking(true))?;
        let (stop, stopped) = UnixStream::pair()?;
        let connections = Arc::new(Connections::default());
        let accepting = connections.clone();
        let listener = std::thread::Builder::new()
            .name("control".to_owned())
            .spawn(move || accept_until_stopped(&listeners, &stopped, &accepting, &target))?;
        Ok(Self { root, stop, listener: Some(listener), connections })
    }

    /// Takes no further connections and removes the socket file. Call it while the pool's lock is held.
    pub(crate) fn stop_listening(&mut self) {
        let Some(listener) = self.listener.take() else { return };
        if let Some(Err(error)) = self.root.as_deref().map(address::remove) {
            tracing::warn!(%error, "cannot remove the control socket");
        }
        if self.stop.write_all(b".").is_ok() && listener.join().is_err() {
            tracing::error!("the control thread panicked");
        }
    }

    /// Waits at most `at_most` until all requests are answered; returns whether they are.
    pub(crate) fn finish(mut self, at_most: Duration) -> bool {
        self.stop_listening();
        let deadline = Instant::now() + at_most;
        let mut active = self.connections.active.lock();
        while *active > 0 {
            if self.connections.changed.wait_until(&mut active, deadline).timed_out() {
                return *active == 0;
            }
        }
        true
    }
}

impl Drop for ControlServer {
    fn drop(&mut self) {
        self.stop_listening();
    }
}

fn accept_until_stopped(
    listeners: &[UnixListener],
    stopped: &UnixStream,
    connections: &Arc<Connections>,
    target: &Arc<dyn ControlTarget>,
) {
    loop {
        let sockets = listeners.iter().map(|listener| PollFd::new(listener, PollFlags::IN));
        let mut waiting: Vec<_> = sockets.chain([PollFd::new(stopped, PollFlags::IN)]).collect();
        match poll(&mut waiting, None) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => continue,
            Err(error) => {
                tracing::error!(%error, "the control socket is lost");
                return;
            }
        }
        if waiting.last().is_some_and(|stop| !stop.revents().is_empty()) {
            return;
        }
        for listener in listeners {
            match listener.accept() {
                Ok((stream, _)) => take(stream, connections, target),
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
                Err(error) => {
                    // Probably out of descriptors. Without the pause this loop would spin.
                    tracing::warn!(%error, "cannot take a control connection");
                    std::thread::sleep(PROGRESS_INTERVAL);
                }
            }
        }
    }
}

fn take(stream: UnixStream, connections: &Arc<Connections>, target: &Arc<dyn ControlTarget>) {
    // Check the peer first: any user can reach the abstract socket, and must not keep tools out.
    if let Err(why) = connections.admit(&stream) {
        return refuse(&stream, &why);
    }
    {
        let mut active = connections.active.lock();
        if *active >= CONNECTIONS_MAX {
            drop(active);
            refuse(&stream, "the daemon is answering too many tools at once: try again later");
            return;
        }
        *active += 1;
    }
    let slot = Slot(connections.clone());
    let target = target.clone();
    let spawned = std::thread::Builder::new().name("control-client".to_owned()).spawn(move || {
        answer(&stream, &*target);
        drop(slot);
    });
    if let Err(error) = spawned {
        tracing::warn!(%error, "cannot start a thread for a control connection");
    }
}

fn refuse(mut stream: &UnixStream, why: &str) {
    let _ = stream.set_nonblocking(true);
    if let Ok(line) = encode(&Reply::Failed(Failure::failed(why))) {
        let _ = stream.write_all(&line);
    }
}

fn answer(stream: &UnixStream, target: &dyn ControlTarget) {
    let prepared = stream
        .set_nonblocking(false)
        .and_then(|()| stream.set_read_timeout(Some(REQUEST_TIMEOUT)))
        .and_then(|()| stream.set_write_timeout(Some(REPLY_TIMEOUT)));
    if let Err(error) = prepared {
        tracing::warn!(%error, "cannot set up a control connection");
        return;
    }
    let sink = ReplySink::new(stream);
    let descriptors = RefCell::new(Vec::new());
    let mut incoming = BufReader::new(Incoming { stream, descriptors: &descriptors });
    let result = match read_line(&mut incoming, REQUEST_BYTES_MAX) {
        Ok(None) => return,
        Ok(Some(line)) => {
            decode_request(&line).and_then(|request| perform_guarded(request, descriptors.take(), target, &sink))
        }
        Err(error) => Err(Failure::failed(format!("cannot read the request: {error}"))),
    };
    let last = match result {
        Ok(value) => Reply::Done(value),
        Err(failure) => Reply::Failed(failure),
    };
    sink.send_last(&last);
}

/// Turns a panic while answering into the client's error, so that the mount goes on.
fn perform_guarded(
    request: Request,
    descriptors: Vec<OwnedFd>,
    target: &dyn ControlTarget,
    sink: &ReplySink<'_>,
) -> Result<serde_json::Value, Failure> {
    tracing::debug!(request = %serde_json::to_string(&request).unwrap_or_default(), "control request");
    catch_unwind(AssertUnwindSafe(|| target.perform(request, descriptors, sink)))
        .unwrap_or_else(|_| Err(Failure::failed("the daemon failed internally while answering: see its log")))
}

pub(crate) fn without_descriptor() -> Failure {
    Failure::failed("no descriptor came with the request")
}

pub(crate) fn to_value(result: impl Serialize) -> Result<serde_json::Value, Failure> {
    serde_json::to_value(result).map_err(|error| Failure::failed(format!("cannot encode the answer: {error}")))
}

/// Sends replies. A client that is gone or does not read is forgotten, and the work goes on.
struct ReplySink<'a>(Mutex<Receiver<'a>>);

struct Receiver<'a> {
    stream: Option<&'a UnixStream>,
    unsent_steps: u64,
    last_sent: Instant,
    last_looked: Instant,
}

impl<'a> ReplySink<'a> {
    fn new(stream: &'a UnixStream) -> Self {
        let now = Instant::now();
        Self(Mutex::new(Receiver { stream: Some(stream), unsent_steps: 0, last_sent: now, last_looked: now }))
    }

    /// Sends the answer and waits as long as the client is connected: a stopped process finds it when it continues.
    fn send_last(&self, reply: &Reply) {
        let mut receiver = self.0.lock();
        let Some(mut stream) = receiver.stream else { return };
        let sent = encode(reply).and_then(|line| {
            let mut rest = line.as_slice();
            while !rest.is_empty() {
                match stream.write(rest) {
                    Ok(0) => return Err(Failure::failed("the connection takes no more")),
                    Ok(written) => rest = rest.get(written..).unwrap_or_default(),
                    // The time limit for a line has passed.
                    Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
                    Err(error) => return Err(Failure::failed(error.to_string())),
                }
            }
            Ok(())
        });
        if let Err(failure) = sent {
            tracing::debug!(%failure, "a control client is gone before its answer");
            receiver.stream = None;
        }
    }
}

impl Receiver<'_> {
    fn send(&mut self, reply: &Reply) {
        let Some(mut stream) = self.stream else { return };
        if let Err(failure) =
            encode(reply).and_then(|line| stream.write_all(&line).map_err(|error| Failure::failed(error.to_string())))
        {
            tracing::debug!(%failure, "a control client is gone");
            self.stream = None;
        }
    }

    /// Whether the other end has closed. Polls now and then, because a phase may send nothing for long.
    fn is_gone(&mut self) -> bool {
        if let Some(stream) = self.stream
            && self.last_looked.elapsed() >= PROGRESS_INTERVAL
        {
            self.last_looked = Instant::now();
            // A client that wants no more ends its half, and waits for the end of the other.
            let mut ended = [PollFd::new(stream, PollFlags::RDHUP)];
            let has_ended = poll(&mut ended, Some(&Timespec::default())) == Ok(1);
            if has_ended && ended.iter().any(|end| end.revents().intersects(PollFlags::HUP | PollFlags::RDHUP)) {
                self.stream = None;
            }
        }
        self.stream.is_none()
    }

    fn takes_more(&self) -> bool {
        self.stream
            .is_some_and(|stream| poll(&mut [PollFd::new(stream, PollFlags::OUT)], Some(&Timespec::default())) != Ok(0))
    }

    fn send_steps(&mut self) {
        self.last_sent = Instant::now();
        // A client that does not read now (a stopped process, a held terminal) gets these steps later.
        if self.unsent_steps > 0 && self.takes_more() {
            let steps = std::mem::take(&mut self.unsent_steps);
            self.send(&Reply::Advance(steps));
        }
    }
}

impl Progress for ReplySink<'_> {
    fn start(&self, what: &str, total: u64) {
        self.0.lock().send(&Reply::Start { what: what.to_owned(), total });
    }

    fn advance(&self, by: u64) {
        let mut receiver = self.0.lock();
        receiver.unsent_steps = receiver.unsent_steps.saturating_add(by);
        if receiver.last_sent.elapsed() >= PROGRESS_INTERVAL {
            receiver.send_steps();
        }
    }

    fn finish(&self) {
        let mut receiver = self.0.lock();
        receiver.send_steps();
        receiver.send(&Reply::Finish);
    }

    fn is_cancelled(&self) -> bool {
        self.0.lock().is_gone()
    }
}

#[cfg(test)]
#[path = "server_tests.rs"]
mod tests;
