//! The committed state: the embedded store, snapshots of it, and opening it again after a failure.
//!
//! Readers use a [`Snapshot`]: a read transaction with its tables opened once. All threads share it, and each commit
//! replaces it. When the device fails under a session of the store, redb refuses everything afterwards. The next reader
//! or committer then opens a new session over the same file ([`Store::reopen`]) and tries once more. The new session
//! recovers to the last commit in milliseconds (quick repair). Two failures are final until the next mount (invariant
//! I-7): a failed sync, and not finding out whether a commit took place. After them the last commit stays readable over
//! a [`Shadow`], and nothing is written any more.
//!
//! redb asserts on invalid pages. This module catches such panics and turns them into errors.

use std::ops::{Deref, DerefMut, RangeInclusive};
use std::sync::Arc;

use dedupfs_base::panics::catch;
use dedupfs_base::{EngineError, Result};
use dedupfs_service::Ino;
use dedupfs_store::device::DeviceFile;
use dedupfs_store::{ContainerId, ContainerRecord, StoreError};
use redb::{Builder, Database, ReadOnlyTable, ReadTransaction, ReadableDatabase, ReadableTable, ReadableTableMetadata};

use super::backend::{DeviceBackend, Health, Session};
use super::changes::ExportMark;
use super::container_record;
use super::inode::{Entry, Inode};
use super::shadow::Shadow;
use super::tables::{self, Header, IndexSide};
use super::verified::VerifiedFile;

/// Part of the store whose destructor may assert as well; its panic ends here.
pub(super) struct Shielded<T>(Option<T>);

impl<T> Drop for Shielded<T> {
    fn drop(&mut self) {
        let inner = self.0.take();
        if catch(|| drop(inner)).is_err() {
            tracing::error!("the namespace store could not be closed cleanly");
        }
    }
}

impl<T> Deref for Shielded<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_ref().expect("emptied by its destructor only")
    }
}

impl<T> DerefMut for Shielded<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.0.as_mut().expect("emptied by its destructor only")
    }
}

/// A consistent view of the committed state.
pub(super) struct Snapshot {
    pub(super) session: Arc<Session>,
    pub(super) header: Header,
    pub(super) mark: Option<ExportMark>,
    pub(super) tables: Shielded<Tables>,
}

pub(super) struct Tables {
    pub(super) inodes: ReadOnlyTable<u64, &'static [u8]>,
    pub(super) entries: ReadOnlyTable<&'static [u8], &'static [u8]>,
    order: ReadOnlyTable<&'static [u8; 16], &'static [u8]>,
    pub(super) xattrs: ReadOnlyTable<&'static [u8], &'static [u8]>,
    orphans: ReadOnlyTable<u64, ()>,
    pub(super) containers: ReadOnlyTable<u64, &'static [u8]>,
    log: ReadOnlyTable<(u64, u32), &'static [u8]>,
    /// Absent until a release that exports has opened the store.
    pub(super) changes: Option<ReadOnlyTable<(u64, u32), &'static [u8]>>,
    pub(super) leaving: Option<ReadOnlyTable<u64, &'static [u8]>>,
}

impl std::fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Snapshot").field("header", &self.header).finish_non_exhaustive()
    }
}

impl Tables {
    fn open(transaction: &ReadTransaction) -> std::result::Result<Self, redb::TableError> {
        Ok(Self {
            inodes: transaction.open_table(tables::INODES)?,
            entries: transaction.open_table(tables::ENTRIES)?,
            order: transaction.open_table(tables::ORDER)?,
            xattrs: transaction.open_table(tables::XATTRS)?,
            orphans: transaction.open_table(tables::ORPHANS)?,
            containers: transaction.open_table(tables::CONTAINERS)?,
            log: transaction.open_table(tables::LOG)?,
            changes: if_there(transaction.open_table(tables::CHANGES))?,
            leaving: if_there(transaction.open_table(tables::LEAVING))?,
        })
    }
}

fn if_there<T>(opened: std::result::Result<T, redb::TableError>) -> std::result::Result<Option<T>, redb::TableError> {
    match opened {
        Err(redb::TableError::TableDoesNotExist(_)) => Ok(None),
        opened => opened.map(Some),
    }
}

/// Receives directory, name and entry of each name.
pub(super) type NameVisitor<'v> = dyn FnMut(Ino, &[u8], Entry) -> Result<()> + 'v;
/// An entry in a directory's order: cookie, inode number, kind, name.
pub(super) type OrderedItem = (u64, Ino, dedupfs_service::FileKind, Vec<u8>);

impl Snapshot {
    fn take(database: &Database, session: &Arc<Session>) -> Result<Self> {
        let explain = |error: redb::Error| session.explain(error);
        let transaction = database.begin_read().map_err(|error| explain(error.into()))?;
        let header = Header::read(&transaction).map_err(explain)??;
        let mark = ExportMark::read(&transaction).map_err(explain)??;
        let tables = Tables::open(&transaction).map_err(|error| explain(error.into()))?;
        Ok(Self { session: Arc::clone(session), header, mark, tables: Shielded(Some(tables)) })
    }

    pub(super) fn explain(&self, error: impl Into<redb::Error>) -> EngineError {
        self.session.explain(error)
    }

    pub(super) fn inode(&self, ino: Ino) -> Result<Option<Inode>> {
        let value = self.tables.inodes.get_owned(ino).map_err(|error| self.explain(error))?;
        value.map(|value| Inode::decode(ino, value.value())).transpose()
    }

    pub(super) fn entry(&self, directory: Ino, name: &[u8]) -> Result<Option<Entry>> {
        let key = tables::name_key(directory, name);
        let value = self.tables.entries.get_owned(key.as_slice()).map_err(|error| self.explain(error))?;
        value.map(|value| Entry::decode(&key, value.value())).transpose()
    }

    /// Returns at most `limit` entries of a directory with cookies above `after`.
    pub(super) fn order(&self, directory: Ino, after: u64, limit: usize) -> Result<Vec<OrderedItem>> {
        let Some(first) = after.checked_add(1) else { return Ok(Vec::new()) };
        let (first, last) = (tables::order_key(directory, first), tables::order_key(directory, u64::MAX));
        let range = self.tables.order.range_owned::<&[u8; 16]>(&first..=&last).map_err(|error| self.explain(error))?;
        let mut items = Vec::with_capacity(limit.min(1024));
        for row in range.take(limit) {
            let (key, value) = row.map_err(|error| self.explain(error))?;
            let (ino, kind, name) = tables::decode_order(key.value(), value.value())?;
            items.push((tables::split_order_key(key.value()).1, ino, kind, name));
        }
        Ok(items)
    }

    pub(super) fn xattr(&self, ino: Ino, name: &[u8]) -> Result<Option<Vec<u8>>> {
        let key = tables::name_key(ino, name);
        let value = self.tables.xattrs.get_owned(key.as_slice()).map_err(|error| self.explain(error))?;
        value.map(|value| tables::decode_xattr(&key, value.value())).transpose()
    }

    pub(super) fn xattr_names(&self, ino: Ino) -> Result<Vec<Vec<u8>>> {
        let mut names = Vec::new();
        self.for_each_xattr(ino..=ino, &mut |_, name| {
            names.push(name.to_vec());
            Ok(())
        })?;
        Ok(names)
    }

    /// Visits the attribute names of a range of inodes.
    pub(super) fn for_each_xattr(
        &self,
        inos: std::ops::RangeInclusive<Ino>,
        visit: &mut dyn FnMut(Ino, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let first = inos.start().to_be_bytes();
        let range = match inos.end().checked_add(1).map(u64::to_be_bytes) {
            Some(end) => self.tables.xattrs.range_owned(first.as_slice()..end.as_slice()),
            None => self.tables.xattrs.range_owned(first.as_slice()..),
        };
        for row in range.map_err(|error| self.explain(error))? {
            let (key, _) = row.map_err(|error| self.explain(error))?;
            let (ino, name) = tables::split_name_key(key.value())?;
            visit(ino, name)?;
        }
        Ok(())
    }

    pub(super) fn for_each_inode(&self, visit: &mut dyn FnMut(Result<Inode>) -> Result<()>) -> Result<()> {
        for row in self.tables.inodes.range_owned(0..).map_err(|error| self.explain(error))? {
            let (key, value) = row.map_err(|error| self.explain(error))?;
            visit(Inode::decode(key.value(), value.value()))?;
        }
        Ok(())
    }

    /// Divides all numbers of inodes into ranges of at most so many inodes.
    ///
    /// Cost: reads all inodes, unless one range has them.
    pub(super) fn inode_ranges(&self, at_once: u64, is_ended: &dyn Fn() -> bool) -> Result<Vec<RangeInclusive<Ino>>> {
        let mut ranges = vec![0..=Ino::MAX];
        if self.tables.inodes.len().map_err(|error| self.explain(error))? > at_once {
            let rows = self.tables.inodes.range_owned(0..).map_err(|error| self.explain(error))?;
            for (number, row) in (0_u64..).zip(rows) {
                let first = row.map_err(|error| self.explain(error))?.0.value();
                if number.is_multiple_of(1 << 16) && is_ended() {
                    return Err(EngineError::Ended("the check"));
                }
                if number > 0
                    && number.is_multiple_of(at_once)
                    && let Some(last) = ranges.last_mut()
                {
                    *last = *last.start()..=first - 1;
                    ranges.push(first..=Ino::MAX);
                }
            }
        }
        Ok(ranges)
    }

    pub(super) fn for_each_entry(&self, visit: &mut NameVisitor<'_>) -> Result<()> {
        for row in self.tables.entries.range_owned(&[][..]..).map_err(|error| self.explain(error))? {
            let (key, value) = row.map_err(|error| self.explain(error))?;
            let (directory, name) = tables::split_name_key(key.value())?;
            visit(directory, name, Entry::decode(key.value(), value.value())?)?;
        }
        Ok(())
    }

    /// Returns the greatest inode number; 0 if there is none.
    pub(super) fn last_ino(&self) -> Result<Ino> {
        let last = ReadableTable::last(&self.tables.inodes).map_err(|error| self.explain(error))?;
        Ok(last.map_or(0, |(ino, _)| ino.value()))
    }

    /// Returns the number of entries and the number of places in the order. They must be equal.
    pub(super) fn entry_counts(&self) -> Result<(u64, u64)> {
        let entries = self.tables.entries.len().map_err(|error| self.explain(error))?;
        Ok((entries, self.tables.order.len().map_err(|error| self.explain(error))?))
    }

    pub(super) fn orphans(&self) -> Result<Vec<Ino>> {
        let range = self.tables.orphans.range_owned(0..).map_err(|error| self.explain(error))?;
        range.map(|row| row.map(|(key, _)| key.value()).map_err(|error| self.explain(error))).collect()
    }

    pub(super) fn containers(&self) -> Result<Vec<ContainerRecord>> {
        self.containers_that(|_| true)
    }

    /// Returns those of all containers.
    pub(super) fn containers_that(&self, is_wanted: impl Fn(&ContainerRecord) -> bool) -> Result<Vec<ContainerRecord>> {
        let mut records = Vec::new();
        for row in self.tables.containers.range_owned(0..).map_err(|error| self.explain(error))? {
            let (key, value) = row.map_err(|error| self.explain(error))?;
            let record = container_record::decode(ContainerId(key.value()), value.value())?;
            records.extend(is_wanted(&record).then_some(record));
        }
        Ok(records)
    }

    /// Returns the first part at or after `(row, part)` of the log.
    pub(super) fn log_part(&self, row: u64, part: u32) -> Result<Option<LogPart>> {
        let mut range = self.tables.log.range_owned((row, part)..).map_err(|error| self.explain(error))?;
        let Some(found) = range.next() else { return Ok(None) };
        let (key, value) = found.map_err(|error| self.explain(error))?;
        let (row, part) = key.value();
        let (parts, ops) = super::log::decode_part(row, part, value.value())?;
        Ok(Some(LogPart { row, part, parts, ops }))
    }
}

/// One stored part of a log row.
pub(super) struct LogPart {
    pub(super) row: u64,
    pub(super) part: u32,
    pub(super) parts: u32,
    pub(super) ops: Vec<dedupfs_store::LogOp>,
}

/// The open store. One mutex guards it; a commit holds that mutex from start to end.
pub(super) struct Store {
    pub(super) database: Option<Shielded<Database>>,
    pub(super) session: Arc<Session>,
    pub(super) header: Header,
    pub(super) mark: ExportMark,
    pub(super) file: Arc<VerifiedFile>,
    health: Arc<Health>,
    cache_bytes: usize,
}

impl Store {
    /// Opens the store, or initialises it on an empty file.
    pub(super) fn open(file: Arc<VerifiedFile>, health: Arc<Health>, cache_bytes: usize) -> Result<Self> {
        let header = Header {
            row: 0,
            trimmed_through: 0,
            has_losses: false,
            has_doubt: false,
            index_side: IndexSide::A,
            has_versions: false,
            next_ino: 0,
            next_cookie: 0,
            writer_epoch: 0,
            totals: Default::default(),
        };
        let (session, mark) = (Arc::default(), ExportMark::default());
        let mut store = Self { database: None, session, header, mark, file, health, cache_bytes };
        store.open_session()?;
        Ok(store)
    }

    fn open_session(&mut self) -> Result<()> {
        self.session = Arc::default();
        self.open_session_on(DeviceBackend::new(self.file.clone(), self.session.clone(), self.health.clone()))
    }

    fn open_session_on(&mut self, backend: DeviceBackend) -> Result<()> {
        let mut builder = Builder::new();
        builder.set_cache_size(self.cache_bytes);
        let opened = catch(|| builder.create_with_backend(backend));
        self.database = Some(match opened {
            Ok(Ok(database)) => Shielded(Some(database)),
            Ok(Err(error)) => return Err(self.session.explain(error)),
            Err(_) => {
                self.session.fence();
                return Err(damaged());
            }
        });
        Ok(())
    }

    /// Opens a new session over the same file, at the last durable commit. First it syncs the writes of the ended
    /// session, so that reads see the state that a crash would leave.
    pub(super) fn reopen(&mut self) -> Result<Arc<Snapshot>> {
        tracing::warn!("opening the namespace store again after a failure");
        self.health.check()?;
        self.session.fail();
        self.close();
        self.file.sync().inspect_err(|error| self.health.poison(error.clone()))?;
        self.open_session()?;
        let snapshot = self.snapshot()?;
        self.header = snapshot.header;
        self.mark = snapshot.mark.unwrap_or(self.mark);
        Ok(snapshot)
    }

    /// Opens a new session as [`reopen`](Self::reopen) does. After a failed sync the session is read-only: it reads the
    /// disk and writes only to memory.
    pub(super) fn reopen_for_reading(&mut self) -> Result<Arc<Snapshot>> {
        if self.health.check().is_ok() {
            return self.reopen();
        }
        tracing::warn!("opening the namespace store again, for reading only");
        self.session.fail();
        self.close();
        // Pages that the failed sync lost must not be read from the kernel's cache. The sync error itself is already
        // known.
        let _known = self.file.reread();
        // The content of blocks written since the last sync is unknown.
        self.file.distrust();
        self.session = Arc::default();
        let shadow = Shadow::of(self.file.clone())?;
        self.open_session_on(DeviceBackend::in_memory(Arc::new(shadow), self.session.clone()))?;
        self.snapshot()
    }

    /// Closes the database. Closing writes, so a failed database is first cut off from the file.
    pub(super) fn close(&mut self) {
        if self.session.is_failed() {
            self.session.fence();
        }
        // redb reads pages while it closes, and asserts on them. A panic within a panic would end the process, and pages
        // that are not verified may be nonsense. Everything durable is on the disk without closing, too.
        if !self.file.is_verified() {
            std::mem::forget(self.database.take());
        }
        self.database = None;
    }

    /// Returns a view of the last commit.
    pub(super) fn snapshot(&self) -> Result<Arc<Snapshot>> {
        let database = self.database.as_ref().ok_or_else(|| EngineError::database("it is closed"))?;
        guarded(&self.session, || Snapshot::take(database, &self.session)).map(Arc::new)
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.close();
    }
}

/// Runs an operation on the store. A panic (damaged pages) becomes an error and ends the session.
pub(super) fn guarded<T>(session: &Session, run: impl FnOnce() -> Result<T>) -> Result<T> {
    catch(run).unwrap_or_else(|_| {
        session.fail();
        Err(damaged())
    })
}

fn damaged() -> EngineError {
    StoreError::corrupt(
        "a page of the namespace store",
        "a sound page (see `dedupfs fsck`; beyond repair: `dedupfs recover --force POOL`)",
        "nonsense",
    )
    .into()
}
