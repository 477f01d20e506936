//! Versions beside the reference, which knows none.
//!
//! The reference has a *stand-in* for each version: a directory of the same name that is not empty. So both sides agree
//! about its name and refuse the same changes of it. An entry in the stand-in has the number of what was frozen.

use std::collections::BTreeMap;
use std::sync::Arc;

use dedupfs::{EngineError, NoProgress, Origin, VersionInfo};
use dedupfs_service::{
    AttributeChanges, Errno, FileKind, FilePlace, FileService, Ino, Listing, NewNode, NodeContent, OpenOptions,
    ROOT_INO, RenameFlags, Timestamp, WriteFlags,
};

use super::Operation;
use super::puts::Source;
use super::side_by_side::{CALLER, Side, SideBySide};

const NAME: &str = "version ";
/// Entries of versions are listed in pages of so many.
const PAGE: usize = 2;

pub fn name_of(name: u8) -> Vec<u8> {
    format!("{NAME}{name}").into_bytes()
}

/// Whether the name is of a version or its stand-in.
pub fn is_version(name: &[u8]) -> bool {
    name.starts_with(NAME.as_bytes())
}

/// Everything that can be seen of an entry of a frozen tree.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FrozenEntry {
    pub kind: FileKind,
    pub mode: u16,
    pub nlink: u32,
    pub owner: (u32, u32, u32),
    pub size_bytes: u64,
    pub mtime: Timestamp,
    /// Content, or target.
    pub bytes: Arc<Vec<u8>>,
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Path of the first name of the same inode.
    pub first: Vec<u8>,
}

pub type FrozenTree = BTreeMap<Vec<u8>, FrozenEntry>;

/// What was frozen, by the numbers in the stand-ins.
#[derive(Default)]
pub struct Versions {
    pub trees: BTreeMap<u64, FrozenTree>,
    next: u64,
    /// The source of puts.
    pub source: Option<Source>,
    /// Entries that puts took over.
    pub taken_over: u64,
}

/// A version, by its stand-in.
#[derive(Clone, Debug)]
pub struct Standing {
    /// Names of the directories that lead to it.
    directories: Vec<Vec<u8>>,
    name: Vec<u8>,
    pub number: u64,
}

impl Standing {
    /// Its directory and its own inode number, on either side.
    fn find(&self, side: &Side) -> Option<(Ino, Ino)> {
        let of = |parent: Ino, name: &[u8]| {
            let found = side.service.lookup(parent, name).ok()?;
            side.service.forget(found.ino, 1);
            Some(found.ino)
        };
        let directory = self.directories.iter().try_fold(ROOT_INO, |directory, name| of(directory, name))?;
        Some((directory, of(directory, &self.name)?))
    }

    pub fn at(&self, side: &Side) -> (Ino, Ino) {
        self.find(side).expect("the version is there")
    }
}

/// Reads a whole tree. Counts names by inode number, because a version has those in its tree only.
struct Walk<'a> {
    service: &'a Arc<dyn FileService>,
    is_frozen: bool,
    first: BTreeMap<Ino, Vec<u8>>,
    tree: FrozenTree,
}

pub fn read_tree(service: &Arc<dyn FileService>, top: Ino, is_frozen: bool) -> FrozenTree {
    let mut walk = Walk { service, is_frozen, first: BTreeMap::new(), tree: BTreeMap::new() };
    walk.entry(top, b"".to_vec());
    let Walk { mut tree, .. } = walk;
    if !is_frozen {
        let mut names: BTreeMap<Vec<u8>, u32> = BTreeMap::new();
        tree.values().for_each(|entry| *names.entry(entry.first.clone()).or_default() += 1);
        for entry in tree.values_mut().filter(|entry| entry.kind != FileKind::Directory) {
            entry.nlink = names[&entry.first];
        }
    }
    tree
}

impl Walk<'_> {
    fn entry(&mut self, ino: Ino, path: Vec<u8>) {
        let service = self.service;
        let attributes = service.attributes(ino).expect("stats");
        let bytes = match attributes.kind {
            FileKind::Regular => {
                let how = OpenOptions { read: true, ..OpenOptions::default() };
                let handle = service.open(CALLER, ino, how).expect("opens").handle;
                let mut bytes = Vec::new();
                service.read(ino, handle, 0, 1 << 30, &mut bytes).expect("reads");
                service.release(ino, handle);
                bytes
            }
            FileKind::Symlink => service.read_link(ino).expect("reads the link"),
            _ => Vec::new(),
        };
        let names = service.xattr_names(ino).expect("lists attributes");
        let value = |name: Vec<u8>| (name.clone(), service.xattr(ino, &name).expect("has it"));
        let entry = FrozenEntry {
            kind: attributes.kind,
            mode: attributes.mode,
            nlink: attributes.nlink,
            owner: (attributes.uid, attributes.gid, attributes.rdev),
            size_bytes: if attributes.kind == FileKind::Directory { 0 } else { attributes.size_bytes },
            mtime: attributes.mtime,
            bytes: Arc::new(bytes),
            xattrs: names.into_iter().map(value).collect(),
            first: self.first.entry(ino).or_insert_with(|| path.clone()).clone(),
        };
        self.tree.insert(path.clone(), entry);
        if attributes.kind == FileKind::Directory {
            self.directory(ino, &path);
        }
    }

    fn directory(&mut self, directory: Ino, path: &[u8]) {
        let service = self.service;
        let (mut after, mut entries) = (0, Vec::new());
        loop {
            let page = service.read_directory(directory, after, PAGE, Listing::Attributes).expect("lists");
            let Some(last) = page.last() else { break };
            after = last.cookie;
            entries.extend(page);
        }
        // The order of a frozen walk decides which name is the first one.
        entries.sort_by(|left, right| left.name.cmp(&right.name));
        for entry in entries {
            if self.is_frozen {
                let listed = entry.attributes.expect("attributes were asked for");
                assert_eq!(service.lookup(directory, &entry.name).map(|found| found.ino), Ok(entry.ino));
                assert_eq!(service.lookup_inode(entry.ino), Ok(listed));
                assert_eq!(service.attributes(entry.ino), Ok(listed));
                if entry.kind == FileKind::Directory {
                    assert_eq!(service.parent(entry.ino), Ok(directory));
                }
                service.forget(entry.ino, 2);
            }
            let path = if path.is_empty() { entry.name.clone() } else { [path, b"/", &entry.name].concat() };
            self.entry(entry.ino, path);
            service.forget(entry.ino, 1);
        }
    }
}

pub fn holds_version(service: &Arc<dyn FileService>, directory: Ino) -> bool {
    let entries = service.read_directory(directory, 0, 1000, Listing::Names).expect("lists");
    entries
        .iter()
        .any(|entry| is_version(&entry.name) || entry.kind == FileKind::Directory && holds_version(service, entry.ino))
}

pub fn find(side: &Side, directory: u8, name: u8) -> Option<Ino> {
    let parent = side.directory(directory)?;
    let found = side.service.lookup(parent, &name_of(name)).ok()?;
    side.service.forget(found.ino, 1);
    Some(found.ino)
}

impl SideBySide {
    pub fn standing(&self) -> Vec<Standing> {
        let mut standing = Vec::new();
        self.standing_in(ROOT_INO, &mut Vec::new(), &mut standing);
        standing
    }

    fn standing_in(&self, directory: Ino, way: &mut Vec<Vec<u8>>, standing: &mut Vec<Standing>) {
        let list = |ino: Ino| self.reference.service.read_directory(ino, 0, 1000, Listing::Names).expect("lists");
        for entry in list(directory) {
            if is_version(&entry.name) {
                let number = String::from_utf8_lossy(&list(entry.ino)[0].name).parse().expect("a number");
                standing.push(Standing { directories: way.clone(), name: entry.name, number });
            } else if entry.kind == FileKind::Directory {
                way.push(entry.name);
                self.standing_in(entry.ino, way, standing);
                way.pop();
            }
        }
    }

    pub fn choose(&self, version: u8) -> Option<Standing> {
        let standing = self.standing();
        standing.get(usize::from(version) % standing.len().max(1)).cloned()
    }

    /// Does an operation on versions; returns whether it is one.
    pub fn apply_to_versions(&mut self, operation: &Operation) -> bool {
        match *operation {
            Operation::Snapshot { source, into, name } => {
                if let Some(tree) = self.snapshot(source, into, name) {
                    self.stand(into, name, tree);
                }
            }
            Operation::SnapshotAndCrash { source, into, name, seed } => {
                self.close_all();
                self.pool().sync().expect("syncs");
                let Some(tree) = self.snapshot(source, into, name) else { return true };
                self.crash(seed, |side| {
                    if find(&side.engine, into, name).is_some() {
                        side.stand(into, name, tree);
                    }
                });
            }
            Operation::Forget { version } => {
                if let Some(standing) = self.choose(version) {
                    self.forget(&standing);
                    self.fall(&standing);
                }
            }
            Operation::ForgetAndCrash { version, seed } => {
                let Some(standing) = self.choose(version) else { return true };
                self.close_all();
                self.pool().sync().expect("syncs");
                self.forget(&standing);
                self.crash(seed, |side| {
                    if standing.find(&side.engine).is_none() {
                        side.fall(&standing);
                    }
                });
            }
            Operation::ReadVersion { version } => {
                if let Some(standing) = self.choose(version) {
                    self.compare_version(&standing);
                    self.refused(&standing);
                }
            }
            Operation::MoveVersion { version, into, name, exchange } => {
                let Some(standing) = self.choose(version) else { return true };
                let flags = RenameFlags { exchange, ..RenameFlags::default() };
                let moved = |side: &Side| {
                    let (from, to) = (standing.at(side).0, side.directory(into)?);
                    Some(side.service.rename(from, &standing.name, to, &name_of(name), flags))
                };
                assert_eq!(moved(&self.engine), moved(&self.reference), "{operation:?}");
            }
            Operation::Thaw { version, nth, to } => self.thaw(version, nth, to),
            Operation::Freeze { source, name, changes } => self.freeze(source, name, changes),
            _ => return self.apply_to_source(operation),
        }
        true
    }

    /// Makes a version on the engine's side. Returns what it must show.
    fn snapshot(&mut self, source: u8, into: u8, name: u8) -> Option<FrozenTree> {
        let of = |side: &Side| Some((side.directory(source)?, side.directory(into)?));
        let (from, to) = of(&self.engine)?;
        let (reference_from, _) = of(&self.reference)?;
        let expected = if holds_version(&self.reference.service, reference_from) {
            Err("HoldsVersion")
        } else if find(&self.reference, into, name).is_some() {
            Err("Exists")
        } else {
            Ok(())
        };
        let tree = expected.is_ok().then(|| self.tree_of(reference_from, from));
        let origin = Origin { source: b"here".to_vec(), host: b"model".to_vec() };
        let made = self.pool().snapshot(from, (to, &name_of(name)), &origin, &NoProgress);
        let outcome = match &made {
            Ok(_) => Ok(()),
            Err(EngineError::HoldsVersion(_)) => Err("HoldsVersion"),
            Err(EngineError::Exists) => Err("Exists"),
            Err(error) => panic!("the snapshot fails: {error}"),
        };
        assert_eq!(outcome, expected);
        let (made, tree) = (made.ok()?, tree?);
        assert_eq!(made.entries, tree.len() as u64 - 1);
        let files = tree.values().filter(|entry| entry.kind == FileKind::Regular);
        assert_eq!((made.files, made.unlinked), (files.clone().count() as u64, 0));
        assert_eq!(made.logical_bytes, files.map(|entry| entry.size_bytes).sum::<u64>());
        Some(tree)
    }

    /// What a version of a directory must show, by its numbers on the reference's and the engine's side.
    pub fn tree_of(&self, reference: Ino, engine: Ino) -> FrozenTree {
        let mut tree = read_tree(&self.reference.service, reference, false);
        // Each side has its own clock.
        let engine = read_tree(&self.engine.service, engine, false);
        assert!(tree.keys().eq(engine.keys()));
        tree.iter_mut().for_each(|(path, entry)| entry.mtime = engine[path].mtime);
        tree
    }

    pub fn stand(&mut self, into: u8, name: u8, tree: FrozenTree) {
        let number = self.versions.next;
        self.versions.next += 1;
        self.versions.trees.insert(number, tree);
        let service = &self.reference.service;
        let parent = self.reference.directory(into).expect("is there");
        let (name, number) = (name_of(name), number.to_string());
        let make = |parent: Ino, name: &[u8], content: NodeContent<'_>| {
            let made = service.make(CALLER, NewNode { parent, name, mode: 0o700, umask: 0 }, content).expect("makes");
            service.forget(made.ino, 1);
            made.ino
        };
        let stand_in = make(parent, &name, NodeContent::Directory);
        make(stand_in, number.as_bytes(), NodeContent::Fifo);
    }

    pub fn fall(&mut self, standing: &Standing) {
        let service = &self.reference.service;
        let (parent, stand_in) = standing.at(&self.reference);
        service.unlink(stand_in, standing.number.to_string().as_bytes()).expect("unlinks");
        service.remove_directory(parent, &standing.name).expect("removes");
        self.versions.trees.remove(&standing.number);
    }

    pub fn forget(&self, standing: &Standing) {
        let (parent, version) = standing.at(&self.engine);
        self.pool().allow_forgetting(parent, &standing.name, None).expect("may be removed");
        self.engine.service.remove_directory(parent, &standing.name).expect("is removed");
        assert_eq!(self.engine.service.attributes(version), Err(Errno::ENOENT), "nobody knows it");
    }

    /// Loses the power, and what is not durable. `decide` brings the reference to the state that the engine shows.
    fn crash(&mut self, seed: u64, decide: impl FnOnce(&mut Self)) {
        self.device = self.device.crash(seed);
        self.reopen_and(false, decide);
    }

    pub fn compare_version(&self, standing: &Standing) {
        let (_, ino) = standing.at(&self.engine);
        let (seen, frozen) = (read_tree(&self.engine.service, ino, true), &self.versions.trees[&standing.number]);
        assert!(seen.keys().eq(frozen.keys()), "names of {standing:?}");
        for (path, entry) in &seen {
            let (expected, path) = (&frozen[path], String::from_utf8_lossy(path));
            let place = entry.bytes.iter().zip(&*expected.bytes).position(|(left, right)| left != right);
            assert_eq!((place, entry.bytes.len()), (None, expected.bytes.len()), "content of {path} of {standing:?}");
            let shown = |entry: &FrozenEntry| FrozenEntry { bytes: Arc::default(), ..entry.clone() };
            assert_eq!(shown(entry), shown(expected), "{path} of {standing:?}");
        }
    }

    pub fn compare_versions(&self) {
        let standing = self.standing();
        standing.iter().for_each(|standing| self.compare_version(standing));
        let listed = self.pool().versions(None).expect("lists");
        assert_eq!(listed.len(), standing.len(), "{listed:?}");
        for standing in standing {
            let (_, ino) = standing.at(&self.engine);
            let [directory, name] = [standing.directories.join(&b'/'), standing.name.clone()];
            let place = [directory, name].map(|bytes| String::from_utf8(bytes).expect("is text"));
            let is_it = |version: &VersionInfo| {
                version.ino == ino && [&version.directory, &version.name] == [&place[0], &place[1]]
            };
            assert!(listed.iter().any(is_it), "{place:?} of {listed:?}");
        }
    }

    /// Tries to change a version.
    fn refused(&self, standing: &Standing) {
        let service = &self.engine.service;
        let (parent, ino) = standing.at(&self.engine);
        assert_eq!(service.remove_directory(parent, &standing.name), Err(Errno::ENOTEMPTY));
        assert_eq!(service.unlink(ino, b"anything"), Err(Errno::EROFS));
        let changes = AttributeChanges { mode: Some(0), ..AttributeChanges::default() };
        assert_eq!(service.set_attributes(CALLER, ino, changes), Err(Errno::EROFS));
    }

    /// Clones a file of a version over a live one, as `cp` does.
    fn thaw(&mut self, version: u8, nth: u8, to: u8) {
        let Some(standing) = self.choose(version) else { return };
        let tree = &self.versions.trees[&standing.number];
        let files: Vec<&Vec<u8>> =
            tree.iter().filter(|(_, entry)| entry.kind == FileKind::Regular).map(|(path, _)| path).collect();
        let Some(path) = files.get(usize::from(nth) % files.len().max(1)) else { return };
        let bytes = tree[*path].bytes.clone();
        let service = self.engine.service.clone();
        let (_, version) = standing.at(&self.engine);
        let source = path.split(|&byte| byte == b'/').fold(version, |directory, name| {
            let found = service.lookup(directory, name).expect("is there");
            service.forget(found.ino, 1);
            found.ino
        });
        let emptied = |side: &mut Side| side.change(&Operation::Truncate { file: to, size: 0 });
        assert_eq!(emptied(&mut self.engine), emptied(&mut self.reference));
        if let Some((ino, handle)) = self.engine.open(to, false) {
            let how = OpenOptions { read: true, ..OpenOptions::default() };
            let from = service.open(CALLER, source, how).expect("opens").handle;
            let mut at = 0;
            while at < bytes.len() as u64 {
                let place = |ino, handle| FilePlace { ino, handle, offset: at };
                let copied = service.copy_range(CALLER, place(source, from), place(ino, handle), u64::MAX);
                let copied = copied.expect("copies");
                assert!(copied > 0);
                at += u64::from(copied);
            }
            service.release(source, from);
            self.engine.close(to, (ino, handle));
        }
        if let Some((ino, handle)) = self.reference.open(to, false) {
            if !bytes.is_empty() {
                let flags = WriteFlags::default();
                self.reference.service.write(CALLER, ino, handle, 0, &bytes, flags).expect("writes");
            }
            self.reference.close(to, (ino, handle));
        }
    }

    pub fn forget_all(&mut self) {
        for standing in self.standing() {
            self.forget(&standing);
            self.fall(&standing);
        }
    }
}
