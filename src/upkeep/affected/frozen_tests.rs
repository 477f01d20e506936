//! Findings in frozen trees against a walk that knows nothing of judging.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use dedupfs_service::ROOT_INO;
use dedupfs_store::tree::Node;

use super::frozen::{Found, Trees};
use super::*;
use crate::pool::Pool;
use crate::tests::versions::site::{directory, file, fill, find, formatted, open, snapshot};
use crate::tests::versions::spots::tree_nodes;

fn pool() -> Arc<Pool> {
    let pool = open(&formatted());
    let live = directory(&pool, ROOT_INO, "live");
    fill(&pool, live);
    snapshot(&pool, "live", "", "v1");
    file(&pool, find(&pool, "live/many"), "file-77b", b"new");
    snapshot(&pool, "live", "", "v2");
    pool
}

fn versions(pool: &Pool) -> Vec<Inode> {
    ["v1", "v2"].map(|name| pool.core().namespace.inode(find(pool, name)).unwrap().unwrap()).to_vec()
}

fn find_all(pool: &Pool, lost: &Lost, names_max: usize) -> Vec<(Vec<Found>, u64)> {
    let affected = Affected { lost, unreadable: lost.nodes.clone(), nodes: HashSet::new() };
    let mut trees = Trees::new(pool.core().dedup.nodes(), &affected, names_max);
    versions(pool).iter().map(|version| trees.find(version)).collect()
}

fn lost_node(fingerprint: Fingerprint) -> Lost {
    Lost { chunks: HashSet::new(), nodes: HashSet::from([fingerprint]) }
}

fn shown_path(path: &[u8]) -> String {
    String::from_utf8_lossy(path).into_owned()
}

/// Counts the entries of a tree that can be reached without the lost node.
fn reachable(nodes: &HashMap<Fingerprint, Arc<Node>>, lost: &Fingerprint, level: u8, child: &Child) -> u64 {
    if child.fingerprint == *lost {
        return 0;
    }
    let node = &nodes[&child.fingerprint];
    assert_eq!(node.level(), level);
    let below = |root: &Option<(u8, Child)>| root.map_or(0, |(level, child)| reachable(nodes, lost, level, &child));
    let of_entry = |entry: &dedupfs_store::tree::Entry| match &entry.content {
        dedupfs_store::tree::Content::Directory(directory) => 1 + below(&directory.root),
        _ => 1,
    };
    match &**node {
        Node::Leaf(entries) => entries.iter().map(of_entry).sum(),
        Node::List { level, parts } => parts.iter().map(|part| reachable(nodes, lost, level - 1, &part.child)).sum(),
        Node::Top(top) => of_entry(&top.entry),
        Node::Links(_) => 0,
    }
}

#[test]
fn each_lost_node_is_told_with_the_number_of_entries_that_cannot_be_reached() {
    let pool = pool();
    let nodes: HashMap<Fingerprint, Arc<Node>> = tree_nodes(&pool).into_iter().collect();
    let (mut whole, mut partial, mut links) = (0, 0, 0);
    for (fingerprint, node) in &nodes {
        let told = find_all(&pool, &lost_node(*fingerprint), 1000);
        for (version, (found, count)) in versions(&pool).iter().zip(told) {
            let Root::Tree { level, child } = version.root else { panic!("no tree") };
            let all = reachable(&nodes, &Fingerprint([0; 32]), level, &child);
            let lost = all - reachable(&nodes, fingerprint, level, &child);
            assert_eq!(count, found.len() as u64);
            if *fingerprint == child.fingerprint {
                assert_eq!((found.len(), found[0].lost_entries, found[0].ino), (1, u64::MAX, version.ino));
                whole += 1;
                continue;
            }
            let is_of_links = matches!(&**node, Node::Links(_));
            if is_of_links && !found.is_empty() {
                // The file with three names.
                assert_eq!((found.len(), found[0].lost_entries, found[0].ino), (1, 1, version.ino));
                links += 1;
                continue;
            }
            assert_eq!(found.iter().map(|found| found.lost_entries).sum::<u64>(), lost);
            partial += u64::from(lost > 0);
            for found in found {
                assert_eq!((found.root, found.paths.len()), (Root::Empty, 1));
                let name = if version.ino == versions(&pool)[0].ino { "v1" } else { "v2" };
                let ino = find(&pool, &format!("{name}/{}", shown_path(&found.paths[0])));
                assert_eq!(ino, found.ino, "{}", shown_path(&found.paths[0]));
            }
        }
    }
    assert!(whole == 2 && partial > 60 && links == 2, "{whole} {partial} {links}");
}

/// One finding for several lost nodes of one directory.
#[test]
fn all_leaves_of_a_directory_are_one_finding() {
    let pool = pool();
    let is_of_many = |node: &Node| match node {
        Node::Leaf(entries) => entries.iter().any(|entry| entry.name.starts_with(b"file-")),
        _ => false,
    };
    let lost: Vec<_> = tree_nodes(&pool).into_iter().filter(|(_, node)| is_of_many(node)).collect();
    assert!(lost.len() > 10);
    let nodes = lost.iter().map(|(fingerprint, _)| *fingerprint).collect();
    for (found, count) in find_all(&pool, &Lost { chunks: HashSet::new(), nodes }, 1000) {
        assert_eq!((found.len(), count), (1, 1));
        assert_eq!(found[0].paths, [b"many".to_vec()]);
        assert!((200..=202).contains(&found[0].lost_entries), "{}", found[0].lost_entries);
    }
}

/// Each name of a linked file was told as a file of its own, with a number that no file has.
#[test]
fn regression_a_file_with_several_names_is_one_finding_with_all_of_them() {
    let pool = pool();
    let linked = find(&pool, "v1/one-name");
    // The live file has the same root.
    let inode = pool.core().namespace.inode(find(&pool, "live/one-name")).unwrap().unwrap().root;
    let mut lost = Lost::default();
    match inode.reference().unwrap() {
        dedupfs_store::recipe::Reference::Chunk(child) => lost.chunks.insert(child.fingerprint),
        dedupfs_store::recipe::Reference::Node { child, .. } => lost.nodes.insert(child.fingerprint),
    };
    let told = find_all(&pool, &lost, 1000);
    let mut paths: Vec<String> = told[0].0[0].paths.iter().map(|path| shown_path(path)).collect();
    paths.sort();
    assert_eq!((told[0].0.len(), told[0].1, told[0].0[0].ino), (1, 1, linked));
    assert!(paths.len() == 3 && paths[1] == "many/another-name" && paths[2] == "one-name", "{paths:?}");
    assert_eq!((told[0].0[0].root, told[0].0[0].lost_entries), (inode, 0));
}

#[test]
fn lost_attributes_name_their_entry() {
    let pool = pool();
    let attributes = |node: &Node| match node {
        Node::Leaf(entries) => entries.iter().find_map(|entry| match &entry.attributes {
            dedupfs_store::tree::Attributes::Stored(root) => root.reference(),
            _ => None,
        }),
        _ => None,
    };
    let reference = tree_nodes(&pool).iter().find_map(|(_, node)| attributes(node)).expect("user.long is long");
    for (number, (found, count)) in find_all(&pool, &lost_node(reference.fingerprint()), 1000).iter().enumerate() {
        assert_eq!((found.len(), *count), (1, 1));
        assert_eq!((&*found[0].paths[0], found[0].root, found[0].lost_entries), (&b"many"[..], Root::Empty, 0));
        assert_eq!(found[0].ino, find(&pool, &format!("v{}/many", number + 1)));
    }
}

#[test]
fn versions_share_the_names_and_all_findings_are_counted() {
    let pool = pool();
    let mut lost = Lost::default();
    for (_, node) in tree_nodes(&pool) {
        let chunks = node.references().into_iter().filter_map(|reference| match reference {
            dedupfs_store::recipe::Reference::Chunk(child) => Some(child.fingerprint),
            dedupfs_store::recipe::Reference::Node { .. } => None,
        });
        lost.chunks.extend(chunks);
    }
    let all = find_all(&pool, &lost, usize::MAX);
    let names = |found: &[Found]| found.iter().map(|found| found.paths.len()).sum::<usize>();
    assert!(all[0].1 > 200 && all[1].1 == all[0].1 + 1, "{} {}", all[0].1, all[1].1);
    for limit in [0, 3, names(&all[0].0), names(&all[0].0) + 7] {
        let few = find_all(&pool, &lost, limit);
        assert_eq!(few.iter().map(|(found, _)| names(found)).sum::<usize>(), limit);
        for ((_, count), (found, all)) in few.iter().zip(&all) {
            // A linked file counts by name if it is not told.
            let linked = (names(found) - found.len()) as u64;
            assert!((*all..=*all + linked).contains(count), "{count} of {all} with {limit} names");
        }
    }
    let by_path: BTreeMap<String, u64> =
        all[0].0.iter().map(|found| (shown_path(&found.paths[0]), found.ino)).collect();
    for (path, ino) in by_path {
        assert_eq!(find(&pool, &format!("v1/{path}")), ino, "{path}");
    }
}
