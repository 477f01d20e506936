//! Copying parts of a tree, chosen by patterns.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use dedupfs_service::{Ino, ROOT_INO};
use tempfile::TempDir;

use super::tests::{lookup, pool, put_into, staging};
use super::*;
use crate::pool::Pool;
use crate::progress::NoProgress;
use crate::versions::name::Origin;

/// A source with a directory on the way that has attributes of its own, links into the chosen part and out of it, and
/// a directory with nothing that is wanted.
fn source() -> TempDir {
    let made = tempfile::tempdir().unwrap();
    let at = |path: &str| made.path().join(path);
    for path in ["etc/ssh", "etc/empty", "usr/share/doc", "home/a/photos", "home/b"] {
        fs::create_dir_all(at(path)).unwrap();
    }
    for path in [
        "etc/passwd",
        "etc/ssh/host.key",
        "etc/ssh/config",
        "usr/share/doc/passwd",
        "home/a/photos/1.jpg",
        "home/b/2.jpg",
    ] {
        fs::write(at(path), path).unwrap();
    }
    fs::hard_link(at("etc/passwd"), at("etc/ssh/linked")).unwrap();
    fs::hard_link(at("etc/passwd"), at("home/b/linked")).unwrap();
    fs::set_permissions(at("etc"), fs::Permissions::from_mode(0o711)).unwrap();
    let old = fs::FileTimes::new().set_modified(std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000));
    File::open(at("etc")).unwrap().set_times(old).unwrap();
    made
}

/// A pool with the source as a live tree and as a version.
fn stored() -> (std::sync::Arc<Pool>, [Ino; 2], TempDir) {
    let (pool, source) = (pool(), source());
    put_into(&pool, staging(&pool), source.path(), &NoProgress).unwrap();
    let live = lookup(&pool, lookup(&pool, ROOT_INO, b"staging").unwrap(), b"tree").unwrap();
    pool.snapshot(live, (ROOT_INO, b"version"), &Origin::default(), &NoProgress).unwrap();
    let version = lookup(&pool, ROOT_INO, b"version").unwrap();
    (pool, [live, version], source)
}

fn choose(pool: &Pool, from: Ino, to: &Path, include: &[&str], exclude: &[&str]) -> Result<TransferReport> {
    let of = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
    let patterns = Patterns { include: of(include), exclude: of(exclude) };
    let directory = File::open(to.parent().unwrap()).unwrap().into();
    pool.get(from, (directory, to.file_name().unwrap().as_encoded_bytes()), &patterns, &NoProgress)
}

/// All paths below.
fn paths(top: &Path) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut ways = vec![top.to_owned()];
    while let Some(way) = ways.pop() {
        for entry in fs::read_dir(way).unwrap().map(std::result::Result::unwrap) {
            found.insert(entry.path().strip_prefix(top).unwrap().to_str().unwrap().to_owned());
            if entry.file_type().unwrap().is_dir() {
                ways.push(entry.path());
            }
        }
    }
    found
}

/// Patterns to include and to exclude, the paths that come, and the number of directories that are listed.
type Case = (&'static [&'static str], &'static [&'static str], &'static [&'static str], u64);

#[test]
fn what_is_chosen_comes_with_the_directories_on_the_way_and_nothing_else() {
    let (pool, trees, _source) = stored();
    let cases: [Case; 6] = [
        (&["/etc/passwd"], &[], &["etc", "etc/passwd"], 2),
        (&["passwd"], &[], &["etc", "etc/passwd", "usr", "usr/share", "usr/share/doc", "usr/share/doc/passwd"], 11),
        (&["home/**/*.jpg"], &["b"], &["home", "home/a", "home/a/photos", "home/a/photos/1.jpg"], 4),
        (&["/etc/empty"], &[], &["etc", "etc/empty"], 3),
        (
            &["/etc/ssh/*.key", "/home/b/2.jpg"],
            &[],
            &["etc", "etc/ssh", "etc/ssh/host.key", "home", "home/b", "home/b/2.jpg"],
            5,
        ),
        (
            &[],
            &["/etc", "/usr", "linked"],
            &["home", "home/a", "home/a/photos", "home/a/photos/1.jpg", "home/b", "home/b/2.jpg"],
            5,
        ),
    ];
    for tree in trees {
        for (include, exclude, expected, searched) in cases {
            let out = tempfile::tempdir().unwrap();
            let to = out.path().join("out");
            let report = choose(&pool, tree, &to, include, exclude).unwrap();
            assert_eq!(paths(&to), expected.iter().map(|path| (*path).to_owned()).collect(), "{include:?}");
            assert_eq!((report.problem_count, report.searched_directories), (0, Some(searched)), "{include:?}");
            assert_eq!(report.directories as usize, 1 + expected.iter().filter(|path| to.join(path).is_dir()).count());
            for path in expected.iter().filter(|path| to.join(path).is_file()) {
                assert_eq!(fs::read_to_string(to.join(path)).unwrap(), *path);
            }
            if let Ok(etc) = fs::metadata(to.join("etc")) {
                assert_eq!((etc.mode() & 0o7777, etc.mtime()), (0o711, 1_000_000), "{include:?}");
            }
        }
    }
}

#[test]
fn links_within_the_choice_stay_links() {
    let (pool, trees, _source) = stored();
    for tree in trees {
        let out = tempfile::tempdir().unwrap();
        let to = out.path().join("out");
        let report = choose(&pool, tree, &to, &["etc/passwd", "etc/ssh/linked"], &[]).unwrap();
        let [first, second] = ["etc/passwd", "etc/ssh/linked"].map(|path| fs::metadata(to.join(path)).unwrap());
        assert_eq!((first.ino(), first.nlink(), report.hard_links), (second.ino(), 2, 1));
    }
}

#[test]
fn patterns_that_match_nothing_are_told() {
    let (pool, [_, version], _source) = stored();
    let out = tempfile::tempdir().unwrap();
    let error = choose(&pool, version, &out.path().join("none"), &["/absent", "x*"], &[]).unwrap_err();
    assert!(matches!(error, TransferError::NothingChosen), "{error}");
    let error = choose(&pool, version, &out.path().join("none"), &["etc"], &["etc"]).unwrap_err();
    assert!(matches!(error, TransferError::NothingChosen), "{error}");
    assert!(!out.path().join("none").exists(), "nothing is made");
    let report = choose(&pool, version, &out.path().join("some"), &["/absent", "passwd"], &[]).unwrap();
    assert_eq!((report.problem_count, report.problems[0].path.as_str()), (1, "/absent"));
    assert!(out.path().join("some/etc/passwd").exists());
    let error = choose(&pool, version, &out.path().join("bad"), &["a/../b"], &[]).unwrap_err();
    assert!(matches!(error, TransferError::Pattern { .. }), "{error}");
    let file = lookup(&pool, lookup(&pool, version, b"etc").unwrap(), b"passwd").unwrap();
    choose(&pool, file, &out.path().join("file"), &["passwd"], &[]).unwrap_err();
    choose(&pool, file, &out.path().join("file"), &[], &[]).unwrap();
    assert_eq!(fs::read_to_string(out.path().join("file")).unwrap(), "etc/passwd");
}

#[test]
fn a_taken_name_is_left_alone() {
    let (pool, [_, version], _source) = stored();
    let out = tempfile::tempdir().unwrap();
    fs::create_dir(out.path().join("taken")).unwrap();
    let error = choose(&pool, version, &out.path().join("taken"), &["passwd"], &[]).unwrap_err();
    assert!(matches!(error, TransferError::Top(_)), "{error}");
    assert!(paths(&out.path().join("taken")).is_empty());
}
