//! The names of a [`MemoryDevice`](super::MemoryDevice): for each directory its visible names, its durable names, and
//! the changes in between. The errors of lookups are those of a real filesystem.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;

use super::FileNode;
use super::crash::Dice;
use crate::device::path::{failure, prefixes, split};
use crate::error::{Result, StoreError};

/// Directories by path. They are never removed or renamed, so a path names one directory for ever.
#[derive(Debug)]
pub(super) struct Tree {
    pub(super) directories: BTreeMap<String, Directory>,
}

#[derive(Debug, Clone)]
pub(super) enum Item {
    File(Arc<FileNode>),
    Directory,
}

#[derive(Debug)]
pub(super) enum NameChange {
    Insert(String, Item),
    Remove(String),
    /// Within one directory: atomic.
    Rename(String, String, Item),
}

#[derive(Debug, Default)]
pub(super) struct Directory {
    pub(super) volatile: BTreeMap<String, Item>,
    durable: BTreeMap<String, Item>,
    pending: Vec<NameChange>,
    /// Set when names were given up: no change becomes durable any more.
    is_lost: bool,
}

impl Tree {
    /// The directory at `path`, or the error that a lookup on a real filesystem gives.
    pub(super) fn directory(&mut self, operation: &'static str, path: &str) -> Result<&mut Directory> {
        if !self.directories.contains_key(path) {
            return Err(self.why_no_directory(operation, path));
        }
        self.directories.get_mut(path).ok_or_else(|| StoreError::NotFound { path: path.to_owned() })
    }

    pub(super) fn why_no_directory(&self, operation: &'static str, path: &str) -> StoreError {
        let through_file = prefixes(path).any(|prefix| matches!(self.item(prefix), Some(Item::File(_))));
        if through_file {
            failure(operation, path, io::ErrorKind::NotADirectory)
        } else {
            StoreError::NotFound { path: path.to_owned() }
        }
    }

    pub(super) fn item(&self, path: &str) -> Option<&Item> {
        let (parent, name) = split(path);
        self.directories.get(parent)?.volatile.get(name)
    }

    /// The file at `path`; errors name `path`.
    pub(super) fn file(&mut self, operation: &'static str, path: &str) -> Result<Arc<FileNode>> {
        let (parent, name) = split(path);
        match self.directory(operation, parent).map_err(|error| at(error, path))?.volatile.get(name) {
            Some(Item::File(file)) => Ok(Arc::clone(file)),
            Some(Item::Directory) => Err(failure(operation, path, io::ErrorKind::IsADirectory)),
            None => Err(StoreError::NotFound { path: path.to_owned() }),
        }
    }
}

impl Directory {
    pub(super) fn synced(names: BTreeMap<String, Item>) -> Self {
        Self { durable: names.clone(), volatile: names, pending: Vec::new(), is_lost: false }
    }

    /// The same directory, with each file replaced by `map`.
    pub(super) fn map_files(&self, map: &mut dyn FnMut(&Arc<FileNode>) -> Arc<FileNode>) -> Self {
        let mut item = |item: &Item| match item {
            Item::File(file) => Item::File(map(file)),
            Item::Directory => Item::Directory,
        };
        let mut names = |names: &BTreeMap<String, Item>| -> BTreeMap<String, Item> {
            names.iter().map(|(name, found)| (name.clone(), item(found))).collect()
        };
        let (volatile, durable) = (names(&self.volatile), names(&self.durable));
        let pending = self.pending.iter().map(|change| match change {
            NameChange::Insert(name, found) => NameChange::Insert(name.clone(), item(found)),
            NameChange::Remove(name) => NameChange::Remove(name.clone()),
            NameChange::Rename(from, to, found) => NameChange::Rename(from.clone(), to.clone(), item(found)),
        });
        Self { pending: pending.collect(), volatile, durable, is_lost: self.is_lost }
    }

    pub(super) fn change(&mut self, change: NameChange) {
        change.apply(&mut self.volatile);
        self.pending.push(change);
    }

    pub(super) fn sync(&mut self) {
        for change in self.pending.drain(..).filter(|_| !self.is_lost) {
            change.apply(&mut self.durable);
        }
    }

    pub(super) fn lose_unsynced(&mut self) {
        self.pending.clear();
        self.is_lost = true;
    }

    /// The names after a power loss: either a prefix of the unsynced changes, or any subset. Of changes that concern
    /// one name, a later one never survives without the earlier ones.
    pub(super) fn after_power_loss(&self, dice: &mut Dice) -> BTreeMap<String, Item> {
        let mut names = self.durable.clone();
        if self.pending.is_empty() || dice.keeps_nothing() {
            return names;
        }
        if dice.below(2) == 0 {
            let kept = dice.below(self.pending.len() as u64 + 1) as usize;
            self.pending.iter().take(kept).for_each(|change| change.apply(&mut names));
            return names;
        }
        let mut lost = BTreeSet::new();
        for change in &self.pending {
            let rests_on_lost = change.names().any(|name| lost.contains(name));
            if rests_on_lost || dice.below(2) == 0 {
                lost.extend(change.names());
            } else {
                change.apply(&mut names);
            }
        }
        names
    }
}

impl NameChange {
    fn names(&self) -> impl Iterator<Item = &str> {
        let (first, second) = match self {
            Self::Insert(name, _) | Self::Remove(name) => (name, None),
            Self::Rename(from, to, _) => (from, Some(to)),
        };
        std::iter::once(first).chain(second).map(String::as_str)
    }

    fn apply(&self, names: &mut BTreeMap<String, Item>) {
        match self {
            Self::Insert(name, item) => drop(names.insert(name.clone(), item.clone())),
            Self::Remove(name) => drop(names.remove(name)),
            Self::Rename(from, to, item) => {
                names.remove(from);
                names.insert(to.clone(), item.clone());
            }
        }
    }
}

pub(super) fn join(directory: &str, name: &str) -> String {
    if directory.is_empty() { name.to_owned() } else { format!("{directory}/{name}") }
}

/// The same error, about the path that the caller named.
pub(super) fn at(error: StoreError, named: &str) -> StoreError {
    match error {
        StoreError::NotFound { .. } => StoreError::NotFound { path: named.to_owned() },
        StoreError::Io { operation, source, .. } => StoreError::Io { operation, path: named.to_owned(), source },
        other => other,
    }
}
