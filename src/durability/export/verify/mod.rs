//! Verification of an export: reads everything that a recovery would read, and compares it with the namespace.
//!
//! 1. `current` and `owner` are as they were written.
//! 2. Base and log are whole: every frame, their order, and the zeros between groups. This includes the log below the mark of the last
//!    commit, which opening skips.
//! 3. Base and log together are the namespace ([`compare`]): each record, byte for byte, except those changed since.
//! 4. The copies of recipe containers match the containers ([`copies`]).
//!
//! Scrubs, checks and the background thread of a mount share this code. It changes nothing; [`Exporter::renew`] rewrites bad parts from
//! the meta root.
//!
//! A verification holds [`Exporter::building`], so that the base stays, and no other lock: exports continue meanwhile. A base that is
//! due ends it ([`ExportCheck::stopped`]). It holds a snapshot of the namespace while names are compared.
//!
//! Memory: some frames (2 MiB each); twice [`EXPORT_VERIFY_KEYS`] keys of the log ([`ranges`]), a bit for each range in each of 16,384
//! spans of it, and a sample of 65,536 of its keys; the records of all containers; two recipe containers. Cost: two reads of the base, two of
//! the log, three if it has several ranges of keys, and one of the copies; one walk of the namespace. For each range of keys: the spans that
//! have some of them, and the list of keys that were changed after the exported commit.

#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic))]

mod compare;
mod copies;
mod ranges;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use dedupfs_base::{EngineError, Result};
use dedupfs_namespace::{ChangedKey, ExportSource};
use dedupfs_store::device::{DeviceFile, OpenMode};
use dedupfs_store::{ContainerId, ContainerRecord, StoreError};
use dedupfs_sync::MutexGuard;
use serde::{Deserialize, Serialize};

use super::files::{self, Current, Owner};
use super::frames::ReadFrame;
use super::log::{self, GroupFrames, Scanned};
use super::mirror::Mirror;
use super::{Exporter, Work, is_damage, now_secs};
use crate::config::EXPORT_VERIFY_KEYS;

/// Time between two calls of the pace while waiting.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// Most findings that are described.
const FINDINGS_MAX: usize = 20;

/// How much of the copies to read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CopyDepth {
    /// Copies of recipes are there, and begin and end as they should.
    Ends,
    /// Every byte of the copies.
    Content,
}

/// Receives the number of bytes read; returns whether to go on.
pub(crate) type Pace<'p> = dyn FnMut(u64) -> bool + 'p;

/// The result of a verification.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ExportCheck {
    /// Whether there is an export, or should be one.
    pub is_there: bool,
    /// The commit whose state it holds.
    pub row: u64,
    /// Records compared.
    pub items: u64,
    /// Bytes of base, log and copies, each counted once. Base and log are read again to be compared.
    pub bytes_read: u64,
    /// Copies of recipe containers examined.
    pub copies: u64,
    /// Descriptions of the faults, at most 20.
    pub findings: Vec<String>,
    /// Number of faults.
    pub finding_count: u64,
    /// Ended early by a new base, by closing, or by the caller: no verdict.
    pub stopped: bool,
    /// Whether all bad parts were rewritten.
    pub renewed: bool,
    #[serde(skip)]
    bad: Bad,
}

/// The parts to rewrite.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Bad {
    owner: bool,
    names: bool,
    copies: Vec<ContainerRecord>,
    /// A fault that the meta root cannot repair either.
    is_beyond: bool,
}

impl ExportCheck {
    /// Whether the examined parts have no fault.
    pub(crate) fn is_sound(&self) -> bool {
        self.finding_count == 0
    }

    /// Whether there is a fault that was not repaired.
    #[must_use]
    pub fn is_bad(&self) -> bool {
        !self.is_sound() && !self.renewed
    }

    fn add(&mut self, finding: String) {
        self.finding_count += 1;
        if self.findings.len() < FINDINGS_MAX {
            self.findings.push(finding);
        }
    }

    fn add_to_names(&mut self, finding: String) {
        self.bad.names = true;
        self.add(finding);
    }
}

/// Ends a verification when the caller, a due base or a closing pool asks for it.
struct Pacer<'a, 'p> {
    pace: &'a mut Pace<'p>,
    exporter: &'a Exporter,
    generation: u64,
    bytes: u64,
    stopped: bool,
}

impl Pacer<'_, '_> {
    /// Notes bytes that were read for the first time.
    fn advance(&mut self, bytes: u64) -> Result<()> {
        self.bytes += bytes;
        self.advance_again(bytes)
    }

    /// Notes bytes that were read once more.
    fn advance_again(&mut self, bytes: u64) -> Result<()> {
        let exporter = self.exporter;
        let is_wanted = exporter.base_wanted.load(Ordering::Relaxed) > 0 || exporter.give_up.load(Ordering::Relaxed);
        let is_replaced = exporter.is_enabled && exporter.state.lock().exported.generation != self.generation;
        if is_wanted || is_replaced || !(self.pace)(bytes) {
            self.stopped = true;
            return Err(EngineError::Internal("the verification was ended"));
        }
        Ok(())
    }
}

/// The export that the data root should have.
struct Expected {
    current: Current,
    /// The log is whole up to here, the end of a group.
    log_bytes: u64,
    /// The commit whose state results.
    row: u64,
}

/// Base and log, found whole.
struct WholeFiles {
    base: Arc<dyn DeviceFile>,
    log: Arc<dyn DeviceFile>,
}

/// The changes behind the export.
#[derive(Default)]
struct Since {
    /// For changed recipe containers, the recorded bytes at the time of the export.
    containers: HashMap<ContainerId, u32>,
}

impl Exporter {
    /// Verifies the export; see the module's head. Changes nothing.
    ///
    /// # Errors
    /// The namespace cannot be read. An unreadable data root is a finding.
    pub(crate) fn verify(&self, depth: CopyDepth, pace: &mut Pace<'_>) -> Result<ExportCheck> {
        let mut check = ExportCheck::default();
        let Some(_no_base) = self.begin_verification(pace) else {
            check.stopped = true;
            return Ok(check);
        };
        let is_made_anew = self.is_enabled && self.working.lock().live.is_some();
        if let Some(found) = self.found_at_open.lock().clone() {
            check.is_there = true;
            check.add(found);
            check.renewed = is_made_anew;
        }
        let found_before = check.finding_count;
        let Some((expected, source)) = self.expected(&mut check)? else {
            check.renewed &= check.finding_count == found_before;
            return Ok(check);
        };
        (check.is_there, check.row) = (true, expected.row);
        let before = check.finding_count;
        let generation = expected.current.generation;
        let mut pacer = Pacer { pace, exporter: self, generation, bytes: 0, stopped: false };
        let outcome = self.verify_all(&expected, source, depth, &mut pacer, &mut check);
        (check.stopped, check.bytes_read) = (pacer.stopped, pacer.bytes);
        if pacer.stopped {
            // The findings may belong to an export that is being replaced.
            (check.finding_count, check.bad) = (before, Bad::default());
            check.findings.truncate(usize::try_from(before).unwrap_or(usize::MAX));
            return Ok(check);
        }
        outcome?;
        if is_made_anew {
            // Reported once, by a verification that came to its end.
            *self.found_at_open.lock() = None;
        }
        check.renewed &= check.finding_count == found_before;
        if check.is_sound() {
            self.state.lock().verified_secs = now_secs();
        }
        Ok(check)
    }

    /// Waits for a base or another verification to end; `None` if `pace` ends the wait.
    fn begin_verification(&self, pace: &mut Pace<'_>) -> Option<MutexGuard<'_, ()>> {
        self.verification_wanted.fetch_add(1, Ordering::Relaxed);
        let begun = loop {
            match self.building.try_lock_for(LOOK_INTERVAL) {
                None if !pace(0) => break None,
                None => {}
                begun => break begun,
            }
        };
        self.verification_wanted.fetch_sub(1, Ordering::Relaxed);
        begun
    }

    /// Whether another thread waits to verify the export. The background verification then yields.
    pub(crate) fn is_verification_wanted(&self) -> bool {
        self.verification_wanted.load(Ordering::Relaxed) > 0
    }

    /// Returns the expected export, and the namespace to compare it with. Adds a finding if that cannot be told.
    fn expected(&self, check: &mut ExportCheck) -> Result<Option<(Expected, ExportSource)>> {
        if self.is_enabled {
            let mut work = self.working.lock();
            if let Some(failed) = &work.failed {
                check.is_there = true;
                check.bad.is_beyond = true;
                check.add(format!("nothing is exported any more: {failed}"));
                return Ok(None);
            }
            // Exporting first keeps the changes behind the export few; without room there are more.
            let appended = self.append(&mut work);
            match self.conclude(&mut work, appended) {
                Err(error) if !error.is_no_space() => return Err(error),
                _ => {}
            }
            let Some(live) = &work.live else {
                if work.stale.is_some() {
                    check.is_there = true;
                    check.add_to_names(
                        "the export could not be gone on with: an older state counts until it is made anew".to_owned(),
                    );
                } else if !self.is_first_due(&work) {
                    check.is_there = true;
                    check.add_to_names("there is no export: nothing stands in for a lost meta root".to_owned());
                }
                return Ok(None);
            };
            let expected = Expected { current: live.current, log_bytes: live.log_bytes, row: live.row };
            let found = Current::read(&*self.device, &self.pool);
            if !found.is_ok_and(|found| found == Some(live.current)) {
                check.add_to_names(
                    "export/current is damaged or gone: nobody could tell which export counts".to_owned(),
                );
            }
            let owner = Owner::read(&*self.device, &self.pool);
            let expected_owner = self.owner();
            if !owner.is_ok_and(|owner| owner == Some(expected_owner)) {
                check.bad.owner = true;
                check.add("export/owner is damaged or gone: an old meta root would not be told apart".to_owned());
            }
            return Ok(Some((expected, self.namespace.export_source()?)));
        }
        match self.expected_of_disk() {
            Ok(Some(expected)) => Ok(Some((expected, self.namespace.export_source()?))),
            Ok(None) => Ok(None),
            Err(error @ EngineError::Store(_)) => {
                check.is_there = true;
                check.add_to_names(format!("the export cannot be gone on with: {error}"));
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Whether the first export of a new pool is still to come.
    fn is_first_due(&self, work: &Work) -> bool {
        let has_failed = work.failures + work.failures_anew > 0 || self.found_at_open.lock().is_some();
        !has_failed && self.namespace.export_mark().exported.generation == 0
    }

    /// As [`expected`](Self::expected), for a read-only pool, where only the notes of the last commit are known.
    fn expected_of_disk(&self) -> Result<Option<Expected>> {
        let mark = self.namespace.export_mark();
        if Owner::read(&*self.device, &self.pool)?.is_none() && mark.exported.generation != 0 {
            return Err(StoreError::NotFound { path: "export/owner".to_owned() }.into());
        }
        let Some(current) = Current::read(&*self.device, &self.pool)? else {
            if mark.exported.generation == 0 {
                return Ok(None);
            }
            return Err(StoreError::NotFound { path: "export/current".to_owned() }.into());
        };
        if mark.exported.generation == 0 && mark.trimmed_row > current.row {
            // The namespace knows nothing of this export: the next mount for writing makes it anew.
            return Ok(None);
        }
        let path = files::log_path(current.generation);
        let log = self.device.open(&path, OpenMode::Read)?;
        let scanned = log::scan(&*log, &path, &self.pool, current.generation, Scanned::start(current.row))?;
        if mark.exported.generation == current.generation && scanned.log_bytes < mark.exported.log_bytes {
            let ends = format!("one that ends at {}", scanned.log_bytes);
            let expected = format!("a log of {} bytes", mark.exported.log_bytes);
            return Err(scanned.rest.unwrap_or_else(|| StoreError::corrupt(path, expected, ends).into()));
        }
        let known = mark.trimmed_row..=self.namespace.last_row();
        if !known.contains(&scanned.row) {
            let expected = format!("a state of commit {} to {}", known.start(), known.end());
            return Err(StoreError::corrupt(path, expected, scanned.row).into());
        }
        Ok(Some(Expected { current, log_bytes: scanned.log_bytes, row: scanned.row }))
    }

    fn verify_all(
        &self,
        expected: &Expected,
        source: ExportSource,
        depth: CopyDepth,
        pacer: &mut Pacer<'_, '_>,
        check: &mut ExportCheck,
    ) -> Result<()> {
        let since = changed_since(&source, expected.row)?;
        let is_whole = self.verify_files(expected, pacer);
        match is_whole {
            Ok(WholeFiles { base, log }) => {
                let compared = compare::Compared { exporter: self, source: &source, expected, base, log };
                match compared.run(EXPORT_VERIFY_KEYS, pacer, check) {
                    // Files that were whole a moment ago are not any more; or the namespace is damaged, which the writing of a base
                    // reports.
                    Err(error @ EngineError::Store(_)) if !pacer.stopped => {
                        check.add_to_names(format!("the export's names cannot be compared: {error}"));
                    }
                    outcome => outcome?,
                }
            }
            Err(error) if pacer.stopped || !matches!(error, EngineError::Store(_)) => return Err(error),
            Err(error) => check.add_to_names(format!("the export's names cannot be read: {error}")),
        }
        let mut records = source.containers()?;
        drop(source);
        records.retain(|record| record.kind == dedupfs_store::ContainerKind::Recipe);
        for record in &mut records {
            if let Some(from_bytes) = since.containers.get(&record.id) {
                record.used_bytes = record.used_bytes.min(*from_bytes);
            }
        }
        copies::verify(self, records, depth, pacer, check)
    }

    /// Checks that base and log are whole.
    fn verify_files(&self, expected: &Expected, pacer: &mut Pacer<'_, '_>) -> Result<WholeFiles> {
        let Current { generation, base_bytes, row } = expected.current;
        let path = files::base_path(generation);
        let base = self.device.open(&path, OpenMode::Read)?;
        let len_bytes = base.len()?;
        if len_bytes != base_bytes {
            return Err(StoreError::corrupt(path, format!("{base_bytes} bytes"), len_bytes).into());
        }
        let mut frames = GroupFrames::new(0);
        let mut look_at = |file: &dyn DeviceFile, path: &str, frame: &ReadFrame, bytes: u64| {
            frame.check_padding(file, path)?;
            pacer.advance(bytes)
        };
        let mut at = 0;
        while let Some(frame) = frames.next(&*base, &path, &self.pool, generation)? {
            let group = frame.group;
            if (group.number, group.from_row, group.row) != (0, 0, row) {
                return Err(StoreError::corrupt(path, format!("a base of commit {row}"), format!("{group:?}")).into());
            }
            look_at(&*base, &path, &frame, frame.end_bytes - at)?;
            at = frame.end_bytes;
        }
        if at != base_bytes {
            return Err(StoreError::corrupt(path, format!("{base_bytes} bytes"), at).into());
        }
        let path = files::log_path(generation);
        let log = self.device.open(&path, OpenMode::Read)?;
        let mut at = 0;
        let start = Scanned::start(row);
        let scanned = log::scan_to(&*log, &path, &self.pool, generation, start, expected.log_bytes, &mut |frame| {
            let bytes = frame.end_bytes - at;
            at = frame.end_bytes;
            look_at(&*log, &path, frame, bytes)
        })?;
        if let Some(error) = scanned.rest {
            return Err(error);
        }
        if (scanned.log_bytes, scanned.row) != (expected.log_bytes, expected.row) {
            let found = format!("one of {} bytes of commit {}", scanned.log_bytes, scanned.row);
            let wanted = format!("a log of {} bytes of commit {}", expected.log_bytes, expected.row);
            return Err(StoreError::corrupt(path, wanted, found).into());
        }
        Ok(WholeFiles { base, log })
    }

    /// Rewrites the bad parts of a verification from the meta root, and notes that in `check`. Without room, or if the namespace itself
    /// is damaged, everything stays as it is.
    ///
    /// # Errors
    /// I/O errors other than lack of space, as in [`export`](Self::export).
    pub(crate) fn renew(&self, check: &mut ExportCheck) -> Result<()> {
        if !self.is_enabled || check.stopped || check.is_sound() || check.renewed {
            return Ok(());
        }
        for finding in &check.findings {
            tracing::error!("the export on the data root is bad: {finding}");
        }
        let bad = std::mem::take(&mut check.bad);
        let copied = self.renew_small(&bad);
        match copied {
            Ok(true) => {}
            Ok(false) => {
                check.bad = bad;
                return Ok(());
            }
            Err(error) if error.is_no_space() || is_damage(&error) => {
                tracing::error!(%error, "the export cannot be written anew: it stays as it is");
                check.bad = bad;
                return Ok(());
            }
            Err(error) => return Err(error),
        }
        if bad.names {
            let generation = || self.state.lock().exported.generation;
            let before = generation();
            self.write_base(true)?;
            // 0: the write failed, and the old export is stale.
            if [0, before].contains(&generation()) {
                check.bad = Bad { copies: Vec::new(), owner: false, ..bad };
                return Ok(());
            }
        }
        check.renewed = !bad.is_beyond;
        *self.found_at_open.lock() = None;
        tracing::warn!("the export on the data root was bad: it was written anew from the meta root");
        Ok(())
    }

    /// Rewrites `owner` and the bad copies; returns whether all were done.
    fn renew_small(&self, bad: &Bad) -> Result<bool> {
        self.check_possession()?;
        if bad.owner {
            self.owner().write(&*self.device, &self.pool)?;
        }
        let step = |run: &dyn Fn(&mut Mirror) -> Result<()>| {
            // Locked for each step only: exports wait for this lock.
            let mut work = self.working.lock();
            match self.check_possession().and_then(|()| run(&mut work.mirror)) {
                Ok(()) => Ok(true),
                Err(error) if is_damage(&error) => Err(error),
                // The next attempt uses newly opened files: a sync after a failed sync proves nothing.
                outcome => self.conclude(&mut work, outcome).map(|()| false),
            }
        };
        for record in &bad.copies {
            // The container may have grown since; the added bytes were copied already.
            let is_given_up = self.give_up.load(Ordering::Relaxed);
            if is_given_up || !step(&|mirror| mirror.copy(&self.stores.recipes, record, 0).map(drop))? {
                return Ok(false);
            }
        }
        step(&|mirror| mirror.sync())
    }

    /// Returns the correct content of `owner`.
    pub(super) fn owner(&self) -> Owner {
        let (lineage, epoch) = (self.namespace.export_mark().lineage, self.namespace.writer_epoch());
        Owner { lineage, epoch, keeps: self.kept.lock().is_some() }
    }
}

fn changed_since(source: &ExportSource, row: u64) -> Result<Since> {
    let mut since = Since::default();
    source.changes_after(row, &mut |keys| {
        for key in keys {
            if let ChangedKey::Container { id, from_bytes } = key {
                since.containers.entry(id).and_modify(|from| *from = from_bytes.min(*from)).or_insert(from_bytes);
            }
        }
        Ok(())
    })?;
    Ok(since)
}
