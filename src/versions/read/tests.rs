//! Trees as the builder makes them are found again, entry by entry; trees that lie are damage.

mod difference;
mod random;
mod tampered;
