//! Interplay of the export, recovery, quarantine and scrubs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use dedupfs::recover::recover_on;
use dedupfs::scrub::ScrubOptions;
use dedupfs::{NoProgress, OpenOptions as PoolOptions, Pool};
use dedupfs_service::{FileService, NewNode, NodeContent, ROOT_INO};

use dedupfs_store::container::Compression;
use dedupfs_store::device::observed::{Call, ObservedDevice, Observer};
use dedupfs_store::device::{Device, MemoryDevice, OpenMode};
use dedupfs_store::superblock::PoolProperties;
use parking_lot::Mutex;

use crate::tests::common::{CALLER, content, read, write};
use crate::tests::export::site::{findings, formatted, open, picture, properties, recover, shared, try_open};
use crate::tests::falsify::falsify;

fn scrub(pool: &Pool) {
    let options = ScrubOptions { restart: true, ..ScrubOptions::default() };
    assert!(pool.scrub(&options, &NoProgress).expect("scrubs").finished);
}

/// A scrub leaves its position on the meta root: that file does not make the root a foreign one.
#[test]
fn regression_a_meta_root_that_was_scrubbed_is_recovered_in_place() {
    let (meta, data) = formatted();
    let pool = open(&meta, &data);
    write(&pool, "file", &content(1, 100_000));
    scrub(&pool);
    pool.close().expect("closes");
    let before = picture(&pool);
    drop(pool);
    let options = PoolOptions::default();
    recover_on(&shared(&meta), &shared(&data), b"elsewhere".to_vec(), true, &options, &NoProgress).expect("recovers");
    let pool = open(&meta, &data);
    assert!(picture(&pool) == before);
    assert_eq!(findings(&pool), Vec::<String>::new());
}

/// A copy of the meta root was taken while the pool was mounted, and is put back without an opening in between: the
/// export is newer, and it alone has the later writes.
#[test]
fn regression_a_meta_root_that_is_older_than_the_export_does_not_replace_it() {
    let (meta, data) = formatted();
    let pool = open(&meta, &data);
    write(&pool, "old", &content(1, 100_000));
    pool.sync().expect("syncs");
    pool.core().committer.export().expect("exports");
    let older = meta.snapshot_all_synced();
    write(&pool, "new", &content(2, 100_000));
    pool.sync().expect("syncs");
    pool.core().committer.export().expect("exports");
    let before = picture(&pool);
    drop(pool);
    for _ in 0..2 {
        let error = try_open(&shared(&older), &shared(&data)).map(|_| ()).expect_err("is refused").to_string();
        assert!(error.contains("older") && error.contains("dedupfs recover"), "{error}");
    }
    let (meta, report) = recover(&data);
    assert_eq!((report.restored.damage, report.rebuilt.missing), (None, 0));
    assert!(picture(&open(&meta, &data)) == before);
}

/// Runs an action once, before a base is synced.
struct AtBase {
    armed: AtomicBool,
    pool: Mutex<Option<Arc<Pool>>>,
    data: MemoryDevice,
}

impl std::fmt::Debug for AtBase {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("AtBase")
    }
}

impl Observer for AtBase {
    fn around(
        &self,
        call: &Call<'_>,
        perform: &mut dyn FnMut() -> dedupfs_store::Result<()>,
    ) -> dedupfs_store::Result<()> {
        if matches!(call, Call::Sync { path } if path.contains("base-")) && self.armed.swap(false, Ordering::SeqCst) {
            let pool = self.pool.lock().clone().expect("is set");
            // The disk is filled before there is something to export. Otherwise the pool's own thread would export it
            // while there is space, and nothing would be left to export without space.
            self.data.set_capacity(self.data.used_bytes());
            for number in 0..400 {
                let target: Vec<u8> = content(number, 1000).iter().map(|byte| byte | 1).collect();
                let name = format!("link {number}");
                let node = NewNode { parent: ROOT_INO, name: name.as_bytes(), mode: 0o777, umask: 0 };
                pool.service().make(CALLER, node, NodeContent::Symlink(&target)).expect("links");
            }
            pool.sync().expect("syncs");
            for _ in 0..100 {
                if pool.core().exporter.stats().expect("tells").row == 0 {
                    break;
                }
                pool.core().committer.export().expect("is tried again");
            }
            assert_eq!(pool.core().exporter.stats().expect("tells").row, 0, "the export was given up");
            self.data.set_capacity(u64::MAX / 2);
        }
        perform()
    }
}

/// The export is given up for lack of space while a new base is being written for it: that base must not count.
#[test]
fn regression_a_base_whose_export_was_given_up_meanwhile_does_not_count() {
    let (meta, data) = formatted();
    let observer = Arc::new(AtBase { armed: AtomicBool::new(false), pool: Mutex::new(None), data: data.clone() });
    let observed: Arc<dyn Device> = Arc::new(ObservedDevice::new(shared(&data), observer.clone()));
    let pool = try_open(&shared(&meta), &observed).expect("opens");
    for number in 0..5 {
        write(&pool, &format!("{number}"), &content(number, 200_000));
    }
    write(&pool, "gone", &content(99, 200_000));
    pool.sync().expect("syncs");
    pool.core().committer.export().expect("exports");
    *observer.pool.lock() = Some(pool.clone());
    observer.armed.store(true, Ordering::SeqCst);
    pool.core().exporter.rebase().expect("writes a base");
    assert!(!observer.armed.load(Ordering::SeqCst), "a base was written");
    *observer.pool.lock() = None;
    let before = picture(&pool);
    if pool.core().exporter.stats().expect("tells").row > 0 {
        // Recovering takes the data root over, so a copy is used.
        let copy = data.snapshot_all_synced();
        let (meta, report) = recover(&copy);
        assert_eq!((report.restored.recipes_damaged, report.rebuilt.missing), (0, 0));
        assert!(picture(&open(&meta, &copy)) == before);
    }
    // And there is an export again.
    pool.close().expect("closes");
    drop(pool);
    let (meta, report) = recover(&data);
    assert_eq!((report.restored.recipes_damaged, report.rebuilt.missing), (0, 0));
    assert!(picture(&open(&meta, &data)) == before);
}

fn falsify_content(data: &MemoryDevice) {
    for entry in data.list("containers").expect("lists") {
        let path = format!("containers/{}", entry.name);
        let mut bytes = data.read_file(&path, 1 << 30).expect("reads");
        falsify(&mut bytes);
        let file = data.open(&path, OpenMode::Write).expect("opens");
        file.write_at(&bytes, 0).expect("writes");
        file.sync().expect("syncs");
    }
}

/// Sound frames around wrong bytes were quarantined: a recovery knows of it, whether they were healed or not.
#[test]
fn regression_a_recovery_does_not_forget_the_quarantine() {
    for is_healed in [false, true] {
        let (meta, data) = (MemoryDevice::new(), MemoryDevice::new());
        let properties = PoolProperties { compression: Compression::None, container_bytes: 256 << 10, ..properties() };
        dedupfs::format_on(&shared(&meta), &shared(&data), b"elsewhere".to_vec(), &properties, (0, 0))
            .expect("formats");
        let bytes = content(1, 1 << 20);
        let pool = open(&meta, &data);
        write(&pool, "old", &bytes);
        pool.close().expect("closes");
        drop(pool);
        falsify_content(&data);
        let pool = open(&meta, &data);
        scrub(&pool);
        assert!(pool.core().namespace.has_losses());
        if is_healed {
            write(&pool, "new", &bytes);
            pool.sync().expect("syncs");
            scrub(&pool);
            assert!(!pool.core().namespace.has_losses(), "all is healed");
            assert!(read(&pool, "old").as_deref() == Some(&bytes));
        }
        pool.close().expect("closes");
        drop(pool);
        let (meta, _) = recover(&data);
        let pool = open(&meta, &data);
        let expected = is_healed.then_some(&bytes);
        assert!(read(&pool, "old").as_ref() == expected, "healed: {is_healed}: wrong bytes, or none");
        write(&pool, "after", &bytes);
        pool.sync().expect("syncs");
        for name in ["after", "old"] {
            assert!(read(&pool, name).as_deref() == Some(&bytes), "{name}, healed: {is_healed}");
        }
        pool.close().expect("closes");
    }
}
