//! A pool with a tree of all kinds of entries, and everything that a client can see of a tree.

use std::collections::BTreeMap;
use std::sync::Arc;

use dedupfs::check::{CheckOptions, CheckReport};
use dedupfs::reclaim::{ReclaimOptions, ReclaimReport};
use dedupfs::{NoProgress, OpenOptions as PoolOptions, Origin, Pool, VersionReport, format_on};
use dedupfs_service::{
    AttributeChanges, Attributes, Caller, Errno, FileKind, FileService, Ino, Listing, NewNode, NodeContent,
    OpenOptions, ROOT_INO, TimeChange, Timestamp, WriteFlags, XattrMode,
};
use dedupfs_store::device::{Device, MemoryDevice};
use dedupfs_store::superblock::PoolProperties;

pub(crate) const CALLER: Caller = Caller { uid: 0, gid: 0, pid: 7 };
const PAGE: usize = 7;

pub(crate) fn formatted() -> Arc<dyn Device> {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::new());
    format(&device);
    device
}

pub(crate) fn format(device: &Arc<dyn Device>) {
    let properties = PoolProperties {
        chunk_size_bytes: 4096,
        container_bytes: 256 << 10,
        slots_per_file: 16,
        tanker_cells: 256,
        tanker_buckets: 4,
        ..PoolProperties::default()
    };
    format_on(device, device, b".".to_vec(), &properties, (0, 0)).expect("formats");
}

pub(crate) fn open(device: &Arc<dyn Device>) -> Arc<Pool> {
    Pool::open_on(device, device, Vec::new(), &PoolOptions::default(), &NoProgress).expect("opens")
}

pub(crate) fn check(pool: &Pool) -> CheckReport {
    pool.check(&CheckOptions { read_data: true, ..CheckOptions::default() }, &NoProgress).expect("checks")
}

pub(crate) fn assert_clean(pool: &Pool) {
    let report = check(pool);
    assert!(report.is_clean(), "{report:#?}");
}

pub(crate) fn reclaim(pool: &Pool) -> ReclaimReport {
    pool.reclaim(&ReclaimOptions { leave_percent: 0, ..ReclaimOptions::below(100) }, &NoProgress).expect("reclaims")
}

pub(crate) fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    (0..len).map(|_| next()).collect()
}

pub(crate) fn node<'a>(parent: Ino, name: &'a [u8], mode: u16) -> NewNode<'a> {
    NewNode { parent, name, mode, umask: 0 }
}

pub(crate) fn make(pool: &Pool, parent: Ino, name: &str, content: NodeContent<'_>) -> Ino {
    let attributes = pool.service().make(CALLER, node(parent, name.as_bytes(), 0o750), content).expect("makes");
    pool.service().forget(attributes.ino, 1);
    attributes.ino
}

pub(crate) fn directory(pool: &Pool, parent: Ino, name: &str) -> Ino {
    make(pool, parent, name, NodeContent::Directory)
}

pub(crate) fn write(pool: &Pool, ino: Ino, offset: u64, content: &[u8]) {
    let service = pool.service();
    let how = OpenOptions { write: true, ..OpenOptions::default() };
    let handle = service.open(CALLER, ino, how).expect("opens").handle;
    service.write(CALLER, ino, handle, offset, content, WriteFlags::default()).expect("writes");
    service.flush(ino, handle).expect("flushes");
    service.release(ino, handle);
}

pub(crate) fn file(pool: &Pool, parent: Ino, name: &str, content: &[u8]) -> Ino {
    let ino = make(pool, parent, name, NodeContent::Regular);
    write(pool, ino, 0, content);
    ino
}

pub(crate) fn find(pool: &Pool, path: &str) -> Ino {
    path.split('/').filter(|name| !name.is_empty()).fold(ROOT_INO, |parent, name| {
        let found = pool.service().lookup(parent, name.as_bytes());
        let attributes = found.unwrap_or_else(|error| panic!("{name} of {path}: {error:?}"));
        pool.service().forget(attributes.ino, 1);
        attributes.ino
    })
}

pub(crate) fn snapshot(pool: &Pool, source: &str, into: &str, name: &str) -> VersionReport {
    let origin = Origin { source: source.as_bytes().to_vec(), host: b"here".to_vec() };
    let to = (find(pool, into), name.as_bytes());
    pool.snapshot(find(pool, source), to, &origin, &NoProgress).expect("makes a version")
}

pub(crate) fn forget(pool: &Pool, directory: Ino, name: &str) {
    pool.allow_forgetting(directory, name.as_bytes(), None).expect("may be removed");
    pool.service().remove_directory(directory, name.as_bytes()).expect("is removed");
}

/// A tree with entries of all kinds.
pub(crate) fn fill(pool: &Pool, top: Ino) {
    let service = pool.service();
    file(pool, top, "small", b"a few bytes");
    file(pool, top, "empty", b"");
    file(pool, top, "large", &bytes(1, 9 << 20));
    let sparse = file(pool, top, "sparse", b"begins");
    write(pool, sparse, 40 << 20, b"ends");
    let zeros = make(pool, top, "zeros", NodeContent::Regular);
    let cut = AttributeChanges { size_bytes: Some(1 << 30), ..AttributeChanges::default() };
    service.set_attributes(CALLER, zeros, cut).expect("extends");
    make(pool, top, "link", NodeContent::Symlink(b"../else/where"));
    make(pool, top, "pipe", NodeContent::Fifo);
    make(pool, top, "socket", NodeContent::Socket);
    make(pool, top, "disk", NodeContent::BlockDevice(0x801));
    make(pool, top, "null", NodeContent::CharDevice(0x103));
    directory(pool, top, "nothing");
    let many = directory(pool, top, "many");
    for number in 0..200 {
        let ino = file(pool, many, &format!("file-{number}"), format!("number {number}").as_bytes());
        let mtime = Some(TimeChange::At(Timestamp { secs: 1_000_000 - number, nanos: 5 }));
        let changes = AttributeChanges { mtime, uid: Some(number as u32 % 3), ..AttributeChanges::default() };
        service.set_attributes(CALLER, ino, changes).expect("changes");
    }
    let mut deep = top;
    for number in 0..30 {
        deep = directory(pool, deep, &format!("deep-{number}"));
        file(pool, deep, "file", &bytes(number, 2000));
    }
    let twice = file(pool, top, "one-name", &bytes(9, 20_000));
    for (parent, name) in [(many, "another-name"), (deep, "a-third-name")] {
        service.link(twice, parent, name.as_bytes()).expect("links");
        service.forget(twice, 1);
    }
    let named = file(pool, top, "named", b"with attributes");
    let set = |ino: Ino, name: &str, value: &[u8]| {
        service.set_xattr(CALLER, ino, name.as_bytes(), value, XattrMode::Any).expect("sets");
    };
    set(named, "user.short", b"value");
    set(named, "user.other", b"");
    set(many, "user.long", &bytes(5, 60_000));
    set(top, "user.top", b"top");
}

/// Everything that a client can see of one entry, but inode numbers, times of access and change.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Seen {
    kind: FileKind,
    mode: u16,
    nlink: u32,
    owner: (u32, u32, u32),
    size_bytes: u64,
    blocks: u64,
    mtime: Timestamp,
    target: Option<Vec<u8>>,
    content: Option<[u8; 32]>,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// Returns everything below a directory, and the directory itself, by path.
pub(crate) fn tree(pool: &Pool, top: Ino) -> BTreeMap<String, Seen> {
    let mut seen = BTreeMap::new();
    let mut numbers: BTreeMap<Ino, String> = BTreeMap::new();
    let service = pool.service();
    let attributes = service.attributes(top).expect("stats");
    walk(pool, top, attributes, "", &mut |path, attributes| {
        seen.insert(path.to_owned(), entry(pool, &attributes));
        if let Some(other) = numbers.insert(attributes.ino, path.to_owned()) {
            assert!(attributes.nlink > 1, "{path} and {other} are one inode");
        }
    });
    seen
}

fn walk(pool: &Pool, ino: Ino, attributes: Attributes, path: &str, visit: &mut dyn FnMut(&str, Attributes)) {
    visit(path, attributes);
    if attributes.kind != FileKind::Directory {
        return;
    }
    let service = pool.service();
    let (mut after, mut count) = (0, 0);
    loop {
        let page = service.read_directory(ino, after, PAGE, Listing::Attributes).expect("lists");
        let Some(last) = page.last() else { break };
        after = last.cookie;
        assert!(after < service.directory_end(ino));
        for entry in &page {
            let listed = entry.attributes.expect("has attributes");
            // Reading may change the time of access.
            let same = |found: Result<Attributes, Errno>| {
                assert_eq!(found.map(|found| Attributes { atime: listed.atime, ..found }), Ok(listed), "{path}");
            };
            same(service.lookup(ino, &entry.name));
            same(service.attributes(entry.ino));
            same(service.lookup_inode(entry.ino));
            if listed.kind == FileKind::Directory {
                assert_eq!(service.parent(entry.ino), Ok(ino), "{path}");
            }
            let name = String::from_utf8_lossy(&entry.name);
            walk(pool, entry.ino, listed, &format!("{path}/{name}"), visit);
            service.forget(entry.ino, 3);
        }
        count += page.len() as u64;
    }
    assert_eq!(attributes.size_bytes, count, "{path}");
}

pub(crate) fn read(pool: &Pool, ino: Ino) -> Vec<u8> {
    let service = pool.service();
    let how = OpenOptions { read: true, ..OpenOptions::default() };
    let handle = service.open(CALLER, ino, how).expect("opens").handle;
    let mut content = Vec::new();
    loop {
        let mut piece = Vec::new();
        service.read(ino, handle, content.len() as u64, 1 << 20, &mut piece).expect("reads");
        if piece.is_empty() {
            break;
        }
        content.append(&mut piece);
    }
    service.release(ino, handle);
    content
}

fn entry(pool: &Pool, attributes: &Attributes) -> Seen {
    let service = pool.service();
    let ino = attributes.ino;
    let names = service.xattr_names(ino).expect("lists attributes");
    let is_small = attributes.size_bytes < 64 << 20;
    Seen {
        kind: attributes.kind,
        mode: attributes.mode,
        nlink: attributes.nlink,
        owner: (attributes.uid, attributes.gid, attributes.rdev),
        size_bytes: attributes.size_bytes,
        blocks: attributes.blocks,
        mtime: attributes.mtime,
        target: (attributes.kind == FileKind::Symlink).then(|| service.read_link(ino).expect("reads the link")),
        content: (attributes.kind == FileKind::Regular && is_small).then(|| *blake3::hash(&read(pool, ino)).as_bytes()),
        xattrs: names
            .into_iter()
            .map(|name| (name.clone(), service.xattr(ino, &name).expect("reads an attribute")))
            .collect(),
    }
}
