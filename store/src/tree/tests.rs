use std::fmt::Debug;

use super::*;
use crate::codec::checksum;
use crate::fingerprint::Fingerprint;
use crate::id::ContainerId;
use crate::recipe::{Child, Root};

mod attributes;
mod bytes;
mod identity;
mod refused;
mod refused_bytes;
mod strategies;
mod whole;

/// Bytes of an identity before the level.
const IDENTITY_TAG_BYTES: usize = b"dedupfs tree node v1\0".len();

/// Node bytes around `body`, with a matching checksum.
fn sealed(body: &[u8]) -> Vec<u8> {
    [body, &checksum(body).to_le_bytes()].concat()
}

/// The encoding of a node that may break invariants, with no hints. `encode` would panic.
fn unchecked(node: &Node) -> Vec<u8> {
    let identity = node.identity_bytes();
    sealed(&[&[1], &identity[IDENTITY_TAG_BYTES..], &vec![0; node.references().len()]].concat())
}

fn child(number: u8, len_bytes: u64) -> Child {
    Child { fingerprint: Fingerprint([number; 32]), len_bytes, hint: ContainerId(0) }
}

fn hinted(child: Child, hint: u64) -> Child {
    Child { hint: ContainerId(hint), ..child }
}

/// An entry with nothing but name and content.
fn entry(name: &[u8], content: Content) -> Entry {
    let (mode, uid, gid, mtime_secs, mtime_nanos, flags) = (0, 0, 0, 0, 0, 0);
    let (name, attributes) = (name.to_vec(), Attributes::default());
    Entry { name, mode, uid, gid, mtime_secs, mtime_nanos, flags, attributes, link: None, content }
}

fn fifo(name: &[u8]) -> Entry {
    entry(name, Content::Fifo)
}

/// A directory of 3 entries, with 5 below, 2 of them with links.
fn directory() -> Directory {
    let below = Below { entries: 5, bytes: 1000, linked: 2 };
    Directory { root: Some((17, hinted(child(4, 3), 7))), subdirectories: 1, below }
}

/// An entry of a file in which every field is set.
fn full_file(name: &[u8]) -> Entry {
    Entry {
        name: name.to_vec(),
        mode: 0o644,
        uid: 1000,
        gid: 100,
        mtime_secs: -2,
        mtime_nanos: 999_999_999,
        flags: 16,
        attributes: Attributes::Stored(Root::Chunk(hinted(child(1, 300), 9))),
        link: Some(300),
        content: Content::File { root: Root::Node { level: 1, child: hinted(child(2, 5000), 8) }, data_bytes: 4999 },
    }
}

/// A leaf with entries of all kinds.
fn sample_leaf() -> Node {
    let inline = Attributes::Inline(encode_attributes(&[(b"user.a".to_vec(), b"1".to_vec())]));
    Node::Leaf(vec![
        Entry { attributes: inline, ..entry(b"a", Content::File { root: Root::Empty, data_bytes: 0 }) },
        entry(b"b", Content::File { root: Root::Zero { len_bytes: 300 }, data_bytes: 0 }),
        entry(b"c", Content::File { root: Root::Chunk(hinted(child(3, 9), 3)), data_bytes: 9 }),
        full_file(b"d"),
        entry(b"e", Content::Directory(Directory::default())),
        entry(b"f", Content::Directory(directory())),
        entry(b"g", Content::Symlink(b"../x".to_vec())),
        entry(b"h", Content::CharDevice(0x103)),
        entry(b"i", Content::BlockDevice(0x800)),
        fifo(b"j"),
        entry(b"k", Content::Socket),
    ])
}

fn part(number: u8, rows: u64, last_key: &[u8]) -> Part {
    let below = Below { entries: rows + 1, bytes: 200, linked: 1 };
    Part { child: hinted(child(number, rows), 5), last_key: last_key.to_vec(), below }
}

/// A list above leaves.
fn sample_list() -> Node {
    Node::List { level: 17, parts: vec![part(1, 10, b"m"), part(2, 20, b"zz")] }
}

fn links_part(number: u8, rows: u64, last: u64) -> Part {
    let below = Below::default();
    Part { child: hinted(child(number, rows), 6), last_key: last.to_be_bytes().to_vec(), below }
}

/// A list above leaves of links.
fn sample_list_of_links() -> Node {
    Node::List { level: 25, parts: vec![links_part(1, 10, 77), links_part(2, 20, 1 << 40)] }
}

fn link(number: u64, path: &[u8]) -> Link {
    Link { number, names: 2, path: path.to_vec() }
}

fn sample_links() -> Node {
    Node::Links(vec![link(5, b"d"), link(300, b"f/x")])
}

fn sample_top() -> Node {
    let entry = entry(b"", Content::Directory(directory()));
    Node::Top(Box::new(Top { entry, links: Some((24, hinted(child(9, 1), 8))) }))
}

fn samples() -> [Node; 5] {
    [sample_leaf(), sample_list(), sample_list_of_links(), sample_links(), sample_top()]
}

/// The message of an error.
fn message<T: Debug>(result: Result<T>) -> String {
    result.unwrap_err().to_string()
}
