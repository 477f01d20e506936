//! Translations between the FUSE library's types and the service's.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{FileAttr, FileType, INodeNo, TimeOrNow};

use dedupfs_service::{
    Attributes, Caller, Errno, FileKind, NodeContent, OpenOptions, RenameFlags, TimeChange, Timestamp,
};

/// Preferred request size that stat shows for files: cp then asks for this much at once.
const FILE_BLOCK_BYTES: u32 = 1 << 20;
/// The same for all other inodes. Not larger: the C library allocates a buffer of this size for each opened directory.
const OTHER_BLOCK_BYTES: u32 = 4096;

pub(super) fn caller(request: &fuser::Request) -> Caller {
    Caller { uid: request.uid(), gid: request.gid(), pid: request.pid() }
}

pub(super) fn errno(error: Errno) -> fuser::Errno {
    fuser::Errno::from_i32(error.0)
}

pub(super) fn file_type(kind: FileKind) -> FileType {
    match kind {
        FileKind::Regular => FileType::RegularFile,
        FileKind::Directory => FileType::Directory,
        FileKind::Symlink => FileType::Symlink,
        FileKind::CharDevice => FileType::CharDevice,
        FileKind::BlockDevice => FileType::BlockDevice,
        FileKind::Fifo => FileType::NamedPipe,
        FileKind::Socket => FileType::Socket,
    }
}

pub(super) fn file_attr(attributes: &Attributes) -> FileAttr {
    FileAttr {
        ino: INodeNo(attributes.ino),
        size: attributes.size_bytes,
        blocks: attributes.blocks,
        atime: system_time(attributes.atime),
        mtime: system_time(attributes.mtime),
        ctime: system_time(attributes.ctime),
        crtime: UNIX_EPOCH,
        kind: file_type(attributes.kind),
        perm: attributes.mode,
        nlink: attributes.nlink,
        uid: attributes.uid,
        gid: attributes.gid,
        rdev: attributes.rdev,
        blksize: if attributes.kind == FileKind::Regular { FILE_BLOCK_BYTES } else { OTHER_BLOCK_BYTES },
        flags: 0,
    }
}

/// Converts a time. Linux has no time that `SystemTime` cannot hold; a service that invents one gets 1970.
pub(super) fn system_time(time: Timestamp) -> SystemTime {
    let whole = Duration::from_secs(time.secs.unsigned_abs());
    let start = if time.secs < 0 { UNIX_EPOCH.checked_sub(whole) } else { UNIX_EPOCH.checked_add(whole) };
    start.and_then(|start| start.checked_add(Duration::from_nanos(u64::from(time.nanos)))).unwrap_or(UNIX_EPOCH)
}

/// Undoes the library's decoding of a time from the kernel. Before 1970 the library *subtracts* the nanoseconds, so 1969-12-31 23:59:58.8,
/// which is (-2 s, 800,000,000 ns), arrives as 1970 minus 2.8 s.
pub(super) fn timestamp(time: SystemTime) -> Timestamp {
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => Timestamp { secs: after.as_secs().cast_signed(), nanos: after.subsec_nanos() },
        Err(before) => {
            let before = before.duration();
            Timestamp { secs: before.as_secs().cast_signed().wrapping_neg(), nanos: before.subsec_nanos() }
        }
    }
}

pub(super) fn time_change(time: TimeOrNow) -> TimeChange {
    match time {
        TimeOrNow::SpecificTime(time) => TimeChange::At(timestamp(time)),
        TimeOrNow::Now => TimeChange::Now,
    }
}

/// The permission bits of a mode. The type is passed separately.
pub(super) fn permissions(mode: u32) -> u16 {
    (mode & 0o7777) as u16
}

/// The content that mknod creates; `None` for an unknown type.
pub(super) fn node_content(mode: u32, rdev: u32) -> Option<NodeContent<'static>> {
    match mode & libc::S_IFMT {
        0 | libc::S_IFREG => Some(NodeContent::Regular),
        libc::S_IFCHR => Some(NodeContent::CharDevice(rdev)),
        libc::S_IFBLK => Some(NodeContent::BlockDevice(rdev)),
        libc::S_IFIFO => Some(NodeContent::Fifo),
        libc::S_IFSOCK => Some(NodeContent::Socket),
        _ => None,
    }
}

pub(super) fn open_options(flags: i32) -> OpenOptions {
    let access = flags & libc::O_ACCMODE;
    OpenOptions {
        read: access != libc::O_WRONLY,
        write: access != libc::O_RDONLY,
        append: flags & libc::O_APPEND != 0,
        truncate: flags & libc::O_TRUNC != 0,
        sync: flags & (libc::O_SYNC | libc::O_DSYNC) != 0,
        no_access_time: flags & libc::O_NOATIME != 0,
        direct: flags & libc::O_DIRECT != 0,
    }
}

/// Converts flags of rename; `None` for an unknown flag.
pub(super) fn rename_flags(flags: fuser::RenameFlags) -> Option<RenameFlags> {
    use fuser::RenameFlags as Kernel;
    let known = Kernel::RENAME_NOREPLACE | Kernel::RENAME_EXCHANGE | Kernel::RENAME_WHITEOUT;
    known.contains(flags).then(|| RenameFlags {
        no_replace: flags.contains(Kernel::RENAME_NOREPLACE),
        exchange: flags.contains(Kernel::RENAME_EXCHANGE),
        whiteout: flags.contains(Kernel::RENAME_WHITEOUT),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Decodes a time from the kernel as the library does.
    fn decoded_by_library(secs: i64, nanos: u32) -> SystemTime {
        if secs >= 0 {
            UNIX_EPOCH + Duration::new(secs.unsigned_abs(), nanos)
        } else {
            UNIX_EPOCH - Duration::new(secs.unsigned_abs(), nanos)
        }
    }

    #[test]
    fn times_before_1970_keep_their_nanoseconds() {
        for secs in [i64::MAX, 1 << 40, 2, 1, 0, -1, -2, -(1 << 40)] {
            for nanos in [0, 1, 200_000_000, 999_999_999] {
                assert_eq!(timestamp(decoded_by_library(secs, nanos)), Timestamp { secs, nanos }, "{secs} {nanos}");
            }
        }
        assert_eq!(timestamp(decoded_by_library(i64::MIN, 0)), Timestamp { secs: i64::MIN, nanos: 0 });
    }

    #[test]
    fn system_time_counts_nanoseconds_upwards() {
        let time = system_time(Timestamp { secs: -2, nanos: 800_000_000 });
        assert_eq!(UNIX_EPOCH.duration_since(time).unwrap(), Duration::from_millis(1200));
        let time = system_time(Timestamp { secs: 2, nanos: 800_000_000 });
        assert_eq!(time.duration_since(UNIX_EPOCH).unwrap(), Duration::from_millis(2800));
    }

    #[test]
    fn access_modes() {
        let access = |flags| (open_options(flags).read, open_options(flags).write);
        assert_eq!(access(libc::O_RDONLY), (true, false));
        assert_eq!(access(libc::O_WRONLY | libc::O_TRUNC), (false, true));
        assert_eq!(access(libc::O_RDWR | libc::O_APPEND), (true, true));
        assert!(open_options(libc::O_WRONLY | libc::O_DSYNC).sync);
        assert!(!open_options(libc::O_WRONLY | libc::O_APPEND).sync);
    }

    #[test]
    fn unknown_rename_flags_are_refused() {
        assert_eq!(rename_flags(fuser::RenameFlags::from_bits_retain(8)), None);
        let both = fuser::RenameFlags::RENAME_NOREPLACE | fuser::RenameFlags::RENAME_WHITEOUT;
        assert_eq!(rename_flags(both), Some(RenameFlags { no_replace: true, exchange: false, whiteout: true }));
    }
}
