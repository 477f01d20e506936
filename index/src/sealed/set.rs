//! All sealed tankers, newest first: an immutable set that each checkpoint replaces as a whole.
//!
//! A lookup asks the Bloom filter array for the *candidates* of a fingerprint (MAD2 section III.B) and then only these
//! tankers, newest first, because a backup usually repeats recent data. Tankers without a filter are always candidates.
//! Old tankers have guides instead of filters of their own (see `guide`).

use std::collections::HashMap;
use std::sync::Arc;

use dedupfs_store::{ContainerId, Fingerprint, Result};

use super::cache::PageCache;
use super::containers::Share;
use super::tanker::{SealedTanker, bucket_of};
use crate::bloom::{COLUMNS_MAX, Columns, FilterArray, Hashes};
use crate::cell::Location;
use crate::guide::{Built, Guide, Guided, Key, guided_by};
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
    /// Positions of tankers without a filter, and without a guide.
    uncovered: Vec<u32>,
    guides: Vec<Guided>,
    /// For each tanker, the number of the first set that had these cells.
    since: Vec<u64>,
    /// For each guide, the greatest of these numbers of its tankers.
    guided_since: Vec<u64>,
    /// The first set from which on no tanker has gone, or had other cells.
    grown_since: u64,
    /// For each tanker, its first and its last container: few numbers, so that a search passes over most tankers.
    spans: Vec<(ContainerId, ContainerId)>,
}

/// The fingerprints of a lookup, by number.
pub(crate) struct Question<F, H> {
    pub(crate) fingerprint: F,
    /// The container that may have it; `NONE` if unknown.
    pub(crate) hint: H,
    pub(crate) means: Means,
}

impl<F> Question<F, fn(u32) -> ContainerId> {
    pub(crate) fn unhinted(fingerprint: F, means: Means) -> Self {
        Self { fingerprint, hint: |_| ContainerId::NONE, means }
    }
}

/// Tankers that are asked by a hint: a container with cells in more of them is looked for with the filters.
const HINTED_MAX: usize = 2;

/// (number of the query, position of a tanker, or [`GUIDE`] and the number of a guide). Sorted, they are in the order of queries, newest
/// tanker first, guides last.
pub(crate) type Candidate = (u32, u32);

/// Marks the number of a guide among positions.
const GUIDE: u32 = 1 << 31;

impl SealedSet {
    /// Makes a set of `tankers`, newest first, with their filters in `filters`, or with guides to them.
    pub(crate) fn new(
        epoch: u64,
        tankers: Vec<Arc<SealedTanker>>,
        filters: Arc<FilterArray>,
        guides: Vec<Arc<Guide>>,
    ) -> Self {
        let positions: HashMap<u64, u32> = tankers.iter().map(|tanker| tanker.id).zip(0..).collect();
        let guided = guided_by(guides.iter());
        let guides: Vec<_> =
            guides.into_iter().map(|guide| Guided::new(guide, |id| positions.get(&id).copied())).collect();
        let (mut valid, mut owners, mut uncovered) = (Vec::<Columns>::new(), Vec::<Owners>::new(), Vec::new());
        for (position, tanker) in (0_u32..).zip(&tankers) {
            let Some(column) = &tanker.filter else {
                if !guided.contains(&tanker.id) {
                    uncovered.push(position);
                }
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
        let guided_since = vec![epoch; guides.len()];
        let spans = tankers.iter().map(|tanker| tanker.containers.span()).collect();
        let grown_since = epoch;
        Self { epoch, tankers, filters, valid, owners, uncovered, guides, since, guided_since, grown_since, spans }
    }

    /// Makes the set that follows this one.
    pub(crate) fn followed_by(
        &self,
        tankers: Vec<Arc<SealedTanker>>,
        filters: Arc<FilterArray>,
        guides: Vec<Arc<Guide>>,
    ) -> Self {
        let before: HashMap<u64, (&Arc<SealedTanker>, u64)> =
            self.tankers.iter().zip(&self.since).map(|(tanker, since)| (tanker.id, (tanker, *since))).collect();
        let mut next = Self::new(self.epoch + 1, tankers, filters, guides);
        let mut unchanged = 0;
        for (tanker, since) in next.tankers.iter().zip(&mut next.since) {
            if let Some((_, before)) = before.get(&tanker.id).filter(|(before, _)| tanker.same_cells(before)) {
                (*since, unchanged) = (*before, unchanged + 1);
            }
        }
        next.guided_since = next.guides.iter().map(|guided| guided.newest_of(&next.since)).collect();
        if unchanged == self.tankers.len() {
            next.grown_since = self.grown_since;
        }
        next
    }

    /// Whether the set of this number, and all between it and this one, lost no cell of a tanker.
    pub(crate) fn has_only_grown_since(&self, epoch: u64) -> bool {
        (self.grown_since..=self.epoch).contains(&epoch)
    }

    /// Whether the tanker at a position, or one to which a guide leads, or its cells, came behind the set of this number.
    pub(crate) fn is_newer(&self, candidate: u32, epoch: u64) -> bool {
        let since = match candidate.checked_sub(GUIDE) {
            None => self.since.get(candidate as usize),
            Some(guide) => self.guided_since.get(guide as usize),
        };
        since.is_none_or(|since| *since > epoch)
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }

    pub(crate) fn tankers(&self) -> &[Arc<SealedTanker>] {
        &self.tankers
    }

    /// The tankers with cells of a container, with their positions and their shares of it. Cost: a comparison for each tanker.
    pub(crate) fn tankers_with(
        &self,
        container: ContainerId,
    ) -> impl Iterator<Item = (u32, &Arc<SealedTanker>, Share)> + use<'_> {
        let spans = (0..).zip(&self.tankers).zip(&self.spans);
        let spanning = spans.filter(move |(_, (first, last))| (*first..=*last).contains(&container));
        spanning.filter_map(move |((position, tanker), _)| Some((position, tanker, tanker.containers.of(container)?)))
    }

    /// The tankers that hints name: (place in `wanted`, position).
    fn hinted(&self, wanted: &[u32], hint: impl Fn(u32) -> ContainerId) -> Vec<Candidate> {
        let hints = (0..).zip(wanted).map(|(place, &item)| (hint(item), place));
        let mut hints: Vec<(ContainerId, u32)> = hints.filter(|(hint, _)| *hint != ContainerId::NONE).collect();
        hints.sort_unstable();
        let mut named = Vec::with_capacity(hints.len());
        for of_container in hints.chunk_by(|(one, _), (next, _)| one == next) {
            let positions = || self.tankers_with(of_container[0].0).map(|(position, ..)| position);
            if positions().nth(HINTED_MAX).is_none() {
                named.extend(positions().flat_map(|position| of_container.iter().map(move |hint| (hint.1, position))));
            }
        }
        named
    }

    /// The guides of the next set: these without those that a new one replaces, and the new one.
    pub(crate) fn guides_with(&self, built: Option<&Built>) -> Vec<Arc<Guide>> {
        let is_replaced = |guide: &Arc<Guide>| built.is_some_and(|built| built.replaces.contains(&guide.id()));
        let kept = self.guides.iter().map(|guided| &guided.guide).filter(|guide| !is_replaced(guide)).cloned();
        kept.chain(built.and_then(|built| built.guide.clone())).collect()
    }

    pub(crate) fn guides(&self) -> &[Guided] {
        &self.guides
    }

    /// Finds the tankers that may hold the fingerprints, as (place in `hashes`, position), sorted. A tanker that holds
    /// one is always among them, or a guide to it. Needs no I/O.
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
        for (number, guided) in (GUIDE..).zip(&self.guides) {
            guided.guide.ask(hashes, |query| found.push((query as u32, number)));
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

    /// Replaces a guide by the positions of the tankers to which it leads, newest first.
    pub(crate) fn positions_of(&self, cache: &PageCache, candidate: u32, key: Key, found: &mut Vec<u32>) {
        found.clear();
        match candidate.checked_sub(GUIDE).and_then(|number| self.guides.get(number as usize)) {
            Some(guided) => {
                guided.positions_of(cache, key, found);
                found.sort_unstable();
            }
            None => found.push(candidate),
        }
    }

    /// The guides that lead to the tanker at a position, as candidates.
    pub(crate) fn guides_to(&self, position: u32) -> Vec<u32> {
        let numbered = (GUIDE..).zip(&self.guides);
        numbered.filter(|(_, guided)| guided.leads_to(position)).map(|(number, _)| number).collect()
    }

    /// Looks a fingerprint up in a tanker, or in those to which a guide leads.
    pub(crate) fn find_at(
        &self,
        cache: &PageCache,
        candidate: u32,
        fingerprint: &Fingerprint,
    ) -> Result<Option<(Found, &SealedTanker)>> {
        if candidate < GUIDE {
            return self.find_in(cache, candidate, fingerprint);
        }
        let mut positions = Vec::new();
        self.positions_of(cache, candidate, Key::of(fingerprint), &mut positions);
        for position in positions {
            if let Some(found) = self.find_in(cache, position, fingerprint)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    fn find_in(
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

    /// Looks many fingerprints up. `wanted` are their numbers in the question; `each` is called for those found. Tankers that hints name are
    /// asked first. Then each bucket is fetched once per call, tanker by tanker in the order of the file. Without the filters every tanker is
    /// asked.
    pub(crate) fn find_many<'f>(
        &self,
        cache: &PageCache,
        wanted: &mut [u32],
        question: &Question<impl Fn(u32) -> &'f Fingerprint, impl Fn(u32) -> ContainerId>,
        mut each: impl FnMut(u32, Found, &SealedTanker) -> Result<()>,
    ) -> Result<()> {
        if self.tankers.is_empty() || wanted.is_empty() {
            return Ok(());
        }
        let fingerprint = &question.fingerprint;
        wanted.sort_unstable_by_key(|&item| fingerprint(item));
        let mut asked = Asked { set: self, cache, wanted, answered: vec![false; wanted.len()] };
        asked.ask(self.hinted(wanted, &question.hint), true, &fingerprint, &mut each)?;
        let left: Vec<u32> = (0..).zip(&asked.answered).filter(|(_, is)| !**is).map(|(place, _)| place).collect();
        let of_left = left.iter().map(|&place| fingerprint(wanted[place as usize]));
        let mut questions = self.candidates_with(question.means, of_left);
        questions.iter_mut().for_each(|(query, _)| *query = left[*query as usize]);
        let (of_guides, of_tankers): (Vec<_>, Vec<_>) =
            questions.into_iter().partition(|(_, candidate)| *candidate >= GUIDE);
        asked.ask(of_tankers, false, &fingerprint, &mut each)?;
        // Only what is left costs pages of guides.
        let mut led_to = Vec::new();
        let mut positions = Vec::new();
        let mut by_guide = of_guides;
        by_guide.sort_unstable_by_key(|&(place, guide)| (guide, place));
        for (place, guide) in by_guide {
            if !asked.answered[place as usize] {
                self.positions_of(cache, guide, Key::of(fingerprint(wanted[place as usize])), &mut positions);
                led_to.extend(positions.iter().map(|position| (place, *position)));
            }
        }
        asked.ask(led_to, false, &fingerprint, &mut each)
    }
}

/// Fingerprints that are looked up together.
struct Asked<'s> {
    set: &'s SealedSet,
    cache: &'s PageCache,
    wanted: &'s [u32],
    answered: Vec<bool>,
}

impl Asked<'_> {
    /// Looks in tankers for what is not answered yet. One that `are_hints` name and that cannot be read answers nothing: it may have nothing
    /// to do with the question.
    fn ask<'f>(
        &mut self,
        mut questions: Vec<Candidate>,
        are_hints: bool,
        fingerprint: &impl Fn(u32) -> &'f Fingerprint,
        each: &mut impl FnMut(u32, Found, &SealedTanker) -> Result<()>,
    ) -> Result<()> {
        // By tanker, then by place in `wanted`: the order of the files.
        questions.sort_unstable_by_key(|&(place, position)| (position, place));
        let mut current: Option<(u32, u32, Arc<[u8]>)> = None;
        for (place, position) in questions {
            if self.answered[place as usize] {
                continue;
            }
            let item = self.wanted[place as usize];
            let tanker = &*self.set.tankers[position as usize];
            let bucket = bucket_of(fingerprint(item), tanker.buckets());
            let page = match &current {
                Some((at, held, page)) if (*at, *held) == (position, bucket) => page,
                _ => match tanker.bucket(self.cache, bucket) {
                    Err(_) if are_hints => continue,
                    page => &current.insert((position, bucket, page?)).2,
                },
            };
            if let Some(found) = tanker.find_in(bucket, page, fingerprint(item)) {
                self.answered[place as usize] = true;
                each(item, found, tanker)?;
            }
        }
        Ok(())
    }
}
