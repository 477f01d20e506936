//! Frozen trees as the kernel sees them: the inodes and names of versions, which never change.
//!
//! A version's own inode lies in the namespace; all others are made from its tree when they are asked for. The kernel's
//! references to any inode of a version count for the version, so its tree stays until the kernel knows none of them.
//! Decoded entries are cached, at most [`CACHE_BYTES`]; tree nodes are in the cache of nodes.

use std::sync::Arc;

use dedupfs_base::{EngineError, ReadOnly, Result};
use dedupfs_content::FileBody;
use dedupfs_namespace::{Inode, is_frozen, version_of};
use dedupfs_service::{Attributes, DirectoryEntry, FileKind, Ino, Listing, Timestamp};
use dedupfs_store::StoreError;
use dedupfs_store::recipe::Root;
use dedupfs_store::tree::{self, Content, decode_attributes};
use dedupfs_sync::cache::{Cache, weighing};
use quick_cache::Weighter;

use super::Service;
use super::attributes::attributes_of;
use crate::versions::read::{Found, FrozenTree};

/// Cookies of a listing begin behind those of `.` and `..`.
const COOKIE_FIRST: u64 = 3;
/// Bound of the cached entries.
const CACHE_BYTES: u64 = 1 << 20;
/// Longest set of extended attributes that is read.
const ATTRIBUTES_BYTES_MAX: u64 = 512 << 20;

#[derive(Clone)]
pub(super) struct FoundWeighter;

impl Weighter<Ino, Arc<Found>> for FoundWeighter {
    fn weight(&self, _: &Ino, found: &Arc<Found>) -> u64 {
        let target = if let Content::Symlink(target) = &found.entry.content { target.len() } else { 0 };
        let attributes = if let tree::Attributes::Inline(bytes) = &found.entry.attributes { bytes.len() } else { 0 };
        (size_of::<Found>() + found.entry.name.len() + target + attributes + 128) as u64
    }
}

/// Entries found lately.
pub(super) type FoundCache = Cache<Ino, Arc<Found>, FoundWeighter>;

pub(super) fn cache() -> FoundCache {
    weighing((CACHE_BYTES / 512) as usize, CACHE_BYTES, FoundWeighter)
}

/// Refuses a change of names that touches a frozen directory, or leads across the border of a version.
pub(super) fn check_names(from: Ino, to: Ino) -> Result<()> {
    match (is_frozen(from), is_frozen(to)) {
        (false, false) => Ok(()),
        (true, true) => Err(ReadOnly::Frozen.into()),
        _ => Err(EngineError::OtherFilesystem),
    }
}

/// Keeps a version's tree, also if the version is forgotten.
pub(crate) struct HeldVersion<'a> {
    service: &'a Service,
    version: Ino,
}

impl Drop for HeldVersion<'_> {
    fn drop(&mut self) {
        if self.service.lookups.forget(self.version, 1) {
            self.service.collect(self.version);
        }
    }
}

impl Service {
    /// Refuses a change of a frozen inode.
    pub(super) fn check_live(&self, ino: Ino) -> Result<()> {
        match is_frozen(ino) {
            false => Ok(()),
            true if self.inode(ino)?.is_some() => Err(ReadOnly::Frozen.into()),
            true => Err(EngineError::NotFound),
        }
    }

    /// Keeps the tree of the version to which an inode belongs.
    pub(crate) fn hold_version(&self, ino: Ino) -> HeldVersion<'_> {
        let version = version_of(ino);
        self.lookups.count(version);
        HeldVersion { service: self, version }
    }

    /// Returns an inode, live or frozen, if it exists.
    pub(super) fn inode(&self, ino: Ino) -> Result<Option<Arc<Inode>>> {
        if !is_frozen(ino) {
            return self.core.namespace.inode_shared(ino);
        }
        let Some(version) = self.core.namespace.inode_shared(version_of(ino))? else { return Ok(None) };
        match self.found(&version, ino) {
            Ok(found) => Ok(Some(Arc::new(inode_of(&found, &version)?))),
            Err(EngineError::NotFound) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn version(&self, ino: Ino) -> Result<Arc<Inode>> {
        self.core.namespace.inode_shared(version_of(ino))?.ok_or(EngineError::NotFound)
    }

    fn tree(&self, version: &Inode) -> Result<FrozenTree<'_>> {
        FrozenTree::open(self.core.dedup.nodes(), version.ino, &version.root)
    }

    fn found(&self, version: &Inode, ino: Ino) -> Result<Arc<Found>> {
        if let Some(found) = self.frozen.get(&ino) {
            return Ok(found);
        }
        let found = Arc::new(self.tree(version)?.find(ino)?);
        self.frozen.insert(ino, found.clone());
        Ok(found)
    }

    /// Returns what the tree has on a frozen inode.
    pub(super) fn found_frozen(&self, ino: Ino) -> Result<Arc<Found>> {
        match self.frozen.get(&ino) {
            Some(found) => Ok(found),
            None => self.found(&*self.version(ino)?, ino),
        }
    }

    pub(super) fn find_frozen(&self, parent: Ino, name: &[u8]) -> Result<Attributes> {
        if name.len() > tree::NAME_BYTES_MAX {
            return Err(EngineError::NameTooLong);
        }
        let version = self.version(parent)?;
        let directory = self.found(&version, parent)?;
        let found = self.tree(&version)?.lookup(&directory, name)?;
        self.tell(&version, found)
    }

    /// Returns the attributes of a found entry, which the kernel will know from now on.
    fn tell(&self, version: &Inode, found: Found) -> Result<Attributes> {
        let attributes = attributes_of(&inode_of(&found, version)?);
        self.lookups.count(version.ino);
        self.frozen.insert(found.ino, Arc::new(found));
        Ok(attributes)
    }

    pub(super) fn list_frozen(
        &self,
        ino: Ino,
        after: u64,
        limit: usize,
        listing: Listing,
    ) -> Result<Vec<DirectoryEntry>> {
        let version = self.version(ino)?;
        let directory = self.found(&version, ino)?;
        let from = if after == 0 { 0 } else { after.saturating_sub(COOKIE_FIRST) + 1 };
        let rows = self.tree(&version)?.list(&directory, from, limit)?;
        let mut entries = Vec::with_capacity(rows.len());
        for (row, found) in (from..).zip(rows) {
            let (ino, kind, name) = (found.ino, kind_of(&found.entry.content), found.entry.name.clone());
            let attributes = match listing {
                Listing::Attributes => Some(self.tell(&version, found)?),
                // A copy of a tree asks for each entry next.
                Listing::Names => {
                    self.frozen.insert(ino, Arc::new(found));
                    None
                }
            };
            entries.push(DirectoryEntry { ino, kind, name, cookie: row + COOKIE_FIRST, attributes });
        }
        Ok(entries)
    }

    /// Returns the names on the way from an inode up to its version, each with its directory, if the version was removed.
    pub(super) fn names_in_removed(&self, ino: Ino) -> Result<Vec<(Ino, Vec<u8>)>> {
        let version = self.version(ino)?;
        let (mut names, mut at) = (Vec::new(), ino);
        while version.nlink == 0 && at != version.ino {
            let found = self.found(&version, at)?;
            names.push((found.directory, found.entry.name.to_vec()));
            at = found.directory;
        }
        Ok(names)
    }

    /// Returns the extended attributes of a frozen inode.
    pub(super) fn frozen_attributes(&self, ino: Ino) -> Result<Vec<tree::Attribute>> {
        let found = self.found_frozen(ino)?;
        self.attributes_of_entry(ino, &found.entry)
    }

    /// Returns the extended attributes of an entry; `ino` is for messages.
    pub(crate) fn attributes_of_entry(&self, ino: Ino, entry: &tree::Entry) -> Result<Vec<tree::Attribute>> {
        match &entry.attributes {
            tree::Attributes::Inline(bytes) => Ok(decode_attributes(bytes)?),
            tree::Attributes::Stored(root) => {
                let len_bytes = root.len_bytes();
                if len_bytes > ATTRIBUTES_BYTES_MAX {
                    let expected = format!("attributes of at most {ATTRIBUTES_BYTES_MAX} bytes");
                    return Err(StoreError::corrupt(format!("inode {ino}"), expected, len_bytes).into());
                }
                let mut bytes = Vec::new();
                FileBody::open(self.core.files.clone(), root)?.read(0, len_bytes, &mut bytes)?;
                Ok(decode_attributes(&bytes)?)
            }
        }
    }
}

fn kind_of(content: &Content) -> FileKind {
    match content {
        Content::File { .. } => FileKind::Regular,
        Content::Directory(_) => FileKind::Directory,
        Content::Symlink(_) => FileKind::Symlink,
        Content::CharDevice(_) => FileKind::CharDevice,
        Content::BlockDevice(_) => FileKind::BlockDevice,
        Content::Fifo => FileKind::Fifo,
        Content::Socket => FileKind::Socket,
    }
}

/// Makes the inode of an entry. In a version that was forgotten nothing has a name.
fn inode_of(found: &Found, version: &Inode) -> Result<Inode> {
    let entry = &found.entry;
    let too_many = |_| StoreError::corrupt(format!("inode {}", found.ino), "fewer links", "more than 2^32");
    let (nlink, size_bytes, root, data_bytes) = match &entry.content {
        Content::File { root, data_bytes } => (found.names, root.len_bytes(), *root, *data_bytes),
        Content::Directory(directory) => (2 + directory.subdirectories, directory.rows(), Root::Empty, 0),
        Content::Symlink(target) => (found.names, target.len() as u64, Root::Empty, 0),
        _ => (found.names, 0, Root::Empty, 0),
    };
    let is_directory = entry.is_directory();
    let is_uppermost = found.ino == version.ino;
    let mtime = Timestamp { secs: entry.mtime_secs, nanos: entry.mtime_nanos };
    Ok(Inode {
        ino: found.ino,
        generation: version.generation,
        kind: kind_of(&entry.content),
        mode: entry.mode,
        nlink: if version.nlink == 0 { 0 } else { u32::try_from(nlink).map_err(too_many)? },
        uid: entry.uid,
        gid: entry.gid,
        rdev: match entry.content {
            Content::CharDevice(number) | Content::BlockDevice(number) => number,
            _ => 0,
        },
        size_bytes,
        atime: mtime,
        mtime,
        ctime: mtime,
        root,
        parent: match (is_directory, is_uppermost) {
            (false, _) => 0,
            (true, false) => found.directory,
            (true, true) => version.parent,
        },
        xattr_count: u32::from(!entry.attributes.is_empty()),
        symlink_target: match &entry.content {
            Content::Symlink(target) => Some(Arc::from(target.as_slice())),
            _ => None,
        },
        flags: entry.flags,
        data_bytes,
    })
}
