//! The material of synthetic backups: one endless random *tape*, and content as a list of ranges of it. New data takes the next unused
//! range, repeated data takes ranges that were used before. So a whole series can be planned without a byte of it, and any part can be
//! written alone.

use std::io::{self, Write};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Range {
    pub(crate) tape: u64,
    /// Its length in bytes, never 0.
    pub(crate) len_bytes: u64,
}

/// `SplitMix64`: small, and the same on every machine.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    /// Returns a number between 0 and 1, both excluded.
    pub(crate) fn unit(&mut self) -> f64 {
        ((self.next() >> 11) as f64 + 0.5) / (1_u64 << 53) as f64
    }

    /// Returns a number from 0 to `bound`, which is excluded.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    /// Returns a log-normal number with this mean: Box and Muller's normal number, exponentiated. `sigma` is the standard deviation of the
    /// logarithm.
    pub(crate) fn length(&mut self, mean: f64, sigma: f64) -> u64 {
        let normal = (-2.0 * self.unit().ln()).sqrt() * (std::f64::consts::TAU * self.unit()).cos();
        let length = mean * (sigma * normal - sigma * sigma / 2.0).exp();
        // A run shorter than this is noise within a chunk.
        (length as u64).max(64)
    }
}

#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub(crate) struct Content {
    ranges: Vec<Range>,
    ends: Vec<u64>,
}

impl Content {
    pub(crate) fn len_bytes(&self) -> u64 {
        self.ends.last().copied().unwrap_or(0)
    }

    /// The ranges. Two neighbours never continue each other.
    pub(crate) fn ranges(&self) -> &[Range] {
        &self.ranges
    }

    pub(crate) fn push(&mut self, range: Range) {
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

    /// Returns the ranges that hold `len_bytes` of the content from `start` on, cut at its end.
    pub(crate) fn slice(&self, start: u64, len_bytes: u64) -> Vec<Range> {
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

/// Writes the bytes of `content`. `fill` gives those of the tape from a position on.
pub(crate) fn write(fill: &mut dyn FnMut(u64, &mut [u8]), content: &Content, out: &mut dyn Write) -> io::Result<()> {
    let mut buffer = vec![0; 1 << 18];
    for range in content.ranges() {
        let mut written = 0;
        while written < range.len_bytes {
            let piece = (range.len_bytes - written).min(buffer.len() as u64) as usize;
            let (bytes, _) = buffer.split_at_mut(piece);
            fill(range.tape + written, bytes);
            out.write_all(bytes)?;
            written += piece as u64;
        }
    }
    Ok(())
}
