//! Whose the files of a pool are: what root creates in the pool of another user is that user's.
//!
//! Root may scrub, reclaim, repair and mount the pools of others, by timers for instance. Files that stay root's (mode 0600) would
//! keep the owner out of the pool. So whoever owns the directory in which root creates something gets it, and by that all of a
//! pool is its root directory's owner's.
//!
//! The owner may exchange names for links meanwhile, so only what this call has created is given, through its descriptor, and to the owner of
//! the very directory in which it was created: a link that leads into root's own directories gains nothing.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{AtFlags, Dir, FileType, Gid, Mode, OFlags, Uid, chownat, fstat, mkdirat, openat, unlinkat};
use rustix::io::{Errno, retry_on_intr};
use rustix::process::geteuid;

/// Creates the file, which must not exist (mode 0600), and opens it with these flags.
pub fn create_file(path: &Path, flags: OFlags) -> io::Result<File> {
    let (parent, name) = parent_of(path)?;
    let flags = flags | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let file = retry_on_intr(|| openat(&parent, name, flags, Mode::RUSR | Mode::WUSR))?;
    if let Err(error) = give(&file, &parent) {
        // Half created: the next attempt shall begin anew. The first error counts.
        let _ = unlinkat(&parent, name, AtFlags::empty());
        return Err(error.into());
    }
    Ok(file.into())
}

/// Opens the file with these flags; creates it (mode 0600) if it is not there.
pub fn open_or_create_file(path: &Path, flags: OFlags) -> io::Result<File> {
    let open = |flags| retry_on_intr(|| rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::RUSR | Mode::WUSR));
    match open(flags) {
        Err(Errno::NOENT) => {}
        opened => return Ok(opened?.into()),
    }
    match create_file(path, flags) {
        // Another was faster, or it is a link to where nothing is yet: that is not the pool's, and stays whose it becomes.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(open(flags | OFlags::CREATE)?.into()),
        created => created,
    }
}

/// Creates one directory; one that is there is no error.
pub(super) fn create_directory(path: &Path, mode: u32) -> io::Result<()> {
    let (parent, name) = parent_of(path)?;
    match mkdirat(&parent, name, Mode::from_raw_mode(mode)) {
        Err(Errno::EXIST) if path.is_dir() => return Ok(()),
        made => made?,
    }
    if heir(&parent)?.is_none() {
        return Ok(());
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = openat(&parent, name, flags, Mode::empty())?;
    // Nothing makes and opens a directory in one: only one that holds nothing can be believed to be the new one.
    if !is_empty(&directory)? {
        return Ok(());
    }
    if let Err(error) = give(&directory, &parent) {
        let _ = unlinkat(&parent, name, AtFlags::REMOVEDIR);
        return Err(error.into());
    }
    Ok(())
}

/// Gives a socket that was bound in the directory to the directory's owner.
pub fn give_socket(directory: &File, name: &str) -> io::Result<()> {
    if heir(directory)?.is_none() {
        return Ok(());
    }
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let socket = openat(directory, name, flags, Mode::empty())?;
    if FileType::from_raw_mode(fstat(&socket)?.st_mode) == FileType::Socket {
        give(&socket, directory)?;
    }
    Ok(())
}

/// Says of a refusal below `root` whose the file is and what can be done about it.
pub(super) fn explain(root: &Path, path: &str, error: io::Error) -> io::Error {
    let own = geteuid().as_raw();
    if error.kind() != io::ErrorKind::PermissionDenied {
        return error;
    }
    let described = |uid: u32| if uid == 0 { "root".to_owned() } else { format!("user {uid}") };
    let Ok(pool) = root.metadata() else { return error };
    if pool.uid() != own {
        let whose = described(pool.uid());
        let message =
            format!("{error}: {} belongs to {whose}, who alone, besides root, may open the pool", root.display());
        return io::Error::new(error.kind(), message);
    }
    let mut place = root.to_owned();
    for part in path.split('/') {
        place.push(part);
        let Ok(found) = place.symlink_metadata() else { break };
        if found.uid() != own {
            let message = format!(
                "{error}: {} belongs to {} and the pool to {}: root can give it back by `chown -R {own}:{} {}`",
                place.display(),
                described(found.uid()),
                described(own),
                pool.gid(),
                root.display()
            );
            return io::Error::new(error.kind(), message);
        }
    }
    error
}

/// The directory of a path, open, and the name in it.
fn parent_of(path: &Path) -> io::Result<(OwnedFd, &std::ffi::OsStr)> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok((rustix::fs::open(parent, flags, Mode::empty())?, name))
}

/// To whom belongs what root creates in this directory; `None` if it stays whose it is.
fn heir(directory: impl AsFd) -> rustix::io::Result<Option<(Uid, Gid)>> {
    if !geteuid().is_root() {
        return Ok(None);
    }
    let found = fstat(directory)?;
    Ok((found.st_uid != 0).then(|| (Uid::from_raw(found.st_uid), Gid::from_raw(found.st_gid))))
}

fn give(new: impl AsFd, directory: impl AsFd) -> rustix::io::Result<()> {
    let Some((uid, gid)) = heir(directory)? else { return Ok(()) };
    match chownat(new, "", Some(uid), Some(gid), AtFlags::EMPTY_PATH) {
        // Filesystems without owners, network disks that do not believe a root, one without the capability: to fail would help
        // nobody, as whoever opens the pool then is told whose the file is.
        Err(error @ (Errno::PERM | Errno::ACCESS | Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP)) => {
            tracing::debug!(%error, uid = uid.as_raw(), "cannot give a new file to the pool's owner");
            Ok(())
        }
        given => given,
    }
}

fn is_empty(directory: impl AsFd) -> rustix::io::Result<bool> {
    for entry in Dir::read_from(directory)? {
        if !matches!(entry?.file_name().to_bytes(), b"." | b"..") {
            return Ok(false);
        }
    }
    Ok(true)
}

#[cfg(test)]
#[path = "owner_tests.rs"]
mod tests;
