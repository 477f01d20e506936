//! Damaged bytes give errors, never panics or wrong answers.

use dedupfs_store::device::Device;
use dedupfs_store::device::OpenMode;

use super::*;

const ROOT: Ino = ROOT_INO;

#[test]
fn inode_records_round_trip_and_detect_damage() {
    let namespace = fresh();
    for (kind, root) in [
        (FileKind::Regular, chunk(4)),
        (FileKind::Regular, Root::Zero { len_bytes: 1 << 50 }),
        (FileKind::Symlink, Root::Empty),
        (FileKind::Socket, Root::Empty),
    ] {
        let mut inode = namespace.new_inode(&new(kind, -5));
        inode.root = root;
        inode.size_bytes = u64::MAX;
        // A flag of a later release.
        inode.flags = 1 << 30;
        inode.set_chattr_flags(InodeFlags { append_only: true, no_dump: true, ..InodeFlags::default() });
        let bytes = inode.encode();
        let decoded = Inode::decode(inode.ino, &bytes).unwrap();
        assert_eq!(decoded, inode);
        assert!(decoded.chattr_flags().append_only && !decoded.chattr_flags().immutable && decoded.flags >= 1 << 30);
        fails("Corrupt", Inode::decode(inode.ino + 1, &bytes));
        for position in 0..bytes.len() {
            let mut bad = bytes.clone();
            bad[position] ^= 0x40;
            assert!(Inode::decode(inode.ino, &bad).is_err(), "byte {position}");
            assert!(Inode::decode(inode.ino, &bytes[..position]).is_err());
        }
    }
}

/// Invalid values under a correct checksum.
#[test]
fn nonsense_under_a_good_checksum_is_found() {
    let namespace = fresh();
    let good = namespace.new_inode(&file(1));
    let nonsense: [fn(&mut Inode); 3] =
        [|inode| inode.mode = 0xffff, |inode| inode.atime.nanos = 1 << 31, |inode| inode.parent = 3];
    for spoil in nonsense {
        let mut bad = good.clone();
        spoil(&mut bad);
        fails("Corrupt", Inode::decode(bad.ino, &bad.encode()));
    }
    let bytes = record::seal(&7_u64.to_le_bytes(), |writer| writer.u8(99));
    fails("Corrupt", Inode::decode(7, &bytes));
}

#[test]
fn log_parts_detect_damage() {
    let op = LogOp::RootAdded(chunk(1));
    let bytes = log::encode_part(3, 0, 1, &[op, op]);
    assert_eq!(log::decode_part(3, 0, &bytes).unwrap(), (1, vec![op, op]));
    fails("Corrupt", log::decode_part(4, 0, &bytes));
    fails("Corrupt", log::decode_part(3, 0, &bytes[..bytes.len() - 1]));
    fails("Corrupt", log::decode_part(3, 1, &log::encode_part(3, 1, 1, &[])));
    let huge = record::seal(&[3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], |writer| {
        writer.u32(1);
        writer.u32(u32::MAX);
    });
    fails("Corrupt", log::decode_part(3, 0, &huge));
}

#[test]
fn a_file_that_is_no_namespace_is_refused() {
    for bytes in [&[][..], b"short", &[0; 8192], &[0xab; 100_000]] {
        let disk = MemoryDevice::new();
        let file = disk.open(NAMESPACE_FILE, OpenMode::CreateNew).unwrap();
        file.write_at(bytes, 0).unwrap();
        file.sync().unwrap();
        assert!(Namespace::open(&disk, CACHE_BYTES, &|_| Ok(())).is_err(), "{} bytes", bytes.len());
    }
}

/// Flips bytes all over the file. Every remaining answer must be right.
#[test]
fn flipped_bytes_never_give_wrong_answers() {
    let disk = disk();
    let namespace = open(&disk);
    let mut expected = Vec::new();
    for number in 0..2000_u32 {
        let made = namespace.make(ROOT, format!("{number}").as_bytes(), &file(i64::from(number))).unwrap();
        expected.push(made);
    }
    namespace.save().unwrap();
    drop(namespace);
    let len = disk.open(NAMESPACE_FILE, OpenMode::Read).unwrap().len().unwrap();
    let (mut errors, mut answers) = (0, 0);
    for round in 0..24_u64 {
        let damaged = disk.snapshot_all_synced();
        let file = damaged.open(NAMESPACE_FILE, OpenMode::Write).unwrap();
        for place in 0..3_u64 {
            // Other tests damage the header.
            let offset = 4096 + (round * 7919 * 31 + place * 104_729 * 13) % (len - 4096);
            let mut byte = [0];
            file.read_exact_at(&mut byte, offset).unwrap();
            file.write_at(&[byte[0] ^ 0x15], offset).unwrap();
        }
        let Ok(namespace) = Namespace::open(&damaged, CACHE_BYTES, &|_| Ok(())) else {
            errors += 1;
            continue;
        };
        for made in expected.iter().step_by(37) {
            match namespace.inode(made.ino) {
                Ok(Some(found)) => {
                    answers += 1;
                    assert_eq!(found, *made);
                }
                Ok(None) => panic!("inode {} has vanished", made.ino),
                Err(_) => errors += 1,
            }
        }
    }
    assert!(errors > 0 && answers > 0, "{errors} errors, {answers} answers");
}

#[test]
fn the_check_finds_what_is_wrong() {
    let wrongs: [fn(&Namespace, Ino, Ino); 6] = [
        |namespace, file, _| force_links(namespace, file, 5),
        |namespace, _, dir| force_links(namespace, dir, 3),
        |namespace, file, _| {
            let (_lock, mut draft) = namespace.begin().unwrap();
            draft.remove(file).unwrap();
            draft.apply();
        },
        |namespace, _, dir| {
            let (_lock, mut draft) = namespace.begin().unwrap();
            draft.inode(dir).unwrap().parent = dir;
            draft.apply();
        },
        |namespace, file, _| {
            let (_lock, mut draft) = namespace.begin().unwrap();
            draft.inode(file).unwrap().xattr_count = 1;
            draft.apply();
        },
        |namespace, _, _| namespace.state.write().active.totals.files += 1,
    ];
    for wrong in wrongs {
        let namespace = fresh();
        let file = namespace.make(ROOT, b"f", &file(1)).unwrap().ino;
        let dir = namespace.make(ROOT, b"d", &directory(1)).unwrap().ino;
        namespace.assert_sound();
        wrong(&namespace, file, dir);
        namespace.assert_sound();
        namespace.freeze();
        namespace.commit(CommitInput::default()).unwrap();
        assert!(!namespace.findings().is_empty());
    }
}

/// What names say waits in a temporary file: if that gives other bytes, names are read again for the ranges that are left.
#[test]
fn names_whose_temporary_file_is_cut_are_read_again() {
    let namespace = fresh();
    let inodes: Vec<_> =
        (0..40).map(|n| namespace.make(ROOT, format!("{n}").as_bytes(), &file(n)).unwrap().ino).collect();
    force_links(&namespace, inodes[30], 5);
    namespace.freeze();
    namespace.commit(CommitInput::default()).unwrap();
    let expected = namespace.findings();
    assert_eq!(expected.len(), 1);
    let (scratch, looks) = (tempfile::tempdir().unwrap(), std::cell::Cell::new(0));
    let cut = || {
        looks.set(looks.get() + 1);
        // The first range is in memory then.
        if looks.get() == 2 {
            let links = std::fs::read_dir("/proc/self/fd").unwrap().map(|entry| entry.unwrap().path());
            let inside =
                |link: &std::path::PathBuf| std::fs::read_link(link).is_ok_and(|to| to.starts_with(scratch.path()));
            let files: Vec<_> = links.filter(inside).collect();
            assert_eq!(files.len(), 1);
            std::fs::File::options().write(true).open(&files[0]).unwrap().set_len(10).unwrap();
        }
        false
    };
    let place = Scratch { directory: scratch.path(), admits: &|_| Ok(()) };
    let checked = namespace.check(300, Some(place), &cut).unwrap();
    assert_eq!(checked.findings, expected);
    assert!(checked.failure.is_some_and(|why| why.contains("the file ends before it")));
    // Once for the file, and once for each range but the first.
    let without = namespace.check(300, None, &|| false).unwrap();
    assert_eq!(checked.readings, without.readings);
    assert!(without.readings > 5);
}
