//! The engine on an in-memory disk beside the reference.

use std::collections::BTreeMap;
use std::sync::Arc;

use dedupfs::check::CheckOptions;
use dedupfs::reclaim::ReclaimOptions;
use dedupfs::{FilterPlan, NoProgress, OpenOptions as PoolOptions, Pool, format_on};
use dedupfs_service::MemoryService;
use dedupfs_service::{
    AttributeChanges, Caller, FileKind, FilePlace, FileService, Handle, Ino, Listing, NewNode, NodeContent,
    OpenOptions, ROOT_INO, RenameFlags, TimeChange, Timestamp, WriteFlags, XattrMode,
};
use dedupfs_store::device::{Device, MemoryDevice};
use dedupfs_store::superblock::PoolProperties;

use super::Operation;
use super::operation::{DIRECTORIES, FILES};
use super::versions::{self, Versions};

pub(super) const CALLER: Caller = Caller { uid: 0, gid: 0, pid: 1 };

pub struct SideBySide {
    pub(super) device: MemoryDevice,
    filters: FilterPlan,
    pool: Option<Arc<Pool>>,
    pub(super) engine: Side,
    pub(super) reference: Side,
    pub(super) versions: Versions,
}

/// One service with its open handles.
pub(super) struct Side {
    pub(super) service: Arc<dyn FileService>,
    handles: BTreeMap<u8, (Ino, Handle)>,
}

/// The visible state of a node: kind, mode, links, length, content, extended attributes.
type Seen = (FileKind, u16, u32, u64, Vec<u8>, BTreeMap<Vec<u8>, Vec<u8>>);

fn as_device(device: &MemoryDevice) -> Arc<dyn Device> {
    Arc::new(device.clone())
}

fn open(device: &MemoryDevice, filters: &FilterPlan, rebuild_index: bool) -> Arc<Pool> {
    let device = as_device(device);
    let options = PoolOptions { rebuild_index, filters: filters.clone(), ..PoolOptions::default() };
    Pool::open_on(&device, &device, Vec::new(), &options, &NoProgress).expect("the pool opens")
}

/// Returns bytes that depend on seed and offset. Every seed has stretches of zeros and repeats itself after 700,001
/// bytes.
pub fn content(seed: u8, offset: u64, len: usize) -> Vec<u8> {
    let byte = |at: u64| {
        let at = at % 700_001;
        if at / 40_000 % 5 == 4 {
            return 0;
        }
        let mut mixed = (at + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(u64::from(seed) << 32);
        mixed ^= mixed >> 29;
        mixed = mixed.wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (mixed >> 32) as u8
    };
    (offset..offset + len as u64).map(byte).collect()
}

/// Returns the directory of a file, if that is not the root, and its name.
fn name(file: u8) -> (Option<u8>, Vec<u8>) {
    match file {
        // Files from 6 on live in the directories, if these exist.
        0..FILES => ((file >= 6).then(|| (file - 6) % DIRECTORIES), format!("file {file}").into_bytes()),
        _ => (Some(file % DIRECTORIES), format!("special {file}").into_bytes()),
    }
}

impl Side {
    fn new(service: Arc<dyn FileService>) -> Self {
        Self { service, handles: BTreeMap::new() }
    }

    fn place(&self, file: u8) -> Option<(Ino, Vec<u8>)> {
        let (directory, name) = name(file);
        Some((self.directory(directory.map_or(0, |directory| directory + 1))?, name))
    }

    /// Returns a directory, if it exists; 0 is the root.
    pub(super) fn directory(&self, number: u8) -> Option<Ino> {
        let Some(directory) = number.checked_sub(1) else { return Some(ROOT_INO) };
        let (parent, name) = self.place_of_directory(directory)?;
        self.service.lookup(parent, &name).ok().map(|attributes| attributes.ino)
    }

    /// Directories 2 and 3 lie in 0 and 1.
    pub(super) fn place_of_directory(&self, directory: u8) -> Option<(Ino, Vec<u8>)> {
        let parent = if directory < 2 { ROOT_INO } else { self.directory(directory - 1)? };
        Some((parent, format!("directory {directory}").into_bytes()))
    }

    pub(super) fn find(&self, file: u8) -> Option<Ino> {
        let (parent, name) = self.place(file)?;
        self.service.lookup(parent, &name).ok().map(|attributes| attributes.ino)
    }

    /// Returns a handle of the file; creates the file if it is missing.
    pub(super) fn open(&mut self, file: u8, append: bool) -> Option<(Ino, Handle)> {
        if let Some(&open) = self.handles.get(&file).filter(|_| !append) {
            return Some(open);
        }
        let how = OpenOptions { read: true, write: true, append, ..OpenOptions::default() };
        let (parent, name) = self.place(file)?;
        let new = NewNode { parent, name: &name, mode: 0o644, umask: 0o022 };
        Some(match self.find(file) {
            Some(ino) => (ino, self.service.open(CALLER, ino, how).expect("opens").handle),
            None => {
                let (attributes, opened) = self.service.create(CALLER, new, how).expect("creates");
                (attributes.ino, opened.handle)
            }
        })
    }

    pub(super) fn close(&mut self, file: u8, (ino, handle): (Ino, Handle)) {
        if self.handles.get(&file) != Some(&(ino, handle)) {
            self.service.flush(ino, handle).expect("flushes");
            self.service.release(ino, handle);
        }
    }

    fn close_all(&mut self) {
        for (ino, handle) in std::mem::take(&mut self.handles).into_values() {
            self.service.flush(ino, handle).expect("flushes");
            self.service.release(ino, handle);
        }
    }

    fn write(&mut self, file: u8, offset: u64, len: u32, seed: u8, keep_open: bool) {
        let Some((ino, handle)) = self.open(file, false) else { return };
        // In pieces, as the kernel sends them; of an odd size, so that they begin anywhere.
        let mut at = 0;
        while at < u64::from(len) {
            let step = (u64::from(len) - at).min(131_071) as usize;
            let data = content(seed, at, step);
            let flags = WriteFlags::default();
            let written = self.service.write(CALLER, ino, handle, offset + at, &data, flags).expect("writes");
            assert_eq!(written as usize, step);
            at += step as u64;
        }
        if keep_open {
            self.handles.insert(file, (ino, handle));
        } else {
            self.close(file, (ino, handle));
        }
    }

    fn append(&mut self, file: u8, len: u32, seed: u8) {
        let Some((ino, handle)) = self.open(file, true) else { return };
        let data = content(seed, 0, len as usize);
        for piece in data.chunks(100_003) {
            self.service.write(CALLER, ino, handle, 0, piece, WriteFlags::default()).expect("appends");
        }
        self.service.flush(ino, handle).expect("flushes");
        self.service.release(ino, handle);
    }

    fn read(&mut self, file: u8, offset: u64, len: u32) -> Option<Vec<u8>> {
        let ino = self.find(file)?;
        let how = OpenOptions { read: true, ..OpenOptions::default() };
        let handle = self.service.open(CALLER, ino, how).expect("opens").handle;
        let mut bytes = Vec::new();
        self.service.read(ino, handle, offset, len, &mut bytes).expect("reads");
        self.service.release(ino, handle);
        Some(bytes)
    }

    fn zero(&mut self, file: u8, from: u64, len: u32) {
        const PUNCH_HOLE_KEEP_SIZE: i32 = 0x03;
        if self.find(file).is_none() || len == 0 {
            return;
        }
        let Some((ino, handle)) = self.open(file, false) else { return };
        self.service.allocate(ino, handle, from, u64::from(len), PUNCH_HOLE_KEEP_SIZE).expect("punches");
        self.close(file, (ino, handle));
    }

    /// Returns how many bytes were copied, or the error.
    fn clone_range(&mut self, operation: &Operation) -> Result<u32, i32> {
        let Operation::Clone { from, to, offset, at, len, keep_open } = *operation else { return Ok(0) };
        let Some(source) = self.find(from) else { return Ok(0) };
        let how = OpenOptions { read: true, ..OpenOptions::default() };
        let source = (source, self.service.open(CALLER, source, how).expect("opens").handle);
        let mut outcome = Ok(0);
        if let Some(target) = self.open(to, false) {
            let place = |(ino, handle), offset: u32| FilePlace { ino, handle, offset: u64::from(offset) };
            let (from, onto) = (place(source, offset), place(target, at));
            outcome = self.service.copy_range(CALLER, from, onto, u64::from(len)).map_err(|error| error.0);
            if keep_open {
                self.handles.insert(to, target);
            } else {
                self.close(to, target);
            }
        }
        self.service.release(source.0, source.1);
        outcome
    }

    /// Returns all paths, in order, with the visible state of each.
    fn walk(&self) -> BTreeMap<Vec<u8>, Seen> {
        let mut seen = BTreeMap::new();
        self.walk_directory(ROOT_INO, b"", &mut seen);
        seen
    }

    fn walk_directory(&self, directory: Ino, path: &[u8], seen: &mut BTreeMap<Vec<u8>, Seen>) {
        let mut after = 0;
        loop {
            let page = self.service.read_directory(directory, after, 3, Listing::Attributes).expect("lists");
            let Some(last) = page.last() else { break };
            after = last.cookie;
            for entry in page {
                let attributes = entry.attributes.expect("attributes were asked for");
                let path = [path, b"/", &entry.name].concat();
                if versions::is_version(&entry.name) {
                    self.service.forget(entry.ino, 1);
                    seen.insert(path, (entry.kind, 0, 0, 0, Vec::new(), BTreeMap::new()));
                    continue;
                }
                let mut content = Vec::new();
                if entry.kind == FileKind::Regular {
                    let how = OpenOptions { read: true, ..OpenOptions::default() };
                    let handle = self.service.open(CALLER, entry.ino, how).expect("opens").handle;
                    self.service.read(entry.ino, handle, 0, 1 << 30, &mut content).expect("reads");
                    self.service.release(entry.ino, handle);
                }
                if entry.kind == FileKind::Symlink {
                    content = self.service.read_link(entry.ino).expect("reads the link");
                }
                let names = self.service.xattr_names(entry.ino).expect("lists attributes");
                let value = |name: Vec<u8>| (name.clone(), self.service.xattr(entry.ino, &name).expect("has it"));
                let shown = (entry.kind, attributes.mode, attributes.nlink, attributes.size_bytes);
                // A directory's length is not part of the contract.
                let size_bytes = if entry.kind == FileKind::Directory { 0 } else { shown.3 };
                let xattrs = names.into_iter().map(value).collect();
                seen.insert(path.clone(), (shown.0, shown.1, shown.2, size_bytes, content, xattrs));
                if entry.kind == FileKind::Directory {
                    self.walk_directory(entry.ino, &path, seen);
                }
            }
        }
    }

    /// Removes everything but versions, and the directories that hold them.
    fn empty(&self, directory: Ino) {
        for entry in self.service.read_directory(directory, 0, 1000, Listing::Names).expect("lists") {
            if entry.kind != FileKind::Directory {
                self.service.unlink(directory, &entry.name).expect("unlinks");
            } else if !versions::is_version(&entry.name) {
                self.empty(entry.ino);
                let _may_hold_versions = self.service.remove_directory(directory, &entry.name);
            }
        }
    }

    /// Does an operation that may fail. If it fails on one side, it must fail on both.
    pub(super) fn change(&mut self, operation: &Operation) -> Result<(), i32> {
        let both = |from: u8, to: u8| Some((self.place(from)?, self.place(to)?));
        let outcome = match *operation {
            Operation::Truncate { file, size } => match self.find(file) {
                Some(ino) => {
                    let changes = AttributeChanges { size_bytes: Some(u64::from(size)), ..AttributeChanges::default() };
                    self.service.set_attributes(CALLER, ino, changes).map(drop)
                }
                None => Ok(()),
            },
            Operation::Chmod { file, mode } => match self.find(file) {
                Some(ino) => {
                    let changes = AttributeChanges { mode: Some(mode), ..AttributeChanges::default() };
                    self.service.set_attributes(CALLER, ino, changes).map(drop)
                }
                None => Ok(()),
            },
            Operation::Rename { from, to, exchange } => match both(from, to) {
                Some((from, to)) => {
                    let flags = RenameFlags { exchange, ..RenameFlags::default() };
                    self.service.rename(from.0, &from.1, to.0, &to.1, flags)
                }
                None => Ok(()),
            },
            Operation::Link { from, to } => match (self.find(from), self.place(to)) {
                (Some(ino), Some((parent, name))) => self.service.link(ino, parent, &name).map(drop),
                _ => Ok(()),
            },
            Operation::Unlink { file } => match self.place(file) {
                Some((parent, name)) => self.service.unlink(parent, &name),
                None => Ok(()),
            },
            Operation::MakeDirectory { directory } => match self.place_of_directory(directory) {
                Some((parent, name)) => {
                    let node = NewNode { parent, name: &name, mode: 0o755, umask: 0o022 };
                    self.service.make(CALLER, node, NodeContent::Directory).map(drop)
                }
                None => Ok(()),
            },
            Operation::RemoveDirectory { directory } => match self.place_of_directory(directory) {
                Some((parent, name)) => self.service.remove_directory(parent, &name),
                None => Ok(()),
            },
            Operation::Special { special, kind } => match self.place(FILES + special) {
                Some((parent, name)) if self.find(FILES + special).is_some() => self.service.unlink(parent, &name),
                Some((parent, name)) => {
                    let target = vec![b'a' + special; 1 + usize::from(special) * 90];
                    let content = match kind {
                        0 => NodeContent::Symlink(&target),
                        1 => NodeContent::Fifo,
                        2 => NodeContent::Socket,
                        3 => NodeContent::CharDevice(0x103),
                        _ => NodeContent::BlockDevice(0x801),
                    };
                    let node = NewNode { parent, name: &name, mode: 0o640, umask: 0 };
                    self.service.make(CALLER, node, content).map(drop)
                }
                None => Ok(()),
            },
            Operation::Own { file, uid, secs } => match self.find(file) {
                Some(ino) => {
                    let mtime = Some(TimeChange::At(Timestamp { secs: secs.into(), nanos: uid.into() }));
                    let (uid, gid) = (Some(uid.into()), Some(7));
                    let changes = AttributeChanges { uid, gid, mtime, ..AttributeChanges::default() };
                    self.service.set_attributes(CALLER, ino, changes).map(drop)
                }
                None => Ok(()),
            },
            Operation::ChangeDirectory { directory, mode, secs, len } => match self.directory(directory + 1) {
                Some(ino) => {
                    let mtime = Some(TimeChange::At(Timestamp { secs: secs.into(), nanos: len.into() }));
                    let (mode, uid) = (Some(mode), Some(len.into()));
                    let changes = AttributeChanges { mode, uid, mtime, ..AttributeChanges::default() };
                    let value = content(directory, 0, len.into());
                    let set = self.service.set_xattr(CALLER, ino, b"user.of directory", &value, XattrMode::Any);
                    set.and_then(|()| self.service.set_attributes(CALLER, ino, changes)).map(drop)
                }
                None => Ok(()),
            },
            Operation::ExchangeDirectories => {
                let flags = RenameFlags { exchange: true, ..RenameFlags::default() };
                self.service.rename(ROOT_INO, b"directory 0", ROOT_INO, b"directory 1", flags)
            }
            Operation::Xattr { file, name, len } => match self.find(file) {
                Some(ino) => {
                    let (name, value) = (format!("user.{name}").into_bytes(), vec![name; usize::from(len)]);
                    self.service.set_xattr(CALLER, ino, &name, &value, XattrMode::Any)
                }
                None => Ok(()),
            },
            Operation::RemoveXattr { file, name } => match self.find(file) {
                Some(ino) => self.service.remove_xattr(ino, format!("user.{name}").as_bytes()),
                None => Ok(()),
            },
            _ => Ok(()),
        };
        outcome.map_err(|error| error.0)
    }
}

impl SideBySide {
    pub fn new(filters: FilterPlan) -> Self {
        let device = MemoryDevice::new();
        let properties = PoolProperties {
            chunk_size_bytes: 4096,
            container_bytes: 256 << 10,
            slots_per_file: 8,
            // Always full, so that checkpoints are written in parallel.
            tanker_cells: 64,
            tanker_buckets: 4,
            ..PoolProperties::default()
        };
        let shared = as_device(&device);
        format_on(&shared, &shared, b".".to_vec(), &properties, (0, 0)).expect("formats");
        let pool = open(&device, &filters, false);
        let engine = Side::new(pool.service());
        Self {
            device,
            filters,
            pool: Some(pool),
            engine,
            reference: Side::new(Arc::new(MemoryService::new())),
            versions: Versions::default(),
        }
    }

    pub(super) fn pool(&self) -> &Arc<Pool> {
        self.pool.as_ref().expect("the pool is open")
    }

    pub fn apply(&mut self, operation: &Operation) {
        match *operation {
            Operation::Write { file, offset, len, seed, keep_open } => {
                for side in [&mut self.engine, &mut self.reference] {
                    side.write(file, u64::from(offset), len, seed, keep_open);
                }
            }
            Operation::Append { file, len, seed } => {
                [&mut self.engine, &mut self.reference].into_iter().for_each(|side| side.append(file, len, seed));
            }
            Operation::Zero { file, from, len } => {
                let from = u64::from(from);
                [&mut self.engine, &mut self.reference].into_iter().for_each(|side| side.zero(file, from, len));
            }
            Operation::Read { file, offset, len } => {
                let engine = self.engine.read(file, u64::from(offset), len);
                assert!(engine == self.reference.read(file, u64::from(offset), len), "{operation:?} differs");
            }
            Operation::Clone { .. } => {
                let engine = self.engine.clone_range(operation);
                assert_eq!(engine, self.reference.clone_range(operation), "{operation:?}");
            }
            Operation::CloseAll => self.close_all(),
            Operation::Sync => self.pool().sync().expect("syncs"),
            Operation::Remount => {
                self.close_all();
                self.pool().close().expect("closes");
                self.reopen(false);
            }
            Operation::Kill => {
                self.close_all();
                self.pool().sync().expect("syncs");
                self.reopen(false);
            }
            Operation::Crash { seed } => {
                self.close_all();
                self.pool().sync().expect("syncs");
                self.device = self.device.crash(seed);
                self.reopen(false);
            }
            Operation::Reclaim { threshold_percent } => {
                // As a mount arranges by itself, and as a command reclaims everything.
                let alone = ReclaimOptions { share_percent: 100, ..ReclaimOptions::arranging() };
                self.pool().reclaim(&alone, &NoProgress).expect("arranges");
                self.compare_versions();
                let options = ReclaimOptions::below(threshold_percent);
                self.pool().reclaim(&options, &NoProgress).expect("reclaims");
                self.compare_versions();
            }
            Operation::RebuildIndex => {
                self.close_all();
                self.pool().close().expect("closes");
                self.reopen(true);
            }
            _ if self.apply_to_versions(operation) => {}
            _ => {
                let engine = self.engine.change(operation);
                assert_eq!(engine, self.reference.change(operation), "{operation:?}");
            }
        }
        self.compare(operation);
    }

    pub(super) fn close_all(&mut self) {
        self.engine.close_all();
        self.reference.close_all();
    }

    fn reopen(&mut self, rebuild_index: bool) {
        self.reopen_and(rebuild_index, |_| ());
    }

    /// Opens the pool again. `settle` brings the reference to the state that the engine shows.
    pub(super) fn reopen_and(&mut self, rebuild_index: bool, settle: impl FnOnce(&mut Self)) {
        // The service goes first: it keeps the pool's parts alive.
        self.engine = Side::new(Arc::new(MemoryService::new()));
        self.pool = None;
        let pool = open(&self.device, &self.filters, rebuild_index);
        self.engine = Side::new(pool.service());
        self.pool = Some(pool);
        self.check();
        settle(self);
        self.compare_versions();
    }

    fn compare(&self, operation: &Operation) {
        let (engine, reference) = (self.engine.walk(), self.reference.walk());
        let names = |seen: &BTreeMap<Vec<u8>, Seen>| -> Vec<String> {
            seen.keys().map(|name| String::from_utf8_lossy(name).into_owned()).collect()
        };
        assert_eq!(names(&engine), names(&reference), "names after {operation:?}");
        for (name, seen) in engine {
            let expected = &reference[&name];
            let name = String::from_utf8_lossy(&name);
            assert_eq!((seen.0, seen.1, seen.2, seen.3), (expected.0, expected.1, expected.2, expected.3), "{name}");
            let differs = seen.4.iter().zip(&expected.4).position(|(left, right)| left != right);
            assert_eq!((differs, seen.4.len()), (None, expected.4.len()), "content of {name} after {operation:?}");
            assert_eq!(seen.5, expected.5, "attributes of {name} after {operation:?}");
        }
    }

    /// Checks that counts equal marks and that all content matches its fingerprints.
    fn check(&self) {
        let report = self
            .pool()
            .check(&CheckOptions { read_data: true, ..CheckOptions::default() }, &NoProgress)
            .expect("checks");
        assert!(report.is_clean(), "{:#?}", report.findings);
    }

    /// Deletes everything and checks that nothing is left.
    pub fn finish(mut self) {
        self.close_all();
        self.check();
        self.compare_versions();
        // The versions lose the live tree first.
        self.engine.empty(ROOT_INO);
        self.pool().reclaim(&ReclaimOptions::default(), &NoProgress).expect("reclaims");
        self.check();
        self.compare_versions();
        self.forget_all();
        self.engine.empty(ROOT_INO);
        self.pool().close().expect("closes");
        self.reopen(false);
        self.pool().reclaim(&ReclaimOptions::default(), &NoProgress).expect("reclaims");
        self.check();
        let stats = self.pool().stats().expect("tells");
        let left = (stats.files, stats.unique_chunks, stats.unreferenced_chunks, stats.recipe_nodes);
        assert_eq!(left, (0, 0, 0, 0), "files, chunks, garbage chunks, nodes");
        assert_eq!((stats.data_container_bytes, stats.recipe_container_bytes), (0, 0));
    }
}
