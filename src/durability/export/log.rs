//! The log of an export: appends groups, and finds how far a log is whole.

#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic))]

use std::collections::BTreeMap;
use std::sync::Arc;

use dedupfs_base::{EngineError, Result};
use dedupfs_namespace::{ChangedKey, ExportSource};
use dedupfs_store::device::DeviceFile;
use dedupfs_store::{ContainerId, ContainerKind, PoolId};
use dedupfs_sync::canary::{Canary, is_planted};
use dedupfs_sync::step::Step;
use dedupfs_sync::thread;

use super::Exporter;
use super::frames::{Group, GroupWriter, ReadFrame};
use super::mirror::Mirror;
use crate::config::EXPORT_KEYS_AT_ONCE;

/// The result of an append.
pub(super) struct Appended {
    pub(super) log_bytes: u64,
    pub(super) written_bytes: u64,
}

/// What a group has to tell.
pub(super) struct News {
    /// Keys that commits behind this one changed.
    pub(super) after_row: u64,
    /// Whether a group is needed though no key changed, because the header did.
    pub(super) is_header_new: bool,
}

/// Appends a group at `log_bytes` with the current records of all changed keys, and the header; durable on return. `None` if nothing
/// changed, or if there is no room for the header alone: without it the export tells as much as before.
pub(super) fn append(
    exporter: &Exporter,
    source: &ExportSource,
    mirror: &mut Mirror,
    log: &Arc<dyn DeviceFile>,
    log_bytes: u64,
    news: &News,
    group: Group,
) -> Result<Option<Appended>> {
    // Cuts off the remains of a failed attempt.
    if log.len()? > log_bytes {
        log.set_len(log_bytes)?;
    }
    let mut writer = GroupWriter::new(log.clone(), exporter.pool, group, log_bytes);
    let mut has_keys = false;
    let outcome = write(exporter, source, mirror, &mut writer, news, &mut has_keys);
    let finish = |outcome: Result<Option<u64>>| {
        let Some(copied_bytes) = outcome? else { return Ok(None) };
        source.header(&mut |item| writer.push(item))?;
        let end_bytes = writer.finish()?;
        thread::linger(Step::ExportSync);
        if !is_planted(Canary::ExportNotSynced) {
            log.sync()?;
        }
        let written_bytes = end_bytes - log_bytes + copied_bytes;
        Ok(Some(Appended { log_bytes: end_bytes, written_bytes }))
    };
    finish(outcome).or_else(|error: EngineError| {
        if !error.is_no_space() {
            return Err(error);
        }
        // Best effort: the next attempt cuts it off too.
        let _ = log.set_len(log_bytes);
        if has_keys { Err(error) } else { Ok(None) }
    })
}

/// Writes the items of changed keys and copies the recipes. Returns the number of bytes copied; `None` if there is nothing to tell.
/// `has_keys` becomes true if a key changed.
fn write(
    exporter: &Exporter,
    source: &ExportSource,
    mirror: &mut Mirror,
    writer: &mut GroupWriter,
    news: &News,
    has_keys: &mut bool,
) -> Result<Option<u64>> {
    let mut recipes: BTreeMap<ContainerId, u32> = BTreeMap::new();
    let mut keys: Vec<ChangedKey> = Vec::new();
    let mut write_keys = |keys: &mut Vec<ChangedKey>| -> Result<()> {
        // A key that several commits changed is looked up once, and the store is read in order. Verification reads less of a log in order.
        keys.sort_unstable();
        keys.dedup();
        if is_planted(Canary::ExportMissesKey) {
            keys.pop();
        }
        keys.drain(..).try_for_each(|key| {
            if let ChangedKey::Container { id, from_bytes } = key {
                recipes.entry(id).and_modify(|from| *from = from_bytes.min(*from)).or_insert(from_bytes);
            }
            source.item(&key, &mut |item| writer.push(item))
        })
    };
    source.changes_after(news.after_row, &mut |part| {
        *has_keys = true;
        keys.extend(part);
        if keys.len() >= EXPORT_KEYS_AT_ONCE { write_keys(&mut keys) } else { Ok(()) }
    })?;
    write_keys(&mut keys)?;
    if !*has_keys && !news.is_header_new {
        return Ok(None);
    }
    let mut copied_bytes = 0;
    for (id, from_bytes) in recipes {
        if let Some(record) = source.container(id)?.filter(|record| record.kind == ContainerKind::Recipe) {
            copied_bytes += mirror.copy(&exporter.stores.recipes, &record, from_bytes)?;
        }
    }
    // The group may name only copies that are durable.
    mirror.sync()?;
    Ok(Some(copied_bytes))
}

/// Receives each frame of a log.
pub(super) type FrameVisitor<'v> = dyn FnMut(&ReadFrame) -> Result<()> + 'v;

/// The whole part of a log.
#[derive(Debug)]
pub(super) struct Scanned {
    /// End of the last whole group.
    pub(super) log_bytes: u64,
    /// Number of that group.
    pub(super) group: u32,
    /// The commit whose state results.
    pub(super) row: u64,
    /// Time of writing of that group, if it was read.
    pub(super) time_secs: u64,
    /// Why the log ends there, if more bytes follow.
    pub(super) rest: Option<EngineError>,
}

impl Scanned {
    /// Starts at the beginning of the log of a base of `row`.
    pub(super) fn start(row: u64) -> Self {
        Self { log_bytes: 0, group: 0, row, time_secs: 0, rest: None }
    }
}

/// Follows a log from the end of a whole group, over all whole groups that continue each other.
pub(super) fn scan(file: &dyn DeviceFile, what: &str, pool: &PoolId, generation: u64, at: Scanned) -> Result<Scanned> {
    let end_bytes = file.len()?;
    scan_to(file, what, pool, generation, at, end_bytes, &mut |_| Ok(()))
}

/// As [`scan`], up to the first group that ends at `end_bytes` or behind. `visit` receives each frame; its error ends the log, as
/// damage does.
pub(super) fn scan_to(
    file: &dyn DeviceFile,
    what: &str,
    pool: &PoolId,
    generation: u64,
    mut at: Scanned,
    end_bytes: u64,
    visit: &mut FrameVisitor<'_>,
) -> Result<Scanned> {
    while at.log_bytes < end_bytes {
        match scan_group(file, what, pool, generation, &at, visit) {
            Ok((group, end_bytes)) => {
                at = Scanned {
                    log_bytes: end_bytes,
                    group: group.number,
                    row: group.row,
                    time_secs: group.time_secs,
                    rest: None,
                };
            }
            Err(error) => {
                at.rest = Some(error);
                break;
            }
        }
    }
    Ok(at)
}

fn scan_group(
    file: &dyn DeviceFile,
    what: &str,
    pool: &PoolId,
    generation: u64,
    at: &Scanned,
    visit: &mut FrameVisitor<'_>,
) -> Result<(Group, u64)> {
    let mut frames = GroupFrames::new(at.log_bytes);
    while let Some(frame) = frames.next(file, what, pool, generation)? {
        let group = frame.group;
        if (group.number, group.from_row) != (at.group + 1, at.row) || group.row < group.from_row {
            let found = format!("group {} from row {}", group.number, group.from_row);
            let expected = format!("group {} from row {}", at.group + 1, at.row);
            return Err(dedupfs_store::StoreError::corrupt(what, expected, found).into());
        }
        visit(&frame)?;
        if frame.is_last {
            return Ok((group, frame.end_bytes));
        }
    }
    Err(EngineError::Internal("a group without an end"))
}

/// The frames of one group; each is checked to follow the one before.
pub(super) struct GroupFrames {
    offset_bytes: u64,
    before: Option<(Group, u32)>,
    is_over: bool,
}

impl GroupFrames {
    pub(super) fn new(offset_bytes: u64) -> Self {
        Self { offset_bytes, before: None, is_over: false }
    }

    /// Returns the end of the frames read so far: of the group, once all are read.
    pub(super) fn end_bytes(&self) -> u64 {
        self.offset_bytes
    }

    /// Returns the next frame; `None` behind the last.
    pub(super) fn next(
        &mut self,
        file: &dyn DeviceFile,
        what: &str,
        pool: &PoolId,
        generation: u64,
    ) -> Result<Option<ReadFrame>> {
        if self.is_over {
            return Ok(None);
        }
        let frame = ReadFrame::read(file, what, pool, generation, self.offset_bytes)?;
        let (group, number) = self.before.map_or((frame.group, 0), |(group, number)| (group, number + 1));
        if (frame.group, frame.frame) != (group, number) {
            let found = format!("frame {} of {:?}", frame.frame, frame.group);
            let expected = format!("frame {number} of {group:?}");
            return Err(dedupfs_store::StoreError::corrupt(what, expected, found).into());
        }
        (self.before, self.offset_bytes, self.is_over) = (Some((group, number)), frame.end_bytes, frame.is_last);
        Ok(Some(frame))
    }
}
