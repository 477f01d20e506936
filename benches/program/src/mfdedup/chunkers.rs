//! The chunkers of a trace: those of pools, and the paper's.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use dedupfs_content::{Chunker, chunker};
use dedupfs_store::superblock::{ChunkerKind, PoolProperties};
use fastcdc::v2020::{Normalization, cut, select_masks};

/// The choice of a chunker, as a user gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chunking {
    /// A pool's chunker with the usual average.
    Pool(ChunkerKind),
    /// [`Paper`].
    Paper,
}

impl FromStr for Chunking {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let pool = || text.parse().map(Self::Pool).map_err(|_| "it must be mincdc, fastcdc or paper".to_owned());
        if text == "paper" { Ok(Self::Paper) } else { pool() }
    }
}

impl fmt::Display for Chunking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pool(kind) => kind.fmt(f),
            Self::Paper => f.write_str("FastCDC of 2, 8 and 64 KiB"),
        }
    }
}

impl Chunking {
    /// Makes the chunker.
    pub fn chunker(self) -> Arc<dyn Chunker> {
        match self {
            Self::Pool(kind) => chunker(kind, PoolProperties::default().chunk_size_bytes),
            Self::Paper => Arc::new(Paper),
        }
    }
}

/// FastCDC with the lengths of MFDedup, section 5.1: 2 KiB at least, 8 KiB in the mean, 64 KiB at most.
struct Paper;

const MIN_BYTES: usize = 2 << 10;
const CENTER_BYTES: usize = 8 << 10;
const MAX_BYTES: usize = 64 << 10;

impl Chunker for Paper {
    fn max_bytes(&self) -> usize {
        MAX_BYTES
    }

    fn min_bytes(&self) -> usize {
        MIN_BYTES
    }

    fn average_bytes(&self) -> usize {
        CENTER_BYTES
    }

    fn next_cut(&self, data: &[u8], at_end: bool) -> Option<usize> {
        if data.is_empty() || (data.len() < MAX_BYTES && !at_end) {
            return None;
        }
        let (small, large) = select_masks(CENTER_BYTES, Normalization::Level2);
        Some(cut(data, MIN_BYTES, CENTER_BYTES, MAX_BYTES, small, large, small << 1, large << 1).1)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;
    use crate::data::Random;

    #[test]
    fn chunks_of_the_paper_have_its_lengths() {
        let mut data = vec![0; 16 << 20];
        let _ = Random::new("paper").read(&mut data);
        let (mut at, mut lens) = (0, Vec::new());
        while let Some(len) = Paper.next_cut(&data[at..], true) {
            lens.push(len);
            at += len;
        }
        assert_eq!(at, data.len());
        lens.pop();
        assert!(lens.iter().all(|len| (MIN_BYTES..=MAX_BYTES).contains(len)));
        let mean = at / lens.len();
        assert!((7 << 10..11 << 10).contains(&mean), "{mean}");
        assert_eq!(Paper.next_cut(&data[..MAX_BYTES - 1], false), None);
    }

    #[test]
    fn names_choose_chunkers() {
        assert_eq!("paper".parse(), Ok(Chunking::Paper));
        assert_eq!("fastcdc".parse(), Ok(Chunking::Pool(ChunkerKind::FastCdc)));
        assert!("rabin".parse::<Chunking>().is_err());
    }
}
