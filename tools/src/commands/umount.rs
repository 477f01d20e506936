//! `dedupfs umount`: returns when the daemon has ended and the pool is free.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use dedupfs::control::{ControlClient, Failure, FailureKind};
use dedupfs_store::device::lock::LOCK_FILE;

use crate::args::UmountArgs;
use crate::mountinfo::{self, MountEntry};
use crate::target::{self, Target};
use crate::{exit, mount};

/// The daemon has closed the pool and only has to end.
const END_TIMEOUT: Duration = Duration::from_secs(30);
/// Without the control socket, how long closing the pool takes is not known.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(600);
const RETRY: Duration = Duration::from_millis(20);

/// Unmounts.
pub fn run(args: &UmountArgs) -> Result<u8, Failure> {
    let (target, mount) = find(&args.mountpoint)?;
    let daemon = ControlClient::connect(&target.pool)?;
    // The daemon of the pool may serve another mount: that one is nobody's business here.
    let others = mountinfo::others_of(&mountinfo::read()?, &mount);
    match daemon {
        Some(_) if mount::is_dead(&mount.mountpoint) => {
            mount::detach(&mount.mountpoint)?;
            eprintln!("dedupfs: {}", removed_beside_another(&mount, &others));
        }
        // Of two mounts that are served, the pool's daemon has one: taking away the one that was named ends its own daemon.
        Some(_) if !others.is_empty() => {
            dedupfs_fuse::unmount_path(&mount.mountpoint).map_err(|error| mount::failure(&error))?;
        }
        Some(client) => by_daemon(client, &target.pool, args.lazy)?,
        None => without_daemon(&target.pool, &mount)?,
    }
    Ok(exit::OK)
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
        None => Err(not_mounted(format!("pool {} is not mounted", path.display()))),
    }
}

fn by_daemon(mut client: ControlClient, pool: &Path, lazy: bool) -> Result<(), Failure> {
    // Taken before the daemon is asked to end: afterwards its number may be another process'.
    let watch = client.watch_daemon();
    client.unmount(lazy)?;
    let has_ended = match watch {
        Ok(watch) => watch.wait(END_TIMEOUT).unwrap_or(false),
        Err(_) => false,
    };
    if has_ended { Ok(()) } else { wait_until_free(pool, END_TIMEOUT) }
}

/// Nobody answers on the control socket: a dead mount, or a daemon that is ending.
fn without_daemon(pool: &Path, mount: &MountEntry) -> Result<(), Failure> {
    let mountpoint = &mount.mountpoint;
    if mount::is_dead(mountpoint) {
        mount::detach(mountpoint)?;
        return Err(Failure::failed(format!(
            "the daemon of {} had been killed: the dead mount is removed; what was written in the last seconds before \
             and not synced may be lost; mount pool {} again to go on",
            mountpoint.display(),
            pool.display()
        )));
    }
    dedupfs_fuse::unmount_path(mountpoint).map_err(|error| mount::failure(&error))?;
    wait_until_free(pool, CLOSE_TIMEOUT)
}

/// Waits until nobody holds the pool's lock.
fn wait_until_free(pool: &Path, at_most: Duration) -> Result<(), Failure> {
    let lock = match File::open(pool.join(LOCK_FILE)) {
        Ok(lock) => lock,
        Err(error) => return Err(Failure::failed(format!("unmounted, but the pool's lock cannot be read: {error}"))),
    };
    let deadline = Instant::now() + at_most;
    while lock.try_lock().is_err() {
        if Instant::now() >= deadline {
            let message = format!("unmounted, but the daemon still works on pool {}: see its log", pool.display());
            return Err(Failure::new(FailureKind::PoolInUse, message));
        }
        std::thread::sleep(RETRY);
    }
    Ok(())
}
