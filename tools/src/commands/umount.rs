//! `dedupfs umount`, also called by umount(8): returns when the daemon has ended and the pool is free.
//!
//! 1. Connect to the daemon's socket and watch its process; after the unmount the socket is gone.
//! 2. Unmount only the named mount: there may be bind mounts of the same filesystem, and mounts of it in other mount namespaces.
//! 3. If it was the last, the daemon makes everything durable and ends. Ask how that went, and wait.

use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use dedupfs_fuse::MountError;
use dedupfs_store::device::PoolLock;
use rustix::mount::UnmountFlags;

use crate::args::UmountArgs;
use crate::control::{ControlClient, DaemonWatch, Failure, FailureKind};
use crate::mountinfo::{self, MountEntry};
use crate::target::{self, SUPERBLOCK_NAME, Target};
use crate::{exit, mount, silence};

/// How long to retry an unmount while files are open: indexers and similar programs close them soon. On a busy machine a process that was
/// just started has its parent's files for a moment.
const BUSY_PATIENCE: Duration = Duration::from_secs(2);
/// Time for the daemon to end after it has closed the pool.
const END_TIMEOUT: Duration = Duration::from_secs(30);
/// Time to wait for a pool to be closed if the control socket cannot report it.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(600);
const RETRY: Duration = Duration::from_millis(20);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum How {
    InOrder,
    /// Detach at once, then wait until the last file is closed and the filesystem ends.
    LazyAndWait,
    Lazy,
    Force,
}

pub(crate) fn run(args: &UmountArgs) -> Result<u8, Failure> {
    unmount(&args.mountpoint, if args.lazy { How::LazyAndWait } else { How::InOrder })?;
    exit::print_done(args.json, "umount")?;
    Ok(exit::OK)
}

/// Unmounts the dedupfs at `path`, or the pool in that directory.
pub(crate) fn unmount(path: &Path, how: How) -> Result<(), Failure> {
    let (target, mount) = find(path)?;
    let (pool, at) = (target.pool.as_path(), mount.mountpoint.as_path());
    let daemon = match Daemon::connect(pool) {
        // The disk under the pool has failed and the daemon is out of reach, but the kernel can still unmount.
        Err(failure) if cannot_be_read(pool) => {
            eprintln!("dedupfs: warning: {failure}; unmounting without it");
            None
        }
        daemon => daemon?,
    };
    // The daemon of the pool may serve another mount, which is left alone.
    let others = mountinfo::others_of(&mountinfo::read()?, &mount);
    if mount::is_dead(at) {
        mount::detach(at)?;
        if daemon.is_some() {
            eprintln!("dedupfs: {}", removed_beside_another(&mount, &others));
            return Ok(());
        }
        return Err(Failure::failed(format!(
            "the daemon of {} was killed: the dead mount is removed; unsynced writes of its last \
             seconds may be lost; mount pool {} again to go on",
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
        // While files are open the mount exists, but is not visible.
        How::LazyAndWait => stays_here(&mount, pool)?,
        How::InOrder | How::Force => stays_here(&mount, pool)? || stays_elsewhere(&mount, pool),
    };
    match daemon {
        // Two mounts are served, and the pool's daemon serves an unknown one of them.
        _ if goes_on || !others.is_empty() => Ok(()),
        Some(daemon) => daemon.wait(pool),
        None => wait_until_free(pool, CLOSE_TIMEOUT),
    }
}

/// Tells the user about a success. A pipe that nobody reads does not make it a failure.
fn tell(message: &str) {
    let _ = writeln!(std::io::stderr(), "dedupfs: {message}");
}

/// Whether the filesystem is still mounted somewhere in this mount namespace, as by a bind mount; reports it.
fn stays_here(mount: &MountEntry, pool: &Path) -> Result<bool, Failure> {
    let mounts = mountinfo::read()?;
    // The kernel gives the number of a device that is gone to the next mount at once.
    let is_same =
        |other: &&MountEntry| other.is_dedupfs() && other.source == mount.source && other.device == mount.device;
    let others: Vec<_> = mounts.iter().filter(is_same).map(|other| other.mountpoint.display().to_string()).collect();
    if others.is_empty() {
        return Ok(false);
    }
    tell(&format!(
        "unmounted, but also mounted on {}: pool {} stays in use, and is closed when the last of them is unmounted",
        others.join(", "),
        pool.display()
    ));
    Ok(true)
}

/// Whether another mount namespace keeps the filesystem mounted; reports it.
///
/// Each namespace begins with a copy of all mounts. Many end in a moment, or unmount the copies.
fn stays_elsewhere(mount: &MountEntry, pool: &Path) -> bool {
    let deadline = Instant::now() + BUSY_PATIENCE;
    while mountinfo::is_somewhere(&mount.device) {
        if Instant::now() >= deadline {
            tell(&format!(
                "unmounted, but another mount namespace (a container's, a service's) still has it: pool {} stays in \
                 use until that unmounts it or ends",
                pool.display()
            ));
            return true;
        }
        std::thread::sleep(RETRY);
    }
    false
}

fn removed_beside_another(mount: &MountEntry, others: &[PathBuf]) -> String {
    let goes_on = match others.first() {
        Some(other) => format!("pool {} stays mounted on {}", mount.source.display(), other.display()),
        None => format!("the present daemon of pool {} goes on", mount.source.display()),
    };
    format!("the dead mount on {} is removed; {goes_on}", mount.mountpoint.display())
}

fn find(path: &Path) -> Result<(Target, MountEntry), Failure> {
    let not_mounted = |what: String| FailureKind::MountpointUnusable.because(what);
    let target = target::resolve(path).map_err(|failure| match failure.kind {
        FailureKind::NotAPool => not_mounted(format!("no dedupfs is mounted on {}", path.display())),
        _ => failure,
    })?;
    if let Some(mount) = target.mount.clone() {
        return Ok((target, mount));
    }
    let mut mounts = mountinfo::read()?;
    mounts.retain(|mount| mount.is_dedupfs() && mount.source == target.pool);
    // A dead mount of the pool may still be there.
    let served = mounts.iter().position(|mount| !mount::is_dead(&mount.mountpoint)).unwrap_or(0);
    match mounts.into_iter().nth(served) {
        Some(mount) => Ok((target, mount)),
        None => Err(not_mounted(match PoolLock::holder(&target.pool) {
            Some(holder) => format!(
                "no mount of pool {} is visible here, but {holder} has it: it was detached while files are open, or another \
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
            outcome => return Ok(outcome?),
        }
    }
}

fn force(mountpoint: &Path) -> Result<(), Failure> {
    rustix::mount::unmount(mountpoint, UnmountFlags::FORCE | UnmountFlags::NOFOLLOW).map_err(|error| {
        let message = format!("cannot unmount {}: {error}", mountpoint.display());
        FailureKind::MountpointUnusable.because(message)
    })
}

struct Daemon {
    client: ControlClient,
    /// Watches the process itself: another process may get its number once it has ended.
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

    /// Waits for the daemon's end, for as long as it needs to make everything durable.
    fn wait(mut self, pool: &Path) -> Result<(), Failure> {
        let closed = match self.client.await_end() {
            // The daemon did not take the first connection in time, or its version does not know this request.
            Some(Err(failure)) if failure.kind == FailureKind::Usage => None,
            None => silence::connect(pool).ok().flatten().and_then(|mut client| client.await_end()),
            told => told,
        };
        let Some(closed) = closed else { return wait_until_free(pool, CLOSE_TIMEOUT) };
        let has_ended = self.watch.is_some_and(|watch| watch.wait(END_TIMEOUT).unwrap_or(false));
        closed.and(if has_ended { Ok(()) } else { wait_until_free(pool, END_TIMEOUT) })
    }
}

/// Whether even the pool's superblock cannot be looked at.
fn cannot_be_read(pool: &Path) -> bool {
    let looked = std::fs::symlink_metadata(pool.join(SUPERBLOCK_NAME));
    looked.is_err_and(|error| !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::PermissionDenied))
}

fn wait_until_free(pool: &Path, at_most: Duration) -> Result<(), Failure> {
    let deadline = Instant::now() + at_most;
    loop {
        match PoolLock::find_holder(pool) {
            Ok(None) => return Ok(()),
            Ok(Some(_)) if Instant::now() < deadline => std::thread::sleep(RETRY),
            Ok(Some(_)) => {
                let message = format!("unmounted, but the daemon still works on pool {}: see its log", pool.display());
                return Err(FailureKind::PoolInUse.because(message));
            }
            Err(error) => {
                return Err(Failure::failed(format!(
                    "unmounted, but the pool's lock cannot be read ({error}): whether everything is durable is not known"
                )));
            }
        }
    }
}
