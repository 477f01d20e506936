//! Power loss leaves the old or the new commit, never a mixture.

use std::sync::Mutex as StdMutex;

use dedupfs_store::device::faulty::{Fault, FaultPlan, Operation};

use super::*;

const ROOT: Ino = ROOT_INO;

fn work(namespace: &Namespace, round: u8) {
    for number in 0..60_u32 {
        let name = format!("{round}-{number}");
        let ino = namespace.make(ROOT, name.as_bytes(), &file(i64::from(round))).unwrap().ino;
        namespace.set_root(ino, chunk(round + 1), 100, 100, &mut kept).unwrap();
        if round > 0 {
            let from = format!("{}-{number}", round - 1);
            let to = format!("kept-{}-{number}", round - 1);
            namespace.rename(ROOT, from.as_bytes(), ROOT, to.as_bytes(), NONE, at(7)).unwrap();
        }
    }
}

type Picture = (Vec<DirItem>, Totals, Vec<(u64, Vec<LogOp>)>);

fn picture(namespace: &Namespace) -> Picture {
    (namespace.list(ROOT, 64), namespace.totals(), namespace.rows())
}

#[test]
fn what_was_not_committed_is_lost_and_nothing_else() {
    let disk = disk();
    let namespace = open(&disk);
    let mut committed = picture(&namespace);
    for round in 0..6 {
        work(&namespace, round);
        for seed in 0..4 {
            let again = open(&disk.crash(seed));
            assert_eq!(picture(&again), committed, "round {round}, seed {seed}");
            again.assert_sound();
        }
        namespace.save().unwrap();
        committed = picture(&namespace);
    }
}

/// Cuts the power at every write, sync and length change of a commit: that operation and all later ones fail.
#[test]
fn a_crash_within_a_commit_gives_the_old_or_the_new_state() {
    let kinds = [Operation::Write, Operation::Sync, Operation::SetLen];
    let (mut olds, mut news) = (0, 0);
    for position in 0.. {
        let disk = disk();
        let (device, namespace) = faulty(&disk);
        work(&namespace, 0);
        namespace.save().unwrap();
        let old = picture(&namespace);
        work(&namespace, 1);
        let new_names = namespace.list(ROOT, 64);
        device.add(FaultPlan::new(Fault::Io, position).on(&kinds).lasting());
        let finished = namespace.save().is_ok();
        for seed in 0..6 {
            let again = open(&disk.crash(seed));
            again.assert_sound();
            let found = picture(&again);
            if found == old {
                olds += 1;
                assert!(!finished, "what commit acknowledged is there");
            } else {
                news += 1;
                assert_eq!(found.0, new_names, "position {position}, seed {seed}: a mixture");
                assert_eq!(found.2.len(), old.2.len() + 1, "the log row came with it");
            }
        }
        if finished {
            break;
        }
    }
    assert!(olds > 0 && news > 0, "{olds} old, {news} new");
}

/// Another thread commits while the power is cut at arbitrary moments.
#[test]
fn a_crash_at_any_moment_gives_some_commit() {
    let disk = disk();
    let namespace = open(&disk);
    let pictures = StdMutex::new(vec![picture(&namespace).0]);
    std::thread::scope(|scope| {
        let committer = scope.spawn(|| {
            for round in 0..8 {
                work(&namespace, round);
                pictures.lock().unwrap().push(namespace.list(ROOT, 64));
                namespace.save().unwrap();
            }
        });
        let mut seed = 0;
        while !committer.is_finished() {
            seed += 1;
            let oldest = namespace.last_row() as usize;
            let again = open(&disk.crash(seed));
            again.assert_sound();
            let found = again.list(ROOT, 64);
            let pictures = pictures.lock().unwrap();
            let position = pictures.iter().position(|picture| *picture == found);
            assert!(position.is_some_and(|position| position >= oldest), "{position:?} of at least {oldest}");
        }
    });
}

#[test]
fn creation_is_durable_and_needs_an_absent_file() {
    let disk = disk();
    assert!(Namespace::create(&disk, at(1), 0, 0).is_err());
    let again = open(&disk.crash(0));
    again.assert_sound();
    assert!(Namespace::open(&MemoryDevice::new(), CACHE_BYTES, &|_| Ok(())).is_err());
}
