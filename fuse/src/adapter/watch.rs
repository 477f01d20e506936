//! Looks out for the next request for a moment before the receiving thread sleeps in the kernel.
//!
//! A client of small requests sends one, sleeps until it is answered and sends the next. When the receiver sleeps in between, each
//! request wakes it, mostly on a core that has gone to sleep too, which takes longer than answering. So behind an answer it polls
//! the device, as drivers of fast disks and hypervisors (adaptive halt polling) do, and is there already.
//!
//! That pays only if the next request comes soon and the client does not need this very core to send it. [`Pace`] decides by
//! what was seen: requests must have come shortly behind answers, and each look in vain makes the next ones rarer. A mount that
//! nobody uses does not poll, and one that streams large requests hardly does.

use std::os::fd::OwnedFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::awake::Awake;

/// How long it looks at most.
const LOOK: Duration = Duration::from_micros(50);
/// A request that came so long behind the answer before it, with all the waking, might have come within [`LOOK`].
const SOON: Duration = Duration::from_micros(200);
/// Most answers behind which it does not look, after looking in vain.
const PAUSE_MAX: u32 = 1024;

/// The device of a session, and who polls it: one thread at a time.
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
    /// Where to look for requests, and what is told of their pace; without the one there is no looking, without the other no telling.
    pub(crate) fn set_source(&self, device: Option<OwnedFd>, awake: Option<Awake>) {
        // Set once, by the mount.
        let _ = self.source.set(Source { device, awake });
    }

    /// Returns when a request is there, or has not come in time. For a thread that is to receive it.
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

/// Whether a request (or the end of the session) is there before `deadline`.
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

/// What a receiver knows of how its requests come.
#[derive(Default, Debug)]
pub(super) struct Pace {
    answered: Option<Instant>,
    /// The last request came soon behind the answer before it.
    soon: bool,
    /// Answers behind which it does not look.
    pause: u32,
    /// So many will those be that follow the next look in vain; four times as many with each, and half with each success: looking
    /// goes on while it succeeds two times of three.
    pause_next: u32,
}

impl Pace {
    /// A request was received.
    pub(super) fn received(&mut self, now: Instant) {
        self.soon = self.answered.is_some_and(|answered| now.saturating_duration_since(answered) < SOON);
    }

    /// The thread may have slept since: nothing is known of when the next one comes.
    pub(super) fn slept(&mut self) {
        (self.answered, self.soon) = (None, false);
    }

    /// It was answered: whether to look for the next one.
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

    /// Looks out of `requests` that come `gap` behind the answer before, when each look finds one or not.
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
        // Nothing is known behind the first.
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
