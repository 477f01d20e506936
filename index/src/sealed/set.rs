//! All sealed tankers, newest first: an immutable set that is replaced as a whole by each checkpoint.
//!
//! A lookup asks the *candidates* of a fingerprint, newest first, because a backup usually repeats recent data. Today
//! every tanker is a candidate; the Bloom filter array (MAD2 section III.B) belongs into [`SealedSet::candidates`].

use std::sync::Arc;

use dedupfs_store::{Fingerprint, Result};

use super::cache::PageCache;
use super::tanker::{SealedTanker, bucket_of};
use crate::cell::Location;

/// A cell found in a sealed tanker, without its count.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Found {
    /// The tanker's id.
    pub(crate) tanker: u64,
    /// Position of the cell in the tanker.
    pub(crate) index: u32,
    /// Its bucket.
    pub(crate) bucket: u32,
    /// As the file says.
    pub(crate) location: Location,
}

/// The set.
#[derive(Default, Debug)]
pub(crate) struct SealedSet {
    tankers: Vec<Arc<SealedTanker>>,
}

impl SealedSet {
    /// `tankers` newest first.
    pub(crate) fn new(tankers: Vec<Arc<SealedTanker>>) -> Self {
        Self { tankers }
    }

    /// All tankers, newest first.
    pub(crate) fn tankers(&self) -> &[Arc<SealedTanker>] {
        &self.tankers
    }

    /// Positions of the tankers that may hold the fingerprint, newest first. A tanker that does hold it is always
    /// among them.
    fn candidates(&self, _fingerprint: &Fingerprint) -> impl Iterator<Item = usize> + use<> {
        0..self.tankers.len()
    }

    /// Looks one fingerprint up.
    pub(crate) fn find(&self, cache: &PageCache, fingerprint: &Fingerprint) -> Result<Option<(Found, &SealedTanker)>> {
        for position in self.candidates(fingerprint) {
            let tanker = &*self.tankers[position];
            let bucket = bucket_of(fingerprint, tanker.buckets());
            let page = tanker.bucket(cache, bucket)?;
            if let Some(found) = tanker.find_in(bucket, &page, fingerprint) {
                return Ok(Some((found, tanker)));
            }
        }
        Ok(None)
    }

    /// Looks many fingerprints up: `wanted` are numbers that `fingerprint` translates; `each` is called for those
    /// found. Each bucket is fetched once per call, tanker by tanker and in the order of the file.
    pub(crate) fn find_many<'f>(
        &self,
        cache: &PageCache,
        wanted: &mut [u32],
        fingerprint: impl Fn(u32) -> &'f Fingerprint,
        mut each: impl FnMut(u32, Found, &SealedTanker) -> Result<()>,
    ) -> Result<()> {
        if self.tankers.is_empty() || wanted.is_empty() {
            return Ok(());
        }
        wanted.sort_unstable_by_key(|&item| fingerprint(item));
        // (tanker, place in `wanted`): sorted, these are in the order of the files.
        let mut questions: Vec<(u32, u32)> = Vec::with_capacity(wanted.len());
        for (place, &item) in wanted.iter().enumerate() {
            questions.extend(self.candidates(fingerprint(item)).map(|position| (position as u32, place as u32)));
        }
        questions.sort_unstable();
        let mut answered = vec![false; wanted.len()];
        let mut current: Option<(u32, u32, Arc<[u8]>)> = None;
        for (position, place) in questions {
            if answered[place as usize] {
                continue;
            }
            let item = wanted[place as usize];
            let tanker = &*self.tankers[position as usize];
            let bucket = bucket_of(fingerprint(item), tanker.buckets());
            let page = match &current {
                Some((at, held, page)) if (*at, *held) == (position, bucket) => page,
                _ => &current.insert((position, bucket, tanker.bucket(cache, bucket)?)).2,
            };
            if let Some(found) = tanker.find_in(bucket, page, fingerprint(item)) {
                answered[place as usize] = true;
                each(item, found, tanker)?;
            }
        }
        Ok(())
    }
}
