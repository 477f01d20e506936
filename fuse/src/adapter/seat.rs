//! The state of one thread of the session: its place in the [`Relay`] and its [`Pace`], kept in the thread.

use std::cell::{Cell, OnceCell, RefCell};
use std::sync::Arc;
use std::time::Instant;

use super::relay::Relay;
use super::watch::{Pace, Watch};

/// The state of one thread. Dropping it means that the session ends.
struct Seat {
    relay: Arc<Relay>,
    watch: Arc<Watch>,
    receives: Cell<bool>,
    pace: RefCell<Pace>,
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.relay.end();
    }
}

thread_local! {
    static SEAT: OnceCell<Seat> = const { OnceCell::new() };
}

/// One request being answered on a thread of the session. Dropped after the answer, because the thread may sleep then.
pub(super) struct Turn;

impl Turn {
    /// Begins a turn. At its first request, the thread takes its place in `relay`.
    pub(super) fn begin(relay: &Arc<Relay>, watch: &Arc<Watch>) -> Self {
        SEAT.with(|seat| {
            let take = || {
                let (relay, watch) = (Arc::clone(relay), Arc::clone(watch));
                Seat { relay, watch, receives: Cell::new(false), pace: RefCell::default() }
            };
            seat.get_or_init(take).pace.borrow_mut().received(Instant::now());
        });
        Self
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        // A thread that is ending has no place any more.
        let _ending = SEAT.try_with(|seat| {
            let Some(seat) = seat.get() else { return };
            if !seat.receives.get() {
                seat.relay.take_place();
                seat.receives.set(true);
                seat.pace.borrow_mut().slept();
            }
            seat.watch.look(&mut seat.pace.borrow_mut());
        });
    }
}

/// Whether the calling thread receives the kernel's requests, so that all others depend on it.
#[must_use]
pub fn is_receiving() -> bool {
    SEAT.try_with(|seat| seat.get().is_some_and(|seat| seat.receives.get())).unwrap_or(false)
}

/// Lets another thread receive the kernel's requests. A service calls this before the calling thread waits for a disk or a lock. Does
/// nothing on other threads, and nothing after the first call within a request.
pub fn about_to_wait() {
    let _ending = SEAT.try_with(|seat| {
        if let Some(seat) = seat.get().filter(|seat| seat.receives.replace(false)) {
            seat.relay.step_aside();
        }
    });
}
