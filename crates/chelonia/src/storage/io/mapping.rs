//! Memory mapped from a file, and the list of all mappings of a file. When storing to it is safe:
//! `mapped.rs`.
//!
//! A sync makes each page that it writes read-only again, and each time all processors that run the
//! process are interrupted to flush their TLB entry. So a sync first removes the written pages from
//! the mapping, with one interruption for all of them ([`Mappings::let_go_written`]): content and
//! dirty state stay with the kernel's page, which is mapped again if it is touched.
//!
//! Thread-safety: a mapping is written by one holder, whose copies are sequential; hints may be
//! given meanwhile. The memory is never read here.

#![expect(unsafe_code, reason = "an island: memory mapped from files")]

use crate::runtime::sync::{Arc, AtomicUsize, Mutex, Ordering, Weak};
use rustix::io::{Errno, retry_on_intr};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};
use std::ffi::c_void;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

/// The mappings of a file.
#[derive(Default, Debug)]
pub struct Mappings(Mutex<Vec<Weak<Mapping>>>);

impl Mappings {
    /// Adds a mapping of the file.
    pub fn add(&self, mapping: &Arc<Mapping>) {
        let mut mappings = self.0.lock();
        mappings.retain(|mapping| mapping.strong_count() > 0);
        mappings.push(Arc::downgrade(mapping));
    }

    /// Removes the pages written since the last call from the mappings. This only affects the cost
    /// of the next sync, and of the next copy to one of these pages.
    pub fn let_go_written(&self) {
        let mappings: Vec<_> = self.0.lock().iter().filter_map(Weak::upgrade).collect();
        mappings.iter().for_each(|mapping| mapping.let_go_written());
    }
}

/// Advice to the system about pages of a mapping.
#[derive(Clone, Copy)]
enum Hint {
    /// Read the pages in.
    ReadIn,
    /// Unmap the pages; their content stays with the file.
    LetGo,
}

/// Memory mapped from a file; unmapped when dropped.
#[derive(Debug)]
pub struct Mapping {
    /// The start, aligned to a system page.
    start: NonNull<c_void>,
    bytes: usize,
    /// The start of the furthest copy: bytes before it are complete, except for copies in progress.
    reached_bytes: AtomicUsize,
    /// Pages before this offset were unmapped.
    gone_bytes: AtomicUsize,
}

// SAFETY: the mapping is plain memory and not tied to a thread.
unsafe impl Send for Mapping {}
// SAFETY: through `&Mapping` content changes only by `copy`, whose caller makes one at a time.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps and touches a window of a file; `None` if the kernel could not serve it.
    pub fn new(
        file: BorrowedFd<'_>,
        offset: u64,
        bytes: usize,
    ) -> rustix::io::Result<Option<Self>> {
        // SAFETY: the kernel chooses the address, so nothing that exists is replaced.
        let start = unsafe {
            mmap(
                std::ptr::null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                file,
                offset,
            )
        }?;
        let start = NonNull::new(start).ok_or(Errno::NOMEM)?;
        let (reached_bytes, gone_bytes) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let mapping = Self { start, bytes, reached_bytes, gone_bytes };
        match mapping.advise(0, bytes, Hint::ReadIn) {
            // An old kernel (before 5.14) does not know the advice: pages are touched when used.
            Ok(()) | Err(Errno::INVAL) => Ok(Some(mapping)),
            Err(_) => Ok(None),
        }
    }

    fn advise(&self, from: usize, bytes: usize, hint: Hint) -> rustix::io::Result<()> {
        let within = from.checked_add(bytes).is_some_and(|end| end <= self.bytes);
        assert!(within, "a hint reaches past the end of its mapping");
        let advice = match hint {
            Hint::ReadIn => Advice::LinuxPopulateRead,
            Hint::LetGo => Advice::LinuxDontNeed,
        };
        // SAFETY: the range lies within the mapping, which exists while `self` does, and neither
        // hint changes what is in memory that is shared with a file.
        retry_on_intr(|| unsafe { madvise(self.start.as_ptr().byte_add(from), bytes, advice) })
    }

    /// Copies `bytes` to `place`.
    ///
    /// # Safety
    ///
    /// The range lies within the mapping, and no other copy to the mapping is under way.
    pub unsafe fn copy(&self, place: usize, bytes: &[u8]) {
        // SAFETY: the caller's promise. Nobody makes references into the mapping, so `bytes` does
        // not overlap it.
        unsafe {
            let place = self.start.as_ptr().cast::<u8>().add(place);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), place, bytes.len());
        }
        // Copies are sequential: nothing is lost between load and store.
        if place > self.reached_bytes.load(Ordering::Relaxed) {
            self.reached_bytes.store(place, Ordering::Relaxed);
        }
    }

    fn let_go_written(&self) {
        let reached = self.reached_bytes.load(Ordering::Relaxed);
        let end = reached - reached % rustix::param::page_size();
        let from = self.gone_bytes.swap(end, Ordering::Relaxed);
        if end > from {
            // A refusal only costs the optimization.
            let _ = self.advise(from, end - from, Hint::LetGo);
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `new` with this length, is unmapped once, here, and no
        // reference into it exists.
        let outcome = unsafe { munmap(self.start.as_ptr(), self.bytes) };
        debug_assert!(outcome.is_ok(), "a mapping that exists can be unmapped");
    }
}
