//! Tests of the cache alone; `tests::locality` tests it within the index.

use dedupfs_store::{ContainerId, Fingerprint};

use super::*;
use crate::cell::Location;
use crate::tests::fingerprint;

fn prints(container: u64, many: u64) -> Vec<(Fingerprint, u32)> {
    (0..many).map(|number| (fingerprint(container * 1000 + number), number as u32)).collect()
}

fn found(cache: &LocalityCache, container: u64, many: u64) -> usize {
    let wanted = prints(container, many);
    let mut right = 0;
    cache.find_many((0..).zip(wanted.iter().map(|(print, _)| print)), |number, location| {
        assert_eq!(location, Location::new(ContainerId(container), number));
        right += 1;
    });
    right
}

#[test]
fn containers_used_longest_ago_go_first_and_memory_is_bounded() {
    let limit_bytes = 100_000;
    let cache = LocalityCache::new(limit_bytes);
    for container in 1..200 {
        cache.insert(0, ContainerId(container), prints(container, 300), vec![1]);
        assert!(found(&cache, container, 300) >= 295, "all but what shares its set with too many");
        assert!(cache.sizes().bytes <= limit_bytes);
        // The first container stays in constant use.
        assert!(found(&cache, 1, 300) > 200, "round {container}");
    }
    assert!((4..8).contains(&cache.sizes().containers), "{:?}", cache.sizes());
    assert_eq!(found(&cache, 100, 300), 0);
}

#[test]
fn what_was_checked_against_an_older_set_is_refused() {
    let cache = LocalityCache::new(100_000);
    cache.insert(0, ContainerId(1), prints(1, 10), vec![7]);
    cache.insert(0, ContainerId(2), prints(2, 10), vec![8, 9]);
    cache.begin_epoch(1, |tanker| tanker == 9);
    assert_eq!((found(&cache, 1, 10), found(&cache, 2, 10)), (10, 0));
    cache.insert(0, ContainerId(2), prints(2, 10), vec![8, 9]);
    assert_eq!(found(&cache, 2, 10), 0, "a late reader");
    cache.insert(1, ContainerId(2), prints(2, 10), vec![8, 9]);
    assert_eq!(found(&cache, 2, 10), 10);
}

#[test]
fn tables_are_read_when_a_stream_goes_on_and_not_at_random() {
    let cache = LocalityCache::new(100_000);
    let id = |number| Some(ContainerId(number));
    assert_eq!(cache.note_hit(ContainerId(10)), [None; 2]);
    assert_eq!(cache.note_hit(ContainerId(50)), [None; 2]);
    assert_eq!(cache.note_hit(ContainerId(10)), [id(10), None], "the second hit");
    cache.insert(0, ContainerId(10), prints(10, 50), vec![1]);
    assert_eq!(cache.note_hit(ContainerId(10)), [None; 2], "it is here");
    assert_eq!(found(&cache, 10, 3), 3);
    assert_eq!(cache.note_hit(ContainerId(11)), [None; 2], "three of fifty may be chance");
    assert_eq!(found(&cache, 10, 50), 50);
    assert_eq!(cache.note_hit(ContainerId(11)), [id(11), id(12)], "the second hit and a stream");
    let cache = LocalityCache::new(100_000);
    cache.insert(0, ContainerId(10), prints(10, 50), vec![1]);
    assert_eq!(found(&cache, 10, 50), 50);
    assert_eq!(cache.note_hit(ContainerId(11)), [id(11), id(12)], "the stream goes on");
    assert_eq!(cache.note_hit(ContainerId(14)), [id(14), id(15)], "streams take turns");
    assert_eq!(cache.note_hit(ContainerId(15)), [None; 2]);
    assert_eq!(cache.note_hit(ContainerId(9)), [None; 2], "not backwards");
}

#[test]
fn a_cache_without_memory_keeps_nothing() {
    for limit_bytes in [0, 1000] {
        let cache = LocalityCache::new(limit_bytes);
        cache.insert(0, ContainerId(1), prints(1, 5), vec![1]);
        assert_eq!((found(&cache, 1, 5), cache.sizes().bytes, cache.is_enabled()), (0, 0, false));
    }
    let cache = LocalityCache::new(20_000);
    cache.insert(0, ContainerId(1), prints(1, 999), vec![1]);
    assert_eq!(found(&cache, 1, 999), 0, "larger than all of it");
    // Containers of one chunk each use up the slots.
    for container in 0..2000 {
        cache.insert(0, ContainerId(container), prints(container, 1), vec![1]);
        assert!(cache.sizes().bytes <= 20_000);
    }
}

/// Each hit in a container with very many small chunks read its whole table: a put took 100 s instead of one.
#[test]
fn regression_a_container_that_is_too_large_is_asked_for_once() {
    let cache = LocalityCache::new(100_000);
    let many = 2 * 100_000 / 52;
    cache.note_hit(ContainerId(10));
    assert_eq!(cache.note_hit(ContainerId(10)), [Some(ContainerId(10)), None], "the second hit");
    cache.insert(0, ContainerId(10), prints(10, many), vec![1]);
    assert_eq!(cache.note_hit(ContainerId(10)), [None; 2]);
    // Another state of the index may have fewer of its chunks.
    cache.begin_epoch(1, |_| false);
    assert_eq!(cache.note_hit(ContainerId(10)), [Some(ContainerId(10)), None]);
}
