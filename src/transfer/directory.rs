//! Directories on the way, of which only a limited number are open: a tree may have more levels than a process has descriptors.
//!
//! A directory that was closed is opened again from the nearest open one above it, name by name, or from the one below it by `..`. A name
//! may lead elsewhere by then, so device and inode must be the same, and links are not followed.
//!
//! Cost: in a tree of at most [`OPEN_MAX`] levels, one directory in [`OPEN_MAX`] is opened again. In a deeper tree, the way back opens
//! [`OPEN_MAX`] directories at a time.

use std::collections::VecDeque;
use std::ffi::{CStr, CString};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::{Arc, Weak};

use dedupfs_service::Ino;
use dedupfs_sync::{Mutex, OnceLock};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::disk;

/// Limit of directories that one transfer keeps open, besides the top and those whose files wait to be copied.
const OPEN_MAX: usize = 64;

type Slot = Mutex<Option<Arc<OwnedFd>>>;

/// The directories that are kept open, oldest first.
#[derive(Default)]
pub(super) struct Descriptors {
    kept: Mutex<VecDeque<Weak<Slot>>>,
}

impl Descriptors {
    fn keep(&self, slot: &Arc<Slot>, opened: &Arc<OwnedFd>) {
        *slot.lock() = Some(opened.clone());
        let mut kept = self.kept.lock();
        kept.push_back(Arc::downgrade(slot));
        let oldest = if kept.len() > OPEN_MAX { kept.pop_front() } else { None };
        drop(kept);
        if let Some(oldest) = oldest.and_then(|oldest| oldest.upgrade()) {
            let _closed = oldest.lock().take();
        }
    }
}

/// A directory that is being copied. The thread that finishes its last entry sets its attributes.
pub(super) struct Directory<A> {
    /// Inode in the pool.
    pub(super) ino: Ino,
    pub(super) name: CString,
    pub(super) attributes: A,
    pub(super) above: Option<Arc<Self>>,
    /// Device and inode on the disk; none as long as it is not made.
    identity: OnceLock<(u64, u64)>,
    slot: Arc<Slot>,
}

/// Opens a directory by its name in another. Does not follow links.
pub(super) fn open_at(above: &OwnedFd, name: &CStr) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(above, name, flags, Mode::empty())
}

impl<A> Directory<A> {
    /// Takes a directory that was just opened.
    pub(super) fn new(
        of: (Ino, CString, A),
        above: Option<Arc<Self>>,
        opened: (OwnedFd, (u64, u64)),
        descriptors: &Descriptors,
    ) -> Self {
        let directory = Self::to_be_made(of, above);
        directory.made(opened, descriptors);
        directory
    }

    /// A directory that may be made later.
    pub(super) fn to_be_made((ino, name, attributes): (Ino, CString, A), above: Option<Arc<Self>>) -> Self {
        Self { ino, name, attributes, above, identity: OnceLock::new(), slot: Arc::default() }
    }

    /// Takes note that it was made and opened. The top, which has none above it, stays open.
    pub(super) fn made(&self, (opened, identity): (OwnedFd, (u64, u64)), descriptors: &Descriptors) {
        self.identity.get_or_init(|| identity);
        let opened = Arc::new(opened);
        match &self.above {
            Some(_) => descriptors.keep(&self.slot, &opened),
            None => *self.slot.lock() = Some(opened),
        }
    }

    pub(super) fn is_made(&self) -> bool {
        self.identity.get().is_some()
    }

    /// The path of an entry of this directory, from the tree's top.
    pub(super) fn path(&self, name: &[u8]) -> PathBuf {
        let ways = std::iter::successors(Some(self), |directory| directory.above.as_deref());
        disk::path_below(ways.map(|directory| directory.name.to_bytes()), name)
    }

    fn kept(&self) -> Option<Arc<OwnedFd>> {
        self.slot.lock().clone()
    }

    fn open_again(&self, from: &OwnedFd, name: &CStr, descriptors: &Descriptors) -> rustix::io::Result<Arc<OwnedFd>> {
        let opened = open_at(from, name)?;
        let stat = rustix::fs::fstat(&opened)?;
        // Another directory has the name now.
        if Some(&(stat.st_dev, stat.st_ino)) != self.identity.get() {
            return Err(Errno::NOENT);
        }
        let opened = Arc::new(opened);
        descriptors.keep(&self.slot, &opened);
        Ok(opened)
    }

    /// Opens the directory, if it is not open.
    ///
    /// # Errors
    /// A name on the way leads nowhere, or elsewhere (ENOENT).
    pub(super) fn open(&self, descriptors: &Descriptors) -> rustix::io::Result<Arc<OwnedFd>> {
        let mut way = Vec::new();
        let mut next = Some(self);
        let mut opened = loop {
            let directory = next.ok_or(Errno::BADF)?;
            match directory.kept() {
                Some(opened) => break opened,
                None => way.push(directory),
            }
            next = directory.above.as_deref();
        };
        while let Some(directory) = way.pop() {
            opened = directory.open_again(&opened, &directory.name, descriptors)?;
        }
        Ok(opened)
    }

    /// Opens the directory from one that lies in it and is open.
    pub(super) fn open_from(&self, below: &OwnedFd, descriptors: &Descriptors) -> rustix::io::Result<Arc<OwnedFd>> {
        if let Some(opened) = self.kept() {
            return Ok(opened);
        }
        self.open_again(below, c"..", descriptors).or_else(|_| self.open(descriptors))
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::fs::{self, File};
    use std::path::Path;

    use super::*;

    fn identity(opened: &OwnedFd) -> (u64, u64) {
        let stat = rustix::fs::fstat(opened).unwrap();
        (stat.st_dev, stat.st_ino)
    }

    /// A chain of directories `0/1/2/…`, the lowest last.
    fn chain(top: &Path, levels: usize, descriptors: &Descriptors) -> Vec<Arc<Directory<()>>> {
        let opened = OwnedFd::from(File::open(top).unwrap());
        let identity_of_top = identity(&opened);
        let mut all =
            vec![Arc::new(Directory::new((1, c"top".to_owned(), ()), None, (opened, identity_of_top), descriptors))];
        for level in 0..levels {
            let above = all.last().unwrap().clone();
            let name = CString::new(level.to_string()).unwrap();
            let to = above.open(descriptors).unwrap();
            rustix::fs::mkdirat(&to, &name, Mode::RWXU).unwrap();
            let opened = open_at(&to, &name).unwrap();
            let is = identity(&opened);
            all.push(Arc::new(Directory::new((1, name, ()), Some(above), (opened, is), descriptors)));
        }
        all
    }

    #[test]
    fn few_stay_open_and_all_can_be_opened_again() {
        let (top, descriptors) = (tempfile::tempdir().unwrap(), Descriptors::default());
        let all = chain(top.path(), 3 * OPEN_MAX, &descriptors);
        let count = || all.iter().filter(|directory| directory.kept().is_some()).count();
        assert_eq!(count(), OPEN_MAX + 1);
        let mut below: Option<Arc<OwnedFd>> = None;
        for (round, directory) in all.iter().rev().enumerate() {
            let opened = match below.filter(|_| round % 2 == 0) {
                Some(below) => directory.open_from(&below, &descriptors),
                None => directory.open(&descriptors),
            };
            let opened = opened.unwrap();
            assert_eq!(Some(&identity(&opened)), directory.identity.get());
            below = Some(opened);
        }
        assert!(count() <= OPEN_MAX + 1);
        let deep = OPEN_MAX + 2;
        assert!(all[deep].path(b"x").ends_with(format!("{}/x", deep - 1)));
    }

    #[test]
    fn another_directory_or_a_link_at_the_same_name_is_refused() {
        let (top, descriptors) = (tempfile::tempdir().unwrap(), Descriptors::default());
        let all = chain(top.path(), 2, &descriptors);
        let close = || all.iter().skip(1).for_each(|directory| drop(directory.slot.lock().take()));
        fs::rename(top.path().join("0"), top.path().join("moved")).unwrap();
        close();
        assert_eq!(all[2].open(&descriptors).unwrap_err(), Errno::NOENT);
        fs::create_dir_all(top.path().join("0/1")).unwrap();
        assert_eq!(all[2].open(&descriptors).unwrap_err(), Errno::NOENT);
        fs::remove_dir_all(top.path().join("0")).unwrap();
        std::os::unix::fs::symlink("moved", top.path().join("0")).unwrap();
        assert!(matches!(all[2].open(&descriptors), Err(Errno::NOTDIR | Errno::LOOP)));
        // From below it is found wherever it was moved, and another directory above is not mistaken for it.
        let lowest = OwnedFd::from(File::open(top.path().join("moved/1")).unwrap());
        assert_eq!(Some(&identity(&all[1].open_from(&lowest, &descriptors).unwrap())), all[1].identity.get());
        close();
        let top_of_all = OwnedFd::from(File::open(top.path()).unwrap());
        assert!(all[1].open_from(&top_of_all, &descriptors).is_err());
        fs::remove_file(top.path().join("0")).unwrap();
        fs::rename(top.path().join("moved"), top.path().join("0")).unwrap();
        assert!(all[2].open(&descriptors).is_ok());
    }
}
