//! One case, from a sound disk to the final verdict.

use crate::case::{Case, Scenario};
use crate::disks::Disks;
use crate::expected::Expected;
use crate::session::Session;
use crate::{verdict, versions, work};

/// Runs a case; returns whether its fault struck.
pub fn run(case: &Case) -> bool {
    match case.scenario {
        Scenario::Format => format(case),
        Scenario::Work | Scenario::Versions => work(case),
        Scenario::Rebuild => rebuild(case),
    }
}

/// Runs the scenario without a fault and returns the disks, which have counted the operations of each kind.
pub fn disks_after(case: &Case) -> Disks {
    let mut disks = start(case);
    disks.heal();
    match case.scenario {
        Scenario::Format => work::format(&disks).expect("formats"),
        Scenario::Work | Scenario::Versions => {
            drop(use_pool(case, &mut disks, &mut work::image(case.layout).expected.clone()))
        }
        Scenario::Rebuild => drop(disks.open(true).expect("rebuilds")),
    }
    disks
}

/// Returns the disks before the scenario, with the fault to come.
fn start(case: &Case) -> Disks {
    let disks = match case.scenario {
        Scenario::Format => Disks::empty(case.disks()),
        Scenario::Work | Scenario::Versions | Scenario::Rebuild => Disks::like(&work::image(case.layout).disks),
    };
    disks.add(case.disk, case.plan());
    disks
}

/// Makes a pool, or gets an error that says that there is none.
fn format(case: &Case) -> bool {
    let disks = start(case);
    match work::format(&disks) {
        Ok(()) => verdict::is_whole_and_usable(&disks.power_loss(0), &mut Expected::default()),
        Err(error) => {
            work::check_message(&error);
            assert!(disks.injected() > 0, "nothing failed: {error}");
            disks.heal();
            // Afterwards there is no pool and the error says so, or there is one that only could not be made durable.
            match disks.open(false) {
                Ok(pool) => drop(pool),
                Err(error) => work::check_message(&error),
            }
        }
    }
    disks.injected() > 0
}

fn use_pool(case: &Case, disks: &mut Disks, expected: &mut Expected) -> std::sync::Arc<dedupfs::Pool> {
    let pool = work::open(case, disks, false);
    expected.reopened();
    let mut session = Session::new(pool.clone(), expected);
    match case.scenario {
        Scenario::Versions => versions::work(&mut session),
        _ => work::work(&mut session),
    }
    verdict::goes_on_or_says_why(case, disks, &mut session);
    match pool.close() {
        Ok(()) => session.expected.synced_all(),
        Err(error) => {
            work::check_message(&error);
            assert!(disks.injected() > 0, "nothing failed: {error}");
        }
    }
    drop(session);
    drop(pool);
    let pool = work::open(case, disks, false);
    expected.reopened();
    let mut session = Session::new(pool.clone(), expected);
    match case.scenario {
        Scenario::Versions => versions::work_again(&mut session),
        _ => work::work_again(&mut session),
    }
    verdict::goes_on_or_says_why(case, disks, &mut session);
    pool
}

/// Uses the pool, closes it, opens it and uses it again.
fn work(case: &Case) -> bool {
    let mut disks = start(case);
    let mut expected = work::image(case.layout).expected.clone();
    let pool = use_pool(case, &mut disks, &mut expected);
    let has_struck = disks.injected() > 0;
    let left = verdict::after(case, &mut disks, pool, &mut expected);
    verdict::is_whole_and_usable(&left, &mut expected);
    has_struck
}

/// Rebuilds the index.
fn rebuild(case: &Case) -> bool {
    let mut disks = start(case);
    let mut expected = work::image(case.layout).expected.clone();
    let pool = work::open(case, &mut disks, true);
    expected.reopened();
    let mut session = Session::new(pool.clone(), &mut expected);
    verdict::goes_on_or_says_why(case, &disks, &mut session);
    drop(session);
    let has_struck = disks.injected() > 0;
    let left = verdict::after(case, &mut disks, pool, &mut expected);
    verdict::is_whole_and_usable(&left, &mut expected);
    has_struck
}
