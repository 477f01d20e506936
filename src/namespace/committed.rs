//! A view of one commit, for work that reads many names at one moment while the namespace changes.
//!
//! While a view is held, the store keeps the pages of its commit, and its file grows with every later commit.

use std::sync::Arc;

use dedupfs_base::Result;
use dedupfs_service::{FileKind, Ino};

use super::base::{Snapshot, guarded};
use super::inode::{Entry, Inode};
use super::tables;
use super::{FIRST_VERSION, Namespace};

/// A name in a directory, with its inode number and kind.
pub type NamedInode = (Vec<u8>, Ino, FileKind);
/// Name and value of an extended attribute.
pub type Xattr = (Vec<u8>, Vec<u8>);

/// One commit.
#[derive(Debug)]
pub struct CommittedView(Arc<Snapshot>);

impl Namespace {
    /// Returns the state as of the last commit.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn committed(&self) -> Result<CommittedView> {
        self.snapshot().map(CommittedView)
    }
}

impl CommittedView {
    /// Its row in the log.
    #[must_use]
    pub fn row(&self) -> u64 {
        self.0.header.row
    }

    /// Returns an inode, if it existed.
    ///
    /// # Errors
    /// Damage; I/O errors.
    pub fn inode(&self, ino: Ino) -> Result<Option<Inode>> {
        guarded(&self.0.session, || self.0.inode(ino))
    }

    /// Visits all inodes, orphans included, in the order of their numbers. Damage ends the scan.
    ///
    /// # Errors
    /// Damage; I/O errors; errors of `visit`.
    pub fn for_each_inode(&self, visit: &mut dyn FnMut(&Inode) -> Result<()>) -> Result<()> {
        guarded(&self.0.session, || self.0.for_each_inode(&mut |inode| visit(&inode?)))
    }

    /// Gives the inode number of each entry of a directory to `visit`, until it returns `false`.
    ///
    /// # Errors
    /// Damage; I/O errors.
    pub fn for_each_entry(&self, directory: Ino, visit: &mut dyn FnMut(Ino) -> bool) -> Result<()> {
        guarded(&self.0.session, || {
            let from = tables::name_key(directory, &[]);
            let range = self.0.tables.entries.range_owned(from.as_slice()..).map_err(|error| self.0.explain(error))?;
            for row in range {
                let (key, value) = row.map_err(|error| self.0.explain(error))?;
                if tables::split_name_key(key.value())?.0 != directory
                    || !visit(Entry::decode(key.value(), value.value())?.ino)
                {
                    break;
                }
            }
            Ok(())
        })
    }

    /// Returns at most `limit` names of a directory behind the name `after`, in the order of their bytes.
    ///
    /// # Errors
    /// Damage; I/O errors.
    pub fn names(&self, directory: Ino, after: &[u8], limit: usize) -> Result<Vec<NamedInode>> {
        guarded(&self.0.session, || {
            // The least name behind `after` is the same with a zero byte more; no name is empty.
            let from = tables::name_key(directory, &[after, &[0]].concat());
            let range = self.0.tables.entries.range_owned(from.as_slice()..).map_err(|error| self.0.explain(error))?;
            let mut names = Vec::new();
            for row in range.take(limit) {
                let (key, value) = row.map_err(|error| self.0.explain(error))?;
                let (of, name) = tables::split_name_key(key.value())?;
                if of != directory {
                    break;
                }
                let entry = Entry::decode(key.value(), value.value())?;
                names.push((name.to_vec(), entry.ino, entry.kind));
            }
            Ok(names)
        })
    }

    /// Returns at most `limit` versions behind the inode number `after`, ascending. The error of a damaged one stands in
    /// its place.
    ///
    /// # Errors
    /// I/O errors; damage of the table.
    pub fn versions(&self, after: Ino, limit: usize) -> Result<Vec<(Ino, Result<Inode>)>> {
        guarded(&self.0.session, || {
            let from = (after + 1).max(FIRST_VERSION);
            let range = self.0.tables.inodes.range_owned(from..).map_err(|error| self.0.explain(error))?;
            let mut versions = Vec::new();
            for row in range.take(limit) {
                let (ino, value) = row.map_err(|error| self.0.explain(error))?;
                versions.push((ino.value(), Inode::decode(ino.value(), value.value())));
            }
            Ok(versions)
        })
    }

    /// Returns a record of the namespace that belongs to an inode ([`RECORD_PREFIX`](super::RECORD_PREFIX)).
    ///
    /// # Errors
    /// Damage; I/O errors.
    pub fn record(&self, ino: Ino, name: &[u8]) -> Result<Option<Vec<u8>>> {
        guarded(&self.0.session, || self.0.xattr(ino, name))
    }

    /// Returns the extended attributes of an inode, sorted by name. Records of the namespace are none.
    ///
    /// # Errors
    /// Damage; I/O errors.
    pub fn xattrs(&self, ino: Ino) -> Result<Vec<Xattr>> {
        guarded(&self.0.session, || {
            let mut xattrs = Vec::new();
            for name in self.0.xattr_names(ino)? {
                if !name.starts_with(super::RECORD_PREFIX)
                    && let Some(value) = self.0.xattr(ino, &name)?
                {
                    xattrs.push((name, value));
                }
            }
            xattrs.sort_unstable();
            Ok(xattrs)
        })
    }
}
