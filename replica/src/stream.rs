//! Streams of a commit: bytes that lie in the commit itself if they are few, else in pieces, which are objects.
//!
//! A piece is named by its content and the number of its commit: two commits share none, so reclaiming removes none that a new commit needs.

use dedupfs_store::StoreError;
use dedupfs_store::codec::{ByteReader, ByteWriter};
use dedupfs_store::objects::{Class, ObjectError};

use crate::error::{ReplicaError, Result};
use crate::place::Replica;
use crate::stored::ContentHash;

/// Longest stream that lies in a commit.
pub(crate) const INLINE_BYTES_MAX: u64 = if cfg!(test) { 8 << 10 } else { 1 << 20 };
/// Bytes of a piece; the last one has less.
pub(crate) const PIECE_BYTES: u64 = if cfg!(test) { 8 << 10 } else { 16 << 20 };
/// Most pieces of a stream: 1 TiB.
const PIECES_MAX: u32 = 1 << 16;

/// A stream, as a commit has it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Stream {
    pub(crate) len_bytes: u64,
    /// All bytes, or none if there are pieces.
    inline: Vec<u8>,
    pieces: Vec<ContentHash>,
}

impl Stream {
    /// Uploads a stream. `read` gives a range of it.
    pub(crate) fn upload(
        replica: &Replica,
        commit: u64,
        len_bytes: u64,
        read: &mut dyn FnMut(u64, usize) -> Result<Vec<u8>>,
    ) -> Result<Self> {
        if len_bytes <= INLINE_BYTES_MAX {
            return Ok(Self { len_bytes, inline: read(0, len_bytes as usize)?, pieces: Vec::new() });
        }
        if len_bytes.div_ceil(PIECE_BYTES) > PIECES_MAX.into() {
            return Err(ReplicaError::Usage(format!("{len_bytes} bytes of names are too many for a replica")));
        }
        let mut pieces = Vec::new();
        let mut at = 0;
        while at < len_bytes {
            let bytes = read(at, PIECE_BYTES.min(len_bytes - at) as usize)?;
            let hash = ContentHash::of(&replica.name_key, commit, &bytes);
            replica.objects.create(&hash.piece_key()?, &[&bytes], Class::Metadata).map_err(damaged_in_store)?;
            pieces.push(hash);
            at += bytes.len() as u64;
        }
        Ok(Self { len_bytes, inline: Vec::new(), pieces })
    }

    /// Uploads bytes that are in memory.
    pub(crate) fn upload_bytes(replica: &Replica, commit: u64, bytes: &[u8]) -> Result<Self> {
        Self::upload(replica, commit, bytes.len() as u64, &mut |at, len| {
            Ok(bytes.get(at as usize..).and_then(|rest| rest.get(..len)).unwrap_or_default().to_vec())
        })
    }

    /// Names of its pieces.
    pub(crate) fn pieces(&self) -> &[ContentHash] {
        &self.pieces
    }

    /// Reads the stream from the store, one part after the other, each checked.
    pub(crate) fn download(
        &self,
        replica: &Replica,
        commit: u64,
        visit: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        if self.pieces.is_empty() {
            return visit(&self.inline);
        }
        let mut left_bytes = self.len_bytes;
        for hash in &self.pieces {
            let key = hash.piece_key()?;
            let what = || format!("object {key}");
            let bytes =
                replica.read(&key)?.ok_or_else(|| ReplicaError::damaged(what(), "a part of a commit", "nothing"))?;
            if ContentHash::of(&replica.name_key, commit, &bytes) != *hash
                || bytes.len() as u64 != PIECE_BYTES.min(left_bytes)
            {
                return Err(ReplicaError::damaged(what(), "the content that it is named after", "something else"));
            }
            left_bytes -= bytes.len() as u64;
            visit(&bytes)?;
        }
        Ok(())
    }

    /// Reads a stream into memory.
    pub(crate) fn download_bytes(&self, replica: &Replica, commit: u64) -> Result<Vec<u8>> {
        let mut all = Vec::new();
        self.download(replica, commit, &mut |bytes| {
            all.extend_from_slice(bytes);
            Ok(())
        })?;
        Ok(all)
    }

    /// Encodes all but the bytes in the commit, which go to `payload`.
    pub(crate) fn encode(&self, meta: &mut ByteWriter, payload: &mut ByteWriter) {
        meta.u64(self.len_bytes);
        meta.u32(self.pieces.len() as u32); // At most `PIECES_MAX`.
        self.pieces.iter().for_each(|hash| meta.bytes(&hash.0));
        payload.bytes(&self.inline);
    }

    pub(crate) fn decode(
        meta: &mut ByteReader<'_>,
        payload: &mut ByteReader<'_>,
    ) -> std::result::Result<Self, StoreError> {
        let (len_bytes, count) = (meta.u64()?, meta.u32()?);
        let expected = if len_bytes <= INLINE_BYTES_MAX { 0 } else { len_bytes.div_ceil(PIECE_BYTES) };
        if expected != u64::from(count) || count > PIECES_MAX {
            return Err(meta.corrupt(format!("{expected} pieces"), count));
        }
        let pieces =
            (0..count).map(|_| Ok(ContentHash(meta.array()?))).collect::<std::result::Result<_, StoreError>>()?;
        let inline = if count == 0 { payload.bytes(len_bytes as usize)?.to_vec() } else { Vec::new() };
        Ok(Self { len_bytes, inline, pieces })
    }
}

/// An object that is named after its content has another one.
pub(crate) fn damaged_in_store(error: ObjectError) -> ReplicaError {
    match error {
        ObjectError::Foreign { key } => {
            let found = "something else: remove that object in the store, and replicate again";
            ReplicaError::damaged(format!("object {key}"), "the content that it is named after", found)
        }
        error => error.into(),
    }
}
