//! The index and its life cycle. Lookups are in `lookup`, changes in `apply`, durability in `checkpoint`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dedupfs_store::device::Device;
use dedupfs_store::{ContainerId, Fingerprint, PoolId, Result, StoreError};
use dedupfs_sync::{Mutex, OnceLock, RwLock};

use crate::bloom::{FilterArray, Fullness};
use crate::cell::Location;
use crate::guide::{Guide, GuideWork, UNGUIDED_USUALLY, guided_by};
use crate::locality::{ContainerTables, LocalityCache};
use crate::lost::LostSet;
use crate::manifest::{Extent, Manifest};
use crate::names::{MANIFEST_NAME, join};
use crate::occupancy::{Occupancy, Tally, load_occupancy};
use crate::open::file::OpenFile;
use crate::open::{OpenTanker, shard_of};
use crate::options::IndexOptions;
use crate::sealed::{PageCache, SealedSet, SealedTanker, Writer, load_summaries};

/// The fingerprint index of one kind of object of one pool. Shared by reference between threads.
#[derive(Debug)]
pub struct Index {
    pub(crate) device: Arc<dyn Device>,
    pub(crate) directory: String,
    pub(crate) pool: PoolId,
    pub(crate) options: IndexOptions,
    pub(crate) open: OpenTanker,
    pub(crate) sealed: RwLock<Arc<SealedSet>>,
    pub(crate) cache: PageCache,
    pub(crate) filters: Arc<FilterArray>,
    /// Limit of all filters, also those of guides: [`IndexOptions::filter_bytes`] at opening.
    pub(crate) filter_limit_bytes: AtomicU64,
    pub(crate) locality: LocalityCache,
    /// Set later: the index is opened before the container store.
    pub(crate) tables: OnceLock<Arc<dyn ContainerTables>>,
    pub(crate) occupancy: Occupancy,
    pub(crate) checkpointer: Mutex<Checkpointer>,
    pub(crate) applier: Mutex<Applier>,
    pub(crate) open_file_bytes: AtomicU64,
    pub(crate) position: AtomicU64,
    pub(crate) cells: AtomicU64,
    pub(crate) staged: AtomicU64,
    /// Bytes of the frozen state that is being written.
    pub(crate) frozen_bytes: AtomicU64,
    pub(crate) lost: AtomicU64,
    pub(crate) lost_set: LostSet,
    pub(crate) guide_work: Mutex<GuideWork>,
    /// Held while filters of guides are loaded.
    pub(crate) guides_loading: Mutex<()>,
    pub(crate) checkpoints: AtomicU64,
}

/// The state that belongs to the writer of a checkpoint.
#[derive(Debug)]
pub(crate) struct Checkpointer {
    /// Number of the last attempt, successful or not.
    pub(crate) generation: u64,
    pub(crate) next_tanker: u64,
    /// The open tanker's file of the last checkpoint.
    pub(crate) open_file: OpenFile,
    /// The version of the open tanker in this file.
    pub(crate) open_version: u64,
    pub(crate) extent: Extent,
    /// Whether there may be files that neither the last checkpoint nor this one names: then all are looked at.
    pub(crate) has_leftovers: bool,
}

/// The state that belongs to the thread that changes committed cells.
#[derive(Debug)]
pub(crate) struct Applier {
    pub(crate) applied: u64,
    /// The last complete row: it was frozen for a checkpoint, or the opened checkpoint held it.
    pub(crate) frozen: u64,
    /// Number of changes of the open tanker since the index was opened.
    pub(crate) open_version: u64,
}

impl Index {
    /// Creates an empty index at row 0 in `directory`, durably.
    pub fn create(device: &Arc<dyn Device>, directory: &str, pool: &PoolId, options: IndexOptions) -> Result<()> {
        options.check()?;
        device.create_directory(directory)?;
        if device.exists(&join(directory, MANIFEST_NAME))? {
            return Err(StoreError::Usage(format!("there is an index in {directory} already")));
        }
        Self::initialise(&**device, directory, pool, &Manifest::empty(0, Extent::Whole))
    }

    /// Writes a first manifest and makes its directory durable with its parents.
    pub(crate) fn initialise(device: &dyn Device, directory: &str, pool: &PoolId, manifest: &Manifest) -> Result<()> {
        device.create_directory(directory)?;
        manifest.replace(device, directory, pool)?;
        let mut child = directory;
        while !child.is_empty() {
            child = child.rsplit_once('/').map_or("", |(parent, _)| parent);
            device.sync_directory(child)?;
        }
        Ok(())
    }

    /// The largest possible number of fingerprints of the index in `directory`, from its manifest alone.
    pub fn cells_at_most(device: &dyn Device, directory: &str, pool: &PoolId, cells_per_tanker: u32) -> Result<u64> {
        let manifest = Manifest::read(device, directory, pool)?;
        Ok(u64::from(manifest.open.cells) + manifest.tankers.len() as u64 * u64::from(cells_per_tanker))
    }

    /// Opens the index in `directory` as of its last checkpoint. The caller must apply the rows after
    /// [`position`](Self::position) again. Writes nothing.
    ///
    /// Cost: reads the manifest, the open tanker's file, the directories of guides (0.006 bytes for each cell), and for each
    /// sealed tanker of 2^20 cells two directories (some 20 KiB) and lists of its containers (some 100 KiB), and its filter
    /// (6 MiB) if no guide leads to it; no cells.
    pub fn open(device: &Arc<dyn Device>, directory: &str, pool: &PoolId, options: IndexOptions) -> Result<Self> {
        let index = Self::open_any(device, directory, pool, options)?;
        if index.checkpointer.lock().extent == Extent::Unfinished {
            let expected = "a complete index (`dedupfs fsck` builds it again)";
            return Err(StoreError::corrupt(format!("the index in {directory}"), expected, "an unfinished rebuild"));
        }
        Ok(index)
    }

    /// As [`open`](Self::open), but accepts an unfinished rebuild.
    pub(crate) fn open_any(
        device: &Arc<dyn Device>,
        directory: &str,
        pool: &PoolId,
        options: IndexOptions,
    ) -> Result<Self> {
        options.check()?;
        // A failed checkpoint may have left a manifest that is visible but not durable, and its position will be used.
        device.sync_directory(directory)?;
        let manifest = Manifest::read(&**device, directory, pool)?;
        let cache = PageCache::new(options.cache_bytes);
        let cells_per_tanker = options.cells_per_tanker;
        let array = |fullest, tankers, limit_bytes| {
            FilterArray::new(cells_per_tanker, Fullness::new(fullest, cells_per_tanker), tankers, limit_bytes)
        };
        // The fullness of the tankers decides the shape of their filters. It is known when they are open.
        let none = array(cells_per_tanker, 0, 0);
        let writer = Writer { device: &**device, directory, pool, cache: &cache, filters: &none, cells_per_tanker };
        let tankers =
            manifest.tankers.iter().map(|names| SealedTanker::open(writer, names)).collect::<Result<Vec<_>>>()?;
        let guides = Guide::open_all(writer, &manifest.guides);
        let guided = guided_by(guides.iter());
        let fullest = tankers.iter().map(SealedTanker::cells).max().unwrap_or(0);
        let fullest = fullest.max(options.sealed_cells() as u32);
        let unguided = tankers.iter().filter(|tanker| !guided.contains(&tanker.id)).count() as u64;
        // Guides need most of it in a large index.
        let array_bytes = if guides.is_empty() { options.filter_bytes } else { options.filter_bytes / 2 };
        // Columns for the tankers until the next guide, so that the limit that guides leave suffices for them.
        let unguided = if guides.is_empty() { unguided } else { unguided.max(UNGUIDED_USUALLY) };
        let filters = array(fullest, unguided, array_bytes);
        let writer = Writer { filters: &filters, ..writer };
        let tankers = load_summaries(writer, tankers, &guided);
        let entries = manifest.open.read(writer)?;
        let open = OpenTanker::new();
        open.replace_cells(&entries);
        if open.cell_count() != entries.len() {
            let expected = format!("{} different fingerprints", entries.len());
            return Err(StoreError::corrupt(format!("open tanker in {directory}"), expected, open.cell_count()));
        }
        // Lost cells name no container: the tankers' lists count them under `NONE`.
        let lost_open = || entries.iter().filter(|entry| entry.cell.location.is_lost());
        let lost_sealed = tankers.iter().filter_map(|tanker| tanker.containers.of(ContainerId::NONE));
        let lost_sealed = lost_sealed.map(|share| u64::from(share.cells)).sum::<u64>();
        let lost = lost_open().count() as u64 + lost_sealed;
        let lost_set = LostSet::opened(
            lost_open().map(|entry| &entry.fingerprint),
            tankers.iter().any(|tanker| tanker.may_have_lost()),
        );
        let occupancy = load_occupancy(writer, &tankers);
        occupancy.add(Tally::of(entries.iter().map(|entry| entry.cell)).iter());
        let cells = entries.len() as u64 + tankers.iter().map(|tanker| u64::from(tanker.cells())).sum::<u64>();
        Ok(Self {
            device: device.clone(),
            directory: directory.to_owned(),
            pool: *pool,
            options,
            open,
            sealed: RwLock::new(Arc::new(SealedSet::new(0, tankers, filters.clone(), guides))),
            cache,
            filters,
            filter_limit_bytes: AtomicU64::new(options.filter_bytes),
            locality: LocalityCache::new(options.locality_bytes),
            tables: OnceLock::new(),
            occupancy,
            checkpointer: Mutex::new(Checkpointer {
                generation: manifest.generation,
                next_tanker: manifest.next_tanker,
                open_file: manifest.open,
                open_version: 0,
                extent: manifest.extent,
                has_leftovers: true,
            }),
            applier: Mutex::new(Applier { applied: manifest.position, frozen: manifest.position, open_version: 0 }),
            open_file_bytes: AtomicU64::new(manifest.open.bytes),
            position: AtomicU64::new(manifest.position),
            cells: AtomicU64::new(cells),
            staged: AtomicU64::new(0),
            frozen_bytes: AtomicU64::new(0),
            lost: AtomicU64::new(lost),
            lost_set,
            guide_work: Mutex::default(),
            guides_loading: Mutex::default(),
            checkpoints: AtomicU64::new(0),
        })
    }

    /// The last row of the operations log whose effects the checkpoint on disk holds.
    ///
    /// Earlier rows may be dropped once a checkpoint of this session has succeeded. Before that they may not: if the
    /// previous session ended after a failed sync, the opened manifest might not survive a power loss.
    pub fn position(&self) -> u64 {
        self.position.load(Ordering::Acquire)
    }

    /// Number of committed cells.
    pub fn len(&self) -> u64 {
        self.cells.load(Ordering::Relaxed)
    }

    /// Number of committed cells that are [lost](Location::Lost).
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Whether there is no committed cell.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn sealed_set(&self) -> Arc<SealedSet> {
        self.sealed.read().clone()
    }

    /// Makes a fingerprint visible to lookups at once, before its row is applied. It is not part of the committed
    /// state.
    pub fn stage(&self, fingerprint: &Fingerprint, location: Location) {
        if !fingerprint.is_zero() {
            let mut shard = self.open.write(shard_of(fingerprint));
            let before = shard.recent.len();
            shard.recent.insert(*fingerprint, location);
            if location.is_lost() {
                self.lost_set.note(&shard, fingerprint, true);
            }
            self.staged.fetch_add((shard.recent.len() - before) as u64, Ordering::Relaxed);
        }
    }

    /// Number of staged fingerprints.
    pub fn staged(&self) -> u64 {
        self.staged.load(Ordering::Relaxed)
    }

    /// Limit in bytes of all filters, also those of guides.
    pub fn filter_limit_bytes(&self) -> u64 {
        self.filter_limit_bytes.load(Ordering::Relaxed)
    }

    /// Raises that limit, in bytes; a smaller one changes nothing. It takes effect when filters of guides are
    /// [loaded](Self::load_guides) the next time: these may become finer then, and those of tankers that are sealed later have
    /// more room.
    pub fn raise_filter_limit(&self, limit_bytes: u64) {
        self.filter_limit_bytes.fetch_max(limit_bytes, Ordering::Relaxed);
    }

    /// Limit of pending changes, staged or logged and not applied. At half of it they should be applied; at the limit
    /// nobody should make more. See [`IndexOptions::open_bytes`].
    pub fn pending_max(&self) -> u64 {
        self.options.pending_max()
    }

    /// Limit of those changes of one row that give a new fingerprint its place: open tankers fill with them.
    pub fn pending_places_max(&self) -> u64 {
        self.options.pending_places_max()
    }

    /// Number of changes that [`apply`](Self::apply) should get at a time. Each bucket is read once for all of them.
    pub fn changes_at_once(&self) -> u64 {
        self.options.changes_at_once()
    }

    pub(crate) fn writer(&self) -> Writer<'_> {
        Writer {
            device: &*self.device,
            directory: &self.directory,
            pool: &self.pool,
            cache: &self.cache,
            filters: &self.filters,
            cells_per_tanker: self.options.cells_per_tanker,
        }
    }
}
