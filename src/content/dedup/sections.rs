//! Sections: stretches from a lookup to the log entry that rests on it, and ways to wait for their end.
//!
//! 1. [`enter`](Sections::enter) counts a section in one of two places that take turns.
//! 2. [`barrier`](Sections::barrier) switches the places and waits until the old one is empty: then all sections
//!    entered before have ended. New sections can be entered at any time, so no thread waits behind a slow section
//!    (invariant I-4).
//! 3. [`between`](Sections::between) lets no new section in, waits for all to end, and acts: each section lies wholly
//!    before or wholly behind the action. Only for short actions.
//!
//! Invariants: the place not in use is empty whenever no barrier waits. Places switch only then.
//!
//! Not reentrant: a thread in a section must not enter another one.

use dedupfs_store::profile::{self, Component};

use crate::sync::{Condvar, Mutex};

#[derive(Default)]
struct SectionState {
    /// Sections in each place.
    inside: [u64; 2],
    /// The place that new sections enter.
    current: usize,
    /// Whether a barrier waits for the other place.
    draining: bool,
    /// Threads that are, or want to be, between sections: no section can be entered.
    closing: u64,
    /// Whether one of them is between sections.
    closed: bool,
}

/// The sections of one pool.
#[derive(Default)]
pub(super) struct Sections {
    state: Mutex<SectionState>,
    changed: Condvar,
}

/// Proof that the holder is inside a section: reclaiming waits for it.
#[must_use = "dropping it ends the section"]
pub struct Section<'a> {
    sections: &'a Sections,
    place: usize,
}

impl Drop for Section<'_> {
    fn drop(&mut self) {
        let mut state = self.sections.state.lock();
        state.inside[self.place] -= 1;
        let is_awaited = state.inside[self.place] == 0 && (state.draining || state.closing > 0);
        drop(state);
        if is_awaited {
            self.sections.changed.notify_all();
        }
    }
}

/// Ends a call of [`Sections::between`], even if its action panics.
struct Closed<'a>(&'a Sections);

impl Drop for Closed<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.closing -= 1;
        state.closed = false;
        drop(state);
        self.0.changed.notify_all();
    }
}

impl Sections {
    /// Enters a section. Waits while a thread is, or wants to be, between sections, and calls `before_waiting` first.
    pub(super) fn enter(&self, before_waiting: impl FnOnce()) -> Section<'_> {
        let mut state = self.state.lock();
        if state.closing > 0 {
            before_waiting();
        }
        let mut waits = None;
        while state.closing > 0 {
            waits.get_or_insert_with(|| profile::of(Component::Sections));
            self.changed.wait(&mut state);
        }
        let place = state.current;
        state.inside[place] += 1;
        Section { sections: self, place }
    }

    /// Waits until every section entered before this call has ended.
    pub(super) fn barrier(&self) {
        let mut state = self.state.lock();
        // The other barrier does not cover all sections entered before this call; wait for the place to be free.
        let mut waits = None;
        while state.draining {
            waits.get_or_insert_with(|| profile::of(Component::Sections));
            self.changed.wait(&mut state);
        }
        let old = state.current;
        if state.inside[old] == 0 {
            return;
        }
        state.current = 1 - old;
        state.draining = true;
        let mut waits = None;
        while state.inside[old] > 0 {
            waits.get_or_insert_with(|| profile::of(Component::Sections));
            self.changed.wait(&mut state);
        }
        state.draining = false;
        drop(state);
        self.changed.notify_all();
    }

    /// Calls `action` while no section is open.
    pub(super) fn between<T>(&self, action: impl FnOnce() -> T) -> T {
        let mut state = self.state.lock();
        state.closing += 1;
        let mut waits = None;
        while state.closed || state.inside != [0, 0] {
            waits.get_or_insert_with(|| profile::of(Component::Sections));
            self.changed.wait(&mut state);
        }
        state.closed = true;
        drop((state, waits));
        let _closed = Closed(self);
        action()
    }
}
