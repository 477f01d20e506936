//! A night: the readers of each host take one unit after the other.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use dedupfs::Progress;
use dedupfs_batch::plan::{AtEnd, Plan};
use dedupfs_batch::schedule::Job;
use dedupfs_batch::schedule::lists;

use super::disk::State;
use super::order::Order;
use super::report::{DiskReport, Outcome};
use super::unit;
use crate::staged::rule::Choice;
use crate::versions::Directory;

/// Time between two looks whether the batch goes on.
const STEP: Duration = Duration::from_millis(100);

/// The limits of a batch: its window, and signals.
pub(super) struct Limits<'a> {
    plan: &'a Plan,
    ignores_window: bool,
    /// Which disks are detected in stages.
    pub(super) staged: Choice,
    progress: &'a dyn Progress,
}

impl Limits<'_> {
    /// Returns why no further disk may be begun.
    pub(super) fn reason_to_begin_none(&self) -> Option<String> {
        if self.progress.is_cancelled() {
            return Some("interrupted".to_owned());
        }
        let window = self.plan.window.as_ref().filter(|_| !self.ignores_window)?;
        let is_outside = !window.has(jiff::Zoned::now().time());
        is_outside.then(|| format!("the time is outside of the window {window}: --now begins disks at any time"))
    }

    /// Waits, unless no further disk may be begun. Returns whether one may.
    pub(super) fn wait(&self, time: Duration) -> bool {
        let begun = Instant::now();
        while self.reason_to_begin_none().is_none() {
            match time.checked_sub(begun.elapsed()) {
                Some(left) if !left.is_zero() => std::thread::sleep(left.min(STEP)),
                _ => return true,
            }
        }
        false
    }

    /// Whether a disk that is read is to be given up.
    pub(super) fn gives_up(&self) -> bool {
        self.progress.is_cancelled() || self.has_stopped()
    }

    /// Whether the window has ended, and with it the disks that are read.
    pub(super) fn has_stopped(&self) -> bool {
        let stops = self.plan.window.as_ref().is_some_and(|window| window.at_end == AtEnd::Stop);
        stops && !self.progress.is_cancelled() && self.reason_to_begin_none().is_some()
    }
}

/// Units at once, of all hosts together: the daemon serves 16 tools, and each put has its part of the memory plan.
pub(super) const AT_ONCE_MAX: usize = 8;

/// Lets so many units work at once, in the order in which they came.
struct Turnstile {
    line: Mutex<Line>,
    moved: Condvar,
}

struct Line {
    free: usize,
    /// The number of the next that comes, and of the next that may pass.
    next: u64,
    first: u64,
}

impl Turnstile {
    fn new(at_once: usize) -> Self {
        Self { line: Mutex::new(Line { free: at_once, next: 0, first: 0 }), moved: Condvar::new() }
    }

    fn pass<T>(&self, work: impl FnOnce() -> T) -> T {
        let mut line = self.line.lock().unwrap_or_else(PoisonError::into_inner);
        let own = line.next;
        line.next += 1;
        let must_wait = |line: &mut Line| line.free == 0 || line.first != own;
        let mut line = self.moved.wait_while(line, must_wait).unwrap_or_else(PoisonError::into_inner);
        line.free -= 1;
        line.first += 1;
        drop(line);
        self.moved.notify_all();
        let done = work();
        self.line.lock().unwrap_or_else(PoisonError::into_inner).free += 1;
        self.moved.notify_all();
        done
    }
}

/// Backs up the disks, and returns the outcome of each, in the order of the plan.
pub(super) fn run(
    plan: &Plan,
    pool: &Directory,
    states: &[State],
    order: &Order,
    (ignores_window, staged): (bool, Choice),
    progress: &dyn Progress,
) -> Vec<DiskReport> {
    let limits = Limits { plan, ignores_window, staged, progress };
    let of_host = |host: usize| {
        let units = order.units.iter().enumerate().map(|(number, unit)| (number, unit.job));
        units.filter(|(_, job)| job.host == host).collect::<Vec<(usize, Job)>>()
    };
    let queues: Vec<Mutex<Vec<(usize, Job)>>> = (0..plan.hosts.len()).map(|host| Mutex::new(of_host(host))).collect();
    let done: Mutex<Vec<(usize, DiskReport)>> = Mutex::new(Vec::new());
    let turnstile = Turnstile::new(AT_ONCE_MAX);
    let work = |host: usize, reader: usize| {
        let take = || {
            let mut waiting = queues.get(host)?.lock().ok()?;
            let deadlines_first = order.timetable.deadlines_first.get(host).copied().unwrap_or(false);
            let place = lists::next(&waiting, reader, plan.order, deadlines_first)?;
            Some(waiting.swap_remove(place).0)
        };
        while let Some(unit) = take().and_then(|number| order.units.get(number)) {
            let own: Vec<&State> = unit.disks.iter().filter_map(|place| states.get(*place)).collect();
            // The window may end while it waits.
            let reports = turnstile.pass(|| match limits.reason_to_begin_none() {
                Some(why) => {
                    own.iter().map(|state| DiskReport::new(plan, state, Outcome::NotBegun, Some(why.clone()))).collect()
                }
                None => unit::run(plan, pool, &own, &limits),
            });
            if let Ok(mut done) = done.lock() {
                done.extend(unit.disks.iter().copied().zip(reports));
            }
        }
    };
    std::thread::scope(|scope| {
        for (host, readers) in plan.hosts.iter().map(|host| host.readers).enumerate() {
            let units = queues.get(host).and_then(|queue| queue.lock().ok().map(|queue| queue.len())).unwrap_or(0);
            for reader in 0..readers.min(units) {
                let work = &work;
                scope.spawn(move || work(host, reader));
            }
        }
    });
    let mut done = done.into_inner().unwrap_or_default();
    done.sort_by_key(|(place, _)| *place);
    done.into_iter().map(|(_, report)| report).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use super::*;

    #[test]
    fn no_more_units_than_the_limit_work_at_once_and_all_have_their_turn() {
        let (turnstile, inside, most, passed) =
            (Turnstile::new(3), AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..20 {
                scope.spawn(|| {
                    turnstile.pass(|| {
                        most.fetch_max(inside.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                        std::thread::sleep(Duration::from_millis(5));
                        inside.fetch_sub(1, Ordering::SeqCst);
                        passed.fetch_add(1, Ordering::SeqCst);
                    });
                });
            }
        });
        assert!((1..=3).contains(&most.into_inner()));
        assert_eq!(passed.into_inner(), 20);
    }

    /// A reader that had just worked took the place that it left, and the others waited for all of its disks.
    #[test]
    fn regression_nobody_passes_by_one_that_waits() {
        let turnstile = Turnstile::new(1);
        let order = Mutex::new(Vec::new());
        let come = || turnstile.line.lock().unwrap().next;
        std::thread::scope(|scope| {
            let work = |name: usize, units: usize| {
                for _ in 0..units {
                    turnstile.pass(|| {
                        order.lock().unwrap().push(name);
                        // Until the other waits.
                        while come() < 2 {
                            std::thread::yield_now();
                        }
                    });
                }
            };
            scope.spawn(move || work(1, 4));
            while come() < 1 {
                std::thread::yield_now();
            }
            scope.spawn(move || work(2, 1));
        });
        assert_eq!(order.into_inner().unwrap()[..2], [1, 2]);
    }
}
