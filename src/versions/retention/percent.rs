//! A share of a disk, such as `80%`.

use std::fmt;
use std::str::FromStr;

use dedupfs_store::StoreError;

/// A share in whole percent, 1 to 100.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Percent(u8);

impl Percent {
    /// Returns the share, unless it is out of range.
    pub const fn new(percent: u8) -> Option<Self> {
        match percent {
            1..=100 => Some(Self(percent)),
            _ => None,
        }
    }

    /// Returns the share in percent, 1 to 100.
    pub const fn get(self) -> u8 {
        self.0
    }

    /// Whether `used_bytes` are at most this share of `total_bytes`.
    pub fn covers(self, used_bytes: u64, total_bytes: u64) -> bool {
        u128::from(used_bytes) * 100 <= u128::from(total_bytes) * u128::from(self.0)
    }
}

impl fmt::Display for Percent {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}%", self.0)
    }
}

impl FromStr for Percent {
    type Err = StoreError;

    /// Reads `80%` or `80`.
    fn from_str(text: &str) -> Result<Self, StoreError> {
        let digits = text.strip_suffix('%').unwrap_or(text);
        let number = digits.parse().ok().filter(|_| digits.bytes().all(|letter| letter.is_ascii_digit()));
        number
            .and_then(Self::new)
            .ok_or_else(|| StoreError::Usage(format!("`{text}` is no share of a disk: write 1% to 100%, such as 80%")))
    }
}
