//! Frames: the one envelope of all durable data outside of the namespace store (invariant I-5).
//!
//! A frame is a header of 64 bytes, a small *meta* part, a *payload*, and zeros up to the next multiple of 64. The
//! header carries magic, kind, version, the pool, the owner (a container's id, or 0), both lengths, a checksum of the
//! body and a checksum of itself. The byte map is in `docs/format.md`.
//!
//! Decoding checks in this order and stops at the first error: magic; header checksum; version, kind and flags known;
//! lengths within the caller's limit; kind, pool and owner as expected; enough bytes; body checksum; padding zero. So a
//! decoder never trusts a length, or allocates by it, before a checksum has confirmed it. A stale or foreign frame is
//! told apart from a damaged one.
//!
//! Cost: one pass of xxh3 over the body (20 GB/s). Decoding copies nothing. Encoding copies once, or leaves the payload
//! in place ([`encode_frame_head`]).

#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic))]

use std::fmt;

use dedupfs_sync::canary::{Canary, is_planted};

use crate::codec::{ByteReader, ByteWriter, checksum, checksum_of_parts};
use crate::error::{Result, StoreError};
use crate::id::PoolId;

/// Bytes of a frame's header.
pub const FRAME_HEADER_BYTES: usize = 64;

/// Frames start at, and are padded to, multiples of this.
pub const FRAME_ALIGNMENT_BYTES: usize = 64;

/// Limit of a frame's meta and payload together: 1 GiB. No real frame comes near; it bounds a decoder's input.
pub const FRAME_BODY_BYTES_MAX: usize = 1 << 30;

pub(crate) const FRAME_VERSION: u8 = 1;

const FRAME_MAGIC: [u8; 4] = *b"DDFS";

const HEADER_COVERED_BYTES: usize = FRAME_HEADER_BYTES - 8;

const _: () = assert!(FRAME_HEADER_BYTES.is_multiple_of(FRAME_ALIGNMENT_BYTES));
const _: () = assert!(FRAME_BODY_BYTES_MAX < u32::MAX as usize);

/// The kind of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
#[expect(missing_docs, reason = "`docs/format.md` describes each")]
pub enum FrameKind {
    Superblock = 1,
    Region = 2,
    Toc = 3,
    TankerDirectory = 4,
    TankerBucket = 5,
    Counts = 6,
    Manifest = 7,
    OpenTanker = 8,
    TankerFilter = 9,
    TankerContainers = 10,
    Progress = 11,
    Scrub = 12,
    TankerOccupancy = 13,
    Reclaim = 14,
    Export = 16,
    ExportCurrent = 17,
    ExportOwner = 18,
    ExportReached = 19,
    PageSums = 20,
    ExportKept = 21,
    Notes = 22,
    Forwarding = 23,
    Arranging = 24,
    TankerGuide = 25,
    ReplicaFormat = 26,
    ReplicaCommit = 27,
    ReplicaNote = 28,
    ReplicaPack = 29,
    ReplicaSlots = 30,
}

impl FrameKind {
    /// Returns the kind for a byte of a header.
    pub fn from_u8(byte: u8) -> Option<Self> {
        Self::named(byte).map(|(kind, _)| kind)
    }

    const fn named(byte: u8) -> Option<(Self, &'static str)> {
        Some(match byte {
            1 => (Self::Superblock, "superblock"),
            2 => (Self::Region, "region"),
            3 => (Self::Toc, "table of contents"),
            4 => (Self::TankerDirectory, "tanker directory"),
            5 => (Self::TankerBucket, "tanker bucket"),
            6 => (Self::Counts, "reference counts"),
            7 => (Self::Manifest, "manifest"),
            8 => (Self::OpenTanker, "open tanker"),
            9 => (Self::TankerFilter, "tanker filter"),
            10 => (Self::TankerContainers, "tanker containers"),
            11 => (Self::Progress, "progress"),
            12 => (Self::Scrub, "scrub"),
            13 => (Self::TankerOccupancy, "tanker occupancy"),
            14 => (Self::Reclaim, "reclaim"),
            16 => (Self::Export, "export"),
            17 => (Self::ExportCurrent, "current export"),
            18 => (Self::ExportOwner, "owner"),
            19 => (Self::ExportReached, "reach of an export"),
            20 => (Self::PageSums, "checksums of pages"),
            21 => (Self::ExportKept, "kept slots"),
            22 => (Self::Notes, "notes of a put"),
            23 => (Self::Forwarding, "forwarding notes"),
            24 => (Self::Arranging, "credit of arranging"),
            25 => (Self::TankerGuide, "guide to tankers"),
            26 => (Self::ReplicaFormat, "format of a replica"),
            27 => (Self::ReplicaCommit, "commit of a replica"),
            28 => (Self::ReplicaNote, "note of a replica"),
            29 => (Self::ReplicaPack, "tables of a replica"),
            30 => (Self::ReplicaSlots, "slots of a replica"),
            _ => return None,
        })
    }
}

impl fmt::Display for FrameKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Self::named(*self as u8).map_or("", |(_, name)| name))
    }
}

/// A decoded header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FrameHeader {
    /// The kind of the frame.
    pub kind: FrameKind,
    /// The pool that the frame belongs to.
    pub pool: PoolId,
    /// The container's id, or 0 without a container.
    pub owner: u64,
    /// Bytes of the meta part.
    pub meta_bytes: u32,
    /// Bytes of the payload.
    pub payload_bytes: u32,
    /// Checksum of meta and payload.
    pub body_checksum: u64,
}

impl FrameHeader {
    const fn body_bytes(&self) -> u64 {
        self.meta_bytes as u64 + self.payload_bytes as u64
    }

    /// Bytes of the whole frame with header and padding.
    pub const fn frame_bytes(&self) -> u64 {
        (FRAME_HEADER_BYTES as u64 + self.body_bytes()).next_multiple_of(FRAME_ALIGNMENT_BYTES as u64)
    }

    /// Encodes the header.
    pub fn encode(&self) -> [u8; FRAME_HEADER_BYTES] {
        let mut writer = ByteWriter::with_capacity(FRAME_HEADER_BYTES);
        writer.bytes(&FRAME_MAGIC);
        writer.u8(self.kind as u8);
        writer.u8(FRAME_VERSION);
        writer.u16(0); // flags
        writer.bytes(&self.pool.0);
        writer.u64(self.owner);
        writer.u32(self.meta_bytes);
        writer.u32(self.payload_bytes);
        writer.u64(0); // reserved
        writer.u64(self.body_checksum);
        let own = checksum(writer.as_slice());
        writer.u64(own);
        let mut header = [0; FRAME_HEADER_BYTES];
        header.copy_from_slice(writer.as_slice());
        header
    }

    /// Decodes the header at the start of `bytes`; `what` names the frame in errors.
    ///
    /// Checks magic, header checksum, version, kind and flags. The body may be absent: see [`decode_frame`].
    pub fn decode(what: &str, bytes: &[u8]) -> Result<Self> {
        let mut reader = ByteReader::new(bytes, what);
        let magic: [u8; 4] = reader.array()?;
        if magic != FRAME_MAGIC {
            let found = if magic == [0; 4] { "zeros".to_owned() } else { format!("{magic:02x?}") };
            return Err(StoreError::corrupt(what, "a frame (magic \"DDFS\")", found));
        }
        let kind = reader.u8()?;
        let version = reader.u8()?;
        let flags = reader.u16()?;
        let pool = PoolId(reader.array()?);
        let owner = reader.u64()?;
        let meta_bytes = reader.u32()?;
        let payload_bytes = reader.u32()?;
        let reserved = reader.u64()?;
        let body_checksum = reader.u64()?;
        let covered = bytes.get(..HEADER_COVERED_BYTES).unwrap_or_default();
        StoreError::check_sum(what, "header checksum", reader.u64()?, checksum(covered))?;
        if version != FRAME_VERSION {
            return Err(StoreError::newer(what, format!("frame version {version}")));
        }
        if flags != 0 || reserved != 0 {
            return Err(StoreError::newer(what, format!("frame flags {flags:#06x}/{reserved:#x}")));
        }
        let kind = FrameKind::from_u8(kind).ok_or_else(|| StoreError::newer(what, format!("frame kind {kind}")))?;
        Ok(Self { kind, pool, owner, meta_bytes, payload_bytes, body_checksum })
    }

    /// Checks kind, pool and owner, and that the body has at most `limit_bytes`.
    pub fn check(&self, what: &str, expect: &Expect<'_>, limit_bytes: usize) -> Result<()> {
        let limit_bytes = limit_bytes.min(FRAME_BODY_BYTES_MAX);
        if self.body_bytes() > limit_bytes as u64 {
            return Err(StoreError::corrupt(what, format!("at most {limit_bytes} body bytes"), self.body_bytes()));
        }
        let (expected, found) = if self.kind != expect.kind {
            (format!("a {} frame", expect.kind), format!("a {} frame", self.kind))
        } else if let Some(pool) = expect.pool.filter(|pool| self.pool != **pool) {
            let found = format!("one of pool {} (files of two pools are mixed up)", self.pool);
            (format!("a frame of pool {pool}"), found)
        } else if let Some(owner) = expect.owner.filter(|owner| self.owner != *owner) {
            (format!("a frame of owner {owner:#x}"), format!("one of owner {:#x}", self.owner))
        } else {
            return Ok(());
        };
        Err(StoreError::corrupt(what, expected, found))
    }
}

/// The expectations about a frame.
#[derive(Clone, Copy, Debug)]
pub struct Expect<'a> {
    /// The kind.
    pub kind: FrameKind,
    /// The pool; `None` only while the pool is unknown (superblocks).
    pub pool: Option<&'a PoolId>,
    /// The owner; `None` accepts any.
    pub owner: Option<u64>,
}

/// A decoded frame that borrows its input.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    /// The header.
    pub header: FrameHeader,
    /// The meta part.
    pub meta: &'a [u8],
    /// The payload.
    pub payload: &'a [u8],
}

/// Encodes a frame, padded with zeros to a multiple of [`FRAME_ALIGNMENT_BYTES`].
/// Panics if meta and payload together exceed [`FRAME_BODY_BYTES_MAX`]: no decoder would accept the frame.
pub fn encode_frame(kind: FrameKind, pool: &PoolId, owner: u64, meta: &[u8], payload: &[u8]) -> Vec<u8> {
    let frame_bytes = (FRAME_HEADER_BYTES + meta.len() + payload.len()).next_multiple_of(FRAME_ALIGNMENT_BYTES);
    let mut frame = encode_head(kind, pool, owner, meta, payload, frame_bytes);
    frame.extend_from_slice(payload);
    frame.resize(frame_bytes, 0);
    frame
}

/// Encodes only header and meta of a frame, for a payload that stays in place. The caller writes the payload behind
/// them, and then zeros up to a multiple of [`FRAME_ALIGNMENT_BYTES`].
pub(crate) fn encode_frame_head(kind: FrameKind, pool: &PoolId, owner: u64, meta: &[u8], payload: &[u8]) -> Vec<u8> {
    encode_head(kind, pool, owner, meta, payload, FRAME_HEADER_BYTES + meta.len())
}

fn encode_head(
    kind: FrameKind,
    pool: &PoolId,
    owner: u64,
    meta: &[u8],
    payload: &[u8],
    capacity_bytes: usize,
) -> Vec<u8> {
    let body_bytes = meta.len().saturating_add(payload.len());
    assert!(body_bytes <= FRAME_BODY_BYTES_MAX, "a {kind} frame of {body_bytes} bytes exceeds the limit");
    let body_checksum = checksum_of_parts(&[meta, payload]);
    // The lengths fit: asserted above, against a limit that is asserted to fit.
    let (meta_bytes, payload_bytes) = (meta.len() as u32, payload.len() as u32);
    let header = FrameHeader { kind, pool: *pool, owner, meta_bytes, payload_bytes, body_checksum };
    let mut frame = Vec::with_capacity(capacity_bytes);
    frame.extend_from_slice(&header.encode());
    frame.extend_from_slice(meta);
    frame
}

/// Decodes and fully checks the frame at the start of `bytes`; ignores bytes behind it.
///
/// `what` names the frame in errors; `limit_bytes` bounds its body.
pub fn decode_frame<'a>(what: &str, bytes: &'a [u8], expect: &Expect<'_>, limit_bytes: usize) -> Result<Frame<'a>> {
    let header = FrameHeader::decode(what, bytes)?;
    header.check(what, expect, limit_bytes)?;
    let whole = usize::try_from(header.frame_bytes()).ok().and_then(|len| bytes.get(..len)).ok_or_else(|| {
        let expected = format!("a frame of {} bytes", header.frame_bytes());
        StoreError::corrupt(what, expected, format!("{} bytes", bytes.len()))
    })?;
    let (meta_bytes, payload_bytes) = (header.meta_bytes as usize, header.payload_bytes as usize);
    let body = whole.get(FRAME_HEADER_BYTES..).and_then(|rest| rest.split_at_checked(meta_bytes + payload_bytes));
    let (body, padding) = body.unwrap_or_default();
    if !is_planted(Canary::ChecksumIgnored) {
        StoreError::check_sum(what, "body checksum", header.body_checksum, checksum(body))?;
    }
    if padding.iter().any(|&byte| byte != 0) {
        return Err(StoreError::corrupt(what, "zeros after the body", "other bytes"));
    }
    let (meta, payload) = body.split_at_checked(meta_bytes).unwrap_or_default();
    Ok(Frame { header, meta, payload })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const POOL: PoolId = PoolId([9; 16]);
    const EXPECT: Expect<'_> = Expect { kind: FrameKind::Counts, pool: Some(&POOL), owner: Some(77) };

    fn sample() -> Vec<u8> {
        encode_frame(FrameKind::Counts, &POOL, 77, b"meta part", &[5; 100])
    }

    /// A frame with a hand-changed header and a matching checksum.
    fn with_header(change: impl Fn(&mut [u8])) -> Vec<u8> {
        let mut frame = sample();
        change(&mut frame[..HEADER_COVERED_BYTES]);
        let own = checksum(&frame[..HEADER_COVERED_BYTES]);
        frame[HEADER_COVERED_BYTES..FRAME_HEADER_BYTES].copy_from_slice(&own.to_le_bytes());
        frame
    }

    fn error_of(frame: &[u8]) -> StoreError {
        decode_frame("test frame", frame, &EXPECT, 1 << 20).unwrap_err()
    }

    #[test]
    fn every_kind_is_read_as_it_is_written() {
        let known: Vec<u8> = (0..=u8::MAX).filter(|byte| FrameKind::from_u8(*byte).is_some()).collect();
        assert_eq!(known, (1..=14).chain(16..=30).collect::<Vec<u8>>());
        assert!(known.iter().all(|byte| FrameKind::from_u8(*byte).is_some_and(|kind| kind as u8 == *byte)));
    }

    #[test]
    fn byte_map_is_stable() {
        let frame = encode_frame(FrameKind::Region, &PoolId([0xab; 16]), 0x0102_0304_0506_0708, b"m", b"payload");
        assert_eq!(frame.len(), 128);
        assert_eq!(frame[..8], *b"DDFS\x02\x01\0\0");
        assert_eq!(frame[8..24], [0xab; 16]);
        assert_eq!(frame[24..32], [8, 7, 6, 5, 4, 3, 2, 1]);
        assert_eq!(frame[32..40], [1, 0, 0, 0, 7, 0, 0, 0]);
        assert_eq!(frame[40..48], [0; 8]);
        assert_eq!(frame[48..56], checksum(b"mpayload").to_le_bytes());
        assert_eq!(frame[56..64], checksum(&frame[..56]).to_le_bytes());
        assert_eq!(frame[64..72], *b"mpayload");
        assert_eq!(frame[72..], [0; 56]);
    }

    #[test]
    fn a_head_with_its_payload_behind_it_is_the_frame() {
        for (meta_bytes, payload_bytes) in
            [(0, 0), (1, 0), (0, 64), (20, 1), (700, 300), (1300, 262_144), (63, 1 << 20)]
        {
            let (meta, payload) = (vec![3; meta_bytes], vec![8; payload_bytes]);
            let mut frame = encode_frame_head(FrameKind::Counts, &POOL, 77, &meta, &payload);
            assert_eq!(frame.len(), FRAME_HEADER_BYTES + meta_bytes);
            frame.extend_from_slice(&payload);
            frame.resize(frame.len().next_multiple_of(FRAME_ALIGNMENT_BYTES), 0);
            assert!(frame == encode_frame(FrameKind::Counts, &POOL, 77, &meta, &payload));
            let header = decode_frame("test frame", &frame, &EXPECT, 2 << 20).unwrap().header;
            assert_eq!(header.body_checksum, checksum(&[meta, payload].concat()));
        }
    }

    #[test]
    fn every_flipped_byte_and_every_truncation_is_an_error() {
        let frame = sample();
        decode_frame("test frame", &frame, &EXPECT, 109).unwrap();
        for position in 0..frame.len() {
            for mask in [0x01, 0x80, 0xff] {
                let mut damaged = frame.clone();
                damaged[position] ^= mask;
                assert!(decode_frame("test frame", &damaged, &EXPECT, 1 << 20).is_err(), "byte {position}");
            }
            assert!(decode_frame("test frame", &frame[..position], &EXPECT, 1 << 20).is_err(), "length {position}");
        }
    }

    #[test]
    fn unknown_versions_kinds_and_flags_are_unsupported() {
        for (position, value) in [(5, 2), (4, 200), (6, 1), (45, 1)] {
            let error = error_of(&with_header(|header| header[position] = value));
            assert!(matches!(error, StoreError::Unsupported { .. }), "{error}");
            assert!(error.to_string().contains("newer version"), "{error}");
        }
    }

    #[test]
    fn frames_of_others_are_refused_by_name() {
        let error = error_of(&with_header(|header| header[10] = 1)).to_string();
        assert!(error.contains("two pools"), "{error}");
        let error = error_of(&with_header(|header| header[24] = 1)).to_string();
        assert!(error.contains("owner 0x4d") && error.contains("owner 0x1"), "{error}");
        let error = error_of(&with_header(|header| header[4] = 7)).to_string();
        assert!(error.contains("reference counts") && error.contains("manifest"), "{error}");
    }

    #[test]
    fn lengths_are_bounded_before_they_are_believed() {
        let long = with_header(|header| header[32..40].fill(0xff));
        assert!(error_of(&long).to_string().contains("at most 1048576 body bytes"));
        assert!(decode_frame("test frame", &sample(), &EXPECT, 108).is_err());
        let unlimited = decode_frame("test frame", &long, &EXPECT, usize::MAX).unwrap_err();
        assert!(unlimited.to_string().contains("at most 1073741824"), "{unlimited}");
    }

    proptest! {
        #[test]
        fn frames_round_trip(
            kind in 1_u8..=8,
            owner: u64,
            pool: [u8; 16],
            meta in proptest::collection::vec(any::<u8>(), 0..200),
            payload in proptest::collection::vec(any::<u8>(), 0..500),
            after in proptest::collection::vec(any::<u8>(), 0..10),
        ) {
            let (kind, pool) = (FrameKind::from_u8(kind).unwrap(), PoolId(pool));
            let mut bytes = encode_frame(kind, &pool, owner, &meta, &payload);
            prop_assert!(bytes.len().is_multiple_of(FRAME_ALIGNMENT_BYTES));
            let frame_bytes = bytes.len() as u64;
            bytes.extend(after);
            let expect = Expect { kind, pool: Some(&pool), owner: Some(owner) };
            let frame = decode_frame("frame", &bytes, &expect, 1000).unwrap();
            prop_assert_eq!(frame.meta, &meta[..]);
            prop_assert_eq!(frame.payload, &payload[..]);
            prop_assert_eq!(frame.header.frame_bytes(), frame_bytes);
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(decode_frame("frame", &bytes, &EXPECT, 1000).is_err());
            let mut framed = FRAME_MAGIC.to_vec();
            framed.extend(bytes);
            prop_assert!(decode_frame("frame", &framed, &EXPECT, 1000).is_err());
        }
    }
}
