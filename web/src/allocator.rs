//! Limits on the memory that glibc's allocator keeps.

#[cfg(target_env = "gnu")]
use std::fs;

#[cfg(target_env = "gnu")]
use rustix::param::page_size;

/// A block of this size or more gets its own mapping, which is returned when the block is freed. A smaller limit saves
/// nothing more.
#[cfg(target_env = "gnu")]
const MAPPED_BYTES: libc::c_int = 256 << 10;

/// Free memory at the end of the arena is returned if there is at least this much.
#[cfg(target_env = "gnu")]
const KEPT_BYTES: libc::c_int = 128 << 10;

/// The memory that a process may hold beyond twice its used memory.
#[cfg(target_env = "gnu")]
const SPARE_BYTES: u64 = 16 << 20;

/// Lets all threads share one of glibc's arenas, and gives large blocks their own mappings.
///
/// By default each thread gets its own arena, and each arena keeps the memory of its busiest moment: a quarter of the
/// memory of a busy exporter. The daemons do not need the speed of several arenas. Also by default, after the first
/// large block is freed, later blocks of its size come from the arenas too, and leave holes there. Large blocks are
/// lines of megabytes that hosts send, and texts about many hosts.
///
/// Call it before any thread is started. It does nothing where the C library is not glibc.
pub fn keep_little() {
    #[cfg(target_env = "gnu")]
    // SAFETY: mallopt(3) only sets parameters of the allocator, and no other thread allocates yet.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
        libc::mallopt(libc::M_MMAP_THRESHOLD, MAPPED_BYTES);
        libc::mallopt(libc::M_TRIM_THRESHOLD, KEPT_BYTES);
    }
}

/// Returns free memory to the kernel if a process holds much more memory than it uses. Call it once a cycle, after
/// [`keep_little`]: it looks at all free blocks.
///
/// By itself glibc returns only free memory at the end of the arena. A small block there keeps all free memory below,
/// for example that of 40,000 removed records.
pub fn give_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: mallinfo(3) and malloc_trim(3) take the locks of the allocator, and touch no block in use.
    unsafe {
        let info = libc::mallinfo();
        // mallinfo counts modulo 2³².
        let used_bytes = u64::from(info.uordblks.cast_unsigned()) + u64::from(info.hblkhd.cast_unsigned());
        if anonymous_bytes().is_some_and(|held| held > 2 * used_bytes + SPARE_BYTES) {
            libc::malloc_trim(0);
        }
    }
}

/// Memory of this process without a file behind it, by `/proc/self/statm`.
#[cfg(target_env = "gnu")]
fn anonymous_bytes() -> Option<u64> {
    let statm = fs::read_to_string("/proc/self/statm").ok()?;
    let mut pages = statm.split_ascii_whitespace().map(str::parse::<u64>);
    let (resident, shared) = (pages.nth(1)?.ok()?, pages.next()?.ok()?);
    Some(resident.saturating_sub(shared) * page_size() as u64)
}
