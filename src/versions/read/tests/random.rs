//! Random trees, built and read.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use dedupfs_content::StreamId;
use dedupfs_namespace::{FIRST_LINKED_PLACE, FIRST_VERSION};
use dedupfs_store::recipe::Root;
use dedupfs_store::tree::{Content, LEAF_LEVEL};
use proptest::prelude::*;

use super::super::{Found, FrozenTree};
use crate::Pool;
use crate::tests::versions::site::{formatted, open};
use crate::versions::build::{Built, EntryAttributes, TreeBuilder};
use dedupfs_base::EngineError;

const VERSION: u64 = FIRST_VERSION * 3;
/// Most entries of a tree of more than one large directory.
const ENTRIES_MAX: usize = 3200;

#[derive(Clone, Debug)]
pub(super) enum Item {
    Zeros(u64),
    Fifo,
    Symlink(Vec<u8>),
    /// A name of a file that has several.
    Linked(u64),
    Directory(Tree),
}

/// An entry is told from all others by its time.
pub(super) type Tree = BTreeMap<Vec<u8>, (i64, Item)>;

pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) % bound
    }

    /// Names are long or short, alike or not, and of any bytes that a name may have.
    pub(super) fn name(&mut self, number: usize) -> Vec<u8> {
        let any = |random: &mut Self| match random.below(255) as u8 + 1 {
            b'/' => b'0',
            byte => byte,
        };
        match self.below(8) {
            0..=2 => format!("file-{number:05}").into_bytes(),
            3 => format!("{number}").into_bytes(),
            4 => {
                let (len, byte) = (1 + self.below(255) as usize, any(self));
                vec![byte; len]
            }
            5 => [vec![b'x'; 250], number.to_string().into_bytes()].concat(),
            _ => {
                let len = 1 + self.below(255);
                (0..len).map(|_| any(self)).collect()
            }
        }
    }
}

pub(super) fn random_tree(random: &mut Random, entries: usize, depth: usize, count: &mut i64) -> Tree {
    let mut tree = Tree::new();
    for number in 0..entries {
        let name = random.name(number);
        if matches!(&*name, b"." | b"..") || *count >= ENTRIES_MAX as i64 {
            continue;
        }
        *count += 1;
        let own = *count;
        let item = match random.below(40) {
            0..=1 if depth < 5 => {
                let most = [1, 3, 40, 400][random.below(4) as usize];
                let entries = random.below(most) as usize;
                Item::Directory(random_tree(random, entries, depth + 1, count))
            }
            2..=4 => Item::Linked(random.below(6)),
            5..=20 => Item::Zeros(1 + random.below(1 << 40)),
            21 => Item::Symlink(name.clone()),
            _ => Item::Fifo,
        };
        tree.insert(name, (own, item));
    }
    tree
}

fn attributes(time: i64) -> EntryAttributes {
    EntryAttributes { mode: (time % 0o7777) as u16, mtime_secs: time, ..EntryAttributes::default() }
}

/// The inode number of a file with several names in one of the sources.
fn ino_of(group: u64, source: u64) -> u64 {
    group.wrapping_mul(source.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
}

fn add(builder: &mut TreeBuilder<'_>, tree: &Tree, source: u64) {
    for (name, (time, item)) in tree {
        let (file, content) = match item {
            Item::Directory(below) => {
                builder.begin_directory(name);
                add(builder, below, source);
                builder.end_directory(attributes(*time), None).expect("ends");
                continue;
            }
            Item::Zeros(len_bytes) => {
                (None, Content::File { root: Root::Zero { len_bytes: *len_bytes }, data_bytes: 0 })
            }
            Item::Linked(group) => {
                (Some((source, ino_of(*group, source))), Content::File { root: Root::Empty, data_bytes: 0 })
            }
            Item::Symlink(target) => (None, Content::Symlink(target.clone())),
            Item::Fifo => (None, Content::Fifo),
        };
        builder.add(name, attributes(*time), file.map(|(device, ino)| (device, ino, 0)), content, None).expect("adds");
    }
}

pub(super) fn build(pool: &Pool, tree: &Tree) -> Built {
    build_of(pool, tree, 0)
}

fn build_of(pool: &Pool, tree: &Tree, source: u64) -> Built {
    let mut builder = TreeBuilder::new(&pool.core().dedup, StreamId(1));
    builder.begin_directory(b"");
    add(&mut builder, tree, source);
    builder.finish(attributes(0)).expect("finishes")
}

/// Adds entries while there are some left to add; returns whether all were added. Directories that have not ended stay
/// open.
fn add_some(builder: &mut TreeBuilder<'_>, tree: &Tree, left: &mut usize) -> bool {
    for (name, (time, item)) in tree {
        let Some(fewer) = left.checked_sub(1) else { return false };
        *left = fewer;
        match item {
            Item::Directory(below) => {
                builder.begin_directory(name);
                if !add_some(builder, below, left) {
                    return false;
                }
                builder.end_directory(attributes(*time), None).expect("ends");
            }
            item => add(builder, &Tree::from([(name.clone(), (*time, item.clone()))]), 0),
        }
    }
    true
}

/// A tree of the first entries has what ending all its directories behind them gives, and the builder goes on as if
/// nothing had been.
#[test]
fn a_tree_so_far_is_the_beginning_of_the_tree() {
    let pool = open(&formatted());
    for seed in 1..30 {
        let (mut random, mut count) = (Random(seed * 0x9e37_79b9), 0);
        let tree = random_tree(&mut random, 60, 0, &mut count);
        let whole = build(&pool, &tree);
        let mut entries = random.below(5) as usize;
        while entries < count as usize {
            let begun = || {
                let mut builder = TreeBuilder::new(&pool.core().dedup, StreamId(1));
                builder.begin_directory(b"");
                add_some(&mut builder, &tree, &mut entries.clone());
                builder
            };
            let open_attributes = attributes(7);
            let mut expected = begun();
            while expected.depth() > 1 {
                expected.end_directory(open_attributes.clone(), None).expect("ends");
            }
            let expected = expected.finish(open_attributes.clone()).expect("finishes");
            let mut builder = begun();
            for _ in 0..2 {
                let so_far = builder.so_far(&open_attributes).expect("builds");
                assert_eq!((so_far.root, so_far.totals), (expected.root, expected.totals), "{entries} of seed {seed}");
            }
            entries += 1 + random.below(200) as usize;
        }
        // The builder that is asked at each entry of the uppermost directory ends as the other does.
        let mut builder = TreeBuilder::new(&pool.core().dedup, StreamId(1));
        builder.begin_directory(b"");
        for (name, item) in &tree {
            add(&mut builder, &Tree::from([(name.clone(), item.clone())]), 0);
            builder.so_far(&attributes(7)).expect("builds");
        }
        let built = builder.finish(attributes(0)).expect("finishes");
        assert_eq!((built.root, built.totals), (whole.root, whole.totals), "seed {seed}");
    }
}

fn nodes_stored(pool: &Pool) -> u64 {
    pool.core().dedup.stats().nodes_stored
}

/// Entries in the order of the walk: the place of one is its position.
struct Expected<'t> {
    /// Time, directory, and number of names if it has several.
    places: Vec<(i64, u64, Option<u64>)>,
    directories: Vec<(u64, &'t Tree)>,
}

fn expected(tree: &Tree) -> Expected<'_> {
    fn names(tree: &Tree, count: &mut HashMap<u64, u64>) {
        for (_, item) in tree.values() {
            match item {
                Item::Linked(group) => *count.entry(*group).or_default() += 1,
                Item::Directory(below) => names(below, count),
                _ => {}
            }
        }
    }
    fn walk<'t>(tree: &'t Tree, own: u64, names: &HashMap<u64, u64>, expected: &mut Expected<'t>) {
        expected.directories.push((own, tree));
        for (time, item) in tree.values() {
            let place = expected.places.len() as u64;
            let linked = if let Item::Linked(group) = item { Some(names[group]) } else { None };
            expected.places.push((*time, own, linked));
            if let Item::Directory(below) = item {
                walk(below, place, names, expected);
            }
        }
    }
    let mut count = HashMap::new();
    names(tree, &mut count);
    let mut expected = Expected { places: vec![(0, 0, None)], directories: Vec::new() };
    walk(tree, 0, &count, &mut expected);
    expected
}

fn is_not_found<T>(outcome: Result<T, EngineError>) -> bool {
    matches!(outcome, Err(EngineError::NotFound))
}

/// Finds every number, and none that is no number.
fn numbers_lead_to_entries(frozen: &FrozenTree<'_>, expected: &Expected<'_>) {
    for (place, (time, directory, linked)) in (0..).zip(&expected.places) {
        let found = frozen.find(VERSION + place);
        if linked.is_some() {
            assert!(is_not_found(found), "place {place} is of a file with another number");
            continue;
        }
        let found = found.unwrap_or_else(|error| panic!("place {place}: {error}"));
        assert_eq!((found.ino, found.entry.mtime_secs), (VERSION + place, *time));
        assert_eq!((found.directory, found.names), (VERSION + directory, 1));
    }
    let end = expected.places.len() as u64;
    for place in [end, end + 1, end + 77, FIRST_LINKED_PLACE - 1, FIRST_LINKED_PLACE, FIRST_VERSION - 1] {
        assert!(is_not_found(frozen.find(VERSION + place)), "place {place} of {end}");
    }
}

fn check_entry(frozen: &FrozenTree<'_>, found: &Found, directory: u64, time: i64, expected: &Expected<'_>) {
    assert_eq!((found.entry.mtime_secs, found.directory), (time, VERSION + directory));
    let place = found.ino - VERSION;
    match found.entry.link {
        None => assert_eq!(expected.places[place as usize].0, time),
        Some(number) => {
            assert_eq!(place, FIRST_LINKED_PLACE + number);
            let first = frozen.find(found.ino).expect("a linked file is found");
            assert_eq!((first.ino, first.entry.link, first.names), (found.ino, Some(number), found.names));
        }
    }
}

/// Looks every name up, names around it, and lists from every row.
fn names_lead_to_entries(frozen: &FrozenTree<'_>, expected: &Expected<'_>) {
    let names_of: HashMap<i64, u64> =
        expected.places.iter().filter_map(|(time, _, names)| Some((*time, (*names)?))).collect();
    for (place, tree) in &expected.directories {
        let directory = frozen.find(VERSION + place).expect("a directory is found");
        for (name, (time, _)) in *tree {
            let found = frozen.lookup(&directory, name).expect("a name is found");
            assert_eq!((&found.entry.name, found.names), (name, names_of.get(time).copied().unwrap_or(1)));
            check_entry(frozen, &found, *place, *time, expected);
            let mut others =
                vec![[name, &b"\x01"[..]].concat(), name[..name.len() - 1].to_vec(), name.clone(), name.clone()];
            let last = name.len() - 1;
            others[2][last] = others[2][last].wrapping_add(1);
            others[3][last] = others[3][last].wrapping_sub(1);
            others.retain(|other| !tree.contains_key(other));
            others.iter().for_each(|other| assert!(is_not_found(frozen.lookup(&directory, other))));
        }
        for other in [vec![1_u8], vec![255; 255], Vec::new()] {
            assert_eq!(frozen.lookup(&directory, &other).is_ok(), tree.contains_key(&other));
        }
        let names: Vec<&Vec<u8>> = tree.keys().collect();
        for from in 0..=names.len() + 2 {
            for limit in [0, 1, 3, 50] {
                let listed = frozen.list(&directory, from as u64, limit).expect("lists");
                let listed: Vec<&Vec<u8>> = listed.iter().map(|found| &found.entry.name).collect();
                assert_eq!(listed, names.iter().skip(from).take(limit).copied().collect::<Vec<_>>());
            }
        }
        for (found, (time, _)) in frozen.list(&directory, 0, usize::MAX).expect("lists").iter().zip(tree.values()) {
            check_entry(frozen, found, *place, *time, expected);
        }
        assert!(frozen.list(&directory, u64::MAX, usize::MAX).expect("lists").is_empty());
    }
}

/// Returns the number of nodes on the way to an entry.
fn nodes_on_way(frozen: &FrozenTree<'_>, entry: &Found) -> u64 {
    let (mut nodes, mut at) = (1, entry.directory);
    loop {
        let directory = frozen.find(at).expect("is found");
        if let Content::Directory(own) = directory.entry.content
            && let Some((level, _)) = own.root
        {
            nodes += u64::from(level - LEAF_LEVEL) + 1;
        }
        if at == VERSION {
            return nodes;
        }
        at = directory.directory;
    }
}

fn change(tree: &mut Tree, time: i64) -> bool {
    tree.values_mut().any(|(own, item)| {
        if *own == time {
            *own += 1 << 40;
            return true;
        }
        if let Item::Directory(below) = item { change(below, time) } else { false }
    })
}

fn pools() -> [Arc<Pool>; 2] {
    [open(&formatted()), open(&formatted())]
}

pub(super) fn sizes() -> impl Strategy<Value = usize> {
    prop_oneof![1 => 0_usize..3, 3 => 3_usize..40, 2 => 40_usize..400, 1 => 400_usize..3000]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, max_shrink_iters: 60, ..ProptestConfig::default() })]

    #[test]
    fn every_entry_of_a_random_tree_is_found_and_no_other(seed in 1_u64.., entries in sizes(), chosen in any::<u64>()) {
        let mut random = Random(seed);
        let mut tree = random_tree(&mut random, entries, 0, &mut 0);
        let [pool, other] = pools();
        let built = build(&pool, &tree);
        let frozen = FrozenTree::open(pool.core().dedup.nodes(), VERSION, &built.root).expect("opens");
        let expected = expected(&tree);
        prop_assert_eq!(built.totals.entries, expected.places.len() as u64 - 1);
        numbers_lead_to_entries(&frozen, &expected);
        names_lead_to_entries(&frozen, &expected);
        // Equal entries make equal trees, whatever was stored before and wherever they lie, and store nothing.
        let fingerprint = |root: &Root| root.reference().expect("a tree").fingerprint();
        let stored = nodes_stored(&pool);
        prop_assert_eq!(fingerprint(&build(&pool, &tree).root), fingerprint(&built.root));
        prop_assert_eq!(nodes_stored(&pool), stored);
        build(&other, &random_tree(&mut random, 50, 3, &mut 0));
        prop_assert_eq!(fingerprint(&build_of(&other, &tree, 3).root), fingerprint(&built.root));
        // A changed attribute changes the nodes on the way to it.
        if expected.places.len() > 1 {
            let place = 1 + chosen % (expected.places.len() as u64 - 1);
            let (time, directory, _) = expected.places[place as usize];
            let entry = Found { directory: VERSION + directory, ..frozen.uppermost().expect("has a top") };
            let most = nodes_on_way(&frozen, &entry);
            prop_assert!(change(&mut tree, time));
            let changed = build(&pool, &tree);
            prop_assert_ne!(fingerprint(&changed.root), fingerprint(&built.root));
            let new = nodes_stored(&pool) - stored;
            prop_assert!((1..=most).contains(&new), "{} nodes of at most {}", new, most);
        }
    }
}

/// A new name moves the cuts around it only.
#[test]
fn a_new_name_in_a_large_directory_stores_a_few_nodes() {
    let pool = open(&formatted());
    let mut tree = Tree::new();
    for number in 0..5000 {
        tree.insert(format!("file-{number}").into_bytes(), (number, Item::Fifo));
    }
    build(&pool, &tree);
    let (mut all, before) = (0, nodes_stored(&pool));
    for number in 0..100 {
        let stored = nodes_stored(&pool);
        tree.insert(format!("file-{}x", number * 37).into_bytes(), (number, Item::Fifo));
        build(&pool, &tree);
        let new = nodes_stored(&pool) - stored;
        assert!(new <= 16, "{new} nodes for one name");
        all += new;
    }
    assert!(all <= 700 && all == nodes_stored(&pool) - before, "{all} nodes for 100 names");
}

#[test]
fn names_that_do_not_ascend_are_refused() {
    let pool = open(&formatted());
    let mut builder = TreeBuilder::new(&pool.core().dedup, StreamId(1));
    builder.begin_directory(b"");
    builder.add(b"b", attributes(1), None, Content::Fifo, None).expect("adds");
    for name in [&b"b"[..], b"a", b""] {
        builder.add(name, attributes(1), None, Content::Fifo, None).expect_err("does not ascend");
    }
    builder.end_directory(attributes(1), None).expect_err("the uppermost directory does not end so");
}
