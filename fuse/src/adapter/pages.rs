//! Drops stale pages from the kernel's cache after writes that go past it.
//!
//! While a direct write is on its way, another process may read the file through the page cache and fill pages with the old bytes. After a
//! synchronous direct write the kernel drops the pages of its range. After an asynchronous one it does not, and older kernels do so for
//! none. Then every reader would get the old bytes while the pages stay, in this open or a later one. So if the kernel may have pages of
//! the file, they are dropped here: after the write and before its answer. A page that is filled later has the new bytes. The kernel waits
//! for a page that is being filled and drops it then.
//!
//! Dropping pages waits for requests that fill or write pages, so nothing that these need may wait for it:
//!
//! - It happens on threads of its own: neither where requests are received, nor where reads are done.
//! - It delays only the answers of direct writes. During these the kernel holds no page; during the write of a page it does.
//! - The kernel sends a limited number of requests in the background (asynchronous writes, readahead) and holds back the others until those
//!   are answered. So at most [`HELD_MAX`] answers wait here, which is fewer. Further ones are given at once, and their pages are dropped
//!   as soon as possible afterwards.

use std::collections::HashMap;
use std::sync::Arc;

use super::offload::{Offload, THREADS_MAX};
use crate::sync::Mutex;

/// Limit of answers that wait until pages are dropped.
pub(super) const HELD_MAX: usize = 16;
const _: () = assert!(HELD_MAX <= THREADS_MAX && HELD_MAX * 2 <= super::BACKGROUND_REQUESTS_MAX as usize);

/// A range of a file in bytes: the first, and the one after the last.
pub(super) type Range = (u64, u64);

/// Drops that are under way or due.
#[derive(Default)]
struct Drops {
    held: usize,
    /// Pages to drop after their write was answered: one range for each file.
    late: HashMap<u64, Range>,
    is_late_running: bool,
}

#[derive(Clone, Default)]
pub(crate) struct Pages {
    drops: Arc<Mutex<Drops>>,
    threads: Arc<Offload>,
}

impl Pages {
    /// Drops the pages of `range` of a file with `invalidate`, then calls `answer`. Both run on another thread, except an `answer` beyond
    /// the limit, which runs here at once. `answer` must not wait for long.
    pub(super) fn drop_then(
        &self,
        ino: u64,
        range: Range,
        invalidate: impl Fn(u64, Range) + Send + 'static,
        answer: impl FnOnce() + Send + 'static,
    ) {
        let mut drops = self.drops.lock();
        if drops.held < HELD_MAX {
            drops.held += 1;
            drop(drops);
            let pages = self.clone();
            return self.threads.submit(move || {
                invalidate(ino, range);
                pages.drops.lock().held -= 1;
                answer();
            });
        }
        let late = drops.late.entry(ino).or_insert(range);
        *late = (late.0.min(range.0), late.1.max(range.1));
        let is_running = std::mem::replace(&mut drops.is_late_running, true);
        drop(drops);
        answer();
        if !is_running {
            let pages = self.clone();
            self.threads.submit(move || pages.drop_late(&invalidate));
        }
    }

    fn drop_late(&self, invalidate: &dyn Fn(u64, Range)) {
        loop {
            let mut drops = self.drops.lock();
            let Some(ino) = drops.late.keys().next().copied() else {
                drops.is_late_running = false;
                return;
            };
            let range = drops.late.remove(&ino);
            drop(drops);
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

    /// Invalidating that waits for permission, then reports its range.
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
        // Further writes are answered at once, and their ranges are combined.
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
        // The next answer waits again.
        submit(7, (1, 2));
        assert!(answers.try_recv().is_err());
        go.send(()).unwrap();
        pages.drain();
        assert_eq!(answers.try_recv(), Ok(7));
    }
}
