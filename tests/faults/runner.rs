//! Running many cases on all cores.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::case::Case;
use crate::scenario;
use crate::watch::{self, RUNNER, UnderWay};

/// Most failed cases in a report.
const TOLD_MAX: usize = 10;

/// Whether to run every case rather than a choice of them.
pub fn is_soak() -> bool {
    std::env::var_os("DEDUPFS_FAULTS_ALL").is_some()
}

fn run_one(case: &Case) -> Result<bool, String> {
    let _under_way = UnderWay::new(case.to_string());
    let outcome = catch_unwind(AssertUnwindSafe(|| scenario::run(case)));
    let panics = watch::take_panics();
    let failure = match outcome {
        Ok(has_struck) if panics.is_empty() => return Ok(has_struck),
        Ok(_) => format!("a background thread panicked (in this case or in one beside it): {}", panics.join("; ")),
        Err(payload) => {
            let text = payload.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("a panic without a text");
            format!("{text}{}", if panics.is_empty() { String::new() } else { format!(" (and {})", panics.join("; ")) })
        }
    };
    Err(format!("{failure}\n  {}", watch::command(&case.to_string())))
}

/// Runs all cases; returns how many faults struck.
///
/// # Panics
/// If a case fails. The message has a command for each failed case that runs it again.
pub fn run(cases: &[Case]) -> usize {
    watch::install();
    let (next, struck) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let failures = Mutex::new(Vec::new());
    let threads = std::thread::available_parallelism().map_or(2, std::num::NonZero::get);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            let run = || {
                while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    match run_one(case) {
                        Ok(has_struck) => drop(struck.fetch_add(usize::from(has_struck), Ordering::Relaxed)),
                        Err(failure) => failures.lock().unwrap().push(failure),
                    }
                }
            };
            std::thread::Builder::new().name(RUNNER.to_owned()).spawn_scoped(scope, run).expect("a thread starts");
        }
    });
    let failures = failures.into_inner().unwrap();
    let told = failures[..failures.len().min(TOLD_MAX)].join("\n");
    assert!(failures.is_empty(), "{} of {} cases fail:\n{told}", failures.len(), cases.len());
    struck.into_inner()
}
