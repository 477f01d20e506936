//! All chunks and nodes that a frozen tree names.

use std::collections::HashSet;

use dedupfs_base::Result;
use dedupfs_content::NodeReader;
use dedupfs_store::recipe::Reference;

/// Calls `visit` for the nodes and chunks below a reference, until it returns `false`; a chunk may come several times, each node once.
///
/// Memory: 48 bytes for each node, and the children of one path.
///
/// # Errors
/// `Corrupt` if a node is damaged; I/O errors.
pub(crate) fn for_each_reference(
    nodes: &NodeReader,
    top: Reference,
    visit: &mut dyn FnMut(&Reference) -> bool,
) -> Result<()> {
    let (mut to_visit, mut seen) = (vec![top], HashSet::new());
    while let Some(reference) = to_visit.pop() {
        let child = reference.child();
        let is_node = matches!(reference, Reference::Node { .. });
        if is_node && !seen.insert(child.fingerprint) {
            continue;
        }
        if !visit(&reference) {
            break;
        }
        if is_node {
            to_visit.extend(nodes.node_of(&child.fingerprint, child.hint)?.references());
        }
    }
    Ok(())
}
