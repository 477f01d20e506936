//! A pool and its mount in a directory of their own.
//!
//! Invariant: after a [`Site`] is dropped, whether its test passed or failed, nothing of it is left: no mount, no
//! daemon, no file. A watchdog kills a daemon that hangs, so that calls into its mount fail instead of waiting for
//! ever.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use dedupfs::reclaim::ReclaimReport;
use dedupfs::stats::PoolStats;
use dedupfs_tools::options_of_mount;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::command::{DEDUPFS, GC, Ran, STATS, Tool};
use crate::machine;

/// Time within which a daemon ends after it was told to.
const END_TIMEOUT: Duration = Duration::from_secs(60);
/// A test that takes longer hangs. Long tests [report](Site::note_progress) each part, which restarts the time.
const WATCHDOG_TIMEOUT: Duration = Duration::from_secs(900);
/// Number of lines of the daemon's log that a failed test shows.
const LOG_LINES: usize = 40;

/// A pool and its mount, with a watchdog.
pub struct Site {
    /// Removed last.
    _directory: Option<TempDir>,
    /// Holds everything else.
    pub base: PathBuf,
    pub pool: PathBuf,
    /// The data root; the pool itself if it has no other.
    pub data: PathBuf,
    pub mnt: PathBuf,
    watchdog: Sender<()>,
}

impl Site {
    /// Reports that a long test has come to its next part.
    pub fn note_progress(&self) {
        self.watchdog.send(()).unwrap();
    }

    /// Makes a formatted pool, not mounted.
    #[track_caller]
    pub fn new() -> Self {
        Self::with(|base| (base.join("pool"), base.join("pool")))
    }

    /// Does the same with meta and data root at `place`, within the site's directory or elsewhere.
    #[track_caller]
    pub fn with(place: impl FnOnce(&Path) -> (PathBuf, PathBuf)) -> Self {
        let directory = tempfile::Builder::new().prefix("dedupfs-e2e-").tempdir().unwrap();
        let base = directory.path().canonicalize().unwrap();
        let ((pool, data), mnt) = (place(&base), base.join("mnt"));
        fs::create_dir(&mnt).unwrap();
        let watchdog = watch(pool.clone());
        let site = Self { _directory: Some(directory), base, pool, data, mnt, watchdog };
        Tool::new(DEDUPFS).arg("mkfs").arg(&site.pool).arg("--data").arg(&site.data).ok();
        site
    }

    /// Makes a formatted and mounted pool.
    #[track_caller]
    pub fn mounted() -> Self {
        let site = Self::new();
        site.mount();
        site
    }

    /// Calls [`new`](Self::new) if tests can run here: see [`is_fit`](machine::is_fit).
    #[track_caller]
    pub fn if_fit() -> Option<Self> {
        machine::is_fit().then(Self::new)
    }

    /// Calls [`mounted`](Self::mounted) if tests can run here.
    #[track_caller]
    pub fn mounted_if_fit() -> Option<Self> {
        machine::is_fit().then(Self::mounted)
    }

    /// Makes a formatted pool, mounted for all users.
    #[track_caller]
    pub fn mounted_for_all() -> Self {
        let site = Self::new();
        let mount = Tool::new(DEDUPFS).args(["mount", "--memory", "256M", "-o", "allow_other"]);
        mount.args([&site.pool, &site.mnt]).ok();
        site
    }

    #[track_caller]
    pub fn mount(&self) {
        self.try_mount().expect(0, &[]);
        assert!(self.is_mounted(), "mount returned, but nothing is mounted");
    }

    #[track_caller]
    pub fn try_mount(&self) -> Ran {
        Tool::new(DEDUPFS).args(["mount", "--memory", "256M"]).args([&self.pool, &self.mnt]).run()
    }

    /// Mounts with these options of mount(8).
    #[track_caller]
    pub fn mount_with(&self, options: &str) {
        let tool = Tool::new(DEDUPFS).args(["mount", "--memory", "256M", "-o", options]);
        tool.args([&self.pool, &self.mnt]).ok();
    }

    #[track_caller]
    pub fn umount(&self) {
        Tool::new(DEDUPFS).arg("umount").arg(&self.mnt).ok();
        assert!(!self.is_mounted(), "umount returned, but it is still mounted");
        assert!(is_free(&self.pool), "umount returned, but the daemon still holds the pool");
    }

    #[track_caller]
    pub fn remount(&self) {
        self.umount();
        self.mount();
    }

    /// Checks that the unmounted pool is sound, to the last byte of content.
    #[track_caller]
    pub fn assert_clean(&self) {
        Tool::new(DEDUPFS).args(["fsck", "--read-data"]).arg(&self.pool).run().expect(0, &["clean"]);
    }

    #[track_caller]
    pub fn stats(&self) -> PoolStats {
        let said = Tool::new(STATS).arg(&self.pool).arg("--json").ok().text();
        serde_json::from_str(&said).unwrap_or_else(|error| panic!("{error}: {said}"))
    }

    /// Reclaims, through the daemon if the pool is mounted.
    #[track_caller]
    pub fn gc(&self) -> ReclaimReport {
        self.gc_with(&[])
    }

    /// Does the same with more arguments.
    #[track_caller]
    pub fn gc_with(&self, arguments: &[&str]) -> ReclaimReport {
        let said = Tool::new(GC).args(arguments).arg(&self.pool).arg("--json").ok().text();
        // Lines of status come first if it took long.
        let last = said.lines().last().unwrap_or_default();
        serde_json::from_str(last).unwrap_or_else(|error| panic!("{error}: {said}"))
    }

    /// Makes everything written so far durable.
    #[track_caller]
    pub fn sync(&self) {
        Tool::new(DEDUPFS).arg("sync").arg(&self.mnt).ok();
    }

    /// Returns the bytes that the pool takes on disk, without its log and the control socket.
    #[track_caller]
    pub fn disk_usage(&self) -> u64 {
        let said = Tool::new("du")
            .args(["--summarize", "--block-size=1", "--exclude=dedupfs.log", "--exclude=control.sock"])
            .arg(&self.pool)
            .ok()
            .text();
        said.split_whitespace().next().unwrap().parse().unwrap()
    }

    pub fn is_mounted(&self) -> bool {
        options_of_mount(&self.mnt).is_ok_and(|mount| mount.is_some())
    }

    /// Kills the daemon as a crash would, and waits until it is gone.
    #[track_caller]
    pub fn kill_daemon(&self) {
        let daemon = daemon(&self.pool).expect("no daemon to kill");
        kill_process(daemon, Signal::KILL).unwrap();
        assert!(wait_until_free(&self.pool), "the daemon does not end");
    }

    /// Tears down the remains. The error names the remaining parts.
    fn tear_down(&self) -> Result<(), String> {
        while self.is_mounted() {
            let ended = Tool::new(DEDUPFS).arg("umount").arg(&self.mnt).limit(END_TIMEOUT).try_run();
            if ended.is_ok_and(|ran| ran.code == 0) {
                continue;
            }
            kill_own_daemon(&self.pool);
            if self.is_mounted() {
                let ran = Tool::new("umount").arg("-l").arg(&self.mnt).limit(END_TIMEOUT).try_run()?;
                if ran.code != 0 {
                    return Err(ran.said());
                }
            }
        }
        if !is_free(&self.pool) && !wait_until_free(&self.pool) {
            kill_own_daemon(&self.pool);
        }
        Ok(())
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        let has_failed = std::thread::panicking();
        if let Err(problem) = self.tear_down() {
            eprintln!("{} could not be cleaned up: {problem}", self.base.display());
        }
        if has_failed {
            show_log(&self.pool);
            if std::env::var_os("DEDUPFS_E2E_KEEP").is_some()
                && let Some(directory) = self._directory.take()
            {
                eprintln!("kept: {}", directory.keep().display());
            }
        }
    }
}

/// Returns the process that holds the pool, if its lock is held and its executable is the one under test.
fn daemon(pool: &Path) -> Option<Pid> {
    if is_free(pool) {
        return None;
    }
    let note = fs::read_to_string(pool.join("lock")).ok()?;
    let number: i32 = note.split(' ').next()?.parse().ok()?;
    let executable = fs::read_link(format!("/proc/{number}/exe")).ok()?;
    let own = Path::new(DEDUPFS).canonicalize().ok()?;
    (executable == own).then(|| Pid::from_raw(number)).flatten()
}

fn kill_own_daemon(pool: &Path) {
    if let Some(daemon) = daemon(pool) {
        let _ = kill_process(daemon, Signal::KILL);
        wait_until_free(pool);
    }
}

/// Whether no process holds the pool's lock.
pub fn is_free(pool: &Path) -> bool {
    File::open(pool.join("lock")).map_or(true, |lock| lock.try_lock().is_ok())
}

fn wait_until_free(pool: &Path) -> bool {
    let deadline = Instant::now() + END_TIMEOUT;
    while !is_free(pool) {
        if Instant::now() >= deadline {
            return false;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    true
}

/// Kills the daemon of a test that hangs; ends when the sender is dropped.
fn watch(pool: PathBuf) -> Sender<()> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let mut news = Ok(());
        while news.is_ok() {
            news = receiver.recv_timeout(WATCHDOG_TIMEOUT);
        }
        if news == Err(RecvTimeoutError::Timeout) {
            eprintln!("the test takes longer than {WATCHDOG_TIMEOUT:?}: killing the daemon of {}", pool.display());
            kill_own_daemon(&pool);
        }
    });
    sender
}

fn show_log(pool: &Path) {
    let log = fs::read(pool.join("dedupfs.log")).unwrap_or_default();
    let log = String::from_utf8_lossy(&log);
    let lines: Vec<_> = log.lines().collect();
    eprintln!("the end of the daemon's log:\n{}", lines[lines.len().saturating_sub(LOG_LINES)..].join("\n"));
}
