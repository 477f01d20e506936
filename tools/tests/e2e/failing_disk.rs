//! The filesystem under the pool turns read-only beneath the daemon, as ext4 does when its disk fails.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;

use rustix::io::Errno;

use crate::command::{DEDUPFS, STATS, Tool};
use crate::disk::Disk;
use crate::machine::is_fit;
use crate::random::noise;
use crate::site::Site;

const DISK_BYTES: u64 = 200 << 20;

fn write(path: &Path, bytes: &[u8]) -> File {
    let mut file = File::create(path).unwrap();
    file.write_all(bytes).unwrap();
    file
}

#[test]
fn a_disk_that_turns_read_only_is_told_and_costs_nothing_that_was_synced() {
    if !is_fit() {
        return;
    }
    let disk = Disk::new(DISK_BYTES);
    let site = Site::with(|_| (disk.mountpoint.join("pool"), disk.mountpoint.join("pool")));
    // The failing disk could not take the log.
    let log = site.base.join("log");
    let mount = || Tool::new(DEDUPFS).args(["mount", "--log-file"]).args([&log, &site.pool, &site.mnt]).ok();
    mount();
    let (kept, kept_bytes) = (site.mnt.join("kept"), noise(1, 5 << 20));
    write(&kept, &kept_bytes).sync_all().unwrap();
    let (small, small_bytes) = (site.mnt.join("small"), noise(2, 3000));
    write(&small, &small_bytes).sync_all().unwrap();
    // Written, and not synced when the disk fails.
    let mut open = write(&site.mnt.join("open"), &noise(3, 2 << 20));

    disk.fail();
    let error = open.sync_all().unwrap_err();
    assert!(matches!(Errno::from_io_error(&error), Some(Errno::IO | Errno::ROFS)), "{error}");
    // From now on the mount is read-only.
    let error = open.write_all(b"more").unwrap_err();
    assert_eq!(Errno::from_io_error(&error), Some(Errno::ROFS), "{error}");
    assert!(open.sync_all().is_err(), "a sync succeeds after one that failed");
    drop(open);
    let error = File::create(site.mnt.join("new")).unwrap_err();
    assert_eq!(Errno::from_io_error(&error), Some(Errno::ROFS), "{error}");
    let error = fs::remove_file(&small).unwrap_err();
    assert_eq!(Errno::from_io_error(&error), Some(Errno::ROFS), "{error}");
    // Reading goes on.
    assert!(fs::read(&kept).unwrap() == kept_bytes);
    assert!(fs::read(&small).unwrap() == small_bytes);
    assert_eq!(fs::read_dir(&site.mnt).unwrap().count(), 3);
    // The log and the tools give the reason.
    let said = fs::read_to_string(&log).unwrap();
    assert!(said.contains("the pool is read-only from now on") && said.contains("Read-only file system"), "{said}");
    let asked = Tool::new(STATS).arg(&site.pool).run();
    assert!(asked.code != 0 && asked.err.contains("Read-only file system"), "{}", asked.said());

    let ended = Tool::new(DEDUPFS).arg("umount").arg(&site.mnt).run();
    assert!(ended.code != 0 && !site.is_mounted(), "{}", ended.said());
    disk.repair();
    mount();
    assert!(fs::read(&kept).unwrap() == kept_bytes);
    assert!(fs::read(&small).unwrap() == small_bytes);
    write(&site.mnt.join("new"), &kept_bytes).sync_all().unwrap();
    site.umount();
    site.assert_clean();
}
