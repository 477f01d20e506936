//! The system's allocator, set so that what is freed goes back to the system.
//!
//! glibc gives each thread an arena of its own, up to eight for each core, and keeps what is freed in any of them. And it learns from
//! the largest block that was freed: from then on blocks up to 32 MiB come from arenas, where one small neighbour that lives on keeps
//! their memory. Page-sized writes through a mapping left 418 MiB, of which the gauges saw 20
//! (`docs/decisions/0030-memory-is-bounded.md`).

/// Blocks from this size on are mapped by themselves and go back when they are freed. Regions of containers, which come and go all the
/// time, are smaller.
const MAPPED_FROM_BYTES: i32 = 512 << 10;
/// Free memory at the end of an arena beyond this goes back at once.
const KEPT_AT_END_BYTES: i32 = 512 << 10;
/// Arenas of all threads together. With two, `put` of small files waits for the arena of another thread.
const ARENAS_MAX: i32 = 8;

/// Sets the allocator; for programs, before they start threads. Does nothing with other C libraries than glibc.
pub fn set_up() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    for (what, value) in [
        (libc::M_ARENA_MAX, ARENAS_MAX),
        (libc::M_MMAP_THRESHOLD, MAPPED_FROM_BYTES),
        (libc::M_TRIM_THRESHOLD, KEPT_AT_END_BYTES),
    ] {
        // SAFETY: takes two numbers and touches nothing but the allocator's settings, which it guards itself.
        let is_set = unsafe { libc::mallopt(what, value) } == 1;
        if !is_set {
            tracing::warn!(what, value, "the allocator refuses a setting: memory that is freed may stay");
        }
    }
}

/// Gives free memory in the midst of arenas back to the system: takes some milliseconds, in which others cannot allocate.
pub fn give_back() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: takes a number and touches nothing but free memory, under the allocator's own locks.
    let _is_any = unsafe { libc::malloc_trim(0) };
}
