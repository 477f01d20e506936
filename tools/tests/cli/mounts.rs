//! The life of a mount, and its deaths.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::site::{DEDUPFS, END_TIMEOUT, GC, STATS, Site, end_of, foreground, has_fuse, run};

#[test]
fn a_mount_lives_and_ends() {
    let Some(site) = Site::if_fuse() else { return };
    let begun = Instant::now();
    site.mount().ok();
    assert!(begun.elapsed() < END_TIMEOUT);
    let below = fs::metadata(site.mnt.parent().unwrap()).unwrap();
    assert_ne!(fs::metadata(&site.mnt).unwrap().dev(), below.dev(), "mount returned before the mount served");
    fs::write(site.mnt.join("file"), vec![7; 100_000]).unwrap();

    // The error names the process that has the pool.
    let other = site.root.path().join("other");
    fs::create_dir(&other).unwrap();
    let daemon = format!("process {}", site.daemon().as_raw_nonzero());
    site.dedupfs("mount", &[&site.pool, &other]).expect(4, &[&daemon, "umount"]);
    site.mount().expect(8, &["is mounted on"]);
    site.dedupfs("fsck", &[&site.pool, Path::new("--rebuild-index")]).expect(8, &["umount"]);

    // The tools treat pool and mountpoint alike.
    for path in [&site.pool, &site.mnt] {
        let shown = run(STATS, &[path.as_os_str(), "--json".as_ref()]).ok().out;
        let stats: serde_json::Value = serde_json::from_str(&shown).unwrap();
        assert!(stats["unique_chunk_bytes"].is_u64(), "{shown}");
        run(STATS, &[path]).expect(0, &["physical"]);
        run(GC, &[path.as_os_str(), "--dry-run".as_ref()]).expect(0, &["nothing was changed"]);
        run(GC, &[path]).expect(0, &["reclaimed"]);
        site.dedupfs("sync", &[path]).ok();
        site.dedupfs("fsck", &[path]).expect(0, &["clean"]);
    }

    // Refused while a file is open, done afterwards.
    let open = fs::File::open(site.mnt.join("file")).unwrap();
    site.umount().expect(8, &["in use"]);
    assert!(site.is_mounted());
    drop(open);
    site.umount().ok();
    assert!(site.is_free() && !site.is_mounted());
    assert!(!site.pool.join("control.sock").exists());
    site.umount().expect(8, &["no dedupfs is mounted"]);

    // On an unmounted pool the same tools open it themselves.
    run(STATS, &[&site.pool]).expect(0, &["physical"]);
    run(GC, &[&site.pool]).expect(0, &["reclaimed"]);
    site.dedupfs("fsck", &[&site.pool, Path::new("--read-data")]).expect(0, &["clean"]);
    site.dedupfs("fsck", &[&site.pool, Path::new("--rebuild-index")]).expect(0, &["index rebuilt", "clean"]);
    site.mount().ok();
    assert_eq!(fs::read(site.mnt.join("file")).unwrap(), vec![7; 100_000]);
    // The pool's path works as well.
    site.dedupfs("umount", &[&site.pool]).ok();
    assert!(site.is_free());
}

/// Each slot file that is read takes two descriptors: pools of a terabyte reached the usual limit of 1,024.
#[test]
fn regression_the_daemon_may_have_as_many_files_open_as_the_user() {
    let Some(site) = Site::if_fuse() else { return };
    let mut limited = Command::new("sh");
    let ran =
        limited.args(["-c", "ulimit -S -n 256 && exec \"$@\"", "sh", DEDUPFS, "mount"]).arg(&site.pool).arg(&site.mnt);
    assert!(ran.status().unwrap().success());
    let limits = fs::read_to_string(format!("/proc/{}/limits", site.daemon().as_raw_nonzero())).unwrap();
    let open_files = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    let numbers: Vec<&str> = open_files.split_whitespace().skip(3).take(2).collect();
    assert_eq!(numbers[0], numbers[1], "{open_files}");
    site.umount().ok();
}

#[test]
fn a_limit_is_a_full_disk_until_it_is_raised() {
    if !has_fuse() {
        return;
    }
    const LIMIT_BYTES: u64 = 48 << 20;
    let site = Site::new();
    let mut state = 1_u64;
    let noise: Vec<u8> = std::iter::repeat_with(|| {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (state >> 56) as u8
    })
    .take(LIMIT_BYTES as usize)
    .collect();
    let (kept, more) = (site.mnt.join("kept"), site.mnt.join("more"));
    let write = |path: &Path, data: &[u8]| -> std::io::Result<()> {
        let mut file = fs::File::create(path)?;
        std::io::Write::write_all(&mut file, data)?;
        file.sync_all()
    };
    site.dedupfs("mount", &[&site.pool, &site.mnt, Path::new("-odata_limit=48M")]).ok();
    write(&kept, &noise[..8 << 20]).unwrap();
    let error = write(&more, &noise[8 << 20..]).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::StorageFull, "{error}");
    let log = fs::read_to_string(site.pool.join("dedupfs.log")).unwrap();
    let count = |words: &str| log.lines().filter(|line| line.contains(words)).count();
    assert_eq!(
        (count("is_urgent=true"), count("ERROR")),
        (1, 1),
        "the mark that was passed, and a refusal, once each: {log}"
    );
    assert!(fs::read(&kept).unwrap() == noise[..8 << 20]);
    let containers = fs::read_dir(site.pool.join("containers")).unwrap();
    let occupied_bytes: u64 = containers.map(|entry| entry.unwrap().metadata().unwrap().blocks() * 512).sum();
    assert!(occupied_bytes <= LIMIT_BYTES, "{occupied_bytes} bytes are occupied");
    run(STATS, &[&site.pool]).expect(0, &["48"]);
    site.umount().ok();

    site.mount().ok();
    write(&more, &noise[8 << 20..]).unwrap();
    assert!(fs::read(&more).unwrap() == noise[8 << 20..]);
    site.umount().ok();
    site.dedupfs("fsck", &[&site.pool, Path::new("--read-data")]).expect(0, &["clean"]);
}

#[test]
fn a_killed_daemon_leaves_an_error_and_the_next_mount_replaces_it() {
    let Some(site) = Site::if_fuse() else { return };
    site.mount().ok();
    kill_process(site.daemon(), Signal::KILL).unwrap();
    site.wait_until_free();
    // The kernel still remembers the mount from a moment ago: that must not hide that the daemon is gone.
    let error = fs::write(site.mnt.join("backup"), "swallowed?").unwrap_err();
    assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::NOTCONN.raw_os_error()), "{error}");
    // The tools open the pool, although it still seems mounted.
    run(STATS, &[&site.mnt]).ok();
    site.dedupfs("sync", &[&site.mnt]).expect(1, &["killed"]);
    // Another pool does not take the place silently.
    let other = site.root.path().join("other");
    site.dedupfs("mkfs", &[&other]).ok();
    site.dedupfs("mount", &[&other, &site.mnt]).expect(8, &["dead mount", "umount"]);
    site.mount().ok();
    fs::write(site.mnt.join("backup"), "kept").unwrap();
    site.umount().ok();
    assert!(!site.is_mounted(), "the dead mount is still below");
    assert_eq!(fs::read_dir(&site.mnt).unwrap().count(), 0);
}

#[test]
fn umount_of_a_dead_mount_removes_it_and_says_what_it_means() {
    let Some(site) = Site::if_fuse() else { return };
    site.mount().ok();
    kill_process(site.daemon(), Signal::KILL).unwrap();
    site.wait_until_free();
    site.umount().expect(1, &["killed", "mount pool"]);
    assert!(!site.is_mounted());
}

#[test]
fn umount_by_others_ends_the_daemon() {
    let Some(site) = Site::if_fuse() else { return };
    let mut daemon = foreground(&site);
    dedupfs_fuse::unmount_path(&site.mnt).unwrap();
    assert_eq!(end_of(&mut daemon), Some(0));
    assert!(site.is_free() && !site.pool.join("control.sock").exists());
}

#[test]
fn signals_unmount_cleanly() {
    if !has_fuse() {
        return;
    }
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let site = Site::new();
        let mut daemon = foreground(&site);
        kill_process(Pid::from_child(&daemon), signal).unwrap();
        assert_eq!(end_of(&mut daemon), Some(0), "{signal:?}");
        assert!(!site.is_mounted() && site.is_free());
    }
}

#[test]
fn a_second_signal_does_not_wait_for_open_files() {
    let Some(site) = Site::if_fuse() else { return };
    let mut daemon = foreground(&site);
    let open = fs::File::create(site.mnt.join("file")).unwrap();
    let pid = Pid::from_child(&daemon);
    kill_process(pid, Signal::TERM).unwrap();
    let deadline = Instant::now() + END_TIMEOUT;
    while site.is_mounted() {
        assert!(Instant::now() < deadline, "the mount is not detached");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(daemon.try_wait().unwrap(), None, "open files were cut off at once");
    kill_process(pid, Signal::TERM).unwrap();
    assert_eq!(end_of(&mut daemon), Some(0));
    assert!(site.is_free());
    drop(open);
}

#[test]
fn a_lazy_umount_waits_for_the_last_file() {
    let Some(site) = Site::if_fuse() else { return };
    site.mount().ok();
    let open = fs::File::create(site.mnt.join("file")).unwrap();
    let mut command = Command::new(DEDUPFS);
    let mut umount = command.args(["umount", "--lazy"]).arg(&site.mnt).spawn().unwrap();
    let deadline = Instant::now() + END_TIMEOUT;
    while site.is_mounted() {
        assert!(Instant::now() < deadline, "the mount is not detached");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(umount.try_wait().unwrap(), None, "it returned while a file was open");
    drop(open);
    assert_eq!(end_of(&mut umount), Some(0));
    assert!(site.is_free());
}

/// The pool's daemon serves another mount by now: removing the dead mount must not end it.
#[test]
fn regression_umount_of_a_dead_mount_spares_the_live_one() {
    let Some(site) = Site::if_fuse() else { return };
    site.mount().ok();
    kill_process(site.daemon(), Signal::KILL).unwrap();
    site.wait_until_free();
    let live = site.root.path().canonicalize().unwrap().join("live");
    fs::create_dir(&live).unwrap();
    site.dedupfs("mount", &[&site.pool, &live]).ok();
    let daemon = site.daemon();
    fs::write(live.join("backup"), "kept").unwrap();
    // Writes through the dead mount do not become durable by syncing the other.
    site.dedupfs("sync", &[&site.mnt]).expect(1, &["killed", "live"]);
    run(STATS, &[&site.mnt]).expect(0, &["is dead", "mounted on"]);
    site.umount().expect(0, &["removed", "stays mounted"]);
    assert!(!site.is_mounted());
    assert_eq!((site.daemon(), site.is_free()), (daemon, false));
    assert_eq!(fs::read(live.join("backup")).unwrap(), b"kept");
    site.dedupfs("umount", &[&live]).ok();
    assert!(site.is_free());
}
