//! Rounds in which nothing fails. Machine 0 compares each record with an oracle.

use dedupfs_detect::Rounds;

use crate::processes::{addresses, directory, end, start};
use crate::role::job;

fn check(machines: usize, more: &str) {
    let directory = directory();
    let here = directory.path().display();
    let rounds = format!("--rounds {here} --directory {here} {more}");
    let ended = end(&mut start(&addresses(machines), |_| rounds.clone()));
    for ended in &ended {
        assert!(ended.is_committed, "{ended:?}");
        // The paper's 35 MB.
        assert!(ended.figures["vm_hwm_bytes"].as_u64().unwrap() < 35_000_000, "{ended:?}");
        assert!(ended.told.is_empty(), "{ended:?}");
    }
    let sum = |field: &str| ended.iter().map(|ended| ended.figures[field].as_u64().unwrap()).sum::<u64>();
    assert_eq!(sum("known") + sum("new") + sum("repeated"), sum("asks"));
    assert_eq!((sum("landed"), sum("asks")), (ended[0].figures["asks_of_all"].as_u64().unwrap(), sum("landed")));
    // Each chunk is asked once, whatever the number of machines: known ones are all different.
    assert_eq!(sum("chunks"), sum("asks") - sum("repeated"));
    let commit = Rounds::new(directory.path()).names(&job("nightly"), 0).unwrap().unwrap();
    assert!(commit.iter().enumerate().all(|(disk, name)| *name == format!("disk-{disk}")), "{commit:?}");
}

#[test]
fn one_machine_gives_the_verdicts_of_the_oracle() {
    check(1, "--chunks 10000");
}

#[test]
fn two_machines_give_the_verdicts_of_the_oracle() {
    check(2, "--chunks 10000 --seed 2");
}

#[test]
fn four_machines_give_the_verdicts_of_the_oracle() {
    check(4, "--chunks 25000 --seed 3");
}

#[test]
fn many_partitions_and_spools_give_the_verdicts_of_the_oracle() {
    check(3, "--chunks 12345 --disks 7 --seed 4 --memory-bytes 262144");
}

#[test]
fn machines_without_disks_take_part() {
    check(4, "--chunks 3000 --disks 2 --seed 5");
    check(3, "--chunks 0 --disks 0");
}

#[test]
fn long_chunks_are_transferred() {
    check(2, "--chunks 60 --disks 2 --chunk-bytes 1048577");
}
