//! `MemoryService`: the whole contract in memory, as simply as possible. It is the oracle that other services are compared with.
//!
//! One mutex guards everything; a file is one `Vec<u8>`; a directory is two maps, by name and by cookie. Nothing is fast, nothing survives
//! the process, and there are no holes: a file is data from start to end.

mod content;
mod tree;

use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};

use crate::{
    AttributeChanges, Attributes, Caller, DirectoryEntry, Errno, FileKind, FilePlace, FileService, Handle, Ino,
    InodeFlags, Listing, NewNode, NodeContent, OpenOptions, Opened, RenameFlags, Result, SeekTarget, Statistics,
    TimeChange, Timestamp, WriteFlags, XattrMode, acl, check_xattr_name, without_privileges,
};
pub use content::FileContent;
use tree::{Body, Node, Tree, now};

const XATTR_VALUE_BYTES_MAX: usize = 64 << 10;
const CAPABILITY_XATTR: &[u8] = b"security.capability";

/// The behaviour of a [`MemoryService`].
#[derive(Clone, Copy, Debug)]
pub struct MemoryOptions {
    /// Time for which the kernel may trust names and attributes.
    pub cache_time: Duration,
    /// Whether calls claim to be answered from memory. If not, the adapter moves them to other threads.
    pub quick: bool,
    /// Whether write handles bypass the page cache.
    pub direct_io: bool,
    /// Whether the kernel keeps a file's pages from one open to the next.
    pub keep_cache: bool,
    /// Longest file.
    pub file_bytes_max: u64,
    /// An inode whose attributes cannot be read, as on a damaged disk.
    pub damaged: Option<Ino>,
}

impl Default for MemoryOptions {
    fn default() -> Self {
        Self {
            cache_time: Duration::from_secs(3600),
            quick: true,
            direct_io: true,
            keep_cache: true,
            file_bytes_max: 1 << 30,
            damaged: None,
        }
    }
}

/// A filesystem in memory.
pub struct MemoryService<C = Vec<u8>> {
    tree: Mutex<Tree<C>>,
    options: MemoryOptions,
    shutting_down: Mutex<()>,
}

impl MemoryService {
    /// Makes an empty filesystem with default options.
    pub fn new() -> Self {
        Self::with_options(MemoryOptions::default())
    }
}

impl<C: FileContent> Default for MemoryService<C> {
    fn default() -> Self {
        Self::with_options(MemoryOptions::default())
    }
}

impl<C: FileContent> MemoryService<C> {
    /// Makes an empty filesystem.
    pub fn with_options(options: MemoryOptions) -> Self {
        Self { tree: Mutex::new(Tree::new()), options, shutting_down: Mutex::new(()) }
    }

    /// Number of inodes, including those without a name.
    pub fn inode_count(&self) -> usize {
        self.tree.lock().nodes.len()
    }

    /// Blocks the shutdown until the returned guard is dropped, as a slow disk does.
    pub fn hold_shutdown(&self) -> MutexGuard<'_, ()> {
        self.shutting_down.lock()
    }

    fn opened(&self, handle: Handle, how: OpenOptions) -> Opened {
        Opened { handle, keep_cache: self.options.keep_cache, direct_io: self.options.direct_io && how.write }
    }
}

fn moment(change: TimeChange) -> Timestamp {
    match change {
        TimeChange::Now => now(),
        TimeChange::At(time) => time,
    }
}

/// Updates length, blocks and times after a change of content.
fn content_changed(attributes: &mut Attributes, len_bytes: u64) {
    attributes.size_bytes = len_bytes;
    attributes.blocks = len_bytes.div_ceil(512);
    attributes.mtime = now();
    attributes.ctime = attributes.mtime;
}

fn set_acl<C>(node: &mut Node<C>, caller: Caller, name: &[u8], value: &[u8]) -> Result<()> {
    match node.attributes.kind {
        FileKind::Symlink => return Err(Errno::EOPNOTSUPP),
        kind if kind != FileKind::Directory && name == acl::DEFAULT_XATTR => return Err(Errno::EACCES),
        _ => {}
    }
    let stored = if name == acl::ACCESS_XATTR {
        let in_group = caller.uid == 0 || caller.gid == node.attributes.gid;
        let change = acl::set_access(value, node.attributes.mode, in_group)?;
        node.attributes.mode = change.mode;
        change.stored
    } else {
        Some(acl::Acl::parse(value)?.to_bytes())
    };
    match stored {
        Some(stored) => node.xattrs.insert(name.to_vec(), stored),
        None => node.xattrs.remove(name),
    };
    Ok(())
}

impl<C: FileContent> FileService for MemoryService<C> {
    fn cache_time(&self) -> Duration {
        self.options.cache_time
    }

    fn lookup(&self, parent: Ino, name: &[u8]) -> Result<Attributes> {
        let mut tree = self.tree.lock();
        let entry = tree.entry(parent, name)?.ok_or(Errno::ENOENT)?;
        if self.options.damaged == Some(entry.ino) {
            return Err(Errno::EIO);
        }
        tree.looked_up(entry.ino)
    }

    fn lookup_inode(&self, ino: Ino) -> Result<Attributes> {
        let mut tree = self.tree.lock();
        match tree.node(ino) {
            Ok(node) if node.attributes.nlink > 0 => tree.looked_up(ino),
            _ => Err(Errno::ESTALE),
        }
    }

    fn forget(&self, ino: Ino, count: u64) {
        let mut tree = self.tree.lock();
        if let Ok(node) = tree.node_mut(ino) {
            node.lookups = node.lookups.saturating_sub(count);
            tree.collect(ino);
        }
    }

    fn attributes(&self, ino: Ino) -> Result<Attributes> {
        Ok(self.tree.lock().node(ino)?.attributes)
    }

    fn set_attributes(&self, caller: Caller, ino: Ino, changes: AttributeChanges) -> Result<Attributes> {
        let mut tree = self.tree.lock();
        if !tree.node(ino)?.flags.admit_change(&changes) {
            return Err(Errno::EPERM);
        }
        if let Some(size_bytes) = changes.size_bytes {
            if size_bytes > self.options.file_bytes_max {
                return Err(Errno::EFBIG);
            }
            let (attributes, content) = tree.file_mut(ino)?;
            content.set_len(size_bytes);
            content_changed(attributes, size_bytes);
        }
        let node = tree.node_mut(ino)?;
        if changes.drop_privileges(caller, node.attributes.kind) {
            node.attributes.mode = without_privileges(node.attributes.mode);
            node.xattrs.remove(CAPABILITY_XATTR);
        }
        if let Some(mode) = changes.mode {
            node.attributes.mode = mode & 0o7777;
            if let Some(access) = node.xattrs.get_mut(acl::ACCESS_XATTR) {
                *access = acl::chmod(access, mode)?;
            }
        }
        let attributes = &mut node.attributes;
        attributes.uid = changes.uid.unwrap_or(attributes.uid);
        attributes.gid = changes.gid.unwrap_or(attributes.gid);
        attributes.atime = changes.atime.map_or(attributes.atime, moment);
        attributes.mtime = changes.mtime.map_or(attributes.mtime, moment);
        attributes.ctime = changes.ctime.unwrap_or_else(now);
        Ok(*attributes)
    }

    fn flags(&self, ino: Ino) -> Result<InodeFlags> {
        Ok(self.tree.lock().node(ino)?.flags)
    }

    fn set_flags(&self, caller: Caller, ino: Ino, flags: InodeFlags) -> Result<()> {
        let mut tree = self.tree.lock();
        let node = tree.node_mut(ino)?;
        if !matches!(node.attributes.kind, FileKind::Regular | FileKind::Directory) {
            return Err(Errno::EOPNOTSUPP);
        }
        let protection = |flags: InodeFlags| (flags.immutable, flags.append_only);
        let allowed = caller.uid == node.attributes.uid && protection(flags) == protection(node.flags);
        if caller.uid != 0 && !allowed {
            return Err(Errno::EPERM);
        }
        node.flags = flags;
        node.attributes.ctime = now();
        Ok(())
    }

    fn read_link(&self, ino: Ino) -> Result<Vec<u8>> {
        let mut tree = self.tree.lock();
        let Body::Symlink(target) = &tree.node(ino)?.body else { return Err(Errno::EINVAL) };
        let target = target.clone();
        tree.accessed(ino)?;
        Ok(target)
    }

    fn make(&self, caller: Caller, node: NewNode<'_>, content: NodeContent<'_>) -> Result<Attributes> {
        let mut tree = self.tree.lock();
        let ino = tree.make(caller, node, content)?;
        tree.looked_up(ino)
    }

    fn create(&self, caller: Caller, node: NewNode<'_>, how: OpenOptions) -> Result<(Attributes, Opened)> {
        let mut tree = self.tree.lock();
        let ino = tree.make(caller, node, NodeContent::Regular)?;
        let handle = tree.open(ino, how)?;
        Ok((tree.looked_up(ino)?, self.opened(handle, how)))
    }

    fn unlink(&self, parent: Ino, name: &[u8]) -> Result<()> {
        self.tree.lock().unlink(parent, name)
    }

    fn remove_directory(&self, parent: Ino, name: &[u8]) -> Result<()> {
        self.tree.lock().remove_directory(parent, name)
    }

    fn rename(&self, parent: Ino, name: &[u8], to_parent: Ino, to_name: &[u8], flags: RenameFlags) -> Result<()> {
        self.tree.lock().rename((parent, name), (to_parent, to_name), flags)
    }

    fn link(&self, ino: Ino, to_parent: Ino, to_name: &[u8]) -> Result<Attributes> {
        let mut tree = self.tree.lock();
        tree.link(ino, to_parent, to_name)?;
        tree.looked_up(ino)
    }

    fn open(&self, caller: Caller, ino: Ino, how: OpenOptions) -> Result<Opened> {
        let mut tree = self.tree.lock();
        if !tree.node(ino)?.flags.admit(how) {
            return Err(Errno::EPERM);
        }
        let (attributes, content) = tree.file_mut(ino)?;
        if how.truncate {
            content.set_len(0);
            content_changed(attributes, 0);
            if caller.uid != 0 {
                attributes.mode = without_privileges(attributes.mode);
            }
        }
        let handle = tree.open(ino, how)?;
        Ok(self.opened(handle, how))
    }

    fn read(&self, ino: Ino, handle: Handle, offset: u64, len_bytes: u32, into: &mut Vec<u8>) -> Result<()> {
        let mut tree = self.tree.lock();
        if !tree.open_file(ino, handle)?.how.no_access_time {
            tree.accessed(ino)?;
        }
        let (_, content) = tree.file_mut(ino)?;
        content.read_at(offset, len_bytes, into);
        Ok(())
    }

    fn note_cached(&self, ino: Ino, _handle: Handle) {
        if let Ok(node) = self.tree.lock().node_mut(ino) {
            node.may_be_cached = true;
        }
    }

    fn may_be_cached(&self, ino: Ino, _handle: Handle) -> bool {
        self.tree.lock().node(ino).is_ok_and(|node| node.may_be_cached)
    }

    fn read_is_quick(&self, _ino: Ino, _handle: Handle, _offset: u64, _len_bytes: u32) -> bool {
        self.options.quick
    }

    fn write(
        &self,
        _caller: Caller,
        ino: Ino,
        handle: Handle,
        offset: u64,
        data: &[u8],
        flags: WriteFlags,
    ) -> Result<u32> {
        let written = u32::try_from(data.len()).map_err(|_| Errno::EINVAL)?;
        let mut tree = self.tree.lock();
        let open = tree.open_file(ino, handle)?;
        if !open.how.write {
            return Err(Errno::EBADF);
        }
        let protection = tree.node(ino)?.flags;
        let (attributes, content) = tree.file_mut(ino)?;
        let offset =
            if open.how.append && !flags.from_cache && !flags.at_offset { content.len_bytes() } else { offset };
        if offset.saturating_add(u64::from(written)) > self.options.file_bytes_max {
            return Err(Errno::EFBIG);
        }
        if protection.immutable || protection.append_only && offset < content.len_bytes() {
            return Err(Errno::EPERM);
        }
        content.write_at(offset, data);
        content_changed(attributes, content.len_bytes());
        if flags.drop_privileges {
            attributes.mode = without_privileges(attributes.mode);
        }
        tree.node_mut(ino)?.xattrs.remove(CAPABILITY_XATTR);
        Ok(written)
    }

    fn flush(&self, ino: Ino, handle: Handle) -> Result<()> {
        self.tree.lock().open_file(ino, handle).map(drop)
    }

    fn flush_is_quick(&self, _ino: Ino, _handle: Handle) -> bool {
        self.options.quick
    }

    fn fsync(&self, ino: Ino, handle: Handle) -> Result<()> {
        self.tree.lock().open_file(ino, handle).map(drop)
    }

    fn is_synchronous(&self, ino: Ino, handle: Handle) -> bool {
        self.tree.lock().open_file(ino, handle).is_ok_and(|open| open.how.sync)
    }

    fn change_is_quick(&self, _ino: Ino) -> bool {
        self.options.quick
    }

    fn release(&self, _ino: Ino, handle: Handle) {
        self.tree.lock().close(handle);
    }

    fn allocate(&self, ino: Ino, handle: Handle, offset: u64, len_bytes: u64, mode: i32) -> Result<()> {
        let end = offset.checked_add(len_bytes).ok_or(Errno::EFBIG)?;
        if len_bytes == 0 {
            return Err(Errno::EINVAL);
        }
        let keep_size = mode & libc::FALLOC_FL_KEEP_SIZE != 0;
        let zeroes = match mode & !libc::FALLOC_FL_KEEP_SIZE {
            0 => false,
            libc::FALLOC_FL_PUNCH_HOLE if keep_size => true,
            libc::FALLOC_FL_ZERO_RANGE => true,
            _ => return Err(Errno::EOPNOTSUPP),
        };
        let mut tree = self.tree.lock();
        if !tree.open_file(ino, handle)?.how.write {
            return Err(Errno::EBADF);
        }
        let protection = tree.node(ino)?.flags;
        if protection.immutable || protection.append_only && mode & !libc::FALLOC_FL_KEEP_SIZE != 0 {
            return Err(Errno::EPERM);
        }
        if !keep_size && end > self.options.file_bytes_max {
            return Err(Errno::EFBIG);
        }
        let (attributes, content) = tree.file_mut(ino)?;
        if zeroes {
            content.zero(offset, len_bytes);
        }
        if !keep_size && end > content.len_bytes() {
            content.set_len(end);
        }
        content_changed(attributes, content.len_bytes());
        Ok(())
    }

    fn copy_range(&self, _caller: Caller, from: FilePlace, to: FilePlace, len_bytes: u64) -> Result<u32> {
        let mut tree = self.tree.lock();
        let (source, target) = (tree.open_file(from.ino, from.handle)?, tree.open_file(to.ino, to.handle)?);
        if !source.how.read || !target.how.write || target.how.append {
            return Err(Errno::EBADF);
        }
        let (_, content) = tree.file_mut(from.ino)?;
        let left_bytes = content.len_bytes().saturating_sub(from.offset);
        let len_bytes = u32::try_from(len_bytes.min(left_bytes)).unwrap_or(u32::MAX);
        if len_bytes == 0 {
            return Ok(0);
        }
        if from.ino == to.ino && from.offset.abs_diff(to.offset) < u64::from(len_bytes) {
            return Err(Errno::EINVAL);
        }
        if to.offset.saturating_add(u64::from(len_bytes)) > self.options.file_bytes_max {
            return Err(Errno::EFBIG);
        }
        let mut copied = Vec::new();
        content.read_at(from.offset, len_bytes, &mut copied);
        let protection = tree.node(to.ino)?.flags;
        let (attributes, content) = tree.file_mut(to.ino)?;
        if protection.immutable || protection.append_only && to.offset < content.len_bytes() {
            return Err(Errno::EPERM);
        }
        content.write_at(to.offset, &copied);
        content_changed(attributes, content.len_bytes());
        tree.node_mut(to.ino)?.xattrs.remove(CAPABILITY_XATTR);
        Ok(len_bytes)
    }

    fn seek(&self, ino: Ino, _handle: Handle, offset: u64, target: SeekTarget) -> Result<u64> {
        let size_bytes = self.tree.lock().node(ino)?.attributes.size_bytes;
        match target {
            _ if offset >= size_bytes => Err(Errno::ENXIO),
            SeekTarget::Data => Ok(offset),
            SeekTarget::Hole => Ok(size_bytes),
        }
    }

    fn read_directory(&self, ino: Ino, after: u64, limit: usize, listing: Listing) -> Result<Vec<DirectoryEntry>> {
        let mut tree = self.tree.lock();
        tree.directory(ino)?;
        tree.accessed(ino)?;
        let directory = tree.directory(ino)?;
        let names: Vec<(u64, Vec<u8>)> =
            directory.order.range(after + 1..).take(limit).map(|(&cookie, name)| (cookie, name.clone())).collect();
        let mut list = Vec::with_capacity(names.len());
        for (cookie, name) in names {
            let entry = tree.entry(ino, &name)?.ok_or(Errno::EIO)?;
            let kind = tree.node(entry.ino)?.attributes.kind;
            let attributes = if listing == Listing::Attributes { Some(tree.looked_up(entry.ino)?) } else { None };
            let attributes = attributes.filter(|_| self.options.damaged != Some(entry.ino));
            list.push(DirectoryEntry { ino: entry.ino, kind, name, cookie, attributes });
        }
        Ok(list)
    }

    fn directory_end(&self, _ino: Ino) -> u64 {
        self.tree.lock().next_cookie
    }

    fn parent(&self, ino: Ino) -> Result<Ino> {
        Ok(self.tree.lock().directory(ino)?.parent)
    }

    fn fsync_directory(&self, ino: Ino) -> Result<()> {
        self.tree.lock().directory(ino).map(drop)
    }

    fn statistics(&self) -> Result<Statistics> {
        const BLOCK_BYTES: u64 = 4096;
        const BLOCKS: u64 = 1 << 28;
        let tree = self.tree.lock();
        let used_bytes: u64 = tree.nodes.values().map(|node| node.attributes.size_bytes).sum();
        let blocks_free = BLOCKS.saturating_sub(used_bytes.div_ceil(BLOCK_BYTES));
        Ok(Statistics {
            block_bytes: BLOCK_BYTES as u32,
            blocks: BLOCKS,
            blocks_free,
            blocks_available: blocks_free,
            files: 1 << 32,
            files_free: (1 << 32) - tree.nodes.len() as u64,
            name_bytes_max: 255,
        })
    }

    fn xattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        self.tree.lock().node(ino)?.xattrs.get(name).cloned().ok_or(Errno::ENODATA)
    }

    fn xattr_names(&self, ino: Ino) -> Result<Vec<Vec<u8>>> {
        Ok(self.tree.lock().node(ino)?.xattrs.keys().cloned().collect())
    }

    fn set_xattr(&self, caller: Caller, ino: Ino, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()> {
        check_xattr_name(name)?;
        if value.len() > XATTR_VALUE_BYTES_MAX {
            return Err(Errno::E2BIG);
        }
        let mut tree = self.tree.lock();
        tree.check_changes(ino)?;
        let node = tree.node_mut(ino)?;
        match (mode, node.xattrs.contains_key(name)) {
            (XattrMode::Create, true) => return Err(Errno::EEXIST),
            (XattrMode::Replace, false) => return Err(Errno::ENODATA),
            _ => {}
        }
        if acl::is_list(name) {
            set_acl(node, caller, name, value)?;
        } else {
            node.xattrs.insert(name.to_vec(), value.to_vec());
        }
        node.attributes.ctime = now();
        Ok(())
    }

    fn remove_xattr(&self, ino: Ino, name: &[u8]) -> Result<()> {
        let mut tree = self.tree.lock();
        tree.check_changes(ino)?;
        let node = tree.node_mut(ino)?;
        if node.xattrs.remove(name).is_none() {
            return if acl::is_list(name) { Ok(()) } else { Err(Errno::ENODATA) };
        }
        node.attributes.ctime = now();
        Ok(())
    }

    fn shutdown(&self) {
        drop(self.shutting_down.lock());
    }
}
