//! A superblock that cannot be read, from that of the other root: both say the same.

use dedupfs_store::StoreError;
use dedupfs_store::device::Device;
use dedupfs_store::superblock::{Role, Superblock};

use crate::error::Result;

/// Writes the superblock that cannot be read again, if `apply`; returns what was, or would be, done.
///
/// # Errors
/// Neither can be read; both can and do not belong together; a format that this version does not know; I/O errors.
pub fn restore_superblocks(
    meta_device: &dyn Device,
    data_device: &dyn Device,
    data_root: &[u8],
    apply: bool,
) -> Result<Vec<String>> {
    let meta = Superblock::read(meta_device, Role::Meta);
    let data = Superblock::read(data_device, Role::Data);
    // One of another version is not damaged, and what the device does not give may be sound.
    let is_bad = |error: &StoreError| matches!(error, StoreError::Corrupt { .. } | StoreError::Usage(_));
    let (device, restored, error) = match (meta, data) {
        (Ok(meta), Ok(data)) => {
            Superblock::check_pair(&meta, &data)?;
            return Ok(Vec::new());
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
    if apply {
        device.replace_file("", name, &restored.encode())?;
        // What was written must be what is read.
        Superblock::read(device, restored.role)?;
    }
    let why = if matches!(error, StoreError::Corrupt { .. }) { "damaged" } else { "missing" };
    Ok(vec![format!("write the superblock {name} again from that of the other root: it is {why}")])
}
