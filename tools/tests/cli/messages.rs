//! Messages about pools that are incomplete, damaged or in use.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;

use crate::site::{DEDUPFS, GC, Ran, STATS, Site, run};

/// A remount names the daemon's options, which stay; and a refusal by a read-only mount is no mistake of the command
/// line.
#[test]
fn regression_a_remount_names_what_it_does_not_change() {
    let Some(site) = Site::if_fuse() else { return };
    site.mount().ok();
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let remount = |options: &str| site.dedupfs("mount", &[&site.pool, &site.mnt, Path::new(options)]);
    remount("-oremount,memory=1G,data_limit=1T,threads=4").expect(0, &["change memory, data_limit, threads: "]);
    remount("-oremount,gc=off,gc_share=5").expect(0, &["change gc, gc_share: "]);
    assert_eq!(remount("-oremount,ro,memory=512M").ok().err, "");
    run(GC, &[&site.mnt]).expect(1, &["read-only"]);
    site.umount().ok();
}

/// A list of filters from an older release still mounts. The user and the log are told once that a filter was removed.
#[test]
fn a_removed_filter_in_the_options_of_a_mount_is_told_of() {
    let Some(site) = Site::if_fuse() else { return };
    let mount = |option: &str| site.dedupfs("mount", &[&site.pool, &site.mnt, Path::new(option)]);
    let log = site.pool.join("dedupfs.log");
    let warning = "the filter `zero` was removed and is ignored: leave it out of `--filters` and `filters=`";
    for list in ["--filters=zero,block,open,bloom,locality,sealed", "-ofilters=zero:open:sealed:compare"] {
        let _ = fs::remove_file(&log);
        assert_eq!(mount(list).ok().err, format!("dedupfs: warning: {warning}\n"));
        run(STATS, &[&site.pool, Path::new("--json")]).expect(0, &["\"name\":\"sealed\""]);
        assert!(!run(STATS, &[&site.pool, Path::new("--json")]).ok().out.contains("\"zero\""));
        site.umount().ok();
        assert_eq!(fs::read_to_string(&log).unwrap().matches(warning).count(), 1);
    }
    assert_eq!(mount("-ofilters=open:sealed").ok().err, "");
    site.umount().ok();
    mount("--filters=zero,sealed,zero").expect(2, &["the filter `zero` is named twice"]);
    mount("-ofilters=zero").expect(2, &["the last filter must be `sealed`"]);
}

/// The mount must report the missing file, because an error at the first read is too late.
#[test]
fn regression_a_read_only_mount_tells_of_a_missing_file_of_containers() {
    let Some(site) = Site::if_fuse() else { return };
    site.mount().ok();
    fs::write(site.mnt.join("file"), vec![7; 100_000]).unwrap();
    site.umount().ok();
    let (place, away) = (site.pool.join("containers/000001.slots"), site.root.path().join("away"));
    fs::rename(&place, &away).unwrap();
    let mount = || site.dedupfs("mount", &[&site.pool, &site.mnt, Path::new("-oro")]);
    let said = mount().expect(0, &["containers/000001.slots", "is missing"]).err;
    assert_eq!(said.lines().count(), 1, "{said}");
    site.umount().ok();
    fs::rename(&away, &place).unwrap();
    assert_eq!(mount().ok().err, "");
    site.umount().ok();
}

/// An interrupted `recover` leaves a directory that is no pool and must not be formatted.
#[test]
fn regression_what_an_interrupted_recover_leaves_says_to_run_it_again() {
    let Some(site) = Site::if_fuse() else { return };
    // The mount gives the pool an export.
    site.mount().ok();
    site.umount().ok();
    let left = site.root.path().join("left");
    fs::create_dir_all(left.join(dedupfs::recover::STAGE)).unwrap();
    site.dedupfs("mount", &[&left, &site.mnt]).expect(3, &["interrupted", "Run the same command again"]);
    run(STATS, &[&left]).expect(3, &["dedupfs recover"]);
    let args: [&OsStr; 4] = ["recover".as_ref(), "--data".as_ref(), site.pool.as_os_str(), "--force".as_ref()];
    let forced = |more: &[&OsStr]| run(DEDUPFS, &[&args[..], more].concat());
    // It replaces all existing names: a user who cannot be asked must confirm with an option.
    forced(&[left.as_os_str()]).expect(1, &["Replace the names of all files", "--yes", "Nothing was changed"]);
    forced(&["--yes".as_ref(), left.as_os_str()]).ok();
    run(STATS, &[&left]).ok();
}

/// Messages recommend `recover --force POOL`: it finds the data root by itself.
#[test]
fn regression_recover_finds_the_data_root_and_leaves_others_directories_alone() {
    let root = tempfile::tempdir().unwrap();
    let root = root.path().canonicalize().unwrap();
    let (pool, data, foreign) = (root.join("pool"), root.join("data"), root.join("foreign"));
    run(DEDUPFS, &["mkfs".as_ref(), "--data".as_ref(), data.as_os_str(), pool.as_os_str()]).ok();
    fs::create_dir(&foreign).unwrap();
    fs::write(foreign.join("letter"), "mine").unwrap();
    let recover = |args: &[&Path]| {
        let mut all = vec![Path::new("recover")];
        all.extend(args);
        run(DEDUPFS, &all)
    };
    recover(&[Path::new("--data"), &data, &foreign]).expect(3, &["something else", "letter"]);
    assert_eq!(fs::read_dir(&foreign).unwrap().count(), 1, "something was left there");
    recover(&[&root.join("absent")]).expect(3, &["dedupfs recover --data DIR"]);
    // There is no export yet, but the error names the right directory.
    let said = recover(&[Path::new("--force"), Path::new("--yes"), &pool]);
    assert!(said.err.contains(data.to_str().unwrap()) || said.code == 0, "{}", said.err);
    // An unreadable superblock names no data root.
    let superblock = pool.join("dedupfs.meta");
    let sound = fs::read(&superblock).unwrap();
    fs::write(&superblock, &sound[..50]).unwrap();
    recover(&[Path::new("--force"), &pool]).expect(3, &["dedupfs recover --data DIR"]);
}

/// The message that sends the user to fsck must show the way on there; and a panic that is caught prints nothing by
/// itself.
#[test]
fn regression_a_namespace_beyond_repair_names_the_way_out() {
    let site = Site::new();
    let names = site.pool.join("namespace.redb");
    let sound = fs::read(&names).unwrap();
    let fsck = |options: &[&str]| {
        let mut args: Vec<&Path> = vec![Path::new("fsck")];
        args.extend(options.iter().map(Path::new));
        args.push(&site.pool);
        run(DEDUPFS, &args)
    };
    let is_quiet = |ran: Ran| {
        assert!(ran.err.contains("dedupfs recover --force") && ran.code != 0, "{}", ran.err);
        assert!(!ran.err.contains("panicked") && !ran.err.contains("backtrace"), "{}", ran.err);
    };
    for step in [1, 3] {
        let mut damaged = sound.clone();
        damaged.chunks_mut(4096).step_by(step).for_each(|block| block.iter_mut().for_each(|byte| *byte ^= 0x5a));
        fs::write(&names, damaged).unwrap();
        is_quiet(fsck(&[]));
        is_quiet(fsck(&["--repair", "--yes"]));
    }
    fs::remove_file(&names).unwrap();
    is_quiet(fsck(&[]));
    is_quiet(fsck(&["--repair", "--yes"]));
}

/// The status names the process that works on an unmounted pool, and how to end it.
#[test]
fn regression_a_scrub_of_another_process_is_told_of() {
    let site = Site::new();
    run(DEDUPFS, &["scrub".as_ref(), site.pool.as_os_str()]).expect(0, &["sound"]);
    let _lock = dedupfs_store::device::PoolLock::acquire(&site.pool, "dedupfs scrub").unwrap();
    let process = format!("process {} (dedupfs scrub)", std::process::id());
    let scrub = |option: &str| run(DEDUPFS, &["scrub".as_ref(), option.as_ref(), site.pool.as_os_str()]);
    scrub("--status").expect(0, &[&format!("{process} scrubs the pool"), "containers"]);
    scrub("--stop").expect(8, &[&process, "interrupt that process"]);
}
