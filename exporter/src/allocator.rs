//! How much memory glibc's allocator keeps.

/// What is as large as this is mapped by itself, and given back when it is freed: the page of a busy host, which else leaves
/// holes each time that it is made anew. Mapping less by itself gives no more back.
#[cfg(target_env = "gnu")]
const MAPPED_BYTES: libc::c_int = 256 << 10;

/// What is free at the end of the arena is given back when it is as much as this.
#[cfg(target_env = "gnu")]
const KEPT_BYTES: libc::c_int = 128 << 10;

/// Lets all threads share one of glibc's arenas, and keeps from it what is large. By default each thread gets its own, of
/// which each keeps what its busiest moment took: a quarter of the memory of a busy exporter, for a speed that a few
/// allocations per interval do not need. And once something large was freed, by default what is as large comes from the
/// arenas too: lines of megabytes that hosts send leave holes in them, and texts of many hosts.
///
/// Call it before any thread is started. It does nothing where the C library is not glibc.
pub(crate) fn keep_little() {
    #[cfg(target_env = "gnu")]
    // SAFETY: mallopt(3) only sets parameters of the allocator, and no other thread allocates yet.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
        libc::mallopt(libc::M_MMAP_THRESHOLD, MAPPED_BYTES);
        libc::mallopt(libc::M_TRIM_THRESHOLD, KEPT_BYTES);
    }
}
