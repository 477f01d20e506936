//! Removing what is needed no more.

use super::site::{NOW_SECS, Site};

#[test]
fn what_was_retired_goes_behind_the_grace_period() {
    let site = Site::new();
    for round in 0..8 {
        site.store.set_now(NOW_SECS + round);
        site.change(round);
        site.replicate().expect("replicates");
    }
    let before = site.store.keys().len();
    let now_secs = dedupfs_sync::clock::since_epoch().as_secs();
    let kept = site.sweep(now_secs - NOW_SECS + 100).expect("sweeps");
    assert_eq!((kept.retired, kept.unnamed, site.store.keys().len()), (0, 0, before));
    let swept = site.sweep(10).expect("sweeps");
    assert!(swept.retired > 0, "{swept:?}");
    assert!(site.store.keys().len() < before);
    assert!(site.recovered() == site.picture());
    let again = site.sweep(10).expect("sweeps");
    assert_eq!((again.retired, again.unnamed), (0, 0), "what is gone is not asked for again");
    site.change(9);
    site.replicate().expect("replicates");
    assert!(site.recovered() == site.picture());
}

/// Each opening of the pool may write a new base; commits below it go.
#[test]
fn commits_below_a_base_go_and_the_store_does_not_grow() {
    let site = Site::new();
    let mut largest = 0;
    for round in 0..40 {
        site.store.set_now(NOW_SECS + round);
        site.change(round);
        site.replicate().expect("replicates");
        if round % 4 == 3 {
            // A replica without a note begins with a base.
            site.forget_notes();
            site.sweep(1).expect("sweeps");
        }
        if round < 20 {
            largest = largest.max(site.store.keys().len());
        }
    }
    site.sweep(1).expect("sweeps");
    let keys = site.store.keys();
    assert!(keys.len() <= largest, "{} objects, and {largest} at most in the first half", keys.len());
    assert!(keys.iter().filter(|key| key.as_str().starts_with("log/")).count() < 12);
    assert!(site.recovered() == site.picture());
}

#[test]
fn what_a_run_that_was_cut_off_left_goes() {
    let site = Site::new();
    site.change(0);
    site.replicate().expect("replicates");
    let replica = site.replica().expect("opens");
    let key =
        dedupfs_store::objects::Key::new("c/00/0000000000000100-00000000000000000000000000000000").expect("is a key");
    replica.objects.create(&key, &[b"left over"], dedupfs_store::objects::Class::Content).expect("creates");
    assert_eq!(site.sweep(0).expect("sweeps").unnamed, 0, "it may be of a run that goes on");
    site.store.set_now(NOW_SECS + 10);
    site.change(2);
    site.replicate().expect("replicates");
    assert_eq!(site.sweep(0).expect("sweeps").unnamed, 1);
    assert!(site.recovered() == site.picture());
}

/// A store that keeps objects for a time is asked again later.
#[test]
fn retained_objects_are_tried_again_later() {
    let site = Site::new();
    site.store.retain(1000);
    for round in 0..6 {
        site.change(round);
        site.replicate().expect("replicates");
    }
    let swept = site.sweep(0).expect("sweeps");
    assert!(swept.retained > 0 && swept.retired == 0, "{swept:?}");
    site.store.set_now(NOW_SECS + 2000);
    let swept = site.sweep(0).expect("sweeps");
    assert!(swept.retained == 0 && swept.retired > 0, "{swept:?}");
    assert!(site.recovered() == site.picture());
}

#[test]
fn a_sweep_of_a_replica_without_a_commit_removes_nothing() {
    let site = Site::new();
    let before = site.store.keys();
    assert_eq!(site.sweep(0).expect("sweeps").retired, 0);
    assert_eq!(site.store.keys(), before);
}
