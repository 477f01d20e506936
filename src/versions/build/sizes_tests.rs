//! Sizes of leaves and lists: what each costs in bytes, counted and not timed.

use std::collections::HashSet;
use std::sync::Arc;

use dedupfs_content::{AnyView, StreamId};
use dedupfs_store::Fingerprint;
use dedupfs_store::node::Node;
use dedupfs_store::recipe::{Reference, Root};
use dedupfs_store::tree::Content;

use super::cut::{CutRule, CutRules};
use super::{EntryAttributes, TreeBuilder};
use crate::Pool;
use crate::tests::versions::site::{formatted, open};

/// Bytes that an index takes for a node: a cell, a count and a filter, in tables that are not quite full.
const INDEX_BYTES: u64 = 70;
/// Later versions for each first one. A version stays for a month or longer.
const VERSIONS: u64 = 30;
/// Files of a tree.
const FILES: u64 = 20_000;

/// What a rule costs for one shape of a tree.
struct Cost {
    first_bytes: u64,
    evenly_bytes: u64,
    together_bytes: u64,
    nodes: u64,
}

impl Cost {
    /// A first version, and later ones of which half have changes evenly and half together.
    fn all(&self) -> u64 {
        self.first_bytes + VERSIONS * (self.evenly_bytes + self.together_bytes) / 2
    }
}

/// Builds trees, and counts the bytes of nodes that are new.
struct Site {
    pool: Arc<Pool>,
    rules: CutRules,
    per_directory: u64,
    known: HashSet<Fingerprint>,
}

impl Site {
    /// Builds a tree in which a file has the state that `state` gives it. Returns the bytes of its new nodes.
    fn new_bytes(&mut self, state: impl Fn(u64) -> u64) -> u64 {
        let mut tree = TreeBuilder::new(&self.pool.core().dedup, StreamId(1));
        tree.rules = self.rules;
        tree.begin_directory(b"");
        for number in 0..FILES {
            if number.is_multiple_of(self.per_directory) {
                tree.begin_directory(format!("d{number:06}").as_bytes());
            }
            // As many bytes that look random as the root of a small file has.
            let root = blake3::hash(&[number.to_le_bytes(), state(number).to_le_bytes()].concat());
            let content = Content::Symlink(root.as_bytes().iter().map(|byte| byte.max(&1)).copied().collect());
            let attributes = EntryAttributes { mode: 0o644, mtime_secs: 1_700_000_000, ..EntryAttributes::default() };
            tree.add(format!("file-{number:07}.txt").as_bytes(), attributes, None, content, None).expect("adds");
            if (number + 1).is_multiple_of(self.per_directory) {
                tree.end_directory(EntryAttributes::default(), None).expect("ends");
            }
        }
        let built = tree.finish(EntryAttributes::default()).expect("finishes");
        let Root::Tree { level, child } = built.root else { panic!("a tree") };
        self.count(Reference::Node { level, child })
    }

    fn count(&mut self, reference: Reference) -> u64 {
        let Reference::Node { child, .. } = reference else { return 0 };
        if !self.known.insert(child.fingerprint) {
            return 0;
        }
        let node = self.pool.core().dedup.nodes().node_of(&child.fingerprint, child.hint).expect("reads");
        let AnyView::Tree(tree) = &node else { panic!("a tree node") };
        let own = INDEX_BYTES + Node::Tree((**tree).clone()).encode().len() as u64;
        own + node.references().into_iter().map(|reference| self.count(reference)).sum::<u64>()
    }
}

fn cost(rules: CutRules, per_directory: u64) -> Cost {
    let pool = open(&formatted());
    let mut site = Site { pool, rules, per_directory, known: HashSet::new() };
    let first_bytes = site.new_bytes(|_| 0);
    let nodes = site.known.len() as u64;
    let evenly_bytes = site.new_bytes(|number| u64::from(number % 100 == 50));
    let together_bytes = site.new_bytes(|number| u64::from(number * 100 / FILES == 50));
    Cost { first_bytes, evenly_bytes, together_bytes, nodes }
}

/// Prints the table of `docs/figures.md` with `--nocapture`.
#[test]
fn no_other_rules_cost_much_less_than_the_chosen_ones() {
    let leaves = [(2, 5, 16), (3, 7, 24), (4, 10, 32), (6, 14, 48), (8, 20, 64), (12, 32, 96), (24, 64, 192)];
    let lists = [(4, 12, 48), (8, 24, 96), (16, 48, 192)];
    let rule = |(min, mean, max), seed| CutRule { min, mean, max, seed };
    let mut least = u64::MAX;
    for (leaf, list) in leaves.into_iter().flat_map(|leaf| lists.map(|list| (leaf, list))) {
        let rules = CutRules { leaf: rule(leaf, 1), list: rule(list, 2) };
        least = least.min(all_shapes(&format!("{leaf:?} | {list:?}"), rules));
    }
    let chosen = all_shapes("chosen | chosen", CutRules::CHOSEN);
    assert!(chosen * 100 <= least * 103, "{chosen} bytes, and others take {least}");
}

fn all_shapes(title: &str, rules: CutRules) -> u64 {
    let of_shape = |per_directory| {
        let cost = cost(rules, per_directory);
        let Cost { first_bytes, evenly_bytes, together_bytes, nodes } = cost;
        eprintln!("| {per_directory} | {title} | {first_bytes} | {evenly_bytes} | {together_bytes} | {nodes} |");
        cost.all()
    };
    [10, 100, 10_000].map(of_shape).iter().sum()
}
