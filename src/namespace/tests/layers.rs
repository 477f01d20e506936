//! Generations over the base: visibility, paging under change, counters, containers, the log, compaction.

use dedupfs_store::ContainerKind;
use dedupfs_store::container::SlotAddress;

use super::*;
use dedupfs_store::ContainerRecord;

const ROOT: Ino = ROOT_INO;

fn record(sequence: u64, used_bytes: u32) -> ContainerRecord {
    ContainerRecord {
        id: ContainerId(sequence),
        kind: if sequence.is_multiple_of(2) { ContainerKind::Recipe } else { ContainerKind::Data },
        address: SlotAddress { file: 1, slot: sequence as u32 },
        used_bytes,
        toc: (used_bytes > 100).then_some((64, 128)),
        chunk_bytes: 1 << 40,
        chunks: 12,
        sealed: used_bytes > 100,
        damaged: used_bytes > 1000,
    }
}

#[test]
fn everything_is_visible_in_every_layer() {
    let namespace = fresh();
    namespace.make(ROOT, b"base", &file(1)).unwrap();
    namespace.make(ROOT, b"gone-in-frozen", &file(1)).unwrap();
    namespace.make(ROOT, b"gone-in-active", &file(1)).unwrap();
    namespace.save().unwrap();
    namespace.make(ROOT, b"frozen", &file(2)).unwrap();
    namespace.make(ROOT, b"frozen-gone-in-active", &file(2)).unwrap();
    namespace.unlink(ROOT, b"gone-in-frozen", at(2)).unwrap();
    assert!(namespace.freeze());
    namespace.make(ROOT, b"active", &file(3)).unwrap();
    namespace.unlink(ROOT, b"gone-in-active", at(3)).unwrap();
    namespace.unlink(ROOT, b"frozen-gone-in-active", at(3)).unwrap();
    let expected = [b"active".to_vec(), b"base".to_vec(), b"frozen".to_vec()];
    assert_eq!(namespace.list_names(ROOT), expected);
    assert_eq!(namespace.orphans().unwrap().len(), 3);
    namespace.assert_sound();
    let pending = namespace.pending_operations();
    namespace.commit(CommitInput::default()).unwrap();
    assert!(namespace.pending_operations() < pending);
    assert_eq!(namespace.list_names(ROOT), expected);
    namespace.assert_sound();
    namespace.save().unwrap();
    assert_eq!(namespace.pending_operations(), 0);
    assert_eq!(namespace.list_names(ROOT), expected);
    namespace.assert_sound();
    let mut inodes = 0;
    namespace
        .for_each_inode(&mut |_| {
            inodes += 1;
            Ok(())
        })
        .unwrap();
    assert_eq!(inodes, 1 + 3 + 3);
}

#[test]
fn pages_are_stable_under_change() {
    let namespace = fresh();
    for number in 0..100 {
        namespace.make(ROOT, format!("old-{number}").as_bytes(), &file(1)).unwrap();
        if number == 60 {
            namespace.save().unwrap();
        }
    }
    let (mut after, mut seen) = (0, Vec::new());
    for round in 0.. {
        let page = namespace.read_directory(ROOT, after, 7).unwrap();
        seen.extend(page.iter().map(|item| item.name.clone()));
        let Some(last) = page.last() else { break };
        after = last.cookie;
        // Shown names go, new names come, a commit happens. None of this disturbs the rest.
        namespace.unlink(ROOT, &page[0].name, at(2)).unwrap();
        if round < 10 {
            namespace.make(ROOT, format!("new-{round}").as_bytes(), &file(2)).unwrap();
        }
        if round % 3 == 0 {
            namespace.save().unwrap();
        }
    }
    let old: Vec<_> = seen.iter().filter(|name| name.starts_with(b"old")).cloned().collect();
    let expected: Vec<_> = (0..100).map(|number| format!("old-{number}").into_bytes()).collect();
    assert_eq!(old, expected);
    seen.sort();
    let total = seen.len();
    seen.dedup();
    assert_eq!(seen.len(), total, "no name twice");
    assert_eq!(namespace.read_directory(ROOT, u64::MAX, 5).unwrap(), []);
    assert_eq!(namespace.read_directory(ROOT, 0, 0).unwrap(), []);
}

#[test]
fn pages_pass_long_runs_of_removed_names() {
    let namespace = fresh();
    for number in 0..10_000 {
        namespace.make(ROOT, format!("{number}").as_bytes(), &file(1)).unwrap();
        if number == 4999 {
            namespace.save().unwrap();
        }
    }
    for number in 1..9_999 {
        namespace.unlink(ROOT, format!("{number}").as_bytes(), at(2)).unwrap();
    }
    assert_eq!(namespace.list_names(ROOT), [b"0".to_vec(), b"9999".to_vec()]);
    assert_eq!(namespace.list(ROOT, 5000).len(), 2);
}

#[test]
fn numbers_are_never_given_twice() {
    let disk = disk();
    let namespace = open(&disk);
    let first = namespace.make(ROOT, b"a", &file(1)).unwrap().ino;
    let cookie = namespace.list(ROOT, 1)[0].cookie;
    assert_eq!(cookie, COOKIE_FIRST);
    namespace.unlink(ROOT, b"a", at(1)).unwrap();
    namespace.drop_orphan(first).unwrap();
    namespace.save().unwrap();
    let epoch = namespace.writer_epoch();
    let id = namespace.next_container_id().unwrap();
    assert!(namespace.next_container_id().unwrap() > id);
    assert_eq!(id.epoch(), epoch);
    drop(namespace);
    let namespace = open(&disk.crash(0));
    assert_eq!(namespace.writer_epoch(), epoch + 1, "raised durably");
    assert!(namespace.make(ROOT, b"a", &file(1)).unwrap().ino > first);
    assert!(namespace.list(ROOT, 1)[0].cookie > cookie);
}

#[test]
fn containers_are_kept_and_forgotten() {
    let disk = disk();
    let namespace = open(&disk);
    let extends =
        vec![LogOp::Extend { container: ContainerId(1), kind: ContainerKind::Data, from_bytes: 0, to_bytes: 9 }];
    let input = CommitInput { containers: vec![record(1, 9), record(2, 400)], extends, ..CommitInput::default() };
    let ino = namespace.make(ROOT, b"f", &file(1)).unwrap().ino;
    namespace.set_root(ino, chunk(1), 100, 100, &mut kept).unwrap();
    namespace.freeze();
    let committed = namespace.commit(input.clone()).unwrap();
    assert_eq!(committed.ops, [input.extends[0], LogOp::RootAdded(chunk(1))], "extends come first");
    assert_eq!(namespace.containers().unwrap(), input.containers);
    let change = CommitInput {
        containers: vec![record(1, 500)],
        removed_containers: vec![ContainerId(2)],
        ..CommitInput::default()
    };
    assert_eq!(namespace.commit(change).unwrap(), Committed { row: committed.row + 1, ops: Vec::new() });
    assert_eq!(open(&disk.crash(0)).containers().unwrap(), [record(1, 500)]);
}

#[test]
fn rows_are_long_ordered_and_trimmed() {
    let disk = disk();
    let namespace = open(&disk);
    let op = |number: u64| LogOp::ChunkRemoved { fingerprint: Fingerprint([3; 32]), container: ContainerId(number) };
    let mut expected = Vec::new();
    for count in [1_u64, 4096, 4097, 10_000] {
        (0..count).for_each(|number| namespace.log(op(number)));
        let committed = namespace.save().unwrap();
        assert_eq!(committed.ops, (0..count).map(op).collect::<Vec<_>>());
        expected.push((committed.row, committed.ops));
    }
    let (fingerprint, container) = (Fingerprint([1; 32]), ContainerId(7));
    namespace.log(LogOp::NodeStored { level: 3, fingerprint, container, len_bytes: 9 });
    namespace.log(LogOp::NodeMoved { fingerprint, container, len_bytes: 9 });
    namespace.log(LogOp::ChunkLost { fingerprint, container });
    namespace.log(LogOp::NodeLost { fingerprint, container });
    namespace.log(LogOp::NodeFreed { level: 3, fingerprint: Fingerprint([1; 32]), container: ContainerId(7) });
    let committed = namespace.save().unwrap();
    expected.push((committed.row, committed.ops));
    assert_eq!(namespace.rows(), expected);
    assert_eq!(namespace.last_row(), expected[4].0);
    let mut after = Vec::new();
    namespace
        .log_after(expected[2].0, &mut |row, _| {
            after.push(row);
            Ok(())
        })
        .unwrap();
    assert_eq!(after, [expected[3].0, expected[4].0]);
    let trim = CommitInput { trim_log_through: expected[2].0, ..CommitInput::default() };
    let row = namespace.commit(trim.clone()).unwrap().row;
    assert_eq!(namespace.commit(trim).unwrap().row, row, "trimming again is nothing to commit");
    assert_eq!(open(&disk.crash(1)).rows(), expected[3..]);
}

#[test]
fn compaction_shrinks_and_keeps_everything() {
    let disk = disk();
    let namespace = open(&disk);
    for number in 0..5000 {
        namespace.make(ROOT, format!("{number}").as_bytes(), &file(1)).unwrap();
    }
    namespace.save().unwrap();
    assert!(!namespace.is_compacted_quickly());
    for number in 10..5000 {
        let ino = namespace.unlink(ROOT, format!("{number}").as_bytes(), at(1)).unwrap().ino;
        namespace.drop_orphan(ino).unwrap();
    }
    namespace.save().unwrap();
    namespace.make(ROOT, b"in memory", &file(1)).unwrap();
    let before = namespace.file_bytes().unwrap();
    assert!(namespace.is_compacted_quickly(), "by what is in use");
    namespace.compact().unwrap();
    assert!(namespace.file_bytes().unwrap() < before);
    assert!(namespace.verify_store().unwrap());
    assert_eq!(namespace.list_names(ROOT).len(), 11);
    namespace.save().unwrap();
    let again = open(&disk.crash(0));
    assert_eq!(again.list_names(ROOT).len(), 11);
    again.assert_sound();
}

#[test]
fn readers_and_committer_run_beside_mutators() {
    let namespace = fresh();
    let dirs: Vec<Ino> =
        (0..2).map(|n| namespace.make(ROOT, format!("d{n}").as_bytes(), &directory(1)).unwrap().ino).collect();
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let mutators: Vec<_> = dirs
            .iter()
            .map(|&dir| {
                let namespace = &namespace;
                scope.spawn(move || {
                    for number in 0..3000 {
                        let name = format!("{number}");
                        let ino = namespace.make(dir, name.as_bytes(), &file(1)).unwrap().ino;
                        assert_eq!(namespace.lookup(dir, name.as_bytes()).unwrap().unwrap().0, ino);
                        if number % 3 > 0 {
                            namespace.set_root(ino, chunk(1), 100, 100, &mut kept).unwrap();
                            assert_eq!(namespace.get(ino).root, chunk(1));
                        } else {
                            namespace.unlink(dir, name.as_bytes(), at(2)).unwrap();
                            namespace.drop_orphan(ino).unwrap();
                            assert!(namespace.inode(ino).unwrap().is_none());
                        }
                    }
                })
            })
            .collect();
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                namespace.save().unwrap();
            }
        });
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let mut names = namespace.list(dirs[0], 50).into_iter().map(|item| item.name).collect::<Vec<_>>();
                let total = names.len();
                names.sort();
                names.dedup();
                assert_eq!(names.len(), total);
            }
        });
        mutators.into_iter().for_each(|mutator| mutator.join().unwrap());
        done.store(true, Ordering::Relaxed);
    });
    namespace.save().unwrap();
    namespace.assert_sound();
    assert_eq!(namespace.totals().files, 4000);
    let ops: usize = namespace.rows().iter().map(|(_, ops)| ops.len()).sum();
    assert_eq!(ops, 4000, "each operation is in exactly one row");
}
