//! Times of last access on a real mount: relatime, noatime, read-only.

use std::fs::{self, File};
use std::io::Read as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;

use crate::command::Tool;
use crate::site::Site;

fn atime(path: &Path) -> (i64, i64) {
    let metadata = fs::symlink_metadata(path).unwrap();
    (metadata.atime(), metadata.atime_nsec())
}

/// Sets the time of last access to the past. That itself changes attributes now.
fn age(path: &Path) -> (i64, i64) {
    Tool::new("touch").args(["-h", "-a", "-d", "-90 minutes"]).arg(path).ok();
    atime(path)
}

#[test]
fn reading_changes_the_time_as_relatime_says() {
    let Some(site) = Site::mounted_if_fit() else { return };
    let path = site.mnt.join("file");
    // Through the kernel's page cache, so that it could answer the read.
    let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    file.write_all_at(&[7; 100_000], 0).unwrap();
    drop(file);
    let read = || File::open(&path).unwrap().read_to_end(&mut Vec::new()).unwrap();
    let before = age(&path);
    read();
    let after = atime(&path);
    assert!(after > before, "{after:?}");
    for _ in 0..3 {
        read();
        assert_eq!(atime(&path), after, "once is enough");
    }
    fs::write(&path, "changed").unwrap();
    read();
    assert!(atime(&path) > after);
    let after = atime(&path);

    let (directory, link) = (site.mnt.join("directory"), site.mnt.join("link"));
    fs::create_dir(&directory).unwrap();
    std::os::unix::fs::symlink("file", &link).unwrap();
    let before = (age(&directory), age(&link));
    assert_eq!(fs::read_dir(&directory).unwrap().count(), 0);
    fs::read_link(&link).unwrap();
    assert!(atime(&directory) > before.0 && atime(&link) > before.1);
    let all = (after, atime(&directory), atime(&link));
    site.remount();
    assert_eq!((atime(&path), atime(&directory), atime(&link)), all);
    site.umount();
    site.assert_clean();
}

#[test]
fn reading_changes_nothing_where_it_should_not() {
    let Some(site) = Site::mounted_if_fit() else { return };
    let path = site.mnt.join("file");
    fs::write(&path, "content").unwrap();
    for options in ["noatime", "ro"] {
        age(&path);
        site.umount();
        site.mount_with(options);
        let before = atime(&path);
        assert_eq!(fs::read_to_string(&path).unwrap(), "content");
        assert_eq!(fs::read_dir(&site.mnt).unwrap().count(), 1);
        assert_eq!(atime(&path), before, "{options}");
        site.remount();
        assert_eq!(atime(&path), before, "{options}");
    }
    // Backup programs open files with O_NOATIME.
    let before = age(&path);
    let file = rustix::fs::open(
        &path,
        rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::NOATIME | rustix::fs::OFlags::CLOEXEC,
        rustix::fs::Mode::empty(),
    );
    let mut content = String::new();
    File::from(file.unwrap()).read_to_string(&mut content).unwrap();
    assert_eq!(atime(&path), before);
    // chattr +A sets this permanently.
    Tool::new("chattr").arg("+A").arg(&path).ok();
    fs::read(&path).unwrap();
    assert_eq!(atime(&path), before);
    site.umount();
    site.assert_clean();
}

/// The kernel does not report the reads that it answers by itself.
#[test]
fn what_the_kernel_has_cached_is_read_unseen() {
    let Some(site) = Site::if_fit() else { return };
    site.mount_with("strictatime,lazytime");
    let (path, empty, link) = (site.mnt.join("file"), site.mnt.join("empty"), site.mnt.join("link"));
    fs::write(&empty, "").unwrap();
    std::os::unix::fs::symlink("file", &link).unwrap();
    let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    file.write_all_at(&[7; 10_000], 0).unwrap();
    let read = || file.read_exact_at(&mut [0; 10_000], 0).unwrap();
    // Now it is in the page cache of a handle that writes.
    read();
    let before = (age(&path), age(&empty));
    read();
    assert_eq!(fs::read(&empty).unwrap(), b"");
    assert_eq!((atime(&path), atime(&empty)), before);
    drop(file);
    // The update is due, and a handle that only reads shows it; `strictatime` acts as `relatime` here.
    fs::read(&path).unwrap();
    let after = atime(&path);
    assert!(after > before.0);
    fs::read(&path).unwrap();
    assert_eq!(atime(&path), after);
    fs::read_link(&link).unwrap();
    let before = age(&link);
    fs::read_link(&link).unwrap();
    assert_eq!(atime(&link), before);
    site.umount();
    site.assert_clean();
}
