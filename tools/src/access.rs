//! Reaching a pool: through the daemon that has it mounted, or by opening it under its lock.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dedupfs::{EngineError, NoProgress, OpenOptions, Pool, Progress};
use dedupfs_store::device::PoolLock;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::control::{ControlClient, Failure, FailureKind};
use crate::mountinfo::{self, MountEntry};
use crate::{remount, room, silence};

/// Time for a daemon in transition. One that has just started does not listen yet, and one that ends no longer listens, but both hold the
/// lock.
const TRANSITION_TIMEOUT: Duration = Duration::from_secs(3);
const TRANSITION_RETRY: Duration = Duration::from_millis(50);
/// Time to wait for a daemon that closes a pool when the pool is mounted again.
const ENDING_TIMEOUT: Duration = Duration::from_secs(30);
/// Time for a daemon that still listens to notice that its mount is gone. If it goes on after that, it serves a mount that is not visible
/// here: one in another mount namespace, or one that was detached while files are open.
const NOTICING_TIMEOUT: Duration = Duration::from_secs(10);

pub(crate) enum Access {
    Daemon(ControlClient),
    /// Not mounted: opened and locked by this process until it is closed.
    Local(Arc<Pool>),
}

pub(crate) fn to_write(note: &str) -> OpenOptions {
    OpenOptions { note: note.to_owned(), ..OpenOptions::default() }
}

pub(crate) fn to_read(note: &str) -> OpenOptions {
    OpenOptions { read_only: true, ..to_write(note) }
}

/// Opens a pool under its lock. The error for a pool in use says what can be done.
pub(crate) fn open(pool: &Path, options: &OpenOptions, progress: &dyn Progress) -> Result<Arc<Pool>, Failure> {
    raise_descriptor_limit();
    Pool::open_with_progress(pool, options, progress).map_err(|error| {
        let failure = of_the_pool(error);
        match failure.kind {
            FailureKind::PoolInUse => failure.and(": wait until it is done; a mount ends with `dedupfs umount`"),
            FailureKind::NoSpace if !options.read_only => failure.and(&format!("; {}", room::advice(pool))),
            FailureKind::Failed if !options.read_only && remount::cannot_be_written(pool) => failure
                .and(": the pool's disk is mounted read-only; `dedupfs mount -o ro` mounts the pool all the same"),
            _ => failure,
        }
    })
}

/// Raises the limit of open files to the user's maximum, which costs nothing. A large pool has thousands of files: two descriptors for each
/// slot file in use, one for each tanker. The usual limit of 1,024 is for programs that use select(2).
pub(crate) fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum
        && let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit })
    {
        tracing::warn!(%error, limit = limit.current, "cannot raise the limit of open files");
    }
}

/// Converts an error of opening a pool. The command line was valid, so a usage error means an inconsistent pool.
pub(crate) fn of_the_pool(error: EngineError) -> Failure {
    Failure::from(error).usage_as(FailureKind::NotAPool)
}

/// Opens a pool to mount it. Waits for a daemon that still closes the pool after its mount was removed.
pub(crate) fn open_for_mount(pool: &Path, options: &OpenOptions) -> Result<Arc<Pool>, Failure> {
    let begun = Instant::now();
    let (mut is_told, mut gone_since) = (false, None);
    loop {
        let failure = match open(pool, options, &NoProgress) {
            Err(failure) if failure.kind == FailureKind::PoolInUse => failure,
            opened => return opened,
        };
        let holder = daemon_without_mount(pool)?;
        gone_since = matches!(holder, Unseen::Gone).then(|| gone_since.unwrap_or_else(Instant::now));
        match holder {
            Unseen::No => return Err(failure),
            // Either the lock has just become free, or this is a copy of a meta root whose data root another pool has.
            Unseen::Gone if gone_since.is_some_and(|since| since.elapsed() >= TRANSITION_TIMEOUT) => {
                return Err(failure);
            }
            Unseen::Gone => {}
            Unseen::Listens if begun.elapsed() >= NOTICING_TIMEOUT => {
                return Err(failure.and(
                    " (nothing is mounted there that can be seen from here: it was detached while files are open, or another \
                     mount namespace has it, a container's or a service's)",
                ));
            }
            _ if begun.elapsed() >= ENDING_TIMEOUT => return Err(failure),
            _ if !is_told => {
                is_told = true;
                tracing::info!("waiting for the daemon to close the pool");
            }
            _ if begun.elapsed() >= silence::PATIENCE => silence::tell(pool),
            _ => {}
        }
        std::thread::sleep(TRANSITION_RETRY);
    }
}

/// The state of a daemon without a visible mount.
enum Unseen {
    /// Another program has the pool, or the daemon serves a visible mount.
    No,
    /// Nobody has locked the meta root.
    Gone,
    /// The daemon closes the pool.
    Silent,
    /// The daemon still listens. umount(8) returns before the daemon has noticed, so at first this says little.
    Listens,
}

fn daemon_without_mount(pool: &Path) -> Result<Unseen, Failure> {
    let Some(holder) = PoolLock::holder(pool) else { return Ok(Unseen::Gone) };
    // A process that has just locked the pool, or whose disk is full, has left no note.
    let is_daemon = holder == "another process" || holder.contains("(dedupfs mount on ");
    let serves =
        |mount: &MountEntry| mount.is_dedupfs() && mount.source == pool && !crate::mount::is_dead(&mount.mountpoint);
    if !is_daemon || mountinfo::read()?.iter().any(serves) {
        return Ok(Unseen::No);
    }
    Ok(if matches!(ControlClient::connect(pool), Ok(Some(_))) { Unseen::Listens } else { Unseen::Silent })
}

/// Returns the daemon of a pool. A pool without a daemon is opened with these options.
pub(crate) fn reach(pool: &Path, options: &OpenOptions) -> Result<Access, Failure> {
    let deadline = Instant::now() + TRANSITION_TIMEOUT;
    loop {
        if let Some(client) = silence::connect(pool)? {
            return Ok(Access::Daemon(client));
        }
        match open(pool, options, &NoProgress) {
            Err(failure) if failure.kind == FailureKind::PoolInUse && Instant::now() < deadline => {
                std::thread::sleep(TRANSITION_RETRY);
            }
            opened => return opened.map(Access::Local),
        }
    }
}

/// Runs `work` on a pool opened here, and closes the pool. The first error counts.
pub(crate) fn with_local<T>(pool: &Arc<Pool>, work: impl FnOnce(&Pool) -> Result<T, Failure>) -> Result<T, Failure> {
    let result = work(pool);
    let closed = close(pool);
    let value = result?;
    closed?;
    Ok(value)
}

/// Says why a command has nothing to stop, and how to stop the work of another process; `then` says how that goes on.
pub(crate) fn nothing_to_stop(pool: &Path, then: &str) -> Failure {
    Failure::failed(match PoolLock::holder(pool) {
        Some(holder) => format!(
            "the pool is not mounted, and {holder} works on it: interrupt that process (Ctrl-C, or `kill` with its number){then}"
        ),
        None => "the pool is not mounted: nothing runs there".to_owned(),
    })
}

pub(crate) fn close(pool: &Pool) -> Result<(), Failure> {
    pool.close().map_err(|error| {
        Failure::from(error)
            .while_trying("cannot close the pool in order: what was synced is durable, what was not may be lost")
    })
}
