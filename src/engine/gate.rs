//! Admits changes until the pool closes, then waits for the changes under way.
//!
//! ```text
//! Open ──drain()──> Draining ──close()──> Closed
//! ```
//! Open: all changes enter. Draining: work that was accepted before is published, new changes are refused. Closed: nothing enters. Both
//! steps wait until everyone inside has left, so the last commit has every acknowledged change.
//!
//! A pool that is read-only for a while is *paused*: new changes are refused as in Draining, until [`Gate::resume`].

use std::time::Duration;

use dedupfs_base::{ReadOnly, Result};
use dedupfs_sync::clock::Instant;
use dedupfs_sync::{Condvar, Mutex, MutexGuard};

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Phase {
    Open,
    Draining,
    Closed,
}

#[derive(Debug)]
struct GateState {
    phase: Phase,
    is_paused: bool,
    inside: u64,
}

/// The gate of one pool.
#[derive(Debug)]
pub struct Gate {
    state: Mutex<GateState>,
    left: Condvar,
}

/// A permit to change the pool. Closing waits until it is dropped.
#[must_use = "dropping it ends the permit"]
pub(crate) struct Pass<'a>(&'a Gate);

impl Default for Gate {
    fn default() -> Self {
        Self { state: Mutex::new(GateState { phase: Phase::Open, is_paused: false, inside: 0 }), left: Condvar::new() }
    }
}

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.inside -= 1;
        if state.phase != Phase::Open || state.is_paused {
            self.0.left.notify_all();
        }
    }
}

impl Gate {
    /// Enters for a change.
    ///
    /// # Errors
    /// `ReadOnly` while the gate is paused, and once the pool is being closed.
    pub(crate) fn enter(&self) -> Result<Pass<'_>> {
        self.enter_until(Phase::Open)
    }

    /// Enters to publish work that was accepted before, as part of a change or alone.
    ///
    /// # Errors
    /// `ReadOnly` once the pool is closed.
    pub(crate) fn enter_to_publish(&self) -> Result<Pass<'_>> {
        self.enter_until(Phase::Draining)
    }

    /// Whether the pool is being closed, or is closed.
    pub(crate) fn is_closing(&self) -> bool {
        self.state.lock().phase != Phase::Open
    }

    fn enter_until(&self, last: Phase) -> Result<Pass<'_>> {
        let mut state = self.state.lock();
        if state.phase > last {
            return Err(ReadOnly::Unmounting.into());
        }
        if state.is_paused && last == Phase::Open {
            return Err(ReadOnly::Remounted.into());
        }
        state.inside += 1;
        Ok(Pass(self))
    }

    /// Refuses new changes and waits up to `patience` for those inside; returns whether all have left.
    pub(crate) fn drain(&self, patience: Duration) -> bool {
        self.go_on(Phase::Draining, patience)
    }

    /// Refuses everything, and waits as [`drain`](Self::drain) does.
    pub(crate) fn close(&self, patience: Duration) -> bool {
        self.go_on(Phase::Closed, patience)
    }

    /// Refuses new changes for a while and waits up to `patience` for those inside; returns whether all have left. If not, the gate
    /// stays open.
    pub(crate) fn pause(&self, patience: Duration) -> bool {
        let mut state = self.state.lock();
        state.is_paused = true;
        let are_gone = self.wait_until_left(&mut state, patience);
        state.is_paused = are_gone;
        are_gone
    }

    /// Ends a pause.
    pub(crate) fn resume(&self) {
        self.state.lock().is_paused = false;
    }

    /// Whether the gate is paused.
    pub(crate) fn is_paused(&self) -> bool {
        self.state.lock().is_paused
    }

    fn go_on(&self, phase: Phase, patience: Duration) -> bool {
        let mut state = self.state.lock();
        state.phase = state.phase.max(phase);
        self.wait_until_left(&mut state, patience)
    }

    fn wait_until_left(&self, state: &mut MutexGuard<'_, GateState>, patience: Duration) -> bool {
        let until = Instant::now() + patience;
        while state.inside > 0 {
            if self.left.wait_until(state, until).timed_out() {
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
        assert!(matches!(gate.enter(), Err(dedupfs_base::EngineError::ReadOnly(_))));
        assert!(gate.enter_to_publish().is_ok());
        assert!(gate.close(PATIENCE));
        assert!(matches!(gate.enter_to_publish(), Err(dedupfs_base::EngineError::ReadOnly(_))));
        assert!(gate.drain(PATIENCE));
        assert!(gate.enter_to_publish().is_err(), "closed stays closed");
    }

    #[test]
    fn a_pause_keeps_changes_out_until_it_ends() {
        let gate = Gate::default();
        let stuck = gate.enter().unwrap();
        assert!(!gate.pause(Duration::from_millis(10)) && !gate.is_paused());
        assert!(gate.enter().is_ok(), "a pause that failed keeps nobody out");
        drop(stuck);
        assert!(gate.pause(PATIENCE) && gate.is_paused());
        assert!(matches!(gate.enter(), Err(dedupfs_base::EngineError::ReadOnly(_))));
        assert!(gate.enter_to_publish().is_ok());
        gate.resume();
        assert!(gate.enter().is_ok());
        assert!(gate.pause(PATIENCE) && gate.close(PATIENCE));
        gate.resume();
        assert!(gate.enter().is_err(), "closed stays closed");
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
            // A change under way may publish, however long the other thread waits.
            std::thread::sleep(Duration::from_millis(50));
            drop(gate.enter_to_publish().unwrap());
            done.store(true, Ordering::Release);
            drop(change);
        });
    }
}
