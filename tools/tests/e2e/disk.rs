//! A disk of a chosen size: a filesystem in a file.

use std::fs::{self, File};
use std::path::PathBuf;
use std::time::Duration;

use crate::command::Tool;

/// A small ext4 in a file, mounted by a loop device that goes with the mount.
pub struct Disk {
    directory: tempfile::TempDir,
    /// Where it is mounted: empty at first.
    pub mountpoint: PathBuf,
}

impl Disk {
    /// A new filesystem in a file of `disk_bytes`, mounted.
    #[track_caller]
    pub fn new(disk_bytes: u64) -> Self {
        let directory = tempfile::Builder::new().prefix("dedupfs-disk-").tempdir().unwrap();
        let (image, mountpoint) = (directory.path().join("image"), directory.path().join("mounted"));
        File::create(&image).unwrap().set_len(disk_bytes).unwrap();
        fs::create_dir(&mountpoint).unwrap();
        Tool::new("mkfs.ext4").args(["-q", "-F", "-m", "0"]).arg(&image).ok();
        Tool::new("mount").args(["-o", "loop"]).args([&image, &mountpoint]).ok();
        let disk = Self { directory, mountpoint };
        fs::remove_dir(disk.mountpoint.join("lost+found")).unwrap();
        disk
    }

    /// What its filesystem has left.
    pub fn free_bytes(&self) -> u64 {
        let space = rustix::fs::statvfs(&self.mountpoint).unwrap();
        space.f_bavail * space.f_frsize
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let umount = |options: &[&str]| {
            let ran = Tool::new("umount").args(options).arg(&self.mountpoint).limit(Duration::from_secs(30)).try_run();
            ran.is_ok_and(|ran| ran.code == 0)
        };
        if !umount(&[]) && !umount(&["-l"]) {
            eprintln!("{} could not be unmounted", self.directory.path().display());
        }
    }
}
