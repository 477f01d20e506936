//! Plain file operations by path on any [`FileService`], as an application does them through the kernel, and a
//! description of everything that can be seen.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::Arc;

use dedupfs_service::{
    AttributeChanges, Attributes, Caller, Errno, FileKind, FilePlace, FileService, Handle, Ino, Listing, NewNode,
    NodeContent, OpenOptions, ROOT_INO, RenameFlags, WriteFlags, XattrMode,
};

type Outcome<T> = Result<T, Errno>;
/// Numbers of names in one tree.
type Names = HashMap<Ino, u32>;

/// Extended attributes of images, whose values are not known before the put.
const UNFORESEEN: [&[u8]; 2] = [b"user.dedupfs.checked", b"user.dedupfs.content"];

/// Returns lines in their order.
pub fn sorted<'a>(lines: impl Iterator<Item = &'a str>) -> String {
    let mut lines: Vec<&str> = lines.collect();
    lines.sort_unstable();
    lines.iter().flat_map(|line| [*line, "\n"]).collect()
}

/// A client of a service, in the role of a mounted filesystem, and the process for which it asks.
#[derive(Clone)]
pub struct Client(pub Arc<dyn FileService>, Caller);

impl Client {
    pub fn new(service: Arc<dyn FileService>) -> Self {
        Self::of_process(service, 1)
    }

    pub fn of_process(service: Arc<dyn FileService>, pid: u32) -> Self {
        Self(service, Caller { uid: 0, gid: 0, pid })
    }

    /// Returns the directory of `path` (such as "a" or "d/a") and the name in it.
    fn place<'a>(&self, path: &'a str) -> Outcome<(Ino, &'a [u8])> {
        match path.rsplit_once('/') {
            None => Ok((ROOT_INO, path.as_bytes())),
            Some((directory, name)) => Ok((self.find(directory)?.ino, name.as_bytes())),
        }
    }

    /// Looks `path` up. The kernel forgets it at once.
    pub fn find(&self, path: &str) -> Outcome<Attributes> {
        let (parent, name) = self.place(path)?;
        let found = self.0.lookup(parent, name)?;
        self.0.forget(found.ino, 1);
        Ok(found)
    }

    /// Opens the file; creates it if it is missing.
    pub fn open(&self, path: &str, append: bool) -> Outcome<(Ino, Handle)> {
        let how = OpenOptions { read: true, write: true, append, ..OpenOptions::default() };
        if let Ok(found) = self.find(path) {
            return Ok((found.ino, self.0.open(self.1, found.ino, how)?.handle));
        }
        let (parent, name) = self.place(path)?;
        let (created, opened) = self.0.create(self.1, NewNode { parent, name, mode: 0o644, umask: 0 }, how)?;
        self.0.forget(created.ino, 1);
        Ok((created.ino, opened.handle))
    }

    pub fn write(&self, (ino, handle): (Ino, Handle), offset: u64, bytes: &[u8]) -> Outcome<()> {
        let mut at = offset;
        for piece in bytes.chunks(30_011) {
            self.write_whole((ino, handle), at, piece)?;
            at += piece.len() as u64;
        }
        Ok(())
    }

    /// Writes by a single request.
    pub fn write_whole(&self, (ino, handle): (Ino, Handle), offset: u64, bytes: &[u8]) -> Outcome<()> {
        self.0.write(self.1, ino, handle, offset, bytes, WriteFlags::default()).map(drop)
    }

    pub fn read(&self, (ino, handle): (Ino, Handle), offset: u64, len_bytes: u32) -> Outcome<Vec<u8>> {
        let mut bytes = Vec::new();
        self.0.read(ino, handle, offset, len_bytes, &mut bytes).map(|()| bytes)
    }

    /// Clones `len_bytes` from one open file into another; returns the number of bytes copied.
    pub fn copy_range(
        &self,
        from: (Ino, Handle),
        from_offset: u64,
        to: (Ino, Handle),
        to_offset: u64,
        len_bytes: u64,
    ) -> Outcome<u32> {
        let place = |(ino, handle), offset| FilePlace { ino, handle, offset };
        self.0.copy_range(self.1, place(from, from_offset), place(to, to_offset), len_bytes)
    }

    pub fn flush(&self, (ino, handle): (Ino, Handle)) -> Outcome<()> {
        self.0.flush(ino, handle)
    }

    pub fn fsync(&self, (ino, handle): (Ino, Handle)) -> Outcome<()> {
        self.0.fsync(ino, handle)
    }

    pub fn release(&self, (ino, handle): (Ino, Handle)) {
        self.0.release(ino, handle);
    }

    /// Opens, writes, closes.
    pub fn put(&self, path: &str, offset: u64, bytes: &[u8], append: bool) -> Outcome<()> {
        let open = self.open(path, append)?;
        let written = self.write(open, offset, bytes).and_then(|()| self.flush(open));
        self.release(open);
        written
    }

    /// Opens both files, clones the content of `from` over the start of `to`, and closes them.
    pub fn clone_file(&self, from: &str, to: &str) -> Outcome<()> {
        let (source, target) = (self.open(from, false)?, self.open(to, false)?);
        let cloned = match source.0 == target.0 {
            true => Ok(()),
            false => self.copy_range(source, 0, target, 0, u64::MAX).map(drop),
        };
        let flushed = cloned.and_then(|()| self.flush(target));
        self.release(source);
        self.release(target);
        flushed
    }

    pub fn truncate(&self, path: &str, size_bytes: u64) -> Outcome<()> {
        let changes = AttributeChanges { size_bytes: Some(size_bytes), ..AttributeChanges::default() };
        self.0.set_attributes(self.1, self.find(path)?.ino, changes).map(drop)
    }

    pub fn chmod(&self, path: &str, mode: u16) -> Outcome<()> {
        let changes = AttributeChanges { mode: Some(mode), ..AttributeChanges::default() };
        self.0.set_attributes(self.1, self.find(path)?.ino, changes).map(drop)
    }

    pub fn rename(&self, from: &str, to: &str, exchange: bool) -> Outcome<()> {
        let (from, to) = (self.place(from)?, self.place(to)?);
        self.0.rename(from.0, from.1, to.0, to.1, RenameFlags { exchange, ..RenameFlags::default() })
    }

    pub fn link(&self, from: &str, to: &str) -> Outcome<()> {
        let (parent, name) = self.place(to)?;
        let linked = self.0.link(self.find(from)?.ino, parent, name)?;
        self.0.forget(linked.ino, 1);
        Ok(())
    }

    pub fn unlink(&self, path: &str) -> Outcome<()> {
        let (parent, name) = self.place(path)?;
        self.0.unlink(parent, name)
    }

    fn make(&self, path: &str, content: NodeContent<'_>) -> Outcome<()> {
        let (parent, name) = self.place(path)?;
        let made = self.0.make(self.1, NewNode { parent, name, mode: 0o755, umask: 0 }, content)?;
        self.0.forget(made.ino, 1);
        Ok(())
    }

    pub fn make_directory(&self, path: &str) -> Outcome<()> {
        self.make(path, NodeContent::Directory)
    }

    pub fn symlink(&self, path: &str, target: &[u8]) -> Outcome<()> {
        self.make(path, NodeContent::Symlink(target))
    }

    pub fn remove_directory(&self, path: &str) -> Outcome<()> {
        let (parent, name) = self.place(path)?;
        self.0.remove_directory(parent, name)
    }

    pub fn set_xattr(&self, path: &str, name: &str, value: &[u8]) -> Outcome<()> {
        self.0.set_xattr(self.1, self.find(path)?.ino, name.as_bytes(), value, XattrMode::Any)
    }

    pub fn remove_xattr(&self, path: &str, name: &str) -> Outcome<()> {
        self.0.remove_xattr(self.find(path)?.ino, name.as_bytes())
    }

    pub fn content(&self, ino: Ino) -> Outcome<Vec<u8>> {
        let how = OpenOptions { read: true, ..OpenOptions::default() };
        let open = (ino, self.0.open(self.1, ino, how)?.handle);
        let outcome = self.read(open, 0, 1 << 30);
        self.release(open);
        outcome
    }

    /// Describes everything that can be seen, one line for each name: path, kind, mode, links, length and hash of the
    /// content, target, extended attributes. Times and inode numbers are left out. Lines are sorted.
    pub fn describe(&self) -> Outcome<String> {
        let mut text = String::new();
        self.describe_directory(ROOT_INO, "", None, &mut text)?;
        Ok(sorted(text.lines()))
    }

    /// Describes a version of the directory `source` as [`describe`](Self::describe) will show it at `path`.
    pub fn describe_frozen(&self, source: &str, path: &str) -> Outcome<String> {
        let top = match source {
            "" => self.0.attributes(ROOT_INO)?,
            _ => self.find(source)?,
        };
        let mut names = Names::new();
        self.count_names(top.ino, &mut names)?;
        let mut text = String::new();
        self.describe_entry(&top, path, Some(&names), &mut text)?;
        Ok(text)
    }

    fn count_names(&self, directory: Ino, names: &mut Names) -> Outcome<()> {
        for entry in self.0.read_directory(directory, 0, 1000, Listing::Names)? {
            if entry.kind == FileKind::Directory {
                self.count_names(entry.ino, names)?;
            } else {
                *names.entry(entry.ino).or_default() += 1;
            }
        }
        Ok(())
    }

    fn describe_directory(&self, directory: Ino, path: &str, names: Option<&Names>, text: &mut String) -> Outcome<()> {
        let mut entries = self.0.read_directory(directory, 0, 1000, Listing::Attributes)?;
        entries.sort_by(|left, right| left.name.cmp(&right.name));
        for entry in entries {
            let attributes = entry.attributes.ok_or(Errno::EIO)?;
            self.0.forget(entry.ino, 1);
            let path = format!("{path}/{}", String::from_utf8_lossy(&entry.name));
            self.describe_entry(&attributes, &path, names, text)?;
        }
        Ok(())
    }

    /// Describes an entry and everything below it. A frozen file has only the names that `names` counts.
    fn describe_entry(
        &self,
        attributes: &Attributes,
        path: &str,
        names: Option<&Names>,
        text: &mut String,
    ) -> Outcome<()> {
        let (ino, kind, mode) = (attributes.ino, attributes.kind, attributes.mode);
        let nlink = names.and_then(|names| names.get(&ino)).copied().unwrap_or(attributes.nlink);
        let _infallible = write!(text, "{path} {kind:?} {mode:o} x{nlink}");
        match kind {
            FileKind::Regular => {
                let bytes = self.content(ino)?;
                if bytes.len() as u64 != attributes.size_bytes {
                    let _infallible = write!(text, " SAYS {} BYTES AND HAS", attributes.size_bytes);
                }
                let hash = twox_hash::XxHash3_128::oneshot(&bytes);
                let _infallible = write!(text, " {} {hash:032x}", bytes.len());
            }
            FileKind::Symlink => {
                let target = self.0.read_link(ino)?;
                let _infallible = write!(text, " -> {}", String::from_utf8_lossy(&target));
            }
            _ => {}
        }
        let mut xattrs = self.0.xattr_names(ino)?;
        xattrs.sort();
        for name in xattrs {
            if UNFORESEEN.contains(&&*name) {
                let _infallible = write!(text, " {}", String::from_utf8_lossy(&name));
                continue;
            }
            let value = twox_hash::XxHash3_64::oneshot(&self.0.xattr(ino, &name)?);
            let _infallible = write!(text, " {}={value:x}", String::from_utf8_lossy(&name));
        }
        text.push('\n');
        if kind == FileKind::Directory {
            self.describe_directory(ino, path, names, text)?;
        }
        Ok(())
    }

    /// Removes everything in the tree.
    pub fn remove_everything(&self) -> Outcome<()> {
        self.empty(ROOT_INO)
    }

    /// Removes everything in the root but these names.
    pub fn remove_live(&self, is_kept: &dyn Fn(&[u8]) -> bool) -> Outcome<()> {
        for entry in self.0.read_directory(ROOT_INO, 0, 1000, Listing::Names)? {
            match entry.kind {
                _ if is_kept(&entry.name) => {}
                FileKind::Directory => {
                    self.empty(entry.ino)?;
                    self.0.remove_directory(ROOT_INO, &entry.name)?;
                }
                _ => self.0.unlink(ROOT_INO, &entry.name)?,
            }
        }
        Ok(())
    }

    /// Returns the names in a directory.
    pub fn names(&self, path: &str) -> Outcome<Vec<String>> {
        let entries = self.0.read_directory(self.find(path)?.ino, 0, 1000, Listing::Names)?;
        Ok(entries.iter().map(|entry| String::from_utf8_lossy(&entry.name).into_owned()).collect())
    }

    pub fn empty(&self, directory: Ino) -> Outcome<()> {
        for entry in self.0.read_directory(directory, 0, 1000, Listing::Names)? {
            if entry.kind == FileKind::Directory {
                // A version without a name of its own goes at once.
                if self.0.remove_directory(directory, &entry.name).is_ok() {
                    continue;
                }
                self.empty(entry.ino)?;
                self.0.remove_directory(directory, &entry.name)?;
            } else {
                self.0.unlink(directory, &entry.name)?;
            }
        }
        Ok(())
    }
}
