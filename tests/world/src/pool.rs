//! The pool of a world: made, opened, looked at, closed.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use dedupfs::check::CheckOptions;
use dedupfs::{FilterPlan, NoProgress, OpenOptions, Pool, format_on, recover_on};
use dedupfs_service::{Ino, Listing, ROOT_INO};
use dedupfs_sync::{thread, world};

use crate::client::{look, remove_unfinished};
use crate::disk::Disks;
use crate::history::{World, directory};
use crate::operations::Client as Operations;
use crate::plan::{Life, Plan, properties};

/// Makes the pool, on disks without trouble.
pub fn make(plan: &Plan, disks: &Disks) {
    let [meta, data] = disks.plain();
    format_on(&meta, &data, disks.data_root(), &properties(plan), (0, 0)).expect("formats");
    if plan.with_versions {
        let options = OpenOptions { memory_bytes: dedupfs::config::MEMORY_BYTES_MIN, ..OpenOptions::default() };
        let pool = Pool::open_on(&meta, &data, Vec::new(), &options, &NoProgress).expect("opens");
        let operations = Operations::new(pool.service());
        for client in 0..plan.clients as usize {
            operations.make_directory(&directory(client)).expect("an empty pool takes a directory");
        }
        drop(operations);
        close(pool).expect("closes");
    }
}

/// Opens the pool for this life. Recovers it first if its meta root is lost.
pub fn open(world: &Arc<World>, life: &Life, disks: &Disks) -> dedupfs::Result<Arc<Pool>> {
    world::set_clock_error(life.clock_jump_secs);
    let roots = disks.of_life(life, world);
    let options = OpenOptions {
        memory_bytes: dedupfs::config::MEMORY_BYTES_MIN,
        commit_interval: life.commit_interval,
        read_only: life.is_read_only,
        rebuild_index: life.rebuilds,
        filters: filters(&world.plan),
        ..OpenOptions::default()
    };
    if world.is_meta_lost.load(Ordering::Relaxed) {
        let recover = |forced| recover_on(&roots[0], &roots[1], disks.data_root(), forced, &options, &NoProgress);
        let recovered = recover(false);
        match recovered {
            // Content behind the export is told, and the user decides.
            Err(error)
                if world.is_export_old.load(Ordering::Relaxed) && error.to_string().contains("behind commit") =>
            {
                recover(true)?;
                world.tell(|| format!("the recovery is forced: {error}"));
                world.has_kept.store(true, Ordering::Relaxed);
            }
            outcome => drop(outcome?),
        }
        world.is_export_old.store(false, Ordering::Relaxed);
        world.tell(|| "the pool is recovered from the data root".to_owned());
        world.tally.recoveries.fetch_add(1, Ordering::Relaxed);
        world.is_meta_lost.store(false, Ordering::Relaxed);
    }
    Pool::open_on(&roots[0], &roots[1], Vec::new(), &options, &NoProgress)
}

/// The filters of lookups.
fn filters(plan: &Plan) -> FilterPlan {
    let default = FilterPlan::default();
    if plan.compares { format!("{default},compare").parse().expect("is a list of filters") } else { default }
}

/// Has the judge look at all files at the start of a life, and removes leftovers of requests. Returns which files cannot
/// be read, and which leftovers cannot be removed.
///
/// # Panics
/// A file is in no possible state, or there are files that nobody has made.
pub fn judge(world: &World, pool: &Pool) -> Vec<String> {
    let mut unread = Vec::new();
    let operations = Operations::new(pool.service());
    for client in 0..world.plan.clients as usize {
        for file in 0..world.plan.places() as usize {
            let seen = match look(&operations, &world.plan, client, file) {
                Ok(seen) => seen,
                Err(error) => {
                    unread.push(format!("file {file} of client {client} cannot be read: {error:?}"));
                    world.files()[client][file].failed();
                    continue;
                }
            };
            let verdict = match pool.is_read_only() {
                // What it recovers is in memory only.
                true => world.files()[client][file].look(&seen),
                false => world.files()[client][file].judge(&seen),
            };
            if let Err(wrong) = verdict {
                panic!("file {file} of client {client} {wrong}");
            }
        }
        if !pool.is_read_only()
            && let Err(error) = remove_unfinished(pool, &operations, client)
        {
            unread.push(format!("what client {client} left cannot be removed: {error:?}"));
        }
    }
    if unread.is_empty() && !pool.is_read_only() {
        assert_eq!(
            names(&operations, &world.plan),
            world.names(),
            "the names that there are, and those that there should be"
        );
    }
    unread
}

/// The names in the root of the pool and in the directories of clients, in order.
fn names(operations: &Operations, plan: &Plan) -> Vec<String> {
    let list = |directory: Ino| {
        let listed = operations.0.read_directory(directory, 0, 1000, Listing::Names).expect("can be listed");
        listed.into_iter().map(|entry| String::from_utf8_lossy(&entry.name).into_owned())
    };
    let mut names: Vec<_> = list(ROOT_INO).collect();
    // A repair puts there what it finds without a name.
    names.retain(|name| name != "lost+found");
    for directory in (0..plan.clients as usize).filter(|_| plan.with_versions).map(directory) {
        // Flipped bits may have taken it.
        if let Ok(found) = operations.find(&directory) {
            names.extend(list(found.ino).map(|name| format!("{directory}/{name}")));
            names.retain(|name| *name != directory);
        }
    }
    names.sort();
    names
}

/// Checks everything, with all data.
///
/// # Panics
/// Anything is not sound.
pub fn check(pool: &Pool) {
    let report = pool.check(&CheckOptions { read_data: true, ..CheckOptions::default() }, &NoProgress);
    let report = report.unwrap_or_else(|error| panic!("cannot be checked: {error}"));
    assert!(report.is_clean(), "is not sound: {:#?}", report.findings);
}

/// Closes the pool. All threads must end soon.
pub fn close(pool: Arc<Pool>) -> dedupfs::Result<()> {
    let closed = pool.close();
    threads_end(pool);
    closed
}

/// Drops the closed pool. All its threads must end soon.
pub fn threads_end(pool: Arc<Pool>) {
    drop(pool);
    // A worker whose job held the pool last does not wait for the others.
    for _ in 0..100 {
        if world::threads() == 0 {
            return;
        }
        thread::sleep(Duration::from_millis(10));
    }
    panic!("{} threads are left a second after the pool was closed", world::threads());
}
