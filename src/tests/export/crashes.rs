//! The power goes at any operation of the data device, and the meta device is lost for good.
//!
//! Every commit is followed by a picture of the tree, kept by its row. A recovery must show the picture of the row that
//! it names, and that row is no older than the last one that was certainly exported.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use dedupfs::Pool;
use dedupfs_store::Result;
use dedupfs_store::device::faulty::{Fault, FaultPlan, FaultyDevice, Operation};
use dedupfs_store::device::{Device, DeviceFile, Entry, MemoryDevice, OpenMode, Space};

use crate::tests::common::{content, read, write};
use crate::tests::export::less::log_of;
use crate::tests::export::site::{
    Picture, Random, assert_recovers, findings, force_recover, formatted, open, picture, reclaim, recover, shared,
    step, try_open, with_empty_base,
};

/// The data device at one moment.
struct Photograph {
    operation: u64,
    disk: MemoryDevice,
    /// The last row that was certainly exported.
    exported_row: u64,
}

#[derive(Debug, Default)]
struct Camera {
    operations: AtomicU64,
    every: u64,
    seed: u64,
    exported_row: AtomicU64,
    taken: Mutex<Vec<Photograph>>,
}

impl std::fmt::Debug for Photograph {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "photograph before operation {}", self.operation)
    }
}

impl Camera {
    fn see(&self, disk: &MemoryDevice) {
        let operation = self.operations.fetch_add(1, Ordering::SeqCst);
        if !(operation + self.seed).is_multiple_of(self.every) {
            return;
        }
        let exported_row = self.exported_row.load(Ordering::SeqCst);
        // Every fourth keeps no unsynced change.
        let seed =
            if operation.is_multiple_of(4) { 0 } else { self.seed.wrapping_mul(1 << 20).wrapping_add(operation) };
        let disk = disk.crash(seed);
        self.taken.lock().unwrap().push(Photograph { operation, disk, exported_row });
    }
}

/// A disk under a camera.
#[derive(Clone, Debug)]
struct Watched {
    disk: MemoryDevice,
    camera: Arc<Camera>,
}

#[derive(Debug)]
struct WatchedFile {
    file: Arc<dyn DeviceFile>,
    disk: MemoryDevice,
    camera: Arc<Camera>,
}

impl Device for Watched {
    fn open(&self, path: &str, mode: OpenMode) -> Result<Arc<dyn DeviceFile>> {
        self.camera.see(&self.disk);
        let file = self.disk.open(path, mode)?;
        Ok(Arc::new(WatchedFile { file, disk: self.disk.clone(), camera: self.camera.clone() }))
    }

    fn remove(&self, path: &str) -> Result<()> {
        self.camera.see(&self.disk);
        self.disk.remove(path)
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        self.camera.see(&self.disk);
        self.disk.rename(from, to)
    }

    fn rename_absent(&self, from: &str, to: &str) -> Result<()> {
        self.camera.see(&self.disk);
        self.disk.rename_absent(from, to)
    }

    fn create_directory(&self, path: &str) -> Result<()> {
        self.disk.create_directory(path)
    }

    fn list(&self, path: &str) -> Result<Vec<Entry>> {
        self.disk.list(path)
    }

    fn sync_directory(&self, path: &str) -> Result<()> {
        self.camera.see(&self.disk);
        self.disk.sync_directory(path)
    }

    fn exists(&self, path: &str) -> Result<bool> {
        self.disk.exists(path)
    }

    fn space(&self) -> Result<Space> {
        self.disk.space()
    }

    fn describe(&self) -> String {
        self.disk.describe()
    }
}

impl DeviceFile for WatchedFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        self.file.read_at(buffer, offset)
    }

    fn write_at(&self, buffer: &[u8], offset: u64) -> Result<()> {
        self.camera.see(&self.disk);
        self.file.write_at(buffer, offset)
    }

    fn sync(&self) -> Result<()> {
        self.camera.see(&self.disk);
        self.file.sync()
    }

    fn len(&self) -> Result<u64> {
        self.file.len()
    }

    fn set_len(&self, len_bytes: u64) -> Result<()> {
        self.camera.see(&self.disk);
        self.file.set_len(len_bytes)
    }

    fn punch(&self, offset: u64, len_bytes: u64) -> Result<()> {
        self.camera.see(&self.disk);
        self.file.punch(offset, len_bytes)
    }

    fn allocated_bytes(&self) -> Result<u64> {
        self.file.allocated_bytes()
    }
}

/// The tree as of each commit.
type Pictures = BTreeMap<u64, Picture>;

/// Notes the current picture for all rows up to now: commits of reclaiming and opening change nothing visible.
fn note(pool: &Pool, camera: &Camera, pictures: &mut Pictures) {
    let row = pool.core().namespace.last_row();
    let first = pictures.last_key_value().map_or(0, |(row, _)| row + 1);
    let seen = picture(pool);
    for row in first..=row {
        pictures.insert(row, seen.clone());
    }
    camera.exported_row.store(pool.core().exporter.stats().expect("tells").row, Ordering::SeqCst);
}

/// Works on a pool with remounts, kills, reclaiming and exports. Returns the photographs, and the picture of each row.
fn work(seed: u64, every: u64, steps: u64) -> (Vec<Photograph>, Pictures) {
    let (meta, data) = formatted();
    let camera = Arc::new(Camera { every, seed, ..Camera::default() });
    let watched: Arc<dyn Device> = Arc::new(Watched { disk: data, camera: camera.clone() });
    let mut pictures = Pictures::new();
    let mut random = Random(seed + 1);
    let mut pool = try_open(&shared(&meta), &watched).expect("opens");
    note(&pool, &camera, &mut pictures);
    for number in 0..steps {
        step(&pool, &mut random);
        pool.sync().expect("syncs");
        note(&pool, &camera, &mut pictures);
        match random.below(10) {
            0 => reclaim(&pool),
            1 | 2 => pool.core().committer.export().expect("exports"),
            3 => pool.core().exporter.rebase().expect("writes a base"),
            4 if number.is_multiple_of(3) => {
                pool.close().expect("closes");
                note_closed(&pool, &mut pictures);
                pool = try_open(&shared(&meta), &watched).expect("opens");
            }
            // The process is killed; the disks are not.
            5 if number.is_multiple_of(3) => {
                drop(pool);
                pool = try_open(&shared(&meta), &watched).expect("opens");
            }
            _ => continue,
        }
        pool.sync().expect("syncs");
        note(&pool, &camera, &mut pictures);
    }
    pool.close().expect("closes");
    note_closed(&pool, &mut pictures);
    (std::mem::take(&mut *camera.taken.lock().unwrap()), pictures)
}

/// Notes the rows of closing: closing commits, but changes nothing visible.
fn note_closed(pool: &Pool, pictures: &mut Pictures) {
    let (last, seen) = pictures.last_key_value().map(|(row, seen)| (*row, seen.clone())).expect("was noted");
    for row in last + 1..=pool.core().namespace.last_row() {
        pictures.insert(row, seen.clone());
    }
}

/// Recovers from a photograph and checks the result. Returns whether there was an export.
fn develop(photograph: &Photograph, pictures: &Pictures, seed: u64, goes_on: bool) -> bool {
    let at = format!("seed {seed}, power lost before operation {}", photograph.operation);
    let data = &photograph.disk;
    // A crash leaves containers that no export names. The recovery reports that, so it has to be forced.
    let (meta, report) = match force_recover(data) {
        Ok(recovered) => recovered,
        Err(error) => {
            assert!(photograph.exported_row == 0, "{at}: an export of {} is gone: {error}", photograph.exported_row);
            assert!(error.to_string().contains("no export"), "{at}: {error}");
            return false;
        }
    };
    // The note of the export's progress is never ahead of the export.
    assert!(
        !report.restored.shortfall.iter().any(|less| less.contains("was complete")),
        "{at}: {:?}",
        report.restored.shortfall
    );
    assert!(
        report.restored.row >= photograph.exported_row,
        "{at}: row {}, exported {}",
        report.restored.row,
        photograph.exported_row
    );
    assert_eq!((report.rebuilt.missing, report.restored.recipes_damaged), (0, 0), "{at}: {report:?}");
    let pool = open(&meta, data);
    let expected = pictures
        .get(&report.restored.row)
        .unwrap_or_else(|| panic!("{at}: row {} was never seen", report.restored.row));
    assert!(picture(&pool) == *expected, "{at}: not the state of row {}", report.restored.row);
    assert_eq!(findings(&pool), Vec::<String>::new(), "{at}");
    if goes_on {
        go_on(pool, &meta, data, &at);
    }
    true
}

/// A recovered pool works as any other, and can be recovered again.
fn go_on(pool: Arc<Pool>, meta: &MemoryDevice, data: &MemoryDevice, at: &str) {
    let mut random = Random(photo_seed(at));
    for _ in 0..6 {
        step(&pool, &mut random);
    }
    let bytes = content(4711, 150_000);
    write(&pool, "written after", &bytes);
    reclaim(&pool);
    let before = picture(&pool);
    pool.close().expect("closes");
    drop(pool);
    let pool = open(meta, data);
    assert!(picture(&pool) == before, "{at}: opened anew");
    assert_eq!(findings(&pool), Vec::<String>::new(), "{at}: opened anew");
    drop(pool);
    let (meta, report) = recover(data);
    assert_eq!(report.rebuilt.missing, 0, "{at}: recovered again");
    let pool = open(&meta, data);
    assert!(picture(&pool) == before, "{at}: recovered again");
    assert!(read(&pool, "written after").as_ref() == Some(&bytes), "{at}");
    assert_eq!(findings(&pool), Vec::<String>::new(), "{at}: recovered again");
}

fn photo_seed(at: &str) -> u64 {
    at.bytes().fold(99_u64, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into())) | 1
}

#[test]
fn the_data_root_alone_survives_a_power_loss_at_any_operation() {
    let (mut photographs, mut recovered) = (0, 0);
    for seed in 0..24 {
        let (taken, pictures) = work(seed, 5, 45);
        for (number, photograph) in taken.iter().enumerate() {
            photographs += 1;
            recovered += u64::from(develop(photograph, &pictures, seed, number.is_multiple_of(8)));
        }
    }
    println!("{photographs} photographs, {recovered} recovered");
    assert!(photographs > 1500 && recovered > photographs * 3 / 4, "{recovered} of {photographs}");
}

/// Tests the check itself: it must notice a state that was never committed.
#[test]
#[should_panic(expected = "not the state of row")]
fn another_state_is_noticed() {
    let (taken, mut pictures) = work(3, 40, 20);
    for picture in pictures.values_mut() {
        picture.clear();
    }
    taken.iter().for_each(|photograph| {
        develop(photograph, &pictures, 3, false);
    });
}

/// Makes the copies of recipes durable on the second disk, too: they are synced before a log names them.
fn copy_recipes(from: &MemoryDevice, to: &MemoryDevice) {
    for entry in from.list("export/recipes").expect("lists") {
        let path = format!("export/recipes/{}", entry.name);
        let bytes = from.read_file(&path, 1 << 20).expect("reads");
        let _is_there = to.create_directory("export/recipes");
        let copy = to.open(&path, OpenMode::CreateOrWrite).expect("opens");
        copy.write_at(&bytes, 0).and_then(|()| copy.sync()).expect("is durable");
        to.sync_directory("export/recipes").and_then(|()| to.sync_directory("export")).expect("is durable");
    }
}

/// A world found the export of a killed process in memory only, used and named by the next commits, and then lost with the power.
/// And a group whose write had failed behind its frames, but before the zeros that fill its block: the log was too short for good.
#[test]
fn regression_an_export_that_a_killed_process_left_is_made_durable_before_it_counts() {
    for is_short in [false, true] {
        let (meta, data) = with_empty_base();
        let pool = open(&meta, &data);
        pool.core().committer.export().expect("exports");
        let log = log_of(&data);
        let log = log.as_str();
        let before = data.read_file(log, 1 << 20).expect("reads");
        write(&pool, "file", &content(1, 100_000));
        pool.sync().expect("syncs");
        let (left, at_kill) = (meta.fork(), data.fork());
        pool.core().committer.export().expect("exports");
        let mut after = data.read_file(log, 1 << 20).expect("reads");
        pool.close().expect("closes");
        assert!(after.starts_with(&before) && after.len() > before.len());
        if is_short {
            let kept = after.len() - 512;
            assert_eq!(after.split_off(kept), [0; 512], "the zeros that fill the block");
        }
        let file = at_kill.open(log, OpenMode::Write).expect("opens");
        file.write_at(&after[before.len()..], before.len() as u64).expect("writes");
        copy_recipes(&data, &at_kill);

        let pool = open(&left, &at_kill);
        write(&pool, "other", &content(2, 1000));
        pool.sync().expect("syncs");
        let (meta, data) = (left.crash(0), at_kill.crash(0));
        drop(pool.close());
        let pool = open(&meta, &data);
        assert!(data.exists(log).expect("looks"), "the export is gone on with");
        assert!(data.open(log, OpenMode::Read).and_then(|log| log.len()).expect("looks") >= after.len() as u64);
        pool.close().expect("closes");
        assert!(data.exists(log).expect("looks"), "the export is gone on with");
    }
}

/// Pages that a failed sync lost are clean in the system's memory: the next process found a whole group there, and its sync had nothing
/// to write. Commits rested on a log with a hole.
#[test]
fn regression_a_group_that_a_failed_sync_lost_is_not_believed_by_the_next_process() {
    let (meta, data) = with_empty_base();
    let faulty = FaultyDevice::over_memory(&data);
    let device: Arc<dyn Device> = Arc::new(faulty.clone());
    let pool = try_open(&shared(&meta), &device).expect("opens");
    pool.core().committer.export().expect("exports");
    write(&pool, "file", &content(1, 100_000));
    pool.sync().expect("syncs");
    faulty.add(FaultPlan::new(Fault::Io, 0).on(&[Operation::Sync]).path_contains("export/log-"));
    faulty.add(FaultPlan::new(Fault::Io, 0).path_contains("export/base-").lasting());
    pool.core().committer.export().expect("is made anew later");
    assert!(faulty.injected() > 0);
    let (left, at_kill) = (meta.fork(), data.fork());

    let pool = open(&left, &at_kill);
    write(&pool, "other", &content(2, 1000));
    pool.sync().expect("syncs");
    let (meta, data) = (left.crash(0), at_kill.crash(0));
    drop(pool);
    let pool = open(&meta, &data);
    write(&pool, "third", &content(3, 1000));
    assert_recovers(&data, pool);
}

/// The meta root has everything: such a log must not keep the pool away.
#[test]
fn regression_a_pool_opens_though_the_log_that_it_finds_cannot_be_synced() {
    for is_lasting in [false, true] {
        let (meta, data) = with_empty_base();
        let pool = open(&meta, &data);
        pool.core().committer.export().expect("exports");
        let log = log_of(&data);
        write(&pool, "file", &content(1, 100_000));
        pool.sync().expect("syncs");
        let (left, at_kill) = (meta.fork(), data.fork());
        let at = data.read_file(&log, 1 << 20).expect("reads").len();
        pool.core().committer.export().expect("exports");
        let group = data.read_file(&log, 1 << 20).expect("reads").split_off(at);
        let file = at_kill.open(&log, OpenMode::Write).expect("opens");
        file.write_at(&group, at as u64).expect("writes");
        copy_recipes(&data, &at_kill);

        let faulty = FaultyDevice::over_memory(&at_kill);
        let fault = FaultPlan::new(Fault::Io, 0).on(&[Operation::Sync]).path_contains(&log);
        faulty.add(if is_lasting { fault.lasting() } else { fault });
        let device: Arc<dyn Device> = Arc::new(faulty.clone());
        let pool = try_open(&shared(&left), &device).expect("opens");
        assert!(faulty.injected() > 0);
        write(&pool, "other", &content(2, 1000));
        let before = picture(&pool);
        pool.close().expect("closes");
        drop(pool);
        let at_kill = at_kill.crash(0);
        let (meta, _) = recover(&at_kill);
        assert!(picture(&open(&meta, &at_kill)) == before);
    }
}
