//! Trees of plain files, for tests in which only content matters.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use crate::random::{Random, noise, prose};

/// The parameters of a tree.
#[derive(Clone, Copy)]
pub struct Plan {
    /// Decides names and sizes.
    pub shape: u64,
    /// Decides the bytes.
    pub content: u64,
    pub files: usize,
    /// Lengths are below this, most of them far below.
    pub len_max: u64,
    /// Age of all files. rsync sees a change by it.
    pub age_secs: u64,
}

impl Plan {
    pub const fn new(seed: u64, files: usize, len_max: u64) -> Self {
        Self { shape: seed, content: seed, files, len_max, age_secs: 1_000_000 }
    }

    /// Returns a plan with the same names and sizes and other bytes.
    pub const fn changed(self, content: u64) -> Self {
        Self { content, age_secs: self.age_secs / 2, ..self }
    }

    /// Returns path within the tree, seed and length of each file.
    fn entries(&self) -> Vec<(PathBuf, u64, usize)> {
        let mut random = Random::new(self.shape);
        let mut bytes = Random::new(self.content ^ 0x5eed);
        (0..self.files)
            .map(|number| {
                let directory = random.below(1 + self.files as u64 / 16);
                let path = PathBuf::from(format!("d{}/e{}/file-{number}", directory % 7, directory));
                // The square makes most files small.
                let share = random.below(1 << 16);
                let len = (self.len_max * share / (1 << 16)) * share / (1 << 16);
                (path, bytes.next(), len as usize)
            })
            .collect()
    }

    /// Makes the tree at `root`; returns its bytes.
    #[track_caller]
    pub fn make(&self, root: &Path) -> u64 {
        let time = SystemTime::now() - Duration::from_secs(self.age_secs);
        let mut total = 0;
        fs::create_dir_all(root).unwrap();
        for (path, seed, len) in self.entries() {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            let content = if seed % 3 == 0 { prose(seed, len) } else { noise(seed, len) };
            fs::write(&path, content).unwrap();
            fs::File::options().append(true).open(&path).unwrap().set_modified(time).unwrap();
            total += len as u64;
        }
        total
    }
}

/// Returns all regular files below `root`, with paths relative to it.
pub fn walk(root: &Path) -> Vec<PathBuf> {
    fn visit(root: &Path, at: &Path, found: &mut Vec<PathBuf>) {
        let entries = fs::read_dir(at).unwrap_or_else(|error| panic!("{}: {error}", at.display()));
        for entry in entries.map(|entry| entry.unwrap_or_else(|error| panic!("in {}: {error}", at.display()))) {
            let kind = entry.file_type().unwrap();
            if kind.is_dir() {
                visit(root, &entry.path(), found);
            } else if kind.is_file() {
                found.push(entry.path().strip_prefix(root).unwrap().to_owned());
            }
        }
    }
    let mut found = Vec::new();
    visit(root, root, &mut found);
    found.sort();
    found
}
