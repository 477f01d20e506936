//! Trees whose nodes are sound, each by itself, but lie about one another. Only somebody who makes fingerprints fit can
//! make them: bad memory while a tree is built, or an enemy.

use std::sync::Arc;

use dedupfs_base::EngineError;
use dedupfs_content::StreamId;
use dedupfs_namespace::{FIRST_LINKED_PLACE, FIRST_VERSION};
use dedupfs_store::StoreError;
use dedupfs_store::recipe::{Child, Root};
use dedupfs_store::tree::{
    Attributes, Below, Content, Directory, Entry, LEAF_LEVEL, LINKS_LEVEL, Link, Node, Part, TOP_LEVEL, Top,
};

use super::super::difference::{ChangeKind, difference};
use super::super::{Found, FrozenTree};
use crate::Pool;
use crate::tests::versions::site::{formatted, open};

const VERSION: u64 = FIRST_VERSION * 9;

fn entry(name: &str, content: Content) -> Entry {
    Entry {
        name: name.as_bytes().to_vec(),
        mode: 0o644,
        uid: 0,
        gid: 0,
        mtime_secs: 0,
        mtime_nanos: 0,
        flags: 0,
        attributes: Attributes::default(),
        link: None,
        content,
    }
}

fn fifos(names: &str) -> Node {
    Node::Leaf(names.chars().map(|name| entry(&name.to_string(), Content::Fifo)).collect())
}

fn linked(name: &str, number: u64) -> Entry {
    Entry { link: Some(number), ..entry(name, Content::Fifo) }
}

/// A lie in words, and how it is told.
type Lie<T> = (&'static str, fn(&mut T));

struct Site(Arc<Pool>);

impl Site {
    fn new() -> Self {
        Self(open(&formatted()))
    }

    /// Stores a node, and returns what a parent that does not lie says of it.
    fn part(&self, node: &Node) -> Part {
        let dedup = &self.0.core().dedup;
        let (child, _pin) = dedup.store_tree_node(&dedup.enter(), StreamId(1), node.clone()).expect("stores");
        Part { child, last_key: node.last_key(), below: node.below().expect("has sums") }
    }

    fn directory(&self, node: &Node) -> Directory {
        let Part { child, below, .. } = self.part(node);
        let subdirectories = match node {
            Node::Leaf(entries) => entries.iter().filter(|entry| entry.is_directory()).count() as u64,
            _ => 0,
        };
        Directory { root: Some((node.level(), child)), subdirectories, below }
    }

    fn top(&self, directory: Directory, links: Option<(u8, Child)>) -> Root {
        let top = Node::Top(Box::new(Top { entry: entry("", Content::Directory(directory)), links }));
        Root::Tree { level: TOP_LEVEL, child: self.part(&top).child }
    }

    fn open(&self, root: &Root) -> dedupfs_base::Result<FrozenTree<'_>> {
        FrozenTree::open(self.0.core().dedup.nodes(), VERSION, root)
    }

    /// Reads all of a directory in every way. Returns the names, or the first error.
    fn names(&self, directory: Directory, links: Option<(u8, Child)>) -> Result<Vec<String>, EngineError> {
        let root = self.top(directory, links);
        let tree = self.open(&root)?;
        let top = tree.uppermost()?;
        // A page ends before damage.
        let mut listed = Vec::new();
        loop {
            let page = tree.list(&top, listed.len() as u64, 1000)?;
            assert!(listed.len() < 1000, "a listing without an end");
            if page.is_empty() {
                break;
            }
            listed.extend(page);
        }
        let name = |found: &Found| String::from_utf8(found.entry.name.clone()).expect("is text");
        for found in &listed {
            assert_eq!(name(&tree.lookup(&top, &found.entry.name)?), name(found));
            assert_eq!(tree.find(found.ino)?.ino, found.ino);
        }
        Ok(listed.iter().map(name).collect())
    }
}

fn assert_corrupt<T: std::fmt::Debug>(outcome: Result<T, EngineError>, lie: &str) {
    let is_corrupt = matches!(outcome, Err(EngineError::Store(StoreError::Corrupt { .. })));
    assert!(is_corrupt, "{lie}: {outcome:?}");
}

/// A list of two leaves.
fn list(site: &Site) -> Vec<Part> {
    vec![site.part(&fifos("bdf")), site.part(&fifos("hjl"))]
}

fn list_of(parts: &[Part]) -> Node {
    Node::List { level: LEAF_LEVEL + 1, parts: parts.to_vec() }
}

#[test]
fn a_tree_that_does_not_lie_is_read() {
    let site = Site::new();
    let names = site.names(site.directory(&list_of(&list(&site))), None).expect("reads");
    assert_eq!(names.concat(), "bdfhjl");
}

#[test]
fn a_list_that_lies_about_a_child_is_damage() {
    let site = Site::new();
    let lies: [Lie<Vec<Part>>; 9] = [
        ("more entries", |parts| parts[0].below.entries += 1),
        ("entries of another child", |parts| {
            parts[0].below.entries += 1;
            parts[1].below.entries += 5;
        }),
        ("bytes", |parts| parts[1].below.bytes += 1),
        ("entries with links", |parts| parts[1].below.linked += 1),
        ("a later last name", |parts| parts[0].last_key = b"g".to_vec()),
        ("an earlier last name", |parts| parts[0].last_key = b"e".to_vec()),
        ("an end behind the end", |parts| parts[1].last_key = b"z".to_vec()),
        ("fewer rows", |parts| parts[0].child.len_bytes -= 1),
        ("more rows", |parts| {
            parts[1].child.len_bytes += 1;
            parts[1].below.entries += 1;
        }),
    ];
    for (lie, tell) in lies {
        let mut parts = list(&site);
        tell(&mut parts);
        let directory = site.directory(&list_of(&parts));
        // A top has links if entries have them.
        let links = Node::Links(vec![Link { number: 5, names: 1, path: b"b".to_vec() }]);
        let links = (directory.below.linked > 0).then(|| (LINKS_LEVEL, site.part(&links).child));
        assert_corrupt(site.names(directory, links), lie);
    }
}

#[test]
fn a_lie_is_found_by_whichever_way_leads_through_it() {
    let site = Site::new();
    let mut parts = list(&site);
    parts[1].below.entries += 1;
    let root = site.top(site.directory(&list_of(&parts)), None);
    let tree = site.open(&root).expect("opens");
    let top = tree.uppermost().expect("has a top");
    assert_eq!(tree.find(VERSION + 3).expect("is before the lie").entry.name, b"f");
    assert_eq!(tree.list(&top, 0, 3).expect("is before the lie").len(), 3);
    (4..=7).for_each(|place| assert_corrupt(tree.find(VERSION + place), "a number"));
    (3..6).for_each(|row| assert_corrupt(tree.list(&top, row, 1), "a row"));
    for name in ["g", "h", "i", "l"] {
        assert_corrupt(tree.lookup(&top, name.as_bytes()), "a name");
    }
}

#[test]
fn regression_parts_whose_names_overlap_are_damage() {
    let site = Site::new();
    for (first, second) in [("bdf", "chj"), ("bdf", "fhj"), ("bdf", "abz")] {
        let parts = [site.part(&fifos(first)), site.part(&fifos(second))];
        assert_corrupt(site.names(site.directory(&list_of(&parts)), None), second);
        // The same through a list more.
        let leaves = [site.part(&fifos("A")), site.part(&fifos("a"))];
        let lists = [&leaves[..], &parts[1..]].map(list_of);
        if second == "abz" {
            let parts = lists.map(|list| site.part(&list)).to_vec();
            let upper = Node::List { level: LEAF_LEVEL + 2, parts };
            assert_corrupt(site.names(site.directory(&upper), None), "through two lists");
        }
    }
}

/// Else it would miss names.
#[test]
fn a_comparison_tells_of_a_list_that_lies() {
    let site = Site::new();
    let mut lying = list(&site);
    lying[1].below.bytes += 1;
    let overlapping = vec![site.part(&fifos("bdf")), site.part(&fifos("chj"))];
    let top = |parts: &[Part]| entry("", Content::Directory(site.directory(&list_of(parts))));
    for parts in [lying, overlapping] {
        // Of equal parts none is opened, so the other side is empty.
        let (empty, lie) = (entry("", Content::Directory(Directory::default())), top(&parts));
        for pair in [[&empty, &lie], [&lie, &empty]] {
            let page = difference(site.0.core().dedup.nodes(), pair, b"", 100, &|| false).expect("compares");
            assert!(page.changes.iter().any(|change| change.change == ChangeKind::Unreadable), "{page:?}");
        }
    }
}

#[test]
fn a_directory_whose_counts_lie_is_damage() {
    let site = Site::new();
    for node in [fifos("bdf"), list_of(&list(&site))] {
        let lies: [Lie<Directory>; 6] = [
            ("more entries", |directory| directory.below.entries += 1),
            ("bytes", |directory| directory.below.bytes += 7),
            ("a level more", |directory| {
                directory.root = directory.root.map(|(level, child)| (level + 1, child));
            }),
            ("fewer rows", |directory| {
                directory.root = directory.root.map(|(level, child)| (level, Child { len_bytes: 2, ..child }));
            }),
            ("a node that is not there", |directory| {
                let zeros = |child: Child| Child { fingerprint: dedupfs_store::Fingerprint([1; 32]), ..child };
                directory.root = directory.root.map(|(level, child)| (level, zeros(child)));
            }),
            ("rows and entries more", |directory| {
                directory.below.entries += 1;
                directory.root =
                    directory.root.map(|(level, child)| (level, Child { len_bytes: child.len_bytes + 1, ..child }));
            }),
        ];
        for (lie, tell) in lies {
            let mut directory = site.directory(&node);
            tell(&mut directory);
            assert_corrupt(site.names(directory, None), lie);
            // The same below the top.
            let above = Node::Leaf(vec![entry("below", Content::Directory(directory))]);
            let root = site.top(site.directory(&above), None);
            let tree = site.open(&root).expect("opens");
            let below = tree.lookup(&tree.uppermost().expect("has a top"), b"below").expect("is found");
            assert_corrupt(tree.list(&below, 0, 10), lie);
            assert_corrupt(tree.lookup(&below, b"b"), lie);
            assert_corrupt(tree.find(VERSION + 2), lie);
        }
    }
    let mut directory = site.directory(&fifos("bdf"));
    directory.subdirectories = 1;
    assert_corrupt(site.names(directory, None), "regression: a subdirectory that is none");
}

#[test]
fn regression_a_tree_of_more_entries_than_inode_numbers_is_damage() {
    let site = Site::new();
    let mut huge = site.directory(&fifos("b"));
    for entries in [FIRST_LINKED_PLACE, FIRST_VERSION, 1 << 62] {
        huge.below.entries = entries;
        let leaf = Node::Leaf(vec![entry("huge", Content::Directory(huge)), entry("next", Content::Fifo)]);
        assert_corrupt(site.open(&site.top(site.directory(&leaf), None)).map(drop), "numbers of another version");
    }
    // The last number is one.
    huge.below.entries = FIRST_LINKED_PLACE - 3;
    let leaf = Node::Leaf(vec![entry("huge", Content::Directory(huge)), entry("next", Content::Fifo)]);
    let root = site.top(site.directory(&leaf), None);
    let tree = site.open(&root).expect("opens");
    assert_eq!(tree.find(VERSION + FIRST_LINKED_PLACE - 1).expect("is found").entry.name, b"next");
    assert_corrupt(tree.find(VERSION + 2), "the directory lies about what is below");
}

#[test]
fn what_is_no_tree_is_damage() {
    let site = Site::new();
    let leaf = site.part(&fifos("bdf")).child;
    let roots = [
        Root::Empty,
        Root::Zero { len_bytes: 5 },
        Root::Tree { level: LEAF_LEVEL, child: leaf },
        Root::Tree { level: TOP_LEVEL, child: leaf },
        Root::Node { level: 0, child: leaf },
    ];
    roots.iter().for_each(|root| assert_corrupt(site.open(root).map(drop), "no top"));
}

/// A tree of `a` and `b`, which are one file, and `c`, which is another, with these links.
fn tree_with_links(site: &Site, entries: &[Entry], links: &Node) -> Result<Vec<String>, EngineError> {
    let leaf = Node::Leaf(entries.to_vec());
    site.names(site.directory(&leaf), Some((links.level(), site.part(links).child)))
}

#[test]
fn regression_links_that_lie_are_damage() {
    let site = Site::new();
    let link = |number: u64, path: &str| Link { number, names: 2, path: path.as_bytes().to_vec() };
    let entries = [linked("a", 5), linked("b", 5), entry("c", Content::Fifo), linked("d", 9)];
    let links = |links: &[Link]| Node::Links(links.to_vec());
    let names = tree_with_links(&site, &entries, &links(&[link(5, "a"), link(9, "d")]));
    assert_eq!(names.expect("reads").concat(), "abcd");
    for (lie, told) in [
        ("no link of an entry", vec![link(5, "a")]),
        ("the path of another link", vec![link(5, "d"), link(9, "d")]),
        ("the path of a file with one name", vec![link(5, "c"), link(9, "d")]),
        ("a path to nothing", vec![link(5, "x"), link(9, "d")]),
        ("a path through a file", vec![link(5, "a/b"), link(9, "d")]),
    ] {
        assert_corrupt(tree_with_links(&site, &entries, &links(&told)), lie);
    }
    // A number that is too large is one of another version.
    let far = FIRST_LINKED_PLACE + 5;
    let lie = tree_with_links(&site, &[linked("a", far)], &links(&[link(far, "a")]));
    assert_corrupt(lie, "a number of another version");
}

#[test]
fn regression_a_list_of_links_that_lies_is_damage() {
    let site = Site::new();
    let link = |number: u64, path: &str| Link { number, names: 1, path: path.as_bytes().to_vec() };
    let entries = [linked("a", 5), linked("b", 7), linked("c", 9), linked("d", 11)];
    let leaves = [[link(5, "a"), link(7, "b")], [link(9, "c"), link(11, "d")]];
    let key = |number: u64| number.to_be_bytes().to_vec();
    let told = |tell: &dyn Fn(&mut Vec<Part>)| {
        let mut parts: Vec<Part> = leaves.iter().map(|links| site.part(&Node::Links(links.to_vec()))).collect();
        tell(&mut parts);
        tree_with_links(&site, &entries, &Node::List { level: LINKS_LEVEL + 1, parts })
    };
    assert_eq!(told(&|_| ()).expect("reads").concat(), "abcd");
    assert_corrupt(told(&|parts| parts[0].last_key = key(8)), "a later last number");
    assert_corrupt(told(&|parts| parts[0].last_key = key(6)), "an earlier last number");
    assert_corrupt(told(&|parts| parts[1].last_key = key(20)), "an end behind the end");
    assert_corrupt(told(&|parts| parts[0].child.len_bytes = 1), "fewer links");
    assert_corrupt(
        told(&|parts| parts[1] = site.part(&Node::Links(vec![link(6, "c"), link(11, "d")]))),
        "numbers that overlap",
    );
    assert_corrupt(
        told(&|parts| parts[1] = Part { last_key: key(11), below: Below::default(), ..site.part(&fifos("bd")) }),
        "no links",
    );
}
