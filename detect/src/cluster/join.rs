//! Machines find each other: they connect, and see that they mean the same round of the same job.
//!
//! Each machine connects to those before it and listens for those behind it. Both sides say a hello (`docs/format.md`, Beside a pool).
//! A connection without the magic is closed, as it is no machine's; a machine with another hello ends the round for both.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use rustix::net::sockopt;

use super::{Cluster, Stage, Watch, links};
use crate::{Error, Result};
use dedupfs_spool::take;

const MAGIC: [u8; 8] = *b"ddfsdtct";
const VERSION: u32 = 1;
const HELLO_BYTES: usize = 64;
/// The round of machine 0 when all rounds are over.
const OVER: u64 = u64::MAX;
/// Time for the hello of a connection that may be a stranger's.
const HELLO_WITHIN: Duration = Duration::from_secs(1);
/// Time of an attempt to connect.
const CONNECTS_WITHIN: Duration = Duration::from_secs(1);
const STEP: Duration = Duration::from_millis(10);
/// Time without an answer after which a connection is broken.
const SILENT_MILLIS_MAX: u32 = 10_000;
/// Time without traffic after which the kernel asks whether the other side is there, and between two such questions.
const ASKS_AFTER: Duration = Duration::from_secs(2);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Hello {
    version: u32,
    machine: u32,
    machines: u32,
    round: u64,
    /// Disks of the other machine that are not stored, when all rounds are over.
    failed: u32,
    job: [u8; 32],
}

impl Hello {
    fn of(cluster: &Cluster) -> Self {
        Self {
            version: VERSION,
            machine: cluster.me as u32,
            machines: cluster.machines.len() as u32,
            round: cluster.round,
            failed: 0,
            job: cluster.job,
        }
    }

    fn encode(&self) -> Vec<u8> {
        let numbers = [self.version, self.machine, self.machines].map(u32::to_le_bytes).concat();
        [MAGIC.as_slice(), &numbers, &self.round.to_le_bytes(), &self.failed.to_le_bytes(), &self.job].concat()
    }

    /// Reads it, if it bears the magic.
    fn decode(mut from: &[u8]) -> Option<Self> {
        if take(&mut from)? != MAGIC {
            return None;
        }
        let (version, machine) = (u32::from_le_bytes(take(&mut from)?), u32::from_le_bytes(take(&mut from)?));
        let (machines, round) = (u32::from_le_bytes(take(&mut from)?), u64::from_le_bytes(take(&mut from)?));
        let (failed, job) = (u32::from_le_bytes(take(&mut from)?), take(&mut from)?);
        from.is_empty().then_some(Self { version, machine, machines, round, failed, job })
    }

    /// Compares it with the hello of the other side. Returns the first difference in words.
    fn difference(&self, other: &Self) -> Option<String> {
        if self.version != other.version {
            return Some(format!(
                "speaks version {} of the protocol, not {}: run the same release",
                other.version, self.version
            ));
        }
        if self.job != other.job {
            return Some("has another job: give all machines the same plan".into());
        }
        let unequal = self.machines != other.machines;
        unequal.then(|| format!("knows {} machines, not {}: give all the same list", other.machines, self.machines))
    }
}

/// Connects to all other machines. The position of a socket is the index of its machine; there is none for this one.
///
/// # Errors
/// A machine does not come in time, goes, or means another round.
pub(super) fn join(cluster: &Cluster, watch: &Watch<'_>) -> Result<Vec<Option<TcpStream>>> {
    let mut sockets: Vec<Option<TcpStream>> = cluster.machines.iter().map(|_| None).collect();
    match find(cluster, watch, &mut sockets) {
        Ok(()) => Ok(sockets),
        Err(error) => {
            links::part(cluster.me, sockets, &error);
            Err(error)
        }
    }
}

fn find(cluster: &Cluster, watch: &Watch<'_>, sockets: &mut [Option<TcpStream>]) -> Result<()> {
    if sockets.len() < 2 {
        return Ok(());
    }
    let until = Instant::now() + Duration::from_secs(cluster.join_secs);
    let listener = listen(cluster)?;
    loop {
        if !watch(Stage::Join) {
            return Err(Error::Ended);
        }
        for machine in 0..cluster.me {
            if sockets.get(machine).is_some_and(Option::is_none) {
                put(sockets, machine, connect(cluster, machine, until, watch)?);
            }
        }
        while let Some((machine, socket)) = accept(cluster, &listener, watch)? {
            // One that was killed meanwhile comes again.
            let before = sockets.get(machine).and_then(Option::as_ref);
            if before.is_some_and(|socket| links::heard(socket, machine).is_none()) {
                return Err(Error::Refused(format!("two processes are machine {machine}; start one for each machine")));
            }
            put(sockets, machine, Some(socket));
        }
        let missing = |(machine, socket): (usize, &Option<TcpStream>)| {
            (machine != cluster.me && socket.is_none()).then_some(machine)
        };
        let Some(missing) = sockets.iter().enumerate().find_map(missing) else { return Ok(()) };
        let heard = |(machine, socket): (usize, &Option<TcpStream>)| links::heard(socket.as_ref()?, machine);
        if let Some(error) = sockets.iter().enumerate().find_map(heard) {
            return Err(error);
        }
        if Instant::now() >= until {
            let address = cluster.address(missing);
            return Err(Error::Lost { machine: missing, why: format!("it did not come to {address} in time") });
        }
        std::thread::sleep(STEP);
    }
}

/// Tells the other machines, as they come, that all rounds are over, and how many disks of each are not stored: machine 0 does, behind its last
/// round. Returns those that did not come within [`join_secs`](Cluster::join_secs).
///
/// # Errors
/// [`Error::Refused`] if this machine cannot listen; [`Error::Ended`].
pub fn part_from_all(cluster: &Cluster, failed: &[u32], watch: &Watch<'_>) -> Result<Vec<usize>> {
    let mut missing: Vec<usize> = (1..cluster.machines.len()).collect();
    if missing.is_empty() {
        return Ok(missing);
    }
    let until = Instant::now() + Duration::from_secs(cluster.join_secs);
    let listener = listen(cluster)?;
    while !missing.is_empty() && Instant::now() < until {
        if !watch(Stage::Join) {
            return Err(Error::Ended);
        }
        let Ok((socket, _)) = listener.accept() else {
            std::thread::sleep(STEP);
            continue;
        };
        let heard = prepare(&socket).and_then(|()| read_hello(&socket, HELLO_WITHIN, watch));
        let Ok(Some(hello)) = heard else { continue };
        let machine = hello.machine as usize;
        let last = Hello { round: OVER, failed: failed.get(machine).copied().unwrap_or(0), ..Hello::of(cluster) };
        // One of another job is told so, too.
        let told = (&socket).write_all(&last.encode()).is_ok();
        if told && hello.job == cluster.job {
            missing.retain(|other| *other != machine);
        }
    }
    Ok(missing)
}

fn listen(cluster: &Cluster) -> Result<TcpListener> {
    let here = cluster.address(cluster.me);
    let listener = TcpListener::bind(here).and_then(|listener| listener.set_nonblocking(true).map(|()| listener));
    listener.map_err(|error| {
        Error::Refused(format!(
            "machine {} cannot listen on {here}: {error}; see that no other process does",
            cluster.me
        ))
    })
}

fn put(sockets: &mut [Option<TcpStream>], machine: usize, socket: Option<TcpStream>) {
    if let Some(place) = sockets.get_mut(machine) {
        *place = socket;
    }
}

fn prepare(socket: &TcpStream) -> io::Result<()> {
    socket.set_nonblocking(false)?;
    socket.set_nodelay(true)?;
    sockopt::set_tcp_user_timeout(socket, SILENT_MILLIS_MAX)?;
    sockopt::set_tcp_keepidle(socket, ASKS_AFTER)?;
    sockopt::set_tcp_keepintvl(socket, ASKS_AFTER)?;
    sockopt::set_tcp_keepcnt(socket, SILENT_MILLIS_MAX / 1000 / ASKS_AFTER.as_secs() as u32)?;
    sockopt::set_socket_keepalive(socket, true)?;
    Ok(())
}

/// Connects to a machine before this one. None if it is not there yet.
fn connect(cluster: &Cluster, machine: usize, until: Instant, watch: &Watch<'_>) -> Result<Option<TcpStream>> {
    let address = cluster.address(machine);
    let Ok(socket) = TcpStream::connect_timeout(&address, CONNECTS_WITHIN) else { return Ok(None) };
    // On one host, the kernel may choose the port of the other machine for this side, and connect the socket to itself.
    if socket.local_addr().is_ok_and(|here| here == address) {
        return Ok(None);
    }
    let greeted = prepare(&socket).and_then(|()| (&socket).write_all(&Hello::of(cluster).encode()));
    // It answers when it has found those before it.
    let left = until.saturating_duration_since(Instant::now()).max(STEP);
    let Ok(Some(hello)) = greeted.and_then(|()| read_hello(&socket, left, watch)) else { return Ok(None) };
    see(cluster, &hello, address)?;
    if hello.machine as usize != machine {
        let told = format!("{address} is machine {}, not {machine}: give all machines the same list", hello.machine);
        return Err(Error::Refused(told));
    }
    Ok(Some(socket))
}

/// Takes the next connection of a machine behind this one. None if there is none, or if it is no machine's.
fn accept(cluster: &Cluster, listener: &TcpListener, watch: &Watch<'_>) -> Result<Option<(usize, TcpStream)>> {
    let Ok((socket, address)) = listener.accept() else { return Ok(None) };
    let heard = prepare(&socket).and_then(|()| read_hello(&socket, HELLO_WITHIN, watch));
    // Else it is a stranger, or a process that has ended.
    let Ok(Some(hello)) = heard else { return Ok(None) };
    if (&socket).write_all(&Hello::of(cluster).encode()).is_ok() {
        see(cluster, &hello, address)?;
        let machine = hello.machine as usize;
        if machine <= cluster.me || machine >= cluster.machines.len() {
            let told = format!("{address} calls itself machine {machine} and connects to machine {}", cluster.me);
            return Err(Error::Refused(format!("{told}: give all machines the same list")));
        }
        return Ok(Some((machine, socket)));
    }
    Ok(None)
}

fn read_hello(socket: &TcpStream, within: Duration, watch: &Watch<'_>) -> io::Result<Option<Hello>> {
    let mut bytes = [0; HELLO_BYTES];
    let until = Instant::now() + within;
    // Nothing is taken before all has come, so that a wait can end between two looks.
    socket.set_nonblocking(true)?;
    loop {
        match socket.peek(&mut bytes) {
            Ok(HELLO_BYTES) => break,
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
            Ok(_) | Err(_) if Instant::now() >= until || !watch(Stage::Join) => {
                return Err(io::ErrorKind::TimedOut.into());
            }
            Ok(_) | Err(_) => std::thread::sleep(STEP),
        }
    }
    socket.set_nonblocking(false)?;
    (&*socket).read_exact(&mut bytes)?;
    Ok(Hello::decode(&bytes))
}

fn see(cluster: &Cluster, hello: &Hello, address: SocketAddr) -> Result<()> {
    let ours = Hello::of(cluster);
    let Some(difference) = ours.difference(hello) else {
        return match hello.round == ours.round {
            true => Ok(()),
            false if hello.round == OVER && hello.machine == 0 => Err(Error::Over { failed: hello.failed }),
            false => Err(Error::OtherRound { machine: hello.machine as usize, round: hello.round, here: ours.round }),
        };
    };
    let (me, here) = (cluster.me, cluster.address(cluster.me));
    Err(Error::Refused(format!(
        "machine {} at {address} and machine {me} at {here} do not fit: the former {difference}",
        hello.machine
    )))
}

#[cfg(feature = "fuzzing")]
pub(super) fn fuzz_hello(bytes: &[u8]) {
    let read = |bytes: &[u8]| assert!(Hello::decode(bytes).is_none_or(|hello| hello.encode() == bytes));
    read(bytes);
    read(&[MAGIC.as_slice(), bytes].concat());
}

#[cfg(test)]
mod tests {
    use super::*;

    const HELLO: Hello = Hello { version: 1, machine: 2, machines: 4, round: 9, failed: 3, job: [7; 32] };

    #[test]
    fn a_hello_is_read_as_it_was_written_and_nothing_else_is() {
        let bytes = HELLO.encode();
        assert_eq!((bytes.len(), Hello::decode(&bytes)), (HELLO_BYTES, Some(HELLO)));
        assert_eq!(Hello::decode(&bytes[..HELLO_BYTES - 1]), None);
        assert_eq!(Hello::decode(&[0; HELLO_BYTES]), None);
    }

    #[test]
    fn every_difference_is_told() {
        assert_eq!(HELLO.difference(&Hello { machine: 3, ..HELLO }), None);
        let told = |other: Hello| HELLO.difference(&other).unwrap();
        assert!(told(Hello { version: 2, ..HELLO }).contains("version 2"));
        assert!(told(Hello { job: [8; 32], ..HELLO }).contains("another job"));
        assert!(told(Hello { machines: 5, ..HELLO }).contains("5 machines"));
    }
}
