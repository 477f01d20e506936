//! The order of tasks: which one goes on.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::time::Duration;

use shuttle::scheduler::{Schedule, Scheduler, Task, TaskId};

use super::state::{self, Habits, STALL_MAX};

/// The number of the task that lets time pass: the first that the main task spawns.
pub(super) const TIMEKEEPER: usize = 1;

/// Chooses by the world's seed.
#[derive(Debug)]
pub(super) struct Order {
    habits: Habits,
    has_begun: bool,
    /// Ranks of tasks; those that are missing are drawn when the task is met.
    ranks: HashMap<usize, u64, BuildHasherDefault<std::hash::DefaultHasher>>,
}

impl Order {
    pub(super) fn new() -> Self {
        Self { habits: state::habits(), has_begun: false, ranks: HashMap::default() }
    }

    fn one_in(number: u32) -> bool {
        number != 0 && state::random(u64::from(number)) == 0
    }
}

impl Scheduler for Order {
    fn new_execution(&mut self) -> Option<Schedule> {
        (!std::mem::replace(&mut self.has_begun, true)).then(|| Schedule::new(0))
    }

    fn next_task(&mut self, tasks: &[&Task], _: Option<TaskId>, _: bool) -> Option<TaskId> {
        state::pass(Duration::from_nanos(state::random(self.habits.step_ns)));
        let timekeeper = tasks.iter().find(|task| usize::from(task.id()) == TIMEKEEPER && task.runnable());
        let mut ready = tasks.iter().filter(|task| usize::from(task.id()) != TIMEKEEPER && task.runnable());
        let count = ready.clone().count();
        // A timer that has run out fires soon, and sometimes one that has not: a slow machine.
        let is_stalling = count > 0
            && state::until_timer().is_some_and(|time| {
                time.is_zero() && Self::one_in(4) || time <= STALL_MAX && Self::one_in(self.habits.stall_one_in)
            });
        let chosen = match timekeeper {
            Some(timekeeper) if count == 0 || is_stalling || state::is_killed() => Some(timekeeper),
            _ if self.habits.rerank_one_in == 0 => ready.nth(state::random(count as u64) as usize),
            _ => {
                if Self::one_in(self.habits.rerank_one_in) {
                    self.ranks.clear();
                }
                ready.max_by_key(|task| *self.ranks.entry(task.id().into()).or_insert_with(|| state::random(u64::MAX)))
            }
        }?;
        state::note(usize::from(chosen.id()) as u64);
        Some(chosen.id())
    }

    fn next_u64(&mut self) -> u64 {
        state::random(u64::MAX)
    }
}
