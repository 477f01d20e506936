//! The durable parts of a pool, opened from its roots.

use std::collections::HashSet;
use std::sync::Arc;

use dedupfs_base::{EngineError, Gauge, Result};
use dedupfs_content::{
    BATCH_BYTES, BATCHES_IN_FLIGHT_MAX, BatchPool, Caches, Chunker, ContainerOptions, ContainerStore, Deduplicator,
    Fetcher, FileContext, Fingerprinter, Indexes, IngestContext, SegmentRule, Stores, WorkerPool, chunker,
};
use dedupfs_index::ContainerTables;
use dedupfs_namespace::Namespace;
use dedupfs_store::container::{Compression, SlotAddress, SlotFiles};
use dedupfs_store::device::Device;
use dedupfs_store::superblock::Superblock;
use dedupfs_store::{ContainerId, ContainerKind, Fingerprint, StoreError, profile};
use dedupfs_sync::Mutex;

use super::indexes::{IndexSources, index_advice};
use crate::config::{
    BATCH_BUFFERS_KEPT_SHARE, DATA_REGION_BYTES, DIRTY_FILE_BYTES_MAX, MemoryPlan, OPEN_CONTAINERS_MAX,
    RECIPE_REGION_BYTES,
};
use crate::durability::commit::Committer;
use crate::durability::export::{ExportParts, Exporter, Kept, check_owner, kept};
use crate::durability::indexes::{chunk_index, recipe_index};
use crate::durability::space::{ContentCost, PoolHoldings, SpaceGuard, SpaceLimits};
use crate::engine::gate::Gate;
use crate::engine::{Activity, Core};
use crate::upkeep::reclaim::ForwardingNotes;

/// Directory of the data containers on the data root.
pub(crate) const DATA_DIRECTORY: &str = "containers";
pub(crate) const RECIPE_DIRECTORY: &str = "recipes";

/// Which meta root may be opened with a data root.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Admission {
    /// The meta root that wrote it last.
    Owner,
    /// Any meta root: the data root is only read, and the meta root was made for a trial.
    Any,
}

/// Namespace and containers: the sources of an index.
pub(super) struct Sources {
    pub(super) meta_device: Arc<dyn Device>,
    pub(super) data_device: Arc<dyn Device>,
    pub(super) workers: Arc<WorkerPool>,
    pub(super) namespace: Arc<Namespace>,
    pub(super) stores: Stores,
    /// Slots of the data root with content that a recovery could not name, if anything is kept. The store treats them as taken.
    pub(super) kept: Option<Vec<SlotAddress>>,
}

impl Sources {
    pub(super) fn open(
        meta_device: &Arc<dyn Device>,
        data_device: &Arc<dyn Device>,
        superblock: &Superblock,
        memory: &MemoryPlan,
    ) -> Result<Self> {
        Self::open_as(meta_device, data_device, superblock, memory, Admission::Owner)
    }

    /// As [`open`](Self::open), for a meta root that `admission` lets in.
    pub(super) fn open_as(
        meta_device: &Arc<dyn Device>,
        data_device: &Arc<dyn Device>,
        superblock: &Superblock,
        memory: &MemoryPlan,
        admission: Admission,
    ) -> Result<Self> {
        let threads = dedupfs_sync::thread::available_parallelism().map_or(2, std::num::NonZero::get);
        let workers = Arc::new(WorkerPool::new(threads));
        let namespace =
            Arc::new(Namespace::open(&**meta_device, memory.namespace_cache_bytes, &|ancestry| match admission {
                Admission::Owner => check_owner(&**data_device, &superblock.pool, ancestry),
                Admission::Any => Ok(()),
            })?);
        let properties = &superblock.properties;
        let records = namespace.containers()?;
        // Reading content needs the one kind, reading versions with many small nodes the other.
        let caches = Arc::new(Caches::new(
            memory.region_cache_bytes,
            memory.table_cache_bytes,
            DATA_REGION_BYTES.max(RECIPE_REGION_BYTES),
            properties.container_bytes,
        ));
        let open_store = |kind: ContainerKind| -> Result<Arc<ContainerStore>> {
            let recipe = kind == ContainerKind::Recipe;
            let (device, directory) =
                if recipe { (meta_device, RECIPE_DIRECTORY) } else { (data_device, DATA_DIRECTORY) };
            let slots =
                SlotFiles::open(device.clone(), directory, properties.container_bytes, properties.slots_per_file)?;
            let options = ContainerOptions {
                pool: superblock.pool,
                kind,
                compression: if recipe { Compression::Zstd(1) } else { properties.compression },
                container_bytes: properties.container_bytes,
                region_raw_bytes: if recipe { RECIPE_REGION_BYTES } else { DATA_REGION_BYTES }
                    .min(properties.container_bytes / 4),
                open_limit: OPEN_CONTAINERS_MAX,
                in_flight_limit_bytes: MemoryPlan::share_of(kind, memory.in_flight_bytes),
                region_cache_bytes: MemoryPlan::share_of(kind, memory.region_cache_bytes),
                table_cache_bytes: memory.table_cache_bytes,
            };
            let own: Vec<_> = records.iter().filter(|record| record.kind == kind).cloned().collect();
            let ids = namespace.clone();
            let ids = Arc::new(move || ids.next_container_id());
            ContainerStore::open_sharing(caches.clone(), slots, options, workers.clone(), &own, ids)
        };
        let data = open_store(ContainerKind::Data)?;
        let recipes = open_store(ContainerKind::Recipe)?;
        let stores = Stores { data, recipes };
        ForwardingNotes::give(&stores, &**meta_device, &superblock.pool);
        // A recovered namespace may rest on no export.
        let has_exported = admission == Admission::Any || namespace.export_mark().exported.generation != 0;
        let kept = match kept(&**data_device, &superblock.pool, has_exported) {
            // A forced recovery goes on without what cannot be read.
            Err(EngineError::Store(StoreError::Io { .. })) if admission == Admission::Any => Kept::Unknown,
            kept => kept?,
        };
        let kept = match kept {
            Kept::Nothing => None,
            Kept::Slots(slots) => Some(stores.data.hold(slots)),
            Kept::Unknown => {
                // The exporter keeps the slots of containers that leave.
                let leaving = namespace.leaving_containers()?.into_iter();
                let leaving = leaving.filter(|record| record.kind == ContainerKind::Data);
                let leaving: HashSet<_> = leaving.map(|record| record.address).collect();
                let unnamed = stores.data.unnamed().into_iter().map(|(address, _)| address);
                let unnamed: Vec<_> = unnamed.filter(|address| !leaving.contains(address)).collect();
                (!unnamed.is_empty()).then(|| stores.data.hold(unnamed))
            }
        };
        let (meta_device, data_device) = (meta_device.clone(), data_device.clone());
        Ok(Self { meta_device, data_device, workers, namespace, stores, kept })
    }

    /// Returns the parts that an exporter works on.
    pub(super) fn export_parts(&self, superblock: &Superblock, is_enabled: bool) -> ExportParts {
        ExportParts {
            device: self.data_device.clone(),
            pool: superblock.pool,
            slot_bytes: superblock.properties.container_bytes,
            fingerprinter: Fingerprinter::new(superblock.properties.fingerprint),
            namespace: self.namespace.clone(),
            stores: self.stores.clone(),
            kept: self.kept.clone(),
            is_enabled,
            locks: std::sync::Weak::new(),
        }
    }

    /// Returns the sources from which the indexes are opened or rebuilt.
    pub(super) fn index_sources<'a>(&'a self, superblock: &'a Superblock, memory: &'a MemoryPlan) -> IndexSources<'a> {
        IndexSources { device: &self.meta_device, superblock, memory, namespace: &self.namespace, stores: &self.stores }
    }

    /// Names the missing slot files that container records point into.
    pub(super) fn missing_files(&self) -> Vec<String> {
        [self.stores.data.missing_files(), self.stores.recipes.missing_files()].concat()
    }

    /// Describes the missing slot files, for the report of a recovery.
    pub(super) fn missing_shortfall(&self) -> Option<String> {
        let missing = self.missing_files();
        let containers = self.stores.data.missing_containers().len() + self.stores.recipes.missing_containers().len();
        (!missing.is_empty())
            .then(|| format!("{} not there: {containers} containers are recorded in it", missing.join(", ")))
    }

    /// Counts the containers that a crash left open. Their bytes behind the mark are cut off.
    pub(super) fn unsealed_containers(&self) -> u64 {
        let records = self.stores.data.containers().into_iter().chain(self.stores.recipes.containers());
        records.filter(|record| !record.sealed).count() as u64
    }
}

/// The space guard, with the gauges that the other parts of the pool report to.
pub(super) struct Accounting {
    pub(super) guard: Arc<SpaceGuard>,
    cost: ContentCost,
    streams: Arc<Gauge>,
    dirty: Arc<Gauge>,
    chunker: Arc<dyn Chunker>,
}

/// The durable parts with their indexes.
pub(super) struct Parts {
    pub(super) sources: Sources,
    pub(super) indexes: Indexes,
}

impl std::ops::Deref for Parts {
    type Target = Sources;

    fn deref(&self) -> &Sources {
        &self.sources
    }
}

impl Parts {
    /// Checks that the indexes belong to the namespace. An index from another time would count wrongly, and reclaiming would free live
    /// content.
    pub(super) fn check_positions(&self) -> Result<()> {
        let (trimmed_through, last_row) = (self.namespace.trimmed_through(), self.namespace.last_row());
        let side = self.namespace.index_side();
        for (directory, index) in [(chunk_index(side), &self.indexes.chunks), (recipe_index(side), &self.indexes.nodes)]
        {
            if !(trimmed_through..=last_row).contains(&index.position()) {
                let expected = format!("a log row of {trimmed_through} to {last_row}");
                let found = StoreError::corrupt("position", expected, index.position());
                return Err(index_advice(directory, found, &self.missing_files()).into());
            }
        }
        Ok(())
    }

    /// Whether an index places a cell in a container whose slot file is missing.
    fn needs_missing(&self) -> Result<bool> {
        for (store, index) in [(&self.stores.data, &self.indexes.chunks), (&self.stores.recipes, &self.indexes.nodes)] {
            let containers: HashSet<ContainerId> = store.missing_containers().into_iter().collect();
            let mut needed = false;
            index.for_each(&mut |_, cell| {
                needed |= containers.contains(&cell.location.container());
                Ok(())
            })?;
            if needed {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Names the missing files for a pool that is only read; empty if no cell needs them. An index that cannot tell counts as needing
    /// them.
    pub(super) fn missing_files_that_count(&self) -> Vec<String> {
        let missing = self.missing_files();
        if missing.is_empty() || !self.needs_missing().unwrap_or(true) { Vec::new() } else { missing }
    }

    /// Refuses a pool with a missing slot file that an index still needs: new data would be deduplicated against the lost content. A
    /// rebuilt index knows its losses, so this check is not made after a rebuild.
    pub(super) fn check_files(&self) -> Result<()> {
        let missing = self.missing_files();
        if missing.is_empty() || !self.needs_missing()? {
            return Ok(());
        }
        Err(StoreError::Corrupt {
            what: "the pool".to_owned(),
            expected: format!("{} (containers are recorded in it)", missing.join(", ")),
            found: "no such file; put it back, or mount with `-o ro` to copy out what can be read, or give up what it held \
                    with `dedupfs fsck --rebuild-index POOL`: the next backup of the same data then heals the files"
                .to_owned(),
        }
        .into())
    }

    /// Starts to account for the room of the pool.
    pub(super) fn space(&self, superblock: &Superblock, limits: SpaceLimits) -> Result<Accounting> {
        let properties = &superblock.properties;
        let chunker = chunker(properties.chunker, properties.chunk_size_bytes);
        let region_bytes = DATA_REGION_BYTES.min(properties.container_bytes / 4);
        let cost = ContentCost::new(&*chunker, properties.container_bytes, region_bytes);
        let (streams, dirty) = (Arc::<Gauge>::default(), Arc::<Gauge>::default());
        let holdings = PoolHoldings {
            cost,
            streams: streams.clone(),
            dirty: dirty.clone(),
            meta_device: self.meta_device.clone(),
            namespace: self.namespace.clone(),
            stores: self.stores.clone(),
            indexes: self.indexes.clone(),
            container_bytes: properties.container_bytes,
        };
        let guard = SpaceGuard::new(&self.data_device, &self.meta_device, limits, Box::new(holdings))?;
        Ok(Accounting { guard: Arc::new(guard), cost, streams, dirty, chunker })
    }

    pub(super) fn into_core(
        self,
        superblock: &Superblock,
        memory: MemoryPlan,
        read_only: bool,
        dedup: Arc<Deduplicator>,
        committer: Arc<Committer>,
        (space, exporter): (Accounting, Arc<Exporter>),
    ) -> Core {
        let Self { sources, indexes } = self;
        let chunker = space.chunker;
        let files_memory = Arc::<Gauge>::default();
        let full_bytes = BATCH_BYTES + chunker.max_bytes();
        let kept_max = memory.files_bytes / BATCH_BUFFERS_KEPT_SHARE / full_bytes as u64;
        let kept_max = usize::try_from(kept_max).unwrap_or(usize::MAX).min(4 * BATCHES_IN_FLIGHT_MAX);
        let ingest = Arc::new(IngestContext {
            dedup: dedup.clone(),
            buffers: BatchPool::new(kept_max, full_bytes, files_memory.clone()),
            chunker,
            workers: sources.workers,
            rule: SegmentRule::new(superblock.properties.chunk_size_bytes, superblock.properties.container_bytes),
            held: space.streams,
            memory: files_memory,
            memory_limit_bytes: memory.files_bytes,
            scope: None,
            kept: None,
        });
        let files = Arc::new(FileContext {
            ingest,
            chunks: Fetcher::new(
                sources.stores.data.clone(),
                indexes.chunks.clone(),
                Fingerprinter::new(superblock.properties.fingerprint),
            ),
            dirty: space.dirty,
            dirty_file_limit_bytes: (memory.files_bytes / 2).min(DIRTY_FILE_BYTES_MAX),
        });
        Core {
            pool: superblock.pool,
            properties: superblock.properties,
            memory_at_opening: memory,
            memory_now: Mutex::new(memory),
            opened_read_only: read_only,
            space: space.guard,
            cost: space.cost,
            meta_device: sources.meta_device,
            data_device: sources.data_device,
            namespace: sources.namespace,
            stores: sources.stores,
            indexes,
            dedup,
            files,
            committer,
            exporter,
            gate: Gate::default(),
            activity: Activity::default(),
            opened: profile::Mark::now(),
        }
    }
}

/// Gives the index access to container tables.
pub(super) struct TablesOf(pub(super) Arc<ContainerStore>);

impl ContainerTables for TablesOf {
    fn read_table(
        &self,
        container: ContainerId,
        each: &mut dyn FnMut(Fingerprint, u32),
    ) -> dedupfs_store::Result<bool> {
        let Some(table) = self.0.table(container).map_err(EngineError::into_store)? else { return Ok(false) };
        table.entries.iter().for_each(|entry| each(entry.fingerprint, entry.len_bytes));
        Ok(true)
    }
}
