//! Commits: one transaction makes a frozen generation durable (invariant I-2).
//!
//! 1. [`freeze`](Namespace::freeze): the active generation becomes the frozen one. If an earlier commit failed, it is
//!    merged into the generation that is still frozen.
//! 2. The caller makes the containers durable (invariant I-1).
//! 3. [`commit`](Namespace::commit): one transaction writes the generation, the container records, the log row and the
//!    header. It is two-phase and with quick repair, so a crash leaves the old or the new state, and opening afterwards
//!    needs no scan.
//! 4. The inode cache is refreshed. Then one step replaces the base and drops the frozen generation.
//!
//! If the transaction fails, the store is opened again. The row in its header tells whether the commit took place after
//! all: each commit raises it, so a row is written exactly once. If even this fails, no change is accepted until the
//! next mount.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use dedupfs_base::panics::catch;
use dedupfs_base::{EngineError, Result};
use dedupfs_store::{ContainerId, ContainerRecord, LogOp, StoreError};
use dedupfs_sync::clock::Instant;
use redb::{CompactionError, Database, WriteTransaction};

use super::base::{Snapshot, Store};
use super::changes::{self, ExportMark, Exported};
use super::inode::Inode;
use super::log::{PART_OPS_MAX, encode_part};
use super::opening::advised;
use super::overlay::Generation;
use super::tables::{self, Header};
use super::verified::VerifiedFile;
use super::{Namespace, container_record};
use crate::{COMPACT_ON_CLOSE_BYTES_MAX, COMPACTED_QUICKLY_INODES_MAX};

/// Longest wait of a compaction for readers to finish.
const READERS_WAIT: Duration = Duration::from_secs(10);

/// The content of a commit besides the frozen generation.
#[derive(Clone, Debug, Default)]
pub struct CommitInput {
    /// Records that are new or changed.
    pub containers: Vec<ContainerRecord>,
    /// Containers that no longer exist.
    pub removed_containers: Vec<ContainerId>,
    /// Operations that come first in the row.
    pub extends: Vec<LogOp>,
    /// Log rows up to this one may be trimmed.
    pub trim_log_through: u64,
    /// The durable export; `None`: unchanged.
    pub exported: Option<Exported>,
    /// Changes of commits up to this one are exported and may be trimmed.
    pub trim_changes_through: u64,
    /// Last records of removed containers whose slots an export may still name.
    pub leaving: Vec<ContainerRecord>,
    /// Earlier `leaving` containers that no export names any more.
    pub left: Vec<ContainerId>,
}

/// The result of a commit.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Committed {
    /// Its row in the log.
    pub row: u64,
    /// The row's operations.
    pub ops: Vec<LogOp>,
}

impl Namespace {
    /// Freezes everything done so far for the next commit. Returns whether there is anything to commit.
    pub fn freeze(&self) -> bool {
        let mut state = self.state.write();
        if state.active.is_empty() {
            return state.frozen.is_some();
        }
        let active = std::mem::take(&mut state.active);
        match &mut state.frozen {
            Some(older) => Arc::make_mut(older).absorb(active),
            none => *none = Some(Arc::new(active)),
        }
        true
    }

    /// Makes the frozen generation durable. After an error it stays frozen, and the next call commits it.
    pub fn commit(&self, input: CommitInput) -> Result<Committed> {
        let mut store = self.store.lock();
        self.health.check()?;
        let frozen = self.state.read().frozen.clone();
        let trims = input.trim_log_through > store.header.trimmed_through;
        let has_input =
            !input.containers.is_empty() || !input.removed_containers.is_empty() || !input.extends.is_empty();
        let exports = input.exported.is_some_and(|exported| exported != store.mark.exported) || !input.left.is_empty();
        if frozen.is_none() && !has_input && !trims && !exports {
            return Ok(Committed { row: store.header.row, ops: Vec::new() });
        }
        if store.database.is_none() || store.session.is_failed() {
            let snapshot = store.reopen()?;
            self.state.write().base = Some(snapshot);
        }
        let header = Header {
            row: store.header.row + 1,
            // If recording failed for lack of space, this commit records it.
            has_losses: self.has_losses(),
            has_doubt: self.has_doubt(),
            index_side: store.header.index_side,
            has_versions: store.header.has_versions,
            trimmed_through: store.header.trimmed_through.max(input.trim_log_through),
            next_ino: self.next_ino.load(Ordering::Relaxed),
            next_cookie: self.next_cookie.load(Ordering::Relaxed),
            writer_epoch: store.header.writer_epoch,
            totals: frozen.as_ref().map_or(store.header.totals, |frozen| store.header.totals.plus(&frozen.totals)),
        };
        // The changes of this commit are in no export yet.
        let trimmed_row = store.mark.trimmed_row.max(input.trim_changes_through.min(store.header.row));
        let mark = ExportMark {
            tracked_row: header.row,
            trimmed_row,
            exported: input.exported.unwrap_or(store.mark.exported),
            ..store.mark
        };
        if let Some(frozen) = &frozen {
            // Before a view can show it.
            self.recent.lock().note(header.row, frozen);
        }
        if let Err(error) = store.transact(|transaction| write(transaction, &header, &mark, frozen.as_deref(), &input))
        {
            self.resolve(&mut store, &header, error)?;
        }
        store.header = header;
        store.mark = mark;
        self.install(&mut store, frozen.as_deref());
        let mut ops = input.extends;
        ops.extend(frozen.map_or_else(Vec::new, |frozen| {
            Arc::try_unwrap(frozen).map_or_else(|shared| shared.log.clone(), |owned| owned.log)
        }));
        Ok(Committed { row: header.row, ops })
    }

    /// After a failed commit, opens the store again and finds out whether the commit took place.
    pub(super) fn resolve(&self, store: &mut Store, attempted: &Header, error: EngineError) -> Result<()> {
        tracing::warn!(%error, row = attempted.row, "a commit of the namespace failed");
        let snapshot = store.reopen().inspect_err(|second| {
            let cause = format!("it is unknown whether commit {} took place: {error}; {second}", attempted.row);
            self.health.poison(StoreError::Usage(cause));
        })?;
        let row = snapshot.header.row;
        self.state.write().base = Some(snapshot);
        if row == attempted.row { Ok(()) } else { Err(error) }
    }

    /// Installs a durable transaction: readers see it as the base, and the frozen generation is dropped.
    fn install(&self, store: &mut Store, frozen: Option<&Generation>) {
        for (&ino, inode) in frozen.iter().flat_map(|frozen| &frozen.inodes) {
            match inode {
                Some(inode) => self.cache.insert(ino, inode.clone()),
                None => {
                    self.cache.remove(&ino);
                }
            }
        }
        // Without a snapshot, readers open the store again. The commit itself is complete either way.
        let snapshot = store.snapshot().or_else(|_| store.reopen());
        let snapshot = snapshot.inspect_err(|error| tracing::error!(%error, "cannot read the namespace store")).ok();
        let mut state = self.state.write();
        let old = (std::mem::replace(&mut state.base, snapshot), state.frozen.take());
        state.totals = store.header.totals;
        drop(state);
        drop(old);
    }

    /// The row of the last commit.
    #[must_use]
    pub fn last_row(&self) -> u64 {
        let row = self.state.read().base.as_ref().map(|base| base.header.row);
        row.unwrap_or_else(|| self.store.lock().header.row)
    }

    /// Rows up to this one have been trimmed from the log. An index whose position is before it counts wrongly.
    #[must_use]
    pub fn trimmed_through(&self) -> u64 {
        let row = self.state.read().base.as_ref().map(|base| base.header.trimmed_through);
        row.unwrap_or_else(|| self.store.lock().header.trimmed_through)
    }

    /// Returns whether the log has a committed row after `row`. A commit that changes nothing for the indexes adds none, but counts as a row.
    ///
    /// # Errors
    /// The log cannot be read.
    pub fn has_log_after(&self, row: u64) -> Result<bool> {
        let base = self.state.read().base.clone();
        let Some(next) = row.checked_add(1) else { return Ok(false) };
        Ok(self.with_base(base, |base| base.log_part(next, 0))?.0.is_some())
    }

    /// Delivers the committed log rows after `row`, in order, each whole.
    pub fn log_after(&self, row: u64, visit: &mut dyn FnMut(u64, Vec<LogOp>) -> Result<()>) -> Result<()> {
        let mut after = row;
        while let Some(next) = after.checked_add(1) {
            let Some((row, ops)) = self.log_row(next)? else { break };
            visit(row, ops)?;
            after = row;
        }
        Ok(())
    }

    /// Returns the first row at or after `row`.
    fn log_row(&self, row: u64) -> Result<Option<(u64, Vec<LogOp>)>> {
        let part = |row, part| {
            let base = self.state.read().base.clone();
            Ok::<_, EngineError>(self.with_base(base, |base| base.log_part(row, part))?.0)
        };
        let Some(first) = part(row, 0)? else { return Ok(None) };
        let (row, parts, mut ops) = (first.row, first.parts, first.ops);
        if first.part != 0 {
            return Err(StoreError::corrupt(format!("log row {row}"), "part 0", first.part).into());
        }
        for number in 1..parts {
            match part(row, number)? {
                Some(found) if (found.row, found.part, found.parts) == (row, number, parts) => ops.extend(found.ops),
                _ => {
                    let what = format!("log row {row}");
                    return Err(StoreError::corrupt(what, format!("{parts} parts"), format!("no part {number}")).into());
                }
            }
        }
        Ok(Some((row, ops)))
    }

    /// Returns the records of all containers as of the last commit.
    pub fn containers(&self) -> Result<Vec<ContainerRecord>> {
        let base = self.state.read().base.clone();
        Ok(self.with_base(base, Snapshot::containers).map_err(advised)?.0)
    }

    /// Makes the store's file as small as possible; returns whether anything moved. Readers and commits wait.
    pub fn compact(&self) -> Result<bool> {
        self.exclusively(|store| {
            let moved = store.run_exclusive(|database| {
                let started = Instant::now();
                loop {
                    match database.compact() {
                        // An iterator that a reader took from the snapshot can outlive it for a moment.
                        Err(CompactionError::TransactionInProgress) if started.elapsed() < READERS_WAIT => {
                            dedupfs_sync::thread::sleep(Duration::from_millis(1));
                        }
                        other => return other.map_err(Into::into),
                    }
                }
            })?;
            // Compaction leaves no state for quick repair; a commit does.
            let header = store.header;
            write_header(store, &header)?;
            Ok(moved)
        })
    }

    /// Whether compacting takes a moment, however large the file is: it moves what is in use.
    #[must_use]
    pub fn is_compacted_quickly(&self) -> bool {
        self.state.read().totals.inodes() <= COMPACTED_QUICKLY_INODES_MAX
    }

    /// Compacts the store unless its file is so large that closing the pool would take long. In a large file the free
    /// pages of one session are a small part, and reclaiming compacts files of any size.
    pub fn compact_small(&self) -> Result<bool> {
        if self.file_bytes()? > COMPACT_ON_CLOSE_BYTES_MAX { Ok(false) } else { self.compact() }
    }

    /// Verifies the checksum of every page of the store; returns whether all are sound. Readers and commits wait.
    #[cfg(test)]
    pub(crate) fn verify_store(&self) -> Result<bool> {
        self.exclusively(|store| store.run_exclusive(|database| database.check_integrity().map_err(Into::into)))
    }

    fn exclusively<T>(&self, run: impl FnOnce(&mut Store) -> Result<T>) -> Result<T> {
        let mut store = self.store.lock();
        self.health.check()?;
        let base = self.state.write().base.take();
        let started = Instant::now();
        while base.as_ref().is_some_and(|base| Arc::strong_count(base) > 1) {
            if started.elapsed() > READERS_WAIT {
                self.state.write().base = base;
                let (what, owner) = ("the namespace".into(), "a long scan of it".into());
                return Err(StoreError::Busy { what, owner }.into());
            }
            dedupfs_sync::thread::sleep(Duration::from_millis(1));
        }
        drop(base);
        let outcome = run(&mut store);
        let snapshot = match &outcome {
            Ok(_) => store.snapshot().or_else(|_| store.reopen()),
            Err(_) => store.reopen_for_reading(),
        };
        self.state.write().base = snapshot.ok();
        outcome
    }
}

impl Store {
    /// Runs one durable transaction; `fill` writes into it.
    pub(super) fn transact(
        &self,
        fill: impl FnOnce(&WriteTransaction) -> std::result::Result<(), redb::Error>,
    ) -> Result<()> {
        let database = self.database.as_ref().ok_or_else(|| EngineError::database("it is closed"))?;
        let run = || {
            let mut transaction = database.begin_write()?;
            transaction.set_quick_repair(true);
            fill(&transaction)?;
            transaction.commit()?;
            Ok(())
        };
        super::base::guarded(&self.session, || run().map_err(|error: redb::Error| self.session.explain(error)))
    }

    /// Recomputes the checksums of all blocks, if redb finds the store sound. Returns whether it is.
    pub(super) fn learn(&mut self, file: &VerifiedFile) -> Result<bool> {
        match self.run_exclusive(|database| database.check_integrity().map_err(Into::into)) {
            Ok(true) => {
                file.learn()?;
                Ok(true)
            }
            _ => {
                self.reopen()?;
                Ok(false)
            }
        }
    }

    fn run_exclusive<T>(
        &mut self,
        run: impl FnOnce(&mut Database) -> std::result::Result<T, redb::Error>,
    ) -> Result<T> {
        let database = self.database.as_mut().ok_or_else(|| EngineError::database("it is closed"))?;
        match catch(|| run(database)) {
            Ok(done) => done.map_err(|error| self.session.explain(error)),
            Err(_) => {
                self.session.fail();
                Err(EngineError::database(
                    "it is damaged: see `dedupfs fsck`; beyond repair: `dedupfs recover --force POOL`",
                ))
            }
        }
    }
}

/// Writes the tables of a new namespace.
pub(super) fn initialise(store: &Store, header: &Header, mark: &ExportMark, root: &Inode) -> Result<()> {
    store.transact(|transaction| {
        transaction.open_table(tables::INODES)?.insert(root.ino, root.encode().as_slice())?;
        transaction.open_table(tables::ENTRIES)?;
        transaction.open_table(tables::ORDER)?;
        transaction.open_table(tables::XATTRS)?;
        transaction.open_table(tables::ORPHANS)?;
        transaction.open_table(tables::CONTAINERS)?;
        transaction.open_table(tables::LOG)?;
        transaction.open_table(tables::CHANGES)?;
        transaction.open_table(tables::LEAVING)?;
        mark.write(transaction)?;
        header.write(transaction)
    })
}

/// Writes header and mark, and creates the tables that earlier releases did not have.
pub(super) fn write_opened(store: &Store, header: &Header, mark: &ExportMark) -> Result<()> {
    store.transact(|transaction| {
        transaction.open_table(tables::CHANGES)?;
        transaction.open_table(tables::LEAVING)?;
        mark.write(transaction)?;
        header.write(transaction)
    })
}

/// Writes only the header.
pub(super) fn write_header(store: &Store, header: &Header) -> Result<()> {
    store.transact(|transaction| header.write(transaction))
}

fn write(
    transaction: &WriteTransaction,
    header: &Header,
    mark: &ExportMark,
    frozen: Option<&Generation>,
    input: &CommitInput,
) -> std::result::Result<(), redb::Error> {
    if let Some(frozen) = frozen {
        write_inodes(transaction, frozen)?;
        write_names(transaction, frozen)?;
        write_xattrs(transaction, frozen)?;
    }
    let mut containers = transaction.open_table(tables::CONTAINERS)?;
    let mut changed_containers = Vec::with_capacity(input.containers.len() + input.removed_containers.len());
    for record in &input.containers {
        let old = containers.insert(record.id.0, container_record::encode(record).as_slice())?;
        // With an unreadable old record, the container is exported from its beginning.
        let before = old.and_then(|old| container_record::decode(record.id, old.value()).ok());
        changed_containers.push((record.id, before.map_or(0, |before| before.used_bytes)));
    }
    for id in &input.removed_containers {
        containers.remove(id.0)?;
        changed_containers.push((*id, 0));
    }
    drop(containers);
    write_changes(transaction, header.row, mark, changes::encode_parts(frozen, &changed_containers))?;
    let mut leaving = transaction.open_table(tables::LEAVING)?;
    for record in &input.leaving {
        leaving.insert(record.id.0, container_record::encode(record).as_slice())?;
    }
    for id in &input.left {
        leaving.remove(id.0)?;
    }
    drop(leaving);
    let mut log = transaction.open_table(tables::LOG)?;
    let ops: Vec<LogOp> = input.extends.iter().chain(frozen.iter().flat_map(|frozen| &frozen.log)).copied().collect();
    let parts = ops.len().div_ceil(PART_OPS_MAX) as u32;
    for (part, ops) in (0..).zip(ops.chunks(PART_OPS_MAX)) {
        log.insert((header.row, part), encode_part(header.row, part, parts, ops).as_slice())?;
    }
    log.retain_in(..=(input.trim_log_through, u32::MAX), |_, _| false)?;
    drop(log);
    mark.write(transaction)?;
    header.write(transaction)
}

pub(super) fn write_changes(
    transaction: &WriteTransaction,
    row: u64,
    mark: &ExportMark,
    parts: Vec<Vec<u8>>,
) -> std::result::Result<(), redb::Error> {
    let mut changes = transaction.open_table(tables::CHANGES)?;
    for (part, keys) in (0..).zip(parts) {
        changes.insert((row, part), changes::seal_part(row, part, &keys).as_slice())?;
    }
    changes.retain_in(..=(mark.trimmed_row, u32::MAX), |_, _| false)?;
    Ok(())
}

/// Sorts changes by key, so that the B-tree is walked once from left to right.
fn sorted<K: Ord + Copy, V>(changes: impl Iterator<Item = (K, V)>) -> Vec<(K, V)> {
    let mut changes: Vec<(K, V)> = changes.collect();
    changes.sort_unstable_by_key(|(key, _)| *key);
    changes
}

fn write_inodes(transaction: &WriteTransaction, frozen: &Generation) -> std::result::Result<(), redb::Error> {
    let mut inodes = transaction.open_table(tables::INODES)?;
    for (ino, inode) in sorted(frozen.inodes.iter().map(|(&ino, inode)| (ino, inode))) {
        match inode {
            Some(inode) => inodes.insert(ino, inode.encode().as_slice())?,
            None => inodes.remove(ino)?,
        };
    }
    let mut orphans = transaction.open_table(tables::ORPHANS)?;
    for (ino, is_orphan) in sorted(frozen.orphans.iter().map(|(&ino, &is_orphan)| (ino, is_orphan))) {
        if is_orphan {
            orphans.insert(ino, ())?;
        } else {
            orphans.remove(ino)?;
        }
    }
    Ok(())
}

fn write_names(transaction: &WriteTransaction, frozen: &Generation) -> std::result::Result<(), redb::Error> {
    let mut entries = transaction.open_table(tables::ENTRIES)?;
    let mut order = transaction.open_table(tables::ORDER)?;
    for (directory, changes) in sorted(frozen.directories.iter().map(|(&ino, changes)| (ino, changes))) {
        for (name, entry) in sorted(changes.by_name.iter().map(|(name, entry)| (&**name, entry))) {
            let key = tables::name_key(directory, name);
            match entry {
                Some(entry) => entries.insert(key.as_slice(), entry.encode(&key).as_slice())?,
                None => entries.remove(key.as_slice())?,
            };
        }
        for (&cookie, ordered) in &changes.by_cookie {
            let key = tables::order_key(directory, cookie);
            match ordered {
                Some(item) => {
                    order.insert(&key, tables::encode_order(&key, item.ino, item.kind, &item.name).as_slice())?
                }
                None => order.remove(&key)?,
            };
        }
    }
    Ok(())
}

fn write_xattrs(transaction: &WriteTransaction, frozen: &Generation) -> std::result::Result<(), redb::Error> {
    let mut xattrs = transaction.open_table(tables::XATTRS)?;
    for (ino, changes) in sorted(frozen.xattrs.iter().map(|(&ino, changes)| (ino, changes))) {
        for (name, value) in changes {
            let key = tables::name_key(ino, name);
            match value {
                Some(value) => xattrs.insert(key.as_slice(), tables::encode_xattr(&key, value).as_slice())?,
                None => xattrs.remove(key.as_slice())?,
            };
        }
    }
    Ok(())
}
