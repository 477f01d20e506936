//! Keeps the idle cores of a virtual machine from being given back to the host while small requests follow one another.
//!
//! A client that sleeps until its request is answered leaves its core idle. An idle core of a virtual machine is halted, which leaves the
//! machine, and waking it takes longer than most requests. The kernel lets a program limit the time that waking a core takes, while the
//! program holds `/dev/cpu_dma_latency` open (Documentation/power/pm_qos_interface.rst). With a limit of 0 all idle cores poll, if the
//! machine has a cpuidle driver. The host cannot use their time meanwhile. So the limit is held only while it pays:
//!
//! ```text
//!       CALL requests within CALL_WITHIN that came soon behind an answer
//!   ┌────────┐ ────────────────────────────────────────────> ┌─────────┐
//!   │ asleep │                                               │ holding │
//!   └────────┘ <──────────────────────────────────────────── └─────────┘
//!                fewer than KEEP of them within INTERVAL
//! ```
//!
//! On a physical machine a core wakes within microseconds, and on one with many cores many would poll for few clients. There the limit is
//! held only if asked for.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

/// Requests that start holding: some milliseconds of a client that does nothing else.
const CALL: u64 = 64;
/// Time within which they must come: the rate at which holding continues.
const CALL_WITHIN: Duration = Duration::from_millis(32);
/// Time between two checks whether holding still pays.
const INTERVAL: Duration = Duration::from_millis(20);
/// Requests within [`INTERVAL`] for which holding pays: 2,000 a second.
const KEEP: u64 = 40;
/// Most cores of a machine on which the limit is held unasked.
const CORES_MAX: usize = 8;
/// The file that limits the latency of waking while it is open.
const LIMIT: &str = "/dev/cpu_dma_latency";
/// Its content: microseconds, in the byte order of the machine.
const NO_LATENCY: [u8; 4] = 0_i32.to_ne_bytes();

/// Whether idle cores are to be kept awake while small requests follow one another.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub enum KeepAwake {
    /// On a virtual machine of at most eight cores (x86 only: others do not report that they are virtual).
    #[default]
    Auto,
    /// On any machine.
    On,
    /// Never.
    Off,
}

/// Counts the requests of a mount that come soon after an answer, and lets a thread hold the limit while there are many. Dropping this ends
/// the holding.
pub(crate) struct Awake {
    shared: Arc<Shared>,
    keeper: OnceLock<()>,
    /// Time when the last [`CALL`] of them were complete.
    counted: Mutex<Option<Instant>>,
}

struct Shared {
    limit: PathBuf,
    keep: KeepAwake,
    soon: AtomicU64,
    asleep: AtomicBool,
    orders: Mutex<Orders>,
    changed: Condvar,
}

#[derive(Default)]
struct Orders {
    called: bool,
    ended: bool,
}

impl Awake {
    /// Applies the mount's option; `None` if no cores are to be kept awake.
    pub(crate) fn new(keep: KeepAwake) -> Option<Self> {
        let wanted = match keep {
            KeepAwake::Auto => is_worth_it(&std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default()),
            KeepAwake::On => true,
            KeepAwake::Off => false,
        };
        wanted.then(|| Self::with_limit(LIMIT.into(), keep))
    }

    fn with_limit(limit: PathBuf, keep: KeepAwake) -> Self {
        let (soon, asleep) = (AtomicU64::new(0), AtomicBool::new(true));
        let shared = Shared { limit, keep, soon, asleep, orders: Mutex::default(), changed: Condvar::new() };
        Self { shared: Arc::new(shared), keeper: OnceLock::new(), counted: Mutex::default() }
    }

    pub(super) fn note(&self, now: Instant) {
        let before = self.shared.soon.fetch_add(1, Ordering::Relaxed);
        if before % CALL == CALL - 1 {
            let earlier = self.counted.lock().replace(now);
            let is_burst = earlier.is_none_or(|earlier| now.saturating_duration_since(earlier) < CALL_WITHIN);
            if is_burst && self.shared.asleep.swap(false, Ordering::Relaxed) {
                self.call();
            }
        }
    }

    #[cold]
    fn call(&self) {
        {
            let mut orders = self.shared.orders.lock();
            orders.called = true;
            // Notify with the lock held: a later notification could end the keeper's first interval.
            self.shared.changed.notify_one();
        }
        self.keeper.get_or_init(|| {
            let shared = Arc::clone(&self.shared);
            let keeper = std::thread::Builder::new().name("fuse-awake".to_owned()).spawn(move || shared.keep());
            if let Err(error) = keeper {
                tracing::debug!(%error, "no thread that keeps cores awake");
            }
        });
    }
}

impl Drop for Awake {
    fn drop(&mut self) {
        self.shared.orders.lock().ended = true;
        self.shared.changed.notify_one();
    }
}

impl Shared {
    fn keep(&self) {
        let mut told = false;
        while self.wait_for_call() {
            match hold(&self.limit) {
                Ok(limit) => {
                    if !told {
                        tracing::info!("idle cores are kept awake while small requests follow one another");
                        told = true;
                    }
                    self.wait_while_it_pays();
                    drop(limit);
                    self.asleep.store(true, Ordering::Relaxed);
                }
                // The keeper stays marked as awake, so it is not called again.
                // The user asked for it.
                Err(error) if self.keep == KeepAwake::On => {
                    return tracing::warn!(path = %self.limit.display(), %error, "idle cores cannot be kept awake");
                }
                Err(error) => {
                    return tracing::debug!(path = %self.limit.display(), %error, "idle cores cannot be kept awake");
                }
            }
        }
    }

    /// Waits for a call; returns `false` at the end of the mount.
    fn wait_for_call(&self) -> bool {
        let mut orders = self.orders.lock();
        while !orders.called && !orders.ended {
            self.changed.wait(&mut orders);
        }
        orders.called = false;
        !orders.ended
    }

    fn wait_while_it_pays(&self) {
        let mut orders = self.orders.lock();
        loop {
            let before = self.soon.load(Ordering::Relaxed);
            self.changed.wait_for(&mut orders, INTERVAL);
            let came = self.soon.load(Ordering::Relaxed).wrapping_sub(before);
            if orders.ended || came < KEEP {
                return;
            }
        }
    }
}

/// Sets the limit, which is in force until the returned file is dropped.
fn hold(limit: &Path) -> io::Result<File> {
    let mut file = OpenOptions::new().write(true).open(limit)?;
    file.write_all(&NO_LATENCY)?;
    Ok(file)
}

/// Whether the processors report a virtual machine, and are few. All of them would poll, even if this process may use only some.
fn is_worth_it(cpuinfo: &str) -> bool {
    let cores = cpuinfo.lines().filter(|line| line.starts_with("processor")).count();
    let is_virtual = cpuinfo
        .lines()
        .any(|line| line.starts_with("flags") && line.split_ascii_whitespace().any(|flag| flag == "hypervisor"));
    is_virtual && cores <= CORES_MAX
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::sync::mpsc;

    use super::*;

    /// Returns the bytes written to the limit, each time when it is given up.
    fn limits(path: PathBuf) -> mpsc::Receiver<Vec<u8>> {
        let (sender, receiver) = mpsc::channel();
        std::thread::spawn(move || {
            loop {
                let mut written = Vec::new();
                let read = File::open(&path).and_then(|mut file| file.read_to_end(&mut written));
                if read.is_err() || sender.send(written).is_err() {
                    return;
                }
            }
        });
        receiver
    }

    fn pipe(directory: &Path) -> PathBuf {
        let path = directory.join("limit");
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        path
    }

    /// Waits for an effect of the keeper.
    fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while !is_so() {
            assert!(Instant::now() < deadline, "{what}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn many_requests_hold_the_limit_until_they_end() {
        let directory = tempfile::tempdir().unwrap();
        let path = pipe(directory.path());
        let limits = limits(path.clone());
        let awake = Awake::with_limit(path, KeepAwake::On);
        let now = Instant::now();
        for _ in 0..2 {
            (0..CALL - 1).for_each(|_| awake.note(now));
            assert!(limits.recv_timeout(INTERVAL * 3).is_err(), "they were too few");
            awake.note(now);
            assert_eq!(limits.recv_timeout(Duration::from_secs(20)).unwrap(), NO_LATENCY);
            // The keeper marks itself as asleep just after that.
            eventually("the keeper sleeps", || awake.shared.asleep.load(Ordering::Relaxed));
        }
        // The limit is held while requests come, unless this thread itself was delayed.
        eventually("it is held", || {
            let begun = Instant::now();
            while begun.elapsed() < INTERVAL * 5 {
                awake.note(now);
            }
            limits.try_recv().is_err()
        });
    }

    #[test]
    fn as_many_over_a_long_time_do_not() {
        let directory = tempfile::tempdir().unwrap();
        let awake = Awake::with_limit(directory.path().join("missing"), KeepAwake::Auto);
        awake.counted.lock().replace(Instant::now());
        let mut now = Instant::now();
        for _ in 0..CALL * 10 {
            now += CALL_WITHIN / CALL as u32 + Duration::from_micros(1);
            awake.note(now);
        }
        assert!(awake.keeper.get().is_none(), "nobody was called");
    }

    #[test]
    fn the_end_of_the_mount_ends_the_holding() {
        let directory = tempfile::tempdir().unwrap();
        let path = pipe(directory.path());
        let limits = limits(path.clone());
        let awake = Awake::with_limit(path, KeepAwake::On);
        let shared = Arc::downgrade(&awake.shared);
        (0..CALL).for_each(|_| awake.note(Instant::now()));
        drop(awake);
        // Either the limit was held and given up, or it was never taken.
        eventually("the keeper ends", || {
            let _ = limits.try_recv();
            shared.strong_count() == 0
        });
    }

    #[test]
    fn a_machine_without_such_a_limit_is_asked_once() {
        let directory = tempfile::tempdir().unwrap();
        let awake = Awake::with_limit(directory.path().join("missing"), KeepAwake::On);
        (0..CALL).for_each(|_| awake.note(Instant::now()));
        eventually("the keeper ends", || Arc::strong_count(&awake.shared) == 1);
        (0..CALL * 10).for_each(|_| awake.note(Instant::now()));
        assert_eq!(Arc::strong_count(&awake.shared), 1, "no other was started");
    }

    #[test]
    fn small_virtual_machines_are_known_by_their_processors() {
        let core =
            |rest: &str| format!("processor\t: 0\nmodel name\t: hypervisor 9000\nflags\t\t: fpu vme {rest} avx\n");
        assert!(is_worth_it(&core("hypervisor")) && is_worth_it(&core("hypervisor").repeat(CORES_MAX)));
        assert!(!is_worth_it(&core("hypervisor").repeat(CORES_MAX + 1)), "too many would poll");
        assert!(!is_worth_it(&core("aes")) && !is_worth_it(""));
        assert!(Awake::new(KeepAwake::Off).is_none() && Awake::new(KeepAwake::On).is_some());
    }
}
