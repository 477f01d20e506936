//! Arranging: content of the newest versions is moved together, in their order, and apart from content that only older
//! versions use.
//!
//! MFDedup (section 4) moves the whole newest version at each backup. Two thirds of its effect for a sixth of its
//! copying comes from emptying only those containers of which the newest versions use little (HAR's utilization, ATC
//! 14). So arranging is reclaiming with another measure of emptiness:
//!
//! 1. The trees of the newest versions are walked; no chunk is read. For each container the bytes that they use are
//!    summed up, by the hints of recipes, else by the index. A chunk that occurs often counts often: a wrong sum costs
//!    order, never a byte.
//! 2. Containers of which they use something, and less than [`USED_PERCENT`] of what lives there, are victims: those of
//!    which they use the smallest share first, as far as the [`Credit`] goes.
//! 3. The victims' batches have two streams ([`super::batch`]): *active* for what the newest versions use, in their order,
//!    and *archive* for the rest, ordered by the last version that uses it. So a removed version frees whole containers.
//!
//! Cost: one read of the recipe nodes of the newest versions. Memory: 40 bytes for each container that they use, and 24
//! for each victim.

use std::collections::{HashMap, HashSet};
use std::ops::ControlFlow;

use dedupfs_base::Result;
use dedupfs_store::{ContainerId, ContainerKind, Fingerprint};

use super::Run;
use super::containers::Closed;
use super::credit::Credit;
use super::newest::{Newest, Walk, newest_of};
use super::options::Arranging;
use crate::versions::list::list;

/// Share of the live content of a container, in percent, that the newest versions use at least of what stays.
const USED_PERCENT: u64 = 85;
/// Bytes that may be moved for each byte that was stored for new versions.
const MOVED_PER_NEW: u64 = 3;
/// Part of the newest versions that may be moved at a time.
const PART_MOVED: u64 = 4;
/// References looked up in the index at a time.
const LOOKED_UP: usize = 64 * 1024;

/// What the newest versions use.
#[derive(Default)]
pub(super) struct Usage {
    /// The newest versions.
    pub(super) newest: Vec<Newest>,
    /// Nodes that they have.
    pub(super) nodes: u64,
    /// Bytes of chunks that they use in each data container.
    data: HashMap<ContainerId, u64>,
    /// Number of nodes that they use in each recipe container.
    recipes: HashMap<ContainerId, u64>,
    /// Bytes of data containers that may be moved for them.
    budget_bytes: u64,
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
    /// sets the budget. Order is not worth the last room.
    pub(super) fn usage_of_newest(&mut self) -> Result<Usage> {
        if self.options.arranging == Arranging::Off || self.core.space.is_tight() {
            return Ok(Usage::default());
        }
        let versions = list(&self.core.namespace.committed()?, None)?;
        let mut usage = Usage { newest: newest_of(&self.core.namespace, &versions)?, ..Usage::default() };
        let mut credit = self.read_credit();
        let until_ino = versions.iter().map(|version| version.ino).max().unwrap_or(0);
        let is_new = until_ino > credit.until_ino;
        if !is_new && self.options.arranging == Arranging::Budget {
            return Ok(usage);
        }
        self.sum_up(&mut usage)?;
        if is_new {
            let sum = |sum: u64, bytes: &u64| sum.saturating_add(*bytes);
            let used_bytes = usage.data.values().fold(0, sum);
            let new = usage.data.iter().filter(|(container, _)| **container > credit.until_container);
            let new_bytes = new.map(|(_, bytes)| bytes).fold(0, sum);
            let credited = credit.bytes.saturating_add(new_bytes.saturating_mul(MOVED_PER_NEW));
            credit = Credit { until_ino, bytes: credited.min(used_bytes / PART_MOVED), ..credit };
            self.credit = Some(credit);
        }
        usage.budget_bytes = if self.options.arranging == Arranging::All { u64::MAX } else { credit.bytes };
        Ok(usage)
    }

    fn read_credit(&self) -> Credit {
        Credit::read(&*self.core.meta_device, &self.core.pool).unwrap_or_else(|error| {
            tracing::warn!(%error, "cannot read the credit of arranging; the versions of the pool are credited once more");
            Credit::default()
        })
    }

    /// Walks the newest versions, and sums up what they use.
    fn sum_up(&self, usage: &mut Usage) -> Result<()> {
        let newest = std::mem::take(&mut usage.newest);
        let is_stale = self.stale_hints();
        let mut unplaced =
            HashMap::from([ContainerKind::Data, ContainerKind::Recipe].map(|kind| (kind, HashMap::new())));
        let mut outcome = Ok(());
        // A version with more nodes than may be walked is not arranged behind them.
        let _is_whole =
            Walk::new(self.core.dedup.nodes(), self.memory.group_chunks).versions(&newest, &mut |reference, _| {
                let (kind, child) = (reference.kind(), reference.child());
                usage.nodes += u64::from(kind == ContainerKind::Recipe);
                let amount = if kind == ContainerKind::Recipe { 1 } else { child.len_bytes };
                if is_stale(reference) {
                    let unplaced = unplaced.entry(kind).or_default();
                    *unplaced.entry(child.fingerprint).or_default() += amount;
                    if unplaced.len() >= LOOKED_UP {
                        outcome = self.place(kind, std::mem::take(unplaced), usage);
                    }
                } else {
                    *usage.of(kind).entry(child.hint).or_default() += amount;
                }
                let is_ended = outcome.is_err() || self.pace.stopped().is_some();
                if is_ended { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            });
        outcome?;
        usage.newest = newest;
        unplaced.into_iter().try_for_each(|(kind, amounts)| self.place(kind, amounts, usage))
    }

    /// Adds amounts to the containers in which the index places them.
    fn place(&self, kind: ContainerKind, amounts: HashMap<Fingerprint, u64>, usage: &mut Usage) -> Result<()> {
        let fingerprints: Vec<Fingerprint> = amounts.keys().copied().collect();
        for (fingerprint, container) in self.containers_of(kind, &fingerprints)? {
            *usage.of(kind).entry(container).or_default() += amounts.get(&fingerprint).copied().unwrap_or(0);
        }
        Ok(())
    }

    /// Returns the containers of which the newest versions use little, within the budget, which it charges.
    pub(super) fn scattered(&mut self, kind: ContainerKind, closed: &Closed) -> HashSet<ContainerId> {
        let mut usage = std::mem::take(&mut self.usage);
        let mut scattered = Vec::new();
        self.for_each_candidate(kind, closed, &mut |candidate| {
            let live = if kind == ContainerKind::Recipe { candidate.live_chunks } else { candidate.live_bytes };
            let used = usage.of(kind).get(&candidate.id).copied().unwrap_or(0).min(live);
            let is_scattered = used > 0 && used.saturating_mul(100) < live.saturating_mul(USED_PERCENT);
            if is_scattered && !candidate.is_damaged && !self.kept.contains(&candidate.id) {
                let used_bytes = u128::from(candidate.live_bytes) * u128::from(used) / u128::from(live);
                scattered.push((used * 1000 / live, candidate.id, used_bytes as u64));
            }
        });
        scattered.sort_unstable();
        let mut left_bytes = match kind {
            ContainerKind::Data => usage.budget_bytes,
            // Recipes are a small share of the content that they name.
            ContainerKind::Recipe if usage.budget_bytes > 0 => u64::MAX,
            ContainerKind::Recipe => 0,
        };
        let mut chosen = HashSet::new();
        for (_, container, used_bytes) in scattered {
            if used_bytes > left_bytes {
                break;
            }
            left_bytes -= used_bytes;
            self.report.arranged_bytes += used_bytes;
            if let Some(credit) = self.credit.as_mut().filter(|_| kind == ContainerKind::Data) {
                credit.bytes = credit.bytes.saturating_sub(used_bytes);
            }
            chosen.insert(container);
        }
        self.usage = usage;
        chosen
    }

    /// Keeps what is left of the credit. A failure is logged: it costs some more moving.
    pub(super) fn keep_credit(&self) {
        if let Some(credit) = self.credit.map(|credit| Credit { until_container: self.last_container, ..credit })
            && let Err(error) = credit.write(&*self.core.meta_device, &self.core.pool)
        {
            tracing::warn!(%error, "cannot write the credit of arranging");
        }
    }
}
