//! Retention: which versions of a series are kept, and why. No I/O, no clock: the caller gives the versions, the time and
//! the time zone.
//!
//! 1. [`Rules`] say what to keep, in the words of restic's `forget`. They are stored in the record of a series.
//! 2. [`decide()`] gives each version a [`Decision`] with all its [`Reason`]s.
//! 3. [`removable_for_space`] lists the kept versions that may go too, for [`Rules::free_until`].
//!
//! Invariants, for any rules and any clock:
//! - The last good version stays, so does one that is being written, one that is locked, and one that is damaged.
//! - An incomplete version goes only if a later one is complete.
//! - In doubt a version stays: rules that say nothing keep everything, and times that cannot be right remove nothing else.
//! - A rule more never removes more. Deciding again over the kept versions keeps them.
//!
//! Cost: for each rule some *n* log *n* steps; some 200 bytes of memory a version.

mod count;
mod decide;
mod encoding;
mod percent;
mod period;
mod reason;
mod rules;
mod span;
#[cfg(test)]
mod tests;

pub use count::Count;
pub use decide::{Candidate, Decision, State, decide, removable_for_space};
pub use percent::Percent;
pub use period::{Period, Unit};
pub use reason::Reason;
pub use rules::{RelativeTo, Rules};
pub use span::Span;
