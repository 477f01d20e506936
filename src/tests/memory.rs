//! All open files share one budget. When it is used up, their content is put away: with the same bytes and the same
//! recipes as if each file had been written at once.

use std::sync::Arc;

use dedupfs::config::{Fingerprints, MEMORY_BYTES_MIN, MIB, MemoryPlan};
use dedupfs::{NoProgress, OpenOptions as PoolOptions, Pool, format_on};
use dedupfs_service::{FileService, Handle, Ino, NewNode, OpenOptions, ROOT_INO, WriteFlags};
use dedupfs_store::device::{Device, MemoryDevice};
use dedupfs_store::recipe::{Child, Root};
use dedupfs_store::superblock::PoolProperties;

use crate::tests::common::{CALLER, content, read, write};

/// Bytes that the file written last may hold beyond the budget: batches under way, a batch buffer and a segment.
const NEWEST_BYTES: u64 = 12 * MIB;

fn open() -> Arc<Pool> {
    open_with(PoolProperties::default())
}

fn open_with(properties: PoolProperties) -> Arc<Pool> {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::new());
    format_on(&device, &device, b".".to_vec(), &properties, (0, 0)).expect("formats");
    let options = PoolOptions { memory_bytes: MEMORY_BYTES_MIN, ..PoolOptions::default() };
    Pool::open_on(&device, &device, Vec::new(), &options, &NoProgress).expect("opens")
}

fn create(pool: &Pool, name: &str) -> (Ino, Handle) {
    let node = NewNode { parent: ROOT_INO, name: name.as_bytes(), mode: 0o644, umask: 0 };
    let how = OpenOptions { write: true, ..OpenOptions::default() };
    let (attributes, opened) = pool.service().create(CALLER, node, how).expect("creates");
    (attributes.ino, opened.handle)
}

fn close(pool: &Pool, (ino, handle): (Ino, Handle)) {
    pool.service().flush(ino, handle).expect("checkpoints");
    pool.service().release(ino, handle);
}

/// Returns the bytes held by all open files, from the statistics.
fn files_bytes(pool: &Pool) -> u64 {
    let parts = pool.stats().expect("statistics").memory.parts;
    parts.iter().find(|part| part.name == "open files").and_then(|part| part.used_bytes).expect("it is counted")
}

#[test]
fn regression_files_that_are_put_away_early_keep_their_roots() {
    const FILES: u64 = 48;
    const FILE_BYTES: usize = 3 << 20;
    let pool = open();
    let service = pool.service();
    let bound = MemoryPlan::new(MEMORY_BYTES_MIN, Fingerprints::default()).files_bytes + NEWEST_BYTES;
    let contents: Vec<_> = (0..FILES).map(|number| content(number + 1, FILE_BYTES)).collect();
    let files: Vec<_> = (0..FILES).map(|number| create(&pool, &format!("in turns {number}"))).collect();
    let mut written = vec![0; files.len()];
    for round in 0_usize.. {
        if written.iter().all(|&bytes| bytes == FILE_BYTES) {
            break;
        }
        for (number, &(ino, handle)) in files.iter().enumerate() {
            // Pieces of all sizes, in another order each time.
            let len = ((round * 7 + number * 13) % 11 + 1) * 77_777;
            let from = written[number];
            let to = FILE_BYTES.min(from + len);
            let data = &contents[number][from..to];
            if !data.is_empty() {
                service.write(CALLER, ino, handle, from as u64, data, WriteFlags::default()).expect("writes");
            }
            written[number] = to;
            if number % 8 == 0 {
                let held = files_bytes(&pool);
                assert!(held <= bound, "{held} bytes are held of open files, more than {bound}");
            }
        }
    }
    files.into_iter().for_each(|file| close(&pool, file));
    let nodes = |pool: &Pool| pool.stats().expect("statistics").session.nodes_stored;
    let before = nodes(&pool);
    for (number, content) in contents.iter().enumerate() {
        write(&pool, &format!("at once {number}"), content);
        assert_eq!(nodes(&pool), before, "file {number} has other nodes when it is written at once");
        assert_eq!(read(&pool, &format!("in turns {number}")).as_ref(), Some(content), "file {number}");
    }
    pool.close().expect("closes");
}

#[test]
fn regression_random_writes_to_many_files_share_the_budget() {
    const FILES: u64 = 40;
    const FILE_BYTES: usize = 1 << 20;
    let pool = open();
    let service = pool.service();
    let bound = MemoryPlan::new(MEMORY_BYTES_MIN, Fingerprints::default()).files_bytes + NEWEST_BYTES;
    let mut contents: Vec<_> = (0..FILES).map(|number| content(number + 1, FILE_BYTES)).collect();
    let files: Vec<_> = (0..FILES).map(|number| create(&pool, &format!("file {number}"))).collect();
    for (content, &(ino, handle)) in contents.iter().zip(&files) {
        service.write(CALLER, ino, handle, 0, content, WriteFlags::default()).expect("writes");
        service.flush(ino, handle).expect("checkpoints");
    }
    // Every other page of each file, so that extents cannot merge.
    for page in (0..FILE_BYTES / 4096).step_by(2) {
        for (number, &(ino, handle)) in files.iter().enumerate() {
            let data = content(1000 + (page * 64 + number) as u64, 4096);
            service.write(CALLER, ino, handle, page as u64 * 4096, &data, WriteFlags::default()).expect("writes");
            contents[number][page * 4096..][..4096].copy_from_slice(&data);
        }
        let held = files_bytes(&pool);
        assert!(held <= bound, "{held} bytes are held of open files, more than {bound}");
    }
    files.into_iter().for_each(|file| close(&pool, file));
    for (number, content) in contents.iter().enumerate() {
        assert_eq!(read(&pool, &format!("file {number}")).as_ref(), Some(content), "file {number}");
    }
    pool.close().expect("closes");
}

/// A file's last chunks lie in two segments, both cut only because the file ended. When they were taken back, the first
/// of them ended where its segment had ended.
#[test]
fn regression_an_append_behind_a_short_last_segment_keeps_the_root() {
    // This limits a segment to 256 chunks.
    let pool =
        open_with(PoolProperties { container_bytes: 64 << 10, chunk_size_bytes: 4096, ..PoolProperties::default() });
    let service = pool.service();
    let whole = content(5, 3 << 20);
    write(&pool, "whole", &whole);
    let last = last_chunk_of_the_first_segment(&pool, "whole");
    let nodes = |pool: &Pool| pool.stats().expect("statistics").session.nodes_stored;
    let mut in_two = 0;
    for behind in (2100..6100).step_by(100) {
        let cut = last + behind;
        let name = format!("in parts {behind}");
        let (ino, handle) = create(&pool, &name);
        service.write(CALLER, ino, handle, 0, &whole[..cut], WriteFlags::default()).expect("writes");
        service.flush(ino, handle).expect("checkpoints");
        in_two += usize::from(segments(&pool, &name).len() > 1);
        let before = nodes(&pool);
        service.write(CALLER, ino, handle, cut as u64, &whole[cut..], WriteFlags::default()).expect("writes");
        close(&pool, (ino, handle));
        assert_eq!(nodes(&pool), before, "other nodes behind a cut at {cut}");
    }
    assert!(in_two > 5, "{in_two} files ended behind a segment");
    pool.close().expect("closes");
}

fn segments(pool: &Pool, name: &str) -> Vec<Child> {
    let core = pool.core();
    let (ino, _) = core.namespace.lookup(ROOT_INO, name.as_bytes()).expect("looks").expect("is there");
    let root = core.namespace.inode(ino).expect("looks").expect("is there").root;
    let Root::Node { level, child } = root else { panic!("a file of segments, not {root:?}") };
    (1..=level).rev().fold(vec![child], |nodes, level| {
        let children =
            |node: &Child| core.dedup.nodes().node(level, node).expect("reads the recipe").children().to_vec();
        nodes.iter().flat_map(children).collect()
    })
}

fn last_chunk_of_the_first_segment(pool: &Pool, name: &str) -> usize {
    let segments = segments(pool, name);
    assert!(segments.len() > 1);
    let node = pool.core().dedup.nodes().node(0, &segments[0]).expect("reads the segment");
    let (_last, before) = node.children().split_last().expect("has chunks");
    before.iter().map(|chunk| chunk.len_bytes as usize).sum()
}
