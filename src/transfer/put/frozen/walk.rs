//! Walks through the directories of a tree, names ascending.

use std::ffi::{CStr, CString};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use dedupfs_sync::channel::Sender;
use rustix::fs::{FileType, RawDir, Stat};

use super::super::super::crew::{BATCH_FILES, Hand};
use super::super::super::directory::open_at;
use super::super::super::disk::{self, Place, XattrSpace};
use super::super::super::pseudo;
use super::super::super::tally::{Outcome, Trouble, reading};
use super::super::LISTING_BYTES;
use super::bases::BaseDirectories;
use super::entry::CopiedAttributes;
use super::window::{Batch, Step, WINDOW_ENTRIES, Window};
use super::{Directory, Seen, VersionPut};

const CANNOT_OPEN: &str = "cannot open it";

/// A name in a directory.
struct Listed {
    name: CString,
    ino: u64,
    is_directory: bool,
}

/// A directory on the way, with the entries still to come.
struct Level {
    directory: Arc<Directory>,
    entries: std::iter::Peekable<std::vec::IntoIter<Listed>>,
    end: Step,
    bases: BaseDirectories,
}

impl VersionPut<'_> {
    /// Goes through all directories, and tells each step of the walk.
    pub(super) fn walk(&self, from: OwnedFd, stat: Stat, name: &CStr, hand: Hand<'_, Batch>, steps: &Sender<Step>) {
        // The thread that takes the steps ends after this one, unless it panics.
        let tell = |step| drop(steps.send(step));
        if !self.is_wanted(&stat) {
            return self.tally.note_top(Err(Trouble::One("it is the pool itself".to_owned())), name);
        }
        let mut space = XattrSpace::default();
        let bases = self.bases.top();
        let top = self.level(self.opened(name.to_owned(), from, stat, None), bases, &mut space);
        tell(Step::Begin(name.to_owned()));
        let mut levels = vec![top];
        while let Some(level) = levels.last_mut() {
            if self.tally.go_on().is_err() {
                return;
            }
            self.hand_over(level, hand, &tell);
            let Some(Listed { name, .. }) = level.entries.next() else {
                if let Some(level) = levels.pop() {
                    tell(level.end);
                }
                continue;
            };
            match self.enter(&level.directory, &name) {
                Ok(directory) => {
                    let bases = self.bases.enter(&mut level.bases, name.to_bytes());
                    let level = self.level(directory, bases, &mut space);
                    tell(Step::Begin(name));
                    levels.push(level);
                }
                Err(trouble) => self.tally.note(Err(trouble), || level.directory.path(name.to_bytes())),
            }
        }
    }

    /// Hands over the entries up to the next directory.
    fn hand_over(&self, level: &mut Level, hand: Hand<'_, Batch>, tell: &dyn Fn(Step)) {
        loop {
            let (mut names, mut inos) = (Vec::new(), Vec::new());
            while names.len() < WINDOW_ENTRIES
                && let Some(listed) = level.entries.next_if(|listed| !listed.is_directory)
            {
                inos.push(listed.ino);
                names.push(listed.name);
            }
            if names.is_empty() {
                return;
            }
            let from = match level.directory.open(&self.descriptors).map_err(reading(CANNOT_OPEN)) {
                Ok(from) => from,
                Err(trouble) => return self.tally.note(Err(trouble), || level.directory.path(b"")),
            };
            let of_base = |name: &CString| self.bases.entry(&mut level.bases, name.to_bytes());
            let bases = names.iter().map(of_base).collect();
            let window = Window::new(names, bases);
            tell(Step::Window(window.clone()));
            let mut positions: Vec<usize> = (0..inos.len()).collect();
            positions.sort_unstable_by_key(|&position| inos.get(position));
            for positions in positions.chunks(BATCH_FILES) {
                let (window, directory, from) = (window.clone(), level.directory.clone(), from.clone());
                hand(Batch { window, directory, from, positions: positions.to_vec(), next: 0 });
            }
        }
    }

    fn is_wanted(&self, directory: &Stat) -> bool {
        let (device, options) = (directory.st_dev, self.options);
        let is_own = options.leaves_out_directories.contains(&(device, directory.st_ino));
        let is_on_it = device == self.device;
        !is_own && (is_on_it || (!options.one_file_system && options.leaves_out_device != Some(device)))
    }

    fn enter(&self, above: &Arc<Directory>, name: &CStr) -> Outcome<Directory> {
        let from = above.open(&self.descriptors).map_err(reading(CANNOT_OPEN))?;
        let from = open_at(&from, name).map_err(reading(CANNOT_OPEN))?;
        let stat = rustix::fs::fstat(&from).map_err(reading("cannot look at it"))?;
        Ok(self.opened(name.to_owned(), from, stat, Some(above.clone())))
    }

    fn opened(&self, name: CString, from: OwnedFd, stat: Stat, above: Option<Arc<Directory>>) -> Directory {
        self.tally.directory();
        let inherited = above.as_ref().map(|above| &above.attributes).filter(|above| above.stat.st_dev == stat.st_dev);
        // The filesystem is asked once, where the walk enters it.
        let (is_pseudo, kind) = match inherited {
            Some(above) => (above.is_pseudo, None),
            None => {
                let kind = pseudo::kind_of(&from);
                (kind.is_some(), kind)
            }
        };
        let opened = (from, (stat.st_dev, stat.st_ino));
        let directory = Directory::new((0, name, Seen { stat, is_pseudo }), above, opened, &self.descriptors);
        if let Some(kind) = kind.filter(|_| self.is_wanted(&stat)) {
            self.tally.problem(&directory.path(b""), pseudo::told(kind));
        }
        directory
    }

    /// Reads attributes and names of a directory.
    fn level(&self, directory: Directory, bases: BaseDirectories, space: &mut XattrSpace) -> Level {
        let directory = Arc::new(directory);
        let stat = &directory.attributes.stat;
        let path = || directory.path(b"");
        let opened = directory.open(&self.descriptors).map_err(reading(CANNOT_OPEN));
        let (attributes, entries) = match &opened {
            Ok(from) => {
                let attributes = self.attributes(Place::Open(from.as_fd()), stat, space, &path);
                let attributes = attributes.unwrap_or_else(|trouble| {
                    self.tally.note(Err(trouble), path);
                    Default::default()
                });
                (attributes, if self.is_wanted(stat) { self.list(&directory, from) } else { Vec::new() })
            }
            Err(_) => Default::default(),
        };
        self.tally.note(opened.map(drop), path);
        let CopiedAttributes { attributes, keep, .. } = attributes;
        let end = Step::End(attributes, keep);
        Level { directory, entries: entries.into_iter().peekable(), end, bases }
    }

    /// Returns the names of a directory, sorted.
    fn list(&self, directory: &Directory, from: &Arc<OwnedFd>) -> Vec<Listed> {
        let mut space = vec![MaybeUninit::uninit(); LISTING_BYTES];
        let mut listing = RawDir::new(from, &mut space);
        let mut entries = Vec::new();
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
            let kind = disk::listed_kind(from, &entry);
            let is_directory = kind == FileType::Directory;
            entries.push(Listed { name: name.to_owned(), ino: entry.ino(), is_directory });
        }
        entries.sort_unstable_by(|one, other| one.name.cmp(&other.name));
        // A directory that changes while it is read may show a name twice.
        entries.dedup_by(|one, other| one.name == other.name);
        entries
    }
}
