//! Paths inside mounts, as `dedupfs put` and `get` take them.

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::control::{ControlClient, Failure, FailureKind};
use dedupfs_store::device::FileDevice;
use dedupfs_store::superblock::{Role, Superblock};
use rustix::fs::{AtFlags, statat};

use crate::mountinfo;

/// An open directory or file in a mounted pool.
pub struct Inside {
    /// Its inode number.
    pub ino: u64,
    /// The mount's device number.
    pub device: u64,
    /// The pool's meta root.
    pub pool: PathBuf,
}

/// Returns the pool that holds an open file; `None` if the file is in no dedupfs.
pub fn find(file: &File) -> Result<Option<Inside>, Failure> {
    let metadata = file.metadata().map_err(|error| Failure::failed(format!("cannot look at it: {error}")))?;
    let device = metadata.dev();
    let name = format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
    let mounts = mountinfo::read()?;
    let mount = mounts.iter().find(|mount| mount.is_dedupfs() && mount.device == name);
    Ok(mount.map(|mount| Inside { ino: metadata.ino(), device, pool: mount.source.clone() }))
}

/// Connects to the daemon of a pool.
pub fn daemon(pool: &Path) -> Result<ControlClient, Failure> {
    let advice =
        |failure: Failure| Failure::new(failure.kind, format!("{failure}; `cp -a` and rsync need only the mount"));
    crate::silence::connect(pool).map_err(advice)?.ok_or_else(|| {
        Failure::failed(format!(
            "the daemon of pool {} does not answer: if it was killed, mount the pool again",
            pool.display()
        ))
    })
}

/// Returns device and inode of the pool's root directories, as far as they can be found.
#[must_use]
pub fn roots(pool: &Path) -> Vec<(u64, u64)> {
    let data = FileDevice::open(pool).and_then(|device| Superblock::read(&device, Role::Meta));
    let data = data.ok().map(|superblock| superblock.data_root_path(pool));
    let roots = [Some(pool.to_owned()), data].into_iter().flatten();
    roots.filter_map(|root| std::fs::metadata(root).ok()).map(|root| (root.dev(), root.ino())).collect()
}

/// A name to be made: the open directory, and the name in it.
pub struct NewName {
    /// The directory.
    pub directory: File,
    /// The last part of the path.
    pub name: std::ffi::OsString,
}

impl NewName {
    /// Opens the directory of a path whose last part does not exist yet.
    ///
    /// # Errors
    /// The path exists, its directory does not, or it has no last part.
    pub fn at(path: &Path) -> Result<Self, Failure> {
        let shown = path.display();
        let name = path.file_name().ok_or_else(|| {
            Failure::new(FailureKind::Usage, format!("{shown} is there already: give the new name as well"))
        })?;
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let directory = File::open(parent)
            .and_then(|directory| match directory.metadata()?.is_dir() {
                true => Ok(directory),
                false => Err(std::io::ErrorKind::NotADirectory.into()),
            })
            .map_err(|error| Failure::failed(format!("cannot open {}: {error}", parent.display())))?;
        match statat(directory.as_fd(), name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(_) => Err(Failure::new(FailureKind::Usage, format!("{shown} is there already: give a new name"))),
            Err(rustix::io::Errno::NOENT) => Ok(Self { directory, name: name.to_owned() }),
            Err(errno) => Err(Failure::failed(format!("cannot look at {shown}: {errno}"))),
        }
    }
}
