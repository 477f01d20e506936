//! A world: threads are tasks of one thread of the system, and a seed decides everything that is not the program.
//!
//! [`run()`] runs one *life*: from a start to an orderly end, or to [`kill`]. `shuttle` carries the tasks and switches
//! between them; this module says which goes on ([`order`]), keeps the time, and builds the primitives on top.

mod order;
pub mod primitives;
mod state;
#[cfg(test)]
mod tests;
mod wait;

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use shuttle::{Config, FailurePersistence, MaxSteps, Runner};

use order::Order;
pub use state::{
    Habits, hash, is_atomic, is_planted, kill, note, now, pass, plant, point, random, set_clock_error, threads, within,
};

/// Stack of a task, in bytes. The engine's threads have 2 MiB; only touched pages take memory.
const STACK_BYTES: usize = 1 << 20;

/// The end of a life.
#[derive(Debug)]
pub enum End {
    /// The main task returned, and so did all others.
    Ended,
    /// [`kill`] was called: memory is gone, and no destructor ran.
    Killed,
    /// A task panicked, or all wait for each other; with the reason.
    Failed(String),
}

/// Runs `life` and everything that it spawns until its end.
///
/// # Panics
/// If it is called in a world.
pub fn run(seed: u64, habits: Habits, life: impl FnOnce() + Send + 'static) -> End {
    assert!(!state::in_world(), "a world inside of a world");
    let mut config = Config::new();
    config.stack_size = STACK_BYTES;
    config.max_steps = MaxSteps::None;
    config.failure_persistence = FailurePersistence::None;
    config.silence_warnings = true;
    config.ungraceful_shutdown_config.immediately_return_on_panic = true;
    keep_words_of_panics();
    state::begin(seed, habits);
    let life = std::sync::Mutex::new(Some(life));
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        Runner::new(Order::new(), config).run(move || {
            let life = life.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
            let timekeeper = shuttle::thread::spawn(wait::keep_time);
            assert_eq!(usize::from(timekeeper.thread().id()), order::TIMEKEEPER, "the first task but the main one");
            if let Some(life) = life {
                life();
            }
            state::set_returned();
        })
    }));
    let was_killed = state::end();
    match outcome {
        _ if was_killed => End::Killed,
        Ok(_) => End::Ended,
        Err(reason) => End::Failed(state::take_reason().unwrap_or_else(|| text(&*reason))),
    }
}

/// Keeps where and why a task panicked last: a panic that the engine does not catch ends the world.
fn keep_words_of_panics() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        std::panic::set_hook(Box::new(|panic| {
            let place = panic.location().map(ToString::to_string).unwrap_or_default();
            let words = format!("{} ({place})", text(panic.payload()));
            // 0 is how others switch it off.
            if !state::in_world() {
                eprintln!("{words}");
            }
            if std::env::var_os("RUST_BACKTRACE").is_some_and(|text| text != "0") {
                eprintln!("{words}\n{}", std::backtrace::Backtrace::force_capture());
            }
            state::give_reason(words);
        }));
    });
}

fn text(reason: &(dyn Any + Send)) -> String {
    let text = reason.downcast_ref::<String>().cloned();
    text.or_else(|| reason.downcast_ref::<&str>().map(|text| (*text).to_owned()))
        .unwrap_or_else(|| "a panic without a message".to_owned())
}
