//! Figures of all runs, by name and target, with rates, medians and processor time.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::command::{Run, shown, wait};
use crate::{Outcome, say};

/// Everything that was measured.
#[derive(Default)]
pub struct Figures {
    values: HashMap<(String, String), Vec<f64>>,
    /// Number of the run, from 1, for messages.
    pub run: u64,
}

impl Figures {
    /// Notes one figure.
    pub fn note(&mut self, name: &str, target: &str, value: f64) {
        self.values.entry((name.to_owned(), target.to_owned())).or_default().push(value);
    }

    /// Returns everything noted, in order.
    pub fn values(&self, name: &str, target: &str) -> &[f64] {
        self.values.get(&(name.to_owned(), target.to_owned())).map_or(&[], Vec::as_slice)
    }

    /// Returns the median of these figures; nothing if nothing was.
    pub fn median(&self, name: &str, target: &str) -> Option<f64> {
        median(self.values(name, target))
    }

    /// Returns the most that was noted.
    pub fn most(&self, name: &str, target: &str) -> Option<f64> {
        self.values(name, target).iter().copied().max_by(f64::total_cmp)
    }

    /// Does some work, and notes its rate, in `units` (bytes or files) a second, as `name`, and the seconds of the processors that its
    /// commands and the daemon took as `name cpu`.
    pub fn record(
        &mut self,
        name: &str,
        target: &str,
        units: u64,
        daemon: Option<u32>,
        work: impl FnOnce() -> Outcome,
    ) -> Outcome {
        let before = cpu_seconds(daemon);
        let seconds = timed(work)?;
        let (cpu, rate) = (cpu_seconds(daemon) - before, units as f64 / seconds.max(1e-6));
        self.note(name, target, rate);
        self.note(&format!("{name} cpu"), target, cpu);
        say!("run {}: {target}: {name}: {seconds:.4} s, {rate:.1} a second, {cpu:.2} s of the processors", self.run);
        Ok(())
    }
}

/// Returns the seconds that some work takes.
pub fn timed(work: impl FnOnce() -> Outcome) -> Outcome<f64> {
    let started = Instant::now();
    work()?;
    Ok(started.elapsed().as_secs_f64())
}

/// Does some work, and returns the most that `sample` returned meanwhile, ten times a second.
pub fn peak_while<T>(sample: &(dyn Fn() -> f64 + Sync), work: impl FnOnce() -> T) -> (T, f64) {
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let sampler = scope.spawn(|| {
            let mut peak = 0.0_f64;
            while !is_over.load(Ordering::Relaxed) {
                peak = peak.max(sample());
                std::thread::sleep(Duration::from_millis(100));
            }
            peak
        });
        let done = work();
        is_over.store(true, Ordering::Relaxed);
        (done, sampler.join().unwrap_or(0.0))
    })
}

/// Runs a command, and returns its seconds and the most bytes of memory that it or a child of it had.
pub fn timed_with_peak(command: &mut Command) -> Outcome<(f64, f64)> {
    let started = Instant::now();
    let child = command.start()?;
    let pid = child.id();
    let sample = || {
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
        let pids = children.split_whitespace().filter_map(|pid| pid.parse().ok()).chain([pid]);
        pids.filter_map(|pid| memory_bytes(pid, "VmHWM")).fold(0.0, f64::max)
    };
    // The sampler ends somewhat later than the command.
    let (seconds, peak) = peak_while(&sample, || {
        wait(child, &shown(command))?;
        Ok(started.elapsed().as_secs_f64())
    });
    Ok((seconds?, peak))
}

/// Returns the middle one of some values, or the mean of the two middle ones; nothing of none.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let (middle, upper) = (sorted.len().checked_sub(1)? / 2, sorted.len() / 2);
    Some(f64::midpoint(sorted[middle], sorted[upper]))
}

/// Returns the seconds of the processors that the ended children of this process and the daemon have used.
pub fn cpu_seconds(daemon: Option<u32>) -> f64 {
    let ticks = |process: &str, fields: [usize; 2]| {
        let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
        // The name of the program may hold anything; after its bracket the third field follows.
        let after: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
        fields.iter().filter_map(|field| after.get(field - 3)?.parse::<u64>().ok()).sum::<u64>()
    };
    let all = ticks("self", [16, 17]) + daemon.map_or(0, |pid| ticks(&pid.to_string(), [14, 15]));
    all as f64 / rustix::param::clock_ticks_per_second() as f64
}

/// Returns bytes of the memory of a process: `VmRSS`, or the most that it had, `VmHWM`. Nothing if it has ended.
pub fn memory_bytes(pid: u32, field: &str) -> Option<f64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?;
    Some(line.split_whitespace().next()?.parse::<f64>().ok()? * 1024.0)
}

/// Returns the bytes that a process has read until now, those of the kernel's caches too. Nothing if it has ended.
pub fn read_bytes(pid: u32) -> Option<f64> {
    read_bytes_at(format!("/proc/{pid}").as_ref())
}

/// Returns the bytes that the threads of a process with this name have read: nothing if the process has ended.
pub fn read_bytes_of(pid: u32, thread: &str) -> Option<f64> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).ok()?.filter_map(|entry| Some(entry.ok()?.path()));
    let is_named = |path: &PathBuf| fs::read_to_string(path.join("comm")).is_ok_and(|name| name.trim_end() == thread);
    Some(threads.filter(is_named).filter_map(|path| read_bytes_at(&path)).sum())
}

fn read_bytes_at(path: &Path) -> Option<f64> {
    let io = fs::read_to_string(path.join("io")).ok()?;
    io.lines().find_map(|line| line.strip_prefix("rchar:"))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_have_memory_and_read() {
        let own = std::process::id();
        let before = read_bytes(own);
        assert!(before.is_some() && read_bytes(own) > before);
        assert!(read_bytes_of(own, "no such thread") == Some(0.0) && read_bytes_of(0, "").is_none());
        let name = fs::read_to_string("/proc/thread-self/comm").unwrap_or_default();
        assert!(read_bytes_of(own, name.trim_end()) > Some(0.0));
        assert!(["VmRSS", "VmHWM"].into_iter().all(|field| memory_bytes(own, field) > Some(0.0)));
        assert!(timed_with_peak(&mut crate::command!("sleep", "0.2")).is_ok_and(|(seconds, _)| seconds >= 0.2));
    }

    #[test]
    fn medians_are_of_all_values_of_one_name_and_target() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0]), Some(3.0));
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
        let mut figures = Figures::default();
        for (target, value) in [("a", 1.0), ("a", 3.0), ("b", 9.0)] {
            figures.note("rate", target, value);
        }
        assert_eq!((figures.median("rate", "a"), figures.most("rate", "a")), (Some(2.0), Some(3.0)));
        assert_eq!(figures.median("rate", "c"), None);
    }
}
