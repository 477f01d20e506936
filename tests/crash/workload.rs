//! The work during which the power goes: random file operations, syncs, reclaiming, mounts.
//!
//! Each operation is done on the reference first, and its description joins the ledger; then it is done on the engine.
//! A power loss during the operation may show it or not. The reference knows no versions: the workload keeps their
//! descriptions beside it, and they join each state. Unpublished writes of an open file reach the reference when
//! they are published.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use dedupfs::reclaim::ReclaimOptions;
use dedupfs::{NoProgress, OpenOptions as PoolOptions, Pool, format_on};
use dedupfs_service::MemoryService;
use dedupfs_service::{Errno, FileKind, Handle, Ino, ROOT_INO};
use dedupfs_store::device::observed::Observer;
use dedupfs_store::superblock::PoolProperties;

use crate::camera::{Camera, Ledger, Photograph};
use crate::client::{Client, sorted};
use crate::disks::{Disks, Roots, observed};
use crate::images::Disk;
use crate::random::Random;

/// Number of pieces that make up all content: few, so that the same data is written often.
pub const PIECES: u64 = 10;

/// Limits so small that everything that happens in a large pool happens within a few operations.
pub fn properties() -> PoolProperties {
    PoolProperties {
        chunk_size_bytes: 4096,
        container_bytes: 64 << 10,
        slots_per_file: 3,
        tanker_cells: 64,
        tanker_buckets: 4,
        ..PoolProperties::default()
    }
}

/// Options with rounds of the commit thread only on request: a seed gives the same operations every time.
pub fn options() -> PoolOptions {
    PoolOptions {
        memory_bytes: dedupfs::config::MEMORY_BYTES_MIN,
        commit_interval: Duration::from_secs(3600),
        ..PoolOptions::default()
    }
}

pub fn open(roots: &Roots, options: &PoolOptions) -> dedupfs::Result<Arc<Pool>> {
    Pool::open_on(&roots[0], &roots[1], Vec::new(), options, &NoProgress)
}

pub fn piece(number: u64) -> Vec<u8> {
    let mut random = Random::new(number);
    let len = 1 + random.below(9000) as usize;
    let mut bytes = random.bytes(len);
    // Some of it compresses, and some is zeros.
    if random.one_in(3) {
        bytes[len / 2..].fill(number as u8 & 1);
    }
    bytes
}

/// Makes the observer that puts a wrong order below the camera; see `canary`.
pub type Below<'a> = &'a (dyn Fn(&Disks) -> Arc<dyn Observer> + Sync);

/// A file that is kept open on both sides, with the writes to the engine's that are not published yet.
struct Kept {
    engine: (Ino, Handle),
    reference: (Ino, Handle),
    unpublished: Vec<(u64, Vec<u8>)>,
}

pub struct Workload {
    pub camera: Arc<Camera>,
    pub random: Random,
    roots: Roots,
    pub reference: Client,
    pool: Option<Arc<Pool>>,
    kept: Option<Kept>,
    /// Descriptions of the versions, and of the live tree of one, by their paths.
    pub versions: BTreeMap<String, String>,
    pub disk: Disk,
    /// Puts of images of which only what had changed was read.
    pub images_by_map: u64,
    pub images_by_name: u64,
}

impl Workload {
    /// Makes a pool on one disk or on two, and opens it under a camera.
    pub fn new(seed: u64, window: Option<RangeInclusive<u64>>, below: Option<Below<'_>>) -> Self {
        let mut random = Random::new(seed);
        let disks = Disks::new(random.one_in(2));
        let plain = disks.roots();
        format_on(&plain[0], &plain[1], disks.data_root(), &properties(), (0, 0)).expect("formats");
        let reference = Client::new(Arc::new(MemoryService::new()));
        let empty: Arc<str> = reference.describe().expect("describes").into();
        let camera = Arc::new(Camera::new(&disks, Ledger { states: vec![empty], durable: 0 }, window));
        let observer: Arc<dyn Observer> = camera.clone();
        let below = below.map_or_else(|| plain.clone(), |below| observed(&plain, &below(&disks)));
        let roots = observed(&below, &observer);
        let (versions, disk) = (BTreeMap::new(), Disk::default());
        let mut workload = Self {
            camera,
            random,
            roots,
            reference,
            pool: None,
            kept: None,
            versions,
            disk,
            images_by_map: 0,
            images_by_name: 0,
        };
        workload.mount(&options());
        workload
    }

    /// Takes the photographs since the last call.
    pub fn develop(&self) -> Vec<Photograph> {
        self.camera.develop()
    }

    fn mount(&mut self, options: &PoolOptions) {
        self.pool = Some(open(&self.roots, options).expect("opens"));
    }

    pub fn pool(&self) -> &Arc<Pool> {
        self.pool.as_ref().expect("the pool is open")
    }

    pub fn engine(&self) -> Client {
        Client::new(self.pool().service())
    }

    /// Adds the reference's state to the ledger: a power loss may show it from now on.
    pub fn note(&self) {
        let state = self.reference.describe().expect("describes");
        // A version hides the empty directory that stands for it.
        let is_hidden = |line: &str| self.versions.keys().any(|path| line.starts_with(&format!("/{path} ")));
        let lines = state.lines().filter(|line| !is_hidden(line));
        let state: Arc<str> =
            sorted(lines.chain(self.versions.values().flat_map(|described| described.lines()))).into();
        let mut ledger = self.camera.ledger();
        if ledger.states.last() != Some(&state) {
            ledger.states.push(state);
        }
    }

    /// Marks everything so far as durable.
    fn durable(&self) {
        let mut ledger = self.camera.ledger();
        ledger.durable = ledger.states.len() - 1;
    }

    /// Does an operation on both sides, which must have the same outcome.
    pub fn both(&self, what: &dyn Fn(&Client) -> Result<(), Errno>) -> bool {
        let expected = what(&self.reference);
        self.note();
        let outcome = what(&self.engine());
        assert_eq!(outcome.map_err(|error| error.0), expected.map_err(|error| error.0), "engine, reference");
        outcome.is_ok()
    }

    fn content(&mut self) -> Vec<u8> {
        let pieces = self.random.below(4);
        (0..pieces).flat_map(|_| piece(self.random.below(PIECES))).collect()
    }

    fn file(&mut self) -> String {
        match self.random.below(10) {
            5 | 7 => "d0/f5".to_owned(),
            6 => "d1/f6".to_owned(),
            8 => "d0/f8".to_owned(),
            9 => "d1/f9".to_owned(),
            number => format!("f{number}"),
        }
    }

    pub fn step(&mut self) {
        match self.random.below(79) {
            0..=8 => self.rewrite(),
            9..=12 => {
                let (path, bytes) = (self.file(), self.content());
                self.put(&path, 0, &bytes, true);
            }
            13..=15 => {
                let (path, bytes, offset) = (self.file(), self.content(), self.random.below(20_000));
                self.put(&path, offset, &bytes, false);
            }
            16..=17 => {
                let (path, size) = (self.file(), self.random.below(20_000));
                if self.is_regular(&path) && !self.is_kept(&path) {
                    self.both(&|client| client.truncate(&path, size));
                }
            }
            18..=21 => self.replace(),
            22..=24 => self.change_names(),
            25..=26 => self.change_attributes(),
            27..=29 => self.write_to_kept(),
            30..=31 => self.publish_kept(),
            32..=36 => self.fsync_one(),
            37..=39 => self.sync(),
            40..=42 => {
                // As a mount arranges by itself, and as commands reclaim.
                let alone = ReclaimOptions { share_percent: 100, ..ReclaimOptions::arranging() };
                let below = ReclaimOptions::below;
                let options = [alone, below(0), below(50), below(100)][self.random.below(4) as usize];
                self.pool().reclaim(&options, &NoProgress).expect("reclaims");
                // Reclaiming commits everything published.
                self.durable();
            }
            43..=44 => self.close_and_mount(&options()),
            45 => self.close_and_mount(&PoolOptions { rebuild_index: true, ..options() }),
            46 => self.die(),
            47..=49 => self.clone_file(),
            50..=56 => self.snapshot(),
            57..=58 => self.forget(),
            62..=64 => self.put_version(),
            65..=66 => self.thaw(),
            67..=69 => self.freeze(),
            71..=78 => self.put_image(),
            59..=61 => {
                // Two names of one file in a directory of which versions are made.
                let (directory, name) = if self.random.one_in(2) { ("d0", "d0/f8") } else { ("d1", "d1/f9") };
                let _there_or_not = self.both(&|client| client.make_directory(directory));
                let source = self.file();
                if self.create(&source) {
                    let _there_or_not = self.both(&|client| client.unlink(name));
                    let other = format!("{directory}/linked");
                    let _there_or_not = self.both(&|client| client.link(&source, name));
                    let _there_or_not = self.both(&|client| client.link(&source, &other));
                }
            }
            _ => {
                let (path, target) = (self.file(), self.content());
                let _there_or_not = self.both(&|client| client.unlink(&path));
                self.both(&|client| client.symlink(&path, &target[..target.len().min(60)]));
            }
        }
    }

    fn is_kept(&self, path: &str) -> bool {
        // The file may have other names by now.
        let is_it = |kept: &Kept| self.reference.find(path).is_ok_and(|found| found.ino == kept.reference.0);
        self.kept.as_ref().is_some_and(is_it)
    }

    fn is_regular(&self, path: &str) -> bool {
        self.reference.find(path).is_ok_and(|found| found.kind == FileKind::Regular)
    }

    /// Creates the file if nothing is there. Returns whether `path` is a regular file afterwards.
    fn create(&self, path: &str) -> bool {
        let create = |client: &Client| client.open(path, false).map(|open| client.release(open));
        self.is_regular(path) || self.reference.find(path).is_err() && self.both(&create)
    }

    fn put(&mut self, path: &str, offset: u64, bytes: &[u8], append: bool) {
        if !self.is_kept(path) && self.create(path) {
            self.both(&|client| client.put(path, offset, bytes, append));
        }
    }

    fn clone_file(&mut self) {
        let (from, to) = (self.file(), self.file());
        if self.is_regular(&from) && !self.is_kept(&from) && !self.is_kept(&to) && self.create(&to) {
            self.both(&|client| client.clone_file(&from, &to));
        }
    }

    /// Truncates a file to nothing and writes it anew.
    fn rewrite(&mut self) {
        let (path, bytes) = (self.file(), self.content());
        if !self.is_kept(&path) && self.create(&path) {
            self.both(&|client| client.truncate(&path, 0));
            self.both(&|client| client.put(&path, 0, &bytes, false));
        }
    }

    /// Writes a file beside the old one and renames it over, as careful programs do. The most careful sync it first.
    fn replace(&mut self) {
        let (path, bytes, is_careful) = (self.file(), self.content(), self.random.one_in(3));
        self.put("temporary", 0, &bytes, false);
        if is_careful {
            self.fsync("temporary");
        }
        if !self.is_kept(&path) {
            self.both(&|client| client.rename("temporary", &path, false));
        }
    }

    fn change_names(&mut self) {
        let (path, other, number) = (self.file(), self.file(), self.random.below(2));
        let directory = format!("d{number}");
        match self.random.below(8) {
            0 => {
                self.both(&|client| client.link(&path, &other));
            }
            1 => {
                self.both(&|client| client.rename(&path, &other, false));
            }
            2 => {
                self.both(&|client| client.rename(&path, &other, true));
            }
            3..=4 => {
                self.both(&|client| client.unlink(&path));
            }
            5..=6 => {
                self.both(&|client| client.make_directory(&directory));
            }
            _ => {
                self.both(&|client| client.remove_directory(&directory));
            }
        }
    }

    fn change_attributes(&mut self) {
        let (path, name) = (self.file(), format!("user.{}", self.random.below(2)));
        let len = self.random.below(300) as usize;
        let value = self.random.bytes(len);
        if !self.is_regular(&path) {
            return;
        }
        match self.random.below(3) {
            0 => self.both(&|client| client.set_xattr(&path, &name, &value)),
            1 => self.both(&|client| client.remove_xattr(&path, &name)),
            _ => self.both(&|client| client.chmod(&path, 0o600 | len as u16 & 0o77)),
        };
    }

    fn write_to_kept(&mut self) {
        let (path, bytes, offset) = (self.file(), self.content(), self.random.below(15_000));
        if self.kept.is_none() {
            if !self.create(&path) {
                return;
            }
            let open = |client: &Client| client.open(&path, false).expect("opens");
            self.kept =
                Some(Kept { engine: open(&self.engine()), reference: open(&self.reference), unpublished: Vec::new() });
        }
        let engine = self.engine();
        let kept = self.kept.as_mut().expect("is open");
        engine.write(kept.engine, offset, &bytes).expect("writes");
        kept.unpublished.push((offset, bytes));
    }

    /// Gives the reference the writes that the engine is about to publish.
    pub fn note_unpublished(&mut self) {
        let Some(kept) = self.kept.as_mut() else { return };
        for (offset, bytes) in std::mem::take(&mut kept.unpublished) {
            self.reference.write(kept.reference, offset, &bytes).expect("writes");
        }
        self.note();
    }

    fn publish_kept(&mut self) {
        self.note_unpublished();
        let is_synced = self.random.one_in(2);
        let Some(kept) = self.kept.as_ref() else { return };
        if is_synced {
            self.engine().fsync(kept.engine).expect("syncs");
            self.durable();
        } else {
            self.engine().flush(kept.engine).expect("flushes");
        }
        if self.random.one_in(2) {
            self.close_kept();
        }
    }

    pub fn close_kept(&mut self) {
        self.note_unpublished();
        let Some(kept) = self.kept.take() else { return };
        self.engine().flush(kept.engine).expect("flushes");
        self.engine().release(kept.engine);
        self.reference.release(kept.reference);
        // A file without a name is gone now.
        self.note();
    }

    fn fsync(&self, path: &str) {
        if !self.is_regular(path) || self.is_kept(path) {
            return;
        }
        let engine = self.engine();
        let open = engine.open(path, false).expect("opens");
        engine.fsync(open).expect("syncs");
        engine.release(open);
        self.durable();
    }

    fn fsync_one(&mut self) {
        let (path, bytes, append) = (self.file(), self.content(), self.random.one_in(2));
        self.put(&path, 0, &bytes, append);
        self.fsync(&path);
    }

    pub fn sync(&mut self) {
        if self.random.one_in(4) {
            self.engine().0.fsync_directory(ROOT_INO).expect("syncs");
        } else {
            self.note_unpublished();
            self.pool().sync().expect("syncs");
        }
        self.durable();
    }

    fn close_and_mount(&mut self, options: &PoolOptions) {
        self.close_kept();
        self.pool().close().expect("closes");
        self.durable();
        self.pool = None;
        self.mount(options);
    }

    /// The daemon dies, and the system lives on.
    fn die(&mut self) {
        self.note_unpublished();
        self.pool().sync().expect("syncs");
        self.durable();
        self.pool = None;
        if let Some(kept) = self.kept.take() {
            self.reference.release(kept.reference);
            self.note();
        }
        self.mount(&options());
    }

    pub fn close(mut self) -> Arc<Camera> {
        self.close_kept();
        self.pool().close().expect("closes");
        self.durable();
        self.camera.photograph_now();
        self.camera
    }
}
