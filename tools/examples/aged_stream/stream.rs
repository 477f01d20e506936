//! Streams of backup generations, as dedupv1's tech report makes them (section 4.1): runs of unique, internally redundant
//! and temporally redundant data, one after the other, their lengths and kinds drawn at random.
//!
//! All content comes from one endless random *tape*; a generation is a list of ranges of it. New data takes the next
//! unused range, a repetition takes ranges that were used before. So any generation can be made from the seed alone,
//! byte for byte, without keeping the ones before.

use std::io::{self, Write};

/// What a run of data is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Never seen before.
    Unique,
    /// Seen earlier in this generation.
    Internal,
    /// Seen in the previous generation, in its order.
    Temporal,
}

/// Shares of a generation's bytes and mean lengths of runs.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Pattern {
    /// Share of internally redundant bytes, 0 to 1. The report's traffic: 0.325.
    pub internal: f64,
    /// Share of redundant bytes in all from the second generation on, 0 to 1. The report's traffic: 0.976.
    pub redundant: f64,
    /// Mean length of a unique run in bytes.
    pub unique_run_bytes: f64,
    /// Mean length of an internally redundant run in bytes.
    pub internal_run_bytes: f64,
    /// Mean length of a temporally redundant run in bytes.
    pub temporal_run_bytes: f64,
    /// Shape of the log-normal distribution of lengths: the standard deviation of their logarithm.
    pub sigma: f64,
}

impl Default for Pattern {
    /// The shares of the report. It does not print its distributions: lengths are ours.
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

/// A range of the tape.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Range {
    /// Where it begins.
    pub tape: u64,
    /// Its length in bytes, never 0.
    pub len_bytes: u64,
}

/// `SplitMix64`: small, and the same everywhere.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    /// From 0 to 1, both excluded.
    fn unit(&mut self) -> f64 {
        ((self.next() >> 11) as f64 + 0.5) / (1_u64 << 53) as f64
    }

    fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    /// Log-normal with this mean: Box and Muller's normal number, exponentiated.
    fn length(&mut self, mean: f64, sigma: f64) -> u64 {
        let normal = (-2.0 * self.unit().ln()).sqrt() * (std::f64::consts::TAU * self.unit()).cos();
        let length = mean * (sigma * normal - sigma * sigma / 2.0).exp();
        // A run shorter than this is noise within a chunk.
        (length as u64).max(64)
    }
}

/// One generation: its content as ranges of the tape, in order.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Generation {
    ranges: Vec<Range>,
    /// Where each range ends in the stream.
    ends: Vec<u64>,
}

impl Generation {
    /// Its length in bytes.
    pub fn len_bytes(&self) -> u64 {
        self.ends.last().copied().unwrap_or(0)
    }

    /// Its content.
    pub fn ranges(&self) -> &[Range] {
        &self.ranges
    }

    fn push(&mut self, range: Range) {
        let end = self.len_bytes() + range.len_bytes;
        match (self.ranges.last_mut(), self.ends.last_mut()) {
            (Some(last), Some(last_end)) if last.tape + last.len_bytes == range.tape => {
                last.len_bytes += range.len_bytes;
                *last_end = end;
            }
            _ => {
                self.ranges.push(range);
                self.ends.push(end);
            }
        }
    }

    /// The ranges behind `len_bytes` of the stream from `start` on, cut at its end.
    fn slice(&self, start: u64, len_bytes: u64) -> Vec<Range> {
        let end = (start + len_bytes).min(self.len_bytes());
        let mut at = start;
        let mut found = Vec::new();
        let first = self.ends.partition_point(|&range_end| range_end <= start);
        for (range, &range_end) in self.ranges.iter().zip(&self.ends).skip(first) {
            if at >= end {
                break;
            }
            let into = at - (range_end - range.len_bytes);
            let taken = (range.len_bytes - into).min(end - at);
            found.push(Range { tape: range.tape + into, len_bytes: taken });
            at += taken;
        }
        found
    }
}

/// Makes generation number `number` (from 1) of `size_bytes` bytes.
pub fn generation(seed: u64, number: u32, size_bytes: u64, pattern: &Pattern) -> Generation {
    let mut random = Random(seed);
    let mut tape = 0;
    let mut current = Generation::default();
    for _ in 0..number {
        let previous = std::mem::take(&mut current);
        current = next_generation(&previous, &mut random, &mut tape, size_bytes, pattern);
    }
    current
}

fn next_generation(
    previous: &Generation,
    random: &mut Random,
    tape: &mut u64,
    size_bytes: u64,
    pattern: &Pattern,
) -> Generation {
    let temporal = if previous.ranges.is_empty() { 0.0 } else { (pattern.redundant - pattern.internal).max(0.0) };
    let unique = 1.0 - pattern.internal - temporal;
    // Kinds are drawn so often that their shares of the bytes come out.
    let weights = [
        (Kind::Unique, unique / pattern.unique_run_bytes),
        (Kind::Internal, pattern.internal / pattern.internal_run_bytes),
        (Kind::Temporal, temporal / pattern.temporal_run_bytes),
    ];
    let sum: f64 = weights.iter().map(|(_, weight)| weight).sum();
    let mut made = Generation::default();
    // How far the previous generation has been followed.
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
                // It stands in place of something old.
                cursor += len_bytes;
            }
        }
    }
    made
}

/// Writes a generation's bytes.
///
/// # Errors
/// Those of `out`.
pub fn write(seed: u64, generation: &Generation, out: &mut dyn Write) -> io::Result<()> {
    let mut tape = blake3::Hasher::new().update(b"aged stream").update(&seed.to_le_bytes()).finalize_xof();
    let mut buffer = vec![0; 1 << 18];
    for range in generation.ranges() {
        tape.set_position(range.tape);
        let mut left = range.len_bytes;
        while left > 0 {
            let piece = left.min(buffer.len() as u64) as usize;
            let (bytes, _) = buffer.split_at_mut(piece);
            tape.fill(bytes);
            out.write_all(bytes)?;
            left -= piece as u64;
        }
    }
    Ok(())
}
