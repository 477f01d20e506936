//! A life with clients and tools.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use dedupfs::reclaim::ReclaimOptions;
use dedupfs::scrub::ScrubOptions;
use dedupfs::{NoProgress, Pool};
use dedupfs_sync::{thread, world};

use crate::client::Client;
use crate::dice::Dice;
use crate::disk::Disks;
use crate::history::World;
use crate::judge::File;
use crate::plan::Life;
use crate::pool::{close, judge, open};

/// Lives a life: opens the pool, lets the judge look, runs clients and tools beside each other, and closes the pool.
pub fn day(world: &Arc<World>, life: &Life, disks: &Disks, number: u64) {
    let pool = match open(world, life, disks) {
        Ok(pool) => pool,
        Err(error) if life.may_break() => return world.tell(|| format!("the pool does not open: {error}")),
        Err(error) => panic!("the pool does not open: {error}"),
    };
    let unread = judge(world, &pool);
    if !unread.is_empty() {
        assert!(life.may_break(), "{unread:?}");
        world.tell(|| format!("{unread:?}"));
        if !life.is_damaged {
            drop(close(pool));
            return;
        }
    }
    let may_break = life.may_break();
    let clients: Vec<_> = (0..world.plan.clients as usize)
        .map(|client| {
            let dice = Dice::new(world.plan.seed ^ number << 32 ^ (client as u64) << 48);
            let client = Client {
                number: client,
                world: world.clone(),
                pool: pool.clone(),
                dice,
                life: life.clone(),
                open: Vec::new(),
            };
            thread::Builder::new().name("client".to_owned()).spawn(move || client.live()).expect("starts")
        })
        .collect();
    type Tool = fn(&Pool, &mut Dice) -> Result<(), String>;
    let tools = [(life.reclaims, reclaim as Tool), (life.scrubs, scrub), (life.looks, ask_for_statistics)]
        .into_iter()
        .zip(0_u64..);
    let tools: Vec<_> = tools
        .filter(|((times, _), _)| *times > 0)
        .map(|((times, tool), tool_number)| {
            // Behind the numbers of clients: each has dice of its own.
            let (pool, mut dice) = (pool.clone(), Dice::new(world.plan.seed ^ number << 32 ^ (tool_number + 9) << 48));
            let pause_bits = life.pause_bits;
            let run = move || {
                for _ in 0..times {
                    thread::sleep(Duration::from_micros(dice.of_bits(pause_bits)));
                    if let Err(error) = tool(&pool, &mut dice) {
                        assert!(may_break, "{error}");
                    }
                }
            };
            thread::Builder::new().name("tool".to_owned()).spawn(run).expect("starts")
        })
        .collect();
    for task in clients.into_iter().chain(tools) {
        task.join().expect("a panic ends the world");
    }
    thread::sleep(life.idle);
    // Its crash was to come at a later operation: now nothing happens any more.
    if life.fate.is_crash() && !life.idle.is_zero() {
        world::kill();
    }
    match close(pool) {
        Ok(()) => {
            // A client that gave up does not know the state of its file.
            // Beside faults the export may be older than that.
            let known = if life.may_fail() { File::durable } else { File::settled };
            world.files().iter_mut().flatten().filter(|file| !file.is_unsure()).for_each(known);
            world.was_closed.store(true, Ordering::Relaxed);
        }
        Err(error) => {
            assert!(may_break, "does not close: {error}");
            world.tell(|| format!("the pool does not close: {error}"));
        }
    }
}

/// Reclaims, unless a run is going on.
fn reclaim(pool: &Pool, dice: &mut Dice) -> Result<(), String> {
    let options = ReclaimOptions::below([50, 100][dice.below(2) as usize]);
    match pool.reclaim(&options, &NoProgress) {
        Err(error) if !error.to_string().contains("running") => Err(format!("reclaiming fails: {error}")),
        _ => Ok(()),
    }
}

/// Scrubs, unless a scrub is going on. Nothing may be damaged.
pub fn scrub(pool: &Pool, _: &mut Dice) -> Result<(), String> {
    match pool.scrub(&ScrubOptions { restart: true, ..ScrubOptions::default() }, &NoProgress) {
        Ok(report) if !report.is_clean() => Err(format!("a scrub finds damage: {report:?}")),
        Err(error) if !error.to_string().contains("running") => Err(format!("a scrub fails: {error}")),
        _ => Ok(()),
    }
}

/// What the file written last may take besides the budget of open files, and each client before it looks at the budget: see
/// docs/memory.md, "Open files".
const NEWEST_FILE_BYTES: u64 = 12 << 20;

/// Asks for statistics. No part of the memory may be larger than it should.
fn ask_for_statistics(pool: &Pool, _: &mut Dice) -> Result<(), String> {
    let memory = pool.stats().map_err(|error| format!("has no statistics: {error}"))?.memory;
    let limits: u64 = memory.parts.iter().map(|part| part.limit_bytes).sum();
    assert!(limits <= memory.limit_bytes, "parts of {limits} bytes in all, of {}", memory.limit_bytes);
    for part in memory.parts {
        let used_bytes = part.used_bytes.unwrap_or(0);
        let limit_bytes = part.limit_bytes + if part.name == "open files" { NEWEST_FILE_BYTES } else { 0 };
        assert!(used_bytes <= limit_bytes, "{}: {used_bytes} bytes of {limit_bytes}", part.name);
    }
    Ok(())
}
