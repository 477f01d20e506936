//! The reference model's inodes and names, all under its one lock.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use super::content::FileContent;
use crate::{
    Attributes, Caller, Errno, FileKind, Handle, Ino, InodeFlags, NewNode, NodeContent, OpenOptions, ROOT_INO,
    RenameFlags, Result, Timestamp, access_is_due, acl,
};

const NAME_BYTES_MAX: usize = 255;
const TARGET_BYTES_MAX: usize = 4095;
const COOKIE_FIRST: u64 = 3;
const DIRECTORY_SIZE_BYTES: u64 = 4096;

pub(super) struct Node<C> {
    pub(super) attributes: Attributes,
    pub(super) body: Body<C>,
    pub(super) xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    pub(super) flags: InodeFlags,
    pub(super) lookups: u64,
    pub(super) handles: u32,
    pub(super) may_be_cached: bool,
}

pub(super) enum Body<C> {
    File(C),
    Directory(Directory),
    Symlink(Vec<u8>),
    Special,
}

pub(super) struct Directory {
    pub(super) parent: Ino,
    pub(super) entries: BTreeMap<Vec<u8>, Entry>,
    pub(super) order: BTreeMap<u64, Vec<u8>>,
}

#[derive(Clone, Copy)]
pub(super) struct Entry {
    pub(super) ino: Ino,
    pub(super) cookie: u64,
}

#[derive(Clone, Copy)]
pub(super) struct OpenFile {
    pub(super) ino: Ino,
    pub(super) how: OpenOptions,
}

pub(super) struct Tree<C> {
    pub(super) nodes: BTreeMap<Ino, Node<C>>,
    pub(super) open_files: BTreeMap<Handle, OpenFile>,
    next_ino: Ino,
    pub(super) next_cookie: u64,
    next_handle: Handle,
}

pub(super) fn now() -> Timestamp {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp { secs: now.as_secs().cast_signed(), nanos: now.subsec_nanos() }
}

fn check_name(name: &[u8]) -> Result<()> {
    match name {
        b"" => Err(Errno::ENOENT),
        b"." | b".." => Err(Errno::EINVAL),
        name if name.len() > NAME_BYTES_MAX => Err(Errno::ENAMETOOLONG),
        name if name.contains(&b'/') || name.contains(&0) => Err(Errno::EINVAL),
        _ => Ok(()),
    }
}

impl<C: FileContent> Tree<C> {
    pub(super) fn new() -> Self {
        let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let mut tree = Self {
            nodes: BTreeMap::new(),
            open_files: BTreeMap::new(),
            next_ino: ROOT_INO,
            next_cookie: COOKIE_FIRST,
            next_handle: 1,
        };
        let directory = Directory { parent: ROOT_INO, entries: BTreeMap::new(), order: BTreeMap::new() };
        tree.add_node(FileKind::Directory, Body::Directory(directory), 0o755, uid, gid, 0);
        tree
    }

    pub(super) fn node(&self, ino: Ino) -> Result<&Node<C>> {
        self.nodes.get(&ino).ok_or(Errno::ENOENT)
    }

    pub(super) fn node_mut(&mut self, ino: Ino) -> Result<&mut Node<C>> {
        self.nodes.get_mut(&ino).ok_or(Errno::ENOENT)
    }

    pub(super) fn directory(&self, ino: Ino) -> Result<&Directory> {
        match &self.node(ino)?.body {
            Body::Directory(directory) => Ok(directory),
            _ => Err(Errno::ENOTDIR),
        }
    }

    fn directory_mut(&mut self, ino: Ino) -> Result<&mut Directory> {
        match &mut self.node_mut(ino)?.body {
            Body::Directory(directory) => Ok(directory),
            _ => Err(Errno::ENOTDIR),
        }
    }

    pub(super) fn file_mut(&mut self, ino: Ino) -> Result<(&mut Attributes, &mut C)> {
        let node = self.node_mut(ino)?;
        match &mut node.body {
            Body::File(content) => Ok((&mut node.attributes, content)),
            Body::Directory(_) => Err(Errno::EISDIR),
            Body::Symlink(_) | Body::Special => Err(Errno::EINVAL),
        }
    }

    /// Returns the attributes of a node, and counts one more reference of the kernel.
    pub(super) fn looked_up(&mut self, ino: Ino) -> Result<Attributes> {
        let node = self.node_mut(ino)?;
        node.lookups += 1;
        Ok(node.attributes)
    }

    pub(super) fn entry(&self, parent: Ino, name: &[u8]) -> Result<Option<Entry>> {
        if name.len() > NAME_BYTES_MAX {
            return Err(Errno::ENAMETOOLONG);
        }
        Ok(self.directory(parent)?.entries.get(name).copied())
    }

    /// Checks that a directory still has a name, so that entries can be created in it.
    fn check_living_directory(&self, ino: Ino) -> Result<()> {
        self.directory(ino)?;
        if self.node(ino)?.attributes.nlink == 0 { Err(Errno::ENOENT) } else { Ok(()) }
    }

    fn check_takes_entries(&self, ino: Ino) -> Result<()> {
        if self.node(ino)?.flags.immutable { Err(Errno::EPERM) } else { Ok(()) }
    }

    /// Checks that an entry can be removed from its directory.
    fn check_gives(&self, parent: Ino, ino: Ino) -> Result<()> {
        let protected = self.node(parent)?.flags.protect() || self.node(ino)?.flags.protect();
        if protected { Err(Errno::EPERM) } else { Ok(()) }
    }

    /// Checks that a node's extended attributes can be changed.
    pub(super) fn check_changes(&self, ino: Ino) -> Result<()> {
        if self.node(ino)?.flags.protect() { Err(Errno::EPERM) } else { Ok(()) }
    }

    pub(super) fn accessed(&mut self, ino: Ino) -> Result<()> {
        let node = self.node_mut(ino)?;
        let Attributes { atime, mtime, ctime, .. } = node.attributes;
        let now = now();
        if !node.flags.no_access_time && access_is_due(atime, mtime, ctime, now) {
            node.attributes.atime = now;
        }
        Ok(())
    }

    fn add_node(&mut self, kind: FileKind, body: Body<C>, mode: u16, uid: u32, gid: u32, rdev: u32) -> Ino {
        let ino = self.next_ino;
        self.next_ino += 1;
        let time = now();
        let (nlink, size_bytes) = match &body {
            Body::File(content) => (1, content.len_bytes()),
            Body::Directory(_) => (2, DIRECTORY_SIZE_BYTES),
            Body::Symlink(target) => (1, target.len() as u64),
            Body::Special => (1, 0),
        };
        let attributes = Attributes {
            ino,
            generation: 0,
            kind,
            mode,
            nlink,
            uid,
            gid,
            rdev,
            size_bytes,
            blocks: size_bytes.div_ceil(512),
            atime: time,
            mtime: time,
            ctime: time,
        };
        let (xattrs, flags) = Default::default();
        self.nodes.insert(ino, Node { attributes, body, xattrs, flags, lookups: 0, handles: 0, may_be_cached: false });
        ino
    }

    fn set_entry(&mut self, parent: Ino, name: &[u8], ino: Ino) -> Result<()> {
        let fresh = self.next_cookie;
        self.next_cookie += 1;
        self.set_entry_at(fresh, parent, name, ino)
    }

    /// Like `set_entry`, but a new name gets this place.
    fn set_entry_at(&mut self, place: u64, parent: Ino, name: &[u8], ino: Ino) -> Result<()> {
        let directory = self.directory_mut(parent)?;
        let cookie = directory.entries.get(name).map_or(place, |old| old.cookie);
        directory.entries.insert(name.to_vec(), Entry { ino, cookie });
        directory.order.insert(cookie, name.to_vec());
        self.touch_directory(parent)
    }

    fn remove_entry(&mut self, parent: Ino, name: &[u8]) -> Result<()> {
        let directory = self.directory_mut(parent)?;
        if let Some(entry) = directory.entries.remove(name) {
            directory.order.remove(&entry.cookie);
        }
        self.touch_directory(parent)
    }

    fn touch_directory(&mut self, ino: Ino) -> Result<()> {
        let attributes = &mut self.node_mut(ino)?.attributes;
        attributes.mtime = now();
        attributes.ctime = attributes.mtime;
        Ok(())
    }

    pub(super) fn make(&mut self, caller: Caller, node: NewNode<'_>, content: NodeContent<'_>) -> Result<Ino> {
        check_name(node.name)?;
        self.check_living_directory(node.parent)?;
        if self.entry(node.parent, node.name)?.is_some() {
            return Err(Errno::EEXIST);
        }
        let (kind, rdev, body) = match content {
            NodeContent::Regular => (FileKind::Regular, 0, Body::File(C::default())),
            NodeContent::Directory => {
                let directory = Directory { parent: node.parent, entries: BTreeMap::new(), order: BTreeMap::new() };
                (FileKind::Directory, 0, Body::Directory(directory))
            }
            NodeContent::Symlink(b"") => return Err(Errno::ENOENT),
            NodeContent::Symlink(target) if target.len() > TARGET_BYTES_MAX => return Err(Errno::ENAMETOOLONG),
            NodeContent::Symlink(target) => (FileKind::Symlink, 0, Body::Symlink(target.to_vec())),
            NodeContent::CharDevice(rdev) => (FileKind::CharDevice, rdev, Body::Special),
            NodeContent::BlockDevice(rdev) => (FileKind::BlockDevice, rdev, Body::Special),
            NodeContent::Fifo => (FileKind::Fifo, 0, Body::Special),
            NodeContent::Socket => (FileKind::Socket, 0, Body::Special),
        };
        self.check_takes_entries(node.parent)?;
        let parent = self.node(node.parent)?;
        let inherited_flags = match kind {
            FileKind::Regular | FileKind::Directory => parent.flags.inherited(),
            _ => InodeFlags::default(),
        };
        let default_acl = parent.xattrs.get(acl::DEFAULT_XATTR).map(Vec::as_slice);
        let mut inherited = acl::inherit(default_acl, node.mode & 0o7777, node.umask, kind)?;
        let mut gid = caller.gid;
        if parent.attributes.mode & 0o2000 != 0 {
            gid = parent.attributes.gid;
            if kind == FileKind::Directory {
                inherited.mode |= 0o2000;
            }
        }
        let mode = if kind == FileKind::Symlink { 0o777 } else { inherited.mode };
        let ino = self.add_node(kind, body, mode, caller.uid, gid, rdev);
        self.node_mut(ino)?.flags = inherited_flags;
        let xattrs = &mut self.node_mut(ino)?.xattrs;
        xattrs.extend(inherited.access.map(|value| (acl::ACCESS_XATTR.to_vec(), value)));
        xattrs.extend(inherited.default.map(|value| (acl::DEFAULT_XATTR.to_vec(), value)));
        self.set_entry(node.parent, node.name, ino)?;
        if kind == FileKind::Directory {
            self.node_mut(node.parent)?.attributes.nlink += 1;
        }
        Ok(ino)
    }

    pub(super) fn link(&mut self, ino: Ino, to_parent: Ino, to_name: &[u8]) -> Result<()> {
        check_name(to_name)?;
        self.check_living_directory(to_parent)?;
        let attributes = self.node(ino)?.attributes;
        if attributes.kind == FileKind::Directory {
            return Err(Errno::EPERM);
        }
        if attributes.nlink == 0 {
            return Err(Errno::ENOENT);
        }
        if self.entry(to_parent, to_name)?.is_some() {
            return Err(Errno::EEXIST);
        }
        self.check_takes_entries(to_parent)?;
        self.check_changes(ino)?;
        self.set_entry(to_parent, to_name, ino)?;
        let attributes = &mut self.node_mut(ino)?.attributes;
        attributes.nlink += 1;
        attributes.ctime = now();
        Ok(())
    }

    pub(super) fn unlink(&mut self, parent: Ino, name: &[u8]) -> Result<()> {
        let entry = self.entry(parent, name)?.ok_or(Errno::ENOENT)?;
        self.check_gives(parent, entry.ino)?;
        if self.node(entry.ino)?.attributes.kind == FileKind::Directory {
            return Err(Errno::EISDIR);
        }
        self.remove_entry(parent, name)?;
        self.drop_link(entry.ino)
    }

    pub(super) fn remove_directory(&mut self, parent: Ino, name: &[u8]) -> Result<()> {
        let entry = self.entry(parent, name)?.ok_or(Errno::ENOENT)?;
        self.check_gives(parent, entry.ino)?;
        if !self.directory(entry.ino)?.entries.is_empty() {
            return Err(Errno::ENOTEMPTY);
        }
        self.remove_entry(parent, name)?;
        self.node_mut(parent)?.attributes.nlink -= 1;
        self.drop_link(entry.ino)
    }

    fn drop_link(&mut self, ino: Ino) -> Result<()> {
        let attributes = &mut self.node_mut(ino)?.attributes;
        attributes.nlink = if attributes.kind == FileKind::Directory { 0 } else { attributes.nlink - 1 };
        attributes.ctime = now();
        self.collect(ino);
        Ok(())
    }

    /// Frees an inode without names, references and handles.
    pub(super) fn collect(&mut self, ino: Ino) {
        let dead = |node: &Node<C>| node.attributes.nlink == 0 && node.lookups == 0 && node.handles == 0;
        if self.nodes.get(&ino).is_some_and(dead) {
            self.nodes.remove(&ino);
        }
    }

    fn is_within(&self, mut ino: Ino, ancestor: Ino) -> Result<bool> {
        while ino != ancestor {
            if ino == ROOT_INO {
                return Ok(false);
            }
            ino = self.directory(ino)?.parent;
        }
        Ok(true)
    }

    pub(super) fn rename(&mut self, from: (Ino, &[u8]), to: (Ino, &[u8]), flags: RenameFlags) -> Result<()> {
        check_name(from.1)?;
        check_name(to.1)?;
        if flags.exchange && (flags.no_replace || flags.whiteout) {
            return Err(Errno::EINVAL);
        }
        self.check_living_directory(from.0)?;
        self.check_living_directory(to.0)?;
        let Entry { ino: source, cookie: place } = self.entry(from.0, from.1)?.ok_or(Errno::ENOENT)?;
        let target = self.entry(to.0, to.1)?.map(|entry| entry.ino);
        if flags.no_replace && target.is_some() {
            return Err(Errno::EEXIST);
        }
        if flags.exchange && target.is_none() {
            return Err(Errno::ENOENT);
        }
        if target == Some(source) {
            return Ok(());
        }
        self.check_gives(from.0, source)?;
        match target {
            Some(target) => self.check_gives(to.0, target)?,
            None => self.check_takes_entries(to.0)?,
        }
        let is_directory = |ino: Ino| Ok::<_, Errno>(self.node(ino)?.attributes.kind == FileKind::Directory);
        let source_is_directory = is_directory(source)?;
        let target_is_directory = target.map_or(Ok(false), is_directory)?;
        if source_is_directory && self.is_within(to.0, source)? {
            return Err(Errno::EINVAL);
        }
        if let Some(target) = target {
            if flags.exchange {
                if target_is_directory && self.is_within(from.0, target)? {
                    return Err(Errno::EINVAL);
                }
                return self.exchange((from, source), (to, target));
            }
            match (source_is_directory, target_is_directory) {
                (true, false) => return Err(Errno::ENOTDIR),
                (false, true) => return Err(Errno::EISDIR),
                (true, true) if !self.directory(target)?.entries.is_empty() => return Err(Errno::ENOTEMPTY),
                _ => {}
            }
        }
        self.remove_entry(from.0, from.1)?;
        if from.0 == to.0 && !flags.whiteout {
            self.set_entry_at(place, to.0, to.1, source)?;
        } else {
            self.set_entry(to.0, to.1, source)?;
        }
        if source_is_directory {
            self.node_mut(from.0)?.attributes.nlink -= 1;
            self.node_mut(to.0)?.attributes.nlink += 1;
            self.directory_mut(source)?.parent = to.0;
        }
        self.node_mut(source)?.attributes.ctime = now();
        if let Some(target) = target {
            if target_is_directory {
                self.node_mut(to.0)?.attributes.nlink -= 1;
            }
            self.drop_link(target)?;
        }
        if flags.whiteout {
            let whiteout = self.add_node(FileKind::CharDevice, Body::Special, 0, 0, 0, 0);
            self.set_entry(from.0, from.1, whiteout)?;
        }
        Ok(())
    }

    fn exchange(&mut self, one: ((Ino, &[u8]), Ino), other: ((Ino, &[u8]), Ino)) -> Result<()> {
        for (((from, _), ino), ((to, name), _)) in [(one, other), (other, one)] {
            self.set_entry(to, name, ino)?;
            self.node_mut(ino)?.attributes.ctime = now();
            if let Body::Directory(directory) = &mut self.node_mut(ino)?.body {
                directory.parent = to;
                self.node_mut(from)?.attributes.nlink -= 1;
                self.node_mut(to)?.attributes.nlink += 1;
            }
        }
        Ok(())
    }

    pub(super) fn open(&mut self, ino: Ino, how: OpenOptions) -> Result<Handle> {
        let node = self.node_mut(ino)?;
        node.handles += 1;
        let handle = self.next_handle;
        self.next_handle += 1;
        self.open_files.insert(handle, OpenFile { ino, how });
        Ok(handle)
    }

    pub(super) fn open_file(&self, ino: Ino, handle: Handle) -> Result<OpenFile> {
        self.open_files.get(&handle).copied().filter(|open| open.ino == ino).ok_or(Errno::EBADF)
    }

    pub(super) fn close(&mut self, handle: Handle) {
        let Some(open) = self.open_files.remove(&handle) else { return };
        if let Some(node) = self.nodes.get_mut(&open.ino) {
            node.handles -= 1;
            self.collect(open.ino);
        }
    }
}
