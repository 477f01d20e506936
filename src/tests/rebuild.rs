//! Rebuilding the indexes: after any failure and any power loss the pool opens with the old indexes or the new ones,
//! and the next rebuild goes on and ends like an uninterrupted one.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use dedupfs::check::{CheckOptions, RebuildReport};
use dedupfs::reclaim::ReclaimOptions;
use dedupfs::{EngineError, Result};
use dedupfs::{NoProgress, OpenOptions as PoolOptions, Pool, Progress, format_on};
use dedupfs_index::{Index, IndexOptions};
use dedupfs_service::{FileService, ROOT_INO};

use dedupfs_store::container::Compression;
use dedupfs_store::device::faulty::{Fault, FaultPlan, FaultyDevice, Operation};
use dedupfs_store::device::{Device, MemoryDevice, OpenMode};
use dedupfs_store::recipe::Root;
use dedupfs_store::superblock::PoolProperties;

use crate::tests::common::{content, read, write};
use crate::tests::falsify::falsify;
use crate::tests::scrub;
use crate::tests::versions::site::{directory, file, snapshot};

/// Collects all progress messages.
#[derive(Default)]
struct Told(Mutex<Vec<String>>);

impl Progress for Told {
    fn start(&self, _what: &str, _total: u64) {}
    fn advance(&self, _by: u64) {}
    fn finish(&self) {}
    fn say(&self, line: &str) {
        self.0.lock().unwrap().push(line.to_owned());
    }
}

impl Told {
    fn has(&self, part: &str) -> bool {
        self.0.lock().unwrap().iter().any(|line| line.contains(part))
    }
}

pub(crate) fn open(disk: &MemoryDevice, options: &PoolOptions) -> Result<Arc<Pool>> {
    open_on(&(Arc::new(disk.clone()) as Arc<dyn Device>), options, &NoProgress)
}

fn open_on(device: &Arc<dyn Device>, options: &PoolOptions, progress: &dyn Progress) -> Result<Arc<Pool>> {
    Pool::open_on(device, device, Vec::new(), options, progress)
}

fn rebuilding() -> PoolOptions {
    PoolOptions { rebuild_index: true, ..PoolOptions::default() }
}

/// Makes a pool with files that share content, files of one chunk, garbage, a full tanker, and versions that share a tree.
pub(crate) fn pool() -> MemoryDevice {
    let disk = MemoryDevice::new();
    let device: Arc<dyn Device> = Arc::new(disk.clone());
    fill(&device, &device);
    disk.snapshot_all_synced()
}

fn fill(meta: &Arc<dyn Device>, data: &Arc<dyn Device>) {
    let properties = PoolProperties {
        chunk_size_bytes: 4096,
        container_bytes: 64 << 10,
        slots_per_file: 8,
        tanker_cells: 1024,
        tanker_buckets: 16,
        ..PoolProperties::default()
    };
    format_on(meta, data, b".".to_vec(), &properties, (0, 0)).expect("formats");
    // Each mount begins new containers.
    let mounted = |work: &dyn Fn(&Pool)| {
        let pool = Pool::open_on(meta, data, Vec::new(), &PoolOptions::default(), &NoProgress).expect("opens");
        work(&pool);
        pool.close().expect("closes");
    };
    let large = content(1, 4_000_000);
    mounted(&|pool| write(pool, "large", &large));
    mounted(&|pool| {
        write(pool, "again", &[&large[..1_700_000], &content(2, 500_000)[..], &large[1_700_000..]].concat())
    });
    mounted(&|pool| write(pool, "gone", &content(3, 1_300_000)));
    mounted(&|pool| {
        for number in 0..20 {
            write(pool, &format!("small {number}"), &content(10 + number % 15, 700));
        }
        write(pool, "last", &content(4, 600_000));
        pool.service().unlink(ROOT_INO, b"gone").expect("unlinks");
    });
    mounted(&|pool| {
        let live = directory(pool, ROOT_INO, "live");
        for number in 0..60 {
            file(pool, live, &format!("file {number}"), &content(10 + number % 15, 700));
        }
        snapshot(pool, "live", "", "v1");
        file(pool, live, "file 7b", b"new");
        snapshot(pool, "live", "", "v2");
    });
}

/// Overwrites a slot file of data and a container of recipes with nonsense.
pub(crate) fn damage(disk: &MemoryDevice) {
    for (path, from, len) in [("containers/000001.slots", 0, 8 << 16), ("recipes/000001.slots", 1 << 16, 1 << 16)] {
        let file = disk.open(path, OpenMode::Write).expect("opens");
        assert!(file.len().expect("has a length") >= from + len as u64);
        file.write_at(&vec![0xa5; len], from).expect("writes");
        file.sync().expect("syncs");
    }
}

type Cells = BTreeMap<[u8; 32], (u64, u32, u32)>;

/// Returns all cells of both indexes.
fn cells(pool: &Pool) -> [Cells; 2] {
    [&pool.core().indexes.chunks, &pool.core().indexes.nodes].map(|index| {
        index.self_check().expect("is sound");
        let mut cells = Cells::new();
        let mut visit = |fingerprint: dedupfs_store::Fingerprint, cell: dedupfs_index::Cell| {
            cells.insert(fingerprint.0, (cell.location.container().0, cell.location.len_bytes(), cell.references));
            Ok(())
        };
        index.for_each(&mut visit).expect("can be read");
        let lost = cells.values().filter(|(container, ..)| *container == 0).count() as u64;
        assert_eq!(index.lost(), lost);
        cells
    })
}

fn findings(pool: &Pool) -> Vec<String> {
    pool.check(&CheckOptions { read_data: false, ..CheckOptions::default() }, &NoProgress).expect("checks").findings
}

/// The result of an uninterrupted rebuild.
struct Expected {
    cells: [Cells; 2],
    report: RebuildReport,
    findings: usize,
    /// Whether the pool was sound before.
    was_sound: bool,
}

impl Expected {
    fn of(disk: &MemoryDevice) -> Self {
        let pool = open(&disk.snapshot_all_synced(), &rebuilding()).expect("rebuilds");
        let report = *pool.rebuilt().expect("was rebuilt");
        let lost = report.lost_chunks + report.lost_nodes;
        let before = open(&disk.snapshot_all_synced(), &PoolOptions::default());
        let was_sound = before.is_ok_and(|pool| findings(&pool).is_empty());
        let expected = Self { cells: cells(&pool), report, findings: findings(&pool).len(), was_sound };
        assert_eq!((report.missing > 0, expected.findings > 0), (lost > 0, lost > 0), "{report:?}");
        assert!(pool.core().indexes.chunks.stats().sealed_tankers >= 1);
        assert!(pool.core().stores.recipes.containers().len() > 3);
        assert_eq!(pool.core().namespace.has_losses(), lost > 0);
        expected
    }

    fn check(&self, pool: &Pool, at: &str) {
        assert!(cells(pool) == self.cells, "{at}: other cells");
        let report = *pool.rebuilt().expect("was rebuilt");
        assert_eq!(report, RebuildReport { containers_before: report.containers_before, ..self.report }, "{at}");
        assert_eq!(findings(pool).len(), self.findings, "{at}");
        assert_eq!(pool.core().namespace.has_losses(), report.missing > 0, "{at}");
    }
}

/// Checks the disk of an interrupted rebuild: a mount finds one index or the other, and a rebuild ends as if nothing
/// had happened.
fn check_broken_off(disk: &MemoryDevice, options: &PoolOptions, expected: &Expected, at: &str) -> u64 {
    let again = disk.snapshot_all_synced();
    let pool = open(&again, options).unwrap_or_else(|error| panic!("{at}: cannot be rebuilt: {error}"));
    expected.check(&pool, at);
    let before = pool.rebuilt().expect("was rebuilt").containers_before;
    pool.close().expect("closes");
    drop(pool);
    let pool = open(&again, &PoolOptions::default()).expect("opens after the rebuild");
    assert!(cells(&pool) == expected.cells, "{at}: other cells after opening anew");
    drop(pool);

    let pool = open(disk, &PoolOptions::default()).unwrap_or_else(|error| panic!("{at}: does not open: {error}"));
    if expected.was_sound {
        assert_eq!(findings(&pool), Vec::<String>::new(), "{at}");
    }
    let stats = pool.stats().expect("has statistics");
    let used = stats.chunk_index.disk_bytes + stats.recipe_index.disk_bytes;
    assert_eq!(stats.index_bytes, used, "{at}: a mount for writing leaves nothing of a rebuild");
    before
}

fn breaks_off_everywhere(disk: &MemoryDevice, options: &PoolOptions, step: usize) {
    let expected = Expected::of(disk);
    let (mut broken, mut continued) = (0, 0);
    for position in (0..).step_by(step) {
        let at = format!("position {position}");
        let memory = disk.snapshot_all_synced();
        let faulty = FaultyDevice::over_memory(&memory);
        let plan = FaultPlan::new(Fault::Io, position);
        // Every other time the power goes: from there on every operation fails.
        let is_power_loss = broken % 2 == 1;
        faulty.add(if is_power_loss { plan.lasting() } else { plan });
        let device: Arc<dyn Device> = Arc::new(faulty.clone());
        let outcome = open_on(&device, options, &NoProgress);
        let was_broken = faulty.injected() > 0;
        faulty.heal();
        match outcome {
            Ok(pool) => expected.check(&pool, &at),
            Err(error) => assert!(was_broken, "{at}: {error}"),
        }
        if !was_broken {
            break;
        }
        broken += 1;
        let left = match (is_power_loss, broken % 4) {
            (false, _) => memory.snapshot_all_synced(),
            (true, 0) => memory.crash(0),
            (true, _) => memory.crash(position + 1),
        };
        continued += u64::from(check_broken_off(&left, options, &expected, &at) > 0);
    }
    // Breaks while a guide is made cost only that guide, and behind the rebuild there is nothing to go on with.
    assert!(broken > 400 / step && continued > broken as u64 / 8, "{continued} of {broken} went on");
    println!("{continued} of {broken} went on");
}

const COPIED_FILES: u64 = 4;

fn copied(number: u64) -> Vec<u8> {
    content(50 + number, 700_000)
}

/// Returns a pool in which the last copies of some recipe nodes are bad and earlier ones are sound.
fn with_earlier_copies() -> MemoryDevice {
    let memory = MemoryDevice::new();
    let device: Arc<dyn Device> = Arc::new(memory.clone());
    scrub::format(&device, Compression::None);
    // Each mount begins new containers, and one node of each becomes bad.
    let store_all = |prefix: &str| {
        for number in 0..COPIED_FILES {
            let pool = scrub::open(&device);
            write(&pool, &format!("{prefix} {number}"), &copied(number));
            pool.close().expect("closes");
        }
    };
    let falsify_all = || {
        scrub::change(&device, "recipes", &mut |bytes| falsify(bytes));
        scrub::spoil_copies(&device);
    };
    store_all("old");
    let sound = slots(&memory);
    falsify_all();
    let pool = scrub::open(&device);
    assert_eq!(scrub::scrub(&pool).bad_nodes, COPIED_FILES);
    pool.close().expect("closes");
    drop(pool);
    store_all("new");
    falsify_all();
    for ((path, offset), slot) in sound {
        let file = memory.open(&path, OpenMode::Write).expect("opens");
        file.write_at(&slot, offset).expect("writes");
        file.sync().expect("syncs");
    }
    memory.snapshot_all_synced()
}

/// Returns the slots in use of recipe containers, with their places.
fn slots(disk: &MemoryDevice) -> BTreeMap<(String, u64), Vec<u8>> {
    let mut slots = BTreeMap::new();
    for entry in disk.list("recipes").expect("lists") {
        let path = format!("recipes/{}", entry.name);
        let bytes = disk.read_file(&path, 1 << 30).expect("reads");
        for (number, slot) in (0..).zip(bytes.chunks(scrub::CONTAINER_BYTES as usize)) {
            if slot.iter().any(|byte| *byte != 0) {
                slots.insert((path.clone(), number * scrub::CONTAINER_BYTES), slot.to_vec());
            }
        }
    }
    slots
}

/// Nodes whose last copy is bad are found in earlier containers, that counting has passed: however it breaks off, their chunks are counted
/// once, and readers are not led to the bad copies, which inodes name. When a scrub has noted these before, no commit of the rebuild says that
/// it must start over.
#[test]
fn regression_nodes_that_are_sound_in_an_earlier_container_are_counted_once() {
    let disk = with_earlier_copies();
    let pool = open(&disk.snapshot_all_synced(), &rebuilding()).expect("rebuilds");
    assert_eq!(pool.rebuilt().expect("was rebuilt").missing, 0);
    for number in 0..COPIED_FILES {
        assert!(read(&pool, &format!("new {number}")) == Some(copied(number)), "{number}");
    }
    drop(pool);
    breaks_off_everywhere(&disk, &rebuilding(), 5);
    let pool = open(&disk, &PoolOptions::default()).expect("opens");
    assert_eq!(scrub::scrub(&pool).bad_nodes, COPIED_FILES);
    pool.close().expect("closes");
    drop(pool);
    let last = Expected::of(&disk);
    assert_eq!((last.was_sound, last.report.missing), (false, 0));
    breaks_off_everywhere(&disk, &rebuilding(), 2);
}

/// A bad inode names a list by another level, and comes before the file whose list it is. Its nodes got no references, and their chunks were
/// freed; or it was given up, and the file with it.
#[test]
fn regression_a_list_that_is_named_by_a_wrong_level_puts_counts_in_doubt() {
    (0..=3).filter(|level| *level != 1).for_each(list_named_by_level);
}

fn list_named_by_level(level: u8) {
    let disk = pool();
    let pool = open(&disk, &PoolOptions::default()).expect("opens");
    let ino = |name: &[u8]| pool.service().lookup(ROOT_INO, name).expect("is there").ino;
    let (bad, good) = (ino(b"large"), ino(b"again"));
    assert!(bad < good);
    let root = pool.core().namespace.inode(good).expect("reads").expect("is there").root;
    let Root::Node { level: 1, child } = root else { panic!("{root:?}") };
    pool.core().namespace.force(bad, |inode| inode.root = Root::Node { level, child });
    pool.close().expect("closes");
    drop(pool);
    let pool = open(&disk, &rebuilding()).expect("rebuilds");
    assert_eq!(pool.rebuilt().expect("was rebuilt").missing, 1);
    let large = content(1, 4_000_000);
    let again = [&large[..1_700_000], &content(2, 500_000)[..], &large[1_700_000..]].concat();
    let outcome = pool.reclaim(&ReclaimOptions::below(100), &NoProgress);
    assert!(matches!(outcome, Err(EngineError::CountsInDoubt)), "{outcome:?}");
    assert!(read(&pool, "again") == Some(again));
}

#[test]
fn a_rebuild_may_break_off_at_every_operation() {
    breaks_off_everywhere(&pool(), &rebuilding(), 1);
}

#[test]
fn a_rebuild_of_a_damaged_pool_may_break_off_anywhere() {
    let disk = pool();
    damage(&disk);
    let report = Expected::of(&disk).report;
    assert!(report.lost_chunks > 10 && report.lost_nodes > 0, "{report:?}");
    breaks_off_everywhere(&disk, &rebuilding(), 3);
    breaks_off_everywhere(&disk, &PoolOptions { rebuild_reads_data: true, ..rebuilding() }, 7);
}

/// Makes reads of these files fail from the `position`th on.
fn unreadable(faulty: &FaultyDevice, part: &str, position: u64) {
    faulty.add(FaultPlan::new(Fault::Io, position).on(&[Operation::Read]).path_contains(part).lasting());
}

fn broken_off(disk: &MemoryDevice, part: &str, position: u64, options: &PoolOptions) -> Arc<dyn Device> {
    let faulty = FaultyDevice::over_memory(disk);
    unreadable(&faulty, part, position);
    let device: Arc<dyn Device> = Arc::new(faulty.clone());
    let error = open_on(&device, options, &NoProgress).err().expect("breaks off");
    assert!(matches!(error, EngineError::Store(dedupfs_store::StoreError::Io { .. })), "{error}");
    faulty.heal();
    device
}

/// Each table is read once, however often a rebuild breaks off.
#[test]
fn what_was_taken_is_not_read_again() {
    let (meta, data) = (MemoryDevice::new(), MemoryDevice::new());
    fill(&(Arc::new(meta.clone()) as Arc<dyn Device>), &(Arc::new(data.clone()) as Arc<dyn Device>));
    let rebuild = |meta: &MemoryDevice, data: &FaultyDevice| {
        let meta: Arc<dyn Device> = Arc::new(meta.clone());
        let data: Arc<dyn Device> = Arc::new(data.clone());
        Pool::open_on(&meta, &data, Vec::new(), &rebuilding(), &NoProgress)
    };
    let reads = |data: &FaultyDevice| data.operations_of(&[Operation::Read]);
    // A copy: the changes of this rebuild make the other meta root an older one.
    let whole = FaultyDevice::over_memory(&data.snapshot_all_synced());
    let before = reads(&whole);
    let pool = rebuild(&meta.snapshot_all_synced(), &whole).expect("rebuilds");
    // Six more reads: the superblock, the owner (to admit the meta root, for kept slots, and before it is noted anew)
    // and the current export (to admit the meta root, then to continue it).
    let (tables, expected) = (reads(&whole) - before - 6, cells(&pool));
    assert_eq!(tables, pool.core().stores.data.containers().len() as u64, "one read for each");
    drop(pool);
    let meta = meta.snapshot_all_synced();
    let mut taken = 0;
    for read in [10, 0, 17, 1] {
        let broken = FaultyDevice::over_memory(&data);
        unreadable(&broken, "containers/", read);
        assert!(rebuild(&meta, &broken).is_err());
        // Superblock, owner and current export come first; the last table was asked for, then its regions.
        assert_eq!(reads(&broken), 4 + read + 2, "nothing is read behind an error");
        taken += read;
    }
    let last = FaultyDevice::over_memory(&data);
    let pool = rebuild(&meta, &last).expect("rebuilds");
    assert_eq!(reads(&last), 6 + tables - taken);
    assert_eq!(pool.rebuilt().expect("was rebuilt").containers_before, taken);
    assert!(cells(&pool) == expected);
    assert_eq!(findings(&pool), Vec::<String>::new());
}

/// Broken off while recipes are counted: neither the tables nor the counted recipes are needed again.
#[test]
fn counting_goes_on_behind_what_was_counted() {
    let disk = pool();
    let expected = Expected::of(&disk);
    let memory = disk.snapshot_all_synced();
    let counter = FaultyDevice::over_memory(&memory);
    let reads = || counter.operations_of(&[Operation::Read]);
    drop(open_on(&(Arc::new(counter.clone()) as Arc<dyn Device>), &rebuilding(), &NoProgress).expect("rebuilds"));
    let whole = reads();
    let mut position = 0;
    let mut continued = 0;
    loop {
        let memory = disk.snapshot_all_synced();
        let faulty = FaultyDevice::over_memory(&memory);
        unreadable(&faulty, "recipes/", position);
        let device: Arc<dyn Device> = Arc::new(faulty.clone());
        let outcome = open_on(&device, &rebuilding(), &NoProgress);
        faulty.heal();
        if outcome.is_ok() {
            break;
        }
        drop(outcome);
        unreadable(&faulty, "containers/", 0);
        let before = faulty.operations_of(&[Operation::Read]);
        let pool = open_on(&device, &rebuilding(), &NoProgress).expect("needs no table again");
        assert!(faulty.operations_of(&[Operation::Read]) - before < whole);
        continued += 1;
        faulty.heal();
        expected.check(&pool, &format!("read {position} of recipes"));
        position += 1;
    }
    assert!(continued > 3);
}

/// The new index is complete but not in use yet: the next rebuild only changes sides.
#[test]
fn what_is_complete_is_only_put_to_use() {
    let disk = pool();
    let expected = Expected::of(&disk);
    let (mut position, mut complete) = (0, 0);
    loop {
        let memory = disk.snapshot_all_synced();
        let faulty = FaultyDevice::over_memory(&memory);
        faulty.add(FaultPlan::new(Fault::Io, position).on(&[Operation::Write]).path_contains("namespace").lasting());
        let device: Arc<dyn Device> = Arc::new(faulty.clone());
        let outcome = open_on(&device, &rebuilding(), &NoProgress);
        faulty.heal();
        if outcome.is_ok() {
            break;
        }
        drop(outcome);
        let id = dedupfs_store::superblock::Superblock::read(&*device, dedupfs_store::superblock::Role::Meta);
        let pool_id = id.expect("has a superblock").pool;
        let shape = IndexOptions { cells_per_tanker: 1024, buckets_per_tanker: 16, ..IndexOptions::default() };
        if Index::open(&device, "index/chunks.b", &pool_id, shape).is_ok() {
            complete += 1;
            unreadable(&faulty, "containers/", 0);
            unreadable(&faulty, "recipes/", 0);
            let pool = open_on(&device, &rebuilding(), &NoProgress).expect("reads no container");
            faulty.heal();
            expected.check(&pool, &format!("write {position} of the namespace"));
        }
        position += 1;
    }
    assert!(complete > 0, "{position} positions");
}

/// Returns the files that a rebuild left beside the index. The test puts them back after a mount has removed them.
fn left_over(device: &dyn Device) -> Vec<(String, Vec<u8>)> {
    let directories = ["index/chunks.b", "index/recipes.b"].into_iter();
    let paths = directories.flat_map(|directory| {
        let entries = device.list(directory).expect("lists").into_iter();
        entries.map(move |entry| format!("{directory}/{}", entry.name))
    });
    paths.map(|path| (path.clone(), device.read_file(&path, 1 << 30).expect("reads"))).collect()
}

#[test]
fn a_pool_that_was_changed_starts_over() {
    let disk = pool();
    let files = disk.list("containers").expect("lists");
    let last = format!("containers/{}", files.last().expect("has files").name);
    let device = broken_off(&disk, &last, 0, &rebuilding());
    let left = left_over(&*device);
    assert!(left.iter().any(|(path, _)| path.contains("progress-")));
    // A read-only mount keeps the half-built index and includes it in the statistics.
    let read_only = PoolOptions { read_only: true, ..PoolOptions::default() };
    let pool = open_on(&device, &read_only, &NoProgress).expect("opens");
    let stats = pool.stats().expect("has statistics");
    let unused: u64 = left.iter().map(|(_, bytes)| bytes.len() as u64).sum();
    assert_eq!(stats.index_bytes, stats.chunk_index.disk_bytes + stats.recipe_index.disk_bytes + unused);
    pool.close().expect("closes");
    drop(pool);
    // A mount for writing removes it. Otherwise the notes of the rebuild show that it is out of date.
    let pool = open_on(&device, &PoolOptions::default(), &NoProgress).expect("opens");
    assert!(left_over(&*device).is_empty());
    write(&pool, "new", &content(77, 100_000));
    pool.close().expect("closes");
    drop(pool);
    for (path, bytes) in &left {
        let (directory, name) = path.rsplit_once('/').expect("has a directory");
        device.replace_file(directory, name, bytes).expect("writes");
    }
    let told = Told::default();
    let pool = open_on(&device, &rebuilding(), &told).expect("rebuilds");
    assert!(told.has("thrown away: the pool has been changed") && !told.has("goes on"));
    assert_eq!(pool.rebuilt().expect("was rebuilt").containers_before, 0);
    assert_eq!(findings(&pool), Vec::<String>::new());
    pool.close().expect("closes");
}

#[test]
fn another_thoroughness_starts_over() {
    let disk = pool();
    let expected = Expected::of(&disk);
    let files = disk.list("containers").expect("lists");
    let last = format!("containers/{}", files.last().expect("has files").name);
    let device = broken_off(&disk, &last, 0, &rebuilding());
    let told = Told::default();
    let options = PoolOptions { rebuild_reads_data: true, ..rebuilding() };
    let pool = open_on(&device, &options, &told).expect("rebuilds");
    assert!(told.has("thrown away") && told.has("--read-data"));
    expected.check(&pool, "with data");
}

/// A container that was given up is put back before the rebuild goes on: none of its chunks is taken for lost.
#[test]
fn what_can_be_read_again_is_read_again() {
    let disk = pool();
    let expected = Expected::of(&disk);
    let files = disk.list("containers").expect("lists");
    let first = format!("containers/{}", files[0].name);
    let last = format!("containers/{}", files.last().expect("has files").name);
    let bytes = disk.read_file(&first, 1 << 30).expect("reads");
    disk.remove(&first).expect("removes");
    let lossy = Expected::of(&disk);
    assert!(lossy.report.lost_chunks > 0);
    let device = broken_off(&disk, &last, 0, &rebuilding());
    // Without the container the rebuild goes on.
    let copy = disk.snapshot_all_synced();
    let told = Told::default();
    let pool = open_on(&(Arc::new(copy) as Arc<dyn Device>), &rebuilding(), &told).expect("rebuilds");
    assert!(told.has("goes on"));
    lossy.check(&pool, "as it was");
    drop(pool);
    device.replace_file("containers", &files[0].name, &bytes).expect("writes");
    let told = Told::default();
    let pool = open_on(&device, &rebuilding(), &told).expect("rebuilds");
    assert!(told.has("thrown away: container"));
    expected.check(&pool, "put back");
    assert_eq!(pool.rebuilt().expect("was rebuilt").missing, 0);
}

/// Damage to a half-built index costs the progress, not the rebuild: to that of chunks while tables are taken, and to that of nodes while
/// chunks are counted.
#[test]
fn a_damaged_half_built_index_is_built_anew() {
    let disk = pool();
    let expected = Expected::of(&disk);
    let breaks = |position: &u64| {
        let faulty = FaultyDevice::over_memory(&disk.snapshot_all_synced());
        unreadable(&faulty, "recipes/", *position);
        let device: Arc<dyn Device> = Arc::new(faulty);
        open_on(&device, &rebuilding(), &NoProgress).is_err()
    };
    let last = (0..).take_while(breaks).last().expect("recipes are read");
    for (part, position, directory) in [("containers/", 100, "index/chunks.b"), ("recipes/", last, "index/recipes.b")] {
        let disk = disk.snapshot_all_synced();
        drop(broken_off(&disk, part, position, &rebuilding()));
        let names: Vec<String> = disk.list(directory).expect("lists").into_iter().map(|entry| entry.name).collect();
        assert!(names.len() > 2 && names.iter().any(|name| name.starts_with("progress-")), "{names:?}");
        for name in names {
            let disk = disk.snapshot_all_synced();
            let file = disk.open(&format!("{directory}/{name}"), OpenMode::Write).expect("opens");
            let len = file.len().expect("has a length");
            let half = usize::try_from(len - len / 2).expect("fits");
            file.write_at(&vec![0x5a; half], len / 2).expect("writes");
            let pool = open(&disk, &rebuilding()).unwrap_or_else(|error| panic!("{name}: {error}"));
            expected.check(&pool, &name);
        }
    }
}
