//! Reading a directory in pages, in the order of cookies, while it changes.
//!
//! The order is merged from three sorted sequences: those of the committed state, of the frozen and of the active
//! generation. A page is made in steps: read a piece of the committed order without any lock, then merge under the
//! state lock. If a commit replaced the base in between, the piece is read again. An entry that exists throughout is
//! seen exactly once, because its cookie never changes.
//!
//! Cost: one range scan of the store per page, and memory for one page. Under the lock: at most [`MERGE_STEPS_MAX`]
//! steps.

use std::collections::btree_map;
use std::iter::Peekable;
use std::sync::atomic::Ordering;

use dedupfs_base::{EngineError, Result};
use dedupfs_service::{FileKind, Ino};

use super::Namespace;
use super::base::OrderedItem;
use super::overlay::{Generations, Ordered};

/// Largest number of entries merged in one go under the lock, removed ones included.
const MERGE_STEPS_MAX: usize = 4096;

/// One entry of a directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DirItem {
    /// Its name.
    pub name: Vec<u8>,
    /// Its inode number.
    pub ino: Ino,
    /// Its kind.
    pub kind: FileKind,
    /// Its place in the order; reading continues after it.
    pub cookie: u64,
}

impl Namespace {
    /// Returns a cookie behind those of all existing entries of all directories.
    pub fn directory_end(&self) -> u64 {
        self.next_cookie.load(Ordering::Relaxed)
    }

    /// Returns at most `limit` entries after the cookie `after` (0: from the start), without `.` and `..`. Fewer than
    /// `limit` only at the end.
    pub fn read_directory(&self, directory: Ino, after: u64, limit: usize) -> Result<Vec<DirItem>> {
        if !self.inode_shared(directory)?.ok_or(EngineError::NotFound)?.is_directory() {
            return Err(EngineError::NotDirectory);
        }
        let mut items = Vec::new();
        let mut position = after;
        while items.len() < limit {
            let wanted = (limit - items.len()).min(MERGE_STEPS_MAX);
            let base = self.state.read().base.clone();
            let (piece, snapshot) = self.with_base(base, |base| base.order(directory, position, wanted))?;
            let base_end = if piece.len() < wanted { u64::MAX } else { piece.last().map_or(u64::MAX, |item| item.0) };
            let state = self.state.read();
            if !state.is_base(&snapshot) {
                continue;
            }
            position = merge(&state, directory, position, base_end, piece, limit, &mut items);
            if position == u64::MAX {
                break;
            }
        }
        Ok(items)
    }
}

type Changes<'s> = Peekable<btree_map::Range<'s, u64, Option<Ordered>>>;

/// Merges up to cookie `end` and returns the cookie it reached.
fn merge(
    state: &Generations,
    directory: Ino,
    after: u64,
    end: u64,
    piece: Vec<OrderedItem>,
    limit: usize,
    items: &mut Vec<DirItem>,
) -> u64 {
    let Some(first) = after.checked_add(1).filter(|&first| first <= end) else { return end };
    // Newest first: the first layer that has a cookie decides.
    let mut layers: Vec<Changes<'_>> = state
        .layers()
        .filter_map(|layer| layer.directories.get(&directory))
        .map(|changes| changes.by_cookie.range(first..=end).peekable())
        .collect();
    let mut base = piece.into_iter().peekable();
    let mut position = after;
    for _ in 0..MERGE_STEPS_MAX {
        let next_change = layers.iter_mut().filter_map(|layer| layer.peek().map(|(cookie, _)| **cookie)).min();
        let next_base = base.peek().map(|item| item.0);
        let Some(cookie) = [next_change, next_base].into_iter().flatten().min() else { return end };
        let committed = base.next_if(|item| item.0 == cookie);
        let mut decided = None;
        for layer in &mut layers {
            if let Some((_, change)) = layer.next_if(|(next, _)| **next == cookie) {
                decided = decided.or(Some(change));
            }
        }
        match (decided, committed) {
            (Some(Some(change)), _) => {
                items.push(DirItem { name: change.name.to_vec(), ino: change.ino, kind: change.kind, cookie });
            }
            (None, Some((_, ino, kind, name))) => items.push(DirItem { name, ino, kind, cookie }),
            (Some(None), _) | (None, None) => {}
        }
        position = cookie;
        if items.len() == limit {
            return position;
        }
    }
    position
}
