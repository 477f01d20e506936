//! Random histories against an obviously right model: a map and a log.

use std::collections::{BTreeMap, HashMap};

use dedupfs_store::StoreError;
use proptest::prelude::*;

use super::*;
use crate::lost::KNOWN_MAX;
use crate::moment::Moment;

const KEYS: u64 = 300;
const CONTAINERS: u64 = 12;

#[derive(Clone, Debug)]
enum Step {
    Stage(u64, u64),
    Apply(Vec<Change>),
    Checkpoint,
    /// A checkpoint begins. A later step writes the frozen state, or none does.
    Freeze,
    Write,
    /// The process ends and starts again.
    Reopen,
    /// The power fails and comes back.
    Crash(u64),
    /// As `Reopen`, but some occupancy lists were lost meanwhile, or never written.
    ReopenWithoutLists(u64),
    /// Reads the tankers without lists.
    CompleteOccupancy,
    /// Finds what is lost in sealed tankers.
    GatherLost,
    /// Loads the filters of guides, and makes the next guide.
    TendGuides,
}

fn changes() -> impl Strategy<Value = Vec<Change>> {
    let change = prop_oneof![
        5 => (0..KEYS, 1..=CONTAINERS).prop_map(|(key, container)| insert(key, container)),
        3 => (0..KEYS, -2_i64..5).prop_map(|(key, delta)| count(key, delta)),
        2 => (0..KEYS, 1..=CONTAINERS).prop_map(|(key, container)| remove(key, container)),
        1 => (0..KEYS, 1..=CONTAINERS).prop_map(|(key, container)| lose(key, container)),
    ];
    let mixed = proptest::collection::vec(change, 0..60);
    // A run of keys that arrive together, and one that is removed at once: makes tankers full, sparse, and empty.
    let burst = (0..KEYS, 1..120_u64, 1..=CONTAINERS)
        .prop_map(|(first, many, container)| (first..first + many).map(|key| insert(key % KEYS, container)).collect());
    // A fingerprint with references is not removed.
    let purge = (1..=CONTAINERS)
        .prop_map(|container| (0..KEYS).flat_map(|key| [count(key, -1000), remove(key, container)]).collect());
    prop_oneof![6 => mixed, 3 => burst, 2 => purge]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        2 => (0..KEYS, 0..=CONTAINERS).prop_map(|(key, container)| Step::Stage(key, container)),
        6 => changes().prop_map(Step::Apply),
        2 => Just(Step::Checkpoint),
        3 => Just(Step::Freeze),
        3 => Just(Step::Write),
        1 => Just(Step::Reopen),
        1 => any::<u64>().prop_map(Step::Crash),
        1 => any::<u64>().prop_map(Step::ReopenWithoutLists),
        1 => Just(Step::CompleteOccupancy),
        2 => Just(Step::GatherLost),
        3 => Just(Step::TendGuides),
    ]
}

#[derive(Default)]
struct Model {
    committed: BTreeMap<Fingerprint, Cell>,
    recent: HashMap<Fingerprint, Location>,
    log: Vec<Vec<Change>>,
}

impl Model {
    /// Applies a change; returns whether it was inconsistent.
    fn apply(&mut self, change: &Change) -> bool {
        match *change {
            Change::Insert { fingerprint, location } => {
                let references = self.committed.get(&fingerprint).map_or(0, |cell| cell.references);
                self.committed.insert(fingerprint, Cell { location, references });
                if self.recent.get(&fingerprint) == Some(&location) {
                    self.recent.remove(&fingerprint);
                }
                false
            }
            Change::Count { fingerprint, delta, .. } => match self.committed.get_mut(&fingerprint) {
                None => {
                    if delta > 0 {
                        let lost = Cell { location: Location::Lost, references: delta as u32 };
                        self.committed.insert(fingerprint, lost);
                    }
                    true
                }
                Some(cell) => {
                    let sum = i64::from(cell.references) + delta;
                    let is_known = cell.references != u32::MAX;
                    if is_known {
                        cell.references = u32::try_from(sum).unwrap_or(u32::MAX);
                    }
                    is_known && sum < 0
                }
            },
            Change::Remove { fingerprint, container } => {
                let found = self.committed.get(&fingerprint).filter(|cell| cell.location.container() == container);
                let referenced = found.is_some_and(|cell| cell.references > 0);
                if found.is_some() && !referenced {
                    self.committed.remove(&fingerprint);
                }
                if self.recent.get(&fingerprint).is_some_and(|location| location.container() == container) {
                    self.recent.remove(&fingerprint);
                }
                referenced
            }
            Change::Lose { fingerprint, container } => {
                if let Some(cell) =
                    self.committed.get_mut(&fingerprint).filter(|cell| cell.location.container() == container)
                    && !cell.location.is_lost()
                {
                    cell.location = Location::quarantined(cell.location.len_bytes());
                }
                if self.recent.get(&fingerprint).is_some_and(Location::is_lost) {
                    self.recent.remove(&fingerprint);
                }
                false
            }
            Change::Set { .. } => unreachable!("not in logs"),
        }
    }

    fn is_lost(&self, fingerprint: &Fingerprint) -> bool {
        self.committed.get(fingerprint).is_some_and(|cell| cell.location.is_lost())
    }

    fn row(&self) -> u64 {
        self.log.len() as u64
    }

    fn get(&self, fingerprint: &Fingerprint) -> Option<Cell> {
        let committed = self.committed.get(fingerprint).copied();
        let references = committed.map_or(0, |cell| cell.references);
        self.recent.get(fingerprint).map(|&location| Cell { location, references }).or(committed)
    }
}

/// Applies the rows again that the opened index lacks.
fn recover(index: &Index, model: &mut Model) {
    model.recent.clear();
    for row in index.position() + 1..=model.row() {
        // In two calls, as the engine may.
        let changes = &model.log[row as usize - 1];
        let (first, second) = changes.split_at(changes.len() / 2);
        index.apply(row, first).unwrap();
        index.apply(row, second).unwrap();
    }
}

fn compare(index: &Index, model: &Model) {
    let fingerprints: Vec<Fingerprint> = (0..KEYS + 20).map(fingerprint).collect();
    let mut found = vec![None; 3];
    index.locate_batch(&fingerprints, &mut found).unwrap();
    assert_eq!(found.len(), fingerprints.len());
    let asked = [&fingerprints[..], &[Fingerprint::ZERO]].concat();
    let cells = index.cells_of(&asked, &mut index.sealed_cells_of(&asked).unwrap()).unwrap();
    assert_eq!((cells.len(), cells.last()), (fingerprints.len() + 1, Some(&None)));
    for (fingerprint, found) in fingerprints.iter().zip(&cells) {
        assert_eq!(*found, model.get(fingerprint));
    }
    for (fingerprint, found) in fingerprints.iter().zip(found) {
        let expected = model.get(fingerprint);
        assert_eq!(found, expected.map(|cell| cell.location));
        assert_eq!(index.get(fingerprint).unwrap(), expected);
        assert_eq!(index.committed(fingerprint).unwrap(), model.committed.get(fingerprint).copied());
    }
    assert_eq!(index.len(), model.committed.len() as u64);
    let mut lost = BTreeMap::new();
    let mut each = |fingerprint, cell| {
        assert!(index.may_have_lost([&fingerprint]) && lost.insert(fingerprint, cell).is_none());
        Ok(())
    };
    index.for_each_lost(&mut each).unwrap();
    assert!(lost.iter().eq(model.committed.iter().filter(|(_, cell)| cell.location.is_lost())));
    let staged = model.recent.iter().filter(|(_, location)| location.is_lost());
    assert!(staged.map(|(fingerprint, _)| fingerprint).all(|fingerprint| index.may_have_lost([fingerprint])));
    check_unreferenced(index, &model.committed);
    if index.stats().tankers_without_occupancy == 0 {
        check_occupied(index, &placed(model.committed.values()));
    }
}

/// Answers of earlier moments, with the changes since then, are those of now.
fn compare_kept(index: &Index, model: &Model, kept: &[(Vec<Kept>, u64)]) {
    let fingerprints: Vec<Fingerprint> = (0..KEYS + 20).map(fingerprint).collect();
    for (answers, epoch) in kept {
        let Some(changes) = index.located_since(&fingerprints, *epoch).unwrap() else { continue };
        for ((fingerprint, answer), since) in fingerprints.iter().zip(answers).zip(changes) {
            let now = match since {
                Since::Now(location) => location,
                Since::AsBefore if answer.is_lasting => answer.location,
                Since::AsBefore => continue,
            };
            assert_eq!(now, model.get(fingerprint).map(|cell| cell.location));
        }
    }
}

/// Later changes, checkpoints and dissolved tankers do not show in a moment.
fn compare_moment((moment, expected): (Moment, BTreeMap<Fingerprint, Cell>)) {
    let mut found = BTreeMap::new();
    for range in Prefixes::split(3) {
        let mut each = |fingerprint, cell| {
            assert!(range.has(&fingerprint) && found.insert(fingerprint, cell).is_none());
            Ok(())
        };
        moment.for_each_in(range, &mut each).unwrap();
    }
    assert_eq!(found, expected);
    assert_eq!(moment.len(), expected.len() as u64);
}

fn run(steps: Vec<Step>, options: IndexOptions) {
    let (mut disk, mut index) = empty(options);
    // Those of an index that was closed are worth nothing.
    let (mut kept, mut moments) = (Vec::new(), Vec::new());
    let mut model = Model::default();
    let mut checkpoint = 0;
    let mut frozen = None;
    for step in steps {
        if matches!(step, Step::Reopen | Step::Crash(_) | Step::ReopenWithoutLists(_)) {
            kept.clear();
            moments.drain(..).for_each(compare_moment);
        }
        match step {
            Step::Stage(key, container) => {
                index.stage(&fingerprint(key), location(container));
                model.recent.insert(fingerprint(key), location(container));
            }
            Step::Apply(changes) => {
                let inconsistent = changes.iter().filter(|change| model.apply(change)).count() as u64;
                model.log.push(changes);
                let report = index.apply(model.row(), model.log.last().unwrap()).unwrap();
                assert_eq!(report.count, inconsistent);
            }
            Step::Checkpoint => {
                index.checkpoint(model.row()).unwrap();
                checkpoint = model.row();
                assert_eq!(index.stats().patched_cells, 0);
                assert!(index.stats().open_cells < options.sealed_cells());
            }
            Step::Freeze => {
                let row = model.row();
                frozen = Some((row, index.freeze(row).unwrap(), index.stats().checkpoints));
            }
            Step::Write => {
                if let Some((row, state, checkpoints)) = frozen.take() {
                    let overtaken = index.stats().checkpoints != checkpoints;
                    match index.write(state) {
                        Ok(()) => checkpoint = row.max(checkpoint),
                        Err(error) => assert!(overtaken && matches!(error, StoreError::Usage(_)), "{error}"),
                    }
                    assert_eq!(index.position(), checkpoint);
                }
            }
            Step::Reopen => {
                frozen = None;
                index = reopen(&disk, options);
                assert_eq!(index.position(), checkpoint);
                recover(&index, &mut model);
            }
            Step::Crash(seed) => {
                frozen = None;
                disk = disk.crash(seed);
                index = reopen(&disk, options);
                assert_eq!(index.position(), checkpoint);
                recover(&index, &mut model);
            }
            Step::ReopenWithoutLists(which) => {
                frozen = None;
                occupancy::remove_lists(&disk, |tanker| which >> (tanker % 64) & 1 == 1);
                index = reopen(&disk, options);
                recover(&index, &mut model);
            }
            Step::CompleteOccupancy => {
                complete(&index).unwrap();
                assert_eq!(index.stats().tankers_without_occupancy, 0);
            }
            Step::TendGuides => {
                index.tend_guides(&mut || true).unwrap();
            }
            Step::GatherLost => {
                index.gather_lost(&mut || true).unwrap();
                // Of what is staged, the set may have more.
                if index.lost() <= KNOWN_MAX as u64 && model.recent.is_empty() {
                    let named =
                        (0..KEYS + 20).map(fingerprint).filter(|fingerprint| index.may_have_lost([fingerprint]));
                    assert!(named.eq((0..KEYS + 20).map(fingerprint).filter(|fingerprint| model.is_lost(fingerprint))));
                }
            }
        }
        index.self_check().unwrap();
        compare(&index, &model);
        compare_kept(&index, &model, &kept);
        let fingerprints: Vec<Fingerprint> = (0..KEYS + 20).map(fingerprint).collect();
        kept.push(index.locate_to_keep(&fingerprints).unwrap());
        moments.push((index.moment(), model.committed.clone()));
    }
    assert_eq!(contents(&index), model.committed);
    moments.into_iter().for_each(compare_moment);
    complete(&index).unwrap();
    compare(&index, &model);
    assert_eq!(index.stats().tankers_without_occupancy, 0);
    assert_eq!(reopen(&disk, options).stats().tankers_without_occupancy, 0, "what was read was written");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    #[test]
    fn behaves_like_a_map_with_a_log(steps in proptest::collection::vec(step(), 1..40)) {
        run(steps, TINY);
    }

    /// Some tankers have coarse filters, some none.
    #[test]
    fn behaves_the_same_with_little_memory(steps in proptest::collection::vec(step(), 1..20)) {
        run(steps, IndexOptions { filter_bytes: 300, cache_bytes: 2000, ..TINY });
    }

    /// Tankers are sealed before they are full.
    #[test]
    fn behaves_the_same_with_little_memory_for_open_tankers(steps in proptest::collection::vec(step(), 1..20)) {
        let options = IndexOptions { open_bytes: 6000, ..TINY };
        assert!((16..32).contains(&options.sealed_cells()));
        run(steps, options);
    }

    #[test]
    fn behaves_the_same_with_one_bucket_and_no_cache(steps in proptest::collection::vec(step(), 1..20)) {
        run(steps, IndexOptions { cells_per_tanker: 10, buckets_per_tanker: 1, cache_bytes: 0, ..TINY });
    }
}
