//! Walks through the directories of a tree of the pool and makes them on the disk.

use std::collections::HashSet;
use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use dedupfs_namespace::{check_name, is_frozen};
use dedupfs_service::{Attributes, Errno as PoolErrno, FileKind, FileService, Ino, Listing};
use rustix::fs::Mode;

use super::super::TransferError;
use super::super::crew::{BATCH_BYTES, BATCH_FILES, Hand};
use super::super::directory::open_at;
use super::super::disk::{self, Place};
use super::super::tally::{Outcome, Trouble, reading_pool, writing};
use super::selection::Reached;
use super::{Batch, Directory, Get, Known};

/// Entries of a directory that are read at once.
const PAGE_ENTRIES: usize = 256;
const CANNOT_OPEN: &str = "cannot open the directory";
/// Only the owner can use a directory until it is complete.
const PRIVATE_DIRECTORY: Mode = Mode::RWXU;

const SECOND_NAME: &str = "left out: the directory belongs elsewhere. It was moved meanwhile, or it has two names, which is damage \
     (`dedupfs fsck` tells)";

/// A directory still to be entered.
struct Way {
    above: Arc<Directory>,
    ino: Ino,
    name: CString,
    reached: Reached,
}

impl Batch {
    fn of(directory: &Arc<Directory>, to: &Arc<OwnedFd>) -> Self {
        let (directory, to) = (directory.clone(), to.clone());
        Self { directory, to, entries: Vec::with_capacity(BATCH_FILES), content_bytes: 0 }
    }

    fn push(&mut self, ino: Ino, name: CString, size_bytes: u64) {
        self.content_bytes = self.content_bytes.saturating_add(size_bytes);
        self.entries.push((ino, name));
    }

    fn is_full(&self) -> bool {
        self.entries.len() == BATCH_FILES || self.content_bytes >= BATCH_BYTES
    }
}

impl Get<'_> {
    /// Goes through all directories that may hold something wanted, each after its parent.
    pub(super) fn walk(&self, name: &CStr, attributes: Attributes, hand: Hand<'_, Batch>) {
        let wanted = Known { attributes, reached: self.selection.top(), held: None };
        let top = Arc::new(Directory::to_be_made((attributes.ino, name.to_owned(), wanted), None));
        if top.attributes.reached.is_chosen() && self.made(&top).is_err() {
            return;
        }
        // Directories still to be entered, the next one last.
        let mut ways: Vec<Way> = Vec::new();
        self.list(&top, &mut ways, hand);
        self.leave(top);
        while let Some(Way { above, ino, name, reached }) = ways.pop() {
            match self.tally.go_on().and_then(|()| self.enter(&above, ino, &name, reached)) {
                Ok(directory) => {
                    self.list(&directory, &mut ways, hand);
                    self.leave(directory);
                }
                Err(trouble) => self.tally.note(Err(trouble), || above.path(name.to_bytes())),
            }
            self.leave(above);
        }
    }

    /// Enters a directory below `above`, and makes it if it is wanted itself. A directory that records another parent is left out: a
    /// directory that contains itself would have no end, and one with two parents would be copied twice. With this check and the one in
    /// [`list`](Self::list), no set of all directories of the tree is needed in memory.
    fn enter(&self, above: &Arc<Directory>, ino: Ino, name: &CStr, reached: Reached) -> Outcome<Arc<Directory>> {
        let attributes = self.service.attributes(ino).map_err(reading_pool("cannot look at it"))?;
        if attributes.kind != FileKind::Directory {
            return Err(reading_pool("its name says that it is a directory")(PoolErrno::ENOTDIR));
        }
        let parent = self.service.parent(ino).map_err(reading_pool("cannot look at its parent"))?;
        if parent != above.ino {
            return Err(Trouble::One(SECOND_NAME.to_owned()));
        }
        // A version below a live directory is copied to its end, also if it is forgotten meanwhile.
        let held = (is_frozen(ino) && !is_frozen(above.ino)).then(|| self.service.lookup(above.ino, name.to_bytes()));
        let held = held.transpose().map_err(reading_pool("cannot look at it"))?.map(|version| version.ino);
        let of = (ino, name.to_owned(), Known { attributes, reached, held });
        let directory = Arc::new(Directory::to_be_made(of, Some(above.clone())));
        if directory.attributes.reached.is_chosen()
            && let Err(trouble) = self.made(&directory)
        {
            self.leave(directory);
            return Err(trouble);
        }
        Ok(directory)
    }

    /// Opens a directory, and makes it first, with those above it, if that was not done yet. Only the walk calls this.
    fn made(&self, directory: &Arc<Directory>) -> Outcome<Arc<OwnedFd>> {
        let above = std::iter::successors(Some(directory), |directory| directory.above.as_ref());
        let missing: Vec<&Arc<Directory>> = above.take_while(|directory| !directory.is_made()).collect();
        for directory in missing.into_iter().rev() {
            match &directory.above {
                Some(above) => {
                    let to = above.open(&self.descriptors).map_err(writing(CANNOT_OPEN))?;
                    self.make_directory(&to, directory)?;
                }
                // An existing directory is left alone.
                None => self.make_top(directory).map_err(|trouble| {
                    self.tally.note_top(Err(trouble), &directory.name);
                    Trouble::All(TransferError::Interrupted)
                })?,
            }
        }
        directory.open(&self.descriptors).map_err(writing(CANNOT_OPEN))
    }

    fn make_top(&self, top: &Directory) -> Outcome<()> {
        self.make_directory(self.to, top)?;
        let to = top.open(&self.descriptors).map_err(writing(CANNOT_OPEN))?;
        let [above, made] = [rustix::fs::fstat(self.to), rustix::fs::fstat(&to)];
        let cannot_look = || writing("cannot look at the directory");
        if !disk::is_own(&above.map_err(cannot_look())?, &made.map_err(cannot_look())?) {
            return Err(Trouble::One(
                "somebody else may have put another directory there: choose a place that nobody else may write to"
                    .to_owned(),
            ));
        }
        let from_top = to.try_clone().map_err(|error| Trouble::One(error.to_string()))?;
        self.top.get_or_init(|| from_top);
        let cleared = Place::Open(to.as_fd()).clear_inherited();
        let cleared = cleared.and_then(|()| rustix::fs::fchmod(&to, PRIVATE_DIRECTORY));
        cleared.map_err(writing("cannot take inherited access lists away"))
    }

    fn make_directory(&self, parent: &OwnedFd, directory: &Directory) -> Outcome<()> {
        let name = directory.name.as_c_str();
        rustix::fs::mkdirat(parent, name, PRIVATE_DIRECTORY).map_err(writing("cannot make the directory"))?;
        let to = open_at(parent, name).map_err(writing(CANNOT_OPEN))?;
        let stat = rustix::fs::fstat(&to).map_err(writing("cannot look at the directory"))?;
        self.tally.directory();
        directory.made((to, (stat.st_dev, stat.st_ino)), &self.descriptors);
        Ok(())
    }

    /// Hands over the wanted entries of a directory and queues its directories that may hold some.
    fn list(&self, directory: &Arc<Directory>, ways: &mut Vec<Way>, hand: Hand<'_, Batch>) {
        self.listed.fetch_add(1, Ordering::Relaxed);
        let (first, mut after) = (ways.len(), 0);
        let mut listed = HashSet::new();
        loop {
            if let Err(trouble) = self.tally.go_on() {
                return self.tally.note(Err(trouble), || directory.path(b""));
            }
            let page = match self.service.read_directory(directory.ino, after, PAGE_ENTRIES, Listing::Names) {
                Ok(page) => page,
                Err(errno) => {
                    let outcome = Err(reading_pool("cannot list it")(errno));
                    return self.tally.note(outcome, || directory.path(b""));
                }
            };
            let Some(last) = page.last() else { break };
            after = last.cookie;
            let mut batch: Option<Batch> = None;
            for entry in page {
                // The kernel, which would refuse names that lead out of the tree, is not involved here.
                let name = check_name(&entry.name).ok().and_then(|()| disk::c_name(&entry.name));
                let Some(name) = name else {
                    let shown = entry.name.escape_ascii();
                    self.tally.problem(&directory.path(b""), format!("a name that none may have is left out: {shown}"));
                    continue;
                };
                let is_directory = entry.kind == FileKind::Directory;
                let judged = self.selection.judge(&directory.attributes.reached, name.to_bytes(), is_directory);
                let Some(reached) = judged else { continue };
                if is_directory && !listed.insert(entry.ino) {
                    self.tally.problem(&directory.path(name.to_bytes()), SECOND_NAME.to_owned());
                    continue;
                }
                if is_directory {
                    ways.push(Way { above: directory.clone(), ino: entry.ino, name, reached });
                    continue;
                }
                let batch = match &mut batch {
                    Some(batch) => batch,
                    none => match self.made(directory) {
                        Ok(to) => none.insert(Batch::of(directory, &to)),
                        Err(trouble) => return self.tally.note(Err(trouble), || directory.path(b"")),
                    },
                };
                // Only an estimate: the copying thread reads the attributes again.
                let size_bytes = self.service.attributes(entry.ino).map_or(0, |attributes| attributes.size_bytes);
                batch.push(entry.ino, name, size_bytes);
                if batch.is_full() {
                    let next = Batch::of(directory, &batch.to);
                    hand(std::mem::replace(batch, next));
                }
            }
            if let Some(batch) = batch.filter(|batch| !batch.entries.is_empty()) {
                hand(batch);
            }
        }
        // In the order of the listing.
        if let Some(new) = ways.get_mut(first..) {
            new.reverse();
        }
    }

    /// Sets the attributes of the directory if no thread works in it any more, then those of finished directories above it.
    pub(super) fn leave(&self, directory: Arc<Directory>) {
        let (mut next, mut below) = (Some(directory), None::<Arc<OwnedFd>>);
        while let Some(directory) = next.take().and_then(Arc::into_inner) {
            let held = directory.attributes.held;
            // Otherwise nothing in it was wanted.
            if directory.is_made() {
                below = self.complete_directory(&directory, below);
            }
            if let Some(version) = held {
                self.service.forget(version, 1);
            }
            next = directory.above;
        }
    }

    /// Sets the attributes of a directory, which is opened from the one `below`, if that is open. Returns it, open.
    fn complete_directory(&self, directory: &Directory, below: Option<Arc<OwnedFd>>) -> Option<Arc<OwnedFd>> {
        let path = || directory.path(b"");
        let opened = match &below {
            Some(below) => directory.open_from(below, &self.descriptors),
            None => directory.open(&self.descriptors),
        };
        let completed = opened.map_err(writing(CANNOT_OPEN)).and_then(|to| {
            self.attributes(Place::Open(to.as_fd()), directory.attributes.attributes, true, &path).map(|()| to)
        });
        match completed {
            Ok(to) => Some(to),
            Err(trouble) => {
                self.tally.note(Err(trouble), path);
                below
            }
        }
    }

    pub(super) fn batch(&self, batch: Batch, buffer: &mut Vec<u8>) {
        let Batch { directory, to, entries, .. } = batch;
        if self.tally.go_on().is_ok() {
            self.service.ask_for_beginnings(entries.iter().map(|(ino, _)| *ino).filter(|ino| !is_frozen(*ino)));
        }
        for (ino, name) in &entries {
            let path = || directory.path(name.to_bytes());
            let copy = |()| self.entry((&directory, &to), (*ino, name), buffer, &path);
            let outcome = self.tally.go_on().and_then(copy);
            self.tally.note(outcome, path);
        }
        drop(to);
        self.leave(directory);
    }
}
