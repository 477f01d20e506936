//! Trees that `put` copies into the pool and `get` copies out: made on a real disk, and compared as one content.

use std::fs::{self, File, FileTimes};
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use dedupfs_service::{Errno, FileKind, Ino, Listing, ROOT_INO};

use crate::content::Content;
use crate::dice::{Dice, content};
use crate::judge::State;
use crate::operations::Client as Operations;

/// Files by their path in the tree, in order. Directories without files are not told apart from none.
type Files = Vec<(String, Vec<u8>)>;

/// Makes a tree at `top`, which must not exist, and returns it as one content.
///
/// # Panics
/// The real disk fails.
pub fn make(top: &Path, dice: &mut Dice, pieces: u64, file_bytes_max: u64) -> Content {
    let mut files: Files = (0..1 + dice.below(12))
        .map(|number| {
            let directory = ["", "a/", "b/", "a/c/"][dice.below(4) as usize];
            let len_bytes = dice.below(file_bytes_max);
            (format!("{directory}{number:02}"), content(dice, pieces, len_bytes))
        })
        .collect();
    files.sort();
    write(top, &files).expect("the real disk takes a tree");
    one_content(&files)
}

fn write(top: &Path, files: &Files) -> io::Result<()> {
    for directory in ["", "b", "a/c"] {
        fs::create_dir_all(top.join(directory))?;
    }
    for (path, bytes) in files {
        fs::write(top.join(path), bytes)?;
    }
    // The real clock would show in the pool.
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1 << 30);
    let times = FileTimes::new().set_modified(time).set_accessed(time);
    let directories = ["a/c", "a", "b", ""].into_iter().map(str::to_owned);
    let paths = files.iter().map(|(path, _)| path.clone()).chain(directories);
    paths.into_iter().try_for_each(|path| File::open(top.join(path))?.set_times(times))
}

/// The tree at this place of the real disk, as one content.
///
/// # Errors
/// Something cannot be read.
pub fn on_disk(top: &Path) -> io::Result<Content> {
    fn walk(directory: &Path, path: &str, files: &mut Files) -> io::Result<()> {
        for entry in fs::read_dir(directory)? {
            let entry = entry?;
            let path = format!("{path}{}", entry.file_name().to_string_lossy());
            if entry.file_type()?.is_dir() {
                walk(&entry.path(), &format!("{path}/"), files)?;
            } else {
                files.push((path, fs::read(entry.path())?));
            }
        }
        Ok(())
    }
    let mut files = Files::new();
    walk(top, "", &mut files)?;
    Ok(one_content(&files))
}

/// The tree of this name in the root of the pool, as one content.
///
/// # Errors
/// Something cannot be read.
pub fn in_pool(operations: &Operations, name: &str) -> Result<State, Errno> {
    fn walk(operations: &Operations, directory: Ino, path: &str, files: &mut Files) -> Result<(), Errno> {
        for entry in operations.0.read_directory(directory, 0, 1000, Listing::Names)? {
            let path = format!("{path}{}", String::from_utf8_lossy(&entry.name));
            if entry.kind == FileKind::Directory {
                walk(operations, entry.ino, &format!("{path}/"), files)?;
            } else {
                files.push((path, operations.content(entry.ino)?));
            }
        }
        Ok(())
    }
    let top = match operations.find(name) {
        Ok(top) => top.ino,
        Err(Errno::ENOENT) => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut files = Files::new();
    walk(operations, top, "", &mut files)?;
    Ok(Some(Arc::new(one_content(&files))))
}

/// Counts what is in a directory of the pool, and in all below it.
///
/// # Errors
/// A directory cannot be read.
pub fn count(operations: &Operations, directory: Ino) -> Result<Counts, Errno> {
    let mut counts = Counts { files: 0, directories: 1, logical_bytes: 0 };
    for entry in operations.0.read_directory(directory, 0, 1000, Listing::Names)? {
        if entry.kind == FileKind::Directory {
            let below = count(operations, entry.ino)?;
            counts.files += below.files;
            counts.directories += below.directories;
            counts.logical_bytes += below.logical_bytes;
        } else {
            counts.files += 1;
            counts.logical_bytes += operations.content(entry.ino)?.len() as u64;
        }
    }
    Ok(counts)
}

/// What [`count`] counts.
#[derive(Debug, PartialEq, Eq)]
pub struct Counts {
    pub files: u64,
    /// With the top.
    pub directories: u64,
    pub logical_bytes: u64,
}

/// Removes the tree of this name in the root of the pool, if there is one.
///
/// # Errors
/// Something cannot be removed.
pub fn remove(operations: &Operations, name: &str) -> Result<(), Errno> {
    match operations.find(name) {
        Ok(top) => {
            operations.empty(top.ino)?;
            operations.0.remove_directory(ROOT_INO, name.as_bytes())
        }
        Err(Errno::ENOENT) => Ok(()),
        Err(error) => Err(error),
    }
}

/// A directory of the real disk, as the tools hand it to the pool.
///
/// # Panics
/// It does not exist.
pub fn descriptor(directory: &Path) -> OwnedFd {
    File::open(directory).expect("the directory exists").into()
}

fn one_content(files: &Files) -> Content {
    let mut sorted: Vec<_> = files.iter().collect();
    sorted.sort();
    let mut bytes = Vec::new();
    for (path, content) in sorted {
        bytes.extend_from_slice(format!("{path} {}\n", content.len()).as_bytes());
        bytes.extend_from_slice(content);
    }
    Content::new(&bytes)
}

/// Whether all files of a tree are in another one, with the same bytes.
pub fn is_part(part: &Content, whole: &Content) -> bool {
    let whole = files(whole);
    files(part).iter().all(|file| whole.contains(file))
}

/// The files of a tree. A tree that cannot be taken apart is one file.
fn files(of: &Content) -> Vec<Vec<u8>> {
    let bytes = of.range(0, u64::MAX);
    let (mut rest, mut files) = (&bytes[..], Vec::new());
    while !rest.is_empty() {
        let head = rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len());
        let len_bytes = std::str::from_utf8(&rest[..head]).ok().and_then(|head| head.rsplit(' ').next()?.parse().ok());
        let end = len_bytes.map_or(rest.len(), |len_bytes: usize| (head + 1).saturating_add(len_bytes).min(rest.len()));
        let (file, others) = rest.split_at(end);
        files.push(file.to_vec());
        rest = others;
    }
    files
}
