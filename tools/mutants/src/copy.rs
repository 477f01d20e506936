//! The private copy of the repository into which mutants are woven.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The copy, and the directories for all that is built from it.
#[derive(Clone)]
pub struct Copy {
    pub repository: PathBuf,
    pub root: PathBuf,
    pub target: PathBuf,
    pub world_target: PathBuf,
    pub scratch: PathBuf,
}

fn write(path: &Path, bytes: &[u8]) {
    // A file that is not written is not built again.
    if fs::read(path).is_ok_and(|present| present == bytes) {
        return;
    }
    fs::create_dir_all(path.parent().expect("has a directory")).expect("makes a directory of the copy");
    fs::write(path, bytes).expect("writes a file of the copy");
}

impl Copy {
    /// Returns the copy in `work`, made if it is missing.
    pub fn new(repository: &Path, work: &Path) -> Self {
        let directory = |name: &str| {
            let directory = work.join(name);
            fs::create_dir_all(&directory).expect("makes a directory to work in");
            directory
        };
        Self {
            repository: repository.to_owned(),
            root: directory("copy"),
            target: directory("target"),
            world_target: directory("world"),
            scratch: directory("scratch"),
        }
    }

    /// The same with another directory for what tests write.
    pub fn with_scratch(&self, scratch: &Path) -> Self {
        fs::create_dir_all(scratch).expect("makes a directory to work in");
        Self { scratch: scratch.to_owned(), ..self.clone() }
    }

    /// Writes the files of the repository, each as `change` makes it.
    pub fn write(&self, mut change: impl FnMut(&str, Vec<u8>) -> Vec<u8>) {
        let mut git = Command::new("git");
        git.current_dir(&self.repository).args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]);
        let output = git.output().expect("git runs");
        assert!(output.status.success(), "git ls-files fails");
        let names = String::from_utf8(output.stdout).expect("names are text");
        for name in names.split('\0').filter(|name| !name.is_empty()) {
            // A name that was removed and not committed yet.
            let Ok(bytes) = fs::read(self.repository.join(name)) else { continue };
            write(&self.root.join(name), &change(name, bytes));
        }
    }
}
