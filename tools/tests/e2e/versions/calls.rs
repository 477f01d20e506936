//! System calls that change something, on the entries of a version: each is refused, whatever a program may do.

use std::ffi::CString;
use std::fs::{self, File};
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::symlink;
use std::path::Path;

use rustix::fs::{
    AtFlags, CWD, FallocateFlags, FileType, Gid, IFlags, Mode, OFlags, RenameFlags, Timespec, Timestamps, Uid,
    XattrFlags,
};
use rustix::io::Errno;

use super::{series, snapshot};
use crate::command::Tool;
use crate::compare::assert_same_tree;
use crate::random::noise;
use crate::site::Site;

type Outcome = rustix::io::Result<()>;

#[track_caller]
fn assert_refused(what: &str, outcome: Outcome, expected: Errno) {
    match outcome {
        Ok(()) => panic!("{what} succeeded"),
        Err(error) => assert_eq!(error, expected, "{what}: {error}"),
    }
}

fn fill(live: &Path) {
    fs::create_dir(live).unwrap();
    fs::create_dir(live.join("directory")).unwrap();
    fs::create_dir(live.join("empty")).unwrap();
    fs::write(live.join("directory/inside"), noise(1, 300_000)).unwrap();
    fs::write(live.join("file"), "content").unwrap();
    symlink("file", live.join("link")).unwrap();
    rustix::fs::setxattr(live.join("file"), "user.old", b"kept", XattrFlags::empty()).unwrap();
    for path in ["fifo", "node"] {
        let kind = if path == "fifo" { FileType::Fifo } else { FileType::CharacterDevice };
        rustix::fs::mknodat(CWD, live.join(path), kind, Mode::RUSR, 0x103).unwrap();
    }
}

fn open(path: &Path, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::RUSR)
}

/// FICLONE: the whole content of another file.
fn clone_into(to: BorrowedFd<'_>, from: BorrowedFd<'_>) -> Outcome {
    rustix::fs::ioctl_ficlone(to, from)
}

/// The access list that gives user 7 reading.
const ACCESS_LIST: &[u8] = b"\x02\0\0\0\
    \x01\0\x06\0\xff\xff\xff\xff\x02\0\x04\0\x07\0\0\0\x04\0\x04\0\xff\xff\xff\xff\x10\0\x04\0\xff\xff\xff\xff\x20\0\x04\0\xff\xff\xff\xff";

fn refuse_names(version: &Path, live: &Path) {
    let at = |name: &str| version.join(name);
    let rofs = Errno::ROFS;
    let new = at("new");
    for parent in [version, &at("directory")] {
        let new = parent.join("new");
        assert_refused("mkdir", rustix::fs::mkdir(&new, Mode::RWXU), rofs);
        for kind in
            [FileType::RegularFile, FileType::Fifo, FileType::Socket, FileType::CharacterDevice, FileType::BlockDevice]
        {
            assert_refused("mknod", rustix::fs::mknodat(CWD, &new, kind, Mode::RUSR, 0x103), rofs);
        }
        assert_refused("symlink", rustix::fs::symlink("file", &new), rofs);
        assert_refused("creating open", open(&new, OFlags::CREATE | OFlags::WRONLY).map(drop), rofs);
        assert_refused("exclusive open", open(&new, OFlags::CREATE | OFlags::EXCL | OFlags::RDWR).map(drop), rofs);
        assert!(open(parent, OFlags::TMPFILE | OFlags::RDWR).is_err(), "a file without a name");
    }
    let link = |from: &Path, to: &Path| rustix::fs::linkat(CWD, from, CWD, to, AtFlags::empty());
    assert_refused("link", link(&at("file"), &new), rofs);
    assert_refused("link out", link(&at("file"), &live.join("new")), Errno::XDEV);
    assert_refused("link in", link(&live.join("file"), &new), Errno::XDEV);
    assert_refused("unlink", rustix::fs::unlink(at("file")), rofs);
    assert_refused("unlink of a link", rustix::fs::unlink(at("link")), rofs);
    assert_refused("rmdir", rustix::fs::rmdir(at("empty")), rofs);
    let rename = |from: &Path, to: &Path, flags| rustix::fs::renameat_with(CWD, from, CWD, to, flags);
    for flags in [RenameFlags::empty(), RenameFlags::NOREPLACE, RenameFlags::WHITEOUT] {
        assert_refused("rename", rename(&at("file"), &new, flags), rofs);
        assert_refused("rename out", rename(&at("file"), &live.join("new"), flags), Errno::XDEV);
        assert_refused("rename in", rename(&live.join("file"), &new, flags), Errno::XDEV);
        assert_refused("rename of a directory in", rename(&live.join("empty"), &new, flags), Errno::XDEV);
    }
    assert_refused("rename over", rename(&at("file"), &at("directory/inside"), RenameFlags::empty()), rofs);
    assert_refused("exchange", rename(&at("file"), &at("directory"), RenameFlags::EXCHANGE), rofs);
    assert_refused("exchange out", rename(&at("file"), &live.join("file"), RenameFlags::EXCHANGE), Errno::XDEV);
    // The version itself.
    assert_refused("rmdir of a version", rustix::fs::rmdir(version), Errno::NOTEMPTY);
    assert_refused(
        "rename over a version",
        rename(&live.join("empty"), version, RenameFlags::empty()),
        Errno::NOTEMPTY,
    );
    assert_refused("unlink of a version", rustix::fs::unlink(version), Errno::ISDIR);
}

fn refuse_attributes(version: &Path) {
    let rofs = Errno::ROFS;
    for name in ["", "directory", "empty", "file", "fifo", "node"] {
        let path = if name.is_empty() { version.to_owned() } else { version.join(name) };
        assert_refused("chmod", rustix::fs::chmod(&path, Mode::RWXU), rofs);
        assert_refused("chown", rustix::fs::chown(&path, Some(Uid::from_raw(7)), None), rofs);
        assert_refused(
            "access list",
            rustix::fs::setxattr(&path, "system.posix_acl_access", ACCESS_LIST, XattrFlags::empty()),
            rofs,
        );
    }
    let time = Timespec { tv_sec: 5, tv_nsec: 0 };
    let now = Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW };
    for name in ["directory", "file", "link", "fifo"] {
        let path = version.join(name);
        let lchown = rustix::fs::chownat(CWD, &path, None, Some(Gid::from_raw(7)), AtFlags::SYMLINK_NOFOLLOW);
        assert_refused("lchown", lchown, rofs);
        for (last_access, last_modification) in [(time, time), (now, now), (time, now)] {
            let times = Timestamps { last_access, last_modification };
            assert_refused("utimensat", rustix::fs::utimensat(CWD, &path, &times, AtFlags::SYMLINK_NOFOLLOW), rofs);
        }
        for flags in [XattrFlags::empty(), XattrFlags::CREATE] {
            assert_refused("lsetxattr", rustix::fs::lsetxattr(&path, "trusted.new", b"x", flags), rofs);
        }
    }
    let file = version.join("file");
    assert_refused("replacing setxattr", rustix::fs::setxattr(&file, "user.old", b"x", XattrFlags::REPLACE), rofs);
    assert_refused("removexattr", rustix::fs::removexattr(&file, "user.old"), rofs);
    for name in ["file", "directory"] {
        let open = open(&version.join(name), OFlags::RDONLY).unwrap();
        assert_refused("fchmod", rustix::fs::fchmod(&open, Mode::RWXU), rofs);
        assert_refused("fchown", rustix::fs::fchown(&open, Some(Uid::from_raw(7)), None), rofs);
        assert_refused("fsetxattr", rustix::fs::fsetxattr(&open, "user.new", b"x", XattrFlags::empty()), rofs);
        assert_refused("chattr", rustix::fs::ioctl_setflags(&open, IFlags::IMMUTABLE), rofs);
        assert_refused("chattr of nothing", rustix::fs::ioctl_setflags(&open, IFlags::empty()), rofs);
    }
}

fn refuse_content(version: &Path, live: &Path, series: &Path) {
    let file = version.join("file");
    for flags in [OFlags::WRONLY, OFlags::RDWR, OFlags::WRONLY | OFlags::APPEND, OFlags::RDWR | OFlags::DIRECT] {
        assert_refused("open", open(&file, flags).map(drop), Errno::ROFS);
        assert_refused("creating open", open(&file, flags | OFlags::CREATE).map(drop), Errno::ROFS);
        assert_refused("truncating open", open(&file, flags | OFlags::TRUNC).map(drop), Errno::ROFS);
    }
    assert_refused("truncating open to read", open(&file, OFlags::RDONLY | OFlags::TRUNC).map(drop), Errno::ROFS);
    let name = CString::new(file.as_os_str().as_bytes()).unwrap();
    for len in [0, 3, 1 << 20] {
        // SAFETY: the name ends with a NUL.
        let code = unsafe { libc::truncate(name.as_ptr(), len) };
        let error = std::io::Error::last_os_error().raw_os_error();
        assert_eq!((code, error), (-1, Some(libc::EROFS)), "truncate");
    }
    // A descriptor for reading is all that there is.
    let opened = open(&file, OFlags::RDONLY).unwrap();
    let other = File::open(live.join("directory/inside")).unwrap();
    assert_refused("write", rustix::io::write(&opened, b"x").map(drop), Errno::BADF);
    assert_refused("pwrite", rustix::io::pwrite(&opened, b"x", 0).map(drop), Errno::BADF);
    assert_refused("ftruncate", rustix::fs::ftruncate(&opened, 0), Errno::INVAL);
    for mode in
        [FallocateFlags::empty(), FallocateFlags::KEEP_SIZE | FallocateFlags::PUNCH_HOLE, FallocateFlags::ZERO_RANGE]
    {
        assert_refused("fallocate", rustix::fs::fallocate(&opened, mode, 0, 100), Errno::BADF);
    }
    let copied = rustix::fs::copy_file_range(&other, None, &opened, None, 100).map(drop);
    assert_refused("copy_file_range into it", copied, Errno::BADF);
    assert_refused("FICLONE into it", clone_into(opened.as_fd(), other.as_fd()), Errno::BADF);
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
    // SAFETY: a new mapping at an address that the kernel chooses touches no memory of this process.
    let mapped = unsafe { libc::mmap(std::ptr::null_mut(), 4096, protection, flags, opened.as_raw_fd(), 0) };
    assert_eq!(mapped, libc::MAP_FAILED, "a mapping that writes");
    // The other way is reading.
    let copied = series.join("copied");
    let target = File::create(&copied).unwrap();
    assert_eq!(rustix::fs::copy_file_range(&opened, None, &target, None, 100), Ok(7));
    assert_eq!(fs::read(copied).unwrap(), b"content");
}

#[test]
fn every_changing_call_on_a_version_is_refused() {
    let Some(site) = Site::mounted_if_fit() else { return };
    let (series, live) = series(&site);
    fs::remove_dir(&live).unwrap();
    fill(&live);
    let (version, by_put, outside) = (series.join("v"), series.join("put"), site.base.join("outside"));
    snapshot(&live, &version).expect(0, &[]);
    Tool::new("cp").arg("-a").args([&live, &outside]).ok();
    Tool::new(crate::command::DEDUPFS).arg("put").args([&outside, &by_put]).run().expect(0, &[]);
    for cold in [false, true] {
        for version in [&version, &by_put] {
            refuse_names(version, &live);
            refuse_attributes(version);
            refuse_content(version, &live, &series);
            assert_same_tree(&outside, version);
        }
        assert_same_tree(&outside, &live);
        if !cold {
            site.remount();
        }
    }
    site.umount();
    site.assert_clean();
}
