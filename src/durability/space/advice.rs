//! Explanations for users of a pool that accepts nothing new or cannot even reclaim: the reason, and the remedy.

use dedupfs_base::{EngineError, Result};

use super::{Demand, Measured, Root, SpaceGuard};

/// Formats bytes as in "12.5 MiB".
pub(super) fn mib(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

impl SpaceGuard {
    /// Explains, in words, why the pool accepts nothing new; empty if it has room.
    pub(crate) fn notices(&self) -> Result<Vec<String>> {
        let (physical, reserve, owed) = (self.holdings.physical()?, self.reserve(), self.owed());
        let (data, meta) = self.measure()?;
        let left = self.left(owed, reserve, &data, &meta);
        let mut notices = Vec::new();
        let mut is_disk_told = false;
        for (root, measured, used_bytes, own_reserve_bytes, own_left) in [
            (&self.data, &data, physical.data_bytes, reserve.data_bytes, left.data),
            (&self.meta, &meta, physical.meta_bytes, reserve.meta_bytes, left.meta),
        ] {
            if let Some(limit) = limit_notice(root, used_bytes, own_reserve_bytes) {
                notices.push(limit);
                continue;
            }
            let (is_full, reserve_bytes, used_bytes) = if self.is_shared {
                let both = reserve.data_bytes + reserve.meta_bytes;
                (left.both <= 0 || own_left <= 0, both, physical.data_bytes + physical.meta_bytes)
            } else {
                (own_left <= 0, own_reserve_bytes, used_bytes)
            };
            // One shared disk is reported once.
            if is_full && !(self.is_shared && is_disk_told) {
                is_disk_told = true;
                notices.push(disk_notice(root, measured, reserve_bytes, used_bytes));
            }
        }
        Ok(notices)
    }

    /// Turns a lack of space during reclaiming into an error that says how much to free, and where.
    pub(crate) fn explain(&self, error: EngineError) -> EngineError {
        if !error.is_no_space() {
            return error;
        }
        let told = match self.shortage() {
            Ok(None) => self.notices().map(|notices| (!notices.is_empty()).then(|| notices.join("; "))),
            told => told,
        };
        // If there is no explanation, the original error stays.
        told.ok().flatten().map_or(error, EngineError::OutOfSpace)
    }

    /// Describes how much a commit and the smallest step of reclaiming lack on the disks; `None` if they fit.
    fn shortage(&self) -> Result<Option<String>> {
        let (owed, step, physical) = (self.owed(), self.holdings.step(), self.holdings.physical()?);
        let needed = owed + step;
        let (data, meta) = self.measure()?;
        let sum = |demand: Demand| demand.data_bytes + demand.meta_bytes;
        let lacks = if self.is_shared {
            let least = if data.space.available_bytes < meta.space.available_bytes { &data } else { &meta };
            vec![(&self.data, least, sum(needed), sum(physical))]
        } else {
            vec![
                (&self.data, &data, needed.data_bytes, physical.data_bytes),
                (&self.meta, &meta, needed.meta_bytes, physical.meta_bytes),
            ]
        };
        let told: Vec<String> = lacks
            .into_iter()
            .filter_map(|(root, measured, needed_bytes, pool_bytes)| {
                let missing =
                    needed_bytes.checked_sub(measured.space.available_bytes).filter(|missing| *missing > 0)?;
                Some(format!(
                    "the disk of {} has {} left, and reclaiming needs {} of it for a while: free {} there{}",
                    root.device.describe(),
                    mib(measured.space.available_bytes),
                    mib(needed_bytes),
                    mib(missing),
                    others(measured, pool_bytes)
                ))
            })
            .collect();
        let advice = ". Nothing is lost; then run `dedupfs-gc` again";
        Ok((!told.is_empty()).then(|| told.join("; ") + advice))
    }
}

/// Describes a limit that admits nothing.
fn limit_notice(root: &Root, used_bytes: u64, reserve_bytes: u64) -> Option<String> {
    let limit_bytes = root.limit_bytes?;
    let needed_bytes = used_bytes.saturating_add(reserve_bytes);
    if needed_bytes < limit_bytes {
        return None;
    }
    let (name, place) = (root.name, root.device.describe());
    let (limit, reserve, used) = (mib(limit_bytes), mib(reserve_bytes), mib(used_bytes));
    Some(if limit_bytes <= reserve_bytes {
        format!(
            "nothing can be written: {name}_limit is {limit}, and {reserve} must stay free below it for deleting and reclaiming; \
             raise it to more than {} (the pool has {used} on {place})",
            mib(needed_bytes)
        )
    } else {
        format!(
            "nothing new can be written: the pool has {used} on its {name} root {place}, {name}_limit is {limit}, and {reserve} \
             below it are kept for deleting and reclaiming; raise the limit, or delete old backups (`rm`) and run `dedupfs-gc`"
        )
    })
}

/// Describes a disk with no room besides the reserve.
fn disk_notice(root: &Root, measured: &Measured, reserve_bytes: u64, pool_bytes: u64) -> String {
    let place = root.device.describe();
    let (free, reserve) = (mib(measured.space.available_bytes), mib(reserve_bytes));
    if measured.space.total_bytes <= reserve_bytes {
        return format!(
            "nothing can be written: the disk of {place} has {} in all, and {reserve} of it must stay free for deleting and \
             reclaiming; move the pool to a larger disk, or make one with smaller containers",
            mib(measured.space.total_bytes)
        );
    }
    format!(
        "nothing new can be written: the disk of {place} has {free} left, and {reserve} are kept for deleting and reclaiming; \
         delete old backups (`rm`) and run `dedupfs-gc`, or free space there{}",
        others(measured, pool_bytes)
    )
}

/// Describes the share of other data on a disk, if it is at least 5%.
fn others(measured: &Measured, pool_bytes: u64) -> String {
    let used_bytes = measured.space.total_bytes.saturating_sub(measured.space.available_bytes);
    let others_bytes = used_bytes.saturating_sub(pool_bytes);
    if others_bytes < measured.space.total_bytes / 20 {
        return String::new();
    }
    format!(
        " (of its {} the pool has {}, and other data has {})",
        mib(measured.space.total_bytes),
        mib(pool_bytes),
        mib(others_bytes)
    )
}
