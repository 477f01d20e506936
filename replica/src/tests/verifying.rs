//! Reading a replica back, and mending it.

use dedupfs::NoProgress;

use super::site::Site;
use crate::{ReplicateOptions, verify};

const COMPLETE: ReplicateOptions = ReplicateOptions { connections: 1, take_over: false, completes: true, looks: false };

#[test]
fn a_sound_replica_is_read_back() {
    let site = Site::new();
    (0..4).for_each(|round| site.change(round));
    site.replicate().expect("replicates");
    let all = verify(&site.replica().expect("opens"), 1, false, &NoProgress).expect("verifies");
    assert!(all.is_sound() && all.read > all.named, "{all:?}");
    let some = verify(&site.replica().expect("opens"), 3, false, &NoProgress).expect("verifies");
    assert!(some.is_sound() && some.read < all.read, "{some:?}");
}

#[test]
fn what_is_gone_or_damaged_is_found_and_uploaded_again() {
    let site = Site::new();
    (0..4).for_each(|round| site.change(round));
    site.replicate().expect("replicates");
    let keys: Vec<_> = site.store.keys().into_iter().filter(|key| key.as_str().starts_with("c/")).collect();
    site.store.remove_by_hand(&keys[0]);
    site.store.replace(&keys[1], b"nonsense");
    let replica = site.replica().expect("opens");
    let found = verify(&replica, 1, false, &NoProgress).expect("verifies");
    assert_eq!((found.bad, found.removed), (2, 0), "{found:?}");
    let found = verify(&replica, 1, true, &NoProgress).expect("verifies");
    assert_eq!((found.bad, found.removed), (2, 1), "{found:?}");
    site.replicate_as(&COMPLETE).expect("replicates");
    assert!(verify(&replica, 1, false, &NoProgress).expect("verifies").is_sound());
    assert!(site.recovered() == site.picture());
}

/// A base whose part was lost got deltas that nobody could use.
#[test]
fn regression_a_lost_piece_of_a_commit_is_found_and_everything_is_committed_again() {
    let site = Site::new();
    // Names that do not compress, so that the commit has pieces.
    for number in 0..200 {
        let name: String = super::site::content(number, 100).iter().map(|byte| format!("{byte:02x}")).collect();
        site.write(&name, number, 100);
    }
    site.replicate().expect("replicates");
    let piece = site.store.keys().into_iter().find(|key| key.as_str().starts_with("n/")).expect("has pieces");
    site.store.remove_by_hand(&piece);
    let replica = site.replica().expect("opens");
    verify(&replica, 1, false, &NoProgress).expect_err("a piece is gone");
    site.replicate_as(&COMPLETE).expect("replicates");
    assert!(verify(&replica, 1, false, &NoProgress).expect("verifies").is_sound());
    assert!(site.recovered() == site.picture());
}
