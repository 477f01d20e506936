//! Times by component: how often each was at work since a pool was opened, and for how long.
//!
//! 1. [`of`] begins a scope. Its end adds one and its time to the counter of its component.
//! 2. Scopes nest within a thread. Each counts only the time that no scope inside it counts, so that a sum counts nothing twice.
//! 3. A [`Mark`] tells the figures since it was made.
//!
//! The counters belong to the process, as a mount has one of its own: a pool sees the work of others that are open in the same
//! process. A scope that goes on is not counted yet.
//!
//! Times are of the clock: a thread that is ready while others have all cores counts as at work.
//!
//! Cost: two looks at the clock and two additions for each scope, about 0.1 us. So scopes are around batches, regions, segments and
//! requests, never around single chunks.

mod component;

use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use dedupfs_sync::clock::Instant;

pub use component::Component;

const COMPONENTS: usize = Component::ALL.len();

/// A counter in cache lines of its own: threads at work in different components do not disturb each other.
#[derive(Debug)]
#[repr(align(128))]
struct Counter {
    times: AtomicU64,
    total_ns: AtomicU64,
}

impl Counter {
    const fn new() -> Self {
        Self { times: AtomicU64::new(0), total_ns: AtomicU64::new(0) }
    }

    fn add(&self, time_ns: u64) {
        self.times.fetch_add(1, Ordering::Relaxed);
        self.total_ns.fetch_add(time_ns, Ordering::Relaxed);
    }

    fn read(&self) -> Figure {
        Figure { times: self.times.load(Ordering::Relaxed), total_ns: self.total_ns.load(Ordering::Relaxed) }
    }
}

static COUNTERS: [Counter; COMPONENTS] = [const { Counter::new() }; COMPONENTS];

dedupfs_sync::thread_local! {
    /// Time of the scopes that have ended within the innermost scope of this thread that goes on.
    static INNER_NS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// The work of a component.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Figure {
    /// Scopes that have ended.
    pub times: u64,
    /// Their time in nanoseconds, without scopes inside them, summed over all threads.
    pub total_ns: u64,
}

/// A scope that goes on. It ends on the thread on which it began.
#[derive(Debug)]
#[must_use = "dropping it ends the scope"]
pub struct Timed {
    component: Component,
    begun: Instant,
    /// Time of the scopes that had ended beside this one when it began.
    beside_ns: u64,
    _of_this_thread: PhantomData<*const ()>,
}

/// Begins a scope of `component`.
pub fn of(component: Component) -> Timed {
    let beside_ns = INNER_NS.get();
    INNER_NS.set(0);
    Timed { component, begun: Instant::now(), beside_ns, _of_this_thread: PhantomData }
}

impl Timed {
    /// Nanoseconds since its beginning, with scopes inside it.
    pub fn elapsed_ns(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}

impl Drop for Timed {
    fn drop(&mut self) {
        let whole_ns = self.elapsed_ns();
        let own_ns = whole_ns.saturating_sub(INNER_NS.get());
        INNER_NS.set(self.beside_ns.saturating_add(whole_ns));
        if let Some(counter) = COUNTERS.get(self.component as usize) {
            counter.add(own_ns);
        }
    }
}

/// A moment from which on figures count.
#[derive(Debug)]
pub struct Mark {
    begun: Instant,
    before: [Figure; COMPONENTS],
}

impl Mark {
    /// This moment.
    #[must_use]
    pub fn now() -> Self {
        Self { begun: Instant::now(), before: COUNTERS.each_ref().map(Counter::read) }
    }

    /// Time since then.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.begun.elapsed()
    }

    /// The work of each component since then.
    pub fn figures(&self) -> impl Iterator<Item = (Component, Figure)> {
        let since = |(counter, before): (&Counter, &Figure)| {
            let now = counter.read();
            Figure { times: now.times - before.times, total_ns: now.total_ns.saturating_sub(before.total_ns) }
        };
        Component::ALL.iter().copied().zip(COUNTERS.iter().zip(&self.before).map(since))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Other tests of this process count, too; these components are used by none of them.
    fn figure(mark: &Mark, of: Component) -> Figure {
        mark.figures().find(|(component, _)| *component == of).expect("is one of all").1
    }

    fn spin(time: Duration) {
        let begun = std::time::Instant::now();
        while begun.elapsed() < time {
            std::hint::spin_loop();
        }
    }

    #[test]
    fn threads_count_each_scope_once_and_no_more_than_their_time() {
        let (mark, threads) = (Mark::now(), 4);
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| (0..10_000).for_each(|_| drop(of(Component::Scrubbing))));
            }
        });
        let found = figure(&mark, Component::Scrubbing);
        assert_eq!(found.times, threads * 10_000);
        assert!(u128::from(found.total_ns) <= mark.elapsed().as_nanos() * u128::from(threads), "{found:?}");
    }

    #[test]
    fn a_scope_counts_no_time_of_those_inside_it() {
        let (mark, inner) = (Mark::now(), Duration::from_millis(20));
        {
            let outer = of(Component::Reclaiming);
            for component in [Component::Guides, Component::Rest] {
                let _middle = of(component);
                let _innermost = of(Component::Exporting);
                spin(inner);
            }
            assert!(outer.elapsed_ns() >= 2 * inner.as_nanos() as u64);
        }
        let all = mark.elapsed().as_nanos() as u64;
        let [outer, guides, rest, innermost] =
            [Component::Reclaiming, Component::Guides, Component::Rest, Component::Exporting]
                .map(|component| figure(&mark, component));
        assert_eq!([outer.times, guides.times, rest.times, innermost.times], [1, 1, 1, 2]);
        assert!(innermost.total_ns >= 2 * inner.as_nanos() as u64, "{innermost:?}");
        let sum = outer.total_ns + guides.total_ns + rest.total_ns + innermost.total_ns;
        assert!(sum <= all, "{outer:?}, {sum} of {all}");
    }

    #[test]
    fn names_differ_and_tell_waits_from_work() {
        let mut names: Vec<_> = Component::ALL.iter().map(|component| component.name()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), COMPONENTS);
        assert!(Component::ALL.iter().enumerate().all(|(at, component)| *component as usize == at));
        assert!(Component::StoreLock.is_wait() && Component::Rest.is_wait());
        assert!(!Component::Requests.is_wait() && !Component::Scrubbing.is_wait());
    }
}
