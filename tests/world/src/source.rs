//! A tree on the real disk that changes between two puts of it.
//!
//! Each change gives the file a time of its own. So a put tells it from the file before, even if both changed within one tick of the real
//! clock, and it reads the same files whenever the world runs.

use std::fs::{self, File, FileTimes};
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use dedupfs_sync::world;

use crate::dice::{Dice, content};

/// Directories of the tree.
const DIRECTORIES: [&str; 4] = ["", "a", "b", "a/c"];
/// Names in each of them.
const NAMES: u64 = 6;
/// Time of directories, and the beginning of those of files, in seconds since 1970.
const BEGINNING_SECS: u64 = 1 << 30;

/// The dice of a change, and the contents that it may make.
pub struct Changing<'a> {
    pub dice: &'a mut Dice,
    pub pieces: u64,
    pub file_bytes_max: u64,
}

/// Makes the tree, if it is not there, and changes some of it.
///
/// # Panics
/// The real disk fails.
pub fn change(top: &Path, changing: Changing<'_>) {
    let changes = if top.exists() { changing.dice.below(5) } else { 4 + changing.dice.below(12) };
    let outcome = Source { top, changing, changes: 0 }.change(changes);
    outcome.expect("the real disk takes a tree");
}

struct Source<'a> {
    top: &'a Path,
    changing: Changing<'a>,
    /// Changes so far.
    changes: u64,
}

impl Source<'_> {
    fn change(&mut self, changes: u64) -> io::Result<()> {
        DIRECTORIES.iter().try_for_each(|directory| fs::create_dir_all(self.top.join(directory)))?;
        for _ in 0..changes {
            self.change_one()?;
        }
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(BEGINNING_SECS);
        let times = FileTimes::new().set_modified(time).set_accessed(time);
        DIRECTORIES.iter().try_for_each(|directory| File::open(self.top.join(directory))?.set_times(times))
    }

    fn path(&mut self) -> PathBuf {
        let directory = DIRECTORIES[self.changing.dice.below(DIRECTORIES.len() as u64) as usize];
        self.top.join(directory).join(format!("{}", self.changing.dice.below(NAMES)))
    }

    fn change_one(&mut self) -> io::Result<()> {
        let (path, other) = (self.path(), self.path());
        let is_file = path.symlink_metadata().is_ok_and(|metadata| metadata.is_file());
        match self.changing.dice.below(8) {
            0 if is_file && path != other => {
                self.remove(&other)?;
                fs::rename(&path, &other)?;
                self.touch(&other)
            }
            1 if is_file && path != other => {
                self.remove(&other)?;
                fs::hard_link(&path, &other)?;
                self.touch(&other)
            }
            2 => {
                remove(&path)?;
                symlink(format!("to {}", self.changing.dice.of_bits(20)), &path)?;
                self.touch(&path)
            }
            3 if is_file => {
                let mode = 0o600 + self.changing.dice.below(0o100) as u32;
                fs::set_permissions(&path, fs::Permissions::from_mode(mode))?;
                self.touch(&path)
            }
            4 => self.remove(&path),
            5 if is_file => {
                let file = File::options().write(true).open(&path)?;
                file.set_len(self.changing.dice.below(self.changing.file_bytes_max))?;
                self.touch(&path)
            }
            _ => {
                let Changing { dice, pieces, file_bytes_max } = &mut self.changing;
                let len_bytes = dice.below(*file_bytes_max);
                let bytes = content(dice, *pieces, len_bytes);
                if !is_file {
                    remove(&path)?;
                }
                fs::write(&path, bytes)?;
                self.touch(&path)
            }
        }
    }

    fn remove(&mut self, path: &Path) -> io::Result<()> {
        // Another name of the file sees that it is gone.
        if path.symlink_metadata().is_ok_and(|metadata| metadata.is_file()) {
            self.touch(path)?;
        }
        remove(path)
    }

    /// Gives the file a time that no other change has.
    fn touch(&mut self, path: &Path) -> io::Result<()> {
        use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, utimensat};
        self.changes += 1;
        let since = world::now().as_nanos() as u64 + self.changes;
        let secs = (BEGINNING_SECS + since / 1_000_000_000) as i64;
        let time = Timespec { tv_sec: secs, tv_nsec: (since % 1_000_000_000) as i64 };
        let times = Timestamps { last_access: time, last_modification: time };
        Ok(utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW)?)
    }
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}
