//! A running mount: waiting for its end and bringing it about.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use dedupfs_service::FileService;
use fuser::Session;
use parking_lot::{Condvar, Mutex};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno as SystemErrno;
use rustix::mount::UnmountFlags;

use super::MountError;
use crate::adapter::{Adapter, SlowCalls};

const RETRY: Duration = Duration::from_millis(50);

type Outcome = Result<(), Arc<io::Error>>;

#[derive(Default)]
struct End {
    outcome: Mutex<Option<Outcome>>,
    known: Condvar,
}

/// A mounted service.
///
/// Dropping it unmounts. If files are open it unmounts lazily, without waiting for their users.
pub struct MountedSession {
    mountpoint: PathBuf,
    end: Arc<End>,
    /// The device, which is released when the session has returned. `None` within: it could not be duplicated.
    connection: Weak<Option<OwnedFd>>,
    thread: Option<JoinHandle<()>>,
}

impl MountedSession {
    pub(super) fn start(
        session: Session<Adapter>,
        mountpoint: PathBuf,
        service: Arc<dyn FileService>,
        slow: SlowCalls,
    ) -> Result<Self, MountError> {
        let end = Arc::new(End::default());
        let (ending, at) = (Arc::clone(&end), mountpoint.clone());
        let device = session.as_fd().try_clone_to_owned();
        let device =
            device.inspect_err(|error| tracing::warn!(%error, "the end of the connection will be noticed late")).ok();
        let device = Arc::new(device);
        let connection = Arc::downgrade(&device);
        let serve = move || {
            let outcome = session.run();
            drop(device);
            if outcome.is_err() {
                // The kernel still shows the mount, but nobody answers any more.
                detach(&at);
            }
            slow.drain();
            service.shutdown();
            // A receiver to which a request was on its way when the connection ended gets this instead of ENODEV, which is no error.
            let is_end = |error: &io::Error| error.raw_os_error() == Some(libc::ECONNABORTED);
            let outcome = outcome.or_else(|error| if is_end(&error) { Ok(()) } else { Err(error) });
            *ending.outcome.lock() = Some(outcome.map_err(Arc::new));
            ending.known.notify_all();
        };
        let thread = std::thread::Builder::new().name("fuse-session".to_owned()).spawn(serve);
        match thread {
            Ok(thread) => Ok(Self { mountpoint, end, connection, thread: Some(thread) }),
            Err(source) => {
                detach(&mountpoint);
                Err(MountError::NoThread { source })
            }
        }
    }

    /// The absolute path of the mountpoint.
    pub fn mountpoint(&self) -> &Path {
        &self.mountpoint
    }

    /// Whether the session has ended and the service was shut down.
    pub fn is_finished(&self) -> bool {
        self.end.outcome.lock().is_some()
    }

    /// Whether the kernel may still send requests: the filesystem is mounted somewhere, or files of it are open. If not, only requests in
    /// progress and the service's shutdown are still to finish.
    pub fn is_connected(&self) -> bool {
        let Some(device) = self.connection.upgrade() else { return false };
        device.as_ref().as_ref().is_none_or(is_connected)
    }

    /// Waits until the filesystem is unmounted and the service was shut down.
    pub fn wait(&self) -> Result<(), MountError> {
        let mut outcome = self.end.outcome.lock();
        while outcome.is_none() {
            self.end.known.wait(&mut outcome);
        }
        outcome_of(&outcome)
    }

    /// Like [`wait`](Self::wait), at most for `limit`; `None` if still mounted.
    pub fn wait_for(&self, limit: Duration) -> Option<Result<(), MountError>> {
        let deadline = Instant::now() + limit;
        let mut outcome = self.end.outcome.lock();
        while outcome.is_none() {
            if self.end.known.wait_until(&mut outcome, deadline).timed_out() && outcome.is_none() {
                return None;
            }
        }
        Some(outcome_of(&outcome))
    }

    /// Unmounts and waits until the service was shut down. While files are open it retries for `patience`. Then it fails with
    /// [`MountError::Busy`] and the mount goes on.
    pub fn unmount(&self, patience: Duration) -> Result<(), MountError> {
        let deadline = Instant::now() + patience;
        while !self.is_finished() {
            match unmount_path(&self.mountpoint) {
                // Another process was faster.
                Ok(()) | Err(MountError::NotMounted { .. }) => return self.wait(),
                Err(MountError::Busy { .. }) if Instant::now() < deadline => std::thread::sleep(RETRY),
                Err(error) => return Err(error),
            }
        }
        self.wait()
    }

    /// Removes the mount from the directory tree at once. Open files can be used until they are closed; then the session ends.
    pub fn detach(&self) {
        if !self.is_finished() {
            detach(&self.mountpoint);
        }
    }
}

/// Whether the connection of a device lives. The kernel reports an error on a device whose connection has ended.
fn is_connected(device: &OwnedFd) -> bool {
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    let mut devices = [PollFd::from_borrowed_fd(device.as_fd(), PollFlags::empty())];
    // An interrupted poll counts as connected: the caller asks again.
    poll(&mut devices, Some(&at_once)).is_err() || !devices[0].revents().contains(PollFlags::ERR)
}

fn outcome_of(outcome: &Option<Outcome>) -> Result<(), MountError> {
    outcome.clone().unwrap_or(Ok(())).map_err(|source| MountError::Session { source })
}

impl Drop for MountedSession {
    fn drop(&mut self) {
        match self.unmount(Duration::ZERO) {
            Ok(()) | Err(MountError::Session { .. }) => {
                if let Some(thread) = self.thread.take() {
                    // The thread has done everything; a panic of it was already reported.
                    let _ = thread.join();
                }
            }
            Err(error) => {
                tracing::warn!(%error, "unmounting lazily");
                self.detach();
            }
        }
    }
}

/// Unmounts the filesystem on `mountpoint`, with the helper if this user may not. Does not wait for the daemon.
pub fn unmount_path(mountpoint: &Path) -> Result<(), MountError> {
    let at = || mountpoint.to_path_buf();
    match rustix::mount::unmount(mountpoint, UnmountFlags::NOFOLLOW) {
        Ok(()) => Ok(()),
        Err(SystemErrno::BUSY) => Err(MountError::Busy { mountpoint: at() }),
        Err(SystemErrno::INVAL | SystemErrno::NOENT) => Err(MountError::NotMounted { mountpoint: at() }),
        Err(SystemErrno::PERM) => match ask_helper(&["-u"], mountpoint) {
            Err(error) if error.to_string().contains("busy") => Err(MountError::Busy { mountpoint: at() }),
            Err(error) if error.to_string().contains("not found") => Err(MountError::NotMounted { mountpoint: at() }),
            asked => asked.map_err(|source| MountError::Unmount { mountpoint: at(), source }),
        },
        Err(errno) => Err(MountError::Unmount { mountpoint: at(), source: errno.into() }),
    }
}

/// Removes a mount from the directory tree at once, with the helper if this user may not. Processes can go on using it.
///
/// # Errors
/// Nothing is mounted there (EINVAL), or the kernel and the helper refuse.
pub fn detach_path(mountpoint: &Path) -> io::Result<()> {
    match rustix::mount::unmount(mountpoint, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW) {
        Err(SystemErrno::PERM) => ask_helper(&["-u", "-z"], mountpoint),
        detached => Ok(detached?),
    }
}

/// Detaches a mount. A failure is only logged, because there is nothing else to try.
pub(super) fn detach(mountpoint: &Path) {
    let Err(error) = detach_path(mountpoint) else { return };
    match error.raw_os_error() {
        Some(libc::EINVAL) => {}
        Some(_) => tracing::warn!(mountpoint = %mountpoint.display(), %error, "lazy unmount failed"),
        None => tracing::warn!(mountpoint = %mountpoint.display(), %error, "lazy unmount by the helper failed"),
    }
}

/// Runs the helper for users who may not call umount(2). The error has the helper's words and no error number.
fn ask_helper(options: &[&str], mountpoint: &Path) -> io::Result<()> {
    let output = Command::new("fusermount3").args(options).arg("--").arg(mountpoint).output();
    let output = output.map_err(io::Error::other)?;
    match output.status.success() {
        true => Ok(()),
        false => Err(io::Error::other(String::from_utf8_lossy(&output.stderr).trim())),
    }
}
