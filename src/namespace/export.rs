//! The source of an export: one committed moment, as keys and records exactly as they are stored.
//!
//! Records carry their own version and checksum, mixed with their key, so they are exported unchanged and need no
//! second format. The order of directories is not exported: it follows from the names. Neither are orphans: they are
//! the inodes without links.

use std::sync::Arc;

use dedupfs_base::{EngineError, Result};
use dedupfs_store::{ContainerId, ContainerKind, ContainerRecord, StoreError};
use redb::ReadOnlyTable;

use super::base::{Snapshot, guarded};
use super::changes::{self, ChangedKey, ExportMark};
use super::opening::advised;
use super::tables::{HEADER_KEY, Header};
use super::{Lineage, Namespace, commit, container_record};

/// The table of an exported record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum ExportTable {
    /// Inodes, by number.
    Inodes = 1,
    /// Names, by directory and name.
    Names = 2,
    /// Extended attributes, by inode and name.
    Xattrs = 3,
    /// Containers, by id.
    Containers = 4,
    /// The header: each state has one, as its last record.
    Header = 5,
}

impl ExportTable {
    /// Returns the table with this number.
    #[must_use]
    pub const fn from_u8(byte: u8) -> Option<Self> {
        Some(match byte {
            1 => Self::Inodes,
            2 => Self::Names,
            3 => Self::Xattrs,
            4 => Self::Containers,
            5 => Self::Header,
            _ => return None,
        })
    }
}

/// An exported record; without a value it was removed. Integer keys are little-endian.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Item<'a> {
    /// Its table.
    pub table: ExportTable,
    /// Its key.
    pub key: &'a [u8],
    /// The record.
    pub value: Option<&'a [u8]>,
}

impl Item<'_> {
    /// Decodes an item of the table of containers: the container, and its record unless it was removed.
    ///
    /// # Errors
    /// Another table; a damaged record.
    pub fn container(&self) -> Result<(ContainerId, Option<ContainerRecord>)> {
        let key: std::result::Result<[u8; 8], _> = self.key.try_into();
        let (Ok(key), ExportTable::Containers) = (key, self.table) else {
            return Err(StoreError::corrupt("item of an export", "a container", format!("{:?}", self.table)).into());
        };
        let id = ContainerId(u64::from_le_bytes(key));
        Ok((id, self.value.map(|value| container_record::decode(id, value)).transpose()?))
    }
}

/// Receives each item.
pub(crate) type ItemVisitor<'v> = dyn FnMut(Item<'_>) -> Result<()> + 'v;

/// The state of one commit. While it exists, the store's file cannot be compacted.
pub struct ExportSource {
    snapshot: Arc<Snapshot>,
}

impl std::fmt::Debug for ExportSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ExportSource").field("row", &self.row()).finish_non_exhaustive()
    }
}

impl Namespace {
    /// Returns the state of the last commit, for an export.
    pub fn export_source(&self) -> Result<ExportSource> {
        let base = self.state.read().base.clone();
        let snapshot = base.filter(|base| !base.session.is_failed()).map_or_else(|| self.recover(), Ok)?;
        Ok(ExportSource { snapshot })
    }

    /// Returns the export mark of the last commit.
    #[must_use]
    pub fn export_mark(&self) -> ExportMark {
        self.store.lock().mark
    }

    /// Returns the removed containers whose slots an export may still name, as of opening.
    pub fn leaving_containers(&self) -> Result<Vec<ContainerRecord>> {
        let base = self.state.read().base.clone();
        Ok(self.with_base(base, |base| leaving(base, |_| true)).map_err(advised)?.0)
    }

    /// Returns the containers of this kind as of one commit: those that exist, and those that leave.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn containers_and_leaving(&self, kind: ContainerKind) -> Result<(Vec<ContainerRecord>, Vec<ContainerRecord>)> {
        let base = self.state.read().base.clone();
        let is_wanted = |record: &ContainerRecord| record.kind == kind;
        let read = |base: &Snapshot| Ok((base.containers_that(is_wanted)?, leaving(base, is_wanted)?));
        Ok(self.with_base(base, read).map_err(advised)?.0)
    }

    /// Gives this meta root a new lineage, durably. For a meta root that was made from a data root.
    ///
    /// # Errors
    /// It is unknown which lineage the meta root has. Only opening it again tells.
    pub fn change_lineage(&self, lineage: Lineage) -> Result<()> {
        let mut store = self.store.lock();
        self.health.check()?;
        let (header, mark) = (store.header, ExportMark { lineage, ..store.mark });
        commit::write_opened(&store, &header, &mark)?;
        store.mark = mark;
        Ok(())
    }
}

impl ExportSource {
    /// Returns the row of the commit.
    #[must_use]
    pub fn row(&self) -> u64 {
        self.snapshot.header.row
    }

    /// Returns the number of inodes in this state.
    #[must_use]
    pub fn inodes(&self) -> u64 {
        u64::try_from(self.snapshot.header.totals.inodes()).unwrap_or(0)
    }

    fn guard<T>(&self, read: impl FnOnce(&Snapshot) -> Result<T>) -> Result<T> {
        guarded(&self.snapshot.session, || read(&self.snapshot))
    }

    /// Delivers the keys that commits after `row` changed, in parts of bounded size.
    ///
    /// # Errors
    /// The errors of `visit`; the store cannot be read.
    pub fn changes_after(&self, row: u64, visit: &mut dyn FnMut(Vec<ChangedKey>) -> Result<()>) -> Result<()> {
        self.guard(|base| {
            let Some(changes) = &base.tables.changes else { return Ok(()) };
            let first = (row.saturating_add(1), 0);
            for found in changes.range_owned(first..).map_err(|error| base.explain(error))? {
                let (key, value) = found.map_err(|error| base.explain(error))?;
                let (row, part) = key.value();
                visit(changes::decode_part(row, part, value.value())?)?;
            }
            Ok(())
        })
    }

    /// Delivers the present record of a changed key.
    pub fn item(&self, key: &ChangedKey, visit: &mut ItemVisitor<'_>) -> Result<()> {
        self.guard(|base| {
            let tables = &*base.tables;
            let explain = |error: redb::StorageError| -> EngineError { base.explain(error) };
            let value = match key {
                ChangedKey::Inode(ino) => tables.inodes.get_owned(*ino),
                ChangedKey::Name(key) => tables.entries.get_owned(key.as_slice()),
                ChangedKey::Xattr(key) => tables.xattrs.get_owned(key.as_slice()),
                ChangedKey::Container { id, .. } => tables.containers.get_owned(id.0),
            };
            let value = value.map_err(explain)?;
            let value = value.as_ref().map(|value| value.value());
            match key {
                ChangedKey::Inode(ino) => visit(Item { table: ExportTable::Inodes, key: &ino.to_le_bytes(), value }),
                ChangedKey::Name(key) => visit(Item { table: ExportTable::Names, key, value }),
                ChangedKey::Xattr(key) => visit(Item { table: ExportTable::Xattrs, key, value }),
                ChangedKey::Container { id, .. } => {
                    visit(Item { table: ExportTable::Containers, key: &id.0.to_le_bytes(), value })
                }
            }
        })
    }

    /// Returns the record of a container.
    pub fn container(&self, id: ContainerId) -> Result<Option<ContainerRecord>> {
        self.guard(|base| {
            let value = base.tables.containers.get_owned(id.0).map_err(|error| base.explain(error))?;
            value.map(|value| container_record::decode(id, value.value())).transpose()
        })
    }

    /// Returns the records of all containers.
    pub fn containers(&self) -> Result<Vec<ContainerRecord>> {
        self.guard(Snapshot::containers)
    }

    /// Delivers everything but the header.
    ///
    /// # Errors
    /// Those of `visit`; the store cannot be read.
    pub fn for_each(&self, visit: &mut ItemVisitor<'_>) -> Result<()> {
        self.guard(|base| {
            let tables = &*base.tables;
            each_number(base, &tables.inodes, ExportTable::Inodes, visit)?;
            each_name(base, &tables.entries, ExportTable::Names, visit)?;
            each_name(base, &tables.xattrs, ExportTable::Xattrs, visit)?;
            each_number(base, &tables.containers, ExportTable::Containers, visit)
        })
    }

    /// Whether an exported header is that of commit `row`. If it is this commit, its sums are compared as well.
    ///
    /// # Errors
    /// The header is damaged.
    pub fn agrees_with(&self, header: &[u8], row: u64) -> Result<bool> {
        let (exported, own) = (Header::decode(header)?, &self.snapshot.header);
        Ok(exported.row == row
            && (own.row != row || (exported.totals, exported.next_ino) == (own.totals, own.next_ino)))
    }

    /// Delivers the header.
    pub fn header(&self, visit: &mut ItemVisitor<'_>) -> Result<()> {
        let value = self.snapshot.header.encode();
        visit(Item { table: ExportTable::Header, key: &HEADER_KEY.to_le_bytes(), value: Some(&value) })
    }
}

/// Returns those of the containers that leave.
fn leaving(base: &Snapshot, is_wanted: impl Fn(&ContainerRecord) -> bool) -> Result<Vec<ContainerRecord>> {
    let mut records = Vec::new();
    let Some(leaving) = &base.tables.leaving else { return Ok(records) };
    for row in leaving.range_owned(0..).map_err(|error| base.explain(error))? {
        let (key, value) = row.map_err(|error| base.explain(error))?;
        let record = container_record::decode(ContainerId(key.value()), value.value())?;
        records.extend(is_wanted(&record).then_some(record));
    }
    Ok(records)
}

fn each_number(
    base: &Snapshot,
    rows: &ReadOnlyTable<u64, &'static [u8]>,
    table: ExportTable,
    visit: &mut ItemVisitor<'_>,
) -> Result<()> {
    for row in rows.range_owned(0..).map_err(|error| base.explain(error))? {
        let (key, value) = row.map_err(|error| base.explain(error))?;
        visit(Item { table, key: &key.value().to_le_bytes(), value: Some(value.value()) })?;
    }
    Ok(())
}

fn each_name(
    base: &Snapshot,
    rows: &ReadOnlyTable<&'static [u8], &'static [u8]>,
    table: ExportTable,
    visit: &mut ItemVisitor<'_>,
) -> Result<()> {
    for row in rows.range_owned(&[][..]..).map_err(|error| base.explain(error))? {
        let (key, value) = row.map_err(|error| base.explain(error))?;
        visit(Item { table, key: key.value(), value: Some(value.value()) })?;
    }
    Ok(())
}
