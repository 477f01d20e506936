//! Views: the newest state of a replica, read on any machine.
//!
//! A view is a pool whose data root lies in the replica. Its names, recipes and indexes are on a disk of this machine, made by a recovery. The content
//! of files is fetched when it is read.
//!
//! ```text
//! newest commit -> its export and tables of contents on the disk -> recovery -> a meta root
//! a read of the pool -> ViewDevice -> tables | cache | store
//! ```
//!
//! On the reader's disk:
//!
//! | name | content |
//! |---|---|
//! | `state` | the name of the state that is whole |
//! | `states/NAME/pool` | the meta root of its pool |
//! | `states/NAME/data` | superblock and export of its data root |
//! | `states/NAME/slots` | containers with their objects and slots |
//! | `tables/` | tables of contents of containers |
//! | `objects/` | containers |
//!
//! A state that was made before opens without a download. All of it can be removed while nothing is mounted.

mod cache;
mod containers;
mod device;
mod slots;
mod tables;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use dedupfs::recover::recover_on;
use dedupfs::{EngineError, OpenOptions, Pool, Progress};
use dedupfs_store::StoreError;
use dedupfs_store::device::{Device, PoolLock, Subdirectory};
use dedupfs_store::objects::ObjectError;
use dedupfs_store::superblock::{Role, Superblock};

use self::cache::Cache;
use self::containers::{Ahead, Containers};
use self::device::{SlotFiles, ViewDevice};
#[cfg(feature = "fuzzing")]
pub(crate) use self::slots::Slots;
#[cfg(not(feature = "fuzzing"))]
use self::slots::Slots;
use self::tables::Tables;
use crate::chain::Head;
use crate::error::{ReplicaError, Result};
use crate::lease::Lease;
use crate::place::Replica;
use crate::state::State;

const STATE: &str = "state";
const STATES: &str = "states";
/// Longest name of a state.
const NAME_BYTES_MAX: u64 = 64;
const CONNECTIONS_MAX: usize = 64;
/// Deepest nesting of a state's directories.
const DEPTH_MAX: usize = 6;

/// How a view is opened.
#[derive(Clone, Copy, Debug)]
pub struct ViewOptions {
    /// Bytes of containers that are kept on the disk.
    pub cache_bytes: u64,
    /// Requests at the same time, at most 64; 0 fetches nothing ahead of readers. Up to three times as many containers are in memory.
    pub connections: usize,
    /// Memory of the recovery.
    pub memory_bytes: u64,
}

/// The newest state of a replica, open.
#[derive(Debug)]
pub struct View {
    /// The commit of the replica.
    pub commit: u64,
    /// When it was made, by the writer's clock, in seconds since 1970.
    pub written_secs: u64,
    /// Whether it was made now, and not by an earlier call.
    pub is_new: bool,
    /// The directory of its meta root on the disk.
    pub pool_directory: String,
    /// Content that the replica lacks, in words. A view with findings is made anew by the next call.
    pub findings: Vec<String>,
    disk: Arc<dyn Device>,
    meta: Arc<dyn Device>,
    data: Arc<dyn Device>,
    containers: Arc<Containers>,
    _ahead: Ahead,
    _lease: Lease,
}

impl View {
    /// Opens the newest state of a replica. `disk` is for this replica alone, and no other process uses it.
    ///
    /// # Errors
    /// No commit yet; commits that cannot be read; no room on the disk; those of the store. The next call goes on from there.
    pub fn open(
        replica: &Arc<Replica>,
        disk: &Arc<dyn Device>,
        options: ViewOptions,
        progress: &dyn Progress,
    ) -> Result<Self> {
        let newest =
            replica.newest()?.ok_or_else(|| ReplicaError::Usage(format!("{} has no commit yet", replica.place)))?;
        let lease = Lease::take(replica, newest.commit.number)?;
        let opening = Opening { replica, disk, options, progress, name: name_of(&newest) };
        let found = match disk.read_file(STATE, NAME_BYTES_MAX) {
            Ok(found) if found == opening.name.as_bytes() => opening.found().inspect_err(|error| {
                tracing::warn!(%error, "what was kept of the replica cannot be used: it is made anew");
            }),
            Ok(_) | Err(StoreError::NotFound { .. } | StoreError::Corrupt { .. }) => Err(ReplicaError::Ended),
            Err(error) => return Err(error.into()),
        };
        let (is_new, parts) = match found {
            Ok(parts) => (false, parts),
            Err(_) => (true, opening.make(&newest)?),
        };
        Ok(Self {
            commit: newest.commit.number,
            written_secs: newest.commit.written_secs,
            is_new,
            pool_directory: opening.directory("pool"),
            findings: parts.findings,
            disk: Arc::clone(disk),
            meta: parts.meta,
            data: parts.data,
            containers: parts.containers,
            _ahead: parts.ahead,
            _lease: lease,
        })
    }

    /// Opens its pool, read-only.
    ///
    /// # Errors
    /// Those of [`Pool::open_on`]. If its files on the disk are damaged, the next [`open`](Self::open) makes them anew.
    pub fn pool(&self, locks: Vec<PoolLock>, options: &OpenOptions, progress: &dyn Progress) -> Result<Arc<Pool>> {
        let options = OpenOptions { read_only: true, ..options.clone() };
        Pool::open_on(&self.meta, &self.data, locks, &options, progress).map_err(|error| {
            if matches!(error, EngineError::Store(StoreError::Corrupt { .. } | StoreError::NotFound { .. })) {
                // Else each call would meet the same damage.
                let _is_there_no_more = self.disk.remove(STATE);
            }
            error.into()
        })
    }

    /// Whole containers and parts of them that were fetched so far.
    #[must_use]
    pub fn fetched(&self) -> (u64, u64) {
        let fetched = &self.containers.fetched;
        (fetched.whole.load(Ordering::Relaxed), fetched.ranges.load(Ordering::Relaxed))
    }
}

/// Tells states apart: two writers may have made commits of one number.
fn name_of(newest: &Head) -> String {
    let hash = newest.hash.iter().take(8).fold(String::new(), |text, byte| format!("{text}{byte:02x}"));
    format!("{:016x}-{hash}", newest.commit.number)
}

struct Parts {
    meta: Arc<dyn Device>,
    data: Arc<dyn Device>,
    containers: Arc<Containers>,
    ahead: Ahead,
    findings: Vec<String>,
}

struct Opening<'a> {
    replica: &'a Arc<Replica>,
    disk: &'a Arc<dyn Device>,
    options: ViewOptions,
    progress: &'a dyn Progress,
    name: String,
}

impl Opening<'_> {
    fn directory(&self, part: &str) -> String {
        format!("{STATES}/{}/{part}", self.name)
    }

    fn device(&self, part: &str) -> Result<Arc<dyn Device>> {
        Ok(Arc::new(Subdirectory::create(Arc::clone(self.disk), &self.directory(part))?))
    }

    /// Opens the state that an earlier call made.
    fn found(&self) -> Result<Parts> {
        let (meta, local) = (self.device("pool")?, self.device("data")?);
        Superblock::read(&*meta, Role::Meta)?;
        let superblock = Superblock::read(&*local, Role::Data)?;
        let slots = Slots::load(&**self.disk, &self.directory("slots"), &superblock.pool)?;
        let tables = Tables::open(self.replica, &**self.disk)?;
        self.parts(meta, local, &superblock, slots, tables)
    }

    fn parts(
        &self,
        meta: Arc<dyn Device>,
        local: Arc<dyn Device>,
        superblock: &Superblock,
        slots: Slots,
        tables: Tables,
    ) -> Result<Parts> {
        let cache = Cache::open(Arc::clone(self.disk), self.options.cache_bytes)?;
        let (files, rows) = SlotFiles::of(slots, superblock.properties.container_bytes);
        let connections = self.options.connections.min(CONNECTIONS_MAX);
        let containers = Arc::new(Containers::new(Arc::clone(self.replica), cache, tables, rows, connections));
        let ahead = Ahead::start(&containers);
        let data: Arc<dyn Device> = Arc::new(ViewDevice { local, files, containers: Arc::clone(&containers) });
        Ok(Parts { meta, data, containers, ahead, findings: Vec::new() })
    }

    /// Makes the state of a commit, and removes earlier ones.
    fn make(&self, newest: &Head) -> Result<Parts> {
        let (disk, progress) = (&**self.disk, self.progress);
        match disk.remove(STATE) {
            Ok(()) | Err(StoreError::NotFound { .. }) => disk.sync_directory("")?,
            Err(error) => return Err(error.into()),
        }
        if disk.exists(STATES)? {
            remove_below(disk, STATES, 0)?;
        }
        let (meta, local) = (self.device("pool")?, self.device("data")?);
        progress.start("fetching names", 0);
        let state = State::place(self.replica, newest, &*local)?;
        progress.finish();
        let State { superblock, position, .. } = &state;
        dedupfs::export::make_count(&*local, &superblock.pool, position)?;
        superblock.write_new(&*local)?;
        let (slots, mut findings) = Slots::of(&state);
        slots.save(disk, &self.directory("slots"), &superblock.pool)?;
        let connections = self.options.connections.min(CONNECTIONS_MAX);
        let tables = Tables::fetch(self.replica, disk, &state, connections, progress)?;
        let superblock = superblock.clone();
        drop(state);
        let mut parts = self.parts(meta, local, &superblock, slots, tables)?;
        let options = OpenOptions { memory_bytes: self.options.memory_bytes, ..OpenOptions::default() };
        // Forced: a reader wants all that there is.
        let recovered = recover_on(&parts.meta, &parts.data, b"../data".to_vec(), true, &options, progress);
        if let Some(ReplicaError::Object(error)) = parts.containers.take_error()
            && !matches!(error, ObjectError::Damaged { .. })
        {
            // The recovery took for lost what the store may give a moment later.
            return Err(error.into());
        }
        let recovered = recovered?;
        findings.extend(recovered.restored.shortfall);
        if recovered.rebuilt.missing > 0 {
            findings.push(format!(
                "{} tables, recipe nodes or chunks that files need cannot be read",
                recovered.rebuilt.missing
            ));
        }
        if findings.is_empty() {
            disk.replace_file("", STATE, self.name.as_bytes())?;
        }
        parts.findings = findings;
        Ok(parts)
    }
}

/// Removes all files below a directory, and the directories if they are empty then.
fn remove_below(disk: &dyn Device, directory: &str, depth: usize) -> Result<()> {
    for entry in disk.list(directory)? {
        let path = format!("{directory}/{}", entry.name);
        match entry.is_directory {
            true if depth < DEPTH_MAX => {
                remove_below(disk, &path, depth + 1)?;
                disk.remove_directory(&path)?;
            }
            true => return Err(ReplicaError::Usage(format!("{path} in the cache is not of dedupfs: remove it"))),
            false => disk.remove(&path)?,
        }
    }
    Ok(())
}
