//! File handles, as an NFS server keeps them: they outlive the mount, and never lead to another file.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::fd::{AsRawFd as _, FromRawFd as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::command::Tool;
use crate::site::Site;

const HANDLE_BYTES: usize = 128;

/// `struct file_handle` with its bytes.
#[repr(C)]
#[derive(Clone, Debug)]
struct FileHandle {
    bytes: u32,
    kind: i32,
    handle: [u8; HANDLE_BYTES],
}

#[track_caller]
fn handle_of(path: &Path) -> FileHandle {
    let mut handle = FileHandle { bytes: HANDLE_BYTES as u32, kind: 0, handle: [0; HANDLE_BYTES] };
    let name = std::ffi::CString::new(path.as_os_str().as_bytes()).unwrap();
    let mut mount_id = 0;
    // SAFETY: the structure has the layout and the room that it claims; the name ends with a NUL.
    let code = unsafe {
        libc::name_to_handle_at(libc::AT_FDCWD, name.as_ptr(), (&raw mut handle).cast(), &raw mut mount_id, 0)
    };
    assert_eq!(code, 0, "{}: {}", path.display(), io::Error::last_os_error());
    handle
}

fn open(site: &Site, handle: &FileHandle) -> io::Result<File> {
    let mount = File::open(&site.mnt)?;
    let mut handle = handle.clone();
    // SAFETY: the structure has the layout and the room that it claims.
    let descriptor = unsafe { libc::open_by_handle_at(mount.as_raw_fd(), (&raw mut handle).cast(), libc::O_RDONLY) };
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: it was just opened and belongs to nobody else.
    Ok(unsafe { File::from_raw_fd(descriptor) })
}

#[track_caller]
fn assert_leads_to(site: &Site, handle: &FileHandle, content: &str) {
    let mut found = String::new();
    open(site, handle).unwrap().read_to_string(&mut found).unwrap();
    assert_eq!(found, content);
}

#[track_caller]
fn assert_stale(site: &Site, handle: &FileHandle) {
    // The kernel releases files behind close(2), and a removed one is there until then.
    let outcomes = (0..500).map(|number| {
        std::thread::sleep(Duration::from_millis(if number == 0 { 0 } else { 10 }));
        open(site, handle).map(drop)
    });
    let error = outcomes.into_iter().find_map(Result::err).expect("the handle leads somewhere");
    assert_eq!(error.raw_os_error(), Some(libc::ESTALE), "{error}");
}

#[test]
fn handles_outlive_the_mount() {
    let Some(site) = Site::mounted_if_fit() else { return };
    let directory = site.mnt.join("one/two");
    fs::create_dir_all(&directory).unwrap();
    let (file, gone) = (directory.join("file"), directory.join("gone"));
    fs::write(&file, "content").unwrap();
    fs::write(&gone, "going").unwrap();
    let handles = (handle_of(&file), handle_of(&directory), handle_of(&gone), handle_of(&site.mnt));
    let check = || {
        assert_leads_to(&site, &handles.0, "content");
        // The kernel finds the way up from a directory that it does not know.
        let found = open(&site, &handles.1).unwrap();
        let path: PathBuf = fs::read_link(format!("/proc/self/fd/{}", found.as_raw_fd())).unwrap();
        assert_eq!(path, directory);
        assert!(open(&site, &handles.3).unwrap().metadata().unwrap().is_dir());
    };
    check();
    // A remount in place makes the kernel forget all inodes of the mount, so that it has only their numbers.
    let forget = || Tool::new("mount").args(["-i", "-o", "remount,rw"]).arg(&site.mnt).ok();
    forget();
    check();
    site.remount();
    check();
    assert_leads_to(&site, &handles.2, "going");
    fs::rename(&file, site.mnt.join("moved")).unwrap();
    fs::remove_file(&gone).unwrap();
    fs::write(&gone, "another").unwrap();
    assert_leads_to(&site, &handles.0, "content");
    assert_stale(&site, &handles.2);
    forget();
    assert_leads_to(&site, &handles.0, "content");
    assert_stale(&site, &handles.2);
    site.remount();
    assert_leads_to(&site, &handles.0, "content");
    assert_stale(&site, &handles.2);
    site.umount();
    site.assert_clean();
}

/// A crash takes files that were not synced, and their numbers are used again: the generation tells them apart.
#[test]
fn a_handle_of_a_lost_file_leads_nowhere() {
    let Some(site) = Site::mounted_if_fit() else { return };
    site.sync();
    let names: Vec<PathBuf> = (0..20).map(|number| site.mnt.join(format!("file-{number}"))).collect();
    names.iter().for_each(|name| drop(File::create(name).unwrap()));
    let handles: Vec<FileHandle> = names.iter().map(|name| handle_of(name)).collect();
    site.kill_daemon();
    site.mount();
    let lost: Vec<bool> = names.iter().map(|name| !name.exists()).collect();
    for number in 0..40 {
        fs::write(site.mnt.join(format!("new-{number}")), "new").unwrap();
    }
    for (handle, lost) in handles.iter().zip(lost) {
        if lost {
            assert_stale(&site, handle);
        } else {
            assert_leads_to(&site, handle, "");
        }
    }
    site.umount();
    site.assert_clean();
}

/// Handles of a version lead to its entries for as long as it is there, and then nowhere, whatever is made afterwards.
#[test]
fn handles_of_versions_outlive_the_mount_and_end_with_their_version() {
    let Some(site) = Site::mounted_if_fit() else { return };
    let live = site.mnt.join("live");
    fs::create_dir_all(live.join("one/two")).unwrap();
    fs::create_dir(live.join("empty")).unwrap();
    (0..300)
        .for_each(|number| fs::write(live.join(format!("one/file-{number}")), format!("content {number}")).unwrap());
    fs::write(live.join("one/two/deep"), "deep").unwrap();
    fs::hard_link(live.join("one/two/deep"), live.join("linked")).unwrap();
    let snapshot = |name: &str| {
        Tool::new(crate::command::DEDUPFS).arg("snapshot").args([&live, &site.mnt.join(name)]).ok();
        site.mnt.join(name)
    };
    let forget = |version: &Path| drop(Tool::new(crate::command::DEDUPFS).arg("forget").arg(version).ok());
    let clear = || drop(Tool::new("mount").args(["-i", "-o", "remount,rw"]).arg(&site.mnt).ok());
    let version = snapshot("v");
    let names = crate::files::walk(&live);
    let handles: Vec<(FileHandle, String, u64)> = names
        .iter()
        .map(|name| {
            let path = version.join(name);
            (handle_of(&path), fs::read_to_string(&path).unwrap(), fs::metadata(&path).unwrap().ino())
        })
        .collect();
    let directories: Vec<(PathBuf, FileHandle, u64)> = ["", "one", "one/two", "empty"]
        .map(|name| version.join(name))
        .map(|path| (path.clone(), handle_of(&path), fs::metadata(&path).unwrap().ino()))
        .into();
    let check = || {
        for (handle, content, ino) in &handles {
            assert_leads_to(&site, handle, content);
            assert_eq!(open(&site, handle).unwrap().metadata().unwrap().ino(), *ino);
        }
        for (path, handle, ino) in &directories {
            let found = open(&site, handle).unwrap();
            assert_eq!(found.metadata().unwrap().ino(), *ino);
            assert_eq!(&fs::read_link(format!("/proc/self/fd/{}", found.as_raw_fd())).unwrap(), path);
        }
    };
    check();
    clear();
    check();
    // The numbers are known without any earlier look at the names.
    site.remount();
    check();
    site.kill_daemon();
    site.mount();
    check();
    for (name, (_, _, ino)) in names.iter().zip(&handles) {
        assert_eq!(fs::metadata(version.join(name)).unwrap().ino(), *ino);
    }
    let assert_all_stale = || {
        handles.iter().for_each(|(handle, ..)| assert_stale(&site, handle));
        directories.iter().for_each(|(_, handle, _)| assert_stale(&site, handle));
    };
    forget(&version);
    assert_all_stale();
    // New versions of the same tree, and of the same name, are others, also with the number of the old one: after a
    // remount only the generation tells them apart.
    site.remount();
    snapshot("v");
    assert_eq!(fs::metadata(&version).unwrap().ino(), directories[0].2);
    (0..3).for_each(|number| drop(snapshot(&format!("w{number}"))));
    assert_all_stale();
    clear();
    assert_all_stale();
    site.remount();
    assert_all_stale();
    Tool::new(crate::command::GC).arg(&site.mnt).ok();
    assert_all_stale();
    site.umount();
    site.assert_clean();
}

/// A crash takes a version that was made just before, or not; its number must not lead to a later one.
#[test]
fn a_handle_of_a_version_that_a_crash_took_leads_nowhere() {
    let Some(site) = Site::mounted_if_fit() else { return };
    let make = |name: &str| {
        let live = site.mnt.join(format!("live-{name}"));
        fs::create_dir(&live).unwrap();
        fs::write(live.join("file"), name).unwrap();
        Tool::new(crate::command::DEDUPFS).arg("snapshot").args([&live, &site.mnt.join(name)]).ok();
        site.mnt.join(name)
    };
    for round in 0..4 {
        let name = format!("v{round}");
        let version = make(&name);
        let handle = handle_of(&version.join("file"));
        if round % 2 == 1 {
            Tool::new(crate::command::DEDUPFS).arg("forget").arg(&version).ok();
        }
        site.kill_daemon();
        site.mount();
        let is_there = version.exists();
        make(&format!("after-{round}"));
        if is_there {
            assert_leads_to(&site, &handle, &name);
        } else {
            assert_stale(&site, &handle);
        }
    }
    site.umount();
    site.assert_clean();
}
