//! Polls for the next request for a moment before the receiving thread sleeps in the kernel.
//!
//! A client of small requests sends one, sleeps until it is answered, and sends the next. If the receiver sleeps in between, each request
//! wakes it, mostly on a core that has gone to sleep too. That takes longer than answering. So after an answer the receiver polls the
//! device, as drivers of fast disks and hypervisors (adaptive halt polling) do.
//!
//! Polling pays only if the next request comes soon and the client does not need this very core to send it. [`Pace`] decides by experience:
//! requests must have come shortly after answers, and each look in vain makes the next looks rarer. An idle mount does not poll, and one
//! that streams large requests hardly does.

use std::os::fd::OwnedFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::awake::Awake;

const LOOK: Duration = Duration::from_micros(50);
/// A request that came within this time of the last answer, including all waking, might have come within [`LOOK`].
const SOON: Duration = Duration::from_micros(200);
/// Limit of answers that are not followed by a look, after looking in vain.
const PAUSE_MAX: u32 = 1024;

/// The device of a session. One thread at a time polls it.
#[derive(Default)]
pub(crate) struct Watch {
    source: OnceLock<Source>,
    polling: AtomicBool,
}

struct Source {
    device: Option<OwnedFd>,
    awake: Option<Awake>,
}

impl Watch {
    /// Sets the device to poll and the receiver of the pace. Without the device nothing is polled; without the other nothing is noted.
    pub(crate) fn set_source(&self, device: Option<OwnedFd>, awake: Option<Awake>) {
        // Set once, by the mount.
        let _ = self.source.set(Source { device, awake });
    }

    /// Polls until a request is there, or for the longest look. Called by a thread that is to receive it.
    pub(super) fn look(&self, pace: &mut Pace) {
        let Some(source) = self.source.get() else { return };
        let now = Instant::now();
        if let Some(awake) = source.awake.as_ref().filter(|_| pace.soon) {
            awake.note(now);
        }
        let is_wanted = pace.answered(now);
        let Some(device) = source.device.as_ref().filter(|_| is_wanted) else { return };
        if self.polling.swap(true, Ordering::Relaxed) {
            return;
        }
        let found = poll_until(device, now + LOOK);
        self.polling.store(false, Ordering::Relaxed);
        pace.looked(found);
    }
}

/// Whether a request (or the end of the session) comes before `deadline`.
fn poll_until(device: &OwnedFd, deadline: Instant) -> bool {
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    let mut devices = [PollFd::new(device, PollFlags::IN)];
    loop {
        match poll(&mut devices, Some(&at_once)) {
            Ok(0) if Instant::now() < deadline => std::hint::spin_loop(),
            Ok(ready) => return ready > 0,
            Err(_) => return false,
        }
    }
}

/// A receiver's knowledge of the pace of requests.
#[derive(Default, Debug)]
pub(super) struct Pace {
    answered: Option<Instant>,
    soon: bool,
    /// Answers left that are not followed by a look.
    pause: u32,
    /// Answers without a look after the next look in vain. Each look in vain multiplies it by four, each success halves it. So looking goes
    /// on while two of three looks succeed.
    pause_next: u32,
}

impl Pace {
    pub(super) fn received(&mut self, now: Instant) {
        self.soon = self.answered.is_some_and(|answered| now.saturating_duration_since(answered) < SOON);
    }

    /// Notes that the thread may have slept: the time of the next request cannot be predicted.
    pub(super) fn slept(&mut self) {
        (self.answered, self.soon) = (None, false);
    }

    /// Notes that a request was answered; returns whether to look for the next one.
    fn answered(&mut self, now: Instant) -> bool {
        self.answered = Some(now);
        if self.soon && self.pause > 0 {
            self.pause -= 1;
            return false;
        }
        self.soon
    }

    fn looked(&mut self, found: bool) {
        if found {
            self.pause_next /= 2;
        } else {
            self.pause = self.pause_next.max(1);
            self.pause_next = (self.pause * 4).min(PAUSE_MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts the looks during `requests` that come `gap` after the last answer. `found` gives the result of each look.
    fn looks(pace: &mut Pace, requests: u32, gap: Duration, mut found: impl FnMut(u32) -> bool) -> u32 {
        let (mut now, mut looks) = (Instant::now(), 0);
        for _ in 0..requests {
            now += gap;
            pace.received(now);
            if pace.answered(now) {
                looks += 1;
                pace.looked(found(looks));
            }
        }
        looks
    }

    #[test]
    fn requests_that_come_soon_are_looked_for_and_others_are_not() {
        let mut pace = Pace::default();
        assert_eq!(looks(&mut pace, 1000, SOON, |_| true), 0, "too far apart");
        // Before the first answer nothing is known.
        assert_eq!(looks(&mut Pace::default(), 1000, SOON / 2, |_| true), 999);
    }

    #[test]
    fn looking_in_vain_becomes_rare_and_comes_back() {
        let mut pace = Pace::default();
        let in_vain = looks(&mut pace, 100_000, SOON / 2, |_| false);
        assert!((90..=110).contains(&in_vain), "{in_vain}");
        let successful = looks(&mut pace, 100_000, SOON / 2, |_| true);
        assert!(successful > 98_000, "{successful}");
    }

    #[test]
    fn looking_goes_on_while_most_looks_succeed() {
        let nine_of_ten = looks(&mut Pace::default(), 100_000, SOON / 2, |look| look % 10 != 0);
        assert!(nine_of_ten > 80_000, "{nine_of_ten}");
        let one_of_two = looks(&mut Pace::default(), 100_000, SOON / 2, |look| look % 2 != 0);
        assert!(one_of_two < 1_000, "{one_of_two}");
    }

    #[test]
    fn what_is_there_is_seen_and_waiting_for_it_ends() {
        let (reader, mut writer) = std::io::pipe().unwrap();
        let reader = OwnedFd::from(reader);
        assert!(!poll_until(&reader, Instant::now() + LOOK));
        std::io::Write::write_all(&mut writer, b"request").unwrap();
        assert!(poll_until(&reader, Instant::now()));
    }
}
