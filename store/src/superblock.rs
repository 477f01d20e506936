//! Superblocks: the identity and properties of a pool. One file per root, written once when the pool is formatted.
//!
//! `dedupfs.meta` lies on the meta root, `dedupfs.data` on the data root. Each is one frame, padded with zeros to a
//! multiple of 4096 bytes, with the pool's identity and its properties. Both carry the same, so the data root of
//! another pool (or none: an unmounted disk) is noticed before any read or write.
//!
//! Reading, step by step: bound the file's size; check the frame (magic, header, lengths, body); check the format
//! version before anything else in the body, then the feature flags; check every property against its limits; check
//! that the rest of the file is zeros. So every byte of the file is checked.
//!
//! Invariant: a superblock written by [`Superblock::write_new`] exists wholly or not at all, and is never rewritten.

#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic))]

use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::codec::{ByteReader, ByteWriter};
use crate::container::Compression;
use crate::device::Device;
use crate::error::{Result, StoreError};
use crate::frame::{Expect, FrameKind, decode_frame, encode_frame};
use crate::id::PoolId;

mod properties;

pub use properties::{CHUNK_SIZE_BYTES, ChunkerKind, FingerprintAlgorithm, PoolProperties};

/// The format that this version writes and reads.
const FORMAT_VERSION: u16 = 1;

/// Required features that this version knows. A pool that requires another feature is refused.
const FEATURES_KNOWN: u64 = 0;

/// The file is padded to a multiple of this many bytes.
const SUPERBLOCK_ALIGNMENT_BYTES: usize = 4096;

const DATA_ROOT_BYTES_MAX: usize = 4096;

const FILE_BYTES_MAX: usize = 4 * SUPERBLOCK_ALIGNMENT_BYTES;

const _: () = assert!(DATA_ROOT_BYTES_MAX + 1024 < FILE_BYTES_MAX);

/// The root that a superblock lies on.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Role {
    /// Namespace, index, recipes.
    Meta = 1,
    /// Containers of chunks.
    Data = 2,
}

impl Role {
    /// Name of the superblock's file.
    pub const fn file_name(self) -> &'static str {
        match self {
            Self::Meta => "dedupfs.meta",
            Self::Data => "dedupfs.data",
        }
    }

    const fn from_u8(byte: u8) -> Option<Self> {
        match byte {
            1 => Some(Self::Meta),
            2 => Some(Self::Data),
            _ => None,
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Meta => "meta",
            Self::Data => "data",
        })
    }
}

/// A pool's identity and properties, according to one of its two roots.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Superblock {
    /// The root that it lies on.
    pub role: Role,
    /// The pool's identity.
    pub pool: PoolId,
    /// The properties that never change.
    pub properties: PoolProperties,
    /// On the meta root: the path of the data root, absolute or relative to the meta root ("." if they are one). On the
    /// data root: empty.
    pub data_root: Vec<u8>,
    /// The time of formatting, in seconds since 1970.
    pub created_secs: u64,
}

impl Superblock {
    /// Writes the superblock to the root of `device`, durably; an error if one of its role exists.
    ///
    /// The caller holds the pool's lock: otherwise two concurrent calls could both succeed.
    pub fn write_new(&self, device: &dyn Device) -> Result<()> {
        self.check()?;
        let name = self.role.file_name();
        if device.exists(name)? {
            return Err(StoreError::Usage(format!("{} holds a dedupfs pool already ({name})", device.describe())));
        }
        device.replace_file("", name, &self.encode())
    }

    /// Reads and checks the superblock of a role at the root of `device`.
    pub fn read(device: &dyn Device, role: Role) -> Result<Self> {
        Self::read_with(device, role, Self::decode)
    }

    /// As [`read`](Self::read), whatever lies behind the frame: its checksums hold. For a repair that has nothing better.
    pub fn salvage(device: &dyn Device, role: Role) -> Result<Self> {
        Self::read_with(device, role, |what, file, role| Ok(Self::decode_frame(what, file, role)?.0))
    }

    fn read_with(
        device: &dyn Device,
        role: Role,
        decode: impl FnOnce(&str, &[u8], Role) -> Result<Self>,
    ) -> Result<Self> {
        let (name, place) = (role.file_name(), device.describe());
        let read = match device.read_file(name, FILE_BYTES_MAX as u64) {
            Err(StoreError::NotFound { .. }) => {
                return Err(StoreError::Usage(match role {
                    Role::Meta => {
                        format!(
                            "{place} is not a dedupfs pool (no {name}): format one with `dedupfs mkfs {place}`, but only if it is empty; \
                             else see `dedupfs fsck --repair` and `dedupfs recover`"
                        )
                    }
                    Role::Data => format!("{place} is not the data root of a dedupfs pool (no {name}): is it mounted?"),
                }));
            }
            read => read.and_then(|bytes| decode(&format!("superblock {name} of {place}"), &bytes, role)),
        };
        read.map_err(|error| match error {
            StoreError::Corrupt { what, expected, found } => {
                let found = format!(
                    "{found}; `dedupfs fsck --repair` writes it again from the other superblock of the pool: try it"
                );
                StoreError::Corrupt { what, expected, found }
            }
            other => other,
        })
    }

    /// Checks that the superblocks of a meta and a data root belong together.
    pub fn check_pair(meta: &Self, data: &Self) -> Result<()> {
        if (meta.role, data.role) != (Role::Meta, Role::Data) {
            return Err(StoreError::Usage(format!("a meta and a data root, not {} and {}", meta.role, data.role)));
        }
        if meta.pool != data.pool {
            return Err(StoreError::Usage(format!(
                "the data root belongs to another pool: it is of {}, the meta root of {} (is the right disk mounted?)",
                data.pool, meta.pool
            )));
        }
        if meta.properties != data.properties || meta.created_secs != data.created_secs {
            let shown = |of: &Self| format!("{:?}, created {}", of.properties, of.created_secs);
            return Err(StoreError::corrupt("superblock of the data root", shown(meta), shown(data)));
        }
        Ok(())
    }

    /// The path of the data root, for a pool with its meta root at `meta_root`.
    pub fn data_root_path(&self, meta_root: &Path) -> PathBuf {
        match self.data_root.as_slice() {
            b"" | b"." => meta_root.to_owned(),
            path => meta_root.join(std::ffi::OsStr::from_bytes(path)),
        }
    }

    /// Encodes the whole file.
    pub fn encode(&self) -> Vec<u8> {
        let properties = &self.properties;
        let (compression, level) = match properties.compression {
            Compression::None => (0, 0),
            Compression::Zstd(level) => (1, level as i8), // 1..=19, checked before writing
        };
        let mut body = ByteWriter::new();
        body.u16(FORMAT_VERSION);
        body.u64(FEATURES_KNOWN);
        body.u8(self.role as u8);
        body.bytes(&self.pool.0);
        body.u64(self.created_secs);
        body.u8(properties.chunker as u8);
        body.u32(properties.chunk_size_bytes);
        body.u8(properties.fingerprint as u8);
        body.u8(compression);
        body.u8(level.cast_unsigned());
        body.u32(properties.container_bytes);
        body.u32(properties.slots_per_file);
        body.u32(properties.tanker_cells);
        body.u32(properties.tanker_buckets);
        body.u16(self.data_root.len() as u16); // at most DATA_ROOT_BYTES_MAX, checked before writing
        body.bytes(&self.data_root);
        let mut file = encode_frame(FrameKind::Superblock, &self.pool, 0, body.as_slice(), &[]);
        file.resize(file.len().next_multiple_of(SUPERBLOCK_ALIGNMENT_BYTES), 0);
        file
    }

    /// Decodes and fully checks the file; `what` names it in errors.
    fn decode(what: &str, file: &[u8], role: Role) -> Result<Self> {
        let (superblock, rest) = Self::decode_frame(what, file, role)?;
        if rest.iter().any(|&byte| byte != 0) {
            return Err(StoreError::corrupt(what, "zeros after the frame", "other bytes"));
        }
        Ok(superblock)
    }

    /// Returns the superblock, and the bytes behind its frame.
    fn decode_frame<'a>(what: &str, file: &'a [u8], role: Role) -> Result<(Self, &'a [u8])> {
        if file.is_empty() || !file.len().is_multiple_of(SUPERBLOCK_ALIGNMENT_BYTES) || file.len() > FILE_BYTES_MAX {
            let expected = format!("a multiple of {SUPERBLOCK_ALIGNMENT_BYTES} bytes, at most {FILE_BYTES_MAX}");
            return Err(StoreError::corrupt(what, expected, format!("{} bytes (cut off?)", file.len())));
        }
        let expect = Expect { kind: FrameKind::Superblock, pool: None, owner: Some(0) };
        let frame = decode_frame(what, file, &expect, FILE_BYTES_MAX)?;
        let superblock = Self::decode_body(what, frame.meta, role)?;
        if superblock.pool != frame.header.pool {
            return Err(StoreError::corrupt(what, format!("pool {}", frame.header.pool), superblock.pool));
        }
        if !frame.payload.is_empty() {
            return Err(StoreError::corrupt(what, "no payload", format!("{} bytes", frame.payload.len())));
        }
        let frame_bytes = usize::try_from(frame.header.frame_bytes()).unwrap_or(usize::MAX);
        let expected_bytes = frame_bytes.next_multiple_of(SUPERBLOCK_ALIGNMENT_BYTES);
        if file.len() != expected_bytes {
            return Err(StoreError::corrupt(what, format!("{expected_bytes} bytes"), format!("{} bytes", file.len())));
        }
        Ok((superblock, file.get(frame_bytes..).unwrap_or_default()))
    }

    fn decode_body(what: &str, body: &[u8], expected_role: Role) -> Result<Self> {
        let unsupported = |found: String| StoreError::Unsupported {
            what: what.to_owned(),
            found,
            advice: format!(
                "this dedupfs knows format {FORMAT_VERSION}: use the dedupfs version that formatted the pool, or later"
            ),
        };
        let mut reader = ByteReader::new(body, what);
        let version = reader.u16()?;
        if version != FORMAT_VERSION {
            return Err(unsupported(format!("format version {version}")));
        }
        let unknown = reader.u64()? & !FEATURES_KNOWN;
        if unknown != 0 {
            return Err(unsupported(format!("feature flags {unknown:#x}")));
        }
        let role = reader.u8()?;
        let role = known(&reader, "a role", role, Role::from_u8)?;
        if role != expected_role {
            return Err(reader.corrupt(format!("the {expected_role} root"), format!("the {role} root")));
        }
        let pool = PoolId(reader.array()?);
        let created_secs = reader.u64()?;
        let chunker = reader.u8()?;
        let chunker = known(&reader, "a chunker", chunker, ChunkerKind::from_u8)?;
        let chunk_size_bytes = reader.u32()?;
        let fingerprint = reader.u8()?;
        let fingerprint = known(&reader, "a fingerprint algorithm", fingerprint, FingerprintAlgorithm::from_u8)?;
        let compression = match (reader.u8()?, reader.u8()?.cast_signed()) {
            (0, 0) => Compression::None,
            (1, level) => Compression::Zstd(i32::from(level)),
            (kind, level) => return Err(reader.corrupt("a compression", format!("{kind}, level {level}"))),
        };
        let container_bytes = reader.u32()?;
        let slots_per_file = reader.u32()?;
        let (tanker_cells, tanker_buckets) = (reader.u32()?, reader.u32()?);
        let data_root_bytes = usize::from(reader.u16()?);
        let data_root = reader.bytes(data_root_bytes)?.to_vec();
        let properties = PoolProperties {
            chunker,
            chunk_size_bytes,
            fingerprint,
            compression,
            container_bytes,
            slots_per_file,
            tanker_cells,
            tanker_buckets,
        };
        let superblock = Self { role, pool, properties, data_root, created_secs };
        superblock.check().map_err(|error| reader.corrupt("properties within their limits", error))?;
        reader.finish()?;
        Ok(superblock)
    }

    fn check(&self) -> Result<()> {
        self.properties.check()?;
        let root = &self.data_root;
        let is_sound = match self.role {
            Role::Meta => !root.is_empty() && root.len() <= DATA_ROOT_BYTES_MAX && !root.contains(&0),
            Role::Data => root.is_empty(),
        };
        if is_sound {
            return Ok(());
        }
        Err(StoreError::Usage(format!(
            "the data root must be a path of at most {DATA_ROOT_BYTES_MAX} bytes, and stand on the meta root only"
        )))
    }
}

/// Returns the value for a byte. Under a sound checksum and a known version, an unknown value is damage.
fn known<T>(reader: &ByteReader<'_>, what: &str, byte: u8, from_u8: impl Fn(u8) -> Option<T>) -> Result<T> {
    from_u8(byte).ok_or_else(|| reader.corrupt(what, format!("number {byte}")))
}

#[cfg(test)]
mod tests;
