//! Reaching a pool: through the daemon that has it mounted, or by opening it under its lock.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dedupfs::EngineError;
use dedupfs::control::{ControlClient, Failure, FailureKind};
use dedupfs::pool::{NoProgress, OpenOptions, Pool, Progress};
use dedupfs_store::device::PoolLock;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::mountinfo::{self, MountEntry};
use crate::{remount, room, silence};

/// A daemon that has just started does not listen yet, and one that ends does not listen any more, but both hold the
/// lock: they are given so long.
const TRANSITION_TIMEOUT: Duration = Duration::from_secs(3);
const TRANSITION_RETRY: Duration = Duration::from_millis(50);
/// A daemon that closes a pool is given so long when the pool is mounted again.
const ENDING_TIMEOUT: Duration = Duration::from_secs(30);
/// One that still listens although its mount is gone is given so long to notice that. If it goes on, it serves a mount
/// that is not seen from here: that of another mount namespace, or one that was detached while files are open.
const NOTICING_TIMEOUT: Duration = Duration::from_secs(10);

/// A pool within reach.
pub enum Access {
    /// Mounted: its daemon is asked.
    Daemon(ControlClient),
    /// Not mounted: opened here, and locked until it is closed.
    Local(Arc<Pool>),
}

/// Options to open a pool without mounting it.
#[must_use]
pub fn open_options(note: &str, read_only: bool) -> OpenOptions {
    OpenOptions { read_only, note: note.to_owned(), ..OpenOptions::default() }
}

/// Opens a pool under its lock; the message of a pool in use says what can be done about it.
pub fn open(pool: &Path, options: &OpenOptions) -> Result<Arc<Pool>, Failure> {
    open_with_progress(pool, options, &NoProgress)
}

/// The same, telling the progress of a rebuild.
pub fn open_with_progress(pool: &Path, options: &OpenOptions, progress: &dyn Progress) -> Result<Arc<Pool>, Failure> {
    raise_descriptor_limit();
    Pool::open_with_progress(pool, options, progress).map_err(|error| {
        let failure = of_the_pool(error);
        match failure.kind {
            FailureKind::PoolInUse => {
                let advice = "wait until it is done; a mount ends with `dedupfs umount`";
                Failure::new(failure.kind, format!("{failure}: {advice}"))
            }
            FailureKind::NoSpace if !options.read_only => {
                Failure::new(failure.kind, format!("{failure}; {}", room::advice(pool)))
            }
            FailureKind::Failed if !options.read_only && remount::cannot_be_written(pool) => {
                let advice = "the pool's disk is mounted read-only; `dedupfs mount -o ro` mounts the pool all the same";
                Failure::new(failure.kind, format!("{failure}: {advice}"))
            }
            _ => failure,
        }
    })
}

/// A large pool has thousands of files: two descriptors for each file of containers in use, one for each tanker. The usual limit of 1,024 is
/// for programs that use select(2); up to what the user may have costs nothing.
fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum
        && let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit })
    {
        tracing::warn!(%error, ?limit, "the number of open files stays limited");
    }
}

/// An error of a pool that does not fit together: the command line was understood.
pub fn of_the_pool(error: EngineError) -> Failure {
    let failure = Failure::from(error);
    match failure.kind {
        FailureKind::Usage => Failure::new(FailureKind::NotAPool, failure.message),
        _ => failure,
    }
}

/// Opens a pool to mount it. A daemon whose mount was taken away a moment ago still closes the pool: it is waited for.
pub fn open_for_mount(pool: &Path, options: &OpenOptions) -> Result<Arc<Pool>, Failure> {
    let begun = Instant::now();
    let (mut is_told, mut gone_since) = (false, None);
    loop {
        let failure = match open(pool, options) {
            Err(failure) if failure.kind == FailureKind::PoolInUse => failure,
            opened => return opened,
        };
        let holder = daemon_without_mount(pool)?;
        gone_since = matches!(holder, Unseen::Gone).then(|| gone_since.unwrap_or_else(Instant::now));
        match holder {
            Unseen::No => return Err(failure),
            // The copy of a meta root, whose data root another pool has. At first it may have become free just now.
            Unseen::Gone if gone_since.is_some_and(|since| since.elapsed() >= TRANSITION_TIMEOUT) => {
                return Err(failure);
            }
            Unseen::Gone => {}
            Unseen::Listens if begun.elapsed() >= NOTICING_TIMEOUT => {
                let message = format!(
                    "{failure} (nothing is mounted there that can be seen from here: it was detached while files are open, or \
                     another mount namespace has it, a container's or a service's)"
                );
                return Err(Failure::new(failure.kind, message));
            }
            _ if begun.elapsed() >= ENDING_TIMEOUT => return Err(failure),
            _ if !is_told => {
                is_told = true;
                tracing::info!("waiting for the daemon that closes the pool");
            }
            _ if begun.elapsed() >= silence::PATIENCE => silence::tell(pool),
            _ => {}
        }
        std::thread::sleep(TRANSITION_RETRY);
    }
}

/// A daemon that serves no mount that can be seen from here.
enum Unseen {
    /// Somebody else has the pool, or it serves one.
    No,
    /// Nobody has the meta root.
    Gone,
    /// It closes the pool.
    Silent,
    /// umount(8) returns before the daemon has noticed: at first this says little.
    Listens,
}

fn daemon_without_mount(pool: &Path) -> Result<Unseen, Failure> {
    let Some(holder) = PoolLock::holder(pool) else { return Ok(Unseen::Gone) };
    // One that has just locked the pool, or whose disk is full, has noted nothing.
    let is_daemon = holder == "another process" || holder.contains("(dedupfs mount on ");
    let serves =
        |mount: &MountEntry| mount.is_dedupfs() && mount.source == pool && !crate::mount::is_dead(&mount.mountpoint);
    if !is_daemon || mountinfo::read()?.iter().any(serves) {
        return Ok(Unseen::No);
    }
    Ok(if matches!(ControlClient::connect(pool), Ok(Some(_))) { Unseen::Listens } else { Unseen::Silent })
}

/// The daemon of a pool; a pool without one is opened with these options.
pub fn reach(pool: &Path, options: &OpenOptions) -> Result<Access, Failure> {
    let deadline = Instant::now() + TRANSITION_TIMEOUT;
    loop {
        if let Some(client) = silence::connect(pool)? {
            return Ok(Access::Daemon(client));
        }
        match open(pool, options) {
            Err(failure) if failure.kind == FailureKind::PoolInUse && Instant::now() < deadline => {
                std::thread::sleep(TRANSITION_RETRY);
            }
            opened => return opened.map(Access::Local),
        }
    }
}

/// Works on a pool that was opened here, and closes it; the first error counts.
pub fn with_local<T>(pool: &Arc<Pool>, work: impl FnOnce(&Pool) -> Result<T, Failure>) -> Result<T, Failure> {
    let result = work(pool);
    let closed = pool.close().map_err(|error| Failure::from(error).while_trying("cannot close the pool"));
    let value = result?;
    closed?;
    Ok(value)
}
