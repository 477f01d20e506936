//! Hidden directories: `put` and `snapshot` make their tree in one, beside its final name, and rename it when it is whole. `freeze`
//! exchanges it with the live tree, and removes that.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags, RenameFlags, ResolveFlags, XattrFlags};
use rustix::io::Errno;

use crate::control::{Failure, FailureKind, lacks_room};

const HIDDEN_PREFIX: &str = ".dedupfs-put-";
/// Extended attribute of hidden directories: a name alone proves nothing.
const HIDDEN_MARK: &str = "user.dedupfs.put";
const REMOVING_RETRY: Duration = Duration::from_millis(50);

pub(crate) struct HiddenDirectory<'a> {
    parent: &'a File,
    /// Locked while it is in use.
    directory: File,
    pub(crate) ino: u64,
    name: String,
}

impl<'a> HiddenDirectory<'a> {
    /// Makes one beside a new name, and removes those that are abandoned there.
    pub(crate) fn make(parent: &'a File) -> Result<Self, Failure> {
        remove_abandoned(parent);
        let name = format!("{HIDDEN_PREFIX}{:016x}", random());
        let failed = |errno: Errno| {
            let kind = if lacks_room(&errno.into()) { FailureKind::NoSpace } else { FailureKind::Failed };
            let advice =
                if errno == Errno::ROFS { ": the pool is mounted read-only: mount it for writing" } else { "" };
            kind.because(format!("cannot make a directory beside the new name: {errno}{advice}"))
        };
        rustix::fs::mkdirat(parent, &name, Mode::RWXU).map_err(failed)?;
        let open = || {
            let directory = open_directory(parent, name.as_bytes())?;
            rustix::fs::flock(&directory, FlockOperation::NonBlockingLockExclusive)?;
            // Set the mark after the lock: a directory with the mark and without a lock is abandoned.
            rustix::fs::fsetxattr(&directory, HIDDEN_MARK, b"", XattrFlags::empty())?;
            // Everything in the tree would inherit a default access list of the directory above.
            match rustix::fs::fremovexattr(&directory, "system.posix_acl_default") {
                Ok(()) | Err(Errno::NODATA | Errno::OPNOTSUPP) => {}
                Err(errno) => return Err(errno),
            }
            Ok((rustix::fs::fstat(&directory)?.st_ino, directory))
        };
        let (ino, directory) = open().map_err(|errno| {
            let _removed = rustix::fs::unlinkat(parent, &name, AtFlags::REMOVEDIR);
            failed(errno)
        })?;
        Ok(Self { parent, directory, ino, name })
    }

    /// Gives the tree in the hidden directory its final name, which is `shown` in messages.
    pub(crate) fn give_name(&self, name: &OsStr, shown: &Path) -> Result<(), Failure> {
        let shown = shown.display();
        let renamed = rustix::fs::renameat_with(&self.directory, name, self.parent, name, RenameFlags::NOREPLACE);
        renamed.map_err(|errno| match errno {
            Errno::EXIST => Failure::failed(format!("{shown} was made meanwhile: nothing was copied there")),
            Errno::ACCESS => Failure::failed(format!(
                "cannot rename the copy to {shown}: {errno}. The mode of the copied directory does not let its owner write to it: \
                 run as root, or `chmod u+w` the directory first"
            )),
            errno => Failure::failed(format!("cannot rename the copy to {shown}: {errno}")),
        })
    }

    /// Exchanges the tree in the hidden directory with what has its name beside it.
    ///
    /// # Errors
    /// EBUSY if that was changed since the tree was made.
    pub(crate) fn exchange(&self, name: &OsStr) -> Result<(), Errno> {
        rustix::fs::renameat_with(&self.directory, name, self.parent, name, RenameFlags::EXCHANGE)
    }

    /// Removes the hidden directory with the live tree in it. `go_on` is called for each removed entry, and can end the removal. Says
    /// where the rest is.
    pub(crate) fn remove_live(&self, beside: &Path, go_on: &dyn Fn() -> bool) -> Result<(), String> {
        let removed = empty(&self.directory, go_on)
            .and_then(|()| Ok(rustix::fs::unlinkat(self.parent, &self.name, AtFlags::REMOVEDIR)?));
        removed.map_err(|error| {
            let directory = beside.parent().unwrap_or(Path::new("."));
            let left = directory.join(&self.name);
            format!(
                "the live tree is left over in {}: {error}. The next put, snapshot or freeze beside it removes it, or `rm -r`",
                left.display()
            )
        })
    }

    /// Removes the hidden directory, and tells if it is left over. `beside` is the new name.
    pub(crate) fn remove_or_tell(&self, beside: &Path) {
        if let Err(error) = self.remove() {
            let directory = beside.parent().unwrap_or(Path::new("."));
            eprintln!("dedupfs: {} is left over: {error}", directory.join(&self.name).display());
        }
    }

    /// Removes the hidden directory and any unnamed copy in it. Waits while the daemon itself removes the copy.
    fn remove(&self) -> std::io::Result<()> {
        loop {
            match empty(&self.directory, &|| true) {
                Err(error) if error.raw_os_error() == Some(Errno::BUSY.raw_os_error()) => {
                    std::thread::sleep(REMOVING_RETRY);
                }
                Err(error) => return Err(error),
                Ok(()) => return Ok(rustix::fs::unlinkat(self.parent, &self.name, AtFlags::REMOVEDIR)?),
            }
        }
    }
}

fn open_directory(parent: &File, name: &[u8]) -> Result<File, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(parent, name, flags, Mode::empty()).map(File::from)
}

fn path_of(directory: &File) -> PathBuf {
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
fn empty(top: &File, go_on: &dyn Fn() -> bool) -> std::io::Result<()> {
    let mut directory = top.try_clone()?;
    // The names on the way down, each with device and inode of the directory that contains it.
    let mut way: Vec<(OsString, (u64, u64))> = Vec::new();
    loop {
        if let Some(name) = remove_all_but_directories(&directory, go_on)? {
            // A version goes at once, and nothing in it can be removed.
            if rustix::fs::unlinkat(&directory, &name, AtFlags::REMOVEDIR).is_ok() {
                continue;
            }
            let _as_far_as_it_goes = rustix::fs::chmodat(&directory, &name, Mode::RWXU, AtFlags::empty());
            let below = open_below(&directory, name.as_bytes())?;
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

/// Whether an open directory is one of these.
pub(crate) fn is_hidden(directory: &File) -> bool {
    rustix::fs::fgetxattr(directory, HIDDEN_MARK, &mut [0; 16]).is_ok()
}

fn random() -> u64 {
    let mut bytes = [0; 8];
    // After boot the kernel's generator always succeeds. If not, a name that is taken is an error of its own.
    let _count = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    u64::from_ne_bytes(bytes)
}

/// Removes hidden directories that a crash or a killed process has left. They have the prefix and the mark, belong to this process's user,
/// and are not locked. A directory in which a daemon still works cannot be opened.
fn remove_abandoned(parent: &File) {
    let Ok(entries) = std::fs::read_dir(path_of(parent)) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let is_named_so =
            name.as_bytes().strip_prefix(HIDDEN_PREFIX.as_bytes()).is_some_and(|number| number.len() == 16);
        let Some(directory) = is_named_so.then(|| open_directory(parent, name.as_bytes()).ok()).flatten() else {
            continue;
        };
        let is_marked = is_hidden(&directory);
        let is_own = rustix::fs::fstat(&directory).is_ok_and(|stat| stat.st_uid == rustix::process::geteuid().as_raw());
        if is_marked
            && is_own
            && rustix::fs::flock(&directory, FlockOperation::NonBlockingLockExclusive).is_ok()
            && empty(&directory, &|| true).is_ok()
            && rustix::fs::unlinkat(parent, &name, AtFlags::REMOVEDIR).is_ok()
        {
            eprintln!("dedupfs: removed what an interrupted put, snapshot or freeze had left in {}", name.display());
        }
    }
}
