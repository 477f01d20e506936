//! The difference of two frozen directories, found in the time of the difference.
//!
//! Equal directories, and equal parts of large ones, have equal fingerprints and are passed over. Leaves are cut where
//! content says, so behind a change the parts of both sides soon begin at the same names again. No content is read.

use std::cell::Cell;
use std::cmp::Ordering;

use dedupfs_base::{EngineError, Result, shown};
use dedupfs_content::NodeReader;
use dedupfs_store::recipe::{Child, Root};
use dedupfs_store::tree::{Attributes, Below, Content, Directory, Entry, Node};
use serde::{Deserialize, Serialize};

use super::cursor::{self, Rows, damaged};

/// Bytes of paths in a page, about: the reply of a daemon has a bound.
const PATH_BYTES_AT_ONCE: usize = 8 << 20;
/// Changes returned at once.
pub(crate) const CHANGES_AT_ONCE: usize = 10_000;

/// What became of a name.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChangeKind {
    /// It is new, with everything below it.
    Added,
    /// It is gone, with everything below it.
    Removed,
    /// The content of a file, the target of a symbolic link or the number of a device.
    Content,
    /// It is of another kind, such as a directory in place of a file.
    Kind,
    /// Only attributes: mode, owner, flags, extended attributes, or the time of change of anything but a directory.
    Attributes,
    /// The directory cannot be read in one of the two.
    Unreadable,
}

/// A difference of two frozen directories.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Change {
    /// What became of it.
    pub change: ChangeKind,
    /// Path below the compared directories; empty: themselves. Bytes that are no UTF-8 are escaped.
    pub path: String,
    /// Whether it is a directory, in the later of the two that have it.
    pub is_directory: bool,
    /// Entries of which this is said: those below an added or removed directory count.
    pub entries: u64,
    /// Length before, in bytes: of a file, or of all files below a directory; 0 if there was none.
    pub bytes_before: u64,
    /// Length after.
    pub bytes_after: u64,
}

/// A page of a difference, in the order of a walk.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct DifferencePage {
    /// About 10,000 changes at most.
    pub changes: Vec<Change>,
    /// The place behind which the next page begins; `None` if this is the last one.
    pub next: Option<Vec<u8>>,
    /// Tree nodes that were opened for it: the more, the more differs.
    pub opened_nodes: u64,
}

/// Reads nodes and counts them.
struct Reader<'a> {
    nodes: &'a NodeReader,
    opened: Cell<u64>,
}

/// The entries of a directory that are still to be compared: nodes are opened as late as possible.
struct Side<'a> {
    reader: &'a Reader<'a>,
    /// The next one is the last.
    items: Vec<Item>,
    /// The last name that was passed.
    passed: Vec<u8>,
}

enum Item {
    Node { level: u8, child: Child, below: Below, last_key: Option<Vec<u8>> },
    Entry(Entry),
}

impl<'a> Side<'a> {
    /// The entries with names behind `behind`.
    fn new(reader: &'a Reader<'a>, directory: &Directory, behind: &[u8]) -> Result<Self> {
        let mut side = Self { reader, items: Vec::new(), passed: Vec::new() };
        if let Some((level, child)) = directory.root {
            side.items.push(Item::Node { level, child, below: directory.below, last_key: None });
        }
        while !behind.is_empty() {
            match side.items.last() {
                None => break,
                Some(Item::Entry(entry)) if entry.name.as_slice() > behind => break,
                Some(Item::Node { last_key, .. }) if last_key.as_ref().is_none_or(|key| key.as_slice() > behind) => {
                    side.open()?;
                }
                Some(_) => drop(side.pass()),
            }
        }
        Ok(side)
    }

    /// Takes the next item away.
    fn pass(&mut self) -> Option<Entry> {
        match self.items.pop()? {
            Item::Entry(entry) => {
                self.passed.clone_from(&entry.name);
                Some(entry)
            }
            Item::Node { last_key, .. } => {
                self.passed = last_key.unwrap_or_default();
                None
            }
        }
    }

    /// Puts what is in the next node in its place.
    fn open(&mut self) -> Result<()> {
        let Some(Item::Node { level, child, below, last_key }) = self.items.pop() else { return Ok(()) };
        self.reader.opened.set(self.reader.opened.get() + 1);
        match &*cursor::read(self.reader.nodes, level, &child, below, last_key.as_deref())? {
            Node::Leaf(entries) => {
                // Else the comparison would miss names.
                if entries.first().is_none_or(|entry| entry.name <= self.passed) {
                    return Err(damaged("ascending names", "a part that begins before the one before it ends"));
                }
                self.items.extend(entries.iter().rev().cloned().map(Item::Entry));
            }
            Node::List { level, parts } => self.items.extend(parts.iter().rev().map(|part| Item::Node {
                level: level.saturating_sub(1),
                child: part.child,
                below: part.below,
                last_key: Some(part.last_key.clone()),
            })),
            _ => return Err(damaged("a leaf or list of a directory", "another node")),
        }
        Ok(())
    }
}

/// Two directories of one path.
struct Pair<'a> {
    directories: [Directory; 2],
    /// Opened when it is compared, and closed while a directory below it is.
    sides: Option<[Side<'a>; 2]>,
    /// The last name that was compared.
    behind: Vec<u8>,
}

impl<'a> Pair<'a> {
    fn new(directories: [Directory; 2], behind: Vec<u8>) -> Self {
        Self { directories, sides: None, behind }
    }

    /// Returns the next name at which the two may differ, with its entries before and after.
    fn next(&mut self, reader: &'a Reader<'a>) -> Result<Option<[Option<Entry>; 2]>> {
        let [before, after] = match &mut self.sides {
            Some(sides) => sides,
            closed => {
                let [before, after] = &self.directories;
                let opened = [Side::new(reader, before, &self.behind)?, Side::new(reader, after, &self.behind)?];
                closed.insert(opened)
            }
        };
        let order = loop {
            break match (before.items.last(), after.items.last()) {
                (None, None) => return Ok(None),
                (Some(Item::Node { level, child, .. }), Some(Item::Node { level: other_level, child: other, .. })) => {
                    let order = level.cmp(other_level);
                    if order.is_eq() && child.fingerprint == other.fingerprint {
                        before.pass();
                        after.pass();
                        continue;
                    }
                    if order.is_ge() {
                        before.open()?;
                    }
                    if order.is_le() {
                        after.open()?;
                    }
                    continue;
                }
                (Some(Item::Node { .. }), _) => {
                    before.open()?;
                    continue;
                }
                (_, Some(Item::Node { .. })) => {
                    after.open()?;
                    continue;
                }
                (Some(Item::Entry(one)), Some(Item::Entry(other))) => one.name.cmp(&other.name),
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
            };
        };
        let one = if order.is_le() { before.pass() } else { None };
        let other = if order.is_ge() { after.pass() } else { None };
        if let Some(entry) = one.as_ref().or(other.as_ref()) {
            self.behind.clone_from(&entry.name);
        }
        Ok(Some([one, other]))
    }
}

/// Compares two directories, from the place behind `resume` on: the `next` of the page before; empty for the first page.
/// Returns about `limit` changes.
/// Memory: a page, and some hundred bytes for each directory on the way down.
///
/// # Errors
/// `Invalid`: `resume` is no place of these directories; the work was ended.
pub(crate) fn difference(
    nodes: &NodeReader,
    [before, after]: [&Entry; 2],
    resume: &[u8],
    limit: usize,
    is_ended: &dyn Fn() -> bool,
) -> Result<DifferencePage> {
    let (Content::Directory(one), Content::Directory(other)) = (&before.content, &after.content) else {
        return Err(EngineError::NotDirectory);
    };
    let reader = Reader { nodes, opened: Cell::new(0) };
    let mut page = DifferencePage::default();
    let (mut told, mut path_bytes) = (0, 0);
    let mut stack = resumed(nodes, [*one, *other], resume)?;
    if resume.is_empty() {
        page.changes.extend(
            (!have_same_attributes(before, after))
                .then(|| change(ChangeKind::Attributes, &stack, &[Some(before), Some(after)])),
        );
        if have_same_content(before, after) {
            return Ok(page);
        }
    }
    while let Some(pair) = stack.last_mut() {
        if is_ended() {
            return Err(EngineError::Ended("the comparison"));
        }
        path_bytes += page.changes.iter().skip(told).map(|change| change.path.len()).sum::<usize>();
        told = page.changes.len();
        if page.changes.len() >= limit || path_bytes >= PATH_BYTES_AT_ONCE {
            let names: Vec<&[u8]> = stack.iter().map(|pair| pair.behind.as_slice()).collect();
            page.next = Some(names.join(&b'/'));
            break;
        }
        let entries = match pair.next(&reader) {
            Ok(Some(entries)) => entries,
            Ok(None) => {
                stack.pop();
                continue;
            }
            Err(error) => {
                stack.pop();
                let unreadable = change(ChangeKind::Unreadable, &stack, &[None, None]);
                tracing::warn!(path = unreadable.path, %error, "a directory of a version cannot be compared");
                page.changes.push(Change { is_directory: true, entries: 1, ..unreadable });
                continue;
            }
        };
        let [before, after] = [entries[0].as_ref(), entries[1].as_ref()];
        let (kind, below) = compare(before, after);
        page.changes.extend(kind.map(|kind| change(kind, &stack, &[before, after])));
        if let (Some(directories), Some(pair)) = (below, stack.last_mut()) {
            pair.sides = None;
            stack.push(Pair::new(directories, Vec::new()));
        }
    }
    page.opened_nodes = reader.opened.get();
    Ok(page)
}

/// Returns the pairs of directories on the way to the place.
fn resumed<'a>(nodes: &NodeReader, directories: [Directory; 2], resume: &[u8]) -> Result<Vec<Pair<'a>>> {
    let mut stack: Vec<Pair<'a>> = Vec::new();
    let mut directories = directories;
    for name in resume.split(|&byte| byte == b'/') {
        if let Some(above) = stack.last() {
            for directory in &mut directories {
                *directory = match Rows::at_name(nodes, directory, &above.behind)?.map(|row| row.entry.content) {
                    Some(Content::Directory(below)) => below,
                    _ => return Err(EngineError::Invalid("the place where the comparison is to go on is not there")),
                };
            }
        }
        stack.push(Pair::new(directories, name.to_vec()));
    }
    Ok(stack)
}

/// Returns what became of a name, and the directories below it that are still to be compared.
fn compare(before: Option<&Entry>, after: Option<&Entry>) -> (Option<ChangeKind>, Option<[Directory; 2]>) {
    let (Some(before), Some(after)) = (before, after) else {
        return (Some(if before.is_none() { ChangeKind::Added } else { ChangeKind::Removed }), None);
    };
    let attributes = (!have_same_attributes(before, after)).then_some(ChangeKind::Attributes);
    match (&before.content, &after.content) {
        _ if have_same_content(before, after) => (attributes, None),
        (Content::Directory(one), Content::Directory(other)) => (attributes, Some([*one, *other])),
        (one, other) if std::mem::discriminant(one) != std::mem::discriminant(other) => (Some(ChangeKind::Kind), None),
        _ => (Some(ChangeKind::Content), None),
    }
}

/// Whether two roots name the same content. Where it was last seen does not matter.
fn are_same(one: &Root, other: &Root) -> bool {
    let identity = |root: &Root| root.reference().map(|reference| reference.fingerprint());
    std::mem::discriminant(one) == std::mem::discriminant(other)
        && one.len_bytes() == other.len_bytes()
        && identity(one) == identity(other)
}

/// Whether two entries have the same content, or the same names below them. No content is read.
fn have_same_content(one: &Entry, other: &Entry) -> bool {
    match (&one.content, &other.content) {
        (Content::File { root: one, .. }, Content::File { root: other, .. }) => are_same(one, other),
        (Content::Directory(one), Content::Directory(other)) => {
            let identity = |directory: &Directory| directory.root.map(|(level, child)| (level, child.fingerprint));
            identity(one) == identity(other)
        }
        (one, other) => one == other,
    }
}

fn have_same_attributes(one: &Entry, other: &Entry) -> bool {
    let values = |entry: &Entry| (entry.mode, entry.uid, entry.gid, entry.flags, entry.link.is_some());
    // A directory's time says only that names in it changed.
    let time = |entry: &Entry| (!entry.is_directory()).then_some((entry.mtime_secs, entry.mtime_nanos));
    let are_same_sets = match (&one.attributes, &other.attributes) {
        (Attributes::Stored(one), Attributes::Stored(other)) => are_same(one, other),
        (one, other) => one == other,
    };
    values(one) == values(other) && time(one) == time(other) && are_same_sets
}

fn change(kind: ChangeKind, stack: &[Pair<'_>], entries: &[Option<&Entry>; 2]) -> Change {
    let sums = entries.map(|entry| entry.and_then(Entry::sums).unwrap_or_default());
    let last = entries[1].or(entries[0]);
    let names: Vec<&[u8]> = stack.iter().map(|pair| pair.behind.as_slice()).filter(|name| !name.is_empty()).collect();
    Change {
        change: kind,
        path: shown(&names.join(&b'/')),
        is_directory: last.is_some_and(Entry::is_directory),
        entries: match kind {
            ChangeKind::Added | ChangeKind::Removed => sums[0].entries.max(sums[1].entries),
            _ => 1,
        },
        bytes_before: sums[0].bytes,
        bytes_after: sums[1].bytes,
    }
}
