//! Identities of pools and containers.

use std::fmt;

/// A pool's random identity of 128 bits, carried by every frame of the pool.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PoolId(pub [u8; 16]);

impl fmt::Display for PoolId {
    /// Writes the usual 8-4-4-4-12 form of a UUID.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, byte) in self.0.iter().enumerate() {
            if matches!(position, 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

/// A container's identity: writer epoch (24 bits), then sequence (40 bits). An id is never used twice in a pool, so
/// several writers can name containers without coordination, and a stale hint can never name other bytes. Zero means
/// "no container known".
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct ContainerId(pub u64);

impl ContainerId {
    /// No container known.
    pub const NONE: Self = Self(0);
    /// Highest writer epoch.
    pub const EPOCH_MAX: u32 = (1 << 24) - 1;
    const SEQUENCE_MAX: u64 = (1 << 40) - 1;

    /// The id of container `sequence` of writer epoch `epoch`; `None` if either is out of range.
    pub const fn new(epoch: u32, sequence: u64) -> Option<Self> {
        if epoch > Self::EPOCH_MAX || sequence > Self::SEQUENCE_MAX {
            return None;
        }
        Some(Self((epoch as u64) << 40 | sequence))
    }

    /// The writer epoch.
    pub const fn epoch(self) -> u32 {
        (self.0 >> 40) as u32
    }

    /// The sequence within the epoch.
    const fn sequence(self) -> u64 {
        self.0 & Self::SEQUENCE_MAX
    }
}

impl fmt::Display for ContainerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.epoch(), self.sequence())
    }
}

/// The content of a container. It also decides the root.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum ContainerKind {
    /// Chunks of file content, on the data root.
    Data = 1,
    /// Recipe nodes, on the meta root.
    Recipe = 2,
}

impl ContainerKind {
    /// Returns the kind for a byte of a format.
    pub const fn from_u8(byte: u8) -> Option<Self> {
        match byte {
            1 => Some(Self::Data),
            2 => Some(Self::Recipe),
            _ => None,
        }
    }
}
