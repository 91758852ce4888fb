//! Memory mapped from the system, by the page.
//!
//! Large allocations with a limited lifetime have pages of their own: an allocator would keep freed
//! memory among smaller allocations, and the resident set would grow beyond the counted bytes.

#![expect(unsafe_code, reason = "an island: maps and unmaps memory")]

use crate::base::codec::Sink;
use std::alloc::Layout;
use std::ptr::NonNull;

/// The size of a page; mapped sizes are multiples of it.
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
    /// Maps `bytes` zeros, a multiple of [`PAGE_BYTES`] above zero. `None` if the system refuses.
    #[must_use]
    pub fn map(bytes: usize) -> Option<Self> {
        let memory = map(layout(bytes))?;
        Some(Self { memory, bytes })
    }

    /// A pointer to the first byte. The bytes never move, and stay until this is dropped; the
    /// holder must synchronize accesses through the pointer.
    #[inline]
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.memory.as_ptr()
    }

    /// The size in bytes.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Returns the memory to the system and keeps the address; the bytes read as zeros. If the
    /// system refuses, the memory stays allocated. `stay_small` prevents the system from later
    /// putting a large page, and with it memory, here and around it; each such piece among others
    /// counts against the number of mappings that a process may have.
    pub fn give_back(&mut self, stay_small: bool) {
        #[cfg(not(miri))]
        {
            if stay_small {
                advise(self.memory, self.bytes, rustix::mm::Advice::LinuxNoHugepage);
            }
            advise(self.memory, self.bytes, rustix::mm::Advice::LinuxDontNeed);
        }
        let _ = stay_small;
    }

    /// Makes the bytes read as zeros in child processes. False if the system cannot do that.
    pub fn clear_in_children(&mut self) -> bool {
        #[cfg(not(miri))]
        let cleared = {
            use rustix::mm::{Advice, madvise};
            // SAFETY: the memory is this value's alone, and stays what it is in this process.
            unsafe { madvise(self.as_ptr().cast(), self.bytes, Advice::LinuxWipeOnFork).is_ok() }
        };
        #[cfg(miri)]
        let cleared = false;
        cleared
    }

    /// Reverts `stay_small`.
    pub fn may_be_large(&mut self) {
        #[cfg(not(miri))]
        advise(self.memory, self.bytes, rustix::mm::Advice::LinuxHugepage);
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        #[cfg(not(miri))]
        // SAFETY: mapped in `map` with this size or cut from a region, and unmapped once, here, by
        // the only owner.
        unsafe {
            unmap(self.memory, self.bytes);
        };
        #[cfg(miri)]
        // SAFETY: allocated in `map` with this layout, and freed once, here.
        unsafe {
            std::alloc::dealloc(self.as_ptr(), layout(self.bytes));
        };
    }
}

/// A growable byte buffer. Up to [`PageBuffer::HEAP_BYTES_MAX`] bytes are on the heap, more in
/// pages of their own, which return to the system at once when the buffer is dropped.
#[derive(Default)]
pub struct PageBuffer {
    /// The content while there are no pages; empty afterwards.
    heap: Vec<u8>,
    /// The first `len` bytes of these are the content.
    pages: Option<Pages>,
    len: usize,
}

impl PageBuffer {
    /// The most bytes that stay on the heap.
    pub const HEAP_BYTES_MAX: usize = 32 << 10;

    /// An empty buffer without memory.
    #[must_use]
    pub const fn new() -> Self {
        Self { heap: Vec::new(), pages: None, len: 0 }
    }

    /// The bytes.
    #[inline]
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        match &self.pages {
            None => &self.heap,
            // SAFETY: the pages are this buffer's alone and have `len` bytes at least, which were
            // mapped as zeros or written since; they are written through `&mut` only.
            Some(pages) => unsafe { std::slice::from_raw_parts(pages.as_ptr(), self.len) },
        }
    }

    /// The number of bytes.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        if self.pages.is_none() { self.heap.len() } else { self.len }
    }

    /// The capacity in bytes.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.pages.as_ref().map_or(self.heap.capacity(), Pages::len)
    }

    /// Appends `bytes`.
    #[inline]
    pub fn put(&mut self, bytes: &[u8]) {
        if self.pages.is_none() && self.heap.len() + bytes.len() <= Self::HEAP_BYTES_MAX {
            self.heap.extend_from_slice(bytes);
        } else {
            self.put_in_pages(bytes);
        }
    }

    fn put_in_pages(&mut self, bytes: &[u8]) {
        let len = self.len();
        let end = len + bytes.len();
        match &self.pages {
            Some(pages) if end <= pages.len() => {}
            _ => self.move_to_pages(end),
        }
        let Some(pages) = &mut self.pages else { return };
        // SAFETY: the pages have `end` bytes at least, are this buffer's alone, and `bytes`, which
        // somebody else has borrowed, does not lie in them.
        unsafe {
            let place = pages.as_ptr().add(len);
            place.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
        }
        self.len = end;
    }

    /// Moves the content to pages for twice `bytes` bytes. Aborts the process if the system refuses
    /// memory, as a vector does.
    #[cold]
    fn move_to_pages(&mut self, bytes: usize) {
        let layout = layout((2 * bytes).next_multiple_of(PAGE_BYTES));
        let pages = Pages::map(layout.size());
        let pages = pages.unwrap_or_else(|| std::alloc::handle_alloc_error(layout));
        let old = self.as_slice();
        // SAFETY: the new pages have room for more than that, and nobody else has them.
        unsafe { pages.as_ptr().copy_from_nonoverlapping(old.as_ptr(), old.len()) };
        self.len = old.len();
        self.heap = Vec::new();
        self.pages = Some(pages);
    }

    /// Overwrites the first bytes, of which there are as many as `bytes` at least.
    pub fn overwrite_front(&mut self, bytes: &[u8]) {
        assert!(bytes.len() <= self.len(), "only bytes that are there are overwritten");
        match &mut self.pages {
            None => self.heap[..bytes.len()].copy_from_slice(bytes),
            // SAFETY: the pages have `len` bytes at least, are this buffer's alone, and `bytes`,
            // which somebody else has borrowed, does not lie in them.
            Some(pages) => unsafe {
                pages.as_ptr().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
            },
        }
    }

    /// Removes all bytes, and frees the memory if it is more than `capacity_max` bytes.
    pub fn clear(&mut self, capacity_max: usize) {
        if self.capacity() > capacity_max {
            *self = Self::new();
        }
        self.heap.clear();
        self.len = 0;
    }
}

/// Immutable bytes in pages of their own.
pub struct PagedBytes {
    pages: Pages,
    length: usize,
}

impl PagedBytes {
    /// Copies `bytes`, which must not be empty. `None` if the system refuses memory.
    #[must_use]
    pub fn copy_of(bytes: &[u8]) -> Option<Self> {
        let length = bytes.len();
        let pages = Pages::map(length.max(1).next_multiple_of(PAGE_BYTES))?;
        // SAFETY: the pages are as long at least, fresh, and nobody else has a pointer to them.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), pages.as_ptr(), length) };
        Some(Self { pages, length })
    }
}

impl std::ops::Deref for PagedBytes {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: `length` bytes were written when it was made, and none is written while it lives.
        unsafe { std::slice::from_raw_parts(self.pages.as_ptr(), self.length) }
    }
}

/// The size of a large page.
pub const LARGE_PAGE_BYTES: usize = 2 << 20;

/// Mapped memory from which pages are cut sequentially. They are adjacent, so that the system can
/// back them with large pages, which reduces TLB misses of random accesses. Each cut piece is
/// unmapped on its own.
pub struct Region {
    /// The start of the remaining bytes.
    next: NonNull<u8>,
    bytes: usize,
}

// SAFETY: it is plain memory that nobody has a part of; the pointer is not tied to a thread.
unsafe impl Send for Region {}

/// The address range of a region, which may be unmapped.
#[derive(Clone, Copy)]
pub struct Span {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: an address and a length; nothing is read or written through it.
unsafe impl Send for Span {}

impl Span {
    /// Enables or disables large pages for the span; existing large pages stay.
    pub fn want_large_pages(&self, wanted: bool) {
        #[cfg(not(miri))]
        {
            use rustix::mm::Advice;
            let advice = if wanted { Advice::LinuxHugepage } else { Advice::LinuxNoHugepage };
            advise(self.start, self.bytes, advice);
        }
        let _ = (self.start, self.bytes, wanted);
    }
}

impl Region {
    /// Maps `bytes` zeros, a multiple of [`LARGE_PAGE_BYTES`] above zero. They take no memory until
    /// they, or bytes on the same page, are written. `None` if the system refuses.
    #[must_use]
    pub fn map(bytes: usize) -> Option<Self> {
        assert!(bytes.is_multiple_of(LARGE_PAGE_BYTES), "{bytes} bytes are no large pages");
        #[cfg(not(miri))]
        {
            // Enough that large pages fit wherever it begins.
            let whole = layout(bytes + LARGE_PAGE_BYTES);
            let start = map(whole)?;
            let before = start.align_offset(LARGE_PAGE_BYTES);
            // SAFETY: all three parts lie within what was mapped, the first and the last are
            // unmapped once, here, and nobody has the one between but the region.
            let next = unsafe {
                unmap(start, before);
                let next = start.add(before);
                unmap(next.add(bytes), whole.size() - before - bytes);
                next
            };
            Some(Self { next, bytes })
        }
        #[cfg(miri)]
        Some(Self { next: NonNull::dangling(), bytes })
    }

    /// The address range of the remaining bytes.
    #[must_use]
    pub fn span(&self) -> Span {
        Span { start: self.next, bytes: self.bytes }
    }

    /// The number of remaining bytes.
    #[must_use]
    pub fn left(&self) -> usize {
        self.bytes
    }

    /// Cuts `bytes` off, a multiple of [`PAGE_BYTES`]; `None` if less is left.
    pub fn cut(&mut self, bytes: usize) -> Option<Pages> {
        layout(bytes);
        self.bytes = self.bytes.checked_sub(bytes)?;
        #[cfg(not(miri))]
        {
            let memory = self.next;
            // SAFETY: this many bytes were left, so the end of these is within them or their end.
            self.next = unsafe { memory.add(bytes) };
            Some(Pages { memory, bytes })
        }
        #[cfg(miri)]
        Pages::map(bytes)
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        #[cfg(not(miri))]
        // SAFETY: what is left was mapped in `map`, was not cut off, and is unmapped once, here.
        unsafe {
            unmap(self.next, self.bytes);
        };
    }
}

/// Advises the system how memory will be used. A refusal only costs time.
#[cfg(not(miri))]
fn advise(memory: NonNull<u8>, bytes: usize, advice: rustix::mm::Advice) {
    // SAFETY: called in this file only. Advice on page sizes does not change memory content; advice
    // that zeros memory is only given for memory owned by the caller.
    let _ = unsafe { rustix::mm::madvise(memory.as_ptr().cast(), bytes, advice) };
}

/// # Safety
/// The memory was mapped by [`map`], and nobody has any of it.
#[cfg(not(miri))]
unsafe fn unmap(memory: NonNull<u8>, bytes: usize) {
    if bytes > 0 {
        // SAFETY: the caller's.
        let _ = unsafe { rustix::mm::munmap(memory.as_ptr().cast(), bytes) };
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

impl Sink for PageBuffer {
    #[inline]
    fn push(&mut self, byte: u8) {
        PageBuffer::put(self, &[byte]);
    }

    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        PageBuffer::put(self, bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_zeroed_and_aligned_and_come_back_as_zeros() {
        let mut pages = Pages::map(3 * PAGE_BYTES).unwrap();
        assert_eq!((pages.len(), pages.as_ptr().addr() % PAGE_BYTES), (3 * PAGE_BYTES, 0));
        // SAFETY: the bytes are mapped, and nobody else has them.
        let last = unsafe { &mut *pages.as_ptr().add(3 * PAGE_BYTES - 1) };
        assert_eq!(std::mem::replace(last, 7), 0);
        pages.give_back(true);
        pages.may_be_large();
        // SAFETY: as above.
        let last = unsafe { *pages.as_ptr().add(3 * PAGE_BYTES - 1) };
        assert_eq!(last, if cfg!(miri) { 7 } else { 0 });
    }

    #[test]
    fn a_buffer_keeps_its_bytes_when_it_moves_from_the_heap_to_pages_and_grows() {
        let mut buffer = PageBuffer::new();
        let mut model = Vec::new();
        for round in 0..2 {
            for number in 0..300_u32 {
                let bytes = vec![number.to_le_bytes()[0]; number as usize];
                buffer.put(&bytes);
                model.extend_from_slice(&bytes);
                assert_eq!(buffer.as_slice().len(), model.len());
                assert!(buffer.capacity() >= model.len());
            }
            buffer.put(&[]);
            for front in [&[][..], &[1, 2, 3]] {
                buffer.overwrite_front(front);
                model[..front.len()].copy_from_slice(front);
                assert!(buffer.as_slice() == model);
            }
            let in_pages = buffer.capacity();
            assert!(in_pages > PageBuffer::HEAP_BYTES_MAX);
            let kept = if round == 0 { in_pages } else { in_pages - 1 };
            buffer.clear(kept);
            model.clear();
            assert_eq!(buffer.as_slice(), []);
            assert_eq!(buffer.capacity(), if round == 0 { in_pages } else { 0 });
        }
    }

    #[test]
    fn what_is_cut_from_a_region_lies_side_by_side_and_outlives_it() {
        let mut region = Region::map(LARGE_PAGE_BYTES).unwrap();
        region.span().want_large_pages(true);
        let part = LARGE_PAGE_BYTES / 4;
        let pages: Vec<_> = std::iter::from_fn(|| region.cut(part)).collect();
        assert_eq!(pages.len(), 4);
        drop(region);
        if cfg!(not(miri)) {
            assert!(pages[0].as_ptr().addr().is_multiple_of(LARGE_PAGE_BYTES));
            let next = |pair: &[Pages]| pair[1].as_ptr().addr() - pair[0].as_ptr().addr();
            assert!(pages.windows(2).all(|pair| next(pair) == part));
        }
        for (number, pages) in (1..).zip(&pages) {
            // SAFETY: the bytes are mapped, and nobody else has them.
            let last = unsafe { &mut *pages.as_ptr().add(part - 1) };
            assert_eq!(std::mem::replace(last, number), 0);
        }
        drop(Region::map(LARGE_PAGE_BYTES));
    }
}
