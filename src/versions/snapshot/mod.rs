//! A version of a live directory, as of one commit.
//!
//! The names are read from that commit while the directory goes on changing. Content that loses its last live reference
//! meanwhile must stay until the tree names it: the caller keeps reclaiming away, from before the commit until the
//! version is named.
//!
//! Cost: one pass over the names and inodes. No content is read, except extended attributes too long for an entry.
//!
//! With an [`Earlier`] snapshot of the same directory, the namespace tells which inodes changed since. A directory that did
//! not change, in which no entry did, is not read anew: only its names are, for the numbers of the inodes. If nothing
//! below it changed either, its tree is taken over.

mod earlier;
mod names;
mod walk;

use dedupfs_base::{EngineError, Result, shown};
use dedupfs_content::{FileBody, StreamId};
use dedupfs_namespace::{CommittedView, Inode};
use dedupfs_service::Ino;
use dedupfs_store::recipe::Root;
use dedupfs_store::tree::{ATTRIBUTES_INLINE_BYTES_MAX, Attributes, encode_attributes};

use super::build::{Built, EntryAttributes};
use crate::engine::Core;
use crate::progress::Progress;
pub(crate) use earlier::{Earlier, SnapshotMade, SnapshotsMade};
use walk::{Walk, Way};

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

/// A snapshot to be made.
pub(crate) struct Snapshot<'a> {
    pub(crate) core: &'a Core,
    /// The moment.
    pub(crate) view: &'a CommittedView,
    /// Its nodes go to the open container of this stream.
    pub(crate) stream: StreamId,
    /// Looks at each entry that is not taken over, and tells whether it is left out: those in which `put` and `snapshot` work are.
    pub(crate) left_out: &'a dyn Fn(&Met<'_>) -> Result<bool>,
    /// An earlier one of the same directory. Everything in it is held.
    pub(crate) earlier: Option<Earlier<'a>>,
    pub(crate) progress: &'a dyn Progress,
}

impl Snapshot<'_> {
    /// Builds the tree of a directory. Returns with it the number of entries that were taken over.
    ///
    /// # Errors
    /// `NotFound`, `NotDirectory`; it holds a version; no room; damage; I/O errors; the work was ended; `Internal` if the
    /// earlier snapshot does not fit.
    pub(crate) fn build(&self, directory: Ino) -> Result<(Built, u64)> {
        Walk::new(self).build(directory)
    }

    fn look(&self) -> Result<()> {
        if self.progress.is_cancelled() || self.core.gate.is_closing() {
            return Err(EngineError::Ended("the snapshot"));
        }
        self.core.relieve()
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
