//! Writes a base: the whole namespace, beside the export that counts, and then the switch to it.

use std::sync::atomic::Ordering;

use dedupfs_base::{EngineError, Result};
use dedupfs_namespace::ExportSource;
use dedupfs_store::device::OpenMode;
use dedupfs_store::{ContainerKind, StoreError};
use dedupfs_sync::clock::Instant;

use super::files::{self, Current, Owner};
use super::frames::{Group, GroupWriter};
use super::log::{self, News};
use super::mirror::Mirror;
use super::reached::Reached;
use super::{Exporter, Live, Work, is_damage, kept, now_secs};
use crate::config::EXPORT_FRAME_BYTES;

impl Exporter {
    /// Writes a base and makes it count. `is_throttled`: takes at most half of the time of one thread and one disk. Without room, or
    /// when told to give up, everything stays as it was.
    pub(super) fn write_base(&self, is_throttled: bool) -> Result<()> {
        self.base_wanted.fetch_add(1, Ordering::Relaxed);
        let _one = self.building.lock();
        self.base_wanted.fetch_sub(1, Ordering::Relaxed);
        if is_throttled && self.give_up.load(Ordering::Relaxed) || self.is_at_rest() {
            return Ok(());
        }
        let outcome = self.build_and_switch(is_throttled);
        self.state.lock().building = None;
        let mut work = self.working.lock();
        let outcome = match outcome {
            Err(error) if error.is_no_space() => {
                tracing::warn!(%error, "no space for a new base of the namespace's export; it is tried again");
                self.make_room(&mut work)
            }
            // The old export still counts.
            Err(error) if is_damage(&error) => {
                tracing::error!(%error, "the namespace is damaged: no new base of its export can be written");
                self.remove_files(&work, work.counting());
                Ok(())
            }
            outcome => outcome,
        };
        self.conclude(&mut work, outcome)
    }

    fn build_and_switch(&self, is_throttled: bool) -> Result<()> {
        let (source, changes_after, generation, rests_on) = {
            let mut work = self.working.lock();
            if let Some(failed) = &work.failed {
                return Err(failed.clone());
            }
            self.check_possession()?;
            files::create(&*self.device)?;
            if work.is_to_set_aside {
                kept::set_aside(&*self.device)?;
                work.is_to_set_aside = false;
            }
            // From here on, no commit trims changes that this base lacks.
            self.state.lock().building = Some(0);
            // After this, all recipes that the snapshot names are copied, or will be with the first group.
            self.append(&mut work)?;
            let source = self.namespace.export_source()?;
            let changes_after = work.live.as_ref().map_or(source.row(), |live| live.row);
            self.state.lock().building = Some(changes_after);
            work.last_generation += 1;
            (source, changes_after, work.last_generation, work.live.as_ref().map(|live| live.current.generation))
        };
        let Some(base_bytes) = self.write_base_file(&source, generation, is_throttled)? else { return Ok(()) };
        let mut copied_bytes = 0;
        if rests_on.is_none() {
            // No other thread copies while no export counts.
            let mut mirror = Mirror::new(self.device.clone(), self.slot_bytes);
            for record in source.containers()?.iter().filter(|record| record.kind == ContainerKind::Recipe) {
                // The next base copies these again.
                if is_throttled && self.give_up.load(Ordering::Relaxed) {
                    self.device.remove(&files::base_path(generation))?;
                    return Ok(());
                }
                self.check_possession()?;
                copied_bytes += mirror.copy(&self.stores.recipes, record, 0)?;
            }
            mirror.sync()?;
        }
        let mut work = self.working.lock();
        self.state.lock().written_bytes += base_bytes + copied_bytes;
        // The export was given up meanwhile. With it went the copies of recipes on which this base rests, and the base's own file.
        if work.live.as_ref().map(|live| live.current.generation) != rests_on {
            tracing::warn!("the export was given up while a new base was written: the base is written again");
            self.remove_files(&work, work.counting());
            return Ok(());
        }
        let current = Current { generation, base_bytes, row: source.row() };
        drop(source);
        self.switch(&mut work, current, changes_after)
    }

    /// Writes the file of a base; returns its size, or `None` if it was given up.
    fn write_base_file(&self, source: &ExportSource, generation: u64, is_throttled: bool) -> Result<Option<u64>> {
        let path = files::base_path(generation);
        let file = self.device.open(&path, OpenMode::CreateOrWrite)?;
        file.set_len(0)?;
        let group = Group { generation, number: 0, from_row: 0, row: source.row(), time_secs: now_secs() };
        let mut writer = GroupWriter::new(file.clone(), self.pool, group, 0);
        let (mut told, mut since, mut given_up) = (0, Instant::now(), false);
        let walked = source.for_each(&mut |item| {
            writer.push(item)?;
            if is_throttled && writer.written_bytes() >= told + EXPORT_FRAME_BYTES as u64 / 4 {
                if self.give_up.load(Ordering::Relaxed) {
                    given_up = true;
                    return Err(EngineError::Internal("given up"));
                }
                dedupfs_sync::thread::sleep(since.elapsed());
                (told, since) = (writer.written_bytes(), Instant::now());
            }
            Ok(())
        });
        if given_up {
            drop(file);
            self.device.remove(&path)?;
            return Ok(None);
        }
        walked?;
        source.header(&mut |item| writer.push(item))?;
        let base_bytes = writer.finish()?;
        file.sync()?;
        Ok(Some(base_bytes))
    }

    /// Makes a base count, with a log of all later changes. Until `current` is replaced, the old base counts.
    fn switch(&self, work: &mut Work, current: Current, changes_after: u64) -> Result<()> {
        self.check_possession()?;
        let log = self.device.open(&files::log_path(current.generation), OpenMode::CreateOrWrite)?;
        log.set_len(0)?;
        let source = self.namespace.export_source()?;
        let group = Group {
            generation: current.generation,
            number: 1,
            from_row: current.row,
            row: source.row(),
            time_secs: now_secs(),
        };
        let news = News { after_row: changes_after, is_header_new: false };
        let appended = log::append(self, &source, &mut work.mirror, &log, 0, &news, group)?;
        let inodes = source.inodes();
        drop(source);
        log.sync()?;
        let mut live = Live {
            current,
            log,
            log_bytes: 0,
            group: 0,
            row: current.row,
            time_secs: group.time_secs,
            has_epoch: true,
        };
        if let Some(appended) = appended {
            (live.log_bytes, live.group, live.row) = (appended.log_bytes, 1, group.row);
            self.state.lock().written_bytes += appended.written_bytes;
        }
        self.device.sync_directory(files::DIRECTORY)?;
        self.check_possession()?;
        // There was no room for it when the pool was opened. Beside an export, a missing owner is a lost one.
        if matches!(Owner::read(&*self.device, &self.pool), Ok(None)) {
            self.owner().write(&*self.device, &self.pool)?;
        }
        if let Err(error) = current.write(&*self.device, &self.pool) {
            // If the replacement may have happened, a crash could leave either file: then no export may count.
            let found = Current::read(&*self.device, &self.pool);
            if !found.is_ok_and(|found| found.is_none_or(|found| found.generation != current.generation)) {
                self.give_up_export(work)?;
            }
            return Err(error);
        }
        self.state.lock().show(Some(&live));
        work.reached.write(&*self.device, &self.pool, &Reached::of(&live.exported(), inodes));
        (work.live, work.stale) = (Some(live), None);
        self.remove_files(work, Some(current.generation));
        Ok(())
    }

    /// Removes all bases and logs except those of one generation. Files that cannot be removed only cost space.
    pub(super) fn remove_files(&self, work: &Work, kept: Option<u64>) {
        // Another process may own the pool by now: then its files and slots must not be touched.
        if work.is_to_set_aside || self.check_possession().is_err() {
            return;
        }
        if let Err(error) = self.try_remove_files(kept) {
            tracing::warn!(%error, "exports that were replaced cannot be removed");
        }
    }

    fn try_remove_files(&self, kept: Option<u64>) -> Result<()> {
        if !self.device.exists(files::DIRECTORY)? {
            return Ok(());
        }
        let is_kept =
            |path: &str| kept.is_some_and(|kept| path == files::base_path(kept) || path == files::log_path(kept));
        for entry in self.device.list(files::DIRECTORY)? {
            let path = format!("{}/{}", files::DIRECTORY, entry.name);
            let is_ours = entry.name.starts_with("base-") || entry.name.starts_with("log-");
            if entry.is_directory || !is_ours || is_kept(&path) {
                continue;
            }
            match self.device.remove(&path) {
                Ok(()) | Err(StoreError::NotFound { .. }) => {}
                Err(error) => tracing::warn!(%error, "an export that was replaced cannot be removed"),
            }
        }
        Ok(self.device.sync_directory(files::DIRECTORY)?)
    }
}
