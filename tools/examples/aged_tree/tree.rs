//! Trees of files as backups of a file server see them, generation after generation: files are created, deleted and modified by given
//! shares (`MFDedup` section 5.1's SYN). The files, and the places in them, are drawn evenly. So garbage spreads over everything that was
//! ever stored, which is the hard case for reclaiming. With a share of hot files, these take four fifths of the changes.
//!
//! 1. Deleted: the given share of the previous generation's files.
//! 2. Modified: the given share of the others. A share of the bytes of each changes, in places of random length. Half of these are
//!    replacements, a quarter are insertions and a quarter removals, so the bytes after them move.
//! 3. Created: new files with new content.
//!
//! A tree is a list of contents (`tape.rs`), so each is made from the seed alone. The bytes of the tape come from an alphabet of 16
//! letters, and so compress to half.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::PathBuf;

use super::tape::{self, Content, Random, Range};

const ALPHABET: [u8; 16] = *b"etaoinshrdlucmf\n";

/// Files of one directory. Their numbers are consecutive.
const FILES_OF_A_DIRECTORY: u32 = 64;

/// The shape of a tree, and its changes from one generation to the next. Shares are from 0 to 1.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Pattern {
    pub(crate) files: u32,
    pub(crate) size_bytes: u64,
    /// New files, as a share of those of the first generation.
    pub(crate) created: f64,
    pub(crate) deleted: f64,
    pub(crate) modified: f64,
    pub(crate) changed: f64,
    pub(crate) place_bytes: f64,
    /// Files that take [`HOT_SHARE`] of the modifications; 0: all alike.
    pub(crate) hot: f64,
    /// Shape of the log-normal distributions of lengths: the standard deviation of their logarithm.
    pub(crate) sigma: f64,
}

impl Default for Pattern {
    /// The paper prints none of SYN's shares, so these are ours.
    fn default() -> Self {
        Self {
            files: 500,
            size_bytes: 256 << 20,
            created: 0.01,
            deleted: 0.01,
            modified: 0.10,
            changed: 0.05,
            place_bytes: 4096.0,
            hot: 0.0,
            sigma: 1.0,
        }
    }
}

/// Share of the modifications that hot files take.
const HOT_SHARE: f64 = 0.8;

impl Pattern {
    /// The chance of a file to be modified. Hot files are spread evenly over all numbers.
    fn modified(&self, number: u32) -> f64 {
        let Self { modified, hot, .. } = *self;
        if hot <= 0.0 {
            return modified;
        }
        let is_hot = (f64::from(number) * hot).fract() < hot;
        if is_hot { modified * HOT_SHARE / hot } else { modified * (1.0 - HOT_SHARE) / (1.0 - hot).max(f64::EPSILON) }
    }
}

/// One generation: contents by the files' numbers. A number is never used again.
pub(crate) type Tree = BTreeMap<u32, Content>;

pub(crate) fn generation(seed: u64, number: u32, pattern: &Pattern) -> Tree {
    let mut series = Series { random: Random(seed), tape_bytes: 0, files_made: 0, pattern };
    let mut tree = series.first();
    for _ in 1..number {
        tree = series.next(&tree);
    }
    tree
}

pub(crate) fn path(number: u32) -> PathBuf {
    format!("d{:05}/f{number:07}", number / FILES_OF_A_DIRECTORY).into()
}

/// Writes the bytes of a content of this seed's series.
pub(crate) fn write(seed: u64, content: &Content, out: &mut dyn Write) -> io::Result<()> {
    let mut dense = blake3::Hasher::new().update(b"aged tree").update(&seed.to_le_bytes()).finalize_xof();
    let mut halves = Vec::new();
    let mut fill = |position: u64, bytes: &mut [u8]| {
        // A random byte is two letters. The first letter wanted may be the second of its byte.
        let skipped = (position % 2) as usize;
        halves.resize((skipped + bytes.len()).div_ceil(2), 0);
        dense.set_position(position / 2);
        dense.fill(&mut halves);
        let letters = halves.iter().flat_map(|byte| [byte >> 4, byte & 15]).skip(skipped);
        for (byte, letter) in bytes.iter_mut().zip(letters) {
            *byte = ALPHABET[usize::from(letter)];
        }
    };
    tape::write(&mut fill, content, out)
}

struct Series<'a> {
    random: Random,
    tape_bytes: u64,
    files_made: u32,
    pattern: &'a Pattern,
}

impl Series<'_> {
    /// Makes the first tree. Its files have random lengths that add up to the requested size.
    fn first(&mut self) -> Tree {
        let Pattern { files, size_bytes, sigma, .. } = *self.pattern;
        let weights: Vec<u64> = (0..files).map(|_| self.random.length(1e6, sigma)).collect();
        let sum: u128 = weights.iter().map(|weight| u128::from(*weight)).sum();
        let mut weight_before = 0;
        let mut tree = Tree::new();
        for weight in weights {
            let start = u128::from(size_bytes) * weight_before / sum;
            weight_before += u128::from(weight);
            let end = u128::from(size_bytes) * weight_before / sum;
            self.create(&mut tree, (end - start) as u64);
        }
        tree
    }

    fn next(&mut self, previous: &Tree) -> Tree {
        let Pattern { files, size_bytes, created, deleted, sigma, .. } = *self.pattern;
        let mut tree = Tree::new();
        for (number, content) in previous {
            if self.random.unit() < deleted {
                continue;
            }
            let made = if self.random.unit() < self.pattern.modified(*number) {
                self.modify(content)
            } else {
                content.clone()
            };
            tree.insert(*number, made);
        }
        for _ in 0..files {
            if self.random.unit() < created {
                let len_bytes = self.random.length(size_bytes as f64 / f64::from(files), sigma);
                self.create(&mut tree, len_bytes);
            }
        }
        tree
    }

    fn create(&mut self, tree: &mut Tree, len_bytes: u64) {
        let mut content = Content::default();
        if len_bytes > 0 {
            content.push(self.fresh(len_bytes));
        }
        tree.insert(self.files_made, content);
        self.files_made += 1;
    }

    fn fresh(&mut self, len_bytes: u64) -> Range {
        let tape = self.tape_bytes;
        self.tape_bytes += len_bytes;
        Range { tape, len_bytes }
    }

    fn modify(&mut self, content: &Content) -> Content {
        let Pattern { changed, place_bytes, sigma, .. } = *self.pattern;
        let len_bytes = content.len_bytes();
        // At least one place, or files smaller than a place would never change.
        let places = (changed * len_bytes as f64 / place_bytes).round().max(1.0) as u64;
        let mut starts: Vec<u64> = (0..places).map(|_| self.random.below(len_bytes.max(1))).collect();
        starts.sort_unstable();
        let mut made = Content::default();
        let mut at = 0;
        for start in starts {
            // The place before may have removed bytes up to here.
            let start = start.max(at);
            content.slice(at, start - at).into_iter().for_each(|range| made.push(range));
            let place = self.random.length(place_bytes, sigma);
            let (is_written, is_removed) = match self.random.below(4) {
                0 => (true, false),
                1 => (false, true),
                _ => (true, true),
            };
            if is_written {
                made.push(self.fresh(place));
            }
            at = if is_removed { (start + place).min(len_bytes) } else { start };
        }
        content.slice(at, len_bytes - at).into_iter().for_each(|range| made.push(range));
        made
    }
}
