//! Counts allocated bytes, to notice damage that causes large allocations.
//!
//! The embedded store takes the length of a page from the page's number and allocates it before reading. A damaged
//! number asks for up to 4 GiB of zeros, and reading fails before one of them is touched. So a large allocation counts
//! only once it is used, as resident memory of the process ([`resident_peak_bytes`]).

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

pub struct Counting;

static NOW_BYTES: AtomicUsize = AtomicUsize::new(0);
static PEAK_BYTES: AtomicUsize = AtomicUsize::new(0);

/// Larger allocations are left to the system, which gives a page only when it is touched.
const COUNTED_BYTES_MAX: usize = 64 << 20;

fn grew(bytes: usize) {
    if bytes > COUNTED_BYTES_MAX {
        return;
    }
    let now = NOW_BYTES.fetch_add(bytes, Ordering::Relaxed) + bytes;
    PEAK_BYTES.fetch_max(now, Ordering::Relaxed);
}

fn shrank(bytes: usize) {
    if bytes <= COUNTED_BYTES_MAX {
        NOW_BYTES.fetch_sub(bytes, Ordering::Relaxed);
    }
}

// SAFETY: everything is handed to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        grew(layout.size());
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        grew(layout.size());
        // SAFETY: as the caller promises.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        shrank(layout.size());
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_bytes: usize) -> *mut u8 {
        grew(new_bytes);
        shrank(layout.size());
        // SAFETY: as the caller promises.
        unsafe { System.realloc(pointer, layout, new_bytes) }
    }
}

/// Returns the most bytes allocated at once since the last call, and restarts from the current number.
pub fn take_peak_bytes() -> usize {
    PEAK_BYTES.swap(NOW_BYTES.load(Ordering::Relaxed), Ordering::Relaxed)
}

/// Returns the most memory that the process has ever had resident.
pub fn resident_peak_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("reads");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("is told by Linux");
    let kib: usize = line.trim().trim_end_matches(" kB").parse().expect("is a number");
    kib << 10
}
