//! The namespace: inodes, names, extended attributes, container records and the operations log.
//!
//! Purpose: POSIX metadata at memory speed, made durable by commits.
//!
//! 1. A mutation takes the mutation lock, reads its inputs, checks the rules and applies a `Draft` to the *active*
//!    generation in memory, in one step. It does no I/O unless an input is neither in memory nor in a cache.
//! 2. [`freeze`](Namespace::freeze) turns the active generation into the *frozen* one (a pointer swap).
//! 3. [`commit`](Namespace::commit) writes the frozen generation, the container records and the log row in one durable
//!    transaction of the embedded store (invariant I-2), while readers and mutators go on.
//! 4. Readers ask the active generation, then the frozen one, then a snapshot of the store. Each commit replaces the
//!    snapshot.
//!
//! Invariants:
//! - All changes of one mutation are in one generation, so a crash keeps all or none of them.
//! - A failed commit leaves the frozen generation. The next freeze merges later changes into it.
//! - A log row is written exactly once, even if a commit failed after it had reached the disk.
//! - After a failed sync every change fails (invariant I-7).
//! - Cookies and inode numbers of committed objects are never given again.
//!
//! Lock order: `mutation`, `store`, `state`. `state` is held for a few table operations, `store` for a whole commit or
//! compaction. Readers wait for `store` only during a compaction, or to open the store again after a device failure.
//!
//! Cost: a mutation takes one to two microseconds, and 0.5 KiB until it is committed. A read of committed data takes
//! one descent of a B-tree, or a cache hit. A commit takes two syncs.

#![warn(unreachable_pub)]

mod attributes;
mod backend;
mod base;
mod changes;
mod check;
mod commit;
mod container_record;
mod damage;
mod directory;
mod draft;
mod export;
#[cfg(any(test, feature = "forging"))]
mod forging;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod inode;
mod log;
mod names;
mod newest;
mod overlay;
mod page_sums;
mod record;
mod rename;
mod repair;
mod restore;
mod shadow;
mod tables;
#[cfg(test)]
mod tests;
mod totals;
mod verified;
mod view;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use dedupfs_base::{EngineError, Result};
use dedupfs_service::{FileKind, Ino, ROOT_INO, Timestamp};
use dedupfs_store::device::{Device, DeviceFile, OpenMode};
use dedupfs_store::recipe::Root;
use dedupfs_store::{ContainerId, LogOp, OperationsLog, StoreError};
use parking_lot::{Mutex, RwLock};
use quick_cache::Weighter;
use quick_cache::sync::Cache;

use self::backend::Health;
use self::base::Store;
use self::overlay::Generations;
use self::tables::Header;
use self::verified::{KnownSums, VerifiedFile};

pub use self::changes::{ChangedKey, ExportMark, Exported, Lineage};
pub use self::commit::{CommitInput, Committed};
pub use self::directory::DirItem;
pub use self::export::{ExportSource, ExportTable, Item};
pub use self::inode::Inode;
pub(crate) use self::inode::SYMLINK_BYTES_MAX;
pub use self::names::{NewInode, check_name};
pub use self::page_sums::SUMS_FILES as NAMESPACE_SUMS_FILES;
pub use self::rename::Renamed;
pub use self::repair::{NamespaceRepair, repair};
pub use self::restore::Restorer;
pub use self::tables::IndexSide;
pub use self::totals::Totals;

/// The namespace's file on the meta root.
pub const NAMESPACE_FILE: &str = "namespace.redb";
/// Longest name of a directory entry or an extended attribute, in bytes.
pub(crate) const NAME_BYTES_MAX: usize = 255;
/// Longest value of an extended attribute, in bytes (Linux' XATTR_SIZE_MAX).
pub(crate) const XATTR_VALUE_BYTES_MAX: usize = 64 * 1024;
/// Largest number of extended attributes of one inode.
pub(crate) const XATTRS_MAX: u32 = 4096;
/// Largest number of links of one inode.
pub(crate) const LINKS_MAX: u32 = 1 << 31;
/// The first cookie; 1 and 2 stand for `.` and `..`.
pub(crate) const COOKIE_FIRST: u64 = 3;

/// A namespace up to this size is compacted when its pool is closed. This takes some 0.1 s.
const COMPACT_ON_CLOSE_BYTES_MAX: u64 = 8 << 20;
/// Smallest cache of the embedded store.
const STORE_CACHE_BYTES_MIN: u64 = 1 << 20;
/// Memory of a cached inode without its link target: the inode, its counters and the bookkeeping of the cache.
const INODE_MEMORY_BYTES: u64 = 320;

#[derive(Clone)]
struct InodeWeighter;

impl Weighter<Ino, Arc<Inode>> for InodeWeighter {
    fn weight(&self, _: &Ino, inode: &Arc<Inode>) -> u64 {
        INODE_MEMORY_BYTES + inode.symlink_target.as_ref().map_or(0, |target| target.len() as u64)
    }
}

/// The identity of a namespace, read before it is opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ancestry {
    /// Lineage of the meta root; `None` if no release that knows lineages has opened it.
    pub lineage: Option<Lineage>,
    /// Writer epoch of the last opening.
    pub writer_epoch: u32,
    /// Row of the last commit.
    pub last_row: u64,
    /// The export that this commit knew of.
    pub exported: Exported,
}

/// An open namespace. Any thread may call its methods; [`commit`](Self::commit) and [`freeze`](Self::freeze) only one
/// thread at a time.
pub struct Namespace {
    /// Taken first. Admits one mutator at a time, so its inputs stay valid until it applies its draft.
    mutation: Mutex<()>,
    /// Taken after `mutation`. Held for a commit, for a compaction, and while the store is opened again.
    store: Mutex<Store>,
    /// Taken last. Never held across I/O or foreign code.
    state: RwLock<Generations>,
    health: Arc<Health>,
    file: Arc<dyn DeviceFile>,
    /// Committed inodes. An inode that a generation knows is never looked up here.
    cache: Cache<Ino, Arc<Inode>, InodeWeighter>,
    next_ino: AtomicU64,
    next_cookie: AtomicU64,
    has_losses: AtomicBool,
    has_doubt: AtomicBool,
    is_side_b: AtomicBool,
    writer_epoch: AtomicU32,
    next_container_sequence: AtomicU64,
    logged_changes: AtomicU64,
}

impl std::fmt::Debug for Namespace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Namespace").field("writer_epoch", &self.writer_epoch()).finish_non_exhaustive()
    }
}

impl Namespace {
    /// Creates the namespace of a new pool on its meta root: a root directory, owned by `uid` and `gid`. Fails if a
    /// namespace exists. The namespace is durable when this returns.
    pub fn create(device: &dyn Device, now: Timestamp, uid: u32, gid: u32) -> Result<()> {
        let file = VerifiedFile::fresh(device, device.open(NAMESPACE_FILE, OpenMode::CreateNew)?)?;
        let store = Store::open(file, Arc::default(), STORE_CACHE_BYTES_MIN as usize)?;
        let root = Inode {
            ino: ROOT_INO,
            generation: 0,
            kind: FileKind::Directory,
            mode: 0o755,
            nlink: 2,
            uid,
            gid,
            rdev: 0,
            size_bytes: 0,
            atime: now,
            mtime: now,
            ctime: now,
            root: Root::Empty,
            parent: ROOT_INO,
            xattr_count: 0,
            symlink_target: None,
            flags: 0,
            data_bytes: 0,
        };
        let header = Header {
            row: 0,
            trimmed_through: 0,
            has_losses: false,
            has_doubt: false,
            index_side: IndexSide::A,
            next_ino: ROOT_INO + 1,
            next_cookie: COOKIE_FIRST,
            writer_epoch: 0,
            totals: Totals::of(&root),
        };
        let mark = ExportMark { lineage: Lineage::random()?, ..ExportMark::default() };
        commit::initialise(&store, &header, &mark, &root)?;
        drop(store);
        Ok(device.sync_directory("")?)
    }

    /// Opens the namespace at its last commit, with caches of about `cache_bytes`. Only the embedded store writes, for
    /// its own needs. Call [`begin_writing`](Self::begin_writing) before making containers. `admit` runs before
    /// anything is changed, and may refuse.
    pub fn open(device: &dyn Device, cache_bytes: u64, admit: &dyn Fn(&Ancestry) -> Result<()>) -> Result<Self> {
        let (store, health, file) = Self::open_store(device, cache_bytes).map_err(advised)?;
        Self::with_store(store, health, file, cache_bytes, admit)
    }

    /// Opens and verifies the embedded store.
    fn open_store(device: &dyn Device, cache_bytes: u64) -> Result<(Store, Arc<Health>, Arc<VerifiedFile>)> {
        let file = device.open(NAMESPACE_FILE, OpenMode::Write)?;
        if file.is_empty()? {
            return Err(StoreError::corrupt(NAMESPACE_FILE, "a namespace store", "an empty file").into());
        }
        // A sync that failed under an earlier mount, even in another process, may have left pages in memory that are
        // not on the disk. A power loss would destroy everything that rests on them.
        file.reread()?;
        let health = Arc::<Health>::default();
        let inode_cache_bytes = cache_bytes / 4;
        let store_cache_bytes = (cache_bytes - inode_cache_bytes).max(STORE_CACHE_BYTES_MIN);
        let store_cache_bytes = usize::try_from(store_cache_bytes).unwrap_or(usize::MAX);
        let (verified, known) = VerifiedFile::open(device, file)?;
        let open = || {
            let store = Store::open(verified.clone(), health.clone(), store_cache_bytes)?;
            store.snapshot()?;
            Ok(store)
        };
        let store = match open() {
            Ok(mut store) => {
                if known == KnownSums::Nothing && !store.learn(&verified)? {
                    // The readable part must stay readable.
                    tracing::error!("the namespace is damaged: run `dedupfs fsck`");
                }
                store
            }
            // The checksums may be wrong instead. The last written pages are read first.
            Err(error @ EngineError::Store(StoreError::Corrupt { .. })) if known == KnownSums::All => {
                verified.distrust();
                let Ok(mut store) = open() else { return Err(error) };
                if !store.learn(&verified)? {
                    return Err(error);
                }
                tracing::warn!(%error, "the namespace is sound, but its checksums were wrong: they have been rebuilt");
                store
            }
            Err(error) => return Err(error),
        };
        Ok((store, health, verified))
    }

    fn with_store(
        mut store: Store,
        health: Arc<Health>,
        file: Arc<dyn DeviceFile>,
        cache_bytes: u64,
        admit: &dyn Fn(&Ancestry) -> Result<()>,
    ) -> Result<Self> {
        let inode_cache_bytes = cache_bytes / 4;
        let (header, mark) = {
            let snapshot = store.snapshot()?;
            (snapshot.header, snapshot.mark)
        };
        admit(&Ancestry {
            lineage: mark.map(|mark| mark.lineage),
            writer_epoch: header.writer_epoch,
            last_row: header.row,
            exported: mark.map_or_else(Exported::default, |mark| mark.exported),
        })?;
        store.mark = mark.filter(|mark| mark.tracked_row == header.row).map_or_else(
            // An earlier release did not track its changes, so no existing export matches this namespace.
            || {
                let lineage = mark.map_or_else(Lineage::random, |mark| Ok(mark.lineage))?;
                let exported = Exported::default();
                Ok::<_, EngineError>(ExportMark { lineage, tracked_row: header.row, trimmed_row: header.row, exported })
            },
            Ok,
        )?;
        store.header = header;
        let snapshot = store.snapshot()?;
        Ok(Self {
            mutation: Mutex::new(()),
            store: Mutex::new(store),
            state: RwLock::new(Generations { base: Some(snapshot), totals: header.totals, ..Generations::default() }),
            health,
            file,
            cache: Cache::with_weighter(
                (inode_cache_bytes / INODE_MEMORY_BYTES) as usize,
                inode_cache_bytes,
                InodeWeighter,
            ),
            next_ino: AtomicU64::new(header.next_ino),
            next_cookie: AtomicU64::new(header.next_cookie),
            has_losses: AtomicBool::new(header.has_losses),
            has_doubt: AtomicBool::new(header.has_doubt),
            is_side_b: AtomicBool::new(header.index_side == IndexSide::B),
            writer_epoch: AtomicU32::new(0),
            next_container_sequence: AtomicU64::new(1),
            logged_changes: AtomicU64::new(0),
        })
    }

    /// Raises the writer epoch durably, so that all new container ids are unique. From here on commits record the
    /// changed keys.
    pub fn begin_writing(&self) -> Result<()> {
        let mut store = self.store.lock();
        self.health.check()?;
        let mut header = store.header;
        if header.writer_epoch >= ContainerId::EPOCH_MAX {
            return Err(StoreError::Unsupported {
                what: "namespace".into(),
                found: format!("writer epoch {}", header.writer_epoch),
                advice: "the pool was opened 16 million times: copy it into a new one".into(),
            }
            .into());
        }
        header.writer_epoch += 1;
        commit::write_opened(&store, &header, &store.mark)?;
        store.header = header;
        self.state.write().base = Some(store.snapshot()?);
        self.writer_epoch.store(header.writer_epoch, Ordering::Relaxed);
        Ok(())
    }

    /// The writer epoch of this opening; 0 before [`begin_writing`](Self::begin_writing).
    #[must_use]
    pub fn writer_epoch(&self) -> u32 {
        self.writer_epoch.load(Ordering::Relaxed)
    }

    /// Records durably whether there are losses.
    pub fn set_losses(&self, has_losses: bool) -> Result<()> {
        if has_losses {
            // In force even if recording fails; the next commit records it, too.
            self.has_losses.store(true, Ordering::Relaxed);
        }
        self.change_header(|header| header.has_losses = has_losses)
    }

    /// Whether counts of the indexes are in doubt. Then nothing may be freed by them. The doubt lasts from the first
    /// impossible count until the indexes are rebuilt.
    #[must_use]
    pub fn has_doubt(&self) -> bool {
        self.has_doubt.load(Ordering::Relaxed)
    }

    /// Records durably that counts of the indexes are in doubt, and that there may be losses. Both are in force even if
    /// recording fails.
    ///
    /// # Errors
    /// The doubt could not be recorded. The next commit, or the next call, records it.
    pub fn set_doubt(&self) -> Result<()> {
        self.has_doubt.store(true, Ordering::Relaxed);
        self.has_losses.store(true, Ordering::Relaxed);
        if self.store.lock().header.has_doubt {
            return Ok(());
        }
        self.change_header(|header| (header.has_doubt, header.has_losses) = (true, true))
    }

    /// The side of the indexes that counts.
    #[must_use]
    pub fn index_side(&self) -> IndexSide {
        if self.is_side_b.load(Ordering::Relaxed) { IndexSide::B } else { IndexSide::A }
    }

    /// Makes the indexes of this side count, durably, and records whether they have cells of lost content. These
    /// indexes are rebuilt, so the call ends any doubt.
    ///
    /// # Errors
    /// It is unknown which side counts. Only opening the namespace again tells.
    pub fn change_side(&self, index_side: IndexSide, has_losses: bool) -> Result<()> {
        self.change_header(|header| {
            (header.index_side, header.has_losses, header.has_doubt) = (index_side, has_losses, false);
        })
    }

    fn change_header(&self, change: impl FnOnce(&mut Header)) -> Result<()> {
        let mut store = self.store.lock();
        self.health.check()?;
        if store.database.is_none() || store.session.is_failed() {
            let snapshot = store.reopen()?;
            self.state.write().base = Some(snapshot);
        }
        // A doubt that could not be recorded stays in force.
        let mut header = Header { has_doubt: store.header.has_doubt || self.has_doubt(), ..store.header };
        change(&mut header);
        commit::write_header(&store, &header)?;
        store.header = header;
        self.has_losses.store(header.has_losses, Ordering::Relaxed);
        self.has_doubt.store(header.has_doubt, Ordering::Relaxed);
        self.is_side_b.store(header.index_side == IndexSide::B, Ordering::Relaxed);
        Ok(())
    }

    /// Returns a container id that was never used before.
    pub fn next_container_id(&self) -> Result<ContainerId> {
        let epoch = self.writer_epoch();
        if epoch == 0 {
            return Err(EngineError::Internal("a container was begun before the pool was recovered"));
        }
        let sequence = self.next_container_sequence.fetch_add(1, Ordering::Relaxed);
        ContainerId::new(epoch, sequence)
            .ok_or(EngineError::Invalid("all container ids of this mount are used up: mount the pool anew"))
    }

    /// The sums over all inodes, now.
    #[must_use]
    pub fn totals(&self) -> Totals {
        self.state.read().totals_now()
    }

    /// The approximate number of uncommitted changes in memory, for back-pressure.
    #[must_use]
    pub fn pending_operations(&self) -> usize {
        self.state.read().layers().map(overlay::Generation::pending).sum()
    }

    /// Upper bound of the bytes by which committing all pending changes grows the store's file. Each change copies
    /// three pages, with those above them, but never more pages than exist.
    #[must_use]
    pub fn commit_bytes(&self) -> u64 {
        const COPIED_BYTES: u64 = 3 * 4096 * 3 / 2;
        const ADDED_BYTES: u64 = 1024;
        const LOGGED_BYTES: u64 = 128;
        const FIXED_BYTES: u64 = 256 << 10;
        let state = self.state.read();
        let (mut changes, mut added) = (0_u64, 0_u64);
        for layer in state.layers() {
            changes += (layer.inodes.len() + layer.nested_changes) as u64;
            added += 2 * layer.value_bytes + layer.log.len() as u64 * LOGGED_BYTES;
        }
        drop(state);
        let file_bytes = self.file.allocated_bytes().unwrap_or(u64::MAX / 4);
        let copied = changes.saturating_mul(COPIED_BYTES).min(file_bytes + file_bytes / 4);
        copied + changes * ADDED_BYTES + added + FIXED_BYTES
    }

    /// The approximate number of index changes in the log of the next commit.
    #[must_use]
    pub fn logged_changes(&self) -> u64 {
        self.logged_changes.load(Ordering::Relaxed)
    }

    /// Returns [`logged_changes`](Self::logged_changes) and restarts it at 0. For the thread that freezes a generation.
    pub fn take_logged_changes(&self) -> u64 {
        self.logged_changes.swap(0, Ordering::Relaxed)
    }

    /// Closes the store. Nothing is written after this returns, even if the namespace is still referenced. Later reads
    /// use the file as it is; changes are refused.
    pub fn end(&self) {
        let mut store = self.store.lock();
        self.state.write().base = None;
        store.close();
        self.health.poison(StoreError::Usage("the pool is closed".to_owned()));
    }

    /// Physical bytes that the namespace occupies.
    pub fn file_bytes(&self) -> Result<u64> {
        Ok(self.file.allocated_bytes()?)
    }
}

/// Adds advice to the error of a namespace that does not open.
fn advised(error: EngineError) -> EngineError {
    let found = match &error {
        EngineError::Database(cause) => cause.to_string(),
        EngineError::Store(error @ (StoreError::Corrupt { .. } | StoreError::NotFound { .. })) => error.to_string(),
        _ => return error,
    };
    // The cause already gives this advice.
    if found.contains("dedupfs recover") {
        return error;
    }
    StoreError::Corrupt {
        what: format!("the namespace ({NAMESPACE_FILE})"),
        expected: "a store as it was left".to_owned(),
        found: format!(
            "{found}. Without it no file has a name: `dedupfs recover --force POOL` makes it anew as it was at the last export"
        ),
    }
    .into()
}

impl OperationsLog for Namespace {
    fn log_counting(&self, op: LogOp, changes: usize) {
        self.logged_changes.fetch_add(changes as u64, Ordering::Relaxed);
        self.state.write().active.log.push(op);
    }

    fn has_losses(&self) -> bool {
        self.has_losses.load(Ordering::Relaxed)
    }
}
