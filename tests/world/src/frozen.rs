//! Versions as the judge sees them: everything that can be seen of a tree, an entry a line.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use dedupfs::{EngineError, Pool, is_frozen};
use dedupfs_service::{Attributes, DirectoryEntry, Errno, FileKind, FileService, Ino, Listing};

use crate::content::Content;
use crate::judge::State;
use crate::operations::Client as Operations;

/// Entries that a page of a listing has at most.
const PAGE: usize = 7;

/// What can be seen of each entry of a tree, by its path; that of the uppermost directory is empty. Inode numbers, times of access and of
/// change are left out.
pub type Tree = BTreeMap<String, String>;

/// The tree as one content.
pub fn one_content(tree: &Tree) -> Content {
    Content::new(tree.iter().map(|(path, entry)| format!("{path}\t{entry}\n")).collect::<String>().as_bytes())
}

/// The tree of which [`one_content`] is this.
///
/// # Panics
/// It is of none.
pub fn tree_of(content: &Content) -> Tree {
    let text = String::from_utf8(content.range(0, u64::MAX)).expect("is text");
    let entry = |line: &str| line.split_once('\t').map(|(path, entry)| (path.to_owned(), entry.to_owned()));
    text.lines().map(|line| entry(line).expect("is an entry")).collect()
}

/// The version of this name in the root, as one content.
///
/// # Errors
/// Something cannot be read.
pub fn see(operations: &Operations, name: &str) -> Result<State, Errno> {
    match operations.find(name) {
        Ok(found) if is_frozen(found.ino) => Ok(Some(Arc::new(one_content(&in_pool(operations, found.ino)?)))),
        Ok(_) => panic!("{name} is no version"),
        Err(Errno::ENOENT) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The tree below a directory of the pool, live or frozen.
///
/// # Errors
/// Something cannot be read.
///
/// # Panics
/// What is told of an entry in two ways differs.
pub fn in_pool(operations: &Operations, top: Ino) -> Result<Tree, Errno> {
    let mut walk = Walk { operations, entries: Vec::new() };
    walk.entry(&operations.0.attributes(top)?, String::new())?;
    Ok(lines(walk.entries))
}

/// The tree at a place of the real disk.
///
/// # Errors
/// Something cannot be read.
pub fn on_disk(top: &Path) -> io::Result<Tree> {
    let mut entries = Vec::new();
    walk_disk(top, String::new(), &mut entries)?;
    Ok(lines(entries))
}

/// Removes the version of this name from a directory, as `dedupfs forget` does.
///
/// # Errors
/// It is not removed.
pub fn forget(pool: &Pool, directory: Ino, name: &[u8]) -> Result<(), Errno> {
    match pool.allow_forgetting(directory, name, None) {
        Ok(()) => pool.service().remove_directory(directory, name),
        Err(EngineError::NoSpace) => Err(Errno::ENOSPC),
        Err(_) => Err(Errno::EIO),
    }
}

/// Removes the versions in a directory.
///
/// # Errors
/// As [`forget`]; the names cannot be read.
pub fn forget_all(pool: &Pool, operations: &Operations, directory: Ino) -> Result<(), Errno> {
    let listed = operations.0.read_directory(directory, 0, 1000, Listing::Names)?;
    let mut versions = listed.iter().filter(|entry| is_frozen(entry.ino));
    versions.try_for_each(|entry| forget(pool, directory, &entry.name))
}

/// An entry before all names of its inode are known.
struct Seen {
    path: String,
    /// Tells the inode.
    inode: u64,
    is_directory: bool,
    /// Names that the service tells, if it tells those in the tree alone.
    nlink: Option<u32>,
    told: String,
}

/// Adds to each entry with several names their number, and the first.
fn lines(entries: Vec<Seen>) -> Tree {
    let mut names: HashMap<u64, BTreeSet<String>> = HashMap::new();
    for seen in entries.iter().filter(|seen| !seen.is_directory) {
        names.entry(seen.inode).or_default().insert(seen.path.clone());
    }
    let line = |seen: Seen| {
        let names = names.get(&seen.inode).filter(|_| !seen.is_directory);
        let count = names.map_or(1, BTreeSet::len) as u32;
        if let Some(nlink) = seen.nlink.filter(|_| !seen.is_directory) {
            assert_eq!(nlink, count, "names of {} that a version tells, and has", seen.path);
        }
        let first = names.and_then(|names| names.first()).filter(|_| count > 1);
        let told = first.map_or_else(|| seen.told.clone(), |first| format!("{} x{count} {first}", seen.told));
        (seen.path, told)
    };
    entries.into_iter().map(line).collect()
}

fn below(path: &str, name: &[u8]) -> String {
    let name = String::from_utf8_lossy(name);
    if path.is_empty() { name.into_owned() } else { format!("{path}/{name}") }
}

/// The time of the last change. That of the uppermost directory is left out: names in it change while a snapshot is made.
fn told_time(path: &str, (secs, nanos): (i64, i64)) -> String {
    if path.is_empty() { "any".to_owned() } else { format!("{secs}.{nanos:09}") }
}

fn told_content(bytes: &[u8]) -> String {
    format!(" {} {:032x}", bytes.len(), twox_hash::XxHash3_128::oneshot(bytes))
}

struct Walk<'a> {
    operations: &'a Operations,
    entries: Vec<Seen>,
}

impl Walk<'_> {
    fn entry(&mut self, attributes: &Attributes, path: String) -> Result<(), Errno> {
        let service = &self.operations.0;
        let Attributes { ino, kind, mode, uid, gid, mtime, .. } = *attributes;
        let is_directory = kind == FileKind::Directory;
        let mut told = format!("{kind:?} {mode:o} {uid}:{gid} {}", told_time(&path, (mtime.secs, mtime.nanos.into())));
        match kind {
            FileKind::Regular => {
                let bytes = self.operations.content(ino)?;
                assert_eq!(attributes.size_bytes, bytes.len() as u64, "bytes that {path} tells, and has");
                told.push_str(&told_content(&bytes));
            }
            FileKind::Symlink => {
                told.push_str(&format!(" -> {}", String::from_utf8_lossy(&service.read_link(ino)?)));
            }
            _ => {}
        }
        let mut names = service.xattr_names(ino)?;
        names.sort();
        for name in names {
            let value = service.xattr(ino, &name)?;
            told.push_str(&format!(" {}={:x}", String::from_utf8_lossy(&name), twox_hash::XxHash3_64::oneshot(&value)));
        }
        let nlink = is_frozen(ino).then_some(attributes.nlink);
        self.entries.push(Seen { path: path.clone(), inode: ino, is_directory, nlink, told });
        if is_directory { self.directory(ino, &path) } else { Ok(()) }
    }

    fn directory(&mut self, directory: Ino, path: &str) -> Result<(), Errno> {
        let service = &self.operations.0;
        let mut after = 0;
        loop {
            let page = service.read_directory(directory, after, PAGE, Listing::Attributes)?;
            let Some(last) = page.last() else { return Ok(()) };
            after = last.cookie;
            let outcome = page.iter().try_for_each(|entry| self.listed(directory, path, entry));
            page.iter().for_each(|entry| service.forget(entry.ino, 1));
            outcome?;
        }
    }

    fn listed(&mut self, directory: Ino, path: &str, entry: &DirectoryEntry) -> Result<(), Errno> {
        let (service, listed) = (&self.operations.0, entry.attributes.ok_or(Errno::EIO)?);
        if is_frozen(directory) {
            let found = service.lookup(directory, &entry.name)?;
            service.forget(found.ino, 1);
            assert_eq!(found, listed, "{path}: an entry that is looked up, and listed");
        }
        self.entry(&listed, below(path, &entry.name))
    }
}

fn walk_disk(at: &Path, path: String, entries: &mut Vec<Seen>) -> io::Result<()> {
    let metadata = fs::symlink_metadata(at)?;
    let kind = metadata.file_type();
    let (name, content) = match (kind.is_dir(), kind.is_symlink()) {
        (true, _) => (FileKind::Directory, String::new()),
        (_, true) => (FileKind::Symlink, format!(" -> {}", fs::read_link(at)?.display())),
        _ => (FileKind::Regular, told_content(&fs::read(at)?)),
    };
    let (mode, uid, gid) = (metadata.mode() & 0o7777, metadata.uid(), metadata.gid());
    let time = told_time(&path, (metadata.mtime(), metadata.mtime_nsec()));
    let told = format!("{name:?} {mode:o} {uid}:{gid} {time}{content}");
    entries.push(Seen { path: path.clone(), inode: metadata.ino(), is_directory: kind.is_dir(), nlink: None, told });
    if kind.is_dir() {
        for entry in fs::read_dir(at)? {
            let entry = entry?;
            walk_disk(&entry.path(), below(&path, entry.file_name().as_bytes()), entries)?;
        }
    }
    Ok(())
}
