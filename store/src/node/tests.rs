use super::*;
use crate::codec::checksum;
use crate::fingerprint::Fingerprint;
use crate::id::{ContainerId, ContainerKind};
use crate::recipe::Child;
use crate::tree::Part;

fn child(number: u8) -> Child {
    Child { fingerprint: Fingerprint([number; 32]), len_bytes: 5, hint: ContainerId(7) }
}

fn recipe_node() -> recipe::Node {
    recipe::Node { level: 0, children: vec![child(1), Child::zero(9), child(2)] }
}

fn tree_node() -> tree::Node {
    let part = |number: u8| Part {
        child: child(number),
        last_key: vec![b'a', number],
        below: tree::Below { entries: 6, bytes: 1, linked: 0 },
    };
    tree::Node::List { level: 17, parts: vec![part(1), part(2)] }
}

#[test]
fn the_level_tells_the_kind() {
    let (recipe_node, tree_node) = (recipe_node(), tree_node());
    assert_eq!(Node::decode(&recipe_node.encode()).unwrap(), Node::Recipe(recipe_node));
    assert_eq!(Node::decode(&tree_node.encode()).unwrap(), Node::Tree(tree_node));
    for level in 0..=255 {
        let body = [1, level, 0, 0];
        let message = Node::decode(&[&body[..], &checksum(&body).to_le_bytes()].concat()).unwrap_err().to_string();
        let is_tree = (16..=31).contains(&level);
        assert_eq!(Node::is_tree(level), is_tree);
        assert!(message.contains(if is_tree { "tree node" } else { "recipe node" }), "{level}: {message}");
    }
    for short in [&[][..], &[1], &[1, 16], &[1, 0]] {
        assert!(Node::decode(short).is_err());
    }
}

#[test]
fn both_kinds_answer_for_themselves() {
    let (recipe_node, tree_node) = (recipe_node(), tree_node());
    let node = Node::Recipe(recipe_node.clone());
    assert_eq!((node.level(), node.len_bytes().unwrap()), (0, 19));
    assert_eq!(node.references(), [Reference::Chunk(child(1)), Reference::Chunk(child(2))]);
    assert!(node.references().iter().all(|reference| reference.kind() == ContainerKind::Data));
    assert_eq!((node.identity_bytes(), node.encode()), (recipe_node.identity_bytes(), recipe_node.encode()));
    let node = Node::Tree(tree_node.clone());
    assert_eq!((node.level(), node.len_bytes().unwrap()), (17, 10));
    let nodes = [1, 2].map(|number| Reference::Node { level: 16, child: child(number) });
    assert_eq!(node.references(), nodes);
    assert!(node.references().iter().all(|reference| reference.kind() == ContainerKind::Recipe));
    assert_eq!((node.identity_bytes(), node.encode()), (tree_node.identity_bytes(), tree_node.encode()));
    let too_long = recipe::Node { level: 0, children: vec![Child::zero(u64::MAX)] };
    assert!(Node::Recipe(too_long).len_bytes().is_err());
}

#[test]
fn hints_are_renewed_and_the_node_stays_the_same() {
    for node in [Node::Recipe(recipe_node()), Node::Tree(tree_node())] {
        let mut renewed = node.clone();
        let moved = child(2).fingerprint;
        renewed.renew_hints(&|reference| (reference.fingerprint() == moved).then_some(ContainerId(9)));
        let hints: Vec<u64> = renewed.references().iter().map(|reference| reference.child().hint.0).collect();
        assert_eq!(hints, [7, 9]);
        assert_eq!(renewed.identity_bytes(), node.identity_bytes());
        assert_eq!(Node::decode(&renewed.encode()).unwrap(), renewed);
        assert!(renewed != node);
    }
}
