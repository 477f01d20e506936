//! Tools that work on the pool beside its clients: they reclaim, scrub, ask for statistics, and stop or hold each other.

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use dedupfs::reclaim::{Arranging, ReclaimOptions};
use dedupfs::scrub::ScrubOptions;
use dedupfs::{EngineError, NoProgress, Pool};
use dedupfs_sync::thread::{self, JoinHandle};

use crate::dice::Dice;
use crate::history::World;
use crate::plan::Life;

/// What the file written last may take besides the budget of open files, and each client before it looks at the budget:
/// see docs/memory.md, "Open files".
const NEWEST_FILE_BYTES: u64 = 12 << 20;

/// One tool of a life.
struct Tool {
    world: Arc<World>,
    life: Life,
    pool: Arc<Pool>,
    dice: Dice,
}

/// Starts the tools of this life.
pub fn tools(world: &Arc<World>, life: &Life, pool: &Arc<Pool>, number: u64) -> Vec<JoinHandle<()>> {
    type Act = fn(&mut Tool);
    let acts: [(u64, Act); 4] = [
        (life.reclaims, Tool::reclaim),
        (life.scrubs, Tool::scrub),
        (life.looks, Tool::ask_for_statistics),
        (life.controls, Tool::control),
    ];
    let begin = |(tool, (times, act)): (u64, (u64, Act))| {
        // Behind the numbers of clients: each has dice of its own.
        let dice = Dice::new(world.plan.seed ^ number << 32 ^ (tool + 9) << 48);
        let mut tool = Tool { world: world.clone(), life: life.clone(), pool: pool.clone(), dice };
        let run = move || {
            for _ in 0..times {
                tool.pause();
                if tool.world.is_closing.load(Ordering::Relaxed) {
                    break;
                }
                act(&mut tool);
            }
        };
        thread::Builder::new().name("tool".to_owned()).spawn(run).expect("starts")
    };
    (0..).zip(acts).filter(|(_, (times, _))| *times > 0).map(begin).collect()
}

impl Tool {
    fn pause(&mut self) {
        thread::sleep(Duration::from_micros(self.dice.of_bits(self.life.pause_bits)));
    }

    /// Returns the report.
    ///
    /// # Panics
    /// The work failed without a reason.
    fn expect<T: Debug>(&self, what: &str, outcome: dedupfs::Result<T>) -> Option<T> {
        // Statistics are long.
        self.world.tell(|| format!("{what}: {outcome:?}").chars().take(1000).collect());
        let error = match outcome {
            Ok(report) => return Some(report),
            Err(error) => error,
        };
        let is_closing = self.world.is_closing.load(Ordering::Relaxed)
            && matches!(error, EngineError::ReadOnly(_) | EngineError::Ended(_));
        let words = error.to_string();
        let is_refused = words.contains("running")
            || self.life.controls > 0 && words.contains("is paused")
            || self.world.plan.with_versions && words.contains("a snapshot");
        assert!(is_closing || is_refused || self.world.may_break(&self.life), "{what} fails: {error}");
        None
    }

    /// Reclaims, unless a run is going on.
    fn reclaim(&mut self) {
        let options = self.options();
        self.world.tell(|| format!("reclaiming begins: {options:?}"));
        let outcome = self.pool.reclaim(&options, &NoProgress);
        let Some(report) = self.expect("reclaiming", outcome) else { return };
        let unread = report.containers_damaged + report.nodes_unreadable;
        assert!(unread == 0 || self.world.may_break(&self.life), "reclaiming cannot read all: {report:?}");
        let has_room = report.containers_without_space == 0 || self.world.may_fail(&self.life);
        assert!(has_room, "reclaiming finds no room: {report:?}");
    }

    fn options(&mut self) -> ReclaimOptions {
        let dice = &mut self.dice;
        let mut options = ReclaimOptions::below([50, 100][dice.below(2) as usize]);
        if self.life.with_options {
            options.leave_percent = if dice.one_in(2) { dice.below(60) as u8 } else { 0 };
            options.share_percent = if dice.one_in(2) { 1 + dice.below(100) as u8 } else { 100 };
            options.max_time_ms = if dice.one_in(4) { dice.of_bits(8) } else { 0 };
            options.max_io_bytes = if dice.one_in(4) { dice.of_bits(18) } else { 0 };
            options.is_background = dice.one_in(4);
            options.dry_run = dice.one_in(6);
            if options.is_background && options.max_io_bytes == 0 {
                // As a mount arranges by itself.
                (options.threshold_percent, options.arranging) = (0, Arranging::Alone);
            }
        }
        options.dry_run |= self.life.is_read_only;
        options
    }

    /// Scrubs, unless a scrub is going on.
    fn scrub(&mut self) {
        let options = ScrubOptions { restart: true, ..ScrubOptions::default() };
        self.world.tell(|| "a scrub begins".to_owned());
        let outcome = self.pool.scrub(&options, &NoProgress);
        let Some(report) = self.expect("a scrub", outcome) else { return };
        assert!(report.is_clean() || self.world.may_break(&self.life), "a scrub finds damage: {report:?}");
    }

    /// Asks for statistics. No part of the memory may be larger than it should, and nothing may be lost.
    fn ask_for_statistics(&mut self) {
        let Some(stats) = self.expect("asking for statistics", self.pool.stats()) else { return };
        let is_sound = stats.lost_chunks + stats.lost_recipe_nodes == 0 && !stats.counts_in_doubt;
        assert!(is_sound || self.life.is_damaged, "the statistics tell of losses: {stats:?}");
        let memory = stats.memory;
        let limits: u64 = memory.parts.iter().map(|part| part.limit_bytes).sum();
        assert!(limits <= memory.limit_bytes, "parts of {limits} bytes in all, of {}", memory.limit_bytes);
        for part in memory.parts {
            let used_bytes = part.used_bytes.unwrap_or(0);
            let limit_bytes = part.limit_bytes + if part.name == "open files" { NEWEST_FILE_BYTES } else { 0 };
            assert!(used_bytes <= limit_bytes, "{}: {used_bytes} bytes of {limit_bytes}", part.name);
        }
    }

    /// Stops a run or a scrub, or holds runs for a while.
    fn control(&mut self) {
        let kind = self.dice.below(3);
        self.world
            .tell(|| ["a run is stopped", "a scrub is stopped", "runs are held for a while"][kind as usize].to_owned());
        match kind {
            0 => self.pool.reclaiming().stop(),
            1 => self.pool.stop_scrub(),
            _ => {
                self.pool.reclaiming().pause(true);
                self.pause();
                self.pool.reclaiming().pause(false);
            }
        }
    }
}
