//! A service mounted for one test. Whatever happens to the test, it is unmounted.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use std::time::Duration;

use dedupfs_fuse::{MountOptions, MountedSession, mount};
use dedupfs_service::FileService;
use dedupfs_service::{MemoryOptions, MemoryService};

pub struct Mounted {
    pub service: Arc<MemoryService>,
    pub session: MountedSession,
    // Dropped after the session, so the mountpoint is removed when nothing is on it any more.
    _directory: tempfile::TempDir,
}

impl Mounted {
    pub fn new() -> Self {
        Self::with(MemoryOptions::default(), MountOptions { allow_other: true, ..MountOptions::default() })
    }

    pub fn with(memory: MemoryOptions, options: MountOptions) -> Self {
        let directory = tempfile::tempdir().expect("a directory to mount on");
        let service = Arc::new(MemoryService::with_options(memory));
        let shared: Arc<dyn FileService> = Arc::clone(&service) as _;
        let session = mount(shared, directory.path(), &options)
            .unwrap_or_else(|error| panic!("these tests need a working /dev/fuse: {error}"));
        Self { service, session, _directory: directory }
    }

    pub fn path(&self, name: impl AsRef<OsStr>) -> PathBuf {
        self.session.mountpoint().join(name.as_ref())
    }

    pub fn unmount(&self) {
        self.session.unmount(Duration::from_secs(5)).expect("unmount");
    }
}

/// Runs a tool that must be there and must succeed.
#[track_caller]
pub fn run(directory: &Path, command: &str) -> String {
    let output = attempt(directory, command);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "`{command}`: {}\n{said}\n{complained}", output.status);
    said
}

/// Runs a shell command; stops at its first failure, missing tools included.
#[track_caller]
pub fn attempt(directory: &Path, command: &str) -> Output {
    let mut shell = Command::new("bash");
    shell.args(["-euo", "pipefail", "-c", command]).current_dir(directory).env("LC_ALL", "C");
    shell.output().expect("bash")
}
