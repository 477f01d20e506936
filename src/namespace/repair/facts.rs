//! The content of a namespace's tables, read past all damage.

use std::collections::{BTreeMap, BTreeSet};

use dedupfs_base::Result;
use dedupfs_service::{FileKind, Ino};
use redb::{ReadTransaction, ReadableTable};

use super::super::inode::{Entry, Inode};
use super::super::tables::{self, Header};
use super::Fix;

/// The item at a place in a directory's order, if it can be read.
type Placed = Option<(Ino, FileKind, Vec<u8>)>;

/// Everything that could be decoded, and the fixes for the rest. Memory grows with the namespace.
#[derive(Default)]
pub(super) struct Facts {
    pub(super) inodes: BTreeMap<Ino, Inode>,
    pub(super) entries: BTreeMap<(Ino, Vec<u8>), Entry>,
    pub(super) order: BTreeMap<[u8; 16], Placed>,
    pub(super) xattr_counts: BTreeMap<Ino, u32>,
    /// Attributes of inodes that may not exist.
    pub(super) xattr_keys: Vec<Vec<u8>>,
    pub(super) orphans: BTreeSet<Ino>,
    pub(super) fixes: Vec<(String, Fix)>,
    /// Whether an inode that referred to content is lost: the counts must be rebuilt.
    pub(super) roots_gone: bool,
}

impl Facts {
    /// Reads all tables.
    pub(super) fn read(transaction: &ReadTransaction) -> std::result::Result<(Result<Header>, Self), redb::Error> {
        let mut facts = Self::default();
        for row in transaction.open_table(tables::INODES)?.range(0..)? {
            let (key, value) = row?;
            match Inode::decode(key.value(), value.value()) {
                Ok(inode) => drop(facts.inodes.insert(key.value(), inode)),
                Err(error) => {
                    facts.roots_gone = true;
                    facts.fix(
                        format!("remove inode {}, which cannot be read: {error}", key.value()),
                        Fix::Inode(key.value(), None),
                    );
                }
            }
        }
        for row in transaction.open_table(tables::ENTRIES)?.range(&[][..]..)? {
            let (key, value) = row?;
            let found = tables::split_name_key(key.value()).map(|(directory, name)| (directory, name.to_vec()));
            match found.and_then(|at| Ok((at, Entry::decode(key.value(), value.value())?))) {
                Ok((at, entry)) => drop(facts.entries.insert(at, entry)),
                Err(error) => {
                    facts.fix(
                        format!("remove a name that cannot be read: {error}"),
                        Fix::Entry(key.value().to_vec(), None),
                    );
                }
            }
        }
        for row in transaction.open_table(tables::ORDER)?.iter()? {
            let (key, value) = row?;
            facts.order.insert(*key.value(), tables::decode_order(key.value(), value.value()).ok());
        }
        for row in transaction.open_table(tables::XATTRS)?.range(&[][..]..)? {
            let (key, value) = row?;
            let found = tables::decode_xattr(key.value(), value.value());
            match tables::split_name_key(key.value()).and_then(|(ino, _)| found.map(|_| ino)) {
                Ok(ino) => {
                    *facts.xattr_counts.entry(ino).or_default() += 1;
                    facts.xattr_keys.push(key.value().to_vec());
                }
                Err(error) => {
                    facts.fix(
                        format!("remove an attribute that cannot be read: {error}"),
                        Fix::Xattr(key.value().to_vec()),
                    );
                }
            }
        }
        for row in transaction.open_table(tables::ORPHANS)?.range(0..)? {
            facts.orphans.insert(row?.0.value());
        }
        Ok((Header::read(transaction)?, facts))
    }

    pub(super) fn fix(&mut self, line: String, fix: Fix) {
        self.fixes.push((line, fix));
    }
}
