//! Dirty extents: bytes of a file that were written over its old content and are not part of its recipe yet.

use std::collections::BTreeMap;

use crate::limits::{DIRTY_EXTENT_BYTES_MAX, DIRTY_EXTENT_OVERHEAD_BYTES};

/// The extents that lie over the old content: sorted, never overlapping, never empty.
#[derive(Debug, Default)]
pub(crate) struct DirtyExtents {
    extents: BTreeMap<u64, Vec<u8>>,
    bytes: u64,
    /// Memory of all extents' buffers.
    capacity_bytes: u64,
}

impl DirtyExtents {
    /// Bytes in all extents.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Approximate memory: many short extents take more than their bytes.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.capacity_bytes + self.len() * DIRTY_EXTENT_OVERHEAD_BYTES
    }

    /// Whether there is no extent.
    pub(crate) fn is_empty(&self) -> bool {
        self.extents.is_empty()
    }

    /// Number of extents.
    pub(crate) fn len(&self) -> u64 {
        self.extents.len() as u64
    }

    /// End of the last extent.
    pub(crate) fn end(&self) -> u64 {
        self.extents.last_key_value().map_or(0, |(start, data)| start + data.len() as u64)
    }

    /// Lays `data` over the bytes at `offset`.
    pub(crate) fn insert(&mut self, offset: u64, data: &[u8]) {
        if data.is_empty() || self.overwrite(offset, data) {
            return;
        }
        self.cut_out(offset, offset + data.len() as u64);
        self.bytes += data.len() as u64;
        if let Some((start, before)) = self.extents.range_mut(..offset).next_back()
            && start + before.len() as u64 == offset
            && before.len() + data.len() <= DIRTY_EXTENT_BYTES_MAX
        {
            let capacity = before.capacity();
            if before.len() + data.len() > capacity {
                let wanted_bytes = (2 * capacity).clamp(before.len() + data.len(), DIRTY_EXTENT_BYTES_MAX);
                before.reserve_exact(wanted_bytes - before.len());
            }
            before.extend_from_slice(data);
            self.capacity_bytes += (before.capacity() - capacity) as u64;
            return;
        }
        self.add(offset, data.to_vec());
    }

    /// Replaces the bytes if one extent holds the whole range. Returns whether it did.
    fn overwrite(&mut self, offset: u64, data: &[u8]) -> bool {
        let Some((start, extent)) = self.extents.range_mut(..=offset).next_back() else { return false };
        let from = (offset - start) as usize;
        let Some(target) = extent.get_mut(from..from.saturating_add(data.len())) else { return false };
        target.copy_from_slice(data);
        true
    }

    fn add(&mut self, offset: u64, data: Vec<u8>) {
        self.capacity_bytes += data.capacity() as u64;
        self.extents.insert(offset, data);
    }

    /// Removes the bytes in `from..to`.
    fn cut_out(&mut self, from: u64, to: u64) {
        if let Some((&start, data)) = self.extents.range_mut(..from).next_back() {
            let end = start + data.len() as u64;
            if end > from {
                let capacity = data.capacity();
                self.bytes -= end - from;
                let kept = data.get((to.min(end) - start) as usize..).unwrap_or_default().to_vec();
                data.truncate((from - start) as usize);
                // Otherwise it would keep the memory of its greatest length.
                data.shrink_to_fit();
                self.capacity_bytes -= (capacity - data.capacity()) as u64;
                if end > to {
                    self.bytes += kept.len() as u64;
                    self.add(to, kept);
                }
            }
        }
        while let Some((&start, _)) = self.extents.range(from..to).next() {
            let Some(mut data) = self.extents.remove(&start) else { break };
            self.bytes -= data.len() as u64;
            self.capacity_bytes -= data.capacity() as u64;
            if start + data.len() as u64 > to {
                let kept = data.split_off((to - start) as usize);
                self.bytes += kept.len() as u64;
                self.add(to, kept);
            }
        }
    }

    /// Lays the extents over `into`, which holds the content from `offset` on.
    pub(crate) fn overlay(&self, offset: u64, into: &mut [u8]) {
        let end = offset + into.len() as u64;
        let before = self.extents.range(..offset).next_back();
        for (&start, data) in before.into_iter().chain(self.extents.range(offset..end)) {
            let from = start.max(offset);
            let to = (start + data.len() as u64).min(end);
            if from < to
                && let Some(target) = into.get_mut((from - offset) as usize..(to - offset) as usize)
                && let Some(source) = data.get((from - start) as usize..(to - start) as usize)
            {
                target.copy_from_slice(source);
            }
        }
    }

    /// Returns the range of the first extent that ends behind `offset`.
    pub(crate) fn next_from(&self, offset: u64) -> Option<(u64, u64)> {
        let before = self.extents.range(..offset).next_back();
        before
            .into_iter()
            .chain(self.extents.range(offset..).next())
            .map(|(&start, data)| (start, start + data.len() as u64))
            .find(|&(_, end)| end > offset)
    }

    /// Whether one extent covers all of `from..to`.
    pub(crate) fn covers(&self, from: u64, to: u64) -> bool {
        self.next_from(from).is_some_and(|(start, end)| start <= from && to <= end)
    }

    /// Removes all extents.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Against a plain array: every byte, the sum, and the queries.
        #[test]
        fn behaves_as_an_array(writes in prop::collection::vec((0_u64..300, 1_usize..60, 1_u8..), 0..60)) {
            let mut extents = DirtyExtents::default();
            let mut model: Vec<Option<u8>> = vec![None; 400];
            for (offset, len, value) in writes {
                extents.insert(offset, &vec![value; len]);
                model[offset as usize..offset as usize + len].fill(Some(value));
                let expected = model.iter().flatten().count() as u64;
                prop_assert_eq!(extents.bytes(), expected);
                let capacity: usize = extents.extents.values().map(Vec::capacity).sum();
                prop_assert_eq!(extents.capacity_bytes, capacity as u64);
                let mut seen = vec![0_u8; 400];
                extents.overlay(0, &mut seen);
                let plain: Vec<u8> = model.iter().map(|byte| byte.unwrap_or(0)).collect();
                prop_assert_eq!(&seen, &plain);
                let mut part = vec![0_u8; 77];
                extents.overlay(111, &mut part);
                prop_assert_eq!(&part[..], &plain[111..188]);
                for from in (0..400).step_by(13) {
                    let next = extents.next_from(from as u64).map(|(start, _)| start.max(from as u64) as usize);
                    let model_next = (from..400).find(|&at| model[at].is_some());
                    prop_assert_eq!(next, model_next);
                }
            }
        }
    }

    #[test]
    fn regression_an_extent_that_is_cut_gives_its_memory_back() {
        let mut extents = DirtyExtents::default();
        for number in 0..64 {
            extents.insert(number << 20, &vec![1; 1 << 20]);
            // From within the extent to behind its end.
            extents.insert((number << 20) + 4096, &vec![2; 1 << 20]);
            extents.insert((number << 20) + 8192, &vec![3; 1 << 20]);
        }
        let capacity: usize = extents.extents.values().map(Vec::capacity).sum();
        assert!(capacity as u64 <= 2 * extents.bytes(), "{capacity} bytes of memory for {}", extents.bytes());
        assert!(extents.memory_bytes() >= capacity as u64);
    }
}
