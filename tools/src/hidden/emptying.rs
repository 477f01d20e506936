//! Removing a tree of any depth, with few open files.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

/// Opens a directory in a directory.
pub(crate) fn open_directory(parent: &File, name: &[u8]) -> Result<File, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(parent, name, flags, Mode::empty()).map(File::from)
}

/// Returns a path that leads to an open directory in this process.
pub(super) fn path_of(directory: &File) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", directory.as_raw_fd()))
}

/// Opens a directory in a directory, but not one of another filesystem that is mounted on it: a live tree that was frozen may have some.
fn open_below(directory: &File, name: &[u8]) -> std::io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = rustix::fs::openat2(directory, name, flags, Mode::empty(), ResolveFlags::NO_XDEV);
    opened.map(File::from).map_err(|errno| match errno {
        Errno::XDEV => {
            std::io::Error::other(format!("something is mounted on {}", Path::new(OsStr::from_bytes(name)).display()))
        }
        errno => errno.into(),
    })
}

/// Removes everything in a directory, also from directories that their owner may not write to. Keeps one directory open at a time, at any
/// depth. `go_on` is called for each entry, and can end it.
pub(super) fn empty(top: &File, go_on: &dyn Fn() -> bool) -> std::io::Result<()> {
    let mut directory = top.try_clone()?;
    // The names on the way down, each with device and inode of the directory that contains it.
    let mut way: Vec<(OsString, (u64, u64))> = Vec::new();
    loop {
        if let Some(name) = remove_all_but_directories(&directory, go_on)? {
            // A version goes at once, and nothing in it can be removed.
            if rustix::fs::unlinkat(&directory, &name, AtFlags::REMOVEDIR).is_ok() {
                continue;
            }
            let below = open_below(&directory, name.as_bytes()).or_else(|error| match error.kind() {
                std::io::ErrorKind::PermissionDenied => {
                    rustix::fs::chmodat(&directory, &name, Mode::RWXU, AtFlags::empty())?;
                    open_below(&directory, name.as_bytes())
                }
                _ => Err(error),
            })?;
            let _as_far_as_it_goes = rustix::fs::fchmod(&below, Mode::RWXU);
            way.push((name, identity(&directory)?));
            directory = below;
            continue;
        }
        let Some((name, is)) = way.pop() else { return Ok(()) };
        let above = open_directory(&directory, b"..")?;
        if identity(&above)? != is {
            return Err(std::io::Error::other("a directory was moved while it was removed"));
        }
        rustix::fs::unlinkat(&above, &name, AtFlags::REMOVEDIR)?;
        check(go_on)?;
        directory = above;
    }
}

fn identity(directory: &File) -> std::io::Result<(u64, u64)> {
    directory.metadata().map(|metadata| (metadata.dev(), metadata.ino()))
}

fn check(go_on: &dyn Fn() -> bool) -> std::io::Result<()> {
    if go_on() { Ok(()) } else { Err(std::io::Error::other("interrupted")) }
}

fn remove_all_but_directories(directory: &File, go_on: &dyn Fn() -> bool) -> std::io::Result<Option<OsString>> {
    let mut first = None;
    for entry in std::fs::read_dir(path_of(directory))? {
        let entry = entry?;
        match entry.file_type()?.is_dir() {
            // The first pass removes all files. Later passes find one directory after the other.
            true => {
                first.get_or_insert(entry.file_name());
            }
            false => {
                rustix::fs::unlinkat(directory, entry.file_name(), AtFlags::empty())?;
                check(go_on)?;
            }
        }
    }
    Ok(first)
}
