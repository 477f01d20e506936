//! Inconsistent namespaces, and sources that are not trees of files: copying ends, reports, and writes nowhere else.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use dedupfs_service::{Caller, FileKind, FileService, Ino, Listing, NewNode, NodeContent};
use rustix::fs::{AtFlags, Mode};

use super::directory::open_at;
use super::tests::{BOTH, get_from, get_with, lookup, pool, put_as, staging};
use super::*;
use crate::pool::Pool;
use crate::progress::{NoProgress, Progress};
use crate::upkeep::check::CheckOptions;

/// Cancels a transfer that does not end by itself.
struct Deadline(Instant);

impl Deadline {
    fn new() -> Self {
        Self(Instant::now() + Duration::from_secs(20))
    }
}

impl Progress for Deadline {
    fn start(&self, _what: &str, _total: u64) {}
    fn advance(&self, _by: u64) {}
    fn finish(&self) {}
    fn is_cancelled(&self) -> bool {
        Instant::now() > self.0
    }
}

fn make(pool: &Pool, parent: Ino, name: &[u8], content: NodeContent<'_>) -> Ino {
    let node = NewNode { parent, name, mode: 0o755, umask: 0 };
    let ino = pool.service().make(Caller::default(), node, content).unwrap().ino;
    pool.service().forget(ino, 1);
    ino
}

fn make_directory(pool: &Pool, parent: Ino, name: &[u8]) -> Ino {
    make(pool, parent, name, NodeContent::Directory)
}

fn names(path: &Path) -> BTreeSet<String> {
    fs::read_dir(path).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

/// Found by an attack: such a directory was entered without end.
#[test]
fn regression_a_directory_that_contains_itself_is_told_and_left_out() {
    let (pool, out) = (pool(), tempfile::tempdir().unwrap());
    let tree = staging(&pool);
    let one = make_directory(&pool, tree, b"one");
    let two = make_directory(&pool, one, b"two");
    make(&pool, two, b"link", NodeContent::Symlink(b"target"));
    let namespace = &pool.core().namespace;
    for (name, ino) in [(b"tree".as_slice(), tree), (b"one", one), (b"itself", two)] {
        namespace.force_name(two, name, ino, None);
    }
    // One directory twice in another: all below it would be copied twice, and below the next level four times.
    namespace.force_name(tree, b"second", one, None);
    assert!(!pool.check(&CheckOptions::default(), &NoProgress).unwrap().is_clean());
    let report = get_with(&pool, tree, &out.path().join("out"), &Deadline::new()).unwrap();
    assert_eq!((report.problem_count, report.directories, report.others), (4, 3, 1), "{report:?}");
    assert!(report.problems.iter().all(|problem| problem.what.contains("fsck")), "{report:?}");
    assert_eq!(names(out.path()), ["out".to_owned()].into());
    let link = fs::read_link(out.path().join("out/one/two/link"))
        .or_else(|_| fs::read_link(out.path().join("out/second/two/link")));
    assert_eq!(link.unwrap(), Path::new("target"));
}

/// Found by an attack: a client that asked the daemon without the tool could leave the directory sent with the request.
#[test]
fn regression_the_new_name_leads_nowhere_else() {
    let (pool, out) = (pool(), tempfile::tempdir().unwrap());
    let tree = staging(&pool);
    let file = lookup(&pool, tree, b"tree").err();
    assert!(file.is_some());
    fs::create_dir(out.path().join("inner")).unwrap();
    let absolute = out.path().join("absolute");
    let long = [b'x'; 256];
    let bad: [&[u8]; 9] =
        [b"../x", b"..", b".", b"", b"a/b", b"/x", b"a\0b", &long, absolute.as_os_str().as_encoded_bytes()];
    for name in bad {
        let to = OwnedFd::from(File::open(out.path().join("inner")).unwrap());
        let error = get(&pool.service(), tree, (to, name), &Patterns::default(), &NoProgress).unwrap_err();
        assert!(matches!(error, TransferError::Pool(_)), "{error}");
        let from = OwnedFd::from(File::open(out.path()).unwrap());
        let into = (tree, name);
        assert!(put(pool.core(), &pool.service(), &PutOptions::default(), from, into, &NoProgress).is_err());
    }
    assert_eq!(names(out.path()), ["inner".to_owned()].into());
    assert!(names(&out.path().join("inner")).is_empty());
}

/// Descriptors of a kind that does not fit the request.
#[test]
fn descriptors_of_another_kind_are_refused() {
    let (pool, out) = (pool(), tempfile::tempdir().unwrap());
    let tree = staging(&pool);
    fs::write(out.path().join("file"), b"content").unwrap();
    let write_only = || OwnedFd::from(File::options().append(true).open(out.path().join("file")).unwrap());
    let pipe = || OwnedFd::from(std::io::pipe().unwrap().0);
    let device = || OwnedFd::from(File::open("/dev/zero").unwrap());
    for other in [write_only(), pipe(), device()] {
        assert!(get(&pool.service(), tree, (other, b"new"), &Patterns::default(), &NoProgress).is_err());
    }
    for other in [write_only(), pipe(), device()] {
        let into = (tree, b"new".as_slice());
        assert!(put(pool.core(), &pool.service(), &PutOptions::default(), other, into, &Deadline::new()).is_err());
    }
    assert_eq!(names(out.path()), ["file".to_owned()].into());
    assert!(pool.service().read_directory(tree, 0, 10, Listing::Names).unwrap().is_empty());
    assert!(pool.check(&CheckOptions::default(), &NoProgress).unwrap().is_clean());
}

/// Makes a chain of directories by descriptors: a path would be too long.
fn make_deep(top: &Path, levels: usize) {
    let mut at = OwnedFd::from(File::open(top).unwrap());
    for _ in 0..levels {
        rustix::fs::mkdirat(&at, c"d", Mode::RWXU).unwrap();
        // A second directory at each level: the walk returns to all of them.
        rustix::fs::mkdirat(&at, c"e", Mode::RWXU).unwrap();
        at = open_at(&at, c"d").unwrap();
    }
}

/// Removes a chain from below; returns its levels.
fn remove_deep(top: &Path) -> usize {
    let mut at = OwnedFd::from(File::open(top).unwrap());
    let mut levels = 0;
    while let Ok(below) = open_at(&at, c"d") {
        (at, levels) = (below, levels + 1);
    }
    for _ in 0..levels {
        at = open_at(&at, c"..").unwrap();
        for name in [c"d", c"e"] {
            rustix::fs::unlinkat(&at, name, AtFlags::REMOVEDIR).unwrap();
        }
    }
    levels
}

fn open_descriptors() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

/// The largest number of descriptors open at once.
struct Watching(std::sync::atomic::AtomicUsize);

impl Progress for Watching {
    fn start(&self, _what: &str, _total: u64) {}
    fn advance(&self, _by: u64) {}
    fn finish(&self) {}
    fn is_cancelled(&self) -> bool {
        self.0.fetch_max(open_descriptors(), std::sync::atomic::Ordering::Relaxed);
        false
    }
}

/// Found by an attack: each level took a descriptor, so a tree could be too deep for a process.
#[test]
fn regression_a_deep_tree_takes_few_descriptors() {
    for made in BOTH {
        const LEVELS: usize = 1500;
        let (pool, source, out) = (pool(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        make_deep(source.path(), LEVELS);
        let into = staging(&pool);
        let watching = Watching(Default::default());
        let report = put_as(made, &pool, into, source.path(), &watching).unwrap();
        assert_eq!(
            (report.directories, report.problem_count),
            (1 + 2 * LEVELS as u64, 0),
            "{:?}",
            report.problems.first()
        );
        let tree = lookup(&pool, into, b"tree").unwrap();
        let report = get_with(&pool, tree, &out.path().join("out"), &watching).unwrap();
        assert_eq!(
            (report.directories, report.problem_count),
            (1 + 2 * LEVELS as u64, 0),
            "{:?}",
            report.problems.first()
        );
        // Other tests run beside this one.
        let most = watching.0.into_inner();
        assert!(most < 1200, "{most} descriptors");
        assert_eq!(remove_deep(&out.path().join("out")), LEVELS);
        assert_eq!(remove_deep(source.path()), LEVELS);
    }
}

/// Found by an attack: an answer with very many deep paths was so long that it was lost.
#[test]
fn regression_an_answer_is_short_however_much_is_wrong() {
    use super::tally::Tally;
    let tally = Tally::new(&NoProgress);
    let deep: std::path::PathBuf = std::iter::repeat_n("ä".repeat(100), 20_000).collect();
    (0..5000).for_each(|_| tally.problem(&deep, "cannot open it".to_owned()));
    let report = tally.finish().unwrap();
    assert_eq!(report.problem_count, 5000);
    assert!(!report.problems.is_empty());
    let bytes = serde_json::to_vec(&report).unwrap().len();
    assert!(bytes < PROBLEMS_BYTES_MAX + (64 << 10), "{bytes} bytes");
    assert!(report.problems.iter().all(|problem| problem.path.len() <= PATH_TOLD_BYTES_MAX));
    assert!(report.problems[0].path.contains('…'));
}

/// Found by an attack: files of a pseudo filesystem, some without an end, were copied without a report.
#[test]
fn regression_a_pseudo_filesystem_is_told_and_ends() {
    for made in BOTH {
        let (pool, into) = {
            let pool = pool();
            let into = staging(&pool);
            (pool, into)
        };
        let report = put_as(made, &pool, into, Path::new("/proc/sys/kernel/random"), &Deadline::new()).unwrap();
        assert!(report.problems.iter().any(|problem| problem.what.contains("pseudo filesystem (proc)")), "{report:?}");
        assert!(report.files > 1, "{report:?}");
        let tree = lookup(&pool, into, b"tree").unwrap();
        let size = pool.service().attributes(lookup(&pool, tree, b"boot_id").unwrap()).unwrap().size_bytes;
        assert_eq!(size, 37);
        let from = File::open("/proc").unwrap();
        assert!(super::pseudo::kind_of(from.as_fd()).is_some());
    }
}

/// A reproducible generator of random numbers.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % sides
    }
}

const EVIL: [&[u8]; 8] = [b"..", b".", b"", b"a/b", b"../../x", b"/tmp/x", b"nul\0", b"../out2"];
const KINDS: [FileKind; 5] =
    [FileKind::Directory, FileKind::Regular, FileKind::Symlink, FileKind::Fifo, FileKind::CharDevice];

/// Makes a namespace that a bug, an attacker or bad memory could have made. Returns a number of certain errors.
fn spoil(pool: &Pool, top: Ino, dice: &mut Dice) -> u64 {
    let namespace = &pool.core().namespace;
    let (mut directories, mut named) = (vec![top], Vec::new());
    for number in 0..40 {
        let parent = directories[dice.roll(directories.len())];
        let name = format!("n{number}").into_bytes();
        let ino = match dice.roll(4) {
            0 | 1 => {
                let ino = make_directory(pool, parent, &name);
                directories.push(ino);
                ino
            }
            2 => make(pool, parent, &name, NodeContent::Symlink(b"/etc/passwd")),
            _ => make(pool, parent, &name, NodeContent::Regular),
        };
        named.push((parent, name, ino));
    }
    let mut certain = 0;
    for number in 0..12 {
        let directory = directories[dice.roll(directories.len())];
        let (parent, name, ino) = named[dice.roll(named.len())].clone();
        match dice.roll(6) {
            0 => {
                let evil = EVIL[number % EVIL.len()];
                if namespace.lookup(directory, evil).unwrap().is_none() {
                    namespace.force_name(directory, evil, ino, None);
                    certain += 1;
                }
            }
            // Loops, second parents, second names.
            1 | 2 => namespace.force_name(
                directory,
                format!("s{number}").as_bytes(),
                directories[dice.roll(directories.len())],
                None,
            ),
            3 => namespace.force_name(parent, &name, ino, Some(KINDS[dice.roll(KINDS.len())])),
            4 => namespace.force(ino, |inode| {
                inode.size_bytes = [u64::MAX, 1 << 62, i64::MAX as u64][dice.roll(3)];
                inode.data_bytes = [0, u64::MAX][dice.roll(2)];
            }),
            _ => namespace.force(ino, |inode| {
                inode.nlink = [0, 1, 7, u32::MAX][dice.roll(4)];
                inode.parent = if inode.is_directory() { directory } else { inode.parent };
            }),
        }
    }
    certain
}

#[test]
fn hostile_namespaces_end_and_are_told_and_lead_nowhere_else() {
    let deadline = Instant::now() + Duration::from_secs(20);
    let mut told = 0;
    for seed in 0..60 {
        let (pool, out) = (pool(), tempfile::tempdir().unwrap());
        let top = staging(&pool);
        let mut dice = Dice(seed);
        let certain = spoil(&pool, top, &mut dice);
        let inner = out.path().join("inner");
        fs::create_dir(&inner).unwrap();
        let outcome = get_with(&pool, top, &inner.join("out"), &Deadline::new());
        assert_eq!(names(out.path()), ["inner".to_owned()].into(), "seed {seed}: written elsewhere");
        let inside = names(&inner);
        assert!(inside.iter().all(|name| name == "out"), "seed {seed}: {inside:?}");
        // Names in unreachable directories are never looked at: at least one evil name may lie there.
        match outcome {
            Ok(report) => {
                told += u64::from(report.problem_count > 0);
                if report.problem_count == 0 {
                    assert!(certain == 0 || report.directories < 40, "seed {seed}: {report:?}");
                }
            }
            Err(TransferError::Interrupted) => panic!("seed {seed}: it did not end"),
            Err(_) => told += 1,
        }
        if Instant::now() > deadline {
            break;
        }
    }
    assert!(told > 30, "only {told} were told");
}

/// A tree whose directories are exchanged for links while it is copied.
#[test]
fn directories_that_are_replaced_while_they_are_put_lead_nowhere_else() {
    for made in BOTH {
        let (pool, base) = (pool(), tempfile::tempdir().unwrap());
        let (source, secret) = (base.path().join("source"), base.path().join("secret"));
        fs::create_dir_all(&secret).unwrap();
        fs::write(secret.join("secret"), b"secret").unwrap();
        for number in 0..200 {
            fs::create_dir_all(source.join(format!("d{number}/below"))).unwrap();
        }
        let into = staging(&pool);
        let is_done = std::sync::atomic::AtomicBool::new(false);
        let report = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_done.load(std::sync::atomic::Ordering::Relaxed) {
                    for number in 0..200 {
                        let (path, aside) = (source.join(format!("d{number}")), source.join("aside"));
                        fs::rename(&path, &aside).unwrap();
                        std::os::unix::fs::symlink(&secret, &path).unwrap();
                        fs::remove_file(&path).unwrap();
                        fs::rename(&aside, &path).unwrap();
                    }
                }
            });
            let report = put_as(made, &pool, into, &source, &Deadline::new());
            is_done.store(true, std::sync::atomic::Ordering::Relaxed);
            report.unwrap()
        });
        assert_eq!(report.files, 0, "{report:?}");
        let tree = lookup(&pool, into, b"tree").unwrap();
        assert!(get_from(&pool, tree, &base.path().join("out")).is_ok());
        let mut ways = vec![base.path().join("out")];
        while let Some(path) = ways.pop() {
            for entry in fs::read_dir(&path).unwrap().map(|entry| entry.unwrap()) {
                assert_ne!(entry.file_name(), "secret");
                if entry.file_type().unwrap().is_dir() {
                    ways.push(entry.path());
                }
            }
        }
    }
}
