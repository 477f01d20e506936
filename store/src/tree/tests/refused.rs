//! Nodes that break an invariant: neither encoded, nor decoded from bytes with a good checksum.

use super::*;

fn assert_refused(node: &Node, reason: &str) {
    let checked = message(node.check());
    assert!(checked.contains(reason), "{checked}");
    let decoded = message(Node::decode(&unchecked(node)));
    assert!(decoded.contains(reason), "{decoded}");
}

fn refused_entry(entry: Entry, reason: &str) {
    assert_refused(&Node::Leaf(vec![entry]), reason);
}

fn refused_content(content: Content, reason: &str) {
    refused_entry(entry(b"a", content), reason);
}

fn refused_directory(directory: Directory, reason: &str) {
    refused_content(Content::Directory(directory), reason);
}

#[test]
fn what_the_refusals_start_from_is_sound() {
    for node in samples() {
        assert_eq!(Node::decode(&unchecked(&node)).unwrap(), node.without_hints());
    }
}

#[test]
#[should_panic(expected = "encoding a tree node")]
fn what_could_not_be_decoded_is_never_encoded() {
    let _ = Node::Leaf(vec![fifo(b"a"), fifo(b"a")]).encode();
}

#[test]
fn names_that_are_none_are_refused() {
    for name in [&b""[..], b".", b"..", b"a/b", b"/", b"a\0", b"\0"] {
        refused_entry(fifo(name), "a name of 1 to 255 bytes");
        assert_refused(&Node::List { level: 17, parts: vec![part(1, 1, name)] }, "a name of 1 to 255 bytes");
        let path = [b"a/", name, b"/b"].concat();
        if name != b"a/b" {
            assert_refused(&Node::Links(vec![link(1, &path)]), "a name of 1 to 255 bytes");
        }
    }
    // Their lengths cannot be written.
    let long = message(Node::Leaf(vec![fifo(&[b'a'; 256])]).check());
    assert!(long.contains("a name of 1 to 255 bytes"), "{long}");
    let long = message(Node::List { level: 17, parts: vec![part(1, 1, &[b'a'; 256])] }.check());
    assert!(long.contains("a name of 1 to 255 bytes"), "{long}");
    Node::Leaf(vec![fifo(b"..."), fifo(b"a.")]).check().unwrap();
}

#[test]
fn rows_out_of_order_are_refused() {
    for (one, next) in [(b"a", b"a"), (b"b", b"a")] {
        assert_refused(&Node::Leaf(vec![fifo(one), fifo(next)]), "ascending");
        assert_refused(&Node::List { level: 17, parts: vec![part(1, 1, one), part(2, 1, next)] }, "ascending");
    }
    for (one, next) in [(300, 300), (300, 5)] {
        assert_refused(&Node::Links(vec![link(one, b"a"), link(next, b"b")]), "ascending");
        let parts = vec![links_part(1, 1, one), links_part(2, 1, next)];
        assert_refused(&Node::List { level: 25, parts }, "ascending");
    }
}

#[test]
fn too_many_or_no_rows_are_refused() {
    let names = || (0..=ROWS_MAX).map(|number| format!("{number:05}").into_bytes());
    let leaf = Node::Leaf(names().map(|name| fifo(&name)).collect());
    let list = Node::List { level: 17, parts: names().map(|name| part(1, 1, &name)).collect() };
    let links = Node::Links((1..=ROWS_MAX as u64 + 1).map(|number| link(number, b"a")).collect());
    let empty = [Node::Leaf(Vec::new()), Node::List { level: 17, parts: Vec::new() }, Node::Links(Vec::new())];
    for node in [leaf, list, links].iter().chain(&empty) {
        assert_refused(node, "1 to 4,096 rows");
    }
}

#[test]
fn levels_out_of_range_are_refused() {
    for level in (0..=255).filter(|level| !(17..=22).contains(level) && !matches!(level, 16 | 24..=28)) {
        let list = Node::List { level, parts: vec![part(1, 1, b"a")] };
        let links = Node::List { level, parts: vec![links_part(1, 1, 1)] };
        assert_refused(&list, "the level of a list");
        assert_refused(&links, "the level of a list");
    }
    for level in [16, 24, 28] {
        assert!(Node::List { level, parts: vec![part(1, 1, b"a")] }.check().is_err(), "level {level}");
    }
    for level in (1..=255).filter(|level| !(16..=22).contains(level)) {
        refused_directory(Directory { root: Some((level, child(4, 3))), ..directory() }, "the level of a directory");
    }
    let Node::Top(top) = sample_top() else { unreachable!() };
    for level in (1..=255).filter(|level| !(24..=27).contains(level)) {
        let top = Top { links: Some((level, child(9, 1))), ..(*top).clone() };
        assert_refused(&Node::Top(Box::new(top)), "the level of links");
    }
}

#[test]
fn senseless_fields_of_an_entry_are_refused() {
    refused_entry(Entry { mode: 0o10000, ..fifo(b"a") }, "a mode of at most 7777");
    refused_entry(Entry { mtime_nanos: 1_000_000_000, ..fifo(b"a") }, "10^9 nanoseconds");
    refused_entry(Entry { link: Some(0), ..fifo(b"a") }, "the number of a link");
    refused_entry(Entry { link: Some(SUM_MAX + 1), ..fifo(b"a") }, "the number of a link");
    let directory = Content::Directory(directory());
    refused_entry(Entry { link: Some(1), ..entry(b"a", directory) }, "a directory with one name");
    refused_content(Content::Symlink(Vec::new()), "the target of a symbolic link");
    refused_content(Content::Symlink(b"a\0".to_vec()), "the target of a symbolic link");
    let long = entry(b"a", Content::Symlink(vec![b'a'; SYMLINK_BYTES_MAX + 1]));
    let checked = message(Node::Leaf(vec![long.clone()]).check());
    assert!(checked.contains("the target of a symbolic link"), "{checked}");
    refused_entry_bytes(long, "at most 4095");
}

/// Of a number that is refused before the node is complete.
fn refused_entry_bytes(entry: Entry, reason: &str) {
    let decoded = message(Node::decode(&unchecked(&Node::Leaf(vec![entry]))));
    assert!(decoded.contains(reason), "{decoded}");
}

#[test]
fn senseless_files_are_refused() {
    let file = |root: Root| Content::File { data_bytes: root.len_bytes(), root };
    refused_content(file(Root::Tree { level: 16, child: child(1, 1) }), "the content of a file");
    refused_content(file(Root::Node { level: 9, child: child(1, 1) }), "level at most 8");
    refused_content(file(Root::Chunk(child(0, 1))), "zeros");
    refused_content(file(Root::Chunk(child(1, 0))), "a length of 1 to");
    refused_content(file(Root::Zero { len_bytes: SUM_MAX + 1 }), "a length of 1 to");
    let message = message(Node::Leaf(vec![entry(b"a", Content::File { root: Root::Empty, data_bytes: 1 })]).check());
    assert!(message.contains("at most as many data bytes as bytes"), "{message}");
}

#[test]
fn senseless_directories_are_refused() {
    let rows = |rows| Directory { root: Some((16, child(4, rows))), ..directory() };
    refused_directory(Directory { subdirectories: 4, ..rows(3) }, "at most as many directories as entries");
    refused_directory(Directory { subdirectories: 1, ..Directory::default() }, "at most as many directories");
    refused_directory(rows(6), "at least as many entries as rows");
    refused_directory(Directory { subdirectories: 0, ..rows(0) }, "at least as many entries as rows");
    refused_directory(Directory { root: Some((16, child(0, 3))), ..directory() }, "the fingerprint of a directory");
    let below = |below| Directory { below, ..directory() };
    refused_directory(below(Below { entries: 2, ..Below::default() }), "at least as many entries as rows");
    refused_directory(below(Below { entries: 5, bytes: 0, linked: 6 }), "at most as many entries with links");
    let many = SUM_MAX + 1;
    refused_directory(below(Below { entries: many, bytes: 0, linked: 0 }), "sums below 2^63");
    refused_directory(below(Below { entries: 5, bytes: many, linked: 0 }), "sums below 2^63");
    refused_directory(below(Below { entries: many, bytes: 0, linked: many }), "sums below 2^63");
    for empty in [Below { entries: 1, bytes: 0, linked: 0 }, Below { entries: 0, bytes: 1, linked: 0 }] {
        refused_directory(Directory { below: empty, ..Directory::default() }, "no sums over an empty directory");
    }
}

#[test]
fn sums_above_the_bound_are_refused() {
    let half = SUM_MAX / 2 + 1;
    let file = |name| entry(name, Content::File { root: Root::Zero { len_bytes: half }, data_bytes: 0 });
    assert_refused(&Node::Leaf(vec![file(b"a"), file(b"b")]), "sums below 2^63");
    let part = |key, rows, below| Part { child: child(1, rows), last_key: vec![key], below };
    for below in [
        Below { entries: half, bytes: 0, linked: 0 },
        Below { entries: half, bytes: 0, linked: half },
        Below { entries: 1, bytes: half, linked: 0 },
    ] {
        let parts = vec![part(b'a', 1, below), part(b'b', 1, below)];
        assert_refused(&Node::List { level: 17, parts }, "sums below 2^63");
    }
    let parts = vec![
        Part { child: child(1, half), ..links_part(1, 1, 1) },
        Part { child: child(1, half), ..links_part(1, 1, 2) },
    ];
    assert_refused(&Node::List { level: 25, parts }, "rows below 2^63");
    // The entry itself is one more.
    let full = Below { entries: SUM_MAX, bytes: 0, linked: 0 };
    let directory = Content::Directory(Directory { below: full, ..directory() });
    refused_content(directory.clone(), "sums below 2^63");
    let top = Top { entry: entry(b"", directory), links: None };
    assert_refused(&Node::Top(Box::new(top)), "sums below 2^63");
    let largest = Below { entries: SUM_MAX, bytes: SUM_MAX, linked: SUM_MAX };
    Node::List { level: 17, parts: vec![part(b'a', SUM_MAX, largest)] }.check().unwrap();
}

#[test]
fn senseless_parts_are_refused() {
    let list = |part| Node::List { level: 17, parts: vec![part] };
    let links = |part| Node::List { level: 25, parts: vec![part] };
    for list in [list(Part { child: child(0, 1), ..part(1, 1, b"a") }), links(links_part(0, 1, 1))] {
        assert_refused(&list, "the fingerprint of a part");
    }
    for list in [list(part(1, 0, b"a")), links(links_part(1, 0, 1)), links(links_part(1, SUM_MAX + 1, 1))] {
        assert_refused(&list, "a part of at least one row");
    }
    assert_refused(&list(Part { child: child(1, 12), ..part(1, 10, b"a") }), "at least as many entries as rows");
    let below = Below { entries: 5, bytes: 0, linked: 6 };
    assert_refused(&list(Part { below, ..part(1, 1, b"a") }), "at most as many entries with links");
    for key in [&[0; 8][..], &[0, 1], &[0, 0, 0, 0, 0, 0, 0, 0, 1], &[0x80, 0, 0, 0, 0, 0, 0, 0]] {
        let part = Part { last_key: key.to_vec(), ..links_part(1, 1, 1) };
        assert_refused(&links(part), "the number of a link");
    }
    for below in [Below { entries: 1, bytes: 0, linked: 0 }, Below { entries: 0, bytes: 1, linked: 0 }] {
        assert_refused(&links(Part { below, ..links_part(1, 1, 1) }), "no sums over links");
    }
}

#[test]
fn senseless_links_are_refused() {
    for number in [0, SUM_MAX + 1] {
        assert_refused(&Node::Links(vec![link(number, b"a")]), "the number of a link");
        assert_refused(&Node::Links(vec![Link { names: number, ..link(1, b"a") }]), "at least one name");
    }
    assert_refused(&Node::Links(vec![link(1, b"")]), "the path of a link");
    for path in [&b"/a"[..], b"a/", b"a//b", b"../a", b"a/.", b"a/\0"] {
        assert_refused(&Node::Links(vec![link(1, path)]), "a name of 1 to 255 bytes");
    }
    let long = vec![vec![b'x'; 255]; 4097].join(&b'/');
    let long = Node::Links(vec![link(1, &long)]);
    assert!(message(long.check()).contains("the path of a link"));
    assert!(message(Node::decode(&unchecked(&long))).contains("a path of at most 1 MiB"));
}

#[test]
fn senseless_tops_are_refused() {
    let refused = |top: Top, reason: &str| assert_refused(&Node::Top(Box::new(top)), reason);
    let Node::Top(top) = sample_top() else { unreachable!() };
    let links = |child| Top { links: Some((24, child)), ..(*top).clone() };
    refused(Top { entry: Entry { name: b"a".to_vec(), ..top.entry.clone() }, ..(*top).clone() }, "without a name");
    refused(Top { entry: Entry { mode: 0o10000, ..top.entry.clone() }, ..(*top).clone() }, "a mode of at most 7777");
    refused(links(child(0, 1)), "the fingerprint of links");
    refused(links(child(9, 0)), "at most a link for each entry");
    refused(links(child(9, 3)), "at most a link for each entry");
    refused(Top { links: None, ..(*top).clone() }, "links of the entries with links");
    refused(Top { entry: fifo(b""), links: Some((24, child(9, 1))) }, "at most a link for each entry");
}

#[test]
fn senseless_attributes_of_entries_are_refused() {
    let refused = |attributes, reason: &str| refused_entry(Entry { attributes, ..fifo(b"a") }, reason);
    refused(Attributes::Inline(b"\x01b\0\x01a\0".to_vec()), "ascending names");
    refused(Attributes::Inline(b"\x01b".to_vec()), "1 bytes");
    refused(Attributes::Stored(Root::Empty), "stored attributes");
    refused(Attributes::Stored(Root::Zero { len_bytes: 300 }), "stored attributes");
    refused(Attributes::Stored(Root::Tree { level: 16, child: child(1, 300) }), "stored attributes");
    refused(Attributes::Stored(Root::Chunk(child(0, 300))), "zeros");
    refused(Attributes::Stored(Root::Chunk(child(1, 256))), "more than 256 bytes of attributes");
    refused(Attributes::Stored(Root::Node { level: 0, child: child(1, 256) }), "more than 256 bytes of attributes");
    let set = |value_bytes| encode_attributes(&[(b"a".to_vec(), vec![0; value_bytes])]);
    let (largest, long) = (set(252), set(253));
    assert_eq!((largest.len(), long.len()), (256, 257));
    let with = |bytes| Entry { attributes: Attributes::Inline(bytes), ..fifo(b"a") };
    assert_eq!(Node::decode(&unchecked(&Node::Leaf(vec![with(largest.clone())]))).unwrap().rows(), 1);
    assert!(message(Node::Leaf(vec![with(long.clone())]).check()).contains("at most 256 bytes of attributes"));
    refused_entry_bytes(with(long), "at most 256");
}
