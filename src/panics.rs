//! Panics that are caught where they happen and become errors: the embedded store asserts what damaged pages break.
//!
//! The process' panic hook runs before a panic is caught, and cannot know that it will be. It asks [`is_caught`]: what is caught
//! here is told as the error that it becomes, and needs no words of its own.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

thread_local! {
    /// Calls of [`catch`] that this thread is in.
    static CATCHING: Cell<u32> = const { Cell::new(0) };
}

/// Leaves a call of [`catch`], however it ends.
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

/// Runs something whose panics are errors of the caller; what it leaves behind must not be used after one.
///
/// # Errors
/// It panicked.
pub fn catch<T>(run: impl FnOnce() -> T) -> std::thread::Result<T> {
    let _inside = Inside::enter();
    catch_unwind(AssertUnwindSafe(run))
}

/// Whether a panic of this thread becomes an error: for panic hooks.
#[must_use]
pub fn is_caught() -> bool {
    // A thread that ends has no depth any more.
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
