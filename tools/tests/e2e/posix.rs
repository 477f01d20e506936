//! Guarantees of POSIX and Linux about names, attributes and locks; `tools/posix/pjdfstest.sh` tests the rest.

use std::ffi::CString;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileExt as _, FileTypeExt as _};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, FileType, FlockOperation, Mode, OFlags, RenameFlags, XattrFlags};
use rustix::io::Errno;

use crate::command::Tool;
use crate::machine::is_fit;
use crate::site::Site;

/// The FUSE library does not know the request, so programs fall back to a name that they remove.
#[test]
fn files_without_a_name_from_the_start_are_refused() {
    let Some(site) = Site::mounted_if_fit() else { return };
    for _ in 0..2 {
        let opened =
            rustix::fs::open(&site.mnt, OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC, Mode::from_raw_mode(0o600));
        assert_eq!(opened.err(), Some(Errno::OPNOTSUPP));
    }
    // tempfile(3) and similar functions then do this.
    let mut file = tempfile::tempfile_in(&site.mnt).unwrap();
    file.write_all(b"content").unwrap();
    assert_eq!(fs::read_dir(&site.mnt).unwrap().count(), 0);
    drop(file);
    site.umount();
    site.assert_clean();
}

/// The kernel sends an open for reading, with O_TRUNC, before it checks whether the file runs.
#[test]
fn a_running_program_is_truncated_only_by_an_open_for_reading() {
    let Some(site) = Site::mounted_if_fit() else { return };
    let program = site.mnt.join("sleep");
    // By another process: a fork of this one may hold a descriptor for writing for a moment, and nothing could be run.
    Tool::new("cp").args(["-L", "/bin/sleep"]).arg(&program).ok();
    let size_bytes = fs::metadata(&program).unwrap().len();
    let mut running = std::process::Command::new(&program).arg("60").spawn().unwrap();
    for flags in [OFlags::WRONLY, OFlags::WRONLY | OFlags::TRUNC, OFlags::RDWR | OFlags::TRUNC] {
        assert_eq!(rustix::fs::open(&program, flags, Mode::empty()).err(), Some(Errno::TXTBSY));
    }
    assert_eq!(fs::metadata(&program).unwrap().len(), size_bytes);
    // The program may have ended by then, because its text is gone.
    let opened = rustix::fs::open(&program, OFlags::RDONLY | OFlags::TRUNC | OFlags::CLOEXEC, Mode::empty());
    assert!(matches!(opened.err(), None | Some(Errno::TXTBSY)));
    running.kill().unwrap();
    running.wait().unwrap();
    site.remount();
    assert_eq!(fs::metadata(&program).unwrap().len(), 0);
    site.umount();
    site.assert_clean();
}

#[test]
fn locks_hold_between_processes() {
    let Some(site) = Site::mounted_if_fit() else { return };
    let path = site.mnt.join("file");
    let open = || File::options().read(true).write(true).create(true).truncate(false).open(&path).unwrap();
    let (first, second) = (open(), open());
    // flock, which belongs to a handle; flock(1) is another process.
    rustix::fs::flock(&first, FlockOperation::LockExclusive).unwrap();
    assert_eq!(rustix::fs::flock(&second, FlockOperation::NonBlockingLockShared).err(), Some(Errno::WOULDBLOCK));
    let flock = || Tool::new("flock").arg("-n").arg(&path).arg("true").run().code;
    assert_eq!(flock(), 1);
    rustix::fs::flock(&first, FlockOperation::Unlock).unwrap();
    assert_eq!(flock(), 0);
    // Locks on a range: one of this process, then one of a handle, which excludes it.
    let lock = |file: &File, start: i64, command: i32| {
        let range = libc::flock {
            l_type: libc::F_WRLCK as i16,
            l_whence: libc::SEEK_SET as i16,
            l_start: start,
            l_len: 10,
            l_pid: 0,
        };
        // SAFETY: the structure lives until the call returns.
        let code = unsafe { libc::fcntl(file.as_raw_fd(), command, &raw const range) };
        if code == 0 { Ok(()) } else { Err(io::Error::last_os_error().raw_os_error()) }
    };
    assert_eq!(lock(&first, 100, libc::F_SETLK), Ok(()));
    assert_eq!(lock(&second, 105, libc::F_OFD_SETLK), Err(Some(libc::EAGAIN)));
    assert_eq!(lock(&second, 110, libc::F_OFD_SETLK), Ok(()));
    assert_eq!(lock(&first, 115, libc::F_SETLK), Err(Some(libc::EAGAIN)));
    drop((first, second));
    assert_eq!(lock(&open(), 0, libc::F_OFD_SETLK), Ok(()));
    site.umount();
    site.assert_clean();
}

#[test]
fn a_path_of_the_greatest_length() {
    const PATH_BYTES_MAX: usize = 4095;
    let Some(site) = Site::mounted_if_fit() else { return };
    let mut path = site.mnt.clone();
    // Names of 255 arbitrary bytes, with space for one more name at the end.
    let name = std::ffi::OsStr::from_bytes(&[0xfe; 255]);
    while path.as_os_str().len() + 2 * 256 < PATH_BYTES_MAX {
        path.push(name);
    }
    fs::create_dir_all(&path).unwrap();
    while PATH_BYTES_MAX - path.as_os_str().len() > 256 {
        path.push("d".repeat(100));
        fs::create_dir(&path).unwrap();
    }
    let left = PATH_BYTES_MAX - path.as_os_str().len() - 1;
    let (longest, too_long) = (path.join("f".repeat(left)), path.join("f".repeat(left + 1)));
    fs::write(&longest, "deep").unwrap();
    assert_eq!(longest.as_os_str().len(), PATH_BYTES_MAX);
    assert_eq!(fs::write(&too_long, "").unwrap_err().raw_os_error(), Some(libc::ENAMETOOLONG));
    let too_long_name = site.mnt.join("n".repeat(256));
    assert_eq!(fs::write(&too_long_name, "").unwrap_err().raw_os_error(), Some(libc::ENAMETOOLONG));
    site.remount();
    assert_eq!(fs::read_to_string(&longest).unwrap(), "deep");
    Tool::new("rm").arg("-r").arg(site.mnt.join(name)).ok();
    site.umount();
    site.assert_clean();
}

#[test]
fn extended_attributes_by_namespace() {
    let Some(site) = Site::mounted_if_fit() else { return };
    let at = |name: &str| site.mnt.join(name);
    File::create(at("file")).unwrap();
    fs::create_dir(at("directory")).unwrap();
    std::os::unix::fs::symlink("file", at("link")).unwrap();
    rustix::fs::mknodat(CWD, at("fifo"), FileType::Fifo, Mode::RWXU, 0).unwrap();
    rustix::fs::mknodat(CWD, at("socket"), FileType::Socket, Mode::RWXU, 0).unwrap();
    rustix::fs::mknodat(CWD, at("device"), FileType::CharacterDevice, Mode::RWXU, libc::makedev(1, 3)).unwrap();
    assert!(fs::metadata(at("socket")).unwrap().file_type().is_socket());
    let set = |path: &Path, name: &str| rustix::fs::lsetxattr(path, name, b"value", XattrFlags::empty()).err();
    for name in ["file", "directory", "link", "fifo", "socket", "device"] {
        let path = at(name);
        let user = if matches!(name, "file" | "directory") { None } else { Some(Errno::PERM) };
        assert_eq!(set(&path, "user.x"), user, "{name}");
        assert_eq!(set(&path, "trusted.x"), None, "{name}");
        assert_eq!(set(&path, "security.x"), None, "{name}");
        assert_eq!(set(&path, "system.x"), Some(Errno::OPNOTSUPP), "{name}");
        assert_eq!(set(&path, "x"), Some(Errno::OPNOTSUPP), "{name}");
    }
    assert_eq!(set(&at("file"), &format!("user.{}", "x".repeat(251))), Some(Errno::RANGE));
    let value = vec![7; (64 << 10) + 1];
    let set_value = |len: usize| rustix::fs::setxattr(at("file"), "user.big", &value[..len], XattrFlags::empty()).err();
    assert_eq!(set_value(64 << 10), None);
    assert_eq!(set_value((64 << 10) + 1), Some(Errno::TOOBIG));
    site.remount();
    let mut found = vec![0; 64 << 10];
    assert_eq!(rustix::fs::getxattr(at("file"), "user.big", &mut found[..]).unwrap(), 64 << 10);
    assert!(found == value[..64 << 10]);
    assert_eq!(rustix::fs::getxattr(at("file"), "user.big", &mut found[..100]).err(), Some(Errno::RANGE));
    site.umount();
    site.assert_clean();
}

#[test]
fn names_are_exchanged_and_whited_out_over_open_files() {
    let Some(site) = Site::mounted_if_fit() else { return };
    let (one, other, third) = (site.mnt.join("one"), site.mnt.join("other"), site.mnt.join("third"));
    fs::write(&one, "first").unwrap();
    fs::write(&other, "second").unwrap();
    let rename = |from: &Path, to: &Path, flags| rustix::fs::renameat_with(CWD, from, CWD, to, flags).err();
    let (open_one, open_other) = (File::options().write(true).open(&one).unwrap(), File::open(&other).unwrap());
    assert_eq!(rename(&one, &other, RenameFlags::NOREPLACE), Some(Errno::EXIST));
    assert_eq!(rename(&one, &other, RenameFlags::EXCHANGE), None);
    open_one.write_all_at(b"FIRST", 0).unwrap();
    let mut found = [0; 6];
    open_other.read_exact_at(&mut found, 0).unwrap();
    assert_eq!(&found, b"second");
    drop((open_one, open_other));
    assert_eq!(
        (fs::read_to_string(&one).unwrap(), fs::read_to_string(&other).unwrap()),
        ("second".into(), "FIRST".into())
    );
    assert_eq!(rename(&one, &third, RenameFlags::EXCHANGE), Some(Errno::NOENT));
    assert_eq!(rename(&one, &third, RenameFlags::NOREPLACE | RenameFlags::WHITEOUT), None);
    assert!(fs::symlink_metadata(&one).unwrap().file_type().is_char_device());
    site.remount();
    assert_eq!(fs::read_to_string(&third).unwrap(), "second");
    assert_eq!(fs::read_to_string(&other).unwrap(), "FIRST");
    site.umount();
    site.assert_clean();
}

/// fcntl(2) can end appending: later bytes go to the offset of the write.
#[test]
fn regression_a_handle_that_no_longer_appends_writes_where_it_is_told() {
    let Some(site) = Site::mounted_if_fit() else { return };
    let path = site.mnt.join("file");
    for direct in [true, false] {
        let file = File::options().read(!direct).append(true).create(true).open(&path).unwrap();
        (&file).write_all(b"0123456789").unwrap();
        rustix::fs::fcntl_setfl(&file, OFlags::empty()).unwrap();
        file.write_all_at(b"ab", 2).unwrap();
        rustix::fs::fcntl_setfl(&file, OFlags::APPEND).unwrap();
        (&file).write_all(b"end").unwrap();
        drop(file);
        assert_eq!(fs::read_to_string(&path).unwrap(), "01ab456789end", "write-only: {direct}");
        fs::remove_file(&path).unwrap();
    }
    site.umount();
    site.assert_clean();
}

/// A handle of a file can be given another name while the file has one.
#[test]
fn an_open_file_is_linked_by_its_descriptor() {
    let Some(site) = Site::mounted_if_fit() else { return };
    let (path, link) = (site.mnt.join("file"), site.mnt.join("link"));
    fs::write(&path, "content").unwrap();
    let file = File::open(&path).unwrap();
    let descriptor = CString::new(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap();
    let linked = || rustix::fs::linkat(CWD, &descriptor, CWD, &link, AtFlags::SYMLINK_FOLLOW).err();
    assert_eq!(linked(), None);
    fs::remove_file(&path).unwrap();
    assert_eq!(fs::read_to_string(&link).unwrap(), "content");
    fs::remove_file(&link).unwrap();
    assert_eq!(linked(), Some(Errno::NOENT), "a file without a name stays without");
    drop(file);
    site.umount();
    site.assert_clean();
}

#[test]
fn statfs_counts_inodes() {
    let Some(site) = Site::mounted_if_fit() else { return };
    let inodes = || {
        let shown = rustix::fs::statvfs(&site.mnt).unwrap();
        shown.f_files - shown.f_ffree
    };
    let before = inodes();
    (0..100).for_each(|number| drop(File::create(site.mnt.join(format!("{number}"))).unwrap()));
    assert_eq!(inodes(), before + 100, "statfs counts inodes");
    site.umount();
    site.assert_clean();
}

/// syncfs(2) does not reach the daemon and promises nothing; `dedupfs sync` does.
#[test]
fn the_command_makes_durable_what_syncfs_cannot() {
    let Some(site) = Site::mounted_if_fit() else { return };
    let name = |number: u32| site.mnt.join(format!("file-{number}"));
    (0..30).for_each(|number| fs::write(name(number), format!("content {number}")).unwrap());
    rustix::fs::syncfs(File::open(&site.mnt).unwrap()).unwrap();
    site.sync();
    site.kill_daemon();
    site.mount();
    (0..30).for_each(|number| assert_eq!(fs::read_to_string(name(number)).unwrap(), format!("content {number}")));
    site.umount();
    site.assert_clean();
}

/// `-o sync` and `-o dirsync` promise durable names; the kernel does nothing for it.
#[test]
fn regression_names_are_durable_on_a_mount_that_asks_for_it() {
    type Change = fn(&Path) -> io::Result<()>;
    type Expected = fn(&Path) -> bool;
    let changes: [(&str, Change, Expected); 8] = [
        ("mkdir", |mnt| fs::create_dir(mnt.join("made")), |mnt| mnt.join("made").is_dir()),
        ("rmdir", |mnt| fs::remove_dir(mnt.join("made")), |mnt| !mnt.join("made").exists()),
        ("creat", |mnt| File::create(mnt.join("file")).map(drop), |mnt| mnt.join("file").is_file()),
        (
            "link",
            |mnt| fs::hard_link(mnt.join("file"), mnt.join("link")),
            |mnt| mnt.join("link").is_file() && mnt.join("file").is_file(),
        ),
        (
            "rename",
            |mnt| fs::rename(mnt.join("link"), mnt.join("renamed")),
            |mnt| mnt.join("renamed").is_file() && !mnt.join("link").exists(),
        ),
        ("unlink", |mnt| fs::remove_file(mnt.join("renamed")), |mnt| !mnt.join("renamed").exists()),
        (
            "symlink",
            |mnt| std::os::unix::fs::symlink("file", mnt.join("symlink")),
            |mnt| mnt.join("symlink").is_symlink(),
        ),
        (
            "mknod",
            |mnt| Ok(rustix::fs::mknodat(CWD, mnt.join("fifo"), FileType::Fifo, Mode::RWXU, 0)?),
            |mnt| fs::symlink_metadata(mnt.join("fifo")).is_ok_and(|metadata| metadata.file_type().is_fifo()),
        ),
    ];
    if !is_fit() {
        return;
    }
    for options in ["dirsync", "sync"] {
        let site = Site::new();
        for (what, change, expected) in changes {
            site.mount_with(options);
            change(&site.mnt).unwrap();
            site.kill_daemon();
            site.mount();
            assert!(expected(&site.mnt), "{what} with -o {options}");
            site.umount();
        }
        site.assert_clean();
    }
}

/// A program that is killed while it writes leaves what it had written, as on any filesystem.
#[test]
fn a_killed_writer_leaves_what_it_had_written() {
    let Some(site) = Site::mounted_if_fit() else { return };
    let written: Vec<u8> = (0..3_000_000_u32).map(|number| (number.wrapping_mul(number) >> 7) as u8).collect();
    let source = site.base.join("written");
    fs::write(&source, &written).unwrap();
    // The second write never comes.
    let script = r#"exec 3>"$2"; cat "$1" >&3; kill -9 $$; cat "$1" >&3"#;
    let path = site.mnt.join("file");
    let code = Tool::new("sh").arg("-c").arg(script).arg("sh").arg(&source).arg(&path).run().code;
    assert_ne!(code, 0, "it was killed");
    assert!(fs::read(&path).unwrap() == written);
    site.remount();
    assert!(fs::read(&path).unwrap() == written);
    site.umount();
    site.assert_clean();
}
