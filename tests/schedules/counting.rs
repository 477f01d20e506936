//! Counting off the commit thread: all rows are counted, in order; a settling thread finds its own changes counted; the
//! backlog is bounded; and no thread waits for ever: not for a round, the counting, a checkpoint, or the end.
//!
//! The turns of the commit thread, the backlog and the queue of checkpoints are compiled from their sources. Each step around them repeats the method
//! of `Committer` with the same name, on an index that keeps the changes themselves. Its open cells are the changes
//! counted since a checkpoint.

use std::sync::Arc;
use std::time::Duration;

use shuttle::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use shuttle::thread;

use crate::backlog::{Backlog, Weight};
use crate::checkpoint_queue::{CheckpointOutcome, CheckpointQueue};
use crate::sync::Mutex;
use crate::turns::{Turn, Turns};
use crate::{explore, must_fail};

/// Open cells at which a checkpoint is due, and at which counting stops until one is written.
const DUE: usize = 2;
const FULL: usize = 4;
/// Staged changes at which a thread that makes more waits for the counting.
const STAGED_MAX: u64 = 2;

/// The step that a canary leaves out.
#[derive(Clone, Copy, PartialEq)]
enum Without {
    Nothing,
    /// Rounds begin however large the backlog is.
    Room,
    /// A settling thread waits only for the round.
    Settling,
    /// A thread that makes changes waits only for the round.
    Relief,
    /// A row leaves the backlog before it is counted.
    Applying,
    /// The counting thread ends with the rows that it has taken.
    Draining,
    /// Rows are counted however many cells are open.
    Checkpoint,
}

#[derive(Default)]
struct Index {
    counted: Vec<u32>,
    open: usize,
}

struct Pool {
    without: Without,
    /// Changes in a row: one for a writer that syncs each change, up to the staged limit for one that streams.
    row_max: usize,
    /// How the first checkpoints end; all others become durable.
    outcomes: &'static [CheckpointOutcome],
    turns: Turns<()>,
    logged: Mutex<Vec<u32>>,
    durable: Mutex<Vec<u32>>,
    staged: AtomicU64,
    backlog: Backlog<Vec<u32>>,
    is_ended: AtomicBool,
    index: Mutex<Index>,
    checkpoints: CheckpointQueue<usize>,
}

impl Pool {
    fn new(row_max: usize, bound: u64, outcomes: &'static [CheckpointOutcome], without: Without) -> Self {
        Self {
            without,
            row_max,
            outcomes,
            turns: Turns::default(),
            logged: Mutex::default(),
            durable: Mutex::default(),
            staged: AtomicU64::new(0),
            backlog: Backlog::new(Weight { changes: bound, places: bound, bytes: 1 << 30 }),
            is_ended: AtomicBool::new(false),
            index: Mutex::default(),
            checkpoints: CheckpointQueue::default(),
        }
    }

    fn log(&self, change: u32) {
        self.staged.fetch_add(1, Ordering::SeqCst);
        self.logged.lock().push(change);
    }

    fn commit(&self) {
        assert_eq!(self.turns.take(|| ()), Some(None), "a round that did not fail");
    }

    fn settle(&self) {
        self.commit();
        let ticket = self.turns.finished();
        if self.without != Without::Settling {
            self.backlog.wait_for(ticket, || ());
        }
    }

    fn relieve(&self) {
        let staged = self.staged.load(Ordering::SeqCst);
        let uncommitted = staged.saturating_sub(self.backlog.weight().places);
        if uncommitted >= STAGED_MAX {
            self.commit();
        } else if uncommitted >= STAGED_MAX / 2 {
            self.turns.ask();
        }
        if self.without != Without::Relief {
            self.backlog.wait_while(|| (), |_| self.staged.load(Ordering::SeqCst) >= STAGED_MAX);
        }
    }

    fn run_rounds(&self) {
        loop {
            // A round that is due by the clock begins at any moment.
            if self.turns.next(|| Duration::from_secs(1)) == Turn::End {
                return;
            }
            if self.without != Without::Room {
                self.backlog.wait_for_room();
            }
            let (goal, _asked) = self.turns.goal();
            let row = std::mem::take(&mut *self.logged.lock());
            self.durable.lock().extend(&row);
            self.turns.answer(goal, None);
            let changes = row.len() as u64;
            let weight = Weight { changes, places: changes, bytes: 0 };
            self.backlog.hand_over(goal, weight, (!row.is_empty()).then_some(row));
            let (behind, bound) = (self.backlog.weight().changes, self.backlog.bound().changes);
            assert!(behind < bound + self.row_max as u64, "{behind} changes are behind");
        }
    }

    fn count_rows(&self) {
        loop {
            let rows = self.backlog.take();
            if rows.is_empty() || (self.without == Without::Draining && self.is_ended.load(Ordering::SeqCst)) {
                return;
            }
            for handed in rows {
                let row = handed.row.clone().unwrap_or_default();
                if self.without == Without::Applying {
                    self.backlog.counted(handed);
                    self.count(&row);
                } else {
                    self.count(&row);
                    self.backlog.counted(handed);
                }
            }
        }
    }

    fn count(&self, row: &[u32]) {
        let mut index = self.index.lock();
        index.counted.extend(row);
        index.open += row.len();
        assert!(self.durable.lock().starts_with(&index.counted), "not in the order of the rows");
        let is_bounded = index.open < FULL + self.row_max || !self.outcomes.is_empty();
        assert!(is_bounded, "{} cells are open", index.open);
        drop(index);
        self.staged.fetch_sub(row.len() as u64, Ordering::SeqCst);
        self.checkpoint_if_due();
    }

    fn open(&self) -> usize {
        self.index.lock().open
    }

    fn checkpoint_if_due(&self) {
        if self.open() >= DUE && !self.checkpoints.is_busy() {
            self.checkpoints.submit(self.open());
        }
        while self.open() >= FULL && self.without != Without::Checkpoint {
            if self.checkpoints.wait() != CheckpointOutcome::Whole {
                break;
            }
            if self.open() >= FULL {
                self.checkpoints.submit(self.open());
            }
        }
    }

    fn write_checkpoints(&self) {
        let mut outcomes = self.outcomes.iter();
        while let Some(cells) = self.checkpoints.next() {
            let outcome = outcomes.next().copied().unwrap_or_default();
            if outcome == CheckpointOutcome::Whole {
                self.index.lock().open -= cells;
            }
            self.checkpoints.done(outcome);
        }
    }
}

type Writer = fn(&Pool, u32);

/// Syncs each change.
fn syncs(pool: &Pool, number: u32) {
    for change in 0..3 {
        pool.log(10 * number + change);
        pool.commit();
    }
}

/// Needs the counts of its own changes and of all earlier ones.
fn settles(pool: &Pool, number: u32) {
    for change in 0..2 {
        pool.log(10 * number + change);
        let before = pool.durable.lock().clone();
        pool.settle();
        let index = pool.index.lock();
        assert!(index.counted.contains(&(10 * number + change)), "its own is not counted");
        assert!(before.iter().all(|change| index.counted.contains(change)), "what was durable is not counted");
    }
}

/// Never syncs.
fn streams(pool: &Pool, number: u32) {
    for change in 0..6 {
        pool.log(10 * number + change);
        let staged = pool.staged.load(Ordering::SeqCst);
        assert!(staged <= pool.row_max as u64, "{staged} changes are staged");
        pool.relieve();
    }
}

fn run(writers: &[Writer], bound: u64, without: Without) {
    run_on(&[], writers, bound, without);
}

fn run_on(outcomes: &'static [CheckpointOutcome], writers: &[Writer], bound: u64, without: Without) {
    let has_streams = writers.iter().any(|&writer| std::ptr::fn_addr_eq(writer, streams as Writer));
    // One more for each writer, and again for each of two rows: the one that was answered and is about to be handed
    // over, and the next.
    let row_max = if has_streams { STAGED_MAX as usize + 3 * writers.len() } else { writers.len() };
    let pool = Arc::new(Pool::new(row_max, bound, outcomes, without));
    let beside = |run: fn(&Pool)| {
        let pool = pool.clone();
        thread::spawn(move || run(&pool))
    };
    let committing = beside(Pool::run_rounds);
    let counting = beside(Pool::count_rows);
    let flushing = beside(Pool::write_checkpoints);
    let write = |(number, &writer): (u32, &Writer)| {
        let pool = pool.clone();
        thread::spawn(move || writer(&pool, number))
    };
    let writing: Vec<_> = (1..).zip(writers).map(write).collect();
    writing.into_iter().for_each(|thread| thread.join().expect("ends"));
    // Changes still in the log become durable as at the end of a session.
    pool.commit();
    pool.turns.stop();
    committing.join().expect("ends");
    pool.is_ended.store(true, Ordering::SeqCst);
    pool.backlog.end();
    counting.join().expect("ends");
    pool.checkpoints.stop();
    flushing.join().expect("ends");
    let index = pool.index.lock();
    assert_eq!(index.counted, *pool.durable.lock(), "what was durable at the end is counted");
    assert_eq!(pool.backlog.weight(), Weight::default());
}

const SYNCING: &[Writer] = &[syncs, syncs, settles];
const STREAMING: &[Writer] = &[streams, streams];

#[test]
fn everything_is_counted_in_order_and_no_more_than_the_bound_is_behind() {
    explore(|| run(SYNCING, 2, Without::Nothing));
    explore(|| run(&[syncs, settles, streams], 3, Without::Nothing));
}

/// Counting goes on on a full disk and after a failed checkpoint: nothing waits for a checkpoint that does not come.
#[test]
fn nobody_waits_for_a_checkpoint_that_cannot_be_written() {
    explore(|| {
        run_on(
            &[CheckpointOutcome::NoSpace, CheckpointOutcome::Failed, CheckpointOutcome::NoSpace],
            SYNCING,
            2,
            Without::Nothing,
        )
    });
}

#[test]
fn who_makes_changes_waits_for_the_counting() {
    explore(|| run(STREAMING, 100, Without::Nothing));
}

#[test]
fn canary_rounds_that_wait_for_nobody_are_found() {
    must_fail("no waiting for room", || run(SYNCING, 2, Without::Room));
}

#[test]
fn canary_settling_before_the_counting_is_found() {
    must_fail("no waiting for the counting", || run(SYNCING, 2, Without::Settling));
}

#[test]
fn canary_relief_by_a_commit_alone_is_found() {
    must_fail("what is staged is not waited for", || run(STREAMING, 100, Without::Relief));
}

#[test]
fn canary_a_row_that_counts_as_counted_before_it_is_found() {
    must_fail("counted too early", || run(SYNCING, 2, Without::Applying));
}

#[test]
fn canary_an_end_with_rows_left_is_found() {
    must_fail("the last rows are not counted", || run(SYNCING, 2, Without::Draining));
}

#[test]
fn canary_counting_without_waiting_for_a_checkpoint_is_found() {
    must_fail("open cells are not bounded", || run(SYNCING, 2, Without::Checkpoint));
}
