//! The image on which a put of an image builds.

use dedupfs_base::Result;
use dedupfs_namespace::{VERSION_RECORD, version_of};
use dedupfs_service::Ino;
use dedupfs_store::recipe::Root;
use dedupfs_store::tree::{Attribute, Content, Entry};
use serde::{Deserialize, Serialize};

use super::{CHECKED_XATTR, CONTENT_XATTR, TOKEN_XATTR};
use crate::engine::Core;
use crate::service::{HeldVersion, Service};
use crate::versions::list::list;
use crate::versions::read::FrozenTree;
use crate::versions::record::VersionRecord;

/// The choice of a base.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum ImageBase {
    /// None: everything is read.
    #[default]
    None,
    /// The last complete version in this directory.
    LastIn(Ino),
    /// This version, or the one that this file is in.
    Version(Ino),
    /// The version that was named is gone.
    Gone,
}

/// When an image was last compared with its source as a whole.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Checked {
    Now,
    AsBefore,
}

/// The file of a version.
pub(super) struct Base<'a> {
    pub(super) version: Ino,
    pub(super) entry: Entry,
    xattrs: Vec<Attribute>,
    /// Keeps its content.
    _held: HeldVersion<'a>,
}

impl<'a> Base<'a> {
    /// Opens the chosen base. `Err` says in words why there is none.
    pub(super) fn open(core: &'a Core, service: &'a Service, choice: &ImageBase) -> std::result::Result<Self, String> {
        let version = match *choice {
            ImageBase::None => return Err("no base is wanted".to_owned()),
            ImageBase::Gone => return Err("the named base does not exist".to_owned()),
            ImageBase::Version(ino) => version_of(ino),
            ImageBase::LastIn(directory) => last_in(core, directory)
                .map_err(|error| format!("the versions cannot be listed: {error}"))?
                .ok_or("there is no earlier version here")?,
        };
        let held = service.hold_version(version);
        let cannot_read = |error| format!("the base cannot be read: {error}");
        let is_complete = core.namespace.xattr(version, VERSION_RECORD).map_err(cannot_read)?;
        let is_complete = is_complete.and_then(|record| VersionRecord::decode(&record).ok());
        if is_complete.is_none_or(|record| record.is_incomplete) {
            return Err("the base is gone, or incomplete".to_owned());
        }
        let (entry, xattrs) = only_file(core, service, version)
            .map_err(cannot_read)?
            .ok_or("the base is no version of an image: it has other entries than one file")?;
        Ok(Self { version, entry, xattrs, _held: held })
    }

    /// The root of its content.
    pub(super) fn root(&self) -> Root {
        match self.entry.content {
            Content::File { root, .. } => root,
            _ => Root::Empty,
        }
    }

    /// The state of the source that it holds.
    pub(super) fn token(&self) -> Option<&[u8]> {
        let content = super::content_name(&self.root());
        self.xattr(TOKEN_XATTR).filter(|_| self.xattr(CONTENT_XATTR) == Some(content.as_bytes()))
    }

    /// The time at which all of it was compared.
    pub(super) fn checked(&self) -> Option<&[u8]> {
        self.xattr(CHECKED_XATTR)
    }

    fn xattr(&self, wanted: &[u8]) -> Option<&[u8]> {
        self.xattrs.iter().find(|(name, _)| name == wanted).map(|(_, value)| value.as_slice())
    }
}

/// Returns the only entry of a version, if that is a regular file, and its extended attributes.
fn only_file(core: &Core, service: &Service, version: Ino) -> Result<Option<(Entry, Vec<Attribute>)>> {
    let Some(inode) = core.namespace.inode_shared(version)? else { return Ok(None) };
    if !matches!(inode.root, Root::Tree { .. }) {
        return Ok(None);
    }
    let tree = FrozenTree::open(core.dedup.nodes(), version, &inode.root)?;
    let mut rows = tree.list(&tree.uppermost()?, 0, 2)?;
    let Some(found) = rows.pop().filter(|_| rows.is_empty()) else { return Ok(None) };
    if !matches!(found.entry.content, Content::File { .. }) {
        return Ok(None);
    }
    let xattrs = service.attributes_of_entry(found.ino, &found.entry)?;
    Ok(Some((found.entry, xattrs)))
}

fn last_in(core: &Core, directory: Ino) -> Result<Option<Ino>> {
    core.committer.commit()?;
    let versions = list(&core.namespace.committed()?, Some(directory))?;
    let complete = versions.iter().rev().find(|version| !version.incomplete && version.damaged.is_none());
    Ok(complete.map(|version| version.ino))
}
