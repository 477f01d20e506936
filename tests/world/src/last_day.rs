//! The last life: everything is checked, and must be gone once it is removed.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use dedupfs::check::CheckOptions;
use dedupfs::reclaim::ReclaimOptions;
use dedupfs::repair::{RepairOptions, repair_on};
use dedupfs::scrub::ScrubOptions;
use dedupfs::stats::PoolStats;
use dedupfs::{NoProgress, OpenOptions, Pool, recover_on};
use dedupfs_service::ROOT_INO;

use crate::client::look;
use crate::disk::Disks;
use crate::frozen::forget_all;
use crate::history::{World, name};
use crate::judge::File;
use crate::operations::Client as Operations;
use crate::plan::Life;
use crate::pool::{check, close, judge, open};
use crate::tree::{self, Counts};

/// Gives up the slots that a forced recovery kept.
fn give_up_unnamed(world: &Arc<World>, life: &Life, disks: &Disks) {
    let how = RepairOptions { apply: true, give_up_unnamed: true, ..RepairOptions::default() };
    let options = OpenOptions { memory_bytes: dedupfs::config::MEMORY_BYTES_MIN, ..OpenOptions::default() };
    let [meta, data] = disks.of_life(life, world);
    let report = repair_on(&meta, &data, &disks.data_root(), &how, &options, &NoProgress);
    let report = report.unwrap_or_else(|error| panic!("cannot be repaired: {error}"));
    world.tell(|| format!("repaired: {:?}", report.plan));
}

/// The last life on disks with flipped bits: nothing reads wrongly, and a check names every file that cannot be read.
pub fn damaged_day(world: &Arc<World>, life: &Life, disks: &Disks, _: u64) {
    let pool = match open(world, life, disks) {
        Ok(pool) => pool,
        Err(error) => {
            world.tell(|| format!("the pool does not open: {error}"));
            match repaired(world, life, disks) {
                Some(pool) => pool,
                None => return,
            }
        }
    };
    let unread = judge(world, &pool);
    world.tell(|| format!("what cannot be read: {unread:?}"));
    let check = |pool: &Pool| pool.check(&CheckOptions { read_data: true, ..CheckOptions::default() }, &NoProgress);
    let (pool, report) = match check(&pool) {
        Ok(report) => (pool, report),
        Err(error) => {
            world.tell(|| format!("cannot be checked: {error}"));
            assert!(error.to_string().contains("--rebuild-index"), "a check fails without advice: {error}");
            drop(close(pool));
            let pool = open(world, &Life { rebuilds: true, ..life.clone() }, disks).unwrap_or_else(|error| {
                panic!("the index cannot be rebuilt: {error}");
            });
            let report = check(&pool).unwrap_or_else(|error| panic!("cannot be checked after a rebuild: {error}"));
            (pool, report)
        }
    };
    // A check stores bad nodes again from their copies.
    let unread = judge(world, &pool);
    world.tell(|| format!("what cannot be read now: {unread:?}"));
    let named: Vec<_> = report.affected.files.iter().flat_map(|file| &file.paths).collect();
    for (client, file) in world.unread() {
        let name = name(&world.plan, client, file);
        let is_named = named.iter().any(|path| **path == name || path.starts_with(&format!("{name}/")));
        assert!(is_named, "{name} cannot be read, and a check names {named:?}: {:?}", report.findings);
    }
    drop(close(pool));
}

/// Repairs the pool, or recovers it if the repair says so, and opens it. `None`: it is lost, because both superblocks are, or
/// both copies of the names.
fn repaired(world: &Arc<World>, life: &Life, disks: &Disks) -> Option<Arc<Pool>> {
    let how = RepairOptions { apply: true, ..RepairOptions::default() };
    let [meta, data] = disks.of_life(life, world);
    let repaired = repair_on(&meta, &data, &disks.data_root(), &how, &OpenOptions::default(), &NoProgress);
    world.tell(|| format!("repaired: {:?}", repaired.as_ref().map(|report| &report.plan)));
    if let Err(error) = repaired {
        if world.are_superblocks_lost() {
            return None;
        }
        assert!(error.to_string().contains("`dedupfs recover --force POOL`"), "cannot be repaired: {error}");
        let recovered = recover_on(&meta, &data, disks.data_root(), true, &OpenOptions::default(), &NoProgress);
        world.tell(|| format!("recovered: {recovered:?}"));
        match recovered {
            Ok(report) if report.restored.damage.is_some() => {
                assert!(world.has_flipped("export/"), "a sound export is told to be damaged: {report:?}");
                // It shows an older state, and says so.
                return None;
            }
            Ok(_) => {}
            Err(error) => {
                let has_export = world.has_export.load(Ordering::Relaxed) && !world.has_flipped("export/");
                assert!(!has_export, "cannot be recovered: {error}");
                return None;
            }
        }
        world.files().iter_mut().flatten().for_each(File::go_back);
    }
    // A repair tells what it removes, and the user agrees.
    world.files().iter_mut().flatten().for_each(|file| file.begin(None));
    let pool = open(world, life, disks).unwrap_or_else(|error| panic!("does not open after a repair: {error}"));
    for client in 0..world.plan.clients as usize {
        let place = world.plan.files as usize;
        // A tree that cannot be read is judged below.
        let seen = look(&Operations::new(pool.service()), &world.plan, client, place).unwrap_or(None);
        world.files()[client][place].repaired(&seen, tree::is_part);
    }
    Some(pool)
}

/// The last life: everything is checked, removed, and must be gone.
pub fn last_day(world: &Arc<World>, life: &Life, disks: &Disks, _: u64) {
    let open = || open(world, life, disks).unwrap_or_else(|error| panic!("the pool does not open: {error}"));
    let close = |pool| close(pool).unwrap_or_else(|error| panic!("does not close: {error}"));
    let pool = open();
    assert_eq!(judge(world, &pool), [""; 0], "all can be read");
    if world.plan.lives.iter().any(Life::may_fail) {
        // A recipe that could not be read is missing in the export until a scrub, or the check behind a mount, finds it.
        let options = ScrubOptions { restart: true, ..ScrubOptions::default() };
        let report = pool.scrub(&options, &NoProgress).unwrap_or_else(|error| panic!("cannot be scrubbed: {error}"));
        assert!(report.is_clean(), "a scrub finds damage: {report:?}");
    }
    check(&pool);
    // What a run copied, or a client stored again beside it, lies in two containers until another run frees the old one.
    // Clients that make versions reclaim as well.
    if !world.plan.with_versions && world.plan.lives.iter().all(|life| life.reclaims == 0) {
        assert_stored_once(&pool.stats().unwrap_or_else(|error| panic!("has no statistics: {error}")));
    }
    pool.reclaim(&ReclaimOptions::below(100), &NoProgress)
        .unwrap_or_else(|error| panic!("cannot be reclaimed: {error}"));
    let stats = pool.stats().unwrap_or_else(|error| panic!("has no statistics: {error}"));
    assert_stored_once(&stats);
    let nodes = [stats.recipe_containers.stored_bytes, stats.recipe_node_bytes];
    assert_eq!(nodes[0], nodes[1], "stored bytes, and those of different nodes");
    let operations = Operations::new(pool.service());
    forget_all(&pool, &operations, ROOT_INO).unwrap_or_else(|error| panic!("a version is not removed: {error:?}"));
    let stats = pool.stats().unwrap_or_else(|error| panic!("has no statistics: {error}"));
    let by_hand = tree::count(&operations, ROOT_INO).expect("all can be read");
    let told = Counts { files: stats.files, directories: stats.directories, logical_bytes: stats.logical_bytes };
    assert_eq!(told, by_hand, "the statistics, and a count by hand");
    operations.remove_everything().unwrap_or_else(|error| panic!("cannot be removed: {error:?}"));
    drop(operations);
    close(pool);

    if world.has_kept.load(Ordering::Relaxed) {
        give_up_unnamed(world, life, disks);
    }
    let pool = open();
    pool.reclaim(&ReclaimOptions::below(100), &NoProgress)
        .unwrap_or_else(|error| panic!("cannot be reclaimed: {error}"));
    check(&pool);
    let stats = pool.stats().unwrap_or_else(|error| panic!("has no statistics: {error}"));
    let left = [
        stats.files,
        stats.unique_chunks,
        stats.unreferenced_chunks,
        stats.recipe_nodes,
        stats.data_container_bytes,
        stats.recipe_container_bytes,
    ];
    assert_eq!(left, [0; 6], "of all that was removed is left (files, chunks, garbage, nodes, bytes)");
    close(pool);
    let of_an_empty_pool = |path: &str| {
        let names = ["dedupfs.", "namespace.", "index/", "export/", "reclaim", "scrub", "arranging"];
        names.iter().any(|name| path.starts_with(name)) && !path.ends_with(".slots") && !path.contains("/t-")
    };
    for (path, bytes) in disks.files().into_iter().flatten() {
        assert!(of_an_empty_pool(&path), "{path} with {bytes} bytes is left of all that was removed");
    }
}

/// Data containers hold each chunk once, and nothing else.
fn assert_stored_once(stats: &PoolStats) {
    let different_bytes = stats.unique_chunk_bytes + stats.unreferenced_chunk_bytes;
    assert_eq!(stats.data_containers.stored_bytes, different_bytes, "stored bytes, and those of different chunks");
}
