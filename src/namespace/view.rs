//! Reading: the newest layer that knows an object decides. Below the generations lies the committed base.

use std::collections::BTreeSet;
use std::sync::Arc;

use dedupfs_base::{EngineError, Result};
use dedupfs_service::{FileKind, Ino};
use dedupfs_store::waiting;

use super::base::{Snapshot, guarded};
use super::inode::{Entry, Inode};
use super::{NAME_BYTES_MAX, Namespace};

impl Namespace {
    /// Returns an inode, if it exists.
    pub fn inode(&self, ino: Ino) -> Result<Option<Inode>> {
        Ok(self.inode_shared(ino)?.map(|inode| (*inode).clone()))
    }

    /// Returns an inode, if it exists, without copying it.
    pub fn inode_shared(&self, ino: Ino) -> Result<Option<Arc<Inode>>> {
        let base = {
            let state = self.state.read();
            if let Some(known) = state.inode(ino) {
                return Ok(known);
            }
            if let Some(cached) = self.cache.get(&ino) {
                return Ok(Some(cached));
            }
            state.base.clone()
        };
        let (found, snapshot) = self.with_base(base, |base| base.inode(ino))?;
        let Some(inode) = found.map(Arc::new) else { return Ok(None) };
        // Only the committed state may be cached. A commit refreshes the cache for its inodes while the frozen
        // generation still hides them, then replaces the base. This check excludes both moments.
        let state = self.state.read();
        if state.is_base(&snapshot) && state.inode(ino).is_none() {
            self.cache.insert(ino, inode.clone());
        }
        Ok(Some(inode))
    }

    /// Returns the inode of a name in a directory.
    pub fn lookup(&self, parent: Ino, name: &[u8]) -> Result<Option<(Ino, FileKind)>> {
        if name.len() > NAME_BYTES_MAX {
            return Err(EngineError::NameTooLong);
        }
        Ok(self.entry(parent, name)?.map(|entry| (entry.ino, entry.kind)))
    }

    /// Returns the entry of a name.
    pub(super) fn entry(&self, parent: Ino, name: &[u8]) -> Result<Option<Entry>> {
        let base = {
            let state = self.state.read();
            if let Some(known) = state.entry(parent, name) {
                return Ok(known);
            }
            state.base.clone()
        };
        Ok(self.with_base(base, |base| base.entry(parent, name))?.0)
    }

    /// Returns the value of an extended attribute; `NotFound` if there is no such inode.
    pub fn xattr(&self, ino: Ino, name: &[u8]) -> Result<Option<Vec<u8>>> {
        if self.inode_shared(ino)?.ok_or(EngineError::NotFound)?.xattr_count == 0 {
            return Ok(None);
        }
        let base = {
            let state = self.state.read();
            if let Some(known) = state.xattr(ino, name) {
                return Ok(known.map(|value| value.to_vec()));
            }
            state.base.clone()
        };
        Ok(self.with_base(base, |base| base.xattr(ino, name))?.0)
    }

    /// Returns the names of an inode's extended attributes, sorted; `NotFound` if there is no such inode.
    pub fn xattr_names(&self, ino: Ino) -> Result<Vec<Vec<u8>>> {
        if self.inode_shared(ino)?.ok_or(EngineError::NotFound)?.xattr_count == 0 {
            return Ok(Vec::new());
        }
        let (base, changes) = {
            let state = self.state.read();
            (state.base.clone(), state.xattr_changes(ino))
        };
        let (names, _) = self.with_base(base, |base| base.xattr_names(ino))?;
        let mut names: BTreeSet<Vec<u8>> = names.into_iter().collect();
        for (name, value) in changes {
            match value {
                Some(_) => names.insert(name.to_vec()),
                None => names.remove(&*name),
            };
        }
        Ok(names.into_iter().collect())
    }

    /// Returns all inodes without a name.
    pub fn orphans(&self) -> Result<Vec<Ino>> {
        let (base, changes) = {
            let state = self.state.read();
            let mut changes = Vec::new();
            for layer in state.frozen.as_deref().into_iter().chain([&state.active]) {
                changes.extend(layer.orphans.iter().map(|(&ino, &is_orphan)| (ino, is_orphan)));
            }
            (state.base.clone(), changes)
        };
        let (base, _) = self.with_base(base, Snapshot::orphans)?;
        let mut orphans: BTreeSet<Ino> = base.into_iter().collect();
        for (ino, is_orphan) in changes {
            if is_orphan {
                orphans.insert(ino);
            } else {
                orphans.remove(&ino);
            }
        }
        Ok(orphans.into_iter().collect())
    }

    /// Runs a read on the committed state. If the device fails during it, opens the store again and tries once more.
    /// Also returns the snapshot that answered.
    pub(super) fn with_base<T>(
        &self,
        base: Option<Arc<Snapshot>>,
        read: impl Fn(&Snapshot) -> Result<T>,
    ) -> Result<(T, Arc<Snapshot>)> {
        let snapshot = base.map_or_else(|| self.recover(), Ok)?;
        match guarded(&snapshot.session, || read(&snapshot)) {
            Ok(value) => Ok((value, snapshot)),
            Err(_) if snapshot.session.is_failed() => {
                let snapshot = self.recover()?;
                let value = guarded(&snapshot.session, || read(&snapshot))?;
                Ok((value, snapshot))
            }
            Err(error) => Err(error),
        }
    }

    /// Returns the present base. If its session has failed, or it is being replaced, returns a new one.
    pub(super) fn recover(&self) -> Result<Arc<Snapshot>> {
        let mut store = waiting::lock(&self.store);
        if let Some(base) = self.state.read().base.clone()
            && !base.session.is_failed()
        {
            return Ok(base);
        }
        let row = store.header.row;
        let snapshot = store.reopen_for_reading()?;
        // A commit whose sync failed may have reached the disk. The generations above it hold the same changes.
        let is_possible =
            snapshot.header.row == row || (snapshot.header.row == row + 1 && self.health.check().is_err());
        if !is_possible {
            let found = format!("row {}", snapshot.header.row);
            let error = dedupfs_store::StoreError::corrupt("namespace store", format!("row {row}"), found);
            self.health.poison(error.clone());
            return Err(error.into());
        }
        self.state.write().base = Some(snapshot.clone());
        Ok(snapshot)
    }
}
