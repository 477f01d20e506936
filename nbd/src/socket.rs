//! The stream to a server, with limits of time.

use std::io;
use std::net::{TcpStream, ToSocketAddrs as _};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, sockopt};

use crate::address::Server;
use crate::{Address, Error, Result};

/// Time for connecting.
const CONNECT_SECS: u64 = 30;
/// Silence after which a server counts as gone, while it is to send or take something.
const SILENCE_SECS: u64 = 60;
/// How often a wait asks whether it is to go on.
const STEP: Duration = Duration::from_millis(250);
/// Bytes that are read at once, unless more are wanted in a row.
const BUFFER_BYTES: usize = 16 << 10;

/// A connected socket.
#[derive(Debug)]
pub(crate) struct Socket(OwnedFd);

impl Socket {
    pub(crate) fn connect(address: &Address) -> Result<Self> {
        let cannot = |error: io::Error| Error::Connect { address: address.to_string(), error };
        let socket: OwnedFd = match &address.server {
            Server::Unix(path) => UnixStream::connect(path).map_err(cannot)?.into(),
            Server::Tcp { host, port } => {
                let stream = connect_tcp(host, *port).map_err(cannot)?;
                watch(&stream).map_err(cannot)?;
                stream.into()
            }
        };
        Self::new(socket)
    }

    /// Takes a socket that is connected.
    pub(crate) fn new(socket: OwnedFd) -> Result<Self> {
        for timeout in [sockopt::Timeout::Recv, sockopt::Timeout::Send] {
            sockopt::set_socket_timeout(&socket, timeout, Some(STEP)).map_err(broken)?;
        }
        Ok(Self(socket))
    }

    pub(crate) fn try_clone(&self) -> Result<OwnedFd> {
        self.0.try_clone().map_err(Error::Broken)
    }

    /// Sends all of a message.
    pub(crate) fn send(&self, mut message: &[u8], keep_waiting: &dyn Fn() -> bool) -> Result<()> {
        let mut silence = Silence::begin();
        while !message.is_empty() {
            match rustix::net::send(&self.0, message, SendFlags::NOSIGNAL) {
                Ok(count) => {
                    message = message.get(count..).unwrap_or_default();
                    silence = Silence::begin();
                }
                Err(errno) => silence.bear(errno, keep_waiting)?,
            }
        }
        Ok(())
    }

    /// Receives at least one byte. With `WAITALL` it waits up to [`STEP`] for all of `into`: fewer calls for long data.
    fn receive(&self, into: &mut [u8], flags: RecvFlags, keep_waiting: &dyn Fn() -> bool) -> Result<usize> {
        let silence = Silence::begin();
        loop {
            match rustix::net::recv(&self.0, &mut *into, flags) {
                Ok((0, _)) => return Err(Error::Broken(io::ErrorKind::UnexpectedEof.into())),
                Ok((count, _)) => return Ok(count),
                Err(errno) => silence.bear(errno, keep_waiting)?,
            }
        }
    }
}

/// A wait for the server.
struct Silence(Instant);

impl Silence {
    fn begin() -> Self {
        Self(Instant::now())
    }

    /// Returns if the call that failed with `errno` may be tried again.
    fn bear(&self, errno: Errno, keep_waiting: &dyn Fn() -> bool) -> Result<()> {
        match errno {
            Errno::AGAIN | Errno::INTR if !keep_waiting() => Err(Error::GivenUp),
            Errno::AGAIN if self.0.elapsed().as_secs() >= SILENCE_SECS => Err(Error::Silent { secs: SILENCE_SECS }),
            Errno::AGAIN | Errno::INTR => Ok(()),
            errno => Err(broken(errno)),
        }
    }
}

fn broken(errno: Errno) -> Error {
    Error::Broken(errno.into())
}

fn connect_tcp(host: &str, port: u16) -> io::Result<TcpStream> {
    let mut failed = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
    for address in (host, port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, Duration::from_secs(CONNECT_SECS)) {
            Ok(stream) => return Ok(stream),
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

/// Makes a peer that is gone show, also while nothing is sent.
fn watch(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, Duration::from_secs(SILENCE_SECS / 2))?;
    sockopt::set_tcp_keepintvl(stream, Duration::from_secs(SILENCE_SECS / 12))?;
    sockopt::set_tcp_user_timeout(stream, 1000 * SILENCE_SECS as u32)?;
    Ok(())
}

/// The bytes of a server, in order.
#[derive(Debug)]
pub(crate) struct Input {
    buffer: Box<[u8]>,
    /// The bytes of the buffer that are still to be taken.
    from: usize,
    to: usize,
}

impl Input {
    pub(crate) fn new() -> Self {
        Self { buffer: vec![0; BUFFER_BYTES].into(), from: 0, to: 0 }
    }

    /// Whether something was received that is not taken.
    pub(crate) fn has_rest(&self) -> bool {
        self.from < self.to
    }

    /// Fills `into`.
    pub(crate) fn fill(&mut self, socket: &Socket, mut into: &mut [u8], keep_waiting: &dyn Fn() -> bool) -> Result<()> {
        while !into.is_empty() {
            let ready = self.buffer.get(self.from..self.to).unwrap_or_default();
            if ready.is_empty() {
                if into.len() >= self.buffer.len() {
                    let count = socket.receive(into, RecvFlags::WAITALL, keep_waiting)?;
                    // The server is slow.
                    if count < into.len() && !keep_waiting() {
                        return Err(Error::GivenUp);
                    }
                    into = into.get_mut(count..).unwrap_or_default();
                } else {
                    (self.from, self.to) = (0, socket.receive(&mut self.buffer, RecvFlags::empty(), keep_waiting)?);
                }
                continue;
            }
            let count = ready.len().min(into.len());
            let (head, rest) = into.split_at_mut(count);
            head.copy_from_slice(ready.get(..count).unwrap_or_default());
            self.from += count;
            into = rest;
        }
        Ok(())
    }

    /// Returns the next bytes.
    pub(crate) fn take<const N: usize>(&mut self, socket: &Socket, keep_waiting: &dyn Fn() -> bool) -> Result<[u8; N]> {
        let mut bytes = [0; N];
        self.fill(socket, &mut bytes, keep_waiting)?;
        Ok(bytes)
    }

    /// Returns so many of the next bytes. The caller has checked their number.
    pub(crate) fn take_vec(
        &mut self,
        socket: &Socket,
        len_bytes: usize,
        keep_waiting: &dyn Fn() -> bool,
    ) -> Result<Vec<u8>> {
        let mut bytes = vec![0; len_bytes];
        self.fill(socket, &mut bytes, keep_waiting)?;
        Ok(bytes)
    }
}
