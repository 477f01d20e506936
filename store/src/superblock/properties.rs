//! The properties of a pool, their names and their limits.

use std::fmt;
use std::str::FromStr;

use crate::container::{Compression, ZSTD_LEVELS};
use crate::device::DIRECT_ALIGNMENT_BYTES;
use crate::error::{Result, StoreError};

/// Limits of the average chunk size in bytes.
pub const CHUNK_SIZE_BYTES: std::ops::RangeInclusive<u32> = 4096..=65_536;

/// Limits of the container size in bytes. A container must also hold [`CHUNKS_PER_CONTAINER_MIN`] average chunks.
const CONTAINER_BYTES: std::ops::RangeInclusive<u32> = 65_536..=67_108_864;

/// Fewest chunks of average size that a container must hold.
const CHUNKS_PER_CONTAINER_MIN: u32 = 8;

/// Limits of the number of slots in one container file.
pub(super) const SLOTS_PER_FILE: std::ops::RangeInclusive<u32> = 1..=65_536;

/// Limits of the number of fingerprints in one tanker of the index. An open tanker is held in memory.
const TANKER_CELLS: std::ops::RangeInclusive<u32> = 64..=1 << 26;

/// Limits of the number of buckets of one tanker, a power of two.
const TANKER_BUCKETS: std::ops::RangeInclusive<u32> = 1..=65_536;

const _: () = assert!(*CONTAINER_BYTES.end() >= *CHUNK_SIZE_BYTES.end() * CHUNKS_PER_CONTAINER_MIN);

/// The method that cuts content into chunks.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum ChunkerKind {
    /// `MinCDC`.
    MinCdc = 1,
    /// `FastCDC`, 2020 version.
    FastCdc = 2,
}

impl ChunkerKind {
    const ALL: [Self; 2] = [Self::MinCdc, Self::FastCdc];

    pub(super) fn from_u8(byte: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u8 == byte)
    }
}

impl fmt::Display for ChunkerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::MinCdc => "mincdc",
            Self::FastCdc => "fastcdc",
        })
    }
}

impl FromStr for ChunkerKind {
    type Err = StoreError;

    fn from_str(text: &str) -> Result<Self> {
        parse("chunker", text, Self::ALL)
    }
}

/// The hash function of the pool.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum FingerprintAlgorithm {
    /// BLAKE3, 32 bytes.
    Blake3 = 1,
    /// SHA-1, 20 bytes: the papers' setting.
    Sha1 = 2,
}

impl FingerprintAlgorithm {
    const ALL: [Self; 2] = [Self::Blake3, Self::Sha1];

    pub(super) fn from_u8(byte: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u8 == byte)
    }
}

impl fmt::Display for FingerprintAlgorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Blake3 => "blake3",
            Self::Sha1 => "sha1",
        })
    }
}

impl FromStr for FingerprintAlgorithm {
    type Err = StoreError;

    fn from_str(text: &str) -> Result<Self> {
        parse("fingerprint", text, Self::ALL)
    }
}

fn parse<T: fmt::Display>(what: &str, text: &str, all: [T; 2]) -> Result<T> {
    let [first, second] = &all;
    let refusal = StoreError::Usage(format!("unknown {what} {text:?}: use {first} or {second}"));
    all.into_iter().find(|known| known.to_string() == text).ok_or(refusal)
}

/// The properties that are chosen when a pool is formatted and never change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PoolProperties {
    /// The method that cuts content into chunks.
    pub chunker: ChunkerKind,
    /// Average chunk size in bytes.
    pub chunk_size_bytes: u32,
    /// The hash function.
    pub fingerprint: FingerprintAlgorithm,
    /// The compression of regions.
    pub compression: Compression,
    /// Size of a container in bytes.
    pub container_bytes: u32,
    /// Containers in one slot file.
    pub slots_per_file: u32,
    /// Fingerprints in a sealed tanker of the index.
    pub tanker_cells: u32,
    /// Buckets of a tanker: a lookup reads one bucket.
    pub tanker_buckets: u32,
}

impl Default for PoolProperties {
    /// `MinCDC` of 8 KiB, BLAKE3, zstd level 1, 256 containers of 4 MiB a file, tankers of 2^20 fingerprints (MAD2) in
    /// 2048 buckets of 22 KiB.
    fn default() -> Self {
        Self {
            chunker: ChunkerKind::MinCdc,
            chunk_size_bytes: 8 << 10,
            fingerprint: FingerprintAlgorithm::Blake3,
            compression: Compression::Zstd(1),
            container_bytes: 4 << 20,
            slots_per_file: 256,
            tanker_cells: 1 << 20,
            tanker_buckets: 2048,
        }
    }
}

impl PoolProperties {
    /// Checks every property against its limits. The error text is for the user.
    pub(super) fn check(&self) -> Result<()> {
        let within = |what: &str, value: u32, limits: std::ops::RangeInclusive<u32>| {
            if limits.contains(&value) {
                return Ok(());
            }
            let (low, high) = limits.into_inner();
            Err(StoreError::Usage(format!("{what} must be between {low} and {high}, not {value}")))
        };
        within("the average chunk size in bytes", self.chunk_size_bytes, CHUNK_SIZE_BYTES)?;
        within("the container size in bytes", self.container_bytes, CONTAINER_BYTES)?;
        within("the number of containers in a file", self.slots_per_file, SLOTS_PER_FILE)?;
        within("the number of fingerprints in a tanker", self.tanker_cells, TANKER_CELLS)?;
        within("the number of buckets of a tanker", self.tanker_buckets, TANKER_BUCKETS)?;
        let (buckets, container_bytes) = (self.tanker_buckets, self.container_bytes);
        if !buckets.is_power_of_two() {
            let message = format!("the number of buckets of a tanker must be a power of two, not {buckets}");
            return Err(StoreError::Usage(message));
        }
        if !(container_bytes as usize).is_multiple_of(DIRECT_ALIGNMENT_BYTES) {
            return Err(StoreError::Usage(format!(
                "the container size must be a multiple of {DIRECT_ALIGNMENT_BYTES} bytes, not {container_bytes}"
            )));
        }
        if self.container_bytes / CHUNKS_PER_CONTAINER_MIN < self.chunk_size_bytes {
            return Err(StoreError::Usage(format!(
                "containers of {} bytes are too small for chunks of {} bytes: take at least {} times as much",
                self.container_bytes, self.chunk_size_bytes, CHUNKS_PER_CONTAINER_MIN
            )));
        }
        match self.compression {
            Compression::Zstd(level) if !ZSTD_LEVELS.contains(&level) => {
                Err(StoreError::Usage(format!("the zstd level must be between 1 and 19, not {level}")))
            }
            Compression::Zstd(_) | Compression::None => Ok(()),
        }
    }
}
