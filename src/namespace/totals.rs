//! Sums over all inodes, kept current so that statfs and statistics need no scan.

use dedupfs_service::FileKind;

use super::inode::Inode;

/// Sums over all inodes (or a difference of such sums). Orphans count until they are dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Totals {
    /// Regular files.
    pub files: i64,
    /// Directories, including the root.
    pub directories: i64,
    /// All other inodes.
    pub others: i64,
    /// Lengths of regular files.
    pub logical_bytes: i64,
    /// Bytes of regular files that are not holes.
    pub data_bytes: i64,
}

impl Totals {
    /// Number of sums.
    pub(super) const FIELDS: usize = 5;

    /// Number of inodes.
    #[must_use]
    pub fn inodes(&self) -> i64 {
        self.files + self.directories + self.others
    }

    /// Returns the contribution of one inode.
    pub(super) fn of(inode: &Inode) -> Self {
        let zero = Self::default();
        match inode.kind {
            FileKind::Regular => Self {
                files: 1,
                logical_bytes: inode.size_bytes.cast_signed(),
                data_bytes: inode.data_bytes.cast_signed(),
                ..zero
            },
            // Of a version: those of its files.
            FileKind::Directory => {
                let data_bytes = inode.data_bytes.cast_signed();
                Self { directories: 1, logical_bytes: data_bytes, data_bytes, ..zero }
            }
            _ => Self { others: 1, ..zero },
        }
    }

    pub(super) fn as_array(&self) -> [i64; Self::FIELDS] {
        [self.files, self.directories, self.others, self.logical_bytes, self.data_bytes]
    }

    pub(super) fn from_array([files, directories, others, logical_bytes, data_bytes]: [i64; Self::FIELDS]) -> Self {
        Self { files, directories, others, logical_bytes, data_bytes }
    }

    fn combine(&self, other: &Self, with: fn(i64, i64) -> i64) -> Self {
        let (left, right) = (self.as_array(), other.as_array());
        Self::from_array(std::array::from_fn(|position| with(left[position], right[position])))
    }

    /// Returns the sum of both. It wraps, because sizes of sparse files may sum up to anything.
    pub(super) fn plus(&self, other: &Self) -> Self {
        self.combine(other, i64::wrapping_add)
    }

    /// Returns the difference.
    pub(super) fn minus(&self, other: &Self) -> Self {
        self.combine(other, i64::wrapping_sub)
    }
}
