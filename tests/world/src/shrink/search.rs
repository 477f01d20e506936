//! Shrinking: searches for a small plan that still fails.
//!
//! A changed plan changes the order of everything that follows. So a smaller plan that passes is tried again with other
//! seeds and with crashes at other operations, before it is given up. A search that goes on with each plan that fails ends
//! with one that needs the luck of its seed, and passes after the next change of the engine. A *firm* one avoids that.

use super::reductions::{Reduction, reductions};
use crate::dice::Dice;
use crate::plan::{Life, Plan};

/// Other seeds that each smaller plan is tried with.
const OTHER_SEEDS: u64 = 5;
/// Seeds, of these and the plan's own, under which a firm search wants a plan to fail.
const FIRM_SEEDS: usize = 3;

/// A plan that fails, and how.
#[derive(Clone, Debug)]
pub struct Failing {
    pub plan: Plan,
    /// The failure in the words of the judge.
    pub failure: String,
}

/// A search. `fails` runs a plan, and returns its failure.
pub struct Search<F> {
    pub fails: F,
    pub tries: u64,
    pub tries_max: u64,
    /// Whether a smaller plan has to fail under several seeds.
    pub is_firm: bool,
}

impl<F: FnMut(&Plan) -> Option<String>> Search<F> {
    /// Goes from this plan to smaller ones, until no step is left that fails, or no try. Prints each step.
    pub fn shrink(&mut self, mut failing: Failing) -> Failing {
        // The plan's own seed shows cheaply the troubles that have no part in the failure; it is too lucky for a firm search.
        let phases = if self.is_firm { &[OTHER_SEEDS][..] } else { &[0, OTHER_SEEDS] };
        for &other_seeds in phases {
            let (mut at, mut passed_in_a_row) = (0, 0);
            loop {
                let steps = reductions(&failing.plan);
                if passed_in_a_row >= steps.len() || self.tries >= self.tries_max {
                    break;
                }
                let step = &steps[at % steps.len()];
                let Some(smaller) = self.first_that_fails(step, other_seeds) else {
                    at += 1;
                    passed_in_a_row += 1;
                    continue;
                };
                let seed = smaller.plan.seed;
                let seed = if seed == failing.plan.seed { String::new() } else { format!(", with seed {seed}") };
                println!("try {:>4}: {}{seed}", self.tries, step.words);
                if kind(&smaller.failure) != kind(&failing.failure) {
                    println!("          it fails in another way now: {}", first_line(&smaller.failure));
                }
                failing = smaller;
                passed_in_a_row = 0;
            }
        }
        failing
    }

    /// Tries the smaller plan with its seed and this many others. Returns the first that fails, if enough do.
    fn first_that_fails(&mut self, step: &Reduction, other_seeds: u64) -> Option<Failing> {
        let enough = if self.is_firm { FIRM_SEEDS } else { 1 };
        let mut failing = Vec::new();
        for number in 0..=other_seeds {
            let tries_left = (1 + other_seeds - number).min(self.tries_max - self.tries) as usize;
            if failing.len() + tries_left < enough {
                return None;
            }
            let mut plan = step.plan.clone();
            if number > 0 {
                // The number of the try: each seed is a new one, and the search happens the same way again.
                plan.seed = self.tries;
                if number % 2 == 0 {
                    move_crashes(&mut plan);
                }
            }
            self.tries += 1;
            failing.extend((self.fails)(&plan).map(|failure| Failing { plan, failure }));
            if failing.len() >= enough {
                return Some(failing.swap_remove(0));
            }
        }
        None
    }

    /// Returns under how many of this many other seeds the plan fails.
    pub fn others_that_fail(&mut self, plan: &Plan, others: u64) -> u64 {
        let seeds = (1..=others).map(|number| plan.seed.wrapping_add(number));
        let plans = seeds.map(|seed| Plan { seed, ..plan.clone() });
        plans.filter(|plan| (self.fails)(plan).is_some()).count() as u64
    }
}

/// Lets each crash happen at another operation, earlier more often than later.
fn move_crashes(plan: &mut Plan) {
    let mut dice = Dice::new(plan.seed);
    for operation in plan.lives.iter_mut().filter_map(|life| life.fate.operation_mut()) {
        // A crash behind all operations has the largest number.
        *operation = 1 + dice.below(operation.saturating_add(*operation / 4));
    }
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}

/// The first line of a failure without its numbers: these change with each plan.
fn kind(failure: &str) -> String {
    first_line(failure).split(|letter: char| letter.is_ascii_digit()).collect()
}

/// The size of a plan in a line.
pub fn size(plan: &Plan) -> String {
    let sum = |of: fn(&Life) -> u64| plan.lives.iter().map(of).sum::<u64>();
    format!(
        "lives: {}, crashes: {}, clients: {}, files of each: {}, requests of each: {}, runs of tools: {}, faults: {}, \
         bytes of a file: {}",
        plan.lives.len(),
        sum(|life| u64::from(life.fate.is_crash())),
        plan.clients,
        plan.files,
        sum(|life| life.steps),
        sum(|life| life.reclaims + life.scrubs + life.looks),
        sum(|life| life.faults.len() as u64),
        plan.file_bytes_max
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Fate;

    /// Shrinks a plan that fails if `is_bad` holds.
    fn shrunk(plan: Plan, tries_max: u64, is_firm: bool, is_bad: impl Fn(&Plan) -> bool) -> (Plan, u64) {
        let fails = |plan: &Plan| is_bad(plan).then(|| "is bad".to_owned());
        let mut search = Search { fails, tries: 0, tries_max, is_firm };
        let failing = search.shrink(Failing { plan, failure: "is bad".to_owned() });
        (failing.plan, search.tries)
    }

    #[test]
    fn nothing_is_left_that_has_no_part_in_the_failure() {
        let is_bad = |plan: &Plan| plan.clients > 1 && plan.lives.iter().any(|life| life.reclaims > 2);
        for plan in (0..40).map(Plan::new).filter(is_bad) {
            let (small, _) = shrunk(plan, u64::MAX, false, is_bad);
            assert_eq!((small.clients, small.files, small.lives.len()), (2, 1, 1));
            let life = &small.lives[0];
            assert_eq!((life.reclaims, life.scrubs, life.steps, life.fate), (3, 0, 0, Fate::default()));
            assert!(life.faults.is_empty() && life.capacity_bytes.is_none() && life.clock_jump_secs == 0);
        }
    }

    #[test]
    fn other_seeds_are_tried() {
        // One seed of two fails.
        let is_bad = |plan: &Plan| Dice::new(plan.seed ^ plan.clients << 40 ^ plan.files << 44).one_in(2);
        for plan in (0..40).map(Plan::new).filter(is_bad) {
            let (small, _) = shrunk(plan, u64::MAX, false, is_bad);
            assert!(small.lives.len() + small.clients as usize <= 2, "{small:?}");
        }
    }

    #[test]
    fn a_firm_search_does_not_end_with_a_lucky_seed() {
        // One client fails under one seed of twenty, several fail always.
        let is_bad = |plan: &Plan| plan.clients > 1 || Dice::new(plan.seed).one_in(20);
        let plans = || (0..200).map(Plan::new).filter(|plan| plan.clients > 1);
        let with_clients = |is_firm| {
            let small = plans().map(|plan| shrunk(plan, u64::MAX, is_firm, is_bad).0);
            small.filter(|plan| plan.clients > 1).count()
        };
        let (firm, lucky, all) = (with_clients(true), with_clients(false), plans().count());
        // A search that is not firm has some ten tries with one seed of twenty each. Three of five are one in a thousand.
        assert!(10 * firm >= 9 * all && 3 * lucky <= 2 * all, "firm {firm}, not firm {lucky}, of {all}");
    }

    #[test]
    fn regression_a_crash_behind_all_operations_can_be_moved() {
        let fate = Fate::Killed { operation: u64::MAX };
        let mut plan = Plan { lives: vec![Life { fate, ..Life::default() }], ..Plan::default() };
        move_crashes(&mut plan);
        assert!(plan.lives[0].fate.is_crash());
    }

    #[test]
    fn a_search_ends_with_its_tries() {
        let (_, tries) = shrunk(Plan::new(3), 5, false, |_| true);
        assert_eq!(tries, 5);
    }
}
