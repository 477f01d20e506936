//! The byte compare filter: damaged chunks are stored again when the same data is written again, and a hash collision
//! is an error, never another file's bytes.

mod common;

use std::sync::Arc;

use dedupfs::check::CheckOptions;
use dedupfs::reclaim::ReclaimOptions;
use dedupfs::{NoProgress, OpenOptions as PoolOptions, Pool, format_on};
use dedupfs_content::chunker;
use dedupfs_service::{Errno, FileService, ROOT_INO};
use dedupfs_store::container::{Compression, decode_region, encode_region};
use dedupfs_store::device::faulty::{Fault, FaultPlan, FaultyDevice, Operation};
use dedupfs_store::device::{Device, MemoryDevice, OpenMode};
use dedupfs_store::frame::{FrameHeader, FrameKind};
use dedupfs_store::superblock::{ChunkerKind, FingerprintAlgorithm, PoolProperties, Role, Superblock};
use dedupfs_store::{ContainerId, ContainerKind};

use common::{content, read, try_write, write};

const COMPARING: &str = "block,open,bloom,locality,sealed,compare";

/// Two beginnings of PDF files with one SHA-1 (Stevens et al., "The first collision for full SHA-1", 2017). They still
/// collide when the same bytes follow both.
const COLLIDING: [&str; 2] = [
    "7f46dc93a6b67e013b029aaa1db2560b45ca67d688c7f84b8c4c791fe02b3df614f86db1690901c56b45c1530afedfb76038e972722fe7ad728f0e\
     4904e046c230570fe9d41398abe12ef5bc942be33542a4802d98b5d70f2a332ec37fac3514e74ddc0f2cc1a874cd0c78305a2156646130978960\
     6bd0bf3f98cda8044629a1",
    "7346dc9166b67e118f029ab621b2560ff9ca67cca8c7f85ba84c79030c2b3de218f86db3a90901d5df45c14f26fedfb3dc38e96ac22fe7bd728f0e\
     45bce046d23c570feb141398bb552ef5a0a82be331fea48037b8b5d71f0e332edf93ac3500eb4ddc0decc1a864790c782c76215660dd309791d0\
     6bd0af3f98cda4bc4629b1",
];
const COLLIDING_PREFIX: &str = "255044462d312e330a25e2e3cfd30a0a0a312030206f626a0a3c3c2f57696474682032203020522f4865696768742033203020522f547970652034\
     203020522f537562747970652035203020522f46696c7465722036203020522f436f6c6f7253706163652037203020522f4c656e677468203820\
     3020522f42697473506572436f6d706f6e656e7420383e3e0a73747265616d0affd8fffe00245348412d3120697320646561642121212121852f\
     ec092339759c39b1a1c63c4c97e1fffe01";

/// Returns one of two contents whose first `320 + n` bytes have the same SHA-1 for every `n`.
fn colliding(which: usize, rest: &[u8]) -> Vec<u8> {
    let hex = |text: &str| -> Vec<u8> {
        let digits = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).expect("ascii"), 16).expect("hex");
        text.as_bytes().chunks(2).map(digits).collect()
    };
    [hex(COLLIDING_PREFIX), hex(COLLIDING[which]), rest.to_vec()].concat()
}

fn formatted(device: &Arc<dyn Device>, fingerprint: FingerprintAlgorithm) {
    let properties = PoolProperties {
        chunk_size_bytes: 4096,
        container_bytes: 256 << 10,
        slots_per_file: 8,
        fingerprint,
        compression: Compression::None,
        ..PoolProperties::default()
    };
    format_on(device, device, b".".to_vec(), &properties, (0, 0)).expect("formats");
}

fn new_device(fingerprint: FingerprintAlgorithm) -> Arc<dyn Device> {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::new());
    formatted(&device, fingerprint);
    device
}

fn open(device: &Arc<dyn Device>, filters: &str) -> Arc<Pool> {
    let options = PoolOptions { filters: filters.parse().expect("a plan"), ..PoolOptions::default() };
    Pool::open_on(device, device, Vec::new(), &options, &NoProgress).expect("opens")
}

fn comparing(device: &Arc<dyn Device>) -> Arc<Pool> {
    open(device, COMPARING)
}

fn holds(pool: &Pool, name: &str, data: &[u8]) -> bool {
    read(pool, name).as_deref() == Some(data)
}

/// Returns the findings of a check, without those about permanently damaged containers.
fn findings(pool: &Pool) -> Vec<String> {
    let findings =
        pool.check(&CheckOptions { read_data: true, ..CheckOptions::default() }, &NoProgress).expect("checks").findings;
    findings.into_iter().filter(|finding| !finding.starts_with("container")).collect()
}

fn unlink_all_and_reclaim(pool: &Pool, names: &[&str]) {
    for name in names {
        pool.service().unlink(ROOT_INO, name.as_bytes()).expect("unlinks");
    }
    let options = ReclaimOptions::below(100);
    for _ in 0..2 {
        pool.reclaim(&options, &NoProgress).expect("reclaims");
    }
    let stats = pool.stats().expect("has statistics");
    assert_eq!((stats.chunk_index.cells, stats.recipe_index.cells), (0, 0), "every count came to its end");
}

/// Makes a pool with one file, closed.
fn with_file(data: &[u8]) -> Arc<dyn Device> {
    let device = new_device(FingerprintAlgorithm::Blake3);
    let pool = open(&device, "open,sealed");
    write(&pool, "old", data);
    pool.close().expect("closes");
    device
}

fn each_slot_file(device: &Arc<dyn Device>, directory: &str, change: &dyn Fn(&mut Vec<u8>)) {
    for entry in device.list(directory).expect("lists") {
        let path = format!("{directory}/{}", entry.name);
        let mut bytes = device.read_file(&path, 1 << 30).expect("reads");
        change(&mut bytes);
        let file = device.open(&path, OpenMode::Write).expect("opens");
        file.write_at(&bytes, 0).expect("writes");
        file.sync().expect("syncs");
    }
}

/// Overwrites a part of the first region of each container. The region's checksum shows it.
fn damage(device: &Arc<dyn Device>, directory: &str) {
    each_slot_file(device, directory, &|bytes| {
        for slot in bytes.chunks_mut(256 << 10) {
            let end = slot.len().min(800);
            slot[end.min(400)..end].fill(0x5a);
        }
    });
}

/// Changes a byte of each region's content and makes the checksum fit, as a memory error before writing does.
fn falsify(device: &Arc<dyn Device>) {
    let pool = Superblock::read(&**device, Role::Meta).expect("reads").pool;
    each_slot_file(device, "containers", &|bytes| {
        let mut at = 0;
        while at + 64 <= bytes.len() {
            let header =
                FrameHeader::decode("frame", &bytes[at..]).ok().filter(|header| header.kind == FrameKind::Region);
            if let Some(header) = header {
                let container = ContainerId(header.owner);
                let mut region = decode_region(&pool, container, &bytes[at..]).expect("is sound");
                let middle = region.raw.len() / 2;
                region.raw[middle] ^= 1;
                let none = Compression::None;
                let forged = encode_region(&pool, container, ContainerKind::Data, region.entries, &region.raw, none);
                let frame = forged.expect("encodes").frame(&region.raw);
                bytes[at..at + frame.len()].copy_from_slice(&frame);
            }
            at += 64;
        }
    });
}

/// Writes `old` again, as it is and inside other data, so that segments are known and new segments have known chunks.
fn backed_up_again(device: &Arc<dyn Device>, filters: &str, data: &[u8]) -> [bool; 3] {
    let shifted = [&content(99, 5000)[..], data].concat();
    let pool = open(device, filters);
    write(&pool, "same", data);
    write(&pool, "shifted", &shifted);
    pool.close().expect("closes");
    drop(pool);
    let pool = open(device, filters);
    let whole = [holds(&pool, "same", data), holds(&pool, "shifted", &shifted), holds(&pool, "old", data)];
    if whole[0] {
        assert_eq!(findings(&pool), Vec::<String>::new());
        unlink_all_and_reclaim(&pool, &["same", "shifted", "old"]);
    }
    pool.close().expect("closes");
    whole
}

#[test]
fn damaged_chunks_are_healed_by_writing_the_same_data_again() {
    for len in [3000, 200_000, 20 << 20] {
        let data = content(1, len);
        let device = with_file(&data);
        damage(&device, "containers");
        assert_eq!(backed_up_again(&device, COMPARING, &data), [true; 3], "{len} bytes");
        let device = with_file(&data);
        damage(&device, "containers");
        let without = backed_up_again(&device, "block,open,bloom,locality,sealed", &data);
        assert!(!without[0] && !without[2], "{len} bytes: without comparing nobody notices");
    }
}

/// A reader looks first where the recipe's hint leads, and cannot tell that the bytes are wrong: new recipes must not
/// lead there.
#[test]
fn wrong_content_under_a_right_checksum_is_not_shared() {
    for len in [3000, 200_000, 60 << 20] {
        let data = content(2, len);
        let device = with_file(&data);
        falsify(&device);
        let [same, shifted, _] = backed_up_again(&device, COMPARING, &data);
        assert!(same && shifted, "{len} bytes");
    }
}

/// By then the index has the sound copies. The known segment still leads to the wrong ones.
#[test]
fn a_known_segment_whose_hints_lead_to_wrong_content_is_not_shared() {
    for len in [200_000, 20 << 20] {
        let data = content(2, len);
        let device = with_file(&data);
        falsify(&device);
        let shifted = [&content(99, 5000)[..], &data].concat();
        for (name, data) in [("shifted", &shifted), ("same", &data)] {
            let pool = comparing(&device);
            write(&pool, name, data);
            pool.close().expect("closes");
        }
        let pool = open(&device, "open,sealed");
        assert!(holds(&pool, "shifted", &shifted) && holds(&pool, "same", &data), "{len} bytes");
        pool.close().expect("closes");
    }
}

#[test]
fn damaged_recipes_of_known_segments_are_healed() {
    let data = content(3, 60 << 20);
    let device = with_file(&data);
    damage(&device, "recipes");
    assert_eq!(backed_up_again(&device, COMPARING, &data), [true; 3]);
}

#[test]
fn sound_data_is_compared_and_shared() {
    let data = content(4, 20 << 20);
    let device = with_file(&data);
    let pool = comparing(&device);
    let before = pool.stats().expect("has statistics");
    write(&pool, "same", &data);
    pool.sync().expect("syncs");
    let same = pool.stats().expect("has statistics");
    assert_eq!(same.recipe_container_bytes, before.recipe_container_bytes, "sound recipes are not written again");
    write(&pool, "shifted", &[&content(98, 5000)[..], &data].concat());
    pool.sync().expect("syncs");
    let stats = pool.stats().expect("has statistics");
    assert!(stats.chunk_index.cells - before.chunk_index.cells < 10, "next to nothing was stored");
    let filter = |name: &str| stats.filters.iter().find(|filter| filter.name == name).expect("is in the plan").clone();
    let (compare, sealed) = (filter("compare"), filter("sealed"));
    assert!(compare.asked > 9000 && compare.existing == compare.asked, "{compare:?}");
    assert!(compare.reads > 0 && compare.read_bytes > data.len() as u64, "all of it was read from its containers");
    assert!(sealed.asked < compare.asked, "chunks of known segments are not looked up: {sealed:?}");
    assert!(holds(&pool, "same", &data));
    assert_eq!(findings(&pool), Vec::<String>::new());
    unlink_all_and_reclaim(&pool, &["same", "shifted", "old"]);
    pool.close().expect("closes");
}

/// A disk that does not answer must not cause everything to be stored again, nor be taken for a match.
#[test]
fn an_error_of_the_disk_fails_the_write() {
    let memory = MemoryDevice::new();
    let faulty = FaultyDevice::over_memory(&memory);
    let device: Arc<dyn Device> = Arc::new(faulty.clone());
    formatted(&device, FingerprintAlgorithm::Blake3);
    let data = content(5, 3 << 20);
    let pool = comparing(&device);
    write(&pool, "old", &data);
    pool.close().expect("closes");
    drop(pool);
    let pool = comparing(&device);
    let cells = pool.stats().expect("has statistics").chunk_index.cells;
    faulty.add(FaultPlan::new(Fault::Io, 0).on(&[Operation::Read]).path_contains("containers/").lasting());
    assert_eq!(try_write(&pool, "new", &data), Err(Errno::EIO));
    faulty.heal();
    write(&pool, "newer", &data);
    pool.sync().expect("syncs");
    assert!(holds(&pool, "newer", &data) && holds(&pool, "old", &data));
    assert_eq!(pool.stats().expect("has statistics").chunk_index.cells, cells);
    pool.close().expect("closes");
}

/// One SHA-1, two contents: as a small file, at the beginning of a large one (whose segments then also have the same
/// fingerprint), and over a file's former content.
#[test]
fn a_collision_is_an_error_and_both_files_keep_their_bytes() {
    for rest_len in [0, 3000, 20 << 20] {
        let rest = content(6, rest_len);
        let (first, second) = (colliding(0, &rest), colliding(1, &rest));
        assert_ne!(first, second);
        let device = new_device(FingerprintAlgorithm::Sha1);
        let pool = comparing(&device);
        write(&pool, "first", &first);
        let other = content(7, second.len());
        write(&pool, "second", &other);
        for _ in 0..2 {
            assert_eq!(try_write(&pool, "second", &second), Err(Errno::EIO), "{rest_len}");
            write(&pool, "again", &first);
        }
        pool.sync().expect("the pool goes on");
        assert!(holds(&pool, "first", &first) && holds(&pool, "again", &first), "{rest_len}");
        assert!(holds(&pool, "second", &other), "{rest_len}");
        pool.close().expect("closes");
        drop(pool);
        // The collision is also found when the first content lies on disk.
        let pool = comparing(&device);
        assert_eq!(try_write(&pool, "third", &second), Err(Errno::EIO), "{rest_len}");
        assert!(holds(&pool, "first", &first) && holds(&pool, "second", &other), "{rest_len}");
        assert_eq!(findings(&pool), Vec::<String>::new());
        pool.close().expect("closes");
        drop(pool);
        // The bytes that a reader would get without the filter.
        let pool = open(&device, "block,open,bloom,locality,sealed");
        write(&pool, "third", &second);
        assert!(holds(&pool, "third", &first), "{rest_len}: without comparing, the bytes of the first are read");
        pool.close().expect("closes");
    }
}

/// Both chunks come in one segment, before either is stored.
#[test]
fn a_collision_within_a_segment_is_an_error() {
    let chunker = chunker(ChunkerKind::MinCdc, 4096);
    let cut = |data: &[u8]| chunker.next_cut(data, true).expect("has a chunk");
    // The end of the first chunk depends on the bytes behind it, so most contents are cut elsewhere the second time.
    let found = (0..1000).find_map(|seed| {
        let rest = content(seed, 30_000);
        let end = cut(&colliding(0, &rest));
        let twice = |which: usize| [&colliding(0, &rest)[..end], &colliding(which, &rest)[..end], &rest].concat();
        let (both, same) = (twice(1), twice(0));
        (cut(&both) == end && cut(&both[end..]) == end && cut(&same[end..]) == end).then_some((both, same))
    });
    let (both, same) = found.expect("one of so many");
    let device = new_device(FingerprintAlgorithm::Sha1);
    let pool = comparing(&device);
    assert_eq!(try_write(&pool, "both", &both), Err(Errno::EIO));
    write(&pool, "same", &same);
    assert!(holds(&pool, "same", &same), "a chunk may come twice");
    pool.close().expect("closes");
    drop(pool);
    let pool = open(&device, "sealed");
    write(&pool, "both", &both);
    assert!(holds(&pool, "both", &same), "without comparing, the bytes of one are read for both");
    pool.close().expect("closes");
}
