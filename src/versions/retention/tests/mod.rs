//! Worked examples and properties.

#![expect(clippy::unwrap_used, reason = "tests")]

mod any_rules;
mod text_and_bytes;
