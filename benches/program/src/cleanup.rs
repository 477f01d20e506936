//! Scratch directories and mounts that are gone when this program ends: by itself, by a failure or by a signal.
//!
//! Both are registered here before they exist. [`end`] is the only way out: it ends the children of this process, which may hold a mount,
//! then unmounts, then removes. The first caller keeps the register until the process has ended, so a second one waits.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::{Outcome, fail, files, pool, say};

static SCRATCH: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());
static MOUNTS: Mutex<Vec<(PathBuf, Kind)>> = Mutex::new(Vec::new());
static IS_ENDING: AtomicBool = AtomicBool::new(false);

/// Makes a new directory in `parent`.
///
/// # Errors
/// It cannot be made there.
pub fn scratch(parent: &Path) -> Outcome<PathBuf> {
    let parent = parent.canonicalize().or_else(files::at("find", parent))?;
    let mut scratch = SCRATCH.lock();
    let made = tempfile::Builder::new().prefix("dedupfs-bench.").tempdir_in(&parent);
    let directory = made.or_else(files::at("make a directory in", &parent))?.keep();
    scratch.push(directory.clone());
    Ok(directory)
}

/// Kind of a mount.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// A pool, or another filesystem that its user unmounts.
    Pool,
    /// One that root unmounts.
    Plain,
}

/// Notes that a pool will be mounted there. What is mounted last is unmounted first.
pub fn will_mount(mnt: &Path) {
    MOUNTS.lock().push((mnt.to_owned(), Kind::Pool));
}

/// Notes that root will mount something there that is no pool.
pub fn will_mount_plain(mnt: &Path) {
    MOUNTS.lock().push((mnt.to_owned(), Kind::Plain));
}

/// Notes that nothing is mounted there any more.
pub fn forget_mount(mnt: &Path) {
    MOUNTS.lock().retain(|(entry, _)| entry != mnt);
}

/// Returns whether `mnt`, a path without spaces, is a mountpoint.
pub fn is_mounted(mnt: &Path) -> bool {
    mountinfo_has(&format!(" {} ", mnt.display()))
}

fn mountinfo_has(text: &str) -> bool {
    fs::read_to_string("/proc/self/mountinfo").is_ok_and(|mounts| mounts.contains(text))
}

/// Fails if a signal ends this program. Long loops of this process ask, so that they let go of the mount.
pub fn check() -> io::Result<()> {
    if IS_ENDING.load(Ordering::Relaxed) { Err(io::Error::other("a signal ended this program")) } else { Ok(()) }
}

/// Lets signals end this program in order.
///
/// # Errors
/// Signals cannot be handled.
pub fn on_signals() -> Outcome {
    let mut signals =
        Signals::new([SIGINT, SIGTERM, SIGHUP]).or_else(|error| fail(format!("cannot handle signals: {error}")))?;
    std::thread::spawn(move || {
        if let Some(signal) = signals.forever().next() {
            end(128 + signal)
        }
    });
    Ok(())
}

/// Ends this process with an exit code, and leaves nothing behind.
pub fn end(code: i32) -> ! {
    let (scratch, mounts) = (SCRATCH.lock(), MOUNTS.lock());
    IS_ENDING.store(true, Ordering::Relaxed);
    end_children();
    for (mnt, kind) in mounts.iter().rev().filter(|(mnt, _)| is_mounted(mnt)) {
        say!("unmounting {}", mnt.display());
        let dedupfs = pool::program("dedupfs");
        // A thread that has a file open there is about to notice.
        let in_order = (0..20).any(|_| {
            let program: &[&Path] = if *kind == Kind::Pool { &[&dedupfs] } else { &[] };
            let is_done =
                quietly(&[&["timeout".as_ref(), "120".as_ref()], program, &["umount".as_ref(), mnt]].concat());
            if !is_done {
                std::thread::sleep(Duration::from_millis(250));
            }
            is_done
        });
        let _ = in_order
            || quietly(&["fusermount3".as_ref(), "-u".as_ref(), "-z".as_ref(), mnt])
            || quietly(&["umount".as_ref(), "-l".as_ref(), mnt]);
    }
    let mut code = code;
    for directory in scratch.iter() {
        // Never through a mount that is still there.
        if mountinfo_has(&format!(" {}/", directory.display())) {
            say!("a mount is left below {}: not removed", directory.display());
            code = code.max(1);
            continue;
        }
        if code == 1 {
            show_logs(directory);
        }
        if let Err(error) = fs::remove_dir_all(directory) {
            say!("cannot remove {}: {error}", directory.display());
        }
    }
    std::process::exit(code)
}

/// Runs a command, and returns whether it succeeds.
fn quietly(words: &[&Path]) -> bool {
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// Ends all children of this process, and waits up to 10 s until threads that run them have noticed.
fn end_children() {
    for _ in 0..100 {
        let tasks = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
        let lists = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
        let children: Vec<i32> = lists
            .flat_map(|list| list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>())
            .collect();
        if children.is_empty() {
            return;
        }
        for pid in children.into_iter().filter_map(Pid::from_raw) {
            let _ = kill_process(pid, Signal::TERM);
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Shows the last lines of the daemons' logs.
fn show_logs(directory: &Path) {
    for pool in fs::read_dir(directory).into_iter().flatten().flatten() {
        let log = pool.path().join("dedupfs.log");
        if let Ok(text) = fs::read_to_string(&log) {
            say!("the end of {}:", log.display());
            let lines: Vec<&str> = text.lines().collect();
            eprintln!("{}", lines[lines.len().saturating_sub(15)..].join("\n"));
        }
    }
}
