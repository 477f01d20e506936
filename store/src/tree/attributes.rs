//! Extended attributes and access lists of an entry, as one set.

use super::{SUM_MAX, check};
use crate::codec::{ByteReader, ByteWriter};
use crate::error::Result;
use crate::recipe::Root;

/// Longest set that lies in the entry itself. Longer ones are stored as content is.
pub const ATTRIBUTES_INLINE_BYTES_MAX: usize = 256;
/// Longest name of an attribute, in bytes.
const NAME_BYTES_MAX: usize = 255;

/// The set of an entry.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Attributes {
    /// The encoded set; empty if there are none.
    Inline(Vec<u8>),
    /// The encoded set is the content that this root names.
    Stored(Root),
}

impl Default for Attributes {
    fn default() -> Self {
        Self::Inline(Vec::new())
    }
}

impl Attributes {
    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        matches!(self, Self::Inline(bytes) if bytes.is_empty())
    }

    pub(super) fn check(&self) -> Result<()> {
        match self {
            Self::Inline(bytes) if bytes.is_empty() => Ok(()),
            Self::Inline(bytes) => {
                check(bytes.len() <= ATTRIBUTES_INLINE_BYTES_MAX, "at most 256 bytes of attributes", bytes.len())?;
                decode_attributes(bytes).map(drop)
            }
            Self::Stored(root) => {
                root.check()?;
                check(matches!(root, Root::Chunk(_) | Root::Node { .. }), "stored attributes", "no content")?;
                // One place for each set: equal entries have equal fingerprints.
                let len_bytes = root.len_bytes();
                check(len_bytes > ATTRIBUTES_INLINE_BYTES_MAX as u64, "more than 256 bytes of attributes", len_bytes)
            }
        }
    }
}

/// Name and value of an attribute.
pub type Attribute = (Vec<u8>, Vec<u8>);

fn is_name(name: &[u8]) -> bool {
    (1..=NAME_BYTES_MAX).contains(&name.len()) && !name.contains(&0)
}

/// Encodes a set sorted by names. No attributes give no bytes.
/// Panics if the names do not ascend, or one is no name: no decoder would accept the bytes.
#[must_use]
pub fn encode_attributes(attributes: &[Attribute]) -> Vec<u8> {
    let names = || attributes.iter().map(|(name, _)| name);
    assert!(names().zip(names().skip(1)).all(|(one, next)| one < next), "names of attributes ascend");
    assert!(names().all(|name| is_name(name)), "names of attributes have 1 to 255 bytes without NUL");
    let mut writer = ByteWriter::new();
    for (name, value) in attributes {
        writer.u8(name.len() as u8); // at most 255 bytes, as Linux allows
        writer.bytes(name);
        writer.varint(value.len() as u64);
        writer.bytes(value);
    }
    writer.into_vec()
}

/// Decodes a set.
///
/// # Errors
/// `Corrupt`.
pub fn decode_attributes(bytes: &[u8]) -> Result<Vec<Attribute>> {
    let mut reader = ByteReader::new(bytes, "extended attributes of a tree node");
    let mut attributes: Vec<Attribute> = Vec::new();
    while reader.remaining() > 0 {
        let name_bytes = usize::from(reader.u8()?);
        let name = reader.bytes(name_bytes)?.to_vec();
        check(is_name(&name), "the name of an attribute", name.escape_ascii())?;
        check(attributes.last().is_none_or(|(last, _)| *last < name), "ascending names", name.escape_ascii())?;
        let value_bytes = reader.varint()?;
        check(value_bytes <= SUM_MAX, "the length of a value", value_bytes)?;
        let value_bytes = usize::try_from(value_bytes).unwrap_or(usize::MAX);
        attributes.push((name, reader.bytes(value_bytes)?.to_vec()));
    }
    Ok(attributes)
}
