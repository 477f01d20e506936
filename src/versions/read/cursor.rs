//! Finding rows of one directory: by name, by row, by the number of entries before it.

use std::sync::Arc;

use dedupfs_base::{EngineError, Result};
use dedupfs_content::NodeReader;
use dedupfs_store::recipe::Child;
use dedupfs_store::tree::{Below, Directory, Entry, Node, Part};
use dedupfs_store::{Fingerprint, StoreError};

/// An entry, and the number of entries of the directory before it, with all below them.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) entry: Entry,
    pub(super) entries_before: u64,
}

/// A node of the directory on the way down.
struct At {
    node: Arc<Node>,
    /// Number of entries before it, with all below them.
    entries_before: u64,
    /// Number of rows before it.
    rows_before: u64,
    /// All its names come behind this one.
    behind: Vec<u8>,
}

pub(super) struct Rows;

impl Rows {
    /// Returns the entry of a name.
    pub(super) fn at_name(nodes: &NodeReader, directory: &Directory, name: &[u8]) -> Result<Option<Row>> {
        let Some(leaf) = descend(nodes, directory, |_, part| part.last_key.as_slice() >= name)? else {
            return Ok(None);
        };
        Ok(rows_of(&leaf)?.find(|row| row.entry.name == name).map(own))
    }

    /// Returns the entry that is, or has below it, the entry with `entries` entries before it.
    pub(super) fn at_number(nodes: &NodeReader, directory: &Directory, entries: u64) -> Result<Row> {
        let holds = |before: &At, part: &Part| entries - before.entries_before < part.below.entries;
        let leaf = descend(nodes, directory, holds)?.ok_or(EngineError::NotFound)?;
        let row = rows_of(&leaf)?.take_while(|row| row.entries_before <= entries).last();
        row.map(own).ok_or(EngineError::NotFound)
    }

    /// Returns the nodes on the way to that entry, the uppermost node of the directory first.
    pub(super) fn way_to_number(nodes: &NodeReader, directory: &Directory, entries: u64) -> Result<Vec<Fingerprint>> {
        let mut way: Vec<Fingerprint> = directory.root.iter().map(|(_, child)| child.fingerprint).collect();
        let holds = |before: &At, part: &Part| entries - before.entries_before < part.below.entries;
        descend_by(nodes, directory, holds, &mut |part| way.push(part.child.fingerprint))?;
        Ok(way)
    }

    /// Returns the rows of one leaf from the row number `from` on.
    pub(super) fn from_row(nodes: &NodeReader, directory: &Directory, from: u64) -> Result<Vec<Row>> {
        let holds = |before: &At, part: &Part| from - before.rows_before < part.child.len_bytes;
        let Some(leaf) = descend(nodes, directory, holds)? else { return Ok(Vec::new()) };
        let skipped = usize::try_from(from.saturating_sub(leaf.rows_before)).unwrap_or(usize::MAX);
        let rows: Vec<Row> = rows_of(&leaf)?.skip(skipped).map(own).collect();
        // Else a listing would never end.
        if rows.is_empty() {
            return Err(damaged("as many rows as its parent says", "fewer"));
        }
        Ok(rows)
    }
}

/// A row that lies in its leaf.
struct RowOf<'a> {
    entry: &'a Entry,
    entries_before: u64,
}

fn own(row: RowOf<'_>) -> Row {
    Row { entry: row.entry.clone(), entries_before: row.entries_before }
}

fn rows_of(leaf: &At) -> Result<impl Iterator<Item = RowOf<'_>>> {
    let Node::Leaf(entries) = &*leaf.node else { return Err(damaged("a leaf of a directory", "another node")) };
    let mut before = leaf.entries_before;
    Ok(entries.iter().map(move |entry| {
        let entries_before = before;
        before = before.saturating_add(entry.sums().map_or(1, |sums| sums.entries));
        RowOf { entry, entries_before }
    }))
}

/// Goes down to a leaf, in each list through the first part that `holds`; `None` if none does.
fn descend(nodes: &NodeReader, directory: &Directory, holds: impl Fn(&At, &Part) -> bool) -> Result<Option<At>> {
    descend_by(nodes, directory, holds, &mut |_| {})
}

/// Goes down to a leaf as [`descend`] does, and shows the parts on the way.
fn descend_by(
    nodes: &NodeReader,
    directory: &Directory,
    holds: impl Fn(&At, &Part) -> bool,
    on_the_way: &mut dyn FnMut(&Part),
) -> Result<Option<At>> {
    let Some((level, child)) = directory.root else { return Ok(None) };
    let node = read(nodes, level, &child, directory.below, None)?;
    // In a larger directory that would take all its nodes.
    if let Node::Leaf(entries) = &*node
        && entries.iter().filter(|entry| entry.is_directory()).count() as u64 != directory.subdirectories
    {
        return Err(damaged("as many subdirectories as its entry says", "another number"));
    }
    let mut at = At { node, entries_before: 0, rows_before: 0, behind: Vec::new() };
    loop {
        let Node::List { level, parts } = &*at.node else { return ordered(at).map(Some) };
        let mut below = At { node: at.node.clone(), behind: at.behind.clone(), ..at };
        let mut chosen = None;
        for part in parts {
            if holds(&below, part) {
                chosen = Some(part);
                break;
            }
            below.entries_before = below.entries_before.saturating_add(part.below.entries);
            below.rows_before = below.rows_before.saturating_add(part.child.len_bytes);
            below.behind.clone_from(&part.last_key);
        }
        let Some(part) = chosen else { return Ok(None) };
        on_the_way(part);
        below.node = read(nodes, level.saturating_sub(1), &part.child, part.below, Some(&part.last_key))?;
        at = below;
    }
}

/// Checks that the names of a leaf come behind those of the part before it, or one would be found in neither.
fn ordered(leaf: At) -> Result<At> {
    match &*leaf.node {
        Node::Leaf(entries) if entries.first().is_none_or(|entry| entry.name <= leaf.behind) => {
            Err(damaged("ascending names", "a part that begins before the one before it ends"))
        }
        _ => Ok(leaf),
    }
}

/// Reads a node and checks that it is as its parent says.
pub(super) fn read(
    nodes: &NodeReader,
    level: u8,
    child: &Child,
    below: Below,
    last_key: Option<&[u8]>,
) -> Result<Arc<Node>> {
    let node = nodes.tree_node(level, child)?;
    if node.below() != Some(below) {
        return Err(damaged("the sums that its parent says", "others"));
    }
    if last_key.is_some_and(|key| node.last_key() != key) {
        return Err(damaged("the last name that its parent says", "another"));
    }
    Ok(node)
}

pub(super) fn damaged(expected: &str, found: &str) -> EngineError {
    StoreError::corrupt("directory of a version", expected, found).into()
}
