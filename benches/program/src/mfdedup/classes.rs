//! The four kinds of chunks of a version (MFDedup, section 3.3, Figure 2), and the sizes of indexes.

use std::collections::{HashSet, VecDeque};
use std::ops::AddAssign;

use super::trace::Trace;

/// Bytes of an entry of a fingerprint table, as the paper counts them (section 4.2).
const ENTRY_BYTES: u64 = 20;

/// Chunks and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amount {
    /// Chunks.
    pub chunks: u64,
    /// Bytes of them.
    pub bytes: u64,
}

impl AddAssign<u64> for Amount {
    /// Adds a chunk of so many bytes.
    fn add_assign(&mut self, len_bytes: u64) {
        self.chunks += 1;
        self.bytes += len_bytes;
    }
}

/// The chunks of all versions by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Classes {
    /// Those that this version has had before.
    pub internal: Amount,
    /// Those of the version before, but not internal.
    pub adjacent: Amount,
    /// Those of older versions only.
    pub skip: Amount,
    /// Those that are new.
    pub unique: Amount,
}

impl Classes {
    /// Counts the chunks of a trace.
    pub fn of(trace: &Trace) -> Self {
        let mut classes = Self::default();
        let mut last_version = vec![None; trace.lens.len()];
        for (number, chunks) in trace.versions.iter().enumerate() {
            for chunk in chunks {
                let seen = last_version[*chunk as usize].replace(number);
                let class = match seen {
                    Some(seen) if seen == number => &mut classes.internal,
                    Some(seen) if seen + 1 == number => &mut classes.adjacent,
                    Some(_) => &mut classes.skip,
                    None => &mut classes.unique,
                };
                *class += trace.len_bytes(*chunk);
            }
        }
        classes
    }

    /// Returns all kinds, in the order of the paper.
    pub const fn all(&self) -> [Amount; 4] {
        [self.internal, self.adjacent, self.skip, self.unique]
    }
}

/// Returns the most bytes that fingerprint tables take: one for each of the last two versions, and one for all versions kept.
pub fn index_bytes(trace: &Trace, kept: usize) -> [u64; 2] {
    let mut tables: VecDeque<HashSet<u32>> = VecDeque::new();
    let mut versions_of = vec![0_u32; trace.lens.len()];
    let (mut all, mut most) = (0_u64, [0; 2]);
    for chunks in &trace.versions {
        let table: HashSet<u32> = chunks.iter().copied().collect();
        for chunk in &table {
            all += u64::from(versions_of[*chunk as usize] == 0);
            versions_of[*chunk as usize] += 1;
        }
        let two = table.len() + tables.back().map_or(0, HashSet::len);
        tables.push_back(table);
        if tables.len() > kept {
            for chunk in tables.pop_front().unwrap_or_default() {
                versions_of[chunk as usize] -= 1;
                all -= u64::from(versions_of[chunk as usize] == 0);
            }
        }
        most = [most[0].max(two as u64 * ENTRY_BYTES), most[1].max(all * ENTRY_BYTES)];
    }
    most
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trace() -> Trace {
        Trace { lens: vec![1, 10, 100, 1000], versions: vec![vec![0, 0, 1], vec![1, 2], vec![0, 1, 1, 3], vec![3]] }
    }

    #[test]
    fn a_chunk_is_internal_before_it_is_adjacent_and_adjacent_before_it_skips() {
        let classes = Classes::of(&trace());
        // 0 again in version 1; 1 again in version 3.
        assert_eq!(classes.internal, Amount { chunks: 2, bytes: 11 });
        // 1 in versions 2 and 3; 3 in version 4.
        assert_eq!(classes.adjacent, Amount { chunks: 3, bytes: 1020 });
        // 0 in version 3.
        assert_eq!(classes.skip, Amount { chunks: 1, bytes: 1 });
        assert_eq!(classes.unique, Amount { chunks: 4, bytes: 1111 });
    }

    #[test]
    fn the_index_of_two_versions_has_a_chunk_twice_and_that_of_all_has_it_once() {
        // Tables have 2, 2, 3 and 1 chunks; of three versions that are kept, the first three have 4 distinct chunks.
        assert_eq!(index_bytes(&trace(), 3), [5 * 20, 4 * 20]);
        assert_eq!(index_bytes(&trace(), 1), [5 * 20, 3 * 20]);
    }
}
