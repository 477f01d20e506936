//! The nodes: leaf, list, leaf of links, top; their encoding, decoding and checks.

use super::entry::check_name;
use super::part::{child_of, decode_child, encode_child, reference};
use super::{
    Below, Content, Entry, LEAF_LEVEL, LINKS_LEVEL, LINKS_LEVEL_MAX, LIST_LEVEL_MAX, Link, Part, ROWS_MAX, TOP_LEVEL,
    TREE_NODE, check, corrupt,
};
use crate::codec::{ByteReader, ByteWriter, checksum};
use crate::error::{Result, StoreError};
use crate::id::ContainerId;
use crate::recipe::{Child, Reference, Root};
use crate::tree::Attributes;

const VERSION: u8 = 1;
const IDENTITY_TAG: &[u8] = b"dedupfs tree node v1\0";
const CHECKSUM_BYTES: usize = 8;

/// The top of a frozen tree.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Top {
    /// The uppermost directory or file; its name is empty.
    pub entry: Entry,
    /// Level and uppermost node of the links; `None` if each file has one name.
    pub links: Option<(u8, Child)>,
}

/// A tree node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Node {
    /// Entries of a directory.
    Leaf(Vec<Entry>),
    /// Parts of a directory, or of the links: nodes of the level below.
    List {
        /// Its level.
        level: u8,
        /// The parts.
        parts: Vec<Part>,
    },
    /// Files with several names.
    Links(Vec<Link>),
    /// The top.
    Top(Box<Top>),
}

impl Node {
    /// Its level.
    #[must_use]
    pub const fn level(&self) -> u8 {
        match self {
            Self::Leaf(_) => LEAF_LEVEL,
            Self::List { level, .. } => *level,
            Self::Links(_) => LINKS_LEVEL,
            Self::Top(_) => TOP_LEVEL,
        }
    }

    /// Number of entries of the directory, or of links, in it and below it in the same directory. A top has one.
    #[must_use]
    pub fn rows(&self) -> u64 {
        match self {
            Self::Leaf(entries) => entries.len() as u64,
            Self::List { parts, .. } => parts.iter().fold(0, |sum, part| sum.saturating_add(part.child.len_bytes)),
            Self::Links(links) => links.len() as u64,
            Self::Top(_) => 1,
        }
    }

    /// Sums over its entries and everything below them; `None` above the bound. Zeros for links.
    #[must_use]
    pub fn below(&self) -> Option<Below> {
        match self {
            Self::Leaf(entries) => entries.iter().try_fold(Below::default(), |sum, entry| sum.plus(entry.sums()?)),
            Self::List { parts, .. } => parts.iter().try_fold(Below::default(), |sum, part| sum.plus(part.below)),
            Self::Links(_) => Some(Below::default()),
            Self::Top(top) => top.entry.sums(),
        }
    }

    /// Its greatest key, as [`Part::last_key`] has it; empty for a top.
    #[must_use]
    pub fn last_key(&self) -> Vec<u8> {
        match self {
            Self::Leaf(entries) => entries.last().map(|entry| entry.name.clone()),
            Self::List { parts, .. } => parts.last().map(|part| part.last_key.clone()),
            Self::Links(links) => links.last().map(|link| link.number.to_be_bytes().to_vec()),
            Self::Top(_) => None,
        }
        .unwrap_or_default()
    }

    /// The stored chunks and nodes that it names, in order.
    #[must_use]
    pub fn references(&self) -> Vec<Reference> {
        match self {
            Self::Leaf(entries) => entries.iter().flat_map(Entry::references).collect(),
            Self::List { level, parts } => parts.iter().map(|part| reference(*level, part)).collect(),
            Self::Links(_) => Vec::new(),
            Self::Top(top) => {
                let links = top.links.map(|(level, child)| Reference::Node { level, child });
                top.entry.references().chain(links).collect()
            }
        }
    }

    /// Bytes of memory that the decoded node takes, approximately.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        let of_entry = |entry: &Entry| {
            let target = if let Content::Symlink(target) = &entry.content { target.len() } else { 0 };
            let attributes = if let Attributes::Inline(bytes) = &entry.attributes { bytes.len() } else { 0 };
            size_of::<Entry>() + entry.name.len() + target + attributes + 48
        };
        let bytes = match self {
            Self::Leaf(entries) => entries.iter().map(of_entry).sum(),
            Self::List { parts, .. } => parts.iter().map(|part| size_of::<Part>() + part.last_key.len() + 16).sum(),
            Self::Links(links) => links.iter().map(|link| size_of::<Link>() + link.path.len() + 16).sum(),
            Self::Top(top) => of_entry(&top.entry) + 64,
        };
        bytes as u64 + 64
    }

    /// The bytes that the node's fingerprint covers: a domain tag, the level, then the node without hints.
    pub fn identity_bytes(&self) -> Vec<u8> {
        let mut writer = ByteWriter::new();
        writer.bytes(IDENTITY_TAG);
        writer.u8(self.level());
        self.encode_body(&mut writer);
        writer.into_vec()
    }

    /// Checks the invariants in the module's head.
    ///
    /// # Errors
    /// `Corrupt` with the one that does not hold.
    pub fn check(&self) -> Result<()> {
        let check_rows = |rows: usize| check((1..=ROWS_MAX).contains(&rows), "1 to 4,096 rows", rows);
        match self {
            Self::Leaf(entries) => {
                check_rows(entries.len())?;
                entries.iter().try_for_each(|entry| check_name(&entry.name).and_then(|()| entry.check()))?;
                check_ascending(entries.iter().map(|entry| &entry.name))?;
            }
            Self::List { level, parts } => {
                check_rows(parts.len())?;
                let is_list = |level| (LEAF_LEVEL + 1..=LIST_LEVEL_MAX).contains(&level);
                let is_list = is_list(*level) || (LINKS_LEVEL + 1..=LINKS_LEVEL_MAX).contains(level);
                check(is_list, "the level of a list", level)?;
                parts.iter().try_for_each(|part| part.check(*level))?;
                check_ascending(parts.iter().map(|part| &part.last_key))?;
                check(self.rows() <= super::SUM_MAX, "rows below 2^63", self.rows())?;
            }
            Self::Links(links) => {
                check_rows(links.len())?;
                links.iter().try_for_each(Link::check)?;
                check_ascending(links.iter().map(|link| link.number))?;
            }
            Self::Top(top) => {
                check(top.entry.name.is_empty(), "a top without a name", top.entry.name.escape_ascii())?;
                top.entry.check()?;
                let linked = top.entry.sums().map_or(0, |sums| sums.linked);
                match &top.links {
                    None => check(linked == 0, "links of the entries with links", "none")?,
                    Some((level, child)) => {
                        check((LINKS_LEVEL..=LINKS_LEVEL_MAX).contains(level), "the level of links", level)?;
                        check(!child.is_zero(), "the fingerprint of links", "zeros")?;
                        check(
                            (1..=linked).contains(&child.len_bytes),
                            "at most a link for each entry",
                            child.len_bytes,
                        )?;
                    }
                }
            }
        }
        check(self.below().is_some(), "sums below 2^63", "more")
    }

    /// Encodes the node.
    /// Panics if the node breaks an invariant: no decoder would accept its bytes.
    pub fn encode(&self) -> Vec<u8> {
        let sound = self.check();
        assert!(sound.is_ok(), "encoding a tree node: {sound:?}");
        let mut writer = ByteWriter::new();
        writer.u8(VERSION);
        writer.u8(self.level());
        self.encode_body(&mut writer);
        let mut previous = 0_u64;
        for reference in self.references() {
            let hint = reference.child().hint.0;
            writer.varint_signed(hint.wrapping_sub(previous).cast_signed());
            previous = hint;
        }
        let own = checksum(writer.as_slice());
        writer.u64(own);
        writer.into_vec()
    }

    fn encode_body(&self, writer: &mut ByteWriter) {
        match self {
            Self::Leaf(entries) => {
                writer.varint(entries.len() as u64);
                entries.iter().for_each(|entry| entry.encode_into(writer));
            }
            Self::List { parts, .. } => {
                writer.varint(parts.len() as u64);
                parts.iter().for_each(|part| part.encode_into(writer));
            }
            Self::Links(links) => {
                writer.varint(links.len() as u64);
                links.iter().for_each(|link| link.encode_into(writer));
            }
            Self::Top(top) => {
                top.entry.encode_into(writer);
                match &top.links {
                    None => writer.u8(0),
                    Some((level, child)) => {
                        writer.u8(*level);
                        encode_child(child, writer);
                    }
                }
            }
        }
    }

    /// Decodes and fully checks the result of [`encode`](Self::encode).
    ///
    /// # Errors
    /// `Corrupt`; `Unsupported` for a newer version.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let body_bytes = bytes.len().checked_sub(CHECKSUM_BYTES).ok_or_else(|| corrupt("a checksum", bytes.len()))?;
        let (body, trailer) = bytes.split_at_checked(body_bytes).unwrap_or_default();
        StoreError::check_sum(TREE_NODE, "checksum", ByteReader::new(trailer, TREE_NODE).u64()?, checksum(body))?;
        let mut reader = ByteReader::new(body, TREE_NODE);
        let version = reader.u8()?;
        if version != VERSION {
            return Err(StoreError::newer(TREE_NODE, format!("version {version}")));
        }
        let mut node = Self::decode_body(&mut reader)?;
        let mut previous = 0_u64;
        for child in node.children_mut() {
            previous = previous.wrapping_add(reader.varint_signed()?.cast_unsigned());
            child.hint = ContainerId(previous);
        }
        reader.finish()?;
        node.check()?;
        Ok(node)
    }

    fn decode_body(reader: &mut ByteReader<'_>) -> Result<Self> {
        let level = reader.u8()?;
        if level == TOP_LEVEL {
            let entry = Entry::decode_from(reader)?;
            let links = match reader.u8()? {
                0 => None,
                level => Some((level, decode_child(reader)?)),
            };
            return Ok(Self::Top(Box::new(Top { entry, links })));
        }
        let rows = reader.varint()?;
        let rows = usize::try_from(rows).ok().filter(|rows| (1..=ROWS_MAX).contains(rows));
        // Each row takes bytes of the input: it bounds the allocation.
        let rows = rows.filter(|&rows| rows <= reader.remaining());
        let rows = rows.ok_or_else(|| reader.corrupt("1 to 4,096 rows", "another number"))?;
        Ok(match level {
            LEAF_LEVEL => Self::Leaf(decode_rows(rows, || Entry::decode_from(reader))?),
            LINKS_LEVEL => Self::Links(decode_rows(rows, || Link::decode_from(reader))?),
            _ => Self::List { level, parts: decode_rows(rows, || Part::decode_from(reader))? },
        })
    }

    /// The children with hints, in the order of [`references`](Self::references).
    pub(crate) fn children_mut(&mut self) -> Vec<&mut Child> {
        match self {
            Self::Leaf(entries) => entries.iter_mut().flat_map(children_of).collect(),
            Self::List { parts, .. } => parts.iter_mut().map(|part| &mut part.child).collect(),
            Self::Links(_) => Vec::new(),
            Self::Top(top) => {
                let Top { entry, links } = &mut **top;
                children_of(entry).chain(links.as_mut().map(|(_, child)| child)).collect()
            }
        }
    }

    /// The same node without hints.
    #[must_use]
    pub fn without_hints(&self) -> Self {
        let mut node = self.clone();
        node.children_mut().into_iter().for_each(|child| child.hint = ContainerId::NONE);
        node
    }
}

fn decode_rows<T>(rows: usize, mut decode: impl FnMut() -> Result<T>) -> Result<Vec<T>> {
    let mut decoded = Vec::with_capacity(rows);
    for _ in 0..rows {
        decoded.push(decode()?);
    }
    Ok(decoded)
}

fn check_ascending<K: Ord>(mut keys: impl Iterator<Item = K>) -> Result<()> {
    let Some(mut last) = keys.next() else { return Ok(()) };
    for key in keys {
        check(last < key, "ascending names", "equal or descending ones")?;
        last = key;
    }
    Ok(())
}

fn children_of(entry: &mut Entry) -> impl Iterator<Item = &mut Child> {
    fn of_root(root: &mut Root) -> Option<&mut Child> {
        child_of(root)
    }
    let Entry { attributes, content, .. } = entry;
    let attributes = if let Attributes::Stored(root) = attributes { of_root(root) } else { None };
    let content = match content {
        Content::File { root, .. } => of_root(root),
        Content::Directory(directory) => directory.root.as_mut().map(|(_, child)| child),
        _ => None,
    };
    attributes.into_iter().chain(content)
}
