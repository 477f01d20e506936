//! The part of an image that is compared with its source, although the map calls it unchanged.
//!
//! A map that leaves out a share *f* of the changed ranges, which are a share *d* of the image, is found by *n* runs with a probability of
//! about 1 − (1 − f·d)ⁿ. So a sample finds trackers that do not work; only comparing everything finds single lost bits.

use std::ops::Range;

use dedupfs_content::{Change, Changes, FileBody, first_other_than_zero};
use dedupfs_store::StoreError;
use dedupfs_sync::Mutex;
use serde::{Deserialize, Serialize};

use super::source::Source;
use super::{ImagePut, Result};

/// Length of a run.
const RUN_BYTES: u64 = 64 << 10;
/// Runs at least.
const RUNS_MIN: u64 = 64;
/// Runs at most: of an image of 64 TiB, every thousandth.
const RUNS_MAX: u64 = 1 << 20;
/// Ranges that differ after which no more are looked for.
const LIES_MAX: usize = 16;
/// Parts of an image that is compared as a whole.
const PART_BYTES: u64 = 64 << 20;

/// How much is compared of the content that a map calls unchanged, or zeros.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum VerifyImage {
    /// Nothing.
    None,
    /// So many millionths of the image, in runs of 64 KiB, 64 of them at least: half of them just behind changes, the others anywhere.
    Sample(u32),
    /// Everything.
    Full,
}

impl Default for VerifyImage {
    /// Half a percent.
    fn default() -> Self {
        Self::Sample(5000)
    }
}

/// A range to compare.
enum Compared {
    /// Of the base and the source, except for changes.
    Unchanged(Range<u64>),
    /// What the map calls zeros.
    Zeros(Range<u64>),
}

/// Compares the sample. Returns the first ranges that differ, in order: one of each run.
pub(super) fn compare(
    put: &ImagePut<'_>,
    body: &FileBody,
    source: &Source<'_>,
    changes: &Changes,
) -> Result<Vec<Range<u64>>> {
    // What the base lacks counts as changed.
    let size_bytes = body.size_bytes().min(source.size_bytes);
    let zeros = changes.ranges().iter().filter(|change| change.is_zero).map(|change| change.from..change.to);
    let ranges: Box<dyn Iterator<Item = Compared> + Send> = match put.options.verify {
        VerifyImage::None => return Ok(Vec::new()),
        VerifyImage::Full => {
            let zeros = zeros.flat_map(|range| parts(range).map(Compared::Zeros));
            Box::new(parts(0..size_bytes).map(Compared::Unchanged).chain(zeros))
        }
        VerifyImage::Sample(millionths) => {
            let (runs, zero_runs) = runs(size_bytes, millionths, changes, &mut random()?);
            Box::new(runs.into_iter().map(Compared::Unchanged).chain(zero_runs.into_iter().map(Compared::Zeros)))
        }
    };
    let (next, found) = (Mutex::new(ranges), Mutex::new((Vec::new(), None)));
    let work = || {
        loop {
            let is_enough = {
                let found = found.lock();
                found.1.is_some() || found.0.len() >= LIES_MAX
            };
            let Some(range) = next.lock().next().filter(|_| !is_enough) else { return };
            let difference = match range {
                Compared::Unchanged(range) => body.first_difference(source, changes, range, source.size_bytes),
                Compared::Zeros(range) => first_other_than_zero(source, range),
            };
            let mut found = found.lock();
            match difference {
                Ok(range) => found.0.extend(range),
                Err(error) => {
                    found.1.get_or_insert(error);
                }
            }
        }
    };
    dedupfs_sync::thread::scope(|scope| {
        for number in 1..put.threads {
            let thread = dedupfs_sync::thread::Builder::new().name(format!("compare-{number}"));
            if let Err(error) = thread.spawn_scoped(scope, work) {
                tracing::warn!(%error, "one thread less compares an image");
            }
        }
        work();
    });
    let (mut found, failed) = found.into_inner();
    if let Some(error) = failed {
        return Err(source.reason(error));
    }
    found.sort_unstable_by_key(|range: &Range<u64>| range.start);
    found.dedup();
    found.truncate(LIES_MAX);
    Ok(found)
}

fn parts(range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let count = (range.end - range.start).div_ceil(PART_BYTES);
    (0..count).map(move |part| {
        let from = range.start + part * PART_BYTES;
        from..(from + PART_BYTES).min(range.end)
    })
}

/// Chooses runs: half of them behind changes, as far as there are so many, and the others anywhere. The second list has those that the map
/// calls zeros: one in each of its ranges, at most half as many.
fn runs(
    size_bytes: u64,
    millionths: u32,
    changes: &Changes,
    random: &mut dyn FnMut(u64) -> u64,
) -> (Vec<Range<u64>>, Vec<Range<u64>>) {
    let bytes = u128::from(size_bytes) * u128::from(millionths) / 1_000_000;
    let count = u64::try_from(bytes / u128::from(RUN_BYTES)).unwrap_or(RUNS_MAX).clamp(RUNS_MIN, RUNS_MAX);
    let zeros: Vec<_> = changes.ranges().iter().filter(|change| change.is_zero).collect();
    let mut zero_run = |change: &Change| {
        let from = change.from + random((change.to - change.from).div_ceil(RUN_BYTES)) * RUN_BYTES;
        from..(from + RUN_BYTES).min(change.to)
    };
    let zero_runs = evenly(&zeros, count / 2).map(|change| zero_run(change)).collect();
    if count * RUN_BYTES >= size_bytes {
        return (parts(0..size_bytes).collect(), zero_runs);
    }
    let run = |from: u64| from..(from + RUN_BYTES).min(size_bytes);
    let behind = evenly(changes.ranges(), count / 2).map(|change| change.to).filter(|from| *from < size_bytes);
    let mut runs: Vec<_> = behind.map(run).collect();
    while (runs.len() as u64) < count {
        runs.push(run(random(size_bytes.div_ceil(RUN_BYTES)) * RUN_BYTES));
    }
    (runs, zero_runs)
}

/// Returns at most so many items, evenly spread.
fn evenly<T>(items: &[T], count: u64) -> impl Iterator<Item = &T> {
    let count = count.min(items.len() as u64);
    (0..count).filter_map(move |number| items.get((number * items.len() as u64 / count) as usize))
}

/// Returns a source of random numbers below a limit.
fn random() -> Result<impl FnMut(u64) -> u64> {
    let mut seed = [0; 8];
    dedupfs_sync::entropy::fill(&mut seed)
        .map_err(|error| dedupfs_base::EngineError::from(StoreError::from_io("get", "random bytes", error)))?;
    let mut state = u64::from_le_bytes(seed);
    Ok(move |limit: u64| {
        // SplitMix64.
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((u128::from(mixed ^ (mixed >> 31)) * u128::from(limit)) >> 64) as u64
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The formula of the module's head, for images of which 1% changed in clusters of 64 KiB, and maps that leave out a share of them.
    #[test]
    fn the_sample_finds_as_many_lies_as_the_formula_says() {
        const TRIALS: u64 = 20_000;
        let mut state = 1_u64;
        let mut random = |limit: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((u128::from(state >> 32) * u128::from(limit)) >> 32) as u64
        };
        for (size_bytes, left_out_percent) in [(1_u64 << 30, 100_u64), (10 << 30, 5), (10 << 30, 20)] {
            let clusters = size_bytes / RUN_BYTES;
            let changed = clusters / 100;
            let left_out = changed * left_out_percent / 100;
            let (mut found, mut runs_asked) = (0, 0);
            for _ in 0..TRIALS {
                let mut places: Vec<u64> = (0..changed).map(|_| random(clusters)).collect();
                let lies: std::collections::HashSet<u64> = places.drain(..left_out as usize).collect();
                places.retain(|place| !lies.contains(place));
                places.sort_unstable();
                places.dedup();
                let told =
                    places.iter().map(|at| Change { from: at * RUN_BYTES, to: (at + 1) * RUN_BYTES, is_zero: false });
                let told = Changes::new(told.collect()).expect("are in order");
                let (runs, _) = runs(size_bytes, 5000, &told, &mut random);
                runs_asked = runs.len() as i32;
                found += u64::from(runs.iter().any(|run| lies.contains(&(run.start / RUN_BYTES))));
            }
            let expected = 1.0 - (1.0 - left_out as f64 / clusters as f64).powi(runs_asked);
            let measured = found as f64 / TRIALS as f64;
            assert!(
                (measured - expected).abs() < 0.02,
                "{size_bytes} bytes, {left_out_percent}%: {measured} of {expected}"
            );
        }
    }

    #[test]
    fn a_sample_has_its_share_of_the_image_half_of_it_behind_changes() {
        let size_bytes = 64 << 30;
        let changes = |count: u64, is_zero| {
            let change = |number: u64| Change { from: number << 20, to: (number << 20) + 4096, is_zero };
            Changes::new((0..count).map(change).collect()).expect("are in order")
        };
        let runs = |size_bytes, millionths, changes: &Changes| super::runs(size_bytes, millionths, changes, &mut |_| 0);
        let (many, zeros) = runs(size_bytes, 5000, &changes(10_000, false));
        assert_eq!((many.len() as u64, zeros.len()), (size_bytes / 200 / RUN_BYTES, 0));
        assert_eq!(many.iter().filter(|run| run.start % (1 << 20) == 4096).count(), many.len() / 2);
        assert_eq!(runs(size_bytes, 5000, &changes(3, false)).0.iter().filter(|run| run.start != 0).count(), 3);
        assert_eq!(runs(size_bytes, 0, &changes(0, false)).0.len() as u64, RUNS_MIN);
        assert!(runs(1 << 20, 5000, &changes(0, false)).0.iter().eq(std::iter::once(&(0..1 << 20))));
        assert_eq!(runs(u64::MAX >> 1, 1_000_000, &changes(0, false)).0.len() as u64, RUNS_MAX);
        assert!(runs(0, 5000, &changes(0, false)).0.is_empty());
        let (_, zeros) = runs(size_bytes, 5000, &changes(7, true));
        assert_eq!((zeros.len(), &zeros[6]), (7, &(6 << 20..(6 << 20) + 4096)));
    }
}
