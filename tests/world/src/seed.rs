//! One world: its lives, one after the other.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};

use dedupfs_sync::world::{self, End};

use crate::day::day;
use crate::dice::Dice;
use crate::disk::Disks;
use crate::errors;
use crate::history::World;
use crate::judge::File;
use crate::last_day::{damaged_day, last_day};
use crate::plan::{Fate, Life, Plan};
use crate::pool::make;

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
    // In memory, if possible: a disk allocates blocks when it likes, and `put` sees holes by them.
    let scratch = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
    let scratch = scratch.map_err(|error| format!("no temporary directory: {error}"))?;
    let world = Arc::new(World::new(plan.clone(), scratch.path().to_owned(), with_story));
    world.tell(|| format!("{plan:#?}"));
    let mut disks = Disks::new(plan.two_disks);
    let mut dice = Dice::new(seed ^ 0xf11b);
    let mut outcome = Outcome::default();
    let untroubled = Life::untroubled(&mut Dice::new(seed ^ 0xf0f0));
    // Whether something failed in an earlier life, and no life was without fault and closed since then.
    let had_failed = Cell::new(false);
    let live = |number: u64, life: &Life, disks: &Disks, act: fn(&Arc<World>, &Life, &Disks, u64)| {
        let (world, of, on) = (world.clone(), life.clone(), disks.clone());
        drop(errors::take());
        world.life_begins();
        let end = world::run(seed.wrapping_mul(1_000_003) ^ number, life.habits, {
            let world = world.clone();
            move || act(&world, &of, &on, number)
        });
        // An export that gave way to a full disk is missed, and made anew, by the next life.
        let is_excused = |error: &String| world.may_fail(life) || had_failed.get() && error.contains("the export");
        let end = match errors::take() {
            Some(error) if !matches!(end, End::Failed(_)) && !is_excused(&error) => {
                End::Failed(format!("the engine logs an error, and nothing has failed: {error}"))
            }
            _ => end,
        };
        had_failed.set(world.may_fail(life) || had_failed.get() && !world.was_closed.load(Ordering::Relaxed));
        end
    };
    let failed = |number: u64, reason: String| Err(format!("life {number}: {reason}"));

    if let End::Failed(reason) = live(0, &untroubled, &disks, |world, _, disks, _| make(&world.plan, disks)) {
        return failed(0, reason);
    }
    for (number, life) in (1..).zip(&plan.lives) {
        let end = live(number, life, &disks, day);
        world.tell(|| format!("life {number} ends: {end:?}"));
        let fate = match end {
            End::Failed(reason) => return failed(number, reason),
            // It ended before the operation of its crash.
            End::Ended => match life.fate {
                closed @ Fate::Closed { .. } => closed,
                _ => Fate::Closed { power_fails: false },
            },
            End::Killed => {
                outcome.crashes += 1;
                if !world.may_break(life) {
                    let durable_before = world::now().saturating_sub(life.durable_after());
                    world.files().iter_mut().flatten().for_each(|file| file.crashed(durable_before));
                }
                match life.fate {
                    // It was killed within a step.
                    Fate::Closed { .. } => Fate::Killed { operation: u64::MAX },
                    fate => fate,
                }
            }
        };
        world.files().iter_mut().flatten().for_each(File::life_ended);
        disks = disks.after(fate, seed);
        let was_closed = world.was_closed.load(Ordering::Relaxed);
        // On a full disk an export gives way.
        let may_fail = world.may_fail(life);
        if may_fail || was_closed {
            world.has_export.store(!may_fail, Ordering::Relaxed);
        }
        if life.loses_meta
            && !may_fail
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
            let Some((path, byte)) = disks.flip(&mut dice) else { continue };
            world.tell(|| format!("a bit flips: {path}, byte {byte}"));
            world.flips.lock().unwrap_or_else(PoisonError::into_inner).push((path, byte));
        }
    }
    let last = plan.lives.len() as u64 + 1;
    let is_damaged = plan.lives.iter().any(|life| life.flips > 0);
    let last_life = Life { is_damaged, ..untroubled };
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
