//! The bytes that removing versions, files or directories would free: exact in chunks and nodes, an estimate on the disk.

use std::collections::HashMap;

use dedupfs_base::{EngineError, Result};
use dedupfs_namespace::{CommittedView, Inode, is_frozen};
use dedupfs_service::Ino;
use serde::{Deserialize, Serialize};

use super::count_down::CountDown;
use crate::engine::Core;
use crate::progress::Progress;

/// Names read at once.
pub(super) const NAMES_AT_ONCE: usize = 512;

/// What a removal would free, behind a reclaiming that leaves nothing.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct WouldFree {
    /// Chunks that nothing else refers to.
    pub chunks: u64,
    /// Their bytes before compression.
    pub chunk_bytes: u64,
    /// Recipe nodes and tree nodes that nothing else refers to.
    pub nodes: u64,
    /// Their encoded bytes before compression.
    pub node_bytes: u64,
    /// Estimate of the bytes on the disks: each container is taken to compress evenly.
    pub disk_bytes_estimate: u64,
}

/// Returns what the removal of these inodes, with everything below them, would free. Of a file with further names
/// elsewhere nothing is freed. Counts must be settled.
/// Memory: that of a count-down, 32 bytes for each live file of one chunk, and 16 for each live file with several names.
///
/// # Errors
/// `NotFound`; an inode within a version, which cannot be removed; the index or names cannot be read; the work was ended.
pub(crate) fn would_free(core: &Core, inos: &[Ino], progress: &dyn Progress) -> Result<WouldFree> {
    let is_stopped = || progress.is_cancelled();
    let view = core.namespace.committed()?;
    let mut count_down = CountDown::new(core, &is_stopped);
    progress.start("reading names", 0);
    let dropped = drop_roots(&view, inos, &mut count_down, progress);
    progress.finish();
    dropped?;
    progress.start("counting down", 0);
    let counted = count(core, &mut count_down);
    progress.finish();
    let counted = counted?;
    if is_stopped() {
        return Err(EngineError::Ended("the count-down"));
    }
    Ok(counted)
}

/// Drops the roots of the inodes and of everything below them.
pub(super) fn drop_roots(
    view: &CommittedView,
    inos: &[Ino],
    count_down: &mut CountDown<'_>,
    progress: &dyn Progress,
) -> Result<()> {
    let mut drop = |inode: &Inode| inode.root.reference().map_or(Ok(()), |root| count_down.drop_reference(&root));
    // Of a file with several names: those that were not met yet.
    let mut left: HashMap<Ino, u32> = HashMap::new();
    let mut work: Vec<Ino> = inos.to_vec();
    work.sort_unstable();
    work.dedup();
    while let Some(ino) = work.pop() {
        if progress.is_cancelled() {
            return Err(EngineError::Ended("the count-down"));
        }
        progress.advance(1);
        let inode = view.inode(ino)?.ok_or(match is_frozen(ino) {
            true => EngineError::Invalid("parts of a version cannot be removed: name the version"),
            false => EngineError::NotFound,
        })?;
        if inode.is_directory() && !is_frozen(ino) {
            let mut after = Vec::new();
            loop {
                let names = view.names(ino, &after, NAMES_AT_ONCE)?;
                let Some((last, ..)) = names.last() else { break };
                after.clone_from(last);
                work.extend(names.into_iter().map(|(_, ino, _)| ino));
            }
            continue;
        }
        let is_last = inode.nlink <= 1 || is_frozen(ino) || {
            let left = left.entry(ino).or_insert(inode.nlink);
            *left = left.saturating_sub(1);
            *left == 0
        };
        if is_last {
            drop(&inode)?;
        }
    }
    Ok(())
}

/// Finishes a count-down and sums up what dies.
pub(super) fn count(core: &Core, count_down: &mut CountDown<'_>) -> Result<WouldFree> {
    count_down.walk()?;
    let mut result = WouldFree::default();
    let on_disk = |kind, container, bytes: u64| {
        let record = core.stores.of(kind).record(container);
        record.map_or(0, |record| {
            let used = u128::from(record.used_bytes);
            u64::try_from(used * u128::from(bytes) / u128::from(record.chunk_bytes.max(1))).unwrap_or(bytes)
        })
    };
    for (fingerprint, container) in count_down.nodes() {
        if let Some(cell) = core.indexes.nodes.committed(fingerprint)? {
            let bytes = u64::from(cell.location.len_bytes());
            result.nodes += 1;
            result.node_bytes += bytes;
            result.disk_bytes_estimate += on_disk(dedupfs_store::ContainerKind::Recipe, *container, bytes);
        }
    }
    count_down.for_each_dead_chunk(&mut |_, cell| {
        let bytes = u64::from(cell.location.len_bytes());
        result.chunks += 1;
        result.chunk_bytes += bytes;
        let container = cell.location.container();
        result.disk_bytes_estimate += on_disk(dedupfs_store::ContainerKind::Data, container, bytes);
    })?;
    Ok(result)
}
