//! Removing objects that are needed no more.

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
    let kept = site.reclaim_replica(now_secs - NOW_SECS + 100).expect("reclaims");
    assert_eq!((kept.retired, kept.unnamed, site.store.keys().len()), (0, 0, before));
    let done = site.reclaim_replica(10).expect("reclaims");
    assert!(done.retired > 0, "{done:?}");
    assert!(site.store.keys().len() < before);
    assert!(site.recovered() == site.picture());
    let again = site.reclaim_replica(10).expect("reclaims");
    assert_eq!((again.retired, again.unnamed), (0, 0), "objects that are gone are not asked for again");
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
            site.reclaim_replica(1).expect("reclaims");
        }
        if round < 20 {
            largest = largest.max(site.store.keys().len());
        }
    }
    site.reclaim_replica(1).expect("reclaims");
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
    assert_eq!(site.reclaim_replica(0).expect("reclaims").unnamed, 0, "it may be of a run that goes on");
    site.store.set_now(NOW_SECS + 10);
    site.change(2);
    site.replicate().expect("replicates");
    assert_eq!(site.reclaim_replica(0).expect("reclaims").unnamed, 1);
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
    let done = site.reclaim_replica(0).expect("reclaims");
    assert!(done.retained > 0 && done.retired == 0, "{done:?}");
    site.store.set_now(NOW_SECS + 2000);
    let done = site.reclaim_replica(0).expect("reclaims");
    assert!(done.retained == 0 && done.retired > 0, "{done:?}");
    assert!(site.recovered() == site.picture());
}

#[test]
fn reclaiming_a_replica_without_a_commit_removes_nothing() {
    let site = Site::new();
    let before = site.store.keys();
    assert_eq!(site.reclaim_replica(0).expect("reclaims").retired, 0);
    assert_eq!(site.store.keys(), before);
}
