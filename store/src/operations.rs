//! The operations of the log: the changes of references and containers (invariants I-2 and I-3). The namespace keeps them, and the
//! indexes count them.

use crate::recipe::Root;
use crate::{ContainerId, ContainerKind, Fingerprint};

/// One operation of the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LogOp {
    /// The container's valid part grew. The chunks in between are new.
    Extend {
        /// The container.
        container: ContainerId,
        /// Kind of its content.
        kind: ContainerKind,
        /// Valid bytes before.
        from_bytes: u32,
        /// Valid bytes after.
        to_bytes: u32,
    },
    /// A file now refers to this root.
    RootAdded(Root),
    /// A file no longer refers to this root.
    RootDropped(Root),
    /// A recipe node was stored: the index gets it, and its children gain a reference.
    NodeStored {
        /// Level in the recipe tree.
        level: u8,
        /// The node.
        fingerprint: Fingerprint,
        /// Its container.
        container: ContainerId,
        /// Its encoded length.
        len_bytes: u32,
    },
    /// A recipe node of the index has a new place. Its children keep their references.
    NodeMoved {
        /// The node.
        fingerprint: Fingerprint,
        /// Its new container.
        container: ContainerId,
        /// Its encoded length.
        len_bytes: u32,
    },
    /// A recipe node without references was freed. Its children lost a reference.
    NodeFreed {
        /// Level in the recipe tree.
        level: u8,
        /// The node.
        fingerprint: Fingerprint,
        /// Its former container.
        container: ContainerId,
    },
    /// The copy of a chunk in this container is damaged. Nothing is deduplicated against it, and it counts as lost
    /// until it is stored again.
    ChunkLost {
        /// The chunk.
        fingerprint: Fingerprint,
        /// The container of the damaged copy.
        container: ContainerId,
    },
    /// The copy of a recipe node in this container is damaged. It is treated as a lost chunk is. Its children keep
    /// their references.
    NodeLost {
        /// The node.
        fingerprint: Fingerprint,
        /// The container of the damaged copy.
        container: ContainerId,
    },
    /// A chunk without references was freed.
    ChunkRemoved {
        /// The chunk.
        fingerprint: Fingerprint,
        /// Its former container.
        container: ContainerId,
    },
}

/// The operations log as the write path sees it.
pub trait OperationsLog: Send + Sync {
    /// Adds an operation to the log of the next commit.
    fn log(&self, op: LogOp) {
        self.log_counting(op, 1);
    }
    /// Adds an operation that changes `changes` cells of the indexes.
    fn log_counting(&self, op: LogOp, changes: usize);
    /// Whether counts of the indexes are in doubt: then files may refer to content that no container has, and that the indexes do not
    /// call lost.
    fn has_doubt(&self) -> bool;
}
