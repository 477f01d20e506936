//! Guides to old tankers: they answer as the tankers do, are few, and are given up when they are damaged.

use std::sync::Arc;

use dedupfs_store::StoreError;
use dedupfs_store::device::OpenMode;

use super::*;
use crate::guide::{Guide, GuideFile, Guided, Key};
use crate::prefixes::Prefixes;

/// Tankers of 64 cells, with room for all filters.
const ROOMY: IndexOptions = IndexOptions { filter_bytes: 4 << 20, ..TINY };

/// Applies and checkpoints as many new cells in containers of ten, tending guides at each checkpoint.
fn grow(index: &Index, row: &mut u64, cells: std::ops::Range<u64>) {
    let numbers: Vec<u64> = cells.collect();
    for part in numbers.chunks(64) {
        *row += 1;
        let changes: Vec<_> = part.iter().map(|&number| insert(number, 1 + number / 10)).collect();
        index.apply(*row, &changes).unwrap();
        index.checkpoint(*row).unwrap();
        while index.tend_guides(&mut || true).unwrap() {
            index.checkpoint(*row).unwrap();
        }
    }
}

fn assert_has(index: &Index, cells: std::ops::Range<u64>) {
    let fingerprints: Vec<_> = cells.clone().map(fingerprint).collect();
    let mut found = Vec::new();
    index.locate_batch(&fingerprints, &mut found).unwrap();
    for (number, found) in cells.zip(found) {
        assert_eq!(found, Some(location(1 + number / 10)), "{number}");
    }
}

/// Bucket reads of lookups of so many absent fingerprints.
fn absent_reads(index: &Index, count: u64) -> u64 {
    let before = index.stats().bucket_reads;
    let absent: Vec<_> = (0..count).map(|number| fingerprint(number + (1 << 40))).collect();
    let mut found = Vec::new();
    index.locate_batch(&absent, &mut found).unwrap();
    assert!(found.iter().all(Option::is_none));
    index.stats().bucket_reads - before
}

#[test]
fn a_few_guides_lead_to_many_tankers() {
    let (disk, index) = empty(ROOMY);
    let mut row = 0;
    grow(&index, &mut row, 0..10_000);
    let stats = index.stats();
    assert!(stats.sealed_tankers > 150, "{stats:?}");
    assert!((1..=4).contains(&stats.guides) && stats.guided_tankers > stats.sealed_tankers - 16, "{stats:?}");
    assert_eq!((stats.tankers_without_filter, stats.guide_bits_per_cell), (0, 16));
    assert_has(&index, 0..10_000);
    assert!(absent_reads(&index, 10_000) < 50);
    index.self_check().unwrap();
    let cells = contents(&index);
    drop(index);
    let index = reopen(&disk, ROOMY);
    let reopened = index.stats();
    assert_eq!((reopened.guides, reopened.guided_tankers), (stats.guides, stats.guided_tankers));
    assert!(reopened.filter_bytes < stats.filter_bytes && reopened.guide_bits_per_cell == 0, "loaded behind");
    // Right before the filters are loaded.
    assert_has(&index, 0..10_000);
    assert!(absent_reads(&index, 100) > 0);
    assert!(!index.tend_guides(&mut || true).unwrap());
    assert!(index.stats().guide_bits_per_cell == 16 && absent_reads(&index, 10_000) < 50);
    assert_eq!(contents(&index), cells);
    index.self_check().unwrap();
}

/// With half of the memory, twice as many false answers: no step from few to all.
#[test]
fn fewer_bits_cost_more_reads_bit_by_bit() {
    let (disk, index) = empty(ROOMY);
    grow(&index, &mut 0, 0..6000);
    drop(index);
    let mut reads = Vec::new();
    for filter_bytes in [4 << 20, 24_000, 12_000, 6000, 3000] {
        let options = IndexOptions { filter_bytes, cache_bytes: 0, ..TINY };
        let index = reopen(&disk, options);
        index.tend_guides(&mut || true).unwrap();
        let stats = index.stats();
        assert!(stats.filter_bytes <= filter_bytes, "{stats:?}");
        assert_has(&index, 0..6000);
        reads.push((stats.guide_bits_per_cell, absent_reads(&index, 2000)));
    }
    assert!(reads.is_sorted_by(|(bits, reads), (fewer, more)| bits >= fewer && reads <= more), "{reads:?}");
    assert!(reads.iter().any(|(bits, _)| (4..16).contains(bits)), "{reads:?}");
}

/// Filters had the memory of the mount, however much the pool grew.
#[test]
fn regression_a_higher_limit_reaches_the_filters_of_guides() {
    let (_, index) = empty(IndexOptions { filter_bytes: 10_000, ..ROOMY });
    grow(&index, &mut 0, 0..6000);
    let (before, reads) = (index.stats(), absent_reads(&index, 2000));
    assert!(before.guide_bits_per_cell < 12, "{before:?}");
    index.raise_filter_limit(5000);
    assert_eq!(index.filter_limit_bytes(), 10_000, "it falls at the next opening alone");
    index.raise_filter_limit(30_000);
    index.load_guides(&mut || true);
    let after = index.stats();
    assert!(after.guide_bits_per_cell > before.guide_bits_per_cell && after.filter_bytes <= 30_000, "{after:?}");
    assert!(absent_reads(&index, 2000) < reads / 2, "of {reads}");
    assert_has(&index, 0..6000);
}

/// Filters were loaded at the next look behind the checkpoint that published a guide, and until then each new fingerprint read a page.
#[test]
fn regression_a_guide_has_its_filters_before_it_is_asked() {
    for filter_bytes in [4 << 20, 8000] {
        let (_, index) = empty(IndexOptions { filter_bytes, ..ROOMY });
        let (mut row, mut made, mut coarsest) = (0, 0, u64::MAX);
        for from in (0..10_000).step_by(64) {
            row += 1;
            let changes: Vec<_> = (from..from + 64).map(|number| insert(number, 1 + number / 10)).collect();
            index.apply(row, &changes).unwrap();
            index.checkpoint(row).unwrap();
            if !index.tend_guides(&mut || true).unwrap() {
                continue;
            }
            let unpublished = index.stats().filter_bytes;
            index.checkpoint(row).unwrap();
            let stats = index.stats();
            assert!(unpublished <= filter_bytes && stats.filter_bytes <= filter_bytes, "{unpublished}, {stats:?}");
            (made, coarsest) = (made + 1, coarsest.min(stats.guide_bits_per_cell));
            let reads = absent_reads(&index, 1000);
            assert!(reads <= 1500 >> stats.guide_bits_per_cell.min(7), "{reads} reads, {stats:?}");
        }
        assert!(
            made > 30 && if filter_bytes > 8000 { coarsest == 16 } else { (1..9).contains(&coarsest) },
            "{coarsest}"
        );
        assert_has(&index, 0..10_000);
    }
}

/// Each part of a guide keeps the bits that it has until it has others.
#[test]
fn filters_get_other_bits_part_by_part() {
    let (_, index) = empty(IndexOptions { filter_bytes: 12_000, ..ROOMY });
    grow(&index, &mut 0, 0..10_000);
    let (bits, usually) = (index.stats().guide_bits_per_cell, absent_reads(&index, 2000));
    assert!((4..12).contains(&bits), "{bits}");
    index.raise_filter_limit(18_000);
    let (mut looks, mut before) = (0, u64::MAX);
    index.load_guides(&mut || {
        looks += 1;
        let reads = absent_reads(&index, 2000);
        assert!(reads <= usually + usually / 2, "{reads} reads, {usually} with the filters before");
        before = before.min(reads);
        true
    });
    assert!(looks > 8 && before < usually / 2 && index.stats().guide_bits_per_cell >= bits + 2, "{looks} parts");
    // Ended in the middle, it goes on later.
    index.raise_filter_limit(4 << 20);
    let mut parts = 3;
    index.load_guides(&mut || {
        parts -= 1;
        parts > 0
    });
    assert!((bits..16).contains(&index.stats().guide_bits_per_cell));
    index.load_guides(&mut || true);
    assert_eq!(index.stats().guide_bits_per_cell, 16);
    assert_has(&index, 0..10_000);
}

#[test]
fn what_guides_lead_to_can_change_and_go() {
    let (disk, index) = empty(ROOMY);
    let mut row = 0;
    grow(&index, &mut row, 0..4000);
    let guides = index.stats().guides;
    // Counts, moves and removals in guided tankers.
    row += 1;
    let moved: Vec<_> = (0..300).map(|number| insert(number * 3, 7000)).collect();
    index.apply(row, &moved).unwrap();
    row += 1;
    let removed: Vec<_> = (1000..2500).map(|number| remove(number, 1 + number / 10)).collect();
    index.apply(row, &removed).unwrap();
    index.checkpoint(row).unwrap();
    index.self_check().unwrap();
    let cells = contents(&index);
    assert_eq!(cells.len(), 4000 - 1500);
    let stats = index.stats();
    assert!(stats.sealed_tankers < 62 && stats.guides == guides && stats.tankers_without_filter == 0, "{stats:?}");
    // All of it goes, and the guides with it.
    row += 1;
    let gone = |(fingerprint, cell): (&Fingerprint, &Cell)| Change::Remove {
        fingerprint: *fingerprint,
        container: cell.location.container(),
    };
    index.apply(row, &cells.iter().map(gone).collect::<Vec<_>>()).unwrap();
    index.checkpoint(row).unwrap();
    assert!(!index.tend_guides(&mut || true).unwrap());
    index.checkpoint(row + 1).unwrap();
    assert_eq!((index.stats().guides, index.len()), (0, 0), "{:?}", index.stats());
    index.self_check().unwrap();
    drop(index);
    let index = reopen(&disk, ROOMY);
    assert_eq!(index.len(), 0);
    assert!(disk.list(DIRECTORY).unwrap().iter().all(|entry| !entry.name.ends_with(".guide")));
}

/// A count, a removal and a lookup that know the container read no page of a guide: its tankers are known by their lists.
#[test]
fn regression_a_known_container_leads_to_its_tanker_without_pages_of_guides() {
    let (_disk, index) = empty(IndexOptions { cache_bytes: 0, ..ROOMY });
    let mut row = 0;
    grow(&index, &mut row, 0..4000);
    let asked: Vec<_> = (1000..1050).map(fingerprint).collect();
    let home = |item: usize| ContainerId(1 + (1000 + item as u64) / 10);
    let reads = |hint: &dyn Fn(usize) -> ContainerId| {
        let before = index.stats().bucket_reads;
        let mut sealed = index.sealed_cells_in(&asked, hint).unwrap();
        let cells = index.cells_of(&asked, &mut sealed).unwrap();
        for (item, cell) in cells.into_iter().enumerate() {
            assert_eq!(cell, Some(Cell { location: location(home(item).0), references: 0 }));
        }
        index.stats().bucket_reads - before
    };
    let (without, with) = (reads(&|_| ContainerId::NONE), reads(&home));
    let wrong = reads(&|item| ContainerId(home(item).0 + 100));
    let in_no_tanker = reads(&|_| ContainerId(u64::MAX >> 1));
    assert!(
        with + 20 < without && without < wrong && in_no_tanker == without,
        "{with} {without} {wrong} {in_no_tanker}"
    );

    let counted = |change: &dyn Fn(u64) -> Change, row: u64| {
        let before = index.stats().bucket_reads;
        index.apply(row, &(1000..1050).map(change).collect::<Vec<_>>()).unwrap();
        index.stats().bucket_reads - before
    };
    let delta = |hint: ContainerId| move |number| Change::Count { fingerprint: fingerprint(number), delta: 1, hint };
    let up = counted(&|number| delta(ContainerId(1 + number / 10))(number), row + 1);
    assert!(up <= with, "{up} {with}");
    index.checkpoint(row + 1).unwrap();
    counted(&|number| Change::Count { fingerprint: fingerprint(number), delta: -1, hint: ContainerId::NONE }, row + 2);
    index.checkpoint(row + 2).unwrap();
    assert!(counted(&|number| remove(number, 1 + number / 10), row + 3) <= with);
    index.self_check().unwrap();
}

/// A check asked the guide for each cell: as many readings of a guide as it has tankers.
#[test]
fn regression_a_check_reads_a_guide_once() {
    let (_disk, index) = empty(IndexOptions { cache_bytes: 0, ..ROOMY });
    grow(&index, &mut 0, 0..4000);
    let before = index.stats().bucket_reads;
    index.check_files().unwrap();
    assert_eq!(index.stats().bucket_reads, before, "all is read past the cache");
}

#[test]
fn ranges_of_tankers_and_guides_are_narrower_or_wider_than_their_buckets() {
    let (_disk, index) = empty(ROOMY);
    grow(&index, &mut 0, 0..600);
    let set = index.sealed_set();
    let tanker = &set.tankers()[0];
    let guide = &set.guides()[0].guide.file;
    let of = |prefixes| {
        let (mut prefixes_of_tanker, mut places) = (Vec::new(), Vec::new());
        tanker.for_each_prefix(prefixes, &mut |prefix| prefixes_of_tanker.push(prefix)).unwrap();
        guide.for_each_place(prefixes, &mut |place| places.push(place)).unwrap();
        (prefixes_of_tanker, places)
    };
    let all = of(Prefixes::ALL);
    assert!(all.0.len() == tanker.cells() as usize && all.1.len() as u64 == guide.cells());
    for ranges in [1, 2, tanker.buckets(), 4 * guide.pages()] {
        let mut together = (Vec::new(), Vec::new());
        for (prefixes, places) in Prefixes::split(ranges).map(of) {
            together.0.extend(prefixes);
            together.1.extend(places);
        }
        assert_eq!(together, all, "{ranges}");
    }
}

#[test]
fn a_guide_that_lacks_a_place_is_found() {
    let (_disk, index) = empty(ROOMY);
    grow(&index, &mut 0, 0..600);
    let set = index.sealed_set();
    let tankers: Vec<_> = set.tankers().iter().take(2).cloned().collect();
    let mut places = Vec::new();
    for (number, tanker) in (0..).zip(&tankers) {
        tanker.for_each_prefix(Prefixes::ALL, &mut |prefix| places.push((Key::of_prefix(prefix), number))).unwrap();
    }
    places.sort_unstable();
    let check = |lacking: Option<usize>, id: u64| {
        let mut places = places.clone();
        lacking.map(|lacking| places.remove(lacking));
        let (ids, cells) = (tankers.iter().map(|tanker| tanker.id).collect(), places.len() as u64);
        let file = GuideFile::write(index.writer(), (id, id), ids, cells, &mut |_| Ok(Some(places.clone())));
        let guide = Arc::new(Guide::new(file.unwrap().unwrap()));
        let position_of = |id: u64| (0..).zip(&tankers).find(|(_, tanker)| tanker.id == id).map(|(at, _)| at);
        Guided::new(guide, position_of).check_places(&tankers)
    };
    check(None, 900).unwrap();
    for (lacking, id) in [0, places.len() / 2, places.len() - 1].into_iter().zip(901..) {
        assert!(matches!(check(Some(lacking), id), Err(StoreError::Corrupt { .. })), "{lacking}");
    }
}

#[test]
fn a_guide_that_is_not_published_costs_nothing_but_its_work() {
    let (disk, index) = empty(ROOMY);
    let mut row = 0;
    for number in 0..5 {
        row += 1;
        index
            .apply(
                row,
                &(64 * number..64 * number + 64).map(|number| insert(number, 1 + number / 10)).collect::<Vec<_>>(),
            )
            .unwrap();
        index.checkpoint(row).unwrap();
    }
    let files = || disk.list(DIRECTORY).unwrap().iter().filter(|entry| entry.name.ends_with(".guide")).count();
    // Asked to stop before anything is written, and before the first range.
    assert!(!index.tend_guides(&mut || false).unwrap());
    assert_eq!((files(), index.stats().guides), (0, 0));
    let mut asked = 0;
    let mut once = || {
        asked += 1;
        asked == 1
    };
    assert!(!index.tend_guides(&mut once).unwrap());
    assert_eq!((files(), index.stats().guides), (1, 0));
    index.checkpoint(row + 1).unwrap();
    index.apply(row + 2, &[]).unwrap();
    index.checkpoint(row + 2).unwrap();
    assert_eq!(files(), 0);
    row += 2;
    assert!(index.tend_guides(&mut || true).unwrap());
    assert!(!index.tend_guides(&mut || true).unwrap(), "one waits for the checkpoint");
    assert_eq!((files(), index.stats().guides), (1, 0));
    index.remove_leftovers().unwrap();
    assert_eq!(files(), 1, "it waits");
    drop(index);
    let index = reopen(&disk, ROOMY);
    assert_eq!(index.stats().guides, 0);
    assert_has(&index, 0..320);
    index.remove_leftovers().unwrap();
    assert_eq!(files(), 0);
    grow(&index, &mut row, 320..384);
    assert!(index.stats().guides == 1 && files() == 1);
    index.self_check().unwrap();
}

/// A page of it is damaged while it is used.
#[test]
fn a_guide_found_damaged_is_made_anew() {
    let (disk, index) = empty(IndexOptions { cache_bytes: 0, ..ROOMY });
    let mut row = 0;
    grow(&index, &mut row, 0..1200);
    let mut files = disk.list(DIRECTORY).unwrap();
    files.retain(|entry| entry.name.ends_with(".guide"));
    for entry in files {
        let file = disk.open(&format!("{DIRECTORY}/{}", entry.name), OpenMode::Write).unwrap();
        file.write_at(&vec![0x5a; entry.len_bytes as usize / 2], 0).unwrap();
    }
    assert_has(&index, 0..1200);
    assert!(index.tend_guides(&mut || true).unwrap());
    index.checkpoint(row).unwrap();
    let before = index.stats().bucket_reads;
    assert_has(&index, 0..1200);
    assert!(index.stats().bucket_reads - before < 2600, "{}", index.stats().bucket_reads - before);
    index.self_check().unwrap();
}

/// Whatever byte of a guide is wrong: the index opens, and answers are right.
#[test]
fn a_damaged_guide_is_given_up_or_passed_over() {
    let (disk, index) = empty(ROOMY);
    let mut row = 0;
    grow(&index, &mut row, 0..1200);
    let (guides, cells) = (index.stats().guides, contents(&index));
    drop(index);
    let mut files = disk.list(DIRECTORY).unwrap();
    files.retain(|entry| entry.name.ends_with(".guide"));
    let name = files.into_iter().max_by_key(|entry| entry.len_bytes).unwrap().name;
    let path = format!("{DIRECTORY}/{name}");
    let file = disk.open(&path, OpenMode::Write).unwrap();
    let len_bytes = file.len().unwrap();
    let mut whole = vec![0; len_bytes as usize];
    file.read_exact_at(&mut whole, 0).unwrap();
    for at in (0..len_bytes).step_by(97).chain([len_bytes - 1]) {
        file.write_at(&[whole[at as usize] ^ 0x10], at).unwrap();
        let index = reopen(&disk, ROOMY);
        // Of its filters, or of nothing that was read.
        let _ = index.tend_guides(&mut || true);
        assert_has(&index, 0..1200);
        file.write_at(&whole[at as usize..][..1], at).unwrap();
    }
    for keep in [0, 1, 500, len_bytes / 2, len_bytes - 1] {
        file.set_len(keep).unwrap();
        let index = reopen(&disk, ROOMY);
        assert_eq!(index.stats().guides, guides - 1);
        assert_has(&index, 0..1200);
        file.write_at(&whole, 0).unwrap();
    }
    disk.remove(&path).unwrap();
    let index = reopen(&disk, ROOMY);
    assert_eq!((index.stats().guides, index.stats().tankers_without_filter), (guides - 1, 0));
    grow(&index, &mut row, 1200..1300);
    assert!(index.stats().guided_tankers > 15, "made anew: {:?}", index.stats());
    assert_eq!(contents(&index).len(), cells.len() + 100);
    index.self_check().unwrap();
}
