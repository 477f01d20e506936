//! The disk under the pool is full: an error at the write that does not fit, nothing lost, and a way out.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::Path;
use std::time::Duration;

use crate::command::{DEDUPFS, Tool};
use crate::compare::assert_same_file;
use crate::disk::Disk;
use crate::machine::is_fit;
use crate::random::noise;
use crate::site::Site;

const DISK_BYTES: u64 = 200 << 20;
const TOO_MUCH_BYTES: usize = 260 << 20;

fn is_full(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::StorageFull
}

/// Writes files of `len` bytes, synced now and then, until one does not fit; returns how many were synced.
#[track_caller]
fn fill(directory: &Path, seed: u64, len: usize) -> u64 {
    for number in 0.. {
        let write = || -> io::Result<()> {
            let mut file = File::create_new(directory.join(number.to_string()))?;
            file.write_all(&noise(seed + number, len))?;
            // Syncs every eighth file: the error then comes at a write or at the sync.
            if number % 8 == 7 { file.sync_all() } else { Ok(()) }
        };
        if let Err(error) = write() {
            assert!(is_full(&error), "file {number}: {error}");
            return number - number % 8;
        }
    }
    unreachable!("the disk is never full");
}

#[track_caller]
fn assert_filled(directory: &Path, seed: u64, len: usize, count: u64) {
    for number in 0..count {
        let path = directory.join(number.to_string());
        assert!(
            fs::read(&path).unwrap() == noise(seed + number, len),
            "{} was synced and is other now",
            path.display()
        );
    }
}

#[test]
fn a_full_disk_is_an_error_and_there_is_a_way_out() {
    if !is_fit() {
        return;
    }
    let disk = Disk::new(DISK_BYTES);
    let site = Site::with(|_| (disk.mountpoint.join("pool"), disk.mountpoint.join("pool")));
    site.mount();
    let kept = site.mnt.join("kept");
    let mut file = File::create(&kept).unwrap();
    file.write_all(&noise(1, 5 << 20)).unwrap();
    file.sync_all().unwrap();
    drop(file);

    // cp of a file that is too large.
    let source = site.base.join("source");
    fs::write(&source, noise(2, TOO_MUCH_BYTES)).unwrap();
    Tool::new("cp").args([&source, &site.mnt.join("too much")]).run().expect(1, &["No space left on device"]);
    assert!(disk.free_bytes() > 0, "no reserve is left for deleting");
    assert!(fs::read(&kept).unwrap() == noise(1, 5 << 20));
    site.sync();
    let space = rustix::fs::statvfs(&site.mnt).unwrap();
    assert!(space.f_bavail * space.f_frsize < 8 << 20, "df shows {} blocks for a full pool", space.f_bavail);
    // A duplicate needs room until it is recognized, so it may be refused, but not half written.
    if let Ok(copied) = fs::copy(&kept, site.mnt.join("duplicate")) {
        assert_eq!(copied, 5 << 20);
    }
    // Nothing is broken so far: the pool can be unmounted, mounted and checked.
    site.remount();
    assert!(fs::read(&kept).unwrap() == noise(1, 5 << 20));

    make_room(&site, &disk, &["too much"]);
    // Many synced files until it is full again.
    let (files, small) = (site.mnt.join("files"), site.mnt.join("small"));
    [&files, &small].iter().for_each(|directory| fs::create_dir(directory).unwrap());
    let count = fill(&files, 1000, 300_000);
    assert!(count > 200, "only {count} files of 300,000 bytes fit on an empty disk");
    assert_filled(&files, 1000, 300_000, count);
    site.remount();
    assert_filled(&files, 1000, 300_000, count);
    // A killed daemon also recovers on a full disk.
    let small_count = fill(&small, 2000, 4000);
    // Where not even the directory fits that put begins with, its exit code still tells a full disk.
    let put = Tool::new(DEDUPFS).arg("put").args([&source, &site.mnt.join("put")]).run();
    put.expect(5, &["o space left"]);
    site.kill_daemon();
    site.mount();
    assert_filled(&files, 1000, 300_000, count);
    assert_filled(&small, 2000, 4000, small_count);

    make_room(&site, &disk, &["files", "small"]);
    let copy = site.mnt.join("copy");
    fs::write(&source, noise(3, 40 << 20)).unwrap();
    Tool::new("cp").args([&source, &copy]).ok();
    File::open(&copy).unwrap().sync_all().unwrap();
    site.remount();
    assert_same_file(&source, &copy);
    assert!(fs::read(&kept).unwrap() == noise(1, 5 << 20));
    site.umount();
    site.assert_clean();
}

/// Checks that deleting and reclaiming work on the full disk, and that they give back the deleted bytes.
#[track_caller]
fn make_room(site: &Site, disk: &Disk, names: &[&str]) {
    let before_bytes = disk.free_bytes();
    for name in names {
        Tool::new("rm").arg("-r").arg(site.mnt.join(name)).ok();
    }
    let mut free_bytes = before_bytes;
    for _ in 0..20 {
        site.gc();
        free_bytes = disk.free_bytes();
        if free_bytes > DISK_BYTES / 2 {
            return;
        }
        // The kernel forgets deleted files a moment later.
        std::thread::sleep(Duration::from_millis(100));
    }
    panic!("{free_bytes} bytes are free after deleting {names:?}, {before_bytes} were before");
}
