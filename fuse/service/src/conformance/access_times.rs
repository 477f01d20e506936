//! Times of last access by the rule of relatime, and inodes that are found by their numbers.

use std::time::{SystemTime, UNIX_EPOCH};

use super::{Check, Client, READ, READ_WRITE, ROOT, bad, good};
use crate::{AttributeChanges, Errno, Ino, InodeFlags, NodeContent, OpenOptions, ROOT_INO, TimeChange, Timestamp};

pub(super) const CHECKS: &[Check] = &[
    ("reading a file changes its time of last access", files),
    ("reading directories and links changes theirs", directories_and_links),
    ("not with O_NOATIME or the flag", left_alone),
    ("an inode is found by its number as long as it has a name", by_number),
];

/// Sets atime, and mtime with ctime, to these ages in seconds; returns the new atime.
fn aged(client: &Client, ino: Ino, atime_age: i64, mtime_age: i64) -> Timestamp {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs().cast_signed());
    let before = |age: i64| Timestamp { secs: now - age, nanos: 0 };
    let changes = AttributeChanges {
        atime: Some(TimeChange::At(before(atime_age))),
        mtime: Some(TimeChange::At(before(mtime_age))),
        ctime: Some(before(mtime_age)),
        ..AttributeChanges::default()
    };
    good(client.service.set_attributes(ROOT, ino, changes)).atime
}

fn files(client: &Client) {
    let file = client.file_with("file", b"content");
    const DAY: i64 = 24 * 3600;
    for (atime_age, mtime_age, changes) in [
        (100, 50, true),
        (50, 100, false),
        (100, 100, true),
        (DAY - 100, 2 * DAY, false),
        (DAY + 1, 2 * DAY, true),
        // Changed in the future: otherwise each read would change the time.
        (50, -DAY, false),
        (DAY + 1, -DAY, true),
    ] {
        let before = aged(client, file, atime_age, mtime_age);
        let old = client.stat(file);
        client.opened(file, READ, |handle| client.read_open(file, handle, 0, 100));
        let after = client.stat(file);
        assert_eq!(after.atime != before, changes, "read {atime_age} s, changed {mtime_age} s ago");
        assert!(after.atime >= before && (after.mtime, after.ctime) == (old.mtime, old.ctime));
        // The second read of the same day changes nothing.
        client.opened(file, READ, |handle| client.read_open(file, handle, 3, 1));
        assert_eq!(client.stat(file).atime, after.atime);
    }
    // Written content counts as a change before the file is closed.
    let before = aged(client, file, 50, 100);
    client.opened(file, READ_WRITE, |handle| {
        client.write_all(file, handle, 0, b"new");
        client.read_open(file, handle, 0, 100);
        assert_ne!(client.stat(file).atime, before);
    });
}

fn directories_and_links(client: &Client) {
    let directory = client.directory(ROOT_INO, "directory");
    client.file(directory, "file");
    let link = good(client.make_in(ROOT_INO, "link", NodeContent::Symlink(b"target"))).ino;
    for (atime_age, mtime_age, changes) in [(100, 50, true), (50, 100, false)] {
        let before = aged(client, directory, atime_age, mtime_age);
        assert_eq!(client.list(directory, 10).len(), 1);
        assert_eq!(client.stat(directory).atime != before, changes);
        let before = aged(client, link, atime_age, mtime_age);
        good(client.service.read_link(link));
        assert_eq!(client.stat(link).atime != before, changes);
    }
}

fn left_alone(client: &Client) {
    let file = client.file_with("file", b"content");
    let before = aged(client, file, 100, 50);
    let quietly = OpenOptions { no_access_time: true, ..READ };
    client.opened(file, quietly, |handle| client.read_open(file, handle, 0, 100));
    assert_eq!(client.stat(file).atime, before);
    good(client.service.set_flags(ROOT, file, InodeFlags { no_access_time: true, ..InodeFlags::default() }));
    client.read_all(file);
    assert_eq!(client.stat(file).atime, before);
}

fn by_number(client: &Client) {
    let file = client.file_with("file", b"content");
    client.service.forget(file, 1);
    let found = good(client.service.lookup_inode(file));
    assert_eq!(found, client.stat(file));
    // The lookup counts as a reference of the kernel.
    client.opened(file, READ_WRITE, |handle| {
        good(client.unlink(ROOT_INO, "file"));
        client.service.forget(file, 1);
        assert_eq!(client.read_open(file, handle, 0, 100), b"content");
        bad(client.service.lookup_inode(file), Errno::ESTALE);
    });
    bad(client.service.lookup_inode(file), Errno::ESTALE);
    bad(client.service.lookup_inode(u64::MAX - 5), Errno::ESTALE);
    assert_eq!(good(client.service.lookup_inode(ROOT_INO)).ino, ROOT_INO);
}
