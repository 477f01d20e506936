use std::sync::Arc;

use dedupfs_store::recipe::{Child, Root};
use dedupfs_store::{ContainerId, Fingerprint};

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

#[test]
fn roots_pin_their_node_or_chunk_until_the_last_pin_ends() {
    let pins = Arc::new(Pins::default());
    let child = |print| Child { fingerprint: Fingerprint([print; 32]), len_bytes: 9, hint: ContainerId::NONE };
    let (chunk, node) = (Root::Chunk(child(1)), Root::Node { level: 1, child: child(2) });
    assert!(pins.pin_root(&Root::Empty).is_none() && pins.pin_root(&Root::Zero { len_bytes: 5 }).is_none());
    let held = [pins.pin_root(&chunk), pins.pin_root(&chunk), pins.pin_root(&node)];
    let [print, other] = [Fingerprint([1; 32]), Fingerprint([2; 32])];
    assert!(
        pins.pinned_chunks() == [print].into() && !pins.is_pinned(&print),
        "chunks and nodes have names of their own"
    );
    assert!(pins.is_pinned(&other) && !pins.claim(other));
    let [first, second, third] = held;
    drop((first, third));
    assert!(pins.pinned_chunks() == [print].into() && pins.claim(other));
    drop(second);
    assert!(pins.pinned_chunks().is_empty());
}
