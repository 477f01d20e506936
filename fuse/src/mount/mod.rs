//! Shows a service at a mountpoint, and takes it away again.
//!
//! [`mount()`] in steps:
//! 1. Checks that give better errors than mount(2) does ([`check`]).
//! 2. mount(2) of type `fuse.dedupfs`; if that is not permitted, the setuid helper fusermount3.
//! 3. The handshake with the kernel, and a thread that serves.
//! 4. One stat through the mount, so that it is known to serve, and a larger readahead for it.
//!
//! The session ends when the filesystem is unmounted, by [`MountedSession::unmount`] or otherwise. Then running slow calls are finished,
//! [`FileService::shutdown`] is called, and waiters wake. The order matters, because acknowledged data must be durable before `wait`
//! returns.

mod check;
mod error;
mod session;

use std::ffi::CString;
use std::fs::OpenOptions;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use dedupfs_service::FileService;
use fuser::{Config, MountOption, Session, SessionACL};
use rustix::io::Errno as SystemErrno;
use rustix::mount::MountFlags;

use crate::adapter::{Adapter, Awake, KeepAwake, Policy, SlowCalls};
pub use error::MountError;
pub use session::{MountedSession, detach_path, unmount_path};

/// The filesystem's type, as /proc/mounts shows it; `umount` looks for a helper by this name too.
const FILESYSTEM_TYPE: &str = "fuse.dedupfs";
const SUBTYPE: &str = "dedupfs";
const DEVICE: &str = "/dev/fuse";
/// Readahead. The largest request is 1 MiB; twice that lets one be on the way while another is used.
const READAHEAD_KIB: u32 = 2048;
/// Limit of session threads. More only compete for the same requests.
const SESSION_THREADS_MAX: usize = 16;
/// Threads beyond those that receive, for while these wait: the number of requests that can wait before all do. Each may come to hold two
/// buffers of the largest request.
const SPARE_THREADS: usize = 12;

/// Options of mount(8), and the flags of mount(2) that they set or clear.
const FLAGS: [(&str, MountOption, MountFlags, bool); 13] = [
    ("dev", MountOption::Dev, MountFlags::NODEV, false),
    ("nodev", MountOption::NoDev, MountFlags::NODEV, true),
    ("suid", MountOption::Suid, MountFlags::NOSUID, false),
    ("nosuid", MountOption::NoSuid, MountFlags::NOSUID, true),
    ("exec", MountOption::Exec, MountFlags::NOEXEC, false),
    ("noexec", MountOption::NoExec, MountFlags::NOEXEC, true),
    ("ro", MountOption::RO, MountFlags::RDONLY, true),
    // A pool that is opened for reading stays read-only.
    ("rw", MountOption::RW, MountFlags::empty(), true),
    ("atime", MountOption::Atime, MountFlags::NOATIME, false),
    ("noatime", MountOption::NoAtime, MountFlags::NOATIME, true),
    ("sync", MountOption::Sync, MountFlags::SYNCHRONOUS, true),
    ("async", MountOption::Async, MountFlags::SYNCHRONOUS, false),
    ("dirsync", MountOption::DirSync, MountFlags::DIRSYNC, true),
];
/// Options with a field of their own. auto_unmount needs a helper process that outlives us.
const REFUSED: [&str; 5] = ["", "auto_unmount", "allow_other", "allow_root", "default_permissions"];

/// How to mount.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// The device that `df` and `mount` show.
    pub source: String,
    /// Whether users other than the one that mounts have access (by the files' permissions).
    pub allow_other: bool,
    /// Refuse changes.
    pub read_only: bool,
    /// Let the kernel read files and directories without opening them. Only with `read_only`, and only if the service refuses every change
    /// for as long as it is mounted: the kernel keeps names and pages without asking whether they are current.
    pub no_open: bool,
    /// Show `noatime`. The kernel leaves times of last access to the service in any case.
    pub no_atime: bool,
    /// Further mount(8) options: dev, suid, exec, sync, dirsync, with or without `no`, or any option of FUSE in the kernel. Without them:
    /// nodev, nosuid.
    pub extra: Vec<String>,
    /// Threads that receive requests. One is best for one client.
    pub session_threads: usize,
    /// Whether write handles bypass the page cache when the service asks for it.
    pub direct_io_writes: bool,
    /// Whether idle cores are kept awake while small requests follow one another.
    pub keep_awake: KeepAwake,
}

impl Default for MountOptions {
    fn default() -> Self {
        Self {
            source: SUBTYPE.to_owned(),
            allow_other: false,
            read_only: false,
            no_open: false,
            no_atime: false,
            extra: Vec::new(),
            session_threads: 1,
            direct_io_writes: true,
            keep_awake: KeepAwake::default(),
        }
    }
}

impl MountOptions {
    /// Translates the options for the library. An error names the first invalid one.
    fn parsed(&self) -> Result<Vec<MountOption>, MountError> {
        let mut parsed = vec![
            MountOption::FSName(self.source.clone()),
            MountOption::Subtype(SUBTYPE.to_owned()),
            MountOption::DefaultPermissions,
        ];
        parsed.extend(self.read_only.then_some(MountOption::RO));
        parsed.extend(self.no_atime.then_some(MountOption::NoAtime));
        for option in &self.extra {
            parsed.push(match FLAGS.iter().find(|(name, ..)| name == option) {
                Some((_, known, ..)) => known.clone(),
                None if REFUSED.contains(&option.as_str()) => {
                    return Err(MountError::Option { option: option.clone() });
                }
                None => MountOption::CUSTOM(option.clone()),
            });
        }
        Ok(parsed)
    }

    fn config(&self) -> Result<Config, MountError> {
        let threads = self.receivers_max();
        let mut config = Config::default();
        config.mount_options = self.parsed()?;
        config.acl = if self.allow_other { SessionACL::All } else { SessionACL::Owner };
        config.n_threads = Some(threads + SPARE_THREADS);
        config.clone_fd = threads > 1;
        Ok(config)
    }

    /// The rules for all requests. Of contradicting options the last counts.
    fn policy(&self) -> Policy {
        let last = self.extra.iter().rev().find(|option| *option == "sync" || *option == "async");
        let durable_content = last.is_some_and(|option| option == "sync");
        let durable_names = durable_content || self.extra.iter().any(|option| option == "dirsync");
        let no_open = self.no_open && self.read_only;
        Policy { direct_io_writes: self.direct_io_writes, durable_content, durable_names, no_open }
    }

    fn receivers_max(&self) -> usize {
        self.session_threads.clamp(1, SESSION_THREADS_MAX)
    }
}

/// Mounts `service` at `mountpoint`. When this returns, the mount is visible and serves.
pub fn mount(
    service: Arc<dyn FileService>,
    mountpoint: &Path,
    options: &MountOptions,
) -> Result<MountedSession, MountError> {
    let config = options.config()?;
    let mountpoint = check::mountpoint(mountpoint)?;
    let device = check::open_device()?;
    let slow = SlowCalls::default();
    let receivers_max = options.receivers_max();
    let adapter = Adapter::new(Arc::clone(&service), slow.clone(), receivers_max, options.policy());
    let (notifier, watch) = (adapter.notifier(), adapter.watch());
    let session = match mount_directly(&device, &mountpoint, &config) {
        Ok(()) => Session::from_fd(adapter, device, config.acl, config).map_err(|source| {
            // Mounted, but it will never be served.
            session::detach(&mountpoint);
            MountError::Handshake { source }
        })?,
        Err(SystemErrno::PERM) => {
            drop(device);
            Session::new(adapter, &mountpoint, &config).map_err(|source| check::helper_error(source, &mountpoint))?
        }
        Err(errno) => return Err(MountError::Mount { mountpoint, source: errno.into() }),
    };
    // Set once, here.
    let _ = notifier.set(session.notifier());
    // With several receivers, one sleeps in the kernel while another looks, and is woken in any case.
    let device = (receivers_max == 1).then(|| session.as_fd().try_clone_to_owned()).transpose();
    let device = device.inspect_err(|error| tracing::debug!(%error, "cannot poll for requests"));
    watch.set_source(device.ok().flatten(), Awake::new(options.keep_awake));
    // These hold the device. If the session ends at once, the stat below must not wait for an answer.
    drop((notifier, watch));
    let mounted = MountedSession::start(session, mountpoint.clone(), service, slow)?;
    let metadata = std::fs::metadata(&mountpoint).map_err(|source| MountError::NotServing { source })?;
    raise_readahead(metadata.dev());
    Ok(mounted)
}

fn mount_directly(device: &OwnedFd, mountpoint: &PathBuf, config: &Config) -> Result<(), SystemErrno> {
    let root_mode = std::fs::metadata(mountpoint).map_or(libc::S_IFDIR, |metadata| metadata.mode());
    let mut data = format!(
        "fd={},rootmode={:o},user_id={},group_id={},default_permissions",
        device.as_raw_fd(),
        root_mode & libc::S_IFMT,
        rustix::process::getuid().as_raw(),
        rustix::process::getgid().as_raw(),
    );
    if config.acl != SessionACL::Owner {
        data.push_str(",allow_other");
    }
    let mut source = SUBTYPE;
    for option in &config.mount_options {
        match option {
            MountOption::FSName(name) => source = name,
            MountOption::CUSTOM(option) => {
                data.push(',');
                data.push_str(option);
            }
            _ => {}
        }
    }
    let flags = flags(&config.mount_options);
    let data = CString::new(data).map_err(|_| SystemErrno::INVAL)?;
    rustix::mount::mount(source, mountpoint, FILESYSTEM_TYPE, flags, Some(data.as_c_str()))
}

/// The flags of mount(2) for these options. Of contradicting options the last counts.
fn flags(options: &[MountOption]) -> MountFlags {
    let mut flags = MountFlags::NODEV | MountFlags::NOSUID;
    for option in options {
        if let Some((.., flag, is_set)) = FLAGS.iter().find(|(_, known, ..)| known == option) {
            flags.set(*flag, *is_set);
        }
    }
    flags
}

/// Raises the readahead. The kernel's default of 128 KiB makes sequential reads ask eight times as often. Only the superuser may change it;
/// without it reads are merely slower.
fn raise_readahead(device_number: u64) {
    let (major, minor) = (libc::major(device_number), libc::minor(device_number));
    let setting = format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb");
    let raised = OpenOptions::new()
        .write(true)
        .custom_flags(libc::O_CLOEXEC)
        .open(&setting)
        .and_then(|mut file| std::io::Write::write_all(&mut file, READAHEAD_KIB.to_string().as_bytes()));
    if let Err(error) = raised {
        tracing::debug!(%error, setting, "readahead stays at the kernel's default");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_translated() {
        let options = MountOptions {
            read_only: true,
            extra: vec!["dev".into(), "noexec".into(), "max_read=65536".into()],
            ..MountOptions::default()
        };
        let parsed = options.parsed().unwrap();
        for expected in [MountOption::RO, MountOption::Dev, MountOption::NoExec] {
            assert!(parsed.contains(&expected), "{expected:?}");
        }
        assert!(parsed.contains(&MountOption::CUSTOM("max_read=65536".into())));
    }

    #[test]
    fn options_with_a_field_of_their_own_are_refused() {
        for option in ["auto_unmount", "allow_other", ""] {
            let options = MountOptions { extra: vec![option.into()], ..MountOptions::default() };
            assert!(matches!(options.parsed(), Err(MountError::Option { .. })), "{option:?}");
        }
    }

    #[test]
    fn regression_of_options_that_contradict_each_other_the_last_counts() {
        let with = |extra: &[&str]| {
            let extra = extra.iter().map(|option| (*option).to_owned()).collect();
            let options = MountOptions { extra, ..MountOptions::default() };
            (flags(&options.parsed().unwrap()), options.policy())
        };
        let safe = MountFlags::NODEV | MountFlags::NOSUID;
        assert_eq!(with(&["dev", "suid", "nodev", "nosuid"]).0, safe);
        assert_eq!(with(&["nodev", "dev", "noexec"]).0, MountFlags::NOSUID | MountFlags::NOEXEC);
        assert_eq!(with(&["noexec", "exec", "noatime", "atime", "sync", "async"]).0, safe);
        let durable = |extra: &[&str]| {
            let policy = with(extra).1;
            (policy.durable_content, policy.durable_names)
        };
        assert_eq!(durable(&["dev"]), (false, false));
        assert_eq!(durable(&["dirsync"]), (false, true));
        assert_eq!(durable(&["sync"]), (true, true));
        assert_eq!(durable(&["sync", "async"]), (false, false));
        assert_eq!(durable(&["async", "sync"]), (true, true));
    }

    #[test]
    fn threads_are_limited() {
        let with = |session_threads| MountOptions { session_threads, ..MountOptions::default() };
        for (wanted, receivers) in [(0, 1), (1, 1), (2, 2), (1000, SESSION_THREADS_MAX)] {
            let (options, config) = (with(wanted), with(wanted).config().unwrap());
            assert_eq!(options.receivers_max(), receivers);
            assert_eq!((config.n_threads, config.clone_fd), (Some(receivers + SPARE_THREADS), receivers > 1));
        }
    }
}
