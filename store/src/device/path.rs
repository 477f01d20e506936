//! Rules for paths and ranges, the same for every [`Device`](super::Device).

use std::io;

use super::OpenMode;
use crate::error::{Result, StoreError};

pub(super) const PATH_BYTES_MAX: usize = 1024;

/// Longest file in bytes: offsets are signed in the kernel's interface.
pub(crate) const FILE_BYTES_MAX: u64 = i64::MAX as u64;

/// Checks a path of a file: relative, `/`-separated, no empty, `.` or `..` component, no NUL.
pub(super) fn check_file(path: &str) -> Result<()> {
    let is_sound = |part: &str| !part.is_empty() && part != "." && part != ".." && !part.contains('\0');
    if path.len() > PATH_BYTES_MAX || !path.split('/').all(is_sound) {
        return Err(StoreError::Usage(format!("{path:?} is not a path within a pool")));
    }
    Ok(())
}

/// Checks a path of a directory: as [`check_file`], and "" is the root.
pub(super) fn check_directory(path: &str) -> Result<()> {
    if path.is_empty() { Ok(()) } else { check_file(path) }
}

/// Splits a path into its parent directory ("" is the root) and its name.
pub(super) fn split(path: &str) -> (&str, &str) {
    path.rsplit_once('/').unwrap_or(("", path))
}

/// Returns the end of a range of a file; an error if it lies beyond the longest file.
pub(super) fn range_end(path: &str, offset: u64, len_bytes: u64) -> Result<u64> {
    match offset.checked_add(len_bytes) {
        Some(end) if end <= FILE_BYTES_MAX => Ok(end),
        _ => Err(StoreError::Usage(format!("{len_bytes} bytes at {offset} of {path} lie beyond the longest file"))),
    }
}

/// Refuses a change through a file that was opened with [`OpenMode::Read`].
pub(super) fn check_writable(path: &str, mode: OpenMode) -> Result<()> {
    match mode {
        OpenMode::Read => Err(StoreError::Usage(format!("{path} was opened for reading only"))),
        _ => Ok(()),
    }
}

/// Makes the error of a refused operation that is not the system's.
pub(super) fn failure(operation: &'static str, path: &str, kind: io::ErrorKind) -> StoreError {
    StoreError::from_io(operation, path, kind.into())
}

/// The path's prefixes that end at a component, shortest first: "a/b" gives "a", "a/b".
pub(super) fn prefixes(path: &str) -> impl Iterator<Item = &str> {
    let ends = path.match_indices('/').map(|(position, _)| position).chain((!path.is_empty()).then_some(path.len()));
    ends.filter_map(|end| path.get(..end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_relative_paths_below_the_root_are_accepted() {
        for good in ["a", "a/b", "index/chunks/t-1-2.tanker", "..a", "a..", "...", "ä"] {
            assert!(check_file(good).is_ok(), "{good}");
        }
        for bad in ["", "/", "/a", "a/", "a//b", ".", "..", "a/../b", "a/./b", "a\0b"] {
            assert!(matches!(check_file(bad), Err(StoreError::Usage(_))), "{bad:?}");
        }
        assert!(check_directory("").is_ok());
        assert!(check_directory("/").is_err());
        assert!(check_file(&"x".repeat(PATH_BYTES_MAX)).is_ok());
        assert!(check_file(&"x".repeat(PATH_BYTES_MAX + 1)).is_err());
    }

    #[test]
    fn ranges_end_before_the_longest_file() {
        assert_eq!(range_end("f", 1, 2).ok(), Some(3));
        assert!(range_end("f", FILE_BYTES_MAX, 0).is_ok());
        assert!(range_end("f", FILE_BYTES_MAX, 1).is_err());
        assert!(range_end("f", u64::MAX, 1).is_err());
    }

    #[test]
    fn split_names_the_parent() {
        assert_eq!(split("a"), ("", "a"));
        assert_eq!(split("a/b/c"), ("a/b", "c"));
    }
}
