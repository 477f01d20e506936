//! Maps that an NBD server tells: the ranges that a context calls dirty, and those of them that are zeros.

use std::fs::File;

use dedupfs::transfer::{Change, Changes};
use dedupfs_nbd::{BASE_ALLOCATION, Connection, Extent, STATE_DIRTY, STATE_ZERO};
use rustix::fs::SeekFrom;
use rustix::io::Errno;

use super::{Map, RANGES_MAX};

/// Returns the changes that a server tells in a context, or why it does not.
pub(crate) fn told_by(connection: &Connection, context: &str) -> Result<Changes, String> {
    let agreed = connection.agreed();
    let size_bytes = agreed.size_bytes;
    let Some(id) = agreed.context(context) else {
        return Err(format!("the NBD server has no map {context} (`qemu-nbd --bitmap NAME` exports a bitmap)"));
    };
    let ask = |id| connection.extents(id, 0..size_bytes, RANGES_MAX, &|| true);
    let dirty = ask(id).map_err(|error| format!("the NBD server does not tell its map {context}: {error}"))?;
    // Without an answer all dirty ranges are read.
    let allocation = agreed.context(BASE_ALLOCATION).and_then(|id| ask(id).ok()).unwrap_or_default();
    let changes = map(&dirty, &allocation).and_then(|map| map.changes(size_bytes));
    changes.map_err(|why| format!("the map {context} of the NBD server is of no use: {why}"))
}

/// Returns all of an export, without the zeros that its server tells.
pub(crate) fn data_told_by(connection: &Connection) -> Changes {
    let agreed = connection.agreed();
    let size_bytes = agreed.size_bytes;
    let told = agreed.context(BASE_ALLOCATION).map(|id| connection.extents(id, 0..size_bytes, RANGES_MAX, &|| true));
    let extents = told.and_then(Result::ok).unwrap_or_default();
    let change = |extent: &Extent| Change { from: extent.from, to: extent.to, is_zero: extent.flags & STATE_ZERO != 0 };
    let mut changes: Vec<Change> = extents.iter().map(change).collect();
    let end = changes.last().map_or(0, |last| last.to);
    if end < size_bytes {
        changes.push(Change { from: end, to: size_bytes, is_zero: false });
    }
    Changes::new(changes).unwrap_or_else(|_| Changes::all(size_bytes))
}

/// Returns all of a file, its holes as zeros.
pub(crate) fn data_in(file: &File, size_bytes: u64) -> Changes {
    let seek = |to| rustix::fs::seek(file, to).map(|at| at.min(size_bytes));
    let (mut changes, mut at) = (Vec::new(), 0);
    while at < size_bytes && changes.len() < RANGES_MAX {
        let data = match seek(SeekFrom::Data(at)) {
            Ok(data) => data,
            // Only a hole is left.
            Err(Errno::NXIO) => size_bytes,
            // A device, or a filesystem that tells no holes.
            Err(_) => break,
        };
        let end = seek(SeekFrom::Hole(data)).unwrap_or(size_bytes).max(data);
        for (from, to, is_zero) in [(at, data, true), (data, end, false)] {
            if from < to {
                changes.push(Change { from, to, is_zero });
            }
        }
        at = end.max(at + 1);
    }
    if at < size_bytes {
        changes.push(Change { from: at, to: size_bytes, is_zero: false });
    }
    Changes::new(changes).unwrap_or_else(|_| Changes::all(size_bytes))
}

/// Returns the dirty ranges, cut where the allocation tells the beginning or end of zeros. Both are in order.
fn map(dirty: &[Extent], allocation: &[Extent]) -> Result<Map, String> {
    let mut zeros = allocation.iter().filter(|extent| extent.flags & STATE_ZERO != 0).peekable();
    let mut map = Map::default();
    for Extent { from, to, .. } in dirty.iter().filter(|extent| extent.flags & STATE_DIRTY != 0) {
        let mut at = *from;
        while at < *to {
            while zeros.next_if(|zero| zero.to <= at).is_some() {}
            let (end, is_zero) = match zeros.peek() {
                Some(zero) if zero.from <= at => (zero.to, true),
                Some(zero) => (zero.from, false),
                None => (*to, false),
            };
            let end = end.min(*to);
            map.add(at, end - at, Some(is_zero))?;
            at = end;
        }
    }
    Ok(map)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dirty_ranges_are_cut_where_zeros_begin_and_end() {
        let extents = |list: &[(u64, u64, u32)]| -> Vec<Extent> {
            list.iter().map(|(from, to, flags)| Extent { from: from << 16, to: to << 16, flags: *flags }).collect()
        };
        let dirty = extents(&[(0, 2, 0), (2, 6, STATE_DIRTY), (6, 8, 0), (8, 9, STATE_DIRTY), (9, 20, 0)]);
        let allocation = extents(&[(0, 3, 3), (3, 4, 0), (4, 5, 1), (5, 7, 2), (7, 8, 0), (8, 20, 3)]);
        let changes = map(&dirty, &allocation).and_then(|map| map.changes(20 << 16)).expect("is good");
        let expected = [(2, 3, true), (3, 5, false), (5, 6, true), (8, 9, true)];
        let expected = expected.map(|(from, to, is_zero)| Change { from: from << 16, to: to << 16, is_zero });
        assert_eq!(changes.ranges(), expected);
        let changes = map(&dirty, &[]).and_then(|map| map.changes(20 << 16)).expect("is good");
        assert!(changes.ranges().iter().all(|change| !change.is_zero));
    }
}
