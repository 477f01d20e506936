//! Workload after workload on all cores, until enough crash points are verified.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::inspect::{Failure, Inspector, Point, Tally};
use crate::verdict::guarded;
use crate::workload::{Below, Workload};

/// Operations of a workload. Each workload begins with an empty pool and ends with a clean close.
const STEPS: u64 = 30;

/// When a run ends.
#[derive(Clone, Copy, Debug)]
pub enum Goal {
    Points(u64),
    Time(Duration),
}

/// Time between two lines of progress.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(30);

fn images() -> &'static Path {
    Path::new(env!("CARGO_TARGET_TMPDIR"))
}

/// Runs one workload with all its crash points.
fn workload(seed: u64, below: Option<Below<'_>>) -> Result<Tally, String> {
    let mut inspector = Inspector::new(seed, images(), None);
    let outcome = guarded(|| {
        let mut workload = Workload::new(seed, None, below);
        let told = |failure: Box<Failure>| failure.to_string();
        inspector.inspect(workload.develop()).map_err(told)?;
        for _ in 0..STEPS {
            workload.step();
            inspector.inspect(workload.develop()).map_err(told)?;
        }
        inspector.tally.images_by_map = workload.images_by_map;
        inspector.tally.images_by_name = workload.images_by_name;
        let camera = workload.close();
        inspector.inspect(camera.develop()).map_err(told)
    });
    inspector.tally.workloads = 1;
    outcome.map(|()| inspector.tally).map_err(|error| format!("seed {seed}: {error}"))
}

/// Runs workloads with the seeds from `first_seed` on.
pub fn run(first_seed: u64, goal: Goal, below: Option<Below<'_>>) -> Result<Tally, String> {
    let (next, total, failure) = (AtomicU64::new(first_seed), Mutex::new(Tally::default()), Mutex::new(None));
    let (started, told) = (Instant::now(), Mutex::new(Instant::now()));
    let is_enough = || match goal {
        Goal::Points(points) => total.lock().unwrap_or_else(PoisonError::into_inner).points >= points,
        Goal::Time(time) => started.elapsed() >= time,
    };
    let work = || {
        while !is_enough() && failure.lock().unwrap_or_else(PoisonError::into_inner).is_none() {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            match workload(seed, below) {
                Ok(tally) => {
                    let mut total = total.lock().unwrap_or_else(PoisonError::into_inner);
                    total.add(&tally);
                    let mut told = told.lock().unwrap_or_else(PoisonError::into_inner);
                    if told.elapsed() >= PROGRESS_INTERVAL {
                        *told = Instant::now();
                        println!("{} s, seed {seed}: {total}", started.elapsed().as_secs());
                    }
                }
                Err(error) => {
                    failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                }
            }
        }
    };
    let threads = std::thread::available_parallelism().map_or(2, std::num::NonZero::get);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(work);
        }
    });
    let total = total.into_inner().unwrap_or_else(PoisonError::into_inner);
    let last_seed = next.into_inner() - 1;
    println!("{} s, seeds {first_seed} to {last_seed}: {total}", started.elapsed().as_secs());
    failure.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(total), Err)
}

/// Repeats the work of `seed` with the one power loss of `point`. Returns whether the work reached that point.
pub fn again(seed: u64, point: &Point, below: Option<Below<'_>>) -> Result<bool, String> {
    let window = point.0.first().map(|(operation, _)| *operation..=*operation);
    let mut inspector = Inspector::new(seed, images(), Some(point.clone()));
    let told = |failure: Box<Failure>| failure.to_string();
    let mut workload = Workload::new(seed, window, below);
    inspector.inspect(workload.develop()).map_err(told)?;
    for _ in 0..STEPS {
        workload.step();
        inspector.inspect(workload.develop()).map_err(told)?;
    }
    let camera = workload.close();
    inspector.inspect(camera.develop()).map_err(told)?;
    Ok(inspector.tally.points >= point.0.len() as u64)
}
