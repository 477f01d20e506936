//! One run of a scrub: from the last position to the end.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use dedupfs_base::{EngineError, Result};
use dedupfs_content::{Inspection, WholeContainer};
use dedupfs_store::profile::{self, Component};
use dedupfs_store::{ContainerId, ContainerKind, ContainerRecord, Fingerprint, StoreError};
use dedupfs_sync::clock::Instant;

use super::quarantine::BadCopy;
use super::{NAP, ScrubControl, ScrubOptions, ScrubPosition, ScrubReport};
use crate::durability::export::CopyDepth;
use crate::engine::Core;
use crate::progress::Progress;
use crate::upkeep::inspect::{Judged, Pipeline};

/// Interval of making the position durable, after the bad copies found so far are quarantined.
const SAVE_INTERVAL: Duration = Duration::from_secs(5);
/// Number of bad copies that are quarantined together: bounds memory.
const BAD_AT_ONCE: usize = 4096;
/// Number of consecutive containers that the device may fail to return. With more the device is at fault, and nothing
/// is concluded.
const UNREAD_MAX: usize = 64;
/// Number of verifications of the export that a new base may end. After that the next scrub verifies it.
const EXPORT_TRIES: usize = 20;
/// Number of containers with unknown content that are looked up together: bounds memory.
const UNKNOWN_AT_ONCE: usize = 64;

/// A run under way.
struct Run<'a> {
    core: &'a Core,
    options: &'a ScrubOptions,
    control: &'a ScrubControl,
    progress: &'a dyn Progress,
    report: ScrubReport,
    started: Instant,
    saved: Instant,
    /// The durable position.
    position: ScrubPosition,
    /// The position reached by reading. It becomes durable once the bad copies before it are quarantined.
    reached: ScrubPosition,
    bad: Vec<BadCopy>,
    /// Copies that the device did not return; undecided until it returns other content.
    unread: Vec<BadCopy>,
    unread_containers: Vec<ContainerRecord>,
    unread_unknown: HashMap<ContainerId, HashSet<Fingerprint>>,
    /// Containers with unknown content, and their sound fingerprints.
    unknown: HashMap<ContainerId, HashSet<Fingerprint>>,
    /// Damaged containers that are not recorded as such.
    damaged: Vec<ContainerId>,
    /// Bad copies of a pool that is read-only.
    found: Vec<BadCopy>,
    told_bytes: u64,
}

/// Scrubs the pool; see the module's head. The caller names the affected files.
///
/// # Errors
/// The device returns nothing any more; a commit failed; the position cannot be written. The next run resumes.
pub fn scrub(
    core: &Core,
    options: &ScrubOptions,
    control: &ScrubControl,
    progress: &dyn Progress,
) -> Result<(ScrubReport, Vec<BadCopy>)> {
    let _timed = profile::of(Component::Scrubbing);
    control.begin();
    if !core.is_read_only() {
        // Close all present containers, so that they are inspected.
        core.stores.data.seal_all();
        core.stores.recipes.seal_all();
    }
    core.committer.settle()?;
    let position = Run::resume(core, options)?;
    control.note(position);
    let now = Instant::now();
    let mut run = Run {
        core,
        options,
        control,
        progress,
        report: ScrubReport { containers_before: position.containers, ..ScrubReport::default() },
        started: now,
        saved: now,
        position,
        reached: position,
        bad: Vec::new(),
        unread: Vec::new(),
        unread_containers: Vec::new(),
        unread_unknown: HashMap::new(),
        unknown: HashMap::new(),
        damaged: Vec::new(),
        found: Vec::new(),
        told_bytes: 0,
    };
    let outcome = run.read_all().and_then(|()| run.verify_export());
    progress.finish();
    run.report.elapsed_ms = u64::try_from(run.started.elapsed().as_millis()).unwrap_or(u64::MAX);
    match outcome {
        // Closing the pool stops a scrub. The next one reads again from the last durable position.
        Err(EngineError::ReadOnly(_)) if core.gate.is_closing() => run.report.finished = false,
        outcome => outcome?,
    }
    run.report.unmounted = !run.report.finished && core.gate.is_closing();
    if !core.is_read_only() && !run.report.unmounted {
        core.note_losses()?;
    }
    Ok((run.report, run.found))
}

impl Run<'_> {
    fn resume(core: &Core, options: &ScrubOptions) -> Result<ScrubPosition> {
        let fresh = ScrubPosition { started_secs: now_secs(), ..ScrubPosition::default() };
        if options.restart {
            return Ok(fresh);
        }
        let last = ScrubPosition::last(&*core.meta_device, &core.pool)?;
        Ok(last.filter(|position| position.finished_secs == 0).unwrap_or(fresh))
    }

    fn read_all(&mut self) -> Result<()> {
        let records: Vec<ContainerRecord> = [&self.core.stores.recipes, &self.core.stores.data]
            .iter()
            .flat_map(|store| store.closed_in_disk_order())
            .filter(|record| !self.position.is_behind(record.kind, record.address))
            .collect();
        let total_bytes: u64 = records.iter().map(|record| u64::from(record.used_bytes)).sum();
        self.progress.start("scrubbing, MiB", total_bytes >> 20);
        let mut pipeline = Pipeline::new(self.core.files.ingest.workers.clone(), *self.core.dedup.fingerprinter());
        for record in records {
            if self.is_stopped() {
                break;
            }
            if pipeline.is_full()
                && let Some(judged) = pipeline.pop()?
            {
                self.take(judged)?;
            }
            pipeline.push(self.core.stores.of(record.kind), record);
            self.throttle();
            if self.saved.elapsed() >= SAVE_INTERVAL
                || self.bad.len() >= BAD_AT_ONCE
                || self.unknown.len() >= UNKNOWN_AT_ONCE
            {
                self.save()?;
            }
        }
        while let Some(judged) = pipeline.pop()? {
            self.take(judged)?;
        }
        self.confirm_unread()?;
        self.report.finished = !self.is_stopped();
        if self.report.finished {
            self.reached.finished_secs = now_secs();
        }
        self.save()
    }

    fn is_stopped(&self) -> bool {
        self.control.is_stopped() || self.progress.is_cancelled()
    }

    /// Processes the result for one container.
    fn take(&mut self, judged: Judged) -> Result<()> {
        let Judged { record, device_failed, inspection } = judged;
        // If it was freed meanwhile, and perhaps its slot filled again, the result means nothing.
        if self.core.stores.of(record.kind).is_known(record.id) {
            self.take_inspection(&record, device_failed, inspection)?;
        }
        self.reached.in_data = record.kind == ContainerKind::Data;
        (self.reached.file, self.reached.slot) = (record.address.file, record.address.slot);
        self.reached.containers += 1;
        self.reached.disk_bytes += u64::from(record.used_bytes);
        self.report.containers += 1;
        self.report.disk_bytes += u64::from(record.used_bytes);
        let told = (self.report.disk_bytes >> 20) - self.told_bytes;
        self.told_bytes += told;
        self.progress.advance(told);
        Ok(())
    }

    fn take_inspection(&mut self, record: &ContainerRecord, device_failed: bool, inspection: Inspection) -> Result<()> {
        self.report.sound += inspection.sound;
        self.report.content_bytes += inspection.judged_bytes;
        if device_failed {
            self.unread_containers.push(*record);
            if self.unread_containers.len() > UNREAD_MAX {
                return Err(self.device_is_gone());
            }
        } else {
            self.conclude_unread();
        }
        let (kind, container) = (record.kind, record.id);
        let copies = inspection.bad.iter().map(|entry| BadCopy { kind, container, fingerprint: entry.fingerprint });
        let (mut is_needed, mut is_lost) = (inspection.sound_of_unknown.is_some(), false);
        for copy in copies {
            is_needed |= self.core.places(&copy)?;
            is_lost |= self.core.lacks(&copy)?;
            if device_failed { self.unread.push(copy) } else { self.bad.push(copy) }
        }
        for damage in &inspection.damage {
            tracing::warn!(%container, needed = is_needed || is_lost, lost = is_lost, %damage, "damage");
            let standing = match (is_needed, is_lost) {
                (true, _) => "",
                (false, true) => ", lost before",
                (false, false) => ", of which nothing is needed",
            };
            self.report.add_damage(format!("container {container}{standing}: {damage}"));
        }
        self.report.lost_and_readable += self.lost_and_readable(record, &inspection)?;
        self.report.containers_with_garbage += u64::from(!inspection.damage.is_empty() && !is_needed);
        if let Some(sound) = inspection.sound_of_unknown {
            let unknown = if device_failed { &mut self.unread_unknown } else { &mut self.unknown };
            unknown.insert(container, sound);
        }
        if !inspection.damage.is_empty() && !device_failed && !record.damaged {
            self.damaged.push(container);
        }
        Ok(())
    }

    /// Returns the number of fingerprints that the index calls lost and this container has. It was missing or
    /// unreadable when the index was built.
    fn lost_and_readable(&self, record: &ContainerRecord, inspection: &Inspection) -> Result<u64> {
        let index = self.core.indexes.of(record.kind);
        if !index.has_lost() || inspection.sound == 0 {
            return Ok(0);
        }
        // Without a table its content is unknown.
        let Ok(Some(table)) = self.core.stores.of(record.kind).table(record.id) else { return Ok(0) };
        if !index.may_have_lost(table.entries.iter().map(|entry| &entry.fingerprint)) {
            return Ok(0);
        }
        let bad: HashSet<Fingerprint> = inspection.bad.iter().map(|entry| entry.fingerprint).collect();
        let mut count = 0;
        for entry in table.entries.iter().filter(|entry| !bad.contains(&entry.fingerprint)) {
            let cell = index.get(&entry.fingerprint)?;
            count += u64::from(cell.is_some_and(|cell| cell.location.is_lost() && !cell.location.is_quarantined()));
        }
        Ok(count)
    }

    /// Decides the unread copies: the device returns other content, so they are bad.
    fn conclude_unread(&mut self) {
        self.unread_containers.clear();
        self.bad.append(&mut self.unread);
        self.unknown.extend(self.unread_unknown.drain());
    }

    fn device_is_gone(&self) -> EngineError {
        StoreError::Usage(format!(
            "the device failed to read {} containers in a row, so nothing is concluded about them: check disk and cable, \
             then scrub again; the scrub resumes here",
            self.unread_containers.len()
        ))
        .into()
    }

    /// At the end nothing more is read that would show whether the device returns anything. So another container is
    /// read again.
    fn confirm_unread(&mut self) -> Result<()> {
        let Some(first) = self.unread_containers.first() else { return Ok(()) };
        let failed: HashSet<ContainerId> = self.unread_containers.iter().map(|record| record.id).collect();
        let store = self.core.stores.of(first.kind).clone();
        let mut whole = WholeContainer::default();
        let others = store.closed_in_disk_order().into_iter().filter(|record| !failed.contains(&record.id));
        let mut others = others.take(UNREAD_MAX);
        if !others.any(|record| store.read_whole(&record, &mut whole) && whole.unread.is_none()) {
            return Err(self.device_is_gone());
        }
        self.conclude_unread();
        Ok(())
    }

    /// Quarantines the bad copies found so far, then makes the position durable.
    fn save(&mut self) -> Result<()> {
        self.find_unknown()?;
        let bad = std::mem::take(&mut self.bad);
        if self.core.is_read_only() {
            for copy in bad {
                if self.core.places(&copy)? {
                    self.count(copy);
                    self.found.push(copy);
                }
            }
        } else {
            let found = self.core.quarantine(&bad)?;
            found.lost.into_iter().for_each(|copy| self.count(copy));
            self.reached.bad += found.repaired.len() as u64;
            self.report.repaired_nodes += found.repaired.len() as u64;
            let damaged = std::mem::take(&mut self.damaged);
            self.core.note_damaged(&damaged)?;
        }
        self.saved = Instant::now();
        // The next run reads undecided containers again.
        if self.unread_containers.is_empty() {
            self.position = self.reached;
            if !self.core.is_read_only() {
                self.position.write(&*self.core.meta_device, &self.core.pool)?;
            }
            self.control.note(self.position);
        }
        Ok(())
    }

    fn count(&mut self, copy: BadCopy) {
        self.reached.bad += 1;
        let what = match copy.kind {
            ContainerKind::Data => {
                self.report.bad_chunks += 1;
                "chunk"
            }
            ContainerKind::Recipe => {
                self.report.bad_nodes += 1;
                "recipe node"
            }
        };
        tracing::error!(fingerprint = %copy.fingerprint, container = %copy.container, "the copy of a {what} is bad");
    }

    /// Adds the bad copies of containers whose table cannot be read: those that the index places there and that were
    /// not found sound.
    fn find_unknown(&mut self) -> Result<()> {
        let unknown = std::mem::take(&mut self.unknown);
        let more = self.core.misplaced(&unknown)?;
        self.bad.extend(more);
        Ok(())
    }

    /// Verifies the export, and rewrites its bad parts.
    fn verify_export(&mut self) -> Result<()> {
        if !self.report.finished {
            return Ok(());
        }
        self.progress.start("verifying the export", 0);
        let mut read_bytes = 0;
        for attempt in 1..=EXPORT_TRIES {
            let mut check = self.core.exporter.verify(CopyDepth::Content, &mut |bytes| {
                read_bytes += bytes;
                self.throttle_behind(read_bytes);
                !self.is_stopped()
            })?;
            if self.is_stopped() {
                self.report.finished = false;
                return Ok(());
            }
            if check.stopped && attempt < EXPORT_TRIES {
                // A new base has been begun; the next try verifies it.
                let _rests = profile::of(Component::Rest);
                dedupfs_sync::thread::sleep(NAP);
                continue;
            }
            if !check.is_sound() && !self.core.is_read_only() {
                let _pass = self.core.begin_change()?;
                self.core.exporter.renew(&mut check)?;
            }
            self.report.export = Some(check);
            break;
        }
        Ok(())
    }

    /// Sleeps if more was read than the rate allows.
    fn throttle(&self) {
        self.throttle_behind(0);
    }

    /// Throttles as [`throttle`](Self::throttle) does, counting `more_bytes` besides containers.
    fn throttle_behind(&self, more_bytes: u64) {
        let rate = self.options.rate_bytes_per_s;
        if rate == 0 {
            return;
        }
        let due = Duration::from_secs_f64((self.report.disk_bytes + more_bytes) as f64 / rate as f64);
        while let Some(left) = due.checked_sub(self.started.elapsed()).filter(|left| !left.is_zero()) {
            if self.is_stopped() {
                return;
            }
            let _rests = profile::of(Component::Rest);
            dedupfs_sync::thread::sleep(left.min(NAP));
        }
    }
}

fn now_secs() -> u64 {
    dedupfs_sync::clock::since_epoch().as_secs()
}
