//! The needs of copies of an export on other machines: its end, its files, its containers, and the files that make it count.
//!
//! Base and log are copied byte by byte, so there is no second format of an inode.

#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic))]

use std::sync::Arc;

use dedupfs_base::Result;
use dedupfs_namespace::{ExportTable, Lineage};
use dedupfs_store::container::SlotAddress;
use dedupfs_store::device::{Device, DeviceFile, OpenMode};
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

    /// Whether a later position is of the same export, as far as numbers tell: after an export was given up, a number is used again.
    #[must_use]
    pub fn is_continued_by(&self, later: &Self) -> bool {
        let of = |position: &Self| (position.lineage, position.generation, position.base_bytes, position.base_row);
        of(self) == of(later) && self.log_bytes <= later.log_bytes
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

/// The open files of an export. They stay readable when another base takes its place.
#[derive(Debug)]
pub struct ExportFiles {
    position: ExportPosition,
    base: Arc<dyn DeviceFile>,
    log: Option<Arc<dyn DeviceFile>>,
}

impl ExportFiles {
    /// Opens the files of an export on a data root, as far as a position says.
    ///
    /// # Errors
    /// `NotFound` if another base took its place; I/O errors.
    pub fn open(data: &dyn Device, position: &ExportPosition) -> Result<Self> {
        let log = match data.open(&position.log_path(), OpenMode::Read) {
            Err(StoreError::NotFound { .. }) if position.log_bytes == 0 => None,
            log => Some(log?),
        };
        Ok(Self { position: *position, base: data.open(&position.base_path(), OpenMode::Read)?, log })
    }

    /// Where the export ends.
    #[must_use]
    pub fn position(&self) -> &ExportPosition {
        &self.position
    }

    /// Reads bytes of the base.
    ///
    /// # Errors
    /// There are fewer; I/O errors.
    pub fn read_base(&self, offset: u64, len_bytes: usize) -> Result<Vec<u8>> {
        read(Some(&self.base), offset, len_bytes)
    }

    /// Reads bytes of the log.
    ///
    /// # Errors
    /// There are fewer; I/O errors.
    pub fn read_log(&self, offset: u64, len_bytes: usize) -> Result<Vec<u8>> {
        read(self.log.as_ref(), offset, len_bytes)
    }

    /// Visits the records of containers: from the beginning, or of the log from `log_from` on. A container without a record
    /// was removed. A container may come several times; the last one counts.
    ///
    /// # Errors
    /// Those of `visit`; the export is damaged or shorter than its position; I/O errors.
    pub fn visit_containers(
        &self,
        pool: &PoolId,
        log_from: Option<u64>,
        visit: &mut dyn FnMut(ContainerId, Option<ContainerRecord>) -> Result<()>,
    ) -> Result<()> {
        let ExportPosition { base_bytes, log_bytes, .. } = self.position;
        if log_from.is_none() {
            self.visit_file(pool, &self.base, (&self.position.base_path(), 0, base_bytes), visit)?;
        }
        match &self.log {
            Some(log) => {
                let range = (self.position.log_path(), log_from.unwrap_or(0));
                self.visit_file(pool, log, (&range.0, range.1, log_bytes), visit)
            }
            None => Ok(()),
        }
    }

    /// Visits the records in one range of a file, which begins and ends with groups.
    fn visit_file(
        &self,
        pool: &PoolId,
        file: &Arc<dyn DeviceFile>,
        (path, from, end): (&str, u64, u64),
        visit: &mut dyn FnMut(ContainerId, Option<ContainerRecord>) -> Result<()>,
    ) -> Result<()> {
        let mut at = from;
        while at < end {
            let mut frames = GroupFrames::new(at);
            while let Some(frame) = frames.next(&**file, path, pool, self.position.generation)? {
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
        if at == end {
            Ok(())
        } else {
            Err(StoreError::corrupt(path, format!("a group that ends at {end}"), at).into())
        }
    }
}

fn read(file: Option<&Arc<dyn DeviceFile>>, offset: u64, len_bytes: usize) -> Result<Vec<u8>> {
    let mut bytes = vec![0; len_bytes];
    if let Some(file) = file {
        file.read_exact_at(&mut bytes, offset)?;
    } else if len_bytes > 0 {
        return Err(StoreError::corrupt("log of the export", format!("{len_bytes} bytes"), "no file").into());
    }
    Ok(bytes)
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
