//! Whole nodes of each kind.

use std::collections::BTreeMap;

use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;

use super::*;
use crate::fingerprint::FINGERPRINT_BYTES;

const SOME: u64 = 1 << 40;

fn child(len_bytes: impl Strategy<Value = u64>) -> impl Strategy<Value = Child> {
    (any::<[u8; FINGERPRINT_BYTES]>(), len_bytes, any::<u64>()).prop_map(|(mut fingerprint, len_bytes, hint)| {
        fingerprint[0] |= 1; // zeros are reserved
        Child { fingerprint: Fingerprint(fingerprint), len_bytes, hint: ContainerId(hint) }
    })
}

fn root() -> impl Strategy<Value = Root> {
    prop_oneof![
        Just(Root::Empty),
        (1..SOME).prop_map(|len_bytes| Root::Zero { len_bytes }),
        child(1..SOME).prop_map(Root::Chunk),
        (0_u8..=8, child(1..SOME)).prop_map(|(level, child)| Root::Node { level, child }),
    ]
}

fn name() -> impl Strategy<Value = Vec<u8>> {
    let byte = (1_u8..).prop_map(|byte| if byte == b'/' { b'.' } else { byte });
    prop_oneof![9 => vec(byte.clone(), 1..8), 1 => vec(byte, 250..=NAME_BYTES_MAX)]
        .prop_filter("names of directories", |name| !matches!(&name[..], b"." | b".."))
}

pub(super) fn attribute_set() -> impl Strategy<Value = Vec<Attribute>> {
    let name = prop_oneof![9 => vec(1_u8.., 1..12), 1 => vec(1_u8.., 250..=255)];
    btree_map(name, vec(any::<u8>(), 0..200), 0..5).prop_map(BTreeMap::into_iter).prop_map(Iterator::collect)
}

fn attributes() -> impl Strategy<Value = Attributes> {
    let inline = attribute_set().prop_map(|set| encode_attributes(&set)).prop_map(|mut bytes| {
        if bytes.len() > ATTRIBUTES_INLINE_BYTES_MAX {
            bytes.clear();
        }
        Attributes::Inline(bytes)
    });
    let stored = ATTRIBUTES_INLINE_BYTES_MAX as u64 + 1..SOME;
    prop_oneof![
        Just(Attributes::default()),
        inline,
        child(stored.clone()).prop_map(|child| Attributes::Stored(Root::Chunk(child))),
        (0_u8..=8, child(stored)).prop_map(|(level, child)| Attributes::Stored(Root::Node { level, child })),
    ]
}

/// Sums with at least `rows` entries.
fn below(rows: u64) -> impl Strategy<Value = Below> {
    (rows..rows + SOME).prop_flat_map(|entries| {
        (0..SOME, 0..=entries).prop_map(move |(bytes, linked)| Below { entries, bytes, linked })
    })
}

fn some_directory() -> impl Strategy<Value = Directory> {
    (LEAF_LEVEL..=LIST_LEVEL_MAX, child(1..SOME)).prop_flat_map(|(level, child)| {
        let rows = child.len_bytes;
        (0..=rows, below(rows)).prop_map(move |(subdirectories, below)| Directory {
            root: Some((level, child)),
            subdirectories,
            below,
        })
    })
}

fn content() -> impl Strategy<Value = Content> {
    let file = (root(), any::<u64>()).prop_map(|(root, data_bytes)| {
        let data_bytes = data_bytes % (root.len_bytes() + 1);
        Content::File { root, data_bytes }
    });
    prop_oneof![
        4 => file,
        1 => Just(Content::Directory(Directory::default())),
        2 => some_directory().prop_map(Content::Directory),
        1 => vec(1_u8.., 1..20).prop_map(Content::Symlink),
        1 => any::<u32>().prop_map(Content::CharDevice),
        1 => any::<u32>().prop_map(Content::BlockDevice),
        1 => Just(Content::Fifo),
        1 => Just(Content::Socket),
    ]
}

/// An entry with an empty name.
fn nameless() -> impl Strategy<Value = Entry> {
    let ids = (0..=0o7777_u16, any::<u32>(), any::<u32>(), prop_oneof![Just(0), any::<u32>()]);
    let time = (any::<i64>(), 0..1_000_000_000_u32);
    (ids, time, attributes(), option::of(1..=SUM_MAX), content()).prop_map(
        |((mode, uid, gid, flags), (mtime_secs, mtime_nanos), attributes, link, content)| {
            let link = link.filter(|_| !matches!(content, Content::Directory(_)));
            Entry { name: Vec::new(), mode, uid, gid, mtime_secs, mtime_nanos, flags, attributes, link, content }
        },
    )
}

fn leaf() -> impl Strategy<Value = Node> {
    btree_map(name(), nameless(), 1..12)
        .prop_map(|entries| Node::Leaf(entries.into_iter().map(|(name, entry)| Entry { name, ..entry }).collect()))
}

fn list() -> impl Strategy<Value = Node> {
    let part = child(1..SOME).prop_flat_map(|child| below(child.len_bytes).prop_map(move |below| (child, below)));
    (LEAF_LEVEL + 1..=LIST_LEVEL_MAX, btree_map(name(), part, 1..12)).prop_map(|(level, parts)| {
        let part = |(last_key, (child, below))| Part { child, last_key, below };
        Node::List { level, parts: parts.into_iter().map(part).collect() }
    })
}

fn list_of_links() -> impl Strategy<Value = Node> {
    let parts = btree_map(1..=SUM_MAX, child(1..SOME), 1..12);
    (LINKS_LEVEL + 1..=LINKS_LEVEL_MAX, parts).prop_map(|(level, parts)| {
        let part = |(last, child): (u64, Child)| {
            let last_key = last.to_be_bytes().to_vec();
            Part { child, last_key, below: Below::default() }
        };
        Node::List { level, parts: parts.into_iter().map(part).collect() }
    })
}

fn links() -> impl Strategy<Value = Node> {
    let path = vec(name(), 1..4).prop_map(|names| names.join(&b'/'));
    btree_map(1..=SUM_MAX, (1..=SUM_MAX, path), 1..12).prop_map(|links| {
        Node::Links(links.into_iter().map(|(number, (names, path))| Link { number, names, path }).collect())
    })
}

fn top() -> impl Strategy<Value = Node> {
    (nameless(), LINKS_LEVEL..=LINKS_LEVEL_MAX, child(any::<u64>())).prop_map(|(entry, level, mut links)| {
        let linked = entry.sums().unwrap().linked;
        links.len_bytes = links.len_bytes.checked_rem(linked).unwrap_or_default() + 1;
        Node::Top(Box::new(Top { entry, links: (linked > 0).then_some((level, links)) }))
    })
}

pub(super) fn node() -> impl Strategy<Value = Node> {
    prop_oneof![4 => leaf(), 1 => list(), 1 => list_of_links(), 1 => links(), 2 => top()]
}
