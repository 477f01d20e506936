//! The state of the running world: one for each thread of the system.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::wait::Waiter;
use crate::canary::Canary;
use crate::step::Step;

/// How the world's machine behaves; each seed chooses.
#[derive(Clone, Copy, Debug)]
pub struct Habits {
    /// One of this many points of a task is a chance for another task.
    pub switch_one_in: u32,
    /// Time that passes between two chances at most, in nanoseconds.
    pub step_ns: u64,
    /// One of this many choices lets time pass to the next timer though tasks could go on: the machine is slow. 0: never.
    pub stall_one_in: u32,
    /// Tasks have ranks, and the highest goes on; ranks change at one of this many choices. 0: any task may go on.
    pub rerank_one_in: u32,
    /// One of this many steps that must be whole takes long. 0: none.
    pub linger_one_in: u32,
    /// The process is killed within one of this many steps that take long and are a `last_step`. 0: none.
    pub last_one_in: u32,
    /// A [`Step`](crate::step::Step), by its number.
    pub last_step: Step,
    /// Processors that the engine sees.
    pub processors: usize,
}

impl Default for Habits {
    fn default() -> Self {
        Self {
            switch_one_in: 4,
            step_ns: 2_000,
            stall_one_in: 0,
            rerank_one_in: 0,
            linger_one_in: 0,
            last_one_in: 0,
            last_step: Step::default(),
            processors: 2,
        }
    }
}

/// Longest time that passes at once while tasks could go on: a machine stalls for a while, not for hours.
pub(super) const STALL_MAX: Duration = Duration::from_millis(100);

#[derive(Default)]
struct State {
    habits: Habits,
    /// The state of the generator that tasks draw from.
    random: u64,
    now: Duration,
    timers: BTreeMap<(Duration, u64), Arc<Waiter>>,
    timer_number: u64,
    /// Times until which something must have ended, with a name for it.
    deadlines: BTreeMap<(Duration, u64), &'static str>,
    /// Number of the life.
    life: u64,
    /// Depth of [`super::primitives::atomically`]. No other task goes on inside, so all tasks share it.
    atomic: u32,
    /// Tasks that have begun and not ended, besides the main one and the timekeeper.
    threads: u32,
    killed: bool,
    /// Whether the main task has returned.
    returned: bool,
    /// The words of the last panic, for [`super::End::Failed`].
    reason: Option<String>,
    /// Everything that was noted so far, as one number.
    hash: u64,
    /// Seconds by which the clock on the wall is wrong.
    clock_error_secs: i64,
}

thread_local! {
    static PLANTED: Cell<Option<Canary>> = const { Cell::new(None) };
    static RUNNING: Cell<bool> = const { Cell::new(false) };
    static STATE: RefCell<State> = RefCell::default();
}

/// Plants a mistake in the worlds of the calling thread.
pub fn plant(canary: Option<Canary>) {
    PLANTED.set(canary);
}

/// Whether this world makes the mistake.
#[must_use]
pub fn is_planted(canary: Canary) -> bool {
    in_world() && PLANTED.get() == Some(canary)
}

fn with<T>(act: impl FnOnce(&mut State) -> T) -> T {
    STATE.with_borrow_mut(act)
}

/// The generator of xorshift64*: quick, and good enough to choose.
fn next(random: &mut u64) -> u64 {
    *random ^= *random >> 12;
    *random ^= *random << 25;
    *random ^= *random >> 27;
    random.wrapping_mul(0x2545_f491_4f6c_dd1d)
}

/// Begins a life. Time and hash go on from the life before.
pub(super) fn begin(seed: u64, habits: Habits) {
    with(|state| {
        let (now, hash, life) = (state.now, state.hash, state.life + 1);
        // Never 0, and different for neighbouring seeds.
        let random = (seed ^ 0x9e37_79b9_7f4a_7c15).wrapping_mul(0xd129_0d3a_9b4e_8f03) | 1;
        *state = State { habits, random, now, hash, life, ..State::default() };
    });
    RUNNING.set(true);
}

/// Ends a life; returns whether it was killed.
pub(super) fn end() -> bool {
    RUNNING.set(false);
    with(|state| {
        // Waiters are tasks of the life that ended.
        std::mem::forget(std::mem::take(&mut state.timers));
        state.killed
    })
}

pub(super) fn take_reason() -> Option<String> {
    with(|state| state.reason.take())
}

pub(super) fn give_reason(reason: String) {
    with(|state| state.reason = Some(reason));
}

/// Whether the caller is a task of a world.
pub(super) fn in_world() -> bool {
    RUNNING.get()
}

pub(super) fn is_killed() -> bool {
    with(|state| state.killed)
}

pub(super) fn habits() -> Habits {
    with(|state| state.habits)
}

/// Time since the first life began.
#[must_use]
pub fn now() -> Duration {
    with(|state| state.now)
}

/// Lets time pass.
pub fn pass(time: Duration) {
    with(|state| state.now += time);
}

/// Sets the clock on the wall, in seconds from the right time.
pub fn set_clock_error(secs: i64) {
    with(|state| state.clock_error_secs = secs);
}

/// Time since 1970 as the clock on the wall shows it.
pub(super) fn on_the_wall(epoch: Duration) -> Duration {
    with(|state| {
        let right = epoch + state.now;
        let error = Duration::from_secs(state.clock_error_secs.unsigned_abs());
        if state.clock_error_secs < 0 { right.saturating_sub(error) } else { right + error }
    })
}

/// A random number below `below`; 0 if that is 0.
#[must_use]
pub fn random(below: u64) -> u64 {
    let drawn = with(|state| next(&mut state.random)) >> 11;
    if below == 0 { 0 } else { drawn % below }
}

/// Adds something that happened to the hash of everything that happened.
pub fn note(what: u64) {
    with(|state| state.hash = (state.hash.rotate_left(5) ^ what).wrapping_mul(0x517c_c1b7_2722_0a95));
}

/// The hash of everything noted so far.
#[must_use]
pub fn hash() -> u64 {
    with(|state| state.hash)
}

/// The numbers of the life and of the calling task.
pub(super) fn task() -> (u64, usize) {
    if in_world() {
        (with(|state| state.life), shuttle::current::get_current_task().map_or(usize::MAX, usize::from))
    } else {
        (0, usize::MAX)
    }
}

/// Number of threads of the engine that have not ended.
#[must_use]
pub fn threads() -> u32 {
    with(|state| state.threads)
}

pub(super) fn count_thread(begins: bool) {
    with(|state| state.threads = if begins { state.threads + 1 } else { state.threads - 1 });
}

/// A place where another task may go on.
pub fn point() {
    // A task that unwinds goes on: its panic may be caught.
    if !in_world() || std::thread::panicking() {
        return;
    }
    let switches = with(|state| {
        // Of 31 random bits, without a division.
        let drawn = next(&mut state.random) >> 33;
        state.atomic == 0 && drawn * u64::from(state.habits.switch_one_in) < 1 << 31
    });
    if switches {
        shuttle::thread::yield_now();
    }
}

/// Gives other tasks a chance for certain.
pub(super) fn yield_now() {
    if with(|state| state.atomic == 0) {
        shuttle::thread::yield_now();
    }
}

/// Ends the life now: no destructor runs, as if the process had been killed. Never returns.
pub fn kill() -> ! {
    assert!(in_world(), "nothing to kill");
    with(|state| state.killed = true);
    loop {
        // The timekeeper goes on, and ends the execution.
        shuttle::thread::yield_now();
    }
}

/// Notes that the main task returns.
pub(super) fn set_returned() {
    with(|state| state.returned = true);
}

/// Whether nothing is left that could go on.
pub(super) fn is_over() -> bool {
    with(|state| state.returned && state.threads == 0)
}

/// Enters or leaves an atomic step.
pub(super) fn atomic(enters: bool) {
    with(|state| state.atomic = if enters { state.atomic + 1 } else { state.atomic.saturating_sub(1) });
}

/// Whether the caller is in an atomic step, where it cannot wait.
#[must_use]
pub fn is_atomic() -> bool {
    with(|state| state.atomic != 0)
}

/// Wakes the waiter after this time.
pub(super) fn set_timer(after: Duration, waiter: Arc<Waiter>) {
    with(|state| {
        let due = state.now.saturating_add(after);
        state.timer_number += 1;
        state.timers.insert((due, state.timer_number), waiter);
    });
}

/// Takes the next timer whose waiter still waits, and lets the time pass until then.
///
/// # Panics
/// If something has not ended within its time, and no task could go on until then.
pub(super) fn next_timer() -> Option<Arc<Waiter>> {
    let (waiter, missed) = with(|state| {
        while let Some(((due, _), waiter)) = state.timers.pop_first() {
            if !waiter.is_woken() {
                state.now = state.now.max(due);
                let missed = state.deadlines.first_key_value().filter(|((until, _), _)| *until < state.now);
                return (Some(waiter), missed.map(|(_, what)| *what));
            }
        }
        (None, None)
    });
    if let Some(what) = missed {
        panic!("{what} does not end in time");
    }
    waiter
}

/// Does what must end within this time. The world fails if it ends later, or not at all.
///
/// # Panics
/// If it ended later.
pub fn within<T>(limit: Duration, what: &'static str, act: impl FnOnce() -> T) -> T {
    let key = with(|state| {
        state.timer_number += 1;
        let key = (state.now.saturating_add(limit), state.timer_number);
        state.deadlines.insert(key, what);
        key
    });
    let outcome = act();
    let late = with(|state| {
        state.deadlines.remove(&key);
        state.now.saturating_sub(key.0)
    });
    assert!(late.is_zero(), "{what} takes {late:?} more than {limit:?}");
    outcome
}

/// Time until the first timer runs out; `None`: no task waits for a time.
pub(super) fn until_timer() -> Option<Duration> {
    with(|state| {
        while let Some(first) = state.timers.first_entry() {
            if !first.get().is_woken() {
                return Some(first.key().0.saturating_sub(state.now));
            }
            first.remove();
        }
        None
    })
}
