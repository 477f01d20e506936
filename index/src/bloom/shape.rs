//! How many bits each cell gets: from the budget, and never silently few.

use super::bitmap::STORED_BITS_PER_CELL;
use super::columns::COLUMNS_MAX;
use super::group::Group;
use super::hashes::HASHES;

/// By how much stored filters can be folded, ascending: 48, 24, 16, 12, 8, 6 bits for each cell. With less a filter says
/// "perhaps" to nearly everything.
pub(crate) const FOLDS: [u64; 6] = [1, 2, 3, 4, 6, 8];

/// Below this many bits for each cell the index warns.
pub(crate) const BITS_PER_CELL_SCANT: f64 = 20.0;

/// More bits than 24 are taken only if without them more than one absent lookup in a thousand would read (and if there is
/// memory): a read of a bucket takes as long as asking the array some hundreds of times, so that from there on false reads are
/// a good part of what an absent lookup costs.
const FALSE_READS_WANTED: f64 = 0.001;

/// Bits for each cell at this fold.
pub(crate) fn bits_per_cell(fold: u64) -> f64 {
    STORED_BITS_PER_CELL as f64 / fold as f64
}

/// The rate at which the filter of a full tanker says "perhaps" to what it does not hold (MAD2 section III.B, Broder and
/// Mitzenmacher): `(1 - e^(-k / bits))^k`.
pub(crate) fn false_positive_rate(fold: u64) -> f64 {
    let hashes = HASHES as f64;
    (1.0 - (-hashes / bits_per_cell(fold)).exp()).powf(hashes)
}

/// False bucket reads that looking up one absent fingerprint costs: `covered` tankers have filters of this fold, and
/// `uncovered` ones have none and are always read.
pub(crate) fn expected_false_reads(fold: u64, covered: u64, uncovered: u64) -> f64 {
    covered as f64 * false_positive_rate(fold) + uncovered as f64
}

/// Groups' columns for `tankers`: rows as wide as possible, then a group that is just wide enough for what is left.
pub(crate) fn layout(tankers: u64) -> impl Iterator<Item = u32> {
    let rest = tankers % u64::from(u64::BITS);
    // Columns of a narrow group, a power of two; with 64 of them it is another word of the rows.
    let narrow = if rest == 0 { 0 } else { rest.next_power_of_two() };
    let words = tankers / u64::from(u64::BITS) + narrow / u64::from(u64::BITS);
    let words_max = u64::from(COLUMNS_MAX / u64::BITS);
    let wide =
        (0..words).step_by(words_max as usize).map(move |first| (words - first).min(words_max) as u32 * u64::BITS);
    wide.chain((narrow % u64::from(u64::BITS) > 0).then_some(narrow as u32))
}

/// The next fewer columns that a group can have; 0 if there are none.
pub(crate) const fn next_narrower(columns: u32) -> u32 {
    if columns > u64::BITS { columns - u64::BITS } else { columns / 2 }
}

/// Bytes of filters for `tankers` of `stored_bits` each at this fold.
pub(crate) fn bytes_for(stored_bits: u64, fold: u64, tankers: u64) -> u64 {
    layout(tankers).map(|columns| Group::bytes_of(stored_bits / fold, columns)).sum()
}

/// The fold to open an index of `tankers` with: 24 bits for each cell, or 48 if there are so many tankers that it pays; and
/// what fits into `limit_bytes`. The coarsest if nothing fits.
pub(crate) fn choose(stored_bits: u64, tankers: u64, limit_bytes: u64) -> u64 {
    let wanted = if expected_false_reads(2, tankers, 0) > FALSE_READS_WANTED { 1 } else { 2 };
    let fits = |fold: &u64| *fold >= wanted && bytes_for(stored_bits, *fold, tankers) <= limit_bytes;
    FOLDS.into_iter().find(fits).unwrap_or(FOLDS[FOLDS.len() - 1])
}

/// By which factor to fold again, if it is possible: the next fold that is a multiple of this one.
pub(crate) fn next_factor(fold: u64) -> Option<u64> {
    FOLDS.into_iter().find(|next| *next > fold && next.is_multiple_of(fold)).map(|next| next / fold)
}
