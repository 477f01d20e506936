//! Sets of attributes.

use proptest::prelude::*;

use super::*;

fn attribute(name: &[u8], value: &[u8]) -> Attribute {
    (name.to_vec(), value.to_vec())
}

#[test]
fn byte_map_of_attributes_is_stable() {
    let set = [attribute(b"system.posix_acl_access", &[7; 200]), attribute(b"user.a", b"")];
    let mut expected = vec![23];
    expected.extend(b"system.posix_acl_access\xc8\x01");
    expected.extend([7; 200]);
    expected.extend(b"\x06user.a\0");
    assert_eq!(encode_attributes(&set), expected);
    assert_eq!(decode_attributes(&expected).unwrap(), set);
    assert_eq!(encode_attributes(&[]), b"");
}

#[test]
fn senseless_attributes_are_refused() {
    let refused = |bytes: &[u8], reason: &str| {
        let message = message(decode_attributes(bytes));
        assert!(message.contains(reason), "{message}");
    };
    refused(b"\0\0", "the name of an attribute");
    refused(b"\x02a\0\0", "the name of an attribute");
    refused(b"\x01b\0\x01a\0", "ascending names");
    refused(b"\x01a\0\x01a\0", "ascending names");
    refused(b"\x02a", "2 bytes");
    refused(b"\x01a", "1 bytes");
    refused(b"\x01a\x02x", "2 bytes");
    refused(b"\x01a\x80\0", "shortest form");
    refused(b"\x01a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "length of a value");
    assert!(decode_attributes(b"\x01a\0\x01b\0").is_ok(), "the pattern of the cases above is sound");
}

#[test]
#[should_panic(expected = "ascend")]
fn descending_attributes_are_never_encoded() {
    let _ = encode_attributes(&[attribute(b"b", b""), attribute(b"a", b"")]);
}

#[test]
#[should_panic(expected = "ascend")]
fn equal_attributes_are_never_encoded() {
    let _ = encode_attributes(&[attribute(b"a", b"1"), attribute(b"a", b"2")]);
}

#[test]
fn impossible_names_are_never_encoded() {
    for name in [&b""[..], b"a\0", &[b'a'; 256]] {
        let encoded = std::panic::catch_unwind(|| encode_attributes(&[attribute(name, b"")]));
        assert!(encoded.is_err(), "{} bytes", name.len());
    }
    let _ = encode_attributes(&[attribute(&[b'a'; 255], b"")]);
}

#[test]
fn only_an_empty_set_is_empty() {
    assert!(Attributes::default().is_empty());
    assert!(!Attributes::Inline(vec![1]).is_empty());
    assert!(!Attributes::Stored(Root::Chunk(child(1, 300))).is_empty());
}

proptest! {
    #[test]
    fn attributes_round_trip(set in strategies::attribute_set()) {
        prop_assert_eq!(decode_attributes(&encode_attributes(&set)).unwrap(), set);
    }

    #[test]
    fn accepted_attributes_have_one_encoding(bytes in proptest::collection::vec(0_u8..5, 0..12)) {
        if let Ok(set) = decode_attributes(&bytes) {
            prop_assert_eq!(encode_attributes(&set), bytes);
        }
    }
}
