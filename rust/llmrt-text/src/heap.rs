//! Memory that was freed, given back to the system.
//!
//! glibc keeps what a thread freed for that thread's next allocations. After one prompt of a megabyte that is some hundred
//! megabytes, which a server may not need again for days. Trimmed, a thread keeps the free end of its heap alone, at most
//! 64 MiB.

/// Gives back what is free in the heaps of all threads.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub fn trim() {
    // SAFETY: takes the allocator's own locks, and touches free memory alone.
    unsafe { libc::malloc_trim(0) };
}

/// Other allocators give back what is free by themselves.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub fn trim() {}
