//! Versions: their rows, records, numbers; renames; crashes; check and repair.

use std::sync::Arc;

use dedupfs_service::XattrMode;
use dedupfs_store::device::faulty::{Fault, FaultPlan, Operation};
use dedupfs_store::tree::TOP_LEVEL;
use redb::ReadableTable;

use super::super::base::Store;
use super::super::tables;
use super::*;

const ROOT: Ino = ROOT_INO;

fn tree(number: u8) -> Root {
    let child = Child { fingerprint: Fingerprint([number.max(1); 32]), len_bytes: 1, hint: ContainerId(5) };
    Root::Tree { level: TOP_LEVEL, child }
}

fn version(number: u8) -> NewVersion {
    NewVersion {
        kind: FileKind::Directory,
        mode: 0o750,
        uid: 10,
        gid: 20,
        mtime: at(3),
        root: tree(number),
        data_bytes: 7,
        record: vec![number; 40],
    }
}

fn add(namespace: &Namespace, parent: Ino, name: &str, number: u8) -> Inode {
    namespace.allow_versions().unwrap();
    namespace.add_version(parent, name.as_bytes(), &version(number), at(9)).unwrap()
}

/// Name, inode number, links, root and record of each entry.
type Picture = Vec<(Vec<u8>, Ino, u32, Root, Option<Vec<u8>>)>;

/// Returns the versions, by name.
fn picture(namespace: &Namespace) -> Picture {
    let mut versions = Vec::new();
    let mut visit = |_: Ino, name: &[u8], ino: Ino, _: FileKind| {
        if is_frozen(ino) {
            versions.push((name.to_vec(), ino));
        }
        Ok(())
    };
    namespace.for_each_entry(&mut visit).unwrap();
    versions.sort();
    let all = versions.into_iter().map(|(name, ino)| {
        let inode = namespace.get(ino);
        (name, ino, inode.generation, inode.root, namespace.xattr(ino, VERSION_RECORD).unwrap())
    });
    all.collect()
}

#[test]
fn a_version_has_a_number_of_its_own_a_record_and_a_root_that_is_counted() {
    let namespace = fresh();
    namespace.force_no_versions();
    let refused = namespace.add_version(ROOT, b"v", &version(1), at(9));
    assert!(refused.is_err(), "older releases do not refuse the pool yet");
    let first = add(&namespace, ROOT, "v1", 1);
    assert_eq!((first.ino, first.nlink, first.parent, first.size_bytes), (FIRST_VERSION, 2, ROOT, 0));
    assert_eq!(first.generation, namespace.writer_epoch());
    assert_eq!(add(&namespace, ROOT, "v2", 2).ino, 2 * FIRST_VERSION);
    fails("Exists", namespace.add_version(ROOT, b"v1", &version(3), at(9)));
    namespace.make(ROOT, b"f", &file(1)).unwrap();
    fails("Exists", namespace.add_version(ROOT, b"f", &version(3), at(9)));
    fails("Exists", namespace.make(ROOT, b"v1", &directory(1)));
    fails("NotFound", namespace.add_version(999, b"v", &version(3), at(9)));
    assert!(namespace.add_version(ROOT, b"v", &NewVersion { root: chunk(1), ..version(3) }, at(9)).is_err());
    assert_eq!(namespace.get(ROOT).nlink, 4);
    assert_eq!(namespace.make(ROOT, b"live", &file(1)).unwrap().ino, 3, "live numbers go on");
    namespace.save().unwrap();
    namespace.assert_sound();
    let added = namespace.rows().into_iter().flat_map(|(_, ops)| ops);
    let roots: Vec<Root> =
        added.filter_map(|op| if let LogOp::RootAdded(root) = op { Some(root) } else { None }).collect();
    assert_eq!(roots, [tree(1), tree(2)]);
}

#[test]
fn a_version_is_removed_only_as_one() {
    let namespace = fresh();
    let first = add(&namespace, ROOT, "v", 1);
    namespace.make(ROOT, b"d", &directory(1)).unwrap();
    fails("Invalid", namespace.forget_version(ROOT, b"d", at(9)));
    fails("NotFound", namespace.forget_version(ROOT, b"none", at(9)));
    fails("NotEmpty", namespace.remove_directory(ROOT, b"v", at(9)));
    fails("IsDirectory", namespace.unlink(ROOT, b"v", at(9)));
    assert!(namespace.link(first.ino, ROOT, b"second", at(9)).is_err());
    assert_eq!(namespace.forget_version(ROOT, b"v", at(9)).unwrap().nlink, 0);
    namespace.save().unwrap();
    assert_eq!(namespace.orphans().unwrap(), [first.ino], "it holds its tree");
    namespace.assert_sound();
    namespace.drop_orphan(first.ino).unwrap();
    namespace.save().unwrap();
    assert_eq!(namespace.inode(first.ino).unwrap(), None);
    fails("NotFound", namespace.xattr(first.ino, VERSION_RECORD));
    let dropped =
        namespace.rows().into_iter().flat_map(|(_, ops)| ops).filter(|op| matches!(op, LogOp::RootDropped(_)));
    assert_eq!(dropped.collect::<Vec<_>>(), [LogOp::RootDropped(tree(1))]);
    assert!(add(&namespace, ROOT, "v", 2).ino > first.ino);
    namespace.assert_sound();
}

#[test]
fn versions_are_renamed_and_exchanged_and_never_replaced() {
    let namespace = fresh();
    let (first, second) = (add(&namespace, ROOT, "v1", 1), add(&namespace, ROOT, "v2", 2));
    let series = namespace.make(ROOT, b"series", &directory(1)).unwrap().ino;
    let live = namespace.make(ROOT, b"live", &directory(1)).unwrap().ino;
    namespace.make(ROOT, b"f", &file(1)).unwrap();
    // Neither a version nor an empty directory replaces one, and a file does not.
    fails("NotEmpty", namespace.rename(ROOT, b"v1", ROOT, b"v2", NONE, at(9)));
    fails("NotEmpty", namespace.rename(ROOT, b"live", ROOT, b"v2", NONE, at(9)));
    fails("IsDirectory", namespace.rename(ROOT, b"f", ROOT, b"v2", NONE, at(9)));
    fails("NotDirectory", namespace.rename(ROOT, b"v1", ROOT, b"f", NONE, at(9)));
    fails("Exists", namespace.rename(ROOT, b"v1", ROOT, b"v2", NO_REPLACE, at(9)));
    let before = picture(&namespace);
    // A version replaces an empty directory, as a directory does.
    namespace.make(series, b"empty", &directory(1)).unwrap();
    namespace.rename(ROOT, b"v1", series, b"empty", NONE, at(9)).unwrap();
    assert_eq!(namespace.get(first.ino).parent, series);
    namespace.drop_orphan(namespace.orphans().unwrap()[0]).unwrap();
    namespace.rename(series, b"empty", series, b"v1", NONE, at(9)).unwrap();
    // Two versions, and a version and a live directory, change places.
    namespace.rename(series, b"v1", ROOT, b"v2", EXCHANGE, at(9)).unwrap();
    assert_eq!((namespace.get(first.ino).parent, namespace.get(second.ino).parent), (ROOT, series));
    namespace.rename(ROOT, b"v2", ROOT, b"live", EXCHANGE, at(9)).unwrap();
    assert_eq!(namespace.lookup(ROOT, b"live").unwrap(), Some((first.ino, FileKind::Directory)));
    assert_eq!(namespace.lookup(ROOT, b"v2").unwrap(), Some((live, FileKind::Directory)));
    namespace.save().unwrap();
    namespace.assert_sound();
    // A directory that contains versions moves with them, and not into itself.
    namespace.rename(ROOT, b"series", live, b"moved", NONE, at(9)).unwrap();
    fails("Invalid", namespace.rename(ROOT, b"v2", series, b"loop", NONE, at(9)));
    assert_eq!(namespace.lookup(series, b"v1").unwrap(), Some((second.ino, FileKind::Directory)));
    fails("NotEmpty", namespace.remove_directory(live, b"moved", at(9)));
    namespace.save().unwrap();
    namespace.assert_sound();
    let without_names = |picture: Picture| {
        let mut rest: Vec<_> =
            picture.into_iter().map(|(_, ino, generation, root, record)| (ino, generation, root, record)).collect();
        rest.sort_by_key(|(ino, ..)| *ino);
        rest
    };
    assert_eq!(without_names(picture(&namespace)), without_names(before));
}

/// Cuts the power at every write, sync and length change of the commit that names a version, and of the one that
/// forgets it.
#[test]
fn a_crash_within_a_commit_gives_the_version_whole_or_not_at_all() {
    type Change = fn(&Namespace);
    let changes: [Change; 3] = [
        |namespace| drop(add(namespace, ROOT, "v2", 2)),
        |namespace| drop(namespace.forget_version(ROOT, b"v1", at(9)).unwrap()),
        |namespace| drop(namespace.rename(ROOT, b"v1", ROOT, b"v3", NONE, at(9)).unwrap()),
    ];
    for change in changes {
        let (mut olds, mut news) = (0, 0);
        for position in 0.. {
            let disk = disk();
            let (device, namespace) = faulty(&disk);
            add(&namespace, ROOT, "v1", 1);
            namespace.save().unwrap();
            let old = picture(&namespace);
            change(&namespace);
            let new = picture(&namespace);
            assert_ne!(old, new);
            let kinds = [Operation::Write, Operation::Sync, Operation::SetLen];
            device.add(FaultPlan::new(Fault::Io, position).on(&kinds).lasting());
            let finished = namespace.save().is_ok();
            for seed in 0..4 {
                let again = open(&disk.crash(seed));
                again.assert_sound();
                assert!(again.has_versions(), "it came before the first version");
                let found = picture(&again);
                olds += u32::from(found == old);
                news += u32::from(found == new);
                assert!(found == old || found == new, "position {position}, seed {seed}: a mixture");
                assert!(!finished || found == new, "what commit acknowledged is there");
            }
            if finished {
                break;
            }
        }
        assert!(olds > 0 && news > 0, "{olds} old, {news} new");
    }
}

#[test]
fn the_number_of_a_version_comes_again_only_with_another_generation() {
    let disk = disk();
    let namespace = open(&disk);
    add(&namespace, ROOT, "kept", 1);
    let last = add(&namespace, ROOT, "last", 2);
    namespace.forget_version(ROOT, b"last", at(9)).unwrap();
    namespace.save().unwrap();
    drop(namespace);
    let namespace = open(&disk);
    assert!(add(&namespace, ROOT, "next", 3).ino > last.ino, "an orphan keeps its number");
    namespace.orphans().unwrap().into_iter().for_each(|ino| namespace.drop_orphan(ino).unwrap());
    namespace.forget_version(ROOT, b"next", at(9)).unwrap();
    namespace.orphans().unwrap().into_iter().for_each(|ino| namespace.drop_orphan(ino).unwrap());
    namespace.save().unwrap();
    drop(namespace);
    let namespace = open(&disk);
    let again = add(&namespace, ROOT, "again", 4);
    assert_eq!(again.ino, last.ino);
    assert!(again.generation > last.generation);
}

fn spoil(disk: &MemoryDevice, change: impl FnOnce(&redb::WriteTransaction)) {
    let file = disk.open(NAMESPACE_FILE, OpenMode::Write).unwrap();
    let store = Store::open(VerifiedFile::open(disk, file).unwrap().0, Arc::default(), 1 << 20).unwrap();
    store
        .transact(|transaction| {
            change(transaction);
            Ok(())
        })
        .unwrap();
}

fn with_two() -> MemoryDevice {
    let disk = disk();
    let namespace = open(&disk);
    let series = namespace.make(ROOT, b"series", &directory(1)).unwrap().ino;
    add(&namespace, series, "v1", 1);
    add(&namespace, series, "v2", 2);
    namespace.save().unwrap();
    namespace.assert_sound();
    drop(namespace);
    disk
}

fn repaired(disk: &MemoryDevice) -> Vec<String> {
    let done = repair(disk, at(100), true).unwrap();
    assert_eq!(repair(disk, at(200), false).unwrap().lines, Vec::<String>::new(), "nothing is left to do");
    done.lines
}

#[test]
fn check_and_repair_leave_versions_as_they_are() {
    let disk = with_two();
    let before = picture(&open(&disk));
    assert_eq!(repaired(&disk), Vec::<String>::new());
    // Damage elsewhere does not touch them either.
    spoil(&disk, |transaction| {
        let mut inodes = transaction.open_table(tables::INODES).unwrap();
        let root = Inode::decode(ROOT, inodes.get(ROOT).unwrap().unwrap().value()).unwrap();
        inodes.insert(ROOT, Inode { nlink: 77, ..root }.encode().as_slice()).unwrap();
    });
    assert_eq!(repaired(&disk).len(), 1, "the links");
    let namespace = open(&disk);
    assert!(namespace.has_versions());
    assert_eq!(picture(&namespace), before);
    namespace.assert_sound();
    assert_eq!(add(&namespace, ROOT, "v3", 3).ino, 3 * FIRST_VERSION);
    assert_eq!(namespace.make(ROOT, b"f", &file(1)).unwrap().ino, 3);
}

#[test]
fn a_lost_record_a_lost_name_and_a_lost_row_are_told() {
    let v1 = FIRST_VERSION;
    // The record.
    let disk = with_two();
    let before = picture(&open(&disk));
    spoil(&disk, |transaction| {
        let mut xattrs = transaction.open_table(tables::XATTRS).unwrap();
        xattrs.remove(tables::name_key(v1, VERSION_RECORD).as_slice()).unwrap();
    });
    let found = open(&disk).findings();
    assert!(found.iter().any(|line| line.contains("has no record")), "{found:?}");
    let lines = repaired(&disk);
    assert!(lines.iter().any(|line| line.contains("attributes 0 instead of 1")), "{lines:?}");
    let namespace = open(&disk);
    assert_eq!(picture(&namespace)[1], before[1]);
    assert_eq!((namespace.get(v1).root, namespace.get(v1).xattr_count), (tree(1), 0));
    namespace.set_xattr(v1, VERSION_RECORD, b"another", XattrMode::Any, at(9)).unwrap();
    namespace.save().unwrap();
    namespace.assert_sound();
    drop(namespace);

    // The name: the version is found again.
    let disk = with_two();
    let (series, _) = open(&disk).lookup(ROOT, b"series").unwrap().unwrap();
    spoil(&disk, |transaction| {
        let mut entries = transaction.open_table(tables::ENTRIES).unwrap();
        entries.remove(tables::name_key(series, b"v1").as_slice()).unwrap();
    });
    let lines = repaired(&disk);
    assert!(lines.iter().any(|line| line.contains("lost+found")), "{lines:?}");
    let namespace = open(&disk);
    let found = picture(&namespace);
    assert_eq!(found.iter().map(|(_, ino, ..)| *ino).sum::<u64>(), 3 * FIRST_VERSION);
    assert!(found.iter().any(|(_, ino, _, root, record)| *ino == v1 && *root == tree(1) && record.is_some()));
    namespace.assert_sound();
    drop(namespace);

    // The row: its name goes, and the content behind it is counted anew.
    let disk = with_two();
    spoil(&disk, |transaction| {
        transaction.open_table(tables::INODES).unwrap().insert(v1, &b"nonsense"[..]).unwrap();
    });
    let view = open(&disk).committed().unwrap();
    let listed: Vec<(Ino, bool)> =
        view.versions(0, 10).unwrap().into_iter().map(|(ino, inode)| (ino, inode.is_ok())).collect();
    assert_eq!(listed, [(v1, false), (2 * v1, true)], "a damaged row hides no other");
    drop(view);
    let plan = repair(&disk, at(100), false).unwrap();
    assert!(plan.needs_recount, "{plan:?}");
    assert!(plan.lines.iter().any(|line| line.contains("v1") && line.contains("was a version")), "{:?}", plan.lines);
    repaired(&disk);
    let namespace = open(&disk);
    assert_eq!(picture(&namespace).len(), 1);
    namespace.assert_sound();
}
