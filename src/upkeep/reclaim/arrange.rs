//! Arranging: content of the newest versions is moved together, in their order, and apart from content that only older
//! versions use.
//!
//! MFDedup (section 4) moves the whole newest version at each backup. Most of its effect comes from emptying only those
//! containers of which the newest versions use little (HAR's utilization, ATC 14). So arranging is reclaiming with
//! another measure of emptiness:
//!
//! 1. The trees of the newest versions are walked; no chunk is read. For each container the bytes that they use are
//!    summed up, by the hints of recipes, else by the index. A chunk that occurs often counts often: a wrong sum costs
//!    order, never a byte.
//! 2. Containers of which they use something, and less than [`USED_PERCENT`] of all bytes, are victims: a restore reads the others along,
//!    garbage, too. First come those where a moved byte leaves the most behind, as far as the [`Credit`] goes. All that lives there is
//!    charged.
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

use super::Run;
use super::containers::Closed;
use super::credit::Credit;
use super::newest::{Walk, newest_of};
use super::options::Arranging;
use crate::engine::Core;
use crate::versions::list::list;

/// A container stays if the newest versions use at least this share of its content, in percent.
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
    /// Bytes of chunks that they use in each data container.
    data: HashMap<ContainerId, u64>,
    /// Number of nodes that they use in each recipe container.
    recipes: HashMap<ContainerId, u64>,
    /// Bytes of data containers that may be moved for them.
    budget_bytes: u64,
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
    fn of(&mut self, kind: ContainerKind) -> &mut HashMap<ContainerId, u64> {
        match kind {
            ContainerKind::Data => &mut self.data,
            ContainerKind::Recipe => &mut self.recipes,
        }
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
            let sum = |sum: u64, bytes: &u64| sum.saturating_add(*bytes);
            let used_bytes = usage.data.values().fold(0, sum);
            let young = usage.data.iter().filter(|(container, _)| **container > credit.until_container);
            let new_bytes = young.map(|(_, bytes)| bytes).fold(0, sum).saturating_sub(credit.copied_bytes);
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
        let mut unplaced = HashMap::<ContainerKind, HashMap<Fingerprint, u64>>::new();
        let mut outcome = Ok(());
        let (began, time_max) = (Instant::now(), Duration::from_millis(self.options.max_time_ms / TIME_DIVISOR));
        let mut walk = Walk::new(self.core.dedup.nodes(), self.pace, self.memory.walked_nodes);
        let walked = walk.versions(&newest, &mut |reference, _| {
            let (kind, child) = (reference.kind(), reference.child());
            usage.nodes += u64::from(kind == ContainerKind::Recipe);
            let amount = if kind == ContainerKind::Recipe { 1 } else { child.len_bytes };
            if is_stale(reference) {
                let unplaced = unplaced.entry(kind).or_default();
                add(unplaced, child.fingerprint, amount);
                if unplaced.len() >= LOOKED_UP {
                    outcome = self.place(kind, std::mem::take(unplaced), usage);
                }
            } else {
                add(usage.of(kind), child.hint, amount);
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
    fn place(&self, kind: ContainerKind, amounts: HashMap<Fingerprint, u64>, usage: &mut Usage) -> Result<()> {
        let fingerprints: Vec<Fingerprint> = amounts.keys().copied().collect();
        for (fingerprint, container) in self.containers_of(kind, &fingerprints)? {
            add(usage.of(kind), container, amounts.get(&fingerprint).copied().unwrap_or(0));
        }
        Ok(())
    }

    /// Returns the containers of which the newest versions use little, within the budget, and charges the credit.
    pub(super) fn scattered(&mut self, kind: ContainerKind, closed: &Closed) -> HashSet<ContainerId> {
        let mut usage = std::mem::take(&mut self.usage);
        let mut scattered = Vec::new();
        self.for_each_candidate(kind, closed, &mut |candidate| {
            let (live, all) = match kind {
                ContainerKind::Recipe => (candidate.live_chunks, candidate.chunks),
                ContainerKind::Data => (candidate.live_bytes, candidate.chunk_bytes),
            };
            let used = usage.of(kind).get(&candidate.id).copied().unwrap_or(0).min(live);
            let is_scattered = used > 0 && used.saturating_mul(100) < all.saturating_mul(USED_PERCENT);
            if is_scattered && !candidate.is_damaged && !self.kept.contains(&candidate.id) {
                // Bytes moved for a thousand that a restore reads no more.
                scattered.push((live.saturating_mul(1000) / (all - used), candidate.id, candidate.live_bytes));
            }
        });
        scattered.sort_unstable();
        let mut left_bytes = match kind {
            ContainerKind::Recipe if usage.budget_bytes < u64::MAX => usage.budget_bytes / RECIPE_DIVISOR,
            _ => usage.budget_bytes,
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
        self.usage = usage;
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

/// Whether there are versions for which no run has arranged content yet.
///
/// # Errors
/// The namespace's.
pub(crate) fn has_new_versions(core: &Core) -> Result<bool> {
    let versions = list(&core.namespace.committed()?, None)?;
    let newest = versions.iter().map(|version| version.ino).max();
    Ok(newest.is_some_and(|newest| newest > read_credit(core).until_ino))
}

fn add<K: Eq + std::hash::Hash>(amounts: &mut HashMap<K, u64>, to: K, amount: u64) {
    let sum = amounts.entry(to).or_default();
    *sum = sum.saturating_add(amount);
}
