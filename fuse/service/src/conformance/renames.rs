//! renameat2.

use super::{Check, Client, bad, good};
use crate::{Errno, FileKind, ROOT_INO, RenameFlags};

pub(super) const CHECKS: &[Check] = &[
    ("rename moves", moves),
    ("rename replaces files and empty directories", replaces),
    ("rename refuses what cannot be", refuses),
    ("rename of a link to the same file does nothing", same_file),
    ("a directory does not go below itself", not_below_itself),
    ("rename with no_replace", no_replace),
    ("rename with exchange", exchange),
    ("rename with whiteout", whiteout),
];

const PLAIN: RenameFlags = RenameFlags { no_replace: false, exchange: false, whiteout: false };

fn moves(client: &Client) {
    let (one, other) = (client.directory(ROOT_INO, "one"), client.directory(ROOT_INO, "other"));
    let file = client.file(one, "file");
    good(client.rename((one, "file"), (other, "moved"), PLAIN));
    bad(client.find(one, "file"), Errno::ENOENT);
    assert_eq!(good(client.find(other, "moved")).ino, file);
    let inner = client.directory(one, "inner");
    good(client.rename((one, "inner"), (other, "inner"), PLAIN));
    assert_eq!((client.stat(one).nlink, client.stat(other).nlink), (2, 3));
    assert_eq!(client.service.parent(inner), Ok(other));
    assert_eq!(client.sorted_names(other), ["inner", "moved"]);
}

fn replaces(client: &Client) {
    let (new, old) = (client.file_with("new", b"new"), client.file_with("old", b"old"));
    good(client.rename((ROOT_INO, "new"), (ROOT_INO, "old"), PLAIN));
    assert_eq!(client.sorted_names(ROOT_INO), ["old"]);
    assert_eq!(good(client.find(ROOT_INO, "old")).ino, new);
    assert_eq!(client.read_all(new), b"new");
    assert_eq!(client.stat(old).nlink, 0);
    client.service.forget(old, 1);
    bad(client.service.attributes(old), Errno::ENOENT);

    let (full, empty) = (client.directory(ROOT_INO, "full"), client.directory(ROOT_INO, "empty"));
    client.file(full, "inside");
    good(client.rename((ROOT_INO, "full"), (ROOT_INO, "empty"), PLAIN));
    assert_eq!(good(client.find(ROOT_INO, "empty")).ino, full);
    assert_eq!((client.stat(ROOT_INO).nlink, client.stat(empty).nlink), (3, 0));
}

fn refuses(client: &Client) {
    let full = client.directory(ROOT_INO, "full");
    client.file(full, "inside");
    client.directory(ROOT_INO, "directory");
    client.file(ROOT_INO, "file");
    bad(client.rename((ROOT_INO, "directory"), (ROOT_INO, "full"), PLAIN), Errno::ENOTEMPTY);
    bad(client.rename((ROOT_INO, "file"), (ROOT_INO, "directory"), PLAIN), Errno::EISDIR);
    bad(client.rename((ROOT_INO, "directory"), (ROOT_INO, "file"), PLAIN), Errno::ENOTDIR);
    bad(client.rename((ROOT_INO, "absent"), (ROOT_INO, "file"), PLAIN), Errno::ENOENT);
    bad(client.rename((ROOT_INO, "file"), (ROOT_INO, &"x".repeat(256)), PLAIN), Errno::ENAMETOOLONG);
    assert_eq!(client.sorted_names(ROOT_INO), ["directory", "file", "full"]);
}

fn same_file(client: &Client) {
    let file = client.file(ROOT_INO, "file");
    good(client.service.link(file, ROOT_INO, b"link"));
    good(client.rename((ROOT_INO, "file"), (ROOT_INO, "link"), PLAIN));
    good(client.rename((ROOT_INO, "file"), (ROOT_INO, "file"), PLAIN));
    assert_eq!(client.sorted_names(ROOT_INO), ["file", "link"]);
    assert_eq!(client.stat(file).nlink, 2);
}

fn not_below_itself(client: &Client) {
    let outer = client.directory(ROOT_INO, "outer");
    let inner = client.directory(outer, "inner");
    bad(client.rename((ROOT_INO, "outer"), (outer, "x"), PLAIN), Errno::EINVAL);
    bad(client.rename((ROOT_INO, "outer"), (inner, "x"), PLAIN), Errno::EINVAL);
    let swap = RenameFlags { exchange: true, ..PLAIN };
    bad(client.rename((outer, "inner"), (ROOT_INO, "outer"), swap), Errno::EINVAL);
    bad(client.rename((ROOT_INO, "outer"), (outer, "inner"), swap), Errno::EINVAL);
}

fn no_replace(client: &Client) {
    let flags = RenameFlags { no_replace: true, ..PLAIN };
    let file = client.file(ROOT_INO, "file");
    client.file(ROOT_INO, "taken");
    bad(client.rename((ROOT_INO, "file"), (ROOT_INO, "taken"), flags), Errno::EEXIST);
    good(client.rename((ROOT_INO, "file"), (ROOT_INO, "free"), flags));
    assert_eq!(good(client.find(ROOT_INO, "free")).ino, file);
    let both = RenameFlags { no_replace: true, exchange: true, whiteout: false };
    bad(client.rename((ROOT_INO, "free"), (ROOT_INO, "taken"), both), Errno::EINVAL);
}

fn exchange(client: &Client) {
    let flags = RenameFlags { exchange: true, ..PLAIN };
    let (one, other) = (client.directory(ROOT_INO, "one"), client.directory(ROOT_INO, "other"));
    let file = client.file(one, "file");
    let directory = client.directory(other, "directory");
    client.file(directory, "inside");
    bad(client.rename((one, "file"), (other, "absent"), flags), Errno::ENOENT);
    good(client.rename((one, "file"), (other, "directory"), flags));
    assert_eq!(good(client.find(one, "file")).ino, directory);
    assert_eq!(good(client.find(other, "directory")).ino, file);
    assert_eq!((client.stat(one).nlink, client.stat(other).nlink), (3, 2));
    assert_eq!(client.service.parent(directory), Ok(one));
    assert_eq!(client.list(one, 10)[0].kind, FileKind::Directory);
    assert_eq!(client.sorted_names(directory), ["inside"]);
}

fn whiteout(client: &Client) {
    let flags = RenameFlags { whiteout: true, ..PLAIN };
    let file = client.file(ROOT_INO, "file");
    good(client.rename((ROOT_INO, "file"), (ROOT_INO, "moved"), flags));
    assert_eq!(good(client.find(ROOT_INO, "moved")).ino, file);
    let left = good(client.find(ROOT_INO, "file"));
    assert_eq!((left.kind, left.rdev), (FileKind::CharDevice, 0));
}
