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
mod committed;
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
mod header;
mod inode;
mod log;
mod names;
mod newest;
mod opening;
mod overlay;
mod page_sums;
mod recent;
mod record;
mod rename;
mod repair;
mod restore;
mod scan;
mod shadow;
mod tables;
#[cfg(test)]
mod tests;
mod totals;
mod verified;
mod versions;
mod view;
mod watch;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use dedupfs_base::{EngineError, Result};
use dedupfs_service::Ino;
use dedupfs_store::device::DeviceFile;
use dedupfs_store::{ContainerId, LogOp, OperationsLog, StoreError};
use dedupfs_sync::cache::Cache;
use dedupfs_sync::{Mutex, RwLock};
use quick_cache::Weighter;

use self::backend::Health;
use self::base::Store;
use self::overlay::Generations;

pub use self::changes::{ChangedKey, ExportMark, Exported, KEY_BYTES_MAX, Lineage};
pub use self::check::{NamesChecked, Scratch};
pub use self::commit::{CommitInput, Committed};
pub use self::committed::{CommittedView, NamedInode, Xattr};
pub use self::directory::DirItem;
pub use self::export::{ExportSource, ExportTable, Item};
pub use self::inode::Inode;
pub(crate) use self::inode::SYMLINK_BYTES_MAX;
pub use self::names::{NewInode, check_name};
pub use self::opening::Ancestry;
pub use self::page_sums::SUMS_FILES as NAMESPACE_SUMS_FILES;
pub use self::recent::ChangedInodes;
pub use self::rename::Renamed;
pub use self::repair::{NamespaceRepair, repair};
pub use self::restore::Restorer;
pub use self::tables::IndexSide;
pub use self::totals::Totals;
pub use self::versions::{
    FIRST_LINKED_PLACE, FIRST_VERSION, NewVersion, PLACE_BITS, RECORD_PREFIX, VERSION_RECORD, is_frozen, place_of,
    version_of,
};
pub use self::watch::InoSpans;

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
/// A namespace with up to so many inodes is compacted while clients may wait for it. This takes some 0.1 s.
const COMPACTED_QUICKLY_INODES_MAX: i64 = if cfg!(test) { 4000 } else { 1 << 17 };
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

/// An open namespace. Any thread may call its methods; [`commit`](Self::commit) and [`freeze`](Self::freeze) only one
/// thread at a time.
pub struct Namespace {
    /// Taken first. Admits one mutator at a time, so its inputs stay valid until it applies its draft.
    mutation: Mutex<()>,
    /// Taken after `mutation`. Held for a commit, for a compaction, and while the store is opened again.
    store: Mutex<Store>,
    /// Taken last. Never held across I/O or foreign code.
    state: RwLock<Generations>,
    /// Taken with `store` or alone, for moments.
    recent: Mutex<recent::Recent>,
    health: Arc<Health>,
    file: Arc<dyn DeviceFile>,
    /// Committed inodes. An inode that a generation knows is never looked up here.
    cache: Cache<Ino, Arc<Inode>, InodeWeighter>,
    next_ino: AtomicU64,
    /// Inode number of the next version.
    next_version: AtomicU64,
    next_cookie: AtomicU64,
    has_losses: AtomicBool,
    has_doubt: AtomicBool,
    is_side_b: AtomicBool,
    has_versions: AtomicBool,
    writer_epoch: AtomicU32,
    next_container_sequence: AtomicU64,
    logged_changes: AtomicU64,
    watching: watch::Watching,
}

impl std::fmt::Debug for Namespace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Namespace").field("writer_epoch", &self.writer_epoch()).finish_non_exhaustive()
    }
}

impl Namespace {
    /// The writer epoch of this opening; 0 before [`begin_writing`](Self::begin_writing).
    #[must_use]
    pub fn writer_epoch(&self) -> u32 {
        self.writer_epoch.load(Ordering::Relaxed)
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

impl OperationsLog for Namespace {
    fn log_counting(&self, op: LogOp, changes: usize) {
        self.logged_changes.fetch_add(changes as u64, Ordering::Relaxed);
        self.state.write().active.log.push(op);
    }

    fn has_doubt(&self) -> bool {
        Self::has_doubt(self)
    }
}
