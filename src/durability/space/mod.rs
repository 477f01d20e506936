//! Admission to the room on both roots. Room is asked for before content is accepted, so a full disk is an ENOSPC at the write that
//! does not fit, and never a failed commit.
//!
//! 1. A request asks for its worst-case cost ([`cost`]), as if nothing were a duplicate or compressible. It keeps the [`Promise`] until
//!    its bytes are in a gauge.
//! 2. From then on a gauge counts the bytes (streams, dirty extents, open containers, generations of the namespace), until the device
//!    has them or they prove to be known. So at any moment *room = free on the disk - promised - owed - reserve*, reduced further by a
//!    configured limit.
//! 3. A reading of the room is valid for a moment. Each grant is subtracted from it, so it can only be too low.
//!
//! The **reserve** is for operations that must work on a full disk: deleting (a commit copies the namespace pages that it changes),
//! reclaiming (live chunks are copied before their containers are freed) and checkpoints of the indexes.
//!
//! Invariant: only [`Promise`]s move bytes into a gauge. The exceptions rest on the reserve: deleting, and re-chunking around a change
//! beyond its estimate.
//!
//! Lock order: `budget`, then the locks of the holdings. Call with no lock of a file held.

mod advice;
pub(crate) mod cost;
mod holdings;
mod optional;
mod watch;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dedupfs_store::device::{Device, Space};
use dedupfs_store::{ContainerKind, waiting};
use dedupfs_sync::Mutex;
use dedupfs_sync::canary::{Canary, is_planted};
use dedupfs_sync::clock::Instant;
use serde::{Deserialize, Serialize};

pub(crate) use cost::{ContentCost, Demand};
pub(crate) use holdings::PoolHoldings;
pub(crate) use optional::OptionalWrites;
pub use watch::Level;
use watch::Watch;

use crate::config::{DATA_RESERVE_BYTES, META_RESERVE_BYTES, SPACE_CHECK_INTERVAL};
use dedupfs_base::{EngineError, Result};

/// The sizes of a pool's holdings, for its [`SpaceGuard`].
pub(crate) trait Holdings: Send + Sync {
    /// Upper bound of the accepted bytes that the devices do not have yet.
    fn owed(&self) -> Demand;
    /// Bytes that a checkpoint of the indexes takes beside the current one.
    fn checkpoint_bytes(&self) -> u64;
    /// Least reserve: the bytes of the smallest step of reclaiming.
    fn step(&self) -> Demand;
    /// Physical bytes of the pool on each root.
    ///
    /// # Errors
    /// A device cannot report sizes.
    fn physical(&self) -> Result<Demand>;
}

/// Limits of the pool's size, besides the sizes of the disks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SpaceLimits {
    /// Physical bytes on the data root.
    pub data_bytes: Option<u64>,
    /// Physical bytes on the meta root.
    pub meta_bytes: Option<u64>,
}

/// One root in the statistics. All sizes in bytes.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct RootSpace {
    /// `data` or `meta`.
    pub name: String,
    /// Where it is.
    pub place: String,
    /// Size of its disk, or the limit if that is less.
    pub total_bytes: u64,
    /// Free on the disk, or below the limit.
    pub free_bytes: u64,
    /// Kept free for deleting and reclaiming.
    pub reserve_bytes: u64,
    /// Room for new content, with its recipes and index cells.
    pub usable_bytes: u64,
    /// Size of the pool on this root.
    pub pool_bytes: u64,
    /// `data_limit` or `meta_limit`.
    pub limit_bytes: Option<u64>,
    /// Fill level.
    pub level: Level,
}

struct Root {
    name: &'static str,
    device: Arc<dyn Device>,
    limit_bytes: Option<u64>,
    reserve_bytes: u64,
    watch: Watch,
}

/// The room left; negative when the reserve is in use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Left {
    data: i64,
    meta: i64,
    /// For the one disk that holds both roots.
    both: i64,
}

/// A reading of the room, less the grants since.
#[derive(Clone, Copy, Debug)]
struct Budget {
    at: Instant,
    left: Left,
    reserve: Demand,
}

/// One root measured at one moment.
#[derive(Clone, Copy, Debug)]
struct Measured {
    space: Space,
    /// Bytes free for the pool: on the disk, and below the limit.
    free_bytes: u64,
    physical_bytes: Option<u64>,
}

/// Guards the room on both roots.
pub struct SpaceGuard {
    data: Root,
    meta: Root,
    /// Both roots lie on one disk.
    is_shared: bool,
    holdings: Box<dyn Holdings>,
    promised_data_bytes: AtomicU64,
    promised_meta_bytes: AtomicU64,
    budget: Mutex<Option<Budget>>,
}

impl std::fmt::Debug for SpaceGuard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SpaceGuard").field("is_shared", &self.is_shared).finish_non_exhaustive()
    }
}

/// Granted room that no gauge counts yet; given back when dropped.
#[must_use = "dropping it gives the room back"]
pub(crate) struct Promise<'a> {
    guard: &'a SpaceGuard,
    demand: Demand,
}

impl Drop for Promise<'_> {
    fn drop(&mut self) {
        self.guard.promised_data_bytes.fetch_sub(self.demand.data_bytes, Ordering::AcqRel);
        self.guard.promised_meta_bytes.fetch_sub(self.demand.meta_bytes, Ordering::AcqRel);
    }
}

impl SpaceGuard {
    /// Makes a guard of the roots of a pool.
    pub(crate) fn new(
        data: &Arc<dyn Device>,
        meta: &Arc<dyn Device>,
        limits: SpaceLimits,
        holdings: Box<dyn Holdings>,
    ) -> Result<Self> {
        let same_disk = data.filesystem_id().is_some() && data.filesystem_id() == meta.filesystem_id();
        let is_shared = Arc::ptr_eq(data, meta) || same_disk;
        // The reserve is an eighth of a small disk, for both roots together.
        let divisor = if is_shared { 16 } else { 8 };
        let step = holdings.step();
        let root = |name, device: &Arc<dyn Device>, limit_bytes: Option<u64>, most, least| {
            let size = device.disk_space()?.total_bytes.min(limit_bytes.unwrap_or(u64::MAX));
            let reserve_bytes = (size / divisor).clamp(least, least.max(most));
            let reserve_bytes = if is_planted(Canary::NothingReserved) { 0 } else { reserve_bytes };
            Ok::<_, EngineError>(Root {
                name,
                device: device.clone(),
                limit_bytes,
                reserve_bytes,
                watch: Watch::default(),
            })
        };
        let guard = Self {
            data: root("data", data, limits.data_bytes, DATA_RESERVE_BYTES, step.data_bytes)?,
            meta: root("meta", meta, limits.meta_bytes, META_RESERVE_BYTES, step.meta_bytes)?,
            is_shared,
            holdings,
            promised_data_bytes: AtomicU64::new(0),
            promised_meta_bytes: AtomicU64::new(0),
            budget: Mutex::default(),
        };
        guard.tell_at_the_start()?;
        Ok(guard)
    }

    /// Whether both roots lie on one disk.
    pub(crate) fn is_shared(&self) -> bool {
        self.is_shared
    }

    /// Takes room for `demand`.
    ///
    /// # Errors
    /// `NoSpace` if it would use the reserve, or exceed a limit.
    pub(crate) fn admit(&self, demand: Demand) -> Result<Promise<'_>> {
        self.admit_with(demand, |_| Demand::default())
    }

    /// As [`admit`](Self::admit), for work that needs room now and frees more later: it may use half of the reserve.
    ///
    /// # Errors
    /// `NoSpace` if even that is used up.
    pub(crate) fn admit_freeing(&self, demand: Demand) -> Result<Promise<'_>> {
        self.admit_with(demand, |reserve| Demand {
            data_bytes: reserve.data_bytes / 2,
            meta_bytes: reserve.meta_bytes / 2,
        })
    }

    /// Takes room for a demand that must not be refused.
    pub(crate) fn promise(&self, demand: Demand) -> Promise<'_> {
        if let Some(budget) = &mut *waiting::lock(&self.budget) {
            budget.left.take(demand);
        }
        self.promised(demand)
    }

    /// Whether each root has room for `bytes` now.
    pub(crate) fn has_room(&self, bytes: u64) -> Result<bool> {
        let demand = Demand { data_bytes: bytes, meta_bytes: bytes };
        Ok(self.read()?.left.covers(demand, Demand::default(), self.is_shared))
    }

    fn admit_with(&self, demand: Demand, extra: impl Fn(Demand) -> Demand) -> Result<Promise<'_>> {
        let mut budget = waiting::lock(&self.budget);
        let has_room = |budget: &Budget| budget.left.covers(demand, extra(budget.reserve), self.is_shared);
        let mut current = match *budget {
            Some(current) if current.at.elapsed() < SPACE_CHECK_INTERVAL && has_room(&current) => current,
            _ => self.read()?,
        };
        let covers = has_room(&current);
        if covers {
            current.left.take(demand);
        }
        *budget = Some(current);
        // Counted under the lock, so that the next reading includes it.
        if covers { Ok(self.promised(demand)) } else { Err(EngineError::NoSpace) }
    }

    fn promised(&self, demand: Demand) -> Promise<'_> {
        self.promised_data_bytes.fetch_add(demand.data_bytes, Ordering::AcqRel);
        self.promised_meta_bytes.fetch_add(demand.meta_bytes, Ordering::AcqRel);
        Promise { guard: self, demand }
    }

    /// Returns the promised and owed bytes. Read before the devices are measured: bytes that arrive in between count twice, never not
    /// at all.
    fn owed(&self) -> Demand {
        let promised = Demand {
            data_bytes: self.promised_data_bytes.load(Ordering::Acquire),
            meta_bytes: self.promised_meta_bytes.load(Ordering::Acquire),
        };
        promised + self.holdings.owed()
    }

    fn reserve(&self) -> Demand {
        Demand {
            data_bytes: self.data.reserve_bytes,
            meta_bytes: self.meta.reserve_bytes + self.holdings.checkpoint_bytes(),
        }
    }

    fn measure(&self) -> Result<(Measured, Measured)> {
        let limited = self.data.limit_bytes.is_some() || self.meta.limit_bytes.is_some();
        let physical = limited.then(|| self.holdings.physical()).transpose()?;
        let one = |root: &Root, physical_bytes: Option<u64>| {
            let space = root.device.disk_space()?;
            let below = root.limit_bytes.map(|limit| limit.saturating_sub(physical_bytes.unwrap_or(0)));
            let free_bytes = space.available_bytes.min(below.unwrap_or(u64::MAX));
            Ok::<_, EngineError>(Measured { space, free_bytes, physical_bytes })
        };
        let data = one(&self.data, physical.map(|physical| physical.data_bytes))?;
        Ok((data, one(&self.meta, physical.map(|physical| physical.meta_bytes))?))
    }

    fn read(&self) -> Result<Budget> {
        let owed = self.owed();
        let (data, meta) = self.measure()?;
        self.watch(&data, &meta);
        let reserve = self.reserve();
        Ok(Budget { at: Instant::now(), left: self.left(owed, reserve, &data, &meta), reserve })
    }

    fn left(&self, owed: Demand, reserve: Demand, data: &Measured, meta: &Measured) -> Left {
        let left = |free: u64, owed: u64, reserve: u64| signed(free) - signed(owed) - signed(reserve);
        let both_free = data.space.available_bytes.min(meta.space.available_bytes);
        let both_reserve = reserve.data_bytes + reserve.meta_bytes;
        Left {
            data: left(data.free_bytes, owed.data_bytes, reserve.data_bytes),
            meta: left(meta.free_bytes, owed.meta_bytes, reserve.meta_bytes),
            both: left(both_free, owed.data_bytes + owed.meta_bytes, both_reserve),
        }
    }

    /// Returns the bytes that reclaiming may copy now on a root while everything owed still fits. It may use most of the reserve.
    pub(crate) fn step_bytes(&self, kind: ContainerKind) -> Result<u64> {
        let owed = self.owed();
        let (data, meta) = self.measure()?;
        // Half of the meta reserve stays for commits and checkpoints, and an eighth of the data reserve.
        let kept = Demand { data_bytes: self.data.reserve_bytes / 8, meta_bytes: self.meta.reserve_bytes / 2 };
        let left = self.left(owed, kept, &data, &meta);
        // Limits bind new content only. Copies of reclaiming may exceed them for a moment, as far as the disk has room.
        let room = |measured: &Measured, owed: u64, kept: u64| {
            signed(measured.space.available_bytes) - signed(owed) - signed(kept)
        };
        let own = match kind {
            ContainerKind::Data => room(&data, owed.data_bytes, kept.data_bytes),
            ContainerKind::Recipe => room(&meta, owed.meta_bytes, kept.meta_bytes),
        };
        let left = if self.is_shared { own.min(left.both) } else { own };
        Ok(u64::try_from(left).unwrap_or(0))
    }

    /// Checks that a checkpoint of `bytes`, and the commits meanwhile, fit on the meta root.
    ///
    /// # Errors
    /// `NoSpace` if not; the device cannot report its space.
    pub(crate) fn expect_checkpoint(&self, bytes: u64) -> Result<()> {
        let owed = self.holdings.owed();
        let owed_bytes = if self.is_shared { owed.data_bytes + owed.meta_bytes } else { owed.meta_bytes };
        let available_bytes = self.meta.device.space()?.available_bytes;
        if bytes.saturating_add(owed_bytes) <= available_bytes {
            return Ok(());
        }
        tracing::warn!(needed_bytes = bytes, owed_bytes, available_bytes, "no space for a checkpoint of the indexes");
        Err(EngineError::NoSpace)
    }

    /// Whether commits have little more than the reserve left. They should be short then.
    pub(crate) fn is_tight(&self) -> bool {
        let current = *waiting::lock(&self.budget);
        current.is_some_and(|budget| {
            let near = signed(self.meta.reserve_bytes);
            budget.left.meta < near || (self.is_shared && budget.left.both < near)
        })
    }

    /// The part of the reserve that one commit may count on.
    pub(crate) fn commit_bytes(&self) -> u64 {
        self.meta.reserve_bytes / 4
    }

    /// Returns both roots as they are now: data, meta.
    pub(crate) fn roots(&self) -> Result<[RootSpace; 2]> {
        let owed = self.owed();
        let physical = self.holdings.physical()?;
        let (data, meta) = self.measure()?;
        self.watch(&data, &meta);
        let reserve = self.reserve();
        let left = self.left(owed, reserve, &data, &meta);
        let one = |root: &Root, measured: &Measured, left: i64, reserve_bytes, pool_bytes| RootSpace {
            name: root.name.to_owned(),
            place: root.device.describe(),
            total_bytes: measured.space.total_bytes.min(root.limit_bytes.unwrap_or(u64::MAX)),
            free_bytes: measured.free_bytes,
            reserve_bytes,
            usable_bytes: u64::try_from(left).unwrap_or(0),
            pool_bytes,
            limit_bytes: root.limit_bytes,
            level: root.watch.level(),
        };
        let own = |left: i64, both: i64| if self.is_shared { left.min(both) } else { left };
        Ok([
            one(&self.data, &data, own(left.data, left.both), reserve.data_bytes, physical.data_bytes),
            one(&self.meta, &meta, own(left.meta, left.both), reserve.meta_bytes, physical.meta_bytes),
        ])
    }
}

impl Left {
    fn covers(&self, demand: Demand, extra: Demand, is_shared: bool) -> bool {
        let (data, meta) = (signed(demand.data_bytes), signed(demand.meta_bytes));
        let (more_data, more_meta) = (signed(extra.data_bytes), signed(extra.meta_bytes));
        // A demand of zero ignores a full root.
        (data == 0 || data <= self.data + more_data)
            && (meta == 0 || meta <= self.meta + more_meta)
            && (!is_shared || data + meta <= self.both + more_data + more_meta)
    }

    fn take(&mut self, demand: Demand) {
        let (data, meta) = (signed(demand.data_bytes), signed(demand.meta_bytes));
        self.data -= data;
        self.meta -= meta;
        self.both -= data + meta;
    }
}

/// Converts a size; clamps it so that sums cannot overflow.
fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX / 8).min(i64::MAX / 8)
}
