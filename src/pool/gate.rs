//! What lets changes in until the pool is being closed, and then waits for those that are under way.
//!
//! ```text
//! Open ──drain()──> Draining ──close()──> Closed
//! ```
//! Open: everything. Draining: what was taken before is published, nothing new is taken. Closed: nothing. Both steps
//! wait for whoever is inside, so that no change is acknowledged that the last commit does not have.

use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::error::{EngineError, Result};

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Phase {
    Open,
    Draining,
    Closed,
}

#[derive(Debug)]
struct State {
    phase: Phase,
    inside: u64,
}

/// The gate of one pool.
#[derive(Debug)]
pub struct Gate {
    state: Mutex<State>,
    left: Condvar,
}

/// As long as this exists, closing waits.
#[must_use]
pub struct Pass<'a>(&'a Gate);

impl Default for Gate {
    fn default() -> Self {
        Self { state: Mutex::new(State { phase: Phase::Open, inside: 0 }), left: Condvar::new() }
    }
}

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.inside -= 1;
        if state.phase != Phase::Open {
            self.0.left.notify_all();
        }
    }
}

impl Gate {
    /// Enters with a change.
    ///
    /// # Errors
    /// `ReadOnly` once the pool is being closed.
    pub fn enter(&self) -> Result<Pass<'_>> {
        self.enter_until(Phase::Open)
    }

    /// Enters to publish what was taken before, as a part of a change or alone.
    ///
    /// # Errors
    /// `ReadOnly` once the pool is closed.
    pub fn enter_to_publish(&self) -> Result<Pass<'_>> {
        self.enter_until(Phase::Draining)
    }

    /// Whether the pool is being closed, or is closed.
    #[must_use]
    pub fn is_closing(&self) -> bool {
        self.state.lock().phase != Phase::Open
    }

    fn enter_until(&self, last: Phase) -> Result<Pass<'_>> {
        let mut state = self.state.lock();
        if state.phase > last {
            return Err(EngineError::ReadOnly(": it is being unmounted".to_owned()));
        }
        state.inside += 1;
        Ok(Pass(self))
    }

    /// Lets no new change in, and waits for those that are inside, but at most for `patience`; returns whether all
    /// have gone.
    pub fn drain(&self, patience: Duration) -> bool {
        self.go_on(Phase::Draining, patience)
    }

    /// Lets nothing in any more, and waits as [`drain`](Self::drain) does.
    pub fn close(&self, patience: Duration) -> bool {
        self.go_on(Phase::Closed, patience)
    }

    fn go_on(&self, phase: Phase, patience: Duration) -> bool {
        let until = Instant::now() + patience;
        let mut state = self.state.lock();
        state.phase = state.phase.max(phase);
        while state.inside > 0 {
            if self.left.wait_until(&mut state, until).timed_out() {
                return state.inside == 0;
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);

    #[test]
    fn changes_stop_first_and_publishing_later() {
        let gate = Gate::default();
        {
            let _change = gate.enter().unwrap();
            let _publishes = gate.enter_to_publish().unwrap();
        }
        assert!(gate.drain(PATIENCE));
        assert!(matches!(gate.enter(), Err(EngineError::ReadOnly(_))));
        assert!(gate.enter_to_publish().is_ok());
        assert!(gate.close(PATIENCE));
        assert!(matches!(gate.enter_to_publish(), Err(EngineError::ReadOnly(_))));
        assert!(gate.drain(PATIENCE));
        assert!(gate.enter_to_publish().is_err(), "closed stays closed");
    }

    #[test]
    fn a_change_that_never_ends_does_not_keep_the_pool_open() {
        let gate = Gate::default();
        let _stuck = gate.enter().unwrap();
        assert!(!gate.drain(Duration::from_millis(10)));
        assert!(gate.enter().is_err() && !gate.close(Duration::from_millis(10)));
        assert!(gate.enter_to_publish().is_err());
    }

    #[test]
    fn draining_waits_for_a_change_that_still_publishes() {
        let (gate, done) = (Gate::default(), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let change = gate.enter().unwrap();
            scope.spawn(|| {
                assert!(gate.drain(PATIENCE));
                assert!(done.load(Ordering::Acquire), "the change has ended");
            });
            // However long the other thread waits, a change under way may publish.
            std::thread::sleep(Duration::from_millis(50));
            drop(gate.enter_to_publish().unwrap());
            done.store(true, Ordering::Release);
            drop(change);
        });
    }
}
