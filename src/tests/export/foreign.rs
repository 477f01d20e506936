//! Roots of two pools that an operator mixes up: nothing of either pool is changed.

use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use dedupfs::repair::{RepairOptions, repair_at, repair_on};
use dedupfs::{NoProgress, OpenOptions as PoolOptions, Pool, format_on};
use dedupfs_store::device::{Device, FileDevice, MemoryDevice};
use dedupfs_store::superblock::PoolProperties;

use crate::tests::common::{content, write};
use crate::tests::export::less::{damage, everything};
use crate::tests::export::site::{findings, open, picture, recover_how, shared, try_open, with_empty_base};

/// Makes a pool with this many files.
fn pool_of(first: u64, files: u64) -> (MemoryDevice, MemoryDevice) {
    let (meta, data) = with_empty_base();
    let pool = open(&meta, &data);
    (first..first + files).for_each(|number| write(&pool, &number.to_string(), &content(number, 50_000)));
    pool.close().expect("closes");
    (meta, data)
}

fn repair(meta: &MemoryDevice, data: &MemoryDevice) -> dedupfs::Result<Vec<String>> {
    let how = RepairOptions { apply: true, ..RepairOptions::default() };
    repair_on(&shared(meta), &shared(data), b"elsewhere", &how, &PoolOptions::default(), &NoProgress)
        .map(|report| report.plan)
}

/// Whether the frame of a superblock is sound, what lies behind it, or nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Sound,
    FrameSound,
    Damaged,
    Gone,
}

fn put(disk: &MemoryDevice, name: &str, state: State) {
    match state {
        State::Sound => {}
        State::FrameSound => damage(disk, name, 3000),
        State::Damaged => damage(disk, name, 70),
        State::Gone => disk.remove(name).expect("removes"),
    }
}

/// The superblock of one pool was written over that of the other, whose slots then seemed to be free.
#[test]
fn regression_a_repair_with_the_data_root_of_another_pool_changes_neither() {
    let states = [State::Sound, State::FrameSound, State::Damaged, State::Gone];
    for (of_meta, of_data) in states.into_iter().flat_map(|meta| states.map(|data| (meta, data))) {
        for has_export in [true, false] {
            let ((meta_a, data_a), (meta_b, data_b)) = (pool_of(100, 2), pool_of(500, 20));
            let (before_a, before_b) = (picture(&open(&meta_a, &data_a)), picture(&open(&meta_b, &data_b)));
            put(&meta_a, "dedupfs.meta", of_meta);
            put(&data_b, "dedupfs.data", of_data);
            if !has_export {
                ["export/owner", "export/current"].into_iter().for_each(|path| data_b.remove(path).expect("removes"));
            }
            let case = format!("meta root {of_meta:?}, data root {of_data:?}, export {has_export}");
            let all = || [everything(&meta_a), everything(&data_b)];
            let before = all();
            let error = repair(&meta_a, &data_b).expect_err(&case).to_string();
            assert!(all() == before, "{case}: {error}");
            let names_no_pool = [of_meta, of_data].iter().all(|state| matches!(state, State::Damaged | State::Gone));
            assert!(names_no_pool || error.contains("pool"), "{case}: {error}");
            // Each with its own root is repaired.
            let _unchanged_or_repaired =
                (repair(&meta_a, &data_a).expect("repairs"), repair(&meta_b, &data_b).expect("repairs"));
            assert!(
                picture(&open(&meta_a, &data_a)) == before_a && picture(&open(&meta_b, &data_b)) == before_b,
                "{case}"
            );
            assert_eq!(findings(&open(&meta_a, &data_a)), [""; 0], "{case}");
        }
    }
}

/// The file was taken for damaged, and made anew.
#[test]
fn regression_a_data_root_with_the_export_of_another_pool_is_refused() {
    let ((meta_a, data_a), (_, data_b)) = (pool_of(100, 2), pool_of(500, 2));
    for path in ["export/owner", "export/current"] {
        let (own, other) =
            (data_a.read_file(path, 1 << 20).expect("reads"), data_b.read_file(path, 1 << 20).expect("reads"));
        data_a.replace_file("export", &path["export/".len()..], &other).expect("writes");
        let before = everything(&data_a);
        for read_only in [false, true] {
            let options = PoolOptions { read_only, ..PoolOptions::default() };
            let opened = Pool::open_on(&shared(&meta_a), &shared(&data_a), Vec::new(), &options, &NoProgress);
            let error = opened.err().map(|error| error.to_string());
            assert!(error.as_ref().is_some_and(|error| error.contains("another pool")), "{path}: {error:?}");
        }
        assert!(everything(&data_a) == before, "{path}");
        data_a.replace_file("export", &path["export/".len()..], &own).expect("writes");
        assert_eq!(findings(&try_open(&shared(&meta_a), &shared(&data_a)).expect("opens")), [""; 0]);
    }
}

/// The meta root of one pool was written into the data root of the other, and neither could be used beside the other.
#[test]
fn regression_a_recovery_into_the_data_root_of_another_pool_is_refused() {
    let ((_, data_a), (_, data_b)) = (pool_of(100, 2), pool_of(500, 2));
    let before = [everything(&data_a), everything(&data_b)];
    for forced in [false, true] {
        let error = recover_how(&data_b, shared(&data_a), forced).expect_err("is refused").to_string();
        assert!(error.contains("data root of another pool"), "{error}");
    }
    assert!([everything(&data_a), everything(&data_b)] == before);
}

/// The advice was to recover, though the meta root was sound: only the wrong directory was named.
#[test]
fn regression_a_data_root_is_not_repaired_as_a_pool_of_one_root() {
    let (meta, data) = (tempfile::tempdir().expect("a directory"), tempfile::tempdir().expect("a directory"));
    let devices =
        [&meta, &data].map(|root| -> Arc<dyn Device> { Arc::new(FileDevice::open(root.path()).expect("opens")) });
    let data_root = data.path().as_os_str().as_bytes().to_vec();
    format_on(&devices[0], &devices[1], data_root, &PoolProperties::default(), (0, 0)).expect("formats");
    let how = RepairOptions { apply: true, ..RepairOptions::default() };
    let error = repair_at(data.path(), None, &how, &PoolOptions::default(), &NoProgress).expect_err("is refused");
    assert!(error.to_string().contains("name the meta root"), "{error}");
    repair_at(meta.path(), None, &how, &PoolOptions::default(), &NoProgress).expect("is sound");
}
