//! A part of a list: a child with the sums over it.

use super::entry::check_name;
use super::{LINKS_LEVEL, SUM_MAX, check};
use crate::codec::{ByteReader, ByteWriter};
use crate::error::Result;
use crate::id::ContainerId;
use crate::recipe::{Child, Reference, Root};

/// Sums over entries and everything below them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct Below {
    /// Number of entries.
    pub entries: u64,
    /// Sum of the lengths of files.
    pub bytes: u64,
    /// Number of entries of files with several names.
    pub linked: u64,
}

impl Below {
    /// The sums over both; `None` above [`SUM_MAX`].
    #[must_use]
    pub fn plus(self, other: Self) -> Option<Self> {
        let sum = |one: u64, other: u64| one.checked_add(other).filter(|&sum| sum <= SUM_MAX);
        Some(Self {
            entries: sum(self.entries, other.entries)?,
            bytes: sum(self.bytes, other.bytes)?,
            linked: sum(self.linked, other.linked)?,
        })
    }

    pub(super) fn check(self) -> Result<()> {
        check([self.entries, self.bytes, self.linked].iter().all(|&sum| sum <= SUM_MAX), "sums below 2^63", "more")?;
        // A reader takes one from the other.
        check(self.linked <= self.entries, "at most as many entries with links as entries", self.linked)
    }

    pub(super) fn encode_into(self, writer: &mut ByteWriter) {
        [self.entries, self.bytes, self.linked].into_iter().for_each(|sum| writer.varint(sum));
    }

    pub(super) fn decode_from(reader: &mut ByteReader<'_>) -> Result<Self> {
        Ok(Self { entries: reader.varint()?, bytes: reader.varint()?, linked: reader.varint()? })
    }
}

/// A child of a list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Part {
    /// The node; its length is the number of rows in it: entries of this directory, or links.
    pub child: Child,
    /// Greatest key in it: the last name, or the number of the last link, big-endian.
    pub last_key: Vec<u8>,
    /// Sums over its entries; zeros for links.
    pub below: Below,
}

impl Part {
    pub(super) fn check(&self, level: u8) -> Result<()> {
        let rows = self.child.len_bytes;
        check(!self.child.is_zero(), "the fingerprint of a part", "zeros")?;
        check((1..=SUM_MAX).contains(&rows), "a part of at least one row", rows)?;
        self.below.check()?;
        if level > LINKS_LEVEL {
            let number = self.last_key.as_slice().try_into().map(u64::from_be_bytes);
            let is_number = number.is_ok_and(|number| (1..=SUM_MAX).contains(&number));
            check(is_number, "the number of a link", self.last_key.escape_ascii())?;
            return check(self.below == Below::default(), "no sums over links", self.below.entries);
        }
        check_name(&self.last_key)?;
        check(self.below.entries >= rows, "at least as many entries as rows", self.below.entries)
    }

    pub(super) fn encode_into(&self, writer: &mut ByteWriter) {
        encode_child(&self.child, writer);
        writer.u8(self.last_key.len() as u8); // at most 255, checked before
        writer.bytes(&self.last_key);
        self.below.encode_into(writer);
    }

    pub(super) fn decode_from(reader: &mut ByteReader<'_>) -> Result<Self> {
        let child = decode_child(reader)?;
        let key_bytes = usize::from(reader.u8()?);
        Ok(Self { child, last_key: reader.bytes(key_bytes)?.to_vec(), below: Below::decode_from(reader)? })
    }
}

/// Writes a child without its hint.
pub(super) fn encode_child(child: &Child, writer: &mut ByteWriter) {
    writer.fingerprint(&child.fingerprint);
    writer.varint(child.len_bytes);
}

pub(super) fn decode_child(reader: &mut ByteReader<'_>) -> Result<Child> {
    let (fingerprint, len_bytes) = (reader.fingerprint()?, reader.varint()?);
    Ok(Child { fingerprint, len_bytes, hint: ContainerId::NONE })
}

/// Writes a root without its hint.
pub(super) fn encode_root(root: &Root, writer: &mut ByteWriter) {
    match root {
        Root::Empty => writer.u8(0),
        Root::Zero { len_bytes } => {
            writer.u8(1);
            writer.varint(*len_bytes);
        }
        Root::Chunk(child) => {
            writer.u8(2);
            encode_child(child, writer);
        }
        Root::Node { level, child } | Root::Tree { level, child } => {
            writer.u8(if matches!(root, Root::Node { .. }) { 3 } else { 4 });
            writer.u8(*level);
            encode_child(child, writer);
        }
    }
}

pub(super) fn decode_root(reader: &mut ByteReader<'_>) -> Result<Root> {
    Ok(match reader.u8()? {
        0 => Root::Empty,
        1 => Root::Zero { len_bytes: reader.varint()? },
        2 => Root::Chunk(decode_child(reader)?),
        3 => Root::Node { level: reader.u8()?, child: decode_child(reader)? },
        4 => Root::Tree { level: reader.u8()?, child: decode_child(reader)? },
        tag => return Err(reader.corrupt("a root of 0 to 4", tag)),
    })
}

/// The child that a root names, for its hint.
pub(super) fn child_of(root: &mut Root) -> Option<&mut Child> {
    match root {
        Root::Empty | Root::Zero { .. } => None,
        Root::Chunk(child) | Root::Node { child, .. } | Root::Tree { child, .. } => Some(child),
    }
}

/// The reference to a part of a list of `level`.
pub(super) fn reference(level: u8, part: &Part) -> Reference {
    Reference::Node { level: level.saturating_sub(1), child: part.child }
}
