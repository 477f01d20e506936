//! What a tree holds: names, bytes, what is stored for it, and what of that nothing else needs.
//!
//! 1. All names are walked: of a live directory in the namespace, of a frozen one in its tree.
//! 2. Everything below the roots that were met is counted once: what is *stored*.
//! 3. A hypothetical count-down of the tree: what is *only here*. A directory in a version is held by every node on the
//!    way to it; if one of these belongs to another version or place, too, all of the directory does.
//!
//! Cost: each node of the tree is read, and no content. Memory: that of two count-downs, one after the other, and 16
//! bytes for each file with several names.

use std::collections::HashSet;

use dedupfs_base::{EngineError, Result};
use dedupfs_namespace::{CommittedView, Inode, is_frozen};
use dedupfs_service::{FileKind, Ino};
use dedupfs_store::Fingerprint;
use dedupfs_store::recipe::{Reference, Root};
use dedupfs_store::tree::{Content, Entry};
use serde::{Deserialize, Serialize};

use super::count_down::CountDown;
use super::reclaim::ReclaimControl;
use super::would_free::{NAMES_AT_ONCE, WouldFree, behind_reclaiming, drop_roots, new_count_down, sums_of};
use crate::engine::Core;
use crate::progress::Progress;
use crate::versions::read::{Found, FrozenTree};

/// What a directory holds, with everything below it. The directory itself is not counted.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct TreeStats {
    /// Whether it can never change: it is a version, or lies in one.
    pub frozen: bool,
    /// Proof of everything in a frozen tree: equal trees have equal ones. Of a version it covers also the attributes of
    /// its uppermost directory. None of a live directory, or of an empty one in a version.
    pub fingerprint: Option<String>,
    /// Regular files. One with several names counts once.
    pub files: u64,
    /// Directories.
    pub directories: u64,
    /// Symbolic links, devices, pipes and sockets.
    pub others: u64,
    /// Further names of files.
    pub further_names: u64,
    /// Lengths of the files.
    pub logical_bytes: u64,
    /// Of these, bytes that are no holes.
    pub data_bytes: u64,
    /// Different chunks and nodes that the tree needs.
    pub stored: WouldFree,
    /// Of these, those that nothing else in the pool refers to.
    pub only_here: WouldFree,
}

/// Returns what a directory holds. Counts must be settled.
///
/// # Errors
/// `NotFound`, `NotDirectory`; damage, I/O errors; the work was ended.
pub(crate) fn tree_stats(
    core: &Core,
    control: &ReclaimControl,
    ino: Ino,
    progress: &dyn Progress,
) -> Result<TreeStats> {
    let is_stopped = || progress.is_cancelled();
    let view = &core.namespace.committed()?;
    let mut all = CountDown::of_everything(core, &is_stopped);
    let mut walk = Walk { core, view, all: &mut all, progress, linked: HashSet::new(), stats: TreeStats::default() };
    progress.start("reading names", 0);
    let walked = match is_frozen(ino) {
        true => walk.frozen(ino),
        false => walk.live(ino).map(|()| None),
    };
    progress.finish();
    let (only, mut stats) = (walked?, walk.stats);
    progress.start("counting what is stored", 0);
    let stored = sum_of(core, all);
    progress.finish();
    stats.stored = stored?;
    progress.start("counting what is only here", 0);
    let only_here = behind_reclaiming(control, |is_reclaiming| {
        let mut count_down = new_count_down(core, &is_stopped, is_reclaiming)?;
        match &only {
            Some(Only { root: Some(root), way }) if count_down.have_one_reference(way)? => {
                count_down.drop_reference(root)?;
            }
            Some(_) => {}
            None => drop_roots(view, &[ino], &mut count_down, progress)?,
        }
        Ok(WouldFree { is_reclaiming, ..sum_of(core, count_down)? })
    });
    progress.finish();
    stats.only_here = only_here?;
    if is_stopped() {
        return Err(EngineError::Ended("the count"));
    }
    Ok(stats)
}

/// Sums up everything that was dropped.
fn sum_of(core: &Core, mut count_down: CountDown<'_>) -> Result<WouldFree> {
    count_down.end_set()?;
    Ok(sums_of(core, &count_down)?.pop().unwrap_or_default())
}

/// What of a frozen tree may be only here.
struct Only {
    /// The reference with which it goes; none of an empty tree.
    root: Option<Reference>,
    /// The nodes on the way to it. If another version or another place has one of them, too, nothing is only here.
    way: Vec<Fingerprint>,
}

struct Walk<'a, 'b> {
    core: &'a Core,
    view: &'a CommittedView,
    /// Everything below the roots that were met.
    all: &'a mut CountDown<'b>,
    progress: &'a dyn Progress,
    /// Files with several names that were met.
    linked: HashSet<Ino>,
    stats: TreeStats,
}

impl Walk<'_, '_> {
    fn go_on(&self) -> Result<()> {
        self.progress.advance(1);
        if self.progress.is_cancelled() { Err(EngineError::Ended("the count")) } else { Ok(()) }
    }

    fn file(&mut self, (ino, has_several_names): (Ino, bool), len_bytes: u64, data_bytes: u64) -> Result<()> {
        if has_several_names && !self.linked.insert(ino) {
            self.stats.further_names += 1;
            return Ok(());
        }
        self.all.check_memory(self.linked.capacity() * 2 * size_of::<Ino>())?;
        self.stats.files += 1;
        self.stats.logical_bytes = self.stats.logical_bytes.saturating_add(len_bytes);
        self.stats.data_bytes = self.stats.data_bytes.saturating_add(data_bytes);
        Ok(())
    }

    fn live(&mut self, top: Ino) -> Result<()> {
        let inode = self.view.inode(top)?.ok_or(EngineError::NotFound)?;
        if !inode.is_directory() {
            return Err(EngineError::NotDirectory);
        }
        let mut work = vec![top];
        while let Some(directory) = work.pop() {
            let mut after = Vec::new();
            loop {
                let names = self.view.names(directory, &after, NAMES_AT_ONCE)?;
                let Some((last, ..)) = names.last() else { break };
                after.clone_from(last);
                for (_, ino, _) in names {
                    self.go_on()?;
                    let inode = self.view.inode(ino)?.ok_or(EngineError::NotFound)?;
                    self.live_entry(&inode, &mut work)?;
                }
            }
        }
        Ok(())
    }

    fn live_entry(&mut self, inode: &Inode, work: &mut Vec<Ino>) -> Result<()> {
        if is_frozen(inode.ino) {
            self.stats.directories += 1;
            return self.tree(inode.ino, &inode.root, None);
        }
        match inode.kind {
            FileKind::Directory => {
                self.stats.directories += 1;
                work.push(inode.ino);
            }
            FileKind::Regular => {
                self.file((inode.ino, inode.nlink > 1), inode.size_bytes, inode.data_bytes)?;
                self.drop_root(&inode.root)?;
            }
            _ => self.stats.others += 1,
        }
        Ok(())
    }

    /// Walks a version, or a directory in one.
    fn frozen(&mut self, ino: Ino) -> Result<Option<Only>> {
        let version = dedupfs_namespace::version_of(ino);
        let inode = self.view.inode(version)?.ok_or(EngineError::NotFound)?;
        self.stats.frozen = true;
        if ino == version {
            let root = inode.root.reference().ok_or(EngineError::NotFound)?;
            self.tree(version, &inode.root, None)?;
            self.stats.fingerprint = Some(root.fingerprint().to_string());
            return Ok(Some(Only { root: Some(root), way: Vec::new() }));
        }
        let tree = FrozenTree::open(self.core.dedup.nodes(), version, &inode.root)?;
        let found = tree.find(ino)?;
        let Content::Directory(directory) = found.entry.content else { return Err(EngineError::NotDirectory) };
        let Some((level, child)) = directory.root else {
            return Ok(Some(Only { root: None, way: Vec::new() }));
        };
        self.tree(version, &inode.root, Some(&found))?;
        self.stats.fingerprint = Some(child.fingerprint.to_string());
        let top = inode.root.reference().map(|root| root.fingerprint());
        let way = top.into_iter().chain(tree.way_to(ino)?).collect();
        Ok(Some(Only { root: Some(Reference::Node { level, child }), way }))
    }

    /// Walks the whole tree of a version, or one of its directories.
    fn tree(&mut self, version: Ino, root: &Root, only: Option<&Found>) -> Result<()> {
        let tree = FrozenTree::open(self.core.dedup.nodes(), version, root)?;
        let first = match only {
            Some(found) => {
                if let Content::Directory(directory) = &found.entry.content
                    && let Some((level, child)) = directory.root
                {
                    self.all.drop_reference(&Reference::Node { level, child })?;
                }
                found.clone()
            }
            None => {
                self.drop_root(root)?;
                tree.uppermost()?
            }
        };
        let mut work = vec![first];
        while let Some(directory) = work.pop() {
            let mut from = 0;
            loop {
                let rows = tree.rows(&directory, from)?;
                if rows.is_empty() {
                    break;
                }
                from += rows.len() as u64;
                for row in rows {
                    self.go_on()?;
                    self.frozen_entry(version, &row.entry)?;
                    if row.entry.is_directory() {
                        work.push(tree.found_at(&directory, row));
                    }
                }
            }
        }
        Ok(())
    }

    fn frozen_entry(&mut self, version: Ino, entry: &Entry) -> Result<()> {
        match &entry.content {
            Content::Directory(_) => self.stats.directories += 1,
            Content::File { root, data_bytes } => {
                // A number that no live file and no file of another version has.
                let link = version.wrapping_add(entry.link.unwrap_or(0));
                self.file((link, entry.link.is_some()), root.len_bytes(), *data_bytes)?;
            }
            _ => self.stats.others += 1,
        }
        Ok(())
    }

    fn drop_root(&mut self, root: &Root) -> Result<()> {
        root.reference().map_or(Ok(()), |root| self.all.drop_reference(&root))
    }
}
