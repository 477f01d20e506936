//! Paths inside mounts, as `dedupfs put` and `get` take them.

use std::fs::{File, Metadata, OpenOptions};
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use dedupfs::transfer::TransferReport;
use rustix::fs::{AtFlags, OFlags, statat};

use crate::control::{ControlClient, Failure, FailureKind};
use crate::{exit, mount, mountinfo, report};

pub(crate) struct Inside {
    pub(crate) ino: u64,
    pub(crate) device: u64,
    pub(crate) pool: PathBuf,
}

/// Returns the step that helps after a failed opening, if there is a certain one.
fn advice(error: &std::io::Error) -> &'static str {
    match error.raw_os_error().map(rustix::io::Errno::from_raw_os_error) {
        Some(rustix::io::Errno::NOTCONN) => ": its daemon was killed: `dedupfs mount POOL MNT` brings the mount back",
        _ => "",
    }
}

/// Opens the source of a copy. It is kept open, so that its inode stays.
pub(crate) fn open_source(path: &Path) -> Result<(File, Metadata), Failure> {
    let shown = path.display();
    // Opening a pipe would wait without this.
    let flags = i32::try_from(OFlags::NONBLOCK.bits()).unwrap_or_default();
    let opened = OpenOptions::new().read(true).custom_flags(flags).open(path);
    let from = opened.map_err(|error| Failure::failed(format!("cannot open {shown}: {error}{}", advice(&error))))?;
    let metadata = from.metadata().map_err(|error| Failure::failed(format!("cannot look at {shown}: {error}")))?;
    Ok((from, metadata))
}

/// Returns the name of a source in the record of a version: absolute, and the same with a slash at the end. Symbolic links stay, since
/// one may lead to another directory each day.
pub(crate) fn name_of_source(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned()).components().collect()
}

pub(crate) fn check_kind(path: &Path, metadata: &Metadata) -> Result<(), Failure> {
    if metadata.is_dir() || metadata.is_file() {
        return Ok(());
    }
    let message = format!("{} is neither a directory nor a regular file", path.display());
    Err(FailureKind::Usage.because(message))
}

pub(crate) fn in_same_mount(path: &Path) -> Failure {
    let advice = "`cp -a` copies within a mount, without copying content, and `dedupfs snapshot` makes a version of it";
    FailureKind::Usage.because(format!("{} is in the same mount: {advice}", path.display()))
}

/// Prints the result of the command `name`, and returns its exit code.
pub(crate) fn conclude(name: &str, report: &TransferReport, json: bool) -> Result<u8, Failure> {
    exit::tell(&report::transfer_problems(report));
    exit::print_message(json, name, report, report::transfer)?;
    Ok(if report.problem_count == 0 { exit::OK } else { exit::PARTLY })
}

/// Returns the pool that holds an open file; `None` if the file is in no dedupfs.
pub(crate) fn find(file: &File) -> Result<Option<Inside>, Failure> {
    let metadata = file.metadata().map_err(|error| Failure::failed(format!("cannot look at it: {error}")))?;
    let device = metadata.dev();
    let name = format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
    let mounts = mountinfo::read()?;
    let mount = mounts.iter().find(|mount| mount.is_dedupfs() && mount.device == name);
    Ok(mount.map(|mount| Inside { ino: metadata.ino(), device, pool: mount.source.clone() }))
}

/// Text behind messages of `put` and `get` about a daemon that cannot be asked.
pub(crate) const COPIES_NEED_NO_DAEMON: &str = "; `cp -a` and rsync need only the mount";

/// Connects to the daemon of a pool. `advice` stands behind the message if that is not possible.
pub(crate) fn daemon(pool: &Path, advice: &str) -> Result<ControlClient, Failure> {
    crate::silence::connect(pool).map_err(|failure| failure.and(advice))?.ok_or_else(|| {
        Failure::failed(format!(
            "the daemon of pool {} does not answer: if it was killed, mount the pool again",
            pool.display()
        ))
    })
}

/// Returns device and inode of the pool's root directories, as far as they can be found.
pub(crate) fn roots(pool: &Path) -> Vec<(u64, u64)> {
    let roots = mount::roots(pool).into_iter();
    roots.filter_map(|root| std::fs::metadata(root).ok()).map(|root| (root.dev(), root.ino())).collect()
}

pub(crate) struct NewName {
    pub(crate) directory: File,
    pub(crate) name: std::ffi::OsString,
}

impl NewName {
    /// Opens the directory of a path whose last part does not exist yet.
    pub(crate) fn at(path: &Path) -> Result<Self, Failure> {
        let shown = path.display();
        let name = path.file_name().ok_or_else(|| {
            FailureKind::Usage.because(format!("{shown} is there already: give the new name as well"))
        })?;
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let directory = File::open(parent)
            .and_then(|directory| match directory.metadata()?.is_dir() {
                true => Ok(directory),
                false => Err(std::io::ErrorKind::NotADirectory.into()),
            })
            .map_err(|error| {
                let missing = error.kind() == std::io::ErrorKind::NotFound;
                let advice = if missing {
                    ": mount the pool if it is not mounted there (`dedupfs mount POOL MNT`), else create the directory first"
                } else {
                    advice(&error)
                };
                Failure::failed(format!("cannot open {}: {error}{advice}", parent.display()))
            })?;
        match statat(directory.as_fd(), name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(_) => Err(FailureKind::Usage.because(format!("{shown} is there already: give a new name"))),
            Err(rustix::io::Errno::NOENT) => Ok(Self { directory, name: name.to_owned() }),
            Err(errno) => Err(Failure::failed(format!("cannot look at {shown}: {errno}"))),
        }
    }
}
