//! Disks that tests may fill and break.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::command::Tool;

/// The filesystem of a disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Filesystem {
    Ext4,
    Xfs,
    Btrfs,
    /// In memory, with this many files at most.
    Tmpfs(u32),
}

/// A small filesystem in a file, mounted by a loop device that goes with the mount.
pub struct Disk {
    directory: tempfile::TempDir,
    image: PathBuf,
    filesystem: Filesystem,
    disk_bytes: u64,
    /// The mountpoint, empty at first.
    pub mountpoint: PathBuf,
}

impl Disk {
    /// Makes and mounts a new ext4 in a file of `disk_bytes`.
    #[track_caller]
    pub fn new(disk_bytes: u64) -> Self {
        Self::of(Filesystem::Ext4, disk_bytes)
    }

    /// Makes and mounts a new filesystem of `disk_bytes`.
    #[track_caller]
    pub fn of(filesystem: Filesystem, disk_bytes: u64) -> Self {
        let directory = tempfile::Builder::new().prefix("dedupfs-disk-").tempdir().unwrap();
        let (image, mountpoint) = (directory.path().join("image"), directory.path().join("mounted"));
        File::create(&image).unwrap().set_len(disk_bytes).unwrap();
        fs::create_dir(&mountpoint).unwrap();
        let disk = Self { directory, image, filesystem, disk_bytes, mountpoint };
        match filesystem {
            Filesystem::Ext4 => drop(Tool::new("mkfs.ext4").args(["-q", "-F", "-m", "0"]).arg(&disk.image).ok()),
            Filesystem::Xfs => drop(Tool::new("mkfs.xfs").args(["-q", "-f"]).arg(&disk.image).ok()),
            Filesystem::Btrfs => drop(Tool::new("mkfs.btrfs").args(["-q", "-f"]).arg(&disk.image).ok()),
            Filesystem::Tmpfs(_) => {}
        }
        disk.mount();
        if filesystem == Filesystem::Ext4 {
            fs::remove_dir(disk.mountpoint.join("lost+found")).unwrap();
        }
        disk
    }

    #[track_caller]
    fn mount(&self) {
        match self.filesystem {
            Filesystem::Ext4 => {
                Tool::new("mount").args(["-o", "loop,errors=remount-ro"]).args([&self.image, &self.mountpoint]).ok()
            }
            Filesystem::Xfs | Filesystem::Btrfs => {
                Tool::new("mount").args(["-o", "loop"]).args([&self.image, &self.mountpoint]).ok()
            }
            Filesystem::Tmpfs(files) => {
                let options = format!("size={},nr_inodes={files}", self.disk_bytes);
                Tool::new("mount").args(["-t", "tmpfs", "-o", &options, "tmpfs"]).arg(&self.mountpoint).ok()
            }
        };
    }

    /// Makes the filesystem meet an error after which it refuses all writes, as ext4 does when its disk fails.
    #[track_caller]
    pub fn fail(&self) {
        let found = Tool::new("findmnt").args(["-n", "-o", "SOURCE"]).arg(&self.mountpoint).ok().text();
        let device = Path::new(found.trim()).file_name().unwrap().to_owned();
        fs::write(Path::new("/sys/fs/ext4").join(device).join("trigger_fs_error"), "1").unwrap();
    }

    /// Makes an XFS meet an error after which it answers only EIO until it is mounted again.
    #[track_caller]
    pub fn shut_down(&self) {
        Tool::new("xfs_io").args(["-x", "-c", "shutdown"]).arg(&self.mountpoint).ok();
    }

    /// Unmounts the disk and mounts it again, without a repair.
    #[track_caller]
    pub fn mount_again(&self) {
        Tool::new("umount").arg(&self.mountpoint).ok();
        // Mount namespaces of other tests began with a copy of this mount: until they end the filesystem stays as it
        // was.
        let deadline = Instant::now() + Duration::from_secs(120);
        while !Tool::new("losetup").arg("-j").arg(&self.image).ok().text().is_empty() {
            assert!(Instant::now() < deadline, "another mount namespace keeps the disk");
            std::thread::sleep(Duration::from_millis(50));
        }
        self.mount();
    }

    /// Unmounts the disk, repairs it and mounts it again.
    #[track_caller]
    pub fn repair(&self) {
        Tool::new("umount").arg(&self.mountpoint).ok();
        // Exit code 1 means that errors were repaired.
        let repaired = Tool::new("e2fsck").arg("-p").arg(&self.image).run();
        assert!(repaired.code <= 1, "{}", repaired.said());
        self.mount();
    }

    /// Returns the free bytes of the filesystem.
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
