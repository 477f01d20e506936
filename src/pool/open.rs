//! Opening a pool, with recovery.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dedupfs_index::filter::FilterPlan;
use dedupfs_index::{ContainerTables, Index};
use dedupfs_store::container::{Compression, SlotFiles};
use dedupfs_store::device::Device;
use dedupfs_store::device::file::FileDevice;
use dedupfs_store::device::lock::PoolLock;
use dedupfs_store::superblock::{Role, Superblock};
use dedupfs_store::{ContainerId, ContainerKind, Fingerprint, StoreError};
use parking_lot::Mutex;

use super::core::Core;
use super::gate::Gate;
use super::indexes::{self, IndexSources, Rebuild, index_advice};
use super::progress::Progress;
use super::space::{ContentCost, PoolHoldings, SpaceGuard, SpaceLimits};
use super::{NoProgress, Pool};
use crate::check::RebuildReport;
use crate::chunker::{self, Chunker};
use crate::commit::{CommitParts, Committer};
use crate::config::{
    BATCH_BYTES, BATCHES_IN_FLIGHT_MAX, COMMIT_INTERVAL, DATA_REGION_BYTES, MEMORY_BYTES_DEFAULT, MemoryPlan,
    OPEN_CONTAINERS_MAX, PUBLISH_AFTER, PUBLISH_PATIENCE, RECIPE_REGION_BYTES,
};
use crate::containers::{ContainerOptions, ContainerStore, WorkerPool};
use crate::dedup::{ContainerChunks, DedupParts, Deduplicator, Fetcher};
use crate::error::{EngineError, Result};
use crate::file::FileContext;
use crate::fingerprint::Fingerprinter;
use crate::gauge::Gauge;
use crate::ingest::{BufferPool, IngestContext};
use crate::namespace::Namespace;
use crate::recipe::segmenter::SegmentRule;
use crate::service::Service;

const DATA_DIRECTORY: &str = "containers";
const RECIPE_DIRECTORY: &str = "recipes";

/// How to open a pool.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// Bound of caches and buffers.
    pub memory_bytes: u64,
    /// Clients may not change anything.
    pub read_only: bool,
    /// Told to a second opener: "dedupfs mount /mnt".
    pub note: String,
    /// Longest time until a closed file is durable.
    pub commit_interval: Duration,
    /// Which filters look chunks up, in which order.
    pub filters: FilterPlan,
    /// What the pool may occupy, besides the sizes of its disks.
    pub limits: SpaceLimits,
    /// Make the index anew from containers and namespace.
    pub rebuild_index: bool,
    /// Read all content for that, and give up chunks that are damaged.
    pub rebuild_reads_data: bool,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self {
            memory_bytes: MEMORY_BYTES_DEFAULT,
            read_only: false,
            note: "dedupfs".to_owned(),
            commit_interval: COMMIT_INTERVAL,
            filters: FilterPlan::default(),
            limits: SpaceLimits::default(),
            rebuild_index: false,
            rebuild_reads_data: false,
        }
    }
}

/// What opening had to do after an unclean end.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RecoveryReport {
    /// Log rows replayed into the indexes.
    pub rows_replayed: u64,
    /// Files dropped that had been unlinked while they were open.
    pub orphans_dropped: u64,
    /// Time it took.
    pub elapsed_ms: u64,
}

impl Pool {
    /// Opens the pool whose meta root is `meta`, alone: a second opener is told who has it.
    ///
    /// # Errors
    /// Not a pool, damaged or of another version; data root missing or of another pool; `Busy`; I/O errors.
    pub fn open(meta: &Path, options: &OpenOptions) -> Result<Arc<Self>> {
        Self::open_with_progress(meta, options, &NoProgress)
    }

    /// As [`open`](Self::open), telling the progress of a rebuild.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_with_progress(meta: &Path, options: &OpenOptions, progress: &dyn Progress) -> Result<Arc<Self>> {
        if !meta.is_dir() {
            return Err(StoreError::NotFound { path: meta.display().to_string() }.into());
        }
        let meta_device: Arc<dyn Device> = Arc::new(FileDevice::open(meta)?);
        let superblock = Superblock::read(&*meta_device, Role::Meta)?;
        let mut locks = vec![PoolLock::acquire(meta, &options.note)?];
        let data_root = superblock.data_root_path(meta);
        let data_device: Arc<dyn Device> = if superblock.data_root == b"." {
            meta_device.clone()
        } else {
            let device = FileDevice::open(&data_root).map_err(|error| missing_data_root(&data_root, &error))?;
            // Read before anything is written: it may be the directory on which the disk should be mounted.
            Superblock::read(&device, Role::Data)?;
            // A copy of the meta root names the same data root: two writers there would destroy it.
            locks.push(PoolLock::acquire(&data_root, &options.note)?);
            Arc::new(device)
        };
        Self::open_on(&meta_device, &data_device, locks, options, progress)
    }

    /// Opens the pool on these devices.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_on(
        meta_device: &Arc<dyn Device>,
        data_device: &Arc<dyn Device>,
        locks: Vec<PoolLock>,
        options: &OpenOptions,
        progress: &dyn Progress,
    ) -> Result<Arc<Self>> {
        let started = Instant::now();
        let meta = Superblock::read(&**meta_device, Role::Meta)?;
        let data = Superblock::read(&**data_device, Role::Data)?;
        Superblock::check_pair(&meta, &data)?;
        let memory = MemoryPlan::new(options.memory_bytes, indexes::chunks_at_most(&**meta_device, &meta));
        let fingerprinter = Fingerprinter::new(meta.properties.fingerprint);
        let rebuild = options.rebuild_index.then_some(Rebuild { options, fingerprinter: &fingerprinter, progress });
        let parts = Parts::open(meta_device, data_device, &meta, &memory, rebuild.as_ref())?;
        let rebuilt = parts.rebuilt;
        parts.check_positions()?;
        if !options.read_only && rebuild.is_none() {
            parts.check_files()?;
        }
        if !options.read_only {
            indexes::clear_away(&**meta_device, parts.namespace.index_side());
        }
        let space = parts.space(&meta, options.limits)?;
        // The recipe index has none: nodes are freed one by one, which leaves few containers whole.
        parts.chunk_index.set_container_tables(Arc::new(TablesOf(parts.data.clone())));
        let dedup = Arc::new(Deduplicator::new(DedupParts {
            data: parts.data.clone(),
            recipes: parts.recipes.clone(),
            chunk_index: parts.chunk_index.clone(),
            recipe_index: parts.recipe_index.clone(),
            chain: options
                .filters
                .chain(&parts.chunk_index, || Arc::new(ContainerChunks::new(parts.data.clone(), fingerprinter))),
            fingerprinter,
            namespace: parts.namespace.clone(),
            node_cache_bytes: memory.node_cache_bytes,
        }));
        let committer = Committer::new(CommitParts {
            namespace: parts.namespace.clone(),
            data: parts.data.clone(),
            recipes: parts.recipes.clone(),
            chunk_index: parts.chunk_index.clone(),
            recipe_index: parts.recipe_index.clone(),
            dedup: dedup.clone(),
            space: space.guard.clone(),
        });
        let rows_replayed = committer.replay().map_err(replay_advice)?;
        let mut recovery = RecoveryReport { rows_replayed, ..RecoveryReport::default() };
        for ino in parts.namespace.orphans()? {
            parts.namespace.drop_orphan(ino)?;
            recovery.orphans_dropped += 1;
        }
        recovery.elapsed_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
        let core = Arc::new(parts.into_core(&meta, memory, options.read_only, dedup, committer, space));
        let service = Service::new(core.clone());
        let for_thread = Arc::downgrade(&service);
        let publish_old = Box::new(move || {
            if let Some(service) = for_thread.upgrade() {
                // Each file remembers its own error for whoever has it open.
                let _remembered = service.publish_all(Some(PUBLISH_AFTER), Some(PUBLISH_PATIENCE));
            }
        });
        let commit_thread = core.committer.start(options.commit_interval, publish_old)?;
        if recovery.rows_replayed > 0 || recovery.orphans_dropped > 0 {
            tracing::info!(?recovery, "recovered after an unclean end");
        }
        Ok(Arc::new(Self {
            core,
            service,
            commit_thread: Mutex::new(Some(commit_thread)),
            exclusive: Mutex::new(()),
            recovery,
            rebuilt,
            _locks: locks,
        }))
    }
}

fn missing_data_root(root: &Path, error: &StoreError) -> StoreError {
    StoreError::Usage(format!(
        "the pool's data root {} cannot be opened ({error}): mount the disk that holds it, or check its permissions",
        root.display()
    ))
}

/// Gives the index the tables of containers.
struct TablesOf(Arc<ContainerStore>);

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

/// What counts the room that a pool has, and the places that count what it holds.
struct Accounting {
    guard: Arc<SpaceGuard>,
    cost: ContentCost,
    streams: Arc<Gauge>,
    dirty: Arc<Gauge>,
    chunker: Arc<dyn Chunker>,
}

/// The durable parts.
struct Parts {
    meta_device: Arc<dyn Device>,
    data_device: Arc<dyn Device>,
    workers: Arc<WorkerPool>,
    namespace: Arc<Namespace>,
    data: Arc<ContainerStore>,
    recipes: Arc<ContainerStore>,
    chunk_index: Arc<Index>,
    recipe_index: Arc<Index>,
    rebuilt: Option<RebuildReport>,
}

impl Parts {
    fn open(
        meta_device: &Arc<dyn Device>,
        data_device: &Arc<dyn Device>,
        superblock: &Superblock,
        memory: &MemoryPlan,
        rebuild: Option<&Rebuild<'_>>,
    ) -> Result<Self> {
        let threads = std::thread::available_parallelism().map_or(2, std::num::NonZero::get);
        let workers = Arc::new(WorkerPool::new(threads));
        let namespace = Arc::new(Namespace::open(&**meta_device, memory.namespace_cache_bytes)?);
        let properties = &superblock.properties;
        let records = namespace.containers()?;
        let open_store = |kind: ContainerKind| -> Result<Arc<ContainerStore>> {
            let recipe = kind == ContainerKind::Recipe;
            let (device, directory) =
                if recipe { (meta_device, RECIPE_DIRECTORY) } else { (data_device, DATA_DIRECTORY) };
            let slots =
                SlotFiles::open(device.clone(), directory, properties.container_bytes, properties.slots_per_file)?;
            let (share, of) = if recipe { (1, 8) } else { (7, 8) };
            let options = ContainerOptions {
                pool: superblock.pool,
                kind,
                compression: if recipe { Compression::Zstd(1) } else { properties.compression },
                container_bytes: properties.container_bytes,
                region_raw_bytes: if recipe { RECIPE_REGION_BYTES } else { DATA_REGION_BYTES }
                    .min(properties.container_bytes / 4),
                open_limit: OPEN_CONTAINERS_MAX,
                in_flight_limit_bytes: memory.in_flight_bytes / of * share,
                region_cache_bytes: memory.region_cache_bytes / of * share,
                table_cache_bytes: memory.table_cache_bytes / of * share,
            };
            let own: Vec<_> = records.iter().filter(|record| record.kind == kind).cloned().collect();
            let ids = namespace.clone();
            ContainerStore::open(slots, options, workers.clone(), &own, Arc::new(move || ids.next_container_id()))
        };
        let data = open_store(ContainerKind::Data)?;
        let recipes = open_store(ContainerKind::Recipe)?;
        let sources = IndexSources {
            device: meta_device,
            superblock,
            memory,
            namespace: &namespace,
            data: &data,
            recipes: &recipes,
        };
        let (chunk_index, recipe_index, rebuilt) = match rebuild {
            None => {
                let (chunk_index, recipe_index) = sources.open()?;
                (chunk_index, recipe_index, None)
            }
            Some(rebuild) => {
                let (chunk_index, recipe_index, report) = sources.rebuild(rebuild)?;
                (chunk_index, recipe_index, Some(report))
            }
        };
        Ok(Self {
            chunk_index: Arc::new(chunk_index),
            recipe_index: Arc::new(recipe_index),
            meta_device: meta_device.clone(),
            data_device: data_device.clone(),
            workers,
            namespace,
            data,
            recipes,
            rebuilt,
        })
    }

    /// An index from another time than the namespace would count wrongly, and reclaiming would free what is alive.
    fn check_positions(&self) -> Result<()> {
        let (trimmed_through, last_row) = (self.namespace.trimmed_through(), self.namespace.last_row());
        let side = self.namespace.index_side();
        for (directory, index) in
            [(indexes::chunk_index(side), &self.chunk_index), (indexes::recipe_index(side), &self.recipe_index)]
        {
            if !(trimmed_through..=last_row).contains(&index.position()) {
                let expected = format!("a log row of {trimmed_through} to {last_row}");
                let found = StoreError::corrupt("position", expected, index.position());
                return Err(index_advice(directory, found).into());
            }
        }
        Ok(())
    }

    /// Whether an index places anything in a container whose file is not there.
    fn needs_missing(&self) -> Result<bool> {
        for (store, index) in [(&self.data, &self.chunk_index), (&self.recipes, &self.recipe_index)] {
            let containers: HashSet<ContainerId> = store.missing_containers().into_iter().collect();
            let mut needed = false;
            index.for_each(&mut |_, cell| {
                needed |= containers.contains(&cell.location.container);
                Ok(())
            })?;
            if needed {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// What is written to a pool that misses a file would be taken for known where it is lost. Once the index is made
    /// anew it says what is lost, and is asked.
    fn check_files(&self) -> Result<()> {
        let missing = [self.data.missing_files(), self.recipes.missing_files()].concat();
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

    /// Counts what the pool holds, from here on.
    fn space(&self, superblock: &Superblock, limits: SpaceLimits) -> Result<Accounting> {
        let properties = &superblock.properties;
        let chunker = chunker::chunker(properties.chunker, properties.chunk_size_bytes);
        let region_bytes = DATA_REGION_BYTES.min(properties.container_bytes / 4);
        let cost = ContentCost::new(&*chunker, properties.container_bytes, region_bytes);
        let (streams, dirty) = (Arc::<Gauge>::default(), Arc::<Gauge>::default());
        let holdings = PoolHoldings {
            cost,
            streams: streams.clone(),
            dirty: dirty.clone(),
            meta_device: self.meta_device.clone(),
            namespace: self.namespace.clone(),
            data: self.data.clone(),
            recipes: self.recipes.clone(),
            chunk_index: self.chunk_index.clone(),
            recipe_index: self.recipe_index.clone(),
            container_bytes: properties.container_bytes,
        };
        let guard = SpaceGuard::new(&self.data_device, &self.meta_device, limits, Box::new(holdings))?;
        Ok(Accounting { guard: Arc::new(guard), cost, streams, dirty, chunker })
    }

    fn into_core(
        self,
        superblock: &Superblock,
        memory: MemoryPlan,
        read_only: bool,
        dedup: Arc<Deduplicator>,
        committer: Arc<Committer>,
        space: Accounting,
    ) -> Core {
        let chunker = space.chunker;
        let ingest = Arc::new(IngestContext {
            dedup: dedup.clone(),
            buffers: BufferPool::new(4 * BATCHES_IN_FLIGHT_MAX, BATCH_BYTES + chunker.max_bytes()),
            chunker,
            workers: self.workers,
            rule: SegmentRule::new(superblock.properties.chunk_size_bytes, superblock.properties.container_bytes),
            held: space.streams,
        });
        let files = Arc::new(FileContext {
            ingest,
            chunks: Fetcher::new(self.data.clone(), self.chunk_index.clone()),
            dirty: space.dirty,
            dirty_limit_bytes: memory.dirty_bytes,
        });
        Core {
            pool: superblock.pool,
            properties: superblock.properties,
            memory,
            read_only,
            space: space.guard,
            cost: space.cost,
            meta_device: self.meta_device,
            data_device: self.data_device,
            namespace: self.namespace,
            data: self.data,
            recipes: self.recipes,
            chunk_index: self.chunk_index,
            recipe_index: self.recipe_index,
            dedup,
            files,
            committer,
            gate: Gate::default(),
        }
    }
}

/// What was written last and was not counted yet cannot be read: counting anew from the files does without it.
fn replay_advice(error: EngineError) -> EngineError {
    match error {
        EngineError::Store(error) => index_advice("index", error).into(),
        other => other,
    }
}
