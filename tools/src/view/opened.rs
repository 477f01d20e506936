//! Opening the view of a replica in a directory of this machine.

use std::ffi::OsString;
use std::fs::DirBuilder;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use dedupfs::{NoProgress, OpenOptions, Pool, Progress};
use dedupfs_replica::{Replica, View, ViewOptions};
use dedupfs_store::device::{Device, FileDevice, PoolLock};
use dedupfs_store::{PoolId, StoreError};

use crate::access;
use crate::args::remote::ViewArgs;
use crate::commands::replicate::store::{PASSPHRASE, Store, passphrase};
use crate::control::{Failure, FailureKind};
use crate::progress::Bars;
use crate::time;

/// Content kept on the disk, if nothing else is said.
const CACHE_BYTES: u64 = 20 << 30;
/// Requests at the same time.
const CONNECTIONS: usize = 8;
const CACHE_OF_ROOT: &str = "/var/cache/dedupfs";

/// The view of a replica, open. Its directory is locked.
pub(crate) struct Opened {
    /// Directory of its meta root: it stands for the pool.
    pub(crate) root: PathBuf,
    place: String,
    of_pool: PoolId,
    view: View,
    _lock: PoolLock,
}

/// A passphrase that was asked for, for the daemon.
pub(crate) struct Prepared {
    pub(crate) secrets: Vec<(&'static str, OsString)>,
}

impl Opened {
    /// Opens the newest state of a replica; makes it on the disk if it is new there.
    pub(crate) fn open(
        place: &Path,
        args: &ViewArgs,
        memory_bytes: u64,
        progress: &dyn Progress,
    ) -> Result<Self, Failure> {
        let known = args.key.key.as_ref().map(|_| ask(args)).transpose()?;
        Self::open_with(place, args, known.as_deref(), memory_bytes, progress)
    }

    fn open_with(
        place: &Path,
        args: &ViewArgs,
        passphrase: Option<&[u8]>,
        memory_bytes: u64,
        progress: &dyn Progress,
    ) -> Result<Self, Failure> {
        let Some(text) = place.to_str() else {
            return Err(FailureKind::Usage.because(format!("{} is not UTF-8: use a link", place.display())));
        };
        access::raise_descriptor_limit();
        let store = Store::open(text)?;
        let replica = store.replica_with(args.key.key.as_deref(), passphrase)?;
        let directory = directory_of(&replica, args)?;
        let lock = PoolLock::acquire(&directory, &format!("dedupfs, reading {}", replica.place())).map_err(in_use)?;
        let disk: Arc<dyn Device> = Arc::new(FileDevice::open(&directory)?);
        let options =
            ViewOptions { cache_bytes: args.cache_size.unwrap_or(CACHE_BYTES), connections: CONNECTIONS, memory_bytes };
        let replica = Arc::new(replica);
        let view = View::open(&replica, &disk, options, progress).map_err(|error| {
            let shown = directory.display();
            Failure::from(error).while_trying(&format!("cannot make a view of {} in {shown}", replica.place()))
        })?;
        let (place, of_pool) = (replica.place().to_owned(), replica.pool());
        Ok(Self { root: directory.join(&view.pool_directory), place, of_pool, view, _lock: lock })
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

    /// The pool that the replica is of.
    pub(crate) const fn of_pool(&self) -> PoolId {
        self.of_pool
    }

    /// The commit of the replica that is read.
    pub(crate) const fn commit(&self) -> u64 {
        self.view.commit
    }

    /// Tells which state is read, and its gaps.
    pub(crate) fn notice(&self) -> String {
        let (place, commit, when) = (&self.place, self.view.commit, time::show(self.view.written_secs));
        let gaps: String = self.view.findings.iter().map(|finding| format!("; MISSING: {finding}")).collect();
        format!("{place}: commit {commit} of {when} is read{gaps}")
    }
}

/// Makes the view in this process, which has a terminal, and lets go of it. The daemon finds it there.
pub(crate) fn prepare(place: &Path, args: &ViewArgs, memory_bytes: u64) -> Result<Prepared, Failure> {
    let known = args.key.key.as_ref().map(|_| ask(args)).transpose()?;
    let bars = Bars::default();
    let progress = crate::interrupt::ended_by_signals(&bars)?;
    let opened = Opened::open_with(place, args, known.as_deref(), memory_bytes, &progress);
    bars.finish();
    drop(opened?);
    let is_in_file = args.key.passphrase_file.is_some();
    let secrets = known.filter(|_| !is_in_file).map(|known| (PASSPHRASE, OsString::from_vec(known)));
    Ok(Prepared { secrets: secrets.into_iter().collect() })
}

fn ask(args: &ViewArgs) -> Result<Vec<u8>, Failure> {
    passphrase(args.key.passphrase_file.as_deref(), "passphrase of the key file: ")
}

/// Returns the directory of a replica in the cache. Only its owner may look into it: it has content that is encrypted in the store.
fn directory_of(replica: &Replica, args: &ViewArgs) -> Result<PathBuf, Failure> {
    let directory = cache(args)?.join(replica.name());
    let made = DirBuilder::new().recursive(true).mode(0o700).create(&directory);
    made.map_err(|error| {
        let shown = directory.display();
        Failure::failed(format!(
            "cannot make the directory {shown}: {error}; name another one with --cache DIR, or `-o cache=DIR`"
        ))
    })?;
    directory.canonicalize().map_err(|error| Failure::failed(format!("cannot use {}: {error}", directory.display())))
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

fn in_use(error: StoreError) -> Failure {
    match error {
        StoreError::Busy { what, owner } => FailureKind::PoolInUse.because(format!(
            "{what} is in use by {owner}: read where that has it mounted (`findmnt -t fuse.dedupfs`), or name another directory with --cache DIR"
        )),
        error => error.into(),
    }
}
