//! Trees as the builder makes them are found again, entry by entry; trees that lie are damage.

mod random;
mod tampered;
