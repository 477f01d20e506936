//! Repairing a namespace that contradicts itself: wrong counts, names without an inode, inodes without a name,
//! unreadable records. The pool must not be open.
//!
//! 1. [`facts`]: reads all tables past any damage.
//! 2. [`plan`]: derives the right tables from inodes and names. Each difference is a fix with a line that describes it.
//! 3. One transaction makes all fixes, or none.
//!
//! Every readable inode is kept. An inode without a name gets one in `lost+found`; an inode that was unlinked while it
//! was open is left for the next mount to drop. Damaged pages of the store itself are not repaired here.
//!
//! Memory: all inodes and names.

mod facts;
mod plan;

use std::sync::Arc;

use dedupfs_base::{EngineError, Result};
use dedupfs_service::{FileKind, Ino};
use dedupfs_store::StoreError;
use dedupfs_store::device::{Device, OpenMode};
use redb::{ReadableDatabase, WriteTransaction};

use self::facts::Facts;
use super::base::{Store, guarded};
use super::changes::ExportMark;
use super::inode::{Entry, Inode};
use super::opening::advised;
use super::tables::{self, Header};
use super::verified::VerifiedFile;
use super::{NAMESPACE_FILE, STORE_CACHE_BYTES_MIN};

/// One change of the tables.
pub(super) enum Fix {
    /// Stores the inode, or removes it.
    Inode(Ino, Option<Box<Inode>>),
    /// Stores the name, or removes it. The key is as stored.
    Entry(Vec<u8>, Option<Entry>),
    /// Stores the place in the order, or removes it.
    Order([u8; 16], Option<(Ino, FileKind, Vec<u8>)>),
    /// Removes the attribute.
    Xattr(Vec<u8>),
    /// Records whether the inode is an orphan.
    Orphan(Ino, bool),
    /// Stores the header.
    Header(Box<Header>),
}

/// The result of a check or repair.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct NamespaceRepair {
    /// The fix of each defect, in words.
    pub lines: Vec<String>,
    /// Whether content lost a reference with an unreadable inode: the counts must be rebuilt.
    pub needs_recount: bool,
}

/// Finds the defects of the namespace on a meta root and, with `apply`, repairs them durably.
///
/// # Errors
/// The store itself is damaged, or of another version; I/O errors. Nothing is changed then.
pub fn repair(device: &dyn Device, now: dedupfs_service::Timestamp, apply: bool) -> Result<NamespaceRepair> {
    repair_tables(device, now, apply).map_err(advised)
}

fn repair_tables(device: &dyn Device, now: dedupfs_service::Timestamp, apply: bool) -> Result<NamespaceRepair> {
    // Opening recovers the store to its last commit, which writes.
    let file = device.open(NAMESPACE_FILE, OpenMode::Write)?;
    if file.is_empty()? {
        return Err(StoreError::corrupt(NAMESPACE_FILE, "a namespace store", "an empty file").into());
    }
    // The checksums are ignored: everything readable is used.
    let (verified, _known) = VerifiedFile::open(device, file)?;
    verified.distrust();
    let mut store = Store::open(verified.clone(), Arc::default(), STORE_CACHE_BYTES_MIN as usize)?;
    let database = store.database.as_ref().ok_or_else(|| EngineError::database("it is closed"))?;
    let ((header, facts), mark) = guarded(&store.session, || {
        let read = || {
            let transaction = database.begin_read()?;
            Ok((Facts::read(&transaction)?, ExportMark::read(&transaction)?))
        };
        read().map_err(|error: redb::Error| store.session.explain(error))
    })?;
    let header = header?;
    store.header = header;
    let needs_recount = facts.roots_gone;
    let fixes = plan::plan(facts, header, now);
    let lines: Vec<String> = fixes.iter().filter(|(line, _)| !line.is_empty()).map(|(line, _)| line.clone()).collect();
    if apply && !fixes.is_empty() {
        // The fixes are not tracked for exports, so an existing export no longer matches. Opening begins a new one.
        let forgotten = mark.ok().flatten().map(|mark| ExportMark { tracked_row: u64::MAX, ..mark });
        let fixed = fixes.iter().rev().find_map(|(_, fix)| match fix {
            Fix::Header(header) => Some(**header),
            _ => None,
        });
        // A commit of its own, so that an export written just before is not taken for one of the repaired namespace.
        let fixed = fixed.unwrap_or(header);
        let header = Header { row: fixed.row + 1, ..fixed };
        store.transact(|transaction| {
            fixes.iter().try_for_each(|(_, fix)| make(transaction, fix))?;
            header.write(transaction)?;
            forgotten.map_or(Ok(()), |mark| mark.write(transaction))
        })?;
        if !store.learn(&verified)? {
            tracing::error!("pages of the namespace store are damaged: repairing its records does not mend them");
        }
    }
    Ok(NamespaceRepair { lines, needs_recount })
}

fn make(transaction: &WriteTransaction, fix: &Fix) -> std::result::Result<(), redb::Error> {
    match fix {
        Fix::Inode(ino, Some(inode)) => {
            drop(transaction.open_table(tables::INODES)?.insert(*ino, inode.encode().as_slice())?);
        }
        Fix::Inode(ino, None) => drop(transaction.open_table(tables::INODES)?.remove(*ino)?),
        Fix::Entry(key, Some(entry)) => {
            drop(transaction.open_table(tables::ENTRIES)?.insert(key.as_slice(), entry.encode(key).as_slice())?);
        }
        Fix::Entry(key, None) => drop(transaction.open_table(tables::ENTRIES)?.remove(key.as_slice())?),
        Fix::Order(key, Some((ino, kind, name))) => {
            let value = tables::encode_order(key, *ino, *kind, name);
            drop(transaction.open_table(tables::ORDER)?.insert(key, value.as_slice())?);
        }
        Fix::Order(key, None) => drop(transaction.open_table(tables::ORDER)?.remove(key)?),
        Fix::Xattr(key) => drop(transaction.open_table(tables::XATTRS)?.remove(key.as_slice())?),
        Fix::Orphan(ino, true) => drop(transaction.open_table(tables::ORPHANS)?.insert(*ino, ())?),
        Fix::Orphan(ino, false) => drop(transaction.open_table(tables::ORPHANS)?.remove(*ino)?),
        Fix::Header(header) => header.write(transaction)?,
    }
    Ok(())
}
