//! Images between a disk and a pool in memory.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use dedupfs_service::{Caller, FileService, NewNode, NodeContent, ROOT_INO};
use proptest::prelude::*;
use tempfile::TempDir;

use super::super::super::tests::{get_from, pool};
use super::*;
use crate::pool::Pool;
use crate::progress::NoProgress;
use crate::upkeep::check::CheckOptions;

mod named;

const MIB: u64 = 1 << 20;

/// A series directory.
fn series(pool: &Pool, name: &str) -> Ino {
    let node = NewNode { parent: ROOT_INO, name: name.as_bytes(), mode: 0o755, umask: 0 };
    pool.service().make(Caller::default(), node, NodeContent::Directory).unwrap().ino
}

struct Site {
    pool: Arc<Pool>,
    series: Ino,
    disk: TempDir,
}

impl Site {
    fn new() -> Self {
        Self::with(pool())
    }

    fn with(pool: Arc<Pool>) -> Self {
        let series = series(&pool, "vm7");
        Self { pool, series, disk: tempfile::tempdir().unwrap() }
    }

    fn source(&self) -> std::path::PathBuf {
        self.disk.path().join("disk.img")
    }

    fn write(&self, bytes: &[u8]) {
        fs::write(self.source(), bytes).unwrap();
    }

    fn options(&self) -> ImageOptions {
        let (base, default_file_name) = (ImageBase::LastIn(self.series), b"disk.img".to_vec());
        ImageOptions { base, default_file_name, verify: VerifyImage::None, ..ImageOptions::default() }
    }

    fn put(&self, options: &ImageOptions, changes: Option<Vec<Change>>, name: &str) -> Result<TransferReport> {
        let changes = changes.map(|changes| Changes::new(changes).unwrap());
        let source = File::open(self.source()).unwrap().into();
        self.pool.put_image(options, ImageFiles::new(source, changes), (self.series, name.as_bytes()), &NoProgress)
    }

    fn with_tokens(&self, from: Option<&str>, to: &str) -> ImageOptions {
        ImageOptions { token_from: from.map(str::to_owned), token: Some(to.to_owned()), ..self.options() }
    }

    /// The content of a version's image.
    fn content(&self, report: &TransferReport) -> Vec<u8> {
        let to = tempfile::tempdir().unwrap();
        let copy = to.path().join("copy");
        get_from(&self.pool, report.version.as_ref().unwrap().ino, &copy).unwrap();
        fs::read(copy.join("disk.img")).unwrap()
    }

    fn check(&self) {
        let report = self.pool.check(&CheckOptions::default(), &NoProgress).unwrap();
        assert!(report.is_clean(), "{report:?}");
    }
}

fn image(report: &TransferReport) -> &ImageReport {
    report.image.as_ref().unwrap()
}

fn data(from: u64, to: u64) -> Change {
    Change { from, to, is_zero: false }
}

fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    std::iter::repeat_with(next).take(len).collect()
}

/// A segment that holds a change is stored anew, with a reference to each of its chunks to count.
#[test]
fn segments_of_images_are_short() {
    let nodes = |site: &Site| {
        site.pool.sync().unwrap();
        site.pool.stats().unwrap().recipe_nodes
    };
    let site = Site::new();
    let mut bytes = noise(1, 24 << 20);
    site.write(&bytes);
    site.put(&site.options(), None, "1").unwrap();
    let before = nodes(&site);
    assert!((16..=36).contains(&before), "{before} nodes for 24 MiB");
    bytes[12 << 20] ^= 1;
    site.write(&bytes);
    site.put(&site.options(), Some(vec![data(12 * MIB, 12 * MIB + 1)]), "2").unwrap();
    // The segment, the list of segments, and the tree.
    assert!(nodes(&site) - before <= 4, "{} nodes more", nodes(&site) - before);
    site.check();
    // The list of pieces of an image of this length would take most of the budget of open files.
    let site = Site::new();
    site.write(&bytes);
    File::options().write(true).open(site.source()).unwrap().set_len(1 << 40).unwrap();
    site.put(&site.options(), None, "1").unwrap();
    assert!(nodes(&site) < 16, "{} nodes", nodes(&site));
    site.check();
}

#[test]
fn only_what_changed_is_read() {
    let site = Site::new();
    let mut bytes = noise(1, 24 << 20);
    site.write(&bytes);
    let first = site.put(&site.options(), None, "1").unwrap();
    assert_eq!(image(&first).full_because.as_deref(), Some("there is no earlier version here"));
    assert_eq!((image(&first).read_bytes, image(&first).size_bytes), (24 * MIB, 24 * MIB));
    let mut changes = Vec::new();
    for number in 0..4 {
        let from = (5 * number + 1) * MIB as usize + 12_345;
        bytes[from..from + 65_536].copy_from_slice(&noise(number as u64 + 9, 65_536));
        changes.push(data(from as u64, from as u64 + 65_536));
    }
    site.write(&bytes);
    let second = site.put(&site.options(), Some(changes), "2").unwrap();
    assert_eq!(image(&second).full_because, None);
    let read_bytes = image(&second).read_bytes;
    assert!((4 * 65_536..4 * (65_536 + 2 * 65_536)).contains(&read_bytes), "{read_bytes}");
    assert!(site.content(&second) == bytes && site.content(&first) == noise(1, 24 << 20));
    let new_bytes = second.version.as_ref().unwrap().new_bytes;
    assert!(new_bytes < 8 * 65_536, "{new_bytes}");
    // Nothing changed: nothing is read, and the content is the same.
    let third = site.put(&site.options(), Some(Vec::new()), "3").unwrap();
    assert_eq!(image(&third).read_bytes, 0);
    assert!(site.content(&third) == bytes);
    site.check();
}

#[test]
fn a_map_that_lies_is_found_and_everything_is_read() {
    let site = Site::new();
    let mut bytes = noise(1, 12 << 20);
    site.write(&bytes);
    site.put(&site.options(), None, "1").unwrap();
    bytes[5 << 20] ^= 1;
    bytes[9 << 20] ^= 1;
    site.write(&bytes);
    let changes = || Some(vec![data(9 * MIB, 9 * MIB + 4096)]);
    let blind = site.put(&site.options(), changes(), "2").unwrap();
    assert!(site.content(&blind) != bytes, "nothing was compared");
    let options = ImageOptions { base: ImageBase::LastIn(site.series), verify: VerifyImage::Full, ..site.options() };
    let seen = site.put(&options, changes(), "3").unwrap();
    let [[from, to]] = image(&seen).lies[..] else { panic!("{seen:?}") };
    assert!(from <= 5 * MIB && 5 * MIB < to && to - from < MIB, "{from} {to}");
    assert!(image(&seen).full_because.as_ref().is_some_and(|why| why.starts_with("the map of changes is wrong")));
    assert!(site.content(&seen) == bytes);
    let again = site.put(&options, Some(Vec::new()), "4").unwrap();
    assert_eq!((image(&again).lies.len(), image(&again).read_bytes, image(&again).verified_bytes), (0, 0, 12 * MIB));
    site.check();
}

/// Found by review: what a map calls zeros was neither read nor compared.
#[test]
fn regression_zeros_that_are_none_are_found() {
    let site = Site::new();
    let bytes = noise(1, 4 << 20);
    site.write(&bytes);
    site.put(&site.options(), None, "1").unwrap();
    let zeros = || Some(vec![Change { from: MIB, to: 2 * MIB, is_zero: true }]);
    for (name, verify) in [("2", VerifyImage::Full), ("3", VerifyImage::default())] {
        let put = site.put(&ImageOptions { verify, ..site.options() }, zeros(), name).unwrap();
        // The sample begins anywhere in the range.
        let first = image(&put).lies.first().map(|lie| lie[0]);
        assert!(first.is_some_and(|first| (MIB..2 * MIB).contains(&first)), "{put:?}");
        assert!(site.content(&put) == bytes);
    }
}

/// Found by review: the chunk at the new end came from the base.
#[test]
fn regression_the_end_of_a_source_that_was_cut_is_read() {
    let site = Site::new();
    site.write(&noise(1, 4 << 20));
    site.put(&site.options(), None, "1").unwrap();
    let mut bytes = noise(1, (3 << 20) + 777);
    bytes[(3 << 20) + 700] ^= 1;
    site.write(&bytes);
    let put = site.put(&site.options(), Some(Vec::new()), "2").unwrap();
    assert!(site.content(&put) == bytes && image(&put).full_because.is_none(), "{put:?}");
}

/// Found by review: a restored image kept its token, also when it was changed and put as a directory.
#[test]
fn regression_a_token_belongs_to_the_content_with_which_it_was_put() {
    let site = Site::new();
    site.write(&noise(1, 1 << 20));
    let token = |from, to| site.with_tokens(from, to);
    let first = site.put(&token(None, "one"), None, "1").unwrap();
    let restored = site.disk.path().join("restored");
    get_from(&site.pool, first.version.unwrap().ino, &restored).unwrap();
    let changed = noise(2, 1 << 20);
    fs::write(restored.join("disk.img"), &changed).unwrap();
    let version = Some(super::super::VersionOptions::default());
    let options = super::super::PutOptions { version, ..super::super::PutOptions::default() };
    let tree = File::open(&restored).unwrap().into();
    site.pool.put(&options, tree, (site.series, b"2"), &NoProgress).unwrap();
    let third = site.put(&token(Some("one"), "three"), Some(Vec::new()), "3").unwrap();
    let why = image(&third).full_because.as_deref();
    assert_eq!(why, Some("the map begins at the state one, and the base names no state"));
    assert!(site.content(&third) == noise(1, 1 << 20));
}

/// Found by review: windows that went on over others were rewritten by each thread, and read the same bytes again and again.
#[test]
fn regression_changes_within_one_byte_that_repeats_read_it_once() {
    let site = Site::new();
    let mut bytes = vec![0xFF; 48 << 20];
    site.write(&bytes);
    site.put(&site.options(), None, "1").unwrap();
    let mut changes = Vec::new();
    for number in 0..40 {
        let from = number * MIB + 4096 * number + 5;
        bytes[from as usize] = number as u8;
        changes.push(data(from, from + 1));
    }
    site.write(&bytes);
    let put = site.put(&site.options(), Some(changes), "2").unwrap();
    assert!(site.content(&put) == bytes);
    // At worst each thread reads on to the end.
    let most = 48 * MIB * (dedupfs_sync::thread::available_parallelism().unwrap().get() as u64 + 1);
    assert!(image(&put).read_bytes <= most, "{put:?}");
}

#[test]
fn the_holes_of_a_file_are_neither_read_nor_stored() {
    let site = Site::new();
    let file = File::create(site.source()).unwrap();
    file.set_len(64 << 20).unwrap();
    file.write_all_at(&noise(1, 1 << 20), 30 << 20).unwrap();
    let put = site.put(&site.options(), None, "1").unwrap();
    assert!(image(&put).read_bytes <= 2 * MIB, "{put:?}");
    assert!(site.content(&put) == fs::read(site.source()).unwrap());
    site.check();
}

#[test]
fn a_map_that_begins_at_another_state_is_not_believed() {
    let site = Site::new();
    site.write(&noise(1, 1 << 20));
    let token = |from, to| site.with_tokens(from, to);
    site.put(&token(None, "one"), None, "1").unwrap();
    let bytes = noise(2, 1 << 20);
    site.write(&bytes);
    let stale = site.put(&token(Some("zero"), "two"), Some(Vec::new()), "2").unwrap();
    let why = image(&stale).full_because.as_deref();
    assert_eq!(why, Some("the map begins at the state zero, and the base is the state one"));
    assert!(site.content(&stale) == bytes);
    let fits = site.put(&token(Some("two"), "three"), Some(Vec::new()), "3").unwrap();
    assert_eq!((image(&fits).full_because.as_ref(), image(&fits).read_bytes), (None, 0));
    site.put(&site.options(), Some(Vec::new()), "4").unwrap();
    let unknown = site.put(&token(Some("three"), "five"), Some(Vec::new()), "5").unwrap();
    let why = image(&unknown).full_because.as_deref();
    assert_eq!(why, Some("the map begins at the state three, and the base names no state"));
}

#[test]
fn without_a_base_everything_is_read_and_the_report_says_why() {
    let site = Site::new();
    site.write(&noise(1, 100_000));
    let first = site.put(&site.options(), Some(Vec::new()), "1").unwrap();
    assert_eq!(image(&first).full_because.as_deref(), Some("there is no earlier version here"));
    let gone = ImageOptions { base: ImageBase::Gone, ..site.options() };
    let gone = site.put(&gone, Some(Vec::new()), "2").unwrap();
    assert_eq!(image(&gone).full_because.as_deref(), Some("the named base does not exist"));
    // A version of a directory is no image.
    let directory = site.disk.path().join("tree");
    fs::create_dir(&directory).unwrap();
    ["a", "b"].iter().for_each(|name| fs::write(directory.join(name), name).unwrap());
    let version = Some(super::super::VersionOptions::default());
    let options = super::super::PutOptions { version, ..super::super::PutOptions::default() };
    let tree = File::open(&directory).unwrap().into();
    site.pool.put(&options, tree, (site.series, b"3"), &NoProgress).unwrap();
    let other = site.put(&site.options(), Some(Vec::new()), "4").unwrap();
    assert!(image(&other).full_because.as_ref().is_some_and(|why| why.contains("no version of an image")), "{other:?}");
    assert!([first, gone, other].iter().all(|report| site.content(report) == noise(1, 100_000)));
}

#[test]
fn what_does_not_fit_makes_nothing() {
    let site = Site::new();
    site.write(&noise(1, 100_000));
    site.put(&site.options(), None, "1").unwrap();
    let beyond = site.put(&site.options(), Some(vec![data(90_000, 100_001)]), "2");
    assert!(matches!(&beyond, Err(TransferError::Top(why)) if why.contains("100001")), "{beyond:?}");
    let directory = File::open(site.disk.path()).unwrap().into();
    let directory =
        site.pool.put_image(&site.options(), ImageFiles::new(directory, None), (site.series, b"2"), &NoProgress);
    assert!(matches!(&directory, Err(TransferError::Top(why)) if why.contains("neither")), "{directory:?}");
    let taken = site.put(&site.options(), Some(Vec::new()), "1");
    assert!(matches!(taken, Err(TransferError::Pool(EngineError::Exists))), "{taken:?}");
    assert!(site.put(&site.options(), Some(Vec::new()), "2").is_ok());
    for changes in [vec![data(5, 5)], vec![data(5, 9), data(8, 10)], vec![data(10, 20), data(0, 5)]] {
        assert!(Changes::new(changes).is_err());
    }
}

/// Cuts the source when it is read for the second time.
struct Cutting<'a>(&'a Path, std::sync::atomic::AtomicU64);

impl Progress for Cutting<'_> {
    fn start(&self, _: &str, _: u64) {}
    fn advance(&self, _: u64) {
        if self.1.fetch_add(1, std::sync::atomic::Ordering::Relaxed) == 2 {
            File::options().write(true).open(self.0).unwrap().set_len(MIB).unwrap();
        }
    }
    fn finish(&self) {}
}

#[test]
fn a_source_that_is_cut_or_changed_meanwhile_is_told() {
    let site = Site::new();
    site.write(&noise(1, 16 << 20));
    let source = site.source();
    let from = File::open(&source).unwrap().into();
    let cut = site.pool.put_image(
        &site.options(),
        ImageFiles::new(from, None),
        (site.series, b"1"),
        &Cutting(&source, 0.into()),
    );
    assert!(matches!(&cut, Err(TransferError::Top(why)) if why.contains("cut while it was read")), "{cut:?}");
    assert!(site.pool.versions(Some(site.series)).unwrap().is_empty());
    site.check();
}

/// The content of the source after some changes, with its changed ranges.
#[derive(Clone, Debug)]
enum Edit {
    Write {
        at: u64,
        len: u64,
        seed: u64,
    },
    Zero {
        at: u64,
        len: u64,
    },
    /// The map names it, and it did not change.
    Idle {
        at: u64,
        len: u64,
    },
    Resize(u64),
}

fn edit() -> impl Strategy<Value = Edit> {
    let at = || 0..6 * MIB;
    prop_oneof![
        4 => (at(), prop_oneof![1..2000_u64, 50_000..200_000_u64], any::<u64>()).prop_map(|(at, len, seed)| Edit::Write { at, len, seed }),
        2 => (at(), prop_oneof![1..5000_u64, 60_000..3 * MIB]).prop_map(|(at, len)| Edit::Zero { at, len }),
        1 => (at(), 1..300_000_u64).prop_map(|(at, len)| Edit::Idle { at, len }),
        1 => (0..7 * MIB).prop_map(Edit::Resize),
    ]
}

/// Applies edits to a sparse file. Returns the map of changes.
fn apply(file: &File, edits: &[Edit]) -> Vec<Change> {
    let mut kinds = std::collections::BTreeMap::<u64, Option<bool>>::new();
    let mut size = file.metadata().unwrap().len();
    // Of each block of 512 bytes: unchanged, zero, or other.
    let mut note = |from: u64, to: u64, is_zero: bool| {
        for block in from / 512..to.div_ceil(512) {
            let is_whole = from <= block * 512 && (block + 1) * 512 <= to;
            kinds.insert(block, Some(is_zero && is_whole));
        }
    };
    for edit in edits {
        match *edit {
            Edit::Write { at, len, seed } => {
                let len = len.min(size.saturating_sub(at));
                file.write_all_at(&noise(seed, len as usize), at).unwrap();
                note(at, at + len, false);
            }
            Edit::Zero { at, len } => {
                let len = len.min(size.saturating_sub(at));
                if len > 0 {
                    let flags = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
                    rustix::fs::fallocate(file, flags, at, len).unwrap();
                }
                note(at, at + len, true);
            }
            Edit::Idle { at, len } => note(at, (at + len).min(size).max(at), false),
            Edit::Resize(to) => {
                file.set_len(to).unwrap();
                if to > size {
                    note(size, to, true);
                }
                size = to;
            }
        }
    }
    let mut changes: Vec<Change> = Vec::new();
    for (block, is_zero) in kinds {
        let (from, to) = (block * 512, ((block + 1) * 512).min(size));
        let Some(is_zero) = is_zero.filter(|_| from < to) else { continue };
        match changes.last_mut() {
            Some(last) if last.to == from && last.is_zero == is_zero => last.to = to,
            _ => changes.push(Change { from, to, is_zero }),
        }
    }
    changes
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// A put of changes has the content of a put of everything, and nearly always its recipe.
    #[test]
    fn a_put_of_changes_equals_one_of_everything(
        seed in any::<u64>(), rounds in prop::collection::vec(prop::collection::vec(edit(), 0..12), 1..4),
    ) {
        let site = Site::new();
        site.write(&noise(seed, 5 << 20));
        site.put(&site.options(), None, "0").unwrap();
        for (number, edits) in rounds.iter().enumerate() {
            let file = File::options().read(true).write(true).open(site.source()).unwrap();
            let changes = apply(&file, edits);
            let report = site.put(&site.options(), Some(changes), &format!("{}", number + 1)).unwrap();
            prop_assert_eq!(&image(&report).full_because, &None);
            let expected = fs::read(site.source()).unwrap();
            prop_assert!(site.content(&report) == expected, "round {}", number);
            let verified = ImageOptions { verify: VerifyImage::Full, ..site.options() };
            let verified = site.put(&verified, Some(Vec::new()), &format!("{} again", number + 1)).unwrap();
            prop_assert!(image(&verified).lies.is_empty() && image(&verified).read_bytes == 0);
        }
        site.check();
    }
}

/// The ways in which maps of changes are wrong.
#[derive(Clone, Copy, Debug)]
enum Lie {
    /// So many percent of the changes are left out, at least one.
    Omits(u64),
    /// Everything is so many blocks of 4 KiB later.
    Shifted(u64),
    /// The map of the round before.
    Foreign,
    Empty,
    /// Data is called zeros.
    Zeros,
    /// The map is right, and begins at another state than that of the base.
    Stale,
}

fn lie() -> impl Strategy<Value = Lie> {
    prop_oneof![
        3 => (1..100_u64).prop_map(Lie::Omits),
        2 => (1..64_u64).prop_map(Lie::Shifted),
        1 => Just(Lie::Foreign), 1 => Just(Lie::Empty), 1 => Just(Lie::Zeros), 1 => Just(Lie::Stale),
    ]
}

impl Lie {
    fn tell(self, truth: &[Change], before: &[Change], size: u64) -> Vec<Change> {
        let within = |changes: Vec<Change>| -> Vec<Change> {
            let cut = changes.into_iter().map(|change| Change { to: change.to.min(size), ..change });
            cut.filter(|change| change.from < change.to).collect()
        };
        match self {
            Self::Omits(percent) => {
                let kept = (truth.len() as u64 * (100 - percent) / 100).min(truth.len().saturating_sub(1) as u64);
                let is_kept =
                    |number: u64| number * kept / truth.len() as u64 != (number + 1) * kept / truth.len() as u64;
                let numbered = truth.iter().enumerate().filter(|(number, _)| is_kept(*number as u64));
                numbered.map(|(_, change)| *change).collect()
            }
            Self::Shifted(blocks) => {
                let shift = |change: &Change| Change {
                    from: change.from + blocks * 4096,
                    to: change.to + blocks * 4096,
                    ..*change
                };
                within(truth.iter().map(shift).collect())
            }
            Self::Foreign => within(before.to_vec()),
            Self::Empty => Vec::new(),
            Self::Zeros => truth.iter().map(|change| Change { is_zero: true, ..*change }).collect(),
            Self::Stale => truth.to_vec(),
        }
    }
}

/// Histories that are tried: `DEDUPFS_LYING_MAPS`.
fn histories() -> u32 {
    std::env::var("DEDUPFS_LYING_MAPS").map_or(24, |number| number.parse().unwrap())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(histories()))]
    /// Whatever a map says, an image that is compared as a whole is the source. A map that is empty although something changed is told if
    /// the size is the same (the end of a shorter image is read in any case), and so is another state; a true map is never called a lie.
    #[test]
    fn no_lie_of_a_map_leaves_a_wrong_byte_in_an_image_that_is_compared(
        seed in any::<u64>(),
        rounds in prop::collection::vec((prop::collection::vec(edit(), 1..12), lie()), 1..4),
    ) {
        let site = Site::new();
        site.write(&noise(seed, 5 << 20));
        site.put(&site.with_tokens(None, "0"), None, "0").unwrap();
        let mut before = Vec::new();
        for (number, (edits, lie)) in rounds.iter().enumerate() {
            let old = fs::read(site.source()).unwrap();
            let file = File::options().read(true).write(true).open(site.source()).unwrap();
            let truth = apply(&file, edits);
            let source = fs::read(site.source()).unwrap();
            let told = lie.tell(&truth, &before, source.len() as u64);
            let (from, to) = (number.to_string(), (number + 1).to_string());
            let from = if matches!(lie, Lie::Stale) { "another" } else { &from };
            let options = ImageOptions { verify: VerifyImage::Full, ..site.with_tokens(Some(from), &to) };
            let report = site.put(&options, Some(told.clone()), &to).unwrap();
            prop_assert!(site.content(&report) == source, "round {}, {:?}", number, lie);
            // What the map makes of the base. Around changes and a moved end, a lie is read and not noticed.
            let is_resized = old.len() != source.len();
            let mut believed = old;
            believed.extend(source.get(believed.len()..).unwrap_or_default());
            believed.truncate(source.len());
            for change in &told {
                let range = change.from as usize..change.to as usize;
                if change.is_zero { believed[range].fill(0) } else { believed[range.clone()].copy_from_slice(&source[range]) }
            }
            let (is_stale, matters) = (matches!(lie, Lie::Stale), believed != source);
            let is_read_anyway = is_resized || !told.is_empty();
            let found = image(&report);
            prop_assert!(found.full_because.is_none() || is_stale || matters, "round {}, {:?}: {:?}", number, lie, found);
            prop_assert_eq!(found.full_because.is_some(), is_stale || !found.lies.is_empty());
            prop_assert!(is_read_anyway || found.full_because.is_some() || !matters, "round {}, {:?}", number, lie);
            before = truth;
        }
        site.check();
    }
}

#[test]
fn the_image_keeps_the_attributes_of_its_source_and_its_token() {
    let site = Site::new();
    let mut file = File::create(site.source()).unwrap();
    file.write_all(&noise(1, 10_000)).unwrap();
    let options = ImageOptions {
        token: Some("t1".to_owned()),
        origin: Origin { source: b"/dev/vg/vm7".to_vec(), host: b"h".to_vec() },
        ..site.options()
    };
    let report = site.put(&options, None, "1").unwrap();
    let version = report.version.unwrap().ino;
    let service = site.pool.service();
    let found = service.lookup(version, b"disk.img").unwrap();
    let value = |name: &[u8]| service.xattr(found.ino, name).unwrap();
    assert_eq!((value(TOKEN_XATTR), value(SOURCE_XATTR)), (b"t1".to_vec(), b"/dev/vg/vm7".to_vec()));
    assert!(String::from_utf8(value(CHECKED_XATTR)).unwrap().parse::<i64>().is_ok());
    let infos = site.pool.versions(Some(site.series)).unwrap();
    assert_eq!((infos.len(), infos[0].files, &*infos[0].source), (1, 1, "/dev/vg/vm7"));
}
