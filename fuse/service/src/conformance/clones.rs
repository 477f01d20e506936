//! copy_file_range: accepted and refused copies, and content that was written but not flushed.

use super::{Check, Client, READ_WRITE, ROOT, bad, good, noise};
use crate::{AttributeChanges, Errno, FilePlace, Handle, Ino, OpenOptions, Result, XattrMode};

pub(super) const CHECKS: &[Check] = &[
    ("copies of whole files", whole_files),
    ("copies of ranges", ranges),
    ("copies within a file", within_a_file),
    ("copies of what is not flushed", unflushed),
    ("copies of holes", holes),
    ("copies at limits", limits),
    ("copies with wrong handles", wrong_handles),
];

type Open = (Ino, Handle);

fn place((ino, handle): Open, offset: u64) -> FilePlace {
    FilePlace { ino, handle, offset }
}

fn copy(client: &Client, from: FilePlace, to: FilePlace, len_bytes: u64) -> Result<u32> {
    client.service.copy_range(ROOT, from, to, len_bytes)
}

fn both(client: &Client, source: Ino, target: Ino, work: impl FnOnce(Open, Open)) {
    client.opened(source, READ_WRITE, |from| {
        client.opened(target, READ_WRITE, |to| work((source, from), (target, to)));
    });
}

/// Copies `len_bytes` of `content`, which is that of the source, also in the expected content of the target.
fn copy_both(
    client: &Client,
    (from, content, at): (Open, &[u8], usize),
    (to, expected, onto): (Open, &mut Vec<u8>, usize),
    len_bytes: usize,
) {
    expected.resize(expected.len().max(onto + len_bytes), 0);
    expected[onto..onto + len_bytes].copy_from_slice(&content[at..at + len_bytes]);
    let copied = copy(client, place(from, at as u64), place(to, onto as u64), len_bytes as u64);
    assert_eq!(copied, Ok(len_bytes as u32));
}

fn whole_files(client: &Client) {
    for (number, len_bytes) in [0, 1, 5_000, 300_000, 1_048_576, 9_000_000].into_iter().enumerate() {
        let content = noise(number as u64, len_bytes);
        let source = client.file_with(&format!("source {number}"), &content);
        let target = client.file_with(&format!("target {number}"), &noise(99, len_bytes / 2));
        both(client, source, target, |from, to| {
            assert_eq!(copy(client, place(from, 0), place(to, 0), u64::MAX), Ok(len_bytes as u32));
            assert_eq!(client.stat(target).size_bytes, len_bytes as u64, "the size is known before the file is closed");
            assert!(client.read_open(target, to.1, 0, 1 << 26) == content, "{len_bytes} bytes before closing");
        });
        good(client.unlink(crate::ROOT_INO, &format!("source {number}")));
        assert!(client.read_all(target) == content, "{len_bytes} bytes, the source gone");
        client.opened(target, READ_WRITE, |handle| client.write_all(target, handle, len_bytes as u64, b"more"));
        assert!(client.read_all(target) == [&content, &b"more"[..]].concat(), "{len_bytes} bytes and more");
    }
}

fn ranges(client: &Client) {
    let content = noise(20, 12_000_000);
    let source = client.file_with("source", &content);
    let mut expected = noise(21, 7_000_000);
    let target = client.file_with("target", &expected);
    let cases = [
        (0_usize, 0_usize, 4096_usize),
        (100, 50_000, 3_000_000),
        (5_000_001, 1_000_003, 4_999_999),
        (11_999_000, 6_999_999, 5_000),
        (0, 9_000_000, 12_000_000),
        (3_000_000, 3_000_000, 1),
        (1_234_567, 0, 8_000_000),
    ];
    both(client, source, target, |from, to| {
        for (number, (at, onto, len_bytes)) in cases.into_iter().enumerate() {
            let len_bytes = len_bytes.min(content.len() - at);
            copy_both(client, (from, &content, at), (to, &mut expected, onto), len_bytes);
            assert!(client.read_open(target, to.1, 0, 1 << 26) == expected, "copy {number}");
        }
    });
    assert!(client.read_all(target) == expected, "after closing");
    assert!(client.read_all(source) == content, "the source stays");
}

fn within_a_file(client: &Client) {
    let mut expected = noise(30, 6_000_000);
    let ino = client.file_with("file", &expected);
    client.opened(ino, READ_WRITE, |handle| {
        let open = (ino, handle);
        for (from, to, len_bytes) in
            [(0_usize, 3_000_000_usize, 3_000_000_usize), (4_500_001, 17, 1_400_000), (0, 6_000_000, 6_000_000)]
        {
            expected.resize(expected.len().max(to + len_bytes), 0);
            expected.copy_within(from..from + len_bytes, to);
            let copied = copy(client, place(open, from as u64), place(open, to as u64), len_bytes as u64);
            assert_eq!(copied, Ok(len_bytes as u32));
            assert!(client.read_open(ino, handle, 0, 1 << 26) == expected, "from {from} to {to}");
        }
        bad(copy(client, place(open, 0), place(open, 99), 100), Errno::EINVAL);
        bad(copy(client, place(open, 99), place(open, 0), 100), Errno::EINVAL);
        bad(copy(client, place(open, 5), place(open, 5), 1), Errno::EINVAL);
        // The range ends at the end of the file, so it overlaps nothing.
        let end = expected.len();
        assert_eq!(copy(client, place(open, end as u64 - 10), place(open, end as u64), 1 << 30), Ok(10));
        expected.extend_from_within(end - 10..end);
    });
    assert!(client.read_all(ino) == expected);
}

fn unflushed(client: &Client) {
    let mut content = noise(40, 5_000_000);
    let source = client.file_with("source", &content);
    let target = client.file_with("target", b"");
    let mut expected = noise(41, 3_000_000);
    both(client, source, target, |from, to| {
        client.write_all(source, from.1, 2_000_000, b"written over");
        content[2_000_000..2_000_012].copy_from_slice(b"written over");
        client.write_all(source, from.1, 5_000_000, b"behind the end");
        content.extend_from_slice(b"behind the end");
        client.write_all(target, to.1, 0, &expected);
        client.write_all(target, to.1, 1_000, b"over");
        expected[1_000..1_004].copy_from_slice(b"over");
        assert_eq!(copy(client, place(from, 0), place(to, 3_000_000), 1 << 40), Ok(5_000_014));
        expected.extend_from_slice(&content);
        assert!(client.read_open(target, to.1, 0, 1 << 26) == expected);
        // Later writes to the source do not change the copy.
        client.write_all(source, from.1, 2_000_000, b"OVER AGAIN!!");
        content[2_000_000..2_000_012].copy_from_slice(b"OVER AGAIN!!");
        client.write_all(target, to.1, 8_000_014, b"+");
        expected.push(b'+');
    });
    assert!(client.read_all(target) == expected);
    assert!(client.read_all(source) == content);
}

fn holes(client: &Client) {
    let source = client.file_with("source", b"start");
    client.opened(source, READ_WRITE, |handle| client.write_all(source, handle, 9_000_000, b"end"));
    let content = client.read_all(source);
    let mut expected = b"target".to_vec();
    let target = client.file_with("target", &expected);
    both(client, source, target, |from, to| {
        for (at, onto, len_bytes) in [
            (0_usize, 20_000_000_usize, 9_000_003_usize),
            (3, 1, 5_000_000),
            (6_000_000, 7_000_000, 3_000_003),
            (100_000, 19_999_999, 2_000_000),
        ] {
            copy_both(client, (from, &content, at), (to, &mut expected, onto), len_bytes);
        }
        assert!(client.read_open(target, to.1, 0, 1 << 26) == expected);
    });
    assert!(client.read_all(target) == expected);
}

fn limits(client: &Client) {
    let source = client.file_with("source", b"content");
    let target = client.file_with("target", b"target");
    let capability = b"security.capability";
    good(client.service.set_xattr(ROOT, target, capability, b"\x01\0\0\x02", XattrMode::Any));
    both(client, source, target, |from, to| {
        assert_eq!(copy(client, place(from, 7), place(to, 0), 10), Ok(0), "at the end");
        assert_eq!(copy(client, place(from, u64::MAX >> 1), place(to, 0), 10), Ok(0), "behind the end");
        assert_eq!(copy(client, place(from, 0), place(to, 0), 0), Ok(0), "nothing");
        good(client.service.xattr(target, capability));
        bad(copy(client, place(from, 0), place(to, i64::MAX.cast_unsigned()), 1), Errno::EFBIG);
        assert_eq!(copy(client, place(from, 3), place(to, 1), 2), Ok(2));
        bad(client.service.xattr(target, capability), Errno::ENODATA);
    });
    assert_eq!(client.read_all(target), b"tteget");
    let changes = AttributeChanges { size_bytes: Some(0), ..AttributeChanges::default() };
    good(client.service.set_attributes(ROOT, source, changes));
    both(client, source, target, |from, to| assert_eq!(copy(client, place(from, 0), place(to, 0), 10), Ok(0)));
    assert_eq!(client.read_all(target), b"tteget", "a copy of nothing cuts nothing");
}

fn wrong_handles(client: &Client) {
    let source = client.file_with("source", b"content");
    let target = client.file_with("target", b"target");
    let how = |read, write, append| OpenOptions { read, write, append, ..OpenOptions::default() };
    for (from, to) in [
        (how(false, true, false), how(true, true, false)),
        (how(true, false, false), how(true, false, false)),
        (how(true, false, false), how(true, true, true)),
    ] {
        client.opened(source, from, |from| {
            client.opened(target, to, |to| {
                bad(copy(client, place((source, from), 0), place((target, to), 0), 3), Errno::EBADF);
            });
        });
    }
    client.opened(target, READ_WRITE, |to| {
        bad(copy(client, place((source, u64::MAX - 3), 0), place((target, to), 0), 3), Errno::EBADF);
        bad(copy(client, place((target, to), 0), place((source, u64::MAX - 3), 0), 3), Errno::EBADF);
    });
    assert_eq!(client.read_all(target), b"target");
}
