//! Wrong records of every kind, written directly into the tables, one by one and at random. After one repair the
//! namespace is sound, and a second repair has nothing to do.

use redb::{ReadableDatabase, ReadableTable};

use super::super::base::Store;
use super::super::inode::Entry;
use super::super::tables;
use super::*;
use dedupfs_store::device::Device;

/// A tree with directories 3 deep, files, second names, attributes and an unlinked file.
fn tree() -> MemoryDevice {
    let disk = disk();
    let namespace = open(&disk);
    for number in 0..3_u8 {
        let name = [b'd', b'0' + number];
        let dir = namespace.make(ROOT_INO, &name, &directory(5)).unwrap().ino;
        let below = namespace.make(dir, b"below", &directory(6)).unwrap().ino;
        for leaf in 0..4_u8 {
            let ino = namespace.make(below, &[b'f', b'0' + leaf], &file(7)).unwrap().ino;
            if leaf == 1 {
                namespace.link(ino, dir, b"second", at(8)).unwrap();
            }
        }
        namespace.make(dir, b"link", &new(FileKind::Symlink, 9)).unwrap();
    }
    namespace.save().unwrap();
    namespace.assert_sound();
    drop(namespace);
    disk
}

fn store(disk: &MemoryDevice) -> Store {
    let file = disk.open(NAMESPACE_FILE, OpenMode::Write).unwrap();
    Store::open(VerifiedFile::open(disk, file).unwrap().0, Arc::default(), 1 << 20).unwrap()
}

/// Changes the tables, bypassing all rules.
fn spoil(disk: &MemoryDevice, change: impl FnOnce(&redb::WriteTransaction)) {
    let store = store(disk);
    store
        .transact(|transaction| {
            change(transaction);
            Ok(())
        })
        .unwrap();
}

fn all_inodes(disk: &MemoryDevice) -> Vec<Inode> {
    let store = store(disk);
    let table = store.database.as_ref().unwrap().begin_read().unwrap().open_table(tables::INODES).unwrap();
    table
        .range(0..)
        .unwrap()
        .map(|row| row.unwrap())
        .map(|(k, v)| Inode::decode(k.value(), v.value()).unwrap())
        .collect()
}

fn all_names(disk: &MemoryDevice) -> Vec<(Vec<u8>, Entry)> {
    let store = store(disk);
    let table = store.database.as_ref().unwrap().begin_read().unwrap().open_table(tables::ENTRIES).unwrap();
    let rows = table.range(&[][..]..).unwrap().map(|row| row.unwrap());
    rows.map(|(k, v)| (k.value().to_vec(), Entry::decode(k.value(), v.value()).unwrap())).collect()
}

fn put_inode(transaction: &redb::WriteTransaction, inode: &Inode) {
    transaction.open_table(tables::INODES).unwrap().insert(inode.ino, inode.encode().as_slice()).unwrap();
}

fn put_name(transaction: &redb::WriteTransaction, key: &[u8], entry: Entry) {
    transaction.open_table(tables::ENTRIES).unwrap().insert(key, entry.encode(key).as_slice()).unwrap();
}

fn repaired(disk: &MemoryDevice, what: &str) -> NamespaceRepair {
    let plan = repair(disk, at(100), false).unwrap();
    let done = repair(disk, at(100), true).unwrap();
    assert_eq!(plan, done, "{what}: what is planned is done");
    let again = repair(disk, at(200), false).unwrap();
    assert_eq!(again.lines, Vec::<String>::new(), "{what}: nothing is left to do");
    let namespace = open(disk);
    for ino in namespace.orphans().unwrap() {
        namespace.drop_orphan(ino).unwrap();
    }
    namespace.save().unwrap();
    assert_eq!(namespace.findings(), Vec::<String>::new(), "{what}");
    done
}

#[test]
fn a_sound_namespace_needs_nothing() {
    let disk = tree();
    assert_eq!(repaired(&disk, "nothing").lines, Vec::<String>::new());
}

#[test]
fn each_kind_of_damage_is_repaired_and_gone_at_the_second_look() {
    type Spoil = fn(&redb::WriteTransaction, &[Inode], &[(Vec<u8>, Entry)]);
    let cases: [(&str, Spoil); 15] = [
        ("a name that none may have", |to, _, names| {
            let (key, entry) = names.last().unwrap();
            to.open_table(tables::ENTRIES).unwrap().remove(key.as_slice()).unwrap();
            put_name(to, &tables::name_key(ROOT_INO, b"../evil"), *entry);
        }),
        ("links 1 instead of 9", |to, inodes, _| put_inode(to, &Inode { nlink: 9, ..inodes.last().unwrap().clone() })),
        ("parent", |to, inodes, _| {
            let dir = inodes.iter().rfind(|inode| inode.is_directory()).unwrap();
            put_inode(to, &Inode { parent: 77, ..dir.clone() });
        }),
        ("entries", |to, inodes, _| put_inode(to, &Inode { size_bytes: 77, ..inodes[1].clone() })),
        ("attributes", |to, inodes, _| put_inode(to, &Inode { xattr_count: 3, ..inodes.last().unwrap().clone() })),
        ("does not exist", |to, inodes, _| {
            to.open_table(tables::INODES).unwrap().remove(inodes.last().unwrap().ino).unwrap();
        }),
        ("which cannot be read", |to, inodes, _| {
            to.open_table(tables::INODES).unwrap().insert(inodes.last().unwrap().ino, &b"nonsense"[..]).unwrap();
        }),
        ("lost+found", |to, _, names| {
            to.open_table(tables::ENTRIES).unwrap().remove(names.last().unwrap().0.as_slice()).unwrap();
            to.open_table(tables::ENTRIES).unwrap().remove(names[0].0.as_slice()).unwrap();
        }),
        ("a name that cannot be read", |to, _, names| {
            to.open_table(tables::ENTRIES).unwrap().insert(names[3].0.as_slice(), &b"nonsense"[..]).unwrap();
        }),
        ("its kind is that of its inode", |to, _, names| {
            let (key, entry) = names.last().unwrap();
            put_name(to, key, Entry { kind: FileKind::Socket, ..*entry });
        }),
        ("another place", |to, _, names| {
            let (key, entry) = names.last().unwrap();
            put_name(to, key, Entry { cookie: 1, ..*entry });
        }),
        ("a directory has one name", |to, inodes, names| {
            let dir = inodes.iter().find(|inode| inode.is_directory() && inode.ino != ROOT_INO).unwrap();
            let entry = Entry { ino: dir.ino, kind: FileKind::Directory, cookie: names[0].1.cookie };
            put_name(to, &tables::name_key(ROOT_INO, b"another"), entry);
        }),
        ("it lies in itself", |to, inodes, names| {
            // The first directory's name moves into the directory below it.
            let dir =
                inodes.iter().find(|inode| inode.is_directory() && inode.parent == ROOT_INO && inode.ino != ROOT_INO);
            let dir = dir.unwrap().ino;
            let below = inodes.iter().find(|inode| inode.is_directory() && inode.parent == dir).unwrap().ino;
            let (key, entry) = names.iter().find(|(_, entry)| entry.ino == dir).unwrap();
            to.open_table(tables::ENTRIES).unwrap().remove(key.as_slice()).unwrap();
            put_name(to, &tables::name_key(below, b"circle"), *entry);
        }),
        ("in the order of directory", |to, _, _| {
            let mut order = to.open_table(tables::ORDER).unwrap();
            let first = *order.iter().unwrap().next().unwrap().unwrap().0.value();
            order.insert(&first, &b"nonsense"[..]).unwrap();
        }),
        ("is no orphan", |to, inodes, _| {
            to.open_table(tables::ORPHANS).unwrap().insert(inodes.last().unwrap().ino, ()).unwrap();
        }),
    ];
    for (expected, change) in cases {
        let disk = tree();
        let (inodes, names) = (all_inodes(&disk), all_names(&disk));
        spoil(&disk, |transaction| change(transaction, &inodes, &names));
        let done = repaired(&disk, expected);
        assert!(done.lines.iter().any(|line| line.contains(expected)), "{expected}: {:?}", done.lines);
        assert_eq!(done.needs_recount, expected == "which cannot be read");
    }
}

/// A rescued inode keeps its content and is found in `lost+found`.
#[test]
fn what_has_no_name_is_found_again() {
    let disk = tree();
    let names = all_names(&disk);
    let inodes = all_inodes(&disk).len();
    spoil(&disk, |transaction| {
        let mut entries = transaction.open_table(tables::ENTRIES).unwrap();
        names.iter().for_each(|(key, _)| drop(entries.remove(key.as_slice()).unwrap()));
    });
    repaired(&disk, "all names gone");
    let namespace = open(&disk);
    let (shelter, _) = namespace.lookup(ROOT_INO, b"lost+found").unwrap().unwrap();
    // All but the root, and the new directory itself.
    assert_eq!(namespace.list(shelter, 100).len(), inodes - 1);
}

#[test]
fn random_damage_is_repaired_in_one_go() {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut below = move |bound: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % bound as u64) as usize
    };
    for round in 0..150 {
        let disk = tree();
        let (inodes, names) = (all_inodes(&disk), all_names(&disk));
        spoil(&disk, |to| {
            for _ in 0..1 + below(6) {
                let inode = &inodes[below(inodes.len())];
                let (key, entry) = &names[below(names.len())];
                let other = inodes[below(inodes.len())].ino;
                match below(10) {
                    0 => put_inode(to, &Inode { nlink: below(4) as u32, ..inode.clone() }),
                    1 => put_inode(to, &Inode { size_bytes: below(9) as u64, ..inode.clone() }),
                    2 => drop(to.open_table(tables::INODES).unwrap().remove(inode.ino).unwrap()),
                    3 => drop(to.open_table(tables::INODES).unwrap().insert(inode.ino, &b"x"[..]).unwrap()),
                    4 => drop(to.open_table(tables::ENTRIES).unwrap().remove(key.as_slice()).unwrap()),
                    5 => put_name(to, key, Entry { ino: other, ..*entry }),
                    6 => put_name(to, key, Entry { cookie: below(50) as u64, ..*entry }),
                    7 => put_name(to, &tables::name_key(other, b"more"), Entry { ino: inode.ino, ..*entry }),
                    8 => drop(to.open_table(tables::ORPHANS).unwrap().insert(other, ()).unwrap()),
                    _ => {
                        let xattr = tables::name_key(other + below(2) as u64 * 1000, b"user.a");
                        let value = tables::encode_xattr(&xattr, b"value");
                        to.open_table(tables::XATTRS).unwrap().insert(xattr.as_slice(), value.as_slice()).unwrap();
                    }
                }
            }
        });
        repaired(&disk, &format!("round {round}"));
    }
}

/// An inode without links was dropped with the first of its names, and the content behind its other names was freed.
#[test]
fn regression_an_inode_whose_links_are_counted_wrong_is_not_dropped_with_one_of_its_names() {
    let disk = tree();
    let namespace = open(&disk);
    let ino = namespace.entry(ROOT_INO, b"d0").unwrap().unwrap().ino;
    let second = namespace.entry(ino, b"second").unwrap().unwrap().ino;
    drop(namespace);
    let inode = all_inodes(&disk).into_iter().find(|inode| inode.ino == second).unwrap();
    spoil(&disk, |transaction| put_inode(transaction, &Inode { nlink: 0, ..inode }));
    let namespace = open(&disk);
    let refused = namespace.unlink(ino, b"second", at(9)).unwrap_err().to_string();
    assert!(refused.contains("dedupfs fsck --repair"), "{refused}");
    assert!(namespace.orphans().unwrap().iter().all(|orphan| *orphan != second));
    drop(namespace);
    repaired(&disk, "links");
    let namespace = open(&disk);
    assert_eq!(namespace.unlink(ino, b"second", at(10)).unwrap().nlink, 1, "the other name is still there");
}
