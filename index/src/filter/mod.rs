//! The filter chain: decides for a batch of fingerprints which are stored already (dedupv1 tech report section 3.2).
//!
//! Filters are asked in order, cheapest first. Each looks only at the entries that are not decided yet and may give a
//! [`Verdict`]; a final one ([`Verdict::is_final`]) ends the matter for its entry.

mod bloom;
mod chain;
mod locality;
mod memory;
mod plan;
mod sealed;
mod zero;

use dedupfs_store::{Fingerprint, Result};

pub use bloom::BloomFilter;
pub use chain::{FilterChain, FilterStats};
pub use locality::LocalityFilter;
pub use memory::OpenFilter;
pub use plan::{FilterKind, FilterPlan, FilterPlanError};
pub use sealed::SealedFilter;
pub use zero::ZeroFilter;

use crate::cell::Location;

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
        Self { fingerprints, lengths, verdicts: vec![Verdict::Undecided; fingerprints.len()] }
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

    /// Records that an entry is stored at `location`. A stored chunk of another length is another chunk: sharing it would
    /// corrupt the file, storing the new one costs a few kilobytes, so the verdict is `NonExisting`.
    pub fn existing(&mut self, position: usize, location: Location) {
        self.verdicts[position] = if location.is_lost() && !self.fingerprints[position].is_zero() {
            // Referred to, but lost: to be stored again.
            Verdict::NonExisting
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
        self.open_entries().map(|position| (position as u32, self.fingerprints[position])).unzip()
    }
}

/// A step of the chain.
pub trait Filter: Send + Sync {
    /// Its name in the statistics.
    fn name(&self) -> &'static str;
    /// Decides what it can. Final verdicts are not to be touched.
    fn check(&self, query: &mut Query<'_>) -> Result<()>;
}
