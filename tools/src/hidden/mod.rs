//! Hidden directories: `put`, `snapshot` and `thaw` make their tree in one, beside its final name, and rename it when it is whole. `freeze`
//! exchanges its version with the live tree, and removes the live tree.
//!
//! One in which a put has left an incomplete version stays when the put ends early. The next put of the same source goes
//! on from it, and removes it when it is complete itself. If none comes within [`EXPIRES_AFTER`], any put, snapshot,
//! freeze, thaw or prune there removes it.

mod emptying;

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use dedupfs::{INCOMPLETE_PREFIX, Origin, is_frozen};
use rustix::fs::{AtFlags, FlockOperation, Mode, RenameFlags, XattrFlags};
use rustix::io::Errno;

pub(crate) use self::emptying::open_directory;
use self::emptying::{empty, path_of};
use crate::control::{Failure, FailureKind, lacks_room};

const HIDDEN_PREFIX: &str = ".dedupfs-put-";
/// Extended attribute of hidden directories: a name alone proves nothing. Its value tells the source of a put, in
/// [`SOURCE_BYTES`] hexadecimal digits, or is empty.
const HIDDEN_MARK: &str = "user.dedupfs.put";
const SOURCE_BYTES: usize = 16;
const REMOVING_RETRY: Duration = Duration::from_millis(50);
/// Time within which the daemon ends work for a command that has ended.
const DAEMON_ENDS_WITHIN: Duration = Duration::from_secs(600);
/// Time for which an incomplete version waits to be resumed. Also a monthly backup can go on.
const EXPIRES_AFTER: Duration = Duration::from_secs(35 * 24 * 3600);
/// Time after which an empty directory of such a name counts as abandoned although it has no mark: a command gives it the mark at once,
/// unless it was killed before.
const MARKED_WITHIN: Duration = Duration::from_secs(60);

pub(crate) struct HiddenDirectory<'a> {
    parent: &'a File,
    /// Locked while it is in use.
    directory: File,
    pub(crate) ino: u64,
    name: String,
}

impl<'a> HiddenDirectory<'a> {
    /// Makes one beside a new name, and removes those that are abandoned there. `origin` is the source of a version.
    pub(crate) fn make(parent: &'a File, origin: Option<&Origin>) -> Result<Self, Failure> {
        remove_abandoned(parent);
        let source = origin.map_or_else(String::new, source_of);
        let name = format!("{HIDDEN_PREFIX}{:016x}", random());
        let failed = |errno: Errno| {
            let kind = if lacks_room(&errno.into()) { FailureKind::NoSpace } else { FailureKind::Failed };
            let is_in_version = parent.metadata().is_ok_and(|metadata| is_frozen(metadata.ino()));
            let advice = match errno {
                Errno::ROFS if is_in_version => {
                    ": it lies in a version, which never changes: choose a place beside versions"
                }
                Errno::ROFS => ": the pool is mounted read-only: mount it for writing",
                _ => "",
            };
            kind.because(format!("cannot make a directory beside the new name: {errno}{advice}"))
        };
        rustix::fs::mkdirat(parent, &name, Mode::RWXU).map_err(failed)?;
        let open = || {
            let directory = open_directory(parent, name.as_bytes())?;
            rustix::fs::flock(&directory, FlockOperation::NonBlockingLockExclusive)?;
            // Set the mark after the lock: a directory with the mark and without a lock is abandoned.
            rustix::fs::fsetxattr(&directory, HIDDEN_MARK, source.as_bytes(), XattrFlags::empty())?;
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
            format!(
                "the live tree is left over in {}: {error}. The next put, snapshot or freeze beside it removes it, or `rm -r`",
                self.place(beside).display()
            )
        })
    }

    /// Removes the hidden directory, and tells if it is left over. `beside` is the new name.
    pub(crate) fn remove_or_tell(&self, beside: &Path) {
        if let Err(error) = self.remove() {
            eprintln!("dedupfs: {} is left over: {error}", self.place(beside).display());
        }
    }

    /// Keeps the hidden directory of a put that ended early if an incomplete version is in it, and tells so. Else as
    /// [`remove_or_tell`](Self::remove_or_tell).
    pub(crate) fn keep_incomplete(&self, beside: &Path) {
        match once_daemon_ends(|| holds_incomplete(&self.directory)) {
            Ok(true) => {
                eprintln!(
                    "dedupfs: what is copied stays in {}: the next put of this source goes on from it",
                    self.place(beside).display()
                );
            }
            _ => self.remove_or_tell(beside),
        }
    }

    /// Returns its path, given one beside it.
    fn place(&self, beside: &Path) -> PathBuf {
        beside.parent().unwrap_or(Path::new(".")).join(&self.name)
    }

    /// Removes the hidden directory and any unnamed copy in it. Waits while the daemon itself removes the copy.
    fn remove(&self) -> std::io::Result<()> {
        once_daemon_ends(|| empty(&self.directory, &|| true))?;
        Ok(rustix::fs::unlinkat(self.parent, &self.name, AtFlags::REMOVEDIR)?)
    }
}

/// Looks into a hidden directory. Waits while the daemon works in it, but not for ever.
fn once_daemon_ends<T>(look: impl Fn() -> std::io::Result<T>) -> std::io::Result<T> {
    let until = Instant::now() + DAEMON_ENDS_WITHIN;
    loop {
        match look() {
            Err(error) if error.raw_os_error() == Some(Errno::BUSY.raw_os_error()) && Instant::now() < until => {
                std::thread::sleep(REMOVING_RETRY);
            }
            outcome => return outcome,
        }
    }
}

fn source_of(origin: &Origin) -> String {
    format!("{:016x}", origin.checksum())
}

fn holds_incomplete(directory: &File) -> std::io::Result<bool> {
    use std::os::unix::fs::DirEntryExt;
    for entry in std::fs::read_dir(path_of(directory))? {
        let entry = entry?;
        if is_frozen(entry.ino()) && entry.file_name().as_bytes().starts_with(INCOMPLETE_PREFIX.as_bytes()) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether an open directory is one of these.
pub(crate) fn is_hidden(directory: &File) -> bool {
    rustix::fs::fgetxattr(directory, HIDDEN_MARK, &mut [0; SOURCE_BYTES]).is_ok()
}

fn random() -> u64 {
    let mut bytes = [0; 8];
    // After boot the kernel's generator always succeeds. If not, a name that is taken is an error of its own.
    let _count = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    u64::from_ne_bytes(bytes)
}

/// Removes hidden directories that a crash or a killed process has left, but those with an incomplete version that has not expired.
pub(crate) fn remove_abandoned(parent: &File) {
    remove_abandoned_if(parent, &|directory, _| Ok(!holds_incomplete(directory)? || has_expired(directory)?));
}

/// Removes what puts that ended early have left of a source, of which a put is complete now.
pub(crate) fn remove_superseded(parent: &File, origin: &Origin) {
    let own = source_of(origin);
    remove_abandoned_if(parent, &|_, source| Ok(source == own.as_bytes()));
}

fn has_expired(directory: &File) -> std::io::Result<bool> {
    is_older(directory, EXPIRES_AFTER)
}

fn is_older(directory: &File, limit: Duration) -> std::io::Result<bool> {
    let age = SystemTime::now().duration_since(directory.metadata()?.modified()?);
    Ok(age.is_ok_and(|age| age > limit))
}

/// Removes those abandoned directories that `is_wanted` tells by the value of the mark. Abandoned ones have the prefix and the mark, belong
/// to this process's user, and are not locked. A directory in which a daemon still works cannot be looked into.
fn remove_abandoned_if(parent: &File, is_wanted: &dyn Fn(&File, &[u8]) -> std::io::Result<bool>) {
    let Ok(entries) = std::fs::read_dir(path_of(parent)) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let is_named_so =
            name.as_bytes().strip_prefix(HIDDEN_PREFIX.as_bytes()).is_some_and(|number| number.len() == 16);
        let Some(directory) = is_named_so.then(|| open_directory(parent, name.as_bytes()).ok()).flatten() else {
            continue;
        };
        let mut mark = [0; SOURCE_BYTES];
        let len = rustix::fs::fgetxattr(&directory, HIDDEN_MARK, &mut mark);
        let source = len.ok().and_then(|len| mark.get(..len));
        let is_own = rustix::fs::fstat(&directory).is_ok_and(|stat| stat.st_uid == rustix::process::geteuid().as_raw());
        let is_unmarked = matches!(len, Err(Errno::NODATA)) && is_own;
        if is_unmarked && is_older(&directory, MARKED_WITHIN).unwrap_or(false) {
            // Fails if it is not empty: then it is somebody's.
            let _removed = rustix::fs::unlinkat(parent, &name, AtFlags::REMOVEDIR);
            continue;
        }
        if let Some(source) = source
            && is_own
            && rustix::fs::flock(&directory, FlockOperation::NonBlockingLockExclusive).is_ok()
            && is_wanted(&directory, source).unwrap_or(false)
            && empty(&directory, &|| true).is_ok()
            && rustix::fs::unlinkat(parent, &name, AtFlags::REMOVEDIR).is_ok()
        {
            eprintln!("dedupfs: removed what an interrupted command had left in {}", name.display());
        }
    }
}
