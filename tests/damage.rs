//! Lost chunks stay counted, the next backup of the same data heals them, and they stop nothing else.

mod common;

use std::sync::Arc;

use dedupfs::check::CheckOptions;
use dedupfs::reclaim::{ReclaimOptions, ReclaimReport};
use dedupfs::scrub::ScrubOptions;
use dedupfs::{NoProgress, OpenOptions as PoolOptions, Pool, format_on};
use dedupfs_service::{FileService, Listing, NewNode, NodeContent, ROOT_INO};
use dedupfs_store::device::faulty::{Fault, FaultPlan, FaultyDevice, Operation};
use dedupfs_store::device::{Device, MemoryDevice, OpenMode};
use dedupfs_store::superblock::PoolProperties;

use common::{CALLER, content, read, write};

fn formatted(device: &Arc<dyn Device>) {
    let properties = PoolProperties {
        chunk_size_bytes: 4096,
        container_bytes: 256 << 10,
        slots_per_file: 8,
        ..PoolProperties::default()
    };
    format_on(device, device, b".".to_vec(), &properties, (0, 0)).expect("formats");
}

fn open(device: &Arc<dyn Device>, rebuild_index: bool) -> Arc<Pool> {
    let options = PoolOptions { rebuild_index, ..PoolOptions::default() };
    Pool::open_on(device, device, Vec::new(), &options, &NoProgress).expect("opens")
}

fn reclaim(pool: &Pool) -> ReclaimReport {
    let options = ReclaimOptions::below(100);
    pool.reclaim(&options, &NoProgress).expect("reclaims")
}

fn findings(pool: &Pool) -> Vec<String> {
    pool.check(&CheckOptions { read_data: true, ..CheckOptions::default() }, &NoProgress).expect("checks").findings
}

/// Overwrites all files of a directory with nonsense.
fn destroy(device: &Arc<dyn Device>, directory: &str) {
    for entry in device.list(directory).expect("lists") {
        let file = device.open(&format!("{directory}/{}", entry.name), OpenMode::Write).expect("opens");
        let len_bytes = usize::try_from(file.len().expect("has a length")).expect("fits");
        file.write_at(&vec![0xa5; len_bytes], 0).expect("writes");
        file.sync().expect("syncs");
    }
}

/// Makes a pool with one file, closed.
fn formatted_with(device: &Arc<dyn Device>, name: &str, data: &[u8]) {
    formatted(device);
    let pool = open(device, false);
    write(&pool, name, data);
    pool.close().expect("closes");
}

/// Returns the files of a directory by path.
fn files_in(device: &Arc<dyn Device>, directory: &str) -> Vec<(String, Vec<u8>)> {
    let entries = device.list(directory).expect("lists").into_iter();
    entries
        .map(|entry| format!("{directory}/{}", entry.name))
        .map(|path| (path.clone(), device.read_file(&path, 1 << 30).expect("reads")))
        .collect()
}

/// Makes a pool with two files of the same content, destroys `directory`, and rebuilds the index.
fn with_losses(directory: &str, data: &[u8]) -> Arc<dyn Device> {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::new());
    formatted(&device);
    let pool = open(&device, false);
    write(&pool, "old", data);
    write(&pool, "older", data);
    pool.close().expect("closes");
    drop(pool);
    destroy(&device, directory);
    let pool = open(&device, true);
    assert!(pool.rebuilt().expect("was rebuilt").missing > 0);
    assert_eq!(read(&pool, "old"), None, "what is lost gives an error");
    assert!(!findings(&pool).is_empty(), "a check tells of what is lost");
    pool.close().expect("closes");
    device
}

fn healed_by_the_next_backup(directory: &str, len: usize) {
    let data = content(7, len);
    let device = with_losses(directory, &data);
    let pool = open(&device, false);
    write(&pool, "new", &data);
    pool.sync().expect("syncs");
    for name in ["new", "old", "older"] {
        assert!(read(&pool, name).as_deref() == Some(&data), "{name} is whole");
    }
    // The old files still count the lost chunks. Without that, deleting the files would free chunks that the new file
    // needs.
    let service = pool.service();
    for name in ["old", "older"] {
        service.unlink(ROOT_INO, name.as_bytes()).expect("unlinks");
    }
    drop(service);
    let pool = counted_anew(pool, &device, directory);
    reclaim(&pool);
    assert!(read(&pool, "new").as_deref() == Some(&data), "still whole");
    assert_eq!(findings(&pool), Vec::<String>::new());
    pool.close().expect("closes");
    drop(pool);
    let pool = open(&device, false);
    assert!(read(&pool, "new").as_deref() == Some(&data), "whole after opening anew");
    service_unlink_all(&pool, &["new"]);
    reclaim(&pool);
    let stats = pool.stats().expect("has statistics");
    assert_eq!((stats.chunk_index.cells, stats.recipe_index.cells), (0, 0));
    pool.close().expect("closes");
}

/// Without a recipe, what it names is not counted: nothing is freed until the index is made anew with all recipes that files need.
fn counted_anew(pool: Arc<Pool>, device: &Arc<dyn Device>, lost: &str) -> Arc<Pool> {
    if lost != "recipes" {
        return pool;
    }
    let refused = pool.reclaim(&ReclaimOptions::below(100), &NoProgress).expect_err("counts are in doubt");
    assert!(refused.to_string().contains("--rebuild-index"), "{refused}");
    pool.close().expect("closes");
    drop(pool);
    open(device, true)
}

fn service_unlink_all(pool: &Pool, names: &[&str]) {
    for name in names {
        pool.service().unlink(ROOT_INO, name.as_bytes()).expect("unlinks");
    }
}

#[test]
fn lost_chunks_of_small_files_are_healed() {
    healed_by_the_next_backup("containers", 3000);
}

#[test]
fn lost_chunks_of_large_files_are_healed() {
    healed_by_the_next_backup("containers", 20 << 20);
}

#[test]
fn lost_recipes_are_healed() {
    healed_by_the_next_backup("recipes", 20 << 20);
}

#[test]
fn what_is_lost_and_deleted_is_forgotten() {
    for directory in ["containers", "recipes"] {
        let device = with_losses(directory, &content(9, 10 << 20));
        let pool = open(&device, false);
        service_unlink_all(&pool, &["old", "older"]);
        let pool = counted_anew(pool, &device, directory);
        reclaim(&pool);
        reclaim(&pool);
        let stats = pool.stats().expect("has statistics");
        assert_eq!((stats.chunk_index.cells, stats.recipe_index.cells), (0, 0), "{directory}");
        assert_eq!(findings(&pool).iter().filter(|finding| !finding.starts_with("container")).count(), 0);
        pool.close().expect("closes");
    }
}

/// A disk that cannot read some of its content does not stop reclaiming altogether; and nothing is freed that could not
/// be read.
#[test]
fn reclaiming_goes_on_beside_what_cannot_be_read() {
    let memory = MemoryDevice::new();
    let faulty = FaultyDevice::over_memory(&memory);
    let device: Arc<dyn Device> = Arc::new(faulty.clone());
    formatted(&device);
    let data: Vec<Vec<u8>> = (0..6).map(|seed| content(seed, 3 << 20)).collect();
    {
        let pool = open(&device, false);
        // Two at a time, so that each container holds some live and some dead content.
        for (number, data) in data.iter().enumerate() {
            write(&pool, &format!("{number}"), data);
            write(&pool, &format!("small {number}"), &content(100 + number as u64, 20_000));
        }
        pool.close().expect("closes");
    }
    let pool = open(&device, false);
    service_unlink_all(&pool, &["0", "1", "2", "3"]);
    // A slot file holds eight containers; the others can be read.
    let slots = format!("containers/{}", device.list("containers").expect("lists")[0].name);
    faulty.add(FaultPlan::new(Fault::Io, 0).on(&[Operation::Read]).path_contains(&slots).lasting());
    for _ in 0..2 {
        let report = reclaim(&pool);
        assert!(report.containers_damaged > 0, "{report:?}");
    }
    assert!(pool.stats().expect("has statistics").data_containers.containers < 60, "the readable ones were freed");
    faulty.heal();
    let report = reclaim(&pool);
    assert_eq!((report.containers_damaged, report.nodes_unreadable), (0, 0));
    for number in [4, 5] {
        assert!(read(&pool, &format!("{number}")).as_ref() == data.get(number), "file {number}");
    }
    for number in 0..6 {
        assert!(read(&pool, &format!("small {number}")) == Some(content(100 + number, 20_000)), "small {number}");
    }
    assert_eq!(findings(&pool), Vec::<String>::new());
    pool.close().expect("closes");
}

/// Unreadable recipes stay, with everything that they name, run after run. They go as soon as they can be read.
#[test]
fn recipes_that_cannot_be_read_are_freed_later() {
    let memory = MemoryDevice::new();
    let faulty = FaultyDevice::over_memory(&memory);
    let device: Arc<dyn Device> = Arc::new(faulty.clone());
    formatted(&device);
    {
        let pool = open(&device, false);
        write(&pool, "large", &content(1, 20 << 20));
        pool.close().expect("closes");
    }
    let pool = open(&device, false);
    service_unlink_all(&pool, &["large"]);
    faulty.add(FaultPlan::new(Fault::Io, 0).on(&[Operation::Read]).path_contains("recipes/").lasting());
    for _ in 0..2 {
        let report = reclaim(&pool);
        assert!(report.nodes_unreadable > 0 && report.containers_freed == 0, "{report:?}");
    }
    // The same content may be stored again meanwhile.
    write(&pool, "again", &content(1, 20 << 20));
    faulty.heal();
    assert!(read(&pool, "again") == Some(content(1, 20 << 20)));
    service_unlink_all(&pool, &["again"]);
    reclaim(&pool);
    let stats = pool.stats().expect("has statistics");
    assert_eq!((stats.chunk_index.cells, stats.recipe_index.cells), (0, 0));
    pool.close().expect("closes");
}

/// An index from a copy of the meta root that is older than the log's first row would count wrongly, so it is refused.
#[test]
fn an_index_older_than_the_log_is_refused() {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::new());
    formatted(&device);
    let old: Vec<_> =
        ["index/chunks", "index/recipes"].into_iter().flat_map(|directory| files_in(&device, directory)).collect();
    let pool = open(&device, false);
    write(&pool, "file", &content(3, 100_000));
    pool.close().expect("closes");
    drop(pool);
    for (path, bytes) in &old {
        let (directory, name) = path.rsplit_once('/').expect("has a directory");
        device.replace_file(directory, name, bytes).expect("writes");
    }
    let outcome = Pool::open_on(&device, &device, Vec::new(), &PoolOptions::default(), &NoProgress);
    let error = outcome.err().expect("refuses").to_string();
    assert!(error.contains("--rebuild-index"), "{error}");
    let pool = open(&device, true);
    assert!(read(&pool, "file") == Some(content(3, 100_000)));
    assert_eq!(findings(&pool), Vec::<String>::new());
    pool.close().expect("closes");
}

/// A slot file is gone: the index can still be rebuilt, the next backup heals, and nothing that may yet come back is
/// freed before.
#[test]
fn a_missing_file_of_containers_is_a_loss_like_another() {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::new());
    let data = content(21, 5 << 20);
    formatted_with(&device, "old", &data);
    let missing = format!("containers/{}", device.list("containers").expect("lists")[0].name);
    device.remove(&missing).expect("removes");
    // A lost chunk must not be taken for known.
    let refused = Pool::open_on(&device, &device, Vec::new(), &PoolOptions::default(), &NoProgress);
    let message = refused.err().expect("refuses").to_string();
    assert!(message.contains(&missing) && message.contains("--rebuild-index"), "{message}");
    let read_only = PoolOptions { read_only: true, ..PoolOptions::default() };
    Pool::open_on(&device, &device, Vec::new(), &read_only, &NoProgress).expect("can be read").close().expect("closes");
    let pool = open(&device, true);
    assert!(pool.rebuilt().expect("was rebuilt").lost_chunks > 0);
    assert!(pool.stats().expect("has statistics").lost_chunks > 0);
    pool.close().expect("closes");
    drop(pool);
    let pool = open(&device, false);
    write(&pool, "new", &data);
    pool.sync().expect("syncs");
    for name in ["old", "new"] {
        assert!(read(&pool, name).as_deref() == Some(&data), "{name}");
    }
    assert_eq!(pool.stats().expect("has statistics").lost_chunks, 0);
    // Nothing is lost any more: the missing containers are forgotten, and the check finds nothing.
    reclaim(&pool);
    assert_eq!(findings(&pool), Vec::<String>::new());
    pool.close().expect("closes");
    drop(pool);
    let pool = open(&device, false);
    assert!(read(&pool, "old").as_deref() == Some(&data));
    pool.close().expect("closes");
}

/// Damage in the middle of content beside sound tables: only reading all content finds it.
#[test]
fn damaged_content_is_given_up_and_healed() {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::new());
    let data = content(25, 5 << 20);
    formatted_with(&device, "old", &data);
    let path = format!("containers/{}", device.list("containers").expect("lists")[0].name);
    let file = device.open(&path, OpenMode::Write).expect("opens");
    // Within the first region of each container.
    for slot in 0..8 {
        file.write_at(&[0x5a; 1000], (slot * (256 << 10)) + 20_000).expect("writes");
    }
    let pool = open(&device, false);
    assert_eq!(read(&pool, "old"), None);
    pool.close().expect("closes");
    drop(pool);
    let options = PoolOptions { rebuild_index: true, rebuild_reads_data: true, ..PoolOptions::default() };
    let pool = Pool::open_on(&device, &device, Vec::new(), &options, &NoProgress).expect("opens");
    let lost = pool.rebuilt().expect("was rebuilt").lost_chunks;
    assert!(lost > 0 && lost < 1000, "{lost} chunks");
    write(&pool, "new", &data);
    pool.sync().expect("syncs");
    for name in ["old", "new"] {
        assert!(read(&pool, name).as_deref() == Some(&data), "{name}");
    }
    pool.close().expect("closes");
}

/// A disk that does not answer aborts a rebuild before the old index is given up.
#[test]
fn a_rebuild_that_cannot_read_leaves_the_index_as_it_is() {
    let memory = MemoryDevice::new();
    let faulty = FaultyDevice::over_memory(&memory);
    let device: Arc<dyn Device> = Arc::new(faulty.clone());
    let data = content(22, 5 << 20);
    formatted_with(&device, "file", &data);
    for directory in ["containers/", "recipes/"] {
        faulty.add(FaultPlan::new(Fault::Io, 0).on(&[Operation::Read]).path_contains(directory).lasting());
        let options = PoolOptions { rebuild_index: true, ..PoolOptions::default() };
        assert!(Pool::open_on(&device, &device, Vec::new(), &options, &NoProgress).is_err());
        faulty.heal();
        let pool = open(&device, false);
        assert!(read(&pool, "file").as_deref() == Some(&data), "{directory}");
        assert_eq!(findings(&pool), Vec::<String>::new());
        pool.close().expect("closes");
    }
}

/// All containers are unreadable for a while (a bad cable, a data root that is half restored): a rebuild and a reclaim
/// in that time free none of them.
#[test]
fn what_cannot_be_read_for_a_while_is_not_freed() {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::new());
    let data = content(23, 5 << 20);
    formatted_with(&device, "file", &data);
    let good = files_in(&device, "containers");
    destroy(&device, "containers");
    let pool = open(&device, true);
    for _ in 0..2 {
        let report = reclaim(&pool);
        assert!(report.containers_damaged > 0 && report.containers_freed == 0, "{report:?}");
    }
    pool.close().expect("closes");
    drop(pool);
    for (path, bytes) in &good {
        let file = device.open(path, OpenMode::Write).expect("opens");
        file.write_at(bytes, 0).expect("writes");
        file.sync().expect("syncs");
    }
    let pool = open(&device, true);
    assert_eq!(pool.rebuilt().expect("was rebuilt").missing, 0);
    assert!(read(&pool, "file").as_deref() == Some(&data), "all of it is there again");
    assert_eq!(findings(&pool), Vec::<String>::new());
    pool.close().expect("closes");
}

/// The newest content is damaged when the machine comes up after a crash: the pool opens, the same data is stored again
/// and not taken for known, and its count is right.
#[test]
fn damage_beside_a_crash_costs_what_it_covers_and_no_newer_backup() {
    for len in [500, 3000, 3 << 20] {
        let device: Arc<dyn Device> = Arc::new(MemoryDevice::new());
        formatted(&device);
        let data = content(24, len);
        let pool = open(&device, false);
        write(&pool, "first", &data);
        pool.sync().expect("syncs");
        // Not closed: this is the state that a crash leaves.
        drop(pool);
        destroy(&device, "containers");
        let pool = open(&device, false);
        write(&pool, "second", &data);
        pool.sync().expect("syncs");
        service_unlink_all(&pool, &["first"]);
        reclaim(&pool);
        assert!(read(&pool, "second").as_deref() == Some(&data), "{len} bytes");
        pool.close().expect("closes");
        drop(pool);
        let pool = open(&device, false);
        assert!(read(&pool, "second").as_deref() == Some(&data), "{len} bytes, after opening anew");
        pool.close().expect("closes");
    }
}

/// An old loss does not let a pool be mounted for writing while another slot file is missing.
#[test]
fn regression_an_old_loss_hides_no_missing_file() {
    let device = with_losses("recipes", &content(26, 10 << 20));
    let pool = open(&device, false);
    write(&pool, "other", &content(27, 5 << 20));
    pool.close().expect("closes");
    drop(pool);
    let files = device.list("containers").expect("lists");
    let missing = format!("containers/{}", files.last().expect("has files").name);
    device.remove(&missing).expect("removes");
    let refused = Pool::open_on(&device, &device, Vec::new(), &PoolOptions::default(), &NoProgress);
    let message = refused.err().expect("refuses").to_string();
    assert!(message.contains(&missing), "{message}");
}

/// Containers that were away during a rebuild: the message gives the remedy, and a dry run lists nothing that a run
/// keeps.
#[test]
fn regression_containers_that_came_back_are_named_and_a_dry_run_keeps_them() {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::new());
    let data = content(28, 5 << 20);
    formatted_with(&device, "file", &data);
    let good = files_in(&device, "containers");
    destroy(&device, "containers");
    open(&device, true).close().expect("closes");
    for (path, bytes) in &good {
        let file = device.open(path, OpenMode::Write).expect("opens");
        file.write_at(bytes, 0).expect("writes");
        file.sync().expect("syncs");
    }
    let pool = open(&device, false);
    let dry = ReclaimOptions::below(100).planned();
    let planned = pool.reclaim(&dry, &NoProgress).expect("plans");
    let done = reclaim(&pool);
    assert_eq!(
        (planned.containers_freed, planned.containers_damaged),
        (done.containers_freed, done.containers_damaged)
    );
    assert!(done.containers_damaged > 0, "{done:?}");
    let report = pool.scrub(&ScrubOptions { restart: true, ..ScrubOptions::default() }, &NoProgress).expect("scrubs");
    assert!(report.lost_chunks > 0 && report.lost_and_readable >= report.lost_chunks, "{report:?}");
    pool.close().expect("closes");
    drop(pool);
    let pool = open(&device, true);
    let report = pool.scrub(&ScrubOptions { restart: true, ..ScrubOptions::default() }, &NoProgress).expect("scrubs");
    assert_eq!((report.is_clean(), report.lost_and_readable), (true, 0));
    pool.close().expect("closes");
}

/// An unreadable inode record ended the listing of its directory, and the inodes listed before it were never forgotten.
#[test]
fn regression_an_inode_that_cannot_be_read_hides_no_other_name() {
    let inner: Arc<dyn Device> = Arc::new(MemoryDevice::new());
    formatted(&inner);
    let pool = open(&inner, false);
    let names: Vec<_> = (0..3000).map(|number| format!("{number:04}")).collect();
    for name in &names {
        let node = NewNode { parent: ROOT_INO, name: name.as_bytes(), mode: 0o644, umask: 0 };
        pool.service().make(CALLER, node, NodeContent::Regular).expect("makes");
    }
    pool.close().expect("closes");
    let mut by_name_only = 0;
    for position in (0..).step_by(5) {
        let faulty = Arc::new(FaultyDevice::new(Arc::clone(&inner)));
        let device: Arc<dyn Device> = faulty.clone();
        let pool = open(&device, false);
        faulty.add(FaultPlan::new(Fault::Io, position).on(&[Operation::Read]).lasting());
        let (mut after, mut listed) = (0, Vec::new());
        let outcome = loop {
            match pool.service().read_directory(ROOT_INO, after, 24, Listing::Attributes) {
                Ok(batch) if batch.is_empty() => break Ok(()),
                Ok(batch) => {
                    after = batch.last().expect("is not empty").cookie;
                    listed.extend(batch);
                }
                Err(error) => break Err(error),
            }
        };
        let was_struck = faulty.injected() > 0;
        faulty.heal();
        // Without the names there is nothing to list, but no name may be left out.
        let found: Vec<_> = listed.iter().map(|entry| String::from_utf8_lossy(&entry.name)).collect();
        assert!(names.starts_with(&found.iter().map(ToString::to_string).collect::<Vec<_>>()), "position {position}");
        assert!(outcome.is_err() || found.len() == names.len(), "position {position}");
        let without = listed.iter().filter(|entry| entry.attributes.is_none()).count();
        assert!(without == 0 || was_struck, "position {position}");
        by_name_only += without;
        listed.iter().for_each(|entry| pool.service().forget(entry.ino, 1));
        // The pool may have failed, so closing may fail.
        let _ = pool.close();
        if !was_struck {
            break;
        }
    }
    assert!(by_name_only > 0, "no fault met the record of an inode");
}

/// Returns the error that refuses to open the pool.
fn refusal(device: &Arc<dyn Device>) -> String {
    let refused = Pool::open_on(device, device, Vec::new(), &PoolOptions::default(), &NoProgress);
    refused.err().expect("refuses").to_string()
}

/// Rebuilding the index gives up the content of the missing file, and the message said that nothing is lost.
#[test]
fn regression_where_a_file_of_containers_is_gone_nobody_is_told_that_nothing_is_lost() {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::new());
    formatted_with(&device, "old", &content(21, 5 << 20));
    let missing = format!("containers/{}", device.list("containers").expect("lists")[0].name);
    destroy(&device, "index/chunks");
    let told = refusal(&device);
    assert!(told.contains("nothing is lost: make it anew with `dedupfs fsck --rebuild-index POOL`"), "{told}");
    device.remove(&missing).expect("removes");
    let told = refusal(&device);
    assert!(!told.contains("nothing is lost"), "{told}");
    assert!(told.contains(&missing) && told.contains("put it back") && told.contains("--rebuild-index"), "{told}");
}

/// The same where the missing or damaged content was written last and is not counted yet.
#[test]
fn regression_what_cannot_be_counted_is_not_said_to_be_no_loss() {
    for is_removed in [true, false] {
        let device: Arc<dyn Device> = Arc::new(MemoryDevice::new());
        formatted(&device);
        let pool = open(&device, false);
        write(&pool, "file", &content(5, 1 << 20));
        pool.sync().expect("syncs");
        // Not closed: the last rows are in no checkpoint.
        drop(pool);
        if is_removed {
            device
                .remove(&format!("containers/{}", device.list("containers").expect("lists")[0].name))
                .expect("removes");
        } else {
            destroy(&device, "recipes");
        }
        let told = refusal(&device);
        assert!(!told.contains("nothing is lost"), "{told}");
        assert!(told.contains("--rebuild-index"), "{told}");
        assert_eq!(told.contains("put it back"), is_removed, "{told}");
    }
}

/// Some filesystems occasionally report an existing file as missing.
#[test]
fn regression_one_wrong_answer_about_the_checksums_does_not_keep_a_pool_from_opening() {
    for name in ["namespace.sums-a", "namespace.sums-b"] {
        let memory = MemoryDevice::new();
        let device: Arc<dyn Device> = Arc::new(memory.clone());
        formatted_with(&device, "file", &content(9, 100_000));
        let faulty = FaultyDevice::over_memory(&memory);
        faulty.add(FaultPlan::new(Fault::NotFound, 0).path_contains(name));
        let device: Arc<dyn Device> = Arc::new(faulty.clone());
        let pool = open(&device, false);
        assert_eq!(faulty.injected(), 1, "{name}");
        assert!(read(&pool, "file") == Some(content(9, 100_000)));
        pool.close().expect("closes");
    }
}
