//! Settings of the system's allocator, so that freed memory goes back to the system.
//!
//! glibc gives each thread its own arena, up to eight for each core, and keeps freed memory in all of them. It also adapts to the
//! largest freed block: from then on blocks up to 32 MiB come from arenas, where one small live neighbour keeps their memory.
//! Page-sized writes through a mapping left 418 MiB, while the gauges saw 20 (`docs/decisions/0030-memory-is-bounded.md`).

/// Blocks from this size on get their own mapping and are returned when freed. Container regions, which come and go all the time, are
/// smaller.
const MAPPED_FROM_BYTES: i32 = 512 << 10;
/// Free memory at the end of an arena beyond this size is returned at once.
const KEPT_AT_END_BYTES: i32 = 512 << 10;
/// Arenas of all threads together. With two, `put` of small files waits for the arena of another thread.
const ARENAS_MAX: i32 = 8;

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

/// Returns free memory inside arenas to the system. Takes some milliseconds, in which other threads cannot allocate.
pub fn give_back() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: takes a number and touches only free memory, under the allocator's own locks.
    let _is_any = unsafe { libc::malloc_trim(0) };
}
