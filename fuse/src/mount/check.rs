//! Checks before and after a failed mount, so that the error can give advice.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::{DEVICE, MountError};

/// FUSE_SUPER_MAGIC: the type that statfs reports for a FUSE filesystem.
const FUSE_MAGIC: u64 = 0x6573_5546;

pub(super) fn mountpoint(path: &Path) -> Result<PathBuf, MountError> {
    let given = || path.to_path_buf();
    // statfs asks the daemon; for a dead mount the kernel may answer stat from its cache for a while.
    if rustix::fs::statfs(path).is_err_and(|error| error == rustix::io::Errno::NOTCONN) {
        return Err(MountError::DeadMount { mountpoint: given() });
    }
    let metadata = std::fs::metadata(path).map_err(|source| match source.raw_os_error() {
        Some(libc::ENOENT) => MountError::NoMountpoint { mountpoint: given() },
        Some(libc::ENOTCONN) => MountError::DeadMount { mountpoint: given() },
        Some(libc::ENOTDIR) => MountError::NotDirectory { mountpoint: given() },
        _ => MountError::Mount { mountpoint: given(), source },
    })?;
    if !metadata.is_dir() {
        return Err(MountError::NotDirectory { mountpoint: given() });
    }
    let real = path.canonicalize().map_err(|source| MountError::Mount { mountpoint: given(), source })?;
    let is_fuse = rustix::fs::statfs(&real).is_ok_and(|statistics| statistics.f_type as u64 == FUSE_MAGIC);
    let above = std::fs::metadata(real.join("..")).map(|metadata| metadata.dev());
    if is_fuse && above.is_ok_and(|above| above != metadata.dev()) {
        return Err(MountError::AlreadyMounted { mountpoint: real });
    }
    Ok(real)
}

pub(super) fn open_device() -> Result<OwnedFd, MountError> {
    let file = OpenOptions::new().read(true).write(true).open(DEVICE).map_err(device_error)?;
    Ok(file.into())
}

fn device_error(source: io::Error) -> MountError {
    match source.raw_os_error() {
        Some(libc::EACCES | libc::EPERM) => MountError::DeviceDenied { source },
        _ => MountError::NoDevice { source },
    }
}

/// Interprets a failure of the helper, which explains itself only on its error output.
pub(super) fn helper_error(source: io::Error, mountpoint: &Path) -> MountError {
    let detail = source.to_string();
    if detail.contains("user_allow_other") {
        MountError::UserAllowOther
    } else if detail.contains("no write access") || detail.contains("not owned by user") {
        MountError::MountpointDenied { mountpoint: mountpoint.to_path_buf(), detail: detail.trim().to_owned() }
    } else if source.kind() == io::ErrorKind::NotFound {
        MountError::NotPermitted { detail: "it is not installed".to_owned() }
    } else if detail.contains("not permitted") || detail.contains("ermission denied") || detail.contains("EOF") {
        MountError::NotPermitted { detail: detail.trim().to_owned() }
    } else {
        MountError::Mount { mountpoint: mountpoint.to_path_buf(), source }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unusable_mountpoints() {
        let directory = tempfile::tempdir().unwrap();
        let absent = directory.path().join("absent");
        let error = mountpoint(&absent).unwrap_err();
        assert!(matches!(&error, MountError::NoMountpoint { mountpoint } if *mountpoint == absent), "{error}");
        let file = directory.path().join("file");
        std::fs::write(&file, "").unwrap();
        assert!(matches!(mountpoint(&file), Err(MountError::NotDirectory { .. })));
        assert!(matches!(mountpoint(&file.join("below")), Err(MountError::NotDirectory { .. })));
        assert_eq!(mountpoint(directory.path()).unwrap(), directory.path().canonicalize().unwrap());
    }

    #[test]
    fn the_helpers_words_become_advice() {
        let said = "fusermount3: option allow_other only allowed if 'user_allow_other' is set in /etc/fuse.conf";
        let error = helper_error(io::Error::other(said), Path::new("/mnt"));
        assert!(error.to_string().contains("/etc/fuse.conf"), "{error}");
        for said in ["user has no write access to mountpoint /mnt", "mountpoint /mnt not owned by user"] {
            let error = helper_error(io::Error::other(format!("fusermount3: {said}\n")), Path::new("/mnt"));
            assert!(matches!(error, MountError::MountpointDenied { .. }), "{error}");
            assert!(error.to_string().contains("directory of their own"), "{error}");
        }
        let error = helper_error(io::ErrorKind::NotFound.into(), Path::new("/mnt"));
        assert!(error.to_string().contains("fuse3"), "{error}");
        let error = helper_error(io::Error::other("mount failed: Operation not permitted"), Path::new("/mnt"));
        assert!(matches!(error, MountError::NotPermitted { .. }), "{error}");
    }

    #[test]
    fn device_errors_say_what_to_do() {
        let error = device_error(io::Error::from_raw_os_error(libc::ENOENT));
        assert!(error.to_string().contains("modprobe fuse"), "{error}");
        let error = device_error(io::Error::from_raw_os_error(libc::EACCES));
        assert!(error.to_string().contains("root"), "{error}");
    }
}
