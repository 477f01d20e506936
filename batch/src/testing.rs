//! A machine for tests: a real qemu with a disk and no guest. Its monitor writes to the disk.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::json;

use crate::source::Monitor;

/// Length of the disk.
pub const DISK_BYTES: u64 = 16 << 20;

/// A running qemu. It is killed in the end.
#[derive(Debug)]
pub struct Machine {
    directory: tempfile::TempDir,
    qemu: Child,
    format: &'static str,
}

impl Machine {
    /// Starts a machine with a new disk of the block node `drive0`, unless qemu is missing.
    ///
    /// # Panics
    /// qemu does not start.
    #[must_use]
    pub fn if_qemu(format: &'static str) -> Option<Self> {
        // Others may not enter a directory for scratch files.
        let closed = std::os::unix::fs::PermissionsExt::from_mode(0o700);
        let directory = tempfile::Builder::new().permissions(closed).tempdir().expect("makes");
        let disk = directory.path().join("disk");
        let made = Command::new("qemu-img")
            .args(["create", "-q", "-f", format])
            .args([disk.as_os_str(), DISK_BYTES.to_string().as_ref()])
            .status();
        if made.is_err() || Command::new("qemu-system-x86_64").arg("--version").stdout(Stdio::null()).status().is_err()
        {
            assert!(std::env::var_os("DEDUPFS_REQUIRE_QEMU").is_none(), "qemu-img or qemu-system-x86_64 is missing");
            eprintln!("NOT RUN: qemu-img or qemu-system-x86_64 is missing");
            return None;
        }
        let qemu = Self::start(&directory, format);
        Some(Self { directory, qemu, format })
    }

    fn start(directory: &tempfile::TempDir, format: &str) -> Child {
        let path = |name: &str| directory.path().join(name).display().to_string();
        let child = Command::new("qemu-system-x86_64")
            // Its processor stands still: the test alone writes.
            .args(["-machine", "q35", "-m", "32", "-S", "-nodefaults", "-display", "none"])
            .args(["-blockdev", &format!("driver=file,node-name=file0,filename={}", path("disk"))])
            .args(["-blockdev", &format!("driver={format},node-name=drive0,file=file0")])
            .args(["-device", "virtio-blk-pci,id=disk0,drive=drive0"])
            .args(["-qmp", &format!("unix:{},server=on,wait=off", path("qmp"))])
            .args(["-qmp", &format!("unix:{},server=on,wait=off", path("guest"))])
            .spawn()
            .expect("starts");
        let begun = std::time::Instant::now();
        while std::os::unix::net::UnixStream::connect(path("guest")).is_err() {
            assert!(begun.elapsed().as_secs() < 30, "qemu does not listen");
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        child
    }

    /// Kills qemu, and starts it with the same disk.
    ///
    /// # Panics
    /// qemu does not start.
    pub fn kill_and_start(&mut self) {
        self.qemu.kill().expect("is killed");
        self.qemu.wait().expect("ends");
        self.qemu = Self::start(&self.directory, self.format);
    }

    /// The socket of its monitor.
    #[must_use]
    pub fn monitor(&self) -> PathBuf {
        self.directory.path().join("qmp")
    }

    /// The directory with its disk.
    #[must_use]
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// A second monitor, for the guest.
    pub(crate) fn guest(&self) -> Monitor {
        Monitor::connect(&self.directory.path().join("guest")).expect("connects")
    }

    /// Ends qemu in order, and starts it with the same disk.
    ///
    /// # Panics
    /// qemu does not start.
    pub fn quit_and_start(&mut self) {
        self.guest().ask("quit", &json!({})).expect("quits");
        self.qemu.wait().expect("ends");
        self.qemu = Self::start(&self.directory, self.format);
    }

    /// Writes as the guest would.
    ///
    /// # Panics
    /// The disk is not writable.
    pub fn write(&self, pattern: u8, offset: u64, len_bytes: u64) {
        let line = format!(
            "qemu-io -d /machine/peripheral/disk0/virtio-backend \"write -f -P {pattern} {offset} {len_bytes}\""
        );
        let answer = self.guest().ask("human-monitor-command", &json!({ "command-line": line })).expect("writes");
        assert_eq!(answer, "", "the disk is not writable");
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = self.qemu.kill();
        let _ = self.qemu.wait();
    }
}
