//! Catching panics and turning them into errors: the embedded store asserts on damaged pages.
//!
//! The process' panic hook runs before a panic is caught, and cannot know of the catch. It asks [`is_caught`]: a panic
//! caught here is reported as an error later, so the hook stays silent.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

thread_local! {
    /// Number of calls of [`catch`] that this thread is in.
    static CATCHING: Cell<u32> = const { Cell::new(0) };
}

/// Leaves a call of [`catch`] when dropped, on every path.
struct Inside;

impl Inside {
    fn enter() -> Self {
        CATCHING.with(|depth| depth.set(depth.get() + 1));
        Self
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        CATCHING.with(|depth| depth.set(depth.get() - 1));
    }
}

/// Runs a function and returns a panic as an error. State that a panicking function leaves must not be used.
///
/// # Errors
/// The function panicked.
pub fn catch<T>(run: impl FnOnce() -> T) -> std::thread::Result<T> {
    let _inside = Inside::enter();
    catch_unwind(AssertUnwindSafe(run))
}

/// Whether a panic of this thread becomes an error; for panic hooks.
#[must_use]
pub fn is_caught() -> bool {
    // A thread that is ending has no depth any more.
    CATCHING.try_with(|depth| depth.get() > 0).unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_runs_inside_is_caught() {
        assert!(!is_caught());
        let seen = catch(|| {
            let inner = catch(|| assert!(!is_caught(), "expected"));
            (is_caught(), inner.is_err())
        });
        assert_eq!(seen.ok(), Some((true, true)));
        assert!(!is_caught());
    }
}
