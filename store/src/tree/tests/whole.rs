//! Whole nodes: round trips, one encoding for each, and what they tell of themselves.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::codec::ByteReader;
use crate::recipe::Reference;

/// What a reader may do with bytes that a decoder accepted.
fn assert_is_sound(bytes: &[u8]) {
    let Ok(node) = Node::decode(bytes) else { return };
    node.check().unwrap();
    assert_eq!(node.encode(), bytes, "{node:?} has two encodings");
}

/// The sums of a node, in numbers that cannot overflow.
fn naive_below(node: &Node) -> [u128; 3] {
    let mut sums = [0; 3];
    let mut add = |numbers: [u64; 3]| sums.iter_mut().zip(numbers).for_each(|(sum, number)| *sum += u128::from(number));
    let mut add_entry = |entry: &Entry| {
        add([1, 0, u64::from(entry.link.is_some())]);
        match &entry.content {
            Content::File { root, .. } => add([0, root.len_bytes(), 0]),
            Content::Directory(Directory { below, .. }) => add([below.entries, below.bytes, below.linked]),
            _ => {}
        }
    };
    match node {
        Node::Leaf(entries) => entries.iter().for_each(add_entry),
        Node::List { parts, .. } => {
            parts.iter().for_each(|part| add([part.below.entries, part.below.bytes, part.below.linked]));
        }
        Node::Links(_) => {}
        Node::Top(top) => add_entry(&top.entry),
    }
    sums
}

fn naive_references(node: &Node) -> Vec<Reference> {
    let mut references = Vec::new();
    let mut add_root = |root: &Root| match *root {
        Root::Empty | Root::Zero { .. } => {}
        Root::Chunk(child) => references.push(Reference::Chunk(child)),
        Root::Node { level, child } | Root::Tree { level, child } => references.push(Reference::Node { level, child }),
    };
    let mut add_entry = |entry: &Entry| {
        if let Attributes::Stored(root) = &entry.attributes {
            add_root(root);
        }
        match &entry.content {
            Content::File { root, .. } => add_root(root),
            Content::Directory(Directory { root: Some((level, child)), .. }) => {
                add_root(&Root::Tree { level: *level, child: *child });
            }
            _ => {}
        }
    };
    match node {
        Node::Leaf(entries) => entries.iter().for_each(add_entry),
        Node::List { level, parts } => {
            parts.iter().for_each(|part| add_root(&Root::Tree { level: level - 1, child: part.child }));
        }
        Node::Links(_) => {}
        Node::Top(top) => {
            add_entry(&top.entry);
            if let Some((level, child)) = top.links {
                add_root(&Root::Tree { level, child });
            }
        }
    }
    references
}

/// The hints behind the body of an encoded node.
fn encoded_hints(node: &Node) -> Vec<ContainerId> {
    let bytes = node.encode();
    let body_end = 1 + node.identity_bytes().len() - IDENTITY_TAG_BYTES;
    let mut reader = ByteReader::new(&bytes[body_end..bytes.len() - 8], "hints");
    let mut hints = Vec::new();
    let mut last = 0_u64;
    while reader.remaining() > 0 {
        last = last.wrapping_add(reader.varint_signed().unwrap().cast_unsigned());
        hints.push(ContainerId(last));
    }
    hints
}

#[test]
fn nodes_tell_their_rows_and_last_keys() {
    let told: Vec<(u8, u64, Vec<u8>)> =
        samples().iter().map(|node| (node.level(), node.rows(), node.last_key())).collect();
    let expected: Vec<(u8, u64, Vec<u8>)> = vec![
        (16, 11, b"k".to_vec()),
        (17, 30, b"zz".to_vec()),
        (25, 30, vec![0, 0, 1, 0, 0, 0, 0, 0]),
        (24, 2, vec![0, 0, 0, 0, 0, 0, 1, 44]),
        (28, 1, Vec::new()),
    ];
    assert_eq!(told, expected);
}

#[test]
fn directories_tell_their_rows() {
    assert_eq!((directory().rows(), Directory::default().rows()), (3, 0));
    assert!(entry(b"a", Content::Directory(directory())).is_directory());
    assert!(!full_file(b"a").is_directory());
}

#[test]
fn sums_of_the_samples_are_exact() {
    let sums = samples().map(|node| node.below().unwrap());
    // The files have 300, 9 and 5,000 bytes; one directory has sums of its own.
    assert_eq!(sums[0], Below { entries: 16, bytes: 6309, linked: 3 });
    assert_eq!(sums[1], Below { entries: 32, bytes: 400, linked: 2 });
    assert_eq!((sums[2], sums[3]), (Below::default(), Below::default()));
    assert_eq!(sums[4], Below { entries: 6, bytes: 1000, linked: 2 });
}

#[test]
fn the_largest_nodes_round_trip() {
    let names = || (0..ROWS_MAX).map(|number| format!("{number:0>255}").into_bytes());
    let entries: Vec<Entry> = names().map(|name| full_file(&name)).collect();
    let parts = names().map(|last_key| part(7, 1 << 40, &last_key)).collect();
    let links = (1..=ROWS_MAX as u64).map(|number| link(number, b"a")).collect();
    for node in [Node::Leaf(entries), Node::List { level: LIST_LEVEL_MAX, parts }, Node::Links(links)] {
        assert_eq!(Node::decode(&node.encode()).unwrap(), node);
    }
    let path = vec![vec![b'x'; 255]; 4096].join(&b'/');
    let node = Node::Links(vec![link(SUM_MAX, &path)]);
    assert_eq!(Node::decode(&node.encode()).unwrap(), node);
    let link_target = entry(b"a", Content::Symlink(vec![b'y'; SYMLINK_BYTES_MAX]));
    let node = Node::Leaf(vec![link_target]);
    assert_eq!(Node::decode(&node.encode()).unwrap(), node);
}

#[test]
fn memory_covers_names_targets_and_attributes() {
    let memory = |change: fn(&mut Entry)| {
        let mut entry = fifo(b"a");
        change(&mut entry);
        Node::Leaf(vec![entry]).memory_bytes()
    };
    let least = memory(|_| {});
    assert!(least >= (size_of::<Node>() + size_of::<Entry>()) as u64);
    assert_eq!(memory(|entry| entry.name = vec![b'a'; 101]), least + 100);
    assert_eq!(memory(|entry| entry.content = Content::Symlink(vec![b'a'; 100])), least + 100);
    assert_eq!(memory(|entry| entry.attributes = Attributes::Inline(vec![1; 100])), least + 100);
    let list = |parts: &[Part]| Node::List { level: 17, parts: parts.to_vec() }.memory_bytes();
    let of_part = size_of::<Part>() as u64;
    assert!(list(&[part(1, 1, b"a"), part(1, 1, &[b'b'; 100])]) >= list(&[part(1, 1, b"a")]) + of_part + 100);
    let links = |links: &[Link]| Node::Links(links.to_vec()).memory_bytes();
    let of_link = size_of::<Link>() as u64;
    assert!(links(&[link(1, b"a"), link(2, &[b'b'; 100])]) >= links(&[link(1, b"a")]) + of_link + 100);
    assert!(sample_top().memory_bytes() >= size_of::<Top>() as u64);
}

proptest! {
    #[test]
    fn nodes_round_trip(node in strategies::node()) {
        prop_assert_eq!(&Node::decode(&node.encode()).unwrap(), &node);
    }

    #[test]
    fn sums_and_references_are_those_of_the_rows(node in strategies::node()) {
        let below = node.below().unwrap();
        prop_assert_eq!([below.entries, below.bytes, below.linked].map(u128::from), naive_below(&node));
        prop_assert_eq!(node.references(), naive_references(&node));
    }

    #[test]
    fn hints_lie_in_the_order_of_the_references(node in strategies::node()) {
        let hints: Vec<ContainerId> = node.references().iter().map(|reference| reference.child().hint).collect();
        prop_assert_eq!(encoded_hints(&node), hints);
        let without = node.without_hints();
        prop_assert!(without.references().iter().all(|reference| reference.child().hint == ContainerId::NONE));
        prop_assert_eq!(unchecked(&node), without.encode());
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in vec(any::<u8>(), 0..120), level in 14_u8..30, rows in 0_u8..4) {
        prop_assert!(Node::decode(&bytes).is_err());
        let _ = decode_attributes(&bytes);
        assert_is_sound(&sealed(&bytes));
        assert_is_sound(&sealed(&[&[1, level, rows][..], &bytes].concat()));
    }

    #[test]
    fn changed_nodes_with_good_checksums_have_one_encoding(
        node in strategies::node(),
        changes in vec((any::<proptest::sample::Index>(), 0_u8..3, any::<u8>()), 1..4),
    ) {
        let mut body = node.encode();
        body.truncate(body.len() - 8);
        for (position, change, byte) in changes {
            let position = position.index(body.len());
            match change {
                0 => body[position] = byte,
                1 => body.insert(position, byte),
                _ => drop(body.remove(position)),
            }
            if body.is_empty() {
                break;
            }
        }
        assert_is_sound(&sealed(&body));
    }
}
