//! Every flipped byte of every file is detected: an error, never a wrong answer, never a panic.

use dedupfs_store::StoreError;
use dedupfs_store::device::OpenMode;
use dedupfs_store::frame::{FrameKind, encode_frame};
use proptest::prelude::*;

use super::*;
use crate::manifest::Manifest;
use crate::names::FileWriter;
use crate::open::file::OpenFile;
use crate::options::SEQUENTIAL_BYTES;

const SMALL: IndexOptions = IndexOptions { cells_per_tanker: 12, buckets_per_tanker: 2, cache_bytes: 0, ..TINY };

fn sample() -> (MemoryDevice, BTreeMap<Fingerprint, Cell>) {
    let (disk, index) = empty(SMALL);
    let changes: Vec<_> = (0..30).flat_map(|number| [insert(number, 1 + number), count(number, 1)]).collect();
    index.apply(1, &changes).unwrap();
    index.checkpoint(1).unwrap();
    assert_eq!((index.stats().sealed_tankers, index.stats().open_cells), (2, 6));
    (disk, contents(&index))
}

/// Opens a damaged index and asks it everything; returns whether it noticed.
fn is_noticed(disk: &MemoryDevice, truth: &BTreeMap<Fingerprint, Cell>) -> bool {
    let device: Arc<dyn Device> = Arc::new(disk.clone());
    let damage = |error: &StoreError| {
        assert!(matches!(error, StoreError::Corrupt { .. } | StoreError::Unsupported { .. }), "{error}");
    };
    let index = match Index::open(&device, DIRECTORY, &POOL, SMALL) {
        Ok(index) => index,
        Err(error) => {
            damage(&error);
            return true;
        }
    };
    let mut noticed = false;
    for fingerprint in (0..60).map(fingerprint) {
        match index.get(&fingerprint) {
            Ok(found) => assert_eq!(found, truth.get(&fingerprint).copied(), "a wrong answer"),
            Err(error) => {
                damage(&error);
                noticed = true;
            }
        }
    }
    assert_eq!(index.self_check().is_err(), noticed, "the check finds what lookups find");
    assert_eq!(index.for_each(&mut |_, _| Ok(())).is_err(), noticed);
    noticed
}

/// Whether the file holds only data that can be made anew from another file: then damage is mended, not reported.
fn is_derived(name: &str) -> bool {
    is_summary(name) || name.ends_with(".occupancy")
}

/// Whether the file is a derived one that the manifest names and the next checkpoint writes anew.
fn is_summary(name: &str) -> bool {
    name.ends_with(".filter") || name.ends_with(".containers")
}

#[test]
fn damaged_filters_are_made_anew_and_written_by_the_next_checkpoint() {
    let (disk, truth) = sample();
    let mut mended = 0;
    for entry in disk.list(DIRECTORY).unwrap().iter().filter(|entry| is_summary(&entry.name)) {
        let path = format!("{DIRECTORY}/{}", entry.name);
        for position in (0..entry.len_bytes).step_by(3) {
            let copy = disk.crash(0);
            let file = copy.open(&path, OpenMode::Write).unwrap();
            let mut byte = [0];
            file.read_exact_at(&mut byte, position).unwrap();
            file.write_at(&[byte[0] ^ 0x10], position).unwrap();
            let index = reopen(&copy, SMALL);
            index.self_check().unwrap();
            assert_eq!(contents(&index), truth);
            assert_eq!(index.sealed_set().tankers().iter().filter(|tanker| !tanker.has_summary()).count(), 1);
            index.checkpoint(2).unwrap();
            let index = reopen(&copy, SMALL);
            assert!(index.sealed_set().tankers().iter().all(|tanker| tanker.has_summary()));
            assert!(truth.iter().all(|(fingerprint, cell)| index.get(fingerprint).unwrap() == Some(*cell)));
            mended += 1;
        }
        // A whole other filter, sound in itself, under this name.
        let copy = disk.crash(0);
        let other =
            if entry.name.starts_with("t-1") { entry.name.replace("t-1", "t-2") } else { "manifest".to_owned() };
        let bytes = copy.read_file(&format!("{DIRECTORY}/{other}"), 1 << 20).unwrap();
        copy.replace_file(DIRECTORY, &entry.name, &bytes).unwrap();
        assert!(!is_noticed(&copy, &truth));
    }
    assert!(mended > 100, "{mended}");
}

/// Filters are loaded in groups of 64: damage to some leaves their neighbours unchanged.
#[test]
fn of_many_filters_only_the_damaged_are_made_anew() {
    let options = IndexOptions { filter_bytes: 40_000, ..TINY };
    let (disk, index) = empty(options);
    index.apply(1, &(0..64 * 140).map(|number| insert(number, 1 + number / 64)).collect::<Vec<_>>()).unwrap();
    index.checkpoint(1).unwrap();
    let sound = reopen(&disk, options);
    assert_eq!((sound.stats().sealed_tankers, sound.stats().filter_bits_per_cell), (140, 24));
    let columns: Vec<_> =
        sound.sealed_set().tankers().iter().map(|tanker| tanker.filter.as_ref().unwrap().word()).collect();
    assert_eq!((columns[0], columns[64], columns[139]), ((0, 0), (0, 1), (1, 0)), "a wide group and a narrow one");
    let ids: Vec<_> = sound.sealed_set().tankers().iter().map(|tanker| tanker.id).collect();
    // From the end: pages, and then the directory; 0 is all of it.
    for (damaged, back) in
        [(vec![3], 1), (vec![70, 71, 139], 100), (vec![0, 63, 64], 300), (vec![5, 130], 700), (vec![127], 0)]
    {
        let copy = disk.crash(0);
        for &place in &damaged {
            let name = copy.list(DIRECTORY).unwrap().into_iter().map(|entry| entry.name);
            let of_it = |name: &String| name.starts_with(&format!("t-{}-", ids[place])) && name.ends_with(".filter");
            let path = format!("{DIRECTORY}/{}", name.into_iter().find(of_it).unwrap());
            let file = copy.open(&path, OpenMode::Write).unwrap();
            let position = file.len().unwrap() - back;
            if back == 0 {
                copy.remove(&path).unwrap();
                continue;
            }
            let mut byte = [0];
            file.read_exact_at(&mut byte, position).unwrap();
            file.write_at(&[byte[0] ^ 0x10], position).unwrap();
        }
        let index = reopen(&copy, options);
        let set = index.sealed_set();
        let mended: Vec<_> = (0..140).filter(|place| !set.tankers()[*place].has_summary()).collect();
        assert_eq!(mended, damaged);
        assert_eq!(index.filters.bits(), sound.filters.bits(), "bit for bit what was there");
        index.self_check().unwrap();
    }
}

#[test]
fn every_flipped_byte_is_noticed() {
    let (disk, truth) = sample();
    assert!(!is_noticed(&disk, &truth));
    let mut flipped = 0;
    for entry in disk.list(DIRECTORY).unwrap() {
        let path = format!("{DIRECTORY}/{}", entry.name);
        if is_derived(&path) {
            continue;
        }
        let bytes = disk.read_file(&path, 1 << 20).unwrap();
        let file = disk.open(&path, OpenMode::Write).unwrap();
        for (position, &byte) in bytes.iter().enumerate() {
            for mask in [0x01, 0x80, 0xff] {
                file.write_at(&[byte ^ mask], position as u64).unwrap();
                assert!(is_noticed(&disk, &truth), "byte {position} of {path} ^ {mask:#x}");
            }
            file.write_at(&[byte], position as u64).unwrap();
            flipped += 1;
        }
        for len in (0..bytes.len() as u64).step_by(13).chain([bytes.len() as u64 - 1, bytes.len() as u64 + 1]) {
            file.set_len(len).unwrap();
            assert!(is_noticed(&disk, &truth), "{path} of {len} bytes");
            file.set_len(0).unwrap();
            file.write_at(&bytes, 0).unwrap();
        }
    }
    assert!(flipped > 2000, "{flipped}");
    assert!(!is_noticed(&disk, &truth), "all mended");
}

#[test]
fn sound_files_in_each_others_place_are_noticed() {
    let (disk, truth) = sample();
    let names: Vec<_> = disk.list(DIRECTORY).unwrap().into_iter().map(|entry| entry.name).collect();
    for to in &names {
        for from in names.iter().filter(|from| *from != to) {
            let copy = disk.crash(0);
            let bytes = copy.read_file(&format!("{DIRECTORY}/{from}"), 1 << 20).unwrap();
            copy.replace_file(DIRECTORY, to, &bytes).unwrap();
            assert_eq!(is_noticed(&copy, &truth), !is_derived(to), "{from} as {to}");
        }
        let copy = disk.crash(0);
        copy.remove(&format!("{DIRECTORY}/{to}")).unwrap();
        if is_derived(to) {
            assert!(!is_noticed(&copy, &truth));
            continue;
        }
        let device: Arc<dyn Device> = Arc::new(copy);
        let error = Index::open(&device, DIRECTORY, &POOL, SMALL).unwrap_err();
        assert!(matches!(error, StoreError::NotFound { .. }) && error.to_string().contains(to.as_str()), "{error}");
    }
}

proptest! {
    #[test]
    fn manifests_with_sound_checksums_and_wild_fields_are_errors(
        meta in proptest::collection::vec(any::<u8>(), 0..120),
        payload in proptest::collection::vec(any::<u8>(), 0..120),
    ) {
        let mut meta = meta;
        // A known version now and then, so that more is decoded.
        if let Some(first) = meta.first_chunk_mut::<4>() {
            *first = [1, 0, 0, 0];
        }
        let bytes = encode_frame(FrameKind::Manifest, &POOL, 0, &meta, &payload);
        prop_assert!(Manifest::decode("manifest", &bytes, &POOL, DIRECTORY).is_err());
    }

    #[test]
    fn tanker_and_open_files_with_wild_fields_are_errors(
        meta in proptest::collection::vec(any::<u8>(), 0..60),
        payload in proptest::collection::vec(any::<u8>(), 0..200),
    ) {
        let mut meta = meta;
        if let Some(first) = meta.first_chunk_mut::<4>() {
            *first = [1, 0, 0, 0];
        }
        let (disk, truth) = sample();
        for (name, kind) in [("t-1-1.tanker", FrameKind::TankerDirectory), ("open-1.cells", FrameKind::OpenTanker)] {
            let owner = u64::from(kind == FrameKind::TankerDirectory);
            disk.replace_file(DIRECTORY, name, &encode_frame(kind, &POOL, owner, &meta, &payload)).unwrap();
        }
        prop_assert!(is_noticed(&disk, &truth));
    }
}

/// The manifest tells the file of the last checkpoint from a sound one of another attempt.
#[test]
fn an_open_tanker_is_read_only_as_the_manifest_names_it() {
    let (disk, _) = sample();
    let index = reopen(&disk, SMALL);
    let open = index.checkpointer.lock().open_file;
    assert_eq!(open.read(index.writer()).unwrap().len(), open.cells as usize);
    assert!(open.cells > 0);
    for other in [
        OpenFile { seal: open.seal ^ 1, ..open },
        OpenFile { cells: open.cells + 1, ..open },
        OpenFile { cells: open.cells - 1, ..open },
        OpenFile { bytes: open.bytes + 64, ..open },
        OpenFile { bytes: open.bytes - 64, ..open },
    ] {
        assert!(other.read(index.writer()).is_err(), "{other:?}");
    }
}

/// The files of full tankers are written in many pieces.
#[test]
fn large_files_are_written_from_start_to_end() {
    let disk = MemoryDevice::new();
    let bytes: Vec<u8> = (0..2 * SEQUENTIAL_BYTES + 1000).map(|at| (at / 1000) as u8).collect();
    let mut file = FileWriter::new(&disk, "large").unwrap();
    bytes.chunks(70_000).for_each(|piece| file.append(piece).unwrap());
    file.finish().unwrap();
    assert!(disk.read_file("large", 1 << 30).unwrap() == bytes);
}
