//! Names of objects.

use std::fmt;

use super::{ObjectError, Result};

/// Longest key in bytes. Stores take 1,024, of which the administrator's prefix needs some.
pub const KEY_BYTES_MAX: usize = 200;

/// The name of an object: parts of `a` to `z`, digits and `-`, separated by `/`. Such names mean the same in every store, also as names
/// of files.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(String);

impl Key {
    /// Checks a name.
    ///
    /// # Errors
    /// [`BadKey`](ObjectError::BadKey)
    pub fn new(name: impl Into<String>) -> Result<Self> {
        let name = name.into();
        let is_part =
            |part: &str| !part.is_empty() && part.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-'));
        if name.len() <= KEY_BYTES_MAX && name.split('/').all(is_part) {
            return Ok(Self(name));
        }
        Err(ObjectError::BadKey { name })
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_means_the_same_everywhere() {
        for good in ["format", "c/3f/0000000100000042", "reader/0b9d-77/1", "-", &"x".repeat(KEY_BYTES_MAX)] {
            assert_eq!(Key::new(good).map(|key| key.to_string()).ok().as_deref(), Some(good));
        }
        let long = "x".repeat(KEY_BYTES_MAX + 1);
        for bad in ["", "/", "/a", "a/", "a//b", ".", "a/../b", "A", "a b", "a\0", "ä", "a.new-1", "a%2f", &long] {
            assert!(matches!(Key::new(bad), Err(ObjectError::BadKey { .. })), "{bad:?}");
        }
    }
}
