//! The version of an image, as it shows in the mount.

use std::io;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use dedupfs::transfer::{CHECKED_XATTR, TOKEN_BYTES_MAX, TOKEN_XATTR};
use rustix::io::Errno;

/// What a version of one image tells.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ImageVersion {
    pub(crate) size_bytes: u64,
    /// The state of the source.
    pub(crate) token: Option<String>,
    /// When all of it was last compared with its source.
    pub(crate) checked: Option<SystemTime>,
}

impl ImageVersion {
    /// Looks at a version; `None` if it is not that of one image. What cannot be read is no reason to put nothing.
    pub(crate) fn of(version: &Path) -> io::Result<Option<Self>> {
        let mut entries = std::fs::read_dir(version)?;
        let (Some(first), None) = (entries.next(), entries.next()) else { return Ok(None) };
        let file = first?.path();
        let metadata = std::fs::symlink_metadata(&file)?;
        if !metadata.is_file() {
            return Ok(None);
        }
        let attribute = |name: &[u8]| {
            let mut value = vec![0; TOKEN_BYTES_MAX + 1];
            match rustix::fs::lgetxattr(&file, name, &mut value) {
                // What is no text, or longer, no put wrote.
                Ok(len) => Ok(String::from_utf8(value.get(..len).unwrap_or_default().to_vec()).ok()),
                Err(Errno::NODATA | Errno::RANGE | Errno::OPNOTSUPP) => Ok(None),
                Err(errno) => Err(io::Error::from(errno)),
            }
        };
        let checked = attribute(CHECKED_XATTR)?.and_then(|secs| secs.parse().ok());
        Ok(Some(Self {
            size_bytes: metadata.len(),
            token: attribute(TOKEN_XATTR)?,
            checked: checked.and_then(|secs| UNIX_EPOCH.checked_add(Duration::from_secs(secs))),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_that_cannot_be_read_is_told_apart_from_one_of_no_image() {
        let directory = tempfile::tempdir().expect("makes");
        let version = directory.path().join("1");
        assert!(ImageVersion::of(&version).is_err(), "it is gone");
        std::fs::create_dir(&version).expect("makes");
        assert!(ImageVersion::of(&version).expect("reads").is_none(), "it is empty");
        std::fs::write(version.join("disk0"), [7; 4096]).expect("writes");
        let found = ImageVersion::of(&version).expect("reads").expect("is an image");
        assert_eq!(found, ImageVersion { size_bytes: 4096, token: None, checked: None });
        std::fs::write(version.join("disk1"), []).expect("writes");
        assert!(ImageVersion::of(&version).expect("reads").is_none(), "it has two files");
    }
}
