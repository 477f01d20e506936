//! Files with several names in one frozen tree.

use super::entry::check_name;
use super::{SUM_MAX, check};
use crate::codec::{ByteReader, ByteWriter};
use crate::error::Result;

/// Most bytes of a path. Paths of frozen trees may be longer than the kernel's limit for one path.
const PATH_BYTES_MAX: u64 = 1 << 20;

/// A file with several names.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Link {
    /// Number of the file within the tree; its entries have it.
    pub number: u64,
    /// Number of its names in the tree.
    pub names: u64,
    /// Its first name in the order of a walk: a path from the top, with `/` between names.
    pub path: Vec<u8>,
}

impl Link {
    pub(super) fn check(&self) -> Result<()> {
        check((1..=SUM_MAX).contains(&self.number), "the number of a link", self.number)?;
        check((1..=SUM_MAX).contains(&self.names), "at least one name of a link", self.names)?;
        check((1..=PATH_BYTES_MAX).contains(&(self.path.len() as u64)), "the path of a link", self.path.len())?;
        // Who follows the path must not leave the tree.
        self.path.split(|&byte| byte == b'/').try_for_each(check_name)
    }

    pub(super) fn encode_into(&self, writer: &mut ByteWriter) {
        writer.varint(self.number);
        writer.varint(self.names);
        writer.varint(self.path.len() as u64);
        writer.bytes(&self.path);
    }

    pub(super) fn decode_from(reader: &mut ByteReader<'_>) -> Result<Self> {
        let (number, names, path_bytes) = (reader.varint()?, reader.varint()?, reader.varint()?);
        check(path_bytes <= PATH_BYTES_MAX, "a path of at most 1 MiB", path_bytes)?;
        Ok(Self { number, names, path: reader.bytes(path_bytes as usize)?.to_vec() })
    }
}
