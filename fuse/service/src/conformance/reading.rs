//! Checks that only read: each has a part that makes a directory, and one that reads it. The directory may be live, or its frozen copy.

use super::acls::extended;
use super::{Client, READ, READ_WRITE, ROOT, bad, good, noise};
use crate::acl::{ACCESS_XATTR, DEFAULT_XATTR};
use crate::{
    AttributeChanges, Attributes, Errno, FileKind, Ino, Listing, NewNode, NodeContent, OpenOptions, SeekTarget,
    TimeChange, Timestamp, XattrMode,
};

/// A check of a directory that was made beforehand.
pub(super) struct ReadingCheck {
    pub(super) name: &'static str,
    /// Fills the empty directory.
    pub(super) make: fn(&Client, Ino),
    /// Reads it, or a copy.
    pub(super) read: fn(&Client, Ino),
}

pub(super) const CHECKS: &[ReadingCheck] = &[
    ReadingCheck { name: "every kind of node is created as asked", make: make_kinds, read: read_kinds },
    ReadingCheck { name: "names of any bytes up to 255", make: make_odd_names, read: read_odd_names },
    ReadingCheck { name: "listing is complete, unique and can be continued", make: make_many, read: read_many },
    ReadingCheck { name: "an empty directory", make: |_, _| (), read: read_empty },
    ReadingCheck { name: "directories below directories", make: make_deep, read: read_deep },
    ReadingCheck { name: "a file with several names is one inode", make: make_links, read: read_links },
    ReadingCheck { name: "a large file in pieces", make: make_large, read: read_large },
    ReadingCheck { name: "writing far behind the end leaves zeros", make: make_gap, read: read_gap },
    ReadingCheck { name: "seek finds all data", make: make_sparse, read: read_sparse },
    ReadingCheck { name: "modes, owners and times of content", make: make_attributes, read: read_attributes },
    ReadingCheck { name: "extended attributes of any kind of node", make: make_xattrs, read: read_xattrs },
    ReadingCheck { name: "access lists", make: make_access_lists, read: read_access_lists },
];

fn find(client: &Client, directory: Ino, name: &str) -> Ino {
    good(client.find(directory, name)).ino
}

const DEVICE: u32 = (259 << 8) | 7;
const TARGET: &[u8] = b"some/\xfftarget";
const KINDS: [(NodeContent<'_>, FileKind, u32); 7] = [
    (NodeContent::Regular, FileKind::Regular, 0),
    (NodeContent::Directory, FileKind::Directory, 0),
    (NodeContent::Symlink(TARGET), FileKind::Symlink, 0),
    (NodeContent::CharDevice(DEVICE), FileKind::CharDevice, DEVICE),
    (NodeContent::BlockDevice(DEVICE), FileKind::BlockDevice, DEVICE),
    (NodeContent::Fifo, FileKind::Fifo, 0),
    (NodeContent::Socket, FileKind::Socket, 0),
];

fn make_kinds(client: &Client, directory: Ino) {
    for (content, kind, _) in KINDS {
        let made = good(client.make_in(directory, &format!("{kind:?}"), content));
        assert_eq!(good(client.find(directory, &format!("{kind:?}"))), made);
    }
}

fn read_kinds(client: &Client, directory: Ino) {
    for (_, kind, rdev) in KINDS {
        let name = format!("{kind:?}");
        let found = good(client.find(directory, &name));
        let mode = if kind == FileKind::Symlink { 0o777 } else { 0o755 };
        let nlink = if kind == FileKind::Directory { 2 } else { 1 };
        assert_eq!((found.kind, found.rdev, found.mode, found.nlink), (kind, rdev, mode, nlink), "{name}");
        if kind == FileKind::Symlink {
            assert_eq!(found.size_bytes, 12, "a link's size is its target's length");
            assert_eq!(good(client.service.read_link(found.ino)), TARGET);
        } else {
            bad(client.service.read_link(found.ino), Errno::EINVAL);
        }
        if kind != FileKind::Directory {
            bad(client.find(found.ino, "below"), Errno::ENOTDIR);
            bad(client.service.read_directory(found.ino, 0, 10, Listing::Names), Errno::ENOTDIR);
        }
    }
    let listed = client.list(directory, 100);
    assert!(listed.iter().all(|entry| entry.name == format!("{:?}", entry.kind).as_bytes()));
    let mut inodes: Vec<Ino> = listed.iter().map(|entry| entry.ino).collect();
    inodes.sort_unstable();
    inodes.dedup();
    assert_eq!((listed.len(), inodes.len()), (7, 7), "inode numbers are unique");
    bad(client.service.open(ROOT, directory, READ), Errno::EISDIR);
}

const ODD: [&[u8]; 8] = [b" ", b"\n", b"\xff\xfe", b"...", b"-rf", "ümläut".as_bytes(), b"\x01\x7f\\\"'", &[b'x'; 255]];

fn make_odd_names(client: &Client, directory: Ino) {
    for name in ODD {
        let node = NewNode { parent: directory, name, mode: 0o600, umask: 0 };
        good(client.service.make(ROOT, node, NodeContent::Regular));
    }
}

fn read_odd_names(client: &Client, directory: Ino) {
    let mut listed = client.list(directory, 3);
    listed.sort_by(|one, other| one.name.cmp(&other.name));
    let mut expected = ODD;
    expected.sort_unstable();
    assert!(listed.iter().map(|entry| entry.name.as_slice()).eq(expected));
    for entry in listed {
        assert_eq!(good(client.service.lookup(directory, &entry.name)).ino, entry.ino);
        client.service.forget(entry.ino, 1);
    }
    bad(client.find(directory, "absent"), Errno::ENOENT);
    bad(client.find(directory, &"x".repeat(254)), Errno::ENOENT);
    bad(client.find(directory, &"x".repeat(256)), Errno::ENAMETOOLONG);
}

const MANY: usize = 300;

fn many() -> impl Iterator<Item = String> {
    (0..MANY).map(|number| format!("entry {number}"))
}

fn make_many(client: &Client, directory: Ino) {
    for name in many() {
        client.file(directory, &name);
    }
}

fn read_many(client: &Client, directory: Ino) {
    let inodes: Vec<Ino> = many().map(|name| find(client, directory, &name)).collect();
    let end = client.service.directory_end(directory);
    for step in [1, 7, MANY, 1000] {
        let listed = client.list(directory, step);
        assert_eq!(listed.len(), MANY, "{step} at a time");
        assert!(listed.iter().all(|entry| (3..end).contains(&entry.cookie) && entry.kind == FileKind::Regular));
        assert!(listed.iter().all(|entry| inodes.contains(&entry.ino) && entry.attributes.is_none()));
        // From any place, as a reader that comes back does.
        for place in [0, 1, 150, MANY - 1] {
            let rest = good(client.service.read_directory(directory, listed[place].cookie, 5, Listing::Names));
            assert!(rest.iter().eq(listed[place + 1..].iter().take(5)), "behind {place}");
        }
    }
    let listed = good(client.service.read_directory(directory, 0, MANY, Listing::Attributes));
    for entry in &listed {
        assert_eq!(entry.attributes, Some(client.stat(entry.ino)));
        client.service.forget(entry.ino, 1);
    }
    let mut expected: Vec<String> = many().collect();
    expected.sort();
    assert_eq!(client.sorted_names(directory), expected);
    bad(client.service.read_directory(inodes[0], 0, 10, Listing::Names), Errno::ENOTDIR);
}

fn read_empty(client: &Client, directory: Ino) {
    assert_eq!(client.list(directory, 10), []);
    assert_eq!(client.stat(directory).nlink, 2);
    bad(client.find(directory, "absent"), Errno::ENOENT);
}

const DEPTH: usize = 40;

fn make_deep(client: &Client, directory: Ino) {
    (0..DEPTH).fold(directory, |above, level| {
        client.file(above, "beside");
        client.directory(above, &format!("level {level}"))
    });
}

fn read_deep(client: &Client, directory: Ino) {
    let mut above = directory;
    for level in 0..DEPTH {
        let below = good(client.find(above, &format!("level {level}")));
        assert_eq!(client.service.parent(below.ino), Ok(above));
        assert_eq!(client.stat(above).nlink, 3);
        assert_eq!(good(client.service.lookup_inode(below.ino)), below, "found by its number alone");
        client.service.forget(below.ino, 1);
        above = below.ino;
    }
    assert_eq!((client.stat(above).nlink, client.list(above, 5)), (2, vec![]));
}

fn make_links(client: &Client, directory: Ino) {
    let file = client.file_in(directory, "first", b"shared");
    let inner = client.directory(directory, "inner");
    for (parent, name) in [(directory, "second"), (inner, "third")] {
        good(client.service.link(file, parent, name.as_bytes()));
    }
    client.file_in(directory, "like the first", b"shared");
}

fn read_links(client: &Client, directory: Ino) {
    let first = good(client.find(directory, "first"));
    let inner = find(client, directory, "inner");
    assert_eq!(good(client.find(directory, "second")), first);
    assert_eq!(good(client.find(inner, "third")), first);
    assert_eq!((first.nlink, client.list(inner, 5)[0].ino), (3, first.ino));
    assert_eq!(client.read_all(first.ino), b"shared");
    let other = good(client.find(directory, "like the first"));
    assert!(other.nlink == 1 && other.ino != first.ino);
}

const LARGE_BYTES: usize = 5_000_000;

fn make_large(client: &Client, directory: Ino) {
    let ino = client.file(directory, "large");
    client.opened(ino, READ_WRITE, |handle| {
        for (number, piece) in noise(1, LARGE_BYTES).chunks(1 << 20).enumerate() {
            client.write_all(ino, handle, (number as u64) << 20, piece);
        }
    });
}

fn read_large(client: &Client, directory: Ino) {
    let (content, ino) = (noise(1, LARGE_BYTES), find(client, directory, "large"));
    assert!(client.read_all(ino) == content);
    for direct in [false, true] {
        client.opened(ino, OpenOptions { direct, ..READ }, |handle| {
            for offset in [LARGE_BYTES - 1, 1, 4096, 3_333_333, 131_071] {
                let end = (offset + 70_000).min(LARGE_BYTES);
                assert!(client.read_open(ino, handle, offset as u64, 70_000) == content[offset..end], "at {offset}");
            }
            assert_eq!(client.read_open(ino, handle, LARGE_BYTES as u64, 3), b"");
            assert_eq!(client.read_open(ino, handle, 1 << 40, 3), b"");
        });
    }
    let attributes = client.stat(ino);
    assert!(attributes.size_bytes == LARGE_BYTES as u64 && attributes.blocks > 0, "data occupies blocks");
}

fn make_gap(client: &Client, directory: Ino) {
    let ino = client.file_in(directory, "file", b"start");
    client.opened(ino, READ_WRITE, |handle| client.write_all(ino, handle, 300_000, b"end"));
}

fn read_gap(client: &Client, directory: Ino) {
    let mut expected = b"start".to_vec();
    expected.resize(300_000, 0);
    expected.extend_from_slice(b"end");
    assert!(client.read_all(find(client, directory, "file")) == expected);
}

fn make_sparse(client: &Client, directory: Ino) {
    let ino = client.file_in(directory, "file", &noise(6, 10_000));
    client.opened(ino, READ_WRITE, |handle| client.write_all(ino, handle, 2_000_000, b"end"));
}

fn read_sparse(client: &Client, directory: Ino) {
    let ino = find(client, directory, "file");
    let content = client.read_all(ino);
    client.opened(ino, READ, |handle| {
        let seek = |offset, target| client.service.seek(ino, handle, offset, target);
        let mut at = 0;
        while at < content.len() as u64 {
            let data = match seek(at, SeekTarget::Data) {
                Err(Errno::ENXIO) => content.len() as u64,
                found => good(found),
            };
            assert!(data >= at);
            assert!(content[at as usize..data as usize].iter().all(|&byte| byte == 0), "data in a hole behind {at}");
            if data == content.len() as u64 {
                break;
            }
            at = good(seek(data, SeekTarget::Hole));
            assert!(at > data && at <= content.len() as u64);
        }
        bad(seek(2_000_003, SeekTarget::Data), Errno::ENXIO);
        bad(seek(2_000_003, SeekTarget::Hole), Errno::ENXIO);
        assert_eq!(seek(2_000_000, SeekTarget::Data), Ok(2_000_000));
        assert_eq!(seek(2_000_000, SeekTarget::Hole), Ok(2_000_003));
    });
}

/// Seconds and nanoseconds of content, modes, users and groups.
const ATTRIBUTES: [(Timestamp, u16, u32, u32); 4] = [
    (Timestamp { secs: -2, nanos: 800_000_000 }, 0o4711, 0, 0),
    (Timestamp { secs: 0, nanos: 0 }, 0o2750, 1000, 1001),
    (Timestamp { secs: 1, nanos: 999_999_999 }, 0o1777, 65_534, 5),
    (Timestamp { secs: 1 << 33, nanos: 1 }, 0o000, 1_000_000, 1_000_000),
];

fn make_attributes(client: &Client, directory: Ino) {
    for (number, (mtime, mode, uid, gid)) in ATTRIBUTES.into_iter().enumerate() {
        for (content, kind) in [(NodeContent::Regular, "file"), (NodeContent::Directory, "directory")] {
            let ino = good(client.make_in(directory, &format!("{kind} {number}"), content)).ino;
            let owner = AttributeChanges { uid: Some(uid), gid: Some(gid), ..AttributeChanges::default() };
            good(client.service.set_attributes(ROOT, ino, owner));
            let time = Some(TimeChange::At(mtime));
            let rest = AttributeChanges { mode: Some(mode), mtime: time, ..AttributeChanges::default() };
            good(client.service.set_attributes(ROOT, ino, rest));
        }
    }
}

fn read_attributes(client: &Client, directory: Ino) {
    for (number, (mtime, mode, uid, gid)) in ATTRIBUTES.into_iter().enumerate() {
        for kind in ["file", "directory"] {
            let found: Attributes = good(client.find(directory, &format!("{kind} {number}")));
            assert_eq!((found.mtime, found.mode, found.uid, found.gid), (mtime, mode, uid, gid), "{kind} {number}");
        }
    }
}

/// Attributes of each node: short, of any bytes, empty, and longer than a tree node keeps beside its entry.
fn xattr_values() -> [(&'static [u8], Vec<u8>); 4] {
    let long = noise(7, 2_000);
    [(b"trusted.empty", vec![]), (b"trusted.long", long), (b"trusted.x", vec![b'1']), (b"trusted.\xff", vec![0, 255])]
}

fn make_xattrs(client: &Client, directory: Ino) {
    for (content, kind, _) in KINDS {
        let ino = good(client.make_in(directory, &format!("{kind:?}"), content)).ino;
        for (name, value) in xattr_values() {
            good(client.service.set_xattr(ROOT, ino, name, &value, XattrMode::Create));
        }
    }
    client.file(directory, "none");
}

fn read_xattrs(client: &Client, directory: Ino) {
    for (_, kind, _) in KINDS {
        let ino = find(client, directory, &format!("{kind:?}"));
        let mut names = good(client.service.xattr_names(ino));
        names.sort();
        assert!(
            names.iter().map(Vec::as_slice).eq(xattr_values().iter().map(|&(name, _)| name)),
            "{kind:?}: {names:?}"
        );
        for (name, value) in xattr_values() {
            assert_eq!(good(client.service.xattr(ino, name)), value, "{kind:?}");
        }
        bad(client.service.xattr(ino, b"trusted.absent"), Errno::ENODATA);
    }
    let none = find(client, directory, "none");
    assert!(good(client.service.xattr_names(none)).is_empty());
    bad(client.service.xattr(none, b"trusted.x"), Errno::ENODATA);
}

fn make_access_lists(client: &Client, directory: Ino) {
    let (file, inner) = (client.file(directory, "file"), client.directory(directory, "inner"));
    good(client.service.set_xattr(ROOT, file, ACCESS_XATTR, &extended(6), XattrMode::Any));
    good(client.service.set_xattr(ROOT, inner, DEFAULT_XATTR, &extended(5), XattrMode::Any));
}

fn read_access_lists(client: &Client, directory: Ino) {
    let (file, inner) = (good(client.find(directory, "file")), good(client.find(directory, "inner")));
    assert_eq!((file.mode, inner.mode), (0o760, 0o755));
    assert_eq!(good(client.service.xattr(file.ino, ACCESS_XATTR)), extended(6));
    assert_eq!(good(client.service.xattr(inner.ino, DEFAULT_XATTR)), extended(5));
    bad(client.service.xattr(inner.ino, ACCESS_XATTR), Errno::ENODATA);
}
