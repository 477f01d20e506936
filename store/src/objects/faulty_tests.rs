//! Each fault does to a request what it says.

use super::*;
use crate::objects::MemoryObjects;

fn key(name: &str) -> Key {
    Key::new(name).expect("is a key")
}

fn faulty(plan: FaultPlan) -> (MemoryObjects, FaultyObjects) {
    let store = MemoryObjects::new();
    let objects = FaultyObjects::new(Arc::new(store.clone()));
    objects.add(plan);
    (store, objects)
}

fn create(objects: &dyn Objects, name: &str) -> Result<Created> {
    objects.create(&key(name), &[b"0123", b"4567"], Class::Content)
}

fn listed(objects: &dyn Objects) -> (Result<()>, Vec<String>) {
    let mut keys = Vec::new();
    let outcome = objects.list("", None, &mut |key, _| {
        keys.push(key.to_string());
        Ok(())
    });
    (outcome, keys)
}

#[test]
fn a_lost_request_did_not_happen_and_one_with_a_lost_answer_did() {
    for (fault, is_there) in [(Fault::Lost, false), (Fault::AnswerLost, true)] {
        let (store, objects) = faulty(FaultPlan::new(fault, 1));
        create(&objects, "first").expect("creates");
        assert!(create(&objects, "second").is_err_and(|error| error.is_unreachable()));
        assert_eq!(store.keys().contains(&key("second")), is_there);
        let again = if is_there { Created::Same } else { Created::New };
        assert_eq!(create(&objects, "second").expect("creates"), again);
        assert_eq!((objects.count(), objects.injected()), (3, 1));
    }
}

#[test]
fn a_late_request_happens_behind_others() {
    let (store, objects) = faulty(FaultPlan::new(Fault::Late(1), 0));
    assert!(create(&objects, "late").is_err());
    create(&objects, "other").expect("creates");
    assert_eq!(store.keys(), [key("other")]);
    objects.head(&key("other")).expect("looks up");
    assert_eq!(store.keys(), [key("late"), key("other")]);
    objects.heal();
    objects.add(FaultPlan::new(Fault::Late(1000), 0));
    assert!(objects.remove(&key("late")).is_err());
    assert_eq!(store.keys().len(), 2);
    // What is on its way happens all the same.
    objects.heal();
    assert_eq!(objects.head(&key("late")).expect("looks up"), None);
}

#[test]
fn a_repeated_request_gets_the_second_answer() {
    let (store, objects) = faulty(FaultPlan::new(Fault::Twice, 0));
    assert_eq!(create(&objects, "twice").expect("creates"), Created::Same);
    assert_eq!(store.keys(), [key("twice")]);
}

#[test]
fn reads_are_cut_and_damaged() {
    let cases: [(Fault, Option<&[u8]>); 4] = [
        (Fault::Cut, None),
        (Fault::CutUnseen, Some(b"0123")),
        (Fault::Damaged, Some(b"01235567")),
        (Fault::Refused, None),
    ];
    for (fault, expected) in cases {
        let (_store, objects) = faulty(FaultPlan::new(fault, 0).on(&[Request::Read]));
        create(&objects, "key").expect("creates");
        let mut body = b"before ".to_vec();
        let outcome = objects.read(&key("key"), None, &mut body);
        assert_eq!(outcome.is_ok(), expected.is_some(), "{fault:?}");
        assert_eq!(body, [b"before ", expected.unwrap_or_default()].concat(), "{fault:?}");
        body.clear();
        objects.read(&key("key"), None, &mut body).expect("reads");
        assert_eq!(body, b"01234567");
    }
}

#[test]
fn listings_are_late_and_cut() {
    let (_store, objects) = faulty(FaultPlan::new(Fault::ListLate(3), 0));
    for name in ["a", "b", "c", "d"] {
        create(&objects, name).expect("creates");
    }
    objects.remove(&key("a")).expect("removes");
    let (outcome, keys) = listed(&objects);
    outcome.expect("lists");
    assert_eq!(keys, ["a", "b"], "c and d came within three requests, and a went");
    assert_eq!(listed(&objects).1, ["b", "c", "d"]);
    for (fault, is_told) in [(Fault::Cut, true), (Fault::CutUnseen, false)] {
        objects.add(FaultPlan::new(fault, 0).on(&[Request::List]));
        let (outcome, keys) = listed(&objects);
        assert_eq!((outcome.is_err(), keys), (is_told, vec!["b".to_owned()]));
    }
}

#[test]
fn plans_are_restricted_to_keys_and_kinds() {
    let (_store, objects) = faulty(FaultPlan::new(Fault::Full, 1).key_contains("log/").lasting());
    create(&objects, "log/1").expect("creates");
    create(&objects, "c/1").expect("creates");
    for name in ["log/2", "log/3"] {
        assert!(matches!(create(&objects, name), Err(ObjectError::Full { .. })));
    }
    create(&objects, "c/2").expect("creates");
    objects.heal();
    create(&objects, "log/2").expect("creates");
}
