//! The filter chain.

use dedupfs_store::profile::Component;

use super::*;
use crate::filter::{Filter, FilterChain, FilterKind, FilterPlan, OpenFilter, Query, SealedFilter, Verdict};
use crate::lookup::Means;

/// Gives the same verdict to every open entry.
struct Says(&'static str, Verdict);

impl Filter for Says {
    fn name(&self) -> &'static str {
        self.0
    }

    fn component(&self) -> Component {
        Component::CompareFilter
    }

    fn check(&self, query: &mut Query<'_>) -> dedupfs_store::Result<()> {
        for position in query.doubtful_entries().collect::<Vec<_>>() {
            query.verdicts[position] = self.1;
        }
        Ok(())
    }
}

fn chain(index: Index) -> FilterChain {
    let index = Arc::new(index);
    FilterChain::new(vec![Arc::new(OpenFilter(index.clone())), Arc::new(SealedFilter(index, Means::ALL))], Some(0))
}

#[test]
fn each_entry_is_decided_by_the_cheapest_filter_that_can() {
    let (_, index) = empty(TINY);
    index.apply(1, &(0..64).map(|number| insert(number, 1)).collect::<Vec<_>>()).unwrap();
    index.checkpoint(1).unwrap();
    index.apply(2, &[insert(100, 2), remove(5, 1)]).unwrap();
    index.stage(&fingerprint(200), location(3));
    let chain = chain(index);
    let fingerprints =
        [Fingerprint::ZERO, fingerprint(200), fingerprint(100), fingerprint(3), fingerprint(5), fingerprint(999)];
    let lengths =
        [77, location(3).len_bytes(), location(2).len_bytes(), location(1).len_bytes(), location(1).len_bytes(), 1];
    let mut query = Query::new(&fingerprints, &lengths);
    chain.run(&mut query, &[]).unwrap();
    let existing = [location(3), location(2), location(1)].map(Verdict::Existing);
    assert_eq!((query.verdicts[0], &query.verdicts[1..4]), (Verdict::BuiltIn, &existing[..]));
    assert_eq!(query.verdicts[4..], [Verdict::NonExisting; 2]);
    let stats = chain.stats();
    let figures: Vec<_> = stats.iter().map(|f| (f.name, f.asked, f.existing, f.non_existing)).collect();
    assert_eq!(figures, [("open", 6, 2, 0), ("sealed", 4, 2, 2)]);
}

#[test]
fn a_stored_chunk_of_another_length_is_not_shared() {
    let (_, index) = empty(TINY);
    index.apply(1, &[insert(1, 1)]).unwrap();
    let fingerprints = [fingerprint(1)];
    let mut query = Query::new(&fingerprints, &[5]);
    chain(index).run(&mut query, &[]).unwrap();
    assert_eq!(query.verdicts, [Verdict::NonExisting]);
}

#[test]
fn filters_of_the_query_come_first_and_final_verdicts_end_the_run() {
    let (_, index) = empty(TINY);
    let chain = chain(index);
    let fingerprints = [fingerprint(1), fingerprint(2)];
    let mut query = Query::new(&fingerprints, &[1, 1]);
    chain.run(&mut query, &[&Says("block", Verdict::NonExisting)]).unwrap();
    assert_eq!(query.verdicts, [Verdict::NonExisting; 2]);
    let strong = Verdict::StrongMaybe(location(1));
    let mut query = Query::new(&fingerprints, &[1, 1]);
    chain.run(&mut query, &[&Says("block", Verdict::WeakMaybe), &Says("cache", strong)]).unwrap();
    assert_eq!(query.verdicts, [Verdict::NonExisting; 2], "the index has the last word");
    let stats = chain.stats();
    let asked: Vec<_> = stats.iter().map(|f| (f.name, f.asked, f.non_existing)).collect();
    assert_eq!(asked, [("block", 4, 2), ("cache", 2, 0), ("open", 2, 0), ("sealed", 2, 2)]);
    assert!(!strong.is_final());
}

/// Every subset of the filters gives the same verdicts. Only the deciding filters and the reads differ.
#[test]
fn whatever_is_left_out_the_verdicts_stay_the_same() {
    let (_, index) = empty(IndexOptions { cache_bytes: 0, ..TINY });
    let changes: Vec<_> = (0..64 * 4).map(|number| insert(number, 1 + number / 64)).collect();
    index.apply(1, &changes).unwrap();
    index.checkpoint(1).unwrap();
    index.apply(2, &[insert(1000, 9), remove(5, 1)]).unwrap();
    index.stage(&fingerprint(1001), location(9));
    let index = Arc::new(index);
    let numbers: Vec<u64> = (0..256).chain([1000, 1001]).chain(2000..2200).collect();
    let mut fingerprints: Vec<_> = numbers.iter().map(|number| fingerprint(*number)).collect();
    fingerprints.push(Fingerprint::ZERO);
    let lengths: Vec<_> = (0..257)
        .map(|at| location(1 + numbers[at] / 64).len_bytes())
        .map(|len_bytes| if len_bytes > 1004 { location(9).len_bytes() } else { len_bytes })
        .chain(std::iter::repeat_n(location(9).len_bytes(), 202))
        .collect();
    assert_eq!(fingerprints.len(), lengths.len());
    let mut expected: Option<Vec<Verdict>> = None;
    for subset in 0..1_u32 << 4 {
        let chosen = FilterKind::DEFAULT.iter().enumerate().filter(|(at, _)| *at == 4 || subset >> at & 1 == 1);
        let names: Vec<_> = chosen.map(|(_, kind)| kind.name()).collect();
        let plan: FilterPlan = names.join(",").parse().unwrap();
        let chain = plan.chain(&index, || unreachable!());
        let mut query = Query::new(&fingerprints, &lengths);
        let undecided = Says("own", Verdict::Undecided);
        chain.run(&mut query, &[&undecided]).unwrap();
        assert!(query.verdicts.iter().all(Verdict::is_final), "{plan}");
        assert_eq!(*expected.get_or_insert_with(|| query.verdicts.clone()), query.verdicts, "{plan}");
        let stats = chain.stats();
        assert_eq!(
            stats.iter().map(|filter| filter.existing + filter.non_existing).sum::<u64>(),
            fingerprints.len() as u64,
            "{plan}"
        );
        let own = stats.iter().find(|filter| filter.name == "own").map_or(0, |filter| filter.asked);
        assert_eq!(own > 0, plan.has(FilterKind::Block));
        let sealed = stats.last().unwrap();
        let (reads, absent) = (sealed.reads, 201);
        assert_eq!(sealed.read_bytes > 0, reads > 0);
        // Four tankers of four buckets, and a batch reads each bucket once.
        assert!(reads <= 16 && sealed.asked >= 255 && sealed.name == "sealed", "{stats:?}");
        if let Some(bloom) = stats.iter().find(|filter| filter.name == "bloom") {
            assert!(bloom.reads == 0 && bloom.non_existing + 2 >= absent, "{stats:?}");
        }
    }
    let expected = expected.unwrap();
    assert_eq!(expected.last(), Some(&Verdict::BuiltIn));
    assert_eq!(expected[5], Verdict::NonExisting);
    assert!(expected[..257].iter().enumerate().all(|(at, verdict)| at == 5 || matches!(verdict, Verdict::Existing(_))));
}

/// The built-in fingerprint is stored nowhere. A filter that rules absent fingerprints out must leave it to `sealed`.
#[test]
fn every_order_of_the_filters_knows_the_built_in_fingerprint() {
    let (_, index) = empty(TINY);
    index.apply(1, &(0..64).map(|number| insert(number, 1)).collect::<Vec<_>>()).unwrap();
    index.checkpoint(1).unwrap();
    index.stage(&Fingerprint::ZERO, location(1));
    let index = Arc::new(index);
    let (names, mut orders) = (["block", "open", "bloom", "locality"], vec![Vec::new()]);
    for length in 0..=names.len() {
        for order in orders.iter().filter(|order| order.len() == length).cloned().collect::<Vec<_>>() {
            let left = names.iter().filter(|name| !order.contains(*name));
            orders.extend(left.map(|name| order.iter().chain([name]).copied().collect()));
        }
    }
    assert_eq!(orders.len(), 1 + 4 + 12 + 24 + 24);
    let (prints, lengths) = ([Fingerprint::ZERO, fingerprint(999), Fingerprint::ZERO], [location(1).len_bytes(), 1, 7]);
    for order in orders {
        let plan: FilterPlan = order.iter().chain(&["sealed"]).copied().collect::<Vec<_>>().join(",").parse().unwrap();
        let chain = plan.chain(&index, || unreachable!());
        for own in [Verdict::Undecided, Verdict::WeakMaybe] {
            let mut query = Query::new(&prints, &lengths);
            chain.run(&mut query, &[&Says("own", own)]).unwrap();
            assert_eq!(query.verdicts, [Verdict::BuiltIn, Verdict::NonExisting, Verdict::BuiltIn], "{plan}");
        }
    }
}
