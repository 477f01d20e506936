//! A trial recovery shows whether a lost meta root would come back, and leaves nothing behind.

use std::path::Path;

use dedupfs::EngineError;
use dedupfs::{NoProgress, OpenOptions, Pool, Progress, TRIAL_MEMORY_BYTES, TrialReport};
use dedupfs_store::device::{Device, MemoryDevice, OpenMode, OverlayDevice};

use crate::tests::common::{content, write};
use crate::tests::export::site::{Random, open, shared, step, with_empty_base};

fn trial(pool: &Pool) -> TrialReport {
    let scratch = tempfile::tempdir().expect("makes a directory");
    let report = pool.trial_recovery(scratch.path(), TRIAL_MEMORY_BYTES, &NoProgress).expect("is tried");
    assert!(is_empty(scratch.path()), "something is left of it");
    report
}

fn is_empty(directory: &Path) -> bool {
    std::fs::read_dir(directory).expect("lists").next().is_none()
}

fn filled() -> (MemoryDevice, MemoryDevice) {
    let (meta, data) = with_empty_base();
    let pool = open(&meta, &data);
    let mut random = Random(11);
    for _ in 0..40 {
        step(&pool, &mut random);
    }
    write(&pool, "file", &content(1, 300_000));
    pool.close().expect("closes");
    (meta, data)
}

#[test]
fn a_sound_export_is_recovered_for_a_trial_beside_writers_and_offline() {
    let (meta, data) = filled();
    let pool = open(&meta, &data);
    for number in 0..10 {
        write(&pool, &format!("later {number}"), &content(50 + number, 20_000));
    }
    // One change behind the export and one that is not committed: neither has to be recovered.
    pool.sync().expect("syncs");
    write(&pool, "not yet", &content(99, 20_000));
    let report = trial(&pool);
    assert!(report.is_sound(), "{report:?}");
    pool.close().expect("closes");
    drop(pool);
    let before = data.read_file("export/current", 1 << 20).expect("reads");
    let options = OpenOptions { read_only: true, ..OpenOptions::default() };
    let pool = Pool::open_on(&shared(&meta), &shared(&data), Vec::new(), &options, &NoProgress).expect("opens");
    let report = trial(&pool);
    assert!(report.is_sound() && report.files > 10 && report.compared > 20 && report.containers > 0, "{report:?}");
    assert_eq!(data.read_file("export/current", 1 << 20).expect("reads"), before);
}

#[test]
fn what_would_be_missing_is_told() {
    let (meta, data) = filled();
    let damaged = |damage: &dyn Fn(&MemoryDevice)| {
        let (meta, data) = (meta.snapshot_all_synced(), data.snapshot_all_synced());
        damage(&data);
        let options = OpenOptions { read_only: true, ..OpenOptions::default() };
        let pool = Pool::open_on(&shared(&meta), &shared(&data), Vec::new(), &options, &NoProgress).expect("opens");
        let report = trial(&pool);
        assert!(!report.is_sound(), "{report:?}");
        report
    };
    let flip = |disk: &MemoryDevice, path: &str, offset: u64| {
        let file = disk.open(path, OpenMode::Write).expect("opens");
        let mut byte = [0];
        file.read_exact_at(&mut byte, offset).expect("reads");
        file.write_at(&[byte[0] ^ 1], offset).expect("writes");
    };
    let file = |disk: &MemoryDevice, start: &str| {
        let entries = disk.list("export").expect("lists");
        let name = entries.into_iter().map(|entry| entry.name).find(|name| name.starts_with(start));
        format!("export/{}", name.expect("is there"))
    };
    damaged(&|disk| flip(disk, &file(disk, "log-"), 100));
    damaged(&|disk| flip(disk, &file(disk, "base-"), 100));
    damaged(&|disk| flip(disk, "export/current", 70));
    damaged(&|disk| disk.remove("export/recipes/000001.slots").expect("removes"));
    let report = damaged(&|disk| disk.open("containers/000001.slots", OpenMode::Write).unwrap().set_len(0).unwrap());
    assert!(report.missing.iter().any(|missing| missing.contains("cannot be read")), "{report:?}");
}

/// Groups appended while the names are restored were taken for a damaged end of the log.
#[test]
fn regression_what_is_exported_during_a_trial_is_no_part_of_it() {
    let (meta, data) = filled();
    let pool = open(&meta, &data);
    write(&pool, "before", &content(60, 20_000));
    pool.sync().expect("syncs");
    pool.core().committer.export().expect("exports");
    let held = pool.core().exporter.hold();
    write(&pool, "meanwhile", &content(61, 20_000));
    pool.sync().expect("syncs");
    pool.core().committer.export().expect("exports");
    let log_bytes = |device: &dyn Device| {
        let mut logs = device.list("export").expect("lists");
        logs.retain(|entry| entry.name.starts_with("log-"));
        logs.iter().map(|entry| entry.len_bytes).max().expect("there is a log")
    };
    let view = OverlayDevice::new(shared(&data), 1 << 20);
    held.cut_view(&view).expect("cuts");
    assert!(log_bytes(&view) < log_bytes(&data));
    assert!(!view.exists("export/reached").expect("looks") && data.exists("export/reached").expect("looks"));
    drop(held);
    assert!(trial(&pool).is_sound());
}

/// A link in the scratch space could have led a trial to empty a directory elsewhere.
#[test]
fn regression_a_link_in_the_place_of_the_scratch_space_is_not_followed() {
    let (meta, data) = filled();
    let pool = open(&meta, &data);
    let [scratch, elsewhere] = [(); 2].map(|()| tempfile::tempdir().expect("makes a directory"));
    std::fs::write(elsewhere.path().join("precious"), b"content").expect("writes");
    std::os::unix::fs::symlink(elsewhere.path(), scratch.path().join("dedupfs-trial")).expect("links");
    assert!(pool.trial_recovery(scratch.path(), TRIAL_MEMORY_BYTES, &NoProgress).is_err());
    assert!(elsewhere.path().join("precious").exists());
}

/// Ends the trial at the beginning of its first phase, as `dedupfs scrub --stop` does.
struct Stopping<'a>(&'a Pool);

impl Progress for Stopping<'_> {
    fn start(&self, _: &str, _: u64) {
        assert!(self.0.scrub_status().expect("is told").in_trial);
        self.0.stop_trial();
    }

    fn advance(&self, _: u64) {}

    fn finish(&self) {}
}

#[test]
fn regression_a_trial_can_be_stopped_and_leaves_nothing() {
    let (meta, data) = filled();
    let pool = open(&meta, &data);
    let above = tempfile::tempdir().expect("a directory");
    let scratch = above.path().join("new/er");
    let ended = pool.trial_recovery(&scratch, TRIAL_MEMORY_BYTES, &Stopping(&pool));
    assert!(matches!(ended, Err(EngineError::Ended(_))), "{ended:?}");
    assert!(above.path().read_dir().expect("lists").next().is_none(), "a directory is left");
    assert!(!pool.scrub_status().expect("is told").in_trial);
    // An earlier stop does not concern a later trial.
    pool.stop_trial();
    assert!(pool.trial_recovery(&scratch, TRIAL_MEMORY_BYTES, &NoProgress).expect("is tried").is_sound());
    assert!(above.path().read_dir().expect("lists").next().is_none());
}
