//! Finds the files that need lost content: all their names, and the lost byte ranges.
//!
//! 1. *Nodes*: every recipe node with references is read once, in the order of its containers. A segment that names a
//!    lost chunk is affected. Then, level by level, so is a list that names an affected or lost node.
//! 2. *Inodes*: those whose root is lost or affected.
//! 3. *Names*: one walk over all entries gives the names of these inodes, and the directories that lead up to the root.
//!    Within versions, the names are those of affected tree nodes (`frozen`).
//! 4. *Bytes*: down from the roots through affected nodes, for the first [`RANGED_FILES_MAX`] files.
//!
//! Names and inodes are read at one moment each: a file that is renamed in between may be missing, or appear with its
//! old name.
//!
//! Memory: 40 bytes for each lost fingerprint, 48 for each node (read in order), 32 for each affected node, the
//! affected names, and some 100 bytes for each directory.

mod frozen;
#[cfg(test)]
mod frozen_tests;

use std::collections::{BTreeMap, HashMap, HashSet};

use dedupfs_base::{Result, shown};
use dedupfs_content::{AnyView, Indexes, NodeReader};
use dedupfs_index::Index;
use dedupfs_namespace::{Inode, Namespace, is_frozen};
use dedupfs_service::{FileKind, Ino, ROOT_INO};
use dedupfs_store::recipe::{Child, Root};
use dedupfs_store::{ContainerId, Fingerprint};
use serde::{Deserialize, Serialize};

use crate::progress::Progress;

/// Live files that need lost content, with their roots.
type FoundFiles = HashMap<Ino, (Root, AffectedFile)>;

/// Largest number of names that are kept; all files are counted.
pub(crate) const NAMES_MAX: usize = 1_000_000;
/// Number of files whose lost ranges are reported.
pub(crate) const RANGED_FILES_MAX: usize = 10_000;
/// Number of ranges reported for one file; all lost bytes are counted.
pub(crate) const RANGES_MAX: usize = 16;
/// Number of lost chunks and nodes that are traced. Further ones are found after these are healed.
pub(crate) const LOST_MAX: usize = 4_000_000;
/// Largest number of directories followed above a name.
const DEPTH_MAX: usize = 4096;
/// Longest reported path in bytes, the kernel's limit for one path. Of a longer path only the last names are reported.
const PATH_BYTES_MAX: usize = 4096;
const LEFT_OUT: &[u8] = b"(...)";

/// A file that needs lost content.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct AffectedFile {
    /// Its number.
    pub ino: u64,
    /// All its names, from the root of the pool; bytes that are no UTF-8 are escaped. Empty: it was unlinked while open.
    pub paths: Vec<String>,
    /// Lost ranges as offset and length, ascending; at most [`RANGES_MAX`].
    pub ranges: Vec<(u64, u64)>,
    /// Number of lost bytes; 0 if they were not counted.
    pub lost_bytes: u64,
    /// Of a directory in a version: number of entries in it and below it that are lost; `u64::MAX` if all are.
    #[serde(default)]
    pub lost_entries: u64,
}

/// All files that need lost content.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct AffectedFiles {
    /// The files in order of their first name, with at most [`NAMES_MAX`] names together.
    pub files: Vec<AffectedFile>,
    /// Number of all affected files.
    pub file_count: u64,
}

/// The fingerprints of lost content.
#[derive(Clone, Default, Debug)]
pub(crate) struct Lost {
    pub chunks: HashSet<Fingerprint>,
    /// Recipe nodes.
    pub nodes: HashSet<Fingerprint>,
}

impl Lost {
    /// Returns the content that the indexes call lost and files need, at most [`LOST_MAX`] of each kind.
    pub(crate) fn of(indexes: &Indexes) -> Result<Self> {
        let of = |index: &Index| -> Result<HashSet<Fingerprint>> {
            let mut lost = HashSet::new();
            index.for_each_lost(&mut |fingerprint, cell| {
                if cell.references > 0 && lost.len() < LOST_MAX {
                    lost.insert(fingerprint);
                }
                Ok(())
            })?;
            Ok(lost)
        };
        Ok(Self { chunks: of(&indexes.chunks)?, nodes: of(&indexes.nodes)? })
    }

    /// Whether nothing is lost.
    pub(crate) fn is_empty(&self) -> bool {
        self.chunks.is_empty() && self.nodes.is_empty()
    }
}

/// The parts of a pool that the search reads. Counts must be settled before.
pub(crate) struct AffectedFinder<'a> {
    /// Inodes and names.
    pub namespace: &'a Namespace,
    /// All nodes.
    pub recipe_index: &'a Index,
    pub nodes: &'a NodeReader,
    /// Receives the progress.
    pub progress: &'a dyn Progress,
}

/// Nodes that are not fully usable: lost ones, unreadable ones, and those above them or above lost chunks.
struct Affected<'l> {
    lost: &'l Lost,
    /// Nodes that are lost, or were found unreadable during the search.
    unreadable: HashSet<Fingerprint>,
    nodes: HashSet<Fingerprint>,
}

impl Affected<'_> {
    fn child(&self, level: u8, fingerprint: &Fingerprint) -> bool {
        match level {
            0 => self.lost.chunks.contains(fingerprint),
            _ => self.node(fingerprint),
        }
    }

    fn node(&self, fingerprint: &Fingerprint) -> bool {
        self.nodes.contains(fingerprint) || self.unreadable.contains(fingerprint)
    }
}

impl AffectedFinder<'_> {
    /// Finds the files that need lost content.
    ///
    /// # Errors
    /// The index or the namespace cannot be read. Unreadable nodes count as lost.
    pub(crate) fn find(&self, lost: &Lost) -> Result<AffectedFiles> {
        if lost.is_empty() {
            return Ok(AffectedFiles::default());
        }
        let mut affected = Affected { lost, unreadable: lost.nodes.clone(), nodes: HashSet::new() };
        self.find_nodes(&mut affected)?;
        let (mut files, versions) = self.find_inodes(&affected)?;
        let mut file_count = files.len() as u64;
        let (directories, names) = self.find_names(&mut files)?;
        let mut files: Vec<(Root, AffectedFile)> = files.into_values().collect();
        let mut trees = frozen::Trees::new(self.nodes, &affected, NAMES_MAX - names);
        for version in versions {
            let (found, count) = trees.find(&version);
            file_count = file_count.saturating_add(count);
            files.extend(found.into_iter().map(|found| {
                let shown_from_root = |inner: &Vec<u8>| shown(&path(&directories, version.ino, inner));
                let paths = found.paths.iter().map(shown_from_root).collect();
                let (ino, lost_entries) = (found.ino, found.lost_entries);
                (found.root, AffectedFile { ino, paths, lost_entries, ..AffectedFile::default() })
            }));
        }
        for (_, file) in &mut files {
            file.paths.sort_unstable();
        }
        files.sort_by(|(_, one), (_, other)| (&one.paths, one.ino).cmp(&(&other.paths, other.ino)));
        for (root, file) in files.iter_mut().take(RANGED_FILES_MAX) {
            self.find_ranges(root, &affected, file);
        }
        Ok(AffectedFiles { files: files.into_iter().map(|(_, file)| file).collect(), file_count })
    }

    fn find_nodes(&self, affected: &mut Affected<'_>) -> Result<()> {
        let mut all: Vec<(ContainerId, Fingerprint)> = Vec::new();
        self.recipe_index.for_each(&mut |fingerprint, cell| {
            if cell.references > 0 && !cell.location.is_lost() {
                all.push((cell.location.container(), fingerprint));
            }
            Ok(())
        })?;
        all.sort_unstable();
        self.progress.start("looking for recipes with lost content", all.len() as u64);
        let mut lists: BTreeMap<u8, Vec<(ContainerId, Fingerprint)>> = BTreeMap::new();
        for (container, fingerprint) in all {
            self.progress.advance(1);
            match self.nodes.node_of(&fingerprint, container) {
                Ok(AnyView::Recipe(view)) if view.level == 0 => {
                    if view.children().iter().any(|child| affected.child(0, &child.fingerprint)) {
                        affected.nodes.insert(fingerprint);
                    }
                }
                Ok(AnyView::Recipe(view)) => lists.entry(view.level).or_default().push((container, fingerprint)),
                // Judged from the versions down.
                Ok(AnyView::Tree(_)) => {}
                Err(error) => {
                    tracing::warn!(%fingerprint, %error, "a recipe node cannot be read");
                    affected.unreadable.insert(fingerprint);
                }
            }
        }
        self.progress.finish();
        // Ascending, so that lower levels are decided first.
        for (level, lists) in lists {
            for (container, fingerprint) in lists {
                let is_affected = match self.nodes.node_of(&fingerprint, container) {
                    Ok(view) => view.references().iter().any(|child| affected.child(level, &child.fingerprint())),
                    Err(_) => true,
                };
                if is_affected {
                    affected.nodes.insert(fingerprint);
                }
            }
        }
        Ok(())
    }

    /// Finds the live files, and returns all versions.
    fn find_inodes(&self, affected: &Affected<'_>) -> Result<(FoundFiles, Vec<Inode>)> {
        let mut files = HashMap::new();
        let mut versions = Vec::new();
        self.namespace.for_each_inode(&mut |inode| {
            let needs = match &inode.root {
                Root::Empty | Root::Zero { .. } => false,
                Root::Chunk(child) => affected.lost.chunks.contains(&child.fingerprint),
                Root::Node { child, .. } => affected.node(&child.fingerprint),
                Root::Tree { .. } => {
                    versions.push(inode.clone());
                    false
                }
            };
            if needs {
                let file = AffectedFile { ino: inode.ino, ..AffectedFile::default() };
                files.insert(inode.ino, (inode.root, file));
            }
            Ok(())
        })?;
        versions.sort_unstable_by_key(|version: &Inode| version.ino);
        Ok((files, versions))
    }

    /// Finds the names of the files. Returns the directories and versions with their names, and the number of names found.
    fn find_names(&self, files: &mut FoundFiles) -> Result<(Directories, usize)> {
        let mut directories = Directories::new();
        let mut names: Vec<(Ino, Ino, Box<[u8]>)> = Vec::new();
        self.namespace.for_each_entry(&mut |directory, name, ino, kind| {
            if kind == FileKind::Directory || is_frozen(ino) {
                directories.insert(ino, (directory, name.into()));
            } else if files.contains_key(&ino) && names.len() < NAMES_MAX {
                names.push((ino, directory, name.into()));
            }
            Ok(())
        })?;
        let count = names.len();
        for (ino, directory, name) in names {
            if let Some((_, file)) = files.get_mut(&ino) {
                file.paths.push(shown(&path(&directories, directory, &name)));
            }
        }
        Ok((directories, count))
    }

    fn find_ranges(&self, root: &Root, affected: &Affected<'_>, file: &mut AffectedFile) {
        match root {
            Root::Empty | Root::Zero { .. } | Root::Tree { .. } => {}
            Root::Chunk(child) => add_range(file, 0, child.len_bytes),
            Root::Node { level, child } => self.descend(*level, child, 0, affected, file),
        }
    }

    fn descend(&self, level: u8, child: &Child, offset: u64, affected: &Affected<'_>, file: &mut AffectedFile) {
        if affected.unreadable.contains(&child.fingerprint) {
            return add_range(file, offset, child.len_bytes);
        }
        if !affected.nodes.contains(&child.fingerprint) {
            return;
        }
        let Ok(view) = self.nodes.node(level, child) else { return add_range(file, offset, child.len_bytes) };
        let mut at = offset;
        for grandchild in view.children() {
            match level.checked_sub(1) {
                None if affected.child(0, &grandchild.fingerprint) => add_range(file, at, grandchild.len_bytes),
                Some(below) => self.descend(below, grandchild, at, affected, file),
                None => {}
            }
            at = at.saturating_add(grandchild.len_bytes);
        }
    }
}

fn add_range(file: &mut AffectedFile, offset: u64, len_bytes: u64) {
    file.lost_bytes = file.lost_bytes.saturating_add(len_bytes);
    if let Some((last, last_len)) = file.ranges.last_mut()
        && last.saturating_add(*last_len) == offset
    {
        *last_len += len_bytes;
    } else if file.ranges.len() < RANGES_MAX {
        file.ranges.push((offset, len_bytes));
    }
}

/// The directory and name of each directory and version.
type Directories = HashMap<Ino, (Ino, Box<[u8]>)>;

/// Returns the path to a name, which may be a path itself, or empty.
fn path(directories: &Directories, directory: Ino, name: &[u8]) -> Vec<u8> {
    let parts = if name.is_empty() { Vec::new() } else { vec![name] };
    let (mut parts, mut at, mut bytes) = (parts, directory, name.len());
    while at != ROOT_INO {
        // The tree is very deep, or directories contain each other.
        if parts.len() >= DEPTH_MAX || bytes >= PATH_BYTES_MAX {
            parts.push(LEFT_OUT);
            break;
        }
        let Some((parent, name)) = directories.get(&at) else {
            parts.push(b"(unreachable)");
            break;
        };
        parts.push(name);
        bytes += 1 + name.len();
        at = *parent;
    }
    parts.reverse();
    parts.join(&b'/')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_join_and_are_bounded_while_bytes_are_counted() {
        let mut file = AffectedFile::default();
        add_range(&mut file, 0, 10);
        add_range(&mut file, 10, 5);
        assert_eq!(file.ranges, [(0, 15)]);
        (1..40).for_each(|number| add_range(&mut file, number * 100, 1));
        assert_eq!((file.ranges.len(), file.lost_bytes), (RANGES_MAX, 15 + 39));
    }

    #[test]
    fn paths_lead_from_the_root() {
        let directories = HashMap::from([(5, (ROOT_INO, b"a".as_slice().into())), (6, (5, b"b".as_slice().into()))]);
        assert_eq!(path(&directories, 6, b"file"), b"a/b/file");
        assert_eq!(path(&directories, ROOT_INO, b"file"), b"file");
        assert_eq!(path(&directories, 9, b"file"), b"(unreachable)/file");
        // A directory in itself.
        let long = vec![b'x'; 250];
        let circle = HashMap::from([(5, (6, long.as_slice().into())), (6, (5, b"b".as_slice().into()))]);
        let shown_path = path(&circle, 5, b"file");
        assert!(shown_path.starts_with(LEFT_OUT) && shown_path.ends_with(b"/file"));
        assert!(shown_path.len() < PATH_BYTES_MAX + 2 * 256, "{} bytes", shown_path.len());
    }
}
