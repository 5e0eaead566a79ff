//! A hint to the processor that memory will be read or written soon.
//!
//! Where received payload is to be placed has left the caches. While its checksum is computed the memory system has
//! little else to do; asking for the destination meanwhile made the copy behind the checksum two to three times faster
//! here. (What is read in sequence needs no hint: the processor's own prefetcher sees it.)
//! Does not: change, or even look at, a byte.

/// What the processor fetches at a time.
const LINE: usize = 64;

/// Brings `bytes` into the cache without waiting for them. Does nothing on processors other than x86-64.
#[inline]
pub fn prefetch(bytes: &[u8]) {
    #[cfg(target_arch = "x86_64")]
    for line in bytes.chunks(LINE) {
        // SAFETY: a prefetch has no effect that a program can observe, whatever the address.
        unsafe {
            std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(line.as_ptr().cast());
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (bytes, LINE);
}
