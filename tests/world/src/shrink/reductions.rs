//! Plans that are a step smaller than a plan: with less in it, or with quieter habits.

use std::fmt::Debug;
use std::time::Duration;

use crate::plan::{Fate, Life, Plan};

/// A smaller plan, with the step in words.
pub struct Reduction {
    pub words: String,
    pub plan: Plan,
}

/// Returns the steps that are possible, the large ones first. A chain of steps comes to an end.
pub fn reductions(plan: &Plan) -> Vec<Reduction> {
    let mut steps = Steps { of: plan, all: Vec::new() };
    for life in 0..plan.lives.len() {
        steps.add(format!("life {} is removed", life + 1), |plan| drop(plan.lives.remove(life)));
    }
    steps.add("the disks are without limit".to_owned(), |plan| {
        plan.lives.iter_mut().for_each(|life| (life.capacity_bytes, life.keeps_reserve) = (None, false));
    });
    steps.add("no bits flip".to_owned(), |plan| {
        plan.lives.iter_mut().for_each(|life| (life.flips, life.is_damaged) = (0, false));
    });
    steps.set("trees", false, |plan| &mut plan.with_trees);
    steps.set("links", false, |plan| &mut plan.with_links);
    steps.set("versions", false, |plan| &mut plan.with_versions);
    steps.set("cuts otherwise", false, |plan| &mut plan.cuts_otherwise);
    steps.set("hashes otherwise", false, |plan| &mut plan.hashes_otherwise);
    steps.set("uncompressed", false, |plan| &mut plan.is_uncompressed);
    steps.set("compares", false, |plan| &mut plan.compares);
    steps.number("clients", 1, |plan| &mut plan.clients);
    steps.number("files", 1, |plan| &mut plan.files);
    for life in 0..plan.lives.len() {
        steps.of_life(life);
    }
    steps.set("two disks", false, |plan| &mut plan.two_disks);
    steps.set("contents in fashion", false, |plan| &mut plan.in_fashion);
    steps.number("documents", 0, |plan| &mut plan.documents);
    steps.number("pieces of contents", 1, |plan| &mut plan.pieces);
    steps.number("bytes of a file at most", 1, |plan| &mut plan.file_bytes_max);
    steps.number("bytes of a write at most", 1, |plan| &mut plan.write_bytes_max);
    steps.all
}

/// Below this a number is tried with one less, too.
const SMALL: u64 = 64;
/// An interval in which rounds run when they are asked for, and seldom otherwise.
const LONG_INTERVAL: Duration = Duration::from_secs(10);
/// A task goes on for this many points, about: longer than seeds have it.
const SELDOM: u32 = 1 << 12;
/// Pauses come seldom, and are short.
const NO_PAUSE: (u64, u64) = (1 << 12, 0);

struct Steps<'a> {
    of: &'a Plan,
    all: Vec<Reduction>,
}

impl Steps<'_> {
    /// Adds a step, if it changes the plan.
    fn add(&mut self, words: String, change: impl FnOnce(&mut Plan)) {
        let mut plan = self.of.clone();
        change(&mut plan);
        if format!("{plan:?}") != format!("{:?}", self.of) {
            self.all.push(Reduction { words, plan });
        }
    }

    /// Adds the step that gives a field its quiet value.
    fn set<T: Debug>(&mut self, name: &str, quiet: T, field: impl Fn(&mut Plan) -> &mut T) {
        let mut plan = self.of.clone();
        let words = format!("{name}: {:?}, was {:?}", quiet, field(&mut plan));
        self.add(words, |plan| *field(plan) = quiet);
    }

    /// Adds steps that make a number smaller, down to `min`.
    fn number(&mut self, name: &str, min: u64, field: impl Fn(&mut Plan) -> &mut u64) {
        let now = *field(&mut self.of.clone());
        let less = if now <= SMALL { now.saturating_sub(1) } else { now / 8 * 7 };
        let mut smaller = vec![min, now / 4, now / 2, now / 4 * 3, less];
        smaller.retain(|number| (min..now).contains(number));
        smaller.sort_unstable();
        smaller.dedup();
        smaller.into_iter().for_each(|number| self.set(name, number, &field));
    }

    fn of_life(&mut self, life: usize) {
        let name = |field: &str| format!("life {}: {field}", life + 1);
        self.add(name("nothing disturbs it any more"), |plan| {
            let of = &mut plan.lives[life];
            *of = Life { fate: of.fate, steps: of.steps, loses_meta: of.loses_meta, ..still(of) };
        });
        self.add(name("quiet habits"), |plan| {
            let of = &mut plan.lives[life];
            of.habits = still(of).habits;
        });
        self.set(&name("reclaims"), 0, |plan| &mut plan.lives[life].reclaims);
        self.set(&name("scrubs"), 0, |plan| &mut plan.lives[life].scrubs);
        self.set(&name("looks"), 0, |plan| &mut plan.lives[life].looks);
        self.set(&name("controls"), 0, |plan| &mut plan.lives[life].controls);
        self.set(&name("reclaims with options"), false, |plan| &mut plan.lives[life].with_options);
        self.set(&name("read-only"), false, |plan| &mut plan.lives[life].is_read_only);
        self.set(&name("rebuilds"), false, |plan| &mut plan.lives[life].rebuilds);
        self.set(&name("closes early"), false, |plan| &mut plan.lives[life].closes_early);
        for fault in 0..self.of.lives[life].faults.len() {
            self.add(name(&format!("fault {} is removed", fault + 1)), |plan| {
                drop(plan.lives[life].faults.remove(fault));
            });
        }
        if !self.of.lives[life].keeps_reserve {
            self.set(&name("capacity"), None, |plan| &mut plan.lives[life].capacity_bytes);
        }
        self.set(&name("clock jump in seconds"), 0, |plan| &mut plan.lives[life].clock_jump_secs);
        self.set(&name("loses the meta root"), false, |plan| &mut plan.lives[life].loses_meta);
        self.set(&name("fate"), Fate::default(), |plan| &mut plan.lives[life].fate);
        if let Fate::PowerLost { operation } = self.of.lives[life].fate {
            self.set(&name("fate"), Fate::Killed { operation }, |plan| &mut plan.lives[life].fate);
        }
        self.set(&name("idle at the end"), Duration::ZERO, |plan| &mut plan.lives[life].idle);
        self.number(&name("requests of a client"), 0, |plan| &mut plan.lives[life].steps);
        self.number(&name("reclaims"), 0, |plan| &mut plan.lives[life].reclaims);
        self.number(&name("scrubs"), 0, |plan| &mut plan.lives[life].scrubs);
        self.number(&name("looks"), 0, |plan| &mut plan.lives[life].looks);
        self.number(&name("flipped bits"), 0, |plan| &mut plan.lives[life].flips);
        self.number(&name("device operation in ns"), 0, |plan| &mut plan.lives[life].device_ns);
        if self.of.lives[life].fate.is_crash() {
            self.number(&name("operation of the crash"), 1, |plan| {
                plan.lives[life].fate.operation_mut().expect("is a crash in every plan of these steps")
            });
        }
        for fault in 0..self.of.lives[life].faults.len() {
            let name = |field: &str| name(&format!("fault {}, {field}", fault + 1));
            self.set(&name("lasting"), false, |plan| &mut plan.lives[life].faults[fault].1.is_lasting);
            self.number(&name("position"), 0, |plan| &mut plan.lives[life].faults[fault].1.position);
        }
        self.habits(life, name);
    }

    fn habits(&mut self, life: usize, name: impl Fn(&str) -> String) {
        self.set(&name("stalls, one in"), 0, |plan| &mut plan.lives[life].habits.stall_one_in);
        self.set(&name("new ranks, one in"), 0, |plan| &mut plan.lives[life].habits.rerank_one_in);
        self.set(&name("lingers, one in"), 0, |plan| &mut plan.lives[life].habits.linger_one_in);
        self.set(&name("lingers last, one in"), 0, |plan| &mut plan.lives[life].habits.last_one_in);
        self.set(&name("processors"), 1, |plan| &mut plan.lives[life].habits.processors);
        self.set(&name("switches, one in"), SELDOM, |plan| &mut plan.lives[life].habits.switch_one_in);
        self.set(&name("interval of commits"), LONG_INTERVAL, |plan| &mut plan.lives[life].commit_interval);
        self.add(name("no pauses"), |plan| {
            let of = &mut plan.lives[life];
            (of.pause_one_in, of.pause_bits) = NO_PAUSE;
        });
    }
}

/// A life of the same kind that nothing disturbs.
fn still(life: &Life) -> Life {
    // Disks that were damaged, or have no room for others, stay so in all later lives.
    let Life { capacity_bytes, keeps_reserve, flips, is_damaged, .. } = *life;
    let capacity_bytes = capacity_bytes.filter(|_| keeps_reserve);
    let mut still = Life { capacity_bytes, keeps_reserve, flips, is_damaged, ..Life::default() };
    still.commit_interval = LONG_INTERVAL;
    (still.pause_one_in, still.pause_bits) = NO_PAUSE;
    let step_ns = life.habits.step_ns;
    still.habits = dedupfs_sync::world::Habits { switch_one_in: SELDOM, step_ns, processors: 1, ..still.habits };
    still
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_come_to_an_end() {
        for seed in 0..8 {
            let mut plan = Plan::new(seed);
            // The last step first: it is the smallest.
            let steps = std::iter::from_fn(|| {
                plan = reductions(&plan).pop()?.plan;
                Some(())
            });
            assert!(steps.take(5000).count() < 5000, "seed {seed} goes on");
        }
    }
}
