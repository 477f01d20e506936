//! All chunks that a frozen tree names.

use std::collections::HashSet;

use dedupfs_base::Result;
use dedupfs_content::NodeReader;
use dedupfs_store::Fingerprint;
use dedupfs_store::recipe::Reference;

/// Calls `visit` for the chunks below a reference, until it returns `false`; a chunk may come several times, equal nodes are read once.
///
/// Memory: 48 bytes for each node, and the children of one path.
///
/// # Errors
/// `Corrupt` if a node is damaged; I/O errors.
pub(crate) fn for_each_chunk(
    nodes: &NodeReader,
    top: Reference,
    visit: &mut dyn FnMut(&Fingerprint) -> bool,
) -> Result<()> {
    let (mut to_visit, mut seen) = (vec![top], HashSet::new());
    while let Some(reference) = to_visit.pop() {
        let child = reference.child();
        match reference {
            Reference::Chunk(_) if !visit(&child.fingerprint) => break,
            Reference::Node { .. } if seen.insert(child.fingerprint) => {
                to_visit.extend(nodes.node_of(&child.fingerprint, child.hint)?.references());
            }
            Reference::Chunk(_) | Reference::Node { .. } => {}
        }
    }
    Ok(())
}
