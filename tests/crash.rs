//! The power goes at any device operation: the pool opens, counts equal marks, what was synced is there, and every other
//! file is in one of the states that it went through, whole (invariants I-1 to I-4).
//!
//! A device that photographs the disk as a power loss would leave it, before every n-th operation; each photograph is
//! opened afterwards, checked, and written to again with the same data. The work writes, rewrites in place, renames over, removes, syncs and reclaims.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dedupfs::check::CheckOptions;
use dedupfs::pool::{NoProgress, OpenOptions as PoolOptions, Pool, format_on};
use dedupfs::reclaim::ReclaimOptions;
use dedupfs_fuse::service::{Caller, FileService, NewNode, OpenOptions, ROOT_INO, RenameFlags, WriteFlags};
use dedupfs_store::Result;
use dedupfs_store::device::{Device, DeviceFile, Entry, MemoryDevice, OpenMode, Space};
use dedupfs_store::superblock::PoolProperties;
use std::sync::Mutex;

const FILES: usize = 6;

/// All contents that a file had, in order; `None` where it did not exist.
#[derive(Clone, Default, Debug)]
struct History {
    states: Vec<Option<Vec<u8>>>,
    /// Position of the state that is durable for certain.
    durable: usize,
}

/// The disk at one moment, and what may be on it.
struct Photograph {
    operation: u64,
    disk: MemoryDevice,
    histories: Vec<History>,
}

#[derive(Debug, Default)]
struct Camera {
    operations: AtomicU64,
    every: u64,
    seed: u64,
    histories: Mutex<Vec<History>>,
    taken: Mutex<Vec<Photograph>>,
}

impl std::fmt::Debug for Photograph {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "photograph before operation {}", self.operation)
    }
}

impl Camera {
    fn see(&self, disk: &MemoryDevice) {
        let operation = self.operations.fetch_add(1, Ordering::SeqCst);
        if !(operation + self.seed).is_multiple_of(self.every) {
            return;
        }
        // Held meanwhile: in a thread of the pool's own, files must not go on while the disk is copied.
        let histories = self.histories.lock().unwrap();
        let disk = disk.crash(self.seed.wrapping_mul(1 << 20).wrapping_add(operation));
        self.taken.lock().unwrap().push(Photograph { operation, disk, histories: histories.clone() });
    }
}

/// A disk under a camera.
#[derive(Clone, Debug)]
struct Watched {
    disk: MemoryDevice,
    camera: Arc<Camera>,
}

#[derive(Debug)]
struct WatchedFile {
    file: Arc<dyn DeviceFile>,
    disk: MemoryDevice,
    camera: Arc<Camera>,
}

impl Device for Watched {
    fn open(&self, path: &str, mode: OpenMode) -> Result<Arc<dyn DeviceFile>> {
        self.camera.see(&self.disk);
        let file = self.disk.open(path, mode)?;
        Ok(Arc::new(WatchedFile { file, disk: self.disk.clone(), camera: self.camera.clone() }))
    }

    fn remove(&self, path: &str) -> Result<()> {
        self.camera.see(&self.disk);
        self.disk.remove(path)
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        self.camera.see(&self.disk);
        self.disk.rename(from, to)
    }

    fn create_directory(&self, path: &str) -> Result<()> {
        self.disk.create_directory(path)
    }

    fn list(&self, path: &str) -> Result<Vec<Entry>> {
        self.disk.list(path)
    }

    fn sync_directory(&self, path: &str) -> Result<()> {
        self.camera.see(&self.disk);
        self.disk.sync_directory(path)
    }

    fn exists(&self, path: &str) -> Result<bool> {
        self.disk.exists(path)
    }

    fn space(&self) -> Result<Space> {
        self.disk.space()
    }

    fn describe(&self) -> String {
        self.disk.describe()
    }
}

impl DeviceFile for WatchedFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        self.file.read_at(buffer, offset)
    }

    fn write_at(&self, buffer: &[u8], offset: u64) -> Result<()> {
        self.camera.see(&self.disk);
        self.file.write_at(buffer, offset)
    }

    fn sync(&self) -> Result<()> {
        self.camera.see(&self.disk);
        self.file.sync()
    }

    fn len(&self) -> Result<u64> {
        self.file.len()
    }

    fn set_len(&self, len_bytes: u64) -> Result<()> {
        self.camera.see(&self.disk);
        self.file.set_len(len_bytes)
    }

    fn punch(&self, offset: u64, len_bytes: u64) -> Result<()> {
        self.camera.see(&self.disk);
        self.file.punch(offset, len_bytes)
    }

    fn allocated_bytes(&self) -> Result<u64> {
        self.file.allocated_bytes()
    }
}

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }

    /// Mostly pieces that were seen before.
    fn content(&mut self) -> Vec<u8> {
        let pieces = 1 + self.below(5);
        let mut bytes = Vec::new();
        for _ in 0..pieces {
            let mut piece = Random(1 + self.below(12));
            let len = 1 + piece.below(60_000);
            bytes.extend((0..len).map(|_| piece.below(256) as u8));
        }
        bytes
    }
}

fn name(file: usize) -> Vec<u8> {
    format!("file {file}").into_bytes()
}

fn store(service: &dyn FileService, name: &[u8], bytes: &[u8]) {
    let how = OpenOptions { write: true, truncate: true, ..OpenOptions::default() };
    let node = NewNode { parent: ROOT_INO, name, mode: 0o644, umask: 0 };
    let (ino, handle) = match service.lookup(ROOT_INO, name) {
        Ok(found) => (found.ino, service.open(Caller::default(), found.ino, how).expect("opens").handle),
        Err(_) => {
            let (attributes, opened) = service.create(Caller::default(), node, how).expect("creates");
            (attributes.ino, opened.handle)
        }
    };
    for (number, piece) in bytes.chunks(50_000).enumerate() {
        let offset = (number * 50_000) as u64;
        service.write(Caller::default(), ino, handle, offset, piece, WriteFlags::default()).expect("writes");
    }
    service.flush(ino, handle).expect("flushes");
    service.release(ino, handle);
}

fn work(pool: &Pool, camera: &Camera, seed: u64, steps: u64) {
    let service = pool.service();
    let mut random = Random(seed + 1);
    let begin = |file: usize, state: Option<Vec<u8>>| camera.histories.lock().unwrap()[file].states.push(state);
    for _ in 0..steps {
        let file = random.below(FILES as u64) as usize;
        match random.below(10) {
            0..=3 => {
                let bytes = random.content();
                // A file that is created is empty before it has content.
                if service.lookup(ROOT_INO, &name(file)).is_err() {
                    begin(file, Some(Vec::new()));
                }
                begin(file, Some(bytes.clone()));
                store(&*service, &name(file), &bytes);
            }
            4..=5 => {
                let bytes = random.content();
                store(&*service, b"temporary", &bytes);
                begin(file, Some(bytes));
                service.rename(ROOT_INO, b"temporary", ROOT_INO, &name(file), RenameFlags::default()).expect("renames");
            }
            6 => {
                begin(file, None);
                let _absent_already = service.unlink(ROOT_INO, &name(file));
            }
            7..=8 => {
                pool.sync().expect("syncs");
                for history in camera.histories.lock().unwrap().iter_mut() {
                    history.durable = history.states.len() - 1;
                }
            }
            _ => {
                let options = ReclaimOptions { threshold_percent: 100, dry_run: false };
                pool.reclaim(&options, &NoProgress).expect("reclaims");
                // Reclaiming commits; what it made durable is at least what was done before it.
                for history in camera.histories.lock().unwrap().iter_mut() {
                    history.durable = history.states.len() - 1;
                }
            }
        }
    }
}

fn content_of(service: &dyn FileService, file: usize) -> Option<Vec<u8>> {
    let ino = service.lookup(ROOT_INO, &name(file)).ok()?.ino;
    let how = OpenOptions { read: true, ..OpenOptions::default() };
    let handle = service.open(Caller::default(), ino, how).expect("opens").handle;
    let mut bytes = Vec::new();
    service.read(ino, handle, 0, 1 << 30, &mut bytes).expect("reads");
    service.release(ino, handle);
    Some(bytes)
}

fn develop(photograph: &Photograph, seed: u64) {
    let at = format!("seed {seed}, power lost before operation {}", photograph.operation);
    let device: Arc<dyn Device> = Arc::new(photograph.disk.clone());
    let pool = Pool::open_on(&device, &device, Vec::new(), &PoolOptions::default(), &NoProgress)
        .unwrap_or_else(|error| panic!("{at}: the pool does not open: {error}"));
    let report = pool.check(&CheckOptions { read_data: true }, &NoProgress).expect("checks");
    assert!(report.is_clean(), "{at}: {:#?}", report.findings);
    let service = pool.service();
    for (file, history) in photograph.histories.iter().enumerate() {
        let found = content_of(&*service, file);
        let allowed = &history.states[history.durable..];
        assert!(
            allowed.contains(&found),
            "{at}: file {file} has {:?} bytes, none of its {} possible states",
            found.map(|bytes| bytes.len()),
            allowed.len()
        );
    }
    // The next backup of the same data rests on what the crash left: all of that must bear it.
    for (file, history) in photograph.histories.iter().enumerate() {
        let again = history.states.last().cloned().flatten().unwrap_or_default();
        store(&*service, &name(FILES + file), &again);
        assert!(content_of(&*service, FILES + file).as_ref() == Some(&again), "{at}: file {file} written again");
    }
    pool.reclaim(&ReclaimOptions { threshold_percent: 100, dry_run: false }, &NoProgress).expect("reclaims");
    let report = pool.check(&CheckOptions { read_data: true }, &NoProgress).expect("checks");
    assert!(report.is_clean(), "{at}, written again: {:#?}", report.findings);
}

fn run(seed: u64, every: u64, steps: u64) -> usize {
    let disk = MemoryDevice::new();
    let plain: Arc<dyn Device> = Arc::new(disk.clone());
    let properties = PoolProperties {
        chunk_size_bytes: 4096,
        container_bytes: 64 << 10,
        slots_per_file: 8,
        // Full all the time: checkpoints are written beside everything else.
        tanker_cells: 64,
        tanker_buckets: 4,
        ..PoolProperties::default()
    };
    format_on(&plain, &plain, b".".to_vec(), &properties, (0, 0)).expect("formats");
    let histories = vec![History { states: vec![None], durable: 0 }; FILES];
    let camera = Arc::new(Camera { every, seed, histories: Mutex::new(histories), ..Camera::default() });
    let watched: Arc<dyn Device> = Arc::new(Watched { disk, camera: camera.clone() });
    let pool = Pool::open_on(&watched, &watched, Vec::new(), &PoolOptions::default(), &NoProgress).expect("opens");
    work(&pool, &camera, seed, steps);
    pool.close().expect("closes");
    let taken = std::mem::take(&mut *camera.taken.lock().unwrap());
    taken.iter().for_each(|photograph| develop(photograph, seed));
    taken.len()
}

#[test]
fn power_loss_at_any_operation() {
    let photographs: usize = (0..12).map(|seed| run(seed, 7, 40)).sum();
    assert!(photographs > 300, "only {photographs} photographs were taken");
}

/// The check itself: content that was never synced must not be asked for, and lost synced content must be noticed.
#[test]
#[should_panic(expected = "possible states")]
fn a_lost_file_is_noticed() {
    let disk = MemoryDevice::new();
    let device: Arc<dyn Device> = Arc::new(disk.clone());
    format_on(&device, &device, b".".to_vec(), &PoolProperties::default(), (0, 0)).expect("formats");
    let histories = vec![History { states: vec![None, Some(b"synced".to_vec())], durable: 1 }];
    develop(&Photograph { operation: 0, disk, histories }, 0);
}
