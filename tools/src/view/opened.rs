//! Opening the view of a replica in a directory of this machine.

use std::fs::{DirBuilder, Permissions, set_permissions};
use std::io::Read as _;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use dedupfs::{NoProgress, OpenOptions, Pool, Progress};
use dedupfs_remote::Address;
use dedupfs_replica::{Replica, View, ViewOptions};
use dedupfs_store::device::{Device, FileDevice, PoolLock};
use dedupfs_store::{PoolId, StoreError};

use crate::args::MountArgs;
use crate::args::remote::ViewArgs;
use crate::commands::replicate::store::{Store, secret_bytes};
use crate::control::{Failure, FailureKind};
use crate::mountinfo::contains;
use crate::progress::Bars;
use crate::{access, interrupt, time};

/// Content kept on the disk, if nothing else is said.
const CACHE_BYTES: u64 = 20 << 30;
/// Requests at the same time.
const CONNECTIONS: usize = 8;
const CACHE_OF_ROOT: &str = "/var/cache/dedupfs";

/// A replica that can be read: its store answers, the key opens it, and its directory in the cache is there.
pub(crate) struct Reader {
    replica: Replica,
    /// Its directory in the cache, and that of its store if it lies in one.
    pub(crate) directories: Vec<PathBuf>,
    cache_bytes: u64,
    secret: Option<[u8; 32]>,
}

impl Reader {
    /// Finds a replica. Without the secret that another process `knows`, the key file is opened.
    pub(crate) fn find(place: &Path, args: &ViewArgs, known: Option<[u8; 32]>) -> Result<Self, Failure> {
        let Some(text) = place.to_str() else {
            return Err(FailureKind::Usage.because(format!("{} is not UTF-8: use a link", place.display())));
        };
        let secret = known.map_or_else(|| secret_bytes(&args.key), |known| Ok(Some(known)))?;
        let store = Store::open(text)?;
        let replica = store.replica_with(secret.as_ref())?;
        let own = match &store.address {
            Address::Directory(directory) => directory.canonicalize().ok(),
            Address::Bucket(_) => None,
        };
        let directory = directory_of(&replica, args, own.as_deref())?;
        let directories = std::iter::once(directory).chain(own).collect();
        Ok(Self { replica, directories, cache_bytes: args.cache_size.unwrap_or(CACHE_BYTES), secret })
    }

    /// The pool that the replica is of.
    pub(crate) const fn of_pool(&self) -> PoolId {
        self.replica.pool()
    }

    /// Opens the newest state; makes it in the cache if it is new there. Another process may have found out its name a moment ago.
    pub(crate) fn open(
        self,
        memory_bytes: u64,
        newest: Option<&str>,
        progress: &dyn Progress,
    ) -> Result<Opened, Failure> {
        access::raise_descriptor_limit();
        let directory = self.directories.first().cloned().unwrap_or_default();
        let place = self.replica.place().to_owned();
        let lock = PoolLock::acquire(&directory, &format!("dedupfs, reading {place}"));
        let lock = lock.map_err(|error| in_use(&directory, error))?;
        let disk: Arc<dyn Device> = Arc::new(FileDevice::open(&directory)?);
        let options = ViewOptions { cache_bytes: self.cache_bytes, connections: CONNECTIONS, memory_bytes };
        let replica = Arc::new(self.replica);
        let view = View::open(&replica, &disk, options, newest, progress).map_err(|error| {
            let failure = Failure::from(error).while_trying(&format!("cannot make a view of {place} in {}", directory.display()));
            match failure.kind {
                FailureKind::NoSpace => failure.and("; name a larger disk with --cache DIR, or `-o cache=DIR`"),
                FailureKind::Damaged => failure.and(
                    ". `dedupfs replica verify` tells what is damaged; `dedupfs recover --force --from` takes what can be read",
                ),
                _ => failure,
            }
        })?;
        let root = directory.join(&view.pool_directory);
        Ok(Opened { root, directories: self.directories, place, view, _lock: lock })
    }
}

/// The view of a replica, open. Its directory is locked.
pub(crate) struct Opened {
    /// Directory of its meta root: it stands for the pool.
    pub(crate) root: PathBuf,
    /// The directories that it rests on.
    pub(crate) directories: Vec<PathBuf>,
    place: String,
    view: View,
    _lock: PoolLock,
}

impl Opened {
    /// Opens the view for the daemon of a mount.
    pub(crate) fn open(args: &MountArgs, progress: &dyn Progress) -> Result<Self, Failure> {
        let known = args.secret_stdin.then(|| {
            let mut known = [0; 32];
            let read = std::io::stdin().read_exact(&mut known);
            read.map(|()| known).map_err(|error| Failure::failed(format!("cannot receive the key: {error}")))
        });
        let reader = Reader::find(&args.pool, &args.view, known.transpose()?)?;
        reader.open(args.memory, args.state.as_deref(), progress)
    }

    /// Opens its pool.
    pub(crate) fn pool(&self, options: &OpenOptions) -> Result<Arc<Pool>, Failure> {
        let lock = PoolLock::acquire(&self.root, &options.note)?;
        self.view.pool(vec![lock], options, &NoProgress).map_err(|error| {
            let failure =
                Failure::from(error).while_trying(&format!("cannot open the view in {}", self.root.display()));
            failure.and(". If its files are damaged, the same command makes them anew")
        })
    }

    /// The commit of the replica that is read.
    pub(crate) const fn commit(&self) -> u64 {
        self.view.commit
    }

    /// Whole containers and parts of them that were fetched so far.
    pub(crate) fn fetched(&self) -> (u64, u64) {
        self.view.fetched()
    }

    /// Tells which state is read, and its gaps.
    pub(crate) fn notice(&self) -> String {
        let (place, commit, when) = (&self.place, self.view.commit, time::show(self.view.written_secs));
        let gaps: String = self.view.findings.iter().map(|finding| format!("; MISSING: {finding}")).collect();
        format!("{place}: commit {commit} of {when} is read{gaps}")
    }
}

/// What is known of a replica when its view is made.
pub(crate) struct Prepared {
    pub(crate) directories: Vec<PathBuf>,
    pub(crate) secret: Option<[u8; 32]>,
    /// Name of the newest state.
    pub(crate) state: String,
}

/// Makes the view in this process, which has a terminal, and lets go of it. The daemon finds it there.
pub(crate) fn prepare(place: &Path, args: &ViewArgs, memory_bytes: u64) -> Result<Prepared, Failure> {
    let bars = Bars::default();
    let reader = Reader::find(place, args, None)?;
    let (directories, secret) = (reader.directories.clone(), reader.secret);
    let progress = interrupt::ended_by_signals(&bars)?;
    let opened = reader.open(memory_bytes, None, &progress);
    bars.finish();
    let state = opened?.view.state;
    if progress.is_cancelled() {
        return Err(Failure::failed("interrupted"));
    }
    Ok(Prepared { directories, secret, state })
}

/// Returns the directory of a replica in the cache. Only its owner may look into it: it has content that is encrypted in the store. That of a plain replica
/// is another one, so that nobody who can write to a store leads a reader of the encrypted one astray.
fn directory_of(replica: &Replica, args: &ViewArgs, store: Option<&Path>) -> Result<PathBuf, Failure> {
    let kind = if replica.is_encrypted() { "" } else { "-plain" };
    let directory = cache(args)?.join(format!("{}{kind}", replica.name()));
    let failed = |error: std::io::Error| {
        let shown = directory.display();
        Failure::failed(format!(
            "cannot use the directory {shown}: {error}; name another one with --cache DIR, or `-o cache=DIR`"
        ))
    };
    let parent = args.cache.as_deref().and_then(Path::parent).filter(|parent| !parent.as_os_str().is_empty());
    if let Some(parent) = parent.filter(|parent| !parent.exists()) {
        // On a disk that is not mounted, the content would fill another one.
        return Err(FailureKind::Usage.because(format!(
            "{} does not exist: make it first, or name another directory with --cache DIR, or `-o cache=DIR`",
            parent.display()
        )));
    }
    DirBuilder::new().recursive(true).mode(0o700).create(&directory).map_err(failed)?;
    let directory = directory.canonicalize().map_err(failed)?;
    if store.is_some_and(|store| contains(store, &directory) || contains(&directory, store)) {
        return Err(FailureKind::Usage.because(format!(
            "the cache {} and the replica's directory are in each other: name another one with --cache DIR",
            directory.display()
        )));
    }
    set_permissions(&directory, Permissions::from_mode(0o700))
        .or_else(|error| {
            // A disk that is only read has it as it was made.
            if error.kind() == std::io::ErrorKind::ReadOnlyFilesystem { Ok(()) } else { Err(error) }
        })
        .map_err(|error| Failure::failed(format!("cannot keep other users out of {}: {error}", directory.display())))?;
    Ok(directory)
}

/// Returns the directory of the caches of all replicas.
pub(super) fn cache(args: &ViewArgs) -> Result<PathBuf, Failure> {
    if let Some(cache) = &args.cache {
        return Ok(cache.clone());
    }
    if rustix::process::geteuid().is_root() {
        return Ok(CACHE_OF_ROOT.into());
    }
    let of = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = of("XDG_CACHE_HOME").or_else(|| of("HOME").map(|home| home.join(".cache")));
    let named = || FailureKind::Usage.because("HOME is not set: name a directory with --cache DIR");
    Ok(cache.ok_or_else(named)?.join("dedupfs"))
}

fn in_use(directory: &Path, error: StoreError) -> Failure {
    match error {
        StoreError::Busy { owner, .. } => FailureKind::PoolInUse.because(format!(
            "the cache {} is in use by {owner}: one command at a time reads a replica with it. Wait; or read where the replica is mounted \
             (`findmnt -t fuse.dedupfs`); or name another directory with --cache DIR, or `-o cache=DIR`",
            directory.display()
        )),
        error => error.into(),
    }
}
