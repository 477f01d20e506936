//! The power goes at any moment: the pool opens, is sound, and shows a state that it went through, with everything that
//! was synced (invariants I-1 to I-4).
//!
//! - `workload`: random file operations, syncs, versions, images of disks, reclaiming, mounts and rebuilds on one disk or two, beside a
//!   reference;
//! - `camera`: disks and their caches before every operation;
//! - `inspect`: chooses and counts the losses at each photograph, with power losses in recoveries, and in recoveries of
//!   those;
//! - `verdict`: judges each image;
//! - `canary`: disks with a wrong order, which the suite must notice;
//! - `mkfs`, `resumed`, `cost`: power losses during mkfs, while a put names incomplete versions, and the reads of an
//!   opening after a power loss.
//!
//! The requirement is stricter than the filesystem's contract: after a power loss the whole tree must be as it was
//! between two operations, none of them before the last durable one, because the engine commits its changes in order.
//!
//! *A seed decides* the operations and their content, the disks, and the losses at each device operation. *It does not
//! decide* the pool id, the times of files, and when the threads that count and write checkpoints come to work. So
//! `DEDUPFS_CRASH` repeats the same work and mostly meets the same image. A failed run saves its image, and
//! `DEDUPFS_CRASH_IMAGE` examines exactly that image, always with the same verdict. (Rounds of the commit thread run
//! only on request, and everything is small enough that no other thread writes.)

mod camera;
mod canary;
mod client;
mod cost;
mod disks;
mod images;
mod inspect;
mod mkfs;
mod random;
mod resumed;
mod suite;
mod verdict;
mod versions;
mod workload;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use inspect::Point;
use suite::{Goal, again, run};

/// Crash points in a normal run.
pub const POINTS: u64 = 25_000;

#[test]
fn power_loss_at_any_moment() {
    match Task::from_env() {
        Task::Run { seed, goal } => {
            let tally = run(seed, goal, None).unwrap_or_else(|error| panic!("{error}"));
            let points = tally.points;
            assert!(!matches!(goal, Goal::Points(least) if points < least), "{tally}");
            // A workload or two may be one-sided, so fewer may come from a short run.
            let is_mixed = tally.recoveries.iter().all(|of| *of > points / 200) && tally.gone_on > points / 20;
            let is_mixed = is_mixed && tally.images_by_map > tally.workloads / 10;
            let is_mixed = is_mixed && tally.images_by_name > tally.workloads / 20;
            assert!(is_mixed || points < POINTS, "{tally}");
        }
        Task::Again { seed, point } => {
            let came = again(seed, &point, None).unwrap_or_else(|error| panic!("{error}"));
            assert!(came, "the work has no such point this time: examine the image");
        }
        Task::Examine(image) => {
            inspect::examine_saved(&image).unwrap_or_else(|error| panic!("{}: {error}", image.display()));
        }
    }
}

/// Tests the judgement itself.
#[test]
fn a_mixture_of_two_states_is_no_state() {
    let states = ["/a 1\n/b 1\n", "/a 2\n/b 1\n", "/a 2\n/b 2\n"].map(Arc::from);
    for state in &states {
        assert_eq!(verdict::judge(state, &states), Ok(()));
    }
    for seen in ["/a 1\n/b 2\n", "/a 1\n", "", "/a 1\n/b 1\n/c 1\n"] {
        assert!(verdict::judge(seen, &states).is_err_and(|error| error.contains("none of 3 possible states")));
    }
    assert!(verdict::judge("/a 1\n/b 1\n", &states[1..]).is_err(), "what is durable stays");
}

/// The task that the environment names instead of a normal run. `tools/crash-soak.sh` and the messages of failures set
/// it.
enum Task {
    /// `DEDUPFS_CRASH_POINTS` or `DEDUPFS_CRASH_MINUTES`, from `DEDUPFS_CRASH_SEED` on.
    Run { seed: u64, goal: Goal },
    /// `DEDUPFS_CRASH`: one point again.
    Again { seed: u64, point: Point },
    /// `DEDUPFS_CRASH_IMAGE`: the saved image of a failed run.
    Examine(PathBuf),
}

impl Task {
    fn from_env() -> Self {
        if let Some(image) = std::env::var_os("DEDUPFS_CRASH_IMAGE") {
            return Self::Examine(image.into());
        }
        if let Ok(text) = std::env::var("DEDUPFS_CRASH") {
            let parsed =
                text.split_once(':').and_then(|(seed, point)| Some((seed.parse().ok()?, Point::parse(point)?)));
            let (seed, point) = parsed.unwrap_or_else(|| panic!("{text:?} is not of the form SEED:OPERATION:VARIANT"));
            return Self::Again { seed, point };
        }
        let minutes = number("DEDUPFS_CRASH_MINUTES").map(|minutes| Goal::Time(Duration::from_secs(60 * minutes)));
        let goal = minutes.unwrap_or_else(|| Goal::Points(number("DEDUPFS_CRASH_POINTS").unwrap_or(POINTS)));
        Self::Run { seed: number("DEDUPFS_CRASH_SEED").unwrap_or(0), goal }
    }
}

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is a number, not {text:?}")))
}
