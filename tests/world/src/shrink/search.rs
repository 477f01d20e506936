//! Shrinking: searches for a small plan that still fails.
//!
//! A changed plan changes the order of everything that follows. So a smaller plan that passes is tried again with other
//! seeds and with crashes at other operations, before it is given up.

use super::reductions::{Reduction, reductions};
use crate::dice::Dice;
use crate::plan::{Fate, Life, Plan};

/// Other seeds that each smaller plan is tried with.
const OTHER_SEEDS: u64 = 5;

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
}

impl<F: FnMut(&Plan) -> Option<String>> Search<F> {
    /// Goes from this plan to smaller ones, until no step is left that fails, or no try. Prints each step.
    pub fn shrink(&mut self, mut failing: Failing) -> Failing {
        // The plan's own seed shows cheaply the troubles that have no part in the failure.
        for other_seeds in [0, OTHER_SEEDS] {
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

    /// Tries the smaller plan with its seed and this many others.
    fn first_that_fails(&mut self, step: &Reduction, other_seeds: u64) -> Option<Failing> {
        for number in 0..=other_seeds {
            if self.tries >= self.tries_max {
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
            if let Some(failure) = (self.fails)(&plan) {
                return Some(Failing { plan, failure });
            }
        }
        None
    }
}

/// Lets each crash happen at another operation, earlier more often than later.
fn move_crashes(plan: &mut Plan) {
    let mut dice = Dice::new(plan.seed);
    for operation in plan.lives.iter_mut().filter_map(|life| life.fate.operation_mut()) {
        *operation = 1 + dice.below(*operation + *operation / 4);
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
        "{} lives, {} crashes, {} clients, {} files each, {} requests each, {} runs of tools, {} faults, {} bytes",
        plan.lives.len(),
        sum(|life| u64::from(life.fate != Fate::Closed)),
        plan.clients,
        plan.files,
        sum(|life| life.steps),
        sum(|life| life.reclaims + life.scrubs),
        sum(|life| life.faults.len() as u64),
        plan.file_bytes_max
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Shrinks a plan that fails if `is_bad` holds.
    fn shrunk(plan: Plan, tries_max: u64, is_bad: impl Fn(&Plan) -> bool) -> (Plan, u64) {
        let fails = |plan: &Plan| is_bad(plan).then(|| "is bad".to_owned());
        let mut search = Search { fails, tries: 0, tries_max };
        let failing = search.shrink(Failing { plan, failure: "is bad".to_owned() });
        (failing.plan, search.tries)
    }

    #[test]
    fn nothing_is_left_that_has_no_part_in_the_failure() {
        let is_bad = |plan: &Plan| plan.clients > 1 && plan.lives.iter().any(|life| life.reclaims > 2);
        for plan in (0..200).map(Plan::new).filter(is_bad) {
            let (small, _) = shrunk(plan, u64::MAX, is_bad);
            assert_eq!((small.clients, small.files, small.lives.len()), (2, 1, 1));
            let life = &small.lives[0];
            assert_eq!((life.reclaims, life.scrubs, life.steps, life.fate), (3, 0, 0, Fate::Closed));
            assert!(life.faults.is_empty() && life.capacity_bytes.is_none() && life.clock_jump_secs == 0);
        }
    }

    #[test]
    fn other_seeds_are_tried() {
        // One seed of two fails.
        let is_bad = |plan: &Plan| Dice::new(plan.seed ^ plan.clients << 40 ^ plan.files << 44).one_in(2);
        for plan in (0..200).map(Plan::new).filter(is_bad) {
            let (small, _) = shrunk(plan, u64::MAX, is_bad);
            assert!(small.lives.len() + small.clients as usize <= 2, "{small:?}");
        }
    }

    #[test]
    fn a_search_ends_with_its_tries() {
        let (_, tries) = shrunk(Plan::new(3), 20, |_| true);
        assert_eq!(tries, 20);
    }
}
