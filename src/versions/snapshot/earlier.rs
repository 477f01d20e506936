//! The earlier snapshot of the same directory: what did not change since is taken over from its tree.

use std::collections::VecDeque;

use dedupfs_base::{EngineError, Result};
use dedupfs_namespace::ChangedInodes;
use dedupfs_service::Ino;
use dedupfs_store::tree::{Content, Directory, Entry};

use crate::versions::build::Totals;
use crate::versions::read::{Found, FrozenTree, RowAt};

/// Most snapshots that are remembered, of as many directories.
const REMEMBERED_MAX: usize = 16;

/// A snapshot that was made since the pool was opened.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SnapshotMade {
    /// The live directory.
    pub(crate) source: Ino,
    /// The version.
    pub(crate) version: Ino,
    /// The commit that it shows.
    pub(crate) row: u64,
    pub(crate) totals: Totals,
}

/// The newest snapshots of some directories.
#[derive(Default)]
pub(crate) struct SnapshotsMade(VecDeque<SnapshotMade>);

impl SnapshotsMade {
    pub(crate) fn of(&self, source: Ino) -> Option<SnapshotMade> {
        self.0.iter().find(|made| made.source == source).copied()
    }

    pub(crate) fn remember(&mut self, made: SnapshotMade) {
        self.0.retain(|other| other.source != made.source);
        // With too many files with several names, the number of one depends on all others: nothing can be taken over.
        if made.totals.unlinked == 0 {
            self.0.truncate(REMEMBERED_MAX - 1);
            self.0.push_front(made);
        }
    }
}

/// The earlier snapshot, opened.
pub(crate) struct Earlier<'a> {
    pub(crate) made: SnapshotMade,
    pub(crate) tree: FrozenTree<'a>,
    /// Inodes that changed since.
    pub(crate) changed: ChangedInodes,
}

/// Files of the earlier tree that are met, and so are not taken over with a directory.
#[derive(Clone, Copy, Default)]
pub(super) struct FilesMet {
    files: u64,
    data_bytes: u64,
}

impl Earlier<'_> {
    /// Returns the directory, if it may be taken over. Not if a file with several names is in it: its number comes from its
    /// first path, which may lie elsewhere.
    pub(super) fn directory(found: &Found) -> Option<Directory> {
        match found.entry.content {
            Content::Directory(directory) if directory.below.linked == 0 => Some(directory),
            _ => None,
        }
    }

    /// Counts an entry that is not taken over, and everything below it.
    pub(super) fn meet_all(&self, directory: &Found, row: RowAt, met: &mut FilesMet) -> Result<()> {
        met.add(&row.entry)?;
        match row.entry.is_directory() {
            true => self.meet_below(self.tree.found_at(directory, row), met),
            false => Ok(()),
        }
    }

    /// Counts everything below a directory that is not taken over.
    pub(super) fn meet_below(&self, directory: Found, met: &mut FilesMet) -> Result<()> {
        let mut ways = vec![Rows::new(directory)];
        while let Some(way) = ways.last_mut() {
            let Some(row) = way.next(&self.tree)? else {
                ways.pop();
                continue;
            };
            met.add(&row.entry)?;
            if row.entry.is_directory() {
                let below = self.tree.found_at(&way.directory, row);
                ways.push(Rows::new(below));
            }
        }
        Ok(())
    }

    /// Adds the files that were taken over to those that were added.
    pub(super) fn complete(&self, totals: &mut Totals, met: FilesMet) -> Result<()> {
        let sum = |added: u64, all: u64, met: u64| added.checked_add(all)?.checked_sub(met);
        let before = &self.made.totals;
        let files = sum(totals.files, before.files, met.files);
        let data_bytes = sum(totals.data_bytes, before.data_bytes, met.data_bytes);
        let (Some(files), Some(data_bytes)) = (files, data_bytes) else {
            return Err(EngineError::Internal("an earlier snapshot has fewer files than its tree"));
        };
        (totals.files, totals.data_bytes) = (files, data_bytes);
        Ok(())
    }
}

impl FilesMet {
    /// Counts an entry itself.
    pub(super) fn add(&mut self, entry: &Entry) -> Result<()> {
        if let Content::File { data_bytes, .. } = entry.content {
            self.files += 1;
            let sum = self.data_bytes.checked_add(data_bytes);
            self.data_bytes = sum.ok_or(EngineError::Internal("a tree of more than 2^64 bytes"))?;
        }
        Ok(())
    }
}

/// The rows of a directory of the earlier tree, in the order of names.
pub(super) struct Rows {
    pub(super) directory: Found,
    leaf: VecDeque<RowAt>,
    read: u64,
}

impl Rows {
    pub(super) fn new(directory: Found) -> Self {
        Self { directory, leaf: VecDeque::new(), read: 0 }
    }

    pub(super) fn peek(&mut self, tree: &FrozenTree<'_>) -> Result<Option<&RowAt>> {
        if self.leaf.is_empty() {
            self.leaf = tree.rows(&self.directory, self.read)?.into();
            self.read += self.leaf.len() as u64;
        }
        Ok(self.leaf.front())
    }

    pub(super) fn next(&mut self, tree: &FrozenTree<'_>) -> Result<Option<RowAt>> {
        self.peek(tree)?;
        Ok(self.leaf.pop_front())
    }

    /// Returns the next row before this name; `None`: before the end.
    pub(super) fn next_before(&mut self, tree: &FrozenTree<'_>, name: Option<&[u8]>) -> Result<Option<RowAt>> {
        let is_before = |row: &RowAt| name.is_none_or(|name| row.entry.name.as_slice() < name);
        match self.peek(tree)?.is_some_and(is_before) {
            true => self.next(tree),
            false => Ok(None),
        }
    }

    /// Returns the row of this name. Those before it must have been read.
    pub(super) fn next_at(&mut self, tree: &FrozenTree<'_>, name: &[u8]) -> Result<Option<RowAt>> {
        match self.peek(tree)?.is_some_and(|row| row.entry.name == name) {
            true => self.next(tree),
            false => Ok(None),
        }
    }
}
