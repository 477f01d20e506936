//! Lists and retention rules, as administrators use them.

use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use super::{listed, names, series, snapshot};
use crate::command::{DEDUPFS, Ran, STATS, Tool, in_namespace};
use crate::random::noise;
use crate::site::Site;

#[track_caller]
fn prune(directory: &Path, rules: &[&str]) -> Ran {
    Tool::new(DEDUPFS).arg("prune").arg(directory).args(rules).run()
}

#[test]
fn a_list_shows_what_there_is_to_restore() {
    let Some(site) = Site::mounted_if_fit() else { return };
    let (series, live) = series(&site);
    let list = |target: &Path| Tool::new(DEDUPFS).env("TZ", "Europe/Berlin").arg("list").arg(target).ok().text();
    assert!(list(&site.mnt).contains("no versions in") && list(&series).contains("`dedupfs put SOURCE"));
    fs::write(live.join("file"), noise(1, 3 << 20)).unwrap();
    snapshot(&live, &series.join("2026-11-22")).expect(0, &[]);
    let other = site.mnt.join("hosts/db");
    fs::create_dir_all(&other).unwrap();
    snapshot(&live, &other.join("first")).expect(0, &[]);
    let said = list(&series);
    let lines: Vec<&str> = said.lines().collect();
    assert!(lines[0].starts_with("name        completed"), "{said}");
    let host = rustix::system::uname().nodename().to_str().unwrap().to_owned();
    for word in ["2026-11-22", "+0", &host, live.to_str().unwrap(), "3 MiB"] {
        assert!(lines[1].contains(word), "{word}: {said}");
    }
    assert_eq!(lines.last(), Some(&"1 version, 1 files, 3 MiB, new 0 B"));
    let whole = list(&site.mnt);
    let places = ["/hosts/db\n", "first", "/web1\n", "2026-11-22", "2 versions, 2 files, 6 MiB"];
    let found: Vec<Option<usize>> = places.iter().map(|place| whole.find(place)).collect();
    assert!(found.iter().all(Option::is_some) && found.is_sorted(), "{whole}");
    assert_eq!(list(&site.pool), whole);
    // The same without a daemon, also after a crash.
    site.sync();
    site.kill_daemon();
    assert_eq!(list(&site.pool), whole);
    site.mount();
    site.umount();
    assert_eq!(list(&site.pool), whole);
    site.assert_clean();
}

#[test]
fn without_a_place_the_only_mount_is_listed() {
    let Some(site) = Site::if_fit() else { return };
    let script = r#"
set -eu
dedupfs=$1 pool=$2 mnt=$3 other=$4
! "$dedupfs" list || exit 1
"$dedupfs" mount "$pool" "$mnt"
"$dedupfs" list
"$dedupfs" mkfs "$other"
mkdir "$other-mnt"
"$dedupfs" mount "$other" "$other-mnt"
! "$dedupfs" list || exit 1
"$dedupfs" umount "$mnt"
"$dedupfs" umount "$other-mnt"
"#;
    let ran = in_namespace(script).arg("sh").arg(DEDUPFS).args([&site.pool, &site.mnt, &site.base.join("other")]).run();
    let listed = format!("no versions in {}", site.mnt.display());
    ran.expect(0, &["no pool is mounted: name one", &listed, "2 pools are mounted: name one, such as"]);
}

#[test]
fn rules_remove_versions_and_say_why() {
    let Some(site) = Site::mounted_if_fit() else { return };
    let (series, live) = series(&site);
    for number in 0..6 {
        fs::write(live.join("file"), number.to_string()).unwrap();
        snapshot(&live, &series.join(format!("v{number}"))).expect(0, &[]);
    }
    fs::write(series.join("plain file"), "stays").unwrap();
    prune(&series, &[]).expect(2, &["no rules"]);
    prune(&series, &["--keep-last", "3", "--dry-run"]).expect(
        0,
        &["keep    v5", "last 1 of 3", "remove  v0", "no rule keeps it", "would remove 3 of 6", "nothing was changed"],
    );
    assert_eq!(listed(&series).len(), 6);
    prune(&series, &["--keep-last", "3"]).expect(0, &["removed 3 of 6 versions; `dedupfs-gc`"]);
    assert_eq!(listed(&series), ["v3", "v4", "v5"]);
    // The rules of the series count if none are given.
    Tool::new(DEDUPFS).args(["series", "set"]).arg(&series).args(["--keep-last", "2", "--keep-within", "1h"]).ok();
    prune(&series, &[]).expect(0, &["within 1h of the newest", "removed 0 of 3"]);
    prune(&series, &["--keep-last", "2"]).expect(0, &["removed 1 of 3"]);
    // All of one day: the newest stays, and so does the last good one whatever is asked for.
    prune(&series, &["--keep-daily", "7"]).expect(0, &["daily 1 of 7"]);
    prune(&series, &["--keep-none"]).expect(0, &["the last good version"]);
    assert_eq!(listed(&series), ["v5"]);
    assert_eq!(names(&series), ["current", "plain file", "v5"]);
    assert_eq!(fs::read_to_string(live.join("file")).unwrap(), "5");
    // Durable when it returns.
    site.kill_daemon();
    site.mount();
    assert_eq!(listed(&series), ["v5"]);
    prune(&live, &["--keep-last", "1"]).expect(0, &["no versions in"]);
    site.umount();
    site.assert_clean();
}

const MIB: usize = 1 << 20;

/// A pool that may have 400 MiB and holds five versions of a file of 40 MiB, and their series.
fn half_full() -> Option<(Site, PathBuf)> {
    let site = Site::if_fit()?;
    site.mount_with("data_limit=400M");
    let (series, live) = series(&site);
    for number in 0..5_u64 {
        fs::write(live.join("file"), noise(number, 40 * MIB)).unwrap();
        snapshot(&live, &series.join(format!("v{number}"))).expect(0, &[]);
    }
    Some((site, series))
}

/// As the disk fills up, the oldest go, one by one.
#[test]
fn free_until_removes_the_oldest_as_long_as_the_disk_is_too_full() {
    let Some((site, series)) = half_full() else { return };
    // Half of 400 MiB is used, by five times 40.
    let dry = prune(&series, &["--free-until", "35%", "--dry-run"]).expect(0, &["would remove 0 of 5"]).text();
    assert!(dry.contains("in this order: v0, v1, v2, v3\n"), "{dry}");
    assert_eq!(listed(&series).len(), 5);
    prune(&series, &["--free-until", "90%"]).expect(0, &["removed 0 of 5", "% of the disk is used"]);
    let said =
        prune(&series, &["--free-until", "35%"]).expect(0, &["removed for space: v0", "% of the disk is used"]).text();
    let left = listed(&series);
    assert!((2..=3).contains(&left.len()) && left.last().is_some_and(|name| name == "v4"), "{left:?}: {said}");
    // More than the last good version is never removed.
    prune(&series, &["--free-until", "1%"]).expect(9, &["no further version may go"]);
    assert_eq!(listed(&series), ["v4"]);
    assert!(fs::read(series.join("v4/file")).unwrap() == noise(4, 40 * MIB));
    site.umount();
    site.assert_clean();
}

/// Found by review: the space of a version that somebody reads does not come back, so one after the other went in vain.
#[test]
fn regression_free_until_ends_at_a_removed_version_that_is_read() {
    let Some((site, series)) = half_full() else { return };
    let mut reader = fs::File::open(series.join("v0/file")).unwrap();
    prune(&series, &["--free-until", "45%"])
        .expect(9, &["removed for space: v0", "somebody reads a version that was removed"]);
    assert_eq!(listed(&series), ["v1", "v2", "v3", "v4"]);
    Tool::new(STATS).arg(&site.mnt).run().expect(0, &["whose content stays until nobody reads them"]);
    let mut content = Vec::new();
    reader.read_to_end(&mut content).unwrap();
    assert!(content == noise(0, 40 * MIB));
    drop(reader);
    prune(&series, &["--free-until", "45%"]).expect(0, &["removed 0 of 4", "% of the disk is used"]);
    assert_eq!(listed(&series), ["v1", "v2", "v3", "v4"]);
    site.umount();
    site.assert_clean();
}
