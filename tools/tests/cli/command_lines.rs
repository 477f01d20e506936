//! Command lines that make no sense, directories that are no pools, and options.

use std::fs;
use std::path::Path;

use crate::site::{DEDUPFS, GC, STATS, Site, run};

#[test]
fn bad_command_lines_are_usage_errors() {
    for (program, args) in [
        (DEDUPFS, &["dance"][..]),
        (DEDUPFS, &[]),
        (DEDUPFS, &["mount", "/p"]),
        (DEDUPFS, &["mkfs", "/p", "--chunk-size", "7Q"]),
        (DEDUPFS, &["mkfs", "/p", "--no-such-option"]),
        (STATS, &[]),
        (GC, &["/p", "--threshold", "200"]),
    ] {
        run(program, args).expect(2, &["--help"]);
    }
    run(DEDUPFS, &["fsck", "--dance"]).expect(16, &["--help"]);
    for program in [DEDUPFS, STATS, GC] {
        run(program, &["--help"]).expect(0, &["Exit codes", "pool in use"]);
        run(program, &["--version"]).ok();
    }
}

#[test]
fn what_is_no_pool_is_refused_and_left_alone() {
    let root = tempfile::tempdir().unwrap();
    let (plain, mnt) = (root.path().join("plain"), root.path().join("mnt"));
    fs::create_dir(&plain).unwrap();
    fs::create_dir(&mnt).unwrap();
    let plain = plain.to_str().unwrap();
    for path in [plain, "/no/such/directory", "/etc/passwd"] {
        run(DEDUPFS, &["mount", path, mnt.to_str().unwrap()]).expect(3, &[path]);
        run(STATS, &[path]).expect(3, &[path]);
        run(GC, &[path]).expect(3, &[path]);
        run(DEDUPFS, &["fsck", path]).expect(8, &[path]);
        run(DEDUPFS, &["sync", path]).expect(3, &[path]);
        run(DEDUPFS, &["umount", path]).expect(8, &["mounted"]);
    }
    assert_eq!(fs::read_dir(plain).unwrap().count(), 0, "something was written into a directory that is no pool");
}

#[test]
fn regression_mkfs_spares_what_is_there_and_tells_it_by_its_exit_code() {
    let site = Site::new();
    let before = fs::read(site.pool.join("dedupfs.meta")).unwrap();
    site.dedupfs("mkfs", &[&site.pool]).expect(10, &["holds a dedupfs pool already"]);
    assert_eq!(fs::read(site.pool.join("dedupfs.meta")).unwrap(), before);
    let full = site.root.path().join("full");
    fs::create_dir(&full).unwrap();
    fs::write(full.join("letter"), "dear").unwrap();
    site.dedupfs("mkfs", &[&full]).expect(10, &["is not empty"]);
    let new = site.root.path().join("new");
    site.dedupfs("mkfs", &[&new, Path::new("--data"), &full]).expect(10, &["is not empty"]);
    assert!(!new.exists());
    let inside = site.pool.join("containers/new");
    site.dedupfs("mkfs", &[&inside]).expect(10, &["lies inside of the pool"]);
    site.dedupfs("mkfs", &[&full.join("letter")]).expect(1, &["letter"]);
    assert_eq!(fs::read(full.join("letter")).unwrap(), b"dear");
}

#[test]
fn mkfs_warns_of_content_inside_of_the_other_root() {
    let site = Site::new();
    let warning = "the content lies inside of";
    let [pool, beside] = ["first", "data"].map(|name| site.root.path().join(name));
    let apart = site.dedupfs("mkfs", &[&pool, Path::new("--data"), &beside]).ok();
    assert!(!apart.err.contains(warning), "{}", apart.err);
    let same = site.root.path().join("same");
    let plain = site.dedupfs("mkfs", &[&same, Path::new("--data"), &same.join(".")]).ok();
    assert!(!plain.err.contains(warning), "{}", plain.err);
    let second = site.root.path().join("second");
    site.dedupfs("mkfs", &[&second, Path::new("--data"), &second.join("data")]).expect(0, &[warning]);
}

#[test]
fn mkfs_takes_all_its_options() {
    let root = tempfile::tempdir().unwrap();
    let (pool, data) = (root.path().join("p"), root.path().join("d"));
    let (pool, data) = (pool.to_str().unwrap(), data.to_str().unwrap());
    run(
        DEDUPFS,
        &["mkfs", pool, "--data", data, "--chunker", "fastcdc", "--chunk-size", "16K"]
            .into_iter()
            .chain(["--fingerprint", "sha1", "--compression", "none", "--container-size", "8M"])
            .collect::<Vec<_>>(),
    )
    .expect(0, &["fastcdc", "16 KiB", "sha1", "8 MiB"]);
    assert!(Path::new(data).join("dedupfs.data").exists());
}

#[test]
fn damaged_superblocks_are_told_apart_and_nothing_is_changed() {
    let site = Site::new();
    let path = site.pool.join("dedupfs.meta");
    let sound = fs::read(&path).unwrap();
    let mut other_bytes = sound.clone();
    other_bytes[100] ^= 1;
    for damaged in [&sound[..0], &sound[..40], &sound[..sound.len() / 2], &b"not a superblock"[..], &other_bytes] {
        fs::write(&path, damaged).unwrap();
        for ran in [site.mount(), run(STATS, &[&site.pool]), run(GC, &[&site.pool])] {
            assert!(matches!(ran.code, 3 | 6), "{} gave {}: {}", ran.line, ran.code, ran.err);
            assert!(ran.err.contains("superblock") || ran.err.contains("dedupfs.meta"), "{}", ran.err);
        }
        assert!(matches!(site.dedupfs("fsck", &[&site.pool]).code, 4 | 8));
        assert_eq!(fs::read(&path).unwrap(), damaged);
    }
    fs::write(&path, sound).unwrap();
    run(STATS, &[&site.pool]).ok();
}

#[test]
fn mountpoints_and_options_are_checked_before_anything_happens() {
    let site = Site::new();
    site.dedupfs("mount", &[&site.pool, Path::new("/no/such/mountpoint")]).expect(8, &["does not exist"]);
    site.dedupfs("mount", &[&site.pool, Path::new("/etc/passwd")]).expect(8, &["not a directory"]);
    site.dedupfs("mount", &[&site.pool, &site.pool]).expect(8, &["in each other"]);
    site.dedupfs("mount", &[&site.pool, &site.mnt, Path::new("-ofast")]).expect(2, &["fast", "allow_other"]);
    for limit in ["-odata_limit=much", "-ometa_limit=0"] {
        site.dedupfs("mount", &[&site.pool, &site.mnt, Path::new(limit)]).expect(2, &[limit.trim_start_matches("-o")]);
    }
    site.dedupfs("mount", &[&site.pool, &site.mnt, Path::new("-olimit=1G")])
        .expect(2, &["data_limit=SIZE, meta_limit=SIZE"]);
    site.dedupfs("mount", &[Path::new("--help")]).expect(0, &["data_limit=SIZE", "meta_limit=SIZE"]);
    site.umount().expect(8, &["no dedupfs is mounted"]);
    assert!(!site.is_mounted());
}
