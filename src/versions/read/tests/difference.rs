//! The difference of two trees is what a comparison of all their entries gives, whatever the pages are.

use dedupfs_store::tree::Entry;
use proptest::prelude::*;

use super::super::FrozenTree;
use super::super::difference::{Change, ChangeKind, difference};
use super::random::{Item, Random, Tree, build, random_tree, sizes};
use crate::Pool;
use crate::tests::versions::site::{formatted, open};
use crate::versions::build::Built;
use dedupfs_base::{EngineError, shown};

const VERSION: u64 = dedupfs_namespace::FIRST_VERSION * 5;

fn top(pool: &Pool, built: &Built) -> Entry {
    let tree = FrozenTree::open(pool.core().dedup.nodes(), VERSION, &built.root).expect("opens");
    tree.uppermost().expect("has a top").entry
}

/// All pages of a difference, of `limit` changes each.
fn pages(pool: &Pool, before: &Entry, after: &Entry, limit: usize) -> Vec<Change> {
    let (mut changes, mut resume) = (Vec::new(), Vec::new());
    loop {
        let page = difference(pool.core().dedup.nodes(), [before, after], &resume, limit, &|| false).expect("compares");
        assert!(page.changes.len() <= limit);
        changes.extend(page.changes);
        match page.next {
            Some(next) => resume = next,
            None => return changes,
        }
    }
}

fn mode(time: i64) -> i64 {
    time % 0o7777
}

fn entries(item: &Item) -> u64 {
    match item {
        Item::Directory(tree) => 1 + tree.values().map(|(_, item)| entries(item)).sum::<u64>(),
        _ => 1,
    }
}

/// Compares all entries of two trees.
fn expected(before: &Tree, after: &Tree, path: &[u8], found: &mut Vec<(ChangeKind, String, u64)>) {
    let mut names: Vec<&Vec<u8>> = before.keys().chain(after.keys()).collect();
    names.sort();
    names.dedup();
    for name in names {
        let path = [path, name].concat();
        let own = shown(&path);
        let (one, other) = match (before.get(name), after.get(name)) {
            (Some(one), Some(other)) => (one, other),
            (Some((_, item)), None) => {
                found.push((ChangeKind::Removed, own, entries(item)));
                continue;
            }
            (_, item) => {
                found.push((ChangeKind::Added, own, item.map_or(0, |(_, item)| entries(item))));
                continue;
            }
        };
        let is_linked = |item: &Item| matches!(item, Item::Linked(_));
        let has_same_attributes = match (&one.1, &other.1) {
            (Item::Directory(_), Item::Directory(_)) => mode(one.0) == mode(other.0),
            (item, another) => one.0 == other.0 && is_linked(item) == is_linked(another),
        };
        let attributes = (ChangeKind::Attributes, own.clone(), 1);
        match (&one.1, &other.1) {
            (Item::Directory(below), Item::Directory(other)) => {
                found.extend((!has_same_attributes).then_some(attributes));
                expected(below, other, &[&path[..], b"/"].concat(), found);
            }
            (Item::Zeros(len), Item::Zeros(other)) if len != other => found.push((ChangeKind::Content, own, 1)),
            (Item::Zeros(_), Item::Linked(_)) | (Item::Linked(_), Item::Zeros(_)) => {
                found.push((ChangeKind::Content, own, 1));
            }
            (Item::Symlink(target), Item::Symlink(other)) if target != other => {
                found.push((ChangeKind::Content, own, 1));
            }
            (Item::Zeros(_), Item::Zeros(_))
            | (Item::Linked(_), Item::Linked(_))
            | (Item::Symlink(_), Item::Symlink(_))
            | (Item::Fifo, Item::Fifo) => found.extend((!has_same_attributes).then_some(attributes)),
            _ => found.push((ChangeKind::Kind, own, 1)),
        }
    }
}

/// Changes a tree at one place.
fn mutate(tree: &mut Tree, random: &mut Random, number: usize) {
    let names: Vec<Vec<u8>> = tree.keys().cloned().collect();
    if names.is_empty() || random.below(4) == 0 {
        let name = random.name(number);
        if !matches!(&*name, b"." | b"..") {
            let mut count = 1 << 20;
            let added = match random.below(3) {
                0 => Item::Directory(random_tree(random, 30, 3, &mut count)),
                1 => Item::Zeros(random.below(5) + 1),
                _ => Item::Fifo,
            };
            tree.insert(name, (number as i64, added));
        }
        return;
    }
    let name = &names[random.below(names.len() as u64) as usize];
    if random.below(4) == 0 {
        tree.remove(name);
        return;
    }
    let Some((time, item)) = tree.get_mut(name) else { return };
    match item {
        Item::Directory(below) if random.below(4) != 0 => mutate(below, random, number),
        Item::Zeros(len_bytes) if random.below(2) == 0 => *len_bytes += 1,
        _ if random.below(2) == 0 => *time += 1 + random.below(1 << 30) as i64,
        item => *item = Item::Symlink(number.to_string().into_bytes()),
    }
}

fn told(changes: &[Change]) -> Vec<(ChangeKind, String, u64)> {
    changes.iter().map(|change| (change.change, change.path.clone(), change.entries)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, max_shrink_iters: 60, ..ProptestConfig::default() })]

    #[test]
    fn a_difference_is_what_a_comparison_of_all_entries_gives(
        seed in 1_u64..,
        entries in sizes(),
        changes in prop_oneof![Just(0_usize), 1_usize..4, 4_usize..120],
        limit in 1_usize..9,
    ) {
        let mut random = Random(seed);
        let before = random_tree(&mut random, entries, 0, &mut 0);
        let mut after = before.clone();
        (0..changes).for_each(|number| mutate(&mut after, &mut random, number));
        let pool = open(&formatted());
        let (built, other) = (build(&pool, &before), build(&pool, &after));
        let (one, other) = (top(&pool, &built), top(&pool, &other));
        let mut all = Vec::new();
        expected(&before, &after, b"", &mut all);
        let found = pages(&pool, &one, &other, usize::MAX);
        prop_assert_eq!(told(&found), all.clone());
        prop_assert_eq!(pages(&pool, &one, &other, limit), found);
        prop_assert_eq!(pages(&pool, &other, &one, usize::MAX).len(), all.len());
    }
}

fn fifos(count: i64) -> Tree {
    (0..count).map(|number| (format!("file-{number:06}").into_bytes(), (number, Item::Fifo))).collect()
}

#[test]
fn a_change_in_a_large_directory_opens_a_few_nodes() {
    let pool = open(&formatted());
    let mut tree = fifos(20_000);
    let before = top(&pool, &build(&pool, &tree));
    tree.insert(b"file-010000x".to_vec(), (1, Item::Fifo));
    tree.remove(&b"file-003000"[..]);
    let after = top(&pool, &build(&pool, &tree));
    let page = difference(pool.core().dedup.nodes(), [&before, &after], b"", 10, &|| false).expect("compares");
    assert_eq!(page.changes.len(), 2);
    // Two lists and their parts on the way to two places, of about 2000 leaves.
    assert!(page.opened_nodes <= 40, "{} nodes", page.opened_nodes);
}

#[test]
fn a_place_that_is_not_there_and_a_comparison_that_is_ended_are_told() {
    let pool = open(&formatted());
    let (before, after) = (top(&pool, &build(&pool, &fifos(3))), top(&pool, &build(&pool, &fifos(5))));
    let nodes = pool.core().dedup.nodes();
    let absent = difference(nodes, [&before, &after], b"no/file", 10, &|| false);
    assert!(matches!(absent, Err(EngineError::Invalid(_))), "{absent:?}");
    let ended = difference(nodes, [&before, &after], b"", 10, &|| true);
    assert!(matches!(ended, Err(EngineError::Ended(_))), "{ended:?}");
    let file = Entry { content: dedupfs_store::tree::Content::Fifo, ..before.clone() };
    difference(nodes, [&before, &file], b"", 10, &|| false).expect_err("is no directory");
}
