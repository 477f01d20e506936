//! The object `format`: whose replica it is, and whether it is encrypted. Created once, readable without a key.

use dedupfs_store::codec::{ByteReader, ByteWriter};
use dedupfs_store::frame::{Expect, FrameKind, decode_frame, encode_frame};
use dedupfs_store::{PoolId, StoreError};

/// Name of the object.
pub(crate) const FORMAT_KEY: &str = "format";
/// Version of the format of replicas.
const VERSION: u16 = 1;
/// Longest object believed.
const BYTES_MAX: usize = 4096;

/// The content of the object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Format {
    pub(crate) pool: PoolId,
    /// Tells replicas of one pool apart.
    pub(crate) replica: [u8; 16],
    /// Which secret the objects are encrypted with; `None` if they are not.
    pub(crate) key: Option<[u8; 16]>,
    pub(crate) created_secs: u64,
}

impl Format {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut meta = ByteWriter::new();
        meta.u16(VERSION);
        meta.u16(u16::from(self.key.is_some()));
        meta.bytes(&self.replica);
        meta.bytes(&self.key.unwrap_or_default());
        meta.u64(self.created_secs);
        encode_frame(FrameKind::ReplicaFormat, &self.pool, 0, meta.as_slice(), &[])
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, StoreError> {
        let what = "the object format of the replica";
        let expect = Expect { kind: FrameKind::ReplicaFormat, pool: None, owner: Some(0) };
        let frame = decode_frame(what, bytes, &expect, BYTES_MAX)?;
        let mut meta = ByteReader::new(frame.meta, what);
        let version = meta.u16()?;
        if version != VERSION {
            return Err(StoreError::newer(what, format!("version {version}")));
        }
        let flags = meta.u16()?;
        if flags > 1 {
            return Err(StoreError::newer(what, format!("flags {flags:#x}")));
        }
        let (replica, key, created_secs) = (meta.array()?, meta.array()?, meta.u64()?);
        meta.finish()?;
        Ok(Self { pool: frame.header.pool, replica, key: (flags == 1).then_some(key), created_secs })
    }
}
