//! Keeping sequential readers ahead: the recipe names all chunks that they will reach.

use std::collections::VecDeque;
use std::ops::Range;

use dedupfs_store::recipe::{Child, Root};

use super::body::{FileBody, FileContext};

/// Sequential bytes after which a reader counts as sequential.
const SEQUENTIAL_AFTER_BYTES: u64 = 256 * 1024;
/// A reader loads so much, a region or two, by itself. Of a larger read other threads load parts.
const LOADED_ALONE_BYTES: u64 = 256 * 1024;
/// Least regions of a stretch: they count as read when the reader has passed the whole stretch.
const STRETCH_REGIONS: usize = 4;

/// The recent reads of one reader (handle): they show whether it is sequential.
#[derive(Default, Debug)]
pub struct ReadAhead {
    /// Offset at which the next read of a sequential reader begins.
    next: u64,
    /// Sequential bytes read so far.
    run_bytes: u64,
    /// Content before this offset was requested, or lies behind the reader.
    asked_until: u64,
    asked: Asked,
}

/// The stretches that were requested and are not read yet.
#[derive(Default, Debug)]
struct Asked {
    /// End and number of regions of each stretch; in order.
    stretches: VecDeque<(u64, usize)>,
}

/// The steps that come with a read.
#[derive(PartialEq, Eq, Default, Debug)]
struct Steps {
    /// Request this content, which is read now.
    own: Option<Range<u64>>,
    /// Request as much of this content, which is read next, as there is room for.
    ask: Option<Range<u64>>,
    /// A sequential reader reaches the end with this read.
    is_end: bool,
}

impl Asked {
    /// Returns the number of regions ahead of a reader that has reached this offset.
    fn regions_ahead(&mut self, reached: u64) -> usize {
        while self.stretches.front().is_some_and(|(end, _)| *end <= reached) {
            self.stretches.pop_front();
        }
        self.stretches.iter().map(|(_, regions)| regions).sum()
    }
}

impl ReadAhead {
    /// Notes that a read of a file of `size_bytes` begins. The reader is kept `ahead_bytes` ahead.
    fn note(&mut self, offset: u64, len_bytes: u64, size_bytes: u64, ahead_bytes: u64) -> Steps {
        // Requests of one reader can overtake each other a little.
        let continues = offset.abs_diff(self.next) <= SEQUENTIAL_AFTER_BYTES;
        self.run_bytes = if continues { self.run_bytes.saturating_add(len_bytes) } else { len_bytes };
        self.next = offset.saturating_add(len_bytes);
        let is_behind = self.asked_until > self.next.saturating_add(ahead_bytes + SEQUENTIAL_AFTER_BYTES);
        if !continues || is_behind {
            self.asked_until = offset;
            self.asked.stretches.clear();
        }
        if self.run_bytes < SEQUENTIAL_AFTER_BYTES.min(size_bytes) && offset != 0 {
            return Steps::default();
        }
        let (own_from, own_to) = (self.asked_until.max(offset), self.next.min(size_bytes));
        let own = (len_bytes > LOADED_ALONE_BYTES && own_from < own_to).then_some(own_from..own_to);
        let from = self.asked_until.max(self.next).min(size_bytes);
        let to = self.next.saturating_add(ahead_bytes).min(size_bytes);
        // In steps, so that each requests whole stretches of containers.
        let is_worthwhile = from < to && (to - from >= ahead_bytes / 4 || to == size_bytes);
        Steps { own, ask: is_worthwhile.then_some(from..to), is_end: self.next >= size_bytes }
    }
}

impl FileContext {
    /// Requests the beginnings of files that a reader is about to read one after another: of each file at most so many bytes, and at most as
    /// much as a reader is kept ahead. The requested regions that readers have ahead of them take their part of the room. A small file is read
    /// as a whole before reading ahead within it can help. Reads recipe nodes on the calling thread.
    ///
    /// Returns how many of the roots were requested to the end (empty ones count), and how many regions.
    pub fn ask_for_beginnings(
        &self,
        roots: impl IntoIterator<Item = Root>,
        regions_ahead: usize,
        beginning_bytes: u64,
    ) -> (u64, usize) {
        let Some(mut asking) = self.chunks.store().ask_ahead(regions_ahead) else { return (0, 0) };
        let mut requested_roots = 0;
        let (mut has_room, beginning_bytes) = (true, beginning_bytes.min(self.chunks.store().ahead_bytes()));
        for root in roots {
            let ask = &mut |offset, child: &Child| {
                has_room = child.fingerprint.is_zero() || asking.add(child.hint, &child.fingerprint, child.len_bytes);
                has_room && offset + child.len_bytes < beginning_bytes
            };
            // Damage is reported when the file is read.
            let _unreadable = self.for_each_chunk(&root, ask);
            if !has_room {
                break;
            }
            requested_roots += 1;
        }
        let regions = asking.regions();
        self.chunks.start(asking);
        (requested_roots, regions)
    }

    /// Has a worker run a job that loads ahead. Returns `false`, and drops the job, if too many wait.
    pub fn work_ahead(&self, job: Box<dyn FnOnce() + Send>) -> bool {
        self.chunks.store().work_ahead(job)
    }
}

impl FileBody {
    /// Notes a read before it begins. For a sequential reader, requests the content behind it, and that of the read itself if it is large: as
    /// many bytes as are worthwhile, and as many regions as the cache has room for. In a contiguous file the bytes are the limit; in a file of
    /// many generations, the regions. Returns whether a sequential reader reaches the end with this read.
    pub fn read_ahead(&self, ahead: &mut ReadAhead, offset: u64, len_bytes: u64) -> bool {
        let steps = ahead.note(offset, len_bytes, self.pieces.len_bytes(), self.context.chunks.store().ahead_bytes());
        // Apart, so that no thread loads both together: the reader waits for its own.
        if let Some(own) = &steps.own {
            self.ask_own(own.start, own.end);
        }
        if let Some(wanted) = &steps.ask {
            self.ask_ahead(ahead, wanted.start, wanted.end);
        }
        steps.is_end
    }

    /// Requests content that a reader is about to wait for. It is none of what lies ahead of the reader.
    fn ask_own(&self, from: u64, to: u64) {
        let Some(mut asking) = self.context.chunks.store().ask_ahead(0) else { return };
        // The read itself has its outcome.
        let _unreadable = self.for_each_chunk(from, to, &mut |_, child| {
            Ok(child.fingerprint.is_zero() || asking.add(child.hint, &child.fingerprint, child.len_bytes))
        });
        self.context.chunks.start(asking);
    }

    fn ask_ahead(&self, ahead: &mut ReadAhead, from: u64, to: u64) {
        let ReadAhead { next, asked, .. } = ahead;
        let Some(mut asking) = self.context.chunks.store().ask_ahead(asked.regions_ahead(*next)) else { return };
        let (mut until, mut noted) = (from, 0);
        let visited = self.for_each_chunk(from, to, &mut |start, child| {
            if !child.fingerprint.is_zero() && !asking.add(child.hint, &child.fingerprint, child.len_bytes) {
                return Ok(false);
            }
            // The last chunk, a hole, can end far behind `to`.
            until = start.saturating_add(child.len_bytes).min(to);
            let regions = asking.regions() - noted;
            if regions >= STRETCH_REGIONS {
                asked.stretches.push_back((until, regions));
                noted += regions;
            }
            Ok(true)
        });
        if asking.regions() > noted {
            asked.stretches.push_back((until, asking.regions() - noted));
        }
        self.context.chunks.start(asking);
        // An unreadable part is reported when it is really read, and not tried before.
        ahead.asked_until = if visited.is_ok() { until } else { to };
    }

    /// Requests the chunks behind the last one in its container: a restore of many files reads those next. For readers whose next file is not
    /// known.
    pub fn read_on(&self) {
        let (mut last, size_bytes) = (None, self.pieces.len_bytes());
        let _hint_only = self.for_each_chunk(size_bytes.saturating_sub(1), size_bytes, &mut |_, child| {
            last = Some((child.hint, child.fingerprint));
            Ok(true)
        });
        if let Some((hint, fingerprint)) = last.filter(|(_, fingerprint)| !fingerprint.is_zero()) {
            self.context.chunks.store().read_on(hint, &fingerprint);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use super::{ReadAhead, Steps};

    const MIB: u64 = 1 << 20;
    const AHEAD_BYTES: u64 = 16 * MIB;
    const SIZE: u64 = 100 * MIB;
    const END: Steps = Steps { own: None, ask: None, is_end: true };

    fn ask(wanted: Range<u64>) -> Steps {
        Steps { own: None, ask: Some(wanted), is_end: false }
    }

    /// Reads, and counts the whole range to request as requested.
    fn read(ahead: &mut ReadAhead, offset: u64, len_bytes: u64) -> Steps {
        let next = ahead.note(offset, len_bytes, SIZE, AHEAD_BYTES);
        if let Some(wanted) = &next.ask {
            ahead.asked_until = wanted.end;
        }
        next
    }

    #[test]
    fn a_reader_from_the_beginning_is_kept_ahead_in_steps() {
        let mut ahead = ReadAhead::default();
        assert_eq!(read(&mut ahead, 0, MIB), Steps { own: Some(0..MIB), ..ask(MIB..17 * MIB) });
        for offset in 1..4 {
            assert_eq!(read(&mut ahead, offset * MIB, MIB), Steps::default());
        }
        assert_eq!(read(&mut ahead, 4 * MIB, MIB), ask(17 * MIB..21 * MIB));
        let asked: Vec<_> = (5..100).map(|offset| read(&mut ahead, offset * MIB, MIB)).collect();
        assert_eq!(asked.iter().filter(|next| next.ask.is_some()).count(), 20);
        assert_eq!((ahead.asked_until, asked.last()), (SIZE, Some(&END)));
    }

    #[test]
    fn what_was_refused_is_wanted_at_the_next_read() {
        let mut ahead = ReadAhead::default();
        assert_eq!(ahead.note(0, MIB, SIZE, AHEAD_BYTES).ask, Some(MIB..17 * MIB));
        ahead.asked_until = 2 * MIB;
        assert_eq!(ahead.note(MIB, MIB, SIZE, AHEAD_BYTES), ask(2 * MIB..18 * MIB), "what is read now was requested");
        let own = Some(2 * MIB..3 * MIB);
        let wanted = ask(3 * MIB..19 * MIB);
        assert_eq!(ahead.note(2 * MIB, MIB, SIZE, AHEAD_BYTES), Steps { own, ..wanted }, "not what is behind");
    }

    #[test]
    fn a_file_of_one_large_request_is_requested_itself() {
        let read = |len_bytes| ReadAhead::default().note(0, len_bytes, len_bytes, AHEAD_BYTES);
        assert_eq!(read(MIB), Steps { own: Some(0..MIB), ..END });
        assert_eq!(read(256 << 10), END, "a region or two");
    }

    #[test]
    fn regression_the_end_of_a_small_file_is_seen_that_is_read_in_two_requests() {
        let (mut ahead, step) = (ReadAhead::default(), 128 << 10);
        assert_eq!(ahead.note(0, step, 200 << 10, AHEAD_BYTES), ask(step..200 << 10));
        assert_eq!(ahead.note(step, step, 200 << 10, AHEAD_BYTES), END);
        let mut ahead = ReadAhead::default();
        assert_eq!(ahead.note(step, step, 200 << 10, AHEAD_BYTES), Steps::default(), "only the end");
    }

    #[test]
    fn who_reads_here_and_there_is_not_kept_ahead() {
        let mut ahead = ReadAhead::default();
        for offset in [50, 10, 70, 30] {
            assert_eq!(read(&mut ahead, offset * MIB, 128 << 10), Steps::default());
        }
        assert_eq!(
            read(&mut ahead, 30 * MIB + (128 << 10), 128 << 10),
            ask(30 * MIB + (256 << 10)..46 * MIB + (256 << 10))
        );
    }

    #[test]
    fn requests_that_overtake_each_other_are_of_one_reader() {
        let mut ahead = ReadAhead::default();
        read(&mut ahead, 0, MIB);
        let step = 128 << 10;
        let order = [1, 0, 3, 2, 5, 4, 7, 6];
        assert!(order.iter().all(|number| read(&mut ahead, MIB + number * step, step) == Steps::default()));
        assert_eq!(ahead.asked_until, 17 * MIB);
    }

    #[test]
    fn regression_who_went_back_in_small_steps_is_kept_ahead_again() {
        let mut ahead = ReadAhead::default();
        (0..50).for_each(|offset| {
            read(&mut ahead, offset * MIB, MIB);
        });
        let step = 128 << 10;
        let mut at = 50 * MIB;
        while at > 20 * MIB {
            at -= step;
            read(&mut ahead, at, step);
        }
        let kept = (1..80).all(|number| {
            read(&mut ahead, 20 * MIB + number * step, step);
            (ahead.next + AHEAD_BYTES / 2..=ahead.next + AHEAD_BYTES + MIB).contains(&ahead.asked_until)
        });
        assert!(kept, "{ahead:?}");
    }

    #[test]
    fn regions_are_ahead_until_their_stretch_is_passed() {
        let mut ahead = ReadAhead::default();
        ahead.asked.stretches.extend([(10, 4), (20, 5), (30, 1)]);
        let counts = [(0, 10), (9, 10), (10, 6), (15, 6), (29, 1), (30, 0), (0, 0)];
        assert!(counts.iter().all(|(next, regions)| ahead.asked.regions_ahead(*next) == *regions));
        ahead.asked.stretches.push_back((40, 2));
        ahead.note(50 * MIB, 1, SIZE, AHEAD_BYTES);
        assert!(ahead.asked.stretches.is_empty(), "of another place");
    }
}
