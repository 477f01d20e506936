//! Access control lists and the mode stay in step.

use super::{Check, Client, ROOT, bad, good};
use crate::acl::{ACCESS_XATTR, Acl, DEFAULT_XATTR, Entry, Tag};
use crate::{AttributeChanges, Caller, Errno, FileKind, NewNode, NodeContent, ROOT_INO, XattrMode};

pub(super) const CHECKS: &[Check] = &[
    ("an access list sets the mode", access_sets_mode),
    ("chmod changes the access list", chmod_changes_access),
    ("a default list is handed down", default_is_handed_down),
    ("a list that is not there can be removed", absent_lists),
    ("lists that cannot be", impossible_lists),
];

fn list(entries: &[(Tag, u8)]) -> Vec<u8> {
    let entries = entries.iter().map(|&(tag, permissions)| Entry { tag, permissions }).collect();
    match Acl::new(entries) {
        Ok(acl) => acl.to_bytes(),
        Err(error) => panic!("the check's own list is wrong: {error}"),
    }
}

pub(super) fn extended(mask: u8) -> Vec<u8> {
    list(&[(Tag::Owner, 7), (Tag::User(1000), 7), (Tag::OwningGroup, 5), (Tag::Mask, mask), (Tag::Others, 0)])
}

fn access_sets_mode(client: &Client) {
    let ino = client.file(ROOT_INO, "file");
    good(client.service.set_xattr(ROOT, ino, ACCESS_XATTR, &extended(6), XattrMode::Any));
    assert_eq!(client.stat(ino).mode, 0o760);
    assert_eq!(good(client.service.xattr(ino, ACCESS_XATTR)), extended(6));
    let minimal = list(&[(Tag::Owner, 6), (Tag::OwningGroup, 4), (Tag::Others, 4)]);
    good(client.service.set_xattr(ROOT, ino, ACCESS_XATTR, &minimal, XattrMode::Any));
    assert_eq!(client.stat(ino).mode, 0o644);
    bad(client.service.xattr(ino, ACCESS_XATTR), Errno::ENODATA);
    assert!(good(client.service.xattr_names(ino)).is_empty());
}

fn chmod_changes_access(client: &Client) {
    let ino = client.file(ROOT_INO, "file");
    good(client.service.set_xattr(ROOT, ino, ACCESS_XATTR, &extended(7), XattrMode::Any));
    let changes = AttributeChanges { mode: Some(0o4740), ..AttributeChanges::default() };
    assert_eq!(good(client.service.set_attributes(ROOT, ino, changes)).mode, 0o4740);
    assert_eq!(good(client.service.xattr(ino, ACCESS_XATTR)), extended(4), "the mask follows the group bits");
}

fn default_is_handed_down(client: &Client) {
    let parent = client.directory(ROOT_INO, "directory");
    good(client.service.set_xattr(ROOT, parent, DEFAULT_XATTR, &extended(6), XattrMode::Any));
    assert_eq!(client.stat(parent).mode, 0o755, "a default list is not for the directory itself");
    let make = |name: &str, mode, content| {
        let node = NewNode { parent, name: name.as_bytes(), mode, umask: 0o077 };
        good(client.service.make(Caller { uid: 1000, gid: 1000, pid: 1 }, node, content))
    };
    let file = make("file", 0o666, NodeContent::Regular);
    assert_eq!(file.mode, 0o660, "the default list replaces the umask");
    let mode_limited = [(Tag::Owner, 6), (Tag::User(1000), 7), (Tag::OwningGroup, 5), (Tag::Mask, 6), (Tag::Others, 0)];
    assert_eq!(good(client.service.xattr(file.ino, ACCESS_XATTR)), list(&mode_limited));
    bad(client.service.xattr(file.ino, DEFAULT_XATTR), Errno::ENODATA);
    let inner = make("inner", 0o777, NodeContent::Directory);
    assert_eq!(inner.mode, 0o760);
    assert_eq!(good(client.service.xattr(inner.ino, DEFAULT_XATTR)), extended(6));
    assert_eq!(good(client.service.xattr(inner.ino, ACCESS_XATTR)), extended(6));
    let link = make("link", 0o777, NodeContent::Symlink(b"target"));
    assert_eq!((link.kind, link.mode), (FileKind::Symlink, 0o777));
    assert!(good(client.service.xattr_names(link.ino)).is_empty());
    good(client.service.remove_xattr(parent, DEFAULT_XATTR));
    assert_eq!(make("after", 0o666, NodeContent::Regular).mode, 0o600);
}

fn absent_lists(client: &Client) {
    let (file, directory) = (client.file(ROOT_INO, "file"), client.directory(ROOT_INO, "directory"));
    for (ino, name) in [file, directory].into_iter().flat_map(|ino| [(ino, ACCESS_XATTR), (ino, DEFAULT_XATTR)]) {
        // The kernel makes the same request when a list without entries is set.
        good(client.service.remove_xattr(ino, name));
        if ino == directory || name == ACCESS_XATTR {
            good(client.service.set_xattr(ROOT, ino, name, &extended(6), XattrMode::Any));
            good(client.service.remove_xattr(ino, name));
            bad(client.service.xattr(ino, name), Errno::ENODATA);
            good(client.service.remove_xattr(ino, name));
        }
    }
    bad(client.service.remove_xattr(file, b"user.absent"), Errno::ENODATA);
}

fn impossible_lists(client: &Client) {
    let ino = client.file(ROOT_INO, "file");
    bad(client.service.set_xattr(ROOT, ino, DEFAULT_XATTR, &extended(6), XattrMode::Any), Errno::EACCES);
    bad(client.service.set_xattr(ROOT, ino, ACCESS_XATTR, b"\x02\0\0\0garbage", XattrMode::Any), Errno::EINVAL);
    let link = good(client.make_in(ROOT_INO, "link", NodeContent::Symlink(b"x"))).ino;
    bad(client.service.set_xattr(ROOT, link, ACCESS_XATTR, &extended(6), XattrMode::Any), Errno::EOPNOTSUPP);
    assert_eq!(client.stat(ino).mode, 0o755);
}
