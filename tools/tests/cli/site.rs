//! Helpers that run the programs, and a pool with a mountpoint.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Pid;

pub const DEDUPFS: &str = env!("CARGO_BIN_EXE_dedupfs");
pub const STATS: &str = env!("CARGO_BIN_EXE_dedupfs-stats");
pub const GC: &str = env!("CARGO_BIN_EXE_dedupfs-gc");
pub const END_TIMEOUT: Duration = Duration::from_secs(30);

/// The result of a program.
pub struct Ran {
    pub line: String,
    pub code: i32,
    pub out: String,
    pub err: String,
}

impl Ran {
    #[track_caller]
    pub fn expect(self, code: i32, words: &[&str]) -> Self {
        let said = format!("{}{}", self.out, self.err);
        assert_eq!(self.code, code, "{} said: {said}", self.line);
        for word in words {
            assert!(said.contains(word), "{} does not say {word:?}: {said}", self.line);
        }
        self
    }

    #[track_caller]
    pub fn ok(self) -> Self {
        self.expect(0, &[])
    }
}

pub fn run<S: AsRef<std::ffi::OsStr>>(program: &str, args: &[S]) -> Ran {
    let mut command = Command::new(program);
    output_of(command.args(args).stdin(Stdio::null()))
}

/// Runs a command to its end.
pub fn output_of(command: &mut Command) -> Ran {
    let line = format!("{command:?}");
    let Output { status, stdout, stderr } = command.output().unwrap();
    Ran {
        line,
        code: status.code().unwrap(),
        out: String::from_utf8(stdout).unwrap(),
        err: String::from_utf8(stderr).unwrap(),
    }
}

/// A formatted pool and a mountpoint in a directory of their own. Unmounts when dropped, whether the test passed or
/// failed.
pub struct Site {
    pub root: tempfile::TempDir,
    pub pool: PathBuf,
    pub mnt: PathBuf,
}

impl Site {
    pub fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let real = root.path().canonicalize().unwrap();
        // Both need escaping in /proc/self/mountinfo.
        let (pool, mnt) = (real.join("the pool"), real.join("mnt\\ x"));
        fs::create_dir(&mnt).unwrap();
        run(DEDUPFS, &["mkfs".as_ref(), pool.as_os_str()]).ok();
        Self { root, pool, mnt }
    }

    /// Returns a site if this test can mount.
    pub fn if_fuse() -> Option<Self> {
        has_fuse().then(Self::new)
    }

    pub fn dedupfs(&self, command: &str, paths: &[&Path]) -> Ran {
        let mut args = vec![command.as_ref()];
        args.extend(paths.iter().map(|path| path.as_os_str()));
        run(DEDUPFS, &args)
    }

    pub fn mount(&self) -> Ran {
        self.dedupfs("mount", &[&self.pool, &self.mnt])
    }

    pub fn umount(&self) -> Ran {
        self.dedupfs("umount", &[&self.mnt])
    }

    pub fn is_mounted(&self) -> bool {
        dedupfs_tools::options_of_mount(&self.mnt).unwrap().is_some()
    }

    pub fn daemon(&self) -> Pid {
        let note = fs::read_to_string(self.pool.join("lock")).unwrap();
        Pid::from_raw(note.split(' ').next().unwrap().parse().unwrap()).unwrap()
    }

    /// Waits until no process has the pool.
    #[track_caller]
    pub fn wait_until_free(&self) {
        let deadline = Instant::now() + END_TIMEOUT;
        while !self.is_free() {
            assert!(Instant::now() < deadline, "the daemon does not end");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    pub fn is_free(&self) -> bool {
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
pub fn has_fuse() -> bool {
    let has_it = fs::File::options().read(true).write(true).open("/dev/fuse").is_ok();
    assert!(has_it || std::env::var_os("DEDUPFS_REQUIRE_FUSE").is_none(), "no /dev/fuse");
    if !has_it {
        eprintln!("left out: no /dev/fuse");
    }
    has_it
}

/// Starts a daemon in the foreground and waits until its mount serves.
pub fn foreground(site: &Site) -> Child {
    let mut command = Command::new(DEDUPFS);
    command.args(["mount", "--foreground"]).arg(&site.pool).arg(&site.mnt).stdin(Stdio::null());
    let mut child = command.stderr(Stdio::null()).spawn().unwrap();
    let deadline = Instant::now() + END_TIMEOUT;
    // The socket is there before the mount.
    while !site.pool.join("control.sock").exists() {
        assert_eq!(child.try_wait().unwrap(), None, "the daemon ended");
        assert!(Instant::now() < deadline, "the daemon does not mount");
        std::thread::sleep(Duration::from_millis(10));
    }
    // A tool is answered when the mount serves.
    site.dedupfs("sync", &[&site.pool]).ok();
    child
}

/// Returns the exit code of a process that is about to end.
#[track_caller]
pub fn end_of(child: &mut Child) -> Option<i32> {
    let deadline = Instant::now() + END_TIMEOUT;
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status.code();
        }
        assert!(Instant::now() < deadline, "the process does not end");
        std::thread::sleep(Duration::from_millis(10));
    }
}
