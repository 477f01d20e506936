//! A pool in memory, and a store.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use dedupfs::check::CheckOptions;
use dedupfs::reclaim::ReclaimOptions;
use dedupfs::recover::recover_on;
use dedupfs::{NoProgress, OpenOptions as PoolOptions, Pool, format_on};
use dedupfs_service::{Caller, FileKind, FileService, Listing, NewNode, OpenOptions, ROOT_INO, WriteFlags};
use dedupfs_store::PoolId;
use dedupfs_store::device::{Device, MemoryDevice, OpenMode};
use dedupfs_store::objects::faulty::FaultyObjects;
use dedupfs_store::objects::{CountingObjects, MemoryObjects, Objects};
use dedupfs_store::superblock::{PoolProperties, Role, Superblock};
use dedupfs_sync::Mutex;

use crate::{
    Held, PoolSource, Reclaimed, Replica, ReplicateOptions, ReplicateReport, RestoreOptions, Result, Secret, Source,
    reclaim, replicate, restore_data_root,
};

pub(super) const CALLER: Caller = Caller { uid: 0, gid: 0, pid: 1 };
/// The time in the store when a test begins.
pub(super) const NOW_SECS: u64 = 1_000_000;

pub(super) const STRICT: RestoreOptions = RestoreOptions { connections: 1, accepts_less: false };
pub(super) const ANYHOW: RestoreOptions = RestoreOptions { connections: 4, accepts_less: true };

/// Contents by name.
pub(super) type Picture = BTreeMap<Vec<u8>, Vec<u8>>;

/// A pool and the store that it is replicated to.
pub(super) struct Site {
    pub(super) meta: MemoryDevice,
    pub(super) data: MemoryDevice,
    pool: Mutex<Option<Arc<Pool>>>,
    pub(super) store: MemoryObjects,
    pub(super) faulty: FaultyObjects,
    pub(super) counting: CountingObjects,
    holds: AtomicU64,
}

pub(super) fn content(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let words = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    });
    words.flatten().take(len).collect()
}

pub(super) fn secret() -> Secret {
    Secret::new(&[9; 32])
}

fn shared(device: &MemoryDevice) -> Arc<dyn Device> {
    Arc::new(device.clone())
}

pub(super) fn open(meta: &MemoryDevice, data: &MemoryDevice) -> Arc<Pool> {
    // Commits only on request of a test.
    let options = PoolOptions { commit_interval: Duration::from_secs(3600), ..PoolOptions::default() };
    Pool::open_on(&shared(meta), &shared(data), Vec::new(), &options, &NoProgress).expect("opens")
}

impl Site {
    /// A new pool and an encrypted replica without a commit.
    pub(super) fn new() -> Self {
        let properties = PoolProperties {
            chunk_size_bytes: 4096,
            container_bytes: 64 << 10,
            slots_per_file: 8,
            tanker_cells: 1 << 16,
            ..PoolProperties::default()
        };
        let (meta, data) = (MemoryDevice::new(), MemoryDevice::new());
        format_on(&shared(&meta), &shared(&data), b"elsewhere".to_vec(), &properties, (0, 0)).expect("formats");
        let site = Self::over(meta, data, MemoryObjects::new());
        let pool = site.pool_id();
        site.store.set_now(NOW_SECS);
        Replica::init(&site.raw(), &pool, Some(&secret())).expect("makes a replica");
        site
    }

    /// The pool on these devices, and a store that exists.
    pub(super) fn over(meta: MemoryDevice, data: MemoryDevice, store: MemoryObjects) -> Self {
        let faulty = FaultyObjects::new(Arc::new(store.clone()));
        let counting = CountingObjects::new(Arc::new(faulty.clone()));
        let pool = Mutex::new(Some(open(&meta, &data)));
        Self { meta, data, pool, store, faulty, counting, holds: AtomicU64::new(0) }
    }

    /// The same pool on copies of its devices, as a crash would leave them.
    pub(super) fn cloned(&self) -> Self {
        self.pool().sync().expect("syncs");
        Self::over(self.meta.crash(0), self.data.crash(0), self.store.clone())
    }

    pub(super) fn pool(&self) -> Arc<Pool> {
        self.pool.lock().clone().expect("is open")
    }

    fn raw(&self) -> Arc<dyn Objects> {
        Arc::new(self.counting.clone())
    }

    pub(super) fn replica(&self) -> Result<Replica> {
        Replica::open(&(Arc::new(self.store.clone()) as Arc<dyn Objects>), Some(&secret()))
    }

    /// Requests to this replica are counted, and fail where a test says.
    pub(super) fn faulty_replica(&self) -> Result<Replica> {
        let mut replica = self.replica()?;
        replica.objects = Arc::new(crate::EncryptedObjects::new(self.raw(), secret()));
        Ok(replica)
    }

    pub(super) fn reopen(&self) {
        let pool = self.pool.lock().take().expect("is open");
        pool.close().expect("closes");
        drop(pool);
        *self.pool.lock() = Some(open(&self.meta, &self.data));
    }

    pub(super) fn replicate(&self) -> Result<ReplicateReport> {
        // Requests in an order that can be repeated.
        self.replicate_as(&ReplicateOptions { connections: 1, ..ReplicateOptions::default() })
    }

    pub(super) fn replicate_as(&self, options: &ReplicateOptions) -> Result<ReplicateReport> {
        replicate(self, &self.meta, &self.faulty_replica()?, options, &NoProgress)
    }

    /// How often the export was held.
    pub(super) fn holds(&self) -> u64 {
        self.holds.load(Ordering::Relaxed)
    }

    pub(super) fn reclaim_replica(&self, grace_secs: u64) -> Result<Reclaimed> {
        reclaim(&self.faulty_replica()?, Duration::from_secs(grace_secs), false, &NoProgress)
    }

    pub(super) fn write(&self, name: &str, seed: u64, len: usize) {
        let (pool, bytes) = (self.pool(), content(seed, len));
        let service = pool.service();
        let how = OpenOptions { write: true, truncate: true, ..OpenOptions::default() };
        let node = NewNode { parent: ROOT_INO, name: name.as_bytes(), mode: 0o644, umask: 0 };
        let (ino, handle) = match service.lookup(ROOT_INO, name.as_bytes()) {
            Ok(found) => (found.ino, service.open(CALLER, found.ino, how).expect("opens").handle),
            Err(_) => {
                let (found, opened) = service.create(CALLER, node, how).expect("creates");
                (found.ino, opened.handle)
            }
        };
        service.write(CALLER, ino, handle, 0, &bytes, WriteFlags::default()).expect("writes");
        service.flush(ino, handle).expect("flushes");
        service.release(ino, handle);
        service.forget(ino, 1);
    }

    pub(super) fn remove(&self, name: &str) {
        let _may_not_be_there = self.pool().service().unlink(ROOT_INO, name.as_bytes());
    }

    pub(super) fn reclaim(&self) {
        self.pool().reclaim(&ReclaimOptions::below(100), &NoProgress).expect("reclaims");
    }

    /// Writes and removes some files; reclaims in every other round.
    pub(super) fn change(&self, round: u64) {
        for number in 0..3 {
            self.write(
                &format!("file {}", (round + number) % 5),
                round * 10 + number,
                30_000 + 7_000 * number as usize,
            );
        }
        self.remove(&format!("file {}", (round + 4) % 5));
        if round % 2 == 1 {
            self.pool().sync().expect("syncs");
            self.reclaim();
        }
    }

    pub(super) fn picture(&self) -> Picture {
        picture_of(&self.pool())
    }

    /// Recovers a pool from the store and returns its contents. It must be sound.
    pub(super) fn recovered(&self) -> Picture {
        let (meta, data) = self.recover();
        let pool = open(&meta, &data);
        let check = CheckOptions { read_data: true, ..CheckOptions::default() };
        assert_eq!(pool.check(&check, &NoProgress).expect("checks").findings, Vec::<String>::new());
        picture_of(&pool)
    }

    /// Recovers a pool from the store; returns its roots.
    pub(super) fn recover(&self) -> (MemoryDevice, MemoryDevice) {
        let (meta, data) = (MemoryDevice::new(), MemoryDevice::new());
        let restored =
            restore_data_root(&self.replica().expect("opens"), &data, STRICT, &NoProgress).expect("restores");
        assert_eq!((restored.missing, restored.findings), (0, Vec::new()));
        finish(&meta, &data);
        (meta, data)
    }

    pub(super) fn pool_id(&self) -> PoolId {
        Superblock::read(&self.data, Role::Data).expect("reads").pool
    }

    /// The files of notes, by name.
    pub(super) fn notes(&self) -> Vec<(String, Vec<u8>)> {
        let folders = self.meta.list("replicas").expect("lists");
        let paths = folders.iter().flat_map(|folder| {
            ["commit", "run"].map(|name| (name.to_owned(), format!("replicas/{}/{name}", folder.name)))
        });
        paths.map(|(name, path)| (name, self.meta.read_file(&path, 1 << 20).expect("reads"))).collect()
    }

    pub(super) fn forget_notes(&self) {
        for folder in self.meta.list("replicas").unwrap_or_default() {
            let _may_not_be_there = self.meta.remove(&format!("replicas/{}/commit", folder.name));
        }
    }

    /// Overwrites a few bytes of a data container; returns those that were there.
    pub(super) fn damage_a_container(&self) -> Vec<u8> {
        self.pool().sync().expect("syncs");
        let file = self.data.open("containers/000001.slots", OpenMode::Write).expect("opens");
        let mut before = vec![0; 8];
        file.read_exact_at(&mut before, 2000).expect("reads");
        file.write_at(&[0xee; 8], 2000).expect("writes");
        before
    }

    /// Puts the bytes back that [`damage_a_container`](Self::damage_a_container) returned.
    pub(super) fn mend(&self, bytes: &[u8]) {
        let file = self.data.open("containers/000001.slots", OpenMode::Write).expect("opens");
        file.write_at(bytes, 2000).expect("writes");
    }
}

/// Makes the meta root of a data root that was brought back.
pub(super) fn finish(meta: &MemoryDevice, data: &MemoryDevice) {
    let options = PoolOptions::default();
    let report = recover_on(&shared(meta), &shared(data), b"elsewhere".to_vec(), false, &options, &NoProgress);
    assert_eq!(report.expect("recovers").rebuilt.missing, 0);
}

pub(super) fn picture_of(pool: &Pool) -> Picture {
    let service = pool.service();
    let entries = service.read_directory(ROOT_INO, 0, 10_000, Listing::Names).expect("lists");
    let mut picture = Picture::new();
    for entry in entries {
        let found = match service.lookup(ROOT_INO, &entry.name) {
            Ok(found) if found.kind == FileKind::Regular => found,
            _ => continue,
        };
        let how = OpenOptions { read: true, ..OpenOptions::default() };
        let handle = service.open(CALLER, found.ino, how).expect("opens").handle;
        let mut bytes = Vec::new();
        service.read(found.ino, handle, 0, 1 << 30, &mut bytes).expect("reads");
        service.release(found.ino, handle);
        service.forget(found.ino, 1);
        picture.insert(entry.name, bytes);
    }
    picture
}

impl Source for Site {
    fn data(&self) -> &dyn Device {
        &self.data
    }

    fn hold(&self) -> Result<Box<dyn Held + '_>> {
        self.holds.fetch_add(1, Ordering::Relaxed);
        let source = PoolSource::new(self.pool(), shared(&self.data));
        Ok(Box::new(OwnHold { position: source.hold()?.position(), _pool: self.pool() }))
    }
}

/// Freed bytes stay in a memory device only as long as nobody writes there: tests change nothing while they replicate.
struct OwnHold {
    position: dedupfs::export::ExportPosition,
    _pool: Arc<Pool>,
}

impl Held for OwnHold {
    fn position(&self) -> dedupfs::export::ExportPosition {
        self.position
    }

    fn check(&self) -> Result<()> {
        Ok(())
    }
}
