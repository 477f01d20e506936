//! A client: does with its own files what rsync, tar, databases and virtual machines do with theirs, and tells the judge.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use dedupfs::transfer::{PutOptions, TransferError, TransferReport};
use dedupfs::{EngineError, NoProgress, Pool};
use dedupfs_service::{Errno, Handle, Ino, ROOT_INO};
use dedupfs_sync::{thread, world};

use crate::content::Content;
use crate::dice::{Dice, content};
use crate::history::World;
use crate::judge::{File, State, text};
use crate::operations::Client as Operations;
use crate::plan::{Life, Plan};
use crate::tree;

/// A client of one life.
pub struct Client {
    pub number: usize,
    pub world: Arc<World>,
    pub pool: Arc<Pool>,
    pub dice: Dice,
    pub life: Life,
    /// Open files that were removed.
    pub open: Vec<Open>,
}

type Outcome = Result<(), Errno>;
/// An open file: its inode number and its handle.
type Open = (Ino, Handle);

/// The kind of request that puts a tree.
const PUT: u64 = 12;

impl Client {
    fn operations(&self) -> Operations {
        Operations::of_process(self.pool.service(), self.number as u32 + 1)
    }

    fn name(&self, file: usize) -> String {
        format!("c{}-{file}", self.number)
    }

    fn with<T>(&self, file: usize, act: impl FnOnce(&mut File) -> T) -> T {
        act(&mut self.world.files().get_mut(self.number).expect("has files")[file])
    }

    fn current(&self, file: usize) -> State {
        self.with(file, |file| file.current().clone())
    }

    fn begin(&self, file: usize, content: Option<Content>) {
        self.with(file, |file| file.begin(content.map(Arc::new)));
    }

    /// Notes an answer behind which the file is closed.
    fn answered_and_closed(&self, file: usize) {
        self.with(file, |file| {
            file.answered();
            file.closed(world::now());
        });
    }

    /// Makes the requests of this life. After one that failed the client gives up, unless the disk is full by the pool
    /// alone: then it makes room.
    pub fn live(mut self) {
        let life = self.life.clone();
        for _ in 0..life.steps {
            if self.dice.one_in(life.pause_one_in) {
                thread::sleep(Duration::from_micros(self.dice.of_bits(life.pause_bits)));
            }
            let file = self.dice.below(self.world.plan.files) as usize;
            let kind = self.dice.below(16);
            if life.is_damaged
                && (0..=self.world.plan.files as usize).any(|file| self.with(file, |file| file.is_unsure()))
            {
                // A file could not be read: its content is not known.
                continue;
            }
            let outcome = world::within(life.request_bound(), "a request", || match kind {
                0 | 1 => self.replace(file),
                2 | 3 => self.write_anew(file),
                4 | 5 => self.write_within(file),
                6 => self.append(file),
                7 => self.truncate(file),
                8 => self.remove(file),
                9 => self.sync(),
                10 => self.remove_open(file),
                11 => self.clone_range(file),
                PUT if self.world.plan.with_trees => self.put_tree(),
                13 if self.world.plan.with_trees => self.get_tree(),
                _ => self.read(file),
            });
            self.world.tell(|| format!("client {} {kind} on file {file}: {outcome:?}", self.number));
            world::note(kind << 8 | file as u64);
            self.world.tally.requests.fetch_add(1, Ordering::Relaxed);
            if let Err(error) = outcome {
                self.world.tally.refused.fetch_add(1, Ordering::Relaxed);
                assert!(life.may_fail(), "client {}: request {kind} on file {file} fails: {error:?}", self.number);
                if life.keeps_reserve {
                    let place = if kind == PUT { self.world.plan.files as usize } else { file };
                    self.make_room(place, error).expect("removing is never refused");
                    continue;
                }
                // The client gives up, as programs do: its writes may be lost, and it was told.
                self.with(file, File::failed);
                break;
            }
        }
        for open in std::mem::take(&mut self.open) {
            self.operations().release(open);
        }
    }

    /// Behind a request that failed because the disk is full: whatever it left is right, and goes.
    fn make_room(&mut self, file: usize, error: Errno) -> Outcome {
        assert_eq!(error, Errno::ENOSPC, "client {}: nothing but room may be wanting", self.number);
        let operations = self.operations();
        let seen = look(&operations, &self.world.plan, self.number, file)?;
        let verdict = self.with(file, |file| file.look(&seen));
        verdict.unwrap_or_else(|wrong| panic!("client {}: on a full disk, file {file} {wrong}", self.number));
        remove_unfinished(&operations, self.number)?;
        if file as u64 == self.world.plan.files || seen.is_none() { Ok(()) } else { self.remove(file) }
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
        self.open.push(open);
        self.remove(file)
    }

    fn sync(&mut self) -> Outcome {
        if let Err(error) = self.pool.sync() {
            assert!(self.life.may_break(), "client {}: sync fails: {error}", self.number);
            return Err(Errno::EIO);
        }
        for file in 0..=self.world.plan.files as usize {
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
        let report = self.pool.get(tree, (tree::descriptor(&self.world.scratch), name.as_bytes()), &NoProgress);
        self.transferred("get", report)?;
        let seen = tree::on_disk(&to).expect("a copied tree can be read");
        assert!(seen == *content, "client {}: get copies another tree than the one that was put", self.number);
        Ok(())
    }

    fn transferred(&self, what: &str, outcome: Result<TransferReport, TransferError>) -> Outcome {
        let problem = match outcome {
            Ok(report) if report.problem_count == 0 => return Ok(()),
            Err(TransferError::Pool(EngineError::NoSpace)) => return Err(Errno::ENOSPC),
            Ok(report) => format!("{:?}", report.problems),
            Err(error) => error.to_string(),
        };
        assert!(self.life.may_break(), "client {}: {what} fails: {problem}", self.number);
        self.world.tell(|| format!("{what} fails: {problem}"));
        Err(Errno::EIO)
    }

    /// As a program that reads all of the file, or looks into it.
    fn read(&mut self, file: usize) -> Outcome {
        let expected = self.current(file);
        let name = self.name(file);
        let Some(content) = expected.as_ref().filter(|content| content.len_bytes() > 0 && self.dice.one_in(2)) else {
            let seen = see(&self.operations(), &name)?;
            let told = [&seen, &expected].map(text);
            assert!(seen == expected, "client {}: {name} reads as {}, and holds {}", self.number, told[0], told[1]);
            return Ok(());
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

/// Reads what the client has in this place: a file, or behind the files a tree.
pub fn look(operations: &Operations, plan: &Plan, client: usize, file: usize) -> Result<State, Errno> {
    if file as u64 == plan.files {
        tree::in_pool(operations, &format!("p{client}"))
    } else {
        see(operations, &format!("c{client}-{file}"))
    }
}

/// Removes what requests of this client left that did not come to their end.
pub fn remove_unfinished(operations: &Operations, client: usize) -> Outcome {
    for tree in ["r", "h"] {
        tree::remove(operations, &format!("{tree}{client}"))?;
    }
    match operations.unlink(&format!("t{client}")) {
        Err(Errno::ENOENT) => Ok(()),
        removed => removed,
    }
}

/// Reads the file of this name.
fn see(operations: &Operations, name: &str) -> Result<State, Errno> {
    match operations.find(name) {
        Ok(found) => operations.content(found.ino).map(|bytes| Some(Arc::new(Content::new(&bytes)))),
        Err(Errno::ENOENT) => Ok(None),
        Err(error) => Err(error),
    }
}
