//! Restores an unreadable superblock from that of the other root, which has the same content. If both are damaged, one
//! whose checksums hold is enough. Also records a data root that moved.

use std::path::Path;

use dedupfs_base::Result;
use dedupfs_store::StoreError;
use dedupfs_store::device::Device;
use dedupfs_store::superblock::{Role, Superblock};

use crate::pool::DATA_DIRECTORY;

/// Rewrites an unreadable superblock, or that of the meta root if it does not name `data_root`. Returns the changes
/// made.
///
/// # Errors
/// Neither can be read; both can and do not belong together; an unknown format version; I/O errors.
pub(super) fn restore_superblocks(
    meta_device: &dyn Device,
    data_device: &dyn Device,
    data_root: &[u8],
) -> Result<Vec<String>> {
    let meta = Superblock::read(meta_device, Role::Meta);
    let data = Superblock::read(data_device, Role::Data);
    // A superblock of another version is not damaged, and one that the device fails to read may be sound.
    let is_bad = |error: &StoreError| matches!(error, StoreError::Corrupt { .. } | StoreError::Usage(_));
    let is_damaged = |error: &StoreError| matches!(error, StoreError::Corrupt { .. });
    if let (Err(of_meta), Err(of_data)) = (&meta, &data)
        && is_bad(of_meta)
        && is_bad(of_data)
        && (is_damaged(of_meta) || is_damaged(of_data))
    {
        return restore_both(meta_device, data_device, data_root, of_meta, of_data);
    }
    let (device, restored, error) = match (meta, data) {
        (Ok(meta), Ok(data)) => {
            Superblock::check_pair(&meta, &data)?;
            if meta.data_root == data_root {
                return Ok(Vec::new());
            }
            let shown = |path: &[u8]| String::from_utf8_lossy(path).into_owned();
            let line = format!("note that the data root is {} and not {}", shown(data_root), shown(&meta.data_root));
            let moved = Superblock { data_root: data_root.to_vec(), ..meta };
            write(meta_device, &moved)?;
            return Ok(vec![line]);
        }
        (Ok(meta), Err(error)) if is_bad(&error) => {
            (data_device, Superblock { role: Role::Data, data_root: Vec::new(), ..meta }, error)
        }
        (Err(error), Ok(data)) if is_bad(&error) => {
            (meta_device, Superblock { role: Role::Meta, data_root: data_root.to_vec(), ..data }, error)
        }
        (Err(error), _) | (_, Err(error)) => return Err(error.into()),
    };
    let name = restored.role.file_name();
    write(device, &restored)?;
    let why = if is_damaged(&error) { "damaged" } else { "missing" };
    Ok(vec![format!("write the superblock {name} again from that of the other root: it is {why}")])
}

/// Rewrites both superblocks, from one of which only the bytes behind its frame are damaged.
fn restore_both(
    meta_device: &dyn Device,
    data_device: &dyn Device,
    data_root: &[u8],
    of_meta: &StoreError,
    of_data: &StoreError,
) -> Result<Vec<String>> {
    let salvaged =
        Superblock::salvage(meta_device, Role::Meta).or_else(|_| Superblock::salvage(data_device, Role::Data));
    let Ok(salvaged) = salvaged else {
        return Err(StoreError::corrupt(
            "the pool",
            "a superblock from which the other one can be written",
            format!(
                "none ({of_meta}; {of_data}). A copy of either file in its place is enough: they have not changed since the \
                 pool was formatted"
            ),
        )
        .into());
    };
    write(data_device, &Superblock { role: Role::Data, data_root: Vec::new(), ..salvaged.clone() })?;
    write(meta_device, &Superblock { role: Role::Meta, data_root: data_root.to_vec(), ..salvaged })?;
    Ok(vec!["write both superblocks again: the frame of one is sound".to_owned()])
}

/// Refuses a directory that shows no sign of ever having been a data root. Below a mountpoint there is often an empty
/// directory, and the disk is only not mounted.
///
/// # Errors
/// The directory is refused; I/O errors.
pub(super) fn check_is_data_root(device: &dyn Device, path: &Path) -> Result<()> {
    if device.exists(Role::Data.file_name())? || device.exists(DATA_DIRECTORY)? {
        return Ok(());
    }
    Err(StoreError::Usage(format!(
        "{0} has neither the superblock nor the containers of a pool: is its disk mounted? If the data root is somewhere else, \
         say where with `--data DIR`. If it is lost, so is all content: nothing is left to repair",
        path.display()
    ))
    .into())
}

fn write(device: &dyn Device, superblock: &Superblock) -> Result<()> {
    device.replace_file("", superblock.role.file_name(), &superblock.encode())?;
    // The written bytes must be readable.
    Superblock::read(device, superblock.role)?;
    Ok(())
}
