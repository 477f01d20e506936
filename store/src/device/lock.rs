//! One process per pool: advisory locks on the superblocks of a root and on its file `lock`.
//!
//! 1. The superblocks that exist are locked first. Nobody removes them by reflex, as people remove a file named `lock`.
//! 2. Then the file `lock` is locked. Its content ("pid note") only tells the next process which process holds the
//!    lock; it never means that the lock is taken. Versions that lock this file alone are kept out by it, and keep
//!    others out.
//! 3. [`PoolLock::check`] tells whether the names still lead to the locked files: two processes could hold locks on two
//!    files of one name. Writers call it before each commit.
//!
//! The kernel drops the locks however their holder ends, so a crash leaves nothing to clean up. Names are looked up in
//! the directory that was opened, so a root may be moved while it is locked.
//!
//! Cost: three opens, three flocks and one small write; a check is one stat(2) for each file.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags, flock, openat, statat};
use rustix::io::{Errno, retry_on_intr};

use super::owner;
use crate::error::{Result, StoreError};
use crate::superblock::Role;

pub(super) const LOCK_FILE: &str = "lock";
/// The other files that are locked, if they exist.
const SUPERBLOCKS: [Role; 2] = [Role::Meta, Role::Data];

const NOTE_BYTES_MAX: usize = 200;

/// The exclusive right to use a pool, held until it is dropped or the process ends.
///
/// It survives `fork`: parent and child then share it.
#[derive(Debug)]
pub struct PoolLock {
    root: PathBuf,
    directory: File,
    file: File,
    held: Vec<Held>,
}

/// A locked file with its name. It stays locked while any descriptor of it is open.
#[derive(Debug)]
struct Held {
    name: &'static str,
    device: u64,
    inode: u64,
    _file: File,
}

impl Held {
    fn new(name: &'static str, file: File) -> io::Result<Self> {
        let found = file.metadata()?;
        Ok(Self { name, device: found.dev(), inode: found.ino(), _file: file })
    }
}

impl PoolLock {
    /// Locks the pool at `root`. `note` names the purpose, e.g. "dedupfs mount". Never waits: a pool in use is
    /// [`StoreError::Busy`] with the process and its note.
    pub fn acquire(root: &Path, note: &str) -> Result<Self> {
        let shown = |name: &str| root.join(name).display().to_string();
        let fail = |name: &str, error| StoreError::from_io("open", shown(name), owner::explain(root, name, error));
        let directory = File::open(root).map_err(|error| fail(LOCK_FILE, error))?;
        let busy = |owner| StoreError::Busy { what: format!("pool {}", root.display()), owner };
        let mut held = Vec::new();
        for name in SUPERBLOCKS.map(Role::file_name) {
            let file = match open_superblock(&directory, name) {
                Ok(file) => file,
                // `mkfs` or a repair will create it.
                Err(Errno::NOENT) => continue,
                Err(error) => return Err(fail(name, error.into())),
            };
            match try_lock(&file) {
                Ok(true) => held.push(Held::new(name, file).map_err(|error| fail(name, error))?),
                Ok(false) => return Err(busy(noted_owner(root))),
                // Network disks refuse to lock a file that is open only for reading: there the lock file alone counts.
                Err(Errno::BADF) => {}
                Err(error) => return Err(StoreError::from_io("lock", shown(name), error.into())),
            }
        }
        let file = open(root, &root.join(LOCK_FILE)).map_err(|error| fail(LOCK_FILE, error))?;
        match try_lock(&file) {
            Ok(true) => {}
            Ok(false) => return Err(busy(owner(&file))),
            Err(error) => return Err(StoreError::from_io("lock", shown(LOCK_FILE), error.into())),
        }
        // On a disk that cannot be written it may be the directory.
        if file.metadata().map_err(|error| fail(LOCK_FILE, error))?.is_file() {
            let own = file.try_clone().and_then(|file| Held::new(LOCK_FILE, file));
            held.push(own.map_err(|error| fail(LOCK_FILE, error))?);
        }
        let lock = Self { root: root.to_owned(), directory, file, held };
        // The file may have been removed between opening and locking: another process may hold its successor.
        lock.check()?;
        lock.update_note(note);
        Ok(lock)
    }

    /// Checks that this process still has the pool alone: the names lead to the files that it has locked.
    ///
    /// # Errors
    /// [`StoreError::LockLost`]; I/O errors.
    pub fn check(&self) -> Result<()> {
        for held in &self.held {
            let shown = || self.root.join(held.name).display().to_string();
            match retry_on_intr(|| statat(&self.directory, held.name, AtFlags::empty())) {
                Ok(found) if (found.st_dev, found.st_ino) == (held.device, held.inode) => {}
                Ok(_) | Err(Errno::NOENT | Errno::STALE) => return Err(StoreError::LockLost { path: shown() }),
                Err(error) => return Err(StoreError::from_io("look at", shown(), error.into())),
            }
        }
        Ok(())
    }

    /// The holder of the lock of the pool at `root`, e.g. "process 4711 (dedupfs scrub)". `None` if there is none, or
    /// if it cannot be determined. For messages only: a moment later another process may hold it.
    pub fn holder(root: &Path) -> Option<String> {
        Self::find_holder(root).ok().flatten()
    }

    /// As [`holder`](Self::holder), but tells a free lock from a failure to find out.
    ///
    /// # Errors
    /// The holder cannot be determined.
    pub fn find_holder(root: &Path) -> io::Result<Option<String>> {
        let directory = File::open(root)?;
        let is_taken = |file: &File| {
            let looked = retry_on_intr(|| flock(file, FlockOperation::NonBlockingLockShared));
            looked == Err(Errno::WOULDBLOCK)
        };
        match File::open(root.join(LOCK_FILE)) {
            Ok(file) if is_taken(&file) => return Ok(Some(owner(&file))),
            Ok(_) => {}
            // As in `open`: a disk that cannot be written may lack the file, so the directory is locked.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                if is_taken(&directory) {
                    return Ok(Some(owner(&directory)));
                }
            }
            Err(error) => return Err(error),
        }
        for name in SUPERBLOCKS.map(Role::file_name) {
            match File::open(root.join(name)) {
                Ok(file) if is_taken(&file) => return Ok(Some(noted_owner(root))),
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(None)
    }

    /// Writes this process's id and `note` into the file. A failure (a full disk) is only logged: the lock holds
    /// without the note, and a full pool must stay usable.
    fn update_note(&self, note: &str) {
        let mut text = format!("{} {}", std::process::id(), printable(note));
        text.push('\n');
        let written = self.file.set_len(0).and_then(|()| self.file.write_all_at(text.as_bytes(), 0));
        if let Err(error) = written {
            tracing::debug!(%error, "cannot note the owner in the pool's lock file");
        }
    }
}

impl Drop for PoolLock {
    fn drop(&mut self) {
        // Clears the note: until the next holder writes its own, messages would name a process that has ended. A forked
        // child that shares the lock may have written its own note; that one stays. Closing unlocks: an explicit unlock
        // would also release the child's lock.
        let own = format!("{} ", std::process::id());
        let mut found = vec![0; own.len()];
        if self.file.read_exact_at(&mut found, 0).is_ok()
            && found == own.as_bytes()
            && let Err(error) = self.file.set_len(0)
        {
            tracing::debug!(%error, "cannot clear the pool's lock file");
        }
    }
}

/// Opens the file to lock. On a disk that cannot be written, or is full, this is the file as it is, or else the
/// directory: even a pool that can only be read belongs to one process at a time.
fn open(root: &Path, path: &Path) -> io::Result<File> {
    match owner::open_or_create_file(path, OFlags::RDWR) {
        Err(error) if takes_nothing(error.kind()) => File::open(path).or_else(|_| File::open(root)),
        opened => opened,
    }
}

fn takes_nothing(kind: io::ErrorKind) -> bool {
    use io::ErrorKind::{QuotaExceeded, ReadOnlyFilesystem, StorageFull};
    matches!(kind, ReadOnlyFilesystem | StorageFull | QuotaExceeded)
}

/// Opens a superblock for locking. It is opened for writing because network disks lock no other files exclusively.
fn open_superblock(directory: &File, name: &str) -> rustix::io::Result<File> {
    let open = |flags| retry_on_intr(|| openat(directory, name, flags | OFlags::CLOEXEC, Mode::empty()));
    match open(OFlags::RDWR) {
        Err(Errno::ROFS | Errno::ACCESS | Errno::PERM | Errno::TXTBSY) => Ok(open(OFlags::RDONLY)?.into()),
        opened => Ok(opened?.into()),
    }
}

/// Locks a file; `false` if another process has it.
fn try_lock(file: &File) -> rustix::io::Result<bool> {
    match retry_on_intr(|| flock(file, FlockOperation::NonBlockingLockExclusive)) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(error) => Err(error),
    }
}

/// The holder of a superblock's lock. The lock file names it, unless it was removed.
fn noted_owner(root: &Path) -> String {
    match File::open(root.join(LOCK_FILE)) {
        Ok(file) => owner(&file),
        Err(_) => format!("another process, whose file `{LOCK_FILE}` was removed"),
    }
}

/// The holder of the lock, according to its file.
fn owner(file: &File) -> String {
    let mut bytes = [0; NOTE_BYTES_MAX + 16];
    let found = loop {
        match file.read_at(&mut bytes, 0) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            found => break found.unwrap_or(0),
        }
    };
    parse_owner(bytes.get(..found).unwrap_or_default())
}

fn parse_owner(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let line = text.lines().next().unwrap_or_default();
    let (pid, note) = line.split_once(' ').unwrap_or((line, ""));
    match (pid.parse::<u32>(), printable(note).trim()) {
        (Err(_), _) => "another process".to_owned(),
        (Ok(pid), "") => format!("process {pid}"),
        (Ok(pid), note) => format!("process {pid} ({note})"),
    }
}

/// One line of at most [`NOTE_BYTES_MAX`] bytes without control characters.
fn printable(note: &str) -> String {
    let mut text = String::new();
    for letter in note.chars().map(|letter| if letter.is_control() { ' ' } else { letter }) {
        if text.len() + letter.len_utf8() > NOTE_BYTES_MAX {
            break;
        }
        text.push(letter);
    }
    text
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};

    use super::*;

    const ROOT_VARIABLE: &str = "DEDUPFS_TEST_LOCK_ROOT";

    #[test]
    fn a_note_is_one_line_of_bounded_length() {
        assert_eq!(printable("dedupfs\nmount\t/mnt"), "dedupfs mount /mnt");
        assert_eq!(printable(&"x".repeat(2 * NOTE_BYTES_MAX)), "x".repeat(NOTE_BYTES_MAX));
        let wide = printable(&format!("x{}", "\u{e4}".repeat(NOTE_BYTES_MAX)));
        assert!((NOTE_BYTES_MAX - 1..=NOTE_BYTES_MAX).contains(&wide.len()), "{}", wide.len());
    }

    /// The second process of `a_second_process_is_told_who_holds_the_lock`; does nothing when run by itself.
    #[test]
    fn helper_process() {
        let Some(root) = std::env::var_os(ROOT_VARIABLE) else { return };
        let _lock = PoolLock::acquire(Path::new(&root), "dedupfs test").unwrap();
        println!("\nlocked");
        let _ = io::stdin().read_line(&mut String::new());
    }

    fn spawn_holder(root: &Path) -> std::process::Child {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "device::lock::tests::helper_process", "--nocapture"])
            .env(ROOT_VARIABLE, root)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let is_locked = output.lines().map_while(io::Result::ok).any(|line| line == "locked");
        assert!(is_locked, "the helper ended without taking the lock");
        child
    }

    fn busy_owner(root: &Path) -> String {
        match PoolLock::acquire(root, "second") {
            Err(StoreError::Busy { what, owner }) => {
                assert_eq!(what, format!("pool {}", root.display()));
                owner
            }
            other => panic!("expected Busy, found {other:?}"),
        }
    }

    #[test]
    fn a_second_process_is_told_who_holds_the_lock() {
        let root = tempfile::tempdir().unwrap();
        let mut child = spawn_holder(root.path());
        assert_eq!(busy_owner(root.path()), format!("process {} (dedupfs test)", child.id()));
        child.kill().unwrap();
        child.wait().unwrap();
        drop(PoolLock::acquire(root.path(), "after a kill").unwrap());
    }

    #[test]
    fn the_same_process_cannot_lock_twice_and_dropping_frees() {
        let root = tempfile::tempdir().unwrap();
        let lock = PoolLock::acquire(root.path(), "one\ntwo").unwrap();
        assert_eq!(busy_owner(root.path()), format!("process {} (one two)", std::process::id()));
        lock.update_note("later");
        assert_eq!(busy_owner(root.path()), format!("process {} (later)", std::process::id()));
        assert!(PoolLock::find_holder(root.path()).unwrap().is_some_and(|holder| holder.ends_with("(later)")));
        drop(lock);
        assert_eq!(PoolLock::find_holder(root.path()).unwrap(), None);
        drop(PoolLock::acquire(root.path(), "again").unwrap());
    }

    /// Two daemons once wrote one pool after such a removal.
    #[test]
    fn regression_a_removed_lock_file_lets_nobody_else_in() {
        for superblock in SUPERBLOCKS.map(Role::file_name) {
            let root = tempfile::tempdir().unwrap();
            std::fs::write(root.path().join(superblock), "").unwrap();
            let lock = PoolLock::acquire(root.path(), "first").unwrap();
            lock.check().unwrap();
            std::fs::remove_file(root.path().join(LOCK_FILE)).unwrap();
            assert!(busy_owner(root.path()).contains("`lock` was removed"));
            assert!(PoolLock::holder(root.path()).is_some());
            assert!(!root.path().join(LOCK_FILE).exists(), "left by a process that was refused");
            let lost = lock.check().unwrap_err();
            assert!(matches!(&lost, StoreError::LockLost { path } if path.ends_with("/lock")), "{lost}");
            drop(lock);
            drop(PoolLock::acquire(root.path(), "after").unwrap());
        }
    }

    #[test]
    fn regression_a_replaced_file_is_a_lost_lock() {
        for name in [LOCK_FILE, Role::Meta.file_name(), Role::Data.file_name()] {
            let root = tempfile::tempdir().unwrap();
            for superblock in SUPERBLOCKS.map(Role::file_name) {
                std::fs::write(root.path().join(superblock), "").unwrap();
            }
            let lock = PoolLock::acquire(root.path(), "first").unwrap();
            let (path, copy) = (root.path().join(name), root.path().join("copy"));
            std::fs::copy(&path, &copy).unwrap();
            lock.check().unwrap();
            std::fs::rename(&copy, &path).unwrap();
            assert!(matches!(lock.check(), Err(StoreError::LockLost { .. })), "{name}");
            // One of the others still keeps everybody out.
            busy_owner(root.path());
        }
    }

    #[test]
    fn a_root_may_be_moved_while_it_is_locked() {
        let directory = tempfile::tempdir().unwrap();
        let (before, after) = (directory.path().join("before"), directory.path().join("after"));
        std::fs::create_dir(&before).unwrap();
        let lock = PoolLock::acquire(&before, "").unwrap();
        std::fs::rename(&before, &after).unwrap();
        lock.check().unwrap();
        busy_owner(&after);
    }

    #[test]
    fn a_missing_root_is_not_found() {
        let root = tempfile::tempdir().unwrap();
        let missing = root.path().join("no");
        assert!(matches!(PoolLock::acquire(&missing, ""), Err(StoreError::NotFound { .. })));
    }

    #[test]
    fn odd_lock_files_still_give_an_owner() {
        assert_eq!(parse_owner(b""), "another process");
        assert_eq!(parse_owner(b"no number\n"), "another process");
        assert_eq!(parse_owner(b"\xff\xfe"), "another process");
        assert_eq!(parse_owner(b"12"), "process 12");
        assert_eq!(parse_owner(b"12 a\x1b[31mb\nmore"), "process 12 (a [31mb)");
        assert!(printable(&"ä".repeat(500)).len() <= NOTE_BYTES_MAX);
    }
}
