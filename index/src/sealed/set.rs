//! All sealed tankers, newest first: an immutable set that each checkpoint replaces as a whole.
//!
//! A lookup asks the Bloom filter array for the *candidates* of a fingerprint (MAD2 section III.B) and then only these
//! tankers, newest first, because a backup usually repeats recent data. Tankers without a filter are always candidates.

use std::collections::HashMap;
use std::sync::Arc;

use dedupfs_store::{Fingerprint, Result};

use super::cache::PageCache;
use super::tanker::{SealedTanker, bucket_of};
use crate::bloom::{COLUMNS_MAX, Columns, FilterArray, Hashes};
use crate::cell::Location;
use crate::lookup::Means;

/// A cell found in a sealed tanker, without its count.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Found {
    pub(crate) tanker: u64,
    /// Position of the cell in the tanker.
    pub(crate) index: u32,
    pub(crate) bucket: u32,
    /// The location in the cells file.
    pub(crate) location: Location,
}

/// The positions of the tankers by column of a group; `NOBODY` for a column outside this set.
type Owners = [u32; COLUMNS_MAX as usize];

const NOBODY: u32 = u32::MAX;

#[derive(Debug)]
pub(crate) struct SealedSet {
    /// The set's number. Each published set gets the next one.
    epoch: u64,
    tankers: Vec<Arc<SealedTanker>>,
    filters: Arc<FilterArray>,
    /// For each group of filters, the columns of this set's tankers.
    valid: Vec<Columns>,
    owners: Vec<Owners>,
    /// Positions of tankers without a filter.
    uncovered: Vec<u32>,
    /// For each tanker, the number of the first set that had these cells.
    since: Vec<u64>,
    /// The first set from which on no tanker has gone, or had other cells.
    grown_since: u64,
}

/// (number of the query, position of a tanker). Sorted, they are in the order of queries, newest tanker first.
pub(crate) type Candidate = (u32, u32);

impl SealedSet {
    /// Makes a set of `tankers`, newest first, with their filters in `filters`.
    pub(crate) fn new(epoch: u64, tankers: Vec<Arc<SealedTanker>>, filters: Arc<FilterArray>) -> Self {
        let (mut valid, mut owners, mut uncovered) = (Vec::<Columns>::new(), Vec::<Owners>::new(), Vec::new());
        for (position, tanker) in (0_u32..).zip(&tankers) {
            let Some(column) = &tanker.filter else {
                uncovered.push(position);
                continue;
            };
            let group = column.group as usize;
            if group >= valid.len() {
                valid.resize(group + 1, Columns::default());
                owners.resize(group + 1, [NOBODY; COLUMNS_MAX as usize]);
            }
            valid[group].insert(column.column);
            owners[group][column.column as usize] = position;
        }
        let since = vec![epoch; tankers.len()];
        Self { epoch, tankers, filters, valid, owners, uncovered, since, grown_since: epoch }
    }

    /// Makes the set that follows this one.
    pub(crate) fn followed_by(&self, tankers: Vec<Arc<SealedTanker>>, filters: Arc<FilterArray>) -> Self {
        let before: HashMap<u64, (&Arc<SealedTanker>, u64)> =
            self.tankers.iter().zip(&self.since).map(|(tanker, since)| (tanker.id, (tanker, *since))).collect();
        let mut next = Self::new(self.epoch + 1, tankers, filters);
        let mut unchanged = 0;
        for (tanker, since) in next.tankers.iter().zip(&mut next.since) {
            if let Some((_, before)) = before.get(&tanker.id).filter(|(before, _)| tanker.same_cells(before)) {
                (*since, unchanged) = (*before, unchanged + 1);
            }
        }
        if unchanged == self.tankers.len() {
            next.grown_since = self.grown_since;
        }
        next
    }

    /// Whether the set of this number, and all between it and this one, lost no cell of a tanker.
    pub(crate) fn has_only_grown_since(&self, epoch: u64) -> bool {
        (self.grown_since..=self.epoch).contains(&epoch)
    }

    /// Whether the tanker at a position, or its cells, came behind the set of this number.
    pub(crate) fn is_newer(&self, position: u32, epoch: u64) -> bool {
        self.since.get(position as usize).is_none_or(|since| *since > epoch)
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }

    pub(crate) fn tankers(&self) -> &[Arc<SealedTanker>] {
        &self.tankers
    }

    /// Finds the tankers that may hold the fingerprints, as (place in `hashes`, position), sorted. A tanker that holds
    /// one is always among them. Needs no I/O.
    pub(crate) fn candidates(&self, hashes: &[Hashes], found: &mut Vec<Candidate>) {
        found.clear();
        self.filters.ask(&self.valid, hashes, |query, group, word, mut mask| {
            let owners = &self.owners[group][word * u64::BITS as usize..];
            while mask != 0 {
                found.push((query as u32, owners[mask.trailing_zeros() as usize]));
                mask &= mask - 1;
            }
        });
        for &position in &self.uncovered {
            found.extend((0..hashes.len() as u32).map(|query| (query, position)));
        }
        found.sort_unstable();
    }

    /// As [`candidates`](Self::candidates); without the filters every tanker is a candidate.
    pub(crate) fn candidates_with<'f>(
        &self,
        means: Means,
        fingerprints: impl Iterator<Item = &'f Fingerprint>,
    ) -> Vec<Candidate> {
        let mut found = Vec::new();
        if means.filters {
            let hashes: Vec<Hashes> = fingerprints.map(Hashes::of).collect();
            self.candidates(&hashes, &mut found);
        } else {
            let positions = self.tankers.len() as u32;
            let queries = 0..fingerprints.count() as u32;
            found.extend(queries.flat_map(|query| (0..positions).map(move |position| (query, position))));
        }
        found
    }

    pub(crate) fn find_at(
        &self,
        cache: &PageCache,
        position: u32,
        fingerprint: &Fingerprint,
    ) -> Result<Option<(Found, &SealedTanker)>> {
        let tanker = &*self.tankers[position as usize];
        let bucket = bucket_of(fingerprint, tanker.buckets());
        let page = tanker.bucket(cache, bucket)?;
        Ok(tanker.find_in(bucket, &page, fingerprint).map(|found| (found, tanker)))
    }

    pub(crate) fn find(&self, cache: &PageCache, fingerprint: &Fingerprint) -> Result<Option<(Found, &SealedTanker)>> {
        let mut candidates = Vec::new();
        self.candidates(&[Hashes::of(fingerprint)], &mut candidates);
        for (_, position) in candidates {
            if let Some(found) = self.find_at(cache, position, fingerprint)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// Looks many fingerprints up. `wanted` are numbers that `fingerprint` translates; `each` is called for those
    /// found. Each bucket is fetched once per call, tanker by tanker in the order of the file. Without the filters
    /// every tanker is asked.
    pub(crate) fn find_many<'f>(
        &self,
        cache: &PageCache,
        wanted: &mut [u32],
        means: Means,
        fingerprint: impl Fn(u32) -> &'f Fingerprint,
        mut each: impl FnMut(u32, Found, &SealedTanker) -> Result<()>,
    ) -> Result<()> {
        if self.tankers.is_empty() || wanted.is_empty() {
            return Ok(());
        }
        wanted.sort_unstable_by_key(|&item| fingerprint(item));
        let mut questions = self.candidates_with(means, wanted.iter().map(|&item| fingerprint(item)));
        // By tanker, then by place in `wanted`: the order of the files.
        questions.sort_unstable_by_key(|&(place, position)| (position, place));
        let mut answered = vec![false; wanted.len()];
        let mut current: Option<(u32, u32, Arc<[u8]>)> = None;
        for (place, position) in questions {
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
