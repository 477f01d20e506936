//! A series through all stores: every version is backed up, and only the last ones are kept.

use super::categories::Layout;
use super::disk::Disk;
use super::restore::{Restore, from_categories, from_containers};
use super::store::{Collection, Moved, Rewriting, Store};
use super::trace::Trace;

/// Shares of a container and of a version for HAR, as in its paper.
const HAR: Rewriting = Rewriting::Har { utilization: 0.5, limit: 0.05 };

/// Settings that the paper does not give, or that a user may change.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Versions kept.
    pub kept: usize,
    /// Bytes of a container.
    pub container_bytes: u64,
    /// Bytes of a segment, for capping.
    pub segment_bytes: u64,
    /// Old containers that a segment may use.
    pub cap: usize,
    /// Containers in memory during a restore.
    pub cache: usize,
    /// The disk of the model.
    pub disk: Disk,
}

/// The results of a store of containers.
#[derive(Debug)]
pub struct Outcome {
    /// Bytes of the versions kept for a byte stored, with perfect GC: the actual deduplication ratio.
    pub ratio: f64,
    /// The same if only whole containers are freed.
    pub ratio_of_marker: f64,
    /// The work of perfect GC, all in all.
    pub collected: Moved,
    /// Restores of the versions kept, oldest first.
    pub restores: Vec<Restore>,
}

/// The results of MFDedup.
#[derive(Debug)]
pub struct Arranged {
    /// As in [`Outcome`].
    pub ratio: f64,
    /// The work of arranging behind the versions after which one was removed.
    pub moved_when_full: Moved,
    /// Bytes read and written by arranging for each byte stored newly, without the first version.
    pub moved_for_new: f64,
    /// As in [`Outcome`].
    pub restores: Vec<Restore>,
    /// Bytes of each volume when it was made.
    pub volumes: Vec<u64>,
    /// The largest active category in the end, as a share of the last version.
    pub largest_active: f64,
    /// Bytes that go with the oldest version kept, and with the middle one alone.
    pub freed: [u64; 2],
}

/// Backs a series up into containers. Returns the results.
pub fn containers(trace: &Trace, settings: &Settings, rewriting: Rewriting) -> Outcome {
    let fill = |collection| {
        let mut store = Store::new(trace, settings.container_bytes, rewriting);
        let mut moved = Moved::default();
        for (number, chunks) in trace.versions.iter().enumerate() {
            store.back_up(chunks);
            if number >= settings.kept {
                store.remove_oldest();
                moved += store.collect(collection);
            }
        }
        (store, moved)
    };
    let kept = kept(trace, settings);
    let ratio = |store: &Store<'_>| kept_bytes(trace, settings) as f64 / store.stored_bytes() as f64;
    let ratio_of_marker = ratio(&fill(Collection::WholeContainers).0);
    let (store, moved) = fill(Collection::Perfect);
    let restore = |(at, chunks): (usize, &Vec<u32>)| from_containers(&store, at, trace.bytes(chunks), settings.cache);
    let restores = kept.iter().enumerate().map(restore).collect();
    Outcome { ratio: ratio(&store), ratio_of_marker, collected: moved, restores }
}

/// Returns the results of exact deduplication, HAR and capping.
pub fn rivals(trace: &Trace, settings: &Settings) -> [Outcome; 3] {
    let capping = Rewriting::Capping { cap: settings.cap, segment_bytes: settings.segment_bytes };
    [Rewriting::None, HAR, capping].map(|rewriting| containers(trace, settings, rewriting))
}

/// Backs a series up into categories. Returns the results.
pub fn categories(trace: &Trace, settings: &Settings) -> Arranged {
    let mut layout = Layout::new(trace);
    let (mut moved_bytes, mut moved_when_full, mut new, mut volumes) = (0, Moved::default(), 0, Vec::new());
    for (number, chunks) in (1..).zip(&trace.versions) {
        let (new_bytes, now) = layout.back_up(chunks);
        if number > 1 {
            (moved_bytes, new) = (moved_bytes + now.bytes(), new + new_bytes);
            volumes.push(layout.volume_bytes(number - 1));
        }
        if number as usize > settings.kept {
            moved_when_full += now;
            layout.remove(number - settings.kept as u32);
        }
    }
    let kept = kept(trace, settings);
    let first = (trace.versions.len() - kept.len()) as u32 + 1;
    let restore = |(number, chunks): (u32, &Vec<u32>)| from_categories(&layout, number, trace.bytes(chunks));
    let restores = (first..).zip(kept).map(restore).collect();
    let largest = layout.largest_active_bytes() as f64;
    let last_bytes = kept.last().map_or(0, |chunks| trace.bytes(chunks));
    let ratio = kept_bytes(trace, settings) as f64 / layout.stored_bytes() as f64;
    let moved_for_new = moved_bytes as f64 / new as f64;
    // Each volume loses its own part, but for chunks that these two alone use: they go with the second.
    let middle = layout.remove(first + (kept.len() as u32 - 1) / 2);
    let freed = [layout.remove(first), middle];
    let largest_active = largest / last_bytes as f64;
    Arranged { ratio, moved_when_full, moved_for_new, restores, volumes, largest_active, freed }
}

fn kept<'a>(trace: &'a Trace, settings: &Settings) -> &'a [Vec<u32>] {
    &trace.versions[trace.versions.len().saturating_sub(settings.kept)..]
}

fn kept_bytes(trace: &Trace, settings: &Settings) -> u64 {
    kept(trace, settings).iter().map(|chunks| trace.bytes(chunks)).sum()
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    /// Versions that are made of the one before by changes in places, as backups are. Old chunks return.
    fn traces() -> impl Strategy<Value = Trace> {
        let edits = prop::collection::vec((any::<prop::sample::Index>(), 0..60_u32, any::<bool>()), 0..8);
        let first = prop::collection::vec(0..60_u32, 1..40);
        let lens = prop::collection::vec(1..50_u32, 60);
        (lens, first, prop::collection::vec(edits, 1..12)).prop_map(|(lens, first, edits)| {
            let mut versions = vec![first];
            for edits in edits {
                let mut next = versions.last().cloned().unwrap_or_default();
                for (at, chunk, is_new) in edits {
                    let at = at.index(next.len());
                    if is_new { next.insert(at, chunk) } else { next[at] = chunk }
                }
                versions.push(next);
            }
            Trace { lens, versions }
        })
    }

    proptest! {
        #[test]
        fn every_store_restores_each_version_kept(
            trace in traces(), kept in 1..6_usize, container_bytes in 20..200_u64, cap in 1..4_usize, is_perfect: bool,
        ) {
            let collection = if is_perfect { Collection::Perfect } else { Collection::WholeContainers };
            for rewriting in [Rewriting::None, HAR, Rewriting::Capping { cap, segment_bytes: 300 }] {
                let mut store = Store::new(&trace, container_bytes, rewriting);
                for (number, chunks) in trace.versions.iter().enumerate() {
                    store.back_up(chunks);
                    if number >= kept {
                        store.remove_oldest();
                        store.collect(collection);
                    }
                    let oldest = (number + 1).saturating_sub(kept);
                    for (at, chunks) in trace.versions[oldest..=number].iter().enumerate() {
                        let expected: Vec<_> = chunks.iter().copied().map(Some).collect();
                        prop_assert_eq!(store.read(at), expected);
                    }
                }
            }
        }

        #[test]
        fn categories_restore_each_version_kept_and_nothing_is_read_in_vain(
            trace in traces(), kept in 1..6_u32, removed in prop::collection::vec(any::<prop::sample::Index>(), 0..4),
        ) {
            let mut layout = Layout::new(&trace);
            for (number, chunks) in (1..).zip(&trace.versions) {
                layout.back_up(chunks);
                if number > kept {
                    layout.remove(number - kept);
                }
            }
            let newest = trace.versions.len() as u32;
            let mut there: Vec<u32> = (newest.saturating_sub(kept) + 1..=newest).collect();
            for index in removed {
                // Any but the newest.
                if there.len() > 1 {
                    layout.remove(there.remove(index.index(there.len() - 1)));
                }
            }
            for version in &there {
                // Each place is written once, from a chunk that was read.
                let chunks = &trace.versions[*version as usize - 1];
                let mut places: HashMap<u32, Vec<usize>> = HashMap::new();
                chunks.iter().enumerate().for_each(|(place, chunk)| places.entry(*chunk).or_default().push(place));
                let mut restored = vec![None; chunks.len()];
                for chunk in layout.read(*version) {
                    let places = places.remove(&chunk);
                    prop_assert!(places.is_some(), "chunk {} of version {} was read in vain", chunk, version);
                    places.unwrap_or_default().into_iter().for_each(|place| restored[place] = Some(chunk));
                }
                prop_assert_eq!(restored, chunks.iter().copied().map(Some).collect::<Vec<_>>());
            }
            for last in 1..=newest {
                for (first, _) in layout.volume(last) {
                    let is_used = there.iter().any(|version| (first..=last).contains(version));
                    prop_assert!(is_used, "no version uses the category ({first}, {last})");
                }
            }
        }

        #[test]
        fn exact_deduplication_stores_least(trace in traces(), kept in 1..6_usize, container_bytes in 20..200_u64) {
            let disk = Disk { seek_seconds: 0.01, bytes_per_second: 1e6 };
            let settings = Settings { kept, container_bytes, segment_bytes: 300, cap: 2, cache: 3, disk };
            let [exact, har, capping] = rivals(&trace, &settings);
            let arranged = categories(&trace, &settings);
            for ratio in [arranged.ratio, har.ratio, capping.ratio, exact.ratio_of_marker] {
                prop_assert!(ratio <= exact.ratio + 1e-9, "{} is better than {}", ratio, exact.ratio);
            }
            let mut distinct: Vec<u32> = super::kept(&trace, &settings).concat();
            distinct.sort_unstable();
            distinct.dedup();
            let expected = kept_bytes(&trace, &settings) as f64 / trace.bytes(&distinct) as f64;
            prop_assert!((exact.ratio - expected).abs() < 1e-9);
            prop_assert!(arranged.restores.iter().all(|restore| restore.amplification() <= 1.0));
        }
    }
}
