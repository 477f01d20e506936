//! Through the directories of a tree, which are made on the way.

use std::ffi::{CStr, CString};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use dedupfs_fuse::service::{FileService, Ino, NodeContent};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, RawDir, Stat};

use super::super::crew::{BATCH_FILES, Hand, Space};
use super::super::disk::{Place, XattrSpace};
use super::super::tally::{Outcome, Trouble, reading, writing_pool};
use super::{Batch, Directory, LISTING_BYTES, Put, Spot};

/// Entries of a directory that are put in the order of their inodes, in which they lie on most disks. As many as fts(3) sorts.
const ENTRIES_SORTED: usize = 10_000;

impl Put<'_> {
    /// Goes through all directories, each behind its parent.
    pub(super) fn walk(&self, from: OwnedFd, mut stat: Stat, (into, name): (Ino, CString), hand: Hand<'_, Batch>) {
        let mut space = XattrSpace::default();
        if self.options.owner.is_some() {
            // Its owner could not rename it otherwise.
            stat.st_mode |= 0o700;
        }
        if !self.is_wanted(&stat) {
            return self.tally.note_top(Err(Trouble::One("it is the pool itself".to_owned())), &name);
        }
        let top = match self.make_top(Spot { parent: into, above: None, name: &name }) {
            Ok(ino) => Arc::new(Directory { from, ino, name, stat, above: None }),
            Err(trouble) => return self.tally.note_top(Err(trouble), &name),
        };
        // What is still to come, the next one last.
        let mut ways: Vec<(Arc<Directory>, CString)> = Vec::new();
        self.list(&top, &mut ways, hand);
        self.leave(top, &mut space);
        while let Some((above, name)) = ways.pop() {
            match self.tally.go_on().and_then(|()| self.enter(&above, &name)) {
                Ok(directory) => {
                    let directory = Arc::new(directory);
                    if self.is_wanted(&directory.stat) {
                        self.list(&directory, &mut ways, hand);
                    }
                    self.leave(directory, &mut space);
                }
                Err(trouble) => self.tally.note(Err(trouble), || above.path(&name)),
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
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let from = rustix::fs::openat(&above.from, name, flags, Mode::empty()).map_err(reading("cannot open it"))?;
        let stat = rustix::fs::fstat(&from).map_err(reading("cannot look at it"))?;
        let ino = self.make_directory(Spot { parent: above.ino, above: Some(above), name })?;
        Ok(Directory { from, ino, name: name.to_owned(), stat, above: Some(above.clone()) })
    }

    /// Hands the entries of a directory over, and notes its directories.
    fn list(&self, directory: &Arc<Directory>, ways: &mut Vec<(Arc<Directory>, CString)>, hand: Hand<'_, Batch>) {
        let first = ways.len();
        let mut space = vec![MaybeUninit::uninit(); LISTING_BYTES];
        let mut listing = RawDir::new(&directory.from, &mut space);
        let mut entries: Vec<(u64, CString)> = Vec::new();
        let hand_over = |entries: &mut Vec<(u64, CString)>| {
            entries.sort_unstable();
            let mut names = entries.drain(..).map(|(_, name)| name).peekable();
            while names.peek().is_some() {
                hand(Batch { directory: directory.clone(), names: names.by_ref().take(BATCH_FILES).collect() });
            }
        };
        while let Some(entry) = listing.next() {
            let entry = match entry.map_err(reading("cannot list it")) {
                Ok(entry) => entry,
                Err(trouble) => {
                    self.tally.note(Err(trouble), || directory.path(c""));
                    break;
                }
            };
            let name = entry.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            let kind = match entry.file_type() {
                FileType::Unknown => rustix::fs::statat(&directory.from, name, AtFlags::SYMLINK_NOFOLLOW)
                    .map_or(FileType::Unknown, |stat| FileType::from_raw_mode(stat.st_mode)),
                kind => kind,
            };
            match kind {
                FileType::Directory => ways.push((directory.clone(), name.to_owned())),
                _ => entries.push((entry.ino(), name.to_owned())),
            }
            if entries.len() >= ENTRIES_SORTED {
                hand_over(&mut entries);
            }
        }
        hand_over(&mut entries);
        // As they are listed.
        if let Some(new) = ways.get_mut(first..) {
            new.reverse();
        }
    }

    /// The directory's attributes, if nobody works in it any more, and then of those above it.
    fn leave(&self, directory: Arc<Directory>, space: &mut XattrSpace) {
        let mut next = Some(directory);
        while let Some(directory) = next.take().and_then(Arc::into_inner) {
            let path = || directory.path(c"");
            let from = Place::Open(directory.from.as_fd());
            let outcome = self.attributes(from, directory.ino, &directory.stat, space, &path);
            self.tally.note(outcome, path);
            next = directory.above;
        }
    }

    pub(super) fn batch(&self, batch: Batch, space: &mut Space) {
        for name in &batch.names {
            let outcome = self.tally.go_on().and_then(|()| self.entry(&batch.directory, name, space));
            self.tally.note(outcome, || batch.directory.path(name));
        }
        self.leave(batch.directory, &mut space.xattrs);
    }
}
