//! Files that are protected with chattr(1).

use std::fs::{self, File};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;
use std::time::Duration;

use rustix::fs::{Access, AtFlags, CWD, StatxAttributes, StatxFlags};

use crate::command::Tool;
use crate::random::noise;
use crate::site::Site;

const DENIED: &str = "Operation not permitted";

#[track_caller]
fn chattr(change: &str, path: &Path) {
    Tool::new("chattr").arg(change).arg(path).ok();
}

/// Returns the letters that lsattr shows.
#[track_caller]
fn lsattr(path: &Path) -> String {
    let said = Tool::new("lsattr").arg("-d").arg(path).ok().text();
    said.split_whitespace().next().unwrap().replace('-', "")
}

/// Checks that a shell command in `directory` is refused.
#[track_caller]
fn denied(directory: &Path, script: &str) {
    let ran = Tool::new("sh").args(["-c", &format!("cd \"$0\" && {script}")]).arg(directory).run();
    assert!(ran.code != 0 && ran.said().contains(DENIED), "{script}: {} {}", ran.code, ran.said());
}

#[track_caller]
fn allowed(directory: &Path, script: &str) {
    Tool::new("sh").args(["-c", &format!("cd \"$0\" && {script}")]).arg(directory).ok();
}

#[test]
fn an_immutable_backup_cannot_be_changed_or_deleted() {
    let Some(site) = Site::mounted_if_fit() else { return };
    let backup = site.mnt.join("backup");
    fs::create_dir(&backup).unwrap();
    let file = backup.join("file");
    fs::write(&file, noise(1, 300_000)).unwrap();
    chattr("+i", &file);
    chattr("+i", &backup);
    assert_eq!((lsattr(&file), lsattr(&backup)), ("i".to_owned(), "i".to_owned()));
    for _ in 0..2 {
        for script in [
            "rm -f backup/file",
            "rm -rf backup",
            "mv backup/file moved",
            "mv backup moved",
            "ln backup/file link",
            "echo more >> backup/file",
            "echo less > backup/file",
            "truncate -s 10 backup/file",
            "fallocate -l 1M backup/file",
            "chmod 600 backup/file",
            "chown 5 backup/file",
            "touch backup/file",
            "setfattr -n user.x -v y backup/file",
            "setfacl -m u:5:r backup/file",
            "touch backup/new",
            "mkdir backup/new",
            "cp --remove-destination /dev/null backup/file",
        ] {
            denied(&site.mnt, script);
        }
        assert!(fs::read(&file).unwrap() == noise(1, 300_000));
        // The flags stay with the pool.
        site.remount();
        assert_eq!((lsattr(&file), lsattr(&backup)), ("i".to_owned(), "i".to_owned()));
    }
    chattr("-i", &backup);
    denied(&site.mnt, "rm -rf backup");
    chattr("-i", &file);
    allowed(&site.mnt, "rm -rf backup");
    site.umount();
    site.assert_clean();
}

#[test]
fn an_append_only_log_grows_and_nothing_else() {
    let Some(site) = Site::mounted_if_fit() else { return };
    let log = site.mnt.join("log");
    fs::write(&log, "one\n").unwrap();
    chattr("+a", &log);
    allowed(&site.mnt, "echo two >> log");
    for script in ["echo three > log", "rm -f log", "mv log other", "truncate -s 0 log", "chmod 600 log"] {
        denied(&site.mnt, script);
    }
    site.remount();
    allowed(&site.mnt, "echo three >> log");
    denied(&site.mnt, "echo four > log");
    assert_eq!(fs::read_to_string(&log).unwrap(), "one\ntwo\nthree\n");
    let directory = site.mnt.join("directory");
    fs::create_dir(&directory).unwrap();
    chattr("+ad", &directory);
    assert_eq!(lsattr(&directory), "ad");
    allowed(&directory, "echo 1 > a; mkdir b; mv ../log . 2>/dev/null || true");
    assert_eq!(lsattr(&directory.join("a")), "d", "only nodump is inherited");
    for script in ["rm a", "rmdir b", "mv a c", "mv b ..", "mv ../log a"] {
        denied(&directory, script);
    }
    for letter in ["+c", "+S", "+D"] {
        let path = if letter == "+D" { &directory } else { &log };
        let ran = Tool::new("chattr").arg(letter).arg(path).run();
        assert!(ran.code != 0 && ran.err.contains("Operation not supported"), "{letter}: {}", ran.err);
    }
    assert_eq!((lsattr(&log), lsattr(&directory)), ("a".to_owned(), "ad".to_owned()));
    site.umount();
    site.assert_clean();
}

/// Bytes stored into a mapping stay in the file, even if it becomes immutable before they are written.
#[test]
fn what_was_stored_into_a_mapping_before_is_kept() {
    const LEN: usize = 64 << 10;
    let Some(site) = Site::mounted_if_fit() else { return };
    let path = site.mnt.join("file");
    fs::write(&path, noise(3, LEN)).unwrap();
    let file = File::options().read(true).write(true).open(&path).unwrap();
    // SAFETY: a new mapping at an address that the kernel chooses touches no memory of this program.
    let start = unsafe {
        libc::mmap(std::ptr::null_mut(), LEN, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED, file.as_raw_fd(), 0)
    };
    assert!(start != libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
    // SAFETY: the mapping has LEN bytes, nobody else refers to it, and the file is not cut meanwhile.
    let mapped = unsafe { std::slice::from_raw_parts_mut(start.cast::<u8>(), LEN) };
    mapped[100..200].fill(7);
    chattr("+i", &path);
    let error = file.write_at(b"late", 0).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EPERM));
    // SAFETY: the range is that of the mapping, which is not used from here on.
    assert_eq!(unsafe { libc::munmap(start, LEN) }, 0);
    drop(file);
    let mut expected = noise(3, LEN);
    expected[100..200].fill(7);
    site.remount();
    assert!(fs::read(&path).unwrap() == expected);
    site.umount();
    site.assert_clean();
}

/// The kernel checks modes by itself and does not know the flag. Opening the file meets the flag.
#[test]
fn access_does_not_tell_of_the_flag_and_opening_does() {
    let Some(site) = Site::mounted_if_fit() else { return };
    let path = site.mnt.join("file");
    fs::write(&path, "content").unwrap();
    chattr("+i", &path);
    for _ in 0..2 {
        assert_eq!(rustix::fs::access(&path, Access::WRITE_OK), Ok(()));
        for how in [File::options().write(true), File::options().append(true), File::options().read(true).write(true)] {
            assert_eq!(how.open(&path).unwrap_err().raw_os_error(), Some(libc::EPERM));
        }
        site.remount();
    }
    assert_eq!(fs::read_to_string(&path).unwrap(), "content");
    site.umount();
    site.assert_clean();
}

#[test]
fn statx_shows_neither_flags_nor_a_time_of_birth() {
    let Some(site) = Site::mounted_if_fit() else { return };
    let path = site.mnt.join("file");
    fs::write(&path, "content").unwrap();
    chattr("+ia", &path);
    let shown = rustix::fs::statx(CWD, &path, AtFlags::empty(), StatxFlags::ALL).unwrap();
    let flags = StatxAttributes::IMMUTABLE | StatxAttributes::APPEND;
    assert!(!shown.stx_attributes.intersects(flags) && !shown.stx_attributes_mask.intersects(flags));
    assert!(!StatxFlags::from_bits_retain(shown.stx_mask).contains(StatxFlags::BTIME));
    assert_eq!(lsattr(&path), "ia");
    site.umount();
    site.assert_clean();
}

/// The kernel was left with the attributes that it had cached.
#[test]
fn regression_a_changed_flag_is_seen_as_a_change_of_attributes() {
    let Some(site) = Site::mounted_if_fit() else { return };
    let (file, directory) = (site.mnt.join("file"), site.mnt.join("directory"));
    fs::write(&file, "content").unwrap();
    fs::create_dir(&directory).unwrap();
    for path in [&file, &directory] {
        let ctime = || {
            let metadata = fs::metadata(path).unwrap();
            (metadata.ctime(), metadata.ctime_nsec())
        };
        for change in ["+d", "-d", "+i", "-i", "+a", "+i", "=A"] {
            let before = ctime();
            std::thread::sleep(Duration::from_millis(5));
            chattr(change, path);
            assert!(ctime() > before, "chattr {change}");
        }
    }
    site.umount();
    site.assert_clean();
}
