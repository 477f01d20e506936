//! Emptying containers of one kind, a window at a time: containers that are wholly dead first, then groups, in batches.
//!
//! A group is looked up in the index and ordered together, so that each bucket of a tanker is read once for all of it.
//! A batch is claimed and emptied together ([`super::batch`]).

use std::collections::{HashMap, HashSet};

use dedupfs_base::Result;
use dedupfs_store::{ContainerId, ContainerKind, ContainerRecord};

use super::batch::Batch;
use super::order::RestoreOrder;
use super::victims::{Candidate, Choice, Classes, Window};
use super::{Run, Stopped};

/// Containers chosen at a time: bounds memory.
const WINDOW_CONTAINERS: usize = 16_384;
/// Containers emptied between two commits: bounds the work that a crash repeats.
const BATCH_CONTAINERS: usize = 64;
/// Dead containers emptied between two commits: only their tables are read.
const DEAD_CONTAINERS: usize = 256;
/// Moved bytes for each node that may be read to order them: ordering costs a small share of the moving.
const MOVED_BYTES_PER_ORDER_NODE: u64 = 256 << 10;
/// Nodes that may be read in any case; fewer in tests, whose versions are small.
const ORDER_NODES_MIN: u64 = if cfg!(test) { 50 } else { 1000 };

/// Estimate of the bytes that a copy of the live chunks takes at most: they compress as before.
fn copy_bytes(candidate: &Candidate) -> u64 {
    const PADDING_BYTES: u64 = 64 << 10;
    if candidate.live_bytes == 0 {
        return 0;
    }
    // Chunks of one region can compress less well than the mean.
    let likely = candidate.kept_bytes().saturating_mul(3) / 2;
    likely.min(candidate.live_bytes + candidate.live_bytes / 8) + PADDING_BYTES
}

/// The room of one batch.
#[derive(Clone, Copy)]
struct Room {
    /// Room on the disk.
    disk_bytes: u64,
    /// Room in memory.
    memory_bytes: u64,
    /// Bytes that may still be read and written.
    io_bytes: u64,
}

/// Returns how many of these, from the first, fit into the room together.
fn batch_len(victims: &[Candidate], room: Room) -> usize {
    let mut disk_left = Some(room.disk_bytes);
    // The last container may exceed these: a container is not divided.
    let (mut memory_left, mut io_left) = (Some(room.memory_bytes), Some(room.io_bytes));
    let fits = |victim: &&Candidate| {
        let fits = memory_left.is_some() && io_left.is_some();
        disk_left = disk_left.and_then(|left| left.checked_sub(copy_bytes(victim)));
        memory_left = memory_left.and_then(|left| left.checked_sub(victim.live_bytes));
        io_left = io_left.and_then(|left| left.checked_sub(victim.used_bytes + victim.kept_bytes()));
        fits && disk_left.is_some()
    };
    victims.iter().take(BATCH_CONTAINERS).take_while(fits).count()
}

/// Ids of containers in order: 8 bytes for each.
pub(super) struct Closed(Vec<ContainerId>);

impl Closed {
    fn last(&self) -> ContainerId {
        self.0.last().copied().unwrap_or(ContainerId::NONE)
    }

    fn has(&self, container: ContainerId) -> bool {
        self.0.binary_search(&container).is_ok()
    }
}

/// Like [`batch_len`]; if the first victim does not fit, sorts them by need first.
fn fit(victims: &mut [Candidate], room: Room) -> usize {
    match batch_len(victims, room) {
        0 => {
            victims.sort_by_key(|victim| (copy_bytes(victim), victim.id));
            batch_len(victims, room)
        }
        count => count,
    }
}

impl<'a> Run<'a> {
    pub(super) fn candidate(&self, kind: ContainerKind, record: &ContainerRecord) -> Candidate {
        let occupied = self.core.indexes.of(kind).occupied(record.id);
        // A node without references counts as alive: an open file may hold it; otherwise it has been freed before.
        let (live_bytes, live_chunks) = if kind == ContainerKind::Recipe {
            (occupied.bytes, occupied.cells)
        } else {
            (occupied.live_bytes, occupied.live_cells)
        };
        Candidate {
            id: record.id,
            chunk_bytes: record.chunk_bytes,
            chunks: u64::from(record.chunks),
            live_bytes,
            live_chunks,
            used_bytes: u64::from(record.used_bytes),
            is_damaged: record.damaged,
        }
    }

    /// Returns the containers that are closed now, with all their chunks counted. A container that is still written
    /// will be sealed sooner or later; one that a crash left open is closed for good.
    fn closed(&self, kind: ContainerKind) -> Result<Closed> {
        let mut closed = Vec::new();
        self.core.stores.of(kind).for_each_closed(&mut |record| closed.push(record.id));
        closed.sort_unstable();
        // The list comes first: a container is closed once its row is durable, but its chunks are counted later. Until
        // then it would seem dead.
        self.core.committer.settle()?;
        Ok(Closed(closed))
    }

    /// Adds the live and the garbage bytes of the kinds that a run did not reach before it ended.
    pub(super) fn complete_totals(&mut self) {
        for kind in [ContainerKind::Data, ContainerKind::Recipe].into_iter().skip(self.kinds_planned) {
            let mut classes = Classes::default();
            self.core.stores.of(kind).for_each_closed(&mut |record| classes.add(&self.candidate(kind, record)));
            let (live_bytes, garbage_bytes) = classes.total();
            self.report.live_bytes += live_bytes;
            self.report.garbage_left_bytes += garbage_bytes;
        }
        // A run that ended early has not moved all that it had chosen.
        self.report.arranged_bytes = self.report.arranged_bytes.min(self.report.moved_bytes);
    }

    /// Visits the containers of `closed` that still exist.
    pub(super) fn for_each_candidate(&self, kind: ContainerKind, closed: &Closed, visit: &mut dyn FnMut(Candidate)) {
        self.core.stores.of(kind).for_each_closed(&mut |record| {
            if closed.has(record.id) {
                visit(self.candidate(kind, record));
            }
        });
    }

    /// Empties and frees containers that are wholly dead already. This costs little, so even a short run gives space
    /// back.
    pub(super) fn empty_dead(&mut self, kind: ContainerKind) -> Result<Option<Stopped>> {
        let closed = self.closed(kind)?;
        let mut dead = Window::new(WINDOW_CONTAINERS);
        self.for_each_candidate(kind, &closed, &mut |candidate| {
            if candidate.live_bytes == 0 && !candidate.is_damaged {
                dead.add(candidate);
            }
        });
        let dead = dead.into_sorted();
        let stopped = self.empty_dead_of(kind, &dead)?;
        if stopped.is_none() {
            self.free_emptied(true)?;
        }
        let freed = dead.iter().filter(|victim| !self.kept.contains(&victim.id));
        self.report.expected_bytes += freed.map(|victim| victim.used_bytes).sum::<u64>();
        Ok(stopped)
    }

    fn empty_dead_of(&mut self, kind: ContainerKind, dead: &[Candidate]) -> Result<Option<Stopped>> {
        for batch in dead.chunks(DEAD_CONTAINERS) {
            if let Some(stopped) = self.between_steps()? {
                return Ok(Some(stopped));
            }
            self.empty_batch(kind, batch, None)?;
        }
        Ok(None)
    }

    /// Empties the containers that the policy chooses. Containers closed later are left to the next run.
    pub(super) fn empty_containers(&mut self, kind: ContainerKind) -> Result<Option<Stopped>> {
        let closed = self.closed(kind)?;
        if kind == ContainerKind::Data {
            self.last_container = self.last_container.max(closed.last());
        }
        let mut besides = self.scattered(kind, &|run, visit| run.for_each_candidate(kind, &closed, visit));
        if kind == ContainerKind::Recipe {
            besides.extend(self.recipes_with_stale_hints()?);
        }
        let (mut classes, mut kept_bytes) = (Classes::default(), 0);
        self.for_each_candidate(kind, &closed, &mut |candidate| {
            if self.kept.contains(&candidate.id) {
                kept_bytes += candidate.garbage_bytes();
            } else if besides.contains(&candidate.id) {
                classes.add_taken(&candidate);
            } else {
                classes.add(&candidate);
            }
        });
        let mut choice = classes.choose(self.options);
        let planned = classes.taken(&choice);
        let (live_bytes, garbage_bytes) = classes.total();
        let garbage_bytes = garbage_bytes + kept_bytes;
        if self.report.spared_open {
            let all_bytes: u64 = self.core.stores.of(kind).sums().chunk_bytes;
            self.report.open_bytes += all_bytes.saturating_sub(live_bytes + garbage_bytes);
        }
        self.report.live_bytes += live_bytes;
        self.kinds_planned += 1;
        // Each emptied container subtracts its part.
        self.report.garbage_left_bytes += garbage_bytes;
        self.report.expected_bytes += planned.used_bytes - planned.kept_bytes.min(planned.used_bytes);
        self.progress.start(
            if kind == ContainerKind::Recipe { "emptying recipe containers, MiB" } else { "emptying containers, MiB" },
            planned.used_bytes.div_ceil(1 << 20),
        );
        let (mut rest, mut stopped) = (closed.0.as_slice(), None);
        while !rest.is_empty() && stopped.is_none() {
            let window = self.window(kind, &mut rest, (&mut choice, &besides));
            stopped = self.empty_window(kind, window)?;
        }
        self.progress.finish();
        Ok(stopped)
    }

    /// Returns the next victims of `rest`, chosen ones and those besides, in order of id, and takes what was looked at off `rest`.
    fn window(
        &self,
        kind: ContainerKind,
        rest: &mut &[ContainerId],
        (choice, besides): (&mut Choice, &HashSet<ContainerId>),
    ) -> Vec<Candidate> {
        let mut victims = Vec::new();
        while let Some((id, others)) = rest.split_first()
            && victims.len() < WINDOW_CONTAINERS
        {
            *rest = others;
            if self.kept.contains(id) {
                continue;
            }
            // It may be gone since.
            let record = self.core.stores.of(kind).closed_record(*id);
            let candidate = record.map(|record| self.candidate(kind, &record));
            victims.extend(candidate.filter(|candidate| besides.contains(id) || choice.takes(candidate)));
        }
        victims
    }

    fn empty_window(&mut self, kind: ContainerKind, window: Vec<Candidate>) -> Result<Option<Stopped>> {
        let (dead, mut living): (Vec<_>, Vec<_>) =
            window.into_iter().partition(|victim| victim.live_bytes == 0 && !victim.is_damaged);
        if let Some(stopped) = self.empty_dead_of(kind, &dead)? {
            return Ok(Some(stopped));
        }
        // Dead containers cost little and make room for the others. An earlier run may have emptied them and been cut
        // off: if this waited, every run could be cut off before it.
        self.free_emptied(true)?;
        if self.core.space.is_tight() {
            // Each container must give back more than its copy takes; otherwise the room is used up and nothing is
            // freed.
            living.sort_by_key(|victim| (copy_bytes(victim), victim.id));
        }
        let mut rest = living.as_slice();
        while !rest.is_empty() {
            let mut left = self.memory.group_chunks;
            let fits = |victim: &&Candidate| {
                let fits = left > 0;
                // All chunks of its table are looked up.
                left = left.saturating_sub(victim.chunks.max(1));
                fits
            };
            let (group, others) = rest.split_at(rest.iter().take_while(fits).count());
            if let Some(stopped) = self.empty_group(kind, group)? {
                return Ok(Some(stopped));
            }
            rest = others;
        }
        Ok(None)
    }

    /// Empties a group in the order in which the newest recipes use it.
    fn empty_group(&mut self, kind: ContainerKind, group: &[Candidate]) -> Result<Option<Stopped>> {
        if let Some(stopped) = self.between_steps()? {
            return Ok(Some(stopped));
        }
        let Some(order) = self.order(kind, group)? else { return Ok(self.pace.stopped()) };
        let mut victims = group.to_vec();
        if !self.core.space.is_tight() {
            victims.sort_by_key(|victim| (order.place_of_container(victim.id), victim.id));
        }
        while !victims.is_empty() {
            if let Some(stopped) = self.between_steps()? {
                return Ok(Some(stopped));
            }
            let mut count = batch_len(&victims, self.room(kind)?);
            if count == 0 {
                // Freeing the emptied containers makes room.
                self.free_emptied(true)?;
                count = fit(&mut victims, self.room(kind)?);
            }
            if count == 0 {
                // The others have more live bytes: they would use up the room without freeing anything.
                tracing::warn!(
                    containers = victims.len(),
                    "no room to empty these containers: delete more files, or free space on the disk"
                );
                // Those without garbage would have given nothing back.
                let with_garbage = victims.iter().filter(|victim| victim.garbage_bytes() > 0).count();
                self.report.containers_without_space += with_garbage as u64;
                break;
            }
            let others = victims.split_off(count);
            match self.empty_batch(kind, &victims, Some(&order)) {
                // The copies compressed less than before.
                Err(error) if error.is_no_space() => {
                    tracing::warn!(%error, containers = victims.len(), "no room to empty these containers");
                    self.report.containers_without_space += victims.len() as u64;
                    self.free_emptied(true)?;
                }
                outcome => outcome?,
            }
            victims = others;
        }
        Ok(None)
    }

    fn room(&self, kind: ContainerKind) -> Result<Room> {
        Ok(Room {
            disk_bytes: self.core.space.step_bytes(kind)?,
            memory_bytes: self.memory.batch_bytes,
            io_bytes: self.pace.io_left_bytes(),
        })
    }

    /// Finds the live chunks of a group and the order in which the newest recipes use them. `None` if the run should
    /// end.
    fn order(&self, kind: ContainerKind, group: &[Candidate]) -> Result<Option<GroupOrder>> {
        let (mut fingerprints, mut homes) = (Vec::new(), Vec::new());
        let mut ranges = Vec::with_capacity(group.len());
        for victim in group {
            let first = fingerprints.len();
            // An unreadable table is handled by its batch.
            if let Ok(Some(table)) = self.core.stores.of(kind).table(victim.id) {
                fingerprints.extend(table.entries.iter().map(|entry| entry.fingerprint));
            }
            ranges.push((victim.id, first..fingerprints.len()));
            homes.resize(fingerprints.len(), victim.id);
            if self.pace.between_steps().is_some() {
                return Ok(None);
            }
        }
        let index = self.core.indexes.of(kind);
        let hint = |item: usize| homes.get(item).copied().unwrap_or(ContainerId::NONE);
        let mut sealed = index.sealed_cells_in(&fingerprints, &hint)?;
        let cells = index.cells_of(&fingerprints, &mut sealed)?;
        let mut alive = Vec::with_capacity(fingerprints.len());
        for (container, range) in &ranges {
            for item in range.clone() {
                if let (Some(fingerprint), Some(Some(cell))) = (fingerprints.get(item), cells.get(item))
                    && cell.location.container() == *container
                    && (kind == ContainerKind::Recipe || cell.references > 0)
                {
                    alive.push((*container, *fingerprint));
                }
            }
        }
        let moved_bytes: u64 = group.iter().map(|victim| victim.live_bytes).sum();
        let nodes_max = (moved_bytes / MOVED_BYTES_PER_ORDER_NODE).max(ORDER_NODES_MIN);
        let order = RestoreOrder::find(self, alive.iter().map(|(_, fingerprint)| *fingerprint), nodes_max);
        // A container is placed at the mean rank of its chunks.
        let mut sums: HashMap<ContainerId, (u64, u64)> = HashMap::with_capacity(group.len());
        for (container, fingerprint) in &alive {
            let sum = sums.entry(*container).or_default();
            *sum = (sum.0 + u64::from(order.place_of(fingerprint).rank()), sum.1 + 1);
        }
        let containers = sums.into_iter().map(|(container, (sum, count))| (container, sum / count.max(1))).collect();
        Ok(Some(GroupOrder { order, containers }))
    }

    /// Empties some containers together; a later checkpoint frees them.
    fn empty_batch(&mut self, kind: ContainerKind, victims: &[Candidate], order: Option<&GroupOrder>) -> Result<()> {
        Batch::new(self, kind, victims, order.map(|order| &order.order)).empty()?;
        let used_bytes: u64 = victims.iter().map(|victim| victim.used_bytes).sum();
        self.advance(used_bytes);
        self.free_emptied(false)?;
        self.note(false);
        Ok(())
    }
}

pub(super) struct GroupOrder {
    order: RestoreOrder,
    containers: HashMap<ContainerId, u64>,
}

impl GroupOrder {
    fn place_of_container(&self, container: ContainerId) -> u64 {
        self.containers.get(&container).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn victim(live_bytes: u64) -> Candidate {
        let chunk_bytes = 8 << 20;
        Candidate {
            id: ContainerId(1),
            chunk_bytes,
            chunks: chunk_bytes >> 13,
            live_bytes,
            live_chunks: live_bytes >> 13,
            used_bytes: 4 << 20,
            is_damaged: false,
        }
    }

    /// The first victim of a group ended it, even if the others needed little.
    #[test]
    fn regression_one_that_does_not_fit_keeps_no_other_from_being_emptied() {
        let mut victims = vec![victim(6 << 20), victim(64 << 10), victim(128 << 10)];
        let room = Room { disk_bytes: 1 << 20, memory_bytes: u64::MAX, io_bytes: u64::MAX };
        assert_eq!(batch_len(&victims, room), 0);
        assert_eq!(fit(&mut victims, room), 2);
        assert!(victims.is_sorted_by_key(|victim| victim.live_bytes));
        assert_eq!(fit(&mut [victim(6 << 20)], room), 0);
    }

    /// Content that was not compressed takes its own size, an eighth for frames at most, and a region's padding.
    #[test]
    fn a_copy_is_not_expected_to_take_more_than_its_content() {
        let victim = Candidate { used_bytes: 8 << 20, ..victim(1 << 20) };
        assert_eq!(copy_bytes(&victim), (1 << 20) + (128 << 10) + (64 << 10));
    }

    #[test]
    fn as_many_are_emptied_as_fit() {
        let victims: Vec<_> = (0..100).map(|_| victim(1 << 20)).collect();
        const MANY: u64 = u64::MAX;
        let batch_len = |victims: &[Candidate], disk_bytes, memory_bytes| {
            batch_len(victims, Room { disk_bytes, memory_bytes, io_bytes: MANY })
        };
        let cost = copy_bytes(&victims[0]);
        assert_eq!(cost, (768 << 10) + (64 << 10));
        assert_eq!(batch_len(&victims, cost - 1, u64::MAX), 0);
        assert_eq!(batch_len(&victims, cost * 3 + 1, u64::MAX), 3);
        assert_eq!(batch_len(&victims, u64::MAX, u64::MAX), BATCH_CONTAINERS);
        assert_eq!(batch_len(&victims, u64::MAX, 5 << 20), 6, "the last one may exceed it");
        assert_eq!(batch_len(&victims, u64::MAX, 0), 1, "one always fits into memory");
        assert_eq!(batch_len(&[victim(0), victim(0)], 0, 0), 2, "what is dead needs no room");
        assert_eq!(batch_len(&[], 10, 10), 0);
        let within = |io_bytes| super::batch_len(&victims, Room { disk_bytes: MANY, memory_bytes: MANY, io_bytes });
        let each = victims[0].used_bytes + victims[0].kept_bytes();
        assert_eq!((within(0), within(each * 2), within(each * 2 + 1)), (1, 3, 3), "the last one may exceed it");
        assert_eq!(within(each * 4), 5);
    }
}
