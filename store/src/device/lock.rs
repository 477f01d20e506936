//! One process per pool: an advisory lock on the file `lock` of a root.
//!
//! The kernel drops the lock when its holder ends in whatever way, so a crash leaves nothing to clean up. The file's
//! content ("pid note") only tells the next one who holds it; it is never believed to mean that the lock is taken. The
//! file is never removed: two processes could then hold locks on two files of the same name.
//!
//! Cost: one open, one flock and one small write.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{FlockOperation, OFlags, flock};

use super::owner;
use crate::error::{Result, StoreError};

/// Name of the lock file within a root.
pub const LOCK_FILE: &str = "lock";

/// Bytes of the note that are kept and shown.
const NOTE_BYTES_MAX: usize = 200;

/// The exclusive right to use a pool, held until it is dropped or the process ends.
///
/// It survives `fork` (parent and child then share it): a daemon calls [`update_note`](Self::update_note) so that the
/// file names the child.
#[derive(Debug)]
pub struct PoolLock {
    file: File,
}

impl PoolLock {
    /// Locks the pool at `root`; `note` says what for, e.g. "dedupfs mount". Never waits: a pool in use is
    /// [`StoreError::Busy`], naming the process and its note.
    pub fn acquire(root: &Path, note: &str) -> Result<Self> {
        let path = root.join(LOCK_FILE);
        let shown = || path.display().to_string();
        let file = open(root, &path)
            .map_err(|error| StoreError::from_io("open", shown(), owner::explain(root, LOCK_FILE, error)))?;
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => break,
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::WOULDBLOCK) => {
                    return Err(StoreError::Busy { what: format!("pool {}", root.display()), owner: owner(&file) });
                }
                Err(error) => return Err(StoreError::from_io("lock", shown(), error.into())),
            }
        }
        let lock = Self { file };
        lock.update_note(note);
        Ok(lock)
    }

    /// Who holds the lock of the pool at `root`, e.g. "process 4711 (dedupfs scrub)"; `None` if nobody does, or it cannot be
    /// told. For messages: the next moment it may be another.
    #[must_use]
    pub fn holder(root: &Path) -> Option<String> {
        let file = File::open(root.join(LOCK_FILE)).ok()?;
        match flock(&file, FlockOperation::NonBlockingLockShared) {
            Err(rustix::io::Errno::WOULDBLOCK) => Some(owner(&file)),
            _ => None,
        }
    }

    /// Writes this process's id and `note` into the file. A failure (a full disk) is logged only: the lock holds
    /// without it, and a full pool must still be usable.
    pub fn update_note(&self, note: &str) {
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
        // So that nobody is told of a process that is gone, in the moment before the next holder writes its note;
        // but a forked child that shares the lock may have written its own. Unlocking is left to closing: an explicit
        // unlock would also release the lock of such a child.
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

/// The file to lock. On a disk that cannot be written it is locked as it is, or the directory if there is none: a pool that
/// can only be read is still one process's at a time.
fn open(root: &Path, path: &Path) -> io::Result<File> {
    match owner::open_or_create_file(path, OFlags::RDWR) {
        Err(error) if error.kind() == io::ErrorKind::ReadOnlyFilesystem => {
            File::open(path).or_else(|_| File::open(root))
        }
        opened => opened,
    }
}

/// Who holds the lock, as its file tells.
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
        drop(lock);
        drop(PoolLock::acquire(root.path(), "again").unwrap());
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
