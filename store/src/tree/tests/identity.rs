//! The fingerprint covers everything but hints.

use std::collections::HashSet;

use proptest::prelude::*;

use super::*;

/// Checks that the identities of a node and of all its changed forms differ, and that all of these are sound.
fn assert_each_matters<T: Clone>(start: &T, node: impl Fn(T) -> Node, changes: &[fn(&mut T)]) {
    let mut identities = HashSet::from([node(start.clone()).identity_bytes()]);
    for (number, change) in changes.iter().enumerate() {
        let mut changed = start.clone();
        change(&mut changed);
        let changed = node(changed);
        changed.check().unwrap();
        assert!(identities.insert(changed.identity_bytes()), "change {number} changes nothing");
    }
}

/// The root of an entry that is a file, and its data.
fn file(entry: &mut Entry) -> (&mut Root, &mut u64) {
    let Content::File { root, data_bytes } = &mut entry.content else { panic!("is a file") };
    (root, data_bytes)
}

fn content_child(entry: &mut Entry) -> &mut Child {
    let Root::Node { child, .. } = file(entry).0 else { panic!("is a node") };
    child
}

fn attributes_child(entry: &mut Entry) -> &mut Child {
    let Attributes::Stored(Root::Chunk(child)) = &mut entry.attributes else { panic!("is a chunk") };
    child
}

#[test]
fn every_field_of_a_file_matters() {
    assert_each_matters(
        &full_file(b"d"),
        |entry| Node::Leaf(vec![entry]),
        &[
            |entry| entry.name = b"D".to_vec(),
            |entry| entry.mode = 0o645,
            |entry| entry.uid = 1001,
            |entry| entry.gid = 101,
            |entry| entry.mtime_secs = -3,
            |entry| entry.mtime_nanos = 0,
            |entry| entry.flags = 32,
            |entry| entry.flags = 0,
            |entry| entry.attributes = Attributes::default(),
            |entry| entry.attributes = Attributes::Inline(encode_attributes(&[(b"a".to_vec(), b"b".to_vec())])),
            |entry| entry.attributes = Attributes::Inline(encode_attributes(&[(b"a".to_vec(), b"c".to_vec())])),
            |entry| entry.attributes = Attributes::Stored(Root::Node { level: 0, child: child(1, 300) }),
            |entry| attributes_child(entry).len_bytes = 301,
            |entry| attributes_child(entry).fingerprint = Fingerprint([7; 32]),
            |entry| entry.link = Some(301),
            |entry| entry.link = None,
            |entry| *file(entry).1 = 4998,
            |entry| *file(entry).0 = Root::Node { level: 2, child: child(2, 5000) },
            |entry| *file(entry).0 = Root::Chunk(child(2, 5000)),
            |entry| *file(entry).0 = Root::Zero { len_bytes: 5000 },
            |entry| (*file(entry).0, *file(entry).1) = (Root::Empty, 0),
            |entry| content_child(entry).fingerprint = Fingerprint([7; 32]),
            |entry| (content_child(entry).len_bytes, *file(entry).1) = (5001, 5000),
            |entry| entry.content = Content::Symlink(b"a".to_vec()),
            |entry| entry.content = Content::Symlink(b"b".to_vec()),
            |entry| entry.content = Content::CharDevice(1),
            |entry| entry.content = Content::CharDevice(2),
            |entry| entry.content = Content::BlockDevice(1),
            |entry| entry.content = Content::BlockDevice(2),
            |entry| entry.content = Content::Fifo,
            |entry| entry.content = Content::Socket,
        ],
    );
}

#[test]
fn every_field_of_a_directory_matters() {
    let node = |directory| Node::Leaf(vec![entry(b"a", Content::Directory(directory))]);
    assert_each_matters(
        &directory(),
        node,
        &[
            |directory| *directory = Directory::default(),
            |directory| directory.root = Some((18, child(4, 3))),
            |directory| directory.root = Some((17, child(5, 3))),
            |directory| directory.root = Some((17, child(4, 2))),
            |directory| directory.subdirectories = 2,
            |directory| directory.below.entries = 6,
            |directory| directory.below.bytes = 1001,
            |directory| directory.below.linked = 3,
        ],
    );
}

#[test]
fn every_field_of_a_list_matters() {
    assert_each_matters(
        &(17, part(1, 10, b"m")),
        |(level, part)| Node::List { level, parts: vec![part] },
        &[
            |(level, _)| *level = 18,
            |(_, part)| part.child.fingerprint = Fingerprint([7; 32]),
            |(_, part)| part.child.len_bytes = 9,
            |(_, part)| part.last_key = b"n".to_vec(),
            |(_, part)| part.below.entries = 12,
            |(_, part)| part.below.bytes = 201,
            |(_, part)| part.below.linked = 2,
            |(level, part)| (*level, *part) = (25, links_part(1, 10, 77)),
            |(level, part)| (*level, *part) = (25, links_part(1, 10, 78)),
            |(level, part)| (*level, *part) = (26, links_part(1, 10, 77)),
        ],
    );
}

#[test]
fn every_field_of_links_and_tops_matters() {
    assert_each_matters(
        &link(300, b"f/x"),
        |link| Node::Links(vec![link]),
        &[|link| link.number = 301, |link| link.names = 3, |link| link.path = b"f/y".to_vec()],
    );
    let linked = Below { entries: 5, bytes: 0, linked: 2 };
    let entry = entry(b"", Content::Directory(Directory { below: linked, ..directory() }));
    assert_each_matters(
        &Top { entry, links: Some((24, child(9, 1))) },
        |top| Node::Top(Box::new(top)),
        &[
            |top| top.entry.mode = 1,
            |top| top.links = Some((25, child(9, 1))),
            |top| top.links = Some((24, child(8, 1))),
            |top| top.links = Some((24, child(9, 2))),
            |top| (top.entry.content, top.links) = (Content::Fifo, None),
        ],
    );
}

#[test]
fn identity_bytes_are_stable() {
    let identity = Node::Links(vec![link(300, b"f/x")]).identity_bytes();
    assert_eq!(identity, b"dedupfs tree node v1\0\x18\x01\xac\x02\x02\x03f/x");
    for node in samples() {
        let bytes = node.encode();
        let body = &node.identity_bytes()[IDENTITY_TAG_BYTES..];
        assert_eq!(bytes[1..=body.len()], *body, "level and body are those of the encoding");
    }
}

proptest! {
    #[test]
    fn hints_do_not_matter(node in strategies::node()) {
        let moved = node.without_hints();
        prop_assert_eq!(node.identity_bytes(), moved.identity_bytes());
        prop_assert_eq!(node.encode() == moved.encode(), node == moved);
    }

    #[test]
    fn different_nodes_have_different_identities(one in strategies::node(), other in strategies::node()) {
        let is_same = one.without_hints() == other.without_hints();
        prop_assert_eq!(one.identity_bytes() == other.identity_bytes(), is_same);
    }
}
