//! Sections: stretches from a lookup to the log entry that rests on it, and who waits for their end.
//!
//! 1. [`enter`](Sections::enter) is counted, in one of two places that take turns.
//! 2. [`barrier`](Sections::barrier) changes places and waits until the old one is empty: all sections that were entered before
//!    have ended. New ones are entered all the while, so nobody waits behind a section that is slow (invariant I-4).
//! 3. [`between`](Sections::between) lets no new one in, waits for all, and acts: what a section does is before or behind it as
//!    a whole. Only for what takes moments.
//!
//! Invariants: the place that is not entered is empty whenever no barrier waits; places change only then.
//!
//! Not reentrant: a thread in a section must not enter another one.

use crate::sync::{Condvar, Mutex};

#[derive(Default)]
struct State {
    /// Sections in each place.
    inside: [u64; 2],
    /// Which place is entered.
    current: usize,
    /// A barrier waits for the other place.
    draining: bool,
    /// Threads that are, or want to be, between sections: nothing is entered.
    closing: u64,
    /// One of them is.
    closed: bool,
}

/// The sections of one pool.
#[derive(Default)]
pub struct Sections {
    state: Mutex<State>,
    changed: Condvar,
}

/// Proof that the holder is inside a section: reclaiming waits for it.
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

/// Ends what [`Sections::between`] has begun, also if its action panics.
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
    /// Enters a section; waits while somebody is, or wants to be, between sections. `before_waiting` is called then.
    pub fn enter(&self, before_waiting: impl FnOnce()) -> Section<'_> {
        let mut state = self.state.lock();
        if state.closing > 0 {
            before_waiting();
        }
        while state.closing > 0 {
            self.changed.wait(&mut state);
        }
        let place = state.current;
        state.inside[place] += 1;
        Section { sections: self, place }
    }

    /// Waits until every section that was entered before has ended.
    pub fn barrier(&self) {
        let mut state = self.state.lock();
        // Its place is not empty yet; and some of what was entered before this call it does not wait for.
        while state.draining {
            self.changed.wait(&mut state);
        }
        let old = state.current;
        if state.inside[old] == 0 {
            return;
        }
        state.current = 1 - old;
        state.draining = true;
        while state.inside[old] > 0 {
            self.changed.wait(&mut state);
        }
        state.draining = false;
        drop(state);
        self.changed.notify_all();
    }

    /// Calls `action` while nobody is in a section.
    pub fn between<T>(&self, action: impl FnOnce() -> T) -> T {
        let mut state = self.state.lock();
        state.closing += 1;
        while state.closed || state.inside != [0, 0] {
            self.changed.wait(&mut state);
        }
        state.closed = true;
        drop(state);
        let _closed = Closed(self);
        action()
    }
}
