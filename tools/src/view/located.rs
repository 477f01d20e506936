//! Paths of commands that read: in a mount, or in a replica, which is mounted for the command.

use std::path::{Path, PathBuf};
use std::process::Child;

use dedupfs_remote::Address;
use dedupfs_store::objects::Key;
use rustix::process::{Pid, Signal, kill_process};

use super::opened::{cache, prepare};
use super::{is_address, is_replica};
use crate::args::MountArgs;
use crate::args::remote::ViewArgs;
use crate::commands::replicate::store::FORMAT;
use crate::control::{Failure, FailureKind};
use crate::{interrupt, mount};

/// Paths, and what has to be there while they are used.
pub(crate) struct Located {
    pub(crate) paths: Vec<PathBuf>,
    _mounted: Option<Mounted>,
}

impl Located {
    /// Finds paths. If they are of a replica, it is mounted until this is dropped.
    pub(crate) fn find(given: &[&Path], args: &ViewArgs) -> Result<Self, Failure> {
        let addresses: Vec<Option<PathBuf>> = given.iter().map(|path| address_of(path)).collect();
        if addresses.iter().all(Option::is_none) {
            return Ok(Self { paths: given.iter().map(|path| path.to_path_buf()).collect(), _mounted: None });
        }
        let addresses = given.iter().zip(&addresses).map(|(path, address)| address.as_deref().unwrap_or(path));
        let split: Vec<(String, PathBuf)> = addresses.map(split).collect::<Result<_, _>>()?;
        let Some((place, _)) = split.first() else { return Ok(Self { paths: Vec::new(), _mounted: None }) };
        if split.iter().any(|(other, _)| other != place) {
            return Err(FailureKind::Usage
                .because("both must be of one replica: mount the replicas to compare them with `diff -r`"));
        }
        let mounted = Mounted::mount(place, args)?;
        if interrupt::exit_code().is_some() {
            return Err(Failure::failed("interrupted"));
        }
        let paths = split.iter().map(|(_, name)| mounted.mountpoint.join(name)).collect();
        Ok(Self { paths, _mounted: Some(mounted) })
    }
}

/// Works on one path, which messages name as it was given.
pub(crate) fn at<T>(
    given: &Path,
    args: &ViewArgs,
    work: impl FnOnce(&Path) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let located = Located::find(&[given], args)?;
    let path = located.paths.first().map_or(given, PathBuf::as_path);
    work(path).map_err(|failure| failure.renamed(path, given))
}

/// Returns a path as the address of a store, if it is one, or leads into a directory with a replica.
fn address_of(path: &Path) -> Option<PathBuf> {
    if is_address(path) {
        return Some(path.to_owned());
    }
    // What exists is read as it is, unless it is the replica itself.
    let is_looked_for = path.symlink_metadata().is_err() || is_replica(path);
    let absolute = std::path::absolute(path).ok().filter(|_| is_looked_for)?;
    absolute.ancestors().any(is_replica).then(|| format!("file://{}", absolute.display()).into())
}

/// Divides STORE/NAME: the shortest address that has a replica, and the name in it. The store is asked.
fn split(path: &Path) -> Result<(String, PathBuf), Failure> {
    let shown = path.display();
    let usage = |message: String| FailureKind::Usage.because(message);
    let text = path.to_str().filter(|_| is_address(path)).ok_or_else(|| {
        usage(format!("{shown} is no address of a replica, and another argument is: both must be of one replica"))
    })?;
    let (whole, query) = text.split_once('?').map_or((text, None), |(whole, query)| (whole, Some(query)));
    let with_query = |place: &str| query.map_or_else(|| place.to_owned(), |query| format!("{place}?{query}"));
    let begin = whole.find("://").map_or(0, |at| at + 3);
    let ends = whole.match_indices('/').map(|(at, _)| at).filter(|at| *at > begin).chain([whole.len()]);
    let format = Key::new(FORMAT).map_err(|error| Failure::failed(error.to_string()))?;
    for end in ends {
        let (place, name) = whole.split_at(end);
        let address: Address = with_query(place).parse()?;
        // A directory on the way to a replica is no store, and need not be one.
        if let Address::Directory(directory) = &address
            && !directory.join(FORMAT).is_file()
        {
            continue;
        }
        if address.open()?.head(&format)?.is_some() {
            return Ok((with_query(place), name.trim_matches('/').into()));
        }
    }
    Err(usage(format!(
        "{shown} is not in a replica: is the address right? `dedupfs list STORE` names what a replica has"
    )))
}

/// A replica that is mounted for a command, in a directory of the cache. Its daemon ends with this process, however that ends.
struct Mounted {
    mountpoint: PathBuf,
    daemon: Child,
}

impl Mounted {
    fn mount(place: &str, args: &ViewArgs) -> Result<Self, Failure> {
        let memory_bytes = dedupfs::config::MEMORY_BYTES_DEFAULT;
        let prepared = prepare(Path::new(place), args, memory_bytes)?;
        let cache = cache(args)?;
        remove_leftovers(&cache);
        let mountpoint = cache.join(format!("{MOUNTPOINT}{}", std::process::id()));
        std::fs::create_dir(&mountpoint).map_err(|error| {
            Failure::failed(format!(
                "cannot make {}: {error}; name another directory with --cache DIR",
                mountpoint.display()
            ))
        })?;
        let options = vec!["ro".to_owned(), "noatime".to_owned()];
        let mount_args = MountArgs {
            // What one command reads is seldom read again.
            view: ViewArgs { cache_size: args.cache_size.or(Some(0)), ..args.clone() },
            state: Some(prepared.state),
            ends_with_parent: i32::try_from(std::process::id()).ok(),
            ..MountArgs::with_options(place.into(), mountpoint.clone(), options)
        };
        match mount::start_daemon(&mount_args, prepared.secret.as_ref()) {
            Ok(daemon) => Ok(Self { mountpoint, daemon }),
            Err(failure) => {
                let _stays = std::fs::remove_dir(&mountpoint);
                Err(failure)
            }
        }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // The daemon unmounts. It is this process's child, so its number is not another one's.
        let ended = kill_process(Pid::from_child(&self.daemon), Signal::TERM).map_err(std::io::Error::from);
        let ended = ended.and_then(|()| self.daemon.wait()).and_then(|_| std::fs::remove_dir(&self.mountpoint));
        if let Err(error) = ended {
            eprintln!("dedupfs: warning: {} is left over: {error}", self.mountpoint.display());
        }
    }
}

/// Beginning of the names of mountpoints in the cache.
const MOUNTPOINT: &str = "mnt-";

/// Removes the mountpoints of commands that were killed.
fn remove_leftovers(cache: &Path) {
    for entry in std::fs::read_dir(cache).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let process = name.to_str().and_then(|name| name.strip_prefix(MOUNTPOINT));
        if process.is_some_and(|process| !Path::new("/proc").join(process).exists()) {
            let _still_mounted = std::fs::remove_dir(entry.path());
        }
    }
}
