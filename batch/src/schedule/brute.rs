//! The best schedules, found by trying all: the measure of the others in tests.

use super::rounds::Rounds;
use super::{Cost, Job, Weight};

/// Jobs at most: the number of partitions of 8 jobs into rounds is 4,140.
pub const JOBS_MAX: usize = 8;

/// Returns the rounds that cost least of all, `None` for too many jobs.
pub fn rounds(jobs: &[Job], weight: Weight, secs: &dyn Fn(u64) -> f64) -> Option<(Rounds, Cost)> {
    if jobs.len() > JOBS_MAX {
        return None;
    }
    let mut least: Option<(Rounds, Cost)> = None;
    let mut round_of = vec![0; jobs.len()];
    loop {
        let count = round_of.iter().max().map_or(1, |last| last + 1);
        let rounds = Rounds { round_of: round_of.clone(), count };
        let cost = rounds.cost(jobs, secs);
        if least.as_ref().is_none_or(|(_, known)| weight.of(cost) < weight.of(*known)) {
            least = Some((rounds, cost));
        }
        if !next_partition(&mut round_of) {
            return least;
        }
    }
}

/// Goes on to the next partition: each number is at most one above the greatest before it.
fn next_partition(numbers: &mut [usize]) -> bool {
    for place in (1..numbers.len()).rev() {
        let (before, rest) = numbers.split_at_mut(place);
        let limit = before.iter().max().map_or(0, |last| last + 1);
        if let Some((number, behind)) = rest.split_first_mut()
            && *number < limit
        {
            *number += 1;
            behind.fill(0);
            return true;
        }
    }
    false
}

/// Returns the shortest time in which `readers` do jobs of these lengths, `None` for too many jobs.
#[must_use]
pub fn span_secs(jobs_secs: &[f64], readers: usize) -> Option<f64> {
    if jobs_secs.len() > JOBS_MAX {
        return None;
    }
    let mut reader_of = vec![0; jobs_secs.len()];
    let mut least = f64::INFINITY;
    loop {
        let mut sums = vec![0.0; readers.max(1)];
        for (reader, secs) in reader_of.iter().zip(jobs_secs) {
            sums.get_mut(*reader).into_iter().for_each(|sum: &mut f64| *sum += secs);
        }
        least = least.min(sums.into_iter().fold(0.0, f64::max));
        // Counts up in the system of that base.
        let Some(place) = reader_of.iter().position(|reader| reader + 1 < readers) else { return Some(least) };
        reader_of.iter_mut().take(place).for_each(|reader| *reader = 0);
        reader_of.get_mut(place).into_iter().for_each(|reader| *reader += 1);
    }
}
