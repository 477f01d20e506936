//! A pool in memory that counts its reads.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use dedupfs::reclaim::HISTORY_FILE;
use dedupfs::{NoProgress, OpenOptions as PoolOptions, Pool, format_on};
use dedupfs_service::{FileService, ROOT_INO};
use dedupfs_store::device::observed::{Call, ObservedDevice, Observer};
use dedupfs_store::device::{Device, MemoryDevice, OpenMode};
use dedupfs_store::recipe::Root;
use dedupfs_store::superblock::PoolProperties;
use dedupfs_store::{ContainerKind, ContainerRecord, Fingerprint, Result, StoreError};
use parking_lot::Mutex;

pub const CONTAINER_BYTES: u32 = 256 << 10;

#[derive(Debug, Default)]
struct Reads {
    /// Bytes read, by the directory.
    bytes: Mutex<HashMap<String, u64>>,
    /// Bytes of reads and writes, but for content and the namespace.
    moved_bytes: AtomicU64,
    /// Extra time for each sync of the index of chunks: counting waits for checkpoints, so it falls behind.
    index_delay_ms: AtomicU64,
    /// Whether noting the history of reclaiming fails for lack of space.
    refuses_history: AtomicBool,
}

/// Whether bytes are of content, since tables of containers are shorter than what is read or written of their content at once, or of the
/// namespace, which is written by rounds and grows in steps.
fn is_left_out(path: &str, len_bytes: usize) -> bool {
    let is_of_container = path.starts_with("containers/") || path.starts_with("recipes/");
    (is_of_container && len_bytes >= 32 << 10) || path == "namespace.redb"
}

impl Observer for Reads {
    fn around(&self, call: &Call<'_>, perform: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        if let Some((path, _, len_bytes)) = call.read() {
            let directory = path.rsplit_once('/').map_or("", |(directory, _)| directory);
            *self.bytes.lock().entry(directory.to_owned()).or_insert(0) += len_bytes as u64;
        }
        let moved = match call {
            Call::Write { path, len_bytes, .. } => Some((*path, *len_bytes)),
            call => call.read().map(|(path, _, len_bytes)| (path, len_bytes)),
        };
        if let Some((_, len_bytes)) = moved.filter(|(path, len_bytes)| !is_left_out(path, *len_bytes)) {
            self.moved_bytes.fetch_add(len_bytes as u64, Ordering::Relaxed);
        }
        if let Call::Open { path, mode: OpenMode::CreateNew | OpenMode::CreateOrWrite } = call
            && path.starts_with(HISTORY_FILE)
            && self.refuses_history.load(Ordering::Relaxed)
        {
            return Err(StoreError::NoSpace { operation: "create", path: (*path).to_owned() });
        }
        if let Call::Sync { path } = call
            && path.starts_with("index/chunks")
        {
            std::thread::sleep(Duration::from_millis(self.index_delay_ms.load(Ordering::Relaxed)));
        }
        perform()
    }
}

pub struct Site {
    device: Arc<dyn Device>,
    reads: Arc<Reads>,
}

impl Site {
    pub fn new() -> Self {
        Self::with_buckets(4)
    }

    /// Tankers have so many buckets.
    pub fn with_buckets(tanker_buckets: u32) -> Self {
        let reads = Arc::new(Reads::default());
        let device: Arc<dyn Device> = Arc::new(ObservedDevice::new(Arc::new(MemoryDevice::new()), reads.clone()));
        let properties = PoolProperties {
            chunk_size_bytes: 4096,
            container_bytes: CONTAINER_BYTES,
            slots_per_file: 8,
            tanker_cells: 256,
            tanker_buckets,
            ..PoolProperties::default()
        };
        format_on(&device, &device, b".".to_vec(), &properties, (0, 0)).expect("formats");
        Self { device, reads }
    }

    pub fn device(&self) -> &dyn Device {
        &*self.device
    }

    pub fn open(&self) -> Arc<Pool> {
        self.open_with(&PoolOptions::default())
    }

    /// Opens the pool and rebuilds its indexes.
    pub fn open_rebuilding(&self) -> Arc<Pool> {
        self.open_with(&PoolOptions { rebuild_index: true, ..PoolOptions::default() })
    }

    fn open_with(&self, options: &PoolOptions) -> Arc<Pool> {
        Pool::open_on(&self.device, &self.device, Vec::new(), options, &NoProgress).expect("opens")
    }

    /// Makes a container unreadable. Returns its bytes.
    pub fn spoil(&self, record: &ContainerRecord) -> Vec<u8> {
        let noise = vec![0xa5; record.used_bytes as usize];
        self.replace(record, &noise)
    }

    /// Replaces the bytes of a container. Returns the old ones.
    pub fn replace(&self, record: &ContainerRecord, bytes: &[u8]) -> Vec<u8> {
        let directory = if record.kind == ContainerKind::Recipe { "recipes" } else { "containers" };
        let path = format!("{directory}/{:06}.slots", record.address.file);
        let file = self.device.open(&path, OpenMode::Write).expect("opens");
        let offset = u64::from(record.address.slot) * u64::from(CONTAINER_BYTES);
        let mut before = vec![0; bytes.len()];
        file.read_exact_at(&mut before, offset).expect("reads");
        file.write_at(bytes, offset).expect("writes");
        before
    }

    /// Makes noting the history of reclaiming fail for lack of space.
    pub fn refuse_history(&self) {
        self.reads.refuses_history.store(true, Ordering::Relaxed);
    }

    /// Slows counting down.
    pub fn slow_the_index(&self) {
        self.reads.index_delay_ms.store(20, Ordering::Relaxed);
    }

    fn read_bytes(&self, directory: &str) -> u64 {
        let reads = self.reads.bytes.lock();
        reads.iter().filter(|(path, _)| path.starts_with(directory)).map(|(_, bytes)| bytes).sum()
    }

    /// Bytes of reads and writes, but for content and the namespace.
    pub fn moved_bytes(&self) -> u64 {
        self.reads.moved_bytes.load(Ordering::Relaxed)
    }

    pub fn data_read_bytes(&self) -> u64 {
        self.read_bytes("containers")
    }

    /// Bytes of the files of the export, without the copies of recipes.
    pub fn export_bytes(&self) -> u64 {
        self.device.list("export").expect("lists").iter().map(|entry| entry.len_bytes).sum()
    }

    pub fn export_read_bytes(&self) -> u64 {
        self.read_bytes("export")
    }

    pub fn chunk_index_read_bytes(&self) -> u64 {
        self.read_bytes("index/chunks")
    }

    pub fn node_index_read_bytes(&self) -> u64 {
        self.read_bytes("index/recipes")
    }

    /// Returns the fingerprints of a file's chunks, in order.
    pub fn chunks_of(&self, pool: &Pool, name: &str) -> Vec<Fingerprint> {
        let core = pool.core();
        let service = pool.service();
        let ino = service.lookup(ROOT_INO, name.as_bytes()).expect("is there").ino;
        service.forget(ino, 1);
        let root = core.namespace.inode(ino).expect("reads").expect("is there").root;
        let Root::Node { level, child } = root else { panic!("{root:?} is small") };
        let (mut chunks, mut stack) = (Vec::new(), vec![(level, child)]);
        while let Some((level, child)) = stack.pop() {
            let view = core.dedup.nodes().node(level, &child).expect("reads");
            if level == 0 {
                chunks.extend(view.children().iter().map(|chunk| chunk.fingerprint));
            } else {
                stack.extend(view.children().iter().rev().map(|child| (level - 1, *child)));
            }
        }
        chunks
    }
}

pub fn remove(service: &dyn FileService, name: &str) {
    service.unlink(ROOT_INO, name.as_bytes()).expect("unlinks");
}
