//! Every implementation keeps the contract, and the probe finds stores that do not.

use std::sync::Arc;

use dedupfs_sync::Mutex;

use super::probe::{Extent, Finding, Verdict, probe};
use super::*;
use crate::device::{FileDevice, MemoryDevice};

const SMALL: Extent = Extent { writers: 4, rounds: 20, long_bytes: 100_000 };

fn verdicts(objects: &dyn Objects) -> Vec<Finding> {
    probe(objects, "probe/1", SMALL).expect("probes")
}

#[test]
fn every_implementation_keeps_the_contract() {
    let scratch = tempfile::tempdir().expect("makes a directory");
    let files = FileDevice::open(scratch.path()).expect("opens");
    let memory = MemoryObjects::new();
    memory.set_now(dedupfs_sync::clock::since_epoch().as_secs());
    let all: [(&str, Arc<dyn Objects>); 5] = [
        ("memory", Arc::new(memory.clone())),
        ("a directory in memory", Arc::new(DirectoryObjects::new(Arc::new(MemoryDevice::new())).expect("opens"))),
        ("a directory", Arc::new(DirectoryObjects::new(Arc::new(files)).expect("opens"))),
        ("counting", Arc::new(CountingObjects::new(Arc::new(memory.clone())))),
        ("without faults", Arc::new(faulty::FaultyObjects::new(Arc::new(memory.clone())))),
    ];
    for (name, objects) in all {
        for finding in verdicts(&*objects) {
            assert_eq!(finding.verdict, Verdict::Kept, "{name}: {}", finding.promise);
        }
        let mut left = Vec::new();
        let mut note = |key, _| {
            left.push(key);
            Ok(())
        };
        objects.list("", None, &mut note).expect("lists");
        assert_eq!(left, [], "{name}: the probe leaves nothing");
    }
}

/// A sender that asks again while there is no answer, as that of S3 does.
#[derive(Debug)]
struct Persistent(faulty::FaultyObjects);

fn again<T>(mut ask: impl FnMut() -> Result<T>) -> Result<T> {
    match ask() {
        Err(ObjectError::Unreachable { .. }) => ask(),
        answer => answer,
    }
}

impl Objects for Persistent {
    fn create(&self, key: &Key, body: &[&[u8]], class: Class) -> Result<Created> {
        again(|| self.0.create(key, body, class))
    }
    fn read(&self, key: &Key, range: Option<Range<u64>>, into: &mut Vec<u8>) -> Result<()> {
        again(|| self.0.read(key, range.clone(), into))
    }
    fn head(&self, key: &Key) -> Result<Option<Head>> {
        again(|| self.0.head(key))
    }
    fn remove(&self, key: &Key) -> Result<Removed> {
        again(|| self.0.remove(key))
    }
    fn list(&self, prefix: &str, after: Option<&Key>, visit: &mut dyn FnMut(Key, Head) -> Result<()>) -> Result<()> {
        again(|| self.0.list(prefix, after, visit))
    }
    fn describe(&self) -> String {
        self.0.describe()
    }
}

/// A creation whose acknowledgement was lost looked as if no writer had succeeded.
#[test]
fn regression_a_lost_acknowledgement_does_not_make_a_store_broken() {
    for position in 0..120 {
        let memory = MemoryObjects::new();
        memory.set_now(dedupfs_sync::clock::since_epoch().as_secs());
        let faulty = faulty::FaultyObjects::new(Arc::new(memory));
        faulty.add(faulty::FaultPlan::new(faulty::Fault::AnswerLost, position));
        let extent = Extent { writers: 3, rounds: 4, long_bytes: 1000 };
        for finding in probe(&Persistent(faulty.clone()), "probe/1", extent).expect("probes") {
            assert_eq!(finding.verdict, Verdict::Kept, "answer {position} is lost: {}", finding.promise);
        }
        assert!(faulty.injected() == 1 || faulty.count() <= position, "answer {position}");
    }
}

/// How a store breaks the contract.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Breach {
    Overwrites,
    /// The condition is looked at before another writer has finished.
    ChecksEarly,
    AnswersTwice,
    RemembersAbsence,
    ForgetsRanges,
    KeepsRemoved,
    ListsLate,
    RunsAhead,
    Retains,
    RefusesRemovals,
}

/// A store that breaks the contract in one way.
#[derive(Debug)]
struct Breaching {
    inner: MemoryObjects,
    breach: Breach,
    absent: Mutex<Vec<Key>>,
}

impl Objects for Breaching {
    fn create(&self, key: &Key, body: &[&[u8]], class: Class) -> Result<Created> {
        let is_there = self.inner.head(key)?.is_some();
        match self.breach {
            Breach::Overwrites if is_there => {
                self.inner.replace(key, &body.concat());
                Ok(Created::Same)
            }
            Breach::ChecksEarly if !is_there => {
                std::thread::sleep(std::time::Duration::from_millis(2));
                self.inner.replace(key, &body.concat());
                Ok(Created::New)
            }
            Breach::AnswersTwice => self.inner.create(key, body, class).map(|_| Created::New),
            _ => self.inner.create(key, body, class),
        }
    }

    fn read(&self, key: &Key, range: Option<Range<u64>>, into: &mut Vec<u8>) -> Result<()> {
        self.inner.read(key, range.filter(|_| self.breach != Breach::ForgetsRanges), into)
    }

    fn head(&self, key: &Key) -> Result<Option<Head>> {
        if self.breach == Breach::RemembersAbsence {
            let mut absent = self.absent.lock();
            if absent.contains(key) {
                return Ok(None);
            }
            if self.inner.head(key)?.is_none() {
                absent.push(key.clone());
            }
        }
        self.inner.head(key)
    }

    fn remove(&self, key: &Key) -> Result<Removed> {
        match self.breach {
            Breach::KeepsRemoved => Ok(Removed::Gone),
            Breach::Retains => Ok(Removed::Retained),
            Breach::RefusesRemovals => {
                Err(ObjectError::Refused { operation: "remove", key: key.to_string(), reason: "a test".to_owned() })
            }
            _ => self.inner.remove(key),
        }
    }

    fn list(&self, prefix: &str, after: Option<&Key>, visit: &mut dyn FnMut(Key, Head) -> Result<()>) -> Result<()> {
        let mut skip = u64::from(self.breach == Breach::ListsLate);
        self.inner.list(prefix, after, &mut |key, head| match skip {
            0 => visit(key, head),
            _ => {
                skip -= 1;
                Ok(())
            }
        })
    }

    fn describe(&self) -> String {
        format!("a store with the breach {:?}", self.breach)
    }
}

#[test]
fn the_probe_finds_each_breach() {
    let cases = [
        (Breach::Overwrites, "an object that exists is not overwritten", true),
        (Breach::ChecksEarly, "of several writers of one object, one succeeds", true),
        (Breach::AnswersTwice, "an object that exists is not overwritten", true),
        (Breach::RemembersAbsence, "a created object is seen at once", true),
        (Breach::ForgetsRanges, "an object is read back, whole and in parts", true),
        (Breach::KeepsRemoved, "a removed object is gone at once, and its key is free", true),
        (Breach::ListsLate, "a listing has all objects, in order", false),
        (Breach::RunsAhead, "the store's clock is right, if it tells the time", false),
        (Breach::Retains, "a removed object is gone at once, and its key is free", false),
        (Breach::RefusesRemovals, "a removed object is gone at once, and its key is free", false),
    ];
    for (breach, promise, is_broken) in cases {
        let store = Breaching { inner: MemoryObjects::new(), breach, absent: Mutex::default() };
        let ahead_secs = if breach == Breach::RunsAhead { 3600 } else { 0 };
        store.inner.set_now(dedupfs_sync::clock::since_epoch().as_secs() + ahead_secs);
        let findings = verdicts(&store);
        let of = |promise: &str| &findings.iter().find(|found| found.promise == promise).expect("is probed").verdict;
        let found = of(promise);
        assert_eq!(matches!(found, Verdict::Broken(_)), is_broken, "{breach:?}: {found:?}");
        assert_eq!(matches!(found, Verdict::Noted(_)), !is_broken, "{breach:?}: {found:?}");
    }
}

#[test]
fn a_probe_of_a_store_out_of_reach_finds_nothing_out() {
    let counted = faulty::FaultyObjects::new(Arc::new(MemoryObjects::new()));
    probe(&counted, "probe/1", SMALL).expect("probes");
    for position in (0..counted.count()).step_by(7) {
        let store = MemoryObjects::new();
        let objects = faulty::FaultyObjects::new(Arc::new(store.clone()));
        objects.add(faulty::FaultPlan::new(faulty::Fault::Lost, position).lasting());
        match probe(&objects, "probe/1", SMALL) {
            Err(error) => assert!(error.is_unreachable(), "{error}"),
            // Only what tidies up failed.
            Ok(findings) => assert!(findings.iter().all(|finding| !matches!(finding.verdict, Verdict::Broken(_)))),
        }
    }
}

#[test]
fn requests_and_bytes_are_counted() {
    let objects = CountingObjects::new(Arc::new(MemoryObjects::new()));
    let key = Key::new("a/b").expect("is a key");
    objects.create(&key, &[b"12", b"345"], Class::Content).expect("creates");
    let before = objects.requests();
    let mut read = Vec::new();
    objects.read(&key, Some(1..3), &mut read).expect("reads");
    assert!(objects.read(&Key::new("c").expect("is a key"), None, &mut read).is_err());
    objects.head(&key).expect("looks up");
    objects.remove(&key).expect("removes");
    objects.list("", None, &mut |_, _| Ok(())).expect("lists");
    assert_eq!(before, Requests { creates: 1, created_bytes: 5, ..Requests::default() });
    let since = objects.requests().since(&before);
    assert_eq!(since, Requests { reads: 2, read_bytes: 2, heads: 1, removes: 1, lists: 1, ..Requests::default() });
    assert_eq!(objects.requests().count(), 6);
}

#[test]
fn an_object_that_is_too_long_is_refused() {
    let objects = MemoryObjects::new();
    let part = vec![0; 1 << 20];
    let body = vec![part.as_slice(); (OBJECT_BYTES_MAX >> 20) as usize + 1];
    let created = objects.create(&Key::new("long").expect("is a key"), &body, Class::Content);
    assert!(matches!(created, Err(ObjectError::Refused { .. })), "{created:?}");
    assert!(objects.keys().is_empty());
}

#[test]
fn a_memory_store_retains_fills_and_is_cold() {
    let objects = MemoryObjects::new();
    let key = Key::new("key").expect("is a key");
    objects.retain(10);
    objects.set_now(100);
    objects.create(&key, &[b"body"], Class::Content).expect("creates");
    objects.set_now(109);
    assert_eq!(objects.remove(&key).expect("answers"), Removed::Retained);
    objects.set_content_cold(true);
    assert!(matches!(objects.read(&key, None, &mut Vec::new()), Err(ObjectError::Cold { .. })));
    objects.set_capacity(5);
    let other = Key::new("other").expect("is a key");
    assert!(matches!(objects.create(&other, &[b"12"], Class::Content), Err(ObjectError::Full { .. })));
    objects.set_now(110);
    assert_eq!(objects.remove(&key).expect("answers"), Removed::Gone);
    assert_eq!(objects.create(&other, &[b"12"], Class::Content).expect("creates"), Created::New);
}
