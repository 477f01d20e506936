//! The walk through a live tree that makes a snapshot, directory by directory.

use dedupfs_base::{EngineError, Result, shown};
use dedupfs_namespace::{Inode, is_frozen};
use dedupfs_service::{FileKind, Ino};
use dedupfs_store::StoreError;
use dedupfs_store::tree::{Content, Entry};

use super::earlier::{Earlier, FilesMet, Rows};
use super::names::Names;
use super::{Met, Snapshot};
use crate::config::ENTRY_META_BYTES;
use crate::durability::space::{Demand, Promise};
use crate::versions::build::{Built, EntryAttributes, TreeBuilder};
use crate::versions::read::Found;

/// Entries between two looks whether the work should end, and two requests for room.
const ENTRIES_BETWEEN_LOOKS: u64 = 512;

/// A directory on the way.
pub(super) struct Way {
    pub(super) name: Vec<u8>,
    attributes: EntryAttributes,
    names: Names,
    /// The same directory in the earlier snapshot.
    earlier: Option<Rows>,
    kind: WayKind,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum WayKind {
    /// Its entries are made of inodes.
    New,
    /// Neither it nor an inode in it has changed. Only its subdirectories are looked at, and it has not begun in the new tree.
    Same,
    /// As `Same`, but something below it has changed. It has begun, and gets its other entries from the earlier tree.
    Copied,
}

/// The walk through the live tree that makes a snapshot.
pub(super) struct Walk<'s, 'a> {
    snapshot: &'s Snapshot<'a>,
    tree: TreeBuilder<'s>,
    ways: Vec<Way>,
    /// Files of the earlier tree that are not taken over with their directory.
    met: FilesMet,
    /// Entries seen.
    entries: u64,
    taken_over: u64,
    room: Option<Promise<'s>>,
}

const MISFIT: EngineError = EngineError::Internal("an earlier snapshot does not fit its directory");

impl<'s, 'a> Walk<'s, 'a> {
    pub(super) fn new(snapshot: &'s Snapshot<'a>) -> Self {
        let (tree, met) = (TreeBuilder::new(&snapshot.core.dedup, snapshot.stream), FilesMet::default());
        Self { snapshot, tree, ways: Vec::new(), met, entries: 0, taken_over: 0, room: None }
    }

    pub(super) fn build(mut self, directory: Ino) -> Result<(Built, u64)> {
        let top = self.snapshot.view.inode(directory)?.ok_or(EngineError::NotFound)?;
        if !top.is_directory() {
            return Err(EngineError::NotDirectory);
        }
        let earlier = self.snapshot.earlier.as_ref().map(|earlier| earlier.tree.uppermost()).transpose()?;
        self.begin(Vec::new(), &top, earlier)?;
        while let Some(way) = self.ways.last_mut() {
            match way.names.next(self.snapshot.view)? {
                Some((name, ino, kind)) => {
                    self.look()?;
                    match way_kind(&self.ways) {
                        WayKind::New => self.meet(name, ino)?,
                        _ if kind == FileKind::Directory => self.meet_in_same(name, ino)?,
                        _ => {}
                    }
                }
                None => {
                    if let Some(attributes) = self.end()? {
                        return self.finish(attributes);
                    }
                }
            }
        }
        Err(EngineError::Internal("a snapshot without an end"))
    }

    fn finish(self, attributes: EntryAttributes) -> Result<(Built, u64)> {
        let mut built = self.tree.finish(attributes)?;
        if let Some(earlier) = &self.snapshot.earlier {
            earlier.complete(&mut built.totals, self.met)?;
        }
        Ok((built, self.taken_over))
    }

    /// Asks now and then whether to go on, and for room.
    fn look(&mut self) -> Result<()> {
        if self.entries.is_multiple_of(ENTRIES_BETWEEN_LOOKS) {
            self.snapshot.look()?;
            let meta_bytes = ENTRIES_BETWEEN_LOOKS * ENTRY_META_BYTES;
            // The old promise ends with the new one.
            self.room = Some(self.snapshot.core.admit(Demand { data_bytes: 0, meta_bytes })?);
        }
        self.entries += 1;
        Ok(())
    }

    /// Meets an entry of a directory whose entries are made of inodes.
    fn meet(&mut self, name: Vec<u8>, ino: Ino) -> Result<()> {
        let mut earlier = self.earlier_directory(&name)?;
        if self.snapshot.earlier.as_ref().is_some_and(|earlier| earlier.changed.is_named(ino)) {
            // Another directory may have had the name. What is below this one need not have changed, and yet differs.
            self.leave_out(earlier.take())?;
        }
        if let Some(found) = &earlier
            && self.is_same(found, ino)?
        {
            return self.enter_same(name, ino, found.clone());
        }
        let inode = self.inode(&name, ino)?;
        if (self.snapshot.left_out)(&Met { name: &name, inode: &inode, above: &self.ways })? {
            return self.leave_out(earlier);
        }
        if inode.is_directory() {
            return self.begin(name, &inode, earlier);
        }
        self.leave_out(earlier)?;
        let file = (inode.nlink > 1).then_some((0, ino, 0));
        self.tree.add(&name, self.snapshot.attributes(&inode)?, file, content(&inode)?, None)?;
        self.snapshot.progress.advance(1);
        Ok(())
    }

    /// Meets a subdirectory of a directory that is the same as before.
    fn meet_in_same(&mut self, name: Vec<u8>, ino: Ino) -> Result<()> {
        let Some(earlier) = &self.snapshot.earlier else { return Err(MISFIT) };
        let above = self.ways.last().and_then(|way| way.earlier.as_ref()).ok_or(MISFIT)?;
        let found = earlier.tree.lookup(&above.directory, &name)?;
        if self.is_same(&found, ino)? {
            return self.enter_same(name, ino, found);
        }
        let inode = self.inode(&name, ino)?;
        if !inode.is_directory() || (self.snapshot.left_out)(&Met { name: &name, inode: &inode, above: &self.ways })? {
            return Err(MISFIT);
        }
        self.begin_above(&name)?;
        self.begin(name, &inode, Some(found))
    }

    fn inode(&self, name: &[u8], ino: Ino) -> Result<Inode> {
        if is_frozen(ino) {
            return Err(EngineError::HoldsVersion(shown(name)));
        }
        let inode = self.snapshot.view.inode(ino)?;
        inode.ok_or_else(|| StoreError::corrupt(format!("inode {ino}"), "an inode for its name", "none").into())
    }

    /// Returns the directory of this name in the earlier tree, and counts the entries before it as met.
    fn earlier_directory(&mut self, name: &[u8]) -> Result<Option<Found>> {
        let Some(earlier) = &self.snapshot.earlier else { return Ok(None) };
        let Some(rows) = self.ways.last_mut().and_then(|way| way.earlier.as_mut()) else { return Ok(None) };
        while let Some(row) = rows.next_before(&earlier.tree, Some(name))? {
            earlier.meet_all(&rows.directory, row, &mut self.met)?;
        }
        match rows.next_at(&earlier.tree, name)? {
            Some(row) if row.entry.is_directory() => Ok(Some(earlier.tree.found_at(&rows.directory, row))),
            Some(row) => self.met.add(&row.entry).map(|()| None),
            None => Ok(None),
        }
    }

    /// Counts a directory of the earlier tree as met: it is not in the new one.
    fn leave_out(&mut self, directory: Option<Found>) -> Result<()> {
        match (&self.snapshot.earlier, directory) {
            (Some(earlier), Some(found)) => earlier.meet_below(found, &mut self.met),
            _ => Ok(()),
        }
    }

    /// Whether a live directory, and each inode that has a name in it, is as in the earlier tree. Those below may differ.
    fn is_same(&self, found: &Found, ino: Ino) -> Result<bool> {
        let Some(earlier) = &self.snapshot.earlier else { return Ok(false) };
        let Some(directory) = Earlier::directory(found) else { return Ok(false) };
        if is_frozen(ino) || earlier.changed.contains(ino) {
            return Ok(false);
        }
        let (mut rows, mut is_same) = (0_u64, true);
        self.snapshot.view.for_each_entry(ino, &mut |inside| {
            rows += 1;
            is_same = !is_frozen(inside) && !earlier.changed.contains(inside);
            is_same
        })?;
        // Fewer were in the earlier tree, if one was left out.
        Ok(is_same && rows == directory.rows())
    }

    /// Goes on with a directory that is the same as before.
    fn enter_same(&mut self, name: Vec<u8>, ino: Ino, found: Found) -> Result<()> {
        match found.entry.content {
            Content::Directory(directory) if directory.subdirectories == 0 => self.take_over(found),
            _ => {
                let names = Names::new(ino);
                let attributes = EntryAttributes::default();
                let earlier = Some(Rows::new(found));
                self.ways.push(Way { name, attributes, names, earlier, kind: WayKind::Same });
                Ok(())
            }
        }
    }

    /// Takes a directory over, with everything below it. A directory above that is the same gets it with its other entries.
    fn take_over(&mut self, found: Found) -> Result<()> {
        match way_kind(&self.ways) {
            WayKind::New => self.add_earlier(found.entry),
            _ => Ok(()),
        }
    }

    fn add_earlier(&mut self, entry: Entry) -> Result<()> {
        let entries = entry.sums().map_or(1, |sums| sums.entries);
        self.taken_over += entries;
        self.snapshot.progress.advance(entries);
        self.tree.add_entry(entry)
    }

    /// Begins a directory whose entries are made of inodes.
    fn begin(&mut self, name: Vec<u8>, inode: &Inode, earlier: Option<Found>) -> Result<()> {
        self.tree.begin_directory(&name);
        let attributes = self.snapshot.attributes(inode)?;
        let names = Names::new(inode.ino);
        self.ways.push(Way { name, attributes, names, earlier: earlier.map(Rows::new), kind: WayKind::New });
        Ok(())
    }

    /// Something at `name` in the innermost directory has changed: begins the directories above that have not begun, each
    /// with the entries before the one that leads on.
    fn begin_above(&mut self, name: &[u8]) -> Result<()> {
        for at in 0..self.ways.len() {
            let next = self.ways.get(at + 1).map_or_else(|| name.to_vec(), |way| way.name.clone());
            let Some(way) = self.ways.get_mut(at) else { break };
            match way.kind {
                WayKind::New => continue,
                WayKind::Same => {
                    self.tree.begin_directory(&way.name);
                    way.kind = WayKind::Copied;
                }
                WayKind::Copied => {}
            }
            self.copy(at, Some(&next))?;
        }
        Ok(())
    }

    /// Adds the entries of the earlier directory before `name`, and steps over that one.
    fn copy(&mut self, at: usize, name: Option<&[u8]>) -> Result<()> {
        let Some(earlier) = &self.snapshot.earlier else { return Err(MISFIT) };
        let tree = &earlier.tree;
        while let Some(row) = self.rows(at)?.next_before(tree, name)? {
            self.met.add(&row.entry)?;
            self.add_earlier(row.entry)?;
        }
        if let Some(name) = name {
            self.rows(at)?.next_at(tree, name)?;
        }
        Ok(())
    }

    fn rows(&mut self, at: usize) -> Result<&mut Rows> {
        self.ways.get_mut(at).and_then(|way| way.earlier.as_mut()).ok_or(MISFIT)
    }

    /// Ends the innermost directory. Returns the attributes of the uppermost one, which ends the tree.
    fn end(&mut self) -> Result<Option<EntryAttributes>> {
        match way_kind(&self.ways) {
            WayKind::Same => {}
            WayKind::Copied => self.copy(self.ways.len() - 1, None)?,
            WayKind::New => {
                if let Some(earlier) = &self.snapshot.earlier
                    && let Some(rows) = self.ways.last_mut().and_then(|way| way.earlier.as_mut())
                {
                    while let Some(row) = rows.next_before(&earlier.tree, None)? {
                        earlier.meet_all(&rows.directory, row, &mut self.met)?;
                    }
                }
            }
        }
        let Some(way) = self.ways.pop() else { return Err(MISFIT) };
        match (way.kind, way.earlier) {
            (WayKind::Same, Some(rows)) => self.take_over(rows.directory)?,
            (WayKind::Copied, Some(rows)) => {
                let attributes = EntryAttributes::of(&rows.directory.entry);
                self.tree.end_directory(attributes, None)?;
            }
            (WayKind::New, _) if self.ways.is_empty() => return Ok(Some(way.attributes)),
            (WayKind::New, _) => self.tree.end_directory(way.attributes, None)?,
            _ => return Err(MISFIT),
        }
        Ok(None)
    }
}

fn way_kind(ways: &[Way]) -> WayKind {
    ways.last().map_or(WayKind::New, |way| way.kind)
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
