//! Walks through the directories of a tree on a disk and makes them in the pool.

use std::ffi::{CStr, CString};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use dedupfs_service::{FileService, Ino, NodeContent};
use rustix::fs::{FileType, RawDir, Stat};

use super::super::crew::{BATCH_FILES, Hand, Space};
use super::super::directory::open_at;
use super::super::disk::{self, Place, XattrSpace};
use super::super::pseudo;
use super::super::tally::{Outcome, Trouble, reading, writing_pool};
use super::{Batch, Directory, LISTING_BYTES, Put, Seen, Spot};

/// Entries of a directory that are sorted at once, by inode: most disks hold them in that order. fts(3) sorts as many.
const ENTRIES_SORTED: usize = 10_000;

const CANNOT_OPEN: &str = "cannot open it";

impl Put<'_> {
    /// Goes through all directories, each after its parent.
    pub(super) fn walk(&self, from: OwnedFd, mut stat: Stat, (into, name): (Ino, CString), hand: Hand<'_, Batch>) {
        let mut space = XattrSpace::default();
        if self.options.owner.is_some() {
            // Without these bits the owner could not rename the directory.
            stat.st_mode |= 0o700;
        }
        if !self.is_wanted(&stat) {
            return self.tally.note_top(Err(Trouble::One("it is the pool itself".to_owned())), &name);
        }
        let top = match self.make_top(Spot { parent: into, above: None, name: &name }) {
            Ok(ino) => Arc::new(self.opened((ino, name), from, stat, None)),
            Err(trouble) => return self.tally.note_top(Err(trouble), &name),
        };
        // Directories still to be entered, the next one last.
        let mut ways: Vec<(Arc<Directory>, CString)> = Vec::new();
        self.list(&top, &mut ways, hand);
        self.leave(top, &mut space);
        while let Some((above, name)) = ways.pop() {
            match self.tally.go_on().and_then(|()| self.enter(&above, &name)) {
                Ok(directory) => {
                    let directory = Arc::new(directory);
                    if self.is_wanted(&directory.attributes.stat) {
                        self.list(&directory, &mut ways, hand);
                    }
                    self.leave(directory, &mut space);
                }
                Err(trouble) => self.tally.note(Err(trouble), || above.path(name.to_bytes())),
            }
            self.leave(above, &mut space);
        }
    }

    fn make_top(&self, spot: Spot<'_>) -> Outcome<Ino> {
        let made = self.make_directory(spot);
        self.is_made.store(made.is_ok(), Ordering::Relaxed);
        made
    }

    fn is_wanted(&self, directory: &Stat) -> bool {
        let (device, options) = (directory.st_dev, self.options);
        let is_own = options.leaves_out_directories.contains(&(device, directory.st_ino));
        let is_on_it = device == self.device;
        !is_own && (is_on_it || (!options.one_file_system && options.leaves_out_device != Some(device)))
    }

    fn make_directory(&self, spot: Spot<'_>) -> Outcome<Ino> {
        let made = self.service.make(self.writer, spot.node(0o700), NodeContent::Directory);
        let ino = made.map_err(writing_pool(self.core, "cannot make the directory"))?.ino;
        self.service.forget(ino, 1);
        self.tally.directory();
        Ok(ino)
    }

    fn enter(&self, above: &Arc<Directory>, name: &CStr) -> Outcome<Directory> {
        let from = above.open(&self.descriptors).map_err(reading(CANNOT_OPEN))?;
        let from = open_at(&from, name).map_err(reading(CANNOT_OPEN))?;
        let stat = rustix::fs::fstat(&from).map_err(reading("cannot look at it"))?;
        let ino = self.make_directory(Spot { parent: above.ino, above: Some(above), name })?;
        Ok(self.opened((ino, name.to_owned()), from, stat, Some(above.clone())))
    }

    fn opened(
        &self,
        (ino, name): (Ino, CString),
        from: OwnedFd,
        stat: Stat,
        above: Option<Arc<Directory>>,
    ) -> Directory {
        let inherited = above.as_ref().map(|above| &above.attributes).filter(|above| above.stat.st_dev == stat.st_dev);
        // The filesystem is asked once, where the walk enters it.
        let (is_pseudo, kind) = match inherited {
            Some(above) => (above.is_pseudo, None),
            None => {
                let kind = pseudo::kind_of(&from);
                (kind.is_some(), kind)
            }
        };
        let is_wanted = self.is_wanted(&stat);
        let opened = (from, (stat.st_dev, stat.st_ino));
        let directory = Directory::new((ino, name, Seen { stat, is_pseudo }), above, opened, &self.descriptors);
        if let Some(kind) = kind.filter(|_| is_wanted) {
            self.tally.problem(&directory.path(b""), pseudo::told(kind));
        }
        directory
    }

    /// Hands over the entries of a directory and queues its directories.
    fn list(&self, directory: &Arc<Directory>, ways: &mut Vec<(Arc<Directory>, CString)>, hand: Hand<'_, Batch>) {
        let from = match directory.open(&self.descriptors).map_err(reading(CANNOT_OPEN)) {
            Ok(from) => from,
            Err(trouble) => return self.tally.note(Err(trouble), || directory.path(b"")),
        };
        let first = ways.len();
        let mut space = vec![MaybeUninit::uninit(); LISTING_BYTES];
        let mut listing = RawDir::new(&from, &mut space);
        let mut entries: Vec<(u64, CString)> = Vec::new();
        let hand_over = |entries: &mut Vec<(u64, CString)>| {
            entries.sort_unstable();
            let mut names = entries.drain(..).map(|(_, name)| name).peekable();
            while names.peek().is_some() {
                let names = names.by_ref().take(BATCH_FILES).collect();
                hand(Batch { directory: directory.clone(), from: from.clone(), names });
            }
        };
        while let Some(entry) = listing.next() {
            let entry = match entry.map_err(reading("cannot list it")) {
                Ok(entry) => entry,
                Err(trouble) => {
                    self.tally.note(Err(trouble), || directory.path(b""));
                    break;
                }
            };
            let name = entry.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            let kind = disk::listed_kind(&from, &entry);
            match kind {
                FileType::Directory => ways.push((directory.clone(), name.to_owned())),
                _ => entries.push((entry.ino(), name.to_owned())),
            }
            if entries.len() >= ENTRIES_SORTED {
                hand_over(&mut entries);
            }
        }
        hand_over(&mut entries);
        // In the order of the listing.
        if let Some(new) = ways.get_mut(first..) {
            new.reverse();
        }
    }

    /// Sets the attributes of the directory if no thread works in it any more, then those of finished directories above it.
    fn leave(&self, directory: Arc<Directory>, space: &mut XattrSpace) {
        let (mut next, mut below) = (Some(directory), None::<Arc<OwnedFd>>);
        while let Some(directory) = next.take().and_then(Arc::into_inner) {
            let path = || directory.path(b"");
            let opened = match &below {
                Some(below) => directory.open_from(below, &self.descriptors),
                None => directory.open(&self.descriptors),
            };
            let outcome = opened.map_err(reading(CANNOT_OPEN)).and_then(|from| {
                let stat = &directory.attributes.stat;
                let outcome = self.attributes(Place::Open(from.as_fd()), directory.ino, stat, space, &path);
                below = Some(from);
                outcome
            });
            self.tally.note(outcome, path);
            next = directory.above;
        }
    }

    pub(super) fn batch(&self, batch: Batch, space: &mut Space) {
        let Batch { directory, from, names } = batch;
        for name in &names {
            let outcome = self.tally.go_on().and_then(|()| self.entry((&directory, &from), name, space));
            self.tally.note(outcome, || directory.path(name.to_bytes()));
        }
        drop(from);
        self.leave(directory, &mut space.xattrs);
    }
}
