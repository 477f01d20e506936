//! Formatting a pool (`mkfs`).

use std::path::{Path, PathBuf};
use std::sync::Arc;

use dedupfs_base::Result;
use dedupfs_index::Index;
use dedupfs_namespace::{IndexSide, Namespace};
use dedupfs_store::device::{Device, FileDevice};
use dedupfs_store::superblock::{PoolProperties, Role, Superblock};
use dedupfs_store::{ContainerKind, PoolId, StoreError};

use crate::config::{Fingerprints, MEMORY_BYTES_MIN, MemoryPlan};
use crate::durability::indexes::{chunk_index, index_options, recipe_index};
use crate::service::now;

/// Formats a pool with its meta root at `meta` and its data root at `data` (by default the same directory). Creates missing
/// directories. Both must be empty.
///
/// # Errors
/// `Usage` if a root is not empty; I/O errors.
pub fn format(meta: &Path, data: Option<&Path>, properties: &PoolProperties) -> Result<PoolId> {
    let roots: Vec<&Path> = std::iter::once(meta).chain(data).collect();
    for root in &roots {
        let device = FileDevice::create(root)?;
        if let Some(entry) = device.list("")?.first() {
            return Err(StoreError::Usage(format!(
                "{} is not empty (it has {}): name an empty or new directory",
                root.display(),
                entry.name
            ))
            .into());
        }
    }
    let meta_device: Arc<dyn Device> = Arc::new(FileDevice::open(meta)?);
    let data_device: Arc<dyn Device> = match data {
        Some(data) => Arc::new(FileDevice::open(data)?),
        None => meta_device.clone(),
    };
    let data_root = match data {
        Some(data) => relative_or_absolute(meta, data)?,
        None => b".".to_vec(),
    };
    let owner = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    format_on(&meta_device, &data_device, data_root, properties, owner)
}

/// Formats a pool on two empty devices, or one device given twice.
///
/// The superblocks are written last: an interrupted format leaves a directory that is recognizably no pool.
///
/// # Errors
/// I/O errors; `Usage` if a pool is there already.
pub fn format_on(
    meta: &Arc<dyn Device>,
    data: &Arc<dyn Device>,
    data_root: Vec<u8>,
    properties: &PoolProperties,
    owner: (u32, u32),
) -> Result<PoolId> {
    let pool = new_pool_id(meta)?;
    let created_secs = dedupfs_sync::clock::since_epoch().as_secs();
    Namespace::create(&**meta, now(), owner.0, owner.1)?;
    for (directory, kind) in
        [(chunk_index(IndexSide::A), ContainerKind::Data), (recipe_index(IndexSide::A), ContainerKind::Recipe)]
    {
        let options = index_options(properties, &MemoryPlan::new(MEMORY_BYTES_MIN, Fingerprints::default()), kind);
        Index::create(meta, directory, &pool, options)?;
    }
    for (device, role) in [(data, Role::Data), (meta, Role::Meta)] {
        let data_root = if role == Role::Meta { data_root.clone() } else { Vec::new() };
        let superblock = Superblock { role, pool, properties: *properties, data_root, created_secs };
        superblock.write_new(&**device)?;
    }
    Ok(pool)
}

/// Makes a pool id: 128 random bits, marked as a random UUID (version 4).
fn new_pool_id(meta: &Arc<dyn Device>) -> Result<PoolId> {
    let mut bytes = [0; 16];
    dedupfs_sync::entropy::fill(&mut bytes)
        .map_err(|error| StoreError::from_io("get random bytes for", meta.describe(), error))?;
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    Ok(PoolId(bytes))
}

/// Returns the path of the data root as the superblock stores it: relative if it lies inside the meta root and moves with it, else
/// absolute.
pub(crate) fn relative_or_absolute(meta: &Path, data: &Path) -> Result<Vec<u8>> {
    use std::os::unix::ffi::OsStrExt as _;
    let absolute = |path: &Path| -> Result<PathBuf> {
        std::path::absolute(path)
            .map_err(|error| StoreError::from_io("resolve", path.display().to_string(), error).into())
    };
    let (meta, data) = (absolute(meta)?, absolute(data)?);
    let stored = data.strip_prefix(&meta).unwrap_or(&data);
    let stored = if stored.as_os_str().is_empty() { Path::new(".") } else { stored };
    Ok(stored.as_os_str().as_bytes().to_vec())
}
