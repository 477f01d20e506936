//! The properties of a pool, their names and their limits.

use std::fmt;
use std::str::FromStr;

use crate::container::Compression;
use crate::error::{Result, StoreError};

/// Limits of the average chunk size in bytes.
pub const CHUNK_SIZE_BYTES: std::ops::RangeInclusive<u32> = 4096..=65_536;

/// Limits of the container size in bytes. A container must also hold [`CHUNKS_PER_CONTAINER_MIN`] average chunks.
pub const CONTAINER_BYTES: std::ops::RangeInclusive<u32> = 65_536..=67_108_864;

/// Fewest chunks of average size that a container must hold.
pub const CHUNKS_PER_CONTAINER_MIN: u32 = 8;

/// Limits of the number of slots in one container file.
pub const SLOTS_PER_FILE: std::ops::RangeInclusive<u32> = 1..=65_536;

/// Limits of the number of fingerprints in one tanker of the index. An open tanker is held in memory.
pub const TANKER_CELLS: std::ops::RangeInclusive<u32> = 64..=1 << 26;

/// Limits of the number of buckets of one tanker, a power of two.
pub const TANKER_BUCKETS: std::ops::RangeInclusive<u32> = 1..=65_536;

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
    pub(super) const fn from_u8(byte: u8) -> Option<Self> {
        match byte {
            1 => Some(Self::MinCdc),
            2 => Some(Self::FastCdc),
            _ => None,
        }
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
        match text {
            "mincdc" => Ok(Self::MinCdc),
            "fastcdc" => Ok(Self::FastCdc),
            _ => Err(StoreError::Usage(format!("unknown chunker {text:?}: use mincdc or fastcdc"))),
        }
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
    pub(super) const fn from_u8(byte: u8) -> Option<Self> {
        match byte {
            1 => Some(Self::Blake3),
            2 => Some(Self::Sha1),
            _ => None,
        }
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
        match text {
            "blake3" => Ok(Self::Blake3),
            "sha1" => Ok(Self::Sha1),
            _ => Err(StoreError::Usage(format!("unknown fingerprint {text:?}: use blake3 or sha1"))),
        }
    }
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
    pub fn check(&self) -> Result<()> {
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
        if !self.tanker_buckets.is_power_of_two() {
            let found = self.tanker_buckets;
            return Err(StoreError::Usage(format!(
                "the number of buckets of a tanker must be a power of two, not {found}"
            )));
        }
        if !(self.container_bytes as usize).is_multiple_of(crate::device::DIRECT_ALIGNMENT_BYTES) {
            return Err(StoreError::Usage(format!(
                "the container size must be a multiple of {} bytes, not {}",
                crate::device::DIRECT_ALIGNMENT_BYTES,
                self.container_bytes
            )));
        }
        if self.container_bytes / CHUNKS_PER_CONTAINER_MIN < self.chunk_size_bytes {
            return Err(StoreError::Usage(format!(
                "containers of {} bytes are too small for chunks of {} bytes: take at least {} times as much",
                self.container_bytes, self.chunk_size_bytes, CHUNKS_PER_CONTAINER_MIN
            )));
        }
        match self.compression {
            Compression::Zstd(level) if !(1..=19).contains(&level) => {
                Err(StoreError::Usage(format!("the zstd level must be between 1 and 19, not {level}")))
            }
            Compression::Zstd(_) | Compression::None => Ok(()),
        }
    }
}
