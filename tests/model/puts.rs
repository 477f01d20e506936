//! Operations on versions that the reference knows by trees on a disk, and by its own counts: puts of a source that
//! changes, removal by rules, live trees of versions, differences and histories.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use dedupfs::retention::{Candidate, Count, Rules, State, decide};
use dedupfs::transfer::{BaseChoice, PutOptions, VersionOptions};
use dedupfs::{ChangeKind, EngineError, HistoryState, NoProgress, Origin, transfer};
use dedupfs_service::{FileKind, FileService, Ino, Listing, NewNode, NodeContent, ROOT_INO, Timestamp};
use jiff::tz::TimeZone;

use super::Operation;
use super::side_by_side::{CALLER, SideBySide, content};
use super::versions::{FrozenEntry, FrozenTree, Standing, find, name_of, read_tree};

/// Directories of the source.
const DIRECTORIES: [&str; 4] = ["", "a", "a/b", "c"];
/// Names in each of them.
const NAMES: u8 = 5;
/// A directory in the root in which live trees are made.
const WORK: u8 = u8::MAX;

/// The source of puts, on a disk.
pub struct Source {
    top: tempfile::TempDir,
    /// Changes so far. Each gives its file another time: a put tells it from the file before, even within one tick of
    /// the clock.
    changes: i64,
}

impl Default for Source {
    fn default() -> Self {
        let top = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("makes a directory");
        DIRECTORIES.iter().for_each(|name| fs::create_dir_all(top.path().join(name)).expect("makes a directory"));
        Self { top, changes: 0 }
    }
}

impl Source {
    fn path(&self, name: u8) -> PathBuf {
        let directory = DIRECTORIES[usize::from(name / NAMES) % DIRECTORIES.len()];
        self.top.path().join(directory).join(format!("{}", name % NAMES))
    }

    fn change(&mut self, kind: u8, name: u8, other: u8, (seed, len): (u8, u32)) -> io::Result<()> {
        let (path, other) = (self.path(name), self.path(other));
        let is_file = path.symlink_metadata().is_ok_and(|metadata| metadata.is_file());
        match kind {
            0 if is_file && path != other => {
                self.remove(&other)?;
                fs::rename(&path, &other)?;
                self.touch(&other)
            }
            1 if is_file && path != other => {
                self.remove(&other)?;
                fs::hard_link(&path, &other)?;
                self.touch(&other)
            }
            2 => self.remove(&path),
            3 => {
                self.remove(&path)?;
                symlink(format!("target {seed}"), &path)?;
                self.touch(&path)
            }
            4 if is_file => {
                fs::set_permissions(&path, fs::Permissions::from_mode(0o600 + u32::from(seed)))?;
                self.touch(&path)
            }
            5 if is_file => {
                // A hole, or an end that is cut off.
                File::options().write(true).open(&path)?.set_len(len.into())?;
                self.touch(&path)
            }
            6 => {
                // A directory comes or goes.
                let directory = self.top.path().join(format!("d{}", seed % 2));
                if fs::remove_dir(&directory).is_err() { fs::create_dir_all(directory) } else { Ok(()) }
            }
            _ => {
                if !is_file {
                    self.remove(&path)?;
                }
                fs::write(&path, content(seed, 0, len as usize))?;
                self.touch(&path)
            }
        }
    }

    fn remove(&mut self, path: &Path) -> io::Result<()> {
        if path.symlink_metadata().is_err() {
            return Ok(());
        }
        // Other names of the file see that this one is gone.
        self.touch(path)?;
        fs::remove_file(path)
    }

    fn touch(&mut self, path: &Path) -> io::Result<()> {
        use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, utimensat};
        self.changes += 1;
        let time = Timespec { tv_sec: 1_000_000_000 + self.changes, tv_nsec: self.changes };
        let times = Timestamps { last_access: time, last_modification: time };
        Ok(utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW)?)
    }

    /// Everything that a version of it must show.
    fn tree(&self) -> FrozenTree {
        let mut inodes = BTreeMap::new();
        let mut tree = FrozenTree::new();
        walk(self.top.path(), Vec::new(), &mut inodes, &mut tree).expect("the disk can be read");
        let mut names: BTreeMap<Vec<u8>, u32> = BTreeMap::new();
        tree.values().for_each(|entry| *names.entry(entry.first.clone()).or_default() += 1);
        for entry in tree.values_mut().filter(|entry| entry.kind != FileKind::Directory) {
            entry.nlink = names[&entry.first];
        }
        tree
    }
}

fn walk(at: &Path, path: Vec<u8>, inodes: &mut BTreeMap<u64, Vec<u8>>, tree: &mut FrozenTree) -> io::Result<()> {
    let metadata = at.symlink_metadata()?;
    let (kind, bytes) = match metadata.file_type() {
        kind if kind.is_dir() => (FileKind::Directory, Vec::new()),
        kind if kind.is_symlink() => (FileKind::Symlink, fs::read_link(at)?.as_os_str().as_bytes().to_vec()),
        _ => (FileKind::Regular, fs::read(at)?),
    };
    let is_directory = kind == FileKind::Directory;
    let entry = FrozenEntry {
        kind,
        mode: (metadata.mode() & 0o7777) as u16,
        nlink: metadata.nlink() as u32,
        owner: (metadata.uid(), metadata.gid(), 0),
        size_bytes: if is_directory { 0 } else { metadata.len() },
        mtime: Timestamp { secs: metadata.mtime(), nanos: metadata.mtime_nsec() as u32 },
        bytes: Arc::new(bytes),
        xattrs: BTreeMap::new(),
        first: inodes.entry(metadata.ino()).or_insert_with(|| path.clone()).clone(),
    };
    tree.insert(path.clone(), entry);
    if is_directory {
        let mut names: Vec<_> = fs::read_dir(at)?.map(|entry| Ok(entry?.file_name())).collect::<io::Result<_>>()?;
        // The order of a frozen walk decides which name is the first one.
        names.sort();
        for name in names {
            let below =
                if path.is_empty() { name.as_bytes().to_vec() } else { [&path, &b"/"[..], name.as_bytes()].concat() };
            walk(&at.join(name), below, inodes, tree)?;
        }
    }
    Ok(())
}

impl SideBySide {
    /// Does an operation of this module; returns whether it is one.
    pub fn apply_to_source(&mut self, operation: &Operation) -> bool {
        match *operation {
            Operation::ChangeSource { kind, name, other, seed, len } => {
                let source = self.versions.source.get_or_insert_default();
                source.change(kind, name, other, (seed, len)).expect("the disk takes changes");
            }
            Operation::PutVersion { into, name, reads_all } => self.put_version(into, name, reads_all),
            Operation::Prune { into, keep_last } => self.prune(into, keep_last),
            Operation::ThawTree { version } => self.thaw_tree(version),
            Operation::Compare { before, after } => self.compare_two(before, after),
            Operation::History { into, file } => self.history(into, file),
            _ => return false,
        }
        true
    }

    fn put_version(&mut self, into: u8, name: u8, reads_all: bool) {
        let Some(to) = self.engine.directory(into) else { return };
        let (top, tree) = {
            let source = self.versions.source.get_or_insert_default();
            (File::open(source.top.path()).expect("opens"), source.tree())
        };
        let base = if reads_all { BaseChoice::None } else { BaseChoice::LastIn(to) };
        let origin = Origin { source: b"source".to_vec(), host: b"model".to_vec() };
        let version = VersionOptions { origin, base, racy_ms: 0, ..VersionOptions::default() };
        let options = PutOptions { version: Some(version), ..PutOptions::default() };
        let report = self.pool().put(&options, top.into(), (to, &name_of(name)), &NoProgress);
        if find(&self.reference, into, name).is_some() {
            let is_refused = matches!(report, Err(transfer::TransferError::Pool(EngineError::Exists)));
            assert!(is_refused, "the name is taken: {report:?}");
            return;
        }
        let report = report.expect("puts");
        assert_eq!(report.problems, []);
        let made = report.version.expect("is a version");
        assert_eq!(made.entries, tree.len() as u64 - 1);
        if made.base.is_some() {
            self.versions.taken_over += made.taken_over;
        }
        self.stand(into, name, tree);
    }

    /// The versions in a directory, in the order of their completion, with what was frozen.
    fn in_directory(&self, directory: u8) -> Vec<Standing> {
        let of = self.reference.directory(directory);
        let mut standing = self.standing();
        standing.retain(|standing| of == Some(standing.at(&self.reference).0));
        standing.sort_by_key(|standing| standing.number);
        standing
    }

    /// Removes all but some versions of a directory, as `dedupfs prune --keep-last` does.
    fn prune(&mut self, into: u8, keep_last: u8) {
        let Some(directory) = self.engine.directory(into) else { return };
        let listed = self.pool().versions(Some(directory)).expect("lists");
        let candidate = |(number, version): (u64, &dedupfs::VersionInfo)| Candidate {
            number,
            completed_secs: version.completed_secs,
            state: State::Complete,
            locked_until_secs: None,
            has_problems: version.problems > 0,
        };
        let candidates: Vec<_> = (0..).zip(&listed).map(candidate).collect();
        let rules = Rules { keep_last: Some(Count::new(keep_last.into())), ..Rules::default() };
        let now = listed.iter().map(|version| version.completed_secs).max().unwrap_or(0) + 1;
        let decisions = decide(&candidates, &rules, now, &TimeZone::UTC);
        let removed =
            decisions.iter().filter(|decision| !decision.keep).map(|decision| &listed[decision.number as usize]);
        let removed: BTreeSet<Ino> = removed.map(|version| version.ino).collect();
        let standing = self.in_directory(into);
        assert_eq!(listed.len(), standing.len());
        let oldest = standing.len().saturating_sub(keep_last.into());
        let expected: BTreeSet<Ino> = standing[..oldest].iter().map(|standing| standing.at(&self.engine).1).collect();
        assert_eq!(removed, expected, "the oldest go");
        for standing in &standing[..oldest] {
            self.forget(standing);
            self.fall(standing);
        }
    }

    /// Makes a live tree of a version, changes it, and removes it.
    fn thaw_tree(&mut self, version: u8) {
        let Some(standing) = self.choose(version) else { return };
        let (_, from) = standing.at(&self.engine);
        let service = self.engine.service.clone();
        let work = self.work_directory();
        self.pool().thaw(from, (work, b"tree"), &NoProgress).expect("makes a live tree");
        let found = service.lookup(work, b"tree").expect("is there");
        service.forget(found.ino, 1);
        let live = read_tree(&service, found.ino, false);
        let expected = &self.versions.trees[&standing.number];
        assert!(live.keys().eq(expected.keys()), "names of the live tree of {standing:?}");
        for (path, entry) in &live {
            let shown = |entry: &FrozenEntry| FrozenEntry { bytes: Arc::default(), ..entry.clone() };
            assert_eq!(shown(entry), shown(&expected[path]), "{} of {standing:?}", String::from_utf8_lossy(path));
            assert!(entry.bytes == expected[path].bytes, "content of {}", String::from_utf8_lossy(path));
        }
        empty(&service, work);
        service.remove_directory(ROOT_INO, &name_of_work()).expect("is removed");
        self.compare_version(&standing);
    }

    fn work_directory(&self) -> Ino {
        let (service, name) = (&self.engine.service, name_of_work());
        let new = NewNode { parent: ROOT_INO, name: &name, mode: 0o700, umask: 0 };
        let made = service.make(CALLER, new, NodeContent::Directory).expect("makes");
        service.forget(made.ino, 1);
        made.ino
    }

    /// Compares the difference that the engine tells with that of what was frozen.
    fn compare_two(&self, before: u8, after: u8) {
        let (Some(before), Some(after)) = (self.choose(before), self.choose(after)) else { return };
        let inos = [&before, &after].map(|standing| standing.at(&self.engine).1);
        let page = self.pool().difference(inos, b"", &NoProgress).expect("compares");
        assert_eq!(page.next, None, "the trees are small");
        let told: BTreeMap<String, ChangeKind> =
            page.changes.into_iter().map(|change| (change.path, change.change)).collect();
        let trees = [&before, &after].map(|standing| &self.versions.trees[&standing.number]);
        let expected = differences(trees[0], trees[1]);
        let paths: BTreeSet<&String> = told.keys().chain(expected.keys()).collect();
        for path in paths {
            let entries = trees.map(|tree| tree.get(path.as_bytes()));
            let is_same_content = entries[0]
                .zip(entries[1])
                .is_some_and(|(one, other)| one.kind == other.kind && one.bytes == other.bytes);
            match (told.get(path), expected.get(path)) {
                (told, expected) if told == expected => {}
                // Equal bytes that were written in other pieces may be cut otherwise. A file may have had names outside.
                (Some(ChangeKind::Content), None | Some(ChangeKind::Attributes)) if is_same_content => {}
                (Some(ChangeKind::Attributes), None) if is_same_content => {}
                (told, expected) => panic!("{path} of {before:?} and {after:?}: {told:?}, expected {expected:?}"),
            }
        }
    }

    /// Compares the history of a path with what was frozen.
    fn history(&self, into: u8, file: u8) {
        let Some(directory) = self.engine.directory(into) else { return };
        let standing = self.in_directory(into);
        let paths: Vec<&Vec<u8>> =
            standing.first().map(|first| self.versions.trees[&first.number].keys().collect()).unwrap_or_default();
        let Some(path) = paths.get(usize::from(file) % paths.len().max(1)) else { return };
        let rows = self.pool().history(directory, path, &NoProgress).expect("reads");
        let each: Vec<(usize, &HistoryState)> = rows
            .iter()
            .enumerate()
            .flat_map(|(row, told)| std::iter::repeat_n((row, &told.state), told.versions as usize))
            .collect();
        assert_eq!(each.len(), standing.len(), "each version is in one row: {rows:?}");
        let entries: Vec<_> =
            standing.iter().map(|standing| self.versions.trees[&standing.number].get(*path)).collect();
        for ((row, state), entry) in each.iter().zip(&entries) {
            match (state, entry) {
                (HistoryState::Absent, None) => {}
                (HistoryState::Present { len_bytes, .. }, Some(entry)) if entry.kind == FileKind::Regular => {
                    assert_eq!(*len_bytes, entry.size_bytes, "row {row} of {rows:?}");
                }
                (HistoryState::Present { kind, .. }, Some(entry)) => {
                    assert_eq!(kind == "directory", entry.kind == FileKind::Directory, "row {row} of {rows:?}");
                }
                _ => panic!("row {row} of {rows:?}, expected {entry:?}"),
            }
        }
        for (rows, entries) in each.windows(2).zip(entries.windows(2)) {
            let are_others = match (entries[0], entries[1]) {
                (Some(one), Some(other)) => one.kind != other.kind || one.bytes != other.bytes,
                (one, other) => one.is_some() != other.is_some(),
            };
            assert!(!are_others || rows[0].0 != rows[1].0, "other content in one row");
        }
    }
}

/// Removes everything in a directory.
fn empty(service: &Arc<dyn FileService>, directory: Ino) {
    for entry in service.read_directory(directory, 0, 1000, Listing::Names).expect("lists") {
        if entry.kind == FileKind::Directory {
            empty(service, entry.ino);
            service.remove_directory(directory, &entry.name).expect("is removed");
        } else {
            service.unlink(directory, &entry.name).expect("is removed");
        }
    }
}

/// The name of the directory in which live trees are made.
fn name_of_work() -> Vec<u8> {
    name_of(WORK)
}

/// The paths that differ in two trees, and how. Nothing is told of entries below a directory that only one has, nor of the
/// time of a directory.
fn differences(before: &FrozenTree, after: &FrozenTree) -> BTreeMap<String, ChangeKind> {
    let is_directory =
        |tree: &FrozenTree, path: &[u8]| tree.get(path).is_some_and(|entry| entry.kind == FileKind::Directory);
    let is_below_both = |path: &[u8]| {
        let above = (0..path.len()).filter(|at| path[*at] == b'/').map(|at| &path[..at]);
        above.into_iter().all(|path| is_directory(before, path) && is_directory(after, path))
    };
    let attributes = |entry: &FrozenEntry| {
        let time = (entry.kind != FileKind::Directory).then_some(entry.mtime);
        (entry.mode, (entry.owner.0, entry.owner.1), time, entry.xattrs.clone())
    };
    let told = |path: &Vec<u8>| {
        Some(match (before.get(path), after.get(path)) {
            (None, _) => ChangeKind::Added,
            (_, None) => ChangeKind::Removed,
            (Some(one), Some(other)) if one.kind != other.kind => ChangeKind::Kind,
            (Some(one), Some(other)) if one.bytes != other.bytes || one.owner.2 != other.owner.2 => ChangeKind::Content,
            (Some(one), Some(other)) if attributes(one) != attributes(other) => ChangeKind::Attributes,
            _ => return None,
        })
    };
    let paths: BTreeSet<&Vec<u8>> = before.keys().chain(after.keys()).filter(|path| is_below_both(path)).collect();
    let shown = |path: &Vec<u8>| String::from_utf8_lossy(path).into_owned();
    paths.into_iter().filter_map(|path| Some((shown(path), told(path)?))).collect()
}
