//! Rounds that fail: killed processes, and errors of one machine.

use std::time::Duration;

use dedupfs_detect::Rounds;

use crate::processes::{addresses, directory, end, start};
use crate::role::job;

/// Time in which all others end.
const ENDS_WITHIN: Duration = Duration::from_secs(15);

/// Kills each machine at each stage, and repeats each round with another number of machines.
fn kill_each(machines: usize, others: usize, stages: &[&str]) {
    let directory = directory();
    let (rounds, here) = (Rounds::new(directory.path()), directory.path().display());
    let job = job("nightly");
    for (number, (victim, stage)) in
        (0..).zip((0..machines).flat_map(|victim| stages.iter().map(move |stage| (victim, stage))))
    {
        // Without the pause, machine 0 may have committed before another one that has sent all is killed.
        let all = format!("--rounds {here} --directory {here} --chunks 2000 --round {number}");
        let of = |me| {
            let dies = if me == victim { format!("--die-at {stage}") } else { String::new() };
            format!("{all} --linger-millis 300 {dies}")
        };
        let ended = end(&mut start(&addresses(machines), of));
        let died = ended[victim].at;
        for (machine, ended) in ended.iter().enumerate() {
            assert!(!ended.is_committed, "machine {machine} of {machines} outlives {victim} at {stage}: {ended:?}");
            assert!(ended.at < died + ENDS_WITHIN, "{machine} of {machines}, {victim} at {stage}: {ended:?}");
            let name = format!("machine {victim} is lost");
            assert!(
                machine == victim || ended.told.contains(&name),
                "{machine} of {machines}, {victim} at {stage}: {ended:?}"
            );
        }
        assert_eq!(rounds.committed(&job).unwrap().next, number, "{victim} at {stage}");
        let repeated = end(&mut start(&addresses(others), |_| all.clone()));
        assert!(repeated.iter().all(|ended| ended.is_committed), "{repeated:?}");
        assert_eq!(rounds.committed(&job).unwrap().next, number + 1);
    }
}

#[test]
fn one_of_two_killed_at_any_stage_ends_the_round_which_four_repeat() {
    kill_each(2, 4, &["read", "compare", "verdict", "store", "finish"]);
}

#[test]
fn one_of_four_killed_while_reading_or_comparing_ends_the_round_which_one_repeats() {
    kill_each(4, 1, &["read", "compare", "verdict"]);
}

#[test]
fn one_of_four_killed_while_storing_or_finishing_ends_the_round_which_three_repeat() {
    kill_each(4, 3, &["store", "finish"]);
}

#[test]
fn a_disk_that_changes_ends_the_round_everywhere_with_the_reason() {
    let changes = |me| format!("--chunks 2000 {}", if me == 1 { "--changes" } else { "" });
    for (machine, ended) in end(&mut start(&addresses(3), changes)).iter().enumerate() {
        assert!(!ended.is_committed && ended.told.contains("changed at byte"), "{ended:?}");
        assert!(ended.told.contains("read from a snapshot"), "{ended:?}");
        assert!(machine == 1 || ended.told.contains("machine 1 ended the round: disk"), "{ended:?}");
    }
}

#[test]
fn an_oracle_that_disagrees_ends_the_round_everywhere() {
    // Machine 1 has other disks than machine 0 thinks.
    let seed = |me| format!("--chunks 2000 --seed {me}");
    for ended in end(&mut start(&addresses(2), seed)) {
        assert!(!ended.is_committed && ended.told.contains("the oracle disagrees"), "{ended:?}");
    }
}

#[test]
fn a_round_that_is_committed_already_is_not_committed_again() {
    let directory = directory();
    let all = format!("--rounds {} --chunks 500", directory.path().display());
    assert!(end(&mut start(&addresses(2), |_| all.clone())).iter().all(|ended| ended.is_committed));
    for ended in end(&mut start(&addresses(2), |_| all.clone())) {
        assert!(!ended.is_committed && ended.told.contains("round 0 has a commit already"), "{ended:?}");
    }
}

#[test]
fn spools_without_a_directory_end_the_round_everywhere() {
    let nowhere = |me| format!("--chunks 2000 {}", if me == 2 { "--directory /nowhere" } else { "" });
    for ended in end(&mut start(&addresses(3), nowhere)) {
        assert!(!ended.is_committed && ended.told.contains("/nowhere"), "{ended:?}");
    }
}
