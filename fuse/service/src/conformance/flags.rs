//! Immutable and append-only inodes: every operation that Linux refuses, and those that it does not.

use super::{APPEND, Check, Client, READ, READ_WRITE, ROOT, USER, bad, good};
use crate::{
    AttributeChanges, Caller, Errno, FilePlace, Ino, InodeFlags, NewNode, NodeContent, OpenOptions, ROOT_INO,
    RenameFlags, TimeChange, Timestamp, WriteFlags, XattrMode,
};

pub(super) const CHECKS: &[Check] = &[
    ("flags are kept, and only the superuser protects", who_may_set_them),
    ("an immutable file stays as it is", immutable_file),
    ("an append-only file only grows", append_only_file),
    ("an immutable directory keeps its entries and takes none", immutable_directory),
    ("an append-only directory keeps its entries and takes more", append_only_directory),
    ("what is created inherits no protection", inheritance),
    ("a handle older than the flag changes nothing", older_handles),
];

const IMMUTABLE: InodeFlags = InodeFlags { immutable: true, ..NONE };
const APPEND_ONLY: InodeFlags = InodeFlags { append_only: true, ..NONE };
const HARMLESS: InodeFlags = InodeFlags { no_dump: true, no_access_time: true, ..NONE };
const NONE: InodeFlags = InodeFlags { immutable: false, append_only: false, no_dump: false, no_access_time: false };

fn set(client: &Client, ino: Ino, flags: InodeFlags) {
    good(client.service.set_flags(ROOT, ino, flags));
    assert_eq!(good(client.service.flags(ino)), flags);
}

fn swap() -> RenameFlags {
    RenameFlags { exchange: true, ..RenameFlags::default() }
}

fn who_may_set_them(client: &Client) {
    let node = NewNode { parent: ROOT_INO, name: b"file", mode: 0o644, umask: 0 };
    let file = good(client.service.make(USER, node, NodeContent::Regular)).ino;
    assert_eq!(good(client.service.flags(file)), NONE);
    let stranger = Caller { uid: 1001, ..USER };
    for flags in [IMMUTABLE, APPEND_ONLY] {
        bad(client.service.set_flags(USER, file, flags), Errno::EPERM);
    }
    bad(client.service.set_flags(stranger, file, HARMLESS), Errno::EPERM);
    good(client.service.set_flags(USER, file, HARMLESS));
    assert_eq!(good(client.service.flags(file)), HARMLESS);
    let before = client.stat(file).ctime;
    set(client, file, InodeFlags { immutable: true, ..HARMLESS });
    assert!(client.stat(file).ctime >= before);
    bad(client.service.set_flags(USER, file, HARMLESS), Errno::EPERM);
    good(client.service.set_flags(USER, file, InodeFlags { immutable: true, ..NONE }));
    set(client, file, NONE);
    let link = good(client.make_in(ROOT_INO, "link", NodeContent::Symlink(b"x"))).ino;
    bad(client.service.set_flags(ROOT, link, HARMLESS), Errno::EOPNOTSUPP);
    bad(client.service.flags(u64::MAX - 5), Errno::ENOENT);
}

/// Checks the operations that both kinds of protection refuse. `name` is the inode's name in the root directory.
fn refuses_what_both_refuse(client: &Client, ino: Ino, name: &str) {
    let service = &client.service;
    let time = Some(TimeChange::At(Timestamp { secs: 5, nanos: 0 }));
    let changes = [
        AttributeChanges { mode: Some(0o600), ..Default::default() },
        AttributeChanges { uid: Some(5), ..Default::default() },
        AttributeChanges { gid: Some(5), ..Default::default() },
        AttributeChanges { atime: time, ..Default::default() },
        AttributeChanges { mtime: time, ..Default::default() },
        AttributeChanges { mtime: time, atime: Some(TimeChange::Now), ..Default::default() },
    ];
    let before = client.stat(ino);
    for changes in changes {
        bad(service.set_attributes(ROOT, ino, changes), Errno::EPERM);
    }
    bad(service.set_xattr(ROOT, ino, b"user.new", b"x", XattrMode::Any), Errno::EPERM);
    bad(service.remove_xattr(ino, b"user.old"), Errno::EPERM);
    bad(client.rename((ROOT_INO, name), (ROOT_INO, "moved"), RenameFlags::default()), Errno::EPERM);
    bad(client.rename((ROOT_INO, name), (ROOT_INO, "other"), RenameFlags::default()), Errno::EPERM);
    bad(client.rename((ROOT_INO, name), (ROOT_INO, "other"), swap()), Errno::EPERM);
    bad(client.rename((ROOT_INO, "other"), (ROOT_INO, name), RenameFlags::default()), Errno::EPERM);
    bad(client.rename((ROOT_INO, "other"), (ROOT_INO, name), swap()), Errno::EPERM);
    assert_eq!(client.stat(ino), before, "nothing of it changed");
    assert_eq!(good(service.xattr(ino, b"user.old")), b"kept");
    assert_eq!(good(client.find(ROOT_INO, name)).ino, ino);
}

/// Makes a protected file with content and an attribute, and another file that could take its name.
fn protected_file(client: &Client, flags: InodeFlags) -> Ino {
    let file = client.file_with("file", b"content");
    good(client.service.set_xattr(ROOT, file, b"user.old", b"kept", XattrMode::Any));
    client.file(ROOT_INO, "other");
    set(client, file, flags);
    file
}

fn refuses_what_both_refuse_of_files(client: &Client, file: Ino) {
    refuses_what_both_refuse(client, file, "file");
    let service = &client.service;
    bad(client.unlink(ROOT_INO, "file"), Errno::EPERM);
    bad(service.link(file, ROOT_INO, b"link"), Errno::EPERM);
    for size_bytes in [0, 3, 7, 100] {
        let changes = AttributeChanges { size_bytes: Some(size_bytes), ..Default::default() };
        bad(service.set_attributes(ROOT, file, changes), Errno::EPERM);
    }
    let write = OpenOptions { read: false, ..READ_WRITE };
    for how in [READ_WRITE, write, OpenOptions { truncate: true, ..write }, OpenOptions { truncate: true, ..APPEND }] {
        bad(service.open(ROOT, file, how), Errno::EPERM);
    }
    assert_eq!(client.read_all(file), b"content", "reading is allowed");
}

fn immutable_file(client: &Client) {
    let file = protected_file(client, IMMUTABLE);
    refuses_what_both_refuse_of_files(client, file);
    bad(client.service.open(ROOT, file, APPEND), Errno::EPERM);
    let touch =
        AttributeChanges { atime: Some(TimeChange::Now), mtime: Some(TimeChange::Now), ..AttributeChanges::default() };
    bad(client.service.set_attributes(ROOT, file, touch), Errno::EPERM);
    set(client, file, NONE);
    good(client.unlink(ROOT_INO, "file"));
}

fn append_only_file(client: &Client) {
    let file = protected_file(client, APPEND_ONLY);
    refuses_what_both_refuse_of_files(client, file);
    client.opened(file, APPEND, |handle| {
        client.write_all(file, handle, 0, b" and more");
        let service = &client.service;
        good(service.allocate(file, handle, 0, 4096, libc::FALLOC_FL_KEEP_SIZE));
        for mode in [libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE, libc::FALLOC_FL_ZERO_RANGE] {
            bad(service.allocate(file, handle, 0, 4, mode), Errno::EPERM);
        }
        // A page of a mapping would overwrite existing content.
        let from_cache = WriteFlags { from_cache: true, ..WriteFlags::default() };
        bad(service.write(ROOT, file, handle, 0, b"X", from_cache), Errno::EPERM);
    });
    assert_eq!(client.read_all(file), b"content and more");
    let touch =
        AttributeChanges { atime: Some(TimeChange::Now), mtime: Some(TimeChange::Now), ..AttributeChanges::default() };
    good(client.service.set_attributes(ROOT, file, touch));
    set(client, file, NONE);
    good(client.unlink(ROOT_INO, "file"));
}

/// Makes a protected directory with a file and a directory in it, and others that could take its name.
fn protected_directory(client: &Client, flags: InodeFlags) -> Ino {
    let directory = client.directory(ROOT_INO, "directory");
    client.file(directory, "file");
    client.directory(directory, "inner");
    client.directory(ROOT_INO, "other");
    client.file(ROOT_INO, "free");
    good(client.service.set_xattr(ROOT, directory, b"user.old", b"kept", XattrMode::Any));
    set(client, directory, flags);
    directory
}

fn keeps_its_entries(client: &Client, directory: Ino) {
    refuses_what_both_refuse(client, directory, "directory");
    bad(client.service.remove_directory(ROOT_INO, b"directory"), Errno::EPERM);
    bad(client.unlink(directory, "file"), Errno::EPERM);
    bad(client.service.remove_directory(directory, b"inner"), Errno::EPERM);
    for flags in [RenameFlags::default(), swap()] {
        bad(client.rename((directory, "file"), (ROOT_INO, "free"), flags), Errno::EPERM);
        bad(client.rename((ROOT_INO, "free"), (directory, "file"), flags), Errno::EPERM);
        bad(client.rename((directory, "inner"), (ROOT_INO, "other"), flags), Errno::EPERM);
    }
    bad(client.rename((directory, "file"), (directory, "renamed"), RenameFlags::default()), Errno::EPERM);
    assert_eq!(client.sorted_names(directory), ["file", "inner"]);
    // The files in it are not protected.
    let file = good(client.find(directory, "file")).ino;
    client.opened(file, READ_WRITE, |handle| client.write_all(file, handle, 0, b"written"));
}

fn immutable_directory(client: &Client) {
    let directory = protected_directory(client, IMMUTABLE);
    keeps_its_entries(client, directory);
    for content in [NodeContent::Regular, NodeContent::Directory, NodeContent::Symlink(b"x"), NodeContent::Fifo] {
        bad(client.make_in(directory, "new", content), Errno::EPERM);
    }
    let node = NewNode { parent: directory, name: b"new", mode: 0o644, umask: 0 };
    bad(client.service.create(ROOT, node, READ_WRITE), Errno::EPERM);
    let free = good(client.find(ROOT_INO, "free")).ino;
    bad(client.service.link(free, directory, b"new"), Errno::EPERM);
    bad(client.rename((ROOT_INO, "free"), (directory, "new"), RenameFlags::default()), Errno::EPERM);
    set(client, directory, NONE);
    good(client.unlink(directory, "file"));
}

fn append_only_directory(client: &Client) {
    let directory = protected_directory(client, APPEND_ONLY);
    keeps_its_entries(client, directory);
    client.file(directory, "new");
    client.directory(directory, "new directory");
    let free = good(client.find(ROOT_INO, "free")).ino;
    good(client.service.link(free, directory, b"link"));
    good(client.rename((ROOT_INO, "free"), (directory, "moved in"), RenameFlags::default()));
    bad(client.unlink(directory, "new"), Errno::EPERM);
    assert_eq!(client.sorted_names(directory), ["file", "inner", "link", "moved in", "new", "new directory"]);
}

fn inheritance(client: &Client) {
    let directory = client.directory(ROOT_INO, "directory");
    set(client, directory, InodeFlags { append_only: true, ..HARMLESS });
    for content in [NodeContent::Regular, NodeContent::Directory] {
        let made = good(client.make_in(directory, &format!("{content:?}"), content)).ino;
        assert_eq!(good(client.service.flags(made)), HARMLESS, "{content:?}");
    }
    let link = good(client.make_in(directory, "link", NodeContent::Symlink(b"x"))).ino;
    assert_eq!(good(client.service.flags(link)), NONE);
}

fn older_handles(client: &Client) {
    let service = &client.service;
    let file = protected_file(client, NONE);
    let source = client.file_with("source", b"+copied");
    client.opened(file, READ_WRITE, |handle| {
        let write = |offset, flags| service.write(ROOT, file, handle, offset, b"more", flags);
        let at = |offset| write(offset, WriteFlags::default());
        let mapped = |offset| write(offset, WriteFlags { from_cache: true, ..WriteFlags::default() });
        let allocate = |mode| service.allocate(file, handle, 0, 4, mode);
        let copy = |to: u64| {
            client.opened(source, READ, |from| {
                let from = FilePlace { ino: source, handle: from, offset: 0 };
                service.copy_range(ROOT, from, FilePlace { ino: file, handle, offset: to }, 100)
            })
        };
        // Copies within the file.
        let copy_within = |to: u64| {
            let place = |offset| FilePlace { ino: file, handle, offset };
            service.copy_range(ROOT, place(0), place(to), 1)
        };
        let punch = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        for flags in [APPEND_ONLY, IMMUTABLE] {
            set(client, file, flags);
            for offset in [0, 6] {
                bad(at(offset), Errno::EPERM);
                bad(mapped(offset), Errno::EPERM);
                bad(copy(offset), Errno::EPERM);
            }
            bad(copy_within(5), Errno::EPERM);
            bad(allocate(punch), Errno::EPERM);
            bad(allocate(libc::FALLOC_FL_ZERO_RANGE), Errno::EPERM);
            refuses_what_both_refuse(client, file, "file");
            bad(client.unlink(ROOT_INO, "file"), Errno::EPERM);
            bad(service.link(file, ROOT_INO, b"link"), Errno::EPERM);
            let cut = AttributeChanges { size_bytes: Some(3), ..Default::default() };
            bad(service.set_attributes(ROOT, file, cut), Errno::EPERM);
            if flags == APPEND_ONLY {
                good(at(7));
                good(copy(11));
                good(allocate(libc::FALLOC_FL_KEEP_SIZE));
            } else {
                bad(at(18), Errno::EPERM);
                bad(mapped(18), Errno::EPERM);
                bad(copy(18), Errno::EPERM);
                bad(copy_within(18), Errno::EPERM);
                bad(allocate(libc::FALLOC_FL_KEEP_SIZE), Errno::EPERM);
            }
            assert_eq!(client.read_open(file, handle, 0, 100), b"contentmore+copied");
        }
    });
    client.opened(file, READ, |handle| assert_eq!(client.read_open(file, handle, 0, 100), b"contentmore+copied"));
}
