//! Streams of backup generations, made as in dedupv1's tech report (section 4.1): runs of unique, internally redundant and temporally
//! redundant data, one after the other, with random lengths and kinds.
//!
//! A generation is a list of ranges of the tape (`tape.rs`). So each can be made from the seed alone, byte for byte, without keeping the
//! ones before.

use std::io::{self, Write};

use super::tape::{self, Content, Random, Range};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// Never seen before.
    Unique,
    /// Seen earlier in this generation.
    Internal,
    /// Seen in the previous generation, in its order.
    Temporal,
}

/// The shares of a generation's bytes, and mean lengths of runs.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Pattern {
    /// Share of internally redundant bytes, 0 to 1. The report's traffic: 0.325.
    pub(crate) internal: f64,
    /// Share of all redundant bytes from the second generation on, 0 to 1. The report's traffic: 0.976.
    pub(crate) redundant: f64,
    pub(crate) unique_run_bytes: f64,
    pub(crate) internal_run_bytes: f64,
    pub(crate) temporal_run_bytes: f64,
    /// Shape of the log-normal distribution of lengths: the standard deviation of their logarithm.
    pub(crate) sigma: f64,
}

impl Default for Pattern {
    /// The shares of the report. It does not print its distributions, so the lengths are ours.
    fn default() -> Self {
        Self {
            internal: 0.325,
            redundant: 0.976,
            unique_run_bytes: 48e3,
            internal_run_bytes: 96e3,
            temporal_run_bytes: 768e3,
            sigma: 1.5,
        }
    }
}

/// Makes generation number `number` (from 1) of `size_bytes` bytes.
pub(crate) fn generation(seed: u64, number: u32, size_bytes: u64, pattern: &Pattern) -> Content {
    let mut random = Random(seed);
    let mut tape = 0;
    let mut current = Content::default();
    for _ in 0..number {
        let previous = std::mem::take(&mut current);
        current = next_generation(&previous, &mut random, &mut tape, size_bytes, pattern);
    }
    current
}

fn next_generation(
    previous: &Content,
    random: &mut Random,
    tape: &mut u64,
    size_bytes: u64,
    pattern: &Pattern,
) -> Content {
    let temporal = if previous.ranges().is_empty() { 0.0 } else { (pattern.redundant - pattern.internal).max(0.0) };
    let unique = 1.0 - pattern.internal - temporal;
    // Weights by which the kinds get their shares of the bytes.
    let weights = [
        (Kind::Unique, unique / pattern.unique_run_bytes),
        (Kind::Internal, pattern.internal / pattern.internal_run_bytes),
        (Kind::Temporal, temporal / pattern.temporal_run_bytes),
    ];
    let sum: f64 = weights.iter().map(|(_, weight)| weight).sum();
    let mut made = Content::default();
    // Position up to which the previous generation has been followed.
    let mut cursor = 0;
    while made.len_bytes() < size_bytes {
        let left = size_bytes - made.len_bytes();
        let mut draw = random.unit() * sum;
        let kind = weights.iter().find(|(_, weight)| {
            draw -= weight;
            draw < 0.0
        });
        match kind.map_or(Kind::Unique, |(kind, _)| *kind) {
            Kind::Internal if made.len_bytes() > 0 => {
                let len_bytes = random.length(pattern.internal_run_bytes, pattern.sigma).min(left);
                let start = random.below(made.len_bytes());
                made.slice(start, len_bytes).into_iter().for_each(|range| made.push(range));
            }
            Kind::Temporal => {
                let len_bytes = random.length(pattern.temporal_run_bytes, pattern.sigma).min(left);
                if cursor >= previous.len_bytes() {
                    cursor = 0;
                }
                let copied = previous.slice(cursor, len_bytes);
                cursor += copied.iter().map(|range| range.len_bytes).sum::<u64>();
                copied.into_iter().for_each(|range| made.push(range));
            }
            Kind::Unique | Kind::Internal => {
                let len_bytes = random.length(pattern.unique_run_bytes, pattern.sigma).min(left);
                made.push(Range { tape: *tape, len_bytes });
                *tape += len_bytes;
                // The new run replaces old content of this length.
                cursor += len_bytes;
            }
        }
    }
    made
}

pub(crate) fn write(seed: u64, generation: &Content, out: &mut dyn Write) -> io::Result<()> {
    let mut tape = blake3::Hasher::new().update(b"aged stream").update(&seed.to_le_bytes()).finalize_xof();
    let mut fill = |position, bytes: &mut [u8]| {
        tape.set_position(position);
        tape.fill(bytes);
    };
    tape::write(&mut fill, generation, out)
}
