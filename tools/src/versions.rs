//! Directories of a mount that hold versions, as the commands for versions take them.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use dedupfs::retention::Rules;
use dedupfs::{Progress as _, WouldFree, is_frozen};
use rustix::fs::{AtFlags, FileType, statat};
use rustix::io::Errno;

use crate::control::{ControlClient, Failure, FailureKind};
use crate::inside::{self, Inside};
use crate::interrupt;
use crate::progress::Bars;

/// Text behind messages about a daemon that cannot be asked.
const ADVICE: &str = "; versions can be read without it as long as the mount serves";

/// An open directory in a mount.
pub(crate) struct Directory {
    pub(crate) file: File,
    pub(crate) place: Inside,
}

impl Directory {
    /// Opens a live directory in a mount.
    pub(crate) fn open(path: &Path) -> Result<Self, Failure> {
        let directory = Self::open_any(path)?;
        match is_frozen(directory.place.ino) {
            false => Ok(directory),
            true => Err(FailureKind::Usage.because(format!(
                "{} is a version, or lies in one: name the directory that holds versions",
                path.display()
            ))),
        }
    }

    /// Opens a directory, also one in a version; `None` if the path leads to none in a mount that serves.
    pub(crate) fn if_mounted(path: &Path) -> Result<Option<Self>, Failure> {
        let Ok((file, metadata)) = inside::open_source(path) else { return Ok(None) };
        if !metadata.is_dir() {
            return Ok(None);
        }
        Ok(inside::find(&file)?.map(|place| Self { file, place }))
    }

    /// Opens a directory in a mount, also one in a version.
    pub(crate) fn open_any(path: &Path) -> Result<Self, Failure> {
        let shown = path.display();
        let (file, metadata) = inside::open_source(path)?;
        if !metadata.is_dir() {
            return Err(FailureKind::Usage.because(format!("{shown} is no directory")));
        }
        match inside::find(&file)? {
            Some(place) => Ok(Self { file, place }),
            None => Err(FailureKind::Usage.because(format!(
                "{shown} is in no mounted dedupfs: versions lie in one, and `dedupfs mount POOL MNT` mounts it"
            ))),
        }
    }

    /// Connects to the daemon that serves the directory.
    pub(crate) fn daemon(&self) -> Result<ControlClient, Failure> {
        inside::daemon(&self.place.pool, ADVICE)
    }

    /// Returns the inode number of a name, if it is a directory.
    fn directory_named(&self, name: &OsStr) -> Result<Option<u64>, Errno> {
        match statat(&self.file, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::Directory => Ok(Some(stat.st_ino)),
            Ok(_) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    /// Returns the inode number of a version. `path` is for messages.
    pub(crate) fn version_named(&self, name: &OsStr, path: &Path) -> Result<u64, Failure> {
        let shown = path.display();
        let found = self.directory_named(name).map_err(|errno| match errno {
            Errno::NOENT => Failure::failed(format!("{shown} does not exist")),
            errno => Failure::failed(format!("cannot look at {shown}: {errno}")),
        })?;
        let advice = if found.is_some() { "`rm -r` removes a live directory" } else { "`rm` removes it" };
        found
            .filter(|ino| is_frozen(*ino))
            .ok_or_else(|| FailureKind::Usage.because(format!("{shown} is no version: {advice}")))
    }

    /// Removes a version. It is durable after [`sync`](Self::sync). `expected` is its inode number, if it is known.
    pub(crate) fn forget(
        &self,
        daemon: &mut ControlClient,
        name: &OsStr,
        expected: Option<u64>,
        path: &Path,
    ) -> Result<(), Failure> {
        let shown = path.display();
        let found = self.version_named(name, path)?;
        if expected.is_some_and(|expected| found != expected) {
            return Err(Failure::failed(format!("{shown} was renamed or replaced meanwhile: it is kept")));
        }
        // A usage error means that the name has changed meanwhile: the command line is valid.
        let allowed = daemon.allow_forgetting(self.place.ino, name.as_bytes(), found);
        allowed
            .map_err(|failure| failure.usage_as(FailureKind::Failed).while_trying(&format!("cannot remove {shown}")))?;
        rustix::fs::unlinkat(&self.file, name, AtFlags::REMOVEDIR).map_err(|errno| {
            let advice = match errno {
                Errno::ACCESS => ": this takes the right to write to the directory that holds it",
                Errno::PERM => ": flags of the directory forbid it (`lsattr -d` shows them), or it is another user's",
                Errno::BUSY => ": something is mounted on it",
                _ => "",
            };
            Failure::failed(format!("cannot remove {shown}: {errno}{advice}"))
        })
    }

    /// Makes removed and new names durable.
    pub(crate) fn sync(&self, path: &Path) -> Result<(), Failure> {
        self.file.sync_all().map_err(|error| {
            Failure::failed(format!(
                "changes in {} could not be made durable: {error}; see the pool's log",
                path.display()
            ))
        })
    }
}

/// Asks the daemon for the bytes that the removal of these inodes would free. Tells its progress, and ends with a signal.
pub(crate) fn would_free(daemon: &mut ControlClient, inos: Vec<u64>) -> Result<WouldFree, Failure> {
    let bars = Bars::default();
    let progress = interrupt::ended_by_signals(&bars)?;
    let told = daemon.would_free(inos, &progress);
    bars.finish();
    if progress.is_cancelled() {
        return Err(Failure::failed("interrupted"));
    }
    told
}

/// Refuses rules that keep nothing without saying so.
pub(crate) fn check_rules(rules: Rules) -> Result<Rules, Failure> {
    if rules.is_empty() && !rules.keep_none && rules.free_until.is_none() {
        return Err(FailureKind::Usage.because(
            "these rules keep no version: give others, such as `--keep-last 3 --keep-daily 7`, or --keep-none if that is intended",
        ));
    }
    Ok(rules)
}
