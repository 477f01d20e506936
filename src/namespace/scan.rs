//! Scans of the whole namespace.
//!
//! A scan sees one moment: the committed snapshot and copies of the generations over it.

use std::sync::Arc;

use dedupfs_base::Result;
use dedupfs_service::{FileKind, Ino};

use super::Namespace;
use super::base::{NameVisitor, Snapshot, guarded};
use super::inode::Inode;
use super::overlay::Generation;

/// Receives directory, name, inode number and kind of each name.
pub(crate) type EntryVisitor<'v> = dyn FnMut(Ino, &[u8], Ino, FileKind) -> Result<()> + 'v;

/// One moment of the namespace.
struct Moment {
    base: Arc<Snapshot>,
    /// Newest first.
    layers: Vec<Generation>,
}

impl Moment {
    fn for_each_inode(&self, visit: &mut dyn FnMut(Result<Inode>) -> Result<()>) -> Result<()> {
        guarded(&self.base.session, || {
            self.base.for_each_inode(&mut |inode| match inode {
                Ok(inode) if self.layers.iter().any(|layer| layer.inodes.contains_key(&inode.ino)) => Ok(()),
                inode => visit(inode),
            })
        })?;
        for (position, layer) in self.layers.iter().enumerate() {
            let newer = &self.layers[..position];
            for (ino, inode) in &layer.inodes {
                if let Some(inode) = inode
                    && !newer.iter().any(|newer| newer.inodes.contains_key(ino))
                {
                    visit(Ok((**inode).clone()))?;
                }
            }
        }
        Ok(())
    }

    fn knows_name(layers: &[Generation], directory: Ino, name: &[u8]) -> bool {
        layers.iter().filter_map(|layer| layer.directories.get(&directory)).any(|dir| dir.by_name.contains_key(name))
    }

    fn for_each_entry(&self, visit: &mut NameVisitor<'_>) -> Result<()> {
        guarded(&self.base.session, || {
            self.base.for_each_entry(&mut |directory, name, entry| {
                if Self::knows_name(&self.layers, directory, name) {
                    return Ok(());
                }
                visit(directory, name, entry)
            })
        })?;
        for (position, layer) in self.layers.iter().enumerate() {
            for (&directory, changes) in &layer.directories {
                for (name, entry) in &changes.by_name {
                    if let Some(entry) = entry
                        && !Self::knows_name(&self.layers[..position], directory, name)
                    {
                        visit(directory, name, *entry)?;
                    }
                }
            }
        }
        Ok(())
    }
}

impl Namespace {
    /// Returns the committed state.
    pub(super) fn snapshot(&self) -> Result<Arc<Snapshot>> {
        let base = self.state.read().base.clone();
        base.map_or_else(|| self.recover(), Ok)
    }

    fn moment(&self) -> Result<Moment> {
        loop {
            let base = self.snapshot()?;
            let state = self.state.read();
            if state.is_base(&base) {
                let layers = state.layers().cloned().collect();
                return Ok(Moment { base, layers });
            }
        }
    }

    /// Visits all inodes, orphans included, in no particular order. Damage ends the scan.
    pub fn for_each_inode(&self, visit: &mut dyn FnMut(&Inode) -> Result<()>) -> Result<()> {
        self.moment()?.for_each_inode(&mut |inode| visit(&inode?))
    }

    /// Visits all names, in no particular order. Damage ends the scan.
    pub fn for_each_entry(&self, visit: &mut EntryVisitor<'_>) -> Result<()> {
        self.moment()?.for_each_entry(&mut |directory, name, entry| visit(directory, name, entry.ino, entry.kind))
    }
}
