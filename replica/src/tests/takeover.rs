//! Pools of another lineage, and of another time.

use super::site::{Site, finish};
use crate::{Replica, ReplicaError, ReplicateOptions, restore_data_root};
use dedupfs::NoProgress;
use dedupfs_store::device::{Device as _, MemoryDevice};
use dedupfs_store::objects::faulty::{Fault, FaultPlan, Request};

const TAKE_OVER: ReplicateOptions =
    ReplicateOptions { connections: 1, take_over: true, completes: false, looks: false };

#[test]
fn a_recovered_pool_takes_over_and_the_old_one_is_fenced() {
    let site = Site::new();
    site.change(1);
    site.replicate().expect("replicates");
    let (meta, data) = site.recover();
    let other = Site::over(meta, data, site.store.clone());
    let error = other.replicate().expect_err("its lineage is another one");
    assert!(matches!(error, ReplicaError::NotOurs { .. }), "{error}");
    site.change(2);
    site.replicate().expect("the old machine goes on");
    other.change(3);
    other.replicate_as(&TAKE_OVER).expect("takes over");
    assert!(site.recovered() == other.picture());
    site.change(4);
    let error = site.replicate().expect_err("is fenced");
    assert!(matches!(error, ReplicaError::Fenced { .. }), "{error}");
    other.change(5);
    other.replicate().expect("goes on without being told again");
    assert!(site.recovered() == other.picture());
}

/// Nothing that the old reign retired is named again: reclaiming may be removing it.
#[test]
fn a_new_reign_uploads_what_was_retired_under_other_names() {
    let site = Site::new();
    site.write("kept", 1, 150_000);
    site.replicate().expect("replicates");
    let (meta, data) = site.recover();
    site.remove("kept");
    site.pool().sync().expect("syncs");
    site.reclaim();
    let report = site.replicate().expect("replicates");
    assert!(report.retired > 0, "{report:?}");
    let other = Site::over(meta, data, site.store.clone());
    other.replicate_as(&TAKE_OVER).expect("takes over");
    // Removes everything that the first reign retired.
    other.store.set_now(super::site::NOW_SECS + 100);
    other.reclaim_replica(0).expect("reclaims");
    assert!(site.recovered() == other.picture());
    assert_eq!(other.picture().len(), 1);
}

/// A take-over that was cut off began anew with each run, under other names.
#[test]
fn regression_a_take_over_that_was_cut_off_goes_on_in_its_reign() {
    let site = Site::new();
    site.change(1);
    site.replicate().expect("replicates");
    let (meta, data) = site.recover();
    let other = Site::over(meta, data, site.store.clone());
    (0..4).for_each(|number| other.write(&format!("new {number}"), 50 + number, 100_000));
    other.faulty.add(FaultPlan::new(Fault::Lost, 2).on(&[Request::Create]).key_contains("c/"));
    other.replicate_as(&TAKE_OVER).expect_err("a request is lost");
    let uploaded = other.store.keys().len();
    let report = other.replicate_as(&TAKE_OVER).expect("goes on");
    assert_eq!(report.commit, 3, "there is one fence");
    assert!(other.store.keys().len() > uploaded);
    other.store.set_now(super::site::NOW_SECS + 10);
    other.change(1);
    other.replicate().expect("replicates");
    assert_eq!(other.reclaim_replica(0).expect("reclaims").unnamed, 0, "nothing was uploaded in vain");
    assert!(site.recovered() == other.picture());
}

/// A copy of a machine, made during a run, took the commit of the original for its own.
#[test]
fn regression_a_copy_of_a_pool_does_not_adopt_the_commit_of_the_original() {
    let site = Site::new();
    site.change(0);
    site.replicate().expect("replicates");
    let copy = site.cloned();
    site.change(1);
    site.faulty.add(FaultPlan::new(Fault::AnswerLost, 0).on(&[Request::Create]).key_contains("log/"));
    site.replicate().expect_err("the answer is lost");
    // The copy has the number of the run, and another history since then.
    for (name, bytes) in site.notes().into_iter().filter(|(name, _)| name == "run") {
        for folder in copy.meta.list("replicas").expect("lists") {
            copy.meta.replace_file(&format!("replicas/{}", folder.name), &name, &bytes).expect("writes");
        }
    }
    copy.change(2);
    copy.change(3);
    let error = copy.replicate().expect_err("somebody else committed");
    assert!(matches!(error, ReplicaError::Fenced { .. } | ReplicaError::NotOurs { .. }), "{error}");
    site.replicate().expect("knows its own");
    assert!(site.recovered() == site.picture());
}

#[test]
fn an_older_state_of_the_pool_is_refused() {
    let site = Site::new();
    site.change(0);
    site.replicate().expect("replicates");
    let older = site.cloned();
    site.change(1);
    site.change(2);
    site.replicate().expect("replicates");
    // Its notes are gone as well.
    let notes = older.meta.list("replicas").expect("lists");
    for entry in notes {
        older.meta.remove(&format!("replicas/{}/commit", entry.name)).expect("removes");
    }
    older.write("small", 1, 1000);
    let error = older.replicate().expect_err("the replica is ahead");
    assert!(error.to_string().contains("newer state"), "{error}");
    older.replicate_as(&TAKE_OVER).expect("takes over");
    assert!(site.recovered() == older.picture());
}

#[test]
fn a_run_without_notes_compares_and_goes_on() {
    let site = Site::new();
    site.change(0);
    site.replicate().expect("replicates");
    for damaged in [false, true] {
        for entry in site.meta.list("replicas").expect("lists") {
            let directory = format!("replicas/{}", entry.name);
            match damaged {
                true => site.meta.replace_file(&directory, "commit", b"nonsense").expect("writes"),
                false => site.meta.remove(&format!("{directory}/commit")).expect("removes"),
            }
        }
        site.write("more", 77, 20_000);
        let report = site.replicate().expect("replicates");
        assert!(report.bytes < 200_000, "objects of the store are not uploaded again: {report:?}");
        assert!(site.recovered() == site.picture());
    }
}

#[test]
fn another_pool_is_refused() {
    let (site, other) = (Site::new(), Site::new());
    site.change(0);
    let replica = other.replica().expect("opens");
    let error = crate::replicate(&site, &site.meta, &replica, &ReplicateOptions::default(), &NoProgress);
    assert!(matches!(error, Err(ReplicaError::OtherPool { .. })), "{error:?}");
    let pool = site.pool_id();
    let store: std::sync::Arc<dyn dedupfs_store::objects::Objects> = std::sync::Arc::new(other.store.clone());
    assert!(matches!(Replica::init(&store, &pool, None), Err(ReplicaError::Exists { .. })));
}

/// The state in which a replica is before its first commit.
#[test]
fn a_replica_without_a_commit_recovers_nothing_and_says_so() {
    let site = Site::new();
    let data = MemoryDevice::new();
    let error = restore_data_root(&site.replica().expect("opens"), &data, super::site::STRICT, &NoProgress)
        .expect_err("has none");
    assert!(error.to_string().contains("no commit yet"), "{error}");
    site.replicate().expect("replicates an empty pool");
    let data = MemoryDevice::new();
    restore_data_root(&site.replica().expect("opens"), &data, super::site::STRICT, &NoProgress).expect("restores");
    finish(&MemoryDevice::new(), &data);
}
