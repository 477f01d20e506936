//! The owner of a pool's files: files that root creates in another user's pool belong to that user.
//!
//! Root may scrub, reclaim, repair and mount the pools of others, by timers for instance. Files that stay root's (mode
//! 0600) would lock the owner out of the pool. So each new file goes to the owner of the directory in which root
//! creates it. By that rule the owner of the root directory owns the whole pool.
//!
//! The owner may exchange names for links meanwhile. So only a file that this call has created is given away, through
//! its descriptor, and to the owner of the very directory in which it was created. A link into root's own directories
//! gains nothing.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{AtFlags, Dir, FileType, Gid, Mode, OFlags, Uid, chownat, fstat, mkdirat, openat, unlinkat};
use rustix::io::{Errno, retry_on_intr};
use rustix::process::geteuid;

/// Creates the file (mode 0600), which must not exist, and opens it with these flags.
pub(super) fn create_file(path: &Path, flags: OFlags) -> io::Result<File> {
    let (parent, name) = parent_of(path)?;
    let flags = flags | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let file = retry_on_intr(|| openat(&parent, name, flags, Mode::RUSR | Mode::WUSR))?;
    if let Err(error) = give(&file, &parent) {
        // Remove the half-created file, so that the next attempt begins anew. The first error counts.
        let _ = unlinkat(&parent, name, AtFlags::empty());
        return Err(error.into());
    }
    Ok(file.into())
}

/// Opens the file with these flags; creates it (mode 0600) if it does not exist.
pub fn open_or_create_file(path: &Path, flags: OFlags) -> io::Result<File> {
    let open = |flags| retry_on_intr(|| rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::RUSR | Mode::WUSR));
    match open(flags) {
        Err(Errno::NOENT) => {}
        opened => return Ok(opened?.into()),
    }
    match create_file(path, flags) {
        // Another process was faster, or the name is a link to a missing file. Such a file is not the pool's and is not
        // given away.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(open(flags | OFlags::CREATE)?.into()),
        created => created,
    }
}

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
    // No call makes and opens a directory in one step. Only an empty directory can be trusted to be the new one.
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

#[derive(Debug, thiserror::Error)]
#[error("{source}: {explanation}")]
struct Explained {
    source: io::Error,
    explanation: String,
}

/// Adds to a refusal below `root` the owner of the file and a remedy.
pub(super) fn explain(root: &Path, path: &str, error: io::Error) -> io::Error {
    if error.kind() != io::ErrorKind::PermissionDenied {
        return error;
    }
    match explanation(root, path) {
        Some(explanation) => io::Error::new(error.kind(), Explained { source: error, explanation }),
        None => error,
    }
}

fn explanation(root: &Path, path: &str) -> Option<String> {
    let own = geteuid().as_raw();
    let described = |uid: u32| if uid == 0 { "root".to_owned() } else { format!("user {uid}") };
    let (pool, shown_root) = (root.metadata().ok()?, root.display());
    if pool.uid() != own {
        let whose = described(pool.uid());
        return Some(format!("{shown_root} belongs to {whose}; only its owner and root may open the pool"));
    }
    let mut place = root.to_owned();
    for part in path.split('/') {
        place.push(part);
        let found = place.symlink_metadata().ok()?;
        if found.uid() != own {
            let (whose, me, group) = (described(found.uid()), described(own), pool.gid());
            return Some(format!(
                "{} belongs to {whose} and the pool to {me}: root can give it back by `chown -R {own}:{group} {shown_root}`",
                place.display()
            ));
        }
    }
    None
}

fn parent_of(path: &Path) -> io::Result<(OwnedFd, &std::ffi::OsStr)> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok((rustix::fs::open(parent, flags, Mode::empty())?, name))
}

/// The owner for files that root creates in this directory; `None` if they keep their owner.
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
        // Filesystems without owners, network disks that do not trust root, a root without the capability: failing
        // would help nobody. The next user to open the pool learns from `explain` whose the file is.
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
