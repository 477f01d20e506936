//! Versions in the workload: snapshots, puts that take over, removal, and live trees of versions.

use std::fs::File;

use dedupfs::transfer::{BaseChoice, PutOptions, VersionOptions};
use dedupfs::{NoProgress, Origin, Pool};
use dedupfs_service::{Errno, ROOT_INO};

use crate::client::Client;
use crate::workload::Workload;

/// The directory in which a live tree is made. Clients look into it when the tree is complete, so no state has its content.
pub const WORK: &str = "work";
/// Name of what is frozen in place, and of the directory in which that is made.
const FROZEN: &str = "uz";
const FREEZING: &str = ".dedupfs-put-0123456789abcdef";

/// Removes a version in the root.
pub fn remove_version(pool: &Pool, client: &Client, name: &str) -> Result<(), String> {
    pool.allow_forgetting(ROOT_INO, name.as_bytes(), None)
        .map_err(|error| format!("{name} may not be removed: {error}"))?;
    client.remove_directory(name).map_err(|error| format!("{name} is not removed: {error:?}"))
}

/// Whether a line of a description is of the directory in which live trees are made.
pub fn is_of_work(line: &str) -> bool {
    line.strip_prefix('/').and_then(|line| line.split([' ', '/']).next()) == Some(WORK)
}

impl Workload {
    /// Makes a version of a directory, or of everything if there is none that would be part of it.
    pub fn snapshot(&mut self) {
        let (name, source) = (format!("v{}", self.random.below(3)), format!("d{}", self.random.below(2)));
        let is_alone = self.versions.is_empty();
        let source = if is_alone && self.random.one_in(2) { String::new() } else { source };
        let found =
            |client: &Client| if source.is_empty() { Some(ROOT_INO) } else { Some(client.find(&source).ok()?.ino) };
        let Some(ino) = found(&self.engine()) else { return };
        if self.versions.contains_key(&name) {
            return self.forget_version(&name);
        }
        // Making it durable comes first.
        self.note_unpublished();
        let described = self.reference.describe_frozen(&source, &format!("/{name}")).expect("describes");
        let before = self.camera.ledger().states.len() - 1;
        self.versions.insert(name.clone(), described);
        self.note();
        let to = (ROOT_INO, name.as_bytes());
        self.pool().snapshot(ino, to, &Origin::default(), &NoProgress).expect("makes a version");
        self.camera.ledger().durable = before;
    }

    /// Copies a directory to a disk, and puts a version of it; then perhaps another one, which takes everything over.
    pub fn put_version(&mut self) {
        let source = format!("d{}", self.random.below(2));
        let Ok(found) = self.engine().find(&source) else { return };
        // Only published content is copied.
        self.close_kept();
        let disk = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("makes a directory");
        let to = File::open(disk.path()).expect("opens").into();
        self.pool().get(found.ino, (to, b"tree"), &dedupfs::transfer::Patterns::default(), &NoProgress).expect("gets");
        let puts = 1 + self.random.below(2) as usize;
        for base in [BaseChoice::None, BaseChoice::LastIn(ROOT_INO)].into_iter().take(puts) {
            let name = format!("v{}", self.random.below(3));
            if self.versions.contains_key(&name) {
                self.forget_version(&name);
            }
            let described = self.reference.describe_frozen(&source, &format!("/{name}")).expect("describes");
            self.versions.insert(name.clone(), described);
            self.note();
            let version = VersionOptions { base, racy_ms: 0, ..VersionOptions::default() };
            let options = PutOptions { version: Some(version), ..PutOptions::default() };
            let from = File::open(disk.path().join("tree")).expect("opens").into();
            let report = self.pool().put(&options, from, (ROOT_INO, name.as_bytes()), &NoProgress).expect("puts");
            assert_eq!(report.problems, []);
        }
    }

    /// Freezes a directory in place, step by step as `dedupfs freeze` does. What has changed in the last step is refused.
    pub fn freeze(&mut self) {
        let (name, live) = (FROZEN, format!("d{}", self.random.below(2)));
        let Ok(found) = self.engine().find(&live) else { return };
        if self.versions.contains_key(name) {
            return self.forget_version(name);
        }
        self.close_kept();
        self.both(&|client| client.rename(&live, name, false));
        self.both(&|client| client.make_directory(FREEZING));
        self.both(&|client| client.set_xattr(FREEZING, "user.dedupfs.put", b""));
        let (hidden, before) = (format!("{FREEZING}/{name}"), self.camera.ledger().states.len() - 1);
        self.reference.make_directory(&hidden).expect("makes what stands for the version");
        let describe = |path: &str| self.reference.describe_frozen(name, path).expect("describes");
        let described = [describe(&format!("/{hidden}")), describe(&format!("/{name}"))];
        let [in_work, in_place] = described;
        self.versions.insert(hidden.clone(), in_work);
        self.note();
        let work = self.engine().find(FREEZING).expect("is there").ino;
        let to = (work, name.as_bytes());
        let made = self.pool().freeze(found.ino, to, &Origin::default(), Some(1), &NoProgress).expect("can be frozen");
        assert!(made.is_some(), "nothing has changed");
        self.camera.ledger().durable = before;
        if self.random.one_in(4) {
            self.both(&|client| client.chmod(name, 0o701));
            let refused = self.engine().rename(&hidden, name, true);
            assert_eq!(refused, Err(Errno::EBUSY));
            self.versions.remove(&hidden);
            self.both(&|client| client.remove_directory(&hidden));
            self.both(&|client| client.remove_directory(FREEZING));
            self.both(&|client| client.rename(name, &live, false));
            return;
        }
        self.versions.remove(&hidden);
        self.versions.insert(name.to_owned(), in_place);
        self.reference.remove_directory(&hidden).expect("is empty");
        self.reference.rename(name, &hidden, false).expect("stands in the hidden directory");
        self.note();
        self.engine().rename(&hidden, name, true).expect("takes its place");
        if self.random.one_in(2) {
            self.sync();
        }
        for entry in self.reference.names(&hidden).expect("lists") {
            self.both(&|client| client.unlink(&format!("{hidden}/{entry}")));
        }
        self.both(&|client| client.remove_directory(&hidden));
        self.both(&|client| client.remove_directory(FREEZING));
    }

    /// Removes a version.
    pub fn forget(&mut self) {
        if let Some(name) = self.versions.keys().find(|name| name.starts_with('v')).cloned() {
            self.forget_version(&name);
        }
    }

    pub fn forget_version(&mut self, name: &str) {
        self.versions.remove(name);
        self.note();
        remove_version(self.pool(), &self.engine(), name).expect("removes a version");
    }

    /// Makes a live tree of a version, which then gets its name; or takes that name away.
    pub fn thaw(&mut self) {
        const NAME: &str = "w";
        let engine = self.engine();
        let (tree, old) = (format!("{WORK}/tree"), format!("{WORK}/old"));
        let _there_or_not = engine.make_directory(WORK);
        if self.versions.remove(NAME).is_some() {
            self.note();
            engine.rename(NAME, &old, false).expect("renames");
        } else if let Some((version, described)) = self.versions.iter().next() {
            let (from, to) = (format!("/{version}"), format!("/{NAME}"));
            let lines = described.lines().map(|line| line.replacen(&from, &to, 1) + "\n");
            let (version, described) = (version.clone(), lines.collect());
            let (from, into) = (engine.find(&version).expect("is there").ino, engine.find(WORK).expect("is there").ino);
            self.pool().thaw(from, (into, b"tree"), &NoProgress).expect("makes a live tree");
            self.versions.insert(NAME.to_owned(), described);
            self.note();
            engine.rename(&tree, NAME, false).expect("renames");
        }
        // Only what was renamed is left.
        engine.empty(engine.find(WORK).expect("is there").ino).expect("is emptied");
        engine.remove_directory(WORK).expect("is removed");
    }
}
