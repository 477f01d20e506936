//! The power goes at any moment: the pool opens, is sound, and shows a state that it went through, with all that was synced
//! (invariants I-1 to I-4).
//!
//! - `workload`: random file operations, syncs, reclaiming, mounts and rebuilds on one disk or two, beside a reference;
//! - `camera`: disks and their caches before every operation;
//! - `inspect`: which losses are tried at each, what is counted, and power losses in recoveries, and in recoveries of those;
//! - `verdict`: what must hold of each image;
//! - `canary`: disks with a wrong order, which the suite must notice;
//! - `mkfs`, `cost`: making a pool, and what opening after a power loss reads.
//!
//! What is required is more than the contract of the filesystem asks: after a power loss the whole tree is as it was between two
//! operations, not before the last one that was made durable, because the engine commits its changes in order.
//!
//! *What a seed decides*: the operations and their content, the disks, and at each device operation what is lost. *What it does
//! not*: pool id, times of files, and when the thread that writes checkpoints comes to work beside the others. So `DEDUPFS_CRASH`
//! repeats the same work and mostly meets the same image; the image that failed is written out, and `DEDUPFS_CRASH_IMAGE` examines
//! that very image, always with the same verdict. (Rounds of the commit thread run only when they are asked for, and everything
//! is small enough that no other thread writes.)

mod camera;
mod canary;
mod client;
mod cost;
mod disks;
mod inspect;
mod mkfs;
mod random;
mod suite;
mod verdict;
mod workload;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use inspect::Point;
use suite::{Goal, again, run};

/// Crash points of a normal run.
pub const POINTS: u64 = 100_000;

#[test]
fn power_loss_at_any_moment() {
    let tally = run(0, Goal::Points(POINTS), None).unwrap_or_else(|error| panic!("{error}"));
    assert!(tally.points >= POINTS, "{tally}");
    assert!(tally.recoveries.iter().all(|points| *points > POINTS / 200) && tally.gone_on > POINTS / 20, "{tally}");
}

/// The judgement itself.
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

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is a number, not {text:?}")))
}

#[test]
#[ignore = "runs for as long as tools/crash-soak.sh tells it"]
fn soak() {
    let minutes = number("DEDUPFS_CRASH_MINUTES").map(|minutes| Goal::Time(Duration::from_secs(60 * minutes)));
    let goal = minutes.unwrap_or_else(|| Goal::Points(number("DEDUPFS_CRASH_POINTS").unwrap_or(10 * POINTS)));
    run(number("DEDUPFS_CRASH_SEED").unwrap_or(0), goal, None).unwrap_or_else(|error| panic!("{error}"));
}

#[test]
#[ignore = "repeats a failure that DEDUPFS_CRASH or DEDUPFS_CRASH_IMAGE names"]
fn reproduce() {
    if let Ok(image) = std::env::var("DEDUPFS_CRASH_IMAGE") {
        inspect::examine_saved(Path::new(&image)).unwrap_or_else(|error| panic!("{image}: {error}"));
        println!("{image} is sound");
        return;
    }
    let text =
        std::env::var("DEDUPFS_CRASH").expect("DEDUPFS_CRASH=SEED:OPERATION:VARIANT or DEDUPFS_CRASH_IMAGE=DIRECTORY");
    let parsed = text.split_once(':').and_then(|(seed, point)| Some((seed.parse().ok()?, Point::parse(point)?)));
    let (seed, point) = parsed.unwrap_or_else(|| panic!("{text:?} is not of the form SEED:OPERATION:VARIANT"));
    let came = again(seed, &point, None).unwrap_or_else(|error| panic!("{error}"));
    assert!(came, "the work has no such point this time: examine the image");
    println!("{text} is sound");
}
