//! What a thread of the session is: its place in the [`Relay`] and its [`Pace`], kept by the thread itself.

use std::cell::{Cell, OnceCell, RefCell};
use std::sync::Arc;
use std::time::Instant;

use super::relay::Relay;
use super::watch::{Pace, Watch};

/// The place of one thread; its end is the end of the session.
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

/// One request is being answered on a thread of the session. Dropped behind the answer, because the thread may sleep then.
pub(super) struct Turn;

impl Turn {
    /// Takes the thread's place in `relay` at its first request.
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
                seat.relay.settle();
                seat.receives.set(true);
                seat.pace.borrow_mut().slept();
            }
            seat.watch.look(&mut seat.pace.borrow_mut());
        });
    }
}

/// Whether all others depend on the calling thread: it receives the kernel's requests.
#[must_use]
pub fn is_receiving() -> bool {
    SEAT.try_with(|seat| seat.get().is_some_and(|seat| seat.receives.get())).unwrap_or(false)
}

/// To be called by a service before the calling thread waits, for a disk or for a lock that is held meanwhile: another thread
/// receives the kernel's requests then. Does nothing on other threads, and for the rest of a request that did it once.
pub fn about_to_wait() {
    let _ending = SEAT.try_with(|seat| {
        if let Some(seat) = seat.get().filter(|seat| seat.receives.replace(false)) {
            seat.relay.step_aside();
        }
    });
}
