//! Reclaiming at scale, on metadata alone: the index's cost of counting, planning and moving, and the cost of the
//! garbage map, up to the chunks of a terabyte and more. No payload is written or read.
//!
//! ```text
//! cargo bench --bench gc_scale -- --max 128M --dir /var/tmp
//! ```
//!
//! 1. *Fill*: versions of an image (`backup`) are written one after another, new chunks into containers of 512 in order
//!    of arrival, until there are `--max` different chunks.
//! 2. *Count*: all but the newest `--keep` versions are deleted. Segments that no version has any more drop their
//!    references to chunks.
//! 3. For each policy, on a copy of this index (links suffice, because its files are never rewritten): *open*; *plan*
//!    (victims from the garbage map); *move*: cells of victims are looked up in the order of their containers' tables,
//!    live ones get new locations, dead ones are removed, and containers are freed when a checkpoint has made that
//!    durable. Then the map is compared with the expected remainder.
//!
//! The engine's own `reclaim::Classes` chooses the victims. Policies: those of `dedupfs-bench retention` (`default`,
//! `perfect`, `half`, `marker`), or `T/L`, which is `dedupfs-gc --threshold T --leave L`. With `--order emptiest` the
//! emptiest victims go first; else they go by their ids, dead ones first, as in the engine, so that a checkpoint writes
//! few tankers.
//!
//! No time includes the generation of fingerprints. Everything is written below `--dir` and removed at the end.
#![expect(clippy::unwrap_used, reason = "a benchmark fails by panicking")]

mod backup;
mod metered;
mod phase;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use dedupfs::reclaim::{Candidate, Classes, ReclaimOptions};
use dedupfs_index::{Change, Index, IndexOptions, Occupied};
use dedupfs_store::device::observed::ObservedDevice;
use dedupfs_store::device::{Device, FileDevice};
use dedupfs_store::{ContainerId, Fingerprint, PoolId};

use backup::{Chunk, Extent, Image, SEGMENT_CHUNKS};
use metered::Meter;
use phase::Work;

const POOL: PoolId = PoolId([1; 16]);
const DIRECTORY: &str = "index";
const MILLION: u64 = 1 << 20;
const CHUNKS_PER_CONTAINER: u64 = 512;

/// Containers whose cells are looked up together.
const CONTAINERS_AT_ONCE: usize = 64;

/// Most bytes of the garbage map for each container, tables included.
const MAP_BYTES_PER_CONTAINER_MAX: u64 = 48;

struct Arguments {
    max: u64,
    directory: PathBuf,
    versions: u32,
    keep: u32,
    changed_percent: f64,
    policies: Vec<Policy>,
    emptiest_first: bool,
    check: bool,
}

/// A named policy with its options.
#[derive(Clone, Debug)]
struct Policy {
    name: String,
    options: ReclaimOptions,
}

/// Parses a number; "64M" is 64 times 2^20.
fn number(text: &str) -> u64 {
    let (digits, factor) = match text.strip_suffix('M') {
        Some(digits) => (digits, MILLION),
        None => (text, 1),
    };
    digits.parse::<u64>().expect("a number such as 16M") * factor
}

fn policy(name: &str) -> Policy {
    let options = match name {
        "default" => ReclaimOptions::default(),
        "perfect" => ReclaimOptions::below(100),
        "half" => ReclaimOptions::below(50),
        "marker" => ReclaimOptions::below(0),
        _ => {
            let (threshold, leave) = name.split_once('/').expect("a policy by its name, or such as 90/5");
            let percent = |text: &str| text.parse().expect("percents");
            ReclaimOptions { leave_percent: percent(leave), ..ReclaimOptions::below(percent(threshold)) }
        }
    };
    Policy { name: name.to_owned(), options }
}

fn arguments() -> Arguments {
    let mut found = Arguments {
        max: 4 * MILLION,
        directory: std::env::temp_dir(),
        versions: 100,
        keep: 20,
        changed_percent: 4.0,
        policies: ["default", "perfect", "half", "marker"].map(policy).to_vec(),
        emptiest_first: false,
        check: false,
    };
    let mut given = std::env::args().skip(1);
    while let Some(name) = given.next() {
        let mut value = || given.next().expect("an option has a value");
        match name.as_str() {
            "--max" => found.max = number(&value()),
            "--dir" => found.directory = value().into(),
            "--versions" => found.versions = number(&value()) as u32,
            "--keep" => found.keep = number(&value()) as u32,
            "--changed-percent" => found.changed_percent = value().parse().expect("a number such as 2.5"),
            "--policies" => found.policies = value().split(',').map(policy).collect(),
            "--order" => found.emptiest_first = value() == "emptiest",
            "--check" => found.check = true,
            // Passed by cargo itself.
            "--bench" => {}
            other => panic!(
                "{other}? known are --max, --dir, --versions, --keep, --changed-percent, --policies, --order and --check"
            ),
        }
    }
    assert!(0 < found.keep && found.keep <= found.versions && found.versions < 1 << 16, "versions are kept");
    found
}

/// Returns the resident bytes of this process.
pub(crate) fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    statm.split_whitespace().nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0) * 4096
}

pub(crate) fn mib(bytes: u64) -> f64 {
    bytes as f64 / (1 << 20) as f64
}

/// The chunks of each container, as on the data root of a pool.
#[derive(Clone)]
struct Containers {
    tables: HashMap<ContainerId, Vec<Extent>>,
    /// The container that is being filled.
    open: u64,
    filled: u64,
}

impl Containers {
    fn new() -> Self {
        Self { tables: HashMap::new(), open: 1, filled: 0 }
    }

    /// Appends a chunk.
    fn append(&mut self, chunk: Chunk) -> ContainerId {
        if self.filled == CHUNKS_PER_CONTAINER {
            self.seal();
        }
        self.filled += 1;
        let Chunk { segment, generation, position } = chunk;
        let table = self.tables.entry(ContainerId(self.open)).or_default();
        match table.last_mut() {
            Some(last) if (last.segment, last.generation, last.start + last.len) == (segment, generation, position) => {
                last.len += 1;
            }
            _ => table.push(Extent { segment, generation, start: position, len: 1 }),
        }
        ContainerId(self.open)
    }

    fn seal(&mut self) {
        if self.filled > 0 {
            (self.open, self.filled) = (self.open + 1, 0);
        }
    }
}

/// The generations of each segment: the newest, and the oldest that a version has.
struct Generations {
    newest: Vec<u16>,
    oldest: Vec<u16>,
}

impl Generations {
    /// Returns the number of chunks that some version has.
    fn live_cells(&self) -> u64 {
        let of = |(segment, (newest, oldest)): (u32, (&u16, &u16))| {
            let later = (oldest + 1..=*newest).flat_map(|generation| backup::made(segment, generation));
            u64::from(SEGMENT_CHUNKS) + later.map(|extent| u64::from(extent.len)).sum::<u64>()
        };
        (0..).zip(self.newest.iter().zip(&self.oldest)).map(of).sum()
    }
}

fn fill(image: Image, versions: u32, work: &mut Work<'_>) -> (Containers, Generations) {
    let mut containers = Containers::new();
    let mut newest = vec![0_u16; image.segments as usize];
    for version in 0..versions {
        for segment in image.changed(version) {
            let generation = &mut newest[segment as usize];
            *generation += u16::from(version > 0);
            for chunk in backup::made(segment, *generation).flat_map(Extent::chunks) {
                let location = chunk.location(containers.append(chunk));
                work.change(Change::Insert { fingerprint: chunk.fingerprint(), location });
            }
            for chunk in backup::content(segment, *generation) {
                work.change(Change::Count { fingerprint: chunk.fingerprint(), delta: 1, hint: ContainerId::NONE });
            }
        }
        containers.seal();
    }
    work.end("fill");
    let oldest = vec![0; newest.len()];
    (containers, Generations { newest, oldest })
}

/// Deletes the oldest versions.
fn count(image: Image, deleted: u32, generations: &mut Generations, work: &mut Work<'_>) {
    // With version 0 go the chunks that version 1 replaced.
    for version in 1..=deleted {
        for segment in image.changed(version) {
            let oldest = &mut generations.oldest[segment as usize];
            for chunk in backup::content(segment, *oldest) {
                work.change(Change::Count { fingerprint: chunk.fingerprint(), delta: -1, hint: ContainerId::NONE });
            }
            *oldest += 1;
        }
    }
    work.end("count");
}

/// Returns the victims and their total contents.
fn plan(index: &Index, policy: &Policy, emptiest_first: bool) -> (Vec<ContainerId>, Occupied) {
    let mut classes = Classes::default();
    index.for_each_occupied(&mut |container, occupied| classes.add(&candidate(container, &occupied)));
    let mut choice = classes.choose(&policy.options);
    // The engine holds a window of them at a time.
    let mut victims = Vec::new();
    index.for_each_occupied(&mut |container, occupied| {
        let candidate = candidate(container, &occupied);
        if choice.may_take(&candidate) {
            victims.push((candidate, occupied));
        }
    });
    victims.sort_unstable_by_key(|(candidate, _)| candidate.id);
    victims.retain(|(candidate, _)| choice.takes(candidate));
    if emptiest_first {
        // By live share, compared by products of integers.
        victims.sort_by(|(a, _), (b, _)| (a.live_bytes * b.chunk_bytes).cmp(&(b.live_bytes * a.chunk_bytes)));
    } else {
        victims.sort_by_key(|(candidate, _)| candidate.live_chunks > 0);
    }
    let mut sum = Occupied::default();
    for (_, occupied) in &victims {
        sum.cells += occupied.cells;
        sum.live_cells += occupied.live_cells;
        sum.bytes += occupied.bytes;
        sum.live_bytes += occupied.live_bytes;
    }
    (victims.into_iter().map(|(candidate, _)| candidate.id).collect(), sum)
}

fn candidate(id: ContainerId, occupied: &Occupied) -> Candidate {
    Candidate {
        id,
        chunk_bytes: occupied.bytes,
        chunks: occupied.cells,
        live_bytes: occupied.live_bytes,
        live_chunks: occupied.live_cells,
        used_bytes: occupied.bytes,
        is_damaged: false,
    }
}

/// The result of moving.
#[derive(Default)]
struct Emptied {
    moved: u64,
    moved_bytes: u64,
    removed: u64,
    freed: u64,
    /// Most containers that waited for a checkpoint at once.
    waiting_max: usize,
}

fn empty(victims: &[ContainerId], containers: &mut Containers, work: &mut Work<'_>) -> Emptied {
    let mut emptied = Emptied::default();
    let mut waiting: Vec<ContainerId> = Vec::new();
    containers.seal();
    for batch in victims.chunks(CONTAINERS_AT_ONCE) {
        let chunks: Vec<(ContainerId, Chunk)> = batch
            .iter()
            .flat_map(|id| containers.tables[id].iter().flat_map(|extent| extent.chunks()).map(|chunk| (*id, chunk)))
            .collect();
        let prints: Vec<Fingerprint> = chunks.iter().map(|(_, chunk)| chunk.fingerprint()).collect();
        let sealed = |index: &Index| index.sealed_cells_in(&prints, &|item| chunks[item].0);
        let found = work.looked_up(|index| index.cells_of(&prints, &mut sealed(index)?)).unwrap();
        for (((container, chunk), fingerprint), cell) in chunks.into_iter().zip(prints).zip(found) {
            let cell = cell.expect("nobody removed it");
            assert_eq!(cell.location.container(), container);
            if cell.references > 0 {
                let location = chunk.location(containers.append(chunk));
                work.changes.push(Change::Insert { fingerprint, location });
                emptied.moved += 1;
                emptied.moved_bytes += u64::from(location.len_bytes());
            } else {
                work.changes.push(Change::Remove { fingerprint, container });
                emptied.removed += 1;
            }
        }
        waiting.extend_from_slice(batch);
        emptied.waiting_max = emptied.waiting_max.max(waiting.len());
        if work.apply() {
            free(&mut waiting, containers, work.index, &mut emptied);
        }
    }
    work.end("move");
    free(&mut waiting, containers, work.index, &mut emptied);
    emptied
}

fn free(waiting: &mut Vec<ContainerId>, containers: &mut Containers, index: &Index, emptied: &mut Emptied) {
    for container in waiting.drain(..) {
        assert_eq!(index.occupied(container), Occupied::default(), "{container} is not empty");
        containers.tables.remove(&container);
        emptied.freed += 1;
    }
}

/// Links all files of a directory into another.
fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        std::fs::hard_link(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

fn show(index: &Index) {
    let (stats, total) = (index.stats(), index.occupied_total());
    println!(
        "  {} containers, {:.1} GiB, of which {:.1} GiB ({:.1}%) are dead, and {} of {} cells; garbage map {:.1} MiB, {:.1} bytes for each container; \
         index {:.0} MiB in memory and {:.0} MiB in {} tankers on disk",
        stats.occupied_containers,
        mib(total.bytes) / 1024.0,
        mib(total.dead_bytes()) / 1024.0,
        total.dead_bytes() as f64 * 100.0 / total.bytes.max(1) as f64,
        total.dead_cells(),
        total.cells,
        mib(stats.occupancy_bytes),
        stats.occupancy_bytes as f64 / stats.occupied_containers.max(1) as f64,
        mib(stats.memory_bytes),
        mib(stats.disk_bytes),
        stats.sealed_tankers,
    );
}

fn open(directory: &Path, options: IndexOptions) -> (Index, Arc<Meter>) {
    let meter = Arc::new(Meter::default());
    let files: Arc<dyn Device> = Arc::new(FileDevice::open(directory).unwrap());
    let device: Arc<dyn Device> = Arc::new(ObservedDevice::new(files, meter.clone()));
    if !device.exists(&format!("{DIRECTORY}/manifest")).unwrap() {
        Index::create(&device, DIRECTORY, &POOL, options).unwrap();
    }
    (Index::open(&device, DIRECTORY, &POOL, options).unwrap(), meter)
}

fn run_policy(
    policy: &Policy,
    arguments: &Arguments,
    home: &Path,
    options: IndexOptions,
    filled: &Containers,
    live: u64,
) {
    println!(
        "{} (--threshold {} --leave {}):",
        policy.name, policy.options.threshold_percent, policy.options.leave_percent
    );
    let place = home.join("policy");
    copy(&home.join("filled").join(DIRECTORY), &place.join(DIRECTORY));
    let started = Instant::now();
    let (index, meter) = open(&place, options);
    let opening = started.elapsed();
    let read_bytes = meter.take().read_bytes;
    let started = Instant::now();
    let (victims, of_victims) = plan(&index, policy, arguments.emptiest_first);
    println!(
        "  opened in {:.0} ms, {:.1} MiB read; planned in {:.1} ms, {} bytes read: {} containers, {} cells to move, {:.2} GiB to move to free {:.2} GiB",
        opening.as_secs_f64() * 1e3,
        mib(read_bytes),
        started.elapsed().as_secs_f64() * 1e3,
        meter.take().read_bytes,
        victims.len(),
        of_victims.live_cells,
        mib(of_victims.live_bytes) / 1024.0,
        mib(of_victims.dead_bytes()) / 1024.0,
    );
    let mut containers = filled.clone();
    let mut work = Work::new(&index, &meter);
    let emptied = empty(&victims, &mut containers, &mut work);
    println!(
        "  freed {} containers (at most {} waited for a checkpoint), moved {} cells ({:.3} bytes for each byte freed), removed {}",
        emptied.freed,
        emptied.waiting_max,
        emptied.moved,
        emptied.moved_bytes as f64 / of_victims.dead_bytes().max(1) as f64,
        emptied.removed,
    );
    show(&index);
    assert_eq!((emptied.moved, emptied.moved_bytes), (of_victims.live_cells, of_victims.live_bytes), "as planned");
    assert_eq!(emptied.removed, of_victims.dead_cells());
    assert_eq!(index.occupied_total().live_cells, live, "what is alive stays");
    assert_eq!(index.stats().occupied_containers, containers.tables.len() as u64);
    if (policy.options.threshold_percent, policy.options.leave_percent) == (100, 0) {
        assert_eq!(index.occupied_total().dead_cells(), 0);
    }
    if arguments.check {
        index.self_check().unwrap();
    }
    drop(index);
    std::fs::remove_dir_all(&place).unwrap();
}

fn main() {
    let arguments = arguments();
    let home = tempfile::tempdir_in(&arguments.directory).unwrap();
    let image = Image::of(arguments.max, arguments.versions, arguments.changed_percent);
    // 24 bits for each fingerprint, and some more for the rounding of groups.
    let filter_bytes = arguments.max.div_ceil(MILLION).max(8) * (7 << 19);
    let options = IndexOptions { filter_bytes, ..IndexOptions::default() };
    println!(
        "{} versions of an image of {} chunks, {}% of its segments changed by each; {} versions are kept",
        arguments.versions,
        u64::from(image.segments) * u64::from(SEGMENT_CHUNKS),
        arguments.changed_percent,
        arguments.keep
    );
    let place = home.path().join("filled");
    std::fs::create_dir(&place).unwrap();
    let (filled, live) = {
        let (index, meter) = open(&place, options);
        let mut work = Work::new(&index, &meter);
        let (filled, mut generations) = fill(image, arguments.versions, &mut work);
        assert_eq!(index.occupied_total().dead_cells(), 0);
        show(&index);
        count(image, arguments.versions - arguments.keep, &mut generations, &mut work);
        show(&index);
        let stats = index.stats();
        if stats.occupied_containers > 10_000 {
            assert!(stats.occupancy_bytes <= stats.occupied_containers * MAP_BYTES_PER_CONTAINER_MAX, "a large map");
        }
        let live = generations.live_cells();
        assert_eq!(index.occupied_total().live_cells, live);
        if arguments.check {
            index.self_check().unwrap();
        }
        (filled, live)
    };
    for policy in &arguments.policies {
        run_policy(policy, &arguments, home.path(), options, &filled, live);
    }
}
