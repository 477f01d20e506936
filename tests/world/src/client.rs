//! A client: does with its own files what rsync, tar, databases and virtual machines do with theirs, and tells the judge.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use dedupfs::transfer::{Patterns, PutOptions, TransferError, TransferReport};
use dedupfs::{EngineError, NoProgress, Pool};
use dedupfs_service::{Errno, Handle, Ino, ROOT_INO};
use dedupfs_sync::{thread, world};

use crate::content::Content;
use crate::dice::{Dice, content};
use crate::frozen;
use crate::history::{World, name};
use crate::judge::{File, State, text};
use crate::operations::Client as Operations;
use crate::plan::{Life, Place, Plan, VERSIONS};
use crate::tree;

/// A client of one life.
pub struct Client {
    pub(crate) number: usize,
    pub(crate) world: Arc<World>,
    pub(crate) pool: Arc<Pool>,
    pub(crate) dice: Dice,
    pub(crate) life: Life,
    /// Open files that were removed.
    pub(crate) orphans: Vec<Orphan>,
    /// Runs of reclaiming that this client began.
    pub(crate) reclaiming: Vec<thread::JoinHandle<Outcome>>,
}

pub type Outcome = Result<(), Errno>;
/// An open file: its inode number and its handle.
pub type Open = (Ino, Handle);

/// A request of a client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Request {
    Replace,
    WriteAnew,
    WriteWithin,
    Append,
    Truncate,
    Remove,
    Sync,
    RemoveOpen,
    CloneRange,
    PutTree,
    GetTree,
    Read,
    Link,
    Decorate,
    UseOrphan,
    Snapshot,
    PutVersion,
    ReadVersion,
    Forget,
    ForgetOpen,
    Thaw,
    Compare,
}

impl Request {
    /// Requests of all plans, each as often as it is to come.
    const PLAIN: &[Self] = &[
        Self::Replace,
        Self::Replace,
        Self::WriteAnew,
        Self::WriteAnew,
        Self::WriteWithin,
        Self::WriteWithin,
        Self::Append,
        Self::Truncate,
        Self::Remove,
        Self::Sync,
        Self::RemoveOpen,
        Self::CloneRange,
        Self::PutTree,
        Self::GetTree,
        Self::Read,
        Self::Read,
    ];
    /// Those that also come in plans with links.
    const WITH_LINKS: &[Self] = &[Self::Link, Self::Decorate, Self::UseOrphan, Self::UseOrphan];
    /// Those that also come in plans with versions.
    const WITH_VERSIONS: &[Self] = &[
        Self::Snapshot,
        Self::Snapshot,
        Self::PutVersion,
        Self::PutVersion,
        Self::PutVersion,
        Self::ReadVersion,
        Self::Forget,
        Self::ForgetOpen,
        Self::Thaw,
        Self::Compare,
        Self::UseOrphan,
    ];

    fn is_on_version(self) -> bool {
        Self::WITH_VERSIONS.contains(&self) && self != Self::UseOrphan
    }
}

/// A file without a name that is open.
pub struct Orphan {
    pub open: Open,
    pub content: Content,
    /// Whether it belongs to a version. The kernel knows it until it is closed.
    pub is_frozen: bool,
}

/// The attribute that clients set. Its value is the name of the file.
const ATTRIBUTE: &str = "user.name";

impl Client {
    pub fn new(number: usize, world: &Arc<World>, life: &Life, pool: &Arc<Pool>, dice: Dice) -> Self {
        let (world, life, pool) = (world.clone(), life.clone(), pool.clone());
        Self { number, world, pool, dice, life, orphans: Vec::new(), reclaiming: Vec::new() }
    }

    pub(crate) fn operations(&self) -> Operations {
        Operations::of_process(self.pool.service(), self.number as u32 + 1)
    }

    pub(crate) fn name(&self, file: usize) -> String {
        name(&self.world.plan, self.number, file)
    }

    pub(crate) fn with<T>(&self, file: usize, act: impl FnOnce(&mut File) -> T) -> T {
        act(&mut self.world.files().get_mut(self.number).expect("has files")[file])
    }

    pub(crate) fn current(&self, file: usize) -> State {
        self.with(file, |file| file.current().clone())
    }

    pub(crate) fn begin(&self, file: usize, content: Option<Content>) {
        self.with(file, |file| file.begin(content.map(Arc::new)));
    }

    /// Notes an answer behind which the file is closed.
    pub(crate) fn answered_and_closed(&self, file: usize) {
        self.with(file, |file| {
            file.answered();
            file.closed(world::now());
        });
    }

    /// Makes the requests of this life. After one that failed the client gives up, unless the disk is full by the pool
    /// alone: then it makes room.
    pub fn live(mut self) {
        let life = self.life.clone();
        let of_links = if self.world.plan.with_links { Request::WITH_LINKS } else { &[] };
        let of_versions = if self.world.plan.with_versions { Request::WITH_VERSIONS } else { &[] };
        let kinds = [Request::PLAIN, of_links, of_versions].concat();
        for _ in 0..life.steps {
            if self.dice.one_in(life.pause_one_in) {
                thread::sleep(Duration::from_micros(self.dice.of_bits(life.pause_bits)));
            }
            let file = self.dice.below(self.world.plan.files) as usize;
            let number = self.dice.below(kinds.len() as u64);
            let request = kinds[number as usize];
            let file = match request.is_on_version() {
                true => (self.world.plan.files + 1 + self.dice.below(VERSIONS)) as usize,
                false => file,
            };
            if self.world.is_closing.load(Ordering::Relaxed) {
                break;
            }
            if life.is_damaged
                && (0..self.world.plan.places() as usize).any(|file| self.with(file, |file| file.is_unsure()))
            {
                // A file could not be read: its content is not known.
                continue;
            }
            self.world.tell(|| format!("client {} begins {request:?} on file {file}", self.number));
            let outcome = world::within(life.request_bound(), "a request", || self.make(request, file));
            self.world.tell(|| format!("client {} {request:?} on file {file}: {outcome:?}", self.number));
            world::note(number << 8 | file as u64);
            self.world.tally.requests.fetch_add(1, Ordering::Relaxed);
            if let Err(error) = outcome {
                self.world.tally.refused.fetch_add(1, Ordering::Relaxed);
                let is_closing = self.world.is_closing.load(Ordering::Relaxed);
                // A snapshot waits only so long for reclaiming to end.
                let is_busy = request == Request::Snapshot && error == Errno::EBUSY;
                let is_excused = self.world.may_fail(&life) || is_closing || is_busy;
                assert!(is_excused, "client {}: {request:?} on file {file} fails: {error:?}", self.number);
                let place = if request == Request::PutTree { self.world.plan.files as usize } else { file };
                if life.keeps_reserve && !is_closing && !is_busy {
                    let room = self.make_room(place, error);
                    let is_closing = self.world.is_closing.load(Ordering::Relaxed);
                    assert!(room.is_ok() || is_closing, "client {}: removing is refused: {room:?}", self.number);
                    continue;
                }
                // The client gives up, as programs do: its writes may be lost, and it was told.
                self.with(place, File::failed);
                break;
            }
        }
        for run in std::mem::take(&mut self.reclaiming) {
            run.join().expect("a panic ends the world").expect("what fails is left out");
        }
        for orphan in std::mem::take(&mut self.orphans) {
            self.operations().release(orphan.open);
            if orphan.is_frozen {
                self.operations().0.forget(orphan.open.0, 1);
            }
        }
    }

    fn make(&mut self, request: Request, file: usize) -> Outcome {
        if self.life.is_read_only {
            return self.make_reading(request, file);
        }
        match request {
            Request::Replace => self.replace(file),
            Request::WriteAnew => self.write_anew(file),
            Request::WriteWithin => self.write_within(file),
            Request::Append => self.append(file),
            Request::Truncate => self.truncate(file),
            Request::Remove => self.remove(file),
            Request::Sync => self.sync(),
            Request::RemoveOpen => self.remove_open(file),
            Request::CloneRange => self.clone_range(file),
            Request::PutTree if self.world.plan.with_trees => self.put_tree(),
            Request::GetTree if self.world.plan.with_trees => self.get_tree(),
            Request::PutTree | Request::GetTree | Request::Read => self.read(file),
            Request::Link => self.link(file),
            Request::Decorate => self.decorate(file),
            Request::UseOrphan => self.use_orphan(),
            Request::Snapshot => self.snapshot(file),
            Request::PutVersion => self.put_version(file),
            Request::ReadVersion => self.read_version(file),
            Request::Forget => self.forget_version(file),
            Request::ForgetOpen => self.forget_open(file),
            Request::Thaw => self.thaw(file),
            Request::Compare => self.compare(file),
        }
    }

    /// Reads. Changes are refused in a pool that is opened for reading only.
    fn make_reading(&mut self, request: Request, file: usize) -> Outcome {
        let refused = match request {
            Request::Replace => self.operations().make_directory("new"),
            Request::Remove if self.current(file).is_some() => self.operations().unlink(&self.name(file)),
            Request::Truncate if self.current(file).is_some() => self.operations().truncate(&self.name(file), 0),
            Request::GetTree if self.world.plan.with_trees => return self.get_tree(),
            Request::Snapshot => self.snapshot_refused(file),
            Request::Compare => return self.compare(file),
            _ if request.is_on_version() => return self.read_version(file),
            _ => return self.read_all(file),
        };
        assert!(refused == Err(Errno::EROFS), "client {}: {request:?}: {refused:?}", self.number);
        Ok(())
    }

    /// Behind a request that failed because the disk is full: whatever it left is right, and goes.
    fn make_room(&mut self, file: usize, error: Errno) -> Outcome {
        assert_eq!(error, Errno::ENOSPC, "client {}: nothing but room may be wanting", self.number);
        let operations = self.operations();
        let seen = look(&operations, &self.world.plan, self.number, file)?;
        let verdict = self.with(file, |file| file.look(&seen));
        verdict.unwrap_or_else(|wrong| panic!("client {}: on a full disk, file {file} {wrong}", self.number));
        remove_unfinished(&self.pool, &operations, self.number)?;
        match self.world.plan.place(file) {
            _ if seen.is_none() => Ok(()),
            Place::Tree => Ok(()),
            Place::File => self.remove(file),
            Place::Version => self.forget_version(file),
        }
    }

    /// Makes the content of a file: a document of the plan, or one of its own.
    fn some_content(&mut self) -> Vec<u8> {
        let plan = &self.world.plan;
        let number = if plan.in_fashion {
            // It comes back: what was garbage by then is needed again, by everybody at once.
            self.world.tally.requests.load(Ordering::Relaxed) / (4 * plan.clients) % (plan.documents + 1)
        } else {
            self.dice.below(plan.documents)
        };
        let mut document = Dice::new(plan.seed ^ number << 20);
        let dice = if plan.documents > 0 { &mut document } else { &mut self.dice };
        let len = dice.below(plan.file_bytes_max);
        content(dice, plan.pieces, len)
    }

    /// As rsync: a new file beside it takes its place.
    fn replace(&mut self, file: usize) -> Outcome {
        let bytes = self.some_content();
        let (name, temporary, operations) = (self.name(file), format!("t{}", self.number), self.operations());
        let open = operations.open(&temporary, false)?;
        operations.write(open, 0, &bytes)?;
        if self.dice.one_in(4) {
            operations.fsync(open)?;
        }
        operations.flush(open)?;
        operations.release(open);
        self.begin(file, Some(Content::new(&bytes)));
        operations.rename(&temporary, &name, false)?;
        self.answered_and_closed(file);
        if self.dice.one_in(4) {
            operations.0.fsync_directory(ROOT_INO)?;
            self.with(file, File::durable);
        }
        Ok(())
    }

    /// As `cp`: the file is made empty, then written.
    fn write_anew(&mut self, file: usize) -> Outcome {
        let bytes = self.some_content();
        let (name, operations) = (self.name(file), self.operations());
        self.begin(file, Some(Content::default()));
        if self.with(file, |file| file.before().is_some()) {
            operations.truncate(&name, 0)?;
        }
        let open = operations.open(&name, false)?;
        self.with(file, File::answered);
        let outcome = self.write_pieces(file, open, 0, &bytes);
        self.close(file, open, outcome)
    }

    /// As a database: pages within the file change, and are synced.
    fn write_within(&mut self, file: usize) -> Outcome {
        let Some(content) = self.current(file) else { return Ok(()) };
        let operations = self.operations();
        let open = operations.open(&self.name(file), false)?;
        let mut outcome = Ok(());
        for _ in 0..1 + self.dice.below(4) {
            let offset = self.dice.below(content.len_bytes() + 100);
            let len = 1 + self.dice.below(5000);
            let piece = crate::dice::content(&mut self.dice, self.world.plan.pieces, len);
            outcome = outcome.and_then(|()| self.write_pieces(file, open, offset, &piece));
            // As a journal that begins anew.
            if outcome.is_ok() && self.dice.one_in(4) {
                outcome = self.truncate(file);
            }
        }
        self.close(file, open, outcome)
    }

    /// As a log.
    fn append(&mut self, file: usize) -> Outcome {
        let Some(content) = self.current(file) else { return Ok(()) };
        let operations = self.operations();
        let open = operations.open(&self.name(file), false)?;
        let piece = self.some_content();
        let outcome = self.write_pieces(file, open, content.len_bytes(), &piece);
        self.close(file, open, outcome)
    }

    /// Writes in pieces; each is a state that a crash may leave.
    fn write_pieces(&mut self, file: usize, open: Open, offset: u64, bytes: &[u8]) -> Outcome {
        let operations = self.operations();
        // Not so many requests that they take the world long.
        let piece_bytes = 1 + bytes.len() / 64 + self.dice.below(self.world.plan.write_bytes_max) as usize;
        let mut at = offset;
        for piece in bytes.chunks(piece_bytes) {
            let before = self.current(file).unwrap_or_default();
            self.begin(file, Some(before.written(at, piece)));
            operations.write_whole(open, at, piece)?;
            self.with(file, File::answered);
            at += piece.len() as u64;
        }
        Ok(())
    }

    /// Closes; syncs before now and then.
    fn close(&mut self, file: usize, open: Open, outcome: Outcome) -> Outcome {
        let operations = self.operations();
        let synced = if self.dice.one_in(3) {
            let synced = outcome.and_then(|()| operations.fsync(open));
            if synced.is_ok() {
                self.with(file, File::durable);
            }
            synced
        } else {
            outcome
        };
        let closed = synced.and_then(|()| operations.flush(open));
        operations.release(open);
        if closed.is_ok() {
            self.with(file, |file| file.closed(world::now()));
        }
        closed
    }

    fn truncate(&mut self, file: usize) -> Outcome {
        let Some(content) = self.current(file) else { return Ok(()) };
        let len = if self.dice.one_in(3) { 0 } else { self.dice.below(2 * content.len_bytes() + 2) };
        self.begin(file, Some(content.resized(len)));
        self.operations().truncate(&self.name(file), len)?;
        self.answered_and_closed(file);
        Ok(())
    }

    fn remove(&mut self, file: usize) -> Outcome {
        if self.current(file).is_none() {
            return Ok(());
        }
        self.begin(file, None);
        self.operations().unlink(&self.name(file))?;
        self.answered_and_closed(file);
        Ok(())
    }

    /// As a program with a temporary file: the file has no name any more, and stays open until the client ends.
    fn remove_open(&mut self, file: usize) -> Outcome {
        if self.current(file).is_none() {
            return Ok(());
        }
        let open = self.operations().open(&self.name(file), false)?;
        let content = (*self.current(file).unwrap_or_default()).clone();
        self.orphans.push(Orphan { open, content, is_frozen: false });
        self.remove(file)
    }

    /// As a program that uses such a file: writes to it, and reads all of it.
    fn use_orphan(&mut self) -> Outcome {
        let operations = self.operations();
        let Some(place) = (self.orphans.len() as u64).checked_sub(1).map(|last| self.dice.below(last + 1)) else {
            return Ok(());
        };
        let bytes = if self.dice.one_in(2) { self.some_content() } else { Vec::new() };
        let orphan = self.orphans.get_mut(place as usize).expect("is there");
        if !bytes.is_empty() && !orphan.is_frozen {
            let offset = self.dice.below(orphan.content.len_bytes() + 1);
            // What a write that fails leaves is not known.
            let before = std::mem::take(&mut orphan.content);
            let (open, content) = (orphan.open, before.written(offset, &bytes));
            let orphan = self.orphans.swap_remove(place as usize);
            if let Err(error) = operations.write(open, offset, &bytes) {
                operations.release(open);
                return Err(error);
            }
            self.orphans.push(Orphan { content, ..orphan });
            if self.dice.one_in(4) {
                operations.fsync(open)?;
            }
        }
        for orphan in &self.orphans {
            let seen = operations.read(orphan.open, 0, 1 << 30)?;
            assert!(
                Content::new(&seen) == orphan.content,
                "client {}: a file without a name reads wrongly",
                self.number
            );
        }
        Ok(())
    }

    /// As programs that take a file's name over by links: it has two names, then only the other one, then its own again.
    fn link(&mut self, file: usize) -> Outcome {
        let Some(content) = self.current(file) else { return Ok(()) };
        let (own, other, operations) = (self.name(file), format!("l{}", self.number), self.operations());
        operations.link(&own, &other)?;
        let found = operations.find(&other)?;
        assert_eq!(found.nlink, 2, "client {}: names of {own}", self.number);
        self.begin(file, None);
        operations.unlink(&own)?;
        self.with(file, File::answered);
        let seen = operations.content(operations.find(&other)?.ino)?;
        let seen = Some(Arc::new(Content::new(&seen)));
        assert!(seen.as_ref() == Some(&content), "client {}: {own} reads otherwise by its other name", self.number);
        self.with(file, |file| file.begin(seen));
        operations.rename(&other, &own, false)?;
        self.answered_and_closed(file);
        Ok(())
    }

    /// As tar: an attribute of the file, and a symbolic link to it.
    fn decorate(&mut self, file: usize) -> Outcome {
        if self.current(file).is_none() {
            return Ok(());
        }
        let (own, link, operations) = (self.name(file), format!("s{}", self.number), self.operations());
        if self.dice.one_in(4) {
            match operations.remove_xattr(&own, ATTRIBUTE) {
                Err(Errno::ENODATA) => {}
                removed => removed?,
            }
        } else {
            operations.set_xattr(&own, ATTRIBUTE, own.as_bytes())?;
        }
        operations.symlink(&link, own.as_bytes())?;
        let target = operations.0.read_link(operations.find(&link)?.ino)?;
        assert_eq!(target, own.as_bytes(), "client {}: the target of a symbolic link", self.number);
        operations.unlink(&link)
    }

    /// Whether everything may fail by now, and not only requests that need room.
    pub(crate) fn is_excused(&self) -> bool {
        self.world.may_break(&self.life) || self.world.is_closing.load(Ordering::Relaxed)
    }

    fn sync(&mut self) -> Outcome {
        if let Err(error) = self.pool.sync() {
            assert!(self.is_excused(), "client {}: sync fails: {error}", self.number);
            return Err(Errno::EIO);
        }
        for file in 0..self.world.plan.places() as usize {
            self.with(file, File::durable);
        }
        Ok(())
    }

    /// As `cp --reflink`, of the whole file or a part: the target shares the content of another file.
    fn clone_range(&mut self, target: usize) -> Outcome {
        let others = (0..self.world.plan.files as usize).filter(|file| *file != target);
        let sources: Vec<_> = others.filter_map(|file| Some((file, self.current(file)?))).collect();
        let Some((source, content)) = sources.get(self.dice.below(sources.len() as u64) as usize).cloned() else {
            return Ok(());
        };
        let before = self.current(target);
        if before.is_none() {
            // A crash may leave the new file empty.
            self.begin(target, Some(Content::default()));
        }
        let before = before.unwrap_or_default();
        let is_whole = self.dice.one_in(2);
        let place = |dice: &mut Dice, of: &Content| if is_whole { 0 } else { dice.below(of.len_bytes() + 1) };
        let (from, to) = (place(&mut self.dice, &content), place(&mut self.dice, &before));
        let bytes = content.range(from, if is_whole { u64::MAX } else { 1 + self.dice.below(content.len_bytes() + 1) });
        let operations = self.operations();
        let opened = operations.open(&self.name(source), false)?;
        let open = operations.open(&self.name(target), false);
        let copied = open.and_then(|open| {
            self.begin(target, Some(before.written(to, &bytes)));
            operations.copy_range(opened, from, open, to, bytes.len() as u64).map(|copied| (open, copied))
        });
        operations.release(opened);
        let (open, copied) = copied?;
        assert_eq!(copied as usize, bytes.len(), "bytes that client {} clones to file {target}", self.number);
        self.with(target, File::answered);
        // Until the target is closed, nothing but a pin may keep what it shares.
        let mut outcome = Ok(());
        if self.dice.one_in(2) {
            outcome = self.remove(source);
            // At most a second: this pause is part of a request that must end in time.
            thread::sleep(Duration::from_micros(self.dice.below(1 << 20)));
        }
        self.close(target, open, outcome)
    }

    /// As `dedupfs put`: the new tree takes the place of the old one, which goes first.
    fn put_tree(&mut self) -> Outcome {
        let (tree, client) = (self.world.plan.files as usize, self.number);
        let [name, old, hidden] = ["p", "r", "h"].map(|of| format!("{of}{client}"));
        let operations = self.operations();
        if self.current(tree).is_some() {
            self.begin(tree, None);
            operations.rename(&name, &old, false)?;
            self.with(tree, File::answered);
            tree::remove(&operations, &old)?;
        }
        let from = self.world.scratch.join(format!("from{client}"));
        drop(std::fs::remove_dir_all(&from));
        let plan = &self.world.plan;
        let content = tree::make(&from, &mut self.dice, plan.pieces, plan.file_bytes_max);
        operations.make_directory(&hidden)?;
        let into = (operations.find(&hidden)?.ino, name.as_bytes());
        let report = self.pool.put(&PutOptions::default(), tree::descriptor(&from), into, &NoProgress);
        self.transferred("put", report)?;
        self.begin(tree, Some(content));
        operations.rename(&format!("{hidden}/{name}"), &name, false)?;
        self.with(tree, File::answered);
        // Only then it is acknowledged.
        operations.0.fsync_directory(ROOT_INO)?;
        self.with(tree, File::durable);
        operations.remove_directory(&hidden)
    }

    /// As `dedupfs get`.
    fn get_tree(&mut self) -> Outcome {
        let Some(content) = self.current(self.world.plan.files as usize) else { return Ok(()) };
        let tree = self.operations().find(&format!("p{}", self.number))?.ino;
        let name = format!("to{}", self.number);
        let to = self.world.scratch.join(&name);
        drop(std::fs::remove_dir_all(&to));
        let report = self.pool.get(
            tree,
            (tree::descriptor(&self.world.scratch), name.as_bytes()),
            &Patterns::default(),
            &NoProgress,
        );
        self.transferred("get", report)?;
        let seen = tree::on_disk(&to).expect("a copied tree can be read");
        assert!(seen == *content, "client {}: get copies another tree than the one that was put", self.number);
        Ok(())
    }

    pub(crate) fn transferred(&self, what: &str, outcome: Result<TransferReport, TransferError>) -> Outcome {
        let problem = match outcome {
            Ok(report) if report.problem_count == 0 => return Ok(()),
            Err(TransferError::Pool(EngineError::NoSpace)) => return Err(Errno::ENOSPC),
            Ok(report) => format!("{:?}", report.problems),
            Err(error) => error.to_string(),
        };
        assert!(self.is_excused(), "client {}: {what} fails: {problem}", self.number);
        self.world.tell(|| format!("{what} fails: {problem}"));
        Err(Errno::EIO)
    }

    fn read_all(&mut self, file: usize) -> Outcome {
        let (name, expected) = (self.name(file), self.current(file));
        let seen = see(&self.operations(), &name)?;
        let told = [&seen, &expected].map(text);
        assert!(seen == expected, "client {}: {name} reads as {}, and holds {}", self.number, told[0], told[1]);
        Ok(())
    }

    /// As a program that reads all of the file, or looks into it.
    fn read(&mut self, file: usize) -> Outcome {
        let expected = self.current(file);
        let name = self.name(file);
        let Some(content) = expected.as_ref().filter(|content| content.len_bytes() > 0 && self.dice.one_in(2)) else {
            return self.read_all(file);
        };
        let operations = self.operations();
        let open = operations.open(&name, false)?;
        let outcome = (0..1 + self.dice.below(4)).try_for_each(|_| {
            let (offset, len_bytes) = (self.dice.below(content.len_bytes()), 1 + self.dice.of_bits(17));
            let seen = operations.read(open, offset, len_bytes as u32)?;
            let is_right = seen == content.range(offset, len_bytes);
            assert!(is_right, "client {}: {name} reads wrongly, {len_bytes} bytes at {offset}", self.number);
            Ok(())
        });
        operations.release(open);
        outcome
    }
}

/// Reads what the client has in this place: a file, behind the files a tree, and behind that a version.
pub fn look(operations: &Operations, plan: &Plan, client: usize, file: usize) -> Result<State, Errno> {
    let name = name(plan, client, file);
    match plan.place(file) {
        Place::File => see(operations, &name),
        Place::Tree => tree::in_pool(operations, &name),
        Place::Version => frozen::see(operations, &name),
    }
}

/// Removes what requests of this client left that did not come to their end.
pub fn remove_unfinished(pool: &Pool, operations: &Operations, client: usize) -> Outcome {
    if let Ok(hidden) = operations.find(&format!("h{client}")) {
        frozen::forget_all(pool, operations, hidden.ino)?;
    }
    for tree in ["r", "h"] {
        tree::remove(operations, &format!("{tree}{client}"))?;
    }
    for file in ["t", "l", "s"] {
        match operations.unlink(&format!("{file}{client}")) {
            Err(Errno::ENOENT) => {}
            removed => removed?,
        }
    }
    Ok(())
}

/// Reads the file of this name.
///
/// # Panics
/// Its attributes do not fit.
fn see(operations: &Operations, name: &str) -> Result<State, Errno> {
    let found = match operations.find(name) {
        Ok(found) => found,
        Err(Errno::ENOENT) => return Ok(None),
        Err(error) => return Err(error),
    };
    let bytes = operations.content(found.ino)?;
    assert_eq!(found.size_bytes, bytes.len() as u64, "bytes that {name} tells, and has");
    for attribute in operations.0.xattr_names(found.ino)? {
        let value = operations.0.xattr(found.ino, &attribute)?;
        assert_eq!((&attribute[..], &value[..]), (ATTRIBUTE.as_bytes(), name.as_bytes()), "an attribute of {name}");
    }
    Ok(Some(Arc::new(Content::new(&bytes))))
}
