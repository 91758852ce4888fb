//! Memory straight from the system, by the page.
//!
//! What is large, and comes and goes, has pages of its own: an allocator would keep what is freed
//! among smaller things, and the resident set would grow beyond what is counted.

#![expect(unsafe_code, reason = "an island: maps and unmaps memory")]

use std::alloc::{Layout, handle_alloc_error};
use std::ptr::NonNull;

/// The size of a page: what is asked for is a multiple of it.
pub const PAGE_BYTES: usize = 4096;

/// Mapped memory, aligned to a page. Zeroed when fresh.
pub struct Pages {
    memory: NonNull<u8>,
    bytes: usize,
}

// SAFETY: it is plain memory with one owner; the pointer is not tied to a thread.
unsafe impl Send for Pages {}

// SAFETY: through `&Pages` there is no access but by a pointer, whose users order theirs.
unsafe impl Sync for Pages {}

impl Pages {
    /// Maps `bytes` zeros, a multiple of [`PAGE_BYTES`] above zero.
    #[must_use]
    pub fn map(bytes: usize) -> Self {
        let layout = layout(bytes);
        match map(layout) {
            Some(memory) => Self { memory, bytes },
            None => handle_alloc_error(layout),
        }
    }

    /// The first of the bytes. They never move, and stay until this is dropped; what is shared
    /// through the pointer is for the holder to order.
    #[inline]
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.memory.as_ptr()
    }

    /// How many bytes there are.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Gives the memory back to the system and keeps the address; what was there reads as zeros. If
    /// the system refuses the memory stays, which only costs it.
    pub fn give_back(&mut self) {
        #[cfg(not(miri))]
        {
            use rustix::mm::{Advice, madvise};
            // SAFETY: the range was mapped in `map`, is not unmapped yet, and nobody but `self` has
            // it.
            let _ = unsafe { madvise(self.as_ptr().cast(), self.bytes, Advice::LinuxDontNeed) };
        }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        #[cfg(not(miri))]
        // SAFETY: mapped in `map` with this size, and unmapped once, here, by the only owner.
        let _ = unsafe { rustix::mm::munmap(self.as_ptr().cast(), self.bytes) };
        #[cfg(miri)]
        // SAFETY: allocated in `map` with this layout, and freed once, here.
        unsafe {
            std::alloc::dealloc(self.as_ptr(), layout(self.bytes));
        };
    }
}

fn layout(bytes: usize) -> Layout {
    assert!(bytes > 0 && bytes.is_multiple_of(PAGE_BYTES), "{bytes} bytes are no pages");
    match Layout::from_size_align(bytes, PAGE_BYTES) {
        Ok(layout) => layout,
        Err(_) => unreachable!("no memory is that large"),
    }
}

#[cfg(not(miri))]
fn map(layout: Layout) -> Option<NonNull<u8>> {
    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: the system chooses the place, where nothing is.
    let mapped =
        unsafe { mmap_anonymous(std::ptr::null_mut(), layout.size(), access, MapFlags::PRIVATE) };
    NonNull::new(mapped.ok()?.cast())
}

#[cfg(miri)]
fn map(layout: Layout) -> Option<NonNull<u8>> {
    // SAFETY: the layout has a size that is not zero.
    NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_zeroed_and_aligned_and_come_back_as_zeros() {
        let mut pages = Pages::map(3 * PAGE_BYTES);
        assert_eq!((pages.len(), pages.as_ptr().addr() % PAGE_BYTES), (3 * PAGE_BYTES, 0));
        // SAFETY: the bytes are mapped, and nobody else has them.
        let last = unsafe { &mut *pages.as_ptr().add(3 * PAGE_BYTES - 1) };
        assert_eq!(std::mem::replace(last, 7), 0);
        pages.give_back();
        // SAFETY: as above.
        let last = unsafe { *pages.as_ptr().add(3 * PAGE_BYTES - 1) };
        assert_eq!(last, if cfg!(miri) { 7 } else { 0 });
    }
}
