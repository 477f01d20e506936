//! Disks that others filled to the last byte or file before the pool is mounted, and destinations that are full.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::Path;

use crate::command::{DEDUPFS, Tool};
use crate::disk::{Disk, Filesystem};
use crate::machine::is_fit;
use crate::random::noise;
use crate::site::Site;

/// The smallest disk that mkfs.xfs formats.
const DISK_BYTES: u64 = 300 << 20;
/// More than fit on such a disk.
const FILES_MAX: u32 = 2_000_000;
/// A filesystem may keep some space for later removals, so one refusal does not mean that the disk is full.
const REFUSALS: u32 = 20;

/// Fills a disk until it takes neither a byte nor a file.
fn fill(directory: &Path, filler: &[u8]) {
    fs::create_dir(directory).unwrap();
    let mut file = File::create(directory.join("large")).unwrap();
    let mut piece = filler.len();
    while piece >= 512 {
        if file.write_all(&filler[..piece]).and_then(|()| file.sync_data()).is_err() {
            piece /= 4;
        }
    }
    let mut refusals = 0;
    for number in 0..FILES_MAX {
        // Short enough to lie beside its name, where filesystems do that.
        let made: io::Result<()> = fs::write(directory.join(number.to_string()), &filler[..1500]);
        refusals = if made.is_err() { refusals + 1 } else { 0 };
        if refusals == REFUSALS {
            rustix::fs::syncfs(File::open(directory).unwrap()).ok();
            return;
        }
    }
    unreachable!("the disk is never full");
}

#[track_caller]
fn a_full_disk_mounts_for_reading(filesystem: Filesystem) {
    if !is_fit() {
        return;
    }
    let disk = Disk::of(filesystem, DISK_BYTES);
    let site = Site::with(|_| (disk.mountpoint.join("pool"), disk.mountpoint.join("pool")));
    site.mount();
    fs::write(site.mnt.join("kept"), noise(1, 3 << 20)).unwrap();
    site.umount();
    // A mount for writing would have to make the lock anew.
    fs::remove_file(site.pool.join("lock")).unwrap();
    let others = disk.mountpoint.join("others");
    fill(&others, &noise(2, 8 << 20));

    site.mount_with("ro");
    assert!(fs::read(site.mnt.join("kept")).unwrap() == noise(1, 3 << 20));
    // Tools find the daemon all the same.
    assert_eq!(site.stats().files, 1);
    let other = site.base.join("other");
    fs::create_dir(&other).unwrap();
    Tool::new(DEDUPFS).args(["mount", "-o", "ro"]).args([&site.pool, &other]).run().expect(4, &["is in use by"]);
    Tool::new(DEDUPFS).arg("umount").arg(&site.mnt).ok();
    assert!(!site.is_mounted());
    // A mount for writing fails with advice.
    site.try_mount().expect(5, &["free", "MiB", "-o ro"]);
    assert!(!site.is_mounted());

    fs::remove_dir_all(&others).unwrap();
    site.mount();
    assert!(fs::read(site.mnt.join("kept")).unwrap() == noise(1, 3 << 20));
    fs::write(site.mnt.join("new"), noise(3, 1 << 20)).unwrap();
    site.umount();
    site.assert_clean();
}

#[test]
fn regression_a_full_xfs_mounts_for_reading() {
    a_full_disk_mounts_for_reading(Filesystem::Xfs);
}

#[test]
fn regression_a_full_btrfs_mounts_for_reading() {
    a_full_disk_mounts_for_reading(Filesystem::Btrfs);
}

#[test]
fn regression_a_disk_without_inodes_mounts_for_reading() {
    a_full_disk_mounts_for_reading(Filesystem::Tmpfs(300));
}

#[test]
fn regression_get_into_a_full_destination_is_a_lack_of_space() {
    let Some(site) = Site::mounted_if_fit() else { return };
    fs::write(site.mnt.join("large"), noise(1, 4 << 20)).unwrap();
    let small = Disk::of(Filesystem::Tmpfs(100), 1 << 20);
    let to = small.mountpoint.join("large");
    let ran = Tool::new(DEDUPFS).arg("get").args([&site.mnt.join("large"), &to]).run();
    ran.expect(5, &["No space left on device"]);
}
