//! Every rule, one by one, each in memory and again on the committed state.

use dedupfs_service::XattrMode;

use super::*;

const ROOT: Ino = ROOT_INO;

/// Runs a scenario twice: all in memory, and with a commit after each step that calls `save`.
fn both(scenario: impl Fn(&Namespace, &dyn Fn())) {
    let namespace = fresh();
    scenario(&namespace, &|| {});
    namespace.save().unwrap();
    namespace.assert_sound();
    let namespace = fresh();
    scenario(&namespace, &|| {
        namespace.save().unwrap();
    });
    namespace.assert_sound();
}

#[test]
fn a_new_namespace_has_an_empty_root() {
    let namespace = fresh();
    let root = namespace.get(ROOT);
    assert_eq!((root.kind, root.nlink, root.parent, root.size_bytes), (FileKind::Directory, 2, ROOT, 0));
    assert!(namespace.list(ROOT, 10).is_empty());
    assert_eq!(namespace.totals(), Totals { directories: 1, ..Totals::default() });
    assert!(!namespace.freeze(), "nothing to commit");
    namespace.assert_sound();
}

#[test]
fn make_sets_the_inode_and_its_parent() {
    both(|namespace, save| {
        let made = namespace.make(ROOT, b"f", &NewInode { mode: 0o7777, rdev: 9, ..file(5) }).unwrap();
        save();
        let inode = namespace.get(made.ino);
        assert_eq!(inode, made);
        assert_eq!((inode.nlink, inode.mode, inode.uid, inode.gid, inode.parent), (1, 0o7777, 10, 20, 0));
        assert_eq!((inode.atime, inode.mtime, inode.ctime), (at(5), at(5), at(5)));
        assert_eq!(namespace.lookup(ROOT, b"f").unwrap(), Some((made.ino, FileKind::Regular)));
        let root = namespace.get(ROOT);
        assert_eq!((root.mtime, root.ctime, root.atime, root.nlink, root.size_bytes), (at(5), at(5), at(1), 2, 1));
        let sub = namespace.make(ROOT, b"d", &directory(6)).unwrap();
        save();
        assert_eq!((sub.nlink, sub.parent), (2, ROOT));
        assert_eq!(namespace.get(ROOT).nlink, 3);
        let link = namespace.make(ROOT, b"l", &new(FileKind::Symlink, 7)).unwrap();
        save();
        let link = namespace.get(link.ino);
        assert_eq!((link.size_bytes, link.symlink_target.as_deref()), (6, Some(&b"target"[..])));
        fails("Exists", namespace.make(ROOT, b"f", &file(8)));
        fails("NotFound", namespace.make(999, b"x", &file(8)));
        fails("NotDirectory", namespace.make(made.ino, b"x", &file(8)));
    });
}

#[test]
fn names_are_checked() {
    let namespace = fresh();
    fails("NotFound", namespace.make(ROOT, b"", &file(1)));
    fails("Invalid", namespace.make(ROOT, b".", &file(1)));
    fails("Invalid", namespace.make(ROOT, b"..", &file(1)));
    fails("Invalid", namespace.make(ROOT, b"a/b", &file(1)));
    fails("Invalid", namespace.make(ROOT, b"a\0b", &file(1)));
    fails("NameTooLong", namespace.make(ROOT, &[b'x'; 256], &file(1)));
    fails("NameTooLong", namespace.lookup(ROOT, &[b'x'; 256]));
    let every_byte: Vec<u8> = (1..=255).filter(|&byte| byte != b'/').collect();
    for name in [&[b'x'; 255][..], &every_byte, b"...", b" ", b"\xff\xfe"] {
        namespace.make(ROOT, name, &file(1)).unwrap();
        namespace.save().unwrap();
        assert!(namespace.lookup(ROOT, name).unwrap().is_some());
    }
    assert_eq!(namespace.list_names(ROOT).len(), 5);
}

#[test]
fn symlink_targets_are_checked() {
    let namespace = fresh();
    let target = |len: usize| NewInode { symlink_target: Some(vec![b't'; len]), ..new(FileKind::Symlink, 1) };
    fails("NotFound", namespace.make(ROOT, b"l", &target(0)));
    fails("NameTooLong", namespace.make(ROOT, b"l", &target(SYMLINK_BYTES_MAX + 1)));
    let made = namespace.make(ROOT, b"l", &target(SYMLINK_BYTES_MAX)).unwrap();
    namespace.save().unwrap();
    assert_eq!(namespace.get(made.ino), made);
    fails("Invalid", namespace.make(ROOT, b"m", &NewInode { symlink_target: None, ..target(1) }));
    fails("Invalid", namespace.make(ROOT, b"m", &NewInode { kind: FileKind::Fifo, ..target(1) }));
    fails("NotDirectory", namespace.make(made.ino, b"x", &file(1)));
}

#[test]
fn link_and_unlink_count() {
    both(|namespace, save| {
        let ino = namespace.make(ROOT, b"a", &file(1)).unwrap().ino;
        save();
        assert_eq!(namespace.link(ino, ROOT, b"b", at(2)).unwrap().nlink, 2);
        save();
        assert_eq!((namespace.get(ino).ctime, namespace.get(ino).mtime), (at(2), at(1)));
        assert_eq!((namespace.get(ROOT).mtime, namespace.get(ROOT).size_bytes), (at(2), 2));
        fails("Exists", namespace.link(ino, ROOT, b"a", at(3)));
        fails("NotFound", namespace.link(77, ROOT, b"c", at(3)));
        let sub = namespace.make(ROOT, b"d", &directory(1)).unwrap().ino;
        fails("NotPermitted", namespace.link(sub, ROOT, b"e", at(3)));
        fails("NotDirectory", namespace.link(ino, ino, b"e", at(3)));
        fails("IsDirectory", namespace.unlink(ROOT, b"d", at(4)));
        fails("NotFound", namespace.unlink(ROOT, b"zz", at(4)));
        save();
        assert_eq!(namespace.unlink(ROOT, b"a", at(4)).unwrap().nlink, 1);
        save();
        assert!(namespace.orphans().unwrap().is_empty());
        let last = namespace.unlink(ROOT, b"b", at(5)).unwrap();
        save();
        assert_eq!((last.nlink, last.ctime), (0, at(5)));
        assert_eq!(namespace.orphans().unwrap(), [ino]);
        assert_eq!(namespace.get(ino), last, "an orphan is still there");
        fails("NotFound", namespace.link(ino, ROOT, b"c", at(6)));
        namespace.drop_orphan(ino).unwrap();
        save();
        assert_eq!(namespace.inode(ino).unwrap(), None);
        assert!(namespace.orphans().unwrap().is_empty());
        fails("NotFound", namespace.drop_orphan(ino));
        fails("Invalid", namespace.drop_orphan(sub));
        assert_eq!(namespace.list_names(ROOT), [b"d".to_vec()]);
    });
}

#[test]
fn link_counts_have_a_limit() {
    let namespace = fresh();
    let ino = namespace.make(ROOT, b"a", &file(1)).unwrap().ino;
    force_links(&namespace, ino, LINKS_MAX);
    fails("TooManyLinks", namespace.link(ino, ROOT, b"b", at(2)));
    let sub = namespace.make(ROOT, b"d", &directory(1)).unwrap().ino;
    namespace.make(ROOT, b"e", &directory(1)).unwrap();
    force_links(&namespace, sub, LINKS_MAX);
    fails("TooManyLinks", namespace.make(sub, b"x", &directory(1)));
    fails("TooManyLinks", namespace.rename(ROOT, b"e", sub, b"e", NONE, at(2)));
    assert!(namespace.lookup(ROOT, b"e").unwrap().is_some(), "a failed rename changes nothing");
    namespace.make(sub, b"x", &file(1)).unwrap();
}

#[test]
fn remove_directory_wants_an_empty_directory() {
    both(|namespace, save| {
        let sub = namespace.make(ROOT, b"d", &directory(1)).unwrap().ino;
        namespace.make(sub, b"f", &file(1)).unwrap();
        namespace.make(ROOT, b"g", &file(1)).unwrap();
        save();
        fails("NotEmpty", namespace.remove_directory(ROOT, b"d", at(2)));
        fails("NotDirectory", namespace.remove_directory(ROOT, b"g", at(2)));
        fails("NotFound", namespace.remove_directory(ROOT, b"x", at(2)));
        namespace.unlink(sub, b"f", at(2)).unwrap();
        save();
        let after = namespace.remove_directory(ROOT, b"d", at(3)).unwrap();
        save();
        assert_eq!(after.nlink, 0);
        assert_eq!((namespace.get(ROOT).nlink, namespace.get(ROOT).mtime), (2, at(3)));
        fails("NotFound", namespace.make(sub, b"x", &file(4)));
        fails("NotFound", namespace.rename(ROOT, b"g", sub, b"g", NONE, at(4)));
        assert!(namespace.list(sub, 5).is_empty());
        namespace.drop_orphan(sub).unwrap();
        fails("NotFound", namespace.read_directory(sub, 0, 5));
        fails("NotDirectory", namespace.read_directory(namespace.lookup(ROOT, b"g").unwrap().unwrap().0, 0, 5));
    });
}

#[test]
fn rename_moves_and_replaces() {
    both(|namespace, save| {
        let a = namespace.make(ROOT, b"a", &file(1)).unwrap().ino;
        let b = namespace.make(ROOT, b"b", &file(1)).unwrap().ino;
        let d = namespace.make(ROOT, b"d", &directory(1)).unwrap().ino;
        let e = namespace.make(ROOT, b"e", &directory(1)).unwrap().ino;
        let f = namespace.make(e, b"f", &file(1)).unwrap().ino;
        save();
        fails("NotFound", namespace.rename(ROOT, b"x", ROOT, b"y", NONE, at(2)));
        fails("Exists", namespace.rename(ROOT, b"a", ROOT, b"b", NO_REPLACE, at(2)));
        fails("NotDirectory", namespace.rename(ROOT, b"d", ROOT, b"a", NONE, at(2)));
        fails("IsDirectory", namespace.rename(ROOT, b"a", ROOT, b"d", NONE, at(2)));
        fails("NotEmpty", namespace.rename(ROOT, b"d", ROOT, b"e", NONE, at(2)));
        fails("Invalid", namespace.rename(ROOT, b"d", d, b"x", NONE, at(2)));
        fails("NotDirectory", namespace.rename(ROOT, b"d", a, b"x", NONE, at(2)));
        assert_eq!(namespace.rename(ROOT, b"a", ROOT, b"a", NONE, at(2)).unwrap(), Renamed::default());
        // Over a file: the entry keeps the place, and the target becomes an orphan.
        let place = namespace.list(ROOT, 9).iter().find(|item| item.name == b"b").unwrap().cookie;
        let renamed = namespace.rename(ROOT, b"a", ROOT, b"b", NONE, at(3));
        let replaced = renamed.unwrap().replaced.unwrap();
        save();
        assert_eq!((replaced.ino, replaced.nlink, replaced.ctime), (b, 0, at(3)));
        assert_eq!(namespace.orphans().unwrap(), [b]);
        assert_eq!(namespace.lookup(ROOT, b"b").unwrap().unwrap().0, a);
        assert_eq!(namespace.lookup(ROOT, b"a").unwrap(), None);
        assert_eq!(namespace.get(a).ctime, at(3));
        let item = namespace.list(ROOT, 9).into_iter().find(|item| item.name == b"b").unwrap();
        assert_eq!((item.cookie, item.ino), (place, a));
        // Between directories.
        namespace.rename(e, b"f", d, b"g", NO_REPLACE, at(4)).unwrap();
        save();
        assert_eq!((namespace.get(e).size_bytes, namespace.get(d).size_bytes), (0, 1));
        assert_eq!((namespace.get(e).mtime, namespace.get(d).mtime), (at(4), at(4)));
        assert_eq!(namespace.lookup(d, b"g").unwrap().unwrap().0, f);
        // A directory over an empty one.
        let replaced = namespace.rename(ROOT, b"d", ROOT, b"e", NONE, at(5)).unwrap().replaced.unwrap();
        save();
        assert_eq!((replaced.ino, replaced.nlink), (e, 0));
        assert_eq!(namespace.get(ROOT).nlink, 3);
        // A directory into another.
        let h = namespace.make(ROOT, b"h", &directory(6)).unwrap().ino;
        namespace.rename(ROOT, b"e", h, b"sub", NONE, at(7)).unwrap();
        save();
        assert_eq!((namespace.get(ROOT).nlink, namespace.get(h).nlink, namespace.get(d).parent), (3, 3, h));
        fails("Invalid", namespace.rename(ROOT, b"h", d, b"x", NONE, at(8)));
    });
}

#[test]
fn rename_between_links_of_one_inode_does_nothing() {
    both(|namespace, save| {
        let ino = namespace.make(ROOT, b"a", &file(1)).unwrap().ino;
        namespace.link(ino, ROOT, b"b", at(1)).unwrap();
        save();
        for flags in [NONE, EXCHANGE, WHITEOUT] {
            assert_eq!(namespace.rename(ROOT, b"a", ROOT, b"b", flags, at(2)).unwrap().replaced, None);
        }
        fails("Exists", namespace.rename(ROOT, b"a", ROOT, b"b", NO_REPLACE, at(2)));
        assert_eq!(namespace.get(ino).nlink, 2);
        assert_eq!(namespace.list_names(ROOT), [b"a".to_vec(), b"b".to_vec()]);
        // Over one of two links: the other stays.
        namespace.make(ROOT, b"c", &file(1)).unwrap();
        let replaced = namespace.rename(ROOT, b"c", ROOT, b"a", NONE, at(3)).unwrap().replaced.unwrap();
        assert_eq!((replaced.ino, replaced.nlink), (ino, 1));
        assert!(namespace.orphans().unwrap().is_empty());
    });
}

#[test]
fn rename_exchanges() {
    both(|namespace, save| {
        let d = namespace.make(ROOT, b"d", &directory(1)).unwrap().ino;
        let sub = namespace.make(d, b"sub", &directory(1)).unwrap().ino;
        let f = namespace.make(ROOT, b"f", &file(1)).unwrap().ino;
        save();
        fails("NotFound", namespace.rename(ROOT, b"f", ROOT, b"x", EXCHANGE, at(2)));
        let both_flags = RenameFlags { no_replace: true, ..EXCHANGE };
        fails("Invalid", namespace.rename(ROOT, b"f", d, b"sub", both_flags, at(2)));
        fails("Invalid", namespace.rename(ROOT, b"f", d, b"sub", RenameFlags { whiteout: true, ..EXCHANGE }, at(2)));
        fails("Invalid", namespace.rename(ROOT, b"d", d, b"sub", EXCHANGE, at(2)));
        fails("Invalid", namespace.rename(d, b"sub", ROOT, b"d", EXCHANGE, at(2)));
        let places = || [ROOT, d].map(|dir| namespace.list(dir, 9).iter().map(|item| item.cookie).collect::<Vec<_>>());
        let before = places();
        assert_eq!(namespace.rename(ROOT, b"f", d, b"sub", EXCHANGE, at(3)).unwrap().replaced, None);
        save();
        assert_eq!(places(), before, "places stay");
        assert_eq!(namespace.lookup(ROOT, b"f").unwrap(), Some((sub, FileKind::Directory)));
        assert_eq!(namespace.lookup(d, b"sub").unwrap(), Some((f, FileKind::Regular)));
        assert_eq!((namespace.get(sub).parent, namespace.get(d).nlink, namespace.get(ROOT).nlink), (ROOT, 2, 4));
        assert_eq!((namespace.get(d).mtime, namespace.get(f).ctime, namespace.get(sub).ctime), (at(3), at(3), at(3)));
    });
}

#[test]
fn rename_leaves_a_whiteout() {
    both(|namespace, save| {
        let f = namespace.make(ROOT, b"f", &file(1)).unwrap().ino;
        let d = namespace.make(ROOT, b"d", &directory(1)).unwrap().ino;
        save();
        namespace.rename(ROOT, b"f", d, b"g", WHITEOUT, at(2)).unwrap();
        namespace.rename(ROOT, b"d", ROOT, b"e", RenameFlags { no_replace: true, ..WHITEOUT }, at(3)).unwrap();
        save();
        assert_eq!(namespace.lookup(d, b"g").unwrap(), Some((f, FileKind::Regular)));
        for name in [b"f", b"d"] {
            let (ino, kind) = namespace.lookup(ROOT, name).unwrap().unwrap();
            let whiteout = namespace.get(ino);
            assert_eq!((kind, whiteout.rdev, whiteout.mode, whiteout.nlink), (FileKind::CharDevice, 0, 0, 1));
            assert_eq!((whiteout.uid, whiteout.gid), (10, 20));
        }
        assert_eq!((namespace.get(ROOT).size_bytes, namespace.get(ROOT).nlink), (3, 3));
    });
}

#[test]
fn update_changes_attributes_only() {
    both(|namespace, save| {
        let ino = namespace.make(ROOT, b"f", &file(1)).unwrap().ino;
        save();
        let after = namespace
            .update(ino, &mut |inode| {
                inode.mode = 0o4711;
                inode.uid = 5;
                inode.atime = at(9);
                inode.flags = 1;
            })
            .unwrap();
        save();
        assert_eq!(namespace.get(ino), after);
        assert_eq!((after.mode, after.uid, after.atime, after.flags), (0o4711, 5, at(9), 1));
        let forbidden: [fn(&mut Inode); 8] = [
            |inode| inode.root = chunk(3),
            |inode| inode.nlink = 7,
            |inode| inode.ino += 1,
            |inode| inode.kind = FileKind::Fifo,
            |inode| inode.parent = 1,
            |inode| inode.xattr_count = 1,
            |inode| inode.symlink_target = Some([1].into()),
            |inode| inode.mode = 0o10000,
        ];
        for mut change in forbidden {
            fails("Invalid", namespace.update(ino, &mut change));
        }
        fails("Invalid", namespace.update(ROOT, &mut |inode| inode.size_bytes = 5));
        fails("NotFound", namespace.update(99, &mut |_| {}));
        assert_eq!(namespace.get(ino), after);
    });
}

#[test]
fn set_root_logs_what_files_refer_to() {
    let namespace = fresh();
    let ino = namespace.make(ROOT, b"f", &file(1)).unwrap().ino;
    let sub = namespace.make(ROOT, b"d", &directory(1)).unwrap().ino;
    fails("IsDirectory", namespace.set_root(sub, chunk(1), 100, 100, &mut kept));
    let bad = Root::Chunk(Child { fingerprint: Fingerprint::ZERO, len_bytes: 1, hint: ContainerId::NONE });
    fails("Corrupt", namespace.set_root(ino, bad, 1, 1, &mut kept));
    let after = namespace.set_root(ino, chunk(1), 100, 90, &mut |inode| (at(3), inode.ctime)).unwrap();
    assert_eq!((after.size_bytes, after.data_bytes, after.mtime, after.ctime), (100, 90, at(3), at(1)));
    assert_eq!(namespace.totals(), Totals { files: 1, directories: 2, others: 0, logical_bytes: 100, data_bytes: 90 });
    let first = namespace.save().unwrap();
    assert_eq!(first.ops, [LogOp::RootAdded(chunk(1))]);
    namespace.set_root(ino, chunk(1), 100, 90, &mut |inode| (inode.mtime, at(4))).unwrap();
    namespace.set_root(ino, chunk(2), 100, 100, &mut kept).unwrap();
    namespace.set_root(ino, Root::Zero { len_bytes: 1000 }, 1000, 0, &mut kept).unwrap();
    namespace.set_root(ino, chunk(3), 100, 100, &mut kept).unwrap();
    namespace.unlink(ROOT, b"f", at(5)).unwrap();
    namespace.drop_orphan(ino).unwrap();
    let second = namespace.save().unwrap();
    let expected = [
        LogOp::RootAdded(chunk(2)),
        LogOp::RootDropped(chunk(1)),
        LogOp::RootDropped(chunk(2)),
        LogOp::RootAdded(chunk(3)),
        LogOp::RootDropped(chunk(3)),
    ];
    assert_eq!(second.ops, expected);
    assert_eq!(namespace.rows(), [(first.row, first.ops), (second.row, second.ops)]);
    assert_eq!(namespace.totals().files, 0);
    assert_eq!(namespace.totals().logical_bytes, 0);
}

#[test]
fn xattrs_follow_their_modes_and_limits() {
    both(|namespace, save| {
        let xattrs = vec![(b"user.a".to_vec(), b"1".to_vec()), (b"user.b".to_vec(), Vec::new())];
        let ino = namespace.make(ROOT, b"f", &NewInode { xattrs, ..file(1) }).unwrap().ino;
        save();
        assert_eq!(namespace.xattr_names(ino).unwrap(), [b"user.a".to_vec(), b"user.b".to_vec()]);
        assert_eq!(namespace.xattr(ino, b"user.b").unwrap(), Some(Vec::new()));
        assert_eq!(namespace.xattr(ino, b"user.c").unwrap(), None);
        let set = |name: &[u8], value: &[u8], mode| namespace.set_xattr(ino, name, value, mode, at(2));
        fails("Exists", set(b"user.a", b"x", XattrMode::Create));
        fails("NoAttribute", set(b"user.c", b"x", XattrMode::Replace));
        fails("AttributeNameTooLong", set(&[b'n'; 256], b"x", XattrMode::Any));
        fails("Invalid", set(b"", b"x", XattrMode::Any));
        fails("AttributeTooLong", set(b"user.a", &vec![0; XATTR_VALUE_BYTES_MAX + 1], XattrMode::Any));
        set(b"user.c", b"3", XattrMode::Create).unwrap();
        assert_eq!(set(b"user.a", &vec![7; XATTR_VALUE_BYTES_MAX], XattrMode::Replace).unwrap().xattr_count, 3);
        save();
        assert_eq!(namespace.get(ino).ctime, at(2));
        assert_eq!(namespace.xattr(ino, b"user.a").unwrap().unwrap().len(), XATTR_VALUE_BYTES_MAX);
        assert_eq!(namespace.remove_xattr(ino, b"user.b", at(3)).unwrap().xattr_count, 2);
        save();
        fails("NoAttribute", namespace.remove_xattr(ino, b"user.b", at(3)));
        fails("NotFound", namespace.xattr(55, b"user.b"));
        fails("NotFound", namespace.set_xattr(55, b"user.b", b"", XattrMode::Any, at(3)));
        assert_eq!(namespace.xattr_names(ino).unwrap(), [b"user.a".to_vec(), b"user.c".to_vec()]);
        namespace.unlink(ROOT, b"f", at(4)).unwrap();
        namespace.drop_orphan(ino).unwrap();
        save();
        fails("NotFound", namespace.xattr_names(ino));
        let twice = vec![(b"user.a".to_vec(), Vec::new()); 2];
        fails("Invalid", namespace.make(ROOT, b"g", &NewInode { xattrs: twice, ..file(1) }));
    });
}
