use std::sync::Arc;

use dedupfs_store::Fingerprint;

use super::Pins;

#[test]
fn claiming_and_pinning_exclude_each_other() {
    let pins = Arc::new(Pins::default());
    let print = Fingerprint([1; 32]);
    let first = pins.pin_existing(print).expect("nothing is claimed");
    let second = pins.pin_existing(print).expect("pins are shared");
    assert!(!pins.claim(print));
    drop(first);
    assert!(!pins.claim(print), "the second pin still holds");
    drop(second);
    assert!(pins.claim(print));
    assert!(pins.pin_existing(print).is_none());
    let stored_again = pins.pin_new(print);
    assert!(pins.is_pinned(&print));
    drop(stored_again);
    pins.release_claims();
    assert!(pins.pin_existing(print).is_some());
}
