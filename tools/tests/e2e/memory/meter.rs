//! Samples the anonymous memory of a process and keeps the maximum.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Time between two samples.
const PAUSE: Duration = Duration::from_millis(5);

/// A sampling thread for one process.
pub struct Meter {
    process: u32,
    most_bytes: Arc<AtomicU64>,
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Meter {
    /// Starts to sample `process`.
    pub fn of(process: u32) -> Self {
        let (most_bytes, ends) = (Arc::<AtomicU64>::default(), Arc::<AtomicBool>::default());
        let thread = std::thread::spawn({
            let (most_bytes, ends) = (most_bytes.clone(), ends.clone());
            move || {
                while !ends.load(Ordering::Relaxed) {
                    most_bytes.fetch_max(anonymous_bytes(process).unwrap_or(0), Ordering::Relaxed);
                    std::thread::sleep(PAUSE);
                }
            }
        });
        Self { process, most_bytes, ends, thread: Some(thread) }
    }

    /// Returns the maximum so far.
    pub fn most_bytes(&self) -> u64 {
        self.most_bytes.load(Ordering::Relaxed)
    }

    /// Returns the current value; `None` if the process is gone.
    pub fn now_bytes(&self) -> Option<u64> {
        anonymous_bytes(self.process)
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        let _ended = self.thread.take().map(JoinHandle::join);
    }
}

/// Returns `RssAnon` of a process.
fn anonymous_bytes(process: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.trim().parse().ok()?;
    Some(kib << 10)
}
