//! Many processes write at the same time, a piece each by turns: their files lie in few containers all the same.

use std::collections::BTreeSet;
use std::process::{Child, Command};
use std::sync::Arc;

use dedupfs::config::MEMORY_BYTES_MIN;
use dedupfs::{NoProgress, OpenOptions as PoolOptions, Pool, format_on};
use dedupfs_service::{Caller, FileService, NewNode, OpenOptions, ROOT_INO, WriteFlags};
use dedupfs_store::ContainerId;
use dedupfs_store::device::{Device, MemoryDevice};
use dedupfs_store::recipe::Root;
use dedupfs_store::superblock::PoolProperties;

use crate::tests::common::{CALLER, content, read};

const WRITERS: u64 = 48;
const FILE_BYTES: usize = 2 << 20;
const PIECE_BYTES: usize = 96 << 10;
const CONTAINER_BYTES: u32 = 1 << 20;

/// Processes that live as long as this.
struct Processes(Vec<Child>);

impl Processes {
    fn start() -> Self {
        let start = |_| Command::new("sleep").arg("600").spawn().expect("starts");
        Self((0..WRITERS).map(start).collect())
    }

    fn caller(&self, writer: u64) -> Caller {
        Caller { pid: self.0[writer as usize].id(), ..CALLER }
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        for process in &mut self.0 {
            let _ = process.kill().and_then(|()| process.wait());
        }
    }
}

fn name(writer: u64) -> String {
    format!("file {writer}")
}

fn open(device: &Arc<dyn Device>) -> Arc<Pool> {
    let options = PoolOptions { memory_bytes: MEMORY_BYTES_MIN, ..PoolOptions::default() };
    Pool::open_on(device, device, Vec::new(), &options, &NoProgress).expect("opens")
}

/// Returns the containers of a file's chunks.
fn containers(pool: &Pool, name: &str) -> BTreeSet<ContainerId> {
    let core = pool.core();
    let (ino, _) = core.namespace.lookup(ROOT_INO, name.as_bytes()).expect("looks").expect("is there");
    let root = core.namespace.inode(ino).expect("looks").expect("is there").root;
    let Root::Node { level, child } = root else { panic!("a file of segments, not {root:?}") };
    let chunks = (0..=level).rev().fold(vec![child], |nodes, level| {
        let children = |node| core.dedup.nodes().node(level, node).expect("reads the recipe").children().to_vec();
        nodes.iter().flat_map(children).collect()
    });
    chunks.iter().map(|chunk| chunk.hint).collect()
}

#[test]
fn files_of_many_slow_writers_lie_in_few_containers() {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::new());
    let properties = PoolProperties { container_bytes: CONTAINER_BYTES, ..PoolProperties::default() };
    format_on(&device, &device, b".".to_vec(), &properties, (0, 0)).expect("formats");
    let pool = open(&device);
    let (service, processes) = (pool.service(), Processes::start());
    let contents: Vec<_> = (0..WRITERS).map(|writer| content(writer + 1, FILE_BYTES)).collect();
    let create = |writer| {
        let name = name(writer);
        let node = NewNode { parent: ROOT_INO, name: name.as_bytes(), mode: 0o644, umask: 0 };
        let how = OpenOptions { write: true, ..OpenOptions::default() };
        let (attributes, opened) = service.create(processes.caller(writer), node, how).expect("creates");
        (attributes.ino, opened.handle)
    };
    let files: Vec<_> = (0..WRITERS).map(create).collect();
    for from in (0..FILE_BYTES).step_by(PIECE_BYTES) {
        for (writer, &(ino, handle)) in (0..WRITERS).zip(&files) {
            let piece = &contents[writer as usize][from..FILE_BYTES.min(from + PIECE_BYTES)];
            service
                .write(processes.caller(writer), ino, handle, from as u64, piece, WriteFlags::default())
                .expect("writes");
        }
        if from % (4 * PIECE_BYTES) == 0 {
            pool.sync().expect("syncs");
        }
    }
    for (ino, handle) in files {
        service.flush(ino, handle).expect("checkpoints");
        service.release(ino, handle);
    }
    pool.close().expect("closes");

    let pool = open(&device);
    // Two containers' bytes, begun and ended anywhere, with frames, tables and padding.
    let most = FILE_BYTES / CONTAINER_BYTES as usize + 2;
    for (writer, content) in (0..WRITERS).zip(&contents) {
        let found = containers(&pool, &name(writer));
        assert!(found.len() <= most, "file {writer} lies in {} containers", found.len());
        assert_eq!(read(&pool, &name(writer)).as_ref(), Some(content), "file {writer}");
    }
    pool.close().expect("closes");
}
