//! Mode, owner, times, extended attributes.

use std::time::Duration;

use super::{Check, Client, READ_WRITE, ROOT, USER, bad, good};
use crate::{
    AttributeChanges, Attributes, Errno, FileKind, NewNode, NodeContent, ROOT_INO, TimeChange, Timestamp, XattrMode,
};

pub(super) const CHECKS: &[Check] = &[
    ("mode, owner and umask of new nodes", new_nodes),
    ("setgid directories hand down their group", setgid_directories),
    ("setattr changes what it is told", set_attributes),
    ("times are kept to the nanosecond", times),
    ("operations change the times they should", times_change),
    ("attributes that change behind a write are newer than it", regression_attributes_behind_a_write),
    ("times that stat showed stay when the file is closed", regression_times_stay_when_closed),
    ("extended attributes", xattrs),
    ("extended attributes have limits", xattr_limits),
    ("extended attributes are of a namespace", xattr_namespaces),
];

fn change(client: &Client, ino: u64, changes: AttributeChanges) -> Attributes {
    let changed = good(client.service.set_attributes(ROOT, ino, changes));
    assert_eq!(changed, client.stat(ino), "setattr returns what stat shows");
    changed
}

fn new_nodes(client: &Client) {
    let node = NewNode { parent: ROOT_INO, name: b"file", mode: 0o4777, umask: 0o027 };
    let (file, opened) = good(client.service.create(USER, node, READ_WRITE));
    client.service.release(file.ino, opened.handle);
    assert_eq!((file.mode, file.uid, file.gid), (0o4750, 1000, 100));
    let node = NewNode { parent: ROOT_INO, name: b"directory", mode: 0o1777, umask: 0o002 };
    let directory = good(client.service.make(USER, node, NodeContent::Directory));
    assert_eq!((directory.mode, directory.uid, directory.gid), (0o1775, 1000, 100));
}

fn setgid_directories(client: &Client) {
    let parent = client.directory(ROOT_INO, "shared");
    change(client, parent, AttributeChanges { mode: Some(0o2775), gid: Some(555), ..Default::default() });
    let node = NewNode { parent, name: b"file", mode: 0o644, umask: 0 };
    let file = good(client.service.make(USER, node, NodeContent::Regular));
    assert_eq!((file.gid, file.mode), (555, 0o644));
    let node = NewNode { parent, name: b"directory", mode: 0o755, umask: 0 };
    let directory = good(client.service.make(USER, node, NodeContent::Directory));
    assert_eq!((directory.gid, directory.mode), (555, 0o2755));
}

fn set_attributes(client: &Client) {
    let ino = client.file(ROOT_INO, "file");
    let before = client.stat(ino);
    let changed = change(client, ino, AttributeChanges { mode: Some(0o6711), ..Default::default() });
    assert_eq!(changed, Attributes { mode: 0o6711, ctime: changed.ctime, ..before });
    let changed = change(client, ino, AttributeChanges { uid: Some(7), ..Default::default() });
    assert_eq!((changed.uid, changed.gid), (7, before.gid));
    let changed = change(client, ino, AttributeChanges { gid: Some(u32::MAX - 1), ..Default::default() });
    assert_eq!((changed.uid, changed.gid, changed.kind), (7, u32::MAX - 1, FileKind::Regular));
    bad(client.service.set_attributes(ROOT, u64::MAX - 5, AttributeChanges::default()), Errno::ENOENT);
}

fn times(client: &Client) {
    let ino = client.file(ROOT_INO, "file");
    let moments = [(-2, 800_000_000), (0, 0), (1, 999_999_999), (1 << 33, 1), (-(1 << 33), 0)];
    for (secs, nanos) in moments {
        let time = Timestamp { secs, nanos };
        let mtime = Timestamp { secs: secs + 1, nanos };
        let changes = AttributeChanges {
            atime: Some(TimeChange::At(time)),
            mtime: Some(TimeChange::At(mtime)),
            ..Default::default()
        };
        let changed = change(client, ino, changes);
        assert_eq!((changed.atime, changed.mtime), (time, mtime));
    }
    let ctime = Timestamp { secs: 5, nanos: 6 };
    assert_eq!(change(client, ino, AttributeChanges { ctime: Some(ctime), ..Default::default() }).ctime, ctime);
    let changed = change(client, ino, AttributeChanges { mtime: Some(TimeChange::Now), ..Default::default() });
    assert!(changed.mtime.secs > 1_600_000_000, "the service's clock is set");
}

/// Sets a node's times to the past, runs `action`, and returns whether mtime and ctime moved.
fn moved(client: &Client, ino: u64, action: impl FnOnce()) -> (bool, bool) {
    let past = Timestamp { secs: 1000, nanos: 0 };
    let changes =
        AttributeChanges { mtime: Some(TimeChange::At(past)), ctime: Some(past), ..AttributeChanges::default() };
    good(client.service.set_attributes(ROOT, ino, changes));
    action();
    let after = client.stat(ino);
    (after.mtime != past, after.ctime != past)
}

fn times_change(client: &Client) {
    let file = client.file(ROOT_INO, "file");
    let write = || client.opened(file, READ_WRITE, |handle| client.write_all(file, handle, 0, b"x"));
    assert_eq!(moved(client, file, write), (true, true), "write");
    let truncate = || {
        let changes = AttributeChanges { size_bytes: Some(0), ..Default::default() };
        good(client.service.set_attributes(ROOT, file, changes));
    };
    assert_eq!(moved(client, file, truncate), (true, true), "truncate");
    let chmod = || {
        good(client.service.set_attributes(ROOT, file, AttributeChanges { mode: Some(0o600), ..Default::default() }));
    };
    assert_eq!(moved(client, file, chmod), (false, true), "chmod");
    let link = || {
        good(client.service.link(file, ROOT_INO, b"link"));
    };
    assert_eq!(moved(client, file, link), (false, true), "link");
    assert_eq!(moved(client, file, || good(client.unlink(ROOT_INO, "link"))), (false, true), "unlink");
    let set = || good(client.service.set_xattr(ROOT, file, b"user.x", b"1", XattrMode::Any));
    assert_eq!(moved(client, file, set), (false, true), "setxattr");
    assert_eq!(moved(client, file, || drop(client.read_all(file))), (false, false), "read");

    let directory = client.directory(ROOT_INO, "directory");
    let create = || {
        client.file(directory, "a");
    };
    assert_eq!(moved(client, directory, create), (true, true), "create");
    let rename = || good(client.service.rename(directory, b"a", directory, b"b", Default::default()));
    assert_eq!(moved(client, directory, rename), (true, true), "rename");
    assert_eq!(moved(client, directory, || good(client.unlink(directory, "b"))), (true, true), "unlink");
}

/// A program that looks for changes by ctime must see each of them, also while a file is being written.
fn regression_attributes_behind_a_write(client: &Client) {
    let service = &client.service;
    let file = client.file(ROOT_INO, "file");
    let written = client.opened(file, READ_WRITE, |handle| {
        client.write_all(file, handle, 0, b"content");
        let written = client.stat(file);
        let changes: [(&str, &dyn Fn()); 4] = [
            ("chmod", &|| {
                good(service.set_attributes(ROOT, file, AttributeChanges { mode: Some(0o600), ..Default::default() }));
            }),
            ("link", &|| {
                good(service.link(file, ROOT_INO, b"link"));
            }),
            ("setxattr", &|| good(service.set_xattr(ROOT, file, b"user.x", b"1", XattrMode::Any))),
            ("unlink", &|| good(client.unlink(ROOT_INO, "link"))),
        ];
        for (what, change) in changes {
            let before = client.stat(file);
            std::thread::sleep(Duration::from_millis(2));
            change();
            let after = client.stat(file);
            assert!(after.ctime > before.ctime, "{what}");
            assert_eq!(after.mtime, written.mtime, "{what}");
        }
        client.stat(file)
    });
    let closed = client.stat(file);
    assert_eq!((closed.mtime, closed.ctime), (written.mtime, written.ctime));
}

fn regression_times_stay_when_closed(client: &Client) {
    let file = client.file_with("file", b"content");
    let past = Timestamp { secs: 1000, nanos: 0 };
    for mode in [libc::FALLOC_FL_KEEP_SIZE, libc::FALLOC_FL_KEEP_SIZE | libc::FALLOC_FL_PUNCH_HOLE, 0] {
        let changes = AttributeChanges { mtime: Some(TimeChange::At(past)), ctime: Some(past), ..Default::default() };
        good(client.service.set_attributes(ROOT, file, changes));
        let shown = client.opened(file, READ_WRITE, |handle| {
            // Changes nothing: the range is behind the end, or within it.
            let offset = if mode == 0 { 0 } else { 100 };
            good(client.service.allocate(file, handle, offset, 5, mode));
            client.stat(file)
        });
        assert_eq!(client.stat(file), shown, "mode {mode}");
    }
}

fn xattrs(client: &Client) {
    let ino = client.file(ROOT_INO, "file");
    let set = |name: &str, value: &[u8], mode| client.service.set_xattr(ROOT, ino, name.as_bytes(), value, mode);
    bad(client.service.xattr(ino, b"user.one"), Errno::ENODATA);
    bad(set("user.one", b"x", XattrMode::Replace), Errno::ENODATA);
    good(set("user.one", b"first\0value", XattrMode::Create));
    bad(set("user.one", b"x", XattrMode::Create), Errno::EEXIST);
    assert_eq!(good(client.service.xattr(ino, b"user.one")), b"first\0value");
    good(set("user.one", b"", XattrMode::Replace));
    assert_eq!(good(client.service.xattr(ino, b"user.one")), b"");
    good(set("trusted.two", b"2", XattrMode::Any));
    good(set("security.three", &[3; 60_000], XattrMode::Any));
    assert_eq!(good(client.service.xattr(ino, b"security.three")), [3; 60_000]);
    let mut names = good(client.service.xattr_names(ino));
    names.sort();
    assert_eq!(names, [b"security.three".as_slice(), b"trusted.two", b"user.one"]);
    good(client.service.remove_xattr(ino, b"trusted.two"));
    bad(client.service.remove_xattr(ino, b"trusted.two"), Errno::ENODATA);
    assert_eq!(good(client.service.xattr_names(ino)).len(), 2);
    let link = good(client.make_in(ROOT_INO, "link", NodeContent::Symlink(b"x"))).ino;
    good(client.service.set_xattr(ROOT, link, b"trusted.x", b"on a link", XattrMode::Any));
    assert_eq!(good(client.service.xattr(link, b"trusted.x")), b"on a link");
}

fn xattr_limits(client: &Client) {
    let ino = client.file(ROOT_INO, "file");
    let longest = format!("user.{}", "x".repeat(250));
    good(client.service.set_xattr(ROOT, ino, longest.as_bytes(), &[7; 64 << 10], XattrMode::Any));
    assert_eq!(good(client.service.xattr(ino, longest.as_bytes())), [7; 64 << 10]);
    let too_long = format!("{longest}x");
    bad(client.service.set_xattr(ROOT, ino, too_long.as_bytes(), b"", XattrMode::Any), Errno::ERANGE);
    bad(client.service.set_xattr(ROOT, ino, b"user.big", &[7; (64 << 10) + 1], XattrMode::Any), Errno::E2BIG);
    assert_eq!(good(client.service.xattr_names(ino)), [longest.into_bytes()]);
}

fn xattr_namespaces(client: &Client) {
    let ino = client.file(ROOT_INO, "file");
    let set = |name: &[u8]| client.service.set_xattr(ROOT, ino, name, b"x", XattrMode::Any);
    for name in [&b"system.other"[..], b"other.name", b"name", b"user", b"System.posix_acl_access", b"\xff."] {
        bad(set(name), Errno::EOPNOTSUPP);
    }
    for name in [&b"user."[..], b"trusted.", b"security."] {
        bad(set(name), Errno::EINVAL);
    }
    bad(set(b""), Errno::ERANGE);
    for name in [&b"user.x"[..], b"user.\xff", b"trusted.overlay.opaque", b"security.selinux"] {
        good(set(name));
    }
    assert_eq!(good(client.service.xattr_names(ino)).len(), 4);
}
