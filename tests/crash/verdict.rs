//! Verdicts on a disk after a power loss: the pool opens, is sound and shows one of the allowed states, and later work
//! can safely build on it.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use dedupfs::check::CheckOptions;
use dedupfs::reclaim::ReclaimOptions;
use dedupfs::{NoProgress, Origin, Pool};
use dedupfs_service::ROOT_INO;
use std::sync::Arc;

use crate::client::Client;
use crate::disks::{Disks, Roots};
use crate::versions::{is_of_work, remove_version};
use crate::workload::{self, PIECES};

fn words(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default()
}

/// Runs `work` and turns a panic into an error, which is a verdict too.
pub fn guarded<T>(work: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| Err(format!("panicked: {}", words(&*panic))))
}

fn open(roots: &Roots) -> Result<Arc<Pool>, String> {
    workload::open(roots, &workload::options()).map_err(|error| format!("the pool does not open: {error}"))
}

/// Checks that counts equal marks, that names and places are right, and that all content matches its fingerprints.
fn sound(pool: &Pool) -> Result<(), String> {
    let report = pool.check(&CheckOptions { read_data: true, ..CheckOptions::default() }, &NoProgress);
    let report = report.map_err(|error| format!("cannot be checked: {error}"))?;
    if report.is_clean() { Ok(()) } else { Err(format!("is not sound: {:#?}", report.findings)) }
}

fn describe(pool: &Pool) -> Result<String, String> {
    let described = Client::new(pool.service()).describe().map_err(|error| format!("cannot be read: {error:?}"))?;
    Ok(described.lines().filter(|line| !is_of_work(line)).map(|line| format!("{line}\n")).collect())
}

/// Opens the pool, checks it, and reads everything in it.
pub fn examine(roots: &Roots) -> Result<String, String> {
    guarded(|| {
        let pool = open(roots)?;
        sound(&pool)?;
        describe(&pool)
    })
}

/// Opens the pool as [`examine`] does and closes it, without reading.
pub fn mount_and_close(roots: &Roots) -> Result<(), String> {
    guarded(|| open(roots)?.close().map_err(|error| format!("does not close: {error}")))
}

/// Checks that `seen` is exactly one of the allowed states, never a mixture.
pub fn judge(seen: &str, allowed: &[Arc<str>]) -> Result<(), String> {
    if allowed.iter().any(|state| **state == *seen) {
        return Ok(());
    }
    let differs = |from: &str, other: &str| -> Vec<String> {
        from.lines().filter(|line| !other.lines().any(|other| other == *line)).map(str::to_owned).collect()
    };
    let closest = allowed.iter().min_by_key(|state| differs(seen, state).len() + differs(state, seen).len());
    let closest = closest.map_or("", |state| state);
    Err(format!(
        "it shows none of {} possible states; unlike the closest it has {:#?} and lacks {:#?}",
        allowed.len(),
        differs(seen, closest),
        differs(closest, seen)
    ))
}

/// Makes one more version, removes everything live, checks that no version has changed, and removes them all.
fn versions_go_on(pool: &Pool, client: &Client) -> Result<(), String> {
    let told = |what: &'static str| move |error: dedupfs::EngineError| format!("afterwards {what}: {error}");
    let origin = Origin::default();
    client.make_directory("new").map_err(|error| format!("afterwards no directory can be made: {error:?}"))?;
    client.put("new/file", 0, b"new", false).map_err(|error| format!("afterwards no file can be made: {error:?}"))?;
    let new = client.find("new").map_err(|error| format!("afterwards a directory is not found: {error:?}"))?.ino;
    pool.snapshot(new, (ROOT_INO, b"version"), &origin, &NoProgress).map_err(told("a snapshot fails"))?;
    let versions = pool.versions(None).map_err(told("versions cannot be listed"))?;
    let is_of_version = |line: &str| {
        versions.iter().any(|version| line.split([' ', '/']).nth(1).is_some_and(|name| name == version.name))
    };
    let lines = || -> Result<Vec<String>, String> {
        Ok(describe(pool)?.lines().filter(|line| is_of_version(line)).map(str::to_owned).collect())
    };
    let before = lines()?;
    client
        .remove_live(&|name| versions.iter().any(|version| version.name.as_bytes() == name))
        .map_err(|error| format!("afterwards removing what is live fails: {error:?}"))?;
    pool.reclaim(&ReclaimOptions::below(100), &NoProgress).map_err(told("reclaiming beside versions fails"))?;
    sound(pool).map_err(|error| format!("only versions are left: {error}"))?;
    if before != lines()? || !before.iter().any(|line| line.starts_with("/version/file ")) {
        return Err("versions changed when the live tree was removed".to_owned());
    }
    versions.iter().try_for_each(|version| remove_version(pool, client, &version.name))
}

const AGAIN: &str = "again";

/// Works on after the power loss: writes all content again, reclaims, checks everything, deletes everything, and checks
/// that nothing is left.
pub fn go_on(disks: &Disks, seen: &str) -> Result<(), String> {
    let roots = disks.roots();
    let fails = |what: &'static str| move |error: &dyn std::fmt::Debug| format!("afterwards {what} fails: {error:?}");
    let reclaim = |pool: &Pool| {
        let options = ReclaimOptions::below(100);
        pool.reclaim(&options, &NoProgress).map(drop).map_err(|error| fails("reclaiming")(&error))
    };
    guarded(|| {
        let pool = open(&roots)?;
        let client = Client::new(pool.service());
        let bytes: Vec<u8> = (0..PIECES).flat_map(workload::piece).collect();
        client.put(AGAIN, 0, &bytes, false).map_err(|error| fails("writing")(&error))?;
        reclaim(&pool)?;
        sound(&pool).map_err(|error| format!("written again: {error}"))?;
        let found = client.find(AGAIN).and_then(|found| client.content(found.ino));
        if found.as_ref() != Ok(&bytes) {
            return Err("what was written again reads otherwise".to_owned());
        }
        let is_old = |line: &&str| !line.starts_with("/again ");
        if !describe(&pool)?.lines().filter(is_old).eq(seen.lines()) {
            return Err("files changed when others were written".to_owned());
        }
        versions_go_on(&pool, &client)?;
        client.remove_everything().map_err(|error| fails("removing")(&error))?;
        drop(client);
        pool.close().map_err(|error| fails("closing")(&error))?;
        drop(pool);

        let pool = open(&roots)?;
        reclaim(&pool)?;
        sound(&pool).map_err(|error| format!("everything removed: {error}"))?;
        let stats = pool.stats().map_err(|error| fails("counting")(&error))?;
        let left = [
            stats.files,
            stats.unique_chunks,
            stats.unreferenced_chunks,
            stats.recipe_nodes,
            stats.data_container_bytes,
            stats.recipe_container_bytes,
        ];
        if left != [0; 6] {
            return Err(format!("of all that was removed is left (files, chunks, garbage, nodes, bytes): {left:?}"));
        }
        Ok(())
    })
}
