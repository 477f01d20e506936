//! Connections of this machine to all others, as timely uses them.
//!
//! timely reads and writes each connection in a thread of its own, and panics there when that fails. So nothing fails from its view: a [`Link`] notes the
//! failure, wakes the worker, and holds the thread until the worker is gone. Then the thread unwinds without a word.
//!
//! On the wire, the bytes of timely are cut into frames (`docs/format.md`, Beside a pool). So a machine can say at any time why it ends
//! the round, and a connection that merely breaks differs from one that ends. Headers of timely within the frames are checked, too: no message
//! is longer than [`MESSAGE_BYTES_MAX`](super::frames::MESSAGE_BYTES_MAX), so none makes this machine allocate more.

use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::Thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;
use timely::communication::allocator::zero_copy::stream::Stream;

use super::frames::{Failure, Kind, Messages};
use crate::{Error, Result};

/// Bytes of a frame at most.
const FRAME_BYTES_MAX: usize = 256 << 10;
const HEADER_BYTES: usize = 5;
/// Time in which a reason is told to a machine that reads.
const TELLS_WITHIN: Duration = Duration::from_secs(1);
/// Time in which connections end after a round that is committed.
const ENDS_WITHIN: Duration = Duration::from_secs(10);
const STEP: Duration = Duration::from_millis(5);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The state of all connections.
struct Shared {
    me: usize,
    worker: Thread,
    failure: Mutex<Option<Error>>,
    has_failed: AtomicBool,
    is_committed: AtomicBool,
    /// The worker is gone: threads may end as they like.
    is_over: Mutex<bool>,
    over: Condvar,
}

impl Shared {
    fn fail(&self, error: Error) {
        let mut failure = lock(&self.failure);
        // The first one is the cause of the others.
        if !self.has_failed.swap(true, Ordering::SeqCst) {
            *failure = Some(error);
        }
        drop(failure);
        self.worker.unpark();
    }

    fn is_over(&self) -> bool {
        *lock(&self.is_over)
    }
}

/// All connections, from the view of the worker.
pub(super) struct Links {
    shared: Arc<Shared>,
    peers: Vec<Peer>,
}

struct Peer {
    socket: TcpStream,
    writing: Arc<Mutex<()>>,
}

impl Links {
    /// Makes links of connected sockets. The position of a socket is the index of its machine. The worker is this thread.
    ///
    /// # Errors
    /// There are no more descriptors.
    pub(super) fn new(me: usize, sockets: Vec<Option<TcpStream>>) -> Result<(Self, Vec<Option<Link>>)> {
        let shared = Arc::new(Shared {
            me,
            worker: std::thread::current(),
            failure: Mutex::new(None),
            has_failed: AtomicBool::new(false),
            is_committed: AtomicBool::new(false),
            is_over: Mutex::new(false),
            over: Condvar::new(),
        });
        let (mut peers, mut links) = (Vec::new(), Vec::new());
        for (machine, socket) in sockets.into_iter().enumerate() {
            let Some(socket) = socket else {
                links.push(None);
                continue;
            };
            let writing = Arc::new(Mutex::new(()));
            let of_peer = socket.try_clone().map_err(|error| lost(machine, &error))?;
            peers.push(Peer { socket: of_peer, writing: Arc::clone(&writing) });
            links.push(Some(Link::new(socket, writing, Arc::clone(&shared), machine)));
        }
        Ok((Self { shared, peers }, links))
    }

    /// Returns the failure of a connection, or the reason that another machine gave.
    pub(super) fn check(&self) -> Result<()> {
        if self.shared.has_failed.load(Ordering::SeqCst) {
            return Err(lock(&self.shared.failure).take().unwrap_or(Error::Ended));
        }
        Ok(())
    }

    /// Says that the round is committed: from now on, connections may end.
    pub(super) fn commit(&self) {
        self.shared.is_committed.store(true, Ordering::SeqCst);
    }

    /// Ends all connections, behind the worker. After an error each machine is told why.
    pub(super) fn end(self, error: Option<&Error>) {
        let begin = Instant::now();
        if let Some(error) = error {
            let failure = Failure::of(self.shared.me, error);
            self.peers.iter().for_each(|peer| peer.tell(&failure, begin + TELLS_WITHIN));
        }
        *lock(&self.shared.is_over) = true;
        self.shared.over.notify_all();
        let within = if error.is_some() { TELLS_WITHIN } else { ENDS_WITHIN };
        // A connection that is closed at once may lose its last bytes: so wait for the other sides.
        self.wait(begin + within);
        self.peers.iter().for_each(|peer| drop(peer.socket.shutdown(Shutdown::Both)));
        self.wait(Instant::now() + TELLS_WITHIN);
    }

    fn wait(&self, until: Instant) {
        while Arc::strong_count(&self.shared) > 1 && Instant::now() < until {
            std::thread::sleep(STEP);
        }
    }
}

impl Peer {
    /// Sends a reason, if the connection takes it in time.
    fn tell(&self, failure: &Failure, until: Instant) {
        let _turn = loop {
            match self.writing.try_lock() {
                Ok(turn) => break turn,
                Err(TryLockError::Poisoned(turn)) => break turn.into_inner(),
                Err(TryLockError::WouldBlock) if Instant::now() >= until => return,
                Err(TryLockError::WouldBlock) => std::thread::sleep(STEP),
            }
        };
        // Nothing helps if it does not go through: the other side sees the end.
        let _ = self.socket.set_write_timeout(Some(TELLS_WITHIN));
        let _ = (&self.socket).write_all(&frame(Kind::Reason, &failure.encode()));
        let _ = self.socket.shutdown(Shutdown::Write);
    }
}

fn frame(kind: Kind, bytes: &[u8]) -> Vec<u8> {
    let mut frame = Vec::with_capacity(HEADER_BYTES + bytes.len());
    frame.push(kind as u8);
    frame.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
    frame.extend_from_slice(bytes);
    frame
}

fn lost(machine: usize, error: &io::Error) -> Error {
    let why = match error.kind() {
        io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => "it does not answer any more".into(),
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => {
            "its connection ended without a word".into()
        }
        _ => error.to_string(),
    };
    Error::Lost { machine, why }
}

fn broken(machine: usize) -> Error {
    Error::Lost { machine, why: "it sends frames that no machine sends".into() }
}

fn read_header(mut socket: &TcpStream, machine: usize) -> Result<(Kind, usize)> {
    let mut header = [0; HEADER_BYTES];
    socket.read_exact(&mut header).map_err(|error| lost(machine, &error))?;
    let [kind, len @ ..] = header;
    let len_bytes = u32::from_le_bytes(len) as usize;
    let kind = Kind::of(kind).ok_or_else(|| broken(machine))?;
    let max_bytes = match kind {
        Kind::Data => FRAME_BYTES_MAX,
        Kind::End => 0,
        Kind::Reason => Failure::BYTES_MAX,
    };
    if len_bytes <= max_bytes { Ok((kind, len_bytes)) } else { Err(broken(machine)) }
}

fn read_reason(mut socket: &TcpStream, len_bytes: usize, machine: usize) -> Error {
    let mut reason = vec![0; len_bytes];
    match socket.read_exact(&mut reason) {
        Ok(()) => Failure::decode(&reason).map_or_else(|| broken(machine), |failure| failure.told_by(machine)),
        Err(error) => lost(machine, &error),
    }
}

/// Reads on until the other side has ended or is shut out. Bytes that nobody reads would make the kernel drop those under way.
fn drain(mut socket: &TcpStream) {
    let mut unread = [0; 4096];
    while socket.read(&mut unread).is_ok_and(|len| len > 0) {}
}

/// Looks whether a machine, which this one waits for together with others, has ended. Returns its reason. The end of one that sent more than the
/// buffers of the connection hold is seen later, by the silence behind it.
pub(super) fn heard(socket: &TcpStream, machine: usize) -> Option<Error> {
    let mut first = [0];
    let looked = socket.set_nonblocking(true).and_then(|()| socket.peek(&mut first));
    let _ = socket.set_nonblocking(false);
    match looked {
        Ok(0) => Some(lost(machine, &io::ErrorKind::UnexpectedEof.into())),
        // A machine that had all others may have sent of its disks before it ended.
        Ok(_) if first == [Kind::Reason as u8] || has_ended(socket) => Some(last_word(socket, machine)),
        Ok(_) => None,
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
        Err(error) => Some(lost(machine, &error)),
    }
}

/// Whether the other side sends nothing any more; bytes that it sent before may be unread.
fn has_ended(socket: &TcpStream) -> bool {
    let mut asked = [PollFd::new(socket, PollFlags::RDHUP)];
    poll(&mut asked, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
}

/// Reads the reason of a machine that has ended or tells it now. What it sent before is of no use any more.
fn last_word(socket: &TcpStream, machine: usize) -> Error {
    let _ = socket.set_read_timeout(Some(TELLS_WITHIN));
    let until = Instant::now() + TELLS_WITHIN;
    loop {
        if Instant::now() >= until {
            return lost(machine, &io::ErrorKind::TimedOut.into());
        }
        match read_header(socket, machine) {
            Err(error) => return error,
            Ok((Kind::Reason, len_bytes)) => return read_reason(socket, len_bytes, machine),
            Ok((Kind::Data | Kind::End, len_bytes)) => {
                if let Err(error) = io::copy(&mut socket.take(len_bytes as u64), &mut io::sink()) {
                    return lost(machine, &error);
                }
            }
        }
    }
}

/// Tells machines why this one does not take part, after all.
pub(super) fn part(me: usize, sockets: Vec<Option<TcpStream>>, error: &Error) {
    let failure = Failure::of(me, error);
    let until = Instant::now() + TELLS_WITHIN;
    let peers: Vec<_> = sockets.into_iter().flatten().map(|socket| Peer { socket, writing: Arc::default() }).collect();
    peers.iter().for_each(|peer| peer.tell(&failure, until));
    for peer in &peers {
        let left = until.saturating_duration_since(Instant::now()).max(STEP);
        let _ = peer.socket.set_read_timeout(Some(left));
        drain(&peer.socket);
    }
}

/// One connection, from the view of a thread of timely.
pub(super) struct Link {
    socket: TcpStream,
    writing: Arc<Mutex<()>>,
    shared: Arc<Shared>,
    machine: usize,
    /// Bytes of the frame that are not read yet.
    frame_bytes: usize,
    has_ended: bool,
    messages: Messages,
}

impl Link {
    fn new(socket: TcpStream, writing: Arc<Mutex<()>>, shared: Arc<Shared>, machine: usize) -> Self {
        let messages = Messages::new(machine, shared.me);
        Self { socket, writing, shared, machine, frame_bytes: 0, has_ended: false, messages }
    }

    /// Notes a failure, and ends the thread when the worker is gone.
    fn fail(&mut self, error: Error) -> ! {
        self.shared.fail(error);
        let mut is_over = lock(&self.shared.is_over);
        while !*is_over {
            is_over = self.shared.over.wait(is_over).unwrap_or_else(PoisonError::into_inner);
        }
        drop(is_over);
        self.leave()
    }

    /// Ends this thread, once the other side has ended.
    fn leave(&mut self) -> ! {
        drain(&self.socket);
        resume_unwind(Box::new("the worker is gone"))
    }

    /// Reads a header of frames, and all of a frame that is not data. False at the end.
    fn next_frame(&mut self) -> Result<bool> {
        match read_header(&self.socket, self.machine)? {
            (Kind::Data, len_bytes) => {
                self.frame_bytes = len_bytes;
                Ok(true)
            }
            (Kind::End, _) if self.messages.has_ended() => Ok(false),
            (Kind::End, _) => Err(broken(self.machine)),
            (Kind::Reason, len_bytes) => Err(read_reason(&self.socket, len_bytes, self.machine)),
        }
    }
}

impl io::Read for Link {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.shared.is_over() {
            self.leave();
        }
        while self.frame_bytes == 0 && !self.has_ended {
            match self.next_frame() {
                Ok(is_more) => self.has_ended = !is_more,
                Err(error) => self.fail(error),
            }
        }
        if self.has_ended {
            return Ok(0);
        }
        let room = self.frame_bytes.min(into.len());
        let Some(part) = into.get_mut(..room) else { return Ok(0) };
        let read = match self.socket.read(part) {
            Ok(0) => Err(io::Error::from(io::ErrorKind::UnexpectedEof)),
            other => other,
        };
        match read {
            Ok(len) => {
                self.frame_bytes -= len;
                if !part.get(..len).is_some_and(|bytes| self.messages.take(bytes)) {
                    let why = "it sends messages that no machine sends".into();
                    self.fail(Error::Lost { machine: self.machine, why });
                }
                Ok(len)
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Err(error),
            Err(error) => self.fail(lost(self.machine, &error)),
        }
    }
}

impl io::Write for Link {
    /// Bytes that a broken connection does not take are dropped: the worker ends the round.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let part = bytes.get(..FRAME_BYTES_MAX).unwrap_or(bytes);
        if !self.shared.has_failed.load(Ordering::SeqCst) {
            let _turn = lock(&self.writing);
            if let Err(error) = self.socket.write_all(&frame(Kind::Data, part)) {
                self.shared.fail(lost(self.machine, &error));
            }
        }
        Ok(part.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Stream for Link {
    fn try_clone(&self) -> io::Result<Self> {
        let (writing, shared) = (Arc::clone(&self.writing), Arc::clone(&self.shared));
        Ok(Self::new(self.socket.try_clone()?, writing, shared, self.machine))
    }

    fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        self.socket.set_nonblocking(nonblocking)
    }

    /// Says that all has been sent and all is well, if it is.
    fn shutdown(&self, _: Shutdown) -> io::Result<()> {
        // After an error a reason comes instead.
        if self.shared.is_committed.load(Ordering::SeqCst) {
            let _turn = lock(&self.writing);
            let _ = (&self.socket).write_all(&frame(Kind::End, &[]));
            let _ = self.socket.shutdown(Shutdown::Write);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// A connection whose other side sends `bytes`, and then ends or not.
    fn sent(bytes: &[u8], ends: bool) -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let mut theirs = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        theirs.write_all(bytes).unwrap();
        if ends {
            theirs.shutdown(Shutdown::Write).unwrap();
        }
        let ours = listener.accept().unwrap().0;
        while ours.peek(&mut [0; 4096]).unwrap() < bytes.len() || has_ended(&ours) != ends {
            std::thread::yield_now();
        }
        (ours, theirs)
    }

    /// It was waited for another machine that had left because of this one, until the time was up, and that one was named.
    #[test]
    fn regression_a_machine_that_sent_of_its_disks_before_it_ended_is_heard_while_others_are_waited_for() {
        let data = [frame(Kind::Data, &[7; 100]), frame(Kind::Data, &[8; 50])].concat();
        let reason = frame(Kind::Reason, &Failure::of(2, &Error::Disk { disk: 3, why: "it changed".into() }).encode());
        let heard = |bytes: &[u8], ends| {
            let (ours, _theirs) = sent(bytes, ends);
            super::heard(&ours, 2).map(|error| error.to_string())
        };
        assert_eq!(heard(&data, false), None);
        let told = heard(&data, true).unwrap();
        assert!(told.contains("machine 2 is lost: its connection ended without a word"), "{told}");
        let told = heard(&[data.as_slice(), &reason].concat(), true).unwrap();
        assert!(told.contains("machine 2 ended the round") && told.contains("it changed"), "{told}");
        let told = heard(&data[..70], true).unwrap();
        assert!(told.contains("machine 2 is lost"), "{told}");
    }
}
