//! Memory for device I/O: block-aligned in address and, where requested, in length.
//!
//! Direct I/O needs buffers whose address is a multiple of the device's sector. [`AlignedBuffer`]
//! is aligned to a complete block, zeroed when created, and dereferences to a byte slice; its
//! interface is safe.
//!
//! Invariants:
//! 1. The memory is aligned to [`BLOCK_BYTES`], `len` bytes long, initialised, and owned by exactly
//!    one buffer.
//! 2. It never moves, so a slice of it that the kernel fills stays valid while it is borrowed.
//!
//! Thread-safety: like a `Vec<u8>`. It is not counted in a budget; a long-term holder charges it.

#![expect(unsafe_code, reason = "an island: aligned raw memory, allocated and freed here only")]

use crate::base::limits::BLOCK_BYTES;
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// Bytes aligned to a block.
pub struct AlignedBuffer {
    memory: NonNull<u8>,
    len: usize,
}

// SAFETY: the buffer owns plain memory, which is not tied to a thread.
unsafe impl Send for AlignedBuffer {}
// SAFETY: through `&AlignedBuffer` the memory is only read.
unsafe impl Sync for AlignedBuffer {}

impl AlignedBuffer {
    /// `bytes` zeros. Panics, as `Vec` does, if that is more than half of the address space.
    #[must_use]
    pub fn new(bytes: usize) -> Self {
        if bytes == 0 {
            let memory = NonNull::<AlignedBlock>::dangling().cast();
            return Self { memory, len: 0 };
        }
        let layout = layout(bytes);
        // SAFETY: the layout has a size that is not zero.
        let memory = unsafe { alloc_zeroed(layout) };
        let Some(memory) = NonNull::new(memory) else { handle_alloc_error(layout) };
        Self { memory, len: bytes }
    }

    /// A copy of `bytes`.
    #[must_use]
    pub fn copy_from(bytes: &[u8]) -> Self {
        let mut buffer = Self::new(bytes.len());
        buffer.copy_from_slice(bytes);
        buffer
    }
}

/// Only its alignment is used, for the address of an empty buffer.
#[repr(align(4096))]
struct AlignedBlock;

const _: () = assert!(align_of::<AlignedBlock>() == BLOCK_BYTES);

/// The layout of a buffer of `bytes` bytes.
fn layout(bytes: usize) -> Layout {
    Layout::from_size_align(bytes, BLOCK_BYTES).expect("a buffer fits into the address space")
}

impl Drop for AlignedBuffer {
    fn drop(&mut self) {
        if self.len > 0 {
            // SAFETY: allocated in `new` with this layout, and freed once, here.
            unsafe { dealloc(self.memory.as_ptr(), layout(self.len)) };
        }
    }
}

impl Deref for AlignedBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: invariant 1; the borrow of `self` keeps the memory and excludes writes.
        unsafe { std::slice::from_raw_parts(self.memory.as_ptr(), self.len) }
    }
}

impl DerefMut for AlignedBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: invariant 1; the borrow of `self` keeps the memory and is the only access.
        unsafe { std::slice::from_raw_parts_mut(self.memory.as_ptr(), self.len) }
    }
}

impl fmt::Debug for AlignedBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AlignedBuffer({} bytes)", self.len)
    }
}

impl Clone for AlignedBuffer {
    fn clone(&self) -> Self {
        Self::copy_from(self)
    }
}

/// True if the slice can be used for direct I/O at this offset: address, length and offset are
/// multiples of a block.
#[must_use]
pub fn is_aligned(bytes: &[u8], offset: u64) -> bool {
    bytes.as_ptr().addr().is_multiple_of(BLOCK_BYTES)
        && bytes.len().is_multiple_of(BLOCK_BYTES)
        && offset.is_multiple_of(crate::base::limits::BLOCK_BYTES_U64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_aligned_zeroed_and_hold_what_is_written() {
        for bytes in [0, 1, 4095, 4096, 4097, 1 << 20] {
            let mut buffer = AlignedBuffer::new(bytes);
            assert_eq!(buffer.len(), bytes);
            assert_eq!(buffer.as_ptr().addr() % BLOCK_BYTES, 0);
            assert!(buffer.iter().all(|byte| *byte == 0));
            buffer.fill(7);
            let copy = buffer.clone();
            drop(buffer);
            assert!(copy.len() == bytes && copy.iter().all(|byte| *byte == 7));
        }
    }

    #[test]
    fn alignment_is_of_address_length_and_offset() {
        let buffer = AlignedBuffer::new(3 * BLOCK_BYTES);
        assert!(is_aligned(&buffer, 8192));
        assert!(!is_aligned(&buffer, 512));
        assert!(!is_aligned(&buffer[1..=BLOCK_BYTES], 0));
        assert!(!is_aligned(&buffer[..100], 0));
    }
}
