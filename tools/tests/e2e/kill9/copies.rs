//! Trees that go in by put, out by get, and are deleted, while everything is scrubbed.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::Round;
use crate::command::{DEDUPFS, Tool};
use crate::files::walk;

/// Number of trees that stay; older ones are deleted.
const KEPT_TREES: usize = 3;
/// Their directory in the mount.
const DIRECTORY: &str = "put";

/// The trees that put was told to copy.
#[derive(Default)]
pub struct Copies {
    /// Acknowledged trees that are not being deleted, in order of arrival, with the source of each.
    whole: Mutex<BTreeMap<(u64, u64), usize>>,
    /// The put under way: all of its tree is there, or nothing.
    begun: Mutex<Option<((u64, u64), usize)>>,
    /// Number of trees that put acknowledged and get gave back.
    pub acknowledged: AtomicU64,
}

fn name((round, turn): (u64, u64)) -> String {
    format!("{DIRECTORY}/{round}-{turn}")
}

/// Checks that a tree has exactly the files of the other.
#[track_caller]
fn assert_same(source: &Path, copy: &Path) {
    let files = walk(source);
    assert_eq!(walk(copy), files, "{} has other files than {}", copy.display(), source.display());
    for file in files {
        let is_same = fs::read(source.join(&file)).unwrap() == fs::read(copy.join(&file)).unwrap();
        assert!(is_same, "{} in {} is other", file.display(), copy.display());
    }
}

impl Copies {
    /// Checks all trees after a crash. The put under way counts as whole if its tree is there.
    pub fn check(&self, mnt: &Path, sources: [&Path; 2]) {
        let mut whole = self.whole.lock().unwrap();
        if let Some((tree, source)) = self.begun.lock().unwrap().take()
            && mnt.join(name(tree)).exists()
        {
            whole.insert(tree, source);
        }
        for (tree, source) in whole.iter() {
            assert_same(sources[*source], &mnt.join(name(*tree)));
        }
    }
}

/// Half of the trees are versions.
fn is_version((_, turn): (u64, u64)) -> bool {
    turn % 4 < 2
}

impl Round<'_> {
    /// Puts trees, gets each back, and deletes the oldest.
    pub fn copy_trees(&self) -> io::Result<()> {
        let copies = &self.journal.copies;
        let got = self.scratch.join("got");
        fs::create_dir_all(self.mnt.join(DIRECTORY))?;
        for turn in 0_u64.. {
            let (tree, source) = ((self.number, turn), (turn % 2) as usize);
            let path = self.mnt.join(name(tree));
            *copies.begun.lock().unwrap() = Some((tree, source));
            let kind: &[&str] = if is_version(tree) { &[] } else { &["--live"] };
            self.with_tool(Tool::new(DEDUPFS).arg("put").args(kind).args([self.sources[source], &path]))?;
            copies.whole.lock().unwrap().insert(tree, source);
            *copies.begun.lock().unwrap() = None;

            let _ = fs::remove_dir_all(&got);
            self.with_tool(Tool::new(DEDUPFS).arg("get").args([&path, &got]))?;
            assert_same(self.sources[source], &got);
            fs::remove_dir_all(&got)?;
            copies.acknowledged.fetch_add(1, Ordering::Relaxed);

            let oldest = {
                let mut whole = copies.whole.lock().unwrap();
                if whole.len() > KEPT_TREES { whole.pop_first() } else { None }
            };
            if let Some((tree, _)) = oldest {
                let path = self.mnt.join(name(tree));
                match is_version(tree) {
                    true => self.with_tool(Tool::new(DEDUPFS).arg("forget").arg(&path))?,
                    false => fs::remove_dir_all(path)?,
                }
            }
        }
        Ok(())
    }

    /// Scrubs everything again and again.
    pub fn scrub(&self) -> io::Result<()> {
        loop {
            std::thread::sleep(Duration::from_millis(300));
            // A pool without a daemon is scrubbed by the tool itself, for ever.
            if !self.goes_on() {
                fs::read_dir(self.mnt)?;
            }
            self.with_tool(Tool::new(DEDUPFS).args(["scrub", "--restart"]).arg(self.mnt))?;
        }
    }
}
