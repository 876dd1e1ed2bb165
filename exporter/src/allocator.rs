//! How much memory glibc's allocator keeps.

/// Lets all threads share two of glibc's arenas. By default each thread gets its own, of which each keeps what
/// its busiest moment took: an eighth of the memory of a busy exporter, for a speed that a few allocations per interval
/// do not need.
///
/// Call it before any thread is started. It does nothing where the C library is not glibc.
pub(crate) fn share_arenas() {
    #[cfg(target_env = "gnu")]
    // SAFETY: mallopt(3) only sets a parameter of the allocator, and no other thread allocates yet.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 2);
    }
}
