//! Checking a pool: compares stored facts with those derived from the rest.
//!
//! - names: entries, link counts, reachability (the namespace's own check);
//! - cells (`cells`): each index's counts against the references of roots and nodes, and each cell's container has that chunk, according to
//!   the container's own table;
//! - the export on the data root against the namespace (by [`crate::pool::Pool::check`]; see [`crate::durability::export`]);
//! - with `read_data`: every region is read, and every chunk is hashed and compared with its fingerprint.
//!
//! A check changes nothing. Writers go on, reclaiming does not. Memory: inodes, by ranges of their numbers, then the cells of both indexes, by
//! ranges of fingerprints, as many of each as fit into what it may take. Cost: all names are read once if `scratch` has room for their facts,
//! else once for each range of inodes; other metadata once if it has room for the facts of all ranges of fingerprints, else once for each
//! group of them that has.

mod cells;
mod content;
mod facts;
mod files;
mod gather;
mod marked;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod rebuild;
#[cfg(not(feature = "fuzzing"))]
mod rebuild;
mod spools;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

pub use super::affected::{AffectedFile, AffectedFiles};
pub use rebuild::RebuildReport;
pub(crate) use rebuild::{BuildPlace, Rebuilder};

use self::files::NO_ROOM;
use self::spools::{check_place, leaves_half};
use crate::durability::export::ExportCheck;
use crate::engine::Core;
use crate::progress::Progress;
use crate::upkeep::affected::{AffectedFinder, Lost};
use dedupfs_base::Result;
use dedupfs_namespace::Scratch;
use dedupfs_sync::MutexGuard;

/// How thoroughly to check.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct CheckOptions {
    /// Read and verify all content, not only metadata.
    pub read_data: bool,
    /// A directory for temporary files, which have no names there. They take 21 bytes for each name and directory, then 33 for each reference
    /// and 45 for each stored chunk, and no more than half of the room there. Without them, the metadata of a pool that does not fit into
    /// memory is read several times.
    #[serde(default)]
    pub scratch: Option<PathBuf>,
}

/// The result of a check.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct CheckReport {
    /// The defects in words: at most [`FINDINGS_MAX`] one by one, of each group at most [`GROUP_TOLD_MAX`], then a line
    /// for each group with more.
    pub findings: Vec<String>,
    /// Number of all defects.
    pub finding_count: u64,
    /// Number of defects that `findings` covers, one by one or as part of a group.
    #[serde(default)]
    pub told_count: u64,
    /// Number of findings in each group: one kind at one place.
    #[serde(skip)]
    groups: BTreeMap<String, u64>,
    /// Whether a rebuild of the indexes removes some of the defects.
    #[serde(default)]
    pub needs_rebuild: bool,
    /// Number of chunks and nodes that are bad where the index places them; for checks that read content.
    #[serde(default)]
    pub bad_copies: u64,
    /// Deviations from the written bytes that do no harm, at most [`FINDINGS_MAX`].
    #[serde(default)]
    pub notes: Vec<String>,
    /// Files that need lost or unreadable content.
    #[serde(default)]
    pub affected: AffectedFiles,
    /// Result for the export on the data root. Its findings are among the others.
    #[serde(default)]
    pub export: Option<ExportCheck>,
    /// Inodes checked.
    pub inodes: u64,
    /// Recipe nodes checked.
    pub nodes: u64,
    /// Chunks checked.
    pub chunks: u64,
    /// Containers checked.
    pub containers: u64,
    /// Bytes of content read and hashed.
    pub bytes_read: u64,
}

/// Number of findings that are listed one by one.
pub(crate) const FINDINGS_MAX: usize = 100;
/// Number of findings of one group that are listed one by one; the others are counted. A dying disk causes very many
/// alike.
pub(crate) const GROUP_TOLD_MAX: u64 = 5;
/// Number of groups that are distinguished: bounds memory.
const GROUPS_MAX: usize = 100;
/// Group of all findings beyond these groups.
const OTHER_GROUPS: &str = "in further containers";

impl CheckReport {
    pub(crate) fn add(&mut self, finding: String) {
        self.finding_count += 1;
        self.tell(finding);
    }

    /// Adds a finding of a kind that may be very frequent. `group` names the common property, in words that follow a
    /// number.
    pub(crate) fn add_to(&mut self, group: &str, finding: impl FnOnce() -> String) {
        self.finding_count += 1;
        let is_known = self.groups.contains_key(group) || self.groups.len() < GROUPS_MAX;
        let count = self.groups.entry((if is_known { group } else { OTHER_GROUPS }).to_owned()).or_insert(0);
        *count += 1;
        if *count <= GROUP_TOLD_MAX {
            self.tell(finding());
        }
    }

    fn tell(&mut self, finding: String) {
        if self.findings.len() < FINDINGS_MAX {
            self.findings.push(finding);
            self.told_count += 1;
        }
    }

    /// Adds a line for each group with more findings than listed.
    fn conclude(&mut self) {
        for (group, count) in std::mem::take(&mut self.groups) {
            let more = count.saturating_sub(GROUP_TOLD_MAX);
            if more > 0 {
                self.findings.push(format!("{more} more {group}"));
                self.told_count += more;
            }
        }
    }

    /// Adds a deviation that does no harm.
    pub(crate) fn note(&mut self, note: String) {
        if self.notes.len() < FINDINGS_MAX {
            self.notes.push(note);
        }
    }

    /// Whether there are no findings.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.finding_count == 0
    }
}

/// A check of a pool, and what it may use.
pub(crate) struct Checker<'a> {
    /// The parts of the pool.
    pub core: &'a Core,
    /// Memory for cells and their marks.
    pub memory_bytes: u64,
    /// Whether clients have so many bytes of room beside the temporary files.
    pub has_room: &'a dyn Fn(u64) -> bool,
    /// Whether the check is to end early, with [`EngineError::Ended`](dedupfs_base::EngineError::Ended).
    pub is_ended: &'a dyn Fn() -> bool,
}

impl Checker<'_> {
    /// Checks everything. `no_quarantine` is held until the end, or until the reading of content begins.
    ///
    /// # Errors
    /// The check itself is impossible. Defects of the pool are in the report.
    pub(crate) fn run(
        &self,
        no_quarantine: MutexGuard<'_, ()>,
        options: &CheckOptions,
        progress: &dyn Progress,
    ) -> Result<CheckReport> {
        let mut report = CheckReport::default();
        self.check_names(options.scratch.as_deref(), &mut report)?;
        for (name, index) in [("chunk", &self.core.indexes.chunks), ("recipe", &self.core.indexes.nodes)] {
            if let Err(error) = index.check_files() {
                report.needs_rebuild = true;
                report.add(format!("{name} index: {error}"));
            }
        }
        let mut lost = Lost::of(&self.core.indexes)?;
        self.check_cells(options.scratch.as_deref(), &mut report, &mut lost, progress)?;
        let losses = || self.core.indexes.chunks.lost() + self.core.indexes.nodes.lost();
        let lost_before = losses();
        if options.read_data {
            // Reading takes long: what clients find bad meanwhile must not be used for hours.
            drop(no_quarantine);
            self.check_all_content(&mut report, &mut lost, progress)?;
            let more = losses().saturating_sub(lost_before);
            if more > 0 {
                report.add(format!(
                    "{more} chunks and recipe nodes more are lost than before: readers met their bad copies while content was read"
                ));
            }
        }
        let finder = AffectedFinder {
            namespace: &self.core.namespace,
            recipe_index: &self.core.indexes.nodes,
            nodes: self.core.dedup.nodes(),
            progress,
        };
        report.affected = finder.find(&lost)?;
        report.conclude();
        Ok(report)
    }
}

impl Checker<'_> {
    fn check_names(&self, scratch: Option<&Path>, report: &mut CheckReport) -> Result<()> {
        let admits = |bytes| {
            let directory = scratch.unwrap_or(Path::new(""));
            check_place(directory)?;
            if self.fits(directory, bytes) { Ok(()) } else { Err(NO_ROOM.to_owned()) }
        };
        let place = scratch.map(|directory| Scratch { directory, admits: &admits });
        let names = self.core.namespace.check(self.memory_bytes, place, self.is_ended)?;
        names.findings.into_iter().for_each(|finding| report.add(format!("namespace: {finding}")));
        if let Some(why) = names.failure {
            report.note(read_again("all names", names.readings, &why));
        }
        Ok(())
    }

    /// Whether files of so many bytes have room in a directory: as much as they take is to stay free.
    fn fits(&self, directory: &Path, bytes: u64) -> bool {
        leaves_half(directory, bytes.saturating_mul(2)) && (self.has_room)(bytes)
    }
}

/// A note that something was read several times, and why its facts are in no temporary files.
fn read_again(read: &str, times: u64, why: &str) -> String {
    format!(
        "the check read {read} {times} times ({why}): name another place with --scratch DIR, or give it more --memory"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each lost chunk had a line of its own, and a hundred of them hid all other defects.
    #[test]
    fn regression_what_is_alike_is_told_a_few_times_and_counted() {
        let mut report = CheckReport::default();
        for number in 0..1000 {
            report.add_to("chunks that are lost", || format!("chunk {number} is lost"));
        }
        report.add("something else".to_owned());
        (0..200)
            .for_each(|number| report.add_to(&format!("chunks of container {number}"), || format!("bad in {number}")));
        report.conclude();
        assert_eq!((report.findings[4].as_str(), report.findings[5].as_str()), ("chunk 4 is lost", "something else"));
        assert!(report.findings.contains(&"995 more chunks that are lost".to_owned()), "{:?}", report.findings);
        assert!(report.findings.len() <= FINDINGS_MAX + GROUPS_MAX, "{}", report.findings.len());
        assert_eq!(report.finding_count, 1201);
        assert!(report.told_count > 1000 && report.told_count <= 1201, "{}", report.told_count);
    }
}
