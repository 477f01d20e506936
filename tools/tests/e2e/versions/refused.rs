//! Changes of versions, and the errors that programs meet.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use rustix::io::Errno;

use super::{names, series, snapshot};
use crate::command::Tool;
use crate::compare::assert_same_tree;
use crate::site::Site;

#[track_caller]
fn assert_errno<T: std::fmt::Debug>(result: std::io::Result<T>, errno: Errno) {
    let error = result.unwrap_err();
    assert_eq!(error.raw_os_error(), Some(errno.raw_os_error()), "{error}");
}

fn fill(live: &Path) {
    fs::create_dir_all(live.join("a/b")).unwrap();
    fs::create_dir(live.join("empty")).unwrap();
    fs::write(live.join("file"), "content").unwrap();
    fs::write(live.join("a/b/deep"), vec![7; 300_000]).unwrap();
    fs::hard_link(live.join("file"), live.join("a/second")).unwrap();
    symlink("file", live.join("link")).unwrap();
}

#[test]
fn nothing_in_a_version_changes_whatever_programs_try() {
    let Some(site) = Site::mounted_if_fit() else { return };
    let (series, live) = series(&site);
    fill(&live);
    let version = series.join("v");
    snapshot(&live, &version).expect(0, &[]);
    let file = version.join("file");
    for path in [&version, &file, &version.join("a")] {
        for (program, arguments) in [
            ("touch", &[][..]),
            ("setfattr", &["-n", "user.x", "-v", "1"]),
            ("setfacl", &["-m", "u:7:r"]),
            ("chattr", &["+i"]),
        ] {
            let ran = Tool::new(program).args(arguments).arg(path).run();
            assert!(ran.code != 0 && ran.err.contains("Read-only file system"), "{}: {}", ran.line, ran.said());
        }
    }
    Tool::new("find").arg(&version).args(["-depth", "-type", "d", "-empty", "-delete"]).run().expect(1, &["Read-only"]);
    assert_same_tree(&live, &version);
    site.umount();
    site.assert_clean();
}

/// Removal by rm(1) must not leave half a backup.
#[test]
fn rm_removes_nothing_of_a_version() {
    let Some(site) = Site::mounted_if_fit() else { return };
    let (series, live) = series(&site);
    fill(&live);
    let versions = ["v1", "v2"].map(|name| series.join(name));
    for version in &versions {
        snapshot(&live, version).expect(0, &[]);
    }
    // An empty version, too: rmdir of it must not succeed by chance.
    fs::create_dir(site.mnt.join("nothing")).unwrap();
    snapshot(&site.mnt.join("nothing"), &series.join("v3")).expect(0, &["0 entries"]);
    assert_errno(fs::remove_dir(series.join("v3")), Errno::NOTEMPTY);
    Tool::new("rm").arg("-rf").args(&versions).run().expect(1, &["Read-only file system"]);
    assert_same_tree(&live, &versions[0]);
    assert_same_tree(&live, &versions[1]);
    // All of the series: the live directory goes, its versions stay.
    let copy = site.base.join("copy");
    Tool::new("cp").arg("-a").args([&live, &copy]).ok();
    Tool::new("rm").arg("-rf").arg(&series).run().expect(1, &["Read-only file system"]);
    assert_eq!(names(&series), ["v1", "v2", "v3"]);
    assert_same_tree(&copy, &versions[0]);
    site.remount();
    assert_same_tree(&copy, &versions[1]);
    site.umount();
    site.assert_clean();
}

#[test]
fn versions_are_renamed_and_programs_copy_across_their_border() {
    let Some(site) = Site::mounted_if_fit() else { return };
    let (series, live) = series(&site);
    fill(&live);
    let version = series.join("v");
    snapshot(&live, &version).expect(0, &[]);
    // mv copies, and says that it cannot remove the source.
    let taken = site.mnt.join("taken");
    Tool::new("mv").args([&version.join("a"), &taken]).run().expect(1, &["Read-only file system"]);
    assert_same_tree(&version.join("a"), &taken);
    Tool::new("mv").args([&taken, &version]).run().expect(1, &["Read-only file system"]);
    assert_same_tree(&live, &version);
    // A version gets another name and another directory, as a live one.
    let shelf = site.mnt.join("shelf");
    fs::create_dir(&shelf).unwrap();
    let moved = shelf.join("moved");
    fs::rename(&version, &moved).unwrap();
    assert_same_tree(&live, &moved);
    assert_eq!((super::listed(&series), super::listed(&shelf)), (vec![], vec!["moved".to_owned()]));
    assert_eq!(names(&series), ["current"]);
    site.remount();
    assert_same_tree(&live, &moved);
    super::forget(&[&moved]).expect(0, &["1 version removed"]);
    assert_eq!(names(&shelf), [""; 0]);
    site.umount();
    site.assert_clean();
}

/// Records of the namespace are no attributes of a directory.
#[test]
fn the_rules_of_a_series_are_out_of_reach_of_attributes() {
    let Some(site) = Site::mounted_if_fit() else { return };
    let (series, live) = series(&site);
    fill(&live);
    let of_series = |words: &[&str]| {
        let tool = Tool::new(crate::command::DEDUPFS).arg("series").arg(words[0]).arg(&series);
        tool.args(&words[1..]).run()
    };
    of_series(&["set", "--keep-last", "3"]).expect(0, &["is a series"]);
    snapshot(&live, &series.join("v")).expect(0, &[]);
    for path in [&series, &series.join("v"), &live] {
        assert_eq!(Tool::new("getfattr").args(["--absolute-names", "-d", "-m", "-"]).arg(path).ok().text(), "");
        for name in ["dedupfs.series", "dedupfs.version"] {
            Tool::new("getfattr").args(["-n", name]).arg(path).run().expect(1, &["No such attribute"]);
            let set = Tool::new("setfattr").args(["-n", name, "-v", "x"]).arg(path).run();
            assert_eq!(set.code, 1, "{}", set.said());
            let removed = Tool::new("setfattr").args(["-x", name]).arg(path).run();
            assert_eq!(removed.code, 1, "{}", removed.said());
        }
    }
    of_series(&["show"]).expect(0, &["--keep-last 3\n"]);
    // A copy has no rules, and copying makes no trouble.
    let copy = site.mnt.join("copy");
    Tool::new("rsync").args(["-aHAX"]).args([&series, &copy]).ok();
    let out = site.base.join("out");
    Tool::new(crate::command::DEDUPFS).arg("get").args([&series, &out]).run().expect(0, &["copied"]);
    Tool::new(crate::command::DEDUPFS)
        .args(["series", "show"])
        .arg(copy.join("web1"))
        .run()
        .expect(0, &["is no series"]);
    site.remount();
    of_series(&["show"]).expect(0, &["--keep-last 3\n"]);
    of_series(&["unset"]).expect(0, &["is no series any more", "--keep-last 3"]);
    of_series(&["show"]).expect(0, &["is no series"]);
    site.umount();
    site.assert_clean();
}
