//! Resolves the argument of a command, POOL or MNT, to a pool.

use std::io;
use std::path::{Path, PathBuf};

use dedupfs::recover::STAGE as RECOVERY_STAGE;
use dedupfs_store::StoreError;
use dedupfs_store::device::FileDevice;
use dedupfs_store::superblock::{Role, Superblock};

use crate::control::{Failure, FailureKind};
use crate::mountinfo::{self, MountEntry};

pub(crate) const SUPERBLOCK_NAME: &str = "dedupfs.meta";
/// File of the meta root of a replica's view, with the address of the replica.
const REPLICA_VIEW: &str = "replica-view";
/// File of a data root that is being fetched from a replica.
const REPLICA_RECOVERY: &str = "replica-recovery";

#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) pool: PathBuf,
    pub(crate) mount: Option<MountEntry>,
}

/// Resolves a mountpoint or a pool's directory.
///
/// Mounts come first and are not touched; see [`mountinfo`].
pub(crate) fn resolve(path: &Path) -> Result<Target, Failure> {
    if let Some(mount) = mounted_at(path)? {
        if crate::mount::is_dead(path) {
            let (shown, pool) = (path.display(), mount.source.display());
            let advice = match mountinfo::others_of(&mountinfo::read()?, &mount).first() {
                Some(other) => format!(
                    "pool {pool} is mounted on {} by now; `dedupfs umount {shown}` removes the dead mount",
                    other.display()
                ),
                None => match replica_of(&mount.source) {
                    Some(replica) => format!("`dedupfs mount -o ro '{replica}' {shown}` brings it back"),
                    None => format!("`dedupfs mount {pool} {shown}` brings it back"),
                },
            };
            eprintln!("dedupfs: warning: the mount on {shown} is dead, its daemon was killed: {advice}");
        }
        return Ok(Target { pool: mount.source.clone(), mount: Some(mount) });
    }
    Ok(Target { pool: pool(path)?, mount: None })
}

/// Returns the options of the dedupfs mounted at `path`, as the kernel shows them; `None` if none is.
///
/// # Errors
/// The path or the table of mounts cannot be read.
pub fn options_of_mount(path: &Path) -> Result<Option<String>, impl std::error::Error + use<>> {
    mounted_at(path).map(|mount| mount.map(|mount| mount.options))
}

/// Returns the dedupfs on top at `path`, if there is one.
pub(crate) fn mounted_at(path: &Path) -> Result<Option<MountEntry>, Failure> {
    let mounts = mountinfo::read()?;
    let as_given = std::path::absolute(path).map_err(|error| unusable(path, &error))?;
    let at = |place: &Path| mountinfo::top_at(&mounts, place).filter(|mount| mount.is_dedupfs()).cloned();
    // The second look resolves symbolic links and `..`. It comes only if needed, because it may ask a daemon.
    Ok(at(&as_given).or_else(|| at(&real_path(path).ok()?)))
}

/// Resolves a path. Works for a dead mount too, where only the parent can be looked at.
pub(crate) fn real_path(path: &Path) -> io::Result<PathBuf> {
    path.canonicalize().or_else(|error| {
        let absolute = std::path::absolute(path)?;
        match (error.kind(), absolute.parent(), absolute.file_name()) {
            (io::ErrorKind::NotFound, ..) => Err(error),
            (_, Some(parent), Some(name)) => Ok(parent.canonicalize()?.join(name)),
            _ => Err(error),
        }
    })
}

/// Makes a path absolute. An existing one gets its real path, so that two names of a directory are noticed.
pub(crate) fn absolute(path: &Path) -> Result<PathBuf, Failure> {
    path.canonicalize()
        .or_else(|_| std::path::absolute(path))
        .map_err(|error| Failure::failed(format!("cannot resolve {}: {error}", path.display())))
}

pub(crate) fn superblock(root: &Path, role: Role) -> Result<Superblock, StoreError> {
    Superblock::read(&FileDevice::open(root)?, role)
}

/// Finds the data root of a pool by its superblock, if that can be read.
pub(crate) fn data_root(pool: &Path) -> Option<PathBuf> {
    superblock(pool, Role::Meta).ok().map(|superblock| superblock.data_root_path(pool))
}

/// Returns a pool's directory as an absolute path. The error for another directory says what to do.
pub(crate) fn pool(path: &Path) -> Result<PathBuf, Failure> {
    let real = path.canonicalize().map_err(|error| unusable(path, &error))?;
    let shown = path.display();
    if let Some(replica) = replica_of(&real) {
        return Err(FailureKind::NotAPool.because(format!(
            "{shown} belongs to the view of a replica, and is no pool by itself: `dedupfs mount -o ro '{replica}' MNT`"
        )));
    }
    let message = match std::fs::symlink_metadata(real.join(SUPERBLOCK_NAME)) {
        Ok(_) => return Ok(real),
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(unusable(path, &error)),
        _ if real.join(RECOVERY_STAGE).is_dir() => format!(
            "{shown} is not a pool yet: `dedupfs recover` was interrupted there, or failed. Run the same command again (`dedupfs recover \
             {shown}`, with --data DATA_ROOT if the content is not in {shown}): it begins anew; the data root has everything"
        ),
        _ if real.join(REPLICA_RECOVERY).exists() => format!(
            "{shown} is not a pool yet: `dedupfs recover --from` was interrupted there, or failed. Run the same command again: it goes on"
        ),
        _ if real.join(Role::Data.file_name()).exists() => format!(
            "{shown} is a data root, not a meta root (no {SUPERBLOCK_NAME} in it): name the meta root; if that is lost, \
             `dedupfs recover --data {shown} NEW_META_ROOT` makes it anew; if {shown} was the whole pool, `dedupfs recover {shown}`"
        ),
        _ if let Some(mount) = mount_above(&real) => {
            let message = format!("{shown} lies in the mount {0}: give {0} instead", mount.display());
            return Err(FailureKind::Usage.because(message));
        }
        _ => format!(
            "{shown} is not a dedupfs pool (no {SUPERBLOCK_NAME} in it), nor is one mounted there: format a pool with \
             `dedupfs mkfs POOL`, mount it with `dedupfs mount POOL MNT`"
        ),
    };
    Err(FailureKind::NotAPool.because(message))
}

/// Returns the address of the replica whose view has its meta root here.
pub(crate) fn replica_of(root: &Path) -> Option<String> {
    std::fs::read_to_string(root.join(REPLICA_VIEW)).ok()
}

/// Returns the mountpoint of the dedupfs in which a directory lies.
fn mount_above(real: &Path) -> Option<PathBuf> {
    let mounts = mountinfo::read().ok()?;
    let above = mounts.into_iter().filter(|mount| real.starts_with(&mount.mountpoint));
    let last = above.max_by_key(|mount| mount.mountpoint.as_os_str().len())?;
    last.is_dedupfs().then_some(last.mountpoint)
}

fn unusable(path: &Path, error: &io::Error) -> Failure {
    let (kind, text) = match error.kind() {
        io::ErrorKind::NotFound => (FailureKind::NotAPool, format!("{} does not exist", path.display())),
        io::ErrorKind::NotADirectory => (FailureKind::NotAPool, format!("{} is not a directory", path.display())),
        io::ErrorKind::PermissionDenied => {
            (FailureKind::Failed, format!("no permission to look at {}: run as its owner or as root", path.display()))
        }
        io::ErrorKind::NotConnected => (
            FailureKind::Failed,
            format!("{0} lies in a mount whose daemon is gone: `umount -l` that mount", path.display()),
        ),
        _ => (FailureKind::Failed, format!("cannot look at {}: {error}", path.display())),
    };
    kind.because(text)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_pool_is_told_apart() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("file");
        std::fs::write(&file, "").unwrap();
        let failure = |path: &Path| resolve(path).unwrap_err();
        for (path, word) in [
            (root.path().to_owned(), "mkfs"),
            (root.path().join("absent"), "does not exist"),
            (file, "is not a directory"),
        ] {
            let failure = failure(&path);
            assert_eq!(failure.kind, FailureKind::NotAPool, "{failure}");
            assert!(failure.message.contains(word), "{failure}");
        }
    }

    #[test]
    fn a_pool_is_found_through_a_link_and_named_absolutely() {
        let root = tempfile::tempdir().unwrap();
        let pool = root.path().canonicalize().unwrap().join("pool");
        std::fs::create_dir(&pool).unwrap();
        std::fs::write(pool.join(SUPERBLOCK_NAME), "").unwrap();
        let link = root.path().join("link");
        std::os::unix::fs::symlink(&pool, &link).unwrap();
        let target = resolve(&link).unwrap();
        assert_eq!(target.pool, pool);
        assert!(target.mount.is_none());
    }
}
