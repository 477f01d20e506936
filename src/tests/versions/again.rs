//! Snapshots of a directory of which an earlier snapshot was made: what they take over is what they would read.

use dedupfs::{Pool, VersionReport};
use dedupfs_service::{
    AttributeChanges, FileKind, FileService, Ino, Listing, NodeContent, ROOT_INO, RenameFlags, XattrMode,
};

use super::site::*;
use crate::tests::scrub::Random;

/// Directories and names are few, so that changes meet.
const NAMES: u64 = 7;

/// All directories below one, itself included.
fn directories(pool: &Pool, top: Ino) -> Vec<Ino> {
    let mut found = vec![top];
    let mut at = 0;
    while let Some(&directory) = found.get(at) {
        found.extend(
            entries(pool, directory)
                .into_iter()
                .filter(|(_, _, kind)| *kind == FileKind::Directory)
                .map(|entry| entry.1),
        );
        at += 1;
    }
    found
}

fn entries(pool: &Pool, directory: Ino) -> Vec<(Vec<u8>, Ino, FileKind)> {
    let listed = pool.service().read_directory(directory, 2, 1000, Listing::Names).expect("lists");
    listed.into_iter().map(|entry| (entry.name.to_vec(), entry.ino, entry.kind)).collect()
}

fn pick<T: Clone>(random: &mut Random, from: &[T]) -> Option<T> {
    from.get(random.below(from.len().max(1) as u64) as usize).cloned()
}

/// Changes something at random. Changes that are not possible are none.
fn change(pool: &Pool, top: Ino, random: &mut Random) {
    let service = pool.service();
    let all = directories(pool, top);
    let (Some(directory), Some(other)) = (pick(random, &all), pick(random, &all)) else { return };
    let name = format!("n{}", random.below(NAMES));
    let entry = pick(random, &entries(pool, directory));
    let anything = entry.clone().map_or(directory, |entry| entry.1);
    let (kind, seed) = (random.below(16), random.below(1000));
    let fresh =
        |name: &str| service.lookup(directory, name.as_bytes()).map(|found| service.forget(found.ino, 1)).is_err();
    match (kind, entry) {
        (0..=2, _) if fresh(&name) => drop(file(pool, directory, &name, &bytes(seed, (seed * 31) as usize % 9000))),
        (3, _) if fresh(&name) && all.len() < 40 => drop(directory_with(pool, directory, &name, seed % 3)),
        (4, _) if fresh(&name) => {
            _ = make(pool, directory, &name, NodeContent::Symlink(format!("to-{seed}").as_bytes()))
        }
        (5..=6, Some((_, ino, FileKind::Regular))) => write(pool, ino, seed * 7, format!("changed {seed}").as_bytes()),
        (7, Some((name, _, FileKind::Directory))) => drop(service.remove_directory(directory, &name)),
        (7, Some((name, ..))) => service.unlink(directory, &name).expect("unlinks"),
        (8..=9, Some((from, ..))) => {
            let _refused = service.rename(directory, &from, other, name.as_bytes(), RenameFlags::default());
        }
        (10, Some((_, ino, FileKind::Regular))) => {
            if let Ok(linked) = service.link(ino, other, name.as_bytes()) {
                service.forget(linked.ino, 1);
            }
        }
        (11, _) => {
            let changes = AttributeChanges { mode: Some(0o600 | (seed % 64) as u16), ..AttributeChanges::default() };
            service.set_attributes(CALLER, anything, changes).expect("changes the mode");
        }
        (12, _) => drop(service.set_xattr(CALLER, anything, b"user.a", &bytes(seed, seed as usize), XattrMode::Any)),
        (13, _) => drop(service.remove_xattr(anything, b"user.a")),
        (14, Some((_, ino, FileKind::Regular))) => {
            let changes = AttributeChanges { size_bytes: Some(seed * 13), ..AttributeChanges::default() };
            service.set_attributes(CALLER, ino, changes).expect("changes the length");
        }
        (15, Some((name, ..))) => {
            let flags = RenameFlags { exchange: true, ..RenameFlags::default() };
            if let Some((to, ..)) = pick(random, &entries(pool, other)) {
                let _refused = service.rename(directory, &name, other, &to, flags);
            }
        }
        _ => {}
    }
}

fn directory_with(pool: &Pool, parent: Ino, name: &str, files: u64) -> Ino {
    let made = directory(pool, parent, name);
    for number in 0..files {
        file(pool, made, &format!("n{number}"), format!("{name} {number}").as_bytes());
    }
    made
}

/// What must be equal in a snapshot that took things over and in one that read everything.
fn facts(pool: &Pool, report: &VersionReport) -> (String, [u64; 3], u64) {
    let version = pool.core().namespace.inode_shared(report.ino).expect("reads").expect("is there");
    (report.fingerprint.clone(), [report.entries, report.files, report.logical_bytes], version.data_bytes)
}

fn compare(seed: u64) -> u64 {
    let mut random = Random(seed);
    let device = formatted();
    let mut pool = open(&device);
    let live = directory(&pool, ROOT_INO, "live");
    for number in 0..6 {
        directory_with(&pool, live, &format!("d{number}"), number * 9);
    }
    let mut taken_over = 0;
    for round in 0..4 {
        // The first one after an opening reads everything, and others take over from the one before.
        snapshot(&pool, "live", "", &format!("first-{round}"));
        for again in 0..3 {
            for _ in 0..random.below(12) {
                change(&pool, live, &mut random);
            }
            if random.below(4) == 0 {
                forget(
                    &pool,
                    ROOT_INO,
                    &if again == 0 { format!("first-{round}") } else { format!("again-{round}-{}", again - 1) },
                );
                reclaim(&pool);
            }
            taken_over += snapshot(&pool, "live", "", &format!("again-{round}-{again}")).taken_over;
        }
        let again = snapshot(&pool, "live", "", &format!("once-more-{round}"));
        let expected = facts(&pool, &again);
        drop(pool);
        pool = open(&device);
        let all = snapshot(&pool, "live", "", &format!("all-{round}"));
        assert_eq!((all.taken_over, all.base), (0, None));
        assert_eq!(facts(&pool, &all), expected, "seed {seed}, round {round}");
    }
    assert_clean(&pool);
    taken_over
}

#[test]
fn a_snapshot_that_takes_over_is_the_one_that_reads_everything() {
    let taken_over: u64 = (1..=40).map(compare).sum();
    assert!(taken_over > 1000, "only {taken_over} entries were taken over");
}

#[test]
fn what_did_not_change_is_taken_over() {
    let device = formatted();
    let pool = open(&device);
    let live = directory(&pool, ROOT_INO, "live");
    let above = directory(&pool, live, "above");
    let deep: Vec<Ino> = (0..20).map(|number| directory_with(&pool, above, &format!("d{number:02}"), 10)).collect();
    let first = snapshot(&pool, "live", "", "first");
    assert_eq!((first.taken_over, first.base, first.entries), (0, None, 221));
    let second = snapshot(&pool, "live", "", "second");
    assert_eq!((second.taken_over, second.base), (221, Some(first.ino)));
    assert_eq!(second.fingerprint, first.fingerprint);
    file(&pool, deep[7], "new", b"new");
    let third = snapshot(&pool, "live", "", "third");
    assert_eq!((third.taken_over, third.base, third.entries), (209, Some(second.ino), 222), "one directory was read");
    assert!(third.fingerprint != first.fingerprint && third.files == 201);
    assert_eq!(read(&pool, find(&pool, "third/above/d07/new")), b"new");
    assert_clean(&pool);
}

#[test]
fn an_earlier_snapshot_that_cannot_be_read_costs_a_full_one() {
    let device = formatted();
    let pool = open(&device);
    let live = directory(&pool, ROOT_INO, "live");
    directory_with(&pool, live, "d", 3);
    let first = snapshot(&pool, "live", "", "first");
    forget(&pool, ROOT_INO, "first");
    reclaim(&pool);
    let second = snapshot(&pool, "live", "", "second");
    assert_eq!((second.taken_over, second.base, &second.fingerprint), (0, None, &first.fingerprint));
    assert_clean(&pool);
}

/// A directory that has the name of another one by now, and unchanged subdirectories of the same names.
#[test]
fn regression_a_directory_that_took_the_name_of_another_is_not_taken_for_it() {
    let device = formatted();
    let pool = open(&device);
    let live = directory(&pool, ROOT_INO, "live");
    for name in ["old", "new"] {
        let above = directory(&pool, live, name);
        let below = directory(&pool, above, "sub");
        file(&pool, below, "file", name.as_bytes());
    }
    snapshot(&pool, "live", "", "first");
    let flags = RenameFlags::default();
    pool.service().rename(live, b"old", live, b"older", flags).expect("renames");
    pool.service().rename(live, b"new", live, b"old", flags).expect("renames");
    snapshot(&pool, "live", "", "second");
    assert_eq!(read(&pool, find(&pool, "live/old/sub/file")), b"new", "the live tree");
    let found = read(&pool, find(&pool, "second/old/sub/file"));
    assert_eq!(String::from_utf8_lossy(&found), "new", "the version");
}
