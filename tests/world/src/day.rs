//! A life with clients and tools.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use dedupfs::Pool;
use dedupfs_sync::{thread, world};

use crate::client::Client;
use crate::dice::Dice;
use crate::disk::Disks;
use crate::history::World;
use crate::judge::File;
use crate::plan::Life;
use crate::pool::{close, judge, open, threads_end};
use crate::tools::tools;

/// Lives a life: opens the pool, lets the judge look, runs clients and tools beside each other, and closes the pool.
pub fn day(world: &Arc<World>, life: &Life, disks: &Disks, number: u64) {
    let pool = match open(world, life, disks) {
        Ok(pool) => pool,
        Err(error) if world.may_break(life) => return world.tell(|| format!("the pool does not open: {error}")),
        Err(error) => panic!("the pool does not open: {error}"),
    };
    let unread = judge(world, &pool);
    if !unread.is_empty() {
        assert!(world.may_break(life), "{unread:?}");
        world.tell(|| format!("{unread:?}"));
        if !life.is_damaged {
            drop(close(pool));
            return;
        }
    }
    let clients: Vec<_> = (0..world.plan.clients as usize)
        .map(|client| {
            let dice = Dice::new(world.plan.seed ^ number << 32 ^ (client as u64) << 48);
            let client = Client::new(client, world, life, &pool, dice);
            thread::Builder::new().name("client".to_owned()).spawn(move || client.live()).expect("starts")
        })
        .collect();
    let tools = tools(world, life, &pool, number);
    if life.closes_early {
        thread::sleep(Duration::from_micros(Dice::new(world.plan.seed ^ number << 32).of_bits(life.pause_bits)));
        close_early(world, life, &pool);
    }
    for task in clients.into_iter().chain(tools) {
        task.join().expect("a panic ends the world");
    }
    if life.closes_early {
        return threads_end(pool);
    }
    thread::sleep(life.idle);
    // Its crash was to come at a later operation: now nothing happens any more.
    if life.fate.is_crash() && !life.idle.is_zero() {
        world::kill();
    }
    closed(world, life, close(pool));
}

/// Closes the pool while clients and tools are busy: what comes too late is refused.
fn close_early(world: &World, life: &Life, pool: &Pool) {
    world.is_closing.store(true, Ordering::Relaxed);
    closed(world, life, pool.close());
}

/// Notes the end of the pool.
///
/// # Panics
/// It does not close, and its disks are sound.
fn closed(world: &World, life: &Life, outcome: dedupfs::Result<()>) {
    match outcome {
        // It has changed nothing.
        Ok(()) if life.is_read_only => {}
        Ok(()) => {
            // A client that gave up does not know the state of its file.
            // Beside faults the export may be older than that.
            let known = if world.may_fail(life) { File::durable } else { File::settled };
            world.files().iter_mut().flatten().filter(|file| !file.is_unsure()).for_each(known);
            world.was_closed.store(true, Ordering::Relaxed);
        }
        Err(error) => {
            assert!(world.may_break(life), "does not close: {error}");
            world.tell(|| format!("the pool does not close: {error}"));
        }
    }
}
