//! The filter chain: decides for a batch of fingerprints which are stored already (dedupv1 tech report section 3.2).
//!
//! Filters are asked in order, cheapest first. Each looks only at the entries that are not decided yet and may give a
//! [`Verdict`]; a final one ([`Verdict::is_final`]) ends the matter for its entry.
//!
//! A fingerprint that is found is `Existing`: the index is exact, and that two contents share a fingerprint is less likely
//! than anything else that can go wrong. A chain that ends with [`CompareFilter`] does not rely on it: there a fingerprint
//! that is found is a strong maybe, as in dedupv1, and the stored bytes decide.

mod bloom;
mod chain;
mod compare;
mod locality;
mod memory;
mod plan;
mod sealed;
mod zero;

use dedupfs_store::{Fingerprint, Result};

pub use bloom::BloomFilter;
pub use chain::{FilterChain, FilterStats};
pub use compare::{CompareFilter, Compared, StoredChunks};
pub use locality::LocalityFilter;
pub use memory::OpenFilter;
pub use plan::{FilterKind, FilterPlan, FilterPlanError};
pub use sealed::SealedFilter;
pub use zero::ZeroFilter;

use crate::cell::Location;
pub use crate::sealed::Reads;
use crate::sealed::reads_of_this_thread;

/// What is known about an entry.
///
/// ```text
/// Undecided --> WeakMaybe --> StrongMaybe --> Existing
///     \_____________\______________\________> NonExisting     (any step may be left out; the two at the right are final)
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Verdict {
    /// No filter said anything.
    #[default]
    Undecided,
    /// It is stored here. Final.
    Existing(Location),
    /// It is stored here with high probability: only filters that can prove it are of use now.
    StrongMaybe(Location),
    /// Perhaps.
    WeakMaybe,
    /// It is not stored. Final.
    NonExisting,
}

impl Verdict {
    /// Whether no filter need be asked any more.
    #[must_use]
    pub const fn is_final(&self) -> bool {
        matches!(self, Self::Existing(_) | Self::NonExisting)
    }

    /// Where it is stored, surely or probably.
    #[must_use]
    pub const fn location(&self) -> Option<Location> {
        match self {
            Self::Existing(location) | Self::StrongMaybe(location) => Some(*location),
            Self::Undecided | Self::WeakMaybe | Self::NonExisting => None,
        }
    }
}

/// A batch of entries, and what is known about each.
#[derive(Clone, Debug)]
pub struct Query<'a> {
    /// The fingerprints.
    pub fingerprints: &'a [Fingerprint],
    /// Their chunks' lengths in bytes.
    pub lengths: &'a [u32],
    /// What is known; as long as the others.
    pub verdicts: Vec<Verdict>,
    /// Their bytes, if a chain that compares is to be asked; as long as the others.
    data: Option<&'a [&'a [u8]]>,
    /// Whether a stored chunk was damaged that an entry was compared with.
    damage_seen: bool,
}

impl<'a> Query<'a> {
    /// Nothing is known yet.
    ///
    /// # Panics
    ///
    /// If the slices differ in length.
    #[must_use]
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

    /// As [`new`](Self::new), with the bytes of each chunk: from now on that a fingerprint is found is a strong maybe.
    ///
    /// # Panics
    ///
    /// If the slices differ in length.
    #[must_use]
    pub fn with_data(fingerprints: &'a [Fingerprint], lengths: &'a [u32], data: &'a [&'a [u8]]) -> Self {
        assert_eq!(fingerprints.len(), data.len(), "each fingerprint has its bytes");
        Self { data: Some(data), ..Self::new(fingerprints, lengths) }
    }

    /// Whether a stored chunk was found to be damaged, which this query's data make whole.
    #[must_use]
    pub const fn damage_seen(&self) -> bool {
        self.damage_seen
    }

    /// Positions of entries without a final verdict: for filters that can prove that an entry exists.
    pub fn open_entries(&self) -> impl Iterator<Item = usize> {
        self.verdicts.iter().enumerate().filter(|(_, verdict)| !verdict.is_final()).map(|(position, _)| position)
    }

    /// Positions of entries of which at most a weak maybe is known: for filters that cannot say better than "strong maybe".
    pub fn doubtful_entries(&self) -> impl Iterator<Item = usize> {
        let doubtful = |verdict: &Verdict| matches!(verdict, Verdict::Undecided | Verdict::WeakMaybe);
        self.verdicts.iter().enumerate().filter(move |(_, verdict)| doubtful(verdict)).map(|(position, _)| position)
    }

    /// Entries that are of use to a filter that knows fingerprints only: what will be compared need not be found twice.
    fn unanswered(&self) -> Box<dyn Iterator<Item = usize> + '_> {
        if self.data.is_some() { Box::new(self.doubtful_entries()) } else { Box::new(self.open_entries()) }
    }

    /// Records that an entry is stored at `location`. A stored chunk of another length is another chunk: sharing it would
    /// corrupt the file, storing the new one costs a few kilobytes, so the verdict is `NonExisting`. With data to compare,
    /// the verdict is `StrongMaybe` whatever the length.
    pub fn existing(&mut self, position: usize, location: Location) {
        self.verdicts[position] = if location.is_lost() && !self.fingerprints[position].is_zero() {
            // Referred to, but lost: to be stored again.
            Verdict::NonExisting
        } else if self.data.is_some() && !self.fingerprints[position].is_zero() {
            Verdict::StrongMaybe(location)
        } else if location.len_bytes == self.lengths[position] {
            Verdict::Existing(location)
        } else {
            let (fingerprint, asked) = (&self.fingerprints[position], self.lengths[position]);
            let stored = location.len_bytes;
            tracing::error!("{fingerprint} of {asked} bytes is indexed with {stored} bytes: not shared");
            Verdict::NonExisting
        };
    }

    /// The entries that are still open, with their fingerprints, for a lookup of just these.
    pub(crate) fn gather_open(&self) -> (Vec<u32>, Vec<Fingerprint>) {
        self.unanswered().map(|position| (position as u32, self.fingerprints[position])).unzip()
    }
}

/// A step of the chain.
pub trait Filter: Send + Sync {
    /// Its name in the statistics.
    fn name(&self) -> &'static str;
    /// Decides what it can. Final verdicts are not to be touched.
    fn check(&self, query: &mut Query<'_>) -> Result<()>;
    /// What this thread has read from disk so far, as far as it may be this filter's doing.
    fn reads_of_this_thread(&self) -> Reads {
        reads_of_this_thread()
    }
}
