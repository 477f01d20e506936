//! Disks that tests may fill and break.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::command::Tool;

/// A small ext4 in a file, mounted by a loop device that goes with the mount.
pub struct Disk {
    directory: tempfile::TempDir,
    image: PathBuf,
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
        let disk = Self { directory, image, mountpoint };
        disk.mount();
        fs::remove_dir(disk.mountpoint.join("lost+found")).unwrap();
        disk
    }

    #[track_caller]
    fn mount(&self) {
        Tool::new("mount").args(["-o", "loop,errors=remount-ro"]).args([&self.image, &self.mountpoint]).ok();
    }

    /// The filesystem meets an error and lets nothing be written any more, as ext4 does when its disk fails.
    #[track_caller]
    pub fn fail(&self) {
        let found = Tool::new("findmnt").args(["-n", "-o", "SOURCE"]).arg(&self.mountpoint).ok().text();
        let device = Path::new(found.trim()).file_name().unwrap().to_owned();
        fs::write(Path::new("/sys/fs/ext4").join(device).join("trigger_fs_error"), "1").unwrap();
    }

    /// Takes the disk away and mounts it again.
    #[track_caller]
    pub fn repair(&self) {
        Tool::new("umount").arg(&self.mountpoint).ok();
        // What it repairs is no failure: 1.
        let repaired = Tool::new("e2fsck").arg("-p").arg(&self.image).run();
        assert!(repaired.code <= 1, "{}", repaired.said());
        self.mount();
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
