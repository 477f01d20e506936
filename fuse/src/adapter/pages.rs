//! Writes that go past the kernel's page cache leave no stale page there.
//!
//! While a direct write is on its way, somebody may read the file through the page cache and fill pages with the old bytes. Behind
//! a direct write that a thread waits for the kernel drops the pages of its range; behind an asynchronous one it does not, and older
//! kernels do it for none, so that the old bytes would be served for as long as the pages stay: to whoever reads next, in
//! this open or in a later one. So, if there may be pages of the file, they are dropped here: when the write is done and before it is answered.
//! A page that is filled later has the new bytes; one that is being filled is waited for by the kernel and dropped then.
//!
//! Who drops pages waits for requests that fill or write pages, so nothing that these need may wait for it:
//!
//! - It happens on threads of its own: neither where requests are received, nor where reads are done.
//! - Only direct writes are answered later because of it. On these the kernel holds no page; with the write of a page it does.
//! - The kernel sends so many requests in the background (asynchronous writes, reading ahead) and holds back the others until it is
//!   answered. So at most [`HELD_MAX`] answers wait here, fewer than those. Further ones are given at once, and their pages dropped as
//!   soon as possible behind them.

use std::collections::HashMap;
use std::sync::Arc;

use crate::sync::Mutex;

use super::offload::{Offload, THREADS_MAX};

/// Most answers that wait until pages are dropped.
pub(super) const HELD_MAX: usize = 16;
const _: () = assert!(HELD_MAX <= THREADS_MAX && HELD_MAX * 2 <= super::BACKGROUND_REQUESTS_MAX as usize);

/// A range of a file in bytes: first, and behind the last.
pub(super) type Range = (u64, u64);

#[derive(Default)]
struct State {
    /// Answers that wait.
    held: usize,
    /// What was answered before its pages were dropped: one range for each file.
    late: HashMap<u64, Range>,
    /// A thread drops those.
    is_late_running: bool,
}

/// Drops pages that writes made stale.
#[derive(Clone, Default)]
pub(crate) struct Pages {
    state: Arc<Mutex<State>>,
    threads: Arc<Offload>,
}

impl Pages {
    /// Has the pages of `range` of a file dropped by `invalidate`, and calls `answer` behind that. Both run on another thread, but for
    /// an `answer` that cannot wait; `answer` must not wait for long.
    pub(super) fn drop_then(
        &self,
        ino: u64,
        range: Range,
        invalidate: impl Fn(u64, Range) + Send + 'static,
        answer: impl FnOnce() + Send + 'static,
    ) {
        let mut state = self.state.lock();
        if state.held < HELD_MAX {
            state.held += 1;
            drop(state);
            let pages = self.clone();
            return self.threads.submit(move || {
                invalidate(ino, range);
                pages.state.lock().held -= 1;
                answer();
            });
        }
        let late = state.late.entry(ino).or_insert(range);
        *late = (late.0.min(range.0), late.1.max(range.1));
        let is_running = std::mem::replace(&mut state.is_late_running, true);
        drop(state);
        answer();
        if !is_running {
            let pages = self.clone();
            self.threads.submit(move || pages.drop_late(&invalidate));
        }
    }

    fn drop_late(&self, invalidate: &dyn Fn(u64, Range)) {
        loop {
            let mut state = self.state.lock();
            let Some(ino) = state.late.keys().next().copied() else {
                state.is_late_running = false;
                return;
            };
            let range = state.late.remove(&ino);
            drop(state);
            if let Some(range) = range {
                invalidate(ino, range);
            }
        }
    }

    /// Waits until nothing is left. No more may come.
    pub(super) fn drain(&self) {
        self.threads.drain();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;

    type Done = (u64, Range);

    /// Invalidating tells what it does and waits until it may go on.
    fn blocking(done: &Sender<Done>, go: &Arc<Mutex<Receiver<()>>>) -> impl Fn(u64, Range) + Send + 'static {
        let (done, go) = (done.clone(), Arc::clone(go));
        move |ino, range| {
            go.lock().recv().unwrap();
            done.send((ino, range)).unwrap();
        }
    }

    #[test]
    fn answers_wait_for_their_pages_and_too_many_do_not() {
        let pages = Pages::default();
        let ((done, seen), (go, gate), (answered, answers)) = (channel(), channel(), channel());
        let gate = Arc::new(Mutex::new(gate));
        let submit = |ino, range| {
            let answered = answered.clone();
            pages.drop_then(ino, range, blocking(&done, &gate), move || answered.send(ino).unwrap());
        };
        (0..HELD_MAX as u64).for_each(|ino| submit(ino, (0, 10)));
        std::thread::sleep(std::time::Duration::from_millis(50));
        assert!(answers.try_recv().is_err(), "answered before the pages were dropped");
        // Further ones are answered at once, and what is to be dropped is put together.
        for range in [(100, 200), (50, 60), (150, 300)] {
            submit(99, range);
            assert_eq!(answers.try_recv(), Ok(99));
        }
        for _ in 0..=HELD_MAX {
            go.send(()).unwrap();
        }
        pages.drain();
        let mut dropped: Vec<Done> = seen.try_iter().collect();
        dropped.sort_unstable();
        assert_eq!(dropped.pop(), Some((99, (50, 300))));
        assert_eq!(dropped, (0..HELD_MAX as u64).map(|ino| (ino, (0, 10))).collect::<Vec<_>>());
        assert_eq!(answers.try_iter().count(), HELD_MAX);
        // And the next waits again.
        submit(7, (1, 2));
        assert!(answers.try_recv().is_err());
        go.send(()).unwrap();
        pages.drain();
        assert_eq!(answers.try_recv(), Ok(7));
    }
}
