//! The requests of a client on versions. Each has two in the root: of its own directory, or of a tree on the real disk.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use dedupfs::reclaim::ReclaimOptions;
use dedupfs::transfer::{BaseChoice, PutOptions, VersionOptions};
use dedupfs::{EngineError, NoProgress, Origin, Pool};
use dedupfs_service::{Caller, Errno, FileKind, Ino, Listing, OpenOptions, ROOT_INO};
use dedupfs_store::StoreError;
use dedupfs_sync::thread;

use crate::client::{Client, Orphan, Outcome};
use crate::content::Content;
use crate::frozen::{self, Tree};
use crate::history::directory;
use crate::judge::{File, text};
use crate::plan::{Place, VERSIONS};
use crate::source::{self, Changing};
use crate::tree;

/// Work of another thread: the place that it empties.
type Beside = (usize, thread::JoinHandle<Outcome>);

impl Client {
    /// The client's other version.
    fn other(&self, place: usize) -> usize {
        let first = self.world.plan.files as usize + 1;
        first + (place - first + 1) % VERSIONS as usize
    }

    fn origin(&self, of: &str) -> Origin {
        Origin { source: format!("{of}{}", self.number).into_bytes(), host: b"world".to_vec() }
    }

    /// Returns the outcome as an error number.
    ///
    /// # Panics
    /// It fails without a reason.
    fn told<T>(&self, what: &str, outcome: dedupfs::Result<T>) -> Result<T, Errno> {
        outcome.map_err(|error| {
            if matches!(error, EngineError::NoSpace) {
                return Errno::ENOSPC;
            }
            // A run of reclaiming on a slow disk may not end in the time that a snapshot waits for it.
            if matches!(error, EngineError::Store(StoreError::Busy { .. })) {
                return Errno::EBUSY;
            }
            assert!(self.is_excused(), "client {}: {what} fails: {error}", self.number);
            self.world.tell(|| format!("{what} fails: {error}"));
            Errno::EIO
        })
    }

    /// As `dedupfs snapshot`, of the client's directory.
    pub fn snapshot(&mut self, place: usize) -> Outcome {
        self.forget_version(place)?;
        let operations = self.operations();
        let source = operations.find(&directory(self.number))?.ino;
        let expected = frozen::in_pool(&operations, source)?;
        let removing = self.dice.one_in(3).then(|| self.remove_beside()).flatten();
        if let Some((removed, _)) = &removing {
            let name = self.name(*removed);
            let without = expected.iter().filter(|(path, _)| !name.ends_with(&format!("/{path}")));
            let without = without.map(|(path, entry)| (path.clone(), entry.clone())).collect();
            self.begin(place, Some(frozen::one_content(&without)));
        }
        self.begin(place, Some(frozen::one_content(&expected)));
        let (name, origin) = (self.name(place), self.origin("d"));
        let made = self.pool.snapshot(source, (ROOT_INO, name.as_bytes()), &origin, &NoProgress);
        let is_alone = removing.is_none();
        let removed = removing.map_or(Ok(()), |(removed, task)| self.ended(removed, task));
        let made = self.told("a snapshot", made)?;
        // It shows one moment.
        let seen = frozen::see(&operations, &name)?;
        let verdict = self.with(place, |file| file.look(&seen));
        verdict.unwrap_or_else(|wrong| panic!("client {}: {name} {wrong}", self.number));
        let Some(seen) = seen else { panic!("client {}: {name} is not there", self.number) };
        assert_eq!(made.entries, frozen::tree_of(&seen).len() as u64 - 1, "client {}: entries of {name}", self.number);
        if is_alone {
            // What the client did before is durable.
            let others = (0..self.world.plan.places() as usize).filter(|other| *other != place);
            others.for_each(|other| self.with(other, File::durable));
        }
        self.answered_and_closed(place);
        removed
    }

    /// Has another thread remove a file of the client and reclaim, while this one makes a snapshot.
    fn remove_beside(&mut self) -> Option<Beside> {
        let file = self.dice.below(self.world.plan.files) as usize;
        self.current(file).as_ref()?;
        let name = self.name(file);
        let operations = self.operations();
        Some(self.beside(file, move |_| operations.unlink(&name)))
    }

    /// Has another thread remove what is in this place, and one more reclaim: on a slow disk that takes longer than a request may.
    fn beside(&mut self, place: usize, remove: impl FnOnce(&Pool) -> Outcome + Send + 'static) -> Beside {
        self.begin(place, None);
        let pause = Duration::from_micros(self.dice.of_bits(14));
        let spawn = |act: Box<dyn FnOnce(&Pool) -> Outcome + Send>| {
            let pool = self.pool.clone();
            let act = move || {
                thread::sleep(pause);
                act(&pool)
            };
            thread::Builder::new().name("client".to_owned()).spawn(act).expect("starts")
        };
        // Another run may be under way, or the disk fail.
        let reclaim = |pool: &Pool| pool.reclaim(&ReclaimOptions::below(100), &NoProgress).map(drop).or(Ok(()));
        let task = spawn(Box::new(remove));
        self.reclaiming.push(spawn(Box::new(reclaim)));
        (place, task)
    }

    /// Waits for the other thread.
    fn ended(&self, place: usize, task: thread::JoinHandle<Outcome>) -> Outcome {
        let outcome = task.join().expect("a panic ends the world");
        match outcome {
            Ok(()) => self.answered_and_closed(place),
            Err(_) => self.with(place, File::failed),
        }
        outcome
    }

    /// Tries to make a version in a pool that is opened for reading only.
    pub fn snapshot_refused(&self, place: usize) -> Outcome {
        let (name, origin) = (self.name(place), self.origin("d"));
        match self.pool.snapshot(ROOT_INO, (ROOT_INO, name.as_bytes()), &origin, &NoProgress) {
            Err(EngineError::ReadOnly(_)) => Err(Errno::EROFS),
            other => panic!("client {}: a snapshot of a pool that is for reading only: {other:?}", self.number),
        }
    }

    /// As `dedupfs put`: a version of a tree that changes between two puts. Entries that did not change are taken over.
    pub fn put_version(&mut self, place: usize) -> Outcome {
        self.forget_version(place)?;
        let (from, hidden, name) = (format!("source{}", self.number), format!("h{}", self.number), self.name(place));
        let from = self.world.scratch.join(from);
        let plan = &self.world.plan;
        let (pieces, file_bytes_max) = (plan.pieces, plan.file_bytes_max);
        source::change(&from, Changing { dice: &mut self.dice, pieces, file_bytes_max });
        let expected = frozen::on_disk(&from).expect("the real disk can be read");
        let operations = self.operations();
        operations.make_directory(&hidden)?;
        let into = operations.find(&hidden)?.ino;
        let base = if self.dice.one_in(8) { BaseChoice::None } else { BaseChoice::LastIn(ROOT_INO) };
        let verify_percent = if self.dice.one_in(8) { 100 } else { 0 };
        let version = VersionOptions {
            origin: self.origin("source"),
            base,
            verify_percent,
            racy_ms: 0,
            ..VersionOptions::default()
        };
        let options = PutOptions { version: Some(version), ..PutOptions::default() };
        let forgetting = self.dice.one_in(4).then(|| self.forget_beside(place)).flatten();
        let report = self.pool.put(&options, tree::descriptor(&from), (into, name.as_bytes()), &NoProgress);
        let forgotten = forgetting.map_or(Ok(()), |(other, task)| self.ended(other, task));
        let lied = report.as_ref().ok().and_then(|report| report.version.as_ref()).map_or(0, |version| version.lied);
        assert_eq!(lied, 0, "client {}: entries that were taken over, and had changed", self.number);
        self.transferred("put", report)?;
        self.begin(place, Some(frozen::one_content(&expected)));
        operations.rename(&format!("{hidden}/{name}"), &name, false)?;
        self.with(place, File::answered);
        // Only then it is acknowledged.
        operations.0.fsync_directory(ROOT_INO)?;
        self.with(place, File::durable);
        operations.remove_directory(&hidden)?;
        self.read_version(place)?;
        forgotten
    }

    /// Has another thread forget the client's other version, while this one puts.
    fn forget_beside(&mut self, place: usize) -> Option<Beside> {
        let other = self.other(place);
        self.current(other).as_ref()?;
        let name = self.name(other);
        Some(self.beside(other, move |pool| frozen::forget(pool, ROOT_INO, name.as_bytes())))
    }

    pub fn read_version(&mut self, place: usize) -> Outcome {
        let (name, expected) = (self.name(place), self.current(place));
        let seen = frozen::see(&self.operations(), &name)?;
        let told = [&seen, &expected].map(text);
        assert!(seen == expected, "client {}: {name} reads as {}, and was {}", self.number, told[0], told[1]);
        Ok(())
    }

    /// As `dedupfs forget`.
    pub fn forget_version(&mut self, place: usize) -> Outcome {
        if self.current(place).is_none() {
            return Ok(());
        }
        self.begin(place, None);
        frozen::forget(&self.pool, ROOT_INO, self.name(place).as_bytes())?;
        self.answered_and_closed(place);
        Ok(())
    }

    /// As a program that reads a file of a version while that is forgotten: the file stays open until the client ends.
    pub fn forget_open(&mut self, place: usize) -> Outcome {
        if self.current(place).is_none() {
            return Ok(());
        }
        let operations = self.operations();
        let version = operations.find(&self.name(place))?.ino;
        let service = &operations.0;
        let listed = service.read_directory(version, 0, 1000, Listing::Names)?;
        let files: Vec<_> = listed.iter().filter(|entry| entry.kind == FileKind::Regular).collect();
        if let Some(entry) = files.get(self.dice.below(files.len() as u64) as usize) {
            let content = Content::new(&operations.content(entry.ino)?);
            // As the kernel, which knows the inode as long as it is open.
            let ino = service.lookup(version, &entry.name)?.ino;
            let caller = Caller { uid: 0, gid: 0, pid: self.number as u32 + 1 };
            let how = OpenOptions { read: true, ..OpenOptions::default() };
            let handle = match service.open(caller, ino, how) {
                Ok(opened) => opened.handle,
                Err(error) => {
                    service.forget(ino, 1);
                    return Err(error);
                }
            };
            self.orphans.push(Orphan { open: (ino, handle), content, is_frozen: true });
        }
        self.forget_version(place)
    }

    /// As `dedupfs thaw`. The live tree shows what the version shows, and a change of it does not change the version.
    pub fn thaw(&mut self, place: usize) -> Outcome {
        let Some(content) = self.current(place) else { return Ok(()) };
        let (operations, hidden) = (self.operations(), format!("h{}", self.number));
        let version = operations.find(&self.name(place))?.ino;
        operations.make_directory(&hidden)?;
        let into = operations.find(&hidden)?.ino;
        let thawed = self.pool.thaw(version, (into, b"tree"), &NoProgress);
        self.told("thaw", thawed)?;
        let top = operations.find(&format!("{hidden}/tree"))?.ino;
        let live = frozen::in_pool(&operations, top)?;
        let is_same = frozen::one_content(&live) == *content;
        assert!(is_same, "client {}: the live tree of {} is another one", self.number, self.name(place));
        if let Some(file) = self.file_in(top)? {
            let open = (
                file,
                operations.0.open(self.caller(), file, OpenOptions { write: true, ..OpenOptions::default() })?.handle,
            );
            let bytes = self.dice.word().to_le_bytes();
            let written = operations.write_whole(open, self.dice.of_bits(14), &bytes);
            let flushed = written.and_then(|()| operations.flush(open));
            operations.release(open);
            flushed?;
            self.read_version(place)?;
        }
        tree::remove(&operations, &hidden)
    }

    fn caller(&self) -> Caller {
        Caller { uid: 0, gid: 0, pid: self.number as u32 + 1 }
    }

    /// A file in this directory.
    fn file_in(&mut self, directory: Ino) -> Result<Option<Ino>, Errno> {
        let listed = self.operations().0.read_directory(directory, 0, 1000, Listing::Names)?;
        let files: Vec<_> = listed.iter().filter(|entry| entry.kind == FileKind::Regular).collect();
        Ok(files.get(self.dice.below(files.len() as u64) as usize).map(|entry| entry.ino))
    }

    /// As `dedupfs list` and `dedupfs diff`: the list has the client's versions, and the difference is that of the entries.
    pub fn compare(&mut self, place: usize) -> Outcome {
        let listed = self.told("list", self.pool.versions(Some(ROOT_INO)))?;
        let places =
            (0..self.world.plan.places() as usize).filter(|place| self.world.plan.place(*place) == Place::Version);
        let (exist, gone): (Vec<_>, Vec<_>) = places.partition(|place| self.current(*place).is_some());
        let is_listed = |place: &usize| listed.iter().any(|version| version.name == self.name(*place));
        assert!(exist.iter().all(is_listed), "client {}: {listed:?} lacks a version", self.number);
        assert!(!gone.iter().any(is_listed), "client {}: {listed:?} has one that was forgotten", self.number);
        let places = [place, self.other(place)];
        let [Some(before), Some(after)] = places.map(|place| self.current(place)) else { return Ok(()) };
        let find = |place: usize| self.operations().find(&self.name(place)).map(|found| found.ino);
        let pair = [find(places[0])?, find(places[1])?];
        let page = self.told("diff", self.pool.difference(pair, b"", &NoProgress))?;
        assert_eq!(page.next, None, "these trees are small");
        let told: BTreeSet<String> = page.changes.into_iter().map(|change| change.path).collect();
        let [before, after] = [before, after].map(|content: Arc<Content>| frozen::tree_of(&content));
        let expected = differences(&before, &after);
        assert_eq!(told, expected, "client {}: paths that differ in two versions", self.number);
        Ok(())
    }
}

/// The paths whose entries differ. Of a directory that is in one tree alone, nothing below it; of one that is in both, its time does
/// not count. Nor do the other names of a file.
fn differences(before: &Tree, after: &Tree) -> BTreeSet<String> {
    let compared = |tree: &Tree, path: &str| {
        let mut parts = tree.get(path)?.split(" x");
        let mut words: Vec<String> = parts.next()?.split(' ').map(str::to_owned).collect();
        if words[0] == "Directory" {
            words.remove(3);
        }
        Some((words, parts.next().is_some()))
    };
    let is_directory = |tree: &Tree, path: &str| tree.get(path).is_some_and(|entry| entry.starts_with("Directory"));
    let is_in_both = |path: &str| is_directory(before, path) && is_directory(after, path);
    let paths: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    let is_below_both = |path: &str| path.match_indices('/').all(|(at, _)| is_in_both(&path[..at]));
    let differ = |path: &&&String| is_below_both(path) && compared(before, path) != compared(after, path);
    paths.iter().filter(differ).map(|path| (*path).clone()).collect()
}
