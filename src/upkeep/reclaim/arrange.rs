//! Arranging: content of the newest versions is moved together, in their order, and apart from content that only older
//! versions use.
//!
//! MFDedup (section 4) moves the whole newest version at each backup. Most of its effect comes from emptying only those
//! containers of which the newest versions use little (HAR's utilization, ATC 14). So arranging is reclaiming with
//! another measure of emptiness:
//!
//! 1. The trees of the newest versions are walked; no chunk is read. For each container the bytes that they use are
//!    summed up, and the runs in which they use them, by the hints of recipes, else by the index. A chunk that occurs often counts often: a
//!    wrong sum costs order, never a byte.
//! 2. Victims are containers in which a restore would read more than 15% (100 - [`USED_PERCENT`]) of the bytes without using them: garbage,
//!    or content of older versions. Those come first where a moved byte spares the most reading ([`moved_per_1000_spared`]), as far as the
//!    [`Credit`] goes. All live bytes of a victim are charged.
//! 3. The victims' batches have two streams ([`super::batch`]): *active* for what the newest versions use, in their order,
//!    and *archive* for the rest, ordered by the last version that uses it. So a removed version frees whole containers.
//!
//! Cost: one read of the recipe nodes of the newest versions. Memory: 40 bytes for each container that they use, 32 for
//! each of which they use little, 20 for each victim, and 64 Ki references of each kind that are looked up together.

use std::collections::{HashMap, HashSet};
use std::ops::ControlFlow;
use std::time::Duration;

use dedupfs_base::Result;
use dedupfs_store::recipe::Reference;
use dedupfs_store::{ContainerId, ContainerKind, Fingerprint};
use dedupfs_sync::clock::Instant;

use super::credit::Credit;
use super::newest::{Walk, newest_of};
use super::options::Arranging;
use super::victims::Candidate;
use super::{Candidates, Run};
use crate::engine::Core;
use crate::versions::list::list;

/// A container stays if a restore would read at most the rest of it in vain, in percent.
const USED_PERCENT: u64 = 85;
/// Bytes that may be moved for each byte that was stored for new versions.
const MOVED_PER_NEW: u64 = 3;
/// One part in so many of the newest versions may be moved at a time.
const MOVED_DIVISOR: u64 = 4;
/// The walk may take one part in so many of the time of a run.
const TIME_DIVISOR: u64 = 4;
/// Batches for which there must be room, so that arranging competes with no writer.
const ROOM_BATCHES: u64 = 4;
/// Recipes may move one byte for so many of content.
const RECIPE_DIVISOR: u64 = 8;
/// References looked up in the index at a time.
const LOOKED_UP: usize = 64 * 1024;

/// What the newest versions use.
#[derive(Default)]
pub(super) struct Usage {
    /// The trees of the newest versions.
    pub(super) newest: Vec<Reference>,
    /// Nodes that they have.
    pub(super) nodes: u64,
    /// Their use of each data container, in bytes of chunks.
    data: HashMap<ContainerId, Used>,
    /// Their use of each recipe container, in nodes.
    recipes: HashMap<ContainerId, Used>,
    /// The containers of the chunk and of the node that were added last.
    last: [ContainerId; 2],
    /// Bytes of data containers that may be moved for them.
    budget_bytes: u64,
}

/// The use that the newest versions make of a container. More than fits counts as that much.
#[derive(Clone, Copy, Default)]
struct Used {
    /// Bytes of chunks, or a number of nodes.
    amount: u32,
    /// Runs of chunks, or of nodes, between which they use other containers.
    runs: u32,
}

/// The credit before this run, and as it is now.
#[derive(Clone, Copy)]
pub(super) struct Crediting {
    before: Credit,
    credit: Credit,
    /// Whether new versions were credited: what is stored from the end of this run on is new for the next one.
    marks: bool,
}

impl Usage {
    fn of(&self, kind: ContainerKind, container: ContainerId) -> Used {
        let used = if kind == ContainerKind::Recipe { &self.recipes } else { &self.data };
        used.get(&container).copied().unwrap_or_default()
    }

    /// Adds a chunk or a node in the order of a restore.
    fn add(&mut self, kind: ContainerKind, container: ContainerId, amount: u64) {
        let Self { data, recipes, last: [of_data, of_recipes], .. } = self;
        let (used, last) = if kind == ContainerKind::Recipe { (recipes, of_recipes) } else { (data, of_data) };
        let used = used.entry(container).or_default();
        used.amount = used.amount.saturating_add(u32::try_from(amount).unwrap_or(u32::MAX));
        used.runs = used.runs.saturating_add(u32::from(std::mem::replace(last, container) != container));
    }
}

impl Run<'_> {
    /// Finds the newest versions. If there are versions that were not credited yet, sums up what the newest ones use, and
    /// sets the budget.
    pub(super) fn usage_of_newest(&mut self) -> Result<Usage> {
        let is_off = match self.options.arranging {
            Arranging::Off => true,
            // Such a run copies nothing.
            Arranging::Budget => self.options.threshold_percent == 0,
            Arranging::Alone | Arranging::All => false,
        };
        if is_off || !self.has_room_to_arrange()? {
            return Ok(Usage::default());
        }
        let versions = list(&self.core.namespace.committed()?, None)?;
        let mut usage = Usage { newest: newest_of(&self.core.namespace, &versions)?, ..Usage::default() };
        let Some(until_ino) = versions.iter().map(|version| version.ino).max() else { return Ok(usage) };
        let before = self.read_credit();
        let mut credit = before;
        let is_new = until_ino > credit.until_ino;
        let is_asked = is_new || self.options.arranging == Arranging::All;
        let is_known = is_asked && self.sum_up(&mut usage)?;
        if is_asked && !is_known && self.pace.stopped().is_some() {
            return Ok(usage);
        }
        if is_new {
            // Also if they cannot be walked: the next run must not try again.
            credit.until_ino = until_ino;
        }
        if is_new && is_known {
            let sum = |sum: u64, used: &Used| sum.saturating_add(u64::from(used.amount));
            let used_bytes = usage.data.values().fold(0, sum);
            let young = usage.data.iter().filter(|(container, _)| **container > credit.until_container);
            let new_bytes = young.map(|(_, used)| used).fold(0, sum).saturating_sub(credit.copied_bytes);
            let credited = credit.bytes.saturating_add(new_bytes.saturating_mul(MOVED_PER_NEW));
            credit.bytes = credited.min(used_bytes / MOVED_DIVISOR);
        }
        usage.budget_bytes = match self.options.arranging {
            Arranging::All => u64::MAX,
            _ if is_known => credit.bytes,
            _ => 0,
        };
        self.credit = Some(Crediting { before, credit, marks: is_new && is_known });
        Ok(usage)
    }

    /// Whether there is room for [`ROOM_BATCHES`] batches, and no disk is nearly full: order is not worth the last room.
    pub(super) fn has_room_to_arrange(&self) -> Result<bool> {
        let room_bytes = self.core.space.step_bytes(ContainerKind::Data)?;
        Ok(!self.core.space.is_tight() && room_bytes > self.memory.batch_bytes.saturating_mul(ROOM_BATCHES))
    }

    fn read_credit(&self) -> Credit {
        read_credit(self.core)
    }

    /// Walks the newest versions, and sums up what they use. Returns `false` if they have more nodes than may be walked, if
    /// the run should end, or if the walk takes too much of its time: then nothing is summed up, since content behind the
    /// end of the walk would seem unused.
    fn sum_up(&self, usage: &mut Usage) -> Result<bool> {
        let newest = std::mem::take(&mut usage.newest);
        let is_stale = self.stale_hints();
        let mut unplaced = HashMap::<ContainerKind, Vec<(Fingerprint, u64)>>::new();
        let mut outcome = Ok(());
        let (began, time_max) = (Instant::now(), Duration::from_millis(self.options.max_time_ms / TIME_DIVISOR));
        let mut walk = Walk::new(self.core.dedup.nodes(), self.pace, self.memory.walked_nodes);
        let walked = walk.versions(&newest, &mut |reference, _| {
            let (kind, child) = (reference.kind(), reference.child());
            usage.nodes += u64::from(kind == ContainerKind::Recipe);
            let amount = if kind == ContainerKind::Recipe { 1 } else { child.len_bytes };
            if is_stale(reference) {
                let unplaced = unplaced.entry(kind).or_default();
                unplaced.push((child.fingerprint, amount));
                if unplaced.len() >= LOOKED_UP {
                    outcome = self.place(kind, std::mem::take(unplaced), usage);
                }
            } else {
                usage.add(kind, child.hint, amount);
            }
            let is_late = !time_max.is_zero() && usage.nodes.is_multiple_of(64) && began.elapsed() > time_max;
            if outcome.is_err() || is_late { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        outcome?;
        unplaced.into_iter().try_for_each(|(kind, amounts)| self.place(kind, amounts, usage))?;
        usage.newest = newest;
        if walked.is_break() {
            tracing::info!(
                nodes = usage.nodes,
                "the newest versions are not arranged: time, or --memory, is too short"
            );
            (usage.data, usage.recipes) = Default::default();
        }
        Ok(walked.is_continue())
    }

    /// Adds amounts to the containers in which the index places them.
    fn place(&self, kind: ContainerKind, amounts: Vec<(Fingerprint, u64)>, usage: &mut Usage) -> Result<()> {
        let (fingerprints, amounts): (Vec<_>, Vec<_>) = amounts.into_iter().unzip();
        let mut amounts = fingerprints.iter().zip(amounts);
        for (fingerprint, container) in self.containers_of(kind, &fingerprints)? {
            // Those that the index does not know are left out.
            let amount = amounts.find(|(own, _)| **own == fingerprint).map_or(0, |(_, amount)| amount);
            usage.add(kind, container, amount);
        }
        Ok(())
    }

    /// Returns those of the candidates in which restores of the newest versions read much in vain, within the budget, and charges the
    /// credit.
    pub(super) fn scattered(&mut self, kind: ContainerKind, candidates: &Candidates<'_>) -> HashSet<ContainerId> {
        let (mut scattered, region_bytes) = (Vec::new(), self.core.stores.of(kind).region_raw_bytes());
        candidates(self, &mut |candidate| {
            let used = self.usage.of(kind, candidate.id);
            if let Some(cost) = moved_per_1000_spared(kind, &candidate, used, region_bytes)
                && !candidate.is_damaged
                && !self.kept.contains(&candidate.id)
            {
                scattered.push((cost, candidate.id, candidate.live_bytes));
            }
        });
        scattered.sort_unstable();
        let mut left_bytes = match kind {
            ContainerKind::Recipe if self.usage.budget_bytes < u64::MAX => self.usage.budget_bytes / RECIPE_DIVISOR,
            _ => self.usage.budget_bytes,
        };
        let mut chosen = HashSet::new();
        for (_, container, live_bytes) in scattered {
            if live_bytes > left_bytes {
                break;
            }
            left_bytes -= live_bytes;
            self.report.arranged_bytes += live_bytes;
            if let Some(crediting) = self.credit.as_mut().filter(|_| kind == ContainerKind::Data) {
                crediting.credit.bytes = crediting.credit.bytes.saturating_sub(live_bytes);
            }
            chosen.insert(container);
        }
        chosen
    }

    /// Keeps what is left of the credit. A failure is logged: it costs some more moving.
    pub(super) fn keep_credit(&self) {
        let Some(Crediting { before, mut credit, marks }) = self.credit else { return };
        if marks {
            (credit.until_container, credit.copied_bytes) = (self.last_container, 0);
        } else {
            credit.copied_bytes = credit.copied_bytes.saturating_add(self.copied_active_bytes);
        }
        if credit != before
            && let Err(error) = credit.write(&*self.core.meta_device, &self.core.pool)
        {
            tracing::warn!(%error, "cannot write the credit of arranging");
        }
    }
}

fn read_credit(core: &Core) -> Credit {
    Credit::read(&*core.meta_device, &core.pool).unwrap_or_else(|error| {
        tracing::warn!(%error, "cannot read the credit of arranging; the versions of the pool are credited once more");
        Credit::default()
    })
}

/// Returns how many bytes (of recipe containers: nodes) must be moved for each thousand that a restore of the newest versions then need not
/// read; `None` if it would read too little in vain. The estimate takes one region more than what is used for each run, and the whole
/// container at most. So a container of older content that lends one or two chunks stays, and one that is used in a row.
fn moved_per_1000_spared(kind: ContainerKind, candidate: &Candidate, used: Used, region_bytes: u32) -> Option<u64> {
    let region_bytes = u128::from(region_bytes);
    let (live, all, region) = match kind {
        ContainerKind::Data => (candidate.live_bytes, u128::from(candidate.chunk_bytes), region_bytes),
        ContainerKind::Recipe => {
            let (nodes, bytes) = (u128::from(candidate.chunks), u128::from(candidate.chunk_bytes));
            (candidate.live_chunks, nodes, (region_bytes * nodes).checked_div(bytes).unwrap_or(0).max(1))
        }
    };
    let amount = u128::from(u64::from(used.amount).min(live));
    let read = all.min(amount + u128::from(used.runs) * region);
    let spared = read.saturating_sub(amount);
    let is_scattered = spared * 100 > all * u128::from(100 - USED_PERCENT);
    is_scattered.then(|| u64::try_from(u128::from(live) * 1000 / spared).unwrap_or(u64::MAX))
}

/// Whether there are versions for which no run has arranged content yet.
///
/// # Errors
/// The namespace's.
pub(crate) fn has_new_versions(core: &Core) -> Result<bool> {
    let versions = list(&core.namespace.committed()?, None)?;
    let newest = versions.iter().map(|version| version.ino).max();
    Ok(newest.is_some_and(|newest| newest > read_credit(core).until_ino))
}

#[cfg(test)]
mod tests {
    use super::*;

    const REGION_BYTES: u32 = 256 << 10;

    /// A container of 100 chunks of 40,000 bytes. So many percent of them are live, and so many are used, in so many runs.
    fn cost(kind: ContainerKind, live_percent: u64, used_percent: u64, runs: u32) -> Option<u64> {
        let (chunks, chunk_bytes) = (100, 100 * 40_000);
        let candidate = Candidate {
            id: ContainerId::NONE,
            chunk_bytes,
            chunks,
            live_bytes: chunk_bytes / 100 * live_percent,
            live_chunks: chunks / 100 * live_percent,
            used_bytes: chunk_bytes,
            is_damaged: false,
        };
        let all = if kind == ContainerKind::Data { chunk_bytes } else { chunks };
        moved_per_1000_spared(kind, &candidate, Used { amount: (all / 100 * used_percent) as u32, runs }, REGION_BYTES)
    }

    #[test]
    fn containers_come_first_where_a_moved_byte_spares_the_most_reading() {
        for kind in [ContainerKind::Data, ContainerKind::Recipe] {
            let cost = |live, used| cost(kind, live, used, 20);
            assert_eq!((cost(100, 100), cost(100, 85), cost(90, 90)), (None, None, None), "used well");
            assert_eq!(cost(50, 50), Some(1000));
            assert_eq!(cost(84, 84), Some(5250));
            assert_eq!(cost(100, 60), Some(2500));
            assert!(cost(60, 60) < cost(100, 60), "garbage is left behind");
        }
    }

    #[test]
    fn regression_a_container_that_lends_one_chunk_or_a_row_of_chunks_stays() {
        for kind in [ContainerKind::Data, ContainerKind::Recipe] {
            let cost = |used, runs| cost(kind, 100, used, runs);
            assert_eq!((cost(0, 0), cost(1, 1), cost(1, 2), cost(50, 1)), (None, None, None, None));
            assert!(cost(4, 4).is_some_and(|cost| cost > 3500), "four regions are read for four chunks");
        }
    }
}
