//! Windows of entries: neighbours in the order of names, copied in any order, and taken in order when all are there.

use std::ffi::{CStr, CString};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use dedupfs_base::Result;
use dedupfs_sync::{Condvar, Mutex};

use super::Directory;
use super::base::BaseEntry;
use super::entry::Made;
use crate::versions::build::{EntryAttributes, Keep, TreeBuilder};
use crate::versions::notes::Noted;

/// Most entries of a window. Sorting as many by inode reads a hard disk mostly forwards.
pub(super) const WINDOW_ENTRIES: usize = 1024;

/// A step of the walk.
pub(super) enum Step {
    /// A directory begins.
    Begin(CString),
    /// Entries of the innermost directory.
    Window(Arc<Window>),
    /// The innermost directory ends.
    End(EntryAttributes, Vec<Keep>),
}

/// Entries that wait for their content.
pub(super) struct Window {
    names: Vec<CString>,
    /// Of each name, the entry of a base.
    bases: Vec<Option<BaseEntry>>,
    state: Mutex<State>,
    done: Condvar,
}

struct State {
    /// What became of each entry; `None`: it is not copied yet, or cannot be.
    made: Vec<Option<Arc<Made>>>,
    left: usize,
}

impl Window {
    pub(super) fn new(names: Vec<CString>, bases: Vec<Option<BaseEntry>>) -> Arc<Self> {
        let (made, left) = (names.iter().map(|_| None).collect(), names.len());
        Arc::new(Self { names, bases, state: Mutex::new(State { made, left }), done: Condvar::new() })
    }

    /// Number of entries.
    pub(super) fn len(&self) -> usize {
        self.names.len()
    }

    /// Waits for all entries, and adds those that were copied.
    pub(super) fn add_to(&self, tree: &mut TreeBuilder<'_>, note: &mut dyn FnMut(Noted)) -> Result<()> {
        let made = {
            let mut state = self.state.lock();
            while state.left > 0 {
                self.done.wait(&mut state);
            }
            std::mem::take(&mut state.made)
        };
        for (name, made) in self.names.iter().zip(made) {
            if let Some(made) = made {
                let keep = made.keep.iter().cloned().map(Keep::Root);
                tree.add(name.to_bytes(), made.attributes.clone(), made.file, made.content.clone(), keep)?;
                note(made.noted);
            }
        }
        Ok(())
    }
}

/// Some entries of a window.
pub(super) struct Batch {
    pub(super) window: Arc<Window>,
    pub(super) directory: Arc<Directory>,
    pub(super) from: Arc<OwnedFd>,
    /// Their positions in the window.
    pub(super) positions: Vec<usize>,
    /// The number of positions that are dealt with.
    pub(super) next: usize,
}

impl Batch {
    /// Returns the next entry, with that of the base.
    pub(super) fn next(&self) -> Option<(&CStr, Option<&BaseEntry>)> {
        let position = *self.positions.get(self.next)?;
        let base = self.window.bases.get(position).and_then(Option::as_ref);
        self.window.names.get(position).map(|name| (name.as_c_str(), base))
    }

    /// Records what became of the entry that [`next`](Self::next) returned.
    pub(super) fn record(&mut self, made: Option<Arc<Made>>) {
        let mut state = self.window.state.lock();
        if let Some(slot) = self.positions.get(self.next).and_then(|position| state.made.get_mut(*position)) {
            *slot = made;
        }
        state.left = state.left.saturating_sub(1);
        let is_done = state.left == 0;
        drop(state);
        self.next += 1;
        if is_done {
            self.window.done.notify_all();
        }
    }
}

impl Drop for Batch {
    /// Whoever waits for the window must not wait for entries that nobody copies any more: their thread panicked.
    fn drop(&mut self) {
        while self.next < self.positions.len() {
            self.record(None);
        }
    }
}
