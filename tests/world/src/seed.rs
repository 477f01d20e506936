//! One world: its lives, one after the other.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dedupfs::check::CheckOptions;
use dedupfs::reclaim::ReclaimOptions;
use dedupfs::repair::{RepairOptions, repair_on};
use dedupfs::scrub::ScrubOptions;
use dedupfs::{NoProgress, OpenOptions, Pool, format_on, recover_on};
use dedupfs_sync::thread;
use dedupfs_sync::world::{self, End};
use std::time::Duration;

use crate::client::{Client, look, remove_unfinished};
use crate::dice::Dice;
use crate::disk::Disks;
use crate::judge::File;
use crate::operations::Client as Operations;
use crate::plan::{Fate, Life, Plan, properties};
use crate::tree::{self, Counts};

/// What outlives a life.
#[derive(Debug)]
pub struct World {
    pub plan: Plan,
    files: Mutex<Vec<Vec<File>>>,
    /// Whether the last life closed its pool.
    was_closed: AtomicBool,
    /// Whether the pool must be recovered from its data root before it can be opened.
    is_meta_lost: AtomicBool,
    /// Whether the pool was ever closed in order, beside no fault: then its data root has an export.
    has_export: AtomicBool,
    /// Whether a forced recovery kept slots that nothing names.
    has_kept: AtomicBool,
    /// Whether the data root may have content behind its export.
    is_export_old: AtomicBool,
    /// Whether reclaiming may have been ended while content lay in two containers.
    is_inexact: AtomicBool,
    /// A directory of the real disk, for trees that are put and got.
    pub scratch: PathBuf,
    with_story: bool,
    pub tally: Tally,
}

/// Counts of what happened, over all lives.
#[derive(Debug, Default)]
pub struct Tally {
    pub requests: AtomicU64,
    pub refused: AtomicU64,
    pub device_operations: AtomicU64,
    pub recoveries: AtomicU64,
}

impl World {
    fn new(plan: Plan, scratch: PathBuf, with_story: bool) -> Self {
        // Behind the files is the tree.
        let of_client = |_| (0..=plan.files).map(|_| File::default()).collect();
        let files = Mutex::new((0..plan.clients).map(of_client).collect());
        Self {
            plan,
            files,
            was_closed: AtomicBool::new(false),
            is_meta_lost: AtomicBool::new(false),
            has_export: AtomicBool::new(false),
            has_kept: AtomicBool::new(false),
            is_export_old: AtomicBool::new(false),
            is_inexact: AtomicBool::new(false),
            scratch,
            with_story,
            tally: Tally::default(),
        }
    }

    /// The judge's files. No task may switch while it holds them.
    pub fn files(&self) -> MutexGuard<'_, Vec<Vec<File>>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells a line of the story.
    pub fn tell(&self, line: impl FnOnce() -> String) {
        if self.with_story {
            println!("{:>14.6} s  {}", world::now().as_secs_f64(), line());
        }
    }
}

/// What became of a world.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Outcome {
    /// The hash of everything that happened.
    pub hash: u64,
    pub lives: u64,
    pub crashes: u64,
    pub requests: u64,
    pub refused: u64,
    pub device_operations: u64,
    pub recoveries: u64,
}

/// Runs the world of this plan.
///
/// # Errors
/// The life, and what is wrong in it, in the words of the judge.
pub fn run(plan: Plan, with_story: bool) -> Result<Outcome, String> {
    let seed = plan.seed;
    let scratch = tempfile::tempdir().map_err(|error| format!("no temporary directory: {error}"))?;
    let world = Arc::new(World::new(plan.clone(), scratch.path().to_owned(), with_story));
    world.tell(|| format!("{plan:#?}"));
    let mut disks = Disks::new(plan.two_disks);
    let mut dice = Dice::new(seed ^ 0xf11b);
    let mut outcome = Outcome::default();
    let quiet = Life::quiet(&mut Dice::new(seed ^ 0xf0f0));
    let live = |number: u64, life: &Life, disks: &Disks, act: fn(&Arc<World>, &Life, &Disks, u64)| {
        let (world, of, on) = (world.clone(), life.clone(), disks.clone());
        world::run(seed.wrapping_mul(1_000_003) ^ number, life.habits, move || act(&world, &of, &on, number))
    };
    let failed = |number: u64, reason: String| Err(format!("life {number}: {reason}"));

    if let End::Failed(reason) = live(0, &quiet, &disks, |_, _, disks, _| make(disks)) {
        return failed(0, reason);
    }
    for (number, life) in (1..).zip(&plan.lives) {
        world.was_closed.store(false, Ordering::Relaxed);
        let end = live(number, life, &disks, day);
        world.tell(|| format!("life {number} ends: {end:?}"));
        let end_is_early = matches!(end, End::Killed);
        let fate = match end {
            End::Failed(reason) => return failed(number, reason),
            // Its end came before its fate.
            End::Ended => match life.fate {
                closed @ Fate::Closed { .. } => closed,
                _ => Fate::Closed { power_fails: false },
            },
            End::Killed => {
                outcome.crashes += 1;
                if !life.may_break() {
                    let durable_before = world::now().saturating_sub(life.durable_after());
                    world.files().iter_mut().flatten().for_each(|file| file.crashed(durable_before));
                }
                life.fate
            }
        };
        if life.reclaims > 0 && (end_is_early || life.may_fail()) {
            world.is_inexact.store(true, Ordering::Relaxed);
        }
        world.files().iter_mut().flatten().for_each(File::life_ended);
        disks = disks.after(fate, seed);
        let was_closed = world.was_closed.load(Ordering::Relaxed);
        if was_closed && !life.may_fail() {
            world.has_export.store(true, Ordering::Relaxed);
        }
        if life.loses_meta
            && !life.may_fail()
            && world.has_export.load(Ordering::Relaxed)
            && let Some(left) = disks.without_meta()
        {
            world.tell(|| "the meta root is lost".to_owned());
            if !was_closed {
                // Names are as of the last export, which may be as old as the pool is open.
                world.files().iter_mut().flatten().for_each(File::go_back);
                world.is_export_old.store(true, Ordering::Relaxed);
            }
            disks = left;
            world.is_meta_lost.store(true, Ordering::Relaxed);
        }
        for _ in 0..life.flips {
            let place = disks.flip(&mut dice);
            world.tell(|| format!("a bit flips: {}", place.unwrap_or_default()));
        }
    }
    let last = plan.lives.len() as u64 + 1;
    let is_damaged = plan.lives.iter().any(|life| life.flips > 0);
    let last_life = Life { is_damaged, ..quiet };
    if let End::Failed(reason) = live(last, &last_life, &disks, if is_damaged { damaged_day } else { last_day }) {
        return failed(last, reason);
    }
    outcome.lives = last + 1;
    outcome.hash = world::hash();
    let counted = |count: &AtomicU64| count.load(Ordering::Relaxed);
    outcome.requests = counted(&world.tally.requests);
    outcome.refused = counted(&world.tally.refused);
    outcome.device_operations = counted(&world.tally.device_operations);
    outcome.recoveries = counted(&world.tally.recoveries);
    Ok(outcome)
}

fn make(disks: &Disks) {
    let [meta, data] = disks.plain();
    format_on(&meta, &data, disks.data_root(), &properties(), (0, 0)).expect("formats");
}

/// Opens the pool; recovers it before if its meta root is lost.
fn open(world: &Arc<World>, life: &Life, disks: &Disks) -> dedupfs::Result<Arc<Pool>> {
    world::set_clock_error(life.clock_jump_secs);
    let roots = disks.of_life(life, world);
    let options = OpenOptions {
        memory_bytes: dedupfs::config::MEMORY_BYTES_MIN,
        commit_interval: life.commit_interval,
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

/// Looks at all files as they are after whatever happened; returns which cannot be read.
fn judge(world: &World, pool: &Pool) -> Vec<String> {
    let mut unread = Vec::new();
    let operations = Operations::new(pool.service());
    for client in 0..world.plan.clients as usize {
        for file in 0..=world.plan.files as usize {
            let seen = match look(&operations, &world.plan, client, file) {
                Ok(seen) => seen,
                Err(error) => {
                    unread.push(format!("file {file} of client {client} cannot be read: {error:?}"));
                    world.files()[client][file].failed();
                    continue;
                }
            };
            let verdict = world.files()[client][file].judge(&seen);
            if let Err(wrong) = verdict {
                panic!("file {file} of client {client} {wrong}");
            }
        }
        if let Err(error) = remove_unfinished(&operations, client) {
            unread.push(format!("what client {client} left cannot be removed: {error:?}"));
        }
    }
    unread
}

fn check(pool: &Pool) {
    let report = pool.check(&CheckOptions { read_data: true }, &NoProgress);
    let report = report.unwrap_or_else(|error| panic!("cannot be checked: {error}"));
    assert!(report.is_clean(), "is not sound: {:#?}", report.findings);
}

/// Closes the pool. All threads must end soon.
fn close(pool: Arc<Pool>) -> dedupfs::Result<()> {
    let closed = pool.close();
    drop(pool);
    // A worker whose job held the pool last does not wait for the others.
    for _ in 0..100 {
        if world::threads() == 0 {
            return closed;
        }
        thread::sleep(Duration::from_millis(10));
    }
    panic!("{} threads are left a second after the pool was closed", world::threads());
}

/// A life with clients and tools.
fn day(world: &Arc<World>, life: &Life, disks: &Disks, number: u64) {
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
    let tools = [(life.reclaims, reclaim as Tool), (life.scrubs, scrub), (life.looks, count)].into_iter().zip(0_u64..);
    let tools: Vec<_> = tools
        .filter(|((times, _), _)| *times > 0)
        .map(|((times, tool), tool_number)| {
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
    if !matches!(life.fate, Fate::Closed { .. }) && !life.idle.is_zero() {
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

fn reclaim(pool: &Pool, dice: &mut Dice) -> Result<(), String> {
    let options = ReclaimOptions::below([50, 100][dice.below(2) as usize]);
    match pool.reclaim(&options, &NoProgress) {
        Err(error) if !error.to_string().contains("running") => Err(format!("reclaiming fails: {error}")),
        _ => Ok(()),
    }
}

fn scrub(pool: &Pool, _: &mut Dice) -> Result<(), String> {
    match pool.scrub(&ScrubOptions { restart: true, ..ScrubOptions::default() }, &NoProgress) {
        Ok(report) if !report.is_clean() => Err(format!("a scrub finds damage: {report:?}")),
        Err(error) if !error.to_string().contains("running") => Err(format!("a scrub fails: {error}")),
        _ => Ok(()),
    }
}

/// Asks for statistics. No part of the memory may be larger than it should.
fn count(pool: &Pool, _: &mut Dice) -> Result<(), String> {
    let memory = pool.stats().map_err(|error| format!("has no statistics: {error}"))?.memory;
    let limits: u64 = memory.parts.iter().map(|part| part.limit_bytes).sum();
    assert!(limits <= memory.limit_bytes, "parts of {limits} bytes in all, of {}", memory.limit_bytes);
    for part in memory.parts {
        let used_bytes = part.used_bytes.unwrap_or(0);
        assert!(used_bytes <= part.limit_bytes, "{}: {used_bytes} bytes of {}", part.name, part.limit_bytes);
    }
    Ok(())
}

/// Gives up the slots that a forced recovery kept.
fn give_up_unnamed(world: &Arc<World>, life: &Life, disks: &Disks) {
    let how = RepairOptions { apply: true, give_up_unnamed: true, ..RepairOptions::default() };
    let options = OpenOptions { memory_bytes: dedupfs::config::MEMORY_BYTES_MIN, ..OpenOptions::default() };
    let [meta, data] = disks.of_life(life, world);
    let report = repair_on(&meta, &data, &disks.data_root(), &how, &options, &NoProgress);
    let report = report.unwrap_or_else(|error| panic!("cannot be repaired: {error}"));
    world.tell(|| format!("repaired: {:?}", report.plan));
}

/// The last life on disks with flipped bits: nothing reads wrongly, and a check knows of everything that cannot be read.
fn damaged_day(world: &Arc<World>, life: &Life, disks: &Disks, _: u64) {
    let mut opened = open(world, life, disks);
    if let Err(error) = &opened {
        world.tell(|| format!("the pool does not open: {error}"));
        let how = RepairOptions { apply: true, ..RepairOptions::default() };
        let [meta, data] = disks.of_life(life, world);
        let repaired = repair_on(&meta, &data, &disks.data_root(), &how, &OpenOptions::default(), &NoProgress);
        world.tell(|| format!("repaired: {:?}", repaired.map(|report| report.plan)));
        // A repair tells what it removes, and the user agrees.
        world.files().iter_mut().flatten().for_each(|file| file.begin(None));
        opened = open(world, life, disks);
    }
    let pool = match opened {
        Ok(pool) => pool,
        Err(error) => return world.tell(|| format!("the pool cannot be repaired: {error}")),
    };
    let unread = judge(world, &pool);
    world.tell(|| format!("what cannot be read: {unread:?}"));
    let is_known = match pool.check(&CheckOptions { read_data: true }, &NoProgress) {
        Ok(report) => !report.is_clean(),
        Err(error) => error.to_string() != "",
    };
    assert!(unread.is_empty() || is_known, "a check finds nothing, and {unread:?}");
    drop(close(pool));
}

/// The last life: everything is checked, removed, and must be gone.
fn last_day(world: &Arc<World>, life: &Life, disks: &Disks, _: u64) {
    let open = || open(world, life, disks).unwrap_or_else(|error| panic!("the pool does not open: {error}"));
    let close = |pool| close(pool).unwrap_or_else(|error| panic!("does not close: {error}"));
    let pool = open();
    assert_eq!(judge(world, &pool), [""; 0], "all can be read");
    if world.plan.lives.iter().any(Life::may_fail) {
        // A recipe that could not be read is missing in the export until a scrub, or the check behind a mount, finds it.
        scrub(&pool, &mut Dice::new(0)).unwrap_or_else(|error| panic!("{error}"));
    }
    check(&pool);
    if world.is_inexact.load(Ordering::Relaxed) {
        // Content that a run copied before it was ended lies in two containers until the next run.
        pool.reclaim(&ReclaimOptions::below(100), &NoProgress)
            .unwrap_or_else(|error| panic!("cannot be reclaimed: {error}"));
    }
    let stats = pool.stats().unwrap_or_else(|error| panic!("has no statistics: {error}"));
    let by_hand = tree::count(&Operations::new(pool.service()), dedupfs_service::ROOT_INO).expect("all can be read");
    let told = Counts { files: stats.files, directories: stats.directories, logical_bytes: stats.logical_bytes };
    assert_eq!(told, by_hand, "the statistics, and a count by hand");
    let indexed_bytes = stats.unique_chunk_bytes + stats.unreferenced_chunk_bytes;
    assert_eq!(stats.data_containers.stored_bytes, indexed_bytes, "stored bytes, and those of different chunks");
    let operations = Operations::new(pool.service());
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
}
