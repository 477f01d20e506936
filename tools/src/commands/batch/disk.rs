//! The state of a disk in the pool: its newest version.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use dedupfs_batch::plan::{Disk, Plan};
use rustix::fs::FlockOperation;
use rustix::io::Errno;

use crate::control::{Failure, FailureKind};
use crate::image_version::ImageVersion;
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
    pub(super) image: ImageVersion,
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
        let newest = |name: String| {
            let image = ImageVersion::of(&directory.join(&name)).map_err(cannot)?;
            Ok(image.map(|image| Newest { name, image }))
        };
        let read = name.map_or(Ok(None), newest);
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
        let age = newest.image.checked.and_then(|checked| checked.elapsed().ok());
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
