//! Images of whose changes the chunks are named.

use std::collections::HashSet;

use dedupfs_content::{NamedBytes, NamedChunk, SEALED_BYTES};
use dedupfs_store::Fingerprint;
use dedupfs_store::device::{Device, MemoryDevice};
use dedupfs_store::superblock::PoolProperties;

use super::super::super::super::tests::open;
use super::*;
use crate::pool::format_on;
use crate::upkeep::reclaim::ReclaimOptions;

/// Names the chunks of these ranges of the source, as detection in stages does.
fn name(site: &Site, ranges: &[(u64, u64)]) -> Vec<NamedChunk> {
    let cutter = site.pool.cutting().cutter().unwrap();
    let source = fs::read(site.source()).unwrap();
    let mut seen = HashSet::new();
    let mut named = Vec::new();
    for &(from, to) in ranges {
        let mut chunks = Vec::new();
        assert_eq!(cutter.cut(&source[from as usize..to as usize], true, &mut chunks), (to - from) as usize);
        let questions: Vec<u8> =
            chunks.iter().flat_map(|(print, len)| print.0.into_iter().chain(len.to_le_bytes())).collect();
        let answers = site.pool.answer_ahead(&questions).unwrap();
        let mut at = from;
        for ((fingerprint, len_bytes), answer) in chunks.into_iter().zip(answers.chunks(ANSWER_BYTES)) {
            let is_known = answer[0] == 1 || fingerprint.is_zero() || !seen.insert(fingerprint);
            let bytes = if is_known { NamedBytes::InPool } else { NamedBytes::InSource };
            let sealed: [u8; SEALED_BYTES] = answer[1..].try_into().unwrap();
            named.push(NamedChunk { at, len_bytes, fingerprint, bytes, sealed });
            at += u64::from(len_bytes);
        }
    }
    named
}

fn file_of(named: &[NamedChunk]) -> OwnedFd {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&named.iter().flat_map(encode_named).collect::<Vec<u8>>()).unwrap();
    file.into()
}

/// A file with the bytes that the named chunks call new, and nothing else of the source.
fn only_new(site: &Site, named: &[NamedChunk]) -> File {
    let source = fs::read(site.source()).unwrap();
    let file = tempfile::tempfile().unwrap();
    file.set_len(source.len() as u64).unwrap();
    for chunk in named.iter().filter(|chunk| chunk.bytes == NamedBytes::InSource) {
        file.write_all_at(&source[chunk.at as usize..][..chunk.len_bytes as usize], chunk.at).unwrap();
    }
    file
}

impl Site {
    fn put_named(
        &self,
        (image, named): (File, OwnedFd),
        (changes, how): (Option<Vec<Change>>, NamedImage),
        name: &str,
    ) -> Result<TransferReport> {
        let changes = changes.map(|changes| Changes::new(changes).unwrap());
        let options = ImageOptions { named: how, ..self.options() };
        let files = ImageFiles { image: image.into(), changes, named: Some(named) };
        self.pool.put_image(&options, files, (self.series, name.as_bytes()), &NoProgress)
    }

    fn open(&self) -> File {
        File::open(self.source()).unwrap()
    }
}

#[test]
fn chunks_that_the_pool_has_are_not_read() {
    let site = Site::new();
    let mut bytes = noise(1, 16 << 20);
    site.write(&bytes);
    site.put(&site.options(), None, "1").unwrap();
    // Content of another place, and new content.
    bytes.copy_within((8 << 20)..(10 << 20), 2 << 20);
    bytes[13 << 20..][..100_000].copy_from_slice(&noise(2, 100_000));
    site.write(&bytes);
    let named = name(&site, &[(2 * MIB, 4 * MIB), (12 * MIB, 16 * MIB)]);
    let changes = || Some(vec![data(2 * MIB, 4 * MIB), data(13 * MIB, 13 * MIB + 100_000)]);
    let put = site.put_named((site.open(), file_of(&named)), (changes(), NamedImage::Helps), "2").unwrap();
    assert_eq!(image(&put).full_because, None);
    assert!(image(&put).read_bytes < MIB, "{put:?}");
    assert_eq!(image(&put).named_bytes.unwrap() + image(&put).read_bytes, 6 * MIB);
    assert!(site.content(&put) == bytes);
    // Only chunks at the ends of ranges are cut otherwise.
    let named = name(&site, &[(0, 16 * MIB)]);
    let whole = site.put_named((only_new(&site, &named), file_of(&named)), (None, NamedImage::IsAll), "3").unwrap();
    assert!(image(&whole).read_bytes < MIB / 4, "{whole:?}");
    assert!(site.content(&whole) == bytes);
    site.check();
}

/// Answers of sealed tankers last while others are sealed.
#[test]
fn answers_given_ahead_spare_the_index() {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::new());
    let properties = PoolProperties { tanker_cells: 256, tanker_buckets: 4, ..PoolProperties::default() };
    format_on(&device, &device, b".".to_vec(), &properties, (0, 0)).unwrap();
    let mut site = Site::with(open(&device));
    site.write(&noise(1, 16 << 20));
    site.put(&site.options(), None, "1").unwrap();
    // Opening again seals full tankers.
    site.pool.close().unwrap();
    site.pool = open(&device);
    // Known chunks in segments that are not.
    let blocks: Vec<Vec<u8>> = noise(1, 16 << 20).chunks(256 << 10).map(<[u8]>::to_vec).collect();
    let bytes: Vec<u8> = (0..64).flat_map(|number| blocks[number * 29 % 64].clone()).collect();
    site.write(&bytes);
    let named = name(&site, &[(0, 16 * MIB)]);
    let tankers = site.pool.stats().unwrap().chunk_index.sealed_tankers;
    site.write(&noise(2, 8 << 20));
    site.put(&site.options(), None, "2").unwrap();
    site.pool.sync().unwrap();
    site.write(&bytes);
    let put = site.put_named((only_new(&site, &named), file_of(&named)), (None, NamedImage::IsAll), "3").unwrap();
    assert!(image(&put).read_bytes < 4 * MIB, "{put:?}");
    let ahead = site.pool.stats().unwrap().filters.into_iter().find(|filter| filter.name == "ahead").unwrap();
    assert!(tankers > 0 && ahead.asked > 0 && ahead.existing * 2 > ahead.asked, "{tankers} {ahead:?}");
    assert!(site.content(&put) == bytes);
}

/// Without the seal, the chunk would be in a recipe and nowhere else.
#[test]
fn an_answer_that_this_mount_did_not_seal_is_not_believed() {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::new());
    let properties = PoolProperties { tanker_cells: 256, tanker_buckets: 4, ..PoolProperties::default() };
    format_on(&device, &device, b".".to_vec(), &properties, (0, 0)).unwrap();
    let mut site = Site::with(open(&device));
    site.write(&noise(1, 4 << 20));
    site.put(&site.options(), None, "1").unwrap();
    site.pool.close().unwrap();
    site.pool = open(&device);
    let of_known = name(&site, &[(0, 4 * MIB)]).into_iter().find(|chunk| chunk.sealed != [0; SEALED_BYTES]).unwrap();
    let made_up = [[0; 4].as_slice(), &[1, 0, 0, 0, 0, 0, 0, 0], &[7; 8]].concat().try_into().unwrap();
    site.write(&noise(2, 100_000));
    for sealed in [of_known.sealed, made_up] {
        let mut named = name(&site, &[(0, 100_000)]);
        let unknown = &mut named[0];
        (unknown.bytes, unknown.sealed) = (NamedBytes::InPool, sealed);
        let refused = site.put_named((only_new(&site, &named), file_of(&named)), (None, NamedImage::IsAll), "2");
        assert!(matches!(refused, Err(TransferError::Pool(EngineError::ChunkGone))), "{refused:?}");
    }
    site.check();
}

#[test]
fn a_damaged_answer_costs_a_lookup_and_no_byte() {
    let site = Site::new();
    site.write(&noise(1, 4 << 20));
    site.put(&site.options(), None, "1").unwrap();
    for number in 0..4 {
        let mut named = name(&site, &[(0, 4 * MIB)]);
        for (position, chunk) in named.iter_mut().enumerate() {
            chunk.sealed[(position * 7 + number) % SEALED_BYTES] ^= 1 << number;
        }
        let put = site.put_named((site.open(), file_of(&named)), (None, NamedImage::IsAll), &format!("{number} again"));
        assert!(site.content(&put.unwrap()) == noise(1, 4 << 20));
    }
    site.check();
}

#[test]
fn a_chunk_that_went_meanwhile_is_read_or_refused() {
    let site = Site::new();
    site.write(&noise(1, 4 << 20));
    let first = site.put(&site.options(), None, "1").unwrap();
    site.write(&noise(2, 4 << 20));
    site.put(&site.options(), None, "2").unwrap();
    site.write(&noise(1, 4 << 20));
    let named = name(&site, &[(0, 4 * MIB)]);
    assert!(named.iter().all(|chunk| chunk.bytes == NamedBytes::InPool));
    site.pool.allow_forgetting(site.series, b"1", first.version.map(|version| version.ino)).unwrap();
    site.pool.service().remove_directory(site.series, b"1").unwrap();
    site.pool.reclaim(&ReclaimOptions { threshold_percent: 0, ..ReclaimOptions::default() }, &NoProgress).unwrap();
    let refused = site.put_named((only_new(&site, &named), file_of(&named)), (None, NamedImage::IsAll), "3");
    assert!(matches!(refused, Err(TransferError::Pool(EngineError::ChunkGone))), "{refused:?}");
    let put = site.put_named((site.open(), file_of(&named)), (None, NamedImage::Helps), "3").unwrap();
    assert_eq!((image(&put).read_bytes, image(&put).named_bytes), (4 * MIB, None));
    assert!(site.content(&put) == noise(1, 4 << 20));
    site.check();
}

#[test]
fn bytes_that_are_not_those_of_their_name_are_refused() {
    let site = Site::new();
    site.write(&noise(1, 4 << 20));
    let named = name(&site, &[(0, 4 * MIB)]);
    let image = only_new(&site, &named);
    image.write_all_at(b"x", 3 << 20).unwrap();
    let refused = site.put_named((image, file_of(&named)), (None, NamedImage::IsAll), "1");
    assert!(matches!(refused, Err(TransferError::Pool(EngineError::Invalid(_)))), "{refused:?}");
    assert!(site.pool.versions(Some(site.series)).unwrap().is_empty());
    site.check();
}

/// Found by review: when a map had been found wrong, its zeros came into the version by the names.
#[test]
fn regression_zeros_of_a_map_that_lies_are_read_also_by_names() {
    let site = Site::new();
    let bytes = noise(1, 4 << 20);
    site.write(&bytes);
    site.put(&site.options(), None, "1").unwrap();
    let zeros = NamedChunk {
        at: 0,
        len_bytes: 2 << 20,
        fingerprint: Fingerprint::ZERO,
        bytes: NamedBytes::InPool,
        sealed: [0; SEALED_BYTES],
    };
    let named = [vec![zeros], name(&site, &[(2 * MIB, 4 * MIB)])].concat();
    let map = || Changes::new(vec![Change { from: 0, to: 2 * MIB, is_zero: true }, data(2 * MIB, 4 * MIB)]).unwrap();
    for (number, verify, base) in [
        ("2", VerifyImage::Full, ImageBase::LastIn(site.series)),
        // Without a base nothing is compared.
        ("3", VerifyImage::None, ImageBase::None),
    ] {
        let options = ImageOptions { named: NamedImage::Helps, verify, base, ..site.options() };
        let image = site.open().into();
        let files = ImageFiles { image, changes: Some(map()), named: Some(file_of(&named)) };
        let put = site.pool.put_image(&options, files, (site.series, number.as_bytes()), &NoProgress).unwrap();
        assert!(site.content(&put) == bytes, "{put:?}");
    }
    let options = ImageOptions { named: NamedImage::IsAll, base: ImageBase::None, ..site.options() };
    let image = only_new(&site, &named).into();
    let files = ImageFiles { image, changes: Some(map()), named: Some(file_of(&named)) };
    let refused = site.pool.put_image(&options, files, (site.series, b"4"), &NoProgress);
    assert!(matches!(refused, Err(TransferError::Top(_))), "{refused:?}");
}

/// Found by review: the length of a chunk that was new in the same segment was not compared.
#[test]
fn regression_a_named_chunk_of_another_length_is_not_there() {
    let site = Site::new();
    site.write(&noise(1, 100_000));
    let mut named = name(&site, &[(0, 100_000)]);
    let first = named[0];
    let last = named.last_mut().unwrap();
    (last.fingerprint, last.bytes) = (first.fingerprint, NamedBytes::InPool);
    assert_ne!(first.len_bytes, last.len_bytes);
    let refused = site.put_named((only_new(&site, &named), file_of(&named)), (None, NamedImage::IsAll), "1");
    assert!(matches!(refused, Err(TransferError::Pool(EngineError::ChunkGone))), "{refused:?}");
    site.check();
}

#[test]
fn names_that_leave_a_change_out_are_of_no_use() {
    let site = Site::new();
    let mut bytes = noise(1, 4 << 20);
    site.write(&bytes);
    site.put(&site.options(), None, "1").unwrap();
    bytes[0] ^= 1;
    bytes[3 << 20] ^= 1;
    site.write(&bytes);
    let changes = || Some(vec![data(0, 1), data(3 * MIB, 3 * MIB + 1)]);
    let named = || name(&site, &[(0, MIB)]);
    let refused = site.put_named((site.open(), file_of(&named())), (changes(), NamedImage::IsAll), "2");
    assert!(matches!(refused, Err(TransferError::Pool(EngineError::Invalid(_)))), "{refused:?}");
    let put = site.put_named((site.open(), file_of(&named())), (changes(), NamedImage::Helps), "2").unwrap();
    assert!(site.content(&put) == bytes && image(&put).named_bytes.is_none());
    let nothing = tempfile::tempfile().unwrap().into();
    let put = site.put_named((site.open(), nothing), (None, NamedImage::Helps), "3").unwrap();
    assert!(site.content(&put) == bytes);
    let options = ImageOptions { named: NamedImage::Helps, ..site.options() };
    let without = site.put(&options, None, "4");
    assert!(matches!(without, Err(TransferError::Top(_))), "{without:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    /// A put by names has the content of a put of everything, whatever is reclaimed between the answers and the put.
    #[test]
    fn a_put_by_names_equals_one_of_everything(
        seed in any::<u64>(),
        rounds in prop::collection::vec((prop::collection::vec(edit(), 0..12), any::<bool>(), any::<bool>(), 12..21_u32), 1..4),
    ) {
        let site = Site::new();
        site.write(&noise(seed, 5 << 20));
        site.put(&site.options(), None, "0").unwrap();
        for (number, (edits, is_all, is_reclaimed, unit)) in rounds.iter().enumerate() {
            let file = File::options().read(true).write(true).open(site.source()).unwrap();
            let changes = apply(&file, edits);
            let size = file.metadata().unwrap().len();
            let mut ranges: Vec<(u64, u64)> = Vec::new();
            // The end is always among them.
            let last = Change { from: size.saturating_sub(TAIL_BYTES), to: size, is_zero: false };
            let mut wanted: Vec<Change> = changes.iter().chain((size > 0).then_some(&last)).copied().collect();
            wanted.sort_by_key(|change| change.from);
            for change in wanted {
                let unit_bytes = 1 << unit;
                let from = change.from - change.from % unit_bytes;
                let to = change.to.next_multiple_of(unit_bytes).min(size);
                match ranges.last_mut() {
                    Some(before) if from <= before.1 => before.1 = before.1.max(to),
                    _ => ranges.push((from, to)),
                }
            }
            let named = name(&site, &ranges);
            if *is_reclaimed {
                site.pool.reclaim(&ReclaimOptions { threshold_percent: 0, ..ReclaimOptions::default() }, &NoProgress).unwrap();
            }
            let (source, how) = match is_all {
                true => (only_new(&site, &named), NamedImage::IsAll),
                false => (site.open(), NamedImage::Helps),
            };
            let put = site.put_named((source, file_of(&named)), (Some(changes), how), &format!("{}", number + 1)).unwrap();
            prop_assert!(image(&put).named_bytes.is_some(), "{:?}", put);
            prop_assert!(site.content(&put) == fs::read(site.source()).unwrap(), "round {}", number);
        }
        site.check();
    }

    #[test]
    fn garbage_in_the_place_of_names_does_no_harm(
        records in prop::collection::vec((0..5 * MIB, 0..40_000_u32, any::<bool>(), any::<bool>()), 0..60), cut in 0..64_usize,
    ) {
        let site = Site::new();
        let bytes = noise(3, 4 << 20);
        site.write(&bytes);
        site.put(&site.options(), None, "0").unwrap();
        let mut text: Vec<u8> = records.iter().flat_map(|&(at, len_bytes, is_zero, is_known)| {
            let fingerprint = if is_zero { Fingerprint::ZERO } else { Fingerprint([7; 32]) };
            let bytes = if is_known { NamedBytes::InPool } else { NamedBytes::InSource };
            encode_named(&NamedChunk { at, len_bytes, fingerprint, bytes, sealed: [9; SEALED_BYTES] })
        }).collect();
        text.truncate(text.len().saturating_sub(cut));
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&text).unwrap();
        // These names cannot cover the image: it is read.
        let put = site.put_named((site.open(), file.into()), (None, NamedImage::Helps), "1").unwrap();
        prop_assert!(site.content(&put) == bytes);
    }
}
