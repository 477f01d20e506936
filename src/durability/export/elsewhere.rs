//! The needs of copies of an export on other machines: its end, its containers, and the files that make it count.
//!
//! Base and log are copied byte by byte, so there is no second format of an inode.

#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic))]

use dedupfs_base::Result;
use dedupfs_namespace::{ExportTable, Lineage};
use dedupfs_store::container::SlotAddress;
use dedupfs_store::device::{Device, OpenMode};
use dedupfs_store::{ContainerId, ContainerKind, ContainerRecord, PoolId, StoreError};
use serde::{Deserialize, Serialize};

use super::files::{self, Current, Owner};
use super::held::HeldExport;
use super::log::GroupFrames;
use super::mirror;

/// Where an export ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ExportPosition {
    /// The lineage of the meta root that wrote it.
    pub lineage: [u8; 16],
    /// The writer epoch of that meta root.
    pub epoch: u32,
    /// Number of the export; 0 if there is none.
    pub generation: u64,
    /// Bytes of its base.
    pub base_bytes: u64,
    /// The commit whose state the base is.
    pub base_row: u64,
    /// Bytes of its log.
    pub log_bytes: u64,
    /// The commit whose state the export holds.
    pub row: u64,
    /// When it was written, in seconds since 1970.
    pub time_secs: u64,
}

impl ExportPosition {
    /// Path of the base on the data root.
    #[must_use]
    pub fn base_path(&self) -> String {
        files::base_path(self.generation)
    }

    /// Path of the log on the data root.
    #[must_use]
    pub fn log_path(&self) -> String {
        files::log_path(self.generation)
    }
}

impl HeldExport<'_> {
    /// Where the export ended at the time of the hold. The default without an export.
    pub(crate) fn position(&self) -> ExportPosition {
        let Some(current) = self.current.filter(|_| self.exported.generation != 0) else {
            return ExportPosition::default();
        };
        ExportPosition {
            lineage: self.exporter.namespace.export_mark().lineage.0,
            epoch: self.exporter.namespace.writer_epoch(),
            generation: current.generation,
            base_bytes: current.base_bytes,
            base_row: current.row,
            log_bytes: self.exported.log_bytes,
            row: self.exported.row,
            time_secs: self.exported.time_secs,
        }
    }
}

/// Visits the records of containers in an export: from its beginning, or of its log from `log_from` on. A container without a record
/// was removed. A container may come several times; the last one counts.
///
/// # Errors
/// Those of `visit`; the export is damaged or shorter than the position; I/O errors.
pub fn visit_containers(
    data: &dyn Device,
    pool: &PoolId,
    position: &ExportPosition,
    log_from: Option<u64>,
    visit: &mut dyn FnMut(ContainerId, Option<ContainerRecord>) -> Result<()>,
) -> Result<()> {
    if log_from.is_none() {
        visit_file(data, pool, position, (&position.base_path(), 0, position.base_bytes), visit)?;
    }
    visit_file(data, pool, position, (&position.log_path(), log_from.unwrap_or(0), position.log_bytes), visit)
}

/// Visits the records in one range of a file, which begins and ends with groups.
fn visit_file(
    data: &dyn Device,
    pool: &PoolId,
    position: &ExportPosition,
    (path, from, end): (&str, u64, u64),
    visit: &mut dyn FnMut(ContainerId, Option<ContainerRecord>) -> Result<()>,
) -> Result<()> {
    if from == end {
        return Ok(());
    }
    let file = data.open(path, OpenMode::Read)?;
    let mut at = from;
    while at < end {
        let mut frames = GroupFrames::new(at);
        while let Some(frame) = frames.next(&*file, path, pool, position.generation)? {
            let raw = frame.unpack(path)?;
            for item in frame.items(path, &raw)? {
                if item.table == ExportTable::Containers {
                    let (id, record) = item.container()?;
                    visit(id, record)?;
                }
            }
        }
        at = frames.end_bytes();
    }
    if at == end { Ok(()) } else { Err(StoreError::corrupt(path, format!("a group that ends at {end}"), at).into()) }
}

/// Path of the slot file on the data root that has a container, or the copy of one of recipes.
#[must_use]
pub fn slot_path(kind: ContainerKind, address: SlotAddress) -> String {
    match kind {
        ContainerKind::Data => mirror::path(CONTAINERS, address.file),
        ContainerKind::Recipe => mirror::path(mirror::DIRECTORY, address.file),
    }
}

/// Directories of a data root that has an export, each behind the one that it lies in.
pub const DATA_ROOT_DIRECTORIES: [&str; 3] = [CONTAINERS, files::DIRECTORY, mirror::DIRECTORY];
/// Directory of data containers on a data root.
const CONTAINERS: &str = "containers";

/// Makes the export count whose files were brought to this data root; durable on return.
///
/// # Errors
/// I/O errors.
pub fn make_count(data: &dyn Device, pool: &PoolId, position: &ExportPosition) -> Result<()> {
    let ExportPosition { lineage, epoch, generation, base_bytes, base_row, .. } = *position;
    Owner { lineage: Lineage(lineage), epoch, keeps: false }.write(data, pool)?;
    Current { generation, base_bytes, row: base_row }.write(data, pool)?;
    Ok(data.sync_directory(files::DIRECTORY)?)
}
