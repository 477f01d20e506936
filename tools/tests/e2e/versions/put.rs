//! Versions that `dedupfs put` makes.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use dedupfs::transfer::TransferReport;
use rustix::process::{Pid, Signal, kill_process};

use super::{forget, listed, names};
use crate::command::{DEDUPFS, GC, Ran, STATS, Tool};
use crate::compare::{assert_same_content, assert_same_tree};
use crate::files::Plan;
use crate::random::{Random, seed};
use crate::site::Site;

const FILES: usize = 3000;
const ROUNDS: u64 = 16;
/// Longer than a put of so many files takes.
const LONGEST_MICROS: u64 = 400_000;

fn put(options: &[&str], from: &Path, to: &Path) -> Ran {
    Tool::new(DEDUPFS).args(["put", "--json"]).args(options).args([from, to]).run()
}

#[track_caller]
fn report(ran: Ran) -> TransferReport {
    serde_json::from_str(&ran.expect(0, &[]).text()).unwrap()
}

fn begin(from: &Path, to: &Path) -> Child {
    let mut command = Command::new(DEDUPFS);
    command.arg("put").args([from, to]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().unwrap()
}

#[test]
fn backups_of_a_changing_tree_are_what_the_tree_was() {
    let Some(site) = Site::mounted_if_fit() else { return };
    let (source, series) = (site.base.join("source"), site.mnt.join("web1"));
    fs::create_dir(&series).unwrap();
    Plan::new(3, 500, 20_000).make(&source);
    let versions = ["v1", "v2", "v3"].map(|name| series.join(name));
    for (number, version) in versions.iter().enumerate() {
        fs::write(source.join("changes"), format!("{number}").repeat(5000)).unwrap();
        fs::write(source.join(format!("new-{number}")), format!("{number}")).unwrap();
        let made = report(put(&[], &source, version)).version.expect("is a version");
        // The files were made within the last minute, so all are read.
        assert_eq!(made.taken_over, 0);
        assert_eq!(made.without_base.is_some(), number == 0, "{:?}", made.without_base);
        assert_same_content(&source, version);
    }
    let base = versions[0].to_str().unwrap();
    let again = series.join("again");
    let made = report(put(&["--base", base, "--verify", "full"], &source, &again)).version.expect("is a version");
    let reread = report(put(&["--reread"], &source, &series.join("reread"))).version.expect("is a version");
    assert_eq!((made.fingerprint, reread.base), (reread.fingerprint.clone(), None));
    assert_eq!(listed(&series), ["v1", "v2", "v3", "again", "reread"]);
    put(&["--base", source.to_str().unwrap()], &source, &series.join("no")).expect(2, &["is no version"]);
    put(&["--live", "--reread"], &source, &series.join("no")).expect(2, &["cannot be used"]);
    put(&["--verify", "101"], &source, &series.join("no")).expect(2, &["percentage"]);
    // What a removal would free, and a live tree of a version.
    let told = Tool::new(STATS).arg("--would-free").args(&versions).run();
    assert!(told.expect(0, &["chunks", "nodes"]).text().contains("before compression"));
    let thawed = series.join("thawed");
    Tool::new(DEDUPFS).arg("thaw").args([&versions[0], &thawed]).run().expect(0, &["live"]);
    assert_same_content(&versions[0], &thawed);
    fs::write(thawed.join("changes"), "by hand").unwrap();
    assert!(fs::write(versions[0].join("changes"), "by hand").is_err());
    Tool::new(DEDUPFS).arg("thaw").args([&source, &series.join("no")]).run().expect(2, &["is no version"]);
    site.remount();
    assert_same_content(&source, &versions[2]);
    assert_same_content(&source, &again);
    forget(&[&versions[0], &versions[1], &again]).expect(0, &[]);
    Tool::new(GC).arg(&site.mnt).ok();
    assert_same_content(&source, &versions[2]);
    site.umount();
    site.assert_clean();
}

#[test]
fn a_killed_put_leaves_a_whole_version_or_nothing() {
    let Some(site) = Site::mounted_if_fit() else { return };
    let (source, series) = (site.base.join("source"), site.mnt.join("series"));
    fs::create_dir(&series).unwrap();
    Plan::new(5, FILES, 9000).make(&source);
    let mut random = Random::new(seed(72));
    for round in 0..ROUNDS {
        let version = series.join(format!("v{round}"));
        let mut child = begin(&source, &version);
        std::thread::sleep(Duration::from_micros(random.below(LONGEST_MICROS)));
        let signal = if round % 2 == 0 { Signal::KILL } else { Signal::INT };
        // It may have ended already.
        let _ = kill_process(Pid::from_child(&child), signal);
        let code = child.wait().unwrap().code();
        let is_there = version.exists();
        assert!(is_there || code != Some(0), "it said that the version is there");
        assert_eq!(listed(&series).contains(&format!("v{round}")), is_there);
        if is_there {
            assert_same_content(&source, &version);
            forget(&[&version]).expect(0, &[]);
        }
    }
    // The daemon is killed as well.
    let mut child = begin(&source, &series.join("last"));
    std::thread::sleep(Duration::from_millis(60));
    site.kill_daemon();
    site.mount();
    child.wait().unwrap();
    let last = series.join("last");
    if last.exists() {
        assert_same_content(&source, &last);
        forget(&[&last]).expect(0, &[]);
    }
    put(&[], &source, &series.join("whole")).expect(0, &[]);
    assert_same_content(&source, &series.join("whole"));
    assert_eq!(names(&series), ["whole"], "what was interrupted is removed by the next put");
    site.umount();
    site.assert_clean();
}

/// Few disks keep attributes of the greatest length: another pool does.
#[test]
fn attributes_of_the_greatest_length_come_from_a_source_that_has_them() {
    let Some(from) = Site::mounted_if_fit() else { return };
    let to = Site::mounted();
    let (source, version) = (from.mnt.join("source"), to.mnt.join("v"));
    fs::create_dir_all(source.join("directory")).unwrap();
    fs::write(source.join("file"), "content").unwrap();
    std::os::unix::fs::symlink("file", source.join("link")).unwrap();
    let value = |seed| crate::random::noise(seed, 64 << 10);
    let names = ["file", "directory", "link"];
    for (seed, name) in (0..).zip(names) {
        let flags = rustix::fs::XattrFlags::empty();
        rustix::fs::lsetxattr(source.join(name), "trusted.large", &value(seed), flags).unwrap();
        rustix::fs::lsetxattr(source.join(name), format!("trusted.{}", "n".repeat(247)), b"", flags).unwrap();
    }
    report(put(&[], &source, &version));
    for _ in 0..2 {
        for (seed, name) in (0..).zip(names) {
            let mut found = vec![0; 64 << 10];
            let len = rustix::fs::lgetxattr(version.join(name), "trusted.large", &mut *found).unwrap();
            assert!(len == found.len() && found == value(seed), "{name}");
        }
        assert_same_tree(&source, &version);
        to.remount();
    }
    to.umount();
    to.assert_clean();
}

/// Flips a bit wherever the bytes lie in the pool's containers.
fn damage(pool: &Path, bytes: &[u8]) {
    let mut found = 0;
    for entry in fs::read_dir(pool.join("containers")).unwrap() {
        let path = entry.unwrap().path();
        let mut content = fs::read(&path).unwrap();
        let places: Vec<usize> =
            content.windows(bytes.len()).enumerate().filter(|at| at.1 == bytes).map(|at| at.0).collect();
        places.iter().for_each(|&at| content[at] ^= 4);
        found += places.len();
        fs::write(&path, content).unwrap();
    }
    assert!(found > 0, "the bytes are in no container");
}

/// Found by review: the entry of a file whose attributes could not be read was taken over by the next put, which told
/// nothing, and its version counted as whole.
#[test]
fn regression_a_file_whose_attributes_could_not_be_read_is_read_again() {
    let Some(from) = Site::mounted_if_fit() else { return };
    let to = Site::mounted();
    let (live, source) = (from.mnt.join("live"), from.mnt.join("source"));
    fs::create_dir(&live).unwrap();
    let value = crate::random::noise(7, 64 << 10);
    for name in ["attributes", "plain"] {
        fs::write(live.join(name), "").unwrap();
    }
    rustix::fs::lsetxattr(live.join("attributes"), "trusted.large", &value, rustix::fs::XattrFlags::empty()).unwrap();
    // The times of a version are those of its content: no file seems to have changed lately.
    Tool::new("touch").args(["-d", "2001-02-03"]).args([live.join("attributes"), live.join("plain")]).ok();
    Tool::new(DEDUPFS).arg("snapshot").args([&live, &source]).ok();
    from.umount();
    damage(&from.pool, &value[30_000..30_064]);
    from.mount();
    for (name, taken_over) in [("v1", 0), ("v2", 1), ("v3", 1)] {
        let ran = put(&[], &source, &to.mnt.join(name)).expect(9, &["cannot read extended attributes"]);
        let report: TransferReport = serde_json::from_str(&ran.text()).unwrap();
        assert_eq!(report.problem_count, 1, "{report:?}");
        assert_eq!(report.version.unwrap().taken_over, taken_over, "{name}");
    }
    to.umount();
    to.assert_clean();
}

/// The times of a version are those of its content, so a version is a source of which nothing changed lately.
#[test]
fn what_did_not_change_for_long_is_taken_over_and_can_be_verified() {
    let Some(from) = Site::mounted_if_fit() else { return };
    let to = Site::mounted();
    let (live, source) = (from.mnt.join("live"), from.mnt.join("source"));
    fs::create_dir(&live).unwrap();
    for number in 0..20 {
        let path = live.join(number.to_string());
        fs::write(&path, crate::random::noise(number, 20_000)).unwrap();
        Tool::new("touch").args(["-d", "2001-02-03"]).arg(path).ok();
    }
    Tool::new(DEDUPFS).arg("snapshot").args([&live, &source]).ok();
    let [first, second, third] = ["v1", "v2", "v3"].map(|name| to.mnt.join(name));
    let made = |options: &[&str], to: &Path| report(put(options, &source, to)).version.expect("is a version");
    let one = made(&[], &first);
    let two = made(&[], &second);
    assert_eq!((two.base, two.taken_over, two.verified, two.new_bytes), (Some(one.ino), 20, 0, 0));
    let three = made(&["--base", first.to_str().unwrap(), "--verify", "full"], &third);
    assert_eq!((three.base, three.taken_over, three.verified, three.lied), (Some(one.ino), 0, 20, 0));
    assert_eq!([&two.fingerprint, &three.fingerprint], [&one.fingerprint; 2]);
    [second, third].iter().for_each(|version| assert_same_content(&source, version));
    // A base that is gone costs a full read.
    let gone = to.mnt.join("gone");
    let read = put(&["--base", gone.to_str().unwrap()], &source, &to.mnt.join("v4"));
    let read = read.expect(0, &["there is no base", "everything is read"]);
    let four = serde_json::from_str::<TransferReport>(&read.text()).unwrap().version.expect("is a version");
    assert_eq!((four.base, four.taken_over, &four.fingerprint), (None, 0, &one.fingerprint));
    assert!(four.without_base.expect("says why").contains("does not exist"));
    to.umount();
    to.assert_clean();
}
