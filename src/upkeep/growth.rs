//! Filters follow the growth of the pool: they take memory from the cache of regions, without another mount.

use dedupfs_store::ContainerKind;

use crate::config::{Fingerprints, MemoryPlan};
use crate::engine::Core;

/// Filters grow by at least an eighth at a time, because each step evicts regions and may load filters of guides anew.
const STEP_DIVISOR: u64 = 8;

/// Follows the numbers of chunks and nodes that the pool has now.
pub(super) fn follow(core: &Core) {
    follow_to(core, Fingerprints { chunks: core.indexes.chunks.len(), nodes: core.indexes.nodes.len() });
}

/// Lowers the limit of the cache of regions, then raises those of filters, if a pool with these numbers needs an eighth more of them. Filters
/// give nothing back before the next mount.
pub(crate) fn follow_to(core: &Core, fingerprints: Fingerprints) {
    let indexes = &core.indexes;
    let plan = core.memory_at_opening.grown(fingerprints);
    let [of_chunks, of_nodes] = [&indexes.chunks, &indexes.nodes].map(|index| index.filter_limit_bytes());
    let now_bytes = of_chunks + of_nodes;
    if plan.filter_bytes < now_bytes + now_bytes / STEP_DIVISOR {
        return;
    }
    let of = |kind| MemoryPlan::share_of(kind, plan.region_cache_bytes);
    core.stores.set_region_bytes(of(ContainerKind::Data), of(ContainerKind::Recipe));
    // Neither index gives anything back.
    let [wanted, _] = plan.filter_shares();
    let chunks_bytes = wanted.clamp(of_chunks, plan.filter_bytes - of_nodes);
    indexes.chunks.raise_filter_limit(chunks_bytes);
    indexes.nodes.raise_filter_limit(plan.filter_bytes - chunks_bytes);
    tracing::info!("filters of the indexes may take {} MiB now, as the pool has grown", plan.filter_bytes >> 20);
    *core.memory_now.lock() = plan;
}
