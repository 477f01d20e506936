//! Changes of a frozen tree: each method that changes refuses, and nothing is seen of it afterwards.

use super::{APPEND, Client, READ, READ_WRITE, ROOT, bad, good};
use crate::acl::ACCESS_XATTR;
use crate::{
    AttributeChanges, Attributes, Errno, FileKind, FilePlace, Handle, Ino, InodeFlags, NewNode, NodeContent,
    OpenOptions, RenameFlags, TimeChange, WriteFlags, XattrMode,
};

/// A frozen tree, and live inodes beside it.
pub(super) struct Frozen {
    /// Directory in which the version has its name.
    parent: Ino,
    name: String,
    top: Ino,
    /// A file, a symbolic link and a directory in the version. The directory has the file `inside`.
    file: Ino,
    symlink: Ino,
    directory: Ino,
    live_file: Ino,
    live_directory: Ino,
}

/// Name of the directory that [`make`] fills.
pub(super) const DIRECTORY: &str = "changes";
const CONTENT: &[u8] = b"content that stays";
const SWAP: RenameFlags = RenameFlags { no_replace: false, exchange: true, whiteout: false };
const PLAIN: RenameFlags = RenameFlags { exchange: false, ..SWAP };

/// Makes the entries that the refused changes are tried on.
pub(super) fn make(client: &Client, directory: Ino) {
    let file = client.file_in(directory, "file", CONTENT);
    good(client.service.set_xattr(ROOT, file, b"user.old", b"kept", XattrMode::Any));
    good(client.make_in(directory, "symlink", NodeContent::Symlink(b"target")));
    let inner = client.directory(directory, "directory");
    client.file(inner, "inside");
    client.directory(directory, "empty");
}

type Refusal = (&'static str, fn(&Client, &Frozen));

/// The methods of [`FileService`](crate::FileService) that change something, with the ways in which they are refused.
const REFUSALS: &[Refusal] = &[
    ("set_attributes", set_attributes),
    ("set_flags", set_flags),
    ("make", make_node),
    ("create", create),
    ("unlink", unlink),
    ("remove_directory", remove_directory),
    ("rename", rename),
    ("link", link),
    ("open", open),
    ("write", write),
    ("allocate", allocate),
    ("copy_range", copy_range),
    ("set_xattr", set_xattr),
    ("remove_xattr", remove_xattr),
];

/// Checks that no change of the version `name` in `parent` is possible. Leaves a few live entries in `parent`.
pub(super) fn check(client: &Client, parent: Ino, name: &str) {
    let top = good(client.find(parent, name)).ino;
    let directory = good(client.find(top, DIRECTORY)).ino;
    let find = |name: &str| good(client.find(directory, name)).ino;
    let live_directory = client.directory(parent, "live directory");
    let live_file = client.file(live_directory, "live file");
    client.directory(live_directory, "live empty");
    let (file, symlink, inner) = (find("file"), find("symlink"), find("directory"));
    let name = name.to_owned();
    let frozen = Frozen { parent, name, top, file, symlink, directory: inner, live_file, live_directory };
    let before = seen(client, parent, top);
    for (method, refuse) in REFUSALS {
        eprintln!("changes by {method}");
        refuse(client, &frozen);
        assert_eq!(seen(client, parent, top), before, "{method} changed something");
    }
}

/// What is seen of an entry: its name, attributes, names of extended attributes, and content or target.
type Seen = (Vec<u8>, Attributes, Vec<Vec<u8>>, Vec<u8>);

/// Returns what is seen of all entries of a tree.
fn seen(client: &Client, parent: Ino, top: Ino) -> Vec<Seen> {
    let mut seen = Vec::new();
    let mut waiting =
        vec![(client.list(parent, 100).into_iter().find(|entry| entry.ino == top)).expect("has its name")];
    while let Some(entry) = waiting.pop() {
        let attributes = client.stat(entry.ino);
        let content = match entry.kind {
            FileKind::Regular => client.read_all(entry.ino),
            FileKind::Symlink => good(client.service.read_link(entry.ino)),
            _ => Vec::new(),
        };
        if entry.kind == FileKind::Directory {
            waiting.extend(client.list(entry.ino, 1000));
        }
        seen.push((entry.name, attributes, good(client.service.xattr_names(entry.ino)), content));
    }
    seen
}

impl Frozen {
    fn all(&self) -> [Ino; 4] {
        [self.top, self.directory, self.file, self.symlink]
    }
}

fn set_attributes(client: &Client, frozen: &Frozen) {
    let now = Some(TimeChange::Now);
    let changes = [
        AttributeChanges { mode: Some(0o700), ..AttributeChanges::default() },
        AttributeChanges { uid: Some(7), ..AttributeChanges::default() },
        AttributeChanges { gid: Some(7), ..AttributeChanges::default() },
        AttributeChanges { size_bytes: Some(0), ..AttributeChanges::default() },
        AttributeChanges { size_bytes: Some(1 << 20), ..AttributeChanges::default() },
        AttributeChanges { atime: now, ..AttributeChanges::default() },
        AttributeChanges { mtime: now, ..AttributeChanges::default() },
        AttributeChanges { atime: now, mtime: now, ..AttributeChanges::default() },
    ];
    for (ino, changes) in frozen.all().into_iter().flat_map(|ino| changes.map(|changes| (ino, changes))) {
        bad(client.service.set_attributes(ROOT, ino, changes), Errno::EROFS);
    }
}

fn set_flags(client: &Client, frozen: &Frozen) {
    for ino in [frozen.top, frozen.directory, frozen.file] {
        for flags in [InodeFlags::default(), InodeFlags { immutable: true, ..InodeFlags::default() }] {
            bad(client.service.set_flags(ROOT, ino, flags), Errno::EROFS);
        }
    }
}

fn make_node(client: &Client, frozen: &Frozen) {
    let (character, block) = (NodeContent::CharDevice(1), NodeContent::BlockDevice(1));
    let others = [NodeContent::Symlink(b"x"), NodeContent::Fifo, NodeContent::Socket, character, block];
    for parent in [frozen.top, frozen.directory] {
        for content in [NodeContent::Regular, NodeContent::Directory].into_iter().chain(others) {
            bad(client.make_in(parent, "new", content), Errno::EROFS);
        }
    }
}

fn create(client: &Client, frozen: &Frozen) {
    for parent in [frozen.top, frozen.directory] {
        let node = NewNode { parent, name: b"new", mode: 0o644, umask: 0 };
        bad(client.service.create(ROOT, node, READ_WRITE), Errno::EROFS);
        bad(client.service.create(ROOT, node, READ), Errno::EROFS);
    }
}

fn unlink(client: &Client, frozen: &Frozen) {
    bad(client.unlink(frozen.directory, "inside"), Errno::EROFS);
    bad(client.unlink(frozen.top, DIRECTORY), Errno::EROFS);
    bad(client.unlink(frozen.parent, &frozen.name), Errno::EISDIR);
}

fn remove_directory(client: &Client, frozen: &Frozen) {
    let changes = good(client.find(frozen.top, DIRECTORY)).ino;
    for name in ["empty", "directory"] {
        bad(client.service.remove_directory(changes, name.as_bytes()), Errno::EROFS);
    }
    // Removing empty directories must not remove backups.
    bad(client.service.remove_directory(frozen.parent, frozen.name.as_bytes()), Errno::ENOTEMPTY);
}

fn rename(client: &Client, frozen: &Frozen) {
    let changes = good(client.find(frozen.top, DIRECTORY)).ino;
    let live = frozen.live_directory;
    let flags = [PLAIN, SWAP, RenameFlags { no_replace: true, ..PLAIN }, RenameFlags { whiteout: true, ..PLAIN }];
    for flags in flags {
        bad(client.rename((changes, "file"), (changes, "renamed"), flags), Errno::EROFS);
        bad(client.rename((changes, "file"), (frozen.directory, "inside"), flags), Errno::EROFS);
        bad(client.rename((changes, "empty"), (frozen.top, "empty"), flags), Errno::EROFS);
        bad(client.rename((changes, "file"), (live, "new"), flags), Errno::EXDEV);
        bad(client.rename((live, "live file"), (changes, "new"), flags), Errno::EXDEV);
        bad(client.rename((live, "live file"), (changes, "file"), flags), Errno::EXDEV);
        bad(client.rename((live, "live empty"), (frozen.top, "new"), flags), Errno::EXDEV);
    }
    let version = (frozen.parent, frozen.name.as_str());
    bad(client.rename((live, "live empty"), version, PLAIN), Errno::ENOTEMPTY);
    bad(client.rename((live, "live file"), version, PLAIN), Errno::EISDIR);
    // Into itself.
    bad(client.rename(version, (frozen.directory, "new"), PLAIN), Errno::EXDEV);
    assert_eq!(client.sorted_names(live), ["live empty", "live file"]);
}

fn link(client: &Client, frozen: &Frozen) {
    let link = |ino, to: Ino| client.service.link(ino, to, b"linked");
    bad(link(frozen.file, frozen.directory), Errno::EROFS);
    bad(link(frozen.file, frozen.live_directory), Errno::EXDEV);
    bad(link(frozen.live_file, frozen.directory), Errno::EXDEV);
    bad(link(frozen.live_file, frozen.top), Errno::EXDEV);
    bad(link(frozen.top, frozen.live_directory), Errno::EXDEV);
}

fn open(client: &Client, frozen: &Frozen) {
    let write = OpenOptions { read: false, ..READ_WRITE };
    for how in [READ_WRITE, write, APPEND, OpenOptions { direct: true, ..write }, OpenOptions { sync: true, ..write }] {
        bad(client.service.open(ROOT, frozen.file, how), Errno::EROFS);
        bad(client.service.open(ROOT, frozen.file, OpenOptions { truncate: true, ..how }), Errno::EROFS);
    }
    bad(client.service.open(ROOT, frozen.file, OpenOptions { truncate: true, ..READ }), Errno::EROFS);
}

/// Opens the frozen file as far as that is possible, for reading. Its handle must be good for nothing else.
fn with_handle(client: &Client, frozen: &Frozen, work: impl FnOnce(Handle)) {
    client.opened(frozen.file, READ, |handle| {
        work(handle);
        assert_eq!(client.read_open(frozen.file, handle, 0, 100), CONTENT);
        good(client.service.fsync(frozen.file, handle));
    });
}

fn write(client: &Client, frozen: &Frozen) {
    with_handle(client, frozen, |handle| {
        for from_cache in [false, true] {
            let flags = WriteFlags { from_cache, drop_privileges: true, ..WriteFlags::default() };
            bad(client.service.write(ROOT, frozen.file, handle, 0, b"X", flags), Errno::EBADF);
        }
    });
}

fn allocate(client: &Client, frozen: &Frozen) {
    with_handle(client, frozen, |handle| {
        let punch = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        for mode in [0, libc::FALLOC_FL_KEEP_SIZE, punch, libc::FALLOC_FL_ZERO_RANGE] {
            bad(client.service.allocate(frozen.file, handle, 0, 100, mode), Errno::EBADF);
        }
    });
}

fn copy_range(client: &Client, frozen: &Frozen) {
    let (service, live) = (&client.service, frozen.live_file);
    let place = |ino, handle| FilePlace { ino, handle, offset: 0 };
    with_handle(client, frozen, |handle| {
        client.opened(live, READ_WRITE, |from| {
            client.write_all(live, from, 0, b"other content");
            bad(service.copy_range(ROOT, place(live, from), place(frozen.file, handle), 5), Errno::EBADF);
            // The other way is reading.
            let copied = service.copy_range(ROOT, place(frozen.file, handle), place(live, from), u64::MAX);
            assert_eq!(copied, Ok(CONTENT.len() as u32));
        });
    });
    assert_eq!(client.read_all(live), CONTENT);
}

fn set_xattr(client: &Client, frozen: &Frozen) {
    for ino in frozen.all() {
        for mode in [XattrMode::Any, XattrMode::Create, XattrMode::Replace] {
            for name in [b"user.old", b"trusted.new".as_slice(), ACCESS_XATTR] {
                bad(client.service.set_xattr(ROOT, ino, name, &super::acls::extended(6), mode), Errno::EROFS);
            }
        }
    }
}

fn remove_xattr(client: &Client, frozen: &Frozen) {
    for ino in frozen.all() {
        for name in [b"user.old", b"trusted.absent".as_slice(), ACCESS_XATTR] {
            bad(client.service.remove_xattr(ino, name), Errno::EROFS);
        }
    }
}

/// The methods that only read.
#[cfg(test)]
const READS: &[&str] = &[
    "cache_time",
    "lookup",
    "lookup_inode",
    "forget",
    "attributes",
    "flags",
    "read_link",
    "read",
    "read_is_quick",
    "note_cached",
    "may_be_cached",
    "flush",
    "flush_is_quick",
    "fsync",
    "is_synchronous",
    "change_is_quick",
    "release",
    "unreachable_names",
    "seek",
    "read_directory",
    "directory_end",
    "parent",
    "fsync_directory",
    "statistics",
    "xattr",
    "xattr_names",
    "shutdown",
];

#[cfg(test)]
mod tests {
    use super::*;

    /// A new method of the trait is either tried on frozen trees, or only reads.
    #[test]
    fn every_method_only_reads_or_is_refused() {
        let source = include_str!("../file_service.rs");
        let (_, methods) = source.split_once("pub trait FileService").expect("has the trait");
        let methods = methods.split("\n    fn ").skip(1).filter_map(|method| method.split_once('('));
        let mut methods: Vec<&str> = methods.map(|(name, _)| name).collect();
        let mut known: Vec<&str> = REFUSALS.iter().map(|&(name, _)| name).chain(READS.iter().copied()).collect();
        methods.sort_unstable();
        known.sort_unstable();
        assert_eq!(methods, known);
    }
}
