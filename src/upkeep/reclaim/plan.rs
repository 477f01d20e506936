//! The plan of a run, computed from the garbage map, the recipes that would be freed, and those of the newest versions. Changes nothing.
//!
//! The counts of chunks fall only when the nodes that name them are freed, which a plan must not do. So it counts down
//! without doing it, and sums up the chunks that would be dead in each container.

use std::collections::HashMap;

use dedupfs_base::Result;
use dedupfs_store::{ContainerId, ContainerKind, Fingerprint};

use super::Run;
use super::history::LastRun;
use super::victims::{Candidate, Classes};
use crate::upkeep::count_down::CountDown;

/// Bytes of containers read and written in a millisecond, until a run has been measured: 100 MB/s, a slow disk's.
const BYTES_PER_MS: u64 = 100_000;

/// Bytes and number of chunks in a container that would die.
type Gone = HashMap<ContainerId, (u64, u64)>;

impl Run<'_> {
    pub(super) fn plan(&mut self) -> Result<()> {
        let core = self.core;
        let is_stopped = || self.pace.stopped().is_some();
        let mut count_down = CountDown::new(core, &is_stopped);
        count_down.drop_unreferenced()?;
        count_down.end_set()?;
        let mut gone_nodes = Gone::new();
        for (_, fingerprint, container) in count_down.nodes() {
            if let Some(cell) = self.core.indexes.nodes.committed(fingerprint)? {
                let gone = gone_nodes.entry(container).or_default();
                *gone = (gone.0 + u64::from(cell.location.len_bytes()), gone.1 + 1);
            }
        }
        let mut gone_chunks = Gone::new();
        count_down.for_each_dead_chunk(&mut |_, _, cell| {
            let gone = gone_chunks.entry(cell.location.container()).or_default();
            *gone = (gone.0 + u64::from(cell.location.len_bytes()), gone.1 + 1);
        })?;
        self.report.nodes_freed = count_down.nodes().count() as u64;
        // The walk needs its memory.
        drop(count_down);
        self.progress.start("reading the recipes of the newest versions", 0);
        self.usage = self.usage_of_newest()?;
        self.progress.finish();
        let mut io_bytes = 0;
        for (kind, gone) in [(ContainerKind::Data, gone_chunks), (ContainerKind::Recipe, gone_nodes)] {
            io_bytes += self.plan_kind(kind, &gone);
        }
        // Some are kept.
        self.report.arranged_bytes = self.report.arranged_bytes.min(self.report.moved_bytes);
        self.report.physical_after_bytes = self.report.physical_before_bytes.saturating_sub(self.report.expected_bytes);
        let last = LastRun::read_or_none(&*self.core.meta_device, &self.core.pool).unwrap_or_default();
        let rate = last.io_bytes.checked_div(last.worked_ms).filter(|rate| *rate > 0 && last.worked_ms > 1000);
        self.report.elapsed_ms = io_bytes / rate.unwrap_or(BYTES_PER_MS);
        Ok(())
    }

    /// Adds the effects of emptying containers of this kind. Returns the bytes of containers it would read and write.
    fn plan_kind(&mut self, kind: ContainerKind, gone: &Gone) -> u64 {
        let candidates = |run: &Run<'_>, visit: &mut dyn FnMut(Candidate)| {
            // A run seals open containers before it begins.
            for record in run.core.stores.of(kind).containers() {
                let mut candidate = run.candidate(kind, &record);
                let (bytes, chunks) = gone.get(&record.id).copied().unwrap_or_default();
                candidate.live_bytes = candidate.live_bytes.saturating_sub(bytes);
                candidate.live_chunks = candidate.live_chunks.saturating_sub(chunks);
                visit(candidate);
            }
        };
        let scattered = self.scattered(kind, &candidates);
        let mut classes = Classes::default();
        candidates(self, &mut |candidate| match scattered.contains(&candidate.id) {
            true => classes.add_taken(&candidate),
            false => classes.add(&candidate),
        });
        let mut choice = classes.choose(self.options);
        let (live_bytes, garbage_bytes) = classes.total();
        let mut report = self.report.clone();
        report.live_bytes += live_bytes;
        report.garbage_left_bytes += garbage_bytes;
        let (index, mut io_bytes) = (self.core.indexes.of(kind), 0);
        candidates(self, &mut |candidate| {
            if !scattered.contains(&candidate.id) && !choice.takes(&candidate) {
                return;
            }
            if self.would_be_kept(kind, candidate.id) {
                report.containers_damaged += 1;
                return;
            }
            // Rows are being counted during this.
            report.garbage_left_bytes = report.garbage_left_bytes.saturating_sub(candidate.garbage_bytes());
            report.containers_freed += 1;
            report.containers_dead += u64::from(candidate.live_bytes == 0);
            report.chunks_moved += candidate.live_chunks;
            report.moved_bytes += candidate.live_bytes;
            if kind == ContainerKind::Data {
                report.chunks_removed += index.occupied(candidate.id).cells.saturating_sub(candidate.live_chunks);
            }
            report.expected_bytes += candidate.used_bytes - candidate.kept_bytes();
            if candidate.live_bytes > 0 {
                report.read_bytes += candidate.used_bytes;
                report.written_bytes += candidate.kept_bytes();
                io_bytes += candidate.used_bytes + candidate.kept_bytes();
            }
        });
        self.report = report;
        io_bytes
    }

    /// Whether a run would keep the container: it is damaged, or may hold the only copy of a lost chunk.
    fn would_be_kept(&self, kind: ContainerKind, container: ContainerId) -> bool {
        let (store, index) = (self.core.stores.of(kind), self.core.indexes.of(kind));
        let (has_losses, is_damaged) = (index.has_lost(), store.is_damaged(container));
        if !has_losses && !is_damaged {
            return false;
        }
        let Ok(table) = store.table(container) else { return true };
        let has_lost = || {
            let fingerprints = table.iter().flat_map(|table| &table.entries).map(|entry| &entry.fingerprint);
            let is_lost = |fingerprint: &Fingerprint| {
                index
                    .get(fingerprint)
                    .map_or(true, |cell| cell.is_some_and(|cell| cell.location.is_lost() && cell.references > 0))
            };
            index.may_have_lost(fingerprints.clone()) && fingerprints.clone().any(is_lost)
        };
        is_damaged && store.verify(container).is_err() || has_losses && has_lost()
    }
}
