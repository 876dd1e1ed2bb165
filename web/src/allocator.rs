//! How much memory glibc's allocator keeps.

#[cfg(target_env = "gnu")]
use std::fs;

#[cfg(target_env = "gnu")]
use rustix::param::page_size;

/// A block of this size or more is mapped by itself, and given back when it is freed. A smaller limit gives no more back.
#[cfg(target_env = "gnu")]
const MAPPED_BYTES: libc::c_int = 256 << 10;

/// Free memory at the end of the arena is given back from this size on.
#[cfg(target_env = "gnu")]
const KEPT_BYTES: libc::c_int = 128 << 10;

/// Memory that a process may hold beyond twice what it uses.
#[cfg(target_env = "gnu")]
const SPARE_BYTES: u64 = 16 << 20;

/// Lets all threads share one of glibc's arenas, and maps large blocks by themselves.
///
/// By default each thread gets an arena of its own, and each arena keeps the memory of its busiest moment: a quarter of the
/// memory of a busy exporter. The daemons do not need the speed of several arenas. Also by default, once a large block was
/// freed, later blocks of its size come from the arenas too, and leave holes there: lines of megabytes that hosts send, texts
/// of many hosts.
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

/// Gives free memory back to the kernel, if a process holds much more than it uses. Call it once a cycle, after
/// [`keep_little`]: it looks at all free blocks.
///
/// By itself glibc gives back only what is free at the end of the arena: a small block there keeps all the free memory below
/// it, such as that of 40,000 records which are gone.
pub fn give_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: mallinfo(3) and malloc_trim(3) take the locks of the allocator, and touch no block in use.
    unsafe {
        let info = libc::mallinfo();
        // They are counted modulo 2³².
        let used_bytes =
            u64::from(info.uordblks.cast_unsigned()) + u64::from(info.hblkhd.cast_unsigned());
        if anonymous_bytes().is_some_and(|held| held > 2 * used_bytes + SPARE_BYTES) {
            libc::malloc_trim(0);
        }
    }
}

/// Memory of this process that no file backs, by `/proc/self/statm`.
#[cfg(target_env = "gnu")]
fn anonymous_bytes() -> Option<u64> {
    let statm = fs::read_to_string("/proc/self/statm").ok()?;
    let mut pages = statm.split_ascii_whitespace().map(str::parse::<u64>);
    let (resident, shared) = (pages.nth(1)?.ok()?, pages.next()?.ok()?);
    Some(resident.saturating_sub(shared) * page_size() as u64)
}
