//! Recipes: the way to rebuild a file from chunks (two or more levels, as in Batch section 3).
//!
//! A recipe is a content-defined tree. A [`Node`] of level 0, a *segment*, lists chunks; a node of level n lists nodes
//! of level n - 1. Nodes are fingerprinted, deduplicated and counted like chunks and lie in recipe containers. A file's
//! inode holds the [`Root`]: nothing, a run of zeros, one chunk, or one node. A child with the fingerprint
//! [`Fingerprint::ZERO`] is a run of zeros of any length, at any level; it is not stored.
//!
//! *Names versus places*: a node's fingerprint covers [`Node::identity_bytes`], that is its level and its children's
//! fingerprints and lengths, but never their hints. So the same content has the same recipe wherever its chunks lie. A
//! hint may be wrong: it is checked against the container itself.
//!
//! Encoding is column by column (zstd then finds similar neighbours): fingerprints, lengths, and each hint as the
//! difference to the one before. Nodes and roots end with a checksum of their own, because a decoded node is used
//! before any of its children is read. Byte maps: `docs/format.md`.
//!
//! Invariants, checked when decoding and asserted when encoding: a node has 1 to [`NODE_CHILDREN_MAX`] children; no
//! child is empty; lengths add up to at most [`FILE_BYTES_MAX`]; levels are at most [`LEVEL_MAX`].

#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic))]

use crate::codec::{ByteReader, ByteWriter, checksum};
use crate::device::FILE_BYTES_MAX;
use crate::error::{Result, StoreError};
use crate::fingerprint::{FINGERPRINT_BYTES, Fingerprint};
use crate::id::{ContainerId, ContainerKind};

/// Most children of a node. The chunker of recipes cuts nodes of far fewer (hundreds).
pub(crate) const NODE_CHILDREN_MAX: usize = 65_536;

/// Highest level of a node. Even with two children per node, this is far more than any file needs.
pub(crate) const LEVEL_MAX: u8 = 8;

/// Levels of tree nodes (`tree`), so that a level tells recipe nodes and tree nodes apart.
pub(crate) const TREE_LEVELS: std::ops::RangeInclusive<u8> = 16..=31;

const NODE: &str = "recipe node";
const NODE_VERSION: u8 = 1;
const NODE_HAS_ZERO_RUNS: u8 = 1;
const IDENTITY_TAG: &[u8] = b"dedupfs recipe node v1\0";

/// A reference from a recipe to a chunk, a node, or a run of zeros.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Child {
    /// Fingerprint of the chunk or node; [`Fingerprint::ZERO`] for a run of zeros.
    pub fingerprint: Fingerprint,
    /// Number of file bytes that the child stands for. Of a tree node: the number of its entries.
    pub len_bytes: u64,
    /// The container where it was last seen; [`ContainerId::NONE`] if unknown, and for runs of zeros.
    pub hint: ContainerId,
}

impl Child {
    pub(crate) const fn zero(len_bytes: u64) -> Self {
        Self { fingerprint: Fingerprint::ZERO, len_bytes, hint: ContainerId::NONE }
    }

    pub(crate) fn is_zero(&self) -> bool {
        self.fingerprint.is_zero()
    }
}

/// A stored chunk or node that a root or a node names. Runs of zeros are none.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Reference {
    /// A chunk; its hint names a data container.
    Chunk(Child),
    /// A recipe node or tree node; its hint names a recipe container.
    Node {
        /// Level of the node.
        level: u8,
        /// The node.
        child: Child,
    },
}

impl Reference {
    /// The fingerprint of the chunk or node.
    pub const fn fingerprint(&self) -> Fingerprint {
        self.child().fingerprint
    }

    /// The chunk or node.
    pub const fn child(&self) -> &Child {
        match self {
            Self::Chunk(child) | Self::Node { child, .. } => child,
        }
    }

    /// The kind of container that has it.
    pub const fn kind(&self) -> ContainerKind {
        match self {
            Self::Chunk(_) => ContainerKind::Data,
            Self::Node { .. } => ContainerKind::Recipe,
        }
    }
}

/// A node of a recipe tree.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Node {
    /// 0 if the children are chunks, else one more than the children's level.
    pub level: u8,
    /// The children in file order.
    pub children: Vec<Child>,
}

impl Node {
    /// Number of file bytes that the node stands for; an error above [`FILE_BYTES_MAX`].
    pub fn len_bytes(&self) -> Result<u64> {
        let mut sum = 0_u64;
        for child in &self.children {
            check_len(NODE, child.len_bytes)?;
            sum = sum.saturating_add(child.len_bytes);
        }
        if sum > FILE_BYTES_MAX {
            return Err(StoreError::corrupt(NODE, format!("lengths adding up to at most {FILE_BYTES_MAX}"), "more"));
        }
        Ok(sum)
    }

    /// The bytes that the node's fingerprint covers: a domain tag, the level, then each child's fingerprint and length.
    pub fn identity_bytes(&self) -> Vec<u8> {
        let len = IDENTITY_TAG.len() + 1 + self.children.len() * (FINGERPRINT_BYTES + 8);
        let mut writer = ByteWriter::with_capacity(len);
        writer.bytes(IDENTITY_TAG);
        writer.u8(self.level);
        for child in &self.children {
            writer.fingerprint(&child.fingerprint);
            writer.u64(child.len_bytes);
        }
        writer.into_vec()
    }

    /// Checks the invariants in the module's head.
    fn check(&self) -> Result<()> {
        check_level(NODE, self.level)?;
        check_child_count(self.children.len())?;
        self.len_bytes().map(drop)
    }

    /// The stored chunks and nodes among the children, in order.
    pub fn references(&self) -> impl Iterator<Item = Reference> {
        references(self.level, &self.children)
    }

    /// Encodes the node. The hint of a run of zeros is dropped.
    /// Panics if the node breaks an invariant: no decoder would accept its bytes.
    pub fn encode(&self) -> Vec<u8> {
        let sound = self.check();
        assert!(sound.is_ok(), "encoding a recipe node: {sound:?}");
        let has_zero_runs = self.children.iter().any(Child::is_zero);
        let mut writer = ByteWriter::with_capacity(16 + self.children.len() * (FINGERPRINT_BYTES + 4));
        writer.u8(NODE_VERSION);
        writer.u8(self.level);
        writer.u8(if has_zero_runs { NODE_HAS_ZERO_RUNS } else { 0 });
        writer.varint(self.children.len() as u64);
        if has_zero_runs {
            for eight in self.children.chunks(8) {
                writer.u8(eight.iter().rev().fold(0, |bits, child| bits << 1 | u8::from(child.is_zero())));
            }
        }
        let stored = || self.children.iter().filter(|child| !child.is_zero());
        stored().for_each(|child| writer.fingerprint(&child.fingerprint));
        self.children.iter().for_each(|child| writer.varint(child.len_bytes));
        let mut previous = 0_u64;
        for child in stored() {
            writer.varint_signed(child.hint.0.wrapping_sub(previous).cast_signed());
            previous = child.hint.0;
        }
        let own = checksum(writer.as_slice());
        writer.u64(own);
        writer.into_vec()
    }

    /// Decodes and fully checks the result of [`encode`](Self::encode).
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let mut reader = ByteReader::new(bytes, NODE);
        let version = reader.u8()?;
        let body_bytes =
            reader.remaining().checked_sub(7).ok_or_else(|| reader.corrupt("a checksum", "too few bytes"))?;
        let (body, trailer) = bytes.split_at_checked(body_bytes).unwrap_or_default();
        StoreError::check_sum(NODE, "checksum", ByteReader::new(trailer, NODE).u64()?, checksum(body))?;
        if version != NODE_VERSION {
            return Err(StoreError::newer(NODE, format!("version {version}")));
        }
        let mut reader = ByteReader::new(body, NODE);
        reader.u8()?;
        let node = decode_columns(&mut reader)?;
        reader.finish()?;
        node.check()?;
        Ok(node)
    }
}

/// The stored chunks and nodes among the children of a node of `level`, in order.
pub fn references(level: u8, children: &[Child]) -> impl Iterator<Item = Reference> {
    let below = level.checked_sub(1);
    children.iter().filter(|child| !child.is_zero()).map(move |&child| match below {
        None => Reference::Chunk(child),
        Some(level) => Reference::Node { level, child },
    })
}

/// Decodes the part of a node between its version and its checksum.
fn decode_columns(reader: &mut ByteReader<'_>) -> Result<Node> {
    let level = reader.u8()?;
    let has_zero_runs = match reader.u8()? {
        0 => false,
        NODE_HAS_ZERO_RUNS => true,
        flags => return Err(reader.corrupt("node flags 0 or 1", flags)),
    };
    let count = reader.varint()?;
    let count = usize::try_from(count).map_err(|_| reader.corrupt(format!("{NODE_CHILDREN_MAX} children"), count))?;
    check_child_count(count)?;
    let bitmap = if has_zero_runs { reader.bytes(count.div_ceil(8))? } else { &[] };
    let zero_bit = |position: usize| bitmap.get(position / 8).is_some_and(|byte| byte >> (position % 8) & 1 == 1);
    let zero_runs = (0..bitmap.len() * 8).filter(|&position| zero_bit(position)).count();
    if (count..bitmap.len() * 8).any(zero_bit) || (has_zero_runs && zero_runs == 0) {
        return Err(reader.corrupt("a bitmap of the children", "bits beyond them, or none at all"));
    }
    // At most 65,536 children, and their fingerprints must be present: the input bounds the allocation.
    let mut fingerprints = ByteReader::new(reader.bytes((count - zero_runs) * FINGERPRINT_BYTES)?, NODE);
    let mut children = Vec::with_capacity(count);
    for position in 0..count {
        let mut child = Child::zero(reader.varint()?);
        if !zero_bit(position) {
            child.fingerprint = fingerprints.fingerprint()?;
            if child.is_zero() {
                return Err(reader.corrupt("the fingerprint of a stored child", "zeros"));
            }
        }
        children.push(child);
    }
    let mut previous = 0_u64;
    for child in children.iter_mut().filter(|child| !child.is_zero()) {
        previous = previous.wrapping_add(reader.varint_signed()?.cast_unsigned());
        child.hint = ContainerId(previous);
    }
    Ok(Node { level, children })
}

fn check_level(what: &str, level: u8) -> Result<()> {
    if level > LEVEL_MAX {
        return Err(StoreError::corrupt(what, format!("level at most {LEVEL_MAX}"), level));
    }
    Ok(())
}

fn check_child_count(count: usize) -> Result<()> {
    if count == 0 || count > NODE_CHILDREN_MAX {
        return Err(StoreError::corrupt(NODE, format!("1 to {NODE_CHILDREN_MAX} children"), count));
    }
    Ok(())
}

fn check_len(what: &str, len_bytes: u64) -> Result<()> {
    if len_bytes == 0 || len_bytes > FILE_BYTES_MAX {
        return Err(StoreError::corrupt(what, format!("a length of 1 to {FILE_BYTES_MAX} bytes"), len_bytes));
    }
    Ok(())
}

/// The content of a file, as its inode holds it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Root {
    /// No bytes.
    #[default]
    Empty,
    /// Only zeros.
    Zero {
        /// Number of zeros.
        len_bytes: u64,
    },
    /// One chunk.
    Chunk(Child),
    /// A recipe tree.
    Node {
        /// Level of the root node.
        level: u8,
        /// The root node; its hint names a recipe container.
        child: Child,
    },
    /// A tree node. Its inode or directory entry is a frozen tree and no file.
    Tree {
        /// Level of the tree node.
        level: u8,
        /// The tree node; its length is its number of entries.
        child: Child,
    },
}

impl Root {
    const EMPTY: u8 = 0;
    const ZERO: u8 = 1;
    const CHUNK: u8 = 2;
    const NODE: u8 = 3;
    const TREE: u8 = 4;

    /// The stored chunk or node that the root names.
    pub const fn reference(&self) -> Option<Reference> {
        match *self {
            Self::Empty | Self::Zero { .. } => None,
            Self::Chunk(child) => Some(Reference::Chunk(child)),
            Self::Node { level, child } | Self::Tree { level, child } => Some(Reference::Node { level, child }),
        }
    }

    /// Length of the file in bytes; 0 for a frozen tree.
    pub const fn len_bytes(&self) -> u64 {
        match self {
            Self::Empty | Self::Tree { .. } => 0,
            Self::Zero { len_bytes } => *len_bytes,
            Self::Chunk(child) | Self::Node { child, .. } => child.len_bytes,
        }
    }

    /// Checks the invariants: no empty child, no chunk or node with the fingerprint of zeros, levels in bounds.
    pub fn check(&self) -> Result<()> {
        const WHAT: &str = "file root";
        match self {
            Self::Empty => Ok(()),
            Self::Zero { len_bytes } => check_len(WHAT, *len_bytes),
            Self::Chunk(child) | Self::Node { child, .. } | Self::Tree { child, .. } if child.is_zero() => {
                Err(StoreError::corrupt(WHAT, "the fingerprint of a chunk or node", "zeros"))
            }
            Self::Chunk(child) => check_len(WHAT, child.len_bytes),
            Self::Node { level, child } => {
                check_level(WHAT, *level)?;
                check_len(WHAT, child.len_bytes)
            }
            Self::Tree { level, .. } if !TREE_LEVELS.contains(level) => {
                Err(StoreError::corrupt(WHAT, "the level of a tree node, 16 to 31", level))
            }
            Self::Tree { child, .. } => check_len(WHAT, child.len_bytes),
        }
    }

    /// Appends the root's bytes to `writer`.
    /// Panics if the root breaks an invariant: no decoder would accept its bytes.
    pub fn encode_into(&self, writer: &mut ByteWriter) {
        let sound = self.check();
        assert!(sound.is_ok(), "encoding a file root: {sound:?}");
        let start = writer.as_slice().len();
        let write_child = |writer: &mut ByteWriter, child: &Child| {
            writer.fingerprint(&child.fingerprint);
            writer.u64(child.len_bytes);
            writer.u64(child.hint.0);
        };
        match self {
            Self::Empty => writer.u8(Self::EMPTY),
            Self::Zero { len_bytes } => {
                writer.u8(Self::ZERO);
                writer.u64(*len_bytes);
            }
            Self::Chunk(child) => {
                writer.u8(Self::CHUNK);
                write_child(writer, child);
            }
            Self::Node { level, child } | Self::Tree { level, child } => {
                writer.u8(if matches!(self, Self::Node { .. }) { Self::NODE } else { Self::TREE });
                writer.u8(*level);
                write_child(writer, child);
            }
        }
        let own = root_check(writer.as_slice().get(start..).unwrap_or_default());
        writer.u32(own);
    }

    /// Reads a root; other data may follow it.
    pub fn decode_from(reader: &mut ByteReader<'_>) -> Result<Self> {
        let start = reader.position();
        let read_child = |reader: &mut ByteReader<'_>| -> Result<Child> {
            let (fingerprint, len_bytes, hint) = (reader.fingerprint()?, reader.u64()?, reader.u64()?);
            Ok(Child { fingerprint, len_bytes, hint: ContainerId(hint) })
        };
        let root = match reader.u8()? {
            Self::EMPTY => Self::Empty,
            Self::ZERO => Self::Zero { len_bytes: reader.u64()? },
            Self::CHUNK => Self::Chunk(read_child(reader)?),
            Self::NODE => Self::Node { level: reader.u8()?, child: read_child(reader)? },
            Self::TREE => Self::Tree { level: reader.u8()?, child: read_child(reader)? },
            tag => return Err(reader.corrupt("a file root (tag 0 to 4)", tag)),
        };
        let found = root_check(reader.since(start));
        let expected = reader.u32()?;
        if expected != found {
            return Err(reader.corrupt(format!("file root checksum {expected:#010x}"), format!("{found:#010x}")));
        }
        root.check()?;
        Ok(root)
    }
}

/// The low half of the checksum: a root is small and lies in an inode, where four bytes matter.
fn root_check(bytes: &[u8]) -> u32 {
    (checksum(bytes) & u64::from(u32::MAX)) as u32
}

#[cfg(test)]
mod tests;
