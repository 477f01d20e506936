//! Watching a tree while a version is made of it, and closing it when the version takes its name.
//!
//! 1. [`Namespace::watch`], before the commit that the version shows: from here on each changed inode is noted.
//! 2. [`Namespace::watch_tree`], when the tree was read: tells which inodes are the tree's. Changes of others are forgotten.
//! 3. [`Namespace::exchange_watched`]: in one step with the exchange of the names, and only if nothing in the tree has changed
//!    since 1, closes the tree. From here on everything but its removal is refused, until its top is removed.
//!
//! A file with a name elsewhere is closed as well until then. A new inode needs no note: its directory changes.
//!
//! Memory: 2 MiB for each closed tree, 16 MiB more for the changes between 1 and 2. Cost of a change while nothing is watched or
//! closed: one atomic load.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use dedupfs_base::{EngineError, Result};
use dedupfs_service::{Ino, RenameFlags, Timestamp};
use dedupfs_store::{StoreError, waiting};
use dedupfs_sync::Mutex;

use super::Namespace;
use super::inode::Inode;

/// Most spans of numbers.
const SPANS_MAX: usize = 1 << 16;
/// Most changed inodes between 1 and 2.
const CHANGED_MAX: usize = 1 << 18;
/// Most closed trees.
const CLOSED_MAX: usize = 16;

/// A set of inode numbers, as spans. If there are too many spans, those that are close to each other become one. So it may
/// contain numbers that were not added, but never lacks one.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct InoSpans {
    /// First and last number of each.
    spans: Vec<(Ino, Ino)>,
}

impl InoSpans {
    /// Adds a number. Call [`finish`](Self::finish) behind the last one.
    pub fn add(&mut self, ino: Ino) {
        match self.spans.last_mut() {
            Some((first, last)) if (*first..=*last).contains(&ino) => {}
            Some((_, last)) if last.checked_add(1) == Some(ino) => *last = ino,
            _ => self.spans.push((ino, ino)),
        }
        if self.spans.len() >= 2 * SPANS_MAX {
            self.finish();
        }
    }

    /// Sorts and joins the spans.
    pub fn finish(&mut self) {
        self.spans.sort_unstable();
        self.join(1);
        if self.spans.len() > SPANS_MAX {
            // Only the widest gaps stay.
            let mut gaps: Vec<u64> = self.spans.windows(2).map(|pair| gap(pair[0], pair[1])).collect();
            gaps.sort_unstable();
            self.join(gaps[gaps.len() - SPANS_MAX / 2]);
        }
    }

    /// Joins sorted spans that are at most `gap_max` apart.
    fn join(&mut self, gap_max: u64) {
        self.spans.dedup_by(|next, before| {
            let is_joined = gap(*before, *next) <= gap_max;
            if is_joined {
                before.1 = before.1.max(next.1);
            }
            is_joined
        });
    }

    /// Whether it has the number, or may have it.
    #[must_use]
    pub fn contains(&self, ino: Ino) -> bool {
        let behind = self.spans.partition_point(|(first, _)| *first <= ino);
        behind.checked_sub(1).is_some_and(|at| self.spans[at].1 >= ino)
    }
}

fn gap(before: (Ino, Ino), next: (Ino, Ino)) -> u64 {
    next.0.saturating_sub(before.1)
}

/// What is watched.
struct Watch {
    /// Inodes from here on are younger than the watch.
    below: Ino,
    /// The tree, once it is known.
    tree: Option<Arc<InoSpans>>,
    /// Changed inodes, while the tree is not known.
    changed: BTreeSet<Ino>,
    /// A changed inode of the tree, or any one if there were too many.
    first: Option<Ino>,
}

impl Watch {
    fn note(&mut self, ino: Ino) {
        match &self.tree {
            _ if self.first.is_some() || ino >= self.below => {}
            Some(tree) => self.first = tree.contains(ino).then_some(ino),
            None => {
                self.changed.insert(ino);
                self.first = (self.changed.len() > CHANGED_MAX).then_some(ino);
            }
        }
    }
}

#[derive(Default)]
struct State {
    watch: Option<Watch>,
    /// Closed trees, each with its top.
    closed: Vec<(Ino, Arc<InoSpans>)>,
}

/// The watched tree and the closed ones.
#[derive(Default)]
pub(super) struct Watching {
    /// Whether there is any. Changed with `mutation` held.
    is_any: AtomicBool,
    /// A leaf: taken for moments.
    state: Mutex<State>,
}

impl Watching {
    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state.lock();
        let changed = change(&mut state);
        self.is_any.store(state.watch.is_some() || !state.closed.is_empty(), Ordering::SeqCst);
        changed
    }

    fn is_any(&self) -> bool {
        self.is_any.load(Ordering::SeqCst)
    }

    /// Notes a change. A time of access is none.
    pub(super) fn note(&self, ino: Ino, before: Option<&Inode>, after: Option<&Inode>) {
        let is_read = |before: &Inode, after: &Inode| Inode { atime: after.atime, ..before.clone() } == *after;
        if !self.is_any() || matches!((before, after), (Some(before), Some(after)) if is_read(before, after)) {
            return;
        }
        self.note_any(ino);
    }

    /// Notes a change of any kind.
    pub(super) fn note_any(&self, ino: Ino) {
        if self.is_any()
            && let Some(watch) = &mut self.state.lock().watch
        {
            watch.note(ino);
        }
    }

    /// Refuses a change in a closed tree.
    pub(super) fn check(&self, ino: Ino) -> Result<()> {
        if self.is_any() && self.state.lock().closed.iter().any(|(_, tree)| tree.contains(ino)) {
            return Err(is_replaced());
        }
        Ok(())
    }

    /// Opens the tree whose top was removed.
    pub(super) fn end(&self, top: Ino) {
        if self.is_any() {
            self.change(|state| state.closed.retain(|(closed, _)| *closed != top));
        }
    }
}

fn is_replaced() -> EngineError {
    let (what, owner) =
        ("the directory".to_owned(), "`dedupfs freeze`, which has put a version in its place".to_owned());
    StoreError::Busy { what, owner }.into()
}

impl Namespace {
    /// Begins to note changes, in place of an earlier watch.
    pub fn watch(&self) {
        let _lock = waiting::lock(&self.mutation);
        let below = self.next_ino.load(Ordering::Relaxed);
        let watch = Watch { below, tree: None, changed: BTreeSet::new(), first: None };
        self.watching.change(|state| state.watch = Some(watch));
    }

    /// Says which inodes are watched. Returns one that has changed already, if there is any.
    pub fn watch_tree(&self, tree: Arc<InoSpans>) -> Option<Ino> {
        self.watching.change(|state| {
            let watch = state.watch.as_mut()?;
            let changed = std::mem::take(&mut watch.changed);
            watch.first = watch.first.or_else(|| changed.into_iter().find(|ino| tree.contains(*ino)));
            watch.tree = Some(tree);
            watch.first
        })
    }

    /// Ends the watch.
    pub fn unwatch(&self) {
        self.watching.change(|state| state.watch = None);
    }

    /// Whether one more tree can be closed.
    #[must_use]
    pub fn can_close_one_more(&self) -> bool {
        self.watching.state.lock().closed.len() < CLOSED_MAX
    }

    /// Whether the inode is in a closed tree, or may be.
    ///
    /// # Errors
    /// `Busy` if it is.
    pub fn check_not_closed(&self, ino: Ino) -> Result<()> {
        self.watching.check(ino)
    }

    /// Exchanges the names of a version and of the top of the watched tree, and closes the tree; all in one step, with the
    /// end of the watch. `permit` is called with the tree closed and before the exchange, which it can refuse. It runs under
    /// the mutation lock and must not call the namespace, except [`check_not_closed`](Self::check_not_closed).
    ///
    /// # Errors
    /// `Busy` if something in the tree has changed since the watch began, or too many trees are closed; those of
    /// [`rename`](Self::rename) and of `permit`. The watch ends then, too.
    pub fn exchange_watched(
        &self,
        [version, top]: [Ino; 2],
        (parent, name): (Ino, &[u8]),
        (to_parent, to_name): (Ino, &[u8]),
        now: Timestamp,
        permit: &mut dyn FnMut(&InoSpans) -> Result<()>,
    ) -> Result<()> {
        let flags = RenameFlags { exchange: true, ..RenameFlags::default() };
        let changed = || {
            let what = "the directory, which was changed while a version was made of it,".to_owned();
            EngineError::from(StoreError::Busy { what, owner: "another process".to_owned() })
        };
        let mut is_permitted = false;
        let exchanged = self.rename_if((parent, name), (to_parent, to_name), flags, now, &mut || {
            let names = [self.entry(parent, name)?, self.entry(to_parent, to_name)?];
            if names.map(|entry| entry.map(|entry| entry.ino)) != [Some(version), Some(top)] {
                return Err(changed());
            }
            let tree = self.watching.change(|state| {
                let watch = state.watch.take();
                let tree = watch.filter(|watch| watch.first.is_none()).and_then(|watch| watch.tree);
                let tree = tree.filter(|_| state.closed.len() < CLOSED_MAX).ok_or_else(changed)?;
                state.closed.push((top, tree.clone()));
                Ok::<_, EngineError>(tree)
            })?;
            permit(&tree).inspect_err(|_| self.watching.end(top))?;
            is_permitted = true;
            Ok(())
        });
        self.unwatch();
        exchanged.and_then(|_| if is_permitted { Ok(()) } else { Err(changed()) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_never_lack_a_number_and_stay_few() {
        let mut spans = InoSpans::default();
        [5, 6, 7, 7, 3, 20, 6].into_iter().for_each(|ino| spans.add(ino));
        spans.finish();
        assert_eq!(spans.spans, [(3, 3), (5, 7), (20, 20)]);
        let found: Vec<Ino> = (0..30).filter(|ino| spans.contains(*ino)).collect();
        assert_eq!(found, [3, 5, 6, 7, 20]);
        assert!(!InoSpans::default().contains(0));
        let mut many = InoSpans::default();
        // Two groups far from each other.
        let numbers = || (0..5 * SPANS_MAX as u64).map(|number| number * 2 + (number % 3) * (1 << 40));
        numbers().for_each(|ino| {
            many.add(ino);
            assert!(many.spans.len() <= 2 * SPANS_MAX);
        });
        many.finish();
        assert!(many.spans.len() <= SPANS_MAX);
        assert!(numbers().all(|ino| many.contains(ino)));
        assert!(!many.contains(1 << 39) && !many.contains(3 << 40), "wide gaps stay");
    }

    #[test]
    fn changes_before_the_tree_is_known_count_if_they_are_of_it() {
        let watch = || Watch { below: 100, tree: None, changed: BTreeSet::new(), first: None };
        let mut spans = InoSpans::default();
        spans.add(7);
        let tree = Arc::new(spans);
        let watching = Watching::default();
        watching.change(|state| state.watch = Some(watch()));
        [8, 200].into_iter().for_each(|ino| watching.note_any(ino));
        watching.change(|state| {
            let watch = state.watch.as_mut().expect("is there");
            assert_eq!(watch.changed, BTreeSet::from([8]));
            watch.tree = Some(tree);
            assert_eq!(watch.first, None);
            watch.note(9);
            assert_eq!(watch.first, None);
            watch.note(7);
            assert_eq!(watch.first, Some(7));
        });
        let mut many = watch();
        many.below = Ino::MAX;
        (0..=CHANGED_MAX as u64).for_each(|ino| many.note(ino));
        assert!(many.first.is_some(), "too many count as one of the tree");
    }
}
