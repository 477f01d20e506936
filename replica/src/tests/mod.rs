//! Replicas of pools in memory.

mod bytes;
mod faults;
mod keys;
mod reclaiming;
mod recovering;
mod site;
mod takeover;
mod verifying;
mod viewing;

use crate::stream::{INLINE_BYTES_MAX, PIECE_BYTES};
use site::Site;

#[test]
fn a_recovered_pool_has_what_the_source_had() {
    let site = Site::new();
    for round in 0..4 {
        site.change(round);
        let report = site.replicate().expect("replicates");
        assert_eq!((report.commit, report.is_unchanged), (round + 1, false));
        assert_eq!(site.recovered(), site.picture());
    }
}

#[test]
fn a_pool_without_changes_costs_no_request() {
    let site = Site::new();
    site.change(1);
    site.replicate().expect("replicates");
    let before = site.counting.requests();
    let report = site.replicate().expect("replicates");
    assert!(report.is_unchanged);
    assert_eq!(site.counting.requests().since(&before).count(), 0);
}

/// Each commit costs a request for each new container, and two.
#[test]
fn a_commit_costs_two_requests_besides_its_containers() {
    let site = Site::new();
    site.change(1);
    site.replicate().expect("replicates");
    for round in 2..6 {
        site.change(round);
        let before = site.counting.requests();
        let report = site.replicate().expect("replicates");
        let used = site.counting.requests().since(&before);
        let names = report.namespace_bytes;
        let pieces = if names > INLINE_BYTES_MAX { names.div_ceil(PIECE_BYTES) } else { 0 };
        assert_eq!(used.count(), report.containers + pieces + 2, "{used:?}");
        assert!(used.created_bytes < report.bytes + report.namespace_bytes + 8192, "{used:?} {report:?}");
    }
}

/// Commits of one export are small; when the export has another base, the commit has all of it.
#[test]
fn what_was_uploaded_is_not_uploaded_again() {
    let site = Site::new();
    (0..5).for_each(|round| site.change(round));
    site.replicate().expect("replicates");
    site.write("one more", 900, 10_000);
    let report = site.replicate().expect("replicates");
    assert!(report.bytes < 200_000, "{report:?}");
    site.reopen();
    site.write("and one more", 901, 10_000);
    let report = site.replicate().expect("replicates");
    assert!(report.bytes < 200_000, "{report:?}");
    assert_eq!(site.recovered(), site.picture());
}

/// A container that is damaged in the pool must not keep the rest from being copied.
#[test]
fn a_damaged_container_is_told_and_copied_as_it_is() {
    let site = Site::new();
    site.change(1);
    site.damage_a_container();
    let report = site.replicate().expect("replicates");
    assert_eq!(report.damaged, 1);
}

/// A pool that was damaged before a run replaced the sound copy of a container that had grown since the run before.
#[test]
fn regression_the_copy_of_a_damaged_container_that_grew_stays_sound() {
    let site = Site::new();
    site.write("first", 1, 20_000);
    site.replicate().expect("replicates");
    let sound = site.damage_a_container();
    site.write("second", 2, 20_000);
    let report = site.replicate().expect("replicates");
    assert_eq!((report.damaged, report.containers > 0), (0, true), "{report:?}");
    let found = site.recovered();
    site.mend(&sound);
    assert_eq!(found, site.picture());
}

/// A container that was damaged for a while stayed so in the replica.
#[test]
fn regression_a_container_that_is_mended_is_uploaded_again() {
    let site = Site::new();
    site.change(1);
    let sound = site.damage_a_container();
    site.replicate().expect("replicates");
    site.mend(&sound);
    site.write("more", 5, 10_000);
    assert_eq!(site.replicate().expect("replicates").damaged, 0);
    assert_eq!(site.recovered(), site.picture());
}

/// A store that was set back, or a copy of an earlier state of it, got commits without a predecessor.
#[test]
fn regression_a_store_that_was_set_back_gets_a_whole_state() {
    let site = Site::new();
    for round in 0..4 {
        site.change(2 * round);
        site.replicate().expect("replicates");
    }
    for key in site.store.keys().iter().filter(|key| key.as_str() > "log/0000000000000002" && key.as_str() < "log/~") {
        site.store.remove_by_hand(key);
    }
    site.write("more", 5, 10_000);
    site.replicate().expect("replicates");
    assert_eq!(site.recovered(), site.picture());
    for key in site.store.keys().iter().filter(|key| key.as_str().starts_with("log/")) {
        site.store.remove_by_hand(key);
    }
    site.write("even more", 6, 10_000);
    site.replicate().expect("replicates");
    assert_eq!(site.recovered(), site.picture());
}

/// Containers that are uploaded while nothing is held may be reclaimed meanwhile.
#[test]
fn many_missing_containers_are_uploaded_without_a_hold() {
    let site = Site::new();
    (0..40).for_each(|number| site.write(&format!("large {number}"), 100 + number, 200_000));
    let report = site.replicate().expect("replicates");
    assert!(report.containers > 64, "{report:?}");
    assert!(site.holds() > 1, "the export was let go");
    assert_eq!(site.recovered(), site.picture());
}
