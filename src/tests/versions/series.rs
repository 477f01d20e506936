//! Series: rules as records that clients neither see nor touch.

use dedupfs::SeriesRecord;
use dedupfs::retention::{Count, Rules};
use dedupfs_service::{Errno, FileService, ROOT_INO, XattrMode};

use super::site::*;

fn rules(last: u32) -> SeriesRecord {
    Rules { keep_last: Some(Count::new(last)), ..Rules::default() }.into()
}

#[test]
fn the_rules_of_a_directory_stay_until_they_are_taken_away() {
    let device = formatted();
    let pool = open(&device);
    let series = directory(&pool, ROOT_INO, "series");
    let before = pool.service().attributes(series).expect("stats");
    assert_eq!(pool.series(series).expect("reads"), None);
    assert_eq!(pool.set_series(series, Some(rules(3))).expect("sets"), None);
    assert_eq!(pool.set_series(series, Some(rules(5))).expect("sets"), Some(rules(3)));
    // The kernel is not told of the change, so it must not show.
    assert_eq!(pool.service().attributes(series), Ok(before));
    assert_clean(&pool);
    pool.close().expect("closes");
    drop(pool);
    let pool = open(&device);
    assert_eq!(pool.series(series).expect("reads"), Some(rules(5)));
    assert_eq!(pool.set_series(series, None).expect("takes away"), Some(rules(5)));
    assert_eq!(pool.set_series(series, None).expect("takes away"), None);
    assert_eq!(pool.series(series).expect("reads"), None);
    pool.set_series(series, Some(rules(1))).expect("sets");
    pool.service().remove_directory(ROOT_INO, b"series").expect("removes, with its record");
    pool.series(series).expect_err("is gone");
    assert_clean(&pool);
}

#[test]
fn files_and_versions_are_no_series() {
    let device = formatted();
    let pool = open(&device);
    let live = directory(&pool, ROOT_INO, "live");
    let plain = file(&pool, live, "a", b"a");
    snapshot(&pool, "live", "", "v");
    pool.set_series(plain, Some(rules(1))).expect_err("is a file");
    pool.series(plain).expect_err("is a file");
    pool.set_series(find(&pool, "v"), Some(rules(1))).expect_err("is a version");
    pool.set_series(1 << 30, Some(rules(1))).expect_err("is not there");
}

/// Whoever may write to a directory could take its record away.
#[test]
fn regression_no_request_sees_sets_or_removes_a_record() {
    let device = formatted();
    let pool = open(&device);
    let series = directory(&pool, ROOT_INO, "series");
    let live = directory(&pool, ROOT_INO, "live");
    pool.set_series(series, Some(rules(3))).expect("sets");
    snapshot(&pool, "live", "series", "v");
    let service = pool.service();
    for name in [&b"dedupfs.series"[..], b"dedupfs.version", b"dedupfs.other"] {
        for ino in [series, live] {
            assert_eq!(service.xattr(ino, name), Err(Errno::ENODATA));
            assert_eq!(service.set_xattr(CALLER, ino, name, b"1", XattrMode::Any), Err(Errno::EOPNOTSUPP));
            assert_eq!(service.remove_xattr(ino, name), Err(Errno::ENODATA));
            assert_eq!(service.xattr_names(ino), Ok(Vec::new()));
        }
    }
    assert_eq!(pool.series(series).expect("reads"), Some(rules(3)));
    // Nor does a copy or a version of the directory have it.
    snapshot(&pool, "live", "", "before");
    pool.set_series(live, Some(rules(1))).expect("sets");
    let report = snapshot(&pool, "live", "", "after");
    let listed = pool.versions(Some(ROOT_INO)).expect("lists");
    assert!(listed.iter().all(|version| version.fingerprint == report.fingerprint), "{listed:#?}");
}

#[test]
fn clients_see_the_rules_and_cannot_change_them() {
    let pool = open(&formatted());
    let series = directory(&pool, ROOT_INO, "series");
    let (service, name) = (pool.service(), b"user.dedupfs.series");
    assert_eq!(service.xattr(series, name), Err(Errno::ENODATA));
    pool.set_series(series, Some(rules(3))).expect("sets");
    assert_eq!(service.xattr(series, name), Ok(b"--keep-last 3".to_vec()));
    assert_eq!(service.xattr(ROOT_INO, name), Err(Errno::ENODATA));
    // A copy does not try to set it.
    assert_eq!(service.xattr_names(series), Ok(Vec::new()));
    for uid in [0, 5] {
        let caller = dedupfs_service::Caller { uid, ..CALLER };
        assert_eq!(service.set_xattr(caller, series, name, b"--keep-last 1", XattrMode::Any), Err(Errno::EPERM));
    }
    assert_eq!(service.remove_xattr(series, name), Err(Errno::EPERM));
    assert_eq!(service.xattr(series, name), Ok(b"--keep-last 3".to_vec()));
}
