//! The disk side of a transfer: reads and writes attributes in its filesystem.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::PathBuf;

use dedupfs_service::{AttributeChanges, Attributes, FileKind, TimeChange, Timestamp};
use rustix::fs::{AtFlags, FileType, Gid, Mode, RawDirEntry, Stat, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;

/// Longest list of names, and longest value, in Linux: XATTR_LIST_MAX and XATTR_SIZE_MAX.
const XATTR_BYTES_MAX: usize = 64 << 10;

/// A file by its descriptor, or by its name in a directory if it cannot be opened.
#[derive(Clone, Copy)]
pub(super) enum Place<'a> {
    Open(BorrowedFd<'a>),
    Named(BorrowedFd<'a>, &'a CStr),
}

/// A path to a name in an open directory, for calls that take only paths.
fn path_of(directory: BorrowedFd<'_>, name: &CStr) -> Vec<u8> {
    let mut path = format!("/proc/self/fd/{}/", directory.as_raw_fd()).into_bytes();
    path.extend_from_slice(name.to_bytes());
    path
}

impl Place<'_> {
    fn list_xattrs(self, buffer: &mut [u8]) -> rustix::io::Result<usize> {
        match self {
            Self::Open(file) => rustix::fs::flistxattr(file, buffer),
            Self::Named(directory, name) => rustix::fs::llistxattr(path_of(directory, name), buffer),
        }
    }

    fn xattr(self, name: &CStr, buffer: &mut [u8]) -> rustix::io::Result<usize> {
        match self {
            Self::Open(file) => rustix::fs::fgetxattr(file, name, buffer),
            Self::Named(directory, file) => rustix::fs::lgetxattr(path_of(directory, file), name, buffer),
        }
    }

    /// Calls `each` with name and value of every extended attribute. `space` holds the longest of both.
    pub(super) fn for_each_xattr<E>(
        self,
        space: &mut XattrSpace,
        trouble: impl Fn(Errno) -> E,
        mut each: impl FnMut(&CStr, &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let len = match self.list_xattrs(&mut space.names) {
            // The file has none, or the filesystem does not support them.
            Ok(0) | Err(Errno::OPNOTSUPP) => return Ok(()),
            Ok(len) => len,
            Err(errno) => return Err(trouble(errno)),
        };
        let mut rest = space.names.get(..len).unwrap_or_default();
        while let Ok(name) = CStr::from_bytes_until_nul(rest) {
            rest = rest.get(name.count_bytes() + 1..).unwrap_or_default();
            match self.xattr(name, &mut space.value) {
                Ok(len) => each(name, space.value.get(..len).unwrap_or_default())?,
                // Removed since, or listed but not readable.
                Err(Errno::NODATA | Errno::OPNOTSUPP) => {}
                Err(errno) => return Err(trouble(errno)),
            }
        }
        Ok(())
    }

    pub(super) fn set_xattr(self, name: &CStr, value: &[u8]) -> rustix::io::Result<()> {
        match self {
            Self::Open(file) => rustix::fs::fsetxattr(file, name, value, XattrFlags::empty()),
            Self::Named(directory, file) => {
                rustix::fs::lsetxattr(path_of(directory, file), name, value, XattrFlags::empty())
            }
        }
    }

    /// Sets mode and times as in the pool. Extended attributes are set before.
    pub(super) fn set_attributes(self, attributes: &Attributes) -> rustix::io::Result<()> {
        let times =
            Timestamps { last_access: timespec(attributes.atime), last_modification: timespec(attributes.mtime) };
        let mode = Mode::from_raw_mode(attributes.mode.into());
        match self {
            Self::Open(file) => {
                rustix::fs::fchmod(file, mode)?;
                rustix::fs::futimens(file, &times)
            }
            Self::Named(directory, name) => {
                if attributes.kind != FileKind::Symlink {
                    rustix::fs::chmodat(directory, name, mode, AtFlags::empty())?;
                }
                rustix::fs::utimensat(directory, name, &times, AtFlags::SYMLINK_NOFOLLOW)
            }
        }
    }

    /// Sets the owner and the group. An ordinary user may not set the owner; then only the group is set, if possible.
    ///
    /// # Errors
    /// The owner or group could not be set, except for lack of the right as an ordinary user. In all these cases the set-ID bits are
    /// removed from `attributes`, because they would lend the rights of the wrong owner.
    pub(super) fn set_owner(self, attributes: &mut Attributes) -> rustix::io::Result<()> {
        let gid = Some(Gid::from_raw(attributes.gid));
        let chown = |uid: Option<Uid>| match self {
            Self::Open(file) => rustix::fs::fchown(file, uid, gid),
            Self::Named(directory, name) => rustix::fs::chownat(directory, name, uid, gid, AtFlags::SYMLINK_NOFOLLOW),
        };
        let outcome = chown(Some(Uid::from_raw(attributes.uid)));
        if outcome.is_err() {
            attributes.mode &= !0o6000;
        }
        match outcome {
            Err(Errno::PERM) if !rustix::process::geteuid().is_root() => {
                let _as_far_as_it_goes = chown(None);
                Ok(())
            }
            outcome => outcome,
        }
    }

    /// Removes the access lists inherited from the directory above.
    pub(super) fn clear_inherited(self) -> rustix::io::Result<()> {
        for name in [c"system.posix_acl_default", c"system.posix_acl_access"] {
            let removed = match self {
                Self::Open(file) => rustix::fs::fremovexattr(file, name),
                Self::Named(directory, file) => rustix::fs::lremovexattr(path_of(directory, file), name),
            };
            match removed {
                Ok(()) | Err(Errno::NODATA | Errno::OPNOTSUPP) => {}
                // A file has no default list that could be removed.
                Err(Errno::ACCESS) if name == c"system.posix_acl_default" => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }
}

/// Whether an attribute exists only on some filesystems, or only the superuser may set it. Such attributes are skipped where they are not
/// taken, as `cp -a` does.
pub(super) fn is_optional(name: &[u8]) -> bool {
    !name.starts_with(b"user.") && !name.starts_with(b"system.posix_acl_")
}

/// Buffers for names and a value of extended attributes.
pub(super) struct XattrSpace {
    names: Vec<u8>,
    value: Vec<u8>,
}

impl Default for XattrSpace {
    fn default() -> Self {
        Self { names: vec![0; XATTR_BYTES_MAX], value: vec![0; XATTR_BYTES_MAX] }
    }
}

fn timespec(time: Timestamp) -> Timespec {
    Timespec { tv_sec: time.secs, tv_nsec: time.nanos.into() }
}

/// Returns the kind of a file from the mode in `stat`.
pub(super) fn kind_of(stat: &Stat) -> Option<FileKind> {
    Some(match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => FileKind::Regular,
        FileType::Directory => FileKind::Directory,
        FileType::Symlink => FileKind::Symlink,
        FileType::CharacterDevice => FileKind::CharDevice,
        FileType::BlockDevice => FileKind::BlockDevice,
        FileType::Fifo => FileKind::Fifo,
        FileType::Socket => FileKind::Socket,
        FileType::Unknown => return None,
    })
}

/// Returns the file type for mknod(2).
pub(super) fn file_type(kind: FileKind) -> FileType {
    match kind {
        FileKind::Regular => FileType::RegularFile,
        FileKind::Directory => FileType::Directory,
        FileKind::Symlink => FileType::Symlink,
        FileKind::CharDevice => FileType::CharacterDevice,
        FileKind::BlockDevice => FileType::BlockDevice,
        FileKind::Fifo => FileType::Fifo,
        FileKind::Socket => FileType::Socket,
    }
}

/// Owner, mode and times as in `stat`.
pub(super) fn changes_of(stat: &Stat) -> AttributeChanges {
    let time = |secs, nanos: u64| Some(TimeChange::At(Timestamp { secs, nanos: u32::try_from(nanos).unwrap_or(0) }));
    AttributeChanges {
        mode: Some((stat.st_mode & 0o7777) as u16),
        uid: Some(stat.st_uid),
        gid: Some(stat.st_gid),
        atime: time(stat.st_atime, stat.st_atime_nsec),
        mtime: time(stat.st_mtime, stat.st_mtime_nsec),
        ..AttributeChanges::default()
    }
}

/// Returns the kind of an entry of the directory `from`; some filesystems do not tell it in their listings.
pub(super) fn listed_kind(from: impl AsFd, entry: &RawDirEntry<'_>) -> FileType {
    match entry.file_type() {
        FileType::Unknown => rustix::fs::statat(from, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW)
            .map_or(FileType::Unknown, |stat| FileType::from_raw_mode(stat.st_mode)),
        kind => kind,
    }
}

/// Encodes a device number in 32 bits, as the pool keeps it (Linux' `new_encode_dev`); `None` if it does not fit.
pub(super) fn encode_device(number: u64) -> Option<u32> {
    let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
    (major < 1 << 12 && minor < 1 << 20).then_some((minor & 0xff) | (major << 8) | ((minor & !0xff) << 12))
}

pub(super) fn decode_device(number: u32) -> u64 {
    rustix::fs::makedev((number >> 8) & 0xfff, (number & 0xff) | ((number >> 12) & 0xf_ff00))
}

/// A name as the kernel takes it; `None` if it contains a zero byte.
pub(super) fn c_name(name: &[u8]) -> Option<CString> {
    CString::new(name).ok()
}

/// The path of `name` below a directory. `ways` names the directories from the lowest to the top.
pub(super) fn path_below<'a>(ways: impl Iterator<Item = &'a [u8]>, name: &[u8]) -> PathBuf {
    use std::os::unix::ffi::OsStrExt;
    let mut names: Vec<&[u8]> = ways.collect();
    names.reverse();
    let mut path: PathBuf = names.into_iter().map(std::ffi::OsStr::from_bytes).collect();
    path.push(std::ffi::OsStr::from_bytes(name));
    path
}

/// Whether a directory that was just made is the one that was opened, and not another user's, put there meanwhile.
pub(super) fn is_own(above: &Stat, made: &Stat) -> bool {
    let uid = rustix::process::geteuid().as_raw();
    let is_ours = |stat: &Stat| stat.st_uid == uid || stat.st_uid == 0;
    // Where no other user may rename, none has. Some filesystems (FAT, network filesystems) give all files one owner and one mode.
    let only_we_rename = above.st_mode & 0o022 == 0 || above.st_mode & 0o1000 != 0;
    (is_ours(above) && only_we_rename) || (made.st_uid == uid && made.st_mode & 0o077 == 0)
}

/// The path of a tree's top.
pub(super) fn path_of_top(name: &CStr) -> PathBuf {
    path_below(std::iter::empty(), name.to_bytes())
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_come_back() {
        for (major, minor) in [(0, 0), (1, 3), (259, 70_000), (0xfff, 0xf_ffff), (8, 255), (8, 256)] {
            let number = rustix::fs::makedev(major, minor);
            assert_eq!(encode_device(number).map(decode_device), Some(number), "{major}:{minor}");
        }
        assert_eq!(encode_device(rustix::fs::makedev(0x1000, 0)), None);
    }

    #[test]
    fn a_directory_may_be_anothers_only_where_nobody_else_could_put_it() {
        let directory = tempfile::tempdir().unwrap();
        let uid = rustix::process::geteuid().as_raw();
        let stat = |uid: u32, mode: u32| {
            let mut stat = rustix::fs::stat(directory.path()).unwrap();
            (stat.st_uid, stat.st_mode) = (uid, 0o040_000 | mode);
            stat
        };
        let own = stat(uid, 0o700);
        for above in [stat(uid, 0o755), stat(uid, 0o1777), stat(0, 0o755)] {
            // FAT and similar filesystems.
            assert!(is_own(&above, &own) && is_own(&above, &stat(uid, 0o755)) && is_own(&above, &stat(65534, 0o755)));
        }
        for above in [stat(uid, 0o777), stat(1234, 0o755), stat(uid, 0o775)] {
            assert!(is_own(&above, &own));
            assert!(!is_own(&above, &stat(1234, 0o700)) && !is_own(&above, &stat(uid, 0o755)));
        }
    }
}
