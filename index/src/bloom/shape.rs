//! The shape of filters: bits for each cell from the budget, with a warning if they are few.

use super::bitmap::STORED_BITS_PER_CELL;
use super::columns::COLUMNS_MAX;
use super::group::Group;
use super::hashes::HASHES;

/// The possible folds of stored filters, ascending: to 48, 24, 16, 12, 8, 6, 4, 3, 2, 1 bits for each cell of a full
/// tanker. A tanker that was sealed early, for lack of memory, has proportionally more.
pub(crate) const FOLDS: [u64; 10] = [1, 2, 3, 4, 6, 8, 12, 16, 24, 48];

/// Fewest useful bits for each cell: with fewer a filter says "perhaps" to nearly everything.
const BITS_PER_CELL_MIN: f64 = 6.0;

/// Bits for each cell that suffice where false reads are rare.
const BITS_PER_CELL_ENOUGH: f64 = 24.0;

/// Below this many bits for each cell the index warns.
pub(crate) const BITS_PER_CELL_SCANT: f64 = 20.0;

/// False reads per absent lookup above which filters get more than 24 bits (if there is memory). One bucket read takes
/// as long as asking the array some hundreds of times, so from one in a thousand on false reads are a good part of the
/// cost of an absent lookup.
const FALSE_READS_WANTED: f64 = 0.001;

/// The largest fill of a tanker relative to the capacity of its filter: 0 to 1.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Fullness(f64);

impl Fullness {
    #[cfg(test)]
    pub(crate) const FULL: Self = Self(1.0);

    /// The fullness of tankers of up to `fullest` cells with filters for `cells_per_tanker`.
    pub(crate) fn new(fullest: u32, cells_per_tanker: u32) -> Self {
        Self((f64::from(fullest.max(1)) / f64::from(cells_per_tanker.max(1))).min(1.0))
    }

    pub(crate) fn bits_per_cell(self, fold: u64) -> f64 {
        STORED_BITS_PER_CELL as f64 / fold as f64 / self.0
    }

    /// The rate at which the filter of the fullest tanker says "perhaps" to absent fingerprints (MAD2 section III.B,
    /// Broder and Mitzenmacher): `(1 - e^(-k / bits))^k`.
    pub(crate) fn false_positive_rate(self, fold: u64) -> f64 {
        let hashes = HASHES as f64;
        (1.0 - (-hashes / self.bits_per_cell(fold)).exp()).powf(hashes)
    }

    /// False bucket reads of one lookup of an absent fingerprint: `covered` tankers have filters of this fold, and
    /// `uncovered` ones have none and are always read.
    pub(crate) fn expected_false_reads(self, fold: u64, covered: u64, uncovered: u64) -> f64 {
        covered as f64 * self.false_positive_rate(fold) + uncovered as f64
    }

    /// Whether a fold leaves enough bits to be useful.
    fn allows(self, fold: u64) -> bool {
        self.bits_per_cell(fold) >= BITS_PER_CELL_MIN
    }

    /// The coarsest fold that leaves 24 bits, or 48 if the number of tankers makes that pay.
    pub(crate) fn wanted_fold(self, tankers: u64) -> u64 {
        let leaves = |bits: f64| FOLDS.into_iter().rfind(|fold| self.bits_per_cell(*fold) >= bits).unwrap_or(1);
        let enough = leaves(BITS_PER_CELL_ENOUGH);
        let is_costly = self.expected_false_reads(enough, tankers, 0) > FALSE_READS_WANTED;
        if is_costly { leaves(2.0 * BITS_PER_CELL_ENOUGH) } else { enough }
    }

    /// The factor for the next fold, a multiple of this one; `None` if that would leave too few bits.
    pub(crate) fn next_factor(self, fold: u64) -> Option<u64> {
        let next = FOLDS.into_iter().find(|next| *next > fold && next.is_multiple_of(fold))?;
        self.allows(next).then_some(next / fold)
    }
}

/// Widths of the groups for `tankers`: rows as wide as possible, then a group that is just wide enough for the rest.
pub(crate) fn layout(tankers: u64) -> impl Iterator<Item = u32> {
    let rest = tankers % u64::from(u64::BITS);
    // Columns of a narrow group, a power of two. 64 of them become another word of the wide rows.
    let narrow = if rest == 0 { 0 } else { rest.next_power_of_two() };
    let words = tankers / u64::from(u64::BITS) + narrow / u64::from(u64::BITS);
    let words_max = u64::from(COLUMNS_MAX / u64::BITS);
    let wide =
        (0..words).step_by(words_max as usize).map(move |first| (words - first).min(words_max) as u32 * u64::BITS);
    wide.chain((narrow % u64::from(u64::BITS) > 0).then_some(narrow as u32))
}

/// The next smaller number of columns that a group can have; 0 if there is none.
pub(crate) const fn next_narrower(columns: u32) -> u32 {
    if columns > u64::BITS { columns - u64::BITS } else { columns / 2 }
}

pub(crate) fn bytes_for(stored_bits: u64, fold: u64, tankers: u64) -> u64 {
    layout(tankers).map(|columns| Group::bytes_of(stored_bits / fold, columns)).sum()
}

/// Chooses the fold for opening an index of `tankers`: not finer than they want, and within `limit_bytes`. If nothing
/// fits, the coarsest useful fold.
pub(crate) fn choose(stored_bits: u64, fullness: Fullness, tankers: u64, limit_bytes: u64) -> u64 {
    let wanted = fullness.wanted_fold(tankers);
    let useful = || FOLDS.into_iter().filter(|fold| *fold >= wanted && fullness.allows(*fold));
    let fits = |fold: &u64| bytes_for(stored_bits, *fold, tankers) <= limit_bytes;
    useful().find(fits).or_else(|| useful().next_back()).unwrap_or(wanted)
}
