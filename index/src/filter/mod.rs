//! The filter chain: decides for a batch of fingerprints which are already stored (dedupv1 tech report section 3.2).
//!
//! Filters are asked in order, cheapest first. Each looks only at undecided entries and may give a [`Verdict`]; a final
//! one decides its entry.
//!
//! A found fingerprint is `Existing`: the index is exact, and two contents with one fingerprint are less likely than
//! any other failure. A chain that ends with [`CompareFilter`] does not rely on this: there a found fingerprint is a
//! strong maybe, as in dedupv1, and the stored bytes decide.

mod bloom;
mod chain;
mod compare;
mod locality;
mod memory;
mod plan;
mod sealed;

use dedupfs_store::profile::Component;
use dedupfs_store::{Fingerprint, Result};

use bloom::BloomFilter;
pub use chain::{FilterChain, FilterStats};
pub use compare::{CompareFilter, Compared, StoredChunks};
use locality::LocalityFilter;
pub(crate) use memory::OpenFilter;
#[cfg(test)]
pub(crate) use plan::FilterKind;
pub use plan::{FilterPlan, FilterPlanError};
pub(crate) use sealed::SealedFilter;

use crate::cell::Location;
pub use crate::sealed::Reads;
use crate::sealed::reads_of_this_thread;

/// The knowledge about an entry.
///
/// ```text
/// Undecided --> WeakMaybe --> StrongMaybe --> Existing
///     \_____________\______________\________> NonExisting     (any step may be left out; the two at the right are final)
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Verdict {
    /// No filter has answered.
    #[default]
    Undecided,
    /// The chunk is stored at this location. Final.
    Existing(Location),
    /// The built-in fingerprint of zeros: never stored and always present. Final.
    BuiltIn,
    /// The chunk is stored at this location with high probability. Only filters that can prove it help now.
    StrongMaybe(Location),
    /// The chunk may be stored.
    WeakMaybe,
    /// The chunk is not stored. Final.
    NonExisting,
}

impl Verdict {
    /// Whether no further filter is needed.
    pub(crate) const fn is_final(&self) -> bool {
        matches!(self, Self::Existing(_) | Self::BuiltIn | Self::NonExisting)
    }
}

/// A batch of entries, with the knowledge about each.
#[derive(Clone, Debug)]
pub struct Query<'a> {
    /// The fingerprints.
    pub fingerprints: &'a [Fingerprint],
    /// Lengths of the chunks in bytes.
    pub lengths: &'a [u32],
    /// One verdict for each entry.
    pub verdicts: Vec<Verdict>,
    /// Bytes of each chunk, for a chain that compares.
    data: Option<&'a [&'a [u8]]>,
    /// Whether a comparison met a damaged stored chunk.
    damage_seen: bool,
}

impl<'a> Query<'a> {
    /// Makes a query with all entries undecided.
    /// Panics if the slices differ in length.
    pub fn new(fingerprints: &'a [Fingerprint], lengths: &'a [u32]) -> Self {
        assert_eq!(fingerprints.len(), lengths.len(), "each fingerprint has a length");
        Self {
            fingerprints,
            lengths,
            verdicts: vec![Verdict::Undecided; fingerprints.len()],
            data: None,
            damage_seen: false,
        }
    }

    /// As [`new`](Self::new), with the bytes of each chunk: from now on a found fingerprint is only a strong maybe.
    /// Panics if the slices differ in length.
    pub(crate) fn with_data(fingerprints: &'a [Fingerprint], lengths: &'a [u32], data: &'a [&'a [u8]]) -> Self {
        assert_eq!(fingerprints.len(), data.len(), "each fingerprint has its bytes");
        Self { data: Some(data), ..Self::new(fingerprints, lengths) }
    }

    /// Whether a damaged stored chunk was found that this query's data will replace.
    pub const fn damage_seen(&self) -> bool {
        self.damage_seen
    }

    /// Positions of entries without a final verdict: for filters that can prove that an entry exists.
    pub fn open_entries(&self) -> impl Iterator<Item = usize> {
        self.verdicts.iter().enumerate().filter(|(_, verdict)| !verdict.is_final()).map(|(position, _)| position)
    }

    /// Positions of entries with at most a weak maybe: for filters that cannot say more than "strong maybe".
    pub(crate) fn doubtful_entries(&self) -> impl Iterator<Item = usize> {
        let doubtful = |verdict: &Verdict| matches!(verdict, Verdict::Undecided | Verdict::WeakMaybe);
        self.verdicts.iter().enumerate().filter(move |(_, verdict)| doubtful(verdict)).map(|(position, _)| position)
    }

    /// Positions of entries for filters without access to bytes. An entry that will be compared need not be found
    /// twice.
    fn unanswered(&self) -> Box<dyn Iterator<Item = usize> + '_> {
        if self.data.is_some() { Box::new(self.doubtful_entries()) } else { Box::new(self.open_entries()) }
    }

    /// Records that an entry is stored at `location`. A stored chunk of another length is another chunk: sharing it
    /// would corrupt the file, while storing the new one costs a few kilobytes. So the verdict is then `NonExisting`.
    /// With data to compare, the verdict is `StrongMaybe` for any length.
    pub fn existing(&mut self, position: usize, location: Location) {
        self.verdicts[position] = if location.is_lost() {
            // Referenced but lost: to be stored again.
            Verdict::NonExisting
        } else if self.data.is_some() {
            Verdict::StrongMaybe(location)
        } else if location.len_bytes() == self.lengths[position] {
            Verdict::Existing(location)
        } else {
            let (fingerprint, asked) = (&self.fingerprints[position], self.lengths[position]);
            let stored = location.len_bytes();
            tracing::error!("{fingerprint} of {asked} bytes is indexed with {stored} bytes: not shared");
            Verdict::NonExisting
        };
    }

    /// Asks `look_up` about the open entries only. Calls `each` with the position and the answer of each of them.
    fn ask_open<T>(
        &mut self,
        look_up: impl FnOnce(&[Fingerprint], &mut Vec<T>) -> Result<()>,
        mut each: impl FnMut(&mut Self, usize, T),
    ) -> Result<()> {
        let (positions, fingerprints): (Vec<usize>, Vec<Fingerprint>) =
            self.unanswered().map(|position| (position, self.fingerprints[position])).unzip();
        let mut answers = Vec::new();
        look_up(&fingerprints, &mut answers)?;
        positions.into_iter().zip(answers).for_each(|(position, answer)| each(self, position, answer));
        Ok(())
    }

    /// Records a location for each open entry that `look_up` finds.
    fn find_open(
        &mut self,
        look_up: impl FnOnce(&[Fingerprint], &mut Vec<Option<Location>>) -> Result<()>,
    ) -> Result<()> {
        self.ask_open(look_up, |query, position, found| {
            if let Some(location) = found {
                query.existing(position, location);
            }
        })
    }
}

/// A step of the chain.
pub trait Filter: Send + Sync {
    /// Its name in the statistics.
    fn name(&self) -> &'static str;
    /// The component that its time counts for.
    fn component(&self) -> Component;
    /// Decides as many entries as it can. Final verdicts must stay.
    fn check(&self, query: &mut Query<'_>) -> Result<()>;
    /// The disk reads of this thread so far that may be this filter's.
    fn reads_of_this_thread(&self) -> Reads {
        reads_of_this_thread()
    }
}
