//! The byte maps of `docs/format.md`, and damage to them.

use super::*;

/// A fingerprint of equal bytes.
const fn of(number: u8) -> [u8; 32] {
    [number; 32]
}

#[test]
fn leaf_byte_map_is_stable() {
    let mut expected = vec![1, 16, 11];
    // Name; kind and bits; mode, owner, group; time; attributes; no content; no holes.
    expected.extend([1, b'a', 1 | 1 << 4, 0, 0, 0, 0, 0, 9, 6]);
    expected.extend(b"user.a\x011");
    expected.extend([0, 0]);
    expected.extend([1, b'b', 1, 0, 0, 0, 0, 0, 1, 0xac, 2, 0xac, 2]); // 300 zeros, 300 bytes of holes
    expected.extend([1, b'c', 1, 0, 0, 0, 0, 0, 2]);
    expected.extend(of(3));
    expected.extend([9, 0]);
    expected.extend([1, b'd', 1 | 1 << 3 | 1 << 5 | 1 << 6, 0xa4, 3, 0xe8, 7, 100, 3]); // 0o644, 1000, 100, -2
    expected.extend([0xff, 0x93, 0xeb, 0xdc, 3, 16, 2]); // nanoseconds, flags, attributes in a chunk
    expected.extend(of(1));
    expected.extend([0xac, 2, 0xac, 2, 3, 1]); // of 300 bytes; link 300; node of level 1
    expected.extend(of(2));
    expected.extend([0x88, 0x27, 1]); // 5000 bytes, one of them in a hole
    expected.extend([1, b'e', 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    expected.extend([1, b'f', 2, 0, 0, 0, 0, 0, 17]);
    expected.extend(of(4));
    expected.extend([3, 1, 5, 0xe8, 7, 2]); // rows, subdirectories, entries, bytes, linked
    expected.extend(b"\x01g\x03\0\0\0\0\0\x04../x");
    expected.extend([1, b'h', 4, 0, 0, 0, 0, 0, 0x83, 2]);
    expected.extend([1, b'i', 5, 0, 0, 0, 0, 0, 0x80, 0x10]);
    expected.extend([1, b'j', 6, 0, 0, 0, 0, 0]);
    expected.extend([1, b'k', 7, 0, 0, 0, 0, 0]);
    expected.extend([6, 12, 1, 1]); // hints 3; 9, 8 (attributes first); 7
    assert_eq!(sample_leaf().encode(), sealed(&expected));
}

#[test]
fn list_byte_map_is_stable() {
    let mut expected = vec![1, 17, 2];
    expected.extend(of(1));
    expected.extend([10, 1, b'm', 11, 0xc8, 1, 1]); // rows, key, sums
    expected.extend(of(2));
    expected.extend([20, 2, b'z', b'z', 21, 0xc8, 1, 1]);
    expected.extend([10, 0]); // hints 5, 5
    assert_eq!(sample_list().encode(), sealed(&expected));
}

#[test]
fn list_of_links_byte_map_is_stable() {
    let mut expected = vec![1, 25, 2];
    expected.extend(of(1));
    expected.extend([10, 8, 0, 0, 0, 0, 0, 0, 0, 77, 0, 0, 0]); // rows, number big-endian, no sums
    expected.extend(of(2));
    expected.extend([20, 8, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0]);
    expected.extend([12, 0]); // hints 6, 6
    assert_eq!(sample_list_of_links().encode(), sealed(&expected));
}

#[test]
fn links_byte_map_is_stable() {
    let mut expected = vec![1, 24, 2, 5, 2, 1, b'd', 0xac, 2, 2, 3];
    expected.extend(b"f/x");
    assert_eq!(sample_links().encode(), sealed(&expected));
}

#[test]
fn top_byte_map_is_stable() {
    let mut expected = vec![1, 28, 0, 2, 0, 0, 0, 0, 0, 17];
    expected.extend(of(4));
    expected.extend([3, 1, 5, 0xe8, 7, 2, 24]); // as in a leaf; level of the links
    expected.extend(of(9));
    expected.extend([1, 14, 2]); // one link; hints 7, 8
    assert_eq!(sample_top().encode(), sealed(&expected));
    let file = entry(b"", Content::File { root: Root::Empty, data_bytes: 0 });
    let top = Node::Top(Box::new(Top { entry: file, links: None }));
    assert_eq!(top.encode(), sealed(&[1, 28, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0]));
}

#[test]
fn damaged_nodes_are_found() {
    for node in samples() {
        let bytes = node.encode();
        Node::decode(&bytes).unwrap();
        for position in 0..bytes.len() {
            for mask in [0x01, 0x10, 0x80, 0xff] {
                let mut damaged = bytes.clone();
                damaged[position] ^= mask;
                assert!(Node::decode(&damaged).is_err(), "byte {position} ^ {mask:#x}");
            }
            assert!(Node::decode(&bytes[..position]).is_err(), "{position} bytes");
        }
        assert!(Node::decode(&[&bytes[..], &[0]].concat()).is_err(), "one byte more");
    }
}

#[test]
fn parts_of_nodes_with_good_checksums_are_refused() {
    for node in samples() {
        let bytes = node.encode();
        let body = &bytes[..bytes.len() - 8];
        for len in 0..body.len() {
            assert!(Node::decode(&sealed(&body[..len])).is_err(), "{len} bytes");
        }
        assert!(Node::decode(&sealed(&[body, &[0]].concat())).is_err(), "one byte more");
    }
}
