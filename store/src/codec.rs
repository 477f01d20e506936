//! Little-endian bytes in and out: the only way to read and write this crate's formats.
//!
//! [`ByteReader`] checks every read against the remaining bytes. A decoder built on it cannot panic and cannot read
//! beyond its input. [`ByteWriter`] is its mirror. Both know LEB128 variable-length numbers, and their zigzag form for
//! signed ones. A number has exactly one accepted encoding (overlong ones are refused), so equal values have equal
//! bytes.
//!
//! Cost: reading allocates nothing except error messages.

#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::panic,
        clippy::arithmetic_side_effects
    )
)]

use std::hash::Hasher as _;

use twox_hash::XxHash3_64;

use crate::error::{Result, StoreError};
use crate::fingerprint::{FINGERPRINT_BYTES, Fingerprint};

/// The checksum of every format: xxh3, 64 bits.
pub fn checksum(bytes: &[u8]) -> u64 {
    XxHash3_64::oneshot(bytes)
}

/// The checksum of bytes in several places, as if they lay one behind the other.
pub(crate) fn checksum_of_parts(parts: &[&[u8]]) -> u64 {
    let mut state = XxHash3_64::new();
    parts.iter().for_each(|part| state.write(part));
    state.finish()
}

/// A checksum bound to a context: equal bytes have different checksums in different contexts.
pub fn checksum_seeded(bytes: &[u8], seed: u64) -> u64 {
    XxHash3_64::oneshot_with_seed(seed, bytes)
}

/// Rounds `value` up to a multiple of `alignment` (a power of two), saturating at the type's end.
pub const fn align_up(value: u64, alignment: u64) -> u64 {
    let mask = alignment.saturating_sub(1);
    value.saturating_add(mask) & !mask
}

/// A bounds-checked reader of little-endian values.
///
/// Its errors are [`Corrupt`](StoreError::Corrupt) and name the object given to [`new`](Self::new).
#[derive(Clone, Debug)]
pub struct ByteReader<'a> {
    all: &'a [u8],
    rest: &'a [u8],
    what: &'a str,
}

impl<'a> ByteReader<'a> {
    /// Starts reading `bytes`; `what` names the object in errors, e.g. "table of contents of container 1.7".
    pub const fn new(bytes: &'a [u8], what: &'a str) -> Self {
        Self { all: bytes, rest: bytes, what }
    }

    /// Bytes not read yet.
    pub const fn remaining(&self) -> usize {
        self.rest.len()
    }

    pub(crate) const fn position(&self) -> usize {
        self.all.len().saturating_sub(self.rest.len())
    }

    /// Returns the bytes read since [`position`](Self::position) was `start`; empty if that is no earlier position.
    pub(crate) fn since(&self, start: usize) -> &'a [u8] {
        self.all.get(start..self.position()).unwrap_or_default()
    }

    /// Makes a [`Corrupt`](StoreError::Corrupt) error about the object being read.
    pub fn corrupt(&self, expected: impl std::fmt::Display, found: impl std::fmt::Display) -> StoreError {
        StoreError::corrupt(self.what, expected, found)
    }

    fn too_short(&self, wanted: usize) -> StoreError {
        let expected = format!("{wanted} bytes at offset {}", self.position());
        StoreError::corrupt(self.what, expected, format!("{} bytes", self.rest.len()))
    }

    /// Reads the next `count` bytes.
    pub fn bytes(&mut self, count: usize) -> Result<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(count).ok_or_else(|| self.too_short(count))?;
        self.rest = rest;
        Ok(taken)
    }

    /// Reads the next `N` bytes.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let (taken, rest) = self.rest.split_first_chunk::<N>().ok_or_else(|| self.too_short(N))?;
        self.rest = rest;
        Ok(*taken)
    }

    /// Reads a byte.
    pub fn u8(&mut self) -> Result<u8> {
        self.array().map(u8::from_le_bytes)
    }

    /// Reads two bytes.
    pub fn u16(&mut self) -> Result<u16> {
        self.array().map(u16::from_le_bytes)
    }

    /// Reads four bytes.
    pub fn u32(&mut self) -> Result<u32> {
        self.array().map(u32::from_le_bytes)
    }

    /// Reads eight bytes.
    pub fn u64(&mut self) -> Result<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// Reads eight bytes, two's complement.
    pub fn i64(&mut self) -> Result<i64> {
        self.array().map(i64::from_le_bytes)
    }

    /// Reads a fingerprint.
    pub fn fingerprint(&mut self) -> Result<Fingerprint> {
        self.array::<FINGERPRINT_BYTES>().map(Fingerprint)
    }

    /// Reads a variable-length number: seven bits a byte, lowest first, the high bit set on all but the last.
    pub(crate) fn varint(&mut self) -> Result<u64> {
        let mut value = 0_u64;
        for shift in (0..64_u32).step_by(7) {
            let byte = self.u8()?;
            let bits = u64::from(byte & 0x7f);
            let shifted = bits.checked_shl(shift).unwrap_or(0);
            if shifted.checked_shr(shift) != Some(bits) {
                return Err(self.corrupt("a variable-length number of at most 64 bits", "a longer one"));
            }
            value |= shifted;
            if byte & 0x80 == 0 {
                if byte == 0 && shift > 0 {
                    return Err(self.corrupt("the shortest form of a variable-length number", "a longer one"));
                }
                return Ok(value);
            }
        }
        Err(self.corrupt("a variable-length number of at most 10 bytes", "a longer one"))
    }

    /// Reads a signed variable-length number (zigzag: 0, -1, 1, -2, … are 0, 1, 2, 3, …).
    pub(crate) fn varint_signed(&mut self) -> Result<i64> {
        let value = self.varint()?;
        Ok((value >> 1).cast_signed() ^ 0_i64.wrapping_sub((value & 1).cast_signed()))
    }

    /// Ends the reading: unread bytes are an error.
    pub fn finish(self) -> Result<()> {
        if self.rest.is_empty() {
            return Ok(());
        }
        Err(self.corrupt(format!("{} bytes", self.position()), format!("{} bytes", self.all.len())))
    }
}

/// A writer of little-endian values: the mirror of [`ByteReader`].
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct ByteWriter {
    bytes: Vec<u8>,
}

impl ByteWriter {
    /// Returns an empty writer.
    pub const fn new() -> Self {
        Self { bytes: Vec::new() }
    }

    /// Returns an empty writer with space for `capacity_bytes`.
    pub fn with_capacity(capacity_bytes: usize) -> Self {
        Self { bytes: Vec::with_capacity(capacity_bytes) }
    }

    /// The bytes written so far.
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the written bytes.
    pub fn into_vec(self) -> Vec<u8> {
        self.bytes
    }

    /// Writes bytes unchanged.
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Writes a byte.
    pub fn u8(&mut self, value: u8) {
        self.bytes.push(value);
    }

    /// Writes two bytes.
    pub fn u16(&mut self, value: u16) {
        self.bytes(&value.to_le_bytes());
    }

    /// Writes four bytes.
    pub fn u32(&mut self, value: u32) {
        self.bytes(&value.to_le_bytes());
    }

    /// Writes eight bytes.
    pub fn u64(&mut self, value: u64) {
        self.bytes(&value.to_le_bytes());
    }

    /// Writes eight bytes, two's complement.
    pub fn i64(&mut self, value: i64) {
        self.bytes(&value.to_le_bytes());
    }

    /// Writes a fingerprint.
    pub fn fingerprint(&mut self, fingerprint: &Fingerprint) {
        self.bytes(&fingerprint.0);
    }

    /// Writes a variable-length number, see [`ByteReader::varint`].
    pub(crate) fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.u8((value & 0x7f) as u8 | 0x80);
            value >>= 7;
        }
        self.u8(value as u8);
    }

    /// Writes a signed variable-length number, see [`ByteReader::varint_signed`].
    pub(crate) fn varint_signed(&mut self, value: i64) {
        self.varint(((value << 1) ^ (value >> 63)).cast_unsigned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Length, checksum, and checksum with seed 42.
    const CHECKSUMS: [(usize, u64, u64); 11] = [
        (0, 0x2d06_8005_38d3_94c2, 0xb029_411f_f43d_84d2),
        (1, 0xc44b_dff4_074e_ecdb, 0x5cf1_0f10_bf2d_d245),
        (8, 0x79d0_2238_b80e_37b1, 0x4472_add0_6b15_edf7),
        (16, 0x222e_9aea_d6bd_dd51, 0xd1ba_1dcd_a2f6_778c),
        (17, 0x47aa_d6b3_75eb_4bba, 0x769e_0ffc_22b2_90b3),
        (128, 0x421a_9c90_5c6e_66ba, 0x6bfe_b1b1_0c51_5798),
        (129, 0x9e24_1480_0f83_768a, 0x527b_dc0b_2429_724e),
        (240, 0xb714_c5fd_2274_4964, 0x5dc2_5ead_c00a_1af8),
        (241, 0xbc42_4a2c_480d_d281, 0x5608_9514_715a_4698),
        (1024, 0x1fd1_5e7d_36f5_e1bc, 0x63fe_9bf9_0b75_5f7e),
        (3000, 0x3a23_7995_ed9e_981f, 0x2a11_bb8d_6ef9_4a6c),
    ];

    /// Values of the reference implementation (xxHash 0.8): later readers of a pool must compute the same.
    #[test]
    fn the_checksum_is_xxh3() {
        let bytes: Vec<u8> = (0..3000_u32).map(|number| (number.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        for (len, expected, seeded) in CHECKSUMS {
            let bytes = &bytes[..len];
            assert_eq!((checksum(bytes), checksum_seeded(bytes, 42)), (expected, seeded), "{len} bytes");
            for at in [0, 1, len / 3, len / 2, len] {
                let (head, rest) = bytes.split_at(at.min(len));
                assert_eq!(checksum_of_parts(&[head, &[], rest]), expected, "{len} bytes, cut at {at}");
            }
        }
    }

    #[test]
    fn reads_what_was_written() {
        let fingerprint = Fingerprint([7; FINGERPRINT_BYTES]);
        let mut writer = ByteWriter::new();
        writer.u8(1);
        writer.u16(0x0203);
        writer.u32(0x0405_0607);
        writer.u64(u64::MAX - 1);
        writer.i64(-5);
        writer.fingerprint(&fingerprint);
        writer.bytes(b"xyz");
        writer.bytes(&[0; 6]);
        let bytes = writer.into_vec();
        assert_eq!(bytes[..7], [1, 3, 2, 7, 6, 5, 4], "little-endian");
        let mut reader = ByteReader::new(&bytes, "test");
        assert_eq!(reader.u8().unwrap(), 1);
        assert_eq!(reader.u16().unwrap(), 0x0203);
        assert_eq!(reader.u32().unwrap(), 0x0405_0607);
        assert_eq!(reader.u64().unwrap(), u64::MAX - 1);
        assert_eq!(reader.i64().unwrap(), -5);
        let before = reader.position();
        assert_eq!(reader.fingerprint().unwrap(), fingerprint);
        assert_eq!(reader.since(before), fingerprint.0);
        assert_eq!(reader.bytes(3).unwrap(), b"xyz");
        assert_eq!(reader.remaining(), 6);
        assert!(reader.clone().finish().is_err(), "bytes left over");
        reader.bytes(6).unwrap();
        reader.finish().unwrap();
    }

    #[test]
    fn short_input_is_an_error_that_names_the_object() {
        let mut reader = ByteReader::new(&[1, 2, 3], "thing 7");
        let message = reader.u32().unwrap_err().to_string();
        assert!(message.contains("thing 7") && message.contains("4 bytes at offset 0"), "{message}");
        assert_eq!(reader.remaining(), 3, "a failed read takes nothing");
        assert!(reader.bytes(usize::MAX).is_err());
        assert!(reader.fingerprint().is_err());
    }

    #[test]
    fn overlong_numbers_are_refused() {
        for bytes in [&[0x80, 0x00][..], &[0xff; 11], &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02]] {
            assert!(ByteReader::new(bytes, "number").varint().is_err(), "{bytes:?}");
        }
        let largest = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01];
        assert_eq!(ByteReader::new(&largest, "number").varint().unwrap(), u64::MAX);
    }

    #[test]
    fn aligns_up() {
        assert_eq!(align_up(0, 64), 0);
        assert_eq!(align_up(1, 64), 64);
        assert_eq!(align_up(64, 64), 64);
        assert_eq!(align_up(4097, 4096), 8192);
        assert_eq!(align_up(u64::MAX, 4096), u64::MAX - 4095, "no overflow");
    }

    proptest! {
        #[test]
        fn varints_round_trip(value: u64, shift in 0_u32..64, signed: i64) {
            let mut writer = ByteWriter::new();
            writer.varint(value >> shift);
            prop_assert!(writer.as_slice().len() <= 10);
            writer.varint_signed(signed >> shift);
            let bytes = writer.into_vec();
            let mut reader = ByteReader::new(&bytes, "numbers");
            prop_assert_eq!(reader.varint().unwrap(), value >> shift);
            prop_assert_eq!(reader.varint_signed().unwrap(), signed >> shift);
            reader.finish().unwrap();
        }

        #[test]
        fn equal_numbers_have_equal_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..12)) {
            let mut reader = ByteReader::new(&bytes, "number");
            if let Ok(value) = reader.varint() {
                let mut writer = ByteWriter::new();
                writer.varint(value);
                prop_assert_eq!(writer.as_slice(), reader.since(0));
            }
        }
    }
}
