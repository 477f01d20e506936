use proptest::prelude::*;

use super::*;

const ROOT_BYTES_MAX: usize = 2 + FINGERPRINT_BYTES + 8 + 8 + 4;

/// Longest encoding of a node with `children` children.
const fn node_bytes_bound(children: usize) -> usize {
    // Version, level, flags, count; bitmap; fingerprints; lengths (9: below 2^63); hints; checksum.
    3 + 3 + children.div_ceil(8) + children * (FINGERPRINT_BYTES + 9 + 10) + 8
}

fn fingerprint() -> impl Strategy<Value = Fingerprint> {
    any::<[u8; FINGERPRINT_BYTES]>().prop_filter("zeros are reserved", |bytes| *bytes != [0; 32]).prop_map(Fingerprint)
}

fn stored_child() -> impl Strategy<Value = Child> {
    (fingerprint(), 1_u64..1 << 40, any::<u64>()).prop_map(|(fingerprint, len_bytes, hint)| Child {
        fingerprint,
        len_bytes,
        hint: ContainerId(hint),
    })
}

fn child() -> impl Strategy<Value = Child> {
    prop_oneof![4 => stored_child(), 1 => (1_u64..1 << 50).prop_map(Child::zero)]
}

fn node() -> impl Strategy<Value = Node> {
    (0..=LEVEL_MAX, proptest::collection::vec(child(), 1..40)).prop_map(|(level, children)| Node { level, children })
}

fn root() -> impl Strategy<Value = Root> {
    prop_oneof![
        Just(Root::Empty),
        (1..=FILE_BYTES_MAX).prop_map(|len_bytes| Root::Zero { len_bytes }),
        stored_child().prop_map(Root::Chunk),
        (0..=LEVEL_MAX, stored_child()).prop_map(|(level, child)| Root::Node { level, child }),
        (TREE_LEVELS, stored_child()).prop_map(|(level, child)| Root::Tree { level, child }),
    ]
}

fn sample_child(number: u8) -> Child {
    Child {
        fingerprint: Fingerprint([number; 32]),
        len_bytes: 8000 + u64::from(number),
        hint: ContainerId(1 << 40 | 5),
    }
}

/// A segment with two stored chunks and a run of zeros between them.
fn sample_node() -> Node {
    Node { level: 0, children: vec![sample_child(1), Child::zero(1 << 33), sample_child(2)] }
}

fn encode_root(root: &Root) -> Vec<u8> {
    let mut writer = ByteWriter::new();
    root.encode_into(&mut writer);
    writer.into_vec()
}

/// Decodes a root with nothing behind it.
fn decode_root(bytes: &[u8]) -> Result<Root> {
    let mut reader = ByteReader::new(bytes, "file root");
    let root = Root::decode_from(&mut reader)?;
    reader.finish()?;
    Ok(root)
}

/// Node bytes around `body`, with a matching checksum.
fn sealed(body: &[u8]) -> Vec<u8> {
    [body, &checksum(body).to_le_bytes()].concat()
}

/// Checks that every single changed byte and every shorter or longer input is refused.
fn assert_damage_is_found<T: std::fmt::Debug>(bytes: &[u8], decode: impl Fn(&[u8]) -> Result<T>) {
    decode(bytes).unwrap();
    for position in 0..bytes.len() {
        for mask in [0x01, 0x10, 0x80, 0xff] {
            let mut damaged = bytes.to_vec();
            damaged[position] ^= mask;
            assert!(decode(&damaged).is_err(), "byte {position} ^ {mask:#x}");
        }
        assert!(decode(&bytes[..position]).is_err(), "{position} bytes");
    }
    assert!(decode(&[bytes, &[0]].concat()).is_err(), "one byte more");
}

#[test]
fn node_byte_map_is_stable() {
    let bytes = sample_node().encode();
    let mut expected = vec![1, 0, 1, 3, 0b010];
    expected.extend([1; 32]);
    expected.extend([2; 32]);
    expected.extend([0xc1, 0x3e]); // 8001
    expected.extend([0x80, 0x80, 0x80, 0x80, 0x20]); // 1 << 33
    expected.extend([0xc2, 0x3e]); // 8002
    expected.extend([0x8a, 0x80, 0x80, 0x80, 0x80, 0x40, 0]); // zigzag of 1 << 40 | 5, then no difference
    assert_eq!(bytes, sealed(&expected));
    assert!(bytes.len() <= node_bytes_bound(3));
}

#[test]
fn identity_covers_names_not_places() {
    let node = sample_node();
    let mut moved = node.clone();
    moved.children[0].hint = ContainerId(99);
    assert_eq!(node.identity_bytes(), moved.identity_bytes());
    assert_ne!(node.encode(), moved.encode());
    let mut longer = node.clone();
    longer.children[1].len_bytes += 1;
    assert_ne!(node.identity_bytes(), longer.identity_bytes());
    let higher = Node { level: 1, ..node.clone() };
    assert_ne!(node.identity_bytes(), higher.identity_bytes());
    let mut expected = b"dedupfs recipe node v1\0\0".to_vec();
    for child in &node.children {
        expected.extend(child.fingerprint.0);
        expected.extend(child.len_bytes.to_le_bytes());
    }
    assert_eq!(node.identity_bytes(), expected);
}

#[test]
fn damaged_nodes_are_found() {
    assert_damage_is_found(&sample_node().encode(), Node::decode);
    let segment = Node { level: 3, children: (1..=30).map(sample_child).collect() };
    assert_damage_is_found(&segment.encode(), Node::decode);
}

#[test]
fn damaged_roots_are_found() {
    let child = sample_child(3);
    let (node, tree) = (Root::Node { level: 2, child }, Root::Tree { level: 28, child });
    for root in [Root::Empty, Root::Zero { len_bytes: 77 }, Root::Chunk(child), node, tree] {
        assert!(encode_root(&root).len() <= ROOT_BYTES_MAX);
        assert_damage_is_found(&encode_root(&root), decode_root);
    }
}

#[test]
fn root_byte_map_is_stable() {
    let child = Child { fingerprint: Fingerprint([3; 32]), len_bytes: 9, hint: ContainerId(8) };
    let child_bytes = [&[3; 32][..], &[9, 0, 0, 0, 0, 0, 0, 0], &[8, 0, 0, 0, 0, 0, 0, 0]].concat();
    let maps = [
        (Root::Empty, vec![0]),
        (Root::Zero { len_bytes: 77 }, vec![1, 77, 0, 0, 0, 0, 0, 0, 0]),
        (Root::Chunk(child), [&[2], &child_bytes[..]].concat()),
        (Root::Node { level: 2, child }, [&[3, 2], &child_bytes[..]].concat()),
        (Root::Tree { level: 28, child }, [&[4, 28], &child_bytes[..]].concat()),
    ];
    for (root, fields) in maps {
        assert_eq!(encode_root(&root), [&fields[..], &checksum(&fields).to_le_bytes()[..4]].concat());
    }
}

#[test]
fn nodes_name_the_stored_among_their_children() {
    let (first, second) = (sample_child(1), sample_child(2));
    let references: Vec<Reference> = sample_node().references().collect();
    assert_eq!(references, [Reference::Chunk(first), Reference::Chunk(second)]);
    let children = vec![Child::zero(7), first, second, Child::zero(8)];
    let references: Vec<Reference> = Node { level: 1, children }.references().collect();
    assert_eq!(references, [first, second].map(|child| Reference::Node { level: 0, child }));
    let higher = Node { level: 3, children: vec![first] };
    assert_eq!(higher.references().collect::<Vec<_>>(), [Reference::Node { level: 2, child: first }]);
    assert_eq!(Node { level: 0, children: vec![Child::zero(7)] }.references().count(), 0);
}

#[test]
fn roots_name_what_is_stored() {
    let child = sample_child(1);
    assert_eq!(Root::Empty.reference(), None);
    assert_eq!(Root::Zero { len_bytes: 7 }.reference(), None);
    assert_eq!(Root::Chunk(child).reference(), Some(Reference::Chunk(child)));
    let node = Some(Reference::Node { level: 2, child });
    assert_eq!(Root::Node { level: 2, child }.reference(), node);
    assert_eq!(Root::Tree { level: 2, child }.reference(), node);
    let lengths = [Root::Chunk(child), Root::Node { level: 2, child }, Root::Tree { level: 28, child }];
    assert_eq!(lengths.map(|root| root.len_bytes()), [8001, 8001, 0], "a frozen tree is no file");
}

#[test]
fn references_tell_where_to_look() {
    let child = sample_child(1);
    for (reference, kind) in [
        (Reference::Chunk(child), ContainerKind::Data),
        (Reference::Node { level: 0, child }, ContainerKind::Recipe),
        (Reference::Node { level: 16, child }, ContainerKind::Recipe),
    ] {
        assert_eq!((reference.kind(), reference.child()), (kind, &child));
        assert_eq!(reference.fingerprint(), child.fingerprint);
    }
}

#[test]
fn senseless_nodes_with_good_checksums_are_refused() {
    let refused = |body: &[u8], reason: &str| {
        let message = Node::decode(&sealed(body)).unwrap_err().to_string();
        assert!(message.contains(reason), "{message}");
    };
    refused(&[2, 0, 0, 1], "newer version");
    refused(&[1, 0, 0, 0], "children");
    refused(&[1, 0, 0, 0x81, 0x80, 4], "children"); // 65,537
    refused(&[1, 0, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f], "children");
    refused(&[1, 0, 2, 1], "flags");
    refused(&[1, 0, 0, 0x80, 0x80, 4], "bytes at offset"); // 65,536 children, but no bytes for them
    refused(&[1, 0, 1, 1, 0b10, 5], "bitmap");
    refused(&[1, 0, 1, 1, 0], "bitmap");
    refused(&[1, 9, 1, 1, 1, 5], "level at most 8");
    refused(&[1, 0, 1, 1, 1, 0], "length of 1 to");
    refused(&[1, 0, 1, 1, 1, 5, 0], "6 bytes");
    refused(&[&[1, 0, 0, 1][..], &[0; 32], &[5, 0]].concat(), "fingerprint");
    let half = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f];
    refused(&[&[1, 0, 1, 2, 3][..], &half, &half].concat(), "adding up");
    assert!(Node::decode(&sealed(&[1, 0, 1, 1, 1, 5])).is_ok(), "the pattern of the cases above is sound");
}

#[test]
fn senseless_roots_with_good_checksums_are_refused() {
    let refused = |body: &[u8], reason: &str| {
        let bytes = [body, &root_check(body).to_le_bytes()].concat();
        let message = decode_root(&bytes).unwrap_err().to_string();
        assert!(message.contains(reason), "{message}");
    };
    refused(&[5], "tag");
    refused(&[1, 0, 0, 0, 0, 0, 0, 0, 0], "length of 1");
    refused(&[&[2][..], &[0; 32], &[1; 16]].concat(), "zeros");
    refused(&[&[3, 9][..], &[1; 48]].concat(), "level");
    refused(&[&[2][..], &[1; 32], &[0xff; 16]].concat(), "length of 1");
    refused(&[&[4, 15][..], &[1; 48]].concat(), "level of a tree node");
    refused(&[&[4, 32][..], &[1; 48]].concat(), "level of a tree node");
    refused(&[&[4, 28][..], &[0; 32], &[1; 16]].concat(), "zeros");
    refused(&[&[4, 28][..], &[1; 32], &[0; 16]].concat(), "length of 1");
    refused(&[&[3, 16][..], &[1; 48]].concat(), "level at most 8");
}

#[test]
fn lengths_that_do_not_fit_are_an_error() {
    let node = Node { level: 0, children: vec![Child::zero(FILE_BYTES_MAX), Child::zero(1)] };
    assert!(node.len_bytes().is_err());
    assert!(node.check().is_err());
    assert_eq!(Node { level: 0, children: vec![Child::zero(FILE_BYTES_MAX)] }.len_bytes().unwrap(), FILE_BYTES_MAX);
}

#[test]
#[should_panic(expected = "children")]
fn what_could_not_be_decoded_is_never_encoded() {
    let _ = Node { level: 0, children: Vec::new() }.encode();
}

#[test]
fn largest_node_round_trips() {
    let child = Child { hint: ContainerId(u64::MAX), len_bytes: 1 << 46, ..sample_child(9) };
    let node = Node { level: LEVEL_MAX, children: vec![child; NODE_CHILDREN_MAX] };
    let bytes = node.encode();
    assert!(bytes.len() <= node_bytes_bound(NODE_CHILDREN_MAX));
    assert_eq!(Node::decode(&bytes).unwrap(), node);
}

proptest! {
    #[test]
    fn nodes_round_trip(node in node()) {
        let bytes = node.encode();
        prop_assert!(bytes.len() <= node_bytes_bound(node.children.len()));
        prop_assert_eq!(&Node::decode(&bytes).unwrap(), &node);
        prop_assert_eq!(node.len_bytes().unwrap(), node.children.iter().map(|child| child.len_bytes).sum::<u64>());
    }

    #[test]
    fn roots_round_trip_alone_and_among_others(root in root(), after: u32) {
        prop_assert_eq!(decode_root(&encode_root(&root)).unwrap(), root);
        let mut writer = ByteWriter::new();
        writer.u8(7);
        root.encode_into(&mut writer);
        writer.u32(after);
        let bytes = writer.into_vec();
        let mut reader = ByteReader::new(&bytes, "inode");
        reader.u8().unwrap();
        prop_assert_eq!(Root::decode_from(&mut reader).unwrap(), root);
        prop_assert_eq!(reader.u32().unwrap(), after);
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..120)) {
        let _ = decode_root(&bytes);
        prop_assert!(Node::decode(&bytes).is_err());
        let mut body = vec![NODE_VERSION, 0];
        body.extend(&bytes);
        // The checksum matches: an accepted node must be sound, and encode to the same bytes.
        if let Ok(node) = Node::decode(&sealed(&body)) {
            prop_assert!(node.check().is_ok());
            prop_assert_eq!(node.encode(), sealed(&body));
        }
    }
}
