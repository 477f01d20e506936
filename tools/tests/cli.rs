//! The programs as users meet them: bad input, the life of a mount, and its deaths.
//!
//! Tests that mount leave themselves out where there is no /dev/fuse, unless `DEDUPFS_REQUIRE_FUSE` is set.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

const DEDUPFS: &str = env!("CARGO_BIN_EXE_dedupfs");
const STATS: &str = env!("CARGO_BIN_EXE_dedupfs-stats");
const GC: &str = env!("CARGO_BIN_EXE_dedupfs-gc");
const END_TIMEOUT: Duration = Duration::from_secs(30);

/// What a program did.
struct Ran {
    line: String,
    code: i32,
    out: String,
    err: String,
}

impl Ran {
    #[track_caller]
    fn expect(self, code: i32, words: &[&str]) -> Self {
        let said = format!("{}{}", self.out, self.err);
        assert_eq!(self.code, code, "{} said: {said}", self.line);
        for word in words {
            assert!(said.contains(word), "{} does not say {word:?}: {said}", self.line);
        }
        self
    }

    #[track_caller]
    fn ok(self) -> Self {
        self.expect(0, &[])
    }
}

fn run<S: AsRef<std::ffi::OsStr>>(program: &str, args: &[S]) -> Ran {
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::null());
    let line = format!("{command:?}");
    let Output { status, stdout, stderr } = command.output().unwrap();
    Ran {
        line,
        code: status.code().unwrap(),
        out: String::from_utf8(stdout).unwrap(),
        err: String::from_utf8(stderr).unwrap(),
    }
}

/// A formatted pool and a mountpoint in a directory of their own; unmounts when dropped, whatever became of the test.
struct Site {
    root: tempfile::TempDir,
    pool: PathBuf,
    mnt: PathBuf,
}

impl Site {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let real = root.path().canonicalize().unwrap();
        // Both need escaping in /proc/self/mountinfo.
        let (pool, mnt) = (real.join("the pool"), real.join("mnt\\ x"));
        fs::create_dir(&mnt).unwrap();
        run(DEDUPFS, &["mkfs".as_ref(), pool.as_os_str()]).ok();
        Self { root, pool, mnt }
    }

    /// If this test can mount.
    fn if_fuse() -> Option<Self> {
        has_fuse().then(Self::new)
    }

    fn dedupfs(&self, command: &str, paths: &[&Path]) -> Ran {
        let mut args = vec![command.as_ref()];
        args.extend(paths.iter().map(|path| path.as_os_str()));
        run(DEDUPFS, &args)
    }

    fn mount(&self) -> Ran {
        self.dedupfs("mount", &[&self.pool, &self.mnt])
    }

    fn umount(&self) -> Ran {
        self.dedupfs("umount", &[&self.mnt])
    }

    fn is_mounted(&self) -> bool {
        dedupfs_tools::target::mounted_at(&self.mnt).unwrap().is_some()
    }

    fn daemon(&self) -> Pid {
        let note = fs::read_to_string(self.pool.join("lock")).unwrap();
        Pid::from_raw(note.split(' ').next().unwrap().parse().unwrap()).unwrap()
    }

    /// Waits until nobody has the pool.
    #[track_caller]
    fn wait_until_free(&self) {
        let deadline = Instant::now() + END_TIMEOUT;
        while !self.is_free() {
            assert!(Instant::now() < deadline, "the daemon does not end");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn is_free(&self) -> bool {
        fs::File::open(self.pool.join("lock")).unwrap().try_lock().is_ok()
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        while self.is_mounted() {
            if self.dedupfs("umount", &[&self.mnt]).code != 0 {
                let _ = Command::new("umount").arg("-l").arg(&self.mnt).status();
            }
        }
    }
}

/// Whether this test can mount.
fn has_fuse() -> bool {
    let has_it = fs::File::options().read(true).write(true).open("/dev/fuse").is_ok();
    assert!(has_it || std::env::var_os("DEDUPFS_REQUIRE_FUSE").is_none(), "no /dev/fuse");
    if !has_it {
        eprintln!("left out: no /dev/fuse");
    }
    has_it
}

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
fn mkfs_spares_what_is_there() {
    let site = Site::new();
    let before = fs::read(site.pool.join("dedupfs.meta")).unwrap();
    site.dedupfs("mkfs", &[&site.pool]).expect(1, &["holds a dedupfs pool already"]);
    assert_eq!(fs::read(site.pool.join("dedupfs.meta")).unwrap(), before);
    let full = site.root.path().join("full");
    fs::create_dir(&full).unwrap();
    fs::write(full.join("letter"), "dear").unwrap();
    site.dedupfs("mkfs", &[&full]).expect(1, &["is not empty"]);
    let new = site.root.path().join("new");
    site.dedupfs("mkfs", &[&new, Path::new("--data"), &full]).expect(1, &["is not empty"]);
    assert!(!new.exists());
    let inside = site.pool.join("containers/new");
    site.dedupfs("mkfs", &[&inside]).expect(1, &["lies inside of the pool"]);
    site.dedupfs("mkfs", &[&full.join("letter")]).expect(1, &["letter"]);
    assert_eq!(fs::read(full.join("letter")).unwrap(), b"dear");
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

#[test]
fn a_mount_lives_and_ends() {
    let Some(site) = Site::if_fuse() else { return };
    let begun = Instant::now();
    site.mount().ok();
    assert!(begun.elapsed() < END_TIMEOUT);
    let below = fs::metadata(site.mnt.parent().unwrap()).unwrap();
    assert_ne!(fs::metadata(&site.mnt).unwrap().dev(), below.dev(), "mount returned before the mount served");
    fs::write(site.mnt.join("file"), vec![7; 100_000]).unwrap();

    // Others are told who has it.
    let other = site.root.path().join("other");
    fs::create_dir(&other).unwrap();
    let daemon = format!("process {}", site.daemon().as_raw_nonzero());
    site.dedupfs("mount", &[&site.pool, &other]).expect(4, &[&daemon, "umount"]);
    site.mount().expect(8, &["is mounted on"]);
    site.dedupfs("fsck", &[&site.pool, Path::new("--rebuild-index")]).expect(8, &["umount"]);

    // Pool and mountpoint are the same to the tools.
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

    // Busy first, then away.
    let open = fs::File::open(site.mnt.join("file")).unwrap();
    site.umount().expect(8, &["in use"]);
    assert!(site.is_mounted());
    drop(open);
    site.umount().ok();
    assert!(site.is_free() && !site.is_mounted());
    assert!(!site.pool.join("control.sock").exists());
    site.umount().expect(8, &["no dedupfs is mounted"]);

    // Not mounted, the same tools open it themselves.
    run(STATS, &[&site.pool]).expect(0, &["physical"]);
    run(GC, &[&site.pool]).expect(0, &["reclaimed"]);
    site.dedupfs("fsck", &[&site.pool, Path::new("--read-data")]).expect(0, &["clean"]);
    site.dedupfs("fsck", &[&site.pool, Path::new("--rebuild-index")]).expect(0, &["index rebuilt", "clean"]);
    site.mount().ok();
    assert_eq!(fs::read(site.mnt.join("file")).unwrap(), vec![7; 100_000]);
    // By the pool's name as well.
    site.dedupfs("umount", &[&site.pool]).ok();
    assert!(site.is_free());
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
    // Looked at a moment ago: what the kernel still remembers must not hide that the daemon is gone.
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

/// A daemon in the foreground whose mount serves.
fn foreground(site: &Site) -> Child {
    let mut command = Command::new(DEDUPFS);
    command.args(["mount", "--foreground"]).arg(&site.pool).arg(&site.mnt).stdin(Stdio::null());
    let mut child = command.stderr(Stdio::null()).spawn().unwrap();
    let deadline = Instant::now() + END_TIMEOUT;
    // The socket is there after the mount.
    while !site.pool.join("control.sock").exists() {
        assert_eq!(child.try_wait().unwrap(), None, "the daemon ended");
        assert!(Instant::now() < deadline, "the daemon does not mount");
        std::thread::sleep(Duration::from_millis(10));
    }
    child
}

/// The exit code of a process that is about to end.
#[track_caller]
fn end_of(child: &mut Child) -> Option<i32> {
    let deadline = Instant::now() + END_TIMEOUT;
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status.code();
        }
        assert!(Instant::now() < deadline, "the process does not end");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The pool's daemon serves another mount by now: that one is not ended with the dead one.
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
    // What was written through the dead one is not made durable by syncing the other.
    site.dedupfs("sync", &[&site.mnt]).expect(1, &["killed", "live"]);
    run(STATS, &[&site.mnt]).expect(0, &["is dead", "mounted on"]);
    site.umount().expect(0, &["removed", "stays mounted"]);
    assert!(!site.is_mounted());
    assert_eq!((site.daemon(), site.is_free()), (daemon, false));
    assert_eq!(fs::read(live.join("backup")).unwrap(), b"kept");
    site.dedupfs("umount", &[&live]).ok();
    assert!(site.is_free());
}

/// umount(8) returns before the daemon has closed the pool.
#[test]
fn regression_a_mount_waits_for_the_daemon_that_is_ending() {
    let Some(site) = Site::if_fuse() else { return };
    for number in 0..3 {
        site.mount().ok();
        fs::write(site.mnt.join(number.to_string()), vec![number; 3 << 20]).unwrap();
        let deadline = Instant::now() + END_TIMEOUT;
        // The kernel may still release the file.
        while let Err(error) = dedupfs_fuse::unmount_path(&site.mnt) {
            assert!(Instant::now() < deadline, "{error}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    site.mount().ok();
    assert_eq!(fs::read_dir(&site.mnt).unwrap().count(), 3);
    // One that serves is not waited for.
    let begun = Instant::now();
    let other = site.root.path().join("other");
    fs::create_dir(&other).unwrap();
    site.dedupfs("mount", &[&site.pool, &other]).expect(4, &["in use"]);
    assert!(begun.elapsed() < Duration::from_secs(20));
    site.umount().ok();
}

/// A daemon listens until it has noticed that its mount is gone, here for as long as a file is open.
#[test]
fn regression_a_mount_waits_for_a_daemon_that_still_listens() {
    let Some(site) = Site::if_fuse() else { return };
    site.mount().ok();
    let open = fs::File::create(site.mnt.join("file")).unwrap();
    assert!(Command::new("umount").arg("-l").arg(&site.mnt).status().unwrap().success());
    site.dedupfs("umount", &[&site.pool]).expect(8, &["detached while files are open", "SIGTERM"]);
    let mut command = Command::new(DEDUPFS);
    let mut again = command.arg("mount").arg(&site.pool).arg(&site.mnt).stdin(Stdio::null()).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(again.try_wait().unwrap(), None, "it did not wait");
    drop(open);
    assert_eq!(end_of(&mut again), Some(0));
    assert!(site.mnt.join("file").exists());
    site.umount().ok();
}

/// A daemon that is stopped, and goes on when the test ends in whatever way.
struct Stopped(Pid);

impl Stopped {
    fn new(daemon: Pid) -> Self {
        kill_process(daemon, Signal::STOP).unwrap();
        let stopped = Self(daemon);
        // A thread that is stopped with a request in its hands would keep whoever asked from ending, even when killed.
        let begun = Instant::now();
        while !stopped.is_whole() {
            assert!(begun.elapsed() < END_TIMEOUT, "the daemon does not stop");
            std::thread::sleep(Duration::from_millis(5));
        }
        stopped
    }

    /// Whether all its threads are stopped.
    fn is_whole(&self) -> bool {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.0.as_raw_nonzero())).unwrap();
        tasks.flatten().all(|task| {
            let status = fs::read_to_string(task.path().join("status")).unwrap_or_default();
            status.lines().any(|line| line.starts_with("State:") && line.contains("T (stopped)"))
        })
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = kill_process(self.0, Signal::CONT);
    }
}

/// A tool that waits for a daemon that does not answer looked as if it hung itself.
#[test]
fn regression_who_waits_for_a_daemon_that_does_not_answer_is_told() {
    let Some(site) = Site::if_fuse() else { return };
    site.mount().ok();
    fs::write(site.mnt.join("file"), "kept").unwrap();
    let other = site.root.path().join("other");
    fs::create_dir(&other).unwrap();
    let stopped = Stopped::new(site.daemon());
    let waiting: Vec<(PathBuf, Child)> = [(STATS, &[][..], &site.pool), (DEDUPFS, &["sync"], &site.mnt)]
        .into_iter()
        .enumerate()
        .map(|(number, (program, args, target))| {
            let said = site.root.path().join(format!("said{number}"));
            let mut command = Command::new(program);
            command.args(args).arg(target).stdin(Stdio::null()).stdout(Stdio::null());
            (said.clone(), command.stderr(fs::File::create(said).unwrap()).spawn().unwrap())
        })
        .collect();
    // Nothing can be mounted twice, whatever the daemon says.
    let begun = Instant::now();
    site.dedupfs("mount", &[&site.pool, &other]).expect(4, &["in use"]);
    assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
    let process = format!("process {} (dedupfs mount on {})", site.daemon().as_raw_nonzero(), site.mnt.display());
    let mut waiting = waiting;
    for (said, child) in &mut waiting {
        let deadline = Instant::now() + END_TIMEOUT;
        while !fs::read_to_string(&*said).unwrap().contains(&process) {
            assert!(Instant::now() < deadline, "{} is not told: {:?}", said.display(), fs::read_to_string(&*said));
            std::thread::sleep(Duration::from_millis(50));
        }
        assert_eq!(child.try_wait().unwrap(), None, "it did not go on waiting");
    }
    drop(stopped);
    for (said, child) in &mut waiting {
        assert_eq!(end_of(child), Some(0));
        assert_eq!(fs::read_to_string(&*said).unwrap().lines().count(), 1);
    }
    site.umount().ok();
}

/// The copy has no daemon that could be waited for.
#[test]
fn regression_the_copy_of_a_mounted_meta_root_is_in_use_soon() {
    let Some(site) = Site::if_fuse() else { return };
    let root = site.root.path().canonicalize().unwrap();
    let (pool, data, copy, other) = (root.join("meta"), root.join("data"), root.join("copy"), root.join("other"));
    run(DEDUPFS, &["mkfs".as_ref(), "--data".as_ref(), data.as_os_str(), pool.as_os_str()]).ok();
    fs::create_dir(&other).unwrap();
    site.dedupfs("mount", &[&pool, &site.mnt]).ok();
    assert!(Command::new("cp").arg("-a").args([&pool, &copy]).status().unwrap().success());
    let begun = Instant::now();
    site.dedupfs("mount", &[&copy, &other]).expect(4, &["data"]);
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    site.umount().ok();
}

/// The options of the daemon stay; and what a read-only mount refuses is no mistake of the command line.
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

/// An error where it is read is late to learn of it.
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

/// What `recover` leaves when it ends early is no pool, and not to be formatted.
#[test]
fn regression_what_an_interrupted_recover_leaves_says_to_run_it_again() {
    let Some(site) = Site::if_fuse() else { return };
    // The pool has an export then.
    site.mount().ok();
    site.umount().ok();
    let left = site.root.path().join("left");
    fs::create_dir_all(left.join(dedupfs::pool::RECOVERY_STAGE)).unwrap();
    site.dedupfs("mount", &[&left, &site.mnt]).expect(3, &["interrupted", "Run the same command again"]);
    run(STATS, &[&left]).expect(3, &["dedupfs recover"]);
    run(DEDUPFS, &["recover".as_ref(), "--data".as_ref(), site.pool.as_os_str(), "--force".as_ref(), left.as_os_str()])
        .ok();
    run(STATS, &[&left]).ok();
}

/// `recover --force POOL` is what messages say: it finds a data root of its own.
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
    // There is no export yet, but that is said of the right directory.
    let said = recover(&[Path::new("--force"), &pool]);
    assert!(said.err.contains(data.to_str().unwrap()) || said.code == 0, "{}", said.err);
    // A superblock that cannot be read names nothing.
    let superblock = pool.join("dedupfs.meta");
    let sound = fs::read(&superblock).unwrap();
    fs::write(&superblock, &sound[..50]).unwrap();
    recover(&[Path::new("--force"), &pool]).expect(3, &["dedupfs recover --data DIR"]);
}

/// Whoever is sent to fsck must find the way on there; and what is caught says nothing by itself.
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

/// What another process does with a pool that is not mounted is told, and how it ends.
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
