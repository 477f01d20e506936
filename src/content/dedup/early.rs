//! Looking a segment up before its section.
//!
//! A commit waits for all sections to end, and new sections wait for the commit. So a section that reads the index from a slow disk holds up
//! every fsync. Most lookups are made before: their answers count in the section if nothing that they may rest on has gone since.
//!
//! A chunk goes only while reclaiming claims the container in which the index places it, and a copy goes bad by
//! [`lose`](Deduplicator::lose). So answers hold until a claim begins or ends, or a copy is lost; then the segment is looked up again in its
//! section. That claims begin counts, too: a chunk that was stored a second time goes with its second container, and the first one, which
//! an answer may name, is never claimed. `tests/schedules/early.rs` models this. Chunks that came meanwhile are found under the store lock, as
//! those of other writers are.

use std::sync::atomic::Ordering;

use dedupfs_base::Result;
use dedupfs_index::filter::Verdict;
use dedupfs_store::Fingerprint;
use dedupfs_store::profile::{self, Component};
use dedupfs_store::recipe::Node;
use dedupfs_sync::step::Step;
use dedupfs_sync::thread;

use super::place::LookedUp;
use super::{Deduplicator, Own, SegmentEntry};

/// Answers about a segment from before its section.
pub(crate) struct Early {
    /// The fingerprint of the segment's node, if it was asked for.
    pub(super) node: Option<Fingerprint>,
    /// Answers about its chunks; `None` if its node was known.
    chunks: Option<Answers>,
    /// Claims that had begun or ended, and copies that were lost.
    times_gone: u64,
}

pub(super) struct Answers {
    pub(super) verdicts: Vec<Verdict>,
    /// The index's epoch before it was asked.
    pub(super) epoch: u64,
}

impl Deduplicator {
    /// Looks a segment up before its section; `None` if the pool compares bytes, because a comparison must be of the copy that is used. A chunk
    /// that is a whole file gets no node (`is_whole`).
    ///
    /// # Errors
    /// The index or a table cannot be read.
    pub(crate) fn look_up_early(
        &self,
        entries: &[SegmentEntry<'_>],
        own: &Own,
        is_whole: bool,
    ) -> Result<Option<Early>> {
        if self.chain.compare().is_some() {
            return Ok(None);
        }
        let _timed = profile::of(Component::Segments);
        let times_gone = self.times_gone.load(Ordering::Acquire);
        let node = (!is_whole).then(|| self.fingerprinter.of(&node_of(entries).identity_bytes()));
        // The section asks again, which then reads nothing.
        let cell = node.map_or(Ok(None), |node| self.indexes.nodes.get(&node))?;
        let is_known = cell.is_some_and(|cell| !cell.location.is_lost());
        let chunks = if is_known {
            None
        } else {
            let LookedUp { verdicts, epoch, .. } = self.look_up(entries, own)?;
            Some(Answers { verdicts, epoch })
        };
        thread::linger(Step::Lookup);
        Ok(Some(Early { node, chunks, times_gone }))
    }

    /// Notes that chunks may not be where they were found.
    pub(super) fn note_gone(&self) {
        self.times_gone.fetch_add(1, Ordering::AcqRel);
    }

    /// Returns the answers about chunks if they still hold. In a section: then nothing goes until its end.
    pub(super) fn holding(&self, early: Option<Early>) -> Option<Answers> {
        early.filter(|early| early.times_gone == self.times_gone.load(Ordering::Acquire))?.chunks
    }
}

/// The recipe node of a segment.
pub(super) fn node_of(entries: &[SegmentEntry<'_>]) -> Node {
    Node { level: 0, children: entries.iter().map(|entry| entry.child).collect() }
}
