//! A proxy that makes a store far away, and counts what goes there.

use std::io::{Read, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use crate::{Outcome, fail};

/// Bytes that travel together.
const PART_BYTES: usize = 64 << 10;
/// Parts on the way in one direction of a connection.
const PARTS_MAX: usize = 1024;
/// The beginnings of requests.
const METHODS: [&[u8]; 5] = [b"GET ", b"PUT ", b"HEAD ", b"POST ", b"DELETE "];

/// Requests and bytes so far.
#[derive(Clone, Copy, Default)]
pub struct Traffic {
    /// Requests.
    pub requests: u64,
    /// Bytes to the store.
    pub sent_bytes: u64,
}

impl Traffic {
    /// Returns the part since an earlier count.
    pub const fn since(&self, earlier: &Self) -> Self {
        Self { requests: self.requests - earlier.requests, sent_bytes: self.sent_bytes - earlier.sent_bytes }
    }
}

#[derive(Default)]
struct Counts {
    requests: AtomicU64,
    sent_bytes: AtomicU64,
}

/// The proxy. Its threads end with their connections, and the listener with the process.
pub struct Distance {
    /// Where it listens.
    pub port: u16,
    counts: Arc<Counts>,
}

impl Distance {
    /// Starts a proxy to a port of this machine, so many milliseconds there and back.
    pub fn new(to: u16, latency_ms: u64) -> Outcome<Self> {
        let listening =
            TcpListener::bind("127.0.0.1:0").and_then(|listener| Ok((listener.local_addr()?.port(), listener)));
        let (port, listener) = listening.or_else(|error| fail(format!("cannot listen: {error}")))?;
        let (counts, delay) = (Arc::new(Counts::default()), Duration::from_micros(latency_ms * 500));
        let counted = Arc::clone(&counts);
        thread::spawn(move || {
            for near in listener.incoming().flatten() {
                // A store that is gone ends the connection.
                if let Ok(far) = TcpStream::connect(("127.0.0.1", to)) {
                    let _any = near.set_nodelay(true).and_then(|()| far.set_nodelay(true));
                    connect(&near, &far, delay, &counted);
                }
            }
        });
        Ok(Self { port, counts })
    }

    /// The counts so far.
    pub fn traffic(&self) -> Traffic {
        let Counts { requests, sent_bytes } = &*self.counts;
        Traffic { requests: requests.load(Ordering::Relaxed), sent_bytes: sent_bytes.load(Ordering::Relaxed) }
    }
}

fn connect(near: &TcpStream, far: &TcpStream, delay: Duration, counts: &Arc<Counts>) {
    let (Ok(near_too), Ok(far_too)) = (near.try_clone(), far.try_clone()) else { return };
    let (Ok(near), Ok(far)) = (near.try_clone(), far.try_clone()) else { return };
    lead(near, far, delay, Some(Arc::clone(counts)));
    lead(far_too, near_too, delay, None);
}

/// Leads one direction: a thread reads, another writes when the time of each part has come.
fn lead(from: TcpStream, to: TcpStream, delay: Duration, counts: Option<Arc<Counts>>) {
    let (send, receive) = sync_channel(PARTS_MAX);
    thread::spawn(move || read(from, &send, delay, counts.as_deref()));
    thread::spawn(move || write(to, &receive));
}

fn read(mut from: TcpStream, send: &SyncSender<(Instant, Vec<u8>)>, delay: Duration, counts: Option<&Counts>) {
    let mut buffer = vec![0; PART_BYTES];
    while let Ok(len @ 1..) = from.read(&mut buffer) {
        let part = buffer[..len].to_vec();
        if let Some(counts) = counts {
            // Clients send the head of a request at the beginning of a part.
            let is_head = METHODS.iter().any(|method| part.starts_with(method));
            counts.requests.fetch_add(u64::from(is_head), Ordering::Relaxed);
            counts.sent_bytes.fetch_add(len as u64, Ordering::Relaxed);
        }
        if send.send((Instant::now() + delay, part)).is_err() {
            return;
        }
    }
}

fn write(mut to: TcpStream, receive: &Receiver<(Instant, Vec<u8>)>) {
    while let Ok((due, part)) = receive.recv() {
        thread::sleep(due.saturating_duration_since(Instant::now()));
        if to.write_all(&part).is_err() {
            break;
        }
    }
    let _gone = to.shutdown(Shutdown::Both);
}
