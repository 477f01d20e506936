//! Pools to be damaged: small, with an example of everything that a pool can hold.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use dedupfs::{NoProgress, OpenOptions as PoolOptions, Origin, Pool, format_on};
use dedupfs_service::{
    AttributeChanges, Caller, FileService, Ino, NewNode, NodeContent, OpenOptions, ROOT_INO, TimeChange, Timestamp,
    WriteFlags, XattrMode,
};
use dedupfs_store::container::Compression;
use dedupfs_store::device::{Device, MemoryDevice, OpenMode};
use dedupfs_store::superblock::PoolProperties;

use crate::model::{Tree, VERSION};

pub const CALLER: Caller = Caller { uid: 0, gid: 0, pid: 1 };
/// Bytes of a slot: the most that damage at one place may cost.
pub const CONTAINER_BYTES: u32 = 64 << 10;

/// Which of the two roots.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Root {
    Meta,
    Data,
}

impl Root {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Meta => "meta",
            Self::Data => "data",
        }
    }

    pub fn parse(name: &str) -> Result<Self, String> {
        [Self::Meta, Self::Data].into_iter().find(|root| root.name() == name).ok_or(format!("{name}: no such root"))
    }
}

/// Both roots of a pool; the same disk twice if it has one.
#[derive(Clone, Debug)]
pub struct Disks {
    pub meta: MemoryDevice,
    pub data: Option<MemoryDevice>,
}

impl Disks {
    fn new(apart: bool) -> Self {
        Self { meta: MemoryDevice::new(), data: apart.then(MemoryDevice::new) }
    }

    pub fn copy(&self) -> Self {
        Self { meta: self.meta.snapshot_all_synced(), data: self.data.as_ref().map(MemoryDevice::snapshot_all_synced) }
    }

    pub fn root(&self, root: Root) -> &MemoryDevice {
        match (root, &self.data) {
            (Root::Data, Some(data)) => data,
            _ => &self.meta,
        }
    }

    pub fn open(&self, options: &PoolOptions) -> dedupfs::Result<Arc<Pool>> {
        let meta: Arc<dyn Device> = Arc::new(self.meta.clone());
        let data = self.data.as_ref().map_or_else(|| meta.clone(), |data| Arc::new(data.clone()) as Arc<dyn Device>);
        Pool::open_on(&meta, &data, Vec::new(), options, &NoProgress)
    }

    fn format(&self) {
        let meta: Arc<dyn Device> = Arc::new(self.meta.clone());
        let data = self.data.as_ref().map_or_else(|| meta.clone(), |data| Arc::new(data.clone()) as Arc<dyn Device>);
        let name: &[u8] = if self.data.is_some() { b"elsewhere" } else { b"." };
        let properties = PoolProperties {
            chunk_size_bytes: 4096,
            container_bytes: CONTAINER_BYTES,
            slots_per_file: 4,
            tanker_cells: 64,
            tanker_buckets: 8,
            compression: Compression::Zstd(1),
            ..PoolProperties::default()
        };
        format_on(&meta, &data, name.to_vec(), &properties, (0, 0)).expect("formats");
    }

    /// Returns all files with their lengths, without the lock: its content means nothing.
    pub fn files(&self) -> Vec<(Root, String, u64)> {
        let mut files = Vec::new();
        for root in [Root::Meta, Root::Data].into_iter().filter(|&root| root == Root::Meta || self.data.is_some()) {
            let mut directories = vec![String::new()];
            while let Some(directory) = directories.pop() {
                for entry in self.root(root).list(&directory).expect("lists") {
                    let path = if directory.is_empty() { entry.name } else { format!("{directory}/{}", entry.name) };
                    if entry.is_directory {
                        directories.push(path);
                    } else {
                        files.push((root, path, entry.len_bytes));
                    }
                }
            }
        }
        files.sort();
        files
    }

    /// Writes all files below a directory, to inspect and repeat a failure.
    pub fn save(&self, into: &Path) {
        for (root, path, _) in self.files() {
            let target = into.join(root.name()).join(&path);
            std::fs::create_dir_all(target.parent().expect("has a parent")).expect("creates");
            std::fs::write(target, self.root(root).read_file(&path, 1 << 30).expect("reads")).expect("writes");
        }
    }

    /// Reads the files that [`save`](Self::save) wrote.
    pub fn load(&self, from: &Path) -> Self {
        let loaded = Self::new(self.data.is_some());
        for root in [Root::Meta, Root::Data] {
            load_directory(loaded.root(root), &from.join(root.name()), "");
        }
        loaded
    }
}

fn load_directory(device: &MemoryDevice, from: &Path, path: &str) {
    let Ok(entries) = std::fs::read_dir(from) else { return };
    for entry in entries {
        let entry = entry.expect("reads");
        let name = entry.file_name().into_string().expect("is text");
        let path = if path.is_empty() { name } else { format!("{path}/{name}") };
        if entry.path().is_dir() {
            device.create_directory(&path).expect("creates");
            load_directory(device, &entry.path(), &path);
        } else {
            let file = device.open(&path, OpenMode::CreateNew).expect("creates");
            file.write_at(&std::fs::read(entry.path()).expect("reads"), 0).expect("writes");
            file.sync().expect("syncs");
        }
    }
}

/// A pool, the same pool earlier, another one of the same make, and a model of its tree.
#[derive(Debug)]
pub struct Image {
    pub name: &'static str,
    pub disks: Disks,
    pub older: Disks,
    pub other: Disks,
    pub tree: Tree,
    /// Bytes of content in files: the most that damage may cost.
    pub content_bytes: u64,
}

impl Image {
    /// A pool after a clean end, its roots apart.
    pub fn closed() -> Self {
        let (disks, older, tree) = make("closed");
        let (other, _, _) = make("closed");
        Self::of("closed", disks, older, other, tree)
    }

    /// A pool after a crash, on one root: open containers, rows that no checkpoint has, files without a name.
    pub fn crashed() -> Self {
        let (disks, older, tree) = make("crashed");
        let (other, _, _) = make("crashed");
        Self::of("crashed", disks, older, other, tree)
    }

    fn of(name: &'static str, disks: Disks, older: Disks, other: Disks, tree: Tree) -> Self {
        let content_bytes = tree.nodes.values().filter_map(|node| node.content.as_ref()).map(|c| c.len() as u64).sum();
        Self { name, disks, older, other, tree, content_bytes }
    }

    pub fn bytes(&self, root: Root, path: &str) -> Vec<u8> {
        self.disks.root(root).read_file(path, 1 << 30).unwrap_or_default()
    }

    pub fn older_bytes(&self, root: Root, path: &str) -> Vec<u8> {
        self.older.root(root).read_file(path, 1 << 30).unwrap_or_default()
    }

    pub fn other_pools_bytes(&self, root: Root, path: &str) -> Vec<u8> {
        self.other.root(root).read_file(path, 1 << 30).unwrap_or_default()
    }

    pub fn save(&self, into: &Path) {
        for (name, disks) in [("now", &self.disks), ("older", &self.older), ("other", &self.other)] {
            disks.save(&into.join(name));
        }
    }

    pub fn load(&mut self, from: &Path) {
        self.disks = self.disks.load(&from.join("now"));
        self.older = self.older.load(&from.join("older"));
        self.other = self.other.load(&from.join("other"));
    }
}

/// Returns bytes that do not repeat and do not compress.
fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let words = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    });
    words.flatten().take(len).collect()
}

/// Returns bytes that do not repeat as chunks, but compress.
fn text(seed: u64, len: usize) -> Vec<u8> {
    let lines = (0_u64..).flat_map(|line| format!("{seed} line {} of the text\n", line * line).into_bytes());
    lines.take(len).collect()
}

/// Fills a pool step by step, and its model beside it.
struct Maker {
    pool: Arc<Pool>,
    inos: BTreeMap<String, Ino>,
    tree: Tree,
}

impl Maker {
    fn parent(&self, path: &str) -> (Ino, String) {
        match path.rsplit_once('/') {
            Some((parent, name)) => (self.inos[parent], name.to_owned()),
            None => (ROOT_INO, path.to_owned()),
        }
    }

    fn make(&mut self, path: &str, content: NodeContent<'_>) -> Ino {
        let (parent, name) = self.parent(path);
        let node = NewNode { parent, name: name.as_bytes(), mode: 0o751, umask: 0 };
        let ino = self.pool.service().make(CALLER, node, content).expect("makes").ino;
        self.inos.insert(path.to_owned(), ino);
        ino
    }

    /// Writes pieces at their offsets, into a new file or an old one.
    fn write(&mut self, path: &str, pieces: &[(u64, Vec<u8>)]) {
        let ino = match self.inos.get(path) {
            Some(&ino) => ino,
            None => self.make(path, NodeContent::Regular),
        };
        let service = self.pool.service();
        let how = OpenOptions { write: true, ..OpenOptions::default() };
        let handle = service.open(CALLER, ino, how).expect("opens").handle;
        let mut content = self.tree.take_content(path);
        for (offset, piece) in pieces {
            service.write(CALLER, ino, handle, *offset, piece, WriteFlags::default()).expect("writes");
            let (start, end) = (*offset as usize, *offset as usize + piece.len());
            content.resize(content.len().max(end), 0);
            content[start..end].copy_from_slice(piece);
        }
        service.flush(ino, handle).expect("flushes");
        service.release(ino, handle);
        let mtime = Timestamp { secs: 1_000_000 + ino as i64, nanos: 7 };
        let changes = AttributeChanges { mtime: Some(TimeChange::At(mtime)), ..AttributeChanges::default() };
        service.set_attributes(CALLER, ino, changes).expect("sets attributes");
        self.tree.put_content(path, content);
    }

    fn set_xattr(&self, path: &str, name: &str, value: &[u8]) {
        let service = self.pool.service();
        service.set_xattr(CALLER, self.inos[path], name.as_bytes(), value, XattrMode::Any).expect("sets");
    }

    /// Makes a version: tree nodes among the recipes, a row and a record in the namespace.
    fn snapshot(&mut self, source: &str, name: &str) {
        let origin = Origin { source: source.as_bytes().to_vec(), host: b"here".to_vec() };
        let to = (ROOT_INO, name.as_bytes());
        self.pool.snapshot(self.inos[source], to, &origin, &NoProgress).expect("makes a version");
        let below = format!("{source}/");
        let inside: Vec<_> = self.tree.contents.iter().filter(|(path, _)| path.starts_with(&below)).collect();
        let copies =
            inside.into_iter().map(|(path, content)| (format!("{name}{}", &path[source.len()..]), content.clone()));
        let copies: Vec<_> = copies.collect();
        self.tree.contents.extend(copies);
    }

    fn unlink(&mut self, path: &str) {
        let (parent, name) = self.parent(path);
        self.pool.service().unlink(parent, name.as_bytes()).expect("unlinks");
        self.tree.contents.remove(path);
        self.inos.remove(path);
    }
}

fn options() -> PoolOptions {
    PoolOptions { commit_interval: std::time::Duration::from_secs(3600), ..PoolOptions::default() }
}

fn first_session(maker: &mut Maker) {
    for directory in ["small", "large", "small/deep"] {
        maker.make(directory, NodeContent::Directory);
    }
    for number in 0..60_u64 {
        let len = 10 + (number as usize * 97) % 3000;
        maker.write(&format!("small/{number:03}"), &[(0, noise(number, len))]);
    }
    maker.write("large/noise", &[(0, noise(1001, 200 << 10))]);
    maker.write("large/text", &[(0, text(1002, 500 << 10))]);
    maker.write("gone", &[(0, noise(1003, 50_000))]);
    maker.pool.sync().expect("syncs");
    // Opening seals the pool's containers, and its tankers are on the disk.
}

fn second_session(maker: &mut Maker) {
    maker.write("large/again", &[(0, noise(1001, 200 << 10)), (100 << 10, text(5, 20_000))]);
    maker.write("large/holes", &[(0, noise(6, 9000)), (3 << 20, noise(7, 5000)), (3_500_000, noise(8, 1))]);
    maker.write("large/zeros", &[((2 << 20) - 1, vec![0])]);
    maker.write("small/empty", &[]);
    maker.make("small/deep/link", NodeContent::Symlink(b"../../large/text"));
    maker.make("fifo", NodeContent::Fifo);
    maker.make("device", NodeContent::CharDevice(0x103));
    maker.set_xattr("small/001", "user.short", b"green");
    maker.set_xattr("small/001", "user.empty", b"");
    maker.set_xattr("small/001", "user.long", &noise(9, 20_000));
    maker.set_xattr("small/deep", "user.directory", b"too");
    let linked = maker.inos["large/noise"];
    let service = maker.pool.service();
    service.link(linked, maker.inos["small/deep"], b"hard").expect("links");
    let content = maker.tree.contents["large/noise"].clone();
    maker.tree.contents.insert("small/deep/hard".to_owned(), content);
    maker.unlink("gone");
    maker.unlink("small/007");
    maker.snapshot("small", VERSION);
    maker.pool.sync().expect("syncs");
}

/// Makes a pool; returns it, its copy after the first session, and its model.
fn make(kind: &str) -> (Disks, Disks, Tree) {
    let disks = Disks::new(kind == "closed");
    disks.format();
    let pool = disks.open(&options()).expect("opens");
    let mut maker = Maker { pool, inos: BTreeMap::new(), tree: Tree::default() };
    first_session(&mut maker);
    maker.pool.close().expect("closes");
    let older = disks.copy();
    maker.pool = disks.open(&options()).expect("opens");
    second_session(&mut maker);
    if kind == "closed" {
        maker.tree.observe(&*maker.pool.service());
        maker.pool.close().expect("closes");
        return (disks.copy(), older, maker.tree);
    }
    // The following writes are in no checkpoint; one file has no name and is open.
    maker.write("late", &[(0, noise(1010, 70_000))]);
    maker.write("late-text", &[(0, text(1011, 90_000))]);
    let how = OpenOptions { read: true, ..OpenOptions::default() };
    let service = maker.pool.service();
    let orphan = maker.inos["small/008"];
    let handle = service.open(CALLER, orphan, how).expect("opens").handle;
    maker.unlink("small/008");
    maker.pool.sync().expect("syncs");
    maker.tree.observe(&*service);
    let crashed = disks.copy();
    service.release(orphan, handle);
    drop(service);
    maker.pool.close().expect("closes");
    (crashed, older, maker.tree)
}
