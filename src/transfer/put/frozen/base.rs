//! A version on which a put builds: an entry that its notes call unchanged is taken over, and not read.

use std::collections::VecDeque;

use dedupfs_base::Result;
use dedupfs_namespace::{Inode, VERSION_RECORD, version_of};
use dedupfs_service::Ino;
use dedupfs_store::recipe::Root;
use dedupfs_store::tree::{Content, Entry};
use dedupfs_sync::canary::{Canary, is_planted};
use rustix::fs::Stat;
use serde::{Deserialize, Serialize};

use super::super::super::disk;
use crate::engine::Core;
use crate::service::{HeldVersion, Service};
use crate::versions::list::list;
use crate::versions::name::Origin;
use crate::versions::notes::{About, Noted, Notes};
use crate::versions::read::{Found, FrozenTree, RowAt};
use crate::versions::record::VersionRecord;

/// The choice of a base.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum BaseChoice {
    /// None: everything is read.
    #[default]
    None,
    /// The last complete version in this directory that is of the same source and host.
    LastIn(Ino),
    /// This version.
    Version(Ino),
    /// The version that was named is gone.
    Gone,
}

/// A base with its notes.
pub(super) struct Base<'a> {
    pub(super) ino: Ino,
    tree: FrozenTree<'a>,
    notes: Notes,
    /// Keeps the tree, which the new one shares.
    _held: HeldVersion<'a>,
}

/// A directory of the base, whose entries are taken in the order of their names.
pub(super) struct BaseDirectory {
    found: Found,
    rows: VecDeque<RowAt>,
    /// The next row that is not in `rows`.
    next: u64,
}

/// An entry of the base that has the name of one in the source.
pub(super) struct BaseEntry {
    pub(super) entry: Entry,
    pub(super) noted: Noted,
    /// Whether it is of an incomplete version.
    pub(super) is_incomplete: bool,
}

impl<'a> Base<'a> {
    /// Opens the chosen base. `Err` says in words why there is none.
    pub(super) fn open(
        core: &'a Core,
        service: &'a Service,
        choice: BaseChoice,
        origin: &Origin,
    ) -> std::result::Result<Self, String> {
        let ino = match choice {
            BaseChoice::None => return Err("all files are to be read".to_owned()),
            BaseChoice::Gone => return Err("the named base does not exist".to_owned()),
            BaseChoice::Version(ino) => version_of(ino),
            BaseChoice::LastIn(directory) => last_in(core, directory, origin)
                .map_err(|error| format!("the versions cannot be listed: {error}"))?
                .ok_or("there is no earlier version of this source here")?,
        };
        let base = Self::open_incomplete(core, service, ino, origin)?;
        match is_incomplete(core, ino) {
            false => Ok(base),
            true => Err("the base is incomplete".to_owned()),
        }
    }

    /// Opens a base that may be incomplete. `Err` says in words why it is none.
    pub(super) fn open_incomplete(
        core: &'a Core,
        service: &'a Service,
        ino: Ino,
        origin: &Origin,
    ) -> std::result::Result<Self, String> {
        let held = service.hold_version(ino);
        let version = core.namespace.inode_shared(ino).ok().flatten();
        let version: std::sync::Arc<Inode> = version.ok_or("the base is gone")?;
        let Root::Tree { child, .. } = version.root else { return Err("the base is no version".to_owned()) };
        let tree = FrozenTree::open(core.dedup.nodes(), ino, &version.root);
        let tree = tree.map_err(|error| format!("the base cannot be read: {error}"))?;
        let about = About::new(child.fingerprint, origin);
        let notes = Notes::open(&*core.meta_device, &core.pool, ino, &about);
        let notes = notes.map_err(|error| format!("the notes of the base cannot be used: {error}"))?;
        let notes = notes.ok_or("the base has no notes")?;
        Ok(Self { ino, tree, notes, _held: held })
    }

    /// The uppermost directory.
    pub(super) fn top(&self) -> Result<BaseDirectory> {
        self.tree.uppermost().map(BaseDirectory::new)
    }

    /// Returns the subdirectory of this name.
    pub(super) fn enter(&self, directory: &mut BaseDirectory, name: &[u8]) -> Result<Option<BaseDirectory>> {
        let row = self.row(directory, name)?.filter(|row| row.entry.is_directory());
        Ok(row.map(|row| BaseDirectory::new(self.tree.found_at(&directory.found, row))))
    }

    /// Returns the entry of this name with its note. Names must ascend from call to call.
    pub(super) fn entry(&self, directory: &mut BaseDirectory, name: &[u8]) -> Result<Option<BaseEntry>> {
        let Some(row) = self.row(directory, name)? else { return Ok(None) };
        let Some(noted) = self.notes.get(row.place)? else { return Ok(None) };
        Ok(Some(BaseEntry { entry: row.entry, noted, is_incomplete: false }))
    }

    fn row(&self, directory: &mut BaseDirectory, name: &[u8]) -> Result<Option<RowAt>> {
        loop {
            if let Some(row) = directory.rows.front() {
                match row.entry.name.as_slice().cmp(name) {
                    std::cmp::Ordering::Less => drop(directory.rows.pop_front()),
                    std::cmp::Ordering::Equal => return Ok(directory.rows.pop_front()),
                    std::cmp::Ordering::Greater => return Ok(None),
                }
                continue;
            }
            let rows = self.tree.rows(&directory.found, directory.next)?;
            if rows.is_empty() {
                return Ok(None);
            }
            directory.next += rows.len() as u64;
            directory.rows = rows.into();
        }
    }
}

impl BaseDirectory {
    fn new(found: Found) -> Self {
        Self { found, rows: VecDeque::new(), next: 0 }
    }
}

fn last_in(core: &Core, directory: Ino, origin: &Origin) -> Result<Option<Ino>> {
    core.committer.commit()?;
    let versions = list(&core.namespace.committed()?, Some(directory))?;
    let is_of = |version: &&crate::versions::list::VersionInfo| {
        !version.incomplete && version.damaged.is_none() && version.is_of(origin)
    };
    Ok(versions.iter().rev().find(is_of).map(|version| version.ino))
}

/// Whether a version says that it is incomplete, or its record cannot be read.
fn is_incomplete(core: &Core, version: Ino) -> bool {
    let record = core.namespace.xattr(version, VERSION_RECORD).ok().flatten();
    record.and_then(|record| VersionRecord::decode(&record).ok()).is_none_or(|record| record.is_incomplete)
}

/// Time of the last change of the inode, in nanoseconds since 1970.
pub(super) fn ctime_nanos(stat: &Stat) -> i64 {
    nanos(stat.st_ctime, stat.st_ctime_nsec)
}

/// Whether the file may change again and show the same times: it changed at most `margin_nanos` before `now_nanos`,
/// the time just before `stat` was taken, or in the future.
pub(super) fn is_racy(stat: &Stat, now_nanos: i64, margin_nanos: i64) -> bool {
    let changed = ctime_nanos(stat).max(nanos(stat.st_mtime, stat.st_mtime_nsec));
    changed >= now_nanos.saturating_sub(margin_nanos)
}

fn nanos(secs: i64, nanos: u64) -> i64 {
    secs.saturating_mul(1_000_000_000).saturating_add(i64::try_from(nanos).unwrap_or(0))
}

impl BaseEntry {
    /// Whether the file is as its note says. Then its entry can be taken over: a change of content or attributes gives
    /// an inode another ctime. `owner` is that of the copy: owner, group and mode.
    pub(super) fn is_unchanged(&self, stat: &Stat, owner: (u32, u32, u16)) -> bool {
        let Entry { uid, gid, mode, mtime_secs, mtime_nanos, ref content, .. } = self.entry;
        let size_bytes = u64::try_from(stat.st_size).unwrap_or(u64::MAX);
        let device = disk::encode_device(stat.st_rdev);
        use dedupfs_service::FileKind;
        let is_same = match (content, disk::kind_of(stat)) {
            (Content::File { root, .. }, Some(FileKind::Regular)) => root.len_bytes() == size_bytes,
            (Content::Symlink(target), Some(FileKind::Symlink)) => target.len() as u64 == size_bytes,
            (Content::CharDevice(number), Some(FileKind::CharDevice))
            | (Content::BlockDevice(number), Some(FileKind::BlockDevice)) => Some(*number) == device,
            (Content::Fifo, Some(FileKind::Fifo)) | (Content::Socket, Some(FileKind::Socket)) => true,
            _ => false,
        };
        let mtime = (stat.st_mtime, u32::try_from(stat.st_mtime_nsec).unwrap_or(0));
        if is_planted(Canary::ChangedTakenOver) {
            return is_same;
        }
        is_same
            && self.noted.ino != 0
            && self.noted == (Noted { ctime_nanos: ctime_nanos(stat), ino: stat.st_ino })
            && (mtime_secs, mtime_nanos) == mtime
            && (uid, gid, mode) == owner
    }
}
