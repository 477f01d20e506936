#![expect(clippy::unwrap_used, reason = "tests")]

use std::os::unix::fs::{PermissionsExt, chown, symlink};

use super::super::lock::{LOCK_FILE, PoolLock};
use super::super::{Device, FileDevice, OpenMode};
use super::*;

const USER: (u32, u32) = (65534, 65533);

/// A directory of another user; `None` if root does not run this test.
fn theirs() -> Option<tempfile::TempDir> {
    if !geteuid().is_root() {
        eprintln!("only root can give files away: left out");
        return None;
    }
    let root = tempfile::tempdir().unwrap();
    chown(root.path(), Some(USER.0), Some(USER.1)).unwrap();
    Some(root)
}

fn whose(path: &Path) -> (u32, u32) {
    let found = path.symlink_metadata().unwrap();
    (found.uid(), found.gid())
}

#[test]
fn regression_what_root_creates_in_the_pool_of_another_is_the_others() {
    let Some(root) = theirs() else { return };
    let device = FileDevice::open(root.path()).unwrap();
    device.create_directory("index/chunks").unwrap();
    device.create_directory("index/recipes").unwrap();
    device.open("index/chunks/new", OpenMode::CreateNew).unwrap();
    device.open("index/chunks/maybe", OpenMode::CreateOrWrite).unwrap();
    device.open("index/chunks/maybe", OpenMode::CreateOrWrite).unwrap();
    device.replace_file("index", "manifest", b"bytes").unwrap();
    drop(PoolLock::acquire(root.path(), "a test").unwrap());
    let created = [
        "index",
        "index/chunks",
        "index/recipes",
        "index/chunks/new",
        "index/chunks/maybe",
        "index/manifest",
        LOCK_FILE,
    ];
    for path in created {
        let path = root.path().join(path);
        assert_eq!(whose(&path), USER, "{}", path.display());
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o077, 0, "{}", path.display());
    }
    assert!(device.open("index/chunks/new", OpenMode::CreateNew).is_err());
    let socket = std::os::unix::net::UnixListener::bind(root.path().join("socket")).unwrap();
    give_socket(&File::open(root.path()).unwrap(), "socket").unwrap();
    assert_eq!(whose(&root.path().join("socket")), USER);
    drop(socket);
}

/// The owner of a pool may put links in it: they must not make root give away foreign files.
#[test]
fn nothing_is_given_through_links_or_that_was_there() {
    let Some(root) = theirs() else { return };
    let roots = tempfile::tempdir().unwrap();
    let secret = roots.path().join("secret");
    std::fs::write(&secret, b"root's").unwrap();
    symlink(&secret, root.path().join("file")).unwrap();
    symlink(roots.path().join("missing"), root.path().join("dangling")).unwrap();
    symlink(roots.path(), root.path().join("directory")).unwrap();
    std::fs::write(root.path().join("old"), b"").unwrap();
    std::fs::create_dir(root.path().join("old directory")).unwrap();
    let device = FileDevice::open(root.path()).unwrap();
    for name in ["file", "dangling", "old", "directory/new"] {
        device.open(name, OpenMode::CreateOrWrite).unwrap();
    }
    device.create_directory("directory/deeper").unwrap();
    device.create_directory("old directory").unwrap();
    give_socket(&File::open(root.path()).unwrap(), "file").unwrap();
    give_socket(&File::open(root.path()).unwrap(), "old").unwrap();
    for path in [secret, roots.path().join("missing"), roots.path().join("new"), roots.path().join("deeper")] {
        assert_eq!(whose(&path), (0, 0), "{}", path.display());
    }
    assert_eq!(whose(&root.path().join("old")), (0, 0));
    assert_eq!(whose(&root.path().join("old directory")), (0, 0));
}
