//! Reading, writing, truncating, allocating, seeking.

use super::{APPEND, Check, Client, READ, READ_WRITE, ROOT, bad, good, noise};
use crate::{AttributeChanges, Caller, Errno, NewNode, OpenOptions, ROOT_INO, TimeChange, WriteFlags, XattrMode};

pub(super) const CHECKS: &[Check] = &[
    ("what was written is read", written_is_read),
    ("writes anywhere", writes_anywhere),
    ("append handles write at the end", append),
    ("truncate and extend", truncate),
    ("open with truncate", open_with_truncate),
    ("two handles see each other", two_handles),
    ("handles that are not open", wrong_handles),
    ("fallocate", allocate),
    ("writing drops privileges when told", privileges),
    ("a new owner or length drops privileges", privileges_and_attributes),
    ("sync succeeds", sync),
];

fn truncate_to(client: &Client, ino: u64, size_bytes: u64) {
    let changes = AttributeChanges { size_bytes: Some(size_bytes), ..AttributeChanges::default() };
    assert_eq!(good(client.service.set_attributes(ROOT, ino, changes)).size_bytes, size_bytes);
}

fn written_is_read(client: &Client) {
    let node = NewNode { parent: ROOT_INO, name: b"file", mode: 0o640, umask: 0 };
    let (made, opened) = good(client.service.create(ROOT, node, READ_WRITE));
    assert_eq!(made.size_bytes, 0);
    client.write_all(made.ino, opened.handle, 0, b"hello");
    assert_eq!(client.read_open(made.ino, opened.handle, 0, 100), b"hello");
    assert_eq!(client.read_open(made.ino, opened.handle, 1, 3), b"ell");
    assert_eq!(client.read_open(made.ino, opened.handle, 5, 3), b"");
    assert_eq!(client.read_open(made.ino, opened.handle, 1 << 40, 3), b"");
    assert_eq!(client.stat(made.ino).size_bytes, 5, "the size is known before the file is closed");
    good(client.service.flush(made.ino, opened.handle));
    client.service.release(made.ino, opened.handle);
    assert_eq!(client.read_all(made.ino), b"hello");
    assert_eq!(good(client.find(ROOT_INO, "file")).size_bytes, 5);
}

fn writes_anywhere(client: &Client) {
    let mut content = noise(2, 700_000);
    let ino = client.file_with("file", &content);
    for (number, offset) in [0_usize, 699_990, 350_000, 8191, 349_999, 0, 262_144].into_iter().enumerate() {
        let patch = noise(100 + number as u64, 1 + number * 9_000);
        content.resize(content.len().max(offset + patch.len()), 0);
        content[offset..offset + patch.len()].copy_from_slice(&patch);
        client.opened(ino, READ_WRITE, |handle| {
            client.write_all(ino, handle, offset as u64, &patch);
            assert!(client.read_open(ino, handle, 0, 1 << 26) == content, "before closing, patch {number}");
        });
        assert!(client.read_all(ino) == content, "after closing, patch {number}");
    }
    assert_eq!(client.stat(ino).size_bytes, content.len() as u64);
}

fn append(client: &Client) {
    let ino = client.file_with("file", b"one");
    client.opened(ino, APPEND, |handle| {
        client.write_all(ino, handle, 0, b" two");
        client.write_all(ino, handle, 1, b" three");
        assert_eq!(client.read_open(ino, handle, 0, 100), b"one two three");
        let from_cache = WriteFlags { from_cache: true, ..WriteFlags::default() };
        assert_eq!(client.service.write(ROOT, ino, handle, 0, b"ONE", from_cache), Ok(3));
        let at_offset = WriteFlags { at_offset: true, ..WriteFlags::default() };
        assert_eq!(client.service.write(ROOT, ino, handle, 4, b"TWO", at_offset), Ok(3));
    });
    assert_eq!(client.read_all(ino), b"ONE TWO three");
}

fn truncate(client: &Client) {
    let content = noise(3, 400_000);
    let ino = client.file_with("file", &content);
    truncate_to(client, ino, 123_457);
    assert!(client.read_all(ino) == content[..123_457]);
    truncate_to(client, ino, 200_000);
    let mut expected = content[..123_457].to_vec();
    expected.resize(200_000, 0);
    assert!(client.read_all(ino) == expected, "what was cut off does not come back");
    client.opened(ino, READ_WRITE, |handle| {
        client.write_all(ino, handle, 200_000, b"tail");
        truncate_to(client, ino, 10);
        client.write_all(ino, handle, 10, b"new tail");
    });
    let mut expected = content[..10].to_vec();
    expected.extend_from_slice(b"new tail");
    assert_eq!(client.read_all(ino), expected);
    truncate_to(client, ino, 0);
    assert_eq!(client.read_all(ino), b"");
    assert_eq!(client.stat(ino).blocks, 0);
    let changes = AttributeChanges { size_bytes: Some(0), ..AttributeChanges::default() };
    bad(client.service.set_attributes(ROOT, ROOT_INO, changes), Errno::EISDIR);
}

fn open_with_truncate(client: &Client) {
    let ino = client.file_with("file", &noise(4, 100_000));
    let how = OpenOptions { write: true, truncate: true, ..OpenOptions::default() };
    client.opened(ino, how, |_| assert_eq!(client.stat(ino).size_bytes, 0));
    assert_eq!(client.read_all(ino), b"");
    bad(client.service.open(ROOT, ROOT_INO, READ_WRITE), Errno::EISDIR);
    bad(client.service.open(ROOT, u64::MAX - 5, READ_WRITE), Errno::ENOENT);
}

fn two_handles(client: &Client) {
    let ino = client.file_with("file", b"0123456789");
    client.opened(ino, READ_WRITE, |one| {
        client.opened(ino, READ_WRITE, |other| {
            client.write_all(ino, one, 2, b"AB");
            assert_eq!(client.read_open(ino, other, 0, 10), b"01AB456789");
            client.write_all(ino, other, 3, b"XY");
            assert_eq!(client.read_open(ino, one, 0, 10), b"01AXY56789");
        });
        client.write_all(ino, one, 9, b"!!");
    });
    assert_eq!(client.read_all(ino), b"01AXY5678!!");
}

fn wrong_handles(client: &Client) {
    let ino = client.file_with("file", b"content");
    let mut into = Vec::new();
    bad(client.service.read(ino, u64::MAX - 3, 0, 10, &mut into), Errno::EBADF);
    bad(client.service.write(ROOT, ino, u64::MAX - 3, 0, b"x", WriteFlags::default()), Errno::EBADF);
    client.service.release(ino, u64::MAX - 3);
    client.opened(ino, READ, |handle| {
        bad(client.service.write(ROOT, ino, handle, 0, b"x", WriteFlags::default()), Errno::EBADF);
    });
    assert_eq!(client.read_all(ino), b"content");
}

fn allocate(client: &Client) {
    let content = noise(5, 300_000);
    let ino = client.file_with("file", &content);
    let mut expected = content.clone();
    client.opened(ino, READ_WRITE, |handle| {
        let allocate = |offset, len_bytes, mode| client.service.allocate(ino, handle, offset, len_bytes, mode);
        good(allocate(0, 1_000_000, libc::FALLOC_FL_KEEP_SIZE));
        assert_eq!(client.stat(ino).size_bytes, 300_000);
        good(allocate(299_000, 2_000, 0));
        expected.resize(301_000, 0);
        assert_eq!(client.stat(ino).size_bytes, 301_000);
        good(allocate(10_001, 150_000, libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE));
        expected[10_001..160_001].fill(0);
        assert!(client.read_open(ino, handle, 0, 1 << 20) == expected, "before closing");
        bad(allocate(0, 4096, libc::FALLOC_FL_COLLAPSE_RANGE), Errno::EOPNOTSUPP);
        bad(allocate(0, 4096, libc::FALLOC_FL_INSERT_RANGE), Errno::EOPNOTSUPP);
        bad(allocate(0, 4096, libc::FALLOC_FL_UNSHARE_RANGE), Errno::EOPNOTSUPP);
        bad(allocate(0, 4096, libc::FALLOC_FL_PUNCH_HOLE), Errno::EOPNOTSUPP);
        bad(allocate(0, 4096, libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_ZERO_RANGE), Errno::EOPNOTSUPP);
        bad(allocate(0, 0, 0), Errno::EINVAL);
        bad(allocate(i64::MAX.cast_unsigned() - 10, 5, 0), Errno::EFBIG);
        assert_eq!(client.stat(ino).size_bytes, 301_000);
        good(allocate(300_500, 100_000, libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE));
        assert_eq!(client.stat(ino).size_bytes, 301_000);
        expected[300_500..].fill(0);
        good(allocate(200_000, 1_300_000, libc::FALLOC_FL_ZERO_RANGE));
        expected.resize(1_500_000, 0);
        expected[200_000..].fill(0);
        assert_eq!(client.stat(ino).size_bytes, 1_500_000);
        client.write_all(ino, handle, 1_400_000, b"data behind the hole");
        expected[1_400_000..1_400_020].copy_from_slice(b"data behind the hole");
        good(allocate(250_000, 1 << 20, libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE));
        expected[250_000..250_000 + (1 << 20)].fill(0);
    });
    assert!(client.read_all(ino) == expected, "after closing");
}

fn privileges(client: &Client) {
    let user = Caller { uid: 1000, gid: 1000, pid: 1 };
    for (mode, left) in [(0o6755, 0o755), (0o2745, 0o2745), (0o4700, 0o700)] {
        let ino = client.file_with(&format!("{mode:o}"), b"content");
        let changes = AttributeChanges { mode: Some(mode), ..AttributeChanges::default() };
        good(client.service.set_attributes(ROOT, ino, changes));
        let capability = b"security.capability";
        good(client.service.set_xattr(ROOT, ino, capability, b"\x01\0\0\x02", XattrMode::Any));
        client.opened(ino, READ_WRITE, |handle| {
            client.write_all(ino, handle, 0, b"x");
            assert_eq!(client.stat(ino).mode, mode, "a privileged write leaves the mode");
            bad(client.service.xattr(ino, capability), Errno::ENODATA);
            let flags = WriteFlags { drop_privileges: true, ..WriteFlags::default() };
            good(client.service.write(user, ino, handle, 0, b"y", flags));
        });
        assert_eq!(client.stat(ino).mode, left);

        good(client.service.set_attributes(ROOT, ino, changes));
        let how = OpenOptions { write: true, truncate: true, ..OpenOptions::default() };
        client.opened(ino, how, |_| assert_eq!(client.stat(ino).mode, mode, "root's truncating open leaves the mode"));
        let opened = good(client.service.open(user, ino, how));
        client.service.release(ino, opened.handle);
        assert_eq!(client.stat(ino).mode, left, "after another's truncating open");
    }
}

fn privileges_and_attributes(client: &Client) {
    let user = Caller { uid: 1000, gid: 1000, pid: 1 };
    let none = AttributeChanges::default();
    let (owner, group) = (AttributeChanges { uid: Some(7), ..none }, AttributeChanges { gid: Some(8), ..none });
    let (length, time) =
        (AttributeChanges { size_bytes: Some(3), ..none }, AttributeChanges { mtime: Some(TimeChange::Now), ..none });
    let modes = [(0o6755, 0o755), (0o2745, 0o2745), (0o4700, 0o700)];
    let capability = b"security.capability";
    let ino = client.file_with("file", b"content");
    let after = |caller, changes, mode| {
        good(client.service.set_attributes(ROOT, ino, AttributeChanges { mode: Some(mode), ..none }));
        good(client.service.set_xattr(ROOT, ino, capability, b"\x01\0\0\x02", XattrMode::Any));
        let told = good(client.service.set_attributes(caller, ino, changes));
        assert_eq!(told.mode, client.stat(ino).mode, "{changes:?}");
        (told.mode, client.service.xattr(ino, capability).is_ok())
    };
    for (mode, left) in modes {
        for (caller, changes) in [(ROOT, owner), (user, group), (user, length), (user, none), (ROOT, none)] {
            assert_eq!(after(caller, changes, mode), (left, false), "{changes:?} by {}", caller.uid);
        }
        for (caller, changes) in [(ROOT, length), (user, time)] {
            assert_eq!(after(caller, changes, mode), (mode, true), "{changes:?} by {}", caller.uid);
        }
        let given = AttributeChanges { mode: Some(0o6711), ..owner };
        assert_eq!(after(ROOT, given, mode).0, 0o6711, "a mode that is given");
    }
    let directory = client.directory(ROOT_INO, "directory");
    good(client.service.set_attributes(ROOT, directory, AttributeChanges { mode: Some(0o6775), ..none }));
    assert_eq!(good(client.service.set_attributes(ROOT, directory, owner)).mode, 0o6775, "directories keep theirs");
}

fn sync(client: &Client) {
    let ino = client.file(ROOT_INO, "file");
    client.opened(ino, READ_WRITE, |handle| {
        for number in 0..3 {
            client.write_all(ino, handle, number * 100_000, &noise(number, 100_000));
            good(client.service.fsync(ino, handle));
        }
    });
    for sync in [false, true] {
        let how = OpenOptions { sync, ..READ_WRITE };
        client.opened(ino, how, |handle| assert_eq!(client.service.is_synchronous(ino, handle), sync));
    }
    good(client.service.fsync_directory(ROOT_INO));
    assert_eq!(client.read_all(ino).len(), 300_000);
}
