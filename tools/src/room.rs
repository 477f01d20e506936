//! Advice for a full disk: how much to free there before a pool can be mounted for writing.

use std::path::Path;

use dedupfs::config::{DATA_RESERVE_BYTES, META_RESERVE_BYTES};
use rustix::fs::{StatVfs, statvfs};

use crate::{mount, size};

/// Least amount to free. A filesystem may have this much left and still refuse new files, because filesystems keep different amounts to
/// themselves.
const FREED_BYTES_MIN: u64 = 1 << 20;
/// Inodes for a mount's files, checkpoints, and a backup's first containers.
const INODES_MIN: u64 = 64;

pub(crate) fn advice(pool: &Path) -> String {
    let mut told = Vec::new();
    let mut disks = Vec::new();
    for root in mount::roots(pool) {
        let Ok(space) = statvfs(&root) else { continue };
        if !disks.contains(&space.f_fsid) {
            disks.push(space.f_fsid);
            told.extend(missing(&space).map(|missing| format!("{missing} on the disk of {}", root.display())));
        }
    }
    let free = if told.is_empty() {
        format!("free some space (at least {}) on the pool's disk", size::show(FREED_BYTES_MIN))
    } else {
        format!("free at least {}", told.join(", and "))
    };
    format!("{free}, of files that are not the pool's; `dedupfs mount -o ro` mounts the pool meanwhile")
}

/// Describes the room that a disk lacks for a pool's reserve; `None` if it has enough.
fn missing(space: &StatVfs) -> Option<String> {
    // An eighth of a small disk, as the pool calculates its reserve.
    let reserve_bytes = (space.f_blocks * space.f_frsize / 8).min(DATA_RESERVE_BYTES + META_RESERVE_BYTES);
    let missing_bytes = reserve_bytes.saturating_sub(space.f_bavail * space.f_frsize);
    // Some filesystems do not count inodes.
    let has_inodes = space.f_files == 0 || space.f_favail >= INODES_MIN;
    let bytes = (missing_bytes > 0).then(|| size::show(missing_bytes.max(FREED_BYTES_MIN)));
    let inodes = (!has_inodes).then(|| format!("{INODES_MIN} files (no inodes are left)"));
    let both: Vec<String> = [bytes, inodes].into_iter().flatten().collect();
    (!both.is_empty()).then(|| both.join(" and "))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn bytes_and_inodes_that_lack_are_named() {
        let mut space = statvfs("/").unwrap();
        (space.f_blocks, space.f_frsize, space.f_files) = (1 << 20, 4096, 1000);
        (space.f_bavail, space.f_favail) = (1 << 19, 900);
        assert_eq!(missing(&space), None);
        space.f_bavail = 0;
        assert_eq!(missing(&space).unwrap(), "128 MiB");
        space.f_favail = 0;
        assert_eq!(missing(&space).unwrap(), "128 MiB and 64 files (no inodes are left)");
        (space.f_bavail, space.f_files) = (1 << 19, 0);
        assert_eq!(missing(&space), None);
    }
}
