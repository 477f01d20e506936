//! The state of a disk in the pool: its newest version.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use dedupfs::transfer::{CHECKED_XATTR, TOKEN_BYTES_MAX, TOKEN_XATTR};
use dedupfs_batch::plan::{Disk, Plan};
use rustix::fs::FlockOperation;
use rustix::io::Errno;

use crate::control::{Failure, FailureKind};
use crate::versions::Directory;

/// A disk, and its newest version.
#[derive(Clone, Debug)]
pub(super) struct State {
    /// Its place in the plan.
    pub(super) number: usize,
    pub(super) directory: PathBuf,
    pub(super) newest: Option<Newest>,
    /// Why versions cannot be looked up: then nothing is put, and the other disks go on.
    pub(super) problem: Option<String>,
    /// Why the newest version cannot be read: then all of the disk is.
    pub(super) full_because: Option<String>,
}

#[derive(Clone, Debug)]
pub(super) struct Newest {
    pub(super) name: String,
    pub(super) size_bytes: u64,
    pub(super) token: Option<String>,
    pub(super) checked: Option<SystemTime>,
}

impl State {
    /// Looks up the newest version of a disk.
    pub(super) fn of(plan: &Plan, number: usize, pool: &Directory) -> Result<Self, Failure> {
        let Some(disk) = plan.disks.get(number) else { return Err(Failure::failed("a disk of the plan is gone")) };
        let directory = plan.pool.join(&disk.name);
        let (name, problem) = match look_up(plan, &directory, pool) {
            Ok(name) => (name, None),
            Err(failure) => (None, Some(failure.message)),
        };
        let cannot = |error| format!("cannot read {}: {error}", directory.display());
        let read = name.map_or(Ok(None), |name| newest(&directory, &name).map_err(cannot));
        let (newest, full_because) = read.map_or_else(|why| (None, Some(why)), |newest| (newest, None));
        Ok(Self { number, directory, newest, problem, full_because })
    }

    /// Makes the directory of its versions, and locks it: two batches of one disk would undo each other's checkpoints.
    pub(super) fn lock_directory(&self) -> Result<File, String> {
        if let Some(problem) = &self.problem {
            return Err(problem.clone());
        }
        let shown = self.directory.display();
        let made = std::fs::create_dir_all(&self.directory).and_then(|()| File::open(&self.directory));
        let directory = made.map_err(|error| format!("cannot make {shown}: {error}"))?;
        match rustix::fs::flock(&directory, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(directory),
            Err(Errno::WOULDBLOCK) => Err(format!("another batch puts versions into {shown}")),
            Err(errno) => Err(format!("cannot lock {shown}: {errno}")),
        }
    }

    /// Whether everything is to be compared this time.
    pub(super) fn needs_full_verify(&self, plan: &Plan) -> bool {
        let Some((every, newest)) = plan.full_verify_every().zip(self.newest.as_ref()) else { return false };
        // A time in the future proves nothing.
        let age = newest.checked.and_then(|checked| checked.elapsed().ok());
        age.is_none_or(|age| age >= every)
    }

    pub(super) fn disk<'a>(&self, plan: &'a Plan) -> Option<&'a Disk> {
        plan.disks.get(self.number)
    }
}

/// Returns the name of the newest complete version in a directory of the pool.
fn look_up(plan: &Plan, directory: &Path, pool: &Directory) -> Result<Option<String>, Failure> {
    match std::fs::metadata(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Failure::failed(format!("cannot look up {}: {error}", directory.display()))),
        Ok(_) => {}
    }
    let found = Directory::open_any(directory)?;
    if found.place.device != pool.place.device {
        let why = format!("{} is in another mount than {}", directory.display(), plan.pool.display());
        return Err(FailureKind::Usage.because(why));
    }
    let versions = found.daemon()?.versions(Some(found.place.ino))?;
    let complete = versions.into_iter().rev().find(|version| !version.incomplete && version.damaged.is_none());
    Ok(complete.map(|version| version.name))
}

/// Returns what is known of a version, if it is that of one image. What cannot be read is no reason to put nothing.
fn newest(directory: &Path, name: &str) -> io::Result<Option<Newest>> {
    let mut entries = std::fs::read_dir(directory.join(name))?;
    let (Some(first), None) = (entries.next(), entries.next()) else { return Ok(None) };
    let file = first?.path();
    let metadata = std::fs::symlink_metadata(&file)?;
    if !metadata.is_file() {
        return Ok(None);
    }
    let attribute = |name: &[u8]| {
        let mut value = vec![0; TOKEN_BYTES_MAX + 1];
        match rustix::fs::lgetxattr(&file, name, &mut value) {
            // What is no text, or longer, no put wrote.
            Ok(len) => Ok(String::from_utf8(value.get(..len).unwrap_or_default().to_vec()).ok()),
            Err(Errno::NODATA | Errno::RANGE | Errno::OPNOTSUPP) => Ok(None),
            Err(errno) => Err(io::Error::from(errno)),
        }
    };
    let checked = attribute(CHECKED_XATTR)?.and_then(|secs| secs.parse().ok());
    Ok(Some(Newest {
        name: name.to_owned(),
        size_bytes: metadata.len(),
        token: attribute(TOKEN_XATTR)?,
        checked: checked.and_then(|secs| UNIX_EPOCH.checked_add(Duration::from_secs(secs))),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_that_cannot_be_read_is_told_apart_from_one_of_no_image() {
        let directory = tempfile::tempdir().expect("makes");
        let version = directory.path().join("1");
        assert!(newest(directory.path(), "1").is_err(), "it is gone");
        std::fs::create_dir(&version).expect("makes");
        assert!(newest(directory.path(), "1").expect("reads").is_none(), "it is empty");
        std::fs::write(version.join("disk0"), [7; 4096]).expect("writes");
        let found = newest(directory.path(), "1").expect("reads").expect("is an image");
        assert_eq!((found.name.as_str(), found.size_bytes, found.token, found.checked), ("1", 4096, None, None));
        std::fs::write(version.join("disk1"), []).expect("writes");
        assert!(newest(directory.path(), "1").expect("reads").is_none(), "it has two files");
    }
}
