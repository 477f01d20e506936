//! Keeping sequential readers ahead: the recipe tells all places that they come to.

use std::collections::VecDeque;

use super::body::FileBody;
use crate::config::PREFETCH_BYTES;

/// Sequential bytes after which a reader is believed to go on.
const SEQUENTIAL_AFTER_BYTES: u64 = 256 * 1024;
/// Regions of one stretch, at least: that many are taken for read when the reader has passed all of them.
const STRETCH_REGIONS: usize = 4;

/// What one reader (handle) did last, to see whether it reads on.
#[derive(Default, Debug)]
pub struct ReadAhead {
    /// Where the next read of a sequential reader begins.
    next: u64,
    /// Sequential bytes read so far.
    run_bytes: u64,
    /// Content before this offset has been asked for.
    asked_until: u64,
    asked: Asked,
}

/// The stretches that were asked for and are not read yet.
#[derive(Default, Debug)]
struct Asked {
    /// Where each ends, and of how many regions it is; in order.
    stretches: VecDeque<(u64, usize)>,
}

impl Asked {
    /// How many regions are ahead of a reader that has come to `next`.
    fn regions_ahead(&mut self, next: u64) -> usize {
        while self.stretches.front().is_some_and(|(end, _)| *end <= next) {
            self.stretches.pop_front();
        }
        self.stretches.iter().map(|(_, regions)| regions).sum()
    }
}

impl FileBody {
    /// Notes a read and, for a reader that goes on, asks for what comes next: as many bytes as are worth it, and as many regions as the
    /// cache has room for. In a file that lies in a row the bytes come first, in one of many generations the regions.
    pub fn read_ahead(&self, ahead: &mut ReadAhead, offset: u64, len_bytes: u64) {
        // Requests of one reader can overtake each other a little.
        let continues = offset.abs_diff(ahead.next) <= SEQUENTIAL_AFTER_BYTES;
        ahead.run_bytes = if continues { ahead.run_bytes + len_bytes } else { len_bytes };
        ahead.next = offset + len_bytes;
        if !continues {
            ahead.asked_until = ahead.next;
            ahead.asked.stretches.clear();
        }
        if ahead.run_bytes < SEQUENTIAL_AFTER_BYTES && offset != 0 {
            return;
        }
        let size_bytes = self.pieces.len_bytes();
        if ahead.next >= size_bytes {
            self.read_on(offset, size_bytes);
            return;
        }
        let from = ahead.asked_until.max(ahead.next).min(size_bytes);
        let to = ahead.next.saturating_add(PREFETCH_BYTES).min(size_bytes);
        // In steps, so that each asks for whole stretches of containers.
        if from < to && (to - from >= PREFETCH_BYTES / 4 || to == size_bytes) {
            self.ask_ahead(ahead, from, to);
        }
    }

    fn ask_ahead(&self, ahead: &mut ReadAhead, from: u64, to: u64) {
        let ReadAhead { next, asked, .. } = ahead;
        let Some(mut asking) = self.context.chunks.store().ask_ahead(asked.regions_ahead(*next)) else { return };
        let (mut until, mut noted) = (from, 0);
        let visited = self.for_each_chunk(from, to, &mut |start, child| {
            if !child.fingerprint.is_zero() && !asking.add(child.hint, &child.fingerprint, child.len_bytes) {
                return Ok(false);
            }
            until = start + child.len_bytes;
            let regions = asking.regions() - noted;
            if regions >= STRETCH_REGIONS {
                asked.stretches.push_back((until, regions));
                noted += regions;
            }
            Ok(true)
        });
        if until > from {
            asked.stretches.push_back((until, asking.regions() - noted));
        }
        asking.start();
        // What cannot be read now will say so when it is really read, and is not tried before.
        ahead.asked_until = if visited.is_ok() { until } else { to };
    }

    /// At the end of the content: whoever restores many files reads the one that lies behind this next.
    fn read_on(&self, offset: u64, size_bytes: u64) {
        let mut last = None;
        let _hint_only = self.for_each_chunk(offset.max(size_bytes.saturating_sub(1)), size_bytes, &mut |_, child| {
            last = Some((child.hint, child.fingerprint));
            Ok(true)
        });
        if let Some((hint, fingerprint)) = last.filter(|(_, fingerprint)| !fingerprint.is_zero()) {
            self.context.chunks.store().read_on(hint, &fingerprint);
        }
    }
}
