//! Objects in files: whole after every crash, durable once they were acknowledged, created once by several writers.

use super::*;
use crate::device::MemoryDevice;
use crate::device::faulty::{Fault, FaultPlan, FaultyDevice, Operation};

fn key(name: &str) -> Key {
    Key::new(name).expect("is a key")
}

fn over(device: Arc<dyn Device>) -> DirectoryObjects {
    DirectoryObjects::new(device).expect("opens")
}

fn read(objects: &DirectoryObjects, key: &Key) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    match objects.read(key, None, &mut body) {
        Ok(()) => Some(body),
        Err(ObjectError::Absent { .. }) => None,
        Err(error) => panic!("{error}"),
    }
}

fn listed(objects: &DirectoryObjects, prefix: &str, after: Option<&Key>) -> Vec<String> {
    let mut keys = Vec::new();
    let mut note = |key: Key, _| {
        keys.push(key.to_string());
        Ok(())
    };
    objects.list(prefix, after, &mut note).expect("lists");
    keys
}

/// Creates and removes objects until an operation fails. Returns the acknowledged changes.
fn work(objects: &DirectoryObjects) -> Vec<(String, bool)> {
    let mut done = Vec::new();
    for (name, is_creation) in
        [("a", true), ("c/1/x", true), ("c/1/y", true), ("c/1/x", false), ("c/1/x", true), ("d/2", true)]
    {
        let half = name.repeat(350);
        let body = [half.as_bytes(); 2];
        let outcome = match is_creation {
            true => objects.create(&key(name), &body, Class::Content).map(drop),
            false => objects.remove(&key(name)).map(drop),
        };
        if outcome.is_err() {
            break;
        }
        done.push((name.to_owned(), is_creation));
    }
    done
}

fn check(objects: &DirectoryObjects, done: &[(String, bool)], what: &str) {
    for name in ["a", "c/1/x", "c/1/y", "d/2"] {
        let found = read(objects, &key(name));
        if let Some(body) = &found {
            assert_eq!(*body, name.repeat(700).into_bytes(), "{what}: {name} is whole");
        }
        let last = done.iter().rev().find(|(changed, _)| changed == name);
        // The change behind the acknowledged ones may have happened or not.
        let is_open = done.len() < 6
            && [("a", 0), ("c/1/x", 1), ("c/1/y", 2), ("c/1/x", 3), ("c/1/x", 4), ("d/2", 5)][done.len()].0 == name;
        if !is_open {
            assert_eq!(found.is_some(), last.is_some_and(|(_, is_there)| *is_there), "{what}: {name} behind {done:?}");
        }
    }
}

#[test]
fn an_acknowledged_change_survives_and_none_is_seen_in_part() {
    let counted = FaultyDevice::over_memory(&MemoryDevice::new());
    assert_eq!(work(&over(Arc::new(counted.clone()))).len(), 6);
    for fault in [Fault::Io, Fault::NoSpace, Fault::ShortWrite, Fault::NotFound] {
        for position in 0..counted.operations() {
            for seed in 0..6 {
                let memory = MemoryDevice::new();
                let device = FaultyDevice::over_memory(&memory);
                device.add(FaultPlan::new(fault, position).on(&Operation::ALL).lasting());
                let done = work(&over(Arc::new(device)));
                let crashed = memory.crash(seed);
                let (what, after) = (format!("{fault:?} at {position}, crash {seed}"), over(Arc::new(crashed)));
                check(&after, &done, &what);
                assert_eq!(work(&after).len(), 6, "{what}: goes on");
                check(&after, &work(&after), &what);
            }
        }
    }
}

#[test]
fn one_failure_is_passed_over_by_trying_again() {
    let counted = FaultyDevice::over_memory(&MemoryDevice::new());
    work(&over(Arc::new(counted.clone())));
    for position in 0..counted.operations() {
        let memory = MemoryDevice::new();
        let device = FaultyDevice::over_memory(&memory).losing_names();
        device.add(FaultPlan::new(Fault::Io, position));
        let objects = over(Arc::new(device.clone()));
        let first = work(&objects);
        let again = work(&objects);
        check(
            &over(Arc::new(memory.crash(position))),
            if again.is_empty() { &first } else { &again },
            &format!("fault at {position}"),
        );
        // Names that were given up make every later acknowledgement worthless.
        let is_spoilt = objects.is_spoilt.load(Ordering::Relaxed);
        assert_eq!(again.len() == 6, !is_spoilt, "fault at {position}: {again:?}");
    }
}

#[test]
fn two_writers_of_one_directory_create_an_object_once() {
    let device = MemoryDevice::new();
    let (one, other) = (over(Arc::new(device.clone())), over(Arc::new(device.clone())));
    assert_eq!(one.create(&key("log/1"), &[b"mine"], Class::Metadata).expect("creates"), Created::New);
    assert!(matches!(other.create(&key("log/1"), &[b"its"], Class::Metadata), Err(ObjectError::Foreign { .. })));
    assert_eq!(other.create(&key("log/1"), &[b"mi", b"ne"], Class::Metadata).expect("answers"), Created::Same);
    assert_eq!(read(&other, &key("log/1")).as_deref(), Some(&b"mine"[..]));
    // One that the other finds behind a crash is durable once it has answered.
    let crashed = over(Arc::new(device.crash(1)));
    assert_eq!(read(&crashed, &key("log/1")).as_deref(), Some(&b"mine"[..]));
}

#[test]
fn a_listing_is_in_the_order_of_keys() {
    let objects = over(Arc::new(MemoryDevice::new()));
    let names = ["a", "a-b", "a-b/c", "a/b", "a/b-c", "a/b/c", "a0", "b/0/1", "b/1/0"];
    // A key may be the head of another one in a store, but not in a directory.
    let names: Vec<&str> = names.into_iter().filter(|name| !["a", "a-b", "a/b"].contains(name)).collect();
    for name in names.iter().rev() {
        objects.create(&key(name), &[name.as_bytes()], Class::Content).expect("creates");
    }
    let expected = |prefix: &str, after: &str| -> Vec<&str> {
        names.iter().copied().filter(|name| name.starts_with(prefix) && *name > after).collect()
    };
    for prefix in ["", "a", "a/", "a/b", "a/b/", "b/1", "c", "a-b/c"] {
        assert_eq!(listed(&objects, prefix, None), expected(prefix, ""));
        for after in names.iter().copied().chain(["a/b/b", "b/0", "0", "z"]) {
            assert_eq!(listed(&objects, prefix, Some(&key(after))), expected(prefix, after), "{prefix} behind {after}");
        }
    }
}

#[test]
fn unfinished_files_are_not_listed_and_go_in_the_end() {
    let device = MemoryDevice::new();
    let objects = over(Arc::new(device.clone()));
    objects.create(&key("c/1"), &[b"body"], Class::Content).expect("creates");
    let path = |age_secs: u64| format!("c/2{UNFINISHED}{:x}-77-0", now_secs() - age_secs);
    let (young, old) = (path(UNFINISHED_SECS - 100), path(UNFINISHED_SECS + 100));
    for path in [&young, &old, &"c/2.new-x".to_owned(), &"c/other.file".to_owned()] {
        device.open(path, OpenMode::CreateNew).expect("creates");
    }
    assert_eq!(listed(&objects, "", None), ["c/1"]);
    assert!(!device.exists(&old).expect("answers"));
    for path in [young.as_str(), "c/2.new-x", "c/other.file"] {
        assert!(device.exists(path).expect("answers"), "{path}");
    }
}

#[test]
fn a_file_that_is_too_long_is_not_read() {
    let device = MemoryDevice::new();
    let objects = over(Arc::new(device.clone()));
    device
        .open("long", OpenMode::CreateNew)
        .and_then(|file| file.set_len(super::super::OBJECT_BYTES_MAX + 1))
        .expect("creates");
    assert!(matches!(objects.read(&key("long"), None, &mut Vec::new()), Err(ObjectError::Damaged { .. })));
    let mut part = Vec::new();
    objects.read(&key("long"), Some(0..10), &mut part).expect("reads a part");
    assert_eq!(part, [0; 10]);
}

#[test]
fn a_directory_that_somebody_removed_is_made_again() {
    let scratch = tempfile::tempdir().expect("makes a directory");
    let objects = over(Arc::new(crate::device::FileDevice::open(scratch.path()).expect("opens")));
    objects.create(&key("c/1/x"), &[b"body"], Class::Content).expect("creates");
    std::fs::remove_dir_all(scratch.path().join("c")).expect("removes");
    let _may_fail = objects.create(&key("c/1/x"), &[b"body"], Class::Content);
    objects.create(&key("c/1/x"), &[b"body"], Class::Content).expect("creates");
    assert_eq!(read(&objects, &key("c/1/x")).as_deref(), Some(&b"body"[..]));
}
