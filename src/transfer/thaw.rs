//! Makes a live tree of a version, or of a directory in one. Content is shared, and none is read.

use std::collections::HashMap;

use dedupfs_base::{EngineError, Result};
use dedupfs_namespace::{Inode, NewInode, check_name, is_frozen, version_of};
use dedupfs_service::{FileKind, Ino, InodeFlags, Timestamp};
use dedupfs_store::tree::{Content, Entry};
use serde::{Deserialize, Serialize};

use crate::engine::Core;
use crate::progress::Progress;
use crate::service::{Service, now};
use crate::versions::read::{Found, FrozenTree, RowAt};

/// A live tree that was made of a version.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ThawReport {
    /// Entries, the uppermost one not included.
    pub entries: u64,
    /// Regular files. A file with several names counts once.
    pub files: u64,
    /// Further names of files.
    pub hard_links: u64,
    /// Lengths of the files.
    pub logical_bytes: u64,
    /// Time that it took.
    pub elapsed_ms: u64,
}

/// A directory that is being filled.
struct Level {
    /// In the version.
    from: Found,
    /// In the live tree.
    to: Ino,
    rows: std::vec::IntoIter<RowAt>,
    next: u64,
}

struct Thawing<'a> {
    core: &'a Core,
    service: &'a Service,
    tree: FrozenTree<'a>,
    /// The live inode of each link that was met.
    links: HashMap<u64, Ino>,
    report: ThawReport,
    progress: &'a dyn Progress,
}

/// Removes an unfinished tree.
struct Unfinished<'a> {
    service: &'a Service,
    at: (Ino, &'a [u8]),
    is_whole: bool,
}

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        if !self.is_whole
            && let Err(error) = self.service.remove_tree(self.at.0, self.at.1)
        {
            tracing::warn!(%error, "what was made of a live tree could not be removed");
        }
    }
}

/// Makes a live tree of the frozen directory `from`, and names it `name` in the empty directory `into`, into which the
/// kernel cannot see before this returns.
///
/// # Errors
/// `from` is no directory of a version; no room; damage; I/O errors; the work was ended. Nothing of the tree is left.
pub(crate) fn thaw(
    core: &Core,
    service: &Service,
    from: Ino,
    (into, name): (Ino, &[u8]),
    progress: &dyn Progress,
) -> Result<ThawReport> {
    check_name(name)?;
    if !is_frozen(from) {
        return Err(EngineError::Invalid("this is no version"));
    }
    let begun = dedupfs_sync::clock::Instant::now();
    let _held = service.hold_version(from);
    let version = core.namespace.inode_shared(version_of(from))?.ok_or(EngineError::NotFound)?;
    let tree = FrozenTree::open(core.dedup.nodes(), version.ino, &version.root)?;
    let found = tree.find(from)?;
    if !found.entry.is_directory() {
        return Err(EngineError::NotDirectory);
    }
    let hidden = service.hide(into)?;
    let mut unfinished = Unfinished { service, at: (into, name), is_whole: false };
    let mut thawing = Thawing { core, service, tree, links: HashMap::new(), report: ThawReport::default(), progress };
    progress.start("making live inodes", 0);
    let made = thawing.fill(found, (into, name));
    progress.finish();
    unfinished.is_whole = made.is_ok();
    drop(unfinished);
    drop(hidden);
    made?;
    core.relieve()?;
    let elapsed_ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
    Ok(ThawReport { elapsed_ms, ..thawing.report })
}

impl Thawing<'_> {
    fn fill(&mut self, top: Found, (into, name): (Ino, &[u8])) -> Result<()> {
        let to = self.make(into, name, top.ino, &top.entry)?;
        let mut levels = vec![self.level(top, to)?];
        while let Some(level) = levels.last_mut() {
            let Some(row) = self.next(level)? else {
                if let Some(level) = levels.pop() {
                    self.finish(level.to, &level.from.entry)?;
                }
                continue;
            };
            self.report.entries += 1;
            self.progress.advance(1);
            let parent = level.to;
            if row.entry.is_directory() {
                let from = self.tree.found_at(&level.from, row);
                let to = self.make(parent, &from.entry.name, from.ino, &from.entry)?;
                levels.push(self.level(from, to)?);
            } else {
                self.file(parent, &row.entry, self.tree.found_at(&level.from, row.clone()).ino)?;
            }
        }
        Ok(())
    }

    fn level(&self, from: Found, to: Ino) -> Result<Level> {
        Ok(Level { from, to, rows: Vec::new().into_iter(), next: 0 })
    }

    fn next(&self, level: &mut Level) -> Result<Option<RowAt>> {
        if let Some(row) = level.rows.next() {
            return Ok(Some(row));
        }
        let rows = self.tree.rows(&level.from, level.next)?;
        level.next += rows.len() as u64;
        level.rows = rows.into_iter();
        Ok(level.rows.next())
    }

    fn file(&mut self, parent: Ino, entry: &Entry, frozen: Ino) -> Result<()> {
        if let Some(known) = entry.link.and_then(|link| self.links.get(&link)) {
            let linked = self.changing(|core| core.namespace.link(*known, parent, &entry.name, now()));
            match linked {
                Ok(_) => {
                    self.report.hard_links += 1;
                    return Ok(());
                }
                Err(EngineError::TooManyLinks) => {}
                Err(error) => return Err(error),
            }
        }
        let ino = self.make(parent, &entry.name, frozen, entry)?;
        if let Content::File { root, data_bytes } = entry.content {
            self.report.files += 1;
            self.report.logical_bytes += root.len_bytes();
            let mut times = |_: &Inode| (mtime_of(entry), now());
            // The version refers to the content, and is held.
            self.changing(|core| core.namespace.set_root(ino, root, root.len_bytes(), data_bytes, &mut times))?;
        }
        self.finish(ino, entry)?;
        if let Some(link) = entry.link {
            self.links.insert(link, ino);
        }
        Ok(())
    }

    /// Makes an inode without content.
    fn make(&self, parent: Ino, name: &[u8], frozen: Ino, entry: &Entry) -> Result<Ino> {
        let (kind, rdev, target) = match &entry.content {
            Content::File { .. } => (FileKind::Regular, 0, None),
            Content::Directory(_) => (FileKind::Directory, 0, None),
            Content::Symlink(target) => (FileKind::Symlink, 0, Some(target.clone())),
            Content::CharDevice(number) => (FileKind::CharDevice, *number, None),
            Content::BlockDevice(number) => (FileKind::BlockDevice, *number, None),
            Content::Fifo => (FileKind::Fifo, 0, None),
            Content::Socket => (FileKind::Socket, 0, None),
        };
        let xattrs = match entry.attributes.is_empty() {
            true => Vec::new(),
            false => self.service.attributes_of_entry(frozen, entry)?,
        };
        let new = NewInode {
            kind,
            mode: entry.mode,
            uid: entry.uid,
            gid: entry.gid,
            rdev,
            symlink_target: target,
            xattrs,
            flags: InodeFlags::default(),
            now: now(),
        };
        Ok(self.changing(|core| core.namespace.make(parent, name, &new))?.ino)
    }

    /// Sets the time and the flags of an inode that is complete.
    fn finish(&self, ino: Ino, entry: &Entry) -> Result<()> {
        let changed = self.changing(|core| {
            core.namespace.update(ino, &mut |inode| {
                inode.mtime = mtime_of(entry);
                inode.flags = entry.flags;
            })
        });
        changed.map(drop)
    }

    fn changing<T>(&self, change: impl FnOnce(&Core) -> Result<T>) -> Result<T> {
        if self.progress.is_cancelled() {
            return Err(EngineError::Ended("the making of a live tree"));
        }
        let _pass = self.core.begin_change()?;
        let _room = self.service.admit_entries(1)?;
        let changed = change(self.core)?;
        self.core.relieve()?;
        Ok(changed)
    }
}

fn mtime_of(entry: &Entry) -> Timestamp {
    Timestamp { secs: entry.mtime_secs, nanos: entry.mtime_nanos }
}
