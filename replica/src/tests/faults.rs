//! Requests that fail: a replica has the last commit or the next one, and the next run goes on.

use dedupfs_store::objects::faulty::{Fault, FaultPlan, Request};

use super::site::{Picture, Site};
use crate::ReplicaError;

const FAULTS: [Fault; 7] =
    [Fault::Lost, Fault::AnswerLost, Fault::Late(1), Fault::Late(1000), Fault::Twice, Fault::Full, Fault::Refused];

/// Replicates with one fault, and checks the store then, and behind the next run.
fn strike(site: &Site, plan: FaultPlan, before: &Picture, what: &str) {
    let after = site.picture();
    site.faulty.add(plan);
    let outcome = site.replicate();
    if site.faulty.injected() == 0 {
        outcome.expect("nothing fails");
        return;
    }
    let found = site.recovered();
    assert!(found == after || found == *before, "{what}: a mixture");
    assert!(outcome.is_err() || found == after, "{what}: a commit that is not there");
    site.faulty.heal();
    site.replicate().unwrap_or_else(|error| panic!("{what}: {error}"));
    assert!(site.recovered() == after, "{what}: the next run");
}

#[test]
fn every_request_of_a_run_fails_once() {
    for fault in FAULTS {
        for position in 0.. {
            let site = Site::new();
            site.change(0);
            site.replicate().expect("replicates");
            let before = site.picture();
            site.change(1);
            strike(&site, FaultPlan::new(fault, position), &before, &format!("{fault:?} at {position}"));
            if site.faulty.injected() == 0 {
                assert!(position > 3, "requests are made");
                break;
            }
        }
    }
}

/// The first commit has no predecessor.
#[test]
fn every_request_of_the_first_run_fails_once() {
    for fault in [Fault::AnswerLost, Fault::Late(2)] {
        for position in 0.. {
            let site = Site::new();
            site.change(1);
            let after = site.picture();
            site.faulty.add(FaultPlan::new(fault, position));
            let outcome = site.replicate();
            let is_over = site.faulty.injected() == 0;
            site.faulty.heal();
            assert!(outcome.is_ok() || !is_over);
            site.replicate().unwrap_or_else(|error| panic!("{fault:?} at {position}: {error}"));
            assert!(site.recovered() == after, "{fault:?} at {position}");
            if is_over {
                break;
            }
        }
    }
}

/// A commit whose creation came late, when the next run had begun already, is that pool's own.
#[test]
fn regression_a_late_commit_of_an_earlier_run_fences_nobody() {
    for requests in 1..6 {
        let site = Site::new();
        site.change(0);
        site.replicate().expect("replicates");
        site.change(1);
        site.faulty.add(FaultPlan::new(Fault::Late(requests), 0).on(&[Request::Create]).key_contains("log/"));
        site.replicate().expect_err("the commit is late");
        site.change(2);
        for _ in 0..3 {
            site.replicate().unwrap_or_else(|error| panic!("late by {requests}: {error}"));
        }
        assert!(site.recovered() == site.picture());
    }
}

/// A store that is down keeps nothing from the pool, and is told.
#[test]
fn a_store_that_is_down_is_told_and_the_run_ends() {
    let site = Site::new();
    site.change(0);
    site.replicate().expect("replicates");
    site.change(1);
    site.faulty.add(FaultPlan::new(Fault::Lost, 0).lasting());
    assert!(site.replicate().expect_err("it is down").is_passing());
    let noted = crate::noted(&site.meta, &site.pool_id()).expect("reads notes");
    assert_eq!((noted[0].commit, noted[0].is_unfinished), (1, true));
    assert!(noted[0].error.contains("for now"), "{noted:?}");
    site.change(3);
    site.faulty.heal();
    site.replicate().expect("replicates");
    assert!(site.recovered() == site.picture());
    let noted = crate::noted(&site.meta, &site.pool_id()).expect("reads notes");
    assert_eq!((noted[0].commit, noted[0].is_unfinished, noted[0].error.as_str()), (2, false, ""));
}

/// Faults of all kinds at random requests of runs, reclaiming and recoveries, over histories with reclaiming and remounts. So many faults as the variable
/// says, a thousand without it.
#[test]
fn random_faults_never_make_a_mixture() {
    let number = |name: &str| std::env::var(name).ok().and_then(|number| number.parse::<u64>().ok());
    let faults = number("DEDUPFS_REPLICA_FAULTS").unwrap_or(1000);
    let mut injected = 0;
    for seed in number("DEDUPFS_REPLICA_SEED").unwrap_or(0).. {
        injected += random_history(seed);
        if injected >= faults {
            println!("{injected} faults in {} histories", seed + 1);
            break;
        }
    }
}

/// Returns the number of faults.
fn random_history(seed: u64) -> u64 {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut below = |bound: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % bound
    };
    let site = Site::new();
    let disk = dedupfs_store::device::MemoryDevice::new();
    let mut pictures = vec![Picture::new()];
    for round in 0..6 {
        site.change(round + below(3));
        if below(6) == 0 {
            site.reopen();
        }
        if below(8) == 0 {
            site.forget_notes();
        }
        pictures.push(site.picture());
        let mut is_replicated = false;
        for attempt in 0..1 + below(6) {
            for _ in 0..1 + below(4) {
                site.faulty.add(FaultPlan::new(FAULTS[below(FAULTS.len() as u64) as usize], below(16)));
            }
            is_replicated |= site.replicate().is_ok();
            site.store.set_now(super::site::NOW_SECS + 1000 * round + attempt);
            if below(3) == 0 {
                // Listings may be late or cut, and nobody is told.
                let fault = if below(2) == 0 { Fault::ListLate(1 + below(100)) } else { Fault::CutUnseen };
                site.faulty.add(FaultPlan::new(fault, below(4)).on(&[Request::List]));
                let _may_fail = site.reclaim_replica(0);
            }
            if below(4) == 0 {
                let _may_fail = site.faulty_replica().and_then(|replica| {
                    crate::restore_data_root(
                        &replica,
                        &dedupfs_store::device::MemoryDevice::new(),
                        super::site::STRICT,
                        &dedupfs::NoProgress,
                    )
                });
            }
            if below(4) == 0 {
                let _may_fail = super::viewing::view_in_order(&site, &disk);
            }
            // Nothing that the newest commit names is gone or another.
            let replica = site.replica().expect("opens");
            if replica.newest().expect("finds").is_some() {
                let read = crate::verify(&replica, 1, false, &dedupfs::NoProgress);
                let read = read.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
                assert!(read.is_sound(), "seed {seed}: {read:?}");
            }
        }
        if is_replicated || below(4) == 0 {
            let has_commit = site.replica().expect("opens").newest().expect("finds").is_some();
            let found = if has_commit { site.recovered() } else { Picture::new() };
            assert!(!is_replicated || Some(&found) == pictures.last(), "seed {seed}: the commit is not there");
            // A state older than a commit never comes back.
            let at = pictures.iter().rposition(|picture| *picture == found);
            pictures.drain(..at.unwrap_or_else(|| panic!("seed {seed}: a mixture")));
        }
        if below(2) == 0 {
            site.faulty.heal();
        }
    }
    site.faulty.heal();
    site.replicate().unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    assert!(site.recovered() == site.picture(), "seed {seed}");
    let view = super::viewing::view_in_order(&site, &disk).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    assert!(super::viewing::picture(&view) == site.picture(), "seed {seed}: the view");
    site.faulty.injected()
}

/// The answers to two commits in a row were lost: behind the first one, which is this pool's, comes another of its own.
#[test]
fn regression_two_commits_in_a_row_whose_answers_were_lost_are_this_pools() {
    let site = Site::new();
    site.change(0);
    site.replicate().expect("replicates");
    site.change(2);
    site.faulty.add(FaultPlan::new(Fault::AnswerLost, 0).on(&[Request::Create]).key_contains("log/0000000000000002"));
    site.replicate().expect_err("the answer is lost");
    site.change(4);
    site.faulty.add(FaultPlan::new(Fault::Late(1), 0).on(&[Request::Create]).key_contains("log/0000000000000003"));
    site.replicate().expect_err("the commit is late");
    site.change(6);
    site.faulty.heal();
    assert_eq!(site.replicate().expect("replicates").commit, 4);
    assert!(site.recovered() == site.picture());
}

#[test]
fn another_writer_is_fenced() {
    let site = Site::new();
    site.change(0);
    site.replicate().expect("replicates");
    let other = site.cloned();
    site.change(1);
    site.replicate().expect("replicates");
    other.change(2);
    let error = other.replicate().expect_err("somebody else committed");
    assert!(matches!(error, ReplicaError::Fenced { number: 2, .. }), "{error}");
    assert!(error.to_string().contains("--take-over"), "{error}");
    assert!(site.recovered() == site.picture());
}
