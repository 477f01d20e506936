//! Bytes with good checksums that no node has.

use super::*;

fn assert_refused(body: &[u8], reason: &str) {
    let message = message(Node::decode(&sealed(body)));
    assert!(message.contains(reason), "{message}");
}

/// An entry `a` with these bits and fields, in a leaf of its own.
fn leaf(bits: u8, fields: &[u8]) -> Vec<u8> {
    [&[1, 16, 1, 1, b'a', bits], fields].concat()
}

/// Mode, owner, group and time.
const NONE: [u8; 5] = [0; 5];

#[test]
fn senseless_heads_are_refused() {
    assert!(message(Node::decode(&[])).contains("a checksum"));
    assert!(message(Node::decode(&[0; 7])).contains("a checksum"));
    assert_refused(&[], "1 bytes");
    assert_refused(&[0, 16], "newer version");
    assert_refused(&[2, 16], "newer version");
    assert_refused(&[1], "1 bytes");
}

#[test]
fn counts_that_lie_are_refused() {
    let one = leaf(6, &NONE);
    Node::decode(&sealed(&one)).unwrap();
    let with_count = |count: &[u8]| [&[1, 16], count, &one[3..]].concat();
    assert_refused(&with_count(&[0]), "1 to 4,096 rows");
    assert_refused(&with_count(&[2]), "1 bytes");
    assert_refused(&with_count(&[100]), "1 to 4,096 rows"); // more than bytes
    assert_refused(&with_count(&[0x81, 0x20]), "1 to 4,096 rows"); // 4097
    assert_refused(&with_count(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1]), "1 to 4,096 rows");
    let two = [&one[..], &[1, b'b', 6], &NONE].concat();
    assert_refused(&two, "11 bytes"); // one of two is told
    // As many bytes as rows must be there before memory is taken, but more are refused for their number alone.
    let rows: Vec<u8> = [&[1, 24, 0x81, 0x20][..], &[0; 5000]].concat();
    assert_refused(&rows, "1 to 4,096 rows");
}

#[test]
fn bits_of_no_meaning_are_refused() {
    assert_refused(&leaf(6 | 1 << 7, &NONE), "known bits of an entry");
    assert_refused(&leaf(0, &NONE), "an entry of a kind of 1 to 7");
    let both = leaf(6 | 1 << 4 | 1 << 5, &[0, 0, 0, 0, 0, 3, 1, b'a', 0, 2]);
    assert_refused(&both, "attributes in one place");
    // Flags, attributes and links that are not there.
    assert_refused(&leaf(6 | 1 << 3, &[0; 6]), "flags");
    assert_refused(&leaf(6 | 1 << 4, &[0; 6]), "attributes");
    assert_refused(&leaf(6 | 1 << 6, &[0; 6]), "the number of a link");
    assert_refused(&leaf(6, &[0; 6]), "bytes");
}

#[test]
fn numbers_out_of_range_are_refused() {
    let four_gib = [0x80, 0x80, 0x80, 0x80, 0x10];
    assert_refused(&leaf(6, &[0x80, 0x80, 4, 0, 0, 0, 0]), "at most 65535"); // 1 << 16 is no mode of 0
    assert_refused(&leaf(6, &[&[0], &four_gib[..], &[0, 0, 0]].concat()), "at most 4294967295");
    assert_refused(&leaf(6, &[&[0, 0], &four_gib[..], &[0, 0]].concat()), "at most 4294967295");
    assert_refused(&leaf(6, &[&[0, 0, 0, 0], &four_gib[..]].concat()), "at most 1000000000");
    assert_refused(&leaf(6 | 1 << 3, &[&NONE, &four_gib[..]].concat()), "at most 4294967295");
    assert_refused(&leaf(4, &[&NONE, &four_gib[..]].concat()), "at most 4294967295");
    assert_refused(&leaf(5, &[&NONE, &four_gib[..]].concat()), "at most 4294967295");
}

#[test]
fn senseless_roots_are_refused() {
    Node::decode(&sealed(&leaf(1, &[&NONE, &[1, 5, 5][..]].concat()))).unwrap();
    assert_refused(&leaf(1, &[&NONE, &[1, 5, 6][..]].concat()), "holes within the file");
    assert_refused(&leaf(1, &[&NONE, &[0, 1][..]].concat()), "holes within the file");
    assert_refused(&leaf(1, &[&NONE, &[1, 0, 0][..]].concat()), "a length of 1 to");
    assert_refused(&leaf(1, &[&NONE, &[5, 0][..]].concat()), "a root of 0 to 4");
}

#[test]
fn bodies_of_another_kind_are_refused() {
    for node in samples() {
        let bytes = node.encode();
        for level in (0..=255).filter(|&level| level != node.level()) {
            let mut body = bytes[..bytes.len() - 8].to_vec();
            body[1] = level;
            let is_list = matches!(node.level(), 17 | 25);
            let fits = is_list && (node.level() == 17) == (level < 24) && matches!(level, 17..=22 | 25..=27);
            assert_eq!(Node::decode(&sealed(&body)).is_ok(), fits, "{} as {level}", node.level());
        }
    }
}

#[test]
fn overlong_numbers_are_refused() {
    let sound = leaf(6 | 1 << 3 | 1 << 6, &[1, 2, 3, 4, 5, 6, 7]);
    Node::decode(&sealed(&sound)).unwrap();
    // The count, then each number behind the bits.
    for position in [2].into_iter().chain(6..sound.len()) {
        let mut overlong = sound.clone();
        overlong[position] |= 0x80;
        overlong.insert(position + 1, 0);
        assert_refused(&overlong, "shortest form");
    }
    // The hints of a top.
    let top = sample_top().encode();
    let mut body = top[..top.len() - 8].to_vec();
    *body.last_mut().unwrap() |= 0x80;
    body.push(0);
    assert_refused(&body, "shortest form");
}
