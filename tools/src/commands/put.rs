//! `dedupfs put`: copies a tree into a hidden directory, and gives it its name when it is complete.

use std::ffi::OsString;
use std::fs::{File, Metadata};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use dedupfs::Progress as _;
use dedupfs::transfer::{Owner, PutOptions, TransferReport};
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags, RenameFlags, XattrFlags};
use rustix::io::Errno;

use crate::args::PutArgs;
use crate::control::{Failure, FailureKind, PutRequest, lacks_room};
use crate::inside::{self, Inside, NewName};
use crate::interrupt;
use crate::progress::Bars;

const HIDDEN_PREFIX: &str = ".dedupfs-put-";
/// Extended attribute of hidden directories: a name alone proves nothing.
const HIDDEN_MARK: &str = "user.dedupfs.put";
const REMOVING_RETRY: Duration = Duration::from_millis(50);

pub(crate) fn run(args: &PutArgs) -> Result<u8, Failure> {
    let (from, metadata) = inside::open_source(&args.source)?;
    inside::check_kind(&args.source, &metadata)?;
    let to = NewName::at(&args.destination)?;
    let Some(place) = inside::find(&to.directory)? else {
        return Err(FailureKind::Usage.because(format!(
                "{} is in no mounted dedupfs: `dedupfs put SOURCE MNT/NAME` copies into one, `dedupfs mount POOL MNT` mounts it",
                args.destination.display()
            ),
        ));
    };
    if metadata.dev() == place.device {
        return Err(inside::in_same_mount(&args.source));
    }
    let hidden = HiddenDirectory::make(&to.directory)?;
    let copied = copy(args, &from, &metadata, &to, &place, &hidden);
    if let Err(error) = hidden.remove() {
        let directory = args.destination.parent().unwrap_or(Path::new("."));
        eprintln!("dedupfs: {} is left over: {error}", directory.join(&hidden.name).display());
    }
    inside::conclude(&copied?, args.json)
}

fn copy(
    args: &PutArgs,
    from: &File,
    metadata: &Metadata,
    to: &NewName,
    place: &Inside,
    hidden: &HiddenDirectory<'_>,
) -> Result<TransferReport, Failure> {
    let uid = rustix::process::geteuid();
    let owner = || {
        let groups = rustix::process::getgroups()
            .map_err(|errno| Failure::failed(format!("cannot read the groups of this user: {errno}")))?;
        let (uid, gid) = (uid.as_raw(), rustix::process::getegid().as_raw());
        Ok::<_, Failure>(Owner { uid, gid, groups: groups.into_iter().map(|group| group.as_raw()).collect() })
    };
    let options = PutOptions {
        one_file_system: args.one_file_system,
        leaves_out_device: Some(place.device),
        leaves_out_directories: inside::roots(&place.pool),
        owner: (!uid.is_root()).then(owner).transpose()?,
    };
    let owner = options.owner.clone();
    let request = PutRequest { into: hidden.ino, name: to.name.as_bytes().to_vec(), options };
    let bars = Bars::default();
    let progress = interrupt::ended_by_signals(&bars)?;
    let report = inside::daemon(&place.pool)?.put(request, from.as_fd(), &progress)?;
    let is_cancelled = progress.is_cancelled();
    bars.finish();
    if is_cancelled {
        return Err(Failure::failed("interrupted"));
    }
    let destination = args.destination.display();
    let flags = RenameFlags::NOREPLACE;
    rustix::fs::renameat_with(&hidden.directory, &to.name, &to.directory, &to.name, flags).map_err(
        |errno| match errno {
            Errno::EXIST => Failure::failed(format!("{destination} was made meanwhile: nothing was copied there")),
            errno => Failure::failed(format!("cannot rename the copy to {destination}: {errno}")),
        },
    )?;
    // A directory that its owner may not write to cannot be renamed, so put has made it writable until now.
    if let Some(owner) = owner.filter(|_| metadata.is_dir() && metadata.mode() & 0o700 != 0o700) {
        let (_, _, mode) = owner.of_copy(metadata.uid(), metadata.gid(), (metadata.mode() & 0o7777) as u16);
        let mode = Mode::from_raw_mode(mode.into());
        let changed = rustix::fs::chmodat(&to.directory, &to.name, mode, AtFlags::empty());
        changed.map_err(|errno| {
            Failure::failed(format!("{destination} was copied, but its mode could not be set: {errno}"))
        })?;
    }
    to.directory.sync_all().map_err(|error| {
        Failure::failed(format!("{destination} was copied, but could not be made durable: {error}; see the pool's log"))
    })?;
    Ok(report)
}

struct HiddenDirectory<'a> {
    parent: &'a File,
    /// Locked while it is in use.
    directory: File,
    ino: u64,
    name: String,
}

impl<'a> HiddenDirectory<'a> {
    fn make(parent: &'a File) -> Result<Self, Failure> {
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

    /// Removes the hidden directory and any unnamed copy in it. Waits while the daemon itself removes the copy.
    fn remove(&self) -> std::io::Result<()> {
        loop {
            match empty(&self.directory) {
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

/// Removes everything in a directory, also from directories that their owner may not write to. Keeps one directory open at a time, at any
/// depth.
fn empty(top: &File) -> std::io::Result<()> {
    let mut directory = top.try_clone()?;
    // The names on the way down, each with device and inode of the directory that contains it.
    let mut way: Vec<(OsString, (u64, u64))> = Vec::new();
    loop {
        if let Some(name) = remove_all_but_directories(&directory)? {
            let _as_far_as_it_goes = rustix::fs::chmodat(&directory, &name, Mode::RWXU, AtFlags::empty());
            let below = open_directory(&directory, name.as_bytes())?;
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
        directory = above;
    }
}

fn identity(directory: &File) -> std::io::Result<(u64, u64)> {
    directory.metadata().map(|metadata| (metadata.dev(), metadata.ino()))
}

fn remove_all_but_directories(directory: &File) -> std::io::Result<Option<OsString>> {
    let mut first = None;
    for entry in std::fs::read_dir(path_of(directory))? {
        let entry = entry?;
        match entry.file_type()?.is_dir() {
            // The first pass removes all files. Later passes find one directory after the other.
            true => {
                first.get_or_insert(entry.file_name());
            }
            false => rustix::fs::unlinkat(directory, entry.file_name(), AtFlags::empty())?,
        }
    }
    Ok(first)
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
        let is_marked = rustix::fs::fgetxattr(&directory, HIDDEN_MARK, &mut [0; 16]).is_ok();
        let is_own = rustix::fs::fstat(&directory).is_ok_and(|stat| stat.st_uid == rustix::process::geteuid().as_raw());
        if is_marked
            && is_own
            && rustix::fs::flock(&directory, FlockOperation::NonBlockingLockExclusive).is_ok()
            && empty(&directory).is_ok()
            && rustix::fs::unlinkat(parent, &name, AtFlags::REMOVEDIR).is_ok()
        {
            eprintln!("dedupfs: removed what an interrupted put had left in {}", name.display());
        }
    }
}
