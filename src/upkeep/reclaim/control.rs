//! Control of a run by other threads, and its answers: stop, pause, status.

use std::time::Duration;

use dedupfs_store::profile::{self, Component};
use dedupfs_sync::clock::Instant;
use dedupfs_sync::{Condvar, Mutex, MutexGuard};
use serde::{Deserialize, Serialize};

use super::history::LastRun;
use super::report::ReclaimReport;
use crate::progress::Progress;

/// Interval at which a run is told again to end.
const END_NAP: Duration = Duration::from_millis(50);

/// The progress of a run.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct RunStatus {
    /// The step, in words.
    pub step: String,
    /// The part of the step that is done.
    pub done: u64,
    /// The whole of the step; 0 if unknown.
    pub total: u64,
    /// Time spent in the step.
    pub step_ms: u64,
    /// Time spent in the run.
    pub elapsed_ms: u64,
    /// The results so far; the sizes before and after are not known yet.
    pub report: ReclaimReport,
}

/// The state of reclaiming in a pool.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ReclaimStatus {
    /// The run under way.
    pub running: Option<RunStatus>,
    /// Whether nothing is reclaimed until it is resumed.
    pub paused: bool,
    /// The last run that was recorded, also one under way. A run without an end was interrupted.
    pub last: Option<LastRun>,
    /// Whether the live bytes are known: not before the first run in a pool that an earlier version wrote.
    pub is_known: bool,
    /// Counts in doubt were met: nothing is freed until `dedupfs fsck --rebuild-index`.
    #[serde(default)]
    pub counts_in_doubt: bool,
    /// Uncompressed live bytes.
    pub live_bytes: u64,
    /// Uncompressed garbage in closed containers. Chunks of recipes that are not freed yet are not included.
    pub garbage_bytes: u64,
    /// The background reclaiming, in words, if there is any.
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
struct ControlState {
    is_stopped: bool,
    is_paused: bool,
    is_closed: bool,
    is_background: bool,
    /// Number of those who wait for the end of the runs.
    ending: usize,
    started: Option<Instant>,
    /// Number of runs that began.
    begun: u64,
    step: Option<Step>,
    report: ReclaimReport,
}

/// The control of reclaiming in one pool: at most one run at a time.
#[derive(Debug, Default)]
pub struct ReclaimControl {
    /// A run holds it; a plan does not.
    pub(crate) running: Mutex<()>,
    state: Mutex<ControlState>,
    changed: Condvar,
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

impl ReclaimControl {
    /// Ends the current run soon.
    pub fn stop(&self) {
        self.state.lock().is_stopped = true;
        self.changed.notify_all();
    }

    /// Ends the current run, and keeps others from beginning until the returned guard is dropped. `None` if it does not
    /// end within `patience`.
    pub(crate) fn end(&self, patience: Duration) -> Option<MutexGuard<'_, ()>> {
        let until = Instant::now() + patience;
        // Else runs that follow one another at once would take the lock again and again.
        self.state.lock().ending += 1;
        let ended = self.wait_for_end(until);
        let mut state = self.state.lock();
        state.ending = state.ending.saturating_sub(1);
        ended
    }

    fn wait_for_end(&self, until: Instant) -> Option<MutexGuard<'_, ()>> {
        loop {
            // Repeat it: a run that is just beginning clears the request.
            self.stop();
            let ended = self.running.try_lock_for(END_NAP);
            if ended.is_some() || Instant::now() >= until {
                return ended;
            }
        }
    }

    /// Whether somebody waits for the end of the runs, so that none may begin.
    pub(crate) fn is_ending(&self) -> bool {
        self.state.lock().ending > 0
    }

    /// Whether the current run is in the background: nobody waits for it.
    pub(crate) fn is_in_background(&self) -> bool {
        self.state.lock().is_background
    }

    /// Ends the current run soon, and every later one at once: the pool is being closed.
    pub fn close(&self) {
        self.state.lock().is_closed = true;
        self.changed.notify_all();
    }

    /// Holds the current run between two steps and lets no other begin; or lets them continue.
    pub fn pause(&self, paused: bool) {
        self.state.lock().is_paused = paused;
        self.changed.notify_all();
    }

    /// Whether reclaiming is paused.
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
    pub(crate) fn is_stopped(&self) -> bool {
        let state = self.state.lock();
        state.is_stopped || state.is_closed
    }

    /// Notes that a run begins; it lasts until the returned guard is dropped.
    pub(crate) fn begin(&self, is_background: bool) -> Begun<'_> {
        let mut state = self.state.lock();
        state.is_background = is_background;
        (state.is_stopped, state.step, state.report) = (false, None, ReclaimReport::default());
        state.started = Some(Instant::now());
        state.begun += 1;
        Begun(self)
    }

    /// Sleeps for at most this long, or until the run should end.
    pub(super) fn sleep(&self, at_most: Duration) {
        let _rests = profile::of(Component::Rest);
        let deadline = Instant::now() + at_most;
        let mut state = self.state.lock();
        while !state.is_stopped && !state.is_closed {
            if self.changed.wait_until(&mut state, deadline).timed_out() {
                return;
            }
        }
    }

    /// Notes the results so far.
    pub(super) fn note(&self, report: &ReclaimReport) {
        self.state.lock().report.clone_from(report);
    }

    /// Returns the number of runs so far; none while one is under way.
    pub(crate) fn runs_unless_running(&self) -> Option<u64> {
        let state = self.state.lock();
        state.started.is_none().then_some(state.begun)
    }

    /// Returns the progress of the current run.
    pub(crate) fn running(&self) -> Option<RunStatus> {
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

/// A run is under way while this guard lives.
pub(crate) struct Begun<'a>(&'a ReclaimControl);

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        (state.started, state.step, state.is_background) = (None, None, false);
    }
}

/// Progress for the status as well as for the listener.
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
    use crate::progress::NoProgress;

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

    /// A run in the background makes way for others.
    #[test]
    fn a_run_is_in_the_background_if_it_began_so() {
        let control = ReclaimControl::default();
        for is_background in [false, true, false] {
            let begun = control.begin(is_background);
            assert_eq!(control.is_in_background(), is_background);
            drop(begun);
            assert!(!control.is_in_background());
        }
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
