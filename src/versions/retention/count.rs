//! The number of a rule such as `--keep-daily 7`.

use std::fmt;
use std::str::FromStr;

use dedupfs_store::StoreError;

/// A number of versions or periods, or all of them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Count(u32);

impl Count {
    /// No limit.
    pub const ALL: Self = Self(u32::MAX);

    /// Returns the count of that number; 0 keeps nothing, and [`u32::MAX`] is [`ALL`](Self::ALL).
    pub const fn new(number: u32) -> Self {
        Self(number)
    }

    /// Returns the number; [`u32::MAX`] stands for all.
    pub const fn get(self) -> u32 {
        self.0
    }

    /// Whether the count reaches to this place; the first place is 1.
    pub(super) fn reaches(self, place: u64) -> bool {
        self == Self::ALL || place <= u64::from(self.0)
    }
}

impl fmt::Display for Count {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::ALL => formatter.write_str("all"),
            Self(number) => write!(formatter, "{number}"),
        }
    }
}

impl FromStr for Count {
    type Err = StoreError;

    /// Reads `7` or `all`. `unlimited` and `-1` mean all, as they do for restic.
    fn from_str(text: &str) -> Result<Self, StoreError> {
        if ["all", "unlimited", "-1"].contains(&text) {
            return Ok(Self::ALL);
        }
        let number = text.parse().ok().filter(|_| text.bytes().all(|letter| letter.is_ascii_digit()));
        number.map(Self).filter(|count| *count != Self::ALL).ok_or_else(|| {
            StoreError::Usage(format!("`{text}` is no number of versions to keep: write a number such as 7, or all"))
        })
    }
}
