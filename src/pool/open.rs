//! Opening a pool: finds and locks the roots, then recovers the pool ([`UnrecoveredPool`]).
//!
//! A read-only pool is recovered in memory ([`OverlayDevice`]): nothing on its disks changes, in any state after a crash. If its index
//! cannot be used, an index is rebuilt in memory for the time that the pool is open.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use dedupfs_base::{EngineError, Result};
use dedupfs_index::filter::FilterPlan;
use dedupfs_store::StoreError;
use dedupfs_store::device::{Device, FileDevice, OverlayDevice, PoolLock};
use dedupfs_store::superblock::{Role, Superblock};

use super::socket::claim;
use super::unrecovered::UnrecoveredPool;
use super::{NoProgress, Pool};
use crate::config::{COMMIT_INTERVAL, MEMORY_BYTES_DEFAULT};
use crate::durability::space::SpaceLimits;
use crate::progress::Progress;
use crate::service::AccessTimes;

/// How to open a pool.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// Budget of caches and buffers.
    pub memory_bytes: u64,
    /// Refuse all changes by clients.
    pub read_only: bool,
    /// Shown to a second opener, for example "dedupfs mount /mnt".
    pub note: String,
    /// Longest time until a closed file is durable.
    pub commit_interval: Duration,
    /// How reads update access times.
    pub access_times: AccessTimes,
    /// The filters of chunk lookups, in order.
    pub filters: FilterPlan,
    /// Bounds of the pool's size, besides the sizes of its disks.
    pub limits: SpaceLimits,
    /// Rebuild the index from containers and namespace.
    pub rebuild_index: bool,
    /// Read all content during the rebuild, and give up damaged chunks.
    pub rebuild_reads_data: bool,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self {
            memory_bytes: MEMORY_BYTES_DEFAULT,
            read_only: false,
            note: "dedupfs".to_owned(),
            commit_interval: COMMIT_INTERVAL,
            access_times: AccessTimes::default(),
            filters: FilterPlan::default(),
            limits: SpaceLimits::default(),
            rebuild_index: false,
            rebuild_reads_data: false,
        }
    }
}

impl Pool {
    /// Opens the pool whose meta root is `meta`, exclusively: the error of a second opener names the first.
    ///
    /// # Errors
    /// No pool, a damaged one or one of another version; data root missing or of another pool; `Busy`; I/O errors.
    pub fn open(meta: &Path, options: &OpenOptions) -> Result<Arc<Self>> {
        Self::open_with_progress(meta, options, &NoProgress)
    }

    /// As [`open`](Self::open), and reports the progress of a rebuild.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_with_progress(meta: &Path, options: &OpenOptions, progress: &dyn Progress) -> Result<Arc<Self>> {
        if !meta.is_dir() {
            return Err(StoreError::NotFound { path: meta.display().to_string() }.into());
        }
        let meta_device: Arc<dyn Device> = Arc::new(FileDevice::open(meta)?);
        let superblock = Superblock::read(&*meta_device, Role::Meta)?;
        let mut locks = vec![claim(meta, &options.note)?];
        let data_root = superblock.data_root_path(meta);
        let data_device: Arc<dyn Device> = if superblock.data_root == b"." {
            meta_device.clone()
        } else {
            let device = FileDevice::open(&data_root).map_err(|error| missing_data_root(&data_root, &error))?;
            // Read before anything is written: this may be the empty mountpoint of a disk that is not mounted.
            Superblock::read(&device, Role::Data)?;
            // A copy of the meta root names the same data root. Two writers there would destroy it.
            locks.push(PoolLock::acquire(&data_root, &options.note)?);
            Arc::new(device)
        };
        Self::open_on(&meta_device, &data_device, locks, options, progress)
    }

    /// Opens the pool on the given devices.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_on(
        meta_device: &Arc<dyn Device>,
        data_device: &Arc<dyn Device>,
        locks: Vec<PoolLock>,
        options: &OpenOptions,
        progress: &dyn Progress,
    ) -> Result<Arc<Self>> {
        // Shared: a second attempt needs them too.
        let locks = Arc::new(locks);
        if !options.read_only {
            return UnrecoveredPool::open(meta_device, data_device, options)?.recover(locks, progress);
        }
        let recover_in_memory = |options: &OpenOptions, locks: Arc<Vec<PoolLock>>| {
            let (meta, data) = overlays(meta_device, data_device, options.memory_bytes);
            UnrecoveredPool::open(&meta, &data, options)?.recover(locks, progress)
        };
        match recover_in_memory(options, locks.clone()) {
            Err(EngineError::Store(error @ (StoreError::Corrupt { .. } | StoreError::NotFound { .. })))
                if !options.rebuild_index =>
            {
                let rebuilding = OpenOptions { rebuild_index: true, ..options.clone() };
                let Ok(pool) = recover_in_memory(&rebuilding, locks) else { return Err(error.into()) };
                progress.say(&format!("{error}; until the pool is closed, an index made anew in memory is used"));
                *pool.index_damage.lock() = Some(error.to_string());
                Ok(pool)
            }
            outcome => outcome,
        }
    }
}

/// Wraps both devices so that all changes stay in memory; one wrapper if the pool has one root.
pub(crate) fn overlays(
    meta: &Arc<dyn Device>,
    data: &Arc<dyn Device>,
    limit_bytes: u64,
) -> (Arc<dyn Device>, Arc<dyn Device>) {
    let over =
        |device: &Arc<dyn Device>| -> Arc<dyn Device> { Arc::new(OverlayDevice::new(device.clone(), limit_bytes)) };
    let meta_overlay = over(meta);
    let data_overlay = if Arc::ptr_eq(meta, data) { meta_overlay.clone() } else { over(data) };
    (meta_overlay, data_overlay)
}

pub(crate) fn missing_data_root(root: &Path, error: &StoreError) -> StoreError {
    StoreError::Usage(format!(
        "the pool's data root {} cannot be opened ({error}): mount the disk that holds it, or check its permissions; if it \
         is somewhere else from now on: `dedupfs fsck --repair --data DIR POOL`",
        root.display()
    ))
}
