//! The set of lost fingerprints.

use std::sync::atomic::{AtomicBool, Ordering};

use super::*;
use crate::tests::concurrent::Stopping;

/// The second one emptied the set behind the first, which then called it exact.
#[test]
fn regression_gathering_twice_at_once_denies_no_loss() {
    let (disk, index) = empty(TINY);
    let changes: Vec<_> = (0..320).map(|number| insert(number, 1 + number / 64)).collect();
    index.apply(1, &changes).unwrap();
    let lost: Vec<u64> = (0..5).flat_map(|tanker| [tanker * 64 + 3, tanker * 64 + 40]).collect();
    index.apply(2, &lost.iter().map(|number| lose(*number, 1 + number / 64)).collect::<Vec<_>>()).unwrap();
    index.checkpoint(2).unwrap();
    assert!(index.stats().sealed_tankers >= 5);
    drop(index);
    for _ in 0..50 {
        let index = reopen(&disk, TINY);
        assert!(index.may_have_lost([&fingerprint(7)]), "not known yet");
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let gathering: Vec<_> = (0..3).map(|_| scope.spawn(|| index.gather_lost(&mut || true).unwrap())).collect();
            let asking = scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    assert!(lost.iter().all(|number| index.may_have_lost([&fingerprint(*number)])));
                }
            });
            let stopping = Stopping(&stop);
            gathering.into_iter().for_each(|one| one.join().unwrap());
            drop(stopping);
            asking.join().unwrap();
        });
        assert!(!index.may_have_lost([&fingerprint(7)]) && index.times_lost() == 0);
    }
}

/// Each count of a lost chunk kept all containers that reclaiming had emptied.
#[test]
fn regression_only_new_losses_are_counted() {
    let (_disk, index) = empty(TINY);
    index.apply(1, &[insert(1, 1), insert(2, 1), lose(1, 1)]).unwrap();
    let before = index.times_lost();
    index.apply(2, &[count(1, 3), count(1, -1), count(2, 1)]).unwrap();
    assert_eq!(index.times_lost(), before);
    index.apply(3, &[lose(2, 1)]).unwrap();
    assert_eq!(index.times_lost(), before + 1);
}

#[test]
fn gathering_that_is_ended_leaves_everything_in_doubt() {
    let (disk, index) = empty(TINY);
    index.apply(1, &(0..128).map(|number| insert(number, 1)).collect::<Vec<_>>()).unwrap();
    index.apply(2, &[lose(3, 1)]).unwrap();
    index.checkpoint(2).unwrap();
    let index = reopen(&disk, TINY);
    index.gather_lost(&mut || false).unwrap();
    assert!(index.may_have_lost([&fingerprint(7)]));
    index.gather_lost(&mut || true).unwrap();
    assert!(!index.may_have_lost([&fingerprint(7)]) && index.may_have_lost([&fingerprint(3)]));
}

/// Once a chunk was healed while the set was gathered, something seemed lost for ever: damaged containers were not freed.
#[test]
fn regression_gathering_again_forgets_those_that_were_healed() {
    let (_disk, index) = empty(TINY);
    index.apply(1, &[insert(1, 1), insert(2, 1), lose(1, 1)]).unwrap();
    index.stage(&fingerprint(9), Location::Lost);
    index.stage(&fingerprint(9), Location::new(ContainerId(2), 10));
    index.gather_lost(&mut || true).unwrap();
    assert!(index.may_have_lost([&fingerprint(1)]) && !index.may_have_lost([&fingerprint(9)]));
    index.stage(&fingerprint(9), Location::Lost);
    index.stage(&fingerprint(9), Location::new(ContainerId(2), 10));
    index.apply(2, &[insert(1, 2)]).unwrap();
    assert!(index.has_lost() && index.lost() == 0);
    index.gather_lost(&mut || true).unwrap();
    assert!(!index.has_lost());
}
