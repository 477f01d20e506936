//! A growable byte buffer with memory that suits direct I/O: aligned, and in few pieces.
//!
//! The kernel hands a device the physical memory of a direct read or write as a list of pieces. A buffer of ordinary
//! pages has one piece for each 4 KiB. In huge pages 4 MiB are two pieces, for disks that take such large ones: direct
//! writes into a new file were 1.3 times as fast on a virtual disk (`docs/decisions/0020-containers-past-the-page-cache.md`).
//! Huge pages are requested, not required: without them only the speed differs.
//!
//! [`AlignedBuffer::clear`] keeps the memory. Fresh memory is slow (first touch at 0.3 to 0.5 GB/s on a virtual
//! machine), so callers should reuse buffers.
//!
//! Invariant: `len_bytes <= capacity_bytes`, and `start + capacity_bytes` lies within the mapping. Bytes beyond
//! `len_bytes` are zeros or leftovers of earlier use; the code that makes them visible again overwrites them first.

use std::alloc::{Layout, handle_alloc_error};
use std::fmt;
use std::ops::{Deref, DerefMut};

use memmap2::{Advice, MmapMut};

use super::DIRECT_ALIGNMENT_BYTES;

/// Alignment and size of a huge page. On systems with another size it is still a multiple of an ordinary page.
const HUGE_PAGE_BYTES: usize = 2 << 20;
/// Buffers of at least this size consist of whole huge pages. Smaller buffers would allocate and clear memory that they
/// never use.
const HUGE_BYTES_MIN: usize = HUGE_PAGE_BYTES;

/// A growable byte buffer, aligned to [`DIRECT_ALIGNMENT_BYTES`].
#[derive(Default)]
pub struct AlignedBuffer {
    /// `None` until the first allocation.
    mapping: Option<MmapMut>,
    /// Offset of the first aligned byte in the mapping.
    start: usize,
    capacity_bytes: usize,
    len_bytes: usize,
}

impl AlignedBuffer {
    /// Returns an empty buffer without memory.
    pub const fn new() -> Self {
        Self { mapping: None, start: 0, capacity_bytes: 0, len_bytes: 0 }
    }

    /// Returns an empty buffer that takes `capacity_bytes` without moving.
    pub fn with_capacity(capacity_bytes: usize) -> Self {
        if capacity_bytes == 0 {
            return Self::new();
        }
        let is_huge = capacity_bytes >= HUGE_BYTES_MIN;
        let alignment = if is_huge { HUGE_PAGE_BYTES } else { DIRECT_ALIGNMENT_BYTES };
        let rounded = capacity_bytes.checked_next_multiple_of(alignment);
        // A mapping begins at a page. The extra bytes let the buffer begin at a multiple of `alignment`.
        let mapped = rounded.and_then(|bytes| Some((bytes, MmapMut::map_anon(bytes.checked_add(alignment)?).ok()?)));
        let Some((capacity_bytes, mapping)) = mapped else {
            // As when a vector cannot grow. The layout is only for the message.
            handle_alloc_error(Layout::array::<u8>(capacity_bytes).unwrap_or(Layout::new::<u8>()))
        };
        let start = mapping.as_ptr().addr().next_multiple_of(alignment) - mapping.as_ptr().addr();
        if is_huge {
            // A kernel without huge pages refuses this.
            let _ = mapping.advise_range(Advice::HugePage, start, capacity_bytes);
        }
        Self { mapping: Some(mapping), start, capacity_bytes, len_bytes: 0 }
    }

    /// Bytes that fit without moving.
    pub const fn capacity(&self) -> usize {
        self.capacity_bytes
    }

    /// Appends bytes.
    pub fn extend_from_slice(&mut self, bytes: &[u8]) {
        let start = self.len_bytes;
        self.grow_to(start + bytes.len());
        self[start..].copy_from_slice(bytes);
    }

    /// Appends zeros, or cuts, until the length is `len_bytes`.
    pub fn resize_zeroed(&mut self, len_bytes: usize) {
        let start = self.len_bytes;
        self.grow_to(len_bytes.max(start));
        self.len_bytes = len_bytes;
        if len_bytes > start {
            self[start..].fill(0);
        }
    }

    /// Drops all bytes and keeps the memory.
    pub fn clear(&mut self) {
        self.len_bytes = 0;
    }

    /// Grows the memory if necessary and sets the length. New bytes are leftovers: the caller overwrites them.
    fn grow_to(&mut self, len_bytes: usize) {
        if len_bytes > self.capacity_bytes {
            let mut larger = Self::with_capacity(len_bytes.max(self.capacity_bytes.saturating_mul(2)));
            larger.len_bytes = self.len_bytes;
            larger.copy_from_slice(self);
            *self = larger;
        }
        self.len_bytes = len_bytes;
    }
}

impl Deref for AlignedBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.mapping.as_ref().map_or(&[], |mapping| &mapping[self.start..self.start + self.len_bytes])
    }
}

impl DerefMut for AlignedBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.mapping.as_mut().map_or(&mut [], |mapping| &mut mapping[self.start..self.start + self.len_bytes])
    }
}

impl fmt::Debug for AlignedBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AlignedBuffer").field("len_bytes", &self.len_bytes).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum Step {
        Extend(Vec<u8>),
        Resize(usize),
        Clear,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => prop::collection::vec(1u8.., 0..6000).prop_map(Step::Extend),
            1 => (0usize..20_000).prop_map(Step::Resize),
            1 => Just(Step::Clear),
        ]
    }

    proptest! {
        #[test]
        fn behaves_as_a_vector_and_stays_aligned(steps in prop::collection::vec(step(), 1..40)) {
            let mut buffer = AlignedBuffer::with_capacity(100);
            let mut model = Vec::new();
            for step in steps {
                match step {
                    Step::Extend(bytes) => {
                        buffer.extend_from_slice(&bytes);
                        model.extend_from_slice(&bytes);
                    }
                    Step::Resize(len) => {
                        buffer.resize_zeroed(len);
                        model.resize(len, 0);
                    }
                    Step::Clear => {
                        buffer.clear();
                        model.clear();
                    }
                }
                prop_assert_eq!(&*buffer, model.as_slice());
                prop_assert!(buffer.as_ptr().addr().is_multiple_of(DIRECT_ALIGNMENT_BYTES) || buffer.capacity() == 0);
                prop_assert!(buffer.capacity() >= buffer.len());
            }
        }
    }

    #[test]
    fn large_buffers_begin_at_a_huge_page_and_keep_their_bytes_when_they_grow() {
        let mut buffer = AlignedBuffer::new();
        assert_eq!((buffer.capacity(), &*buffer), (0, &[][..]));
        let mut model = Vec::new();
        for (seed, len_bytes) in
            [5000, HUGE_BYTES_MIN - 5000, 1, HUGE_PAGE_BYTES, 3 * HUGE_PAGE_BYTES].into_iter().enumerate()
        {
            let bytes: Vec<u8> = (0..len_bytes).map(|at| (at % 251) as u8 ^ seed as u8).collect();
            buffer.extend_from_slice(&bytes);
            model.extend_from_slice(&bytes);
            assert!(&*buffer == model.as_slice(), "after {len_bytes} more bytes");
            let alignment = if model.len() >= HUGE_BYTES_MIN { HUGE_PAGE_BYTES } else { DIRECT_ALIGNMENT_BYTES };
            assert!(buffer.as_ptr().addr().is_multiple_of(alignment));
            assert!(buffer.capacity().is_multiple_of(alignment));
        }
        for capacity_bytes in [HUGE_BYTES_MIN, HUGE_PAGE_BYTES, HUGE_PAGE_BYTES + 1] {
            let mut buffer = AlignedBuffer::with_capacity(capacity_bytes);
            let before = buffer.as_ptr();
            assert!(before.addr().is_multiple_of(HUGE_PAGE_BYTES));
            buffer.resize_zeroed(capacity_bytes);
            assert!(buffer.iter().all(|&byte| byte == 0));
            assert_eq!(buffer.as_ptr(), before, "what was asked for is there without moving");
            buffer.fill(7);
            buffer.clear();
            buffer.resize_zeroed(capacity_bytes);
            assert!(buffer.iter().all(|&byte| byte == 0), "bytes of earlier use");
        }
    }

    /// The kernel's flags of the mapping that holds this address.
    fn mapping_flags(address: usize) -> Vec<String> {
        let mappings = std::fs::read_to_string("/proc/self/smaps").expect("the list of mappings");
        let mut is_it = false;
        for line in mappings.lines() {
            let range = line.split(' ').next().and_then(|range| range.split_once('-'));
            let bounds = range.map(|(start, end)| (usize::from_str_radix(start, 16), usize::from_str_radix(end, 16)));
            if let Some((Ok(start), Ok(end))) = bounds {
                is_it = (start..end).contains(&address);
            } else if is_it && let Some(flags) = line.strip_prefix("VmFlags:") {
                return flags.split_whitespace().map(str::to_owned).collect();
            }
        }
        panic!("no mapping holds {address:x}");
    }

    #[test]
    fn huge_pages_are_asked_for_by_large_buffers_only() {
        let asks = |capacity_bytes| {
            let mut buffer = AlignedBuffer::with_capacity(capacity_bytes);
            buffer.resize_zeroed(capacity_bytes);
            mapping_flags(buffer.as_ptr().addr()).contains(&"hg".to_owned())
        };
        let kernel_has_them = std::path::Path::new("/sys/kernel/mm/transparent_hugepage").exists();
        assert_eq!(asks(HUGE_BYTES_MIN), kernel_has_them);
        assert_eq!(asks(2 * HUGE_PAGE_BYTES), kernel_has_them);
        assert!(!asks(HUGE_BYTES_MIN - 1));
    }

    #[test]
    fn padding_never_shows_bytes_of_earlier_use() {
        let mut buffer = AlignedBuffer::new();
        buffer.extend_from_slice(&[7; 8192]);
        buffer.clear();
        buffer.extend_from_slice(&[1; 10]);
        buffer.resize_zeroed(4096);
        assert_eq!(buffer.len(), 4096);
        assert!(buffer[10..].iter().all(|&byte| byte == 0));
    }
}
