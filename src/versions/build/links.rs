//! Files with several names: their numbers, and the table of their first names.
//!
//! The number of a file is a hash of its first path, so that it is the same in each version. It also decides the inode
//! number: two files with one number would be taken for one. So a number that is taken is counted up.

use std::collections::HashMap;

use dedupfs_base::Result;
use dedupfs_namespace::FIRST_LINKED_PLACE;
use dedupfs_store::codec::checksum;
use dedupfs_store::tree::{LINKS_LEVEL, LINKS_LEVEL_MAX, Link, Node};

use super::cut::CutRules;
use super::levels::{Levels, Uppermost};
use super::stored::Nodes;

/// Bytes of memory for the table. Further files get one name each: their content is shared all the same.
const LINKS_BYTES_MAX: usize = 64 << 20;
/// Longest first path of a file with several names. A file with a longer one gets several files, too.
const PATH_BYTES_MAX: usize = 1 << 20;
/// Memory of an entry besides its path, in both maps.
const LINK_BYTES: usize = 128;

/// Distinguishes files while a tree is built: device and inode number of the source, and a state of the file. An inode
/// that changed between two of its names is two files.
pub(crate) type FileId = (u64, u64, u64);

/// The files with several names met so far.
#[derive(Default)]
pub(super) struct Links {
    numbers: HashMap<FileId, u64>,
    links: HashMap<u64, Link>,
    bytes: usize,
}

impl Links {
    /// Returns the number of a file for one more name of it; `None` if the table is full, or its first path too long.
    pub(super) fn number(&mut self, file: FileId, path: impl FnOnce() -> Vec<u8>) -> Option<u64> {
        if let Some(number) = self.numbers.get(&file) {
            if let Some(link) = self.links.get_mut(number) {
                link.names += 1;
            }
            return Some(*number);
        }
        let path = path();
        if path.len() > PATH_BYTES_MAX || self.bytes + path.len() + LINK_BYTES > LINKS_BYTES_MAX {
            return None;
        }
        self.bytes += path.len() + LINK_BYTES;
        let mut number = checksum(&path) % FIRST_LINKED_PLACE;
        while number == 0 || self.links.contains_key(&number) {
            number = (number + 1) % FIRST_LINKED_PLACE;
        }
        self.numbers.insert(file, number);
        self.links.insert(number, Link { number, names: 1, path });
        Some(number)
    }

    /// Number of files in the table.
    pub(super) fn len(&self) -> usize {
        self.links.len()
    }

    /// Stores the table.
    pub(super) fn store(&self, nodes: &Nodes<'_>, rules: &CutRules) -> Result<Option<Uppermost>> {
        let mut sorted: Vec<&Link> = self.links.values().collect();
        sorted.sort_unstable_by_key(|link| link.number);
        let mut levels = Levels::new(LINKS_LEVEL, LINKS_LEVEL_MAX, rules.list);
        let mut rows = Vec::new();
        for link in sorted {
            let key = link.number.to_be_bytes();
            rows.push(link.clone());
            if rules.leaf.ends_behind(0, rows.len(), &key) {
                levels.add(nodes, nodes.store(Node::Links(std::mem::take(&mut rows)))?)?;
            }
        }
        if !rows.is_empty() {
            levels.add(nodes, nodes.store(Node::Links(rows))?)?;
        }
        levels.finish(nodes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_that_of_the_first_path_and_never_of_two_files() {
        let mut links = Links::default();
        let first = links.number((1, 10, 0), || b"a/b".to_vec()).expect("has room");
        assert_eq!(links.number((1, 10, 0), || unreachable!("it is known")), Some(first));
        // Another file whose first path has the same hash.
        let second = links.number((1, 10, 1), || b"a/b".to_vec()).expect("has room");
        assert!(second != first && second < FIRST_LINKED_PLACE);
        assert_eq!((links.links[&first].names, links.links[&second].names), (2, 1));
        assert_eq!(Links::default().number((9, 9, 9), || b"a/b".to_vec()), Some(first), "the same in each version");
    }

    #[test]
    fn a_full_table_refuses_more_files() {
        let mut links = Links { bytes: LINKS_BYTES_MAX - LINK_BYTES - 2, ..Links::default() };
        assert!(links.number((1, 1, 0), || b"abc".to_vec()).is_none());
        assert!(links.number((1, 2, 0), || b"ab".to_vec()).is_some());
        assert!(links.number((1, 3, 0), || b"a".to_vec()).is_none());
    }
}
