//! Emptying some victims together: claim, wait, gather the live chunks, copy them forward, count, recheck.
//!
//! 1. The containers are claimed. From then on writers store again the chunks that they would have found there.
//! 2. All sections that could have seen the unclaimed state end. The pinned chunks are noted, and everything logged is counted.
//! 3. If nothing in a container is alive, its chunks are removed from the index as its table names them; its content is
//!    not read. In other containers the live chunks are read and the dead ones removed.
//! 4. The live chunks are appended in the order of their places, those of the newest versions to a stream of their own. Writers wait for a few MiB at a time.
//! 5. All of this is committed and counted. A container in which the index then places nothing is emptied. It is freed
//!    behind the next checkpoint of the indexes ([`super::freeing`]), because replaying the log may read it until then
//!    (I-4).

use std::collections::{BTreeSet, HashMap, HashSet};

use dedupfs_base::{EngineError, Result};
use dedupfs_content::{ACTIVE_STREAM, Forwarded, ForwardingNote, RECLAIM_STREAM, StreamId};
use dedupfs_index::SealedCells;
use dedupfs_store::{ContainerId, ContainerKind, Fingerprint, LogOp, OperationsLog, StoreError};

use super::Run;
use super::freeing::Emptied;
use super::order::{Place, RestoreOrder};
use super::victims::Candidate;

/// Bytes appended while writers wait.
const COPY_AT_ONCE_BYTES: usize = 2 << 20;

/// A live chunk or node that was read.
struct Gathered {
    place: Place,
    from: ContainerId,
    fingerprint: Fingerprint,
    start: usize,
    len: usize,
}

pub(super) struct Batch<'b, 'r> {
    run: &'b mut Run<'r>,
    kind: ContainerKind,
    victims: Vec<Candidate>,
    order: Option<&'b RestoreOrder>,
    /// Chunks that live although no counted reference says so.
    pinned: HashSet<Fingerprint>,
    gathered: Vec<Gathered>,
    bytes: Vec<u8>,
    /// For each victim, the containers that took chunks of it.
    taken_by: HashMap<ContainerId, BTreeSet<ContainerId>>,
}

/// The state of a victim before its live chunks are copied.
enum Looked {
    /// It needs no reading.
    Empty,
    /// Its live chunks are gathered and its dead ones removed.
    Through,
    /// It cannot be read. The chunks gathered before the error are moved.
    Unreadable(EngineError),
}

impl<'b, 'r> Batch<'b, 'r> {
    pub(super) fn new(
        run: &'b mut Run<'r>,
        kind: ContainerKind,
        victims: &'b [Candidate],
        order: Option<&'b RestoreOrder>,
    ) -> Self {
        let live_bytes: u64 = victims.iter().map(|victim| victim.live_bytes).sum();
        let bytes = Vec::with_capacity(usize::try_from(live_bytes.min(run.memory.batch_bytes)).unwrap_or(0));
        let (victims, pinned, gathered) = (victims.to_vec(), HashSet::new(), Vec::new());
        Self { run, kind, victims, order, pinned, gathered, bytes, taken_by: HashMap::new() }
    }

    /// Empties the victims; see the module's head.
    ///
    /// # Errors
    /// The index cannot be read, or the copies cannot be written: errors that concern more than one container. Chunks
    /// moved before the error stay moved.
    pub(super) fn empty(mut self) -> Result<()> {
        let core = self.run.core;
        core.dedup.claim_containers(self.victims.iter().map(|victim| victim.id));
        core.dedup.barrier();
        // Before everything logged is counted: then a chunk is pinned here, or its reference is counted.
        self.pinned = core.dedup.pinned_chunks();
        core.committer.settle()?;
        core.committer.check_counts()?;
        self.leave_out_what_came_alive();
        // Before the search: a chunk that is lost later may lie where nobody looked for it.
        let times_lost = core.indexes.times_lost();
        let victims = self.victims.clone();
        let mut looked = Vec::with_capacity(victims.len());
        for victim in &victims {
            looked.push((victim, self.look(victim)?));
            core.committer.pace()?;
            self.run.pace.between_pieces();
        }
        self.copy()?;
        self.note_written();
        core.committer.settle()?;
        let mut kept = Vec::new();
        for (victim, looked) in looked {
            match self.recheck(victim, looked) {
                Ok(()) => {
                    // Readers need it from the moment in which the container is freed.
                    let note = self.taken_by.get(&victim.id).and_then(|to| ForwardingNote::new(victim.id, to));
                    core.stores.of(self.kind).add_forwarding_notes(note);
                    let left = &mut self.run.report.garbage_left_bytes;
                    *left = left.saturating_sub(victim.garbage_bytes());
                    self.run.note_emptied(Emptied {
                        id: victim.id,
                        row: core.namespace.last_row(),
                        used_bytes: victim.used_bytes,
                        times_lost,
                        is_dead: victim.live_bytes == 0,
                    });
                }
                // A failure costs the run only this container.
                Err(error) => {
                    tracing::error!(container = %victim.id, %error, "a container is kept: it cannot be read");
                    kept.push(victim.id);
                }
            }
        }
        if !kept.is_empty() {
            self.run.keep(&kept);
            core.dedup.release_containers_of(&kept);
        }
        Ok(())
    }

    /// Leaves out victims in which more is alive than when they were chosen. Memory and disk may have no room for it,
    /// and copying it may not be worthwhile: a later run takes these.
    fn leave_out_what_came_alive(&mut self) {
        let (run, kind) = (&self.run, self.kind);
        let has_grown = |victim: &Candidate| {
            let occupied = run.core.indexes.of(kind).occupied(victim.id);
            let live_bytes = if kind == ContainerKind::Recipe { occupied.bytes } else { occupied.live_bytes };
            live_bytes > victim.live_bytes
        };
        let left_out: Vec<ContainerId> =
            self.victims.iter().filter(|victim| has_grown(victim)).map(|victim| victim.id).collect();
        if !left_out.is_empty() {
            self.victims.retain(|victim| !left_out.contains(&victim.id));
            self.run.core.dedup.release_containers_of(&left_out);
        }
    }

    /// Removes the dead chunks of a container and reads the live ones.
    fn look(&mut self, victim: &Candidate) -> Result<Looked> {
        let container = victim.id;
        let index = self.run.core.indexes.of(self.kind);
        let (has_losses, occupied) = (index.has_lost(), index.occupied(container));
        // Nothing needed lies there, and no lost chunk can: it is freed, readable or not.
        if occupied.cells == 0 && !has_losses {
            return Ok(Looked::Empty);
        }
        let table = match self.run.core.stores.of(self.kind).table(container) {
            Ok(Some(table)) => table,
            Ok(None) => return Ok(Looked::Empty),
            Err(error) => return Ok(Looked::Unreadable(error)),
        };
        let fingerprints: Vec<Fingerprint> = table.entries.iter().map(|entry| entry.fingerprint).collect();
        // The table was read while the disk gave other bytes: chunks that it does not name cannot be searched, whatever the disk gives
        // now.
        let is_partial = has_losses && (fingerprints.len() as u64) < victim.chunks;
        let may_have_lost = index.may_have_lost(&fingerprints);
        let has_pinned = !self.pinned.is_empty() && fingerprints.iter().any(|chunk| self.pinned.contains(chunk));
        if self.kind == ContainerKind::Data && occupied.live_cells == 0 && !may_have_lost && !has_pinned {
            // All its chunks are dead. A removal names the container, so a chunk that the index places elsewhere stays
            // there.
            for fingerprint in fingerprints {
                self.remove(fingerprint, container)?;
            }
            return Ok(if is_partial { Looked::Unreadable(partial(container)) } else { Looked::Through });
        }
        let mut sealed = index.sealed_cells_in(&fingerprints, &|_| container)?;
        let cells = index.cells_of(&fingerprints, &mut sealed)?;
        let mut has_lost = false;
        for (entry, cell) in table.entries.iter().zip(cells) {
            let Some(cell) = cell else { continue };
            let fingerprint = entry.fingerprint;
            if cell.location.container() != container {
                // It could not be read when the index was rebuilt; this may be the only copy.
                has_lost |= cell.location.is_lost() && cell.references > 0;
            } else if cell.references == 0
                && self.kind == ContainerKind::Data
                && !(has_pinned && self.pinned.contains(&fingerprint))
            {
                self.remove(fingerprint, container)?;
            } else if let Err(error) = self.gather(container, fingerprint, entry.len_bytes) {
                return Ok(Looked::Unreadable(error));
            }
            // A container that compresses well holds many times its own size.
            if self.bytes.len() as u64 >= self.run.memory.batch_bytes {
                self.copy()?;
            }
        }
        self.run.read(victim.used_bytes);
        if has_lost {
            let found = "some: back the same data up again, or run `dedupfs fsck --rebuild-index`";
            return Ok(Looked::Unreadable(lacks(container, found)));
        }
        if is_partial {
            return Ok(Looked::Unreadable(partial(container)));
        }
        Ok(Looked::Through)
    }

    fn remove(&mut self, fingerprint: Fingerprint, container: ContainerId) -> Result<()> {
        self.run.core.namespace.log(LogOp::ChunkRemoved { fingerprint, container });
        self.run.report.chunks_removed += 1;
        // `pace` makes several checks; it need not follow every removal.
        if self.run.report.chunks_removed.is_multiple_of(256) {
            self.run.core.committer.pace()?;
        }
        Ok(())
    }

    fn gather(&mut self, from: ContainerId, fingerprint: Fingerprint, len_bytes: u32) -> Result<()> {
        let store = self.run.core.stores.of(self.kind);
        let Some(data) = store.read_chunk(from, &fingerprint, Some(len_bytes))? else {
            return Err(StoreError::corrupt(format!("container {from}"), fingerprint, "no such chunk").into());
        };
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&data);
        self.gathered.push(Gathered {
            place: self.order.map(|order| order.place_of(&fingerprint)).unwrap_or_default(),
            from,
            fingerprint,
            start,
            len: data.len(),
        });
        Ok(())
    }

    /// Appends the gathered chunks in the order of their places. What the newest versions use goes apart from the rest.
    fn copy(&mut self) -> Result<()> {
        let mut gathered = std::mem::take(&mut self.gathered);
        // The sort is stable: chunks without a place keep their order.
        gathered.sort_by_key(|gathered| gathered.place);
        let (archive, active) = gathered.split_at(gathered.partition_point(|gathered| !gathered.place.is_active()));
        self.append(RECLAIM_STREAM, archive)?;
        self.append(ACTIVE_STREAM, active)?;
        self.bytes.clear();
        Ok(())
    }

    fn append(&mut self, stream: StreamId, mut rest: &[Gathered]) -> Result<()> {
        let core = self.run.core;
        while !rest.is_empty() {
            let mut left = Some(COPY_AT_ONCE_BYTES);
            let fits = |gathered: &&Gathered| {
                let fits = left.is_some();
                left = left.and_then(|left| left.checked_sub(gathered.len));
                fits
            };
            let (now, later) = rest.split_at(rest.iter().take_while(fits).count());
            let bytes_of =
                |gathered: &Gathered| self.bytes.get(gathered.start..gathered.start + gathered.len).unwrap_or_default();
            let read: Vec<&[u8]> = now.iter().map(bytes_of).collect();
            let renewed =
                if self.kind == ContainerKind::Recipe { self.run.with_present_hints(&read)? } else { Vec::new() };
            let to_write = if renewed.is_empty() { read } else { renewed.iter().map(Vec::as_slice).collect() };
            let chunks: Vec<Forwarded<'_>> = now
                .iter()
                .zip(to_write)
                .map(|(&Gathered { from, fingerprint, .. }, bytes)| Forwarded { from, fingerprint, bytes })
                .collect();
            // Looked up before writers have to wait; later changes are in memory.
            let fingerprints: Vec<Fingerprint> = now.iter().map(|gathered| gathered.fingerprint).collect();
            let hint = |item: usize| now.get(item).map_or(ContainerId::NONE, |gathered| gathered.from);
            let mut sealed: SealedCells = self.run.core.indexes.of(self.kind).sealed_cells_in(&fingerprints, &hint)?;
            core.dedup.wait_for_room()?;
            let copied = core.dedup.copy_forward(self.kind, stream, &chunks, &mut sealed)?;
            self.run.report.chunks_moved += copied.chunks;
            // As they were, which a plan knows.
            self.run.report.moved_bytes += copied.bytes.saturating_add_signed(-copied.grown_bytes);
            self.run.report.hints_grown_bytes += copied.grown_bytes;
            if stream == ACTIVE_STREAM && self.kind == ContainerKind::Data {
                self.run.copied_active_bytes += copied.bytes;
            }
            for (from, to) in copied.moves {
                self.taken_by.entry(from).or_default().insert(to);
                self.run.last_container = self.run.last_container.max(to);
            }
            core.committer.pace()?;
            self.run.pace.between_pieces();
            rest = later;
        }
        Ok(())
    }

    fn note_written(&mut self) {
        let written: u64 = self.victims.iter().map(Candidate::kept_bytes).sum();
        self.run.written(written);
    }

    /// Checks that a container may be freed: the index places nothing there, and no lost chunk can lie there.
    fn recheck(&self, victim: &Candidate, looked: Looked) -> Result<()> {
        if let Looked::Unreadable(error) = looked {
            return Err(error);
        }
        let left = self.run.core.indexes.of(self.kind).occupied(victim.id).cells;
        if left == 0 {
            return Ok(());
        }
        // The table does not name the chunks that are left, so the container is damaged.
        self.run.core.stores.of(self.kind).verify(victim.id)?;
        let what = format!("container {}", victim.id);
        Err(StoreError::corrupt(what, "only chunks that its table names", format!("{left} others")).into())
    }
}

fn partial(container: ContainerId) -> EngineError {
    lacks(
        container,
        "a table that does not name all chunks: mount the pool again, and run `dedupfs fsck --rebuild-index`",
    )
}

/// The error of a container that may have the only copy of a lost chunk.
fn lacks(container: ContainerId, found: &str) -> EngineError {
    StoreError::corrupt(format!("container {container}"), "no chunk that the index calls lost", found).into()
}
