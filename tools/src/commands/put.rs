//! `dedupfs put`: the tree is copied into a directory that nobody sees into, and gets its name when it is whole.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use dedupfs::control::{Failure, FailureKind, PutRequest};
use dedupfs::transfer::PutOptions;
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

use crate::args::PutArgs;
use crate::inside::{self, Inside, NewName};
use crate::interrupt::{self, Interruptible};
use crate::progress::Bars;
use crate::{exit, report};

/// Names of the directories in which trees are copied begin so.
const STAGING_PREFIX: &str = ".dedupfs-put-";
/// The daemon is given so long to remove what it has copied of a tree that is not wanted any more.
const REMOVING_PATIENCE: Duration = Duration::from_secs(60);
const REMOVING_RETRY: Duration = Duration::from_millis(50);

/// Copies a tree into a mounted pool.
pub fn run(args: &PutArgs) -> Result<u8, Failure> {
    let shown = args.source.display();
    let from = File::open(&args.source).map_err(|error| Failure::failed(format!("cannot open {shown}: {error}")))?;
    let metadata = from.metadata().map_err(|error| Failure::failed(format!("cannot look at {shown}: {error}")))?;
    if !metadata.is_dir() && !metadata.is_file() {
        return Err(Failure::new(FailureKind::Usage, format!("{shown} is neither a directory nor a regular file")));
    }
    let to = NewName::at(&args.destination)?;
    let Some(place) = inside::find(&to.directory)? else {
        return Err(Failure::new(
            FailureKind::Usage,
            format!(
                "{} is in no mounted dedupfs: `dedupfs put SOURCE MNT/NAME` copies into one, `dedupfs mount POOL MNT` mounts it",
                args.destination.display()
            ),
        ));
    };
    if metadata.dev() == place.device {
        let advice = "`cp -a` copies within a mount, without copying content";
        return Err(Failure::new(FailureKind::Usage, format!("{shown} is in the same mount: {advice}")));
    }
    let staging = Staging::make(&to.directory)?;
    let copied = copy(args, &from, &to, &place, &staging);
    let removed = staging.remove(if copied.is_ok() { Duration::ZERO } else { REMOVING_PATIENCE });
    if let Err(error) = &removed {
        let (name, directory) = (&staging.name, args.destination.parent().unwrap_or(Path::new(".")));
        eprintln!("dedupfs: {} is left over and can be removed: {error}", directory.join(name).display());
    }
    let report = copied?;
    exit::print(&if args.json { report::json(&report)? } else { report::transfer(&report) })?;
    Ok(if report.problem_count == 0 { exit::OK } else { exit::FAILED })
}

fn copy(
    args: &PutArgs,
    from: &File,
    to: &NewName,
    place: &Inside,
    staging: &Staging<'_>,
) -> Result<dedupfs::transfer::TransferReport, Failure> {
    let options = PutOptions { one_file_system: args.one_file_system, leaves_out: Some(place.device) };
    let request = PutRequest { into: staging.ino, name: to.name.as_bytes().to_vec(), options };
    let bars = Bars::default();
    let progress = Interruptible { listener: &bars, interrupted: interrupt::flag()? };
    let report = inside::daemon(&place.pool)?.put(request, from.as_fd(), &progress)?;
    drop(bars);
    let destination = args.destination.display();
    rustix::fs::renameat_with(&staging.directory, &to.name, &to.directory, &to.name, RenameFlags::NOREPLACE).map_err(
        |errno| match errno {
            Errno::EXIST => Failure::failed(format!("{destination} was made meanwhile: nothing was copied there")),
            errno => Failure::failed(format!("cannot name what was copied {destination}: {errno}")),
        },
    )?;
    to.directory.sync_all().map_err(|error| {
        Failure::failed(format!("{destination} is there, and could not be made durable: {error}; see the pool's log"))
    })?;
    Ok(report)
}

/// The directory in which a tree is copied.
struct Staging<'a> {
    parent: &'a File,
    /// Locked as long as it is in use.
    directory: File,
    ino: u64,
    name: String,
}

impl<'a> Staging<'a> {
    fn make(parent: &'a File) -> Result<Self, Failure> {
        remove_abandoned(parent);
        let name = format!("{STAGING_PREFIX}{:08x}", random());
        let failed = |errno: Errno| Failure::failed(format!("cannot make a directory there: {errno}"));
        rustix::fs::mkdirat(parent, &name, Mode::RWXU).map_err(failed)?;
        let open = || {
            let directory = File::from(rustix::fs::openat(
                parent,
                &name,
                OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC,
                Mode::empty(),
            )?);
            rustix::fs::flock(&directory, FlockOperation::NonBlockingLockExclusive)?;
            // A default access list of the directory above would be inherited by everything in the tree.
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

    /// Removes it, and what could not be given its name; as long as the daemon works there it is waited for, at most so long.
    fn remove(&self, at_most: Duration) -> std::io::Result<()> {
        let deadline = Instant::now() + at_most;
        loop {
            match rustix::fs::unlinkat(self.parent, &self.name, AtFlags::REMOVEDIR) {
                Err(Errno::NOTEMPTY | Errno::BUSY) => {}
                removed => return Ok(removed?),
            }
            // Nobody sees into it while the daemon works there, and nothing is removed.
            match std::fs::remove_dir_all(path_of(self.parent).join(&self.name)) {
                Err(_) if Instant::now() < deadline => std::thread::sleep(REMOVING_RETRY),
                removed => return removed,
            }
        }
    }
}

fn path_of(directory: &File) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", directory.as_raw_fd()))
}

fn random() -> u32 {
    let mut bytes = [0; 4];
    // Of the kernel, after its start, it always succeeds; a name that is taken is an error of its own.
    let _count = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    u32::from_ne_bytes(bytes)
}

/// Removes what a crash or a killed process has left in such directories. In one that is in use its lock is held, or, as long as the daemon
/// works there, nobody sees into it.
fn remove_abandoned(parent: &File) {
    let path = path_of(parent);
    let Ok(entries) = std::fs::read_dir(&path) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        if !name.as_bytes().starts_with(STAGING_PREFIX.as_bytes()) {
            continue;
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let Ok(directory) = rustix::fs::openat(parent, &name, flags, Mode::empty()) else { continue };
        if rustix::fs::flock(&directory, FlockOperation::NonBlockingLockExclusive).is_ok()
            && std::fs::remove_dir_all(path.join(&name)).is_ok()
        {
            eprintln!("dedupfs: removed what an interrupted put had left in {}", name.display());
        }
    }
}
