//! `dedupfs umount`, and what umount(8) calls: returns when the daemon has ended and the pool is free.
//!
//! 1. The daemon's socket is connected and its process watched, for afterwards it is gone.
//! 2. The mount that was named is taken away, and no other: there may be bind mounts of the same filesystem, and mounts of
//!    it in other mount namespaces.
//! 3. If it was the last, the daemon makes everything durable and ends: it is asked how that went, and waited for.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use dedupfs::control::{ControlClient, DaemonWatch, Failure, FailureKind};
use dedupfs_fuse::MountError;
use dedupfs_store::device::lock::PoolLock;
use rustix::mount::UnmountFlags;

use crate::args::UmountArgs;
use crate::mountinfo::{self, MountEntry};
use crate::target::{self, SUPERBLOCK_NAME, Target};
use crate::{exit, mount, silence};

/// While files are open, an unmount is tried for so long: indexers and the like go away by themselves, and on a busy machine
/// a process that was just started has its parent's files for a moment.
const BUSY_PATIENCE: Duration = Duration::from_secs(2);
/// The daemon has closed the pool and only has to end.
const END_TIMEOUT: Duration = Duration::from_secs(30);
/// Without the control socket, how long closing the pool takes is not known.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(600);
const RETRY: Duration = Duration::from_millis(20);

/// How to take a mount away.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum How {
    /// Unless files are open there.
    InOrder,
    /// Out of sight at once; the filesystem lives until the last file is closed, and is waited for.
    LazyAndWait,
    /// The same without waiting.
    Lazy,
    /// Whoever uses it gets errors.
    Force,
}

/// Unmounts.
pub fn run(args: &UmountArgs) -> Result<u8, Failure> {
    unmount(&args.mountpoint, if args.lazy { How::LazyAndWait } else { How::InOrder })?;
    Ok(exit::OK)
}

/// Unmounts what is mounted at `path`, or the pool that lies there.
///
/// # Errors
/// Nothing is mounted there; it is busy; not everything could be made durable.
pub fn unmount(path: &Path, how: How) -> Result<(), Failure> {
    let (target, mount) = find(path)?;
    let (pool, at) = (target.pool.as_path(), mount.mountpoint.as_path());
    let daemon = match Daemon::connect(pool) {
        // The disk under the pool has failed, and the daemon is out of reach: the kernel can take the mount away all the same.
        Err(failure) if cannot_be_read(pool) => {
            eprintln!("dedupfs: warning: {failure}; unmounting without it");
            None
        }
        daemon => daemon?,
    };
    // The daemon of the pool may serve another mount: that one is nobody's business here.
    let others = mountinfo::others_of(&mountinfo::read()?, &mount);
    if mount::is_dead(at) {
        mount::detach(at)?;
        if daemon.is_some() {
            eprintln!("dedupfs: {}", removed_beside_another(&mount, &others));
            return Ok(());
        }
        return Err(Failure::failed(format!(
            "the daemon of {} had been killed: the dead mount is removed; what was written in the last seconds before \
             and not synced may be lost; mount pool {} again to go on",
            at.display(),
            pool.display()
        )));
    }
    match how {
        How::InOrder => unless_busy(at)?,
        How::LazyAndWait | How::Lazy => mount::detach(at)?,
        How::Force => force(at)?,
    }
    let goes_on = match how {
        How::Lazy => true,
        // While files are open it is still there, but nowhere to be seen.
        How::LazyAndWait => is_seen(&mount)?,
        How::InOrder | How::Force => is_seen(&mount)? || stays_elsewhere(&mount, pool),
    };
    match daemon {
        // Of two mounts that are served, the pool's daemon has one, and which is not known.
        _ if goes_on || !others.is_empty() => Ok(()),
        Some(daemon) => daemon.wait(pool),
        None => wait_until_free(pool, CLOSE_TIMEOUT),
    }
}

/// Whether the filesystem is mounted at another place of this mount namespace too.
fn is_seen(mount: &MountEntry) -> Result<bool, Failure> {
    Ok(mountinfo::read()?.iter().any(|other| other.device == mount.device))
}

/// Whether another mount namespace has the filesystem: then that is said.
///
/// Each namespace begins with a copy of all mounts; many are gone in a moment, or get rid of what is not theirs.
fn stays_elsewhere(mount: &MountEntry, pool: &Path) -> bool {
    let deadline = Instant::now() + BUSY_PATIENCE;
    while mountinfo::is_somewhere(&mount.device) {
        if Instant::now() >= deadline {
            eprintln!(
                "dedupfs: unmounted, but another mount namespace (a container's, a service's) still has it: pool {} stays in \
                 use until that unmounts it or ends",
                pool.display()
            );
            return true;
        }
        std::thread::sleep(RETRY);
    }
    false
}

/// What is said of a dead mount of a pool that has a daemon again.
fn removed_beside_another(mount: &MountEntry, others: &[PathBuf]) -> String {
    let goes_on = match others.first() {
        Some(other) => format!("pool {} stays mounted on {}", mount.source.display(), other.display()),
        None => format!("the daemon that pool {} has now goes on", mount.source.display()),
    };
    format!("the dead mount on {} is removed; {goes_on}", mount.mountpoint.display())
}

/// The mount to end, named by its mountpoint or its pool.
fn find(path: &Path) -> Result<(Target, MountEntry), Failure> {
    let not_mounted = |what: String| Failure::new(FailureKind::MountpointUnusable, what);
    let target = target::resolve(path).map_err(|failure| match failure.kind {
        FailureKind::NotAPool => not_mounted(format!("no dedupfs is mounted on {}", path.display())),
        _ => failure,
    })?;
    if let Some(mount) = target.mount.clone() {
        return Ok((target, mount));
    }
    let mut mounts = mountinfo::read()?;
    mounts.retain(|mount| mount.is_dedupfs() && mount.source == target.pool);
    // A dead one may lie there still.
    let served = mounts.iter().position(|mount| !mount::is_dead(&mount.mountpoint)).unwrap_or(0);
    match mounts.into_iter().nth(served) {
        Some(mount) => Ok((target, mount)),
        None => Err(not_mounted(match PoolLock::holder(&target.pool) {
            Some(holder) => format!(
                "no mount of pool {} can be seen from here, but {holder} has it: it was detached while files are open, or another \
                 mount namespace has it (a container's, a service's); SIGTERM to that process ends it and cuts its users off",
                path.display()
            ),
            None => format!("pool {} is not mounted", path.display()),
        })),
    }
}

fn unless_busy(mountpoint: &Path) -> Result<(), Failure> {
    let deadline = Instant::now() + BUSY_PATIENCE;
    loop {
        match dedupfs_fuse::unmount_path(mountpoint) {
            Err(MountError::Busy { .. }) if Instant::now() < deadline => std::thread::sleep(RETRY),
            outcome => return outcome.map_err(|error| mount::failure(&error)),
        }
    }
}

fn force(mountpoint: &Path) -> Result<(), Failure> {
    rustix::mount::unmount(mountpoint, UnmountFlags::FORCE | UnmountFlags::NOFOLLOW).map_err(|error| {
        let message = format!("cannot unmount {}: {error}", mountpoint.display());
        Failure::new(FailureKind::MountpointUnusable, message)
    })
}

/// Who serves a mount that is to end.
struct Daemon {
    client: ControlClient,
    /// Its process number may be another process' once it has ended.
    watch: Option<DaemonWatch>,
}

impl Daemon {
    fn connect(pool: &Path) -> Result<Option<Self>, Failure> {
        let Some(client) = silence::connect(pool)? else { return Ok(None) };
        if !client.is_allowed() {
            let message = format!(
                "pool {} was mounted by another user: only root and the user who mounted the pool may do this",
                pool.display()
            );
            return Err(Failure::failed(message));
        }
        let watch = client.watch_daemon().ok();
        Ok(Some(Self { client, watch }))
    }

    /// Waits for its end, however long everything takes to become durable.
    fn wait(mut self, pool: &Path) -> Result<(), Failure> {
        let closed = match self.client.await_end() {
            // It did not take the first connection in time, or is of a version that does not know the question.
            Some(Err(failure)) if failure.kind == FailureKind::Usage => None,
            None => silence::connect(pool).ok().flatten().and_then(|mut client| client.await_end()),
            told => told,
        };
        let Some(closed) = closed else { return wait_until_free(pool, CLOSE_TIMEOUT) };
        let has_ended = self.watch.is_some_and(|watch| watch.wait(END_TIMEOUT).unwrap_or(false));
        closed.and(if has_ended { Ok(()) } else { wait_until_free(pool, END_TIMEOUT) })
    }
}

/// Whether not even the pool's superblock can be looked at.
fn cannot_be_read(pool: &Path) -> bool {
    let looked = std::fs::symlink_metadata(pool.join(SUPERBLOCK_NAME));
    looked.is_err_and(|error| !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::PermissionDenied))
}

/// Waits until nobody holds the pool's lock.
fn wait_until_free(pool: &Path, at_most: Duration) -> Result<(), Failure> {
    let deadline = Instant::now() + at_most;
    loop {
        match PoolLock::find_holder(pool) {
            Ok(None) => return Ok(()),
            Ok(Some(_)) if Instant::now() < deadline => std::thread::sleep(RETRY),
            Ok(Some(_)) => {
                let message = format!("unmounted, but the daemon still works on pool {}: see its log", pool.display());
                return Err(Failure::new(FailureKind::PoolInUse, message));
            }
            Err(error) => {
                return Err(Failure::failed(format!(
                    "unmounted, but the pool's lock cannot be read ({error}): whether everything is durable is not known"
                )));
            }
        }
    }
}
