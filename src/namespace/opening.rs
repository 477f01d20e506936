//! A namespace begins: it is created, or opened at its last commit, and then made ready for writing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use dedupfs_base::{EngineError, Result};
use dedupfs_service::{FileKind, ROOT_INO, Timestamp};
use dedupfs_store::device::{Device, DeviceFile, OpenMode};
use dedupfs_store::recipe::Root;
use dedupfs_store::{ContainerId, StoreError};
use dedupfs_sync::cache::weighing;
use dedupfs_sync::canary::{Canary, is_planted};
use dedupfs_sync::{Mutex, RwLock};

use super::backend::Health;
use super::base::Store;
use super::changes::{ExportMark, Exported, Lineage};
use super::inode::Inode;
use super::overlay::Generations;
use super::tables::{Header, IndexSide};
use super::totals::Totals;
use super::verified::{KnownSums, VerifiedFile};
use super::versions::version_behind;
use super::{
    COOKIE_FIRST, INODE_MEMORY_BYTES, InodeWeighter, NAMESPACE_FILE, Namespace, STORE_CACHE_BYTES_MIN, commit,
};

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
            has_versions: !is_planted(Canary::TreeBeforeFlag),
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
        let next_version = version_behind(snapshot.last_ino()?);
        Ok(Self {
            mutation: Mutex::new(()),
            store: Mutex::new(store),
            recent: Mutex::default(),
            state: RwLock::new(Generations { base: Some(snapshot), totals: header.totals, ..Generations::default() }),
            health,
            file,
            cache: weighing((inode_cache_bytes / INODE_MEMORY_BYTES) as usize, inode_cache_bytes, InodeWeighter),
            next_ino: AtomicU64::new(header.next_ino),
            next_version: AtomicU64::new(next_version),
            next_cookie: AtomicU64::new(header.next_cookie),
            has_losses: AtomicBool::new(header.has_losses),
            has_doubt: AtomicBool::new(header.has_doubt),
            is_side_b: AtomicBool::new(header.index_side == IndexSide::B),
            has_versions: AtomicBool::new(header.has_versions),
            writer_epoch: AtomicU32::new(0),
            next_container_sequence: AtomicU64::new(1),
            logged_changes: AtomicU64::new(0),
            watching: super::watch::Watching::default(),
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
        header.writer_epoch += u32::from(header.writer_epoch == 0 || !is_planted(Canary::EpochNotRaised));
        commit::write_opened(&store, &header, &store.mark)?;
        store.header = header;
        self.state.write().base = Some(store.snapshot()?);
        self.writer_epoch.store(header.writer_epoch, Ordering::Relaxed);
        Ok(())
    }
}

/// Adds advice to the error of a namespace that does not open.
pub(super) fn advised(error: EngineError) -> EngineError {
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
