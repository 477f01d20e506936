//! Reading frozen trees: from a name, an inode number or a place in a listing to an entry.
//!
//! Each step reads the nodes of one directory on the way, mostly one or two, and checks that a node is as its parent
//! says: level, number of rows, last key, sums. So counts that lie are found before a number computed from them is
//! given to anyone.
//!
//! Cost: the depth of the tree; nodes come from the cache of decoded nodes.

mod chunks;
mod cursor;
pub(crate) mod difference;

use std::sync::Arc;

use dedupfs_base::{EngineError, Result};
use dedupfs_content::NodeReader;
use dedupfs_namespace::{FIRST_LINKED_PLACE, place_of, version_of};
use dedupfs_service::Ino;
use dedupfs_store::recipe::Root;
use dedupfs_store::tree::{Below, Content, Directory, Entry, Link, Node, Top};
use dedupfs_store::{Fingerprint, StoreError};

pub(crate) use chunks::for_each_reference;
use cursor::{Rows, read};

/// An entry that was found, with its inode number.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    /// Inode number.
    pub(crate) ino: Ino,
    /// The directory that holds it; of the uppermost entry: itself.
    pub(crate) directory: Ino,
    /// The entry.
    pub(crate) entry: Entry,
    /// Number of names, if it has several.
    pub(crate) names: u64,
}

/// An entry with its place in the walk, which the number of a file with several names does not tell.
#[derive(Clone, Debug)]
pub(crate) struct RowAt {
    /// Number of entries before it in a walk, the uppermost one included.
    pub(crate) place: u64,
    /// The entry.
    pub(crate) entry: Entry,
}

/// A frozen tree.
#[derive(Clone)]
pub(crate) struct FrozenTree<'a> {
    nodes: &'a NodeReader,
    version: Ino,
    top: Arc<Node>,
}

/// A directory of the tree, with the number of its first entry.
#[derive(Clone, Copy, Debug)]
struct Place {
    ino: Ino,
    directory: Directory,
}

impl<'a> FrozenTree<'a> {
    /// Opens the tree of a version.
    ///
    /// # Errors
    /// `Corrupt` if its top is damaged; I/O errors.
    pub(crate) fn open(nodes: &'a NodeReader, version: Ino, root: &Root) -> Result<Self> {
        let Root::Tree { level, child } = root else {
            return Err(StoreError::corrupt("version", "a frozen tree", "other content").into());
        };
        let top = nodes.tree_node(*level, child)?;
        let Node::Top(uppermost) = &*top else {
            return Err(StoreError::corrupt("version", "the top of a tree", "another node").into());
        };
        // Else a number of this version would be one of a file with several names, or of the next version. All sums
        // below are compared with this one.
        if uppermost.entry.sums().is_none_or(|sums| sums.entries > FIRST_LINKED_PLACE) {
            return Err(StoreError::corrupt("version", "fewer entries than inode numbers", "more").into());
        }
        Ok(Self { nodes, version: version_of(version), top })
    }

    fn top(&self) -> Result<&Top> {
        match &*self.top {
            Node::Top(top) => Ok(top),
            _ => Err(EngineError::Internal("a tree without a top")),
        }
    }

    /// The uppermost entry.
    pub(crate) fn uppermost(&self) -> Result<Found> {
        let entry = self.top()?.entry.clone();
        Ok(Found { ino: self.version, directory: self.version, entry, names: 1 })
    }

    /// Returns the entry of an inode number.
    ///
    /// # Errors
    /// `NotFound` if the tree has no such number; `Corrupt`, I/O errors.
    pub(crate) fn find(&self, ino: Ino) -> Result<Found> {
        let place = place_of(ino);
        if place >= FIRST_LINKED_PLACE {
            let number = place - FIRST_LINKED_PLACE;
            let link = self.link(number)?.ok_or(EngineError::NotFound)?;
            return match self.walk(&link.path) {
                Ok(found) if found.entry.link == Some(number) => Ok(found),
                Ok(_) | Err(EngineError::NotFound | EngineError::NotDirectory) => {
                    Err(corrupt_links("the file at its first path", "another entry or none"))
                }
                Err(error) => Err(error),
            };
        }
        let mut found = self.uppermost()?;
        while found.ino < ino {
            let Content::Directory(directory) = found.entry.content else { return Err(EngineError::NotFound) };
            let place = Place { ino: found.ino, directory };
            if ino - found.ino > directory.below.entries {
                return Err(EngineError::NotFound);
            }
            let row = Rows::at_number(self.nodes, &directory, ino - found.ino - 1)?;
            found = self.found(&place, row)?;
            // A file with several names has another number.
            if found.ino >= self.version + FIRST_LINKED_PLACE {
                return Err(EngineError::NotFound);
            }
        }
        Ok(found)
    }

    /// Returns the nodes that lead to a directory from the top's own node, which is not among them, to the leaf that holds
    /// its entry. None of the uppermost directory.
    ///
    /// # Errors
    /// As [`find`](Self::find).
    pub(crate) fn way_to(&self, directory: Ino) -> Result<Vec<Fingerprint>> {
        let (mut way, mut found) = (Vec::new(), self.uppermost()?);
        while found.ino < directory {
            let place = place(&found)?;
            let before = directory - found.ino - 1;
            way.extend(Rows::way_to_number(self.nodes, &place.directory, before)?);
            let row = Rows::at_number(self.nodes, &place.directory, before)?;
            found = self.found(&place, row)?;
        }
        Ok(way)
    }

    /// Returns the entry of a name in a directory.
    ///
    /// # Errors
    /// `NotFound`, `NotDirectory`, `Corrupt`, I/O errors.
    pub(crate) fn lookup(&self, directory: &Found, name: &[u8]) -> Result<Found> {
        let place = place(directory)?;
        match Rows::at_name(self.nodes, &place.directory, name)? {
            Some(row) => self.found(&place, row),
            None => Err(EngineError::NotFound),
        }
    }

    /// Returns at most `limit` entries of a directory from the row `from` on, in the order of names. Entries before
    /// damage are returned; the call that begins at the damage gets the error.
    ///
    /// # Errors
    /// `NotDirectory`, `Corrupt`, I/O errors.
    pub(crate) fn list(&self, directory: &Found, from: u64, limit: usize) -> Result<Vec<Found>> {
        let place = place(directory)?;
        let mut entries = Vec::new();
        while (entries.len() as u64) < limit as u64 && from + (entries.len() as u64) < place.directory.rows() {
            let rows = match Rows::from_row(self.nodes, &place.directory, from + entries.len() as u64) {
                Err(_) if !entries.is_empty() => return Ok(entries),
                rows => rows?,
            };
            for row in rows.into_iter().take(limit - entries.len()) {
                match self.found(&place, row) {
                    Err(_) if !entries.is_empty() => return Ok(entries),
                    found => entries.push(found?),
                }
            }
        }
        Ok(entries)
    }

    /// Returns the rows of one leaf of a directory from the row `from` on; none behind its end.
    ///
    /// # Errors
    /// `NotDirectory`, `Corrupt`, I/O errors.
    pub(crate) fn rows(&self, directory: &Found, from: u64) -> Result<Vec<RowAt>> {
        let place = place(directory)?;
        if from >= place.directory.rows() {
            return Ok(Vec::new());
        }
        let first = place_of(place.ino) + 1;
        let rows = Rows::from_row(self.nodes, &place.directory, from)?;
        Ok(rows.into_iter().map(|row| RowAt { place: first + row.entries_before, entry: row.entry }).collect())
    }

    /// Returns the subdirectory at a row.
    pub(crate) fn found_at(&self, directory: &Found, row: RowAt) -> Found {
        Found { ino: self.version + row.place, directory: directory.ino, entry: row.entry, names: 1 }
    }

    /// Returns the entry at a path from the top; of an empty path the uppermost one.
    ///
    /// # Errors
    /// As [`lookup`](Self::lookup).
    pub(crate) fn walk(&self, path: &[u8]) -> Result<Found> {
        let mut names = path.split(|&byte| byte == b'/').filter(|name| !name.is_empty());
        names.try_fold(self.uppermost()?, |found, name| self.lookup(&found, name))
    }

    fn found(&self, place: &Place, row: cursor::Row) -> Result<Found> {
        let (entry, before) = (row.entry, row.entries_before);
        let (ino, names) = match entry.link {
            None => (place.ino + 1 + before, 1),
            // A larger number would be one of the next version.
            Some(number) if number >= FIRST_LINKED_PLACE => {
                return Err(corrupt_links("the number of a link", number));
            }
            Some(number) => {
                let link = self.link(number)?.ok_or_else(|| corrupt_links("the link of an entry", "none"))?;
                (self.version + FIRST_LINKED_PLACE + number, link.names)
            }
        };
        Ok(Found { ino, directory: place.ino, entry, names })
    }

    /// Returns the link of this number.
    fn link(&self, number: u64) -> Result<Option<Link>> {
        let Some((level, child)) = self.top()?.links else { return Ok(None) };
        let key = number.to_be_bytes();
        let mut node = read(self.nodes, level, &child, Below::default(), None)?;
        let mut behind = Vec::new();
        loop {
            let part = match &*node {
                Node::Links(links) => {
                    if links.first().is_none_or(|link| link.number.to_be_bytes().as_slice() <= behind.as_slice()) {
                        return Err(corrupt_links(
                            "ascending numbers",
                            "a part that begins before the one before it ends",
                        ));
                    }
                    let at = links.binary_search_by_key(&number, |link| link.number);
                    return Ok(at.ok().and_then(|at| links.get(at)).cloned());
                }
                Node::List { level, parts } => {
                    let at = parts.partition_point(|part| part.last_key.as_slice() < key.as_slice());
                    let Some(part) = parts.get(at) else { return Ok(None) };
                    if let Some(before) = at.checked_sub(1).and_then(|before| parts.get(before)) {
                        behind.clone_from(&before.last_key);
                    }
                    (level.saturating_sub(1), part.clone())
                }
                _ => return Err(corrupt_links("links", "another node")),
            };
            node = read(self.nodes, part.0, &part.1.child, part.1.below, Some(&part.1.last_key))?;
        }
    }
}

fn corrupt_links(expected: &str, found: impl std::fmt::Display) -> EngineError {
    StoreError::corrupt("links of a version", expected, found).into()
}

fn place(found: &Found) -> Result<Place> {
    match found.entry.content {
        Content::Directory(directory) => Ok(Place { ino: found.ino, directory }),
        _ => Err(EngineError::NotDirectory),
    }
}

#[cfg(test)]
mod tests;
