//! Figures about a pool.

use dedupfs_base::Result;
use dedupfs_content::ContainerStore;
use dedupfs_index::{Index, NewLists, Occupied};
use dedupfs_namespace::is_frozen;
use dedupfs_service::Ino;
use serde::{Deserialize, Serialize};

pub use super::profile::{ComponentTime, Profile};
pub use crate::durability::space::{Level, RootSpace};
use crate::engine::Core;
pub use crate::versions::list::VersionTotals;
use crate::versions::list::totals as versions_in;
use crate::versions::notes;

/// The figures that `dedupfs-stats` shows. All sizes in bytes.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct PoolStats {
    /// Identity of the pool.
    pub uuid: String,
    /// Chunker fixed by `mkfs`.
    pub chunker: String,
    /// Target of the mean chunk size.
    pub chunk_size_bytes: u64,
    /// Fingerprint function fixed by `mkfs`.
    pub fingerprint: String,
    /// Compression of regions.
    pub compression: String,
    /// Regular files (a file with several names counts once).
    pub files: u64,
    /// Directories, including the root.
    pub directories: u64,
    /// Symbolic links and special files.
    pub other_inodes: u64,
    /// Sum of the lengths of regular files, also of those in versions.
    pub logical_bytes: u64,
    /// The same without holes.
    pub data_bytes: u64,
    /// Versions. Their files are not counted in `files`, and their bytes are in the sums above.
    #[serde(default)]
    pub versions: VersionTotals,
    /// Removed versions whose content stays because they are read.
    #[serde(default)]
    pub removed_versions_held: u64,
    /// Distinct chunks with references.
    pub unique_chunks: u64,
    /// Their bytes, uncompressed.
    pub unique_chunk_bytes: u64,
    /// Distinct stored chunks without references.
    pub unreferenced_chunks: u64,
    /// Their bytes, uncompressed.
    pub unreferenced_chunk_bytes: u64,
    /// Chunks that files need and no container has; see `dedupfs fsck`.
    pub lost_chunks: u64,
    /// Recipe nodes that files need and no container has.
    pub lost_recipe_nodes: u64,
    /// A count that cannot be right was met: nothing is freed until `dedupfs fsck --rebuild-index`.
    #[serde(default)]
    pub counts_in_doubt: bool,
    /// Recipe nodes.
    pub recipe_nodes: u64,
    /// Bytes of recipe nodes, uncompressed.
    pub recipe_node_bytes: u64,
    /// Physical bytes of containers with chunks.
    pub data_container_bytes: u64,
    /// Physical bytes of containers with recipe nodes.
    pub recipe_container_bytes: u64,
    /// Physical bytes of the namespace.
    pub namespace_bytes: u64,
    /// Physical bytes of the indexes.
    pub index_bytes: u64,
    /// Bytes of the namespace's export on the data root.
    pub export_bytes: u64,
    /// Physical bytes of the copies of recipe containers in the export.
    pub export_recipe_bytes: u64,
    /// Time of the last export, in seconds since 1970; 0 if there is none.
    pub export_time_secs: u64,
    /// Whether there is an export to recover from.
    pub is_exported: bool,
    /// All physical bytes of the pool.
    pub physical_bytes: u64,
    /// `data_bytes` / `unique_chunk_bytes`.
    pub dedup_ratio: f64,
    /// `unique_chunk_bytes` + `unreferenced_chunk_bytes` against `data_container_bytes`.
    pub compression_ratio: f64,
    /// `data_bytes` / `physical_bytes`.
    pub total_ratio: f64,
    /// Containers with chunks.
    pub data_containers: ContainerSummary,
    /// Containers with recipe nodes.
    pub recipe_containers: ContainerSummary,
    /// Index of chunks.
    pub chunk_index: IndexSummary,
    /// Index of recipe nodes.
    pub recipe_index: IndexSummary,
    /// Filters of chunk lookups since the mount, in order.
    pub filters: Vec<FilterStats>,
    /// Room on both roots.
    #[serde(default)]
    pub roots: Vec<RootSpace>,
    /// Memory use.
    pub memory: MemoryStats,
    /// Counters since the mount.
    pub session: SessionStats,
    /// Times by component since the mount.
    #[serde(default)]
    pub profile: Profile,
}

/// Containers of one kind.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct ContainerSummary {
    /// Containers.
    pub containers: u64,
    /// Bytes stored in them, uncompressed.
    pub stored_bytes: u64,
    /// Bytes used in them, on disk.
    pub used_bytes: u64,
    /// Bytes written since the mount.
    pub written_bytes: u64,
    /// Bytes read since the mount.
    pub read_bytes: u64,
    /// Reads answered by the region cache since the mount.
    pub region_hits: u64,
    /// Regions that readers loaded by themselves since the mount. A wait for another thread's load does not count.
    pub region_reads: u64,
    /// Regions read ahead of readers since the mount.
    #[serde(default)]
    pub prefetched_regions: u64,
    /// Tables of containers read from disk since the mount.
    #[serde(default)]
    pub table_reads: u64,
    /// Chunks that readers looked up in the index one by one since the mount.
    #[serde(default)]
    pub lookups: u64,
    /// Syncs since the mount.
    pub syncs: u64,
}

/// One index.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct IndexSummary {
    /// Fingerprints.
    pub cells: u64,
    /// Cells in the open tanker.
    pub open_cells: u64,
    /// Sealed tankers.
    pub sealed_tankers: u64,
    /// Resident bytes.
    pub memory_bytes: u64,
    /// Bytes on disk.
    pub disk_bytes: u64,
    /// Buckets read since the mount.
    pub bucket_reads: u64,
    /// Bytes of those buckets.
    pub bucket_read_bytes: u64,
    /// Resident bytes of the filters.
    pub filter_bytes: u64,
    /// Guides, each to many old tankers.
    #[serde(default)]
    pub guides: u64,
    /// Sealed tankers to which guides lead.
    #[serde(default)]
    pub guided_tankers: u64,
    /// Bits for each fingerprint in the filter of the largest guide; 0 until it is loaded.
    #[serde(default)]
    pub guide_bits_per_cell: u64,
    /// Bits for each fingerprint of a full tanker.
    pub filter_bits_per_cell: u64,
    /// Sealed tankers without a filter.
    pub tankers_without_filter: u64,
    /// Reads that a million lookups of absent fingerprints cost, by formula.
    pub false_reads_per_million: u64,
    /// Resident bytes of the locality cache.
    pub locality_bytes: u64,
    /// Container tables read for the locality cache since the mount.
    pub locality_tables_read: u64,
}

/// One filter.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct FilterStats {
    /// Name.
    pub name: String,
    /// Fingerprints looked up in it.
    pub asked: u64,
    /// Lookups answered as stored.
    pub existing: u64,
    /// Lookups answered as new.
    pub non_existing: u64,
    /// Time spent.
    pub time_ms: f64,
    /// Buckets read from disk.
    pub reads: u64,
    /// Bytes of those buckets.
    pub read_bytes: u64,
}

/// Memory by parts; `MemoryPlan` has the formula.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct MemoryStats {
    /// `--memory`: the budget of caches and buffers.
    pub limit_bytes: u64,
    /// Bytes between writers and disk now.
    pub in_flight_bytes: u64,
    /// Bytes of decompressed regions now.
    pub region_cache_bytes: u64,
    /// Bytes of container tables now.
    pub table_cache_bytes: u64,
    /// Randomly written bytes of open files now.
    pub dirty_bytes: u64,
    /// Bytes of both indexes now: open tankers, directories, bucket caches.
    pub index_bytes: u64,
    /// The division of `--memory`: the sum of the limits is at most `limit_bytes`.
    pub parts: Vec<MemoryPart>,
    /// Bytes of the directories of sealed tankers, their lists of containers and the garbage map, for both indexes. Not part of
    /// `--memory`; some 0.2 bytes for each fingerprint.
    pub directory_bytes: u64,
    /// Resident bytes of the process, as the system reports them.
    pub process_resident_bytes: u64,
}

/// A part of `--memory`.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct MemoryPart {
    /// Its purpose.
    pub name: String,
    /// Its budget.
    pub limit_bytes: u64,
    /// Bytes in use now, if a gauge counts them.
    pub used_bytes: Option<u64>,
}

/// Counters since the mount.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct SessionStats {
    /// Bytes of content written by clients.
    pub bytes_in: u64,
    /// Bytes of stored chunks, uncompressed.
    pub bytes_stored: u64,
    /// Chunks stored.
    pub chunks_stored: u64,
    /// Segments found whole.
    pub segments_known: u64,
    /// Recipe nodes stored.
    pub nodes_stored: u64,
    /// Commits.
    pub commits: u64,
}

/// Returns the inode numbers of removed versions that stay because they are read, or the kernel knows something in them.
pub(super) fn held_versions(core: &Core) -> Result<Vec<Ino>> {
    let mut orphans = core.namespace.orphans()?;
    orphans.retain(|ino| is_frozen(*ino));
    Ok(orphans)
}

pub(super) fn collect(core: &Core) -> Result<PoolStats> {
    let totals = core.namespace.totals();
    let count = |value: i64| u64::try_from(value).unwrap_or(0);
    let export = core.exporter.stats()?;
    let versions = versions_in(&core.namespace.committed()?)?;
    let mut stats = PoolStats {
        uuid: core.pool.to_string(),
        chunker: core.properties.chunker.to_string(),
        chunk_size_bytes: u64::from(core.properties.chunk_size_bytes),
        fingerprint: core.properties.fingerprint.to_string(),
        compression: core.properties.compression.to_string(),
        files: count(totals.files),
        directories: count(totals.directories),
        other_inodes: count(totals.others),
        // The namespace counts versions without holes.
        logical_bytes: count(totals.logical_bytes)
            .saturating_sub(versions.data_bytes)
            .saturating_add(versions.logical_bytes),
        data_bytes: count(totals.data_bytes),
        versions,
        removed_versions_held: held_versions(core)?.len() as u64,
        data_container_bytes: core.stores.data.physical_bytes()?,
        recipe_container_bytes: core.stores.recipes.physical_bytes()?,
        lost_chunks: core.indexes.chunks.lost(),
        lost_recipe_nodes: core.indexes.nodes.lost(),
        counts_in_doubt: core.namespace.has_doubt(),
        namespace_bytes: core.namespace.file_bytes()?,
        index_bytes: core.index_bytes()?,
        export_bytes: export.namespace_bytes,
        export_recipe_bytes: export.recipe_bytes,
        export_time_secs: export.time_secs,
        is_exported: export.row > 0,
        physical_bytes: core.physical_bytes()? + notes::bytes(&*core.meta_device)?,
        data_containers: containers(&core.stores.data),
        recipe_containers: containers(&core.stores.recipes),
        chunk_index: index(&core.indexes.chunks),
        recipe_index: index(&core.indexes.nodes),
        filters: filters(core),
        roots: core.space.roots()?.into(),
        memory: memory(core),
        session: session(core),
        profile: Profile::of(&core.opened),
        ..PoolStats::default()
    };
    let chunks = occupied(core, &core.indexes.chunks)?;
    (stats.unique_chunks, stats.unique_chunk_bytes) = (chunks.live_cells, chunks.live_bytes);
    (stats.unreferenced_chunks, stats.unreferenced_chunk_bytes) = (chunks.dead_cells(), chunks.dead_bytes());
    let nodes = occupied(core, &core.indexes.nodes)?;
    (stats.recipe_nodes, stats.recipe_node_bytes) = (nodes.cells, nodes.bytes);
    let stored_bytes = stats.unique_chunk_bytes + stats.unreferenced_chunk_bytes;
    stats.dedup_ratio = ratio(stats.data_bytes, stats.unique_chunk_bytes);
    stats.compression_ratio = ratio(stored_bytes, stats.data_container_bytes);
    stats.total_ratio = ratio(stats.data_bytes, stats.physical_bytes);
    Ok(stats)
}

/// Returns what an index has in containers, without what is lost. A pool of an older version is read once for it.
fn occupied(core: &Core, index: &Index) -> Result<Occupied> {
    let lists = if core.is_read_only() { NewLists::InMemory } else { NewLists::Written };
    index.complete_occupancy(lists, &mut || !core.gate.is_closing())?;
    Ok(index.occupied_total())
}

/// Returns `of / to`; 0 if `to` is 0.
fn ratio(of: u64, to: u64) -> f64 {
    if to == 0 { 0.0 } else { of as f64 / to as f64 }
}

fn containers(store: &ContainerStore) -> ContainerSummary {
    let (sums, stats) = (store.sums(), store.stats());
    ContainerSummary {
        containers: sums.containers,
        stored_bytes: sums.chunk_bytes,
        used_bytes: sums.used_bytes,
        written_bytes: stats.written_bytes,
        read_bytes: stats.read_bytes,
        region_hits: stats.region_hits,
        region_reads: stats.region_reads,
        prefetched_regions: stats.prefetched_regions,
        table_reads: stats.table_reads,
        lookups: stats.lookups,
        syncs: stats.syncs,
    }
}

fn index(index: &Index) -> IndexSummary {
    let stats = index.stats();
    IndexSummary {
        cells: stats.cells,
        open_cells: stats.open_cells,
        sealed_tankers: stats.sealed_tankers,
        memory_bytes: stats.memory_bytes,
        disk_bytes: stats.disk_bytes,
        bucket_reads: stats.bucket_reads,
        bucket_read_bytes: stats.bucket_read_bytes,
        filter_bytes: stats.filter_bytes,
        guides: stats.guides,
        guided_tankers: stats.guided_tankers,
        guide_bits_per_cell: stats.guide_bits_per_cell,
        filter_bits_per_cell: stats.filter_bits_per_cell,
        tankers_without_filter: stats.tankers_without_filter,
        false_reads_per_million: stats.false_reads_per_million,
        locality_bytes: stats.locality_bytes,
        locality_tables_read: stats.locality_tables_read,
    }
}

fn filters(core: &Core) -> Vec<FilterStats> {
    let stats = core.dedup.stats().filters.into_iter();
    stats
        .map(|filter| FilterStats {
            name: filter.name.to_owned(),
            asked: filter.asked,
            existing: filter.existing,
            non_existing: filter.non_existing,
            time_ms: filter.time_ns as f64 / 1e6,
            reads: filter.reads,
            read_bytes: filter.read_bytes,
        })
        .collect()
}

fn memory(core: &Core) -> MemoryStats {
    // They share their caches.
    let (data, recipes) = (core.stores.data.stats(), core.stores.recipes.stats());
    let (chunks, nodes) = (core.indexes.chunks.stats(), core.indexes.nodes.stats());
    let dirty_bytes = core.files.dirty.bytes();
    let used = |name: &str| {
        Some(match name {
            "open tankers" => chunks.open_bytes + nodes.open_bytes,
            "filters" => chunks.filter_bytes + nodes.filter_bytes,
            "on the way to disk" => data.in_flight_bytes + recipes.in_flight_bytes,
            "regions" => data.region_cache_bytes,
            "open files" => core.files.ingest.memory.bytes(),
            "tables" => data.table_cache_bytes,
            "buckets" => chunks.cache_bytes + nodes.cache_bytes,
            "locality" => chunks.locality_bytes,
            _ => return None,
        })
    };
    let part =
        |(name, limit_bytes): (&str, u64)| MemoryPart { name: name.to_owned(), limit_bytes, used_bytes: used(name) };
    let plan = *core.memory_now.lock();
    MemoryStats {
        parts: plan.parts().into_iter().map(part).collect(),
        directory_bytes: [chunks, nodes].map(|index| index.directory_bytes + index.occupancy_bytes).iter().sum(),
        limit_bytes: core.memory_at_opening.total_bytes,
        in_flight_bytes: data.in_flight_bytes + recipes.in_flight_bytes,
        region_cache_bytes: data.region_cache_bytes,
        table_cache_bytes: data.table_cache_bytes,
        dirty_bytes,
        index_bytes: chunks.memory_bytes + nodes.memory_bytes,
        process_resident_bytes: resident_bytes(),
    }
}

/// Returns the resident bytes from /proc; 0 if unknown.
fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: u64 = statm.split_whitespace().nth(1).and_then(|pages| pages.parse().ok()).unwrap_or(0);
    pages * rustix::param::page_size() as u64
}

fn session(core: &Core) -> SessionStats {
    let dedup = core.dedup.stats();
    SessionStats {
        bytes_in: dedup.bytes_in,
        bytes_stored: dedup.bytes_stored,
        chunks_stored: dedup.chunks_stored,
        segments_known: dedup.segments_known,
        nodes_stored: dedup.nodes_stored,
        commits: core.committer.rounds(),
    }
}
