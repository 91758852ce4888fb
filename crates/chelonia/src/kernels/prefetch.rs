//! Memory prefetch hints.
//!
//! A prefetch changes nothing that a program can observe and never faults, whatever the address. So
//! it is safe to call with any pointer, including dangling ones.

#![expect(unsafe_code, reason = "an island: the prefetch instruction")]

/// Prefetches the cache line at `address` for reading.
#[inline(always)]
pub fn prefetch_read(address: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a hint without architectural effect, valid for every address; SSE is always there.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(address.cast());
    }
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    // SAFETY: a hint without architectural effect, valid for every address; touches no memory,
    // no register and no flag.
    unsafe {
        std::arch::asm!(
            "prfm pldl1keep, [{address}]",
            address = in(reg) address,
            options(nostack, preserves_flags, readonly),
        );
    }
    #[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
    let _ = address;
}
