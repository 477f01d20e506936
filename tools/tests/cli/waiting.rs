//! Tools that wait for a daemon that is ending or does not answer.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::site::{DEDUPFS, END_TIMEOUT, STATS, Site, end_of, run};

/// umount(8) returns before the daemon has closed the pool.
#[test]
fn regression_a_mount_waits_for_the_daemon_that_is_ending() {
    let Some(site) = Site::if_fuse() else { return };
    for number in 0..3 {
        site.mount().ok();
        fs::write(site.mnt.join(number.to_string()), vec![number; 3 << 20]).unwrap();
        let deadline = Instant::now() + END_TIMEOUT;
        // The kernel may still release the file.
        while let Err(error) = dedupfs_fuse::unmount_path(&site.mnt) {
            assert!(Instant::now() < deadline, "{error}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    site.mount().ok();
    assert_eq!(fs::read_dir(&site.mnt).unwrap().count(), 3);
    // A mount does not wait for a daemon that serves.
    let begun = Instant::now();
    let other = site.root.path().join("other");
    fs::create_dir(&other).unwrap();
    site.dedupfs("mount", &[&site.pool, &other]).expect(4, &["in use"]);
    assert!(begun.elapsed() < Duration::from_secs(20));
    site.umount().ok();
}

/// A daemon listens until it has noticed that its mount is gone. Here that takes until a file is closed.
#[test]
fn regression_a_mount_waits_for_a_daemon_that_still_listens() {
    let Some(site) = Site::if_fuse() else { return };
    site.mount().ok();
    let open = fs::File::create(site.mnt.join("file")).unwrap();
    assert!(Command::new("umount").arg("-l").arg(&site.mnt).status().unwrap().success());
    site.dedupfs("umount", &[&site.pool]).expect(8, &["detached while files are open", "SIGTERM"]);
    let mut command = Command::new(DEDUPFS);
    let mut again = command.arg("mount").arg(&site.pool).arg(&site.mnt).stdin(Stdio::null()).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(again.try_wait().unwrap(), None, "it did not wait");
    drop(open);
    assert_eq!(end_of(&mut again), Some(0));
    assert!(site.mnt.join("file").exists());
    site.umount().ok();
}

/// A stopped daemon, which continues when the test ends in any way.
struct Stopped(Pid);

impl Stopped {
    fn new(daemon: Pid) -> Self {
        kill_process(daemon, Signal::STOP).unwrap();
        let stopped = Self(daemon);
        // A thread stopped while it handles a request would keep the client from ending, even when killed.
        let begun = Instant::now();
        while !stopped.is_whole() {
            assert!(begun.elapsed() < END_TIMEOUT, "the daemon does not stop");
            std::thread::sleep(Duration::from_millis(5));
        }
        stopped
    }

    /// Whether all its threads are stopped.
    fn is_whole(&self) -> bool {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.0.as_raw_nonzero())).unwrap();
        tasks.flatten().all(|task| {
            let status = fs::read_to_string(task.path().join("status")).unwrap_or_default();
            status.lines().any(|line| line.starts_with("State:") && line.contains("T (stopped)"))
        })
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = kill_process(self.0, Signal::CONT);
    }
}

/// A tool that waited for a daemon that does not answer seemed to hang itself.
#[test]
fn regression_who_waits_for_a_daemon_that_does_not_answer_is_told() {
    let Some(site) = Site::if_fuse() else { return };
    site.mount().ok();
    fs::write(site.mnt.join("file"), "kept").unwrap();
    let other = site.root.path().join("other");
    fs::create_dir(&other).unwrap();
    let stopped = Stopped::new(site.daemon());
    let waiting: Vec<(PathBuf, Child)> = [(STATS, &[][..], &site.pool), (DEDUPFS, &["sync"], &site.mnt)]
        .into_iter()
        .enumerate()
        .map(|(number, (program, args, target))| {
            let said = site.root.path().join(format!("said{number}"));
            let mut command = Command::new(program);
            command.args(args).arg(target).stdin(Stdio::null()).stdout(Stdio::null());
            (said.clone(), command.stderr(fs::File::create(said).unwrap()).spawn().unwrap())
        })
        .collect();
    // Nothing can be mounted twice, even if the daemon does not answer.
    let begun = Instant::now();
    site.dedupfs("mount", &[&site.pool, &other]).expect(4, &["in use"]);
    assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
    let process = format!("process {} (dedupfs mount on {})", site.daemon().as_raw_nonzero(), site.mnt.display());
    let mut waiting = waiting;
    for (said, child) in &mut waiting {
        let deadline = Instant::now() + END_TIMEOUT;
        while !fs::read_to_string(&*said).unwrap().contains(&process) {
            assert!(Instant::now() < deadline, "{} is not told: {:?}", said.display(), fs::read_to_string(&*said));
            std::thread::sleep(Duration::from_millis(50));
        }
        assert_eq!(child.try_wait().unwrap(), None, "it did not go on waiting");
    }
    drop(stopped);
    for (said, child) in &mut waiting {
        assert_eq!(end_of(child), Some(0));
        assert_eq!(fs::read_to_string(&*said).unwrap().lines().count(), 1);
    }
    site.umount().ok();
}

/// The copy has no daemon that could be waited for.
#[test]
fn regression_the_copy_of_a_mounted_meta_root_is_in_use_soon() {
    let Some(site) = Site::if_fuse() else { return };
    let root = site.root.path().canonicalize().unwrap();
    let (pool, data, copy, other) = (root.join("meta"), root.join("data"), root.join("copy"), root.join("other"));
    run(DEDUPFS, &["mkfs".as_ref(), "--data".as_ref(), data.as_os_str(), pool.as_os_str()]).ok();
    fs::create_dir(&other).unwrap();
    site.dedupfs("mount", &[&pool, &site.mnt]).ok();
    assert!(Command::new("cp").arg("-a").args([&pool, &copy]).status().unwrap().success());
    let begun = Instant::now();
    site.dedupfs("mount", &[&copy, &other]).expect(4, &["data"]);
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    site.umount().ok();
}
