//! The former content of a file that is written anew as a whole: a first guess for its chunks.
//!
//! Where a few bytes of a segment changed, its other chunks are found in the former recipe, and no index is asked. The
//! recipe is read a little ahead of the new content; what was inserted or removed since may shift it by that much, or
//! by what the block index remembers.

use std::sync::Arc;

use dedupfs_base::Result;
use dedupfs_store::recipe::Root;

use crate::dedup::BlockIndex;
use crate::fetch::NodeReader;
use crate::recipe::{PieceKind, PieceList, tree};

/// How far ahead of new content the former recipe is read.
const AHEAD_BYTES: u64 = 8 << 20;

/// The former content.
pub(super) struct Former {
    pieces: PieceList,
    /// The next piece whose chunks are not known yet.
    next: usize,
    pub(super) known: Arc<BlockIndex>,
}

impl Former {
    pub(super) fn open(nodes: &NodeReader, root: &Root) -> Result<Self> {
        Ok(Self { pieces: tree::flatten(nodes, root)?, next: 0, known: Arc::default() })
    }

    pub(super) fn memory_bytes(&self) -> u64 {
        self.pieces.memory_bytes()
    }

    /// Learns the former chunks up to a little behind `end`.
    ///
    /// # Errors
    /// The former recipe is damaged; I/O errors.
    pub(super) fn learn(&mut self, nodes: &NodeReader, end: u64) -> Result<()> {
        while let Some((start, piece)) = self.pieces.get(self.next)
            && start < end + AHEAD_BYTES
        {
            match piece.kind {
                PieceKind::Segment => self.known.extend(nodes.node(0, &piece.child)?.children()),
                PieceKind::Chunk => self.known.extend(&[piece.child]),
                PieceKind::Hole => {}
            }
            self.next += 1;
        }
        Ok(())
    }
}
