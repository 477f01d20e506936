//! Sources of the versions that are backed up: a real series, or synthetic files that change.

use std::path::{Path, PathBuf};

use crate::command::Run;
use crate::pool::{Pool, dedupfs};
use crate::synthetic::Synthetic;
use crate::{Outcome, files, usage};

/// Versions that are made one after the other.
pub struct Sources {
    /// Directory with one directory for each version, or nothing for synthetic ones.
    series: Option<PathBuf>,
    /// Names of the versions, at least three.
    pub names: Vec<String>,
    synthetic: Synthetic,
    /// Place of the synthetic tree.
    tree: PathBuf,
}

impl Sources {
    /// Versions of `series`, or synthetic ones.
    ///
    /// # Errors
    /// There are fewer than three.
    pub fn new(series: Option<&Path>, synthetic: Synthetic) -> Outcome<Self> {
        let names: Vec<_> = match series {
            None => (1..=synthetic.versions).map(|number| format!("v{number}")).collect(),
            Some(at) => files::directories(at)?,
        };
        if names.len() < 3 {
            return usage("fewer than 3 versions have no first, middle and newest one");
        }
        Ok(Self { series: series.map(Path::to_owned), names, synthetic, tree: PathBuf::new() })
    }

    /// Says where the synthetic tree is to be made.
    pub fn make_in(&mut self, directory: &Path) {
        self.tree = directory.join("source");
    }

    /// Bytes of one version: of a real series the mean.
    pub fn version_bytes(&self) -> u64 {
        self.series
            .as_ref()
            .map_or(self.synthetic.files * self.synthetic.size, |at| files::content_bytes(at) / self.names.len() as u64)
    }

    /// Bytes of all versions that a pool needs at most.
    pub fn all_bytes(&self) -> u64 {
        let synthetic = self.version_bytes() * (10 + self.names.len() as u64) / 10;
        self.series.as_ref().map_or(synthetic, |at| files::content_bytes(at))
    }

    /// Returns a line of Markdown on them.
    pub fn describe(&self) -> String {
        let of = if self.series.is_some() { "a real series" } else { "synthetic files" };
        format!("- {} versions of {of}, {} each", self.names.len(), crate::table::human(self.version_bytes()))
    }

    /// Numbers of the first, the middle and the newest version, with these words.
    pub fn chosen(&self) -> [(&'static str, usize); 3] {
        let newest = self.names.len() - 1;
        [("first", 0), ("middle", newest / 2), ("newest", newest)]
    }

    /// Removes every second version from a pool, but for those that are chosen.
    pub fn forget_some(&self, pool: &Pool) -> Outcome {
        let kept = self.chosen().map(|(_, number)| number);
        let every_second = self.names.iter().enumerate().skip(1).step_by(2);
        let removed = every_second.filter(|(number, _)| !kept.contains(number)).map(|(_, name)| pool.at(name));
        let removed: Vec<_> = removed.collect();
        if removed.is_empty() { Ok(()) } else { dedupfs("forget").args(removed).quiet().run() }
    }

    /// Makes a version, and returns its directory. Synthetic ones change the one before: they are made in order.
    pub fn make(&self, number: usize) -> Outcome<PathBuf> {
        if self.series.is_none() {
            self.synthetic.change(&self.tree, number as u64)?;
        }
        Ok(self.place(number))
    }

    fn place(&self, number: usize) -> PathBuf {
        self.series.as_ref().map_or_else(|| self.tree.clone(), |at| at.join(&self.names[number]))
    }

    /// Compares the versions in a directory with their sources: of synthetic ones the newest.
    pub fn compare(&self, directory: &Path) -> Outcome {
        let first = if self.series.is_some() { 0 } else { self.names.len() - 1 };
        (first..self.names.len()).try_for_each(|number| {
            let made = directory.join(&self.names[number]);
            if made.exists() { files::same(&self.place(number), &made) } else { Ok(()) }
        })
    }
}
