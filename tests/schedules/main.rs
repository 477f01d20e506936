//! Concurrency models: the engine's own sources, compiled here with locks whose every decision shuttle makes.
//!
//! Each model runs some thousands of schedules, at random and with few preemptions at random places (PCT). A deadlock,
//! a lost wake-up or a broken invariant ends the test with the schedule that led there. Each model has canaries: the
//! same model with a step left out. The test must find that; otherwise the model proves nothing.
//!
//! `DEDUPFS_SCHEDULES=1000000` sets the number of schedules of each model.

mod early;
mod hand_over;
mod offloaded;
mod sections_end;
mod sync;

// The sources themselves.
#[path = "../../fuse/src/adapter/offload.rs"]
mod offload;
#[path = "../../fuse/src/adapter/relay.rs"]
mod relay;
#[path = "../../src/content/dedup/sections.rs"]
mod sections;

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Schedules of each model and kind.
const SCHEDULES: usize = 2_000;
/// Preemptions of a PCT schedule.
const DEPTH: usize = 3;

fn schedules() -> usize {
    std::env::var("DEDUPFS_SCHEDULES").ok().and_then(|number| number.parse().ok()).unwrap_or(SCHEDULES)
}

/// Runs the model under all kinds of schedules.
fn explore(model: impl Fn() + Send + Sync + Clone + 'static) {
    shuttle::check_random(model.clone(), schedules());
    shuttle::check_pct(model, schedules(), DEPTH);
}

/// Most explorations of a canary, each with the schedules of a model. The search ends at the first schedule that shows
/// the missing step, and by chance that may come late.
const CANARY_ROUNDS: usize = 50;

/// Checks that a model with a step left out fails.
fn must_fail(what: &str, model: impl Fn() + Send + Sync + Clone + 'static) {
    let is_found = || catch_unwind(AssertUnwindSafe(|| explore(model.clone()))).is_err();
    assert!((0..CANARY_ROUNDS).any(|_| is_found()), "{what}: nobody noticed");
}
