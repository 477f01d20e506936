//! The disk fails once, or from some moment on, at every operation of a workload. Each request gets its correct result
//! or a clear error, no reader gets wrong data, acknowledged changes stay, and the pool goes on or is read-only and
//! says why.
//!
//! [`work`] holds the workload, on the interface that the kernel uses, and [`versions`] that of versions. [`session`] runs it and keeps book of the
//! possible states of each file ([`expected`]). [`verdict`] judges afterwards: the pool that met the fault, the pool
//! opened again on the same computer, whose memory still has the lost writes, and the pool after a power loss.
//! [`case`] names the cases, [`runner`] runs them on all cores, [`watch`] notices panics of any thread and cases that
//! do not end.
//!
//! Every position fails with EIO; the other faults are tried at a choice of positions that is the same in every run.
//! With `DEDUPFS_FAULTS_ALL=1` (`tools/fault-soak.sh`) all are tried. The message of a failed case holds the command
//! that runs it alone.

mod case;
#[path = "../crash/client.rs"]
#[expect(dead_code, reason = "shared with the tests of power losses")]
mod client;
mod disks;
mod expected;
mod regressions;
mod runner;
mod scenario;
mod session;
mod verdict;
mod versions;
mod watch;
mod work;

use case::{Aftermath, Case, Disk, Layout, Scenario};
use dedupfs_store::device::faulty::{Fault, Operation};

/// Kinds that a full disk, or a quota, can refuse.
const NEED_SPACE: [Operation; 9] = Operation::CHANGING;

/// Makes the cases of one fault at all positions of the kinds of operations, and keeps one in `every` of them.
fn cases(first: Case, kinds: &[Operation], every: u64) -> Vec<Case> {
    let disks = scenario::disks_after(&first);
    let mut cases = Vec::new();
    for &operation in kinds {
        for position in 0..disks.operations(first.disk, operation) {
            let case = Case { operation: Some(operation), position, ..first };
            let is_sync = matches!(operation, Operation::Sync | Operation::SyncDirectory);
            let restart = Case { aftermath: Aftermath::Restart, ..case };
            match is_sync {
                // A failed sync leaves its changes in memory, so each of these cases tries a restart as well.
                true => cases.extend([case, restart]),
                false => cases.push(if case.seed().is_multiple_of(3) { restart } else { case }),
            }
        }
    }
    let every = if runner::is_soak() { 1 } else { every };
    cases.retain(|case| case.seed() % every == 0);
    cases
}

fn first(scenario: Scenario, layout: Layout, disk: Disk, fault: Fault) -> Case {
    let (operation, aftermath) = (None, Aftermath::PowerLoss);
    Case { scenario, layout, disk, fault, operation, position: 0, is_lasting: false, aftermath }
}

/// Runs the faults that strike once: EIO at one position in `io_every`, the others at one in `others_every`.
fn once(scenario: Scenario, layout: Layout, disk: Disk, io_every: u64, others_every: u64) -> usize {
    let of = |fault, kinds: &[Operation], every| cases(first(scenario, layout, disk, fault), kinds, every);
    let mut all = of(Fault::Io, &Operation::ALL, io_every);
    all.extend(of(Fault::NoSpace, &NEED_SPACE, others_every));
    all.extend(of(Fault::ShortWrite, &[Operation::Write], others_every));
    all.extend(of(Fault::ShortWriteNoSpace, &[Operation::Write], others_every));
    all.extend(of(Fault::ShortRead, &[Operation::Read], others_every));
    run(&format!("{scenario:?}, {layout:?}, {disk:?}, once"), &all)
}

fn run(what: &str, cases: &[Case]) -> usize {
    let struck = runner::run(cases);
    println!("{what}: {} cases, in {struck} of them the fault struck", cases.len());
    // Threads of the pool overtake each other, and the export's thread writes more or less to the data root: a fault at
    // the end of the work may come too late.
    assert!(struck * 10 >= cases.len() * 9, "{what}: only {struck} of {} faults struck", cases.len());
    struck
}

/// Runs the case in `DEDUPFS_FAULT`.
#[test]
fn one_case() {
    let Ok(name) = std::env::var("DEDUPFS_FAULT") else { return };
    let case: Case = name.parse().unwrap_or_else(|wrong| panic!("{wrong}"));
    let struck = runner::run(&[case]);
    println!("{case}: passes; the fault struck {struck} times");
}

#[test]
fn names_of_cases_are_read_as_they_are_written() {
    let case = first(Scenario::Work, Layout::Two, Disk::Data, Fault::ShortRead);
    for operation in Operation::ALL.map(Some).into_iter().chain([None]) {
        let case = Case { operation, position: 17, is_lasting: operation.is_none(), ..case };
        assert_eq!(case.to_string().parse(), Ok(case));
    }
    assert!("work:one".parse::<Case>().is_err());
}

#[test]
fn every_operation_of_the_work_fails_once() {
    let struck = once(Scenario::Work, Layout::One, Disk::Meta, 1, 12);
    assert!(struck > 100, "only {struck} positions");
}

#[test]
fn operations_on_two_disks_fail_once() {
    let meta = once(Scenario::Work, Layout::Two, Disk::Meta, 12, 60);
    let data = once(Scenario::Work, Layout::Two, Disk::Data, 12, 60);
    assert!(meta + data > 20, "only {meta} and {data} positions");
}

#[test]
fn operations_of_making_and_removing_versions_fail_once() {
    let struck = once(Scenario::Versions, Layout::One, Disk::Meta, 6, 60);
    assert!(struck > 50, "only {struck} positions");
}

#[test]
fn operations_on_versions_on_two_disks_fail_once() {
    let meta = once(Scenario::Versions, Layout::Two, Disk::Meta, 16, 80);
    let data = once(Scenario::Versions, Layout::Two, Disk::Data, 16, 80);
    assert!(meta + data > 20, "only {meta} and {data} positions");
}

#[test]
fn every_operation_of_making_a_pool_fails_once() {
    let one = once(Scenario::Format, Layout::One, Disk::Meta, 1, 2);
    let data = once(Scenario::Format, Layout::Two, Disk::Data, 1, 2);
    assert!(one + data > 20, "only {one} and {data} positions");
}

#[test]
fn every_operation_of_making_the_index_anew_fails_once() {
    let struck = once(Scenario::Rebuild, Layout::One, Disk::Meta, 1, 6);
    assert!(struck > 50, "only {struck} positions");
}

/// The disk is full, or read-only, or gone, from some moment on.
#[test]
fn a_disk_that_goes_on_failing_never_makes_anything_wrong() {
    let lasting = |fault, kinds: &[Operation], every| {
        let first = Case { is_lasting: true, ..first(Scenario::Work, Layout::One, Disk::Meta, fault) };
        cases(first, kinds, every)
    };
    let mut all = lasting(Fault::Io, &Operation::ALL, 12);
    all.extend(lasting(Fault::NoSpace, &NEED_SPACE, 12));
    // All kinds of changes fail at once, from as many positions as there are writes.
    let positions = lasting(Fault::Io, &[Operation::Write], 12);
    all.extend(positions.into_iter().map(|case| Case { operation: None, ..case }));
    let struck = run("Work, One, lasting", &all);
    assert!(struck > 20, "only {struck} positions");
}
