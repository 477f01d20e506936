//! Settings of the system's allocator, so that freed memory goes back to the system.
//!
//! glibc gives each thread its own arena, up to eight for each core, and keeps freed memory in all of them. It also adapts to the
//! largest freed block: from then on blocks up to 32 MiB come from arenas, where one small live neighbour keeps their memory.
//! Page-sized writes through a mapping left 418 MiB, while the gauges saw 20 (`docs/decisions/0030-memory-is-bounded.md`).

use std::sync::atomic::{AtomicU64, Ordering};

/// Blocks from this size on get their own mapping and are returned when freed. Container regions, which come and go all the time, are
/// smaller.
const MAPPED_FROM_BYTES: i32 = 512 << 10;
/// Free memory at the end of an arena beyond this size is returned at once.
const KEPT_AT_END_BYTES: i32 = 512 << 10;
/// Arenas of all threads together. With two, `put` of small files waits for the arena of another thread.
const ARENAS_MAX: i32 = 8;

/// Growth of the process from which on [`give_back_if_grown`] gives memory back.
const GROWTH_BYTES: u64 = 16 << 20;

/// Sets up the allocator; programs call it before they start threads. No effect with C libraries other than glibc.
pub fn set_up() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    for (what, value) in [
        (libc::M_ARENA_MAX, ARENAS_MAX),
        (libc::M_MMAP_THRESHOLD, MAPPED_FROM_BYTES),
        (libc::M_TRIM_THRESHOLD, KEPT_AT_END_BYTES),
    ] {
        // SAFETY: takes two numbers and touches only the allocator's settings, which it guards itself.
        let is_set = unsafe { libc::mallopt(what, value) } == 1;
        if !is_set {
            tracing::warn!(what, value, "the allocator refuses a setting: memory that is freed may stay");
        }
    }
}

/// As [`give_back`], if the process has grown by [`GROWTH_BYTES`] since its least size behind the last time. Call it now and then from work that makes and drops much:
/// blocks of caches lie among short-lived ones, and keep memory in the arenas of all threads (a series of puts left 130 MiB).
/// Costs one read of `/proc/self/status`.
pub fn give_back_if_grown() {
    /// The fewest anonymous bytes since memory was last given back.
    static LEAST_BYTES: AtomicU64 = AtomicU64::new(u64::MAX);
    let now = anonymous_bytes();
    let least = LEAST_BYTES.fetch_min(now, Ordering::Relaxed);
    if now >= least.saturating_add(GROWTH_BYTES) {
        give_back();
        LEAST_BYTES.store(anonymous_bytes(), Ordering::Relaxed);
    }
}

/// Returns the anonymous bytes of this process that are in memory; 0 if unknown.
fn anonymous_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

/// Returns free memory inside arenas to the system. Takes some milliseconds, in which other threads cannot allocate.
pub fn give_back() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: takes a number and touches only free memory, under the allocator's own locks.
    let _is_any = unsafe { libc::malloc_trim(0) };
}
