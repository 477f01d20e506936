//! Inodes: the metadata of one file, and its record.

#![deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)]

use std::sync::Arc;

use dedupfs_base::{EngineError, Result};
use dedupfs_service::{FileKind, Ino, InodeFlags, Timestamp};
use dedupfs_store::StoreError;
use dedupfs_store::codec::{ByteReader, ByteWriter};
use dedupfs_store::recipe::Root;

use super::record;

/// Longest target of a symbolic link, in bytes (PATH_MAX without its NUL).
pub(crate) const SYMLINK_BYTES_MAX: usize = 4095;
/// Nanoseconds of a second.
const NANOS: u32 = 1_000_000_000;

// Bits of `Inode::flags`.
const IMMUTABLE: u32 = 1 << 0;
const APPEND_ONLY: u32 = 1 << 1;
const NO_DUMP: u32 = 1 << 2;
const NO_ACCESS_TIME: u32 = 1 << 3;

/// One file, directory or other object.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Inode {
    /// Its number; never used twice for committed inodes.
    pub ino: Ino,
    /// Distinguishes uses of one number: the writer epoch in which the inode was made. A number whose commit a crash
    /// prevented is given again. 0 if an earlier release made the inode.
    pub generation: u32,
    /// Its kind.
    pub kind: FileKind,
    /// Permission bits (0o7777).
    pub mode: u16,
    /// Number of its names (directories: 2 and one for each subdirectory). 0: an orphan.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of device nodes.
    pub rdev: u32,
    /// Length of a regular file or link target; number of entries of a directory.
    pub size_bytes: u64,
    /// Last access.
    pub atime: Timestamp,
    /// Last change of content.
    pub mtime: Timestamp,
    /// Last change of attributes.
    pub ctime: Timestamp,
    /// The content of a regular file.
    pub root: Root,
    /// The directory that holds this directory (the root holds itself); 0 for everything else.
    pub parent: Ino,
    /// Number of extended attributes.
    pub xattr_count: u32,
    /// Target of a symbolic link.
    pub symlink_target: Option<Arc<[u8]>>,
    /// Flags of chattr(1), see [`chattr_flags`](Self::chattr_flags). Unknown bits are kept.
    pub flags: u32,
    /// Bytes of a regular file that are not holes.
    pub data_bytes: u64,
}

impl Inode {
    /// Whether it is a directory.
    #[must_use]
    pub fn is_directory(&self) -> bool {
        self.kind == FileKind::Directory
    }

    /// Returns the flags of chattr(1).
    #[must_use]
    pub fn chattr_flags(&self) -> InodeFlags {
        InodeFlags {
            immutable: self.flags & IMMUTABLE != 0,
            append_only: self.flags & APPEND_ONLY != 0,
            no_dump: self.flags & NO_DUMP != 0,
            no_access_time: self.flags & NO_ACCESS_TIME != 0,
        }
    }

    /// Sets all flags of chattr(1).
    pub fn set_chattr_flags(&mut self, flags: InodeFlags) {
        let bits = [
            (flags.immutable, IMMUTABLE),
            (flags.append_only, APPEND_ONLY),
            (flags.no_dump, NO_DUMP),
            (flags.no_access_time, NO_ACCESS_TIME),
        ];
        for (set, bit) in bits {
            self.flags = if set { self.flags | bit } else { self.flags & !bit };
        }
    }

    /// Checks that entries may be added to this directory.
    pub(super) fn check_takes_entries(&self) -> Result<()> {
        if self.chattr_flags().immutable { Err(EngineError::NotPermitted) } else { Ok(()) }
    }

    /// Checks that the inode is neither immutable nor append-only: its names, attributes and (of a directory) entries
    /// may be removed.
    ///
    /// # Errors
    /// `NotPermitted`.
    pub fn check_unprotected(&self) -> Result<()> {
        if self.chattr_flags().protect() { Err(EngineError::NotPermitted) } else { Ok(()) }
    }

    /// Encodes the record under key `ino`.
    pub(super) fn encode(&self) -> Vec<u8> {
        record::seal(&self.ino.to_le_bytes(), |writer| {
            writer.u8(kind_to_u8(self.kind));
            writer.u16(self.mode);
            for number in [self.flags, self.generation, self.nlink, self.uid, self.gid, self.rdev, self.xattr_count] {
                writer.u32(number);
            }
            for number in [self.size_bytes, self.data_bytes, self.parent] {
                writer.u64(number);
            }
            for time in [self.atime, self.mtime, self.ctime] {
                writer.i64(time.secs);
                writer.u32(time.nanos);
            }
            self.root.encode_into(writer);
            if let Some(target) = &self.symlink_target {
                writer.u16(target.len() as u16);
                writer.bytes(target);
            }
        })
    }

    /// Decodes the record found under key `ino`.
    pub(super) fn decode(ino: Ino, bytes: &[u8]) -> Result<Self> {
        let what = || format!("inode {ino}");
        record::open(what, &ino.to_le_bytes(), bytes, |reader| {
            let kind = kind_from_u8(reader.u8()?, what)?;
            let mode = reader.u16()?;
            if mode > 0o7777 {
                return Err(StoreError::corrupt(what(), "a mode of at most 7777", format!("{mode:o}")).into());
            }
            let (flags, generation, nlink) = (reader.u32()?, reader.u32()?, reader.u32()?);
            let (uid, gid, rdev, xattr_count) = (reader.u32()?, reader.u32()?, reader.u32()?, reader.u32()?);
            let (size_bytes, data_bytes, parent) = (reader.u64()?, reader.u64()?, reader.u64()?);
            let (atime, mtime, ctime) = (time(reader, ino)?, time(reader, ino)?, time(reader, ino)?);
            let root = Root::decode_from(reader)?;
            let symlink_target = match kind {
                FileKind::Symlink => {
                    let len = usize::from(reader.u16()?);
                    if len == 0 || len > SYMLINK_BYTES_MAX {
                        let expected = format!("a target of 1 to {SYMLINK_BYTES_MAX} bytes");
                        return Err(StoreError::corrupt(what(), expected, len).into());
                    }
                    Some(Arc::from(reader.bytes(len)?))
                }
                _ => None,
            };
            if (parent != 0) != (kind == FileKind::Directory) {
                return Err(StoreError::corrupt(what(), "a parent for directories only", parent).into());
            }
            Ok(Self {
                ino,
                generation,
                kind,
                mode,
                nlink,
                uid,
                gid,
                rdev,
                size_bytes,
                atime,
                mtime,
                ctime,
                root,
                parent,
                xattr_count,
                symlink_target,
                flags,
                data_bytes,
            })
        })
    }
}

fn time(reader: &mut ByteReader<'_>, ino: Ino) -> Result<Timestamp> {
    let (secs, nanos) = (reader.i64()?, reader.u32()?);
    if nanos >= NANOS {
        return Err(StoreError::corrupt(format!("inode {ino}"), "less than 10^9 nanoseconds", nanos).into());
    }
    Ok(Timestamp { secs, nanos })
}

/// Returns the number of a kind in records.
pub(super) fn kind_to_u8(kind: FileKind) -> u8 {
    match kind {
        FileKind::Regular => 1,
        FileKind::Directory => 2,
        FileKind::Symlink => 3,
        FileKind::CharDevice => 4,
        FileKind::BlockDevice => 5,
        FileKind::Fifo => 6,
        FileKind::Socket => 7,
    }
}

/// Returns the kind with this number in records.
pub(super) fn kind_from_u8(byte: u8, what: impl Fn() -> String) -> Result<FileKind> {
    Ok(match byte {
        1 => FileKind::Regular,
        2 => FileKind::Directory,
        3 => FileKind::Symlink,
        4 => FileKind::CharDevice,
        5 => FileKind::BlockDevice,
        6 => FileKind::Fifo,
        7 => FileKind::Socket,
        _ => return Err(StoreError::corrupt(what(), "a file kind of 1 to 7", byte).into()),
    })
}

/// A name in a directory: its inode, and its place in the directory's order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Entry {
    pub(super) ino: Ino,
    pub(super) kind: FileKind,
    pub(super) cookie: u64,
}

impl Entry {
    /// Encodes the record in the table of names; `key` is parent and name.
    pub(super) fn encode(&self, key: &[u8]) -> Vec<u8> {
        record::seal(key, |writer: &mut ByteWriter| {
            writer.u64(self.ino);
            writer.u8(kind_to_u8(self.kind));
            writer.u64(self.cookie);
        })
    }

    /// Decodes a record of the table of names.
    pub(super) fn decode(key: &[u8], bytes: &[u8]) -> Result<Self> {
        let what = || format!("directory entry {}", key.escape_ascii());
        record::open(what, key, bytes, |reader| {
            Ok(Self { ino: reader.u64()?, kind: kind_from_u8(reader.u8()?, what)?, cookie: reader.u64()? })
        })
    }
}
