//! Puts that are killed or interrupted, and the next ones, which go on from what they left.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use dedupfs::INCOMPLETE_PREFIX;
use dedupfs::transfer::TransferReport;
use rustix::process::{Pid, Signal, kill_process};

use super::{forget, listed, names};
use crate::command::{DEDUPFS, GC, Tool};
use crate::compare::assert_same_content;
use crate::files::Plan;
use crate::random::Random;
use crate::site::Site;

const FILES: usize = 2000;
/// Copying it takes longer than the first signals wait.
const LARGE_BYTES: usize = 400 << 20;
/// A put has not worked long enough to be worth resuming before the first, and may be complete behind any of them.
const SIGNALS_AFTER_MS: std::ops::Range<u64> = 100..1500;
const SIGNAL_STEP_MS: usize = 25;
/// A put of known content is short, so on a busy machine all signals of a pass can miss it.
const PASSES: usize = 5;
/// A file that is younger is always read.
const NOT_RACY_AFTER: Duration = Duration::from_secs(61);
const PATIENCE: Duration = Duration::from_secs(60);

fn left(series: &Path) -> Vec<String> {
    names(series).into_iter().filter(|name| name.starts_with(".dedupfs-put-")).collect()
}

/// Begins a put and sends a signal when it has something to leave; returns what it said. Machines differ in speed, so it tries several times.
fn signalled(site: &Site, (source, version): (&Path, &Path), signal: Signal) -> Option<String> {
    let series = version.parent().unwrap();
    let mut times = (0..PASSES).flat_map(|_| SIGNALS_AFTER_MS.step_by(SIGNAL_STEP_MS));
    times.find_map(|ms| {
        let said = signalled_after(Duration::from_millis(ms), (source, version), signal)?;
        wait_for_daemon(site);
        // The daemon was done before it noticed.
        if version.exists() {
            forget(&[version]).expect(0, &[]);
            return None;
        }
        // A put that is killed just before it gives its whole copy a name leaves no incomplete version. The next put removes the copy.
        let is_incomplete =
            |name: &String| names(&series.join(name)).iter().any(|name| name.starts_with(INCOMPLETE_PREFIX));
        remove_unmarked(series);
        left(series).iter().any(is_incomplete).then_some(said)
    })
}

/// Removes the directories of puts that were killed before they marked them. Later puts leave such ones alone for a minute.
fn remove_unmarked(series: &Path) {
    for name in left(series) {
        let marked = rustix::fs::getxattr(series.join(&name), "user.dedupfs.put", &mut [0; 16]);
        if marked == Err(rustix::io::Errno::NODATA) {
            fs::remove_dir(series.join(&name)).expect("a directory without the mark is empty");
        }
    }
}

fn signalled_after(time: Duration, (source, version): (&Path, &Path), signal: Signal) -> Option<String> {
    let mut command = Command::new(DEDUPFS);
    command.args(["put", "--incomplete-every", "1"]).args([source, version]).stdin(Stdio::null());
    let child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    std::thread::sleep(time);
    kill_process(Pid::from_child(&child), signal).unwrap();
    let ended = child.wait_with_output().unwrap();
    match ended.status.code() {
        Some(0) => {
            forget(&[version]).expect(0, &[]);
            None
        }
        _ => Some(String::from_utf8_lossy(&ended.stderr).into_owned()),
    }
}

/// Waits until the daemon has ended every put that it began. It goes on for a moment when a client has gone.
fn wait_for_daemon(site: &Site) {
    let begun = Instant::now();
    let is_busy = || {
        let log = fs::read_to_string(site.pool.join("dedupfs.log")).unwrap();
        let lines = |said: &[&str]| log.lines().filter(|line| said.iter().any(|said| line.contains(said))).count();
        lines(&["copying a tree into the pool"]) > lines(&["copied a tree", "a tree was not copied"])
    };
    while is_busy() {
        assert!(begun.elapsed() < PATIENCE, "the daemon goes on without its client");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[track_caller]
fn resumed(source: &Path, version: &Path) -> u64 {
    let put = Tool::new(DEDUPFS).args(["put", "--json"]).args([source, version]).run();
    let report: TransferReport = serde_json::from_str(&put.expect(0, &[]).text()).unwrap();
    report.version.unwrap().resumed.map_or(0, |resumed| resumed.entries)
}

#[test]
fn a_put_goes_on_where_one_was_killed_or_interrupted() {
    let Some(site) = Site::mounted_if_fit() else { return };
    let (source, series) = (site.base.join("source"), site.mnt.join("web1"));
    fs::create_dir(&series).unwrap();
    Plan::new(7, FILES, 9000).make(&source);
    let mut large = fs::File::create(source.join("zzz-large")).unwrap();
    let mut random = Random::new(5);
    let piece: Vec<u8> = (0..1 << 20).map(|_| random.below(256) as u8).collect();
    for number in 0..LARGE_BYTES >> 20 {
        large.write_all(&[&(number as u64).to_le_bytes()[..], &piece[8..]].concat()).unwrap();
    }
    let other = site.base.join("other");
    Plan::new(8, 10, 100).make(&other);
    std::thread::sleep(NOT_RACY_AFTER);

    // The tool is killed. The daemon notices, and names what it has.
    let version = series.join("v1");
    assert!(signalled(&site, (&source, &version), Signal::KILL).is_some(), "the put was complete too soon");
    wait_for_daemon(&site);
    assert_eq!((left(&series).len(), listed(&series)), (1, Vec::new()));
    // Others leave it where it is.
    assert_eq!(resumed(&other, &series.join("other")), 0);
    Tool::new(GC).arg(&site.mnt).ok();
    let keep = ["prune", "--keep-last", "9"];
    Tool::new(DEDUPFS).args(keep).arg(&series).run().expect(0, &[]);
    assert_eq!(left(&series).len(), 1);
    let entries = resumed(&source, &version);
    println!("{entries} entries were taken over behind a killed put");
    assert!(entries > 0);
    assert_eq!(names(&series), ["other", "v1"]);
    assert_same_content(&source, &version);
    forget(&[&version]).expect(0, &[]);

    // The tool is interrupted, and later the daemon killed.
    let said = signalled(&site, (&source, &series.join("v2")), Signal::INT).expect("the put was complete too soon");
    assert!(said.contains("the next put of this source goes on from it"), "{said}");
    assert_eq!(left(&series).len(), 1);
    Tool::new(DEDUPFS).arg("sync").arg(&site.mnt).ok();
    site.kill_daemon();
    site.mount();
    let put = Tool::new(DEDUPFS).arg("put").args([&source, &series.join("v2")]).run();
    put.expect(0, &["resumed: ", "files taken over from an incomplete put of 20"]);
    assert_eq!(names(&series), ["other", "v2"]);
    assert_same_content(&source, &series.join("v2"));

    // One that is not wanted any more can be removed by hand.
    forget(&[&series.join("v2")]).expect(0, &[]);
    signalled(&site, (&source, &series.join("v3")), Signal::INT).expect("the put was complete too soon");
    let directory = series.join(&left(&series)[0]);
    let incomplete = directory.join(&names(&directory)[0]);
    assert!(fs::remove_dir_all(&incomplete).is_err(), "nothing in it can be removed");
    fs::remove_dir(&incomplete).unwrap();
    fs::remove_dir(&directory).unwrap();
    assert_eq!(resumed(&source, &series.join("v3")), 0);
    site.umount();
    site.assert_clean();
}
