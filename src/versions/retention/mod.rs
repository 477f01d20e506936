//! Retention: which versions of a series are kept.
//!
//! [`Rules`] say what to keep, in the words of restic's `forget`. They are stored in the record of a series.

mod count;
mod encoding;
mod percent;
mod rules;
mod span;
#[cfg(test)]
mod tests;

pub use count::Count;
pub use percent::Percent;
pub use rules::{RelativeTo, Rules};
pub use span::Span;
