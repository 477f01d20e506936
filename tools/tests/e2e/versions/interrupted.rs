//! Snapshots that are interrupted leave a whole version or nothing.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use super::{forget, listed, names, series, snapshot};
use crate::command::DEDUPFS;
use crate::compare::assert_same_content;
use crate::files::Plan;
use crate::random::{Random, seed};
use crate::site::Site;

const FILES: usize = 4000;
const ROUNDS: u64 = 25;
/// Longer than a snapshot of so many files takes.
const LONGEST_MICROS: u64 = 60_000;

fn begin(from: &Path, to: &Path) -> Child {
    let mut command = Command::new(DEDUPFS);
    command.arg("snapshot").args([from, to]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().unwrap()
}

const MARK: &str = "user.dedupfs.put";

/// Makes a directory two minutes old.
fn make_old(directory: &Path) {
    let then = std::time::SystemTime::now() - Duration::from_secs(120);
    fs::File::open(directory).unwrap().set_modified(then).unwrap();
}

fn hidden(series: &Path) -> Vec<String> {
    names(series).into_iter().filter(|name| name.starts_with(".dedupfs-put-")).collect()
}

#[test]
fn a_killed_snapshot_leaves_a_whole_version_or_nothing() {
    let Some(site) = Site::mounted_if_fit() else { return };
    let (series, live) = series(&site);
    Plan::new(5, FILES, 9000).make(&live);
    let mut random = Random::new(seed(71));
    let mut whole = 0;
    for round in 0..ROUNDS {
        let version = series.join(format!("v{round}"));
        let before = hidden(&series);
        let mut child = begin(&live, &version);
        std::thread::sleep(Duration::from_micros(random.below(LONGEST_MICROS)));
        let signal = if round % 2 == 0 { Signal::KILL } else { Signal::INT };
        // It may have ended already.
        let _ = kill_process(Pid::from_child(&child), signal);
        let code = child.wait().unwrap().code();
        let is_there = version.exists();
        assert!(is_there || code != Some(0), "it said that the version is there");
        if signal == Signal::INT {
            let left = hidden(&series).into_iter().filter(|name| !before.contains(name));
            assert_eq!(left.collect::<Vec<_>>(), [""; 0], "it was asked to end, and has not tidied up");
        }
        assert_eq!(listed(&series).contains(&format!("v{round}")), is_there);
        if is_there {
            whole += 1;
            assert_same_content(&live, &version);
            forget(&[&version]).expect(0, &[]);
        }
    }
    println!("{whole} of {ROUNDS} versions were complete before the signal came");
    // The daemon notices that nobody waits for the last one.
    let is_busy =
        |name: &String| fs::read_dir(series.join(name)).is_ok_and(|mut names| names.any(|name| name.is_err()));
    while hidden(&series).iter().any(is_busy) {
        std::thread::sleep(Duration::from_millis(10));
    }
    // One that was killed before it could mark its directory is known by its age alone.
    for name in hidden(&series) {
        let directory = series.join(name);
        if rustix::fs::getxattr(&directory, MARK, &mut [0; 16]) == Err(rustix::io::Errno::NODATA) {
            make_old(&directory);
        }
    }
    // The next snapshot removes remains, also of a version without a name.
    let last = series.join("last");
    snapshot(&live, &last).expect(0, &[]);
    assert_eq!(names(&series), ["current", "last"]);
    assert_eq!(listed(&site.mnt), ["last"]);
    site.remount();
    site.gc();
    assert_same_content(&live, &last);
    site.umount();
    site.assert_clean();
}

/// A command is killed between the two steps of making its hidden directory.
#[test]
fn regression_an_empty_hidden_directory_without_its_mark_is_removed_when_it_is_old() {
    let Some(site) = Site::mounted_if_fit() else { return };
    let (series, live) = series(&site);
    let [young, old, used] = ["00", "11", "22"].map(|digits| series.join(format!(".dedupfs-put-{}", digits.repeat(8))));
    for directory in [&young, &old, &used] {
        fs::create_dir(directory).unwrap();
    }
    fs::write(used.join("file"), "of somebody").unwrap();
    make_old(&old);
    make_old(&used);
    snapshot(&live, &series.join("v")).expect(0, &[]);
    assert!(young.exists() && !old.exists() && used.join("file").exists());
    site.umount();
    site.assert_clean();
}

/// What a tool that is killed at the last moment leaves: a complete version in the directory in which it was made.
#[test]
fn a_version_without_a_name_is_not_listed_and_the_next_put_removes_it() {
    let Some(site) = Site::mounted_if_fit() else { return };
    let (series, live) = series(&site);
    fs::write(live.join("file"), "content").unwrap();
    let left = series.join(".dedupfs-put-0123456789abcdef");
    fs::create_dir(&left).unwrap();
    snapshot(&live, &series.join("v")).expect(0, &[]);
    fs::rename(series.join("v"), left.join("v")).unwrap();
    rustix::fs::setxattr(&left, MARK, b"", rustix::fs::XattrFlags::empty()).unwrap();
    assert_eq!(listed(&series), [""; 0]);
    assert_eq!(listed(&site.mnt), [""; 0]);
    let source = site.base.join("source");
    fs::create_dir(&source).unwrap();
    let put = crate::command::Tool::new(DEDUPFS).arg("put").args([&source, &series.join("copy")]).run();
    put.expect(0, &["removed what an interrupted command had left"]);
    assert_eq!(names(&series), ["copy", "current"]);
    site.umount();
    site.assert_clean();
}

/// The version is durable when the command returns, and nothing half-made is seen after a crash.
#[test]
fn a_snapshot_that_was_answered_survives_a_killed_daemon() {
    let Some(site) = Site::mounted_if_fit() else { return };
    let (series, live) = series(&site);
    Plan::new(6, 500, 20_000).make(&live);
    snapshot(&live, &series.join("v1")).expect(0, &[]);
    site.kill_daemon();
    site.mount();
    assert_same_content(&live, &series.join("v1"));
    // Killed meanwhile.
    let mut child = begin(&live, &series.join("v2"));
    std::thread::sleep(Duration::from_millis(3));
    site.kill_daemon();
    let code = child.wait().unwrap().code();
    site.mount();
    if code == Some(0) {
        assert_same_content(&live, &series.join("v2"));
    }
    snapshot(&live, &series.join("v3")).expect(0, &[]);
    assert_eq!(hidden(&series), [""; 0]);
    assert_same_content(&live, &series.join("v3"));
    site.umount();
    site.assert_clean();
}
