//! `dedupfs mount`: the mountpoint's state, and starting the daemon.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;

use dedupfs_fuse::MountError;

use crate::args::MountArgs;
use crate::control::{Failure, FailureKind};
use crate::mountinfo::contains;
use crate::ready::{self, Outcome};
use crate::{silence, target};

const FIRST_INHERITED: i32 = 3;

#[derive(Debug)]
pub(crate) struct Mountpoint {
    pub(crate) path: PathBuf,
    /// A mount of the same pool, whose daemon was killed, is there.
    pub(crate) is_dead: bool,
}

/// The pool's directories: POOL, and its data root if the superblock names it. Opening reports a pool that cannot be read.
pub(crate) fn roots(pool: &Path) -> Vec<PathBuf> {
    let data = target::data_root(pool).and_then(|data| target::real_path(&data).ok());
    std::iter::once(pool.to_path_buf()).chain(data).collect()
}

pub(crate) fn examine(pool: &Path, mountpoint: &Path) -> Result<Mountpoint, Failure> {
    examine_for(&roots(pool), mountpoint)
}

/// As [`examine`], of a mount that rests on these directories: the first has the pool, or the views of a replica.
pub(crate) fn examine_for(directories: &[PathBuf], mountpoint: &Path) -> Result<Mountpoint, Failure> {
    let unusable = |message: String| FailureKind::MountpointUnusable.because(message);
    let shown = mountpoint.display();
    let path = target::real_path(mountpoint).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => unusable(format!("mountpoint {shown} does not exist: create the directory first")),
        _ => unusable(format!("mountpoint {shown} cannot be used: {error}")),
    })?;
    // Content written through the mount would be written to the mount: the daemon would wait for itself.
    for root in directories {
        if contains(root, &path) || contains(&path, root) {
            return Err(unusable(format!(
                "mountpoint {shown} and {} of the pool are in each other: choose a mountpoint outside of the pool",
                root.display()
            )));
        }
    }
    if let Some(mount) = target::mounted_at(&path)? {
        let is_dead = is_dead(&path);
        let of = mount.source.display();
        return match is_dead {
            true if directories.first().is_some_and(|pool| mount.source.starts_with(pool)) => {
                Ok(Mountpoint { path, is_dead })
            }
            true => Err(unusable(format!(
                "on {shown} lies a dead mount of pool {of} (its daemon was killed): remove it with `dedupfs umount \
                 {shown}`"
            ))),
            false => Err(unusable(format!("pool {of} is mounted on {shown} already: `dedupfs umount {shown}` first"))),
        };
    }
    if is_dead(&path) {
        return Err(unusable(format!(
            "on {shown} lies a dead mount of another filesystem: remove it with `umount -l {shown}`"
        )));
    }
    match std::fs::metadata(&path) {
        Ok(metadata) if metadata.is_dir() => Ok(Mountpoint { path, is_dead: false }),
        Ok(_) => Err(unusable(format!("mountpoint {shown} is not a directory"))),
        Err(error) => Err(unusable(format!("mountpoint {shown} cannot be used: {error}"))),
    }
}

/// Whether no daemon serves the mount at `mountpoint`.
///
/// Asks with statfs(2), because the kernel may answer stat(2) for a dead mount too, from its cache. The call runs in a thread of its own,
/// which is left behind if the daemon does not answer. That is no dead mount: the kernel itself answers for one.
pub(crate) fn is_dead(mountpoint: &Path) -> bool {
    let ask = |path: &Path| rustix::fs::statfs(path).is_err_and(|error| error == rustix::io::Errno::NOTCONN);
    let (sender, receiver) = mpsc::channel();
    let path = mountpoint.to_path_buf();
    let asking = std::thread::Builder::new().name("statfs".to_owned()).spawn(move || {
        // Nobody listens any more if it took too long.
        let _ = sender.send(ask(&path));
    });
    if asking.is_err() {
        return ask(mountpoint);
    }
    match receiver.recv_timeout(silence::PATIENCE) {
        Ok(is_dead) => is_dead,
        Err(_) => {
            if let Ok(Some(mount)) = target::mounted_at(mountpoint) {
                silence::tell(&mount.source);
            }
            false
        }
    }
}

pub(crate) fn detach(mountpoint: &Path) -> Result<(), Failure> {
    dedupfs_fuse::detach_path(mountpoint).map_err(|error| {
        let shown = mountpoint.display();
        let message = format!("cannot detach the mount on {shown} ({error}): try `umount -i -l {shown}` as root");
        FailureKind::MountpointUnusable.because(message)
    })
}

impl From<MountError> for Failure {
    fn from(error: MountError) -> Self {
        let kind = match error {
            MountError::NoMountpoint { .. }
            | MountError::NotDirectory { .. }
            | MountError::MountpointDenied { .. }
            | MountError::DeadMount { .. }
            | MountError::AlreadyMounted { .. }
            | MountError::Busy { .. }
            | MountError::NotMounted { .. } => FailureKind::MountpointUnusable,
            MountError::NoDevice { .. }
            | MountError::DeviceDenied { .. }
            | MountError::NotPermitted { .. }
            | MountError::UserAllowOther
            | MountError::Mount { .. }
            | MountError::Handshake { .. } => FailureKind::FuseUnavailable,
            MountError::Option { .. } => FailureKind::Usage,
            MountError::NotServing { .. }
            | MountError::Unmount { .. }
            | MountError::NoThread { .. }
            | MountError::Session { .. } => FailureKind::Failed,
        };
        kind.because(error.to_string())
    }
}

pub(crate) fn hidden_files(mountpoint: &Path) -> Option<String> {
    std::fs::read_dir(mountpoint).is_ok_and(|mut entries| entries.next().is_some()).then(|| {
        format!(
            "{} is not empty: its files are hidden until the pool is unmounted (if backups ran while nothing was \
             mounted, they are there)",
            mountpoint.display()
        )
    })
}

/// Mounts in the background. A replica is made ready first, in this process, which may have a terminal.
pub(crate) fn run(args: &MountArgs) -> Result<(), Failure> {
    #[cfg(feature = "remote")]
    if crate::view::is_replica(&args.pool) {
        let args = crate::view::with_options(args)?;
        let prepared = crate::view::prepare(&args.pool, &args.view, args.memory)?;
        examine_for(&prepared.directories, &args.mountpoint)?;
        let args = MountArgs { state: Some(prepared.state), ..args };
        return start_daemon(&args, prepared.secret.as_ref()).map(drop);
    }
    start_daemon(args, None).map(drop)
}

/// Starts this program again as the daemon; returns its process when it serves. The secret of a replica reaches it through its standard input: nobody
/// sees it there.
pub(crate) fn start_daemon(args: &MountArgs, secret: Option<&[u8; 32]>) -> Result<Child, Failure> {
    let failed = |what: &str, error: io::Error| Failure::failed(format!("cannot {what}: {error}"));
    let (reader, writer) = io::pipe().map_err(|error| failed("make a pipe", error))?;
    let program = std::env::current_exe().map_err(|error| failed("find this program", error))?;
    // The program was replaced by a newer one, or is out of sight in another mount namespace.
    let program = if program.is_file() { program } else { "/proc/self/exe".into() };
    let hidden = hidden_files(&args.mountpoint);
    // Otherwise the daemon would keep descriptors inherited from this process's parent while the mount lives: a lock, or a pipe that
    // another process reads to its end.
    close_fds::set_fds_cloexec(FIRST_INHERITED, &[]);
    let mut child = Command::new(program)
        .arg0("dedupfs")
        .args(daemon_arguments(args, secret.is_some()))
        .stdin(if secret.is_some() { Stdio::piped() } else { Stdio::null() })
        .stdout(writer)
        .spawn()
        .map_err(|error| failed("start the daemon", error))?;
    if let (Some(secret), Some(mut stdin)) = (secret, child.stdin.take()) {
        // A daemon that is gone is told of below.
        let _heard = std::io::Write::write_all(&mut stdin, secret);
    }
    match ready::receive(reader).map_err(|error| failed("hear from the daemon", error))? {
        Some(Outcome::Serving { notice }) => {
            if let Some(notice) = notice {
                eprintln!("dedupfs: {notice}");
            }
            if let Some(warning) = hidden {
                eprintln!("dedupfs: warning: {warning}");
            }
            Ok(child)
        }
        Some(Outcome::Failed(failure)) => {
            // Wait, so that the pool is free when this returns.
            let _ = child.wait();
            Err(failure)
        }
        None if crate::interrupt::exit_code().is_some() => {
            let _ = child.wait();
            Err(Failure::failed("interrupted"))
        }
        None => Err(Failure::failed(describe_death(&mut child))),
    }
}

fn daemon_arguments(args: &MountArgs, has_secret: bool) -> Vec<OsString> {
    let mut list: Vec<OsString> = vec!["mount".into(), "--daemon-child".into()];
    let mut option = |name: &str, value: OsString| {
        let mut text = OsString::from(name);
        text.push("=");
        text.push(value);
        list.push(text);
    };
    option("--memory", args.memory.to_string().into());
    option("--filters", args.filters.to_string().into());
    for options in &args.options {
        option("--options", options.into());
    }
    if let Some(file) = &args.log_file {
        option("--log-file", file.into());
    }
    #[cfg(feature = "remote")]
    {
        let view = &args.view;
        let files =
            [("--key", &view.key.key), ("--passphrase-file", &view.key.passphrase_file), ("--cache", &view.cache)];
        for (name, path) in files {
            path.iter().for_each(|path| option(name, path.into()));
        }
        view.cache_size.iter().for_each(|bytes| option("--cache-size", bytes.to_string().into()));
    }
    if let Some(parent) = args.ends_with_parent {
        list.push(format!("--ends-with-parent={parent}").into());
    }
    if has_secret {
        list.push("--secret-stdin".into());
    }
    if let Some(state) = &args.state {
        list.push(format!("--state={state}").into());
    }
    list.push("--".into());
    list.push(args.pool.clone().into());
    list.push(args.mountpoint.clone().into());
    list
}

fn describe_death(child: &mut Child) -> String {
    let how = |status: ExitStatus| match (status.signal(), status.code()) {
        (Some(signal), _) => format!("was killed by signal {signal}"),
        (_, Some(code)) => format!("ended with code {code}"),
        _ => "ended".to_owned(),
    };
    let how = child.wait().map_or_else(|_| "ended".to_owned(), how);
    format!("the daemon {how} before the mount served: nothing is mounted; see `dmesg` for the kernel's messages")
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use dedupfs_store::superblock::PoolProperties;

    use super::*;

    #[test]
    fn mountpoints_that_cannot_be_used() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path().canonicalize().unwrap();
        let pool = root.join("pool");
        std::fs::create_dir_all(pool.join("inside")).unwrap();
        std::fs::write(root.join("file"), "").unwrap();
        for (mountpoint, word) in [
            (root.join("absent"), "does not exist"),
            (root.join("file"), "not a directory"),
            (pool.clone(), "in each other"),
            (pool.join("inside"), "in each other"),
            (root.clone(), "in each other"),
        ] {
            let failure = examine(&pool, &mountpoint).unwrap_err();
            assert_eq!(failure.kind, FailureKind::MountpointUnusable);
            assert!(failure.message.contains(word), "{failure}");
        }
        std::fs::create_dir(root.join("mnt")).unwrap();
        let free = examine(&pool, &root.join("pool/../mnt")).unwrap();
        assert_eq!((free.path, free.is_dead), (root.join("mnt"), false));
    }

    /// The daemon of such a mount waited for itself at the first real write.
    #[test]
    fn regression_a_data_root_is_no_mountpoint() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path().canonicalize().unwrap();
        let (pool, data) = (root.join("pool"), root.join("disk/data"));
        dedupfs::format(&pool, Some(&data), &PoolProperties::default()).unwrap();
        for mountpoint in [&data, &root.join("disk")] {
            let failure = examine(&pool, mountpoint).unwrap_err();
            assert!(failure.message.contains("in each other"), "{failure}");
        }
    }

    #[test]
    fn the_daemon_gets_the_same_arguments() {
        let args = MountArgs {
            pool: "-odd pool".into(),
            mountpoint: "/m".into(),
            foreground: false,
            daemon_child: false,
            memory: 1 << 30,
            filters: "zero,bloom,sealed".parse().unwrap(),
            log_file: Some("/l".into()),
            options: vec!["ro,dev".to_owned()],
            json: false,
            #[cfg(feature = "remote")]
            view: crate::args::remote::ViewArgs {
                key: crate::args::remote::KeyOptions { key: Some("/k".into()), passphrase_file: Some("/p".into()) },
                cache: Some("/c".into()),
                cache_size: Some(1 << 30),
            },
            ends_with_parent: Some(7),
            secret_stdin: true,
            state: Some("1-2".to_owned()),
        };
        let mut line: Vec<OsString> = vec!["dedupfs".into()];
        line.extend(daemon_arguments(&args, true));
        let parsed = <crate::args::Dedupfs as clap::Parser>::try_parse_from(line).unwrap();
        let crate::args::Command::Mount(parsed) = parsed.command else { panic!("another command") };
        assert!(parsed.daemon_child);
        assert_eq!(MountArgs { daemon_child: false, ..parsed }, args);
    }
}
