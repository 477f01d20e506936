//! Recoveries that are interrupted, and replicas that have lost something.

use dedupfs::NoProgress;
use dedupfs_store::device::{Device as _, MemoryDevice};
use dedupfs_store::objects::faulty::{Fault, FaultPlan, Request};

use super::site::{Site, finish, open};
use crate::{ReplicaError, restore_data_root};

#[test]
fn an_interrupted_recovery_goes_on() {
    let site = Site::new();
    (0..3).for_each(|round| site.change(round));
    site.replicate().expect("replicates");
    site.change(4);
    site.replicate().expect("replicates");
    let expected = site.picture();
    for position in 0.. {
        let data = MemoryDevice::new();
        site.faulty.add(FaultPlan::new(Fault::Lost, position).on(&[Request::Read]));
        let before = site.faulty.injected();
        let replica = site.faulty_replica().expect("opens");
        let first = restore_data_root(&replica, &data, super::site::STRICT, &NoProgress);
        let is_over = site.faulty.injected() == before;
        site.faulty.heal();
        if is_over {
            first.expect("nothing failed");
            assert!(position > 5, "objects are read");
            break;
        }
        first.expect_err("a request was lost");
        assert!(!data.exists("dedupfs.data").expect("tells"), "it is no data root yet");
        let restored = restore_data_root(&replica, &data, super::site::STRICT, &NoProgress).expect("goes on");
        assert!(position < 10 || restored.there > 0, "{restored:?}");
        let meta = MemoryDevice::new();
        finish(&meta, &data);
        let pool = open(&meta, &data);
        assert_eq!(super::site::picture_of(&pool), expected);
    }
}

#[test]
fn damage_on_the_way_is_noticed() {
    let site = Site::new();
    site.change(1);
    site.replicate().expect("replicates");
    for fault in [Fault::Damaged, Fault::CutUnseen] {
        site.faulty.add(FaultPlan::new(fault, 0).on(&[Request::Read]).key_contains("c/"));
        let data = MemoryDevice::new();
        let replica = site.faulty_replica().expect("opens");
        let restored = restore_data_root(&replica, &data, super::site::ANYHOW, &NoProgress).expect("goes on");
        assert_eq!(restored.missing, 1, "{fault:?}");
        site.faulty.heal();
    }
    site.faulty.add(FaultPlan::new(Fault::Damaged, 0).on(&[Request::Read]).key_contains("log/"));
    let replica = site.faulty_replica().expect("opens");
    restore_data_root(&replica, &MemoryDevice::new(), super::site::STRICT, &NoProgress)
        .expect_err("a commit is damaged");
}

#[test]
fn objects_that_were_removed_by_hand_are_told_one_by_one() {
    let site = Site::new();
    site.change(1);
    site.replicate().expect("replicates");
    let keys = site.store.keys();
    let key = keys.iter().find(|key| key.as_str().starts_with("c/")).expect("has a container");
    site.store.remove_by_hand(key);
    let (replica, data) = (site.replica().expect("opens"), MemoryDevice::new());
    restore_data_root(&replica, &data, super::site::STRICT, &NoProgress).expect_err("an object is gone");
    assert!(!data.exists("dedupfs.data").expect("tells"), "it can be gone on with");
    let restored = restore_data_root(&replica, &data, super::site::ANYHOW, &NoProgress).expect("goes on");
    assert_eq!((restored.missing, restored.findings.len()), (1, 1));
    assert!(restored.findings[0].contains(key.as_str()), "{restored:?}");
    let commit = keys.iter().find(|key| key.as_str().starts_with("log/")).expect("has a commit");
    site.store.remove_by_hand(commit);
    let error =
        restore_data_root(&site.replica().expect("opens"), &MemoryDevice::new(), super::site::STRICT, &NoProgress)
            .expect_err("no commit");
    assert!(error.to_string().contains("no commit"), "{error}");
}

#[test]
fn a_directory_with_something_else_is_refused() {
    let site = Site::new();
    site.change(1);
    site.replicate().expect("replicates");
    let data = MemoryDevice::new();
    data.replace_file("", "holiday.jpg", b"picture").expect("writes");
    let error = restore_data_root(&site.replica().expect("opens"), &data, super::site::STRICT, &NoProgress)
        .expect_err("is refused");
    assert!(matches!(error, ReplicaError::Usage(_)) && error.to_string().contains("holiday.jpg"), "{error}");
}

/// A crash between the superblock and the removal of the mark: the pool may be in use since then.
#[test]
fn regression_a_data_root_that_is_whole_is_not_written_again() {
    let site = Site::new();
    site.change(1);
    site.replicate().expect("replicates");
    let (replica, data) = (site.replica().expect("opens"), MemoryDevice::new());
    restore_data_root(&replica, &data, super::site::STRICT, &NoProgress).expect("restores");
    data.replace_file("", "replica-recovery", replica.name().as_bytes()).expect("writes");
    let error = restore_data_root(&replica, &data, super::site::STRICT, &NoProgress).expect_err("is whole");
    assert!(error.to_string().contains("without --from"), "{error}");
}

/// Two commits of a chain are exchanged: their checksums are sound, and the chain is not.
#[test]
fn a_commit_of_another_history_is_refused() {
    let site = Site::new();
    for round in 0..3 {
        site.change(2 * round);
        site.replicate().expect("replicates");
    }
    let other = Site::over(site.meta.crash(0), site.data.crash(0), dedupfs_store::objects::MemoryObjects::new());
    drop(other);
    let replica = site.replica().expect("opens");
    let key = crate::commit::commit_key(2).expect("is a key");
    let mut bytes = Vec::new();
    replica.objects.read(&key, None, &mut bytes).expect("reads");
    let mut commit = crate::commit::Commit::decode(&site.pool_id(), 2, &bytes).expect("decodes");
    commit.written_secs += 1;
    site.store.remove_by_hand(&key);
    replica
        .objects
        .create(&key, &[&commit.encode(&site.pool_id())], dedupfs_store::objects::Class::Metadata)
        .expect("creates");
    let error = restore_data_root(&replica, &MemoryDevice::new(), super::site::STRICT, &NoProgress)
        .expect_err("the chain is broken");
    assert!(error.to_string().contains("successor"), "{error}");
}
