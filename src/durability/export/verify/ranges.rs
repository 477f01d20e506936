//! The last state of each key in a log, by ranges of keys that fit into memory.
//!
//! A log has its records in the order of commits. A survey samples keys, from which the bounds of the ranges come. If there are several
//! ranges, a second reading notes which spans of frames have keys of which ranges, and a range reads the spans that have some of its keys.
//! The least and the greatest key of a span would not do: nearly each span has an old key, such as the directory of new files. Up to 50,000
//! keys at a time are written in order (`export::log`), so the spans of a range are few, unless commits changed keys everywhere.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use dedupfs_base::Result;
use dedupfs_namespace::{ChangedKey, ExportTable, Item};
use dedupfs_store::StoreError;
use twox_hash::{XxHash3_64, XxHash3_128};

use super::compare::{Compared, order_key};
use super::{ExportCheck, Pacer};
use crate::durability::export::files;
use crate::durability::export::frames::ReadFrame;
use crate::durability::export::log::{self, Scanned};

/// Most spans of a log, but for rounding.
const SPANS_MAX: u64 = 16_384;
/// Most sampled keys. Few in tests, so that ranges are divided further.
const SAMPLE_MAX: usize = if cfg!(test) { 512 } else { 65_536 };
/// Sampled keys of a range, so that ranges differ little in their keys.
const SAMPLE_OF_A_RANGE: u64 = 128;

/// The last state of a key in the log.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Last {
    /// The record is gone.
    Gone,
    /// The hash of the record.
    Is(u64),
    /// Not to be compared: changed after the exported commit, or compared already.
    Done,
}

/// Frames that follow each other, from one offset to another.
struct Span {
    start_bytes: u64,
    end_bytes: u64,
    /// A bit for each surveyed range: whether the span has keys of it.
    ranges: Vec<u64>,
}

impl Span {
    fn note(&mut self, surveyed: usize) {
        if let Some(bits) = self.ranges.get_mut(surveyed / 64) {
            *bits |= 1 << (surveyed % 64);
        }
    }

    fn has(&self, surveyed: usize) -> bool {
        self.ranges.get(surveyed / 64).is_some_and(|bits| bits & 1 << (surveyed % 64) != 0)
    }
}

/// Where a range begins.
struct Bound {
    key: Vec<u8>,
    /// The number of the surveyed range that it lies in.
    surveyed: usize,
}

/// A sample of keys, each with its hash: those whose hash is a multiple of `stride`, which doubles when there are more than `max`.
struct Sample {
    /// Makes the hashes others than those by which a client may have chosen its names.
    seed: u64,
    stride: u64,
    max: usize,
    keys: BTreeMap<Vec<u8>, u64>,
}

impl Sample {
    /// Takes one key in `stride`.
    fn new(seed: u64, stride: u64, max: usize) -> Self {
        Self { seed, stride: stride.max(1), max, keys: BTreeMap::new() }
    }

    fn add(&mut self, key: &[u8]) {
        let hash = XxHash3_64::oneshot_with_seed(self.seed, key);
        if !hash.is_multiple_of(self.stride) {
            return;
        }
        self.keys.insert(key.to_vec(), hash);
        if self.keys.len() > self.max {
            self.stride = self.stride.saturating_mul(2);
            self.keys.retain(|_, hash| hash.is_multiple_of(self.stride));
        }
    }

    /// The first key of each range but the first.
    fn into_bounds(self, range_keys: u64) -> Vec<Vec<u8>> {
        let sampled = usize::try_from((range_keys / self.stride).max(1)).unwrap_or(usize::MAX);
        self.keys.into_keys().step_by(sampled).skip(1).collect()
    }
}

/// What a log says of each key in the range that is being compared. Ranges follow each other in the order of keys.
pub(super) struct Ranges<'c> {
    compared: &'c Compared<'c>,
    seed: u64,
    /// The keys that a range should have. It has twice as many at most.
    range_keys: u64,
    /// All frames of the log. The surveyed ranges are those before any was divided.
    spans: Vec<Span>,
    /// Whether keys were changed after the exported commit.
    has_changes: bool,
    /// One for each range but the first.
    bounds: Vec<Bound>,
    /// The header of the log's last group.
    header: Option<Vec<u8>>,
    /// The present range.
    number: usize,
    last: HashMap<u128, Last>,
    /// Records that the log alone has, in the ranges before.
    only_in_log: u64,
}

impl<'c> Ranges<'c> {
    /// Surveys the log, and reads the first range.
    ///
    /// # Errors
    /// The log or the namespace cannot be read; no bounds divide the keys of a range that is too large; the comparison was ended early.
    pub(super) fn new(compared: &'c Compared<'c>, range_keys: u64, pacer: &mut Pacer<'_, '_>) -> Result<Self> {
        let generation = compared.expected.current.generation;
        let (path, log_bytes) = (files::log_path(generation), compared.expected.log_bytes);
        let mut seed = [0; 8];
        dedupfs_sync::entropy::fill(&mut seed).map_err(|error| StoreError::from_io("get", "random bytes", error))?;
        let seed = u64::from_le_bytes(seed);
        let mut sample = Sample::new(seed, range_keys / SAMPLE_OF_A_RANGE, SAMPLE_MAX);
        let (mut spans, mut header, mut at_bytes) = (Vec::<Span>::new(), None, 0);
        let start = Scanned::start(compared.expected.current.row);
        let (log, pool) = (&*compared.log, &compared.exporter.pool);
        let scanned = log::scan_to(log, &path, pool, generation, start, log_bytes, &mut |frame| {
            let (start_bytes, end_bytes) = (at_bytes, frame.end_bytes);
            pacer.advance_again(end_bytes - start_bytes)?;
            at_bytes = end_bytes;
            match spans.last_mut() {
                Some(span) if span.end_bytes - span.start_bytes < log_bytes / SPANS_MAX => span.end_bytes = end_bytes,
                _ => spans.push(Span { start_bytes, end_bytes, ranges: Vec::new() }),
            }
            each_record(frame, &path, &mut |item, key| {
                if item.table == ExportTable::Header {
                    header = item.value.map(<[u8]>::to_vec);
                } else {
                    sample.add(key);
                }
            })
        })?;
        scanned.rest.map_or(Ok(()), Err)?;
        let mut has_changes = false;
        compared.each_changed(pacer, &mut |key| {
            has_changes = true;
            sample.add(key);
        })?;
        let keys = sample.into_bounds(range_keys).into_iter().enumerate();
        let bounds: Vec<Bound> = keys.map(|(before, key)| Bound { key, surveyed: before + 1 }).collect();
        for span in &mut spans {
            span.ranges = vec![0; bounds.len() / 64 + 1];
            if bounds.is_empty() {
                span.note(0);
                continue;
            }
            let mut noted = None;
            let range_bytes = span.start_bytes..span.end_bytes;
            compared.each_record_of(range_bytes, pacer, &mut |_, key| {
                let surveyed = bounds.partition_point(|bound| key >= bound.key.as_slice());
                if noted != Some(surveyed) {
                    noted = Some(surveyed);
                    span.note(surveyed);
                }
            })?;
        }
        let (last, only_in_log) = (HashMap::new(), 0);
        let mut ranges =
            Self { compared, seed, range_keys, spans, has_changes, bounds, header, number: 0, last, only_in_log };
        ranges.read(pacer)?;
        Ok(ranges)
    }

    /// Goes on to the range of a key, which is not before the present range.
    ///
    /// # Errors
    /// As those of [`new`](Self::new).
    pub(super) fn advance_to(&mut self, key: &[u8], pacer: &mut Pacer<'_, '_>) -> Result<()> {
        while self.bounds.get(self.number).is_some_and(|bound| key >= bound.key.as_slice()) {
            self.enter_next(pacer)?;
        }
        Ok(())
    }

    /// What the log says last of a key in the present range.
    pub(super) fn last_of(&mut self, key: &[u8]) -> Option<&mut Last> {
        self.last.get_mut(&XxHash3_128::oneshot(key))
    }

    /// Reads the ranges that are left. Adds a finding with the number of records that the log alone has. Returns the header of the log's
    /// last group.
    ///
    /// # Errors
    /// As those of [`new`](Self::new).
    pub(super) fn finish(mut self, pacer: &mut Pacer<'_, '_>, check: &mut ExportCheck) -> Result<Option<Vec<u8>>> {
        while self.number < self.bounds.len() {
            self.enter_next(pacer)?;
        }
        self.leave();
        if self.only_in_log > 0 {
            check.add_to_names(format!("{} records are in the export's log and do not exist", self.only_in_log));
        }
        Ok(self.header)
    }

    fn enter_next(&mut self, pacer: &mut Pacer<'_, '_>) -> Result<()> {
        self.leave();
        self.number += 1;
        self.read(pacer)
    }

    fn leave(&mut self) {
        self.only_in_log += self.last.drain().filter(|(_, last)| matches!(last, Last::Is(_))).count() as u64;
    }

    /// Reads the present range. If it has too many keys, it is divided first.
    fn read(&mut self, pacer: &mut Pacer<'_, '_>) -> Result<()> {
        loop {
            // Finer, so that it divides what the sample of the survey did not.
            let stride = self.range_keys / SAMPLE_OF_A_RANGE / 8;
            let mut sample = Sample::new(self.seed, stride, SAMPLE_MAX);
            if self.read_into(&mut sample, pacer)? {
                return Ok(());
            }
            self.last.clear();
            let further = sample.into_bounds(self.range_keys / 2);
            if further.is_empty() {
                let path = files::log_path(self.compared.expected.current.generation);
                let expected = format!("at most {} keys in a range of the log", 2 * self.range_keys);
                return Err(StoreError::corrupt(path, expected, "more, and none between them").into());
            }
            let surveyed = begin_of(&self.bounds, self.number).map_or(0, |bound| bound.surveyed);
            let further = further.into_iter().map(|key| Bound { key, surveyed });
            self.bounds.splice(self.number..self.number, further);
        }
    }

    /// Reads the last state of each key of the present range: first from the log, then of the keys that were changed after the exported
    /// commit, which overrides the log. Returns `false` if there are too many. Samples all keys of the range.
    fn read_into(&mut self, sample: &mut Sample, pacer: &mut Pacer<'_, '_>) -> Result<bool> {
        let begin = begin_of(&self.bounds, self.number);
        let (begin, surveyed) = begin.map_or((&[][..], 0), |bound| (bound.key.as_slice(), bound.surveyed));
        let end = self.bounds.get(self.number).map(|bound| bound.key.as_slice());
        let (last, mut fits) = (&mut self.last, true);
        let mut note = |key: &[u8], state: Last| {
            if key < begin || end.is_some_and(|end| key >= end) {
                return;
            }
            sample.add(key);
            if fits {
                last.insert(XxHash3_128::oneshot(key), state);
                fits = last.len() as u64 <= 2 * self.range_keys;
            }
        };
        for span in self.spans.iter().filter(|span| span.has(surveyed)) {
            self.compared.each_record_of(span.start_bytes..span.end_bytes, pacer, &mut |item, key| {
                note(key, item.value.map_or(Last::Gone, |value| Last::Is(XxHash3_64::oneshot(value))));
            })?;
        }
        if self.has_changes {
            self.compared.each_changed(pacer, &mut |key| note(key, Last::Done))?;
        }
        Ok(fits)
    }
}

/// The bound where a range begins; the first range has none.
fn begin_of(bounds: &[Bound], number: usize) -> Option<&Bound> {
    bounds.get(number.checked_sub(1)?)
}

impl Compared<'_> {
    /// Delivers the records in these bytes of the log, but for headers, each with its key in the order of keys.
    fn each_record_of(
        &self,
        range_bytes: Range<u64>,
        pacer: &mut Pacer<'_, '_>,
        visit: &mut dyn FnMut(&Item<'_>, &[u8]),
    ) -> Result<()> {
        let generation = self.expected.current.generation;
        let path = files::log_path(generation);
        let mut at_bytes = range_bytes.start;
        while at_bytes < range_bytes.end {
            let frame = ReadFrame::read(&*self.log, &path, &self.exporter.pool, generation, at_bytes)?;
            pacer.advance_again(frame.end_bytes - at_bytes)?;
            at_bytes = frame.end_bytes;
            each_record(&frame, &path, &mut |item, key| {
                if item.table != ExportTable::Header {
                    visit(item, key);
                }
            })?;
        }
        Ok(())
    }

    /// Delivers the keys that were changed after the exported commit: their records may be old, new or absent.
    fn each_changed(&self, pacer: &mut Pacer<'_, '_>, visit: &mut dyn FnMut(&[u8])) -> Result<()> {
        let mut ordered = Vec::new();
        self.source.changes_after(self.expected.row, &mut |keys| {
            pacer.advance(0)?;
            for key in keys {
                let number = |number: u64| number.to_le_bytes();
                let (table, key) = match key {
                    ChangedKey::Inode(ino) => (ExportTable::Inodes, number(ino).to_vec()),
                    ChangedKey::Name(key) => (ExportTable::Names, key),
                    ChangedKey::Xattr(key) => (ExportTable::Xattrs, key),
                    ChangedKey::Container { id, .. } => (ExportTable::Containers, number(id.0).to_vec()),
                };
                order_key(&Item { table, key: &key, value: None }, &mut ordered);
                visit(&ordered);
            }
            Ok(())
        })
    }
}

/// Delivers the records of a frame, and headers, each with its key in the order of keys.
fn each_record(frame: &ReadFrame, path: &str, visit: &mut dyn FnMut(&Item<'_>, &[u8])) -> Result<()> {
    let (raw, mut key) = (frame.unpack(path)?, Vec::new());
    for item in frame.items(path, &raw)? {
        order_key(&item, &mut key);
        visit(&item, &key);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_divide_keys_into_ranges_of_some_size() {
        for (keys, range_keys) in [(0, 1000), (900, 1000), (100_000_u64, 5000), (1000, 1), (1000, 100)] {
            let mut sample = Sample::new(7, range_keys / SAMPLE_OF_A_RANGE, 1 << 16);
            (0..keys).for_each(|key| sample.add(&key.to_be_bytes()));
            // Again: keys count once.
            (0..keys).for_each(|key| sample.add(&key.to_be_bytes()));
            let bounds = sample.into_bounds(range_keys);
            let places: Vec<u64> = [0]
                .into_iter()
                .chain(bounds.iter().map(|bound| u64::from_be_bytes(bound.as_slice().try_into().expect("is a key"))))
                .chain([keys])
                .collect();
            let most = places.windows(2).map(|range| range[1] - range[0]).max().expect("has a range");
            assert!(most <= 2 * range_keys, "{keys} keys: a range of {most}");
            assert!(bounds.len() as u64 <= 2 * keys / range_keys, "{keys} keys: {} bounds", bounds.len());
        }
    }

    #[test]
    fn a_sample_stays_small() {
        let mut sample = Sample::new(7, 1, 1000);
        (0..3000_u64).for_each(|key| sample.add(&key.to_be_bytes()));
        assert!(sample.stride > 1 && (250..=1000).contains(&sample.keys.len()));
    }
}
