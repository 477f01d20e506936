//! Pieces <-> root: the tree of list nodes above a file's segments.
//!
//! Building: [`list_ends_behind`] groups the pieces' references into lists. Each list is stored as a node of level 1
//! and deduplicated like every node. The lists' references are grouped again, until one is left. Equal pieces give
//! equal trees, and an insertion changes one list per level.

use dedupfs_base::{EngineError, Result};
use dedupfs_store::recipe::{Child, Node, Root};
use dedupfs_store::{ContainerId, StoreError};

use super::piece::{Piece, PieceKind, PieceList};
use super::segmenter::list_ends_behind;
use crate::containers::StreamId;
use crate::dedup::{Deduplicator, Section};
use crate::fetch::NodeReader;
use crate::limits::LIST_CHILDREN_MAX;

/// Stores the tree above `pieces` and returns the root, which the caller must log within the same `section`.
///
/// The root of a file of one segment or one chunk names it directly.
pub(crate) fn build(dedup: &Deduplicator, section: &Section<'_>, stream: StreamId, pieces: &PieceList) -> Result<Root> {
    let [first, rest @ ..] = pieces.pieces() else { return Ok(Root::Empty) };
    if rest.is_empty() {
        return match first.kind {
            PieceKind::Hole => Ok(Root::Zero { len_bytes: first.len_bytes() }),
            PieceKind::Chunk => Ok(Root::Chunk(first.child)),
            PieceKind::Segment => straight_at_single_chunk(dedup, first),
        };
    }
    let mut children: Vec<Child> = pieces.pieces().iter().map(|piece| piece.child).collect();
    let mut pins = Vec::new();
    let mut level = 0;
    while children.len() > 1 {
        level += 1;
        let mut lists = Vec::with_capacity(children.len() / LIST_CHILDREN_MAX + 2);
        let mut from = 0;
        for at in 1..=children.len() {
            let Some(list) = children.get(from..at) else { break };
            let ends = list.last().is_some_and(|last| list_ends_behind(list.len(), &last.fingerprint));
            if ends || at == children.len() {
                let node = Node { level, children: list.to_vec() };
                let (child, pin) = dedup.store_node(section, stream, node)?;
                lists.push(child);
                pins.push(pin);
                from = at;
            }
        }
        children = lists;
    }
    let Some(child) = children.first() else { return Ok(Root::Empty) };
    Ok(Root::Node { level, child: *child })
}

/// Names a single chunk directly, if the only segment of the file has no other (after truncation, say).
fn straight_at_single_chunk(dedup: &Deduplicator, piece: &Piece) -> Result<Root> {
    let view = match dedup.nodes().node(0, &piece.child) {
        Ok(view) => view,
        // A clone of a file with a damaged recipe is as damaged as its source, and heals together with it.
        Err(EngineError::Store(StoreError::Corrupt { .. })) => return Ok(Root::Node { level: 0, child: piece.child }),
        Err(error) => return Err(error),
    };
    Ok(match view.children() {
        [only] if !only.fingerprint.is_zero() => Root::Chunk(*only),
        [only] => Root::Zero { len_bytes: only.len_bytes },
        _ => Root::Node { level: 0, child: piece.child },
    })
}

/// Returns the pieces that `root` names.
///
/// # Errors
/// `Corrupt` if a node is damaged; I/O errors.
pub(crate) fn flatten(nodes: &NodeReader, root: &Root) -> Result<PieceList> {
    let mut list = PieceList::default();
    match root {
        Root::Empty => {}
        Root::Zero { len_bytes } => list.push(Piece::hole(*len_bytes)),
        Root::Chunk(child) => list.push(Piece { kind: PieceKind::Chunk, child: *child, pin: None }),
        Root::Node { level, child } => descend(nodes, *level, child, &mut list)?,
        Root::Tree { .. } => return Err(StoreError::corrupt("content of a file", "a recipe", "a frozen tree").into()),
    }
    if list.len_bytes() != root.len_bytes() {
        return Err(StoreError::corrupt("recipe tree", root.len_bytes(), list.len_bytes()).into());
    }
    Ok(list)
}

/// The reader checks the level on each step, so the recursion ends at level 0.
fn descend(nodes: &NodeReader, level: u8, child: &Child, list: &mut PieceList) -> Result<()> {
    if child.fingerprint.is_zero() {
        list.push(Piece::hole(child.len_bytes));
    } else if let Some(below) = level.checked_sub(1) {
        for grandchild in nodes.node(level, child)?.children() {
            descend(nodes, below, grandchild, list)?;
        }
    } else {
        list.push(Piece { kind: PieceKind::Segment, child: *child, pin: None });
    }
    Ok(())
}

/// Makes the reference to a run of zeros: it has no container.
pub(crate) fn hole_child(len_bytes: u64) -> Child {
    Child { fingerprint: dedupfs_store::Fingerprint::ZERO, len_bytes, hint: ContainerId::NONE }
}
