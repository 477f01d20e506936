//! Restores an unreadable superblock from that of the other root, which has the same content. If both are damaged, one
//! whose checksums hold is enough. Also records a data root that moved.

use std::path::Path;

use dedupfs_base::Result;
use dedupfs_store::StoreError;
use dedupfs_store::device::{Device, OpenMode};
use dedupfs_store::frame::{FRAME_HEADER_BYTES, FrameHeader};
use dedupfs_store::superblock::{Role, Superblock};

use crate::durability::export::check_pool as check_pool_of_export;
use crate::pool::{DATA_DIRECTORY, RECIPE_DIRECTORY};

/// Slot files, and slots of each, that are looked at.
const LOOKED_AT: usize = 4;

/// Rewrites an unreadable superblock, or that of the meta root if it does not name `data_root`. Returns the changes
/// made.
///
/// # Errors
/// Neither can be read; the roots do not belong together; an unknown format version; I/O errors.
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
    if let Some(error) = [meta.as_ref().err(), data.as_ref().err()].into_iter().flatten().find(|error| !is_bad(error)) {
        return Err(error.clone().into());
    }
    // A frame whose checksums hold tells the pool, whatever lies behind it.
    let frames = (Superblock::salvage(meta_device, Role::Meta).ok(), Superblock::salvage(data_device, Role::Data).ok());
    if let (Some(meta), Some(data)) = &frames {
        Superblock::check_pair(meta, data)?;
    }
    let of_meta = |sound: &Superblock| Superblock { role: Role::Meta, data_root: data_root.to_vec(), ..sound.clone() };
    let of_data = |sound: &Superblock| Superblock { role: Role::Data, data_root: Vec::new(), ..sound.clone() };
    let why = |error: &StoreError| if is_damaged(error) { "damaged" } else { "missing" };
    match (&meta, &data) {
        (Ok(meta), Ok(_)) if meta.data_root == data_root => Ok(Vec::new()),
        (Ok(meta), Ok(_)) => {
            let shown = |path: &[u8]| String::from_utf8_lossy(path).into_owned();
            let line = format!("note that the data root is {} and not {}", shown(data_root), shown(&meta.data_root));
            write(meta_device, &of_meta(meta))?;
            Ok(vec![line])
        }
        (Ok(meta), Err(error)) => {
            check_pool(data_device, DATA_DIRECTORY, meta)?;
            write(data_device, &of_data(meta))?;
            Ok(vec![written_from_other(Role::Data, why(error))])
        }
        (Err(error), Ok(data)) => {
            check_pool(meta_device, RECIPE_DIRECTORY, data)?;
            write(meta_device, &of_meta(data))?;
            Ok(vec![written_from_other(Role::Meta, why(error))])
        }
        (Err(error), Err(_))
            if [&meta, &data].iter().all(|read| read.as_ref().is_err_and(|error| !is_damaged(error))) =>
        {
            Err(error.clone().into())
        }
        (Err(of_meta_error), Err(of_data_error)) => {
            let Some(sound) = frames.0.or(frames.1) else {
                let found = format!(
                    "none ({of_meta_error}; {of_data_error}). A copy of either file in its place is enough: they have not changed \
                     since the pool was formatted"
                );
                let expected = "a superblock from which the other one can be written";
                return Err(StoreError::corrupt("the pool", expected, found).into());
            };
            check_pool(meta_device, RECIPE_DIRECTORY, &sound)?;
            check_pool(data_device, DATA_DIRECTORY, &sound)?;
            write(data_device, &of_data(&sound))?;
            write(meta_device, &of_meta(&sound))?;
            Ok(vec!["write both superblocks again: the frame of one is sound".to_owned()])
        }
    }
}

fn written_from_other(role: Role, why: &str) -> String {
    format!("write the superblock {} again from that of the other root: it is {why}", role.file_name())
}

/// Refuses a root with content of another pool than this superblock's: it would become unusable for its own.
///
/// # Errors
/// The root is refused; I/O errors.
fn check_pool(device: &dyn Device, directory: &str, superblock: &Superblock) -> Result<()> {
    check_pool_of_export(device, &superblock.pool)?;
    if !device.exists(directory)? {
        return Ok(());
    }
    let properties = &superblock.properties;
    let mut names: Vec<_> = device.list(directory)?.into_iter().map(|entry| entry.name).collect();
    names.sort_unstable();
    for name in names.iter().take(LOOKED_AT) {
        let file = device.open(&format!("{directory}/{name}"), OpenMode::Read)?;
        for slot in 0..u64::from(properties.slots_per_file).min(LOOKED_AT as u64) {
            let mut head = [0; FRAME_HEADER_BYTES];
            // What cannot be read tells nothing.
            let read = file.read_exact_at(&mut head, slot * u64::from(properties.container_bytes));
            let header = read.and_then(|()| FrameHeader::decode(name, &head));
            if let Some(other) = header.ok().map(|header| header.pool).filter(|pool| *pool != superblock.pool) {
                return Err(StoreError::Usage(format!(
                    "{}/{directory} has content of pool {other}, and not of pool {}: the two roots do not belong together. Nothing \
                     was changed. Name both roots of one pool",
                    device.describe(),
                    superblock.pool
                ))
                .into());
            }
        }
    }
    Ok(())
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
