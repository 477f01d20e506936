//! An entry of a directory: a name with everything that stat, the attributes and the content of its inode show.
//!
//! Inode numbers and the times of access and change are not part of it: they would differ in each version.

use super::part::{decode_child, decode_root, encode_child, encode_root};
use super::{ATTRIBUTES_INLINE_BYTES_MAX, Attributes, Below, LEAF_LEVEL, LIST_LEVEL_MAX, SUM_MAX, check};
use crate::codec::{ByteReader, ByteWriter};
use crate::error::Result;
use crate::recipe::{Child, Reference, Root};

/// Longest name, in bytes.
pub const NAME_BYTES_MAX: usize = 255;
/// Longest target of a symbolic link, in bytes.
pub const SYMLINK_BYTES_MAX: usize = 4095;
const NANOS: u32 = 1_000_000_000;

// Bits of the byte behind the name; the lowest three are the kind.
const HAS_FLAGS: u8 = 1 << 3;
const HAS_INLINE_ATTRIBUTES: u8 = 1 << 4;
const HAS_STORED_ATTRIBUTES: u8 = 1 << 5;
const HAS_LINK: u8 = 1 << 6;
const KIND: u8 = 7;

/// A frozen directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Directory {
    /// Level and uppermost node; `None` if the directory is empty. The node's length is the number of entries.
    pub root: Option<(u8, Child)>,
    /// Number of entries that are directories.
    pub subdirectories: u64,
    /// Sums over all entries in it and below it.
    pub below: Below,
}

impl Directory {
    /// Number of entries in the directory itself.
    #[must_use]
    pub fn rows(&self) -> u64 {
        self.root.map_or(0, |(_, child)| child.len_bytes)
    }
}

/// The kind of an entry, and its content.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Content {
    /// A regular file.
    File {
        /// The content, as an inode has it.
        root: Root,
        /// Bytes of it that are no holes.
        data_bytes: u64,
    },
    /// A directory.
    Directory(Directory),
    /// A symbolic link with its target.
    Symlink(Vec<u8>),
    /// A character device with its number.
    CharDevice(u32),
    /// A block device with its number.
    BlockDevice(u32),
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
}

/// An entry.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// Its name; empty in the top of a tree only.
    pub name: Vec<u8>,
    /// Permission bits (0o7777).
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Last change of content: seconds since 1970.
    pub mtime_secs: i64,
    /// Nanoseconds behind these seconds.
    pub mtime_nanos: u32,
    /// Flags of chattr(1), as inodes of the namespace have them.
    pub flags: u32,
    /// Extended attributes and access lists.
    pub attributes: Attributes,
    /// Number of the file in the links, if it has several names.
    pub link: Option<u64>,
    /// Kind and content.
    pub content: Content,
}

impl Entry {
    /// The stored attributes, and the content or the directory's nodes, as far as there are any.
    pub fn references(&self) -> impl Iterator<Item = Reference> {
        let attributes = if let Attributes::Stored(root) = &self.attributes { root.reference() } else { None };
        let content = match &self.content {
            Content::File { root, .. } => root.reference(),
            Content::Directory(directory) => directory.root.map(|(level, child)| Reference::Node { level, child }),
            _ => None,
        };
        attributes.into_iter().chain(content)
    }

    /// Sums over the entry itself and everything below it; `None` above [`SUM_MAX`].
    #[must_use]
    pub fn sums(&self) -> Option<Below> {
        let own = Below { entries: 1, bytes: 0, linked: u64::from(self.link.is_some()) };
        match &self.content {
            Content::File { root, .. } => Some(Below { bytes: root.len_bytes(), ..own }),
            Content::Directory(directory) => own.plus(directory.below),
            _ => Some(own),
        }
    }

    /// Whether it is a directory.
    #[must_use]
    pub fn is_directory(&self) -> bool {
        matches!(self.content, Content::Directory(_))
    }

    /// Checks everything but the name.
    pub(super) fn check(&self) -> Result<()> {
        check(self.mode <= 0o7777, "a mode of at most 7777", self.mode)?;
        check(self.mtime_nanos < NANOS, "less than 10^9 nanoseconds", self.mtime_nanos)?;
        self.attributes.check()?;
        if let Some(link) = self.link {
            check((1..=SUM_MAX).contains(&link), "the number of a link", link)?;
        }
        match &self.content {
            Content::File { root, data_bytes } => {
                root.check()?;
                check(!matches!(root, Root::Tree { .. }), "the content of a file", "a tree")?;
                check(*data_bytes <= root.len_bytes(), "at most as many data bytes as bytes", data_bytes)
            }
            Content::Directory(directory) => {
                check(self.link.is_none(), "a directory with one name", "several")?;
                directory.below.check()?;
                let (rows, below) = (directory.rows(), directory.below);
                check(directory.subdirectories <= rows, "at most as many directories as entries", rows)?;
                let Some((level, child)) = directory.root else {
                    return check(below == Below::default(), "no sums over an empty directory", below.entries);
                };
                check((LEAF_LEVEL..=LIST_LEVEL_MAX).contains(&level), "the level of a directory", level)?;
                check(!child.is_zero(), "the fingerprint of a directory", "zeros")?;
                check((1..=below.entries).contains(&rows), "at least as many entries as rows", rows)
            }
            Content::Symlink(target) => {
                let is_target = (1..=SYMLINK_BYTES_MAX).contains(&target.len()) && !target.contains(&0);
                check(is_target, "the target of a symbolic link", target.len())
            }
            _ => Ok(()),
        }
    }

    const fn kind(&self) -> u8 {
        match self.content {
            Content::File { .. } => 1,
            Content::Directory(_) => 2,
            Content::Symlink(_) => 3,
            Content::CharDevice(_) => 4,
            Content::BlockDevice(_) => 5,
            Content::Fifo => 6,
            Content::Socket => 7,
        }
    }

    /// Writes the entry without hints.
    pub(super) fn encode_into(&self, writer: &mut ByteWriter) {
        writer.u8(self.name.len() as u8); // at most 255, checked before
        writer.bytes(&self.name);
        let has_attributes = match &self.attributes {
            Attributes::Inline(bytes) if bytes.is_empty() => 0,
            Attributes::Inline(_) => HAS_INLINE_ATTRIBUTES,
            Attributes::Stored(_) => HAS_STORED_ATTRIBUTES,
        };
        let has_flags = if self.flags == 0 { 0 } else { HAS_FLAGS };
        let has_link = if self.link.is_none() { 0 } else { HAS_LINK };
        writer.u8(self.kind() | has_flags | has_attributes | has_link);
        [u64::from(self.mode), u64::from(self.uid), u64::from(self.gid)].into_iter().for_each(|n| writer.varint(n));
        writer.varint_signed(self.mtime_secs);
        writer.varint(u64::from(self.mtime_nanos));
        if self.flags != 0 {
            writer.varint(u64::from(self.flags));
        }
        match &self.attributes {
            Attributes::Inline(bytes) if bytes.is_empty() => {}
            Attributes::Inline(bytes) => {
                writer.varint(bytes.len() as u64);
                writer.bytes(bytes);
            }
            Attributes::Stored(root) => encode_root(root, writer),
        }
        if let Some(link) = self.link {
            writer.varint(link);
        }
        match &self.content {
            Content::File { root, data_bytes } => {
                encode_root(root, writer);
                // Most files have no holes.
                writer.varint(root.len_bytes().saturating_sub(*data_bytes));
            }
            Content::Directory(directory) => {
                match &directory.root {
                    None => writer.u8(0),
                    Some((level, child)) => {
                        writer.u8(*level);
                        encode_child(child, writer);
                    }
                }
                writer.varint(directory.subdirectories);
                directory.below.encode_into(writer);
            }
            Content::Symlink(target) => {
                writer.varint(target.len() as u64);
                writer.bytes(target);
            }
            Content::CharDevice(number) | Content::BlockDevice(number) => writer.varint(u64::from(*number)),
            Content::Fifo | Content::Socket => {}
        }
    }

    pub(super) fn decode_from(reader: &mut ByteReader<'_>) -> Result<Self> {
        let name_bytes = usize::from(reader.u8()?);
        let name = reader.bytes(name_bytes)?.to_vec();
        let bits = reader.u8()?;
        let known = KIND | HAS_FLAGS | HAS_INLINE_ATTRIBUTES | HAS_STORED_ATTRIBUTES | HAS_LINK;
        check(bits & !known == 0, "known bits of an entry", bits)?;
        let mode = small(reader, u64::from(u16::MAX))? as u16;
        let (uid, gid) = (small(reader, u64::from(u32::MAX))? as u32, small(reader, u64::from(u32::MAX))? as u32);
        let (mtime_secs, mtime_nanos) = (reader.varint_signed()?, small(reader, u64::from(NANOS))? as u32);
        let flags = if bits & HAS_FLAGS == 0 { 0 } else { small(reader, u64::from(u32::MAX))? as u32 };
        check((flags != 0) == (bits & HAS_FLAGS != 0), "flags", "none")?;
        let attributes = match bits & (HAS_INLINE_ATTRIBUTES | HAS_STORED_ATTRIBUTES) {
            0 => Attributes::default(),
            HAS_INLINE_ATTRIBUTES => {
                let len = small(reader, ATTRIBUTES_INLINE_BYTES_MAX as u64)?;
                check(len > 0, "attributes", "none")?;
                Attributes::Inline(reader.bytes(len as usize)?.to_vec())
            }
            HAS_STORED_ATTRIBUTES => Attributes::Stored(decode_root(reader)?),
            bits => return Err(reader.corrupt("attributes in one place", bits)),
        };
        let link = if bits & HAS_LINK == 0 { None } else { Some(reader.varint()?) };
        let content = match bits & KIND {
            1 => {
                let (root, hole_bytes) = (decode_root(reader)?, reader.varint()?);
                let data_bytes = root.len_bytes().checked_sub(hole_bytes);
                let data_bytes = data_bytes.ok_or_else(|| reader.corrupt("holes within the file", hole_bytes))?;
                Content::File { root, data_bytes }
            }
            2 => {
                let root = match reader.u8()? {
                    0 => None,
                    level => Some((level, decode_child(reader)?)),
                };
                let subdirectories = reader.varint()?;
                Content::Directory(Directory { root, subdirectories, below: Below::decode_from(reader)? })
            }
            3 => {
                let len = small(reader, SYMLINK_BYTES_MAX as u64)?;
                Content::Symlink(reader.bytes(len as usize)?.to_vec())
            }
            4 => Content::CharDevice(small(reader, u64::from(u32::MAX))? as u32),
            5 => Content::BlockDevice(small(reader, u64::from(u32::MAX))? as u32),
            6 => Content::Fifo,
            7 => Content::Socket,
            kind => return Err(reader.corrupt("an entry of a kind of 1 to 7", kind)),
        };
        Ok(Self { name, mode, uid, gid, mtime_secs, mtime_nanos, flags, attributes, link, content })
    }
}

/// Checks that an entry of a directory may have this name.
pub(super) fn check_name(name: &[u8]) -> Result<()> {
    let is_name = (1..=NAME_BYTES_MAX).contains(&name.len())
        && !matches!(name, b"." | b"..")
        && !name.contains(&b'/')
        && !name.contains(&0);
    check(is_name, "a name of 1 to 255 bytes, other than . and .., without / and NUL", name.escape_ascii())
}

/// Reads a number that is at most `max`.
fn small(reader: &mut ByteReader<'_>, max: u64) -> Result<u64> {
    let number = reader.varint()?;
    if number > max { Err(reader.corrupt(format!("at most {max}"), number)) } else { Ok(number) }
}
