//! Encrypted objects are read back, and nothing else is.

use dedupfs_store::objects::faulty::{Fault, FaultPlan, FaultyObjects, Request};
use dedupfs_store::objects::probe::{Extent, Verdict, probe};
use dedupfs_store::objects::{CountingObjects, MemoryObjects};

use super::*;

const SECRET: [u8; 32] = [7; 32];

fn key(name: &str) -> Key {
    Key::new(name).expect("is a key")
}

fn encrypted(store: &MemoryObjects) -> EncryptedObjects {
    EncryptedObjects::new(Arc::new(store.clone()), Secret::new(&SECRET))
}

fn raw(store: &MemoryObjects, key: &Key) -> Vec<u8> {
    let mut bytes = Vec::new();
    store.read(key, None, &mut bytes).expect("reads");
    bytes
}

fn read(objects: &EncryptedObjects, name: &str, range: Option<Range<u64>>) -> Result<Vec<u8>> {
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
fn an_encrypted_store_keeps_the_contract() {
    let store = MemoryObjects::new();
    store.set_now(std::time::UNIX_EPOCH.elapsed().expect("is later").as_secs());
    let extent = Extent { writers: 4, rounds: 10, long_bytes: 3 * SLICE_BYTES + 5 };
    for finding in probe(&encrypted(&store), "probe/1", extent).expect("probes") {
        assert_eq!(finding.verdict, Verdict::Kept, "{}", finding.promise);
    }
}

#[test]
fn lengths_and_ranges_around_slices_are_exact() {
    let store = MemoryObjects::new();
    let objects = encrypted(&store);
    let slice = SLICE_BYTES;
    for len in [0, 1, slice - 1, slice, slice + 1, 2 * slice, 3 * slice + 17] {
        let (name, body) = (format!("o/{len}"), content(len));
        objects.create(&key(&name), &[&body[..len / 3], &body[len / 3..]], Class::Content).expect("creates");
        assert_eq!(objects.head(&key(&name)).expect("looks up").expect("is there").len_bytes, len as u64);
        assert_eq!(raw(&store, &key(&name)).len(), len + len.div_ceil(slice).max(1) * ADDED_BYTES);
        assert_eq!(read(&objects, &name, None).expect("reads"), body);
        let ends = [
            0,
            1,
            slice - 1,
            slice,
            slice + 1,
            2 * slice,
            len.saturating_sub(1),
            len,
            len + 1,
            9 * slice,
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
fn a_range_is_one_request_for_its_slices() {
    let store = MemoryObjects::new();
    encrypted(&store).create(&key("o"), &[&content(10 * SLICE_BYTES)], Class::Content).expect("creates");
    let counting = CountingObjects::new(Arc::new(store));
    let objects = EncryptedObjects::new(Arc::new(counting.clone()), Secret::new(&SECRET));
    let start = 3 * SLICE_BYTES as u64 + 100;
    read(&objects, "o", Some(start..start + 10)).expect("reads");
    let requests = counting.requests();
    assert_eq!((requests.count(), requests.read_bytes), (1, ENCRYPTED_BYTES as u64));
}

#[test]
fn content_created_again_is_the_same_and_other_content_is_foreign() {
    let store = MemoryObjects::new();
    let body = content(100_000);
    assert_eq!(encrypted(&store).create(&key("o"), &[&body], Class::Content).expect("creates"), Created::New);
    let before = raw(&store, &key("o"));
    assert_eq!(encrypted(&store).create(&key("o"), &[&body], Class::Content).expect("answers"), Created::Same);
    assert!(matches!(
        encrypted(&store).create(&key("o"), &[b"other"], Class::Content),
        Err(ObjectError::Foreign { .. })
    ));
    let other = EncryptedObjects::new(Arc::new(store.clone()), Secret::new(&[8; 32]));
    assert!(matches!(other.create(&key("o"), &[&body], Class::Content), Err(ObjectError::Foreign { .. })));
    assert_eq!(raw(&store, &key("o")), before);
    // Each creation has nonces of its own.
    let first = raw(&store, &key("o"));
    store.remove_by_hand(&key("o"));
    encrypted(&store).create(&key("o"), &[&body], Class::Content).expect("creates");
    assert_ne!(raw(&store, &key("o")), first);
    assert!(!raw(&store, &key("o")).windows(16).any(|window| window == &body[..16]), "the content cannot be seen");
}

/// Every change of the encrypted bytes is found: flipped, cut, moved, repeated, of another object, of another key.
#[test]
fn changed_objects_are_damaged() {
    let store = MemoryObjects::new();
    let objects = encrypted(&store);
    let body = content(2 * SLICE_BYTES + 1000);
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
    for at in [0, NONCE_LEN, ENCRYPTED_BYTES - 1, ENCRYPTED_BYTES, good.len() - 1] {
        let mut bytes = good.clone();
        bytes[at] ^= 1;
        is_damaged(&bytes, &format!("byte {at}"));
    }
    for len in [
        1,
        NONCE_LEN,
        ADDED_BYTES,
        ENCRYPTED_BYTES - 1,
        ENCRYPTED_BYTES,
        ENCRYPTED_BYTES + 1,
        2 * ENCRYPTED_BYTES,
        good.len() - 1,
    ] {
        is_damaged(&good[..len], &format!("{len} bytes are left"));
    }
    let (first, rest) = good.split_at(ENCRYPTED_BYTES);
    let (second, last) = rest.split_at(ENCRYPTED_BYTES);
    is_damaged(&[second, first, last].concat(), "swapped");
    is_damaged(&[first, first, last].concat(), "repeated");
    is_damaged(&[first, last].concat(), "left out");
    is_damaged(last, "only the last");
    is_damaged(&[&good, last].concat(), "the last twice");
    is_damaged(&[good.as_slice(), b"x"].concat(), "a byte more");
    is_damaged(&raw(&store, &key("other")), "of another object");
    // Of another creation of the same object.
    store.remove_by_hand(&key("o"));
    objects.create(&key("o"), &[&body], Class::Content).expect("creates");
    let other_creation = raw(&store, &key("o"));
    let (again, _) = other_creation.split_at(ENCRYPTED_BYTES);
    is_damaged(&[again, second, last].concat(), "of two creations");
    is_damaged(b"", "emptied");
    // A range that begins behind the bytes that are left: nothing proves that the object ends there.
    for len in [0, ENCRYPTED_BYTES, 2 * ENCRYPTED_BYTES] {
        store.replace(&key("o"), &good[..len]);
        let found = read(&objects, "o", Some(2 * SLICE_BYTES as u64..body.len() as u64));
        assert!(matches!(found, Err(ObjectError::Damaged { .. })), "{len} bytes are left: {found:?}");
    }
    store.replace(&key("o"), &good);
    assert_eq!(read(&objects, "o", None).expect("reads"), body);
    let other_key = EncryptedObjects::new(Arc::new(store.clone()), Secret::new(&[8; 32]));
    assert!(matches!(read(&other_key, "o", None), Err(ObjectError::Damaged { .. })));
}

#[test]
fn an_answer_that_is_cut_or_damaged_on_its_way_is_found() {
    let store = MemoryObjects::new();
    encrypted(&store).create(&key("o"), &[&content(4 * SLICE_BYTES)], Class::Content).expect("creates");
    for fault in [Fault::CutUnseen, Fault::Damaged] {
        for range in [None, Some(0..2 * SLICE_BYTES as u64), Some(100..200)] {
            let faulty = FaultyObjects::new(Arc::new(store.clone()));
            faulty.add(FaultPlan::new(fault, 0).on(&[Request::Read]));
            let objects = EncryptedObjects::new(Arc::new(faulty), Secret::new(&SECRET));
            let found = read(&objects, "o", range.clone());
            assert!(matches!(found, Err(ObjectError::Damaged { .. })), "{fault:?} {range:?}: {found:?}");
        }
    }
}

#[test]
fn an_object_that_is_too_long_to_be_encrypted_is_refused() {
    let part = vec![0; 1 << 20];
    let longest = (PLAIN_BYTES_MAX >> 20) as usize;
    assert!(longest >= 64, "a container of the greatest size fits");
    let created =
        encrypted(&MemoryObjects::new()).create(&key("o"), &vec![part.as_slice(); longest + 1], Class::Content);
    assert!(matches!(created, Err(ObjectError::Refused { .. })), "{created:?}");
}
