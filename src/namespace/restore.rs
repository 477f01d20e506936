//! Restores a namespace from an export: records go back into their tables, and derived tables are rebuilt.
//!
//! 1. [`create`](Restorer::create) makes an empty store.
//! 2. [`apply`](Restorer::apply) lays items over it, oldest first. Each call is one transaction. The order of
//!    directories follows from the names, and orphans are the inodes without links.
//! 3. [`finish`](Restorer::finish) writes the header. Until then the store is no namespace: it has no header.
//!
//! Every record is decoded before it is stored, so only records that this code could have written get in.

#![deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)]

use dedupfs_base::Result;
use dedupfs_store::device::{Device, OpenMode};
use dedupfs_store::{ContainerId, ContainerRecord, StoreError};
use redb::{ReadableTable, Table, WriteTransaction};

use super::base::Store;
use super::changes::{ExportMark, Exported, Lineage};
use super::export::{ExportTable, Item};
use super::inode::{Entry, Inode};
use super::tables::{self, Header, IndexSide};
use super::verified::VerifiedFile;
use super::{NAMESPACE_FILE, Totals, commit, container_record};

/// Page cache during the restore.
const CACHE_BYTES: usize = 64 << 20;

/// A decoded item: the change to store.
enum Change<'a> {
    Inode(u64, Option<(&'a [u8], bool)>),
    Name(&'a [u8], Option<(&'a [u8], Entry)>),
    Xattr(&'a [u8], Option<&'a [u8]>),
    Container(u64, Option<&'a [u8]>),
    Header(Box<Header>),
}

/// A store that is being filled.
pub struct Restorer {
    store: Store,
    header: Option<Header>,
}

impl std::fmt::Debug for Restorer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Restorer").field("header", &self.header).finish_non_exhaustive()
    }
}

impl Restorer {
    /// Starts with an empty store; fails if a store exists.
    ///
    /// # Errors
    /// I/O errors.
    pub fn create(device: &dyn Device) -> Result<Self> {
        let file = VerifiedFile::fresh(device, device.open(NAMESPACE_FILE, OpenMode::CreateNew)?)?;
        let store = Store::open(file, std::sync::Arc::default(), CACHE_BYTES)?;
        store.transact(|transaction| {
            transaction.open_table(tables::LOG)?;
            transaction.open_table(tables::CHANGES)?;
            transaction.open_table(tables::LEAVING)?;
            Ok(())
        })?;
        device.sync_directory("")?;
        Ok(Self { store, header: None })
    }

    /// Lays items over the present content, in one transaction.
    ///
    /// # Errors
    /// An invalid record; I/O errors.
    pub fn apply(&mut self, items: &[Item<'_>]) -> Result<()> {
        let mut changes = Vec::with_capacity(items.len());
        for item in items {
            match decode(item)? {
                Change::Header(header) => self.header = Some(*header),
                change => changes.push(change),
            }
        }
        self.store.transact(|transaction| store_changes(transaction, &changes))
    }

    /// The row of the restored commit, if its header was among the items.
    #[must_use]
    pub fn row(&self) -> Option<u64> {
        self.header.map(|header| header.row)
    }

    /// The writer epoch as of that commit, and whether files already needed lost content then.
    #[must_use]
    pub fn epoch_and_losses(&self) -> (u32, bool) {
        self.header.map_or((0, false), |header| (header.writer_epoch, header.has_losses))
    }

    /// Makes the store a namespace with this lineage, based on this export. Its writer epoch is `ahead` of both `epoch`
    /// and the header's. The caller still has to build the indexes. Returns the sums and the containers.
    ///
    /// # Errors
    /// No header was among the items; I/O errors.
    pub fn finish(
        self,
        lineage: Lineage,
        exported: Exported,
        epoch: u32,
        ahead: u32,
    ) -> Result<(Totals, Vec<ContainerRecord>)> {
        let Some(header) = self.header else {
            return Err(StoreError::corrupt("export", "a header", "none").into());
        };
        let header = Header {
            trimmed_through: header.row,
            index_side: IndexSide::A,
            // A recovery rebuilds the indexes.
            has_doubt: false,
            writer_epoch: header.writer_epoch.max(epoch).saturating_add(ahead).min(ContainerId::EPOCH_MAX),
            ..header
        };
        let mark = ExportMark { lineage, tracked_row: header.row, trimmed_row: header.row, exported };
        commit::write_opened(&self.store, &header, &mark)?;
        Ok((header.totals, self.store.snapshot()?.containers()?))
    }
}

fn number(item: &Item<'_>) -> Result<u64> {
    let bytes: Option<[u8; 8]> = item.key.try_into().ok();
    match bytes {
        Some(bytes) => Ok(u64::from_le_bytes(bytes)),
        None => Err(StoreError::corrupt("key of an export", "8 bytes", item.key.len()).into()),
    }
}

fn decode<'a>(item: &Item<'a>) -> Result<Change<'a>> {
    let (key, value) = (item.key, item.value);
    Ok(match item.table {
        ExportTable::Inodes => {
            let ino = number(item)?;
            let inode =
                value.map(|value| Ok::<_, dedupfs_base::EngineError>((value, Inode::decode(ino, value)?.nlink == 0)));
            Change::Inode(ino, inode.transpose()?)
        }
        ExportTable::Names => {
            tables::split_name_key(key)?;
            let entry = value.map(|value| Ok::<_, dedupfs_base::EngineError>((value, Entry::decode(key, value)?)));
            Change::Name(key, entry.transpose()?)
        }
        ExportTable::Xattrs => {
            tables::split_name_key(key)?;
            value.map(|value| tables::decode_xattr(key, value)).transpose()?;
            Change::Xattr(key, value)
        }
        ExportTable::Containers => {
            let id = number(item)?;
            value.map(|value| container_record::decode(ContainerId(id), value)).transpose()?;
            Change::Container(id, value)
        }
        ExportTable::Header => match value {
            Some(value) => Change::Header(Box::new(Header::decode(value)?)),
            None => return Err(StoreError::corrupt("header of an export", "a record", "none").into()),
        },
    })
}

fn set<'k, K: redb::Key + 'static>(
    table: &mut Table<'_, K, &'static [u8]>,
    key: K::SelfType<'k>,
    value: Option<&[u8]>,
) -> std::result::Result<(), redb::Error> {
    match value {
        Some(value) => table.insert(key, value)?,
        None => table.remove(key)?,
    };
    Ok(())
}

fn store_changes(transaction: &WriteTransaction, changes: &[Change<'_>]) -> std::result::Result<(), redb::Error> {
    let mut inodes = transaction.open_table(tables::INODES)?;
    let mut orphans = transaction.open_table(tables::ORPHANS)?;
    let mut entries = transaction.open_table(tables::ENTRIES)?;
    let mut order = transaction.open_table(tables::ORDER)?;
    let mut xattrs = transaction.open_table(tables::XATTRS)?;
    let mut containers = transaction.open_table(tables::CONTAINERS)?;
    // A removed name and a new name may have the same place in the order. Removals go first, and remove only their own
    // place.
    for change in changes {
        let Change::Name(key, _) = change else { continue };
        let old = entries.remove(*key)?.and_then(|old| Entry::decode(key, old.value()).ok());
        if let (Some(old), Ok((directory, name))) = (old, tables::split_name_key(key)) {
            let place = tables::order_key(directory, old.cookie);
            let taken_by = order.get(&place)?.and_then(|item| tables::decode_order(&place, item.value()).ok());
            if taken_by.is_some_and(|(_, _, other)| other == name) {
                order.remove(&place)?;
            }
        }
    }
    for change in changes {
        match change {
            Change::Inode(ino, inode) => {
                if inode.is_some_and(|(_, is_orphan)| is_orphan) {
                    orphans.insert(ino, ())?;
                } else {
                    orphans.remove(ino)?;
                }
                set(&mut inodes, *ino, inode.map(|(value, _)| value))?;
            }
            Change::Name(key, Some((value, entry))) => {
                entries.insert(*key, *value)?;
                if let Ok((directory, name)) = tables::split_name_key(key) {
                    let place = tables::order_key(directory, entry.cookie);
                    order.insert(&place, tables::encode_order(&place, entry.ino, entry.kind, name).as_slice())?;
                }
            }
            Change::Xattr(key, value) => set(&mut xattrs, *key, *value)?,
            Change::Container(id, value) => set(&mut containers, *id, *value)?,
            Change::Name(_, None) | Change::Header(_) => {}
        }
    }
    Ok(())
}
