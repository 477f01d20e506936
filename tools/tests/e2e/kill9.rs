//! The daemon is killed during writes: everything that fsync acknowledged is there, everything else is old or new.
//!
//! All written bytes follow from a name and a version, so that each file shows by itself whether it is one whole
//! version. In all rounds new files are written with fsync, files are replaced by rename, and rsync writes two versions
//! of a tree in turn, while files synced some rounds ago are deleted and their space reclaimed. Even rounds put trees
//! and get them back, scrub, and make everything durable by `dedupfs sync` now and then. Odd rounds write in place:
//! rsync, files truncated and written anew, and a file of which pieces are changed and synced. (Not in the same rounds:
//! a sync of everything makes a half-written file durable, and so does put.) After each kill the pool is mounted twice:
//! once recovered and once in order.
//!
//! Writes in place are done by separate processes. If a process starts another while it has a file open, the file is
//! closed once more in the new process, and every close publishes the bytes written so far.
//!
//! The floor of a file is the last version known to be durable: any later one may be there, none before.
//!
//! `DEDUPFS_E2E_KILLS=N` kills N times instead of eight (`tools/kill-soak.sh`).

mod copies;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use self::copies::Copies;
use crate::command::{DEDUPFS, GC, Tool};
use crate::compare::inside;
use crate::files::{Plan, walk};
use crate::random::{Random, noise, seed};
use crate::site::Site;

/// Time until the daemon is killed, in each round. The interval of commits is 5 s: two rounds are longer, one of each
/// kind.
const KILL_AFTER_MS: [(u64, u64); 8] =
    [(100, 700), (300, 1500), (5200, 7000), (50, 300), (1000, 3000), (5500, 6500), (500, 2000), (200, 2500)];
/// Files of each writer that replaces or overwrites.
const NAMES: u64 = 12;
const PATCHED_BYTES: usize = 1 << 20;
/// Files synced this many rounds ago are deleted.
const KEPT_ROUNDS: u64 = 2;

/// Returns the content of a version of a file. It begins with the version's number.
fn version_of(name: u64, version: u64) -> Vec<u8> {
    let mut random = Random::new(name << 32 | version);
    let len = match random.below(8) {
        0 => random.between(16, 64),
        1 => random.between(1 << 20, 3 << 20),
        _ => random.between(64, 200_000),
    };
    let mut content = noise(random.next(), len as usize);
    content[..8].copy_from_slice(&version.to_le_bytes());
    content
}

/// A file that has one version after the other.
#[derive(Default)]
struct Versioned {
    /// The last version whose writing began.
    begun: AtomicU64,
    /// The last version that was closed (or renamed) without an error.
    closed: AtomicU64,
    /// The last version that is known to be durable; 0: not even the name.
    floor: AtomicU64,
}

impl Versioned {
    /// Checks that the version found is an allowed one. It is durable from now on.
    fn check(&self, name: u64, path: &Path) {
        let (floor, begun) = (self.floor.load(Ordering::Relaxed), self.begun.load(Ordering::Relaxed));
        let found = match fs::read(path) {
            // A file that was created but never closed may be missing.
            Ok(content) if content.is_empty() && floor == 0 => None,
            Ok(content) => Some(content),
            Err(error) if error.kind() == io::ErrorKind::NotFound && floor == 0 => None,
            Err(error) => panic!("{} (version {floor} is durable): {error}", path.display()),
        };
        let version = found.map_or(0, |found| {
            assert!(found.len() >= 8, "{} has {} bytes, version {floor} is durable", path.display(), found.len());
            let version = u64::from_le_bytes(found[..8].try_into().unwrap());
            assert!((floor.max(1)..=begun).contains(&version), "{}: {version} of {floor}..={begun}", path.display());
            assert!(found == version_of(name, version), "{} is no version, but a mixture", path.display());
            version
        });
        for counter in [&self.begun, &self.closed, &self.floor] {
            counter.store(version, Ordering::Relaxed);
        }
    }
}

/// A file that fsync acknowledged.
struct Synced {
    round: u64,
    path: PathBuf,
    seed: u64,
    len: usize,
}

impl Synced {
    fn is_whole(&self) -> io::Result<bool> {
        Ok(fs::read(&self.path)? == noise(self.seed, self.len))
    }
}

/// The written files of all rounds.
struct Journal {
    /// Files that fsync acknowledged.
    synced: Mutex<Vec<Synced>>,
    /// Files that were deleted in this round: each is whole or gone.
    leaving: Mutex<Vec<Synced>>,
    replaced: Vec<Versioned>,
    overwritten: Vec<Versioned>,
    /// Contents that the patched file may have after a crash: the synced one, and the one being written.
    patched: Mutex<(Vec<u8>, Option<Vec<u8>>)>,
    /// Files of rsync's tree that were there when the round began.
    present: BTreeSet<PathBuf>,
    copies: Copies,
}

struct Round<'a> {
    number: u64,
    mnt: &'a Path,
    /// A directory outside of the mount.
    scratch: &'a Path,
    sources: [&'a Path; 2],
    journal: &'a Journal,
    stop: AtomicBool,
}

impl Round<'_> {
    fn is_in_place(&self) -> bool {
        self.number % 2 == 1
    }

    fn goes_on(&self) -> bool {
        !self.stop.load(Ordering::Relaxed)
    }

    /// Runs rsync with one version and then the other until the daemon is gone.
    fn rsync(&self) {
        let target = self.mnt.join("tree");
        for turn in self.number.. {
            if !self.goes_on() {
                return;
            }
            let mut rsync = Tool::new("rsync").arg("-a");
            if self.is_in_place() {
                rsync = rsync.arg("--inplace");
            }
            let source = self.sources[(turn % 2) as usize];
            rsync.args([inside(source), inside(&target)]).run();
        }
    }

    /// Writes new files in new directories and syncs each.
    fn sync_files(&self) -> io::Result<()> {
        let mut random = Random::new(100 + self.number);
        for number in 0_u64.. {
            let directory = self.mnt.join(format!("synced/{}/{}", self.number, number / 20));
            fs::create_dir_all(&directory)?;
            let path = directory.join(format!("{number}"));
            let (seed, mut len) = (random.next(), random.below(100_000) as usize);
            if number % 16 == 5 {
                len += 1 << 20;
            }
            let mut file = File::create_new(&path)?;
            for part in noise(seed, len).chunks(70_001) {
                file.write_all(part)?;
            }
            file.sync_all()?;
            self.journal.synced.lock().unwrap().push(Synced { round: self.number, path, seed, len });
        }
        Ok(())
    }

    /// Deletes old files, then reclaims again and again.
    fn delete_and_reclaim(&self) -> io::Result<()> {
        let last = self.number.checked_sub(KEPT_ROUNDS + 1);
        let is_old = |file: &mut Synced| last.is_some_and(|last| file.round <= last);
        let old: Vec<Synced> = self.journal.synced.lock().unwrap().extract_if(.., is_old).collect();
        self.journal.leaving.lock().unwrap().extend(old);
        for round in 0..last.map_or(0, |last| last + 1) {
            match fs::remove_dir_all(self.mnt.join(format!("synced/{round}"))) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        loop {
            // The tool would reclaim a pool without a daemon by itself, for ever.
            if !self.goes_on() {
                fs::read_dir(self.mnt)?;
            }
            self.with_tool(Tool::new(GC).args(["--threshold", "70"]).arg(self.mnt))?;
        }
    }

    /// Writes a file beside the old one and renames it over.
    fn replace(&self) -> io::Result<()> {
        for name in (0..NAMES).cycle() {
            let file = &self.journal.replaced[name as usize];
            let version = file.begun.fetch_add(1, Ordering::Relaxed) + 1;
            let directory = self.mnt.join("replaced");
            let temporary = directory.join(format!("{name}.new"));
            let mut written = File::create(&temporary)?;
            written.write_all(&version_of(name, version))?;
            drop(written);
            fs::rename(&temporary, directory.join(name.to_string()))?;
            file.closed.store(version, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Truncates files and writes them anew.
    fn overwrite(&self) -> io::Result<()> {
        let scratch = self.scratch.join("overwrite");
        for name in (0..NAMES).cycle() {
            let file = &self.journal.overwritten[name as usize];
            let version = file.begun.fetch_add(1, Ordering::Relaxed) + 1;
            let path = self.mnt.join("overwritten").join(name.to_string());
            fs::write(&scratch, version_of(NAMES + name, version))?;
            self.with_tool(Tool::new("cp").args([&scratch, &path]))?;
            file.closed.store(version, Ordering::Relaxed);
            if version.is_multiple_of(4) {
                File::open(&path)?.sync_all()?;
                file.floor.store(version, Ordering::Relaxed);
            }
        }
        Ok(())
    }

    /// Changes a piece of a file in many small writes and then syncs it.
    fn patch(&self) -> io::Result<()> {
        let scratch = self.scratch.join("patch");
        let mut content = self.journal.patched.lock().unwrap().0.clone();
        let mut random = Random::new(200 + self.number);
        loop {
            let len = random.between(1, 200_000) as usize;
            let offset = random.below((PATCHED_BYTES - len) as u64) as usize;
            let bytes = noise(random.next(), len);
            fs::write(&scratch, &bytes)?;
            content[offset..offset + len].copy_from_slice(&bytes);
            self.journal.patched.lock().unwrap().1 = Some(content.clone());
            let (mut from, mut to) = (OsString::from("if="), OsString::from("of="));
            from.push(&scratch);
            to.push(self.mnt.join("patched"));
            let dd = Tool::new("dd").args([from, to]).args(["bs=4000", "conv=notrunc,fsync", "oflag=seek_bytes"]);
            self.with_tool(dd.args([&format!("seek={offset}"), "status=none"]))?;
            *self.journal.patched.lock().unwrap() = (content.clone(), None);
        }
    }

    /// Runs a tool that may fail only if the daemon is gone.
    fn with_tool(&self, tool: Tool) -> io::Result<()> {
        let ran = tool.run();
        if ran.code != 0 {
            // This gives the error of a daemon that is gone.
            fs::read_dir(self.mnt)?;
            panic!("{} failed before the daemon was killed: {}", ran.line, ran.said());
        }
        Ok(())
    }

    /// Makes everything durable by `dedupfs sync` now and then.
    fn sync_all(&self) {
        while self.goes_on() {
            std::thread::sleep(Duration::from_millis(400));
            let files = || self.journal.replaced.iter().chain(&self.journal.overwritten);
            let closed: Vec<u64> = files().map(|file| file.closed.load(Ordering::Relaxed)).collect();
            if Tool::new(DEDUPFS).arg("sync").arg(self.mnt).run().code == 0 {
                for (file, closed) in files().zip(closed) {
                    file.floor.fetch_max(closed, Ordering::Relaxed);
                }
            }
        }
    }

    /// Runs all writers and kills the daemon in their midst.
    fn run(&self, site: &Site, kill_after: Duration) {
        let problem = |writer: &str, result: io::Result<()>| {
            let error = result.expect_err("these end only with the daemon");
            // The kernel gives EIO for requests under way in an inode that it gave up.
            let codes = [rustix::io::Errno::NOTCONN, rustix::io::Errno::CONNABORTED, rustix::io::Errno::IO];
            let is_death = codes.iter().any(|code| error.raw_os_error() == Some(code.raw_os_error()));
            // While the kernel gives the mount up, it answers "connection aborted".
            let kinds = [io::ErrorKind::NotConnected, io::ErrorKind::ConnectionAborted];
            let is_gone = fs::read_dir(self.mnt).is_err_and(|error| kinds.contains(&error.kind()));
            assert!(is_death && is_gone, "{writer} failed before the daemon was killed: {error}");
        };
        std::thread::scope(|scope| {
            scope.spawn(|| self.rsync());
            scope.spawn(|| problem("sync_files", self.sync_files()));
            scope.spawn(|| problem("replace", self.replace()));
            scope.spawn(|| problem("delete_and_reclaim", self.delete_and_reclaim()));
            if self.is_in_place() {
                scope.spawn(|| problem("overwrite", self.overwrite()));
                scope.spawn(|| problem("patch", self.patch()));
            } else {
                scope.spawn(|| self.sync_all());
                scope.spawn(|| problem("copy_trees", self.copy_trees()));
                scope.spawn(|| problem("scrub", self.scrub()));
            }
            std::thread::sleep(kill_after);
            self.stop.store(true, Ordering::Relaxed);
            site.kill_daemon();
        });
    }
}

impl Journal {
    fn check(&self, mnt: &Path, sources: [&Path; 2]) {
        for file in self.synced.lock().unwrap().iter() {
            let shown = file.path.display();
            let is_whole = file.is_whole().unwrap_or_else(|error| panic!("{shown} was synced: {error}"));
            assert!(is_whole, "{shown} was synced and is other now");
        }
        for file in self.leaving.lock().unwrap().iter() {
            match file.is_whole() {
                Ok(is_whole) => assert!(is_whole, "{} was being deleted and is other now", file.path.display()),
                Err(error) => assert_eq!(error.kind(), io::ErrorKind::NotFound, "{}", file.path.display()),
            }
        }
        for (name, file) in (0..).zip(&self.replaced) {
            file.check(name, &mnt.join("replaced").join(name.to_string()));
        }
        for (name, file) in (0..).zip(&self.overwritten) {
            file.check(NAMES + name, &mnt.join("overwritten").join(name.to_string()));
        }
        let patched = self.patched.lock().unwrap();
        let found = fs::read(mnt.join("patched")).unwrap();
        assert!(
            found == patched.0 || patched.1.as_ref().is_some_and(|pending| *pending == found),
            "the patched file is neither as it was synced nor as it was to be"
        );
        self.copies.check(mnt, sources);
        let tree = mnt.join("tree");
        let found = walk(&tree);
        for path in &self.present {
            assert!(found.binary_search(path).is_ok(), "{} is gone", path.display());
        }
        for path in found {
            if path.file_name().unwrap().as_encoded_bytes().starts_with(b".") {
                // An unfinished file of rsync.
                continue;
            }
            let content = fs::read(tree.join(&path)).unwrap();
            let is_new = content.is_empty() && !self.present.contains(&path);
            let is_version = sources.iter().any(|source| fs::read(source.join(&path)).unwrap() == content);
            assert!(is_new || is_version, "tree/{} ({} bytes) is a mixture", path.display(), content.len());
        }
    }

    /// Notes that everything there now was durable when the pool was unmounted.
    fn settle(&mut self, mnt: &Path) {
        let content = fs::read(mnt.join("patched")).unwrap();
        *self.patched.lock().unwrap() = (content, None);
        let still_there = self.leaving.lock().unwrap().drain(..).filter(|file| file.path.exists()).collect::<Vec<_>>();
        self.synced.lock().unwrap().extend(still_there);
        let found = walk(&mnt.join("tree")).into_iter();
        self.present = found.filter(|path| fs::metadata(mnt.join("tree").join(path)).unwrap().len() > 0).collect();
    }
}

#[test]
fn what_was_synced_survives_and_nothing_is_a_mixture() {
    let Some(site) = Site::mounted_if_fit() else { return };
    let sources = [site.base.join("version-0"), site.base.join("version-1")];
    let plan = Plan::new(5, 600, 150_000);
    plan.make(&sources[0]);
    plan.changed(6).make(&sources[1]);
    let sources = [sources[0].as_path(), sources[1].as_path()];
    for directory in ["tree", "replaced", "overwritten"] {
        fs::create_dir(site.mnt.join(directory)).unwrap();
    }
    let patched = noise(7, PATCHED_BYTES);
    fs::write(site.mnt.join("patched"), &patched).unwrap();
    site.umount();
    let files = || (0..NAMES).map(|_| Versioned::default()).collect();
    let mut journal = Journal {
        synced: Mutex::default(),
        leaving: Mutex::default(),
        replaced: files(),
        overwritten: files(),
        patched: Mutex::new((patched, None)),
        present: BTreeSet::new(),
        copies: Copies::default(),
    };
    let mut random = Random::new(seed(8));
    let (mut synced, mut longest) = (0, Duration::ZERO);
    for (number, (from_ms, to_ms)) in (0..kills()).zip(KILL_AFTER_MS.into_iter().cycle()) {
        let kill_after = Duration::from_millis(random.between(from_ms, to_ms));
        site.note_progress();
        site.mount();
        let synced_before = journal.synced.lock().unwrap().len();
        let round = Round {
            number,
            mnt: &site.mnt,
            scratch: &site.base,
            sources,
            journal: &journal,
            stop: AtomicBool::new(false),
        };
        round.run(&site, kill_after);

        // Later requests get this error, and nothing writes into the directory below.
        for result in [fs::write(site.mnt.join("late"), "x"), fs::read_dir(&site.mnt).map(drop)] {
            let code = result.expect_err("a dead mount gives an answer").raw_os_error();
            assert_eq!(code, Some(rustix::io::Errno::NOTCONN.raw_os_error()), "round {number}");
        }
        synced += (journal.synced.lock().unwrap().len() + journal.leaving.lock().unwrap().len()) - synced_before;
        site.assert_clean();
        let started = Instant::now();
        site.mount();
        let mounted = started.elapsed();
        longest = longest.max(mounted);
        eprintln!("round {number}: killed after {kill_after:?}, mounted again in {mounted:?}");
        journal.check(&site.mnt, sources);
        journal.settle(&site.mnt);
        site.umount();
        site.assert_clean();
    }
    let log = fs::read_to_string(site.pool.join("dedupfs.log")).unwrap();
    assert!(!log.contains("a client gets an I/O error"), "the daemon gave errors");
    let put = journal.copies.acknowledged.load(Ordering::Relaxed);
    eprintln!("{} kills, {synced} files were synced, {put} trees put and got, longest mount {longest:?}", kills());
    assert!(synced > 20 && put > 0, "hardly anything was tested");
}

/// Returns the number of kills.
fn kills() -> u64 {
    let given = std::env::var("DEDUPFS_E2E_KILLS").ok();
    given.map_or(KILL_AFTER_MS.len() as u64, |given| given.parse().expect("DEDUPFS_E2E_KILLS is no number"))
}
