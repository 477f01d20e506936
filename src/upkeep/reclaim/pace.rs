//! The speed of a run and the time of its end: its share of the time while clients are active, pauses, limits.
//!
//! A run works in one thread (except compression and writing, which follow it), so a share of its time is a share of
//! the processor and of the disk.

use std::time::Duration;

use dedupfs_sync::Mutex;
use dedupfs_sync::clock::Instant;

use super::control::ReclaimControl;
use super::{ReclaimOptions, Stopped};
use crate::engine::Activity;
use crate::progress::Progress;

/// Time after a request during which clients count as active.
pub(super) const ACTIVE_FOR: Duration = Duration::from_millis(500);
/// Interval of the checks whether clients are still active, or the run still paused.
const NAP: Duration = Duration::from_millis(100);
/// Longest rest at a time of a run that gives way to clients, unless its share is 0. It then works for a moment and
/// rests the remaining time later.
const REST_MAX: Duration = Duration::from_secs(5);

#[derive(Debug)]
struct PaceState {
    /// Time at which the run began to work, at first or after its last rest.
    since: Instant,
    /// Rest still owed from before.
    owed: Duration,
    waited: Duration,
    io_bytes: u64,
}

/// The pace of one run.
pub(super) struct Pace<'a> {
    control: &'a ReclaimControl,
    progress: &'a dyn Progress,
    clients: &'a Activity,
    options: ReclaimOptions,
    started: Instant,
    state: Mutex<PaceState>,
}

impl<'a> Pace<'a> {
    pub(super) fn new(
        options: ReclaimOptions,
        control: &'a ReclaimControl,
        progress: &'a dyn Progress,
        clients: &'a Activity,
    ) -> Self {
        let now = Instant::now();
        let state = PaceState { since: now, owed: Duration::ZERO, waited: Duration::ZERO, io_bytes: 0 };
        Self { control, progress, clients, options, started: now, state: Mutex::new(state) }
    }

    /// Adds bytes of containers that were read or written.
    pub(super) fn spend(&self, io_bytes: u64) {
        self.state.lock().io_bytes += io_bytes;
    }

    /// Bytes of containers read and written by now.
    pub(super) fn io_bytes(&self) -> u64 {
        self.state.lock().io_bytes
    }

    /// Bytes that it may still read and write.
    pub(super) fn io_left_bytes(&self) -> u64 {
        match self.options.max_io_bytes {
            0 => u64::MAX,
            most => most.saturating_sub(self.io_bytes()),
        }
    }

    pub(super) fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// Time for which the run has waited for clients or was paused.
    pub(super) fn waited(&self) -> Duration {
        self.state.lock().waited
    }

    /// Returns the reason why the run should end now, if there is one.
    pub(super) fn stopped(&self) -> Option<Stopped> {
        let limit = |limit: u64, used: u64| limit > 0 && used >= limit;
        if self.control.is_closed() {
            Some(Stopped::Unmounted)
        } else if self.control.is_stopped() || self.progress.is_cancelled() {
            Some(Stopped::Asked)
        } else if limit(self.options.max_time_ms, u64::try_from(self.elapsed().as_millis()).unwrap_or(u64::MAX)) {
            Some(Stopped::Time)
        } else if limit(self.options.max_io_bytes, self.io_bytes()) {
            Some(Stopped::Io)
        } else {
            None
        }
    }

    /// Between two steps, with nothing claimed: waits while the run is paused. Returns the reason why it should end, if
    /// there is one.
    pub(super) fn between_steps(&self) -> Option<Stopped> {
        loop {
            self.rest();
            let stopped = self.stopped();
            // A plan changes nothing, so a pause does not hold it.
            if stopped.is_some() || self.options.dry_run || !self.control.is_paused() {
                return stopped;
            }
            let began = Instant::now();
            self.control.sleep(NAP);
            let mut state = self.state.lock();
            state.waited += began.elapsed();
            state.since = Instant::now();
        }
    }

    /// Between two pieces of a step, with claims possible: rests as the share demands if clients are active. With a
    /// share of 0 it goes on to the step's end.
    pub(super) fn between_pieces(&self) {
        if self.options.share_percent > 0 {
            self.rest();
        }
    }

    fn rest(&self) {
        if self.options.share_percent >= 100 {
            return;
        }
        let rest = {
            let mut state = self.state.lock();
            let share = u32::from(self.options.share_percent);
            if !self.clients_are_active() {
                (state.since, state.owed) = (Instant::now(), Duration::ZERO);
                return;
            }
            (state.since.elapsed() * (100 - share)).checked_div(share).map(|rest| rest + state.owed)
        };
        let began = Instant::now();
        let most = rest.map(|rest| rest.min(REST_MAX));
        while !self.is_urgent() && most.is_none_or(|most| began.elapsed() < most) {
            let nap = most.map_or(NAP, |most| most.saturating_sub(began.elapsed()).min(NAP));
            self.control.sleep(nap);
            if most.is_none() && !self.clients_are_active() {
                break;
            }
        }
        let mut state = self.state.lock();
        state.owed = rest.unwrap_or_default().saturating_sub(began.elapsed());
        state.waited += began.elapsed();
        state.since = Instant::now();
    }

    /// Whether [`between_steps`](Self::between_steps) would wait for long: the run is paused, or its share is 0 and
    /// clients are active.
    pub(super) fn is_held(&self) -> bool {
        let gives_way = self.options.share_percent == 0 && self.clients_are_active();
        (self.control.is_paused() || gives_way) && self.stopped().is_none()
    }

    /// Whether clients have made a request just now.
    pub(super) fn clients_are_active(&self) -> bool {
        self.clients.idle_for() < ACTIVE_FOR
    }

    /// Whether the current step must end at once.
    pub(super) fn is_urgent(&self) -> bool {
        self.control.is_stopped()
            || self.control.is_paused()
            || self.progress.is_cancelled()
            || self.stopped().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::progress::NoProgress;

    fn limited(max_time_ms: u64, max_io_bytes: u64) -> ReclaimOptions {
        ReclaimOptions { max_time_ms, max_io_bytes, ..ReclaimOptions::below(50) }
    }

    #[test]
    fn limits_end_a_run() {
        let (control, clients) = (ReclaimControl::default(), Activity::default());
        let pace = Pace::new(limited(0, 0), &control, &NoProgress, &clients);
        pace.spend(u64::MAX / 2);
        assert_eq!(pace.between_steps(), None, "without limits it goes on");
        assert_eq!(pace.io_left_bytes(), u64::MAX);
        let pace = Pace::new(limited(0, 100), &control, &NoProgress, &clients);
        pace.spend(99);
        assert_eq!((pace.between_steps(), pace.io_left_bytes()), (None, 1));
        pace.spend(1);
        assert_eq!((pace.between_steps(), pace.io_left_bytes()), (Some(Stopped::Io), 0));
        let pace = Pace::new(limited(1, 0), &control, &NoProgress, &clients);
        std::thread::sleep(Duration::from_millis(2));
        assert_eq!(pace.between_steps(), Some(Stopped::Time));
        control.stop();
        assert_eq!(pace.stopped(), Some(Stopped::Asked));
        control.close();
        assert_eq!(pace.stopped(), Some(Stopped::Unmounted));
    }

    #[test]
    fn a_share_is_rested_only_while_clients_are_active() {
        let (control, clients) = (ReclaimControl::default(), Activity::default());
        let options = ReclaimOptions { share_percent: 50, ..ReclaimOptions::below(50) };
        let pace = Pace::new(options, &control, &NoProgress, &clients);
        let worked = Duration::from_millis(20);
        std::thread::sleep(worked);
        pace.rest();
        assert_eq!(pace.waited(), Duration::ZERO, "nobody else is there");
        clients.note();
        std::thread::sleep(worked);
        pace.rest();
        assert!(pace.waited() >= worked, "as long as it worked: {:?}", pace.waited());
    }

    #[test]
    fn without_a_share_it_waits_until_clients_are_idle_or_it_is_stopped() {
        let (control, clients) = (ReclaimControl::default(), Activity::default());
        let options = ReclaimOptions { share_percent: 0, ..ReclaimOptions::below(50) };
        let pace = Pace::new(options, &control, &NoProgress, &clients);
        clients.note();
        pace.rest();
        assert!(pace.waited() >= ACTIVE_FOR, "{:?}", pace.waited());
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                clients.note();
                // It would rest without end, unless stopped.
                while !control.is_stopped() {
                    clients.note();
                    pace.rest();
                }
            });
            control.stop();
            waiting.join().unwrap();
        });
    }

    /// Claims are held between two pieces: without a share it would hold them until clients are idle.
    #[test]
    fn between_two_pieces_only_a_share_is_rested() {
        let (control, clients) = (ReclaimControl::default(), Activity::default());
        for (share_percent, rests) in [(0, false), (50, true)] {
            let options = ReclaimOptions { share_percent, ..ReclaimOptions::below(50) };
            let pace = Pace::new(options, &control, &NoProgress, &clients);
            std::thread::sleep(Duration::from_millis(5));
            clients.note();
            pace.between_pieces();
            assert_eq!(pace.waited() > Duration::ZERO, rests, "{share_percent} percent");
        }
    }

    #[test]
    fn a_pause_holds_it_until_it_is_resumed() {
        let (control, clients) = (ReclaimControl::default(), Activity::default());
        let pace = Pace::new(ReclaimOptions::below(50), &control, &NoProgress, &clients);
        control.pause(true);
        std::thread::scope(|scope| {
            let held = scope.spawn(|| pace.between_steps());
            while !held.is_finished() && pace.elapsed() < NAP * 3 {
                std::thread::yield_now();
            }
            assert!(!held.is_finished());
            control.pause(false);
            assert_eq!(held.join().unwrap(), None);
        });
        assert!(pace.waited() >= NAP);
    }
}
