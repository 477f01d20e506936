//! Small synced writes beside other work.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::{Outcome, fail, files};

/// Time between two writes.
const PAUSE: Duration = Duration::from_millis(50);

/// Milliseconds of the writes, ascending; one at least.
pub struct Synced(Vec<f64>);

impl Synced {
    /// Number of the writes.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// The least time that this part of all does not exceed.
    pub fn percent(&self, percent: usize) -> f64 {
        let at = (self.0.len() * percent).div_ceil(100).saturating_sub(1);
        self.0.get(at).copied().unwrap_or_default()
    }
}

/// Does some work. Meanwhile it makes small files in the directory, one after the other, and syncs each.
pub fn beside<T>(directory: &Path, work: impl FnOnce() -> Outcome<T>) -> Outcome<(T, Synced)> {
    files::make_dir(directory)?;
    let is_over = AtomicBool::new(false);
    let write_all = || {
        let mut times_ms = Vec::new();
        while !is_over.load(Ordering::Relaxed) || times_ms.is_empty() {
            let started = Instant::now();
            let path = directory.join((times_ms.len() + 1).to_string());
            write(&path, times_ms.len() + 1).or_else(files::at("write", &path))?;
            times_ms.push(started.elapsed().as_secs_f64() * 1e3);
            std::thread::sleep(PAUSE);
        }
        times_ms.sort_by(f64::total_cmp);
        Ok(Synced(times_ms))
    };
    std::thread::scope(|scope| {
        let writer = scope.spawn(write_all);
        let done = work();
        is_over.store(true, Ordering::Relaxed);
        let synced = writer.join().unwrap_or_else(|_| fail("the thread of synced writes panicked"));
        Ok((done?, synced?))
    })
}

fn write(path: &Path, number: usize) -> io::Result<()> {
    let mut file = File::create(path)?;
    write!(file, "synced {number}")?;
    file.sync_all()
}
