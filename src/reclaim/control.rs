//! What others tell a run, and what it tells them: stop, pause, status.

use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use serde::{Deserialize, Serialize};

use super::history::LastRun;
use super::report::ReclaimReport;
use crate::pool::Progress;

/// How long to wait before a run is told again to end.
const END_NAP: Duration = Duration::from_millis(50);

/// What a run is at.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct RunStatus {
    /// The step, in words.
    pub step: String,
    /// How much of it is done.
    pub done: u64,
    /// Of so much; 0 if it is not known.
    pub total: u64,
    /// Time that the step has taken.
    pub step_ms: u64,
    /// Time that the run has taken.
    pub elapsed_ms: u64,
    /// What it has done by now; its sizes before and after are not known yet.
    pub report: ReclaimReport,
}

/// What reclaiming is at in a pool.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ReclaimStatus {
    /// The run under way.
    pub running: Option<RunStatus>,
    /// Nothing is reclaimed until it is resumed.
    pub paused: bool,
    /// The run before, or the one under way as far as it was noted; one that never ended was interrupted.
    pub last: Option<LastRun>,
    /// Whether what is alive is known: not before the first run in a pool that an earlier version wrote.
    pub is_known: bool,
    /// Counts of what is in use could not be right: nothing is freed until `dedupfs fsck --rebuild-index`.
    #[serde(default)]
    pub counts_in_doubt: bool,
    /// Uncompressed bytes that something refers to.
    pub live_bytes: u64,
    /// Uncompressed bytes of closed containers that nothing refers to; what recipes that are not freed yet refer to is not in it.
    pub garbage_bytes: u64,
    /// What reclaims in the background, in words, if anything does.
    pub background: Option<String>,
}

#[derive(Debug)]
struct Step {
    name: String,
    done: u64,
    total: u64,
    started: Instant,
}

#[derive(Debug, Default)]
struct State {
    is_stopped: bool,
    is_paused: bool,
    is_closed: bool,
    is_background: bool,
    started: Option<Instant>,
    step: Option<Step>,
    report: ReclaimReport,
}

/// The reclaiming of one pool: at most one run at a time.
#[derive(Debug, Default)]
pub struct ReclaimControl {
    /// Held by a run, but not by a plan.
    pub(crate) running: Mutex<()>,
    state: Mutex<State>,
    changed: Condvar,
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

impl ReclaimControl {
    /// Ends the run under way, soon.
    pub fn stop(&self) {
        self.state.lock().is_stopped = true;
        self.changed.notify_all();
    }

    /// Ends the run under way, and keeps others from beginning until the answer is dropped; `None` if it does not end within
    /// `patience`.
    pub(crate) fn end(&self, patience: Duration) -> Option<MutexGuard<'_, ()>> {
        let until = Instant::now() + patience;
        loop {
            // Again and again: one that just begins forgets what was said before.
            self.stop();
            let ended = self.running.try_lock_for(END_NAP);
            if ended.is_some() || Instant::now() >= until {
                return ended;
            }
        }
    }

    /// Whether a run is under way that nobody waits for.
    pub(crate) fn is_in_background(&self) -> bool {
        self.state.lock().is_background
    }

    /// Ends the run under way, soon, and every later one at once: the pool is being closed.
    pub fn close(&self) {
        self.state.lock().is_closed = true;
        self.changed.notify_all();
    }

    /// Holds the run under way between two steps, and lets no other begin; or lets them go on.
    pub fn pause(&self, paused: bool) {
        self.state.lock().is_paused = paused;
        self.changed.notify_all();
    }

    /// Whether it is paused.
    #[must_use]
    pub fn is_paused(&self) -> bool {
        self.state.lock().is_paused
    }

    /// Whether the pool is being closed.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.state.lock().is_closed
    }

    /// Whether the run should end.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        let state = self.state.lock();
        state.is_stopped || state.is_closed
    }

    /// A run begins; it lasts as long as the answer lives.
    pub(crate) fn begin(&self, is_background: bool) -> Begun<'_> {
        let mut state = self.state.lock();
        state.is_background = is_background;
        (state.is_stopped, state.step, state.report) = (false, None, ReclaimReport::default());
        state.started = Some(Instant::now());
        Begun(self)
    }

    /// Sleeps, until it should end; at most so long.
    pub(super) fn sleep(&self, at_most: Duration) {
        let deadline = Instant::now() + at_most;
        let mut state = self.state.lock();
        while !state.is_stopped && !state.is_closed {
            if self.changed.wait_until(&mut state, deadline).timed_out() {
                return;
            }
        }
    }

    /// What the run has done by now.
    pub(super) fn note(&self, report: &ReclaimReport) {
        self.state.lock().report.clone_from(report);
    }

    /// What the run is at.
    #[must_use]
    pub fn running(&self) -> Option<RunStatus> {
        let state = self.state.lock();
        let started = state.started?;
        let step = state.step.as_ref();
        Some(RunStatus {
            step: step.map_or_else(|| "beginning".to_owned(), |step| step.name.clone()),
            done: step.map_or(0, |step| step.done),
            total: step.map_or(0, |step| step.total),
            step_ms: step.map_or(0, |step| millis(step.started.elapsed())),
            elapsed_ms: millis(started.elapsed()),
            report: state.report.clone(),
        })
    }
}

/// As long as it lives, a run is under way.
pub(crate) struct Begun<'a>(&'a ReclaimControl);

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        (state.started, state.step, state.is_background) = (None, None, false);
    }
}

/// Progress that the status shows, besides whoever is told of it.
pub(super) struct Tracked<'a> {
    pub(super) control: &'a ReclaimControl,
    pub(super) listener: &'a dyn Progress,
}

impl Progress for Tracked<'_> {
    fn start(&self, what: &str, total: u64) {
        let step = Step { name: what.to_owned(), done: 0, total, started: Instant::now() };
        self.control.state.lock().step = Some(step);
        self.listener.start(what, total);
    }

    fn advance(&self, by: u64) {
        if let Some(step) = &mut self.control.state.lock().step {
            step.done += by;
        }
        self.listener.advance(by);
    }

    fn finish(&self) {
        self.listener.finish();
    }

    fn is_cancelled(&self) -> bool {
        self.listener.is_cancelled()
    }

    fn say(&self, line: &str) {
        self.listener.say(line);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::NoProgress;

    #[test]
    fn what_is_stopped_ends_and_the_next_begins() {
        let control = ReclaimControl::default();
        control.stop();
        let begun = control.begin(false);
        assert!(!control.is_stopped(), "it was for the run before");
        control.stop();
        assert!(control.is_stopped());
        control.sleep(Duration::from_secs(3600));
        drop(begun);
        control.close();
        let _begun = control.begin(false);
        assert!(control.is_stopped(), "nothing begins in a pool that is being closed");
    }

    #[test]
    fn the_status_follows_the_steps() {
        let control = ReclaimControl::default();
        assert_eq!(control.running(), None);
        let begun = control.begin(false);
        let tracked = Tracked { control: &control, listener: &NoProgress };
        tracked.start("freeing", 7);
        tracked.advance(2);
        tracked.advance(3);
        control.note(&ReclaimReport { nodes_freed: 5, ..ReclaimReport::default() });
        let status = control.running().unwrap();
        assert_eq!((status.step.as_str(), status.done, status.total), ("freeing", 5, 7));
        assert_eq!(status.report.nodes_freed, 5);
        drop(begun);
        assert_eq!(control.running(), None);
    }
}
