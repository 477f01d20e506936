//! Removing trees of files from a device.

use super::Device;
use crate::error::Result;

/// Deepest nesting of directories that is followed: that of a pool, and of what lies around it.
const DEPTH_MAX: usize = 8;

/// Removes the files below a directory, at every depth; durable on return. Directories stay. Nothing is there: no error.
///
/// # Errors
/// I/O errors.
pub fn remove_files_below(device: &dyn Device, directory: &str) -> Result<()> {
    files_below(device, directory, 0)
}

fn files_below(device: &dyn Device, directory: &str, depth: usize) -> Result<()> {
    if depth > DEPTH_MAX || !device.exists(directory)? {
        return Ok(());
    }
    for entry in device.list(directory)? {
        let path = format!("{directory}/{}", entry.name);
        if entry.is_directory { files_below(device, &path, depth + 1)? } else { device.remove(&path)? }
    }
    device.sync_directory(directory)
}

/// Removes a directory that holds only directories. One that stays does no harm.
pub fn remove_directories(device: &dyn Device, directory: &str) {
    directories(device, directory, 0);
}

fn directories(device: &dyn Device, directory: &str, depth: usize) {
    let entries = device.list(directory).unwrap_or_default();
    for entry in entries.iter().filter(|entry| entry.is_directory && depth <= DEPTH_MAX) {
        directories(device, &format!("{directory}/{}", entry.name), depth + 1);
    }
    if let Err(error) = device.remove_directory(directory) {
        tracing::debug!(%error, directory, "an empty directory stays");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{FileDevice, OpenMode};

    #[test]
    fn a_tree_is_removed_and_its_neighbours_stay() {
        let root = tempfile::tempdir().expect("makes a directory");
        let device = FileDevice::create(root.path()).expect("opens");
        for directory in ["a/b/c", "ab"] {
            device.create_directory(directory).expect("makes");
        }
        for path in ["a/1", "a/b/2", "a/b/c/3", "ab/4"] {
            device.open(path, OpenMode::CreateNew).expect("creates");
        }
        remove_files_below(&device, "a").expect("removes");
        assert!(device.exists("a/b/c").expect("looks") && !device.exists("a/b/2").expect("looks"));
        remove_directories(&device, "a");
        assert!(!device.exists("a").expect("looks") && device.exists("ab/4").expect("looks"));
        remove_files_below(&device, "absent").expect("has nothing to do");
    }
}
