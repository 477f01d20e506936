//! Files and directories: sizes, copies, and the page cache.

use std::collections::HashSet;
use std::fs::{self, File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Advice, fadvise};

use crate::command::Run;
use crate::{Outcome, command, fail};

/// Returns a function that turns an error into a failure: "cannot ACTION PATH".
pub fn at<'a, T>(action: &'a str, path: &'a Path) -> impl FnOnce(io::Error) -> Outcome<T> + 'a {
    move |error| fail(format!("cannot {action} {}: {error}", path.display()))
}

/// Makes a directory.
pub fn make_dir(path: &Path) -> Outcome {
    fs::create_dir(path).or_else(at("make", path))
}

/// Removes a directory or a file, if it is there.
pub fn remove(path: &Path) -> Outcome {
    let removed = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
    removed.or_else(|error| if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { at("remove", path)(error) })
}

/// Returns the names of the directories in `directory`, in the order of their bytes: the versions of a series.
pub fn directories(directory: &Path) -> Outcome<Vec<String>> {
    let entries = entries(directory)?.into_iter().filter(|entry| entry.is_dir() && !entry.is_symlink());
    Ok(entries.filter_map(|entry| Some(entry.file_name()?.to_string_lossy().into_owned())).collect())
}

/// Returns the paths in a directory, in the order of their bytes.
pub fn entries(directory: &Path) -> Outcome<Vec<PathBuf>> {
    let read = fs::read_dir(directory).and_then(|entries| entries.map(|entry| Ok(entry?.path())).collect());
    let mut paths: Vec<PathBuf> = read.or_else(at("list", directory))?;
    paths.sort();
    Ok(paths)
}

/// Shows everything at and below a path to `see`, in the order of the directories. Leaves out those that are gone meanwhile.
pub fn walk(path: &Path, see: &mut dyn FnMut(&Path, &Metadata)) {
    let Ok(metadata) = fs::symlink_metadata(path) else { return };
    see(path, &metadata);
    if metadata.is_dir() {
        for entry in fs::read_dir(path).into_iter().flatten().flatten() {
            walk(&entry.path(), see);
        }
    }
}

/// Returns the bytes of all files at and below a path.
pub fn content_bytes(path: &Path) -> u64 {
    let mut sum = 0;
    walk(path, &mut |_, metadata| sum += if metadata.is_file() { metadata.len() } else { 0 });
    sum
}

/// Returns the bytes that a directory takes on disk, the daemon's log left out, as `du` counts them.
pub fn disk_bytes(path: &Path) -> u64 {
    let (mut sum, mut seen) = (0, HashSet::new());
    walk(path, &mut |path, metadata| {
        let is_first = metadata.is_dir() || metadata.nlink() == 1 || seen.insert((metadata.dev(), metadata.ino()));
        if is_first && !path.ends_with("dedupfs.log") {
            sum += metadata.blocks() * 512;
        }
    });
    sum
}

/// Lets the page cache forget the files below a path, which must be synced.
pub fn evict(path: &Path) {
    walk(path, &mut |path, metadata| {
        if metadata.is_file()
            && let Ok(file) = File::open(path)
        {
            let _ = fadvise(&file, 0, None, Advice::DontNeed);
        }
    });
}

/// Lets the page cache forget the files below a path, or everything if `drop_caches`.
///
/// # Errors
/// Only root may drop everything.
pub fn cold(path: &Path, drop_caches: bool) -> Outcome {
    if drop_caches {
        rustix::fs::sync();
        fs::write("/proc/sys/vm/drop_caches", "3")
            .or_else(|error| fail(format!("--drop-caches needs root: cannot write /proc/sys/vm/drop_caches: {error}")))
    } else {
        evict(path);
        Ok(())
    }
}

/// Touches `bytes` of memory below `ram`. The first touch is slow on a virtual machine, which may give free memory back to its host within
/// seconds. So memory that is about to be filled, caches of the kernel too, is touched just before, for each that is measured.
pub fn touch_memory(ram: &Path, bytes: u64) -> Outcome {
    let path = ram.join("touched");
    let written = File::create(&path).and_then(|mut file| io::copy(&mut io::repeat(0).take(bytes), &mut file));
    written.and_then(|_| fs::remove_file(&path)).or_else(at("write", &path))
}

/// Makes the directory `out` below `ram` anew, with memory touched for `bytes` restored and their cache.
pub fn empty_out(ram: &Path, bytes: u64) -> Outcome {
    remove(&ram.join("out"))?;
    make_dir(&ram.join("out"))?;
    touch_memory(ram, 2 * bytes)
}

/// Copies a directory into a mount. Each file is synced by itself: syncfs of a FUSE mount does not reach its daemon.
pub fn copy_in(from: &Path, to: &Path) -> Outcome {
    command!("cp", "-r", from, to).run()?;
    command!("sync", to).args(entries(to)?).run()
}

/// Fails if two trees or files differ; symbolic links are compared as such.
pub fn same(one: &Path, other: &Path) -> Outcome {
    let difference = format!("{} differs from its source", other.display());
    let mut compare = if one.is_dir() { command!("diff", "-r", "--no-dereference") } else { command!("cmp") };
    compare.arg(one).arg(other).run().or_else(|failure| fail(format!("{difference} ({failure})")))
}
