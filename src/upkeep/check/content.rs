//! Reads all content: every chunk and node must match its fingerprint.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use dedupfs_base::Result;
use dedupfs_content::ContainerStore;
use dedupfs_index::{Cell, Index};
use dedupfs_store::container::TableEntry;
use dedupfs_store::{ContainerId, ContainerRecord, Fingerprint};

use super::{CheckReport, Checker};
use crate::progress::Progress;
use crate::upkeep::affected::Lost;
use crate::upkeep::inspect::{Judged, Pipeline, judge};

impl Checker<'_> {
    pub(super) fn check_all_content(
        &self,
        report: &mut CheckReport,
        lost: &mut Lost,
        progress: &dyn Progress,
    ) -> Result<()> {
        let Lost { chunks, nodes } = lost;
        self.check_content("chunk", &self.core.stores.data, &self.core.indexes.chunks, report, chunks, progress)?;
        self.check_content("recipe node", &self.core.stores.recipes, &self.core.indexes.nodes, report, nodes, progress)
    }

    /// Reads all content and compares it with the fingerprints. A bad copy counts only if the index places the
    /// fingerprint there; other damage does no harm.
    fn check_content(
        &self,
        what: &str,
        store: &Arc<ContainerStore>,
        index: &Index,
        report: &mut CheckReport,
        lost: &mut HashSet<Fingerprint>,
        progress: &dyn Progress,
    ) -> Result<()> {
        let records = store.closed_in_disk_order();
        let closed: HashSet<ContainerId> = records.iter().map(|record| record.id).collect();
        let open = store.containers().into_iter().filter(|record| !closed.contains(&record.id)).collect();
        let total_bytes: u64 = records.iter().map(|record| u64::from(record.used_bytes)).sum();
        progress.start(&format!("reading {what}s, MiB"), total_bytes >> 20);
        let mut pipeline = Pipeline::new(self.core.files.ingest.workers.clone(), *self.core.dedup.fingerprinter());
        let (mut read_bytes, mut told) = (0_u64, 0);
        let mut unknown: HashMap<ContainerId, Unknown> = HashMap::new();
        let mut take = |judged: Judged, report: &mut CheckReport| -> Result<()> {
            read_bytes += u64::from(judged.record.used_bytes);
            progress.advance((read_bytes >> 20) - told);
            told = read_bytes >> 20;
            if !store.is_known(judged.record.id) {
                return Ok(());
            }
            let (container, inspection) = (judged.record.id, judged.inspection);
            report.bytes_read += inspection.judged_bytes;
            let mut is_needed = false;
            for bad in &inspection.bad {
                if is_needed_of(index, container, &bad.fingerprint, lost)? {
                    is_needed = true;
                    report.bad_copies += 1;
                    report.add_to(&bad_in(what, container), || {
                        format!("container {container}: {what} {}: {}", bad.fingerprint, bad.why)
                    });
                    lost.insert(bad.fingerprint);
                }
            }
            match inspection.sound_of_unknown {
                Some(sound) => {
                    unknown.insert(container, Unknown { sound, damage: inspection.damage, is_needed });
                    if unknown.len() >= UNKNOWN_AT_ONCE {
                        report_unknown(what, &mut unknown, index, report, lost)?;
                    }
                }
                None => report_damage(container, is_needed, inspection.damage, report),
            }
            Ok(())
        };
        for record in records {
            if pipeline.is_full()
                && let Some(judged) = pipeline.pop()?
            {
                take(judged, report)?;
            }
            pipeline.push(store, record);
        }
        while let Some(judged) = pipeline.pop()? {
            take(judged, report)?;
        }
        report_unknown(what, &mut unknown, index, report, lost)?;
        progress.finish();
        self.check_open_content(what, (store, open), (index, lost), report)
    }

    /// Does the same for containers that were open when the check of content began.
    fn check_open_content(
        &self,
        what: &str,
        (store, open): (&ContainerStore, Vec<ContainerRecord>),
        (index, lost): (&Index, &HashSet<Fingerprint>),
        report: &mut CheckReport,
    ) -> Result<()> {
        for record in open {
            let (container, mut wrong) = (record.id, Vec::new());
            let outcome = store.for_each_chunk(container, &mut |fingerprint, bytes| {
                report.bytes_read += bytes.len() as u64;
                let entry = TableEntry { fingerprint: *fingerprint, len_bytes: bytes.len() as u32 };
                if judge(record.kind, self.core.dedup.fingerprinter(), &[entry], bytes) != [true] {
                    wrong.push(*fingerprint);
                }
                Ok(())
            });
            if let Err(error) = outcome {
                report.add(format!("container {container}: {error}"));
            }
            for print in wrong {
                if !is_needed_of(index, container, &print, lost)? {
                    continue;
                }
                report.add_to(&bad_in(what, container), || {
                    format!("container {container}: {what} {print} does not match its fingerprint")
                });
            }
        }
        Ok(())
    }
}

/// Whether a bad copy in a container is the one that the index names, or named until it was quarantined beside this check. Those of `lost`
/// were lost before.
fn is_needed_of(
    index: &Index,
    container: ContainerId,
    fingerprint: &Fingerprint,
    lost: &HashSet<Fingerprint>,
) -> Result<bool> {
    let is_new_loss = |cell: Cell| cell.location.is_lost() && cell.references > 0 && !lost.contains(fingerprint);
    let is_it = |cell: Cell| cell.location.container() == container || is_new_loss(cell);
    Ok(index.committed(fingerprint)?.is_some_and(is_it))
}

/// Names the group of bad chunks or nodes of one container.
fn bad_in(what: &str, container: ContainerId) -> String {
    format!("{what}s of container {container} that are bad or not found there")
}

/// Number of containers with unknown content that are looked up together: bounds memory.
const UNKNOWN_AT_ONCE: usize = 64;

/// A container whose table cannot be read as a whole.
struct Unknown {
    sound: HashSet<Fingerprint>,
    damage: Vec<String>,
    is_needed: bool,
}

/// Reports every fingerprint that the index places in these containers, but that was not found sound there. Reads the
/// index once.
fn report_unknown(
    what: &str,
    unknown: &mut HashMap<ContainerId, Unknown>,
    index: &Index,
    report: &mut CheckReport,
    lost: &mut HashSet<Fingerprint>,
) -> Result<()> {
    if unknown.is_empty() {
        return Ok(());
    }
    index.for_each(&mut |fingerprint, cell| {
        let container = cell.location.container();
        if let Some(found) = unknown.get_mut(&container).filter(|found| !found.sound.contains(&fingerprint)) {
            found.is_needed = true;
            report.bad_copies += 1;
            report.add_to(&bad_in(what, container), || {
                format!("container {container}: {what} {fingerprint} is not found there")
            });
            lost.insert(fingerprint);
        }
        Ok(())
    })?;
    for (container, found) in unknown.drain() {
        report_damage(container, found.is_needed, found.damage, report);
    }
    Ok(())
}

/// Reports the damage of a container: a finding if anything bad in it is needed, else a note.
fn report_damage(container: ContainerId, is_needed: bool, damage: Vec<String>, report: &mut CheckReport) {
    for damage in damage {
        if is_needed {
            report.add(format!("container {container}: {damage}"));
        } else {
            report.note(format!("container {container}, of which nothing bad is needed: {damage}"));
        }
    }
}
