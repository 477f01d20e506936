//! A version of a live directory, as of one commit.
//!
//! The names are read from that commit while the directory goes on changing. Content that loses its last live reference
//! meanwhile must stay until the tree names it: the caller keeps reclaiming away, from before the commit until the
//! version is named.
//!
//! Cost: one pass over the names and inodes. No content is read, except extended attributes too long for an entry.

use dedupfs_base::{EngineError, Result, shown};
use dedupfs_content::{FileBody, StreamId};
use dedupfs_namespace::{CommittedView, Inode, NamedInode, is_frozen};
use dedupfs_service::{FileKind, Ino};
use dedupfs_store::StoreError;
use dedupfs_store::recipe::Root;
use dedupfs_store::tree::{ATTRIBUTES_INLINE_BYTES_MAX, Attributes, Content, encode_attributes};

use super::build::{Built, EntryAttributes, TreeBuilder};
use crate::config::ENTRY_META_BYTES;
use crate::durability::space::Demand;
use crate::engine::Core;
use crate::progress::Progress;

/// Names read at once.
const NAMES_AT_ONCE: usize = 512;
/// Entries between two looks whether the work should end, and two requests for room.
const ENTRIES_BETWEEN_LOOKS: u64 = 512;

/// A directory on the way.
pub(crate) struct Way {
    name: Vec<u8>,
    ino: Ino,
    attributes: EntryAttributes,
    names: std::vec::IntoIter<NamedInode>,
    last: Vec<u8>,
    is_read: bool,
}

/// An entry that is met on the way.
pub(crate) struct Met<'a> {
    pub(crate) name: &'a [u8],
    pub(crate) inode: &'a Inode,
    above: &'a [Way],
}

impl Met<'_> {
    /// Its path below the uppermost directory, for messages.
    pub(crate) fn path(&self) -> String {
        let above = self.above.iter().skip(1).map(|way| way.name.as_slice());
        shown(&above.chain([self.name]).collect::<Vec<_>>().join(&b'/'))
    }
}

/// A snapshot being made.
pub(crate) struct Snapshot<'a> {
    pub(crate) core: &'a Core,
    /// The moment.
    pub(crate) view: &'a CommittedView,
    /// Its nodes go to the open container of this stream.
    pub(crate) stream: StreamId,
    /// Looks at each entry first, and tells whether it is left out: those in which `put` and `snapshot` work are.
    pub(crate) left_out: &'a dyn Fn(&Met<'_>) -> Result<bool>,
    pub(crate) progress: &'a dyn Progress,
}

impl Snapshot<'_> {
    /// Builds the tree of a directory.
    ///
    /// # Errors
    /// `NotFound`, `NotDirectory`; it holds a version; no room; damage; I/O errors; the work was ended.
    pub(crate) fn build(&self, directory: Ino) -> Result<Built> {
        let top = self.view.inode(directory)?.ok_or(EngineError::NotFound)?;
        if !top.is_directory() {
            return Err(EngineError::NotDirectory);
        }
        let mut tree = TreeBuilder::new(&self.core.dedup, self.stream);
        tree.begin_directory(b"");
        let mut ways = vec![self.way(b"", &top)?];
        let mut entries = 0_u64;
        let mut _room = None;
        while let Some(way) = ways.last_mut() {
            let Some((name, ino, _)) = self.next(way)? else {
                let attributes = std::mem::take(&mut way.attributes);
                ways.pop();
                if ways.is_empty() {
                    return tree.finish(attributes);
                }
                tree.end_directory(attributes, None)?;
                continue;
            };
            if entries.is_multiple_of(ENTRIES_BETWEEN_LOOKS) {
                self.look()?;
                let meta_bytes = ENTRIES_BETWEEN_LOOKS * ENTRY_META_BYTES;
                // The old promise ends with the new one.
                _room = Some(self.core.admit(Demand { data_bytes: 0, meta_bytes })?);
            }
            entries += 1;
            let Some(inode) = self.view.inode(ino)? else {
                return Err(StoreError::corrupt(format!("inode {ino}"), "an inode for its name", "none").into());
            };
            if is_frozen(ino) {
                return Err(EngineError::HoldsVersion(String::from_utf8_lossy(&name).into_owned()));
            }
            if (self.left_out)(&Met { name: &name, inode: &inode, above: &ways })? {
                continue;
            }
            match inode.kind {
                FileKind::Directory => {
                    tree.begin_directory(&name);
                    ways.push(self.way(&name, &inode)?);
                }
                _ => {
                    let file = (inode.nlink > 1).then_some((0, ino, 0));
                    tree.add(&name, self.attributes(&inode)?, file, content(&inode)?, None)?;
                    self.progress.advance(1);
                }
            }
        }
        Err(EngineError::Internal("a snapshot without an end"))
    }

    fn look(&self) -> Result<()> {
        if self.progress.is_cancelled() || self.core.gate.is_closing() {
            return Err(EngineError::Ended("the snapshot"));
        }
        self.core.relieve()
    }

    fn way(&self, name: &[u8], inode: &Inode) -> Result<Way> {
        let attributes = self.attributes(inode)?;
        Ok(Way {
            name: name.to_vec(),
            ino: inode.ino,
            attributes,
            names: Vec::new().into_iter(),
            last: Vec::new(),
            is_read: false,
        })
    }

    fn next(&self, way: &mut Way) -> Result<Option<NamedInode>> {
        loop {
            if let Some(name) = way.names.next() {
                return Ok(Some(name));
            }
            if way.is_read {
                return Ok(None);
            }
            let names = self.view.names(way.ino, &way.last, NAMES_AT_ONCE)?;
            way.is_read = names.len() < NAMES_AT_ONCE;
            if let Some((last, ..)) = names.last() {
                way.last.clone_from(last);
            }
            way.names = names.into_iter();
        }
    }

    fn attributes(&self, inode: &Inode) -> Result<EntryAttributes> {
        let encoded = match inode.xattr_count {
            0 => Vec::new(),
            _ => encode_attributes(&self.view.xattrs(inode.ino)?),
        };
        let attributes = match encoded.len() {
            0..=ATTRIBUTES_INLINE_BYTES_MAX => Attributes::Inline(encoded),
            _ => Attributes::Stored(self.store(&encoded)?),
        };
        Ok(EntryAttributes {
            mode: inode.mode,
            uid: inode.uid,
            gid: inode.gid,
            mtime_secs: inode.mtime.secs,
            mtime_nanos: inode.mtime.nanos,
            flags: inode.flags,
            attributes,
        })
    }

    /// Stores bytes as content is stored. Nothing refers to it until the leaf is stored: reclaiming is kept away.
    fn store(&self, bytes: &[u8]) -> Result<Root> {
        let _room = self.core.admit(self.core.cost.of_write(bytes.len() as u64))?;
        let mut body = FileBody::open(self.core.files.clone(), &Root::Empty)?;
        body.write(self.stream, 0, bytes)?;
        let mut root = Root::Empty;
        body.publish(self.stream, &mut |published| {
            root = published.root;
            Ok(())
        })?;
        Ok(root)
    }
}

fn content(inode: &Inode) -> Result<Content> {
    Ok(match inode.kind {
        FileKind::Regular => Content::File { root: inode.root, data_bytes: inode.data_bytes },
        FileKind::Symlink => {
            let target = inode.symlink_target.as_deref().ok_or(EngineError::Internal("a link without a target"))?;
            Content::Symlink(target.to_vec())
        }
        FileKind::CharDevice => Content::CharDevice(inode.rdev),
        FileKind::BlockDevice => Content::BlockDevice(inode.rdev),
        FileKind::Fifo => Content::Fifo,
        FileKind::Socket => Content::Socket,
        FileKind::Directory => return Err(EngineError::Internal("a directory without entries")),
    })
}
