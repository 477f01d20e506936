//! The bytes that removing versions, files or directories would free: exact in chunks and nodes, an estimate on the disk.

use std::collections::{HashMap, HashSet};

use dedupfs_base::{EngineError, Result};
use dedupfs_namespace::{CommittedView, Inode, is_frozen};
use dedupfs_service::{FileKind, Ino};
use serde::{Deserialize, Serialize};

use super::count_down::CountDown;
use super::reclaim::ReclaimControl;
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
    /// Reclaiming ran meanwhile. Then everything that it was going to free counts as in use, so more may be freed.
    #[serde(default)]
    pub is_reclaiming: bool,
}

/// Counts the chunks and nodes that each set of inodes would free if it alone was removed, with everything below them. Garbage is
/// not counted and holds nothing; while a run of reclaiming goes on, it counts as in use. Of a file with further names elsewhere
/// nothing is freed. A set of which an inode is gone has no result. Counts must be settled.
/// Memory: that of a count-down, and 16 bytes for each live file with several names.
///
/// # Errors
/// An inode within a version, which cannot be removed; the index or names cannot be read; the count takes too much memory; the
/// work was ended.
pub(crate) fn would_free(
    core: &Core,
    control: &ReclaimControl,
    sets: &[&[Ino]],
    progress: &dyn Progress,
) -> Result<Vec<Option<WouldFree>>> {
    behind_reclaiming(control, |is_reclaiming| {
        let is_stopped = || progress.is_cancelled();
        let view = core.namespace.committed()?;
        let mut count_down = new_count_down(core, &is_stopped, is_reclaiming)?;
        let (mut results, mut gone) = (Vec::with_capacity(sets.len()), HashSet::new());
        for (number, set) in sets.iter().enumerate() {
            match drop_roots(&view, set, &mut count_down, progress) {
                Err(EngineError::NotFound) => {
                    gone.insert(number);
                }
                dropped => dropped?,
            }
            count_down.end_set()?;
            if count_down.is_full() || number + 1 == sets.len() {
                results.extend(sums_of(core, &count_down)?);
                count_down.clear_sets();
            }
            // The counts are too low then.
            if is_stopped() {
                return Err(EngineError::Ended("the count-down"));
            }
        }
        let told = results.into_iter().map(|told| WouldFree { is_reclaiming, ..told });
        Ok(told.enumerate().map(|(number, told)| (!gone.contains(&number)).then_some(told)).collect())
    })
}

/// Counts as beside a run of reclaiming (`true`) if one is under way, or began meanwhile: the run drops references that were counted as leaving.
pub(super) fn behind_reclaiming<T>(control: &ReclaimControl, count: impl Fn(bool) -> Result<T>) -> Result<T> {
    let quiet = control.runs_unless_running();
    if quiet.is_some() {
        let counted = count(false);
        if control.runs_unless_running() == quiet {
            return counted;
        }
    }
    count(true)
}

/// Begins a count-down without garbage, unless reclaiming is running.
pub(super) fn new_count_down<'a>(
    core: &'a Core,
    is_stopped: &'a dyn Fn() -> bool,
    is_reclaiming: bool,
) -> Result<CountDown<'a>> {
    let mut count_down = CountDown::new(core, is_stopped);
    if !is_reclaiming {
        count_down.leave_unreferenced()?;
    }
    Ok(count_down)
}

/// Drops the roots of the inodes and of everything below them.
pub(super) fn drop_roots(
    view: &CommittedView,
    inos: &[Ino],
    count_down: &mut CountDown<'_>,
    progress: &dyn Progress,
) -> Result<()> {
    let look = |ino| {
        if progress.is_cancelled() {
            return Err(EngineError::Ended("the count-down"));
        }
        progress.advance(1);
        view.inode(ino)?.ok_or(match is_frozen(ino) {
            true => EngineError::Invalid("parts of a version cannot be removed: name the version"),
            false => EngineError::NotFound,
        })
    };
    // Of a file with several names: those that were not met yet.
    let mut left: HashMap<Ino, u32> = HashMap::new();
    let mut drop = |inode: &Inode, waiting: usize| {
        let is_last = inode.nlink <= 1 || is_frozen(inode.ino) || {
            let left = left.entry(inode.ino).or_insert(inode.nlink);
            *left = left.saturating_sub(1);
            *left == 0
        };
        if is_last && let Some(root) = inode.root.reference() {
            count_down.drop_reference(&root)?;
        }
        count_down.check_memory(waiting * size_of::<Ino>() + left.capacity() * 2 * size_of::<Ino>())
    };
    let mut work: Vec<Ino> = inos.to_vec();
    work.sort_unstable();
    work.dedup();
    while let Some(ino) = work.pop() {
        let inode = look(ino)?;
        if !inode.is_directory() || is_frozen(ino) {
            drop(&inode, 0)?;
            continue;
        }
        let mut after = Vec::new();
        loop {
            let names = view.names(ino, &after, NAMES_AT_ONCE)?;
            let Some((last, ..)) = names.last() else { break };
            after.clone_from(last);
            for (_, ino, kind) in names {
                match kind == FileKind::Directory && !is_frozen(ino) {
                    true => work.push(ino),
                    false => drop(&look(ino)?, work.capacity())?,
                }
            }
        }
    }
    Ok(())
}

/// Sums up the dead chunks and nodes of each set of a count-down.
pub(super) fn sums_of(core: &Core, count_down: &CountDown<'_>) -> Result<Vec<WouldFree>> {
    let mut results = vec![WouldFree::default(); count_down.sets()];
    let on_disk = |kind, container, bytes: u64| {
        let record = core.stores.of(kind).record(container);
        record.map_or(0, |record| {
            let used = u128::from(record.used_bytes);
            u64::try_from(used * u128::from(bytes) / u128::from(record.chunk_bytes.max(1))).unwrap_or(bytes)
        })
    };
    for (set, fingerprint, container) in count_down.nodes() {
        if let Some(cell) = core.indexes.nodes.committed(fingerprint)?
            && let Some(result) = results.get_mut(set)
        {
            let bytes = u64::from(cell.location.len_bytes());
            result.nodes += 1;
            result.node_bytes += bytes;
            result.disk_bytes_estimate += on_disk(dedupfs_store::ContainerKind::Recipe, container, bytes);
        }
    }
    count_down.for_each_dead_chunk(&mut |set, _, cell| {
        if let Some(result) = results.get_mut(set) {
            let bytes = u64::from(cell.location.len_bytes());
            result.chunks += 1;
            result.chunk_bytes += bytes;
            let container = cell.location.container();
            result.disk_bytes_estimate += on_disk(dedupfs_store::ContainerKind::Data, container, bytes);
        }
    })?;
    Ok(results)
}
