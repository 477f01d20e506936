//! What is sealed is read back, and nothing else is.

use dedupfs_store::objects::faulty::{Fault, FaultPlan, FaultyObjects, Request};
use dedupfs_store::objects::probe::{Extent, Verdict, probe};
use dedupfs_store::objects::{CountingObjects, MemoryObjects};

use super::*;

const SECRET: [u8; 32] = [7; 32];

fn key(name: &str) -> Key {
    Key::new(name).expect("is a key")
}

fn sealed(store: &MemoryObjects) -> SealedObjects {
    SealedObjects::new(Arc::new(store.clone()), SealKey::new(&SECRET))
}

fn raw(store: &MemoryObjects, key: &Key) -> Vec<u8> {
    let mut bytes = Vec::new();
    store.read(key, None, &mut bytes).expect("reads");
    bytes
}

fn read(objects: &SealedObjects, name: &str, range: Option<Range<u64>>) -> Result<Vec<u8>> {
    let mut bytes = b"before".to_vec();
    let outcome = objects.read(&key(name), range, &mut bytes);
    let bytes = bytes.strip_prefix(b"before").expect("what was there stays").to_vec();
    assert!(outcome.is_ok() || bytes.is_empty(), "an error leaves no bytes");
    outcome.map(|()| bytes)
}

fn content(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at / 251 + at % 256) as u8).collect()
}

#[test]
fn a_sealed_store_keeps_the_contract() {
    let store = MemoryObjects::new();
    let extent = Extent { writers: 4, rounds: 10, long_bytes: 3 * SEGMENT_BYTES + 5 };
    for finding in probe(&sealed(&store), "probe/1", extent).expect("probes") {
        // The clock of the store in memory stands still.
        assert!(!matches!(finding.verdict, Verdict::Broken(_)), "{finding:?}");
    }
}

#[test]
fn lengths_and_ranges_around_segments_are_exact() {
    let store = MemoryObjects::new();
    let objects = sealed(&store);
    let segment = SEGMENT_BYTES;
    for len in [0, 1, segment - 1, segment, segment + 1, 2 * segment, 3 * segment + 17] {
        let (name, body) = (format!("o/{len}"), content(len));
        objects.create(&key(&name), &[&body[..len / 3], &body[len / 3..]], Class::Content).expect("creates");
        assert_eq!(objects.head(&key(&name)).expect("looks up").expect("is there").len_bytes, len as u64);
        assert_eq!(raw(&store, &key(&name)).len(), len + len.div_ceil(segment).max(1) * SEAL_BYTES);
        assert_eq!(read(&objects, &name, None).expect("reads"), body);
        let ends = [
            0,
            1,
            segment - 1,
            segment,
            segment + 1,
            2 * segment,
            len.saturating_sub(1),
            len,
            len + 1,
            9 * segment,
            usize::MAX / 2,
        ];
        for (start, end) in ends.iter().flat_map(|start| ends.iter().map(move |end| (*start, *end))) {
            let expected = body.get(start.min(len)..end.min(len)).unwrap_or_default();
            let found = read(&objects, &name, Some(start as u64..end as u64));
            assert_eq!(
                found.unwrap_or_else(|error| panic!("{start}..{end} of {len}: {error}")),
                expected,
                "{start}..{end} of {len}"
            );
        }
    }
    assert!(matches!(read(&objects, "absent", None), Err(ObjectError::Absent { .. })));
    assert!(matches!(read(&objects, "absent", Some(5..5)), Err(ObjectError::Absent { .. })));
}

#[test]
fn a_range_is_one_request_for_its_segments() {
    let store = MemoryObjects::new();
    sealed(&store).create(&key("o"), &[&content(10 * SEGMENT_BYTES)], Class::Content).expect("creates");
    let counting = CountingObjects::new(Arc::new(store));
    let objects = SealedObjects::new(Arc::new(counting.clone()), SealKey::new(&SECRET));
    let start = 3 * SEGMENT_BYTES as u64 + 100;
    read(&objects, "o", Some(start..start + 10)).expect("reads");
    let requests = counting.requests();
    assert_eq!((requests.count(), requests.read_bytes), (1, SEALED_BYTES as u64));
}

#[test]
fn content_created_again_is_the_same_and_other_content_is_foreign() {
    let store = MemoryObjects::new();
    let body = content(100_000);
    assert_eq!(sealed(&store).create(&key("o"), &[&body], Class::Content).expect("creates"), Created::New);
    let before = raw(&store, &key("o"));
    assert_eq!(sealed(&store).create(&key("o"), &[&body], Class::Content).expect("answers"), Created::Same);
    assert!(matches!(sealed(&store).create(&key("o"), &[b"other"], Class::Content), Err(ObjectError::Foreign { .. })));
    let other = SealedObjects::new(Arc::new(store.clone()), SealKey::new(&[8; 32]));
    assert!(matches!(other.create(&key("o"), &[&body], Class::Content), Err(ObjectError::Foreign { .. })));
    assert_eq!(raw(&store, &key("o")), before);
    // Each creation has nonces of its own.
    sealed(&store).create(&key("p"), &[&body], Class::Content).expect("creates");
    store.forget(&key("p"));
    let first = raw(&store, &key("o"));
    store.forget(&key("o"));
    sealed(&store).create(&key("o"), &[&body], Class::Content).expect("creates");
    assert_ne!(raw(&store, &key("o")), first);
    assert!(!raw(&store, &key("o")).windows(16).any(|window| window == &body[..16]), "the content cannot be seen");
}

/// Every change of the sealed bytes is found: flipped, cut, moved, repeated, of another object, of another key.
#[test]
fn changed_objects_are_damaged() {
    let store = MemoryObjects::new();
    let objects = sealed(&store);
    let body = content(2 * SEGMENT_BYTES + 1000);
    for name in ["o", "other"] {
        objects.create(&key(name), &[&body], Class::Content).expect("creates");
    }
    let good = raw(&store, &key("o"));
    let is_damaged = |bytes: &[u8], what: &str| {
        store.replace(&key("o"), bytes);
        for range in [None, Some(0..body.len() as u64)] {
            let found = read(&objects, "o", range);
            assert!(matches!(found, Err(ObjectError::Damaged { .. })), "{what}: {found:?}");
        }
    };
    for at in [0, NONCE_LEN, SEALED_BYTES - 1, SEALED_BYTES, good.len() - 1] {
        let mut bytes = good.clone();
        bytes[at] ^= 1;
        is_damaged(&bytes, &format!("byte {at}"));
    }
    for len in
        [1, NONCE_LEN, SEAL_BYTES, SEALED_BYTES - 1, SEALED_BYTES, SEALED_BYTES + 1, 2 * SEALED_BYTES, good.len() - 1]
    {
        is_damaged(&good[..len], &format!("{len} bytes are left"));
    }
    let (first, rest) = good.split_at(SEALED_BYTES);
    let (second, last) = rest.split_at(SEALED_BYTES);
    is_damaged(&[second, first, last].concat(), "swapped");
    is_damaged(&[first, first, last].concat(), "repeated");
    is_damaged(&[first, last].concat(), "left out");
    is_damaged(last, "only the last");
    is_damaged(&[&good, last].concat(), "the last twice");
    is_damaged(&[good.as_slice(), b"x"].concat(), "a byte more");
    is_damaged(&raw(&store, &key("other")), "of another object");
    store.replace(&key("o"), b"");
    assert!(matches!(read(&objects, "o", None), Err(ObjectError::Damaged { .. })), "emptied");
    store.replace(&key("o"), &good);
    assert_eq!(read(&objects, "o", None).expect("reads"), body);
    let other_key = SealedObjects::new(Arc::new(store.clone()), SealKey::new(&[8; 32]));
    assert!(matches!(read(&other_key, "o", None), Err(ObjectError::Damaged { .. })));
}

#[test]
fn an_answer_that_is_cut_or_damaged_on_its_way_is_found() {
    let store = MemoryObjects::new();
    sealed(&store).create(&key("o"), &[&content(4 * SEGMENT_BYTES)], Class::Content).expect("creates");
    for fault in [Fault::CutUnseen, Fault::Damaged] {
        for range in [None, Some(0..2 * SEGMENT_BYTES as u64), Some(100..200)] {
            let faulty = FaultyObjects::new(Arc::new(store.clone()));
            faulty.add(FaultPlan::new(fault, 0).on(&[Request::Read]));
            let objects = SealedObjects::new(Arc::new(faulty), SealKey::new(&SECRET));
            let found = read(&objects, "o", range.clone());
            assert!(matches!(found, Err(ObjectError::Damaged { .. })), "{fault:?} {range:?}: {found:?}");
        }
    }
}

#[test]
fn an_object_that_is_too_long_to_be_sealed_is_refused() {
    let part = vec![0; 1 << 20];
    let longest = (PLAIN_BYTES_MAX >> 20) as usize;
    assert!(longest >= 64, "a container of the greatest size fits");
    let created = sealed(&MemoryObjects::new()).create(&key("o"), &vec![part.as_slice(); longest + 1], Class::Content);
    assert!(matches!(created, Err(ObjectError::Refused { .. })), "{created:?}");
}
