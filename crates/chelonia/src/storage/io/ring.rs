//! Batched reads through `io_uring`, from a pool of small rings.
//!
//! A ring has [`RING_ENTRIES`] entries and belongs to one batch at a time: the batch is queued,
//! submitted with one system call, and waited for to the last read; in between the caller may do
//! other work. Where the kernel or a sandbox refuses rings, [`Rings::read`] does nothing, and the
//! caller reads one by one.
//!
//! ```text
//!    queued ---- io_uring_enter ----> in flight ---- kernel ----> completed
//!      |                                  (the kernel writes to the buffer)
//!      '-- submission refused: the ring is discarded, so that nothing queued is ever submitted
//! ```
//!
//! Invariants:
//! 1. Between calls of [`Rings::read`] no read is in flight: the call (also when it unwinds) waits
//!    for every read that the kernel accepted. So no buffer is released while the kernel writes to
//!    it.
//! 2. A ring in the pool has nothing queued and no unread completion.
//!
//! Thread-safety: any thread may call; each call has a ring of its own. A forked process must not
//! use inherited rings (they are not mapped there); it opens its own directory.
//!
//! Results are not interpreted here: a failed or short read reports how many bytes it filled, and
//! the caller reads the rest, which also yields the typed error.

#![expect(unsafe_code, reason = "an island: the kernel writes to buffers that are queued here")]

use super::ReadRequest;
use crate::runtime::sync::{AtomicBool, Mutex, Ordering};
use io_uring::{EnterFlags, IoUring, opcode, types};
use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

/// The most reads of one batch: deeper queues gain nothing on the devices measured.
pub const RING_ENTRIES: usize = 64;

/// [`RING_ENTRIES`] as `u32`, for the system call.
const RING_ENTRIES_U32: u32 = 64;

const _: () = assert!(RING_ENTRIES_U32 as usize == RING_ENTRIES);

/// The most idle rings kept: each is a file descriptor and two pages.
const IDLE_RINGS_MAX: usize = 16;

/// The longest read that goes through a ring, in bytes; longer ones gain nothing from it.
const RING_READ_BYTES_MAX: usize = 1 << 30;

/// A pool of rings.
#[derive(Default)]
pub struct Rings {
    idle: Mutex<Vec<IoUring>>,
    /// The system refuses rings: never ask again.
    refused: AtomicBool,
}

impl fmt::Debug for Rings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Rings({} idle)", self.idle.lock().len())
    }
}

impl Rings {
    /// A pool without rings, as on a system that refuses them.
    #[cfg(test)]
    pub fn refused() -> Self {
        Self { idle: Mutex::default(), refused: AtomicBool::new(true) }
    }

    /// Reads those of `requests` (at most [`RING_ENTRIES`] of them) for which `usable` holds, and
    /// sets `filled` to the number of bytes read for each, which may be zero. `meanwhile` is called
    /// while they are in flight, if any is.
    pub fn read(
        &self,
        file: BorrowedFd<'_>,
        requests: &mut [ReadRequest<'_>],
        filled: &mut [usize; RING_ENTRIES],
        usable: impl Fn(&ReadRequest<'_>) -> bool,
        meanwhile: &mut dyn FnMut(),
    ) {
        *filled = [0; RING_ENTRIES];
        let Some(mut ring) = self.take() else { return };
        if run(&mut ring, file.as_raw_fd(), requests, filled, usable, meanwhile) {
            let mut idle = self.idle.lock();
            if idle.len() < IDLE_RINGS_MAX {
                idle.push(ring);
            }
        }
    }

    fn take(&self) -> Option<IoUring> {
        if self.refused.load(Ordering::Relaxed) {
            return None;
        }
        if let Some(ring) = self.idle.lock().pop() {
            return Some(ring);
        }
        match build() {
            Ok(ring) => Some(ring),
            Err(error) => {
                let lasting = matches!(
                    error.kind(),
                    io::ErrorKind::PermissionDenied
                        | io::ErrorKind::Unsupported
                        | io::ErrorKind::InvalidInput
                );
                // Temporarily out of file descriptors or memory: the next call may succeed.
                if lasting {
                    self.refused.store(true, Ordering::Relaxed);
                }
                None
            }
        }
    }
}

/// Creates a ring. If the kernel supports it (5.19 and later) completions do not interrupt the
/// thread, which waits for the last of them anyway.
fn build() -> io::Result<IoUring> {
    let mut quiet = IoUring::builder();
    quiet.dontfork().setup_coop_taskrun();
    quiet.build(RING_ENTRIES_U32).or_else(|_| IoUring::builder().dontfork().build(RING_ENTRIES_U32))
}

/// Runs one batch; false if the ring must not be used again.
fn run(
    ring: &mut IoUring,
    file: RawFd,
    requests: &mut [ReadRequest<'_>],
    filled: &mut [usize; RING_ENTRIES],
    usable: impl Fn(&ReadRequest<'_>) -> bool,
    meanwhile: &mut dyn FnMut(),
) -> bool {
    let mut batch = Batch { ring, queued: 0, completed: 0, filled };
    for (index, request) in (0_u64..).zip(requests.iter_mut().take(RING_ENTRIES)) {
        let bytes = request.buffer.len();
        let (true, Ok(length)) = (bytes <= RING_READ_BYTES_MAX, u32::try_from(bytes)) else {
            continue;
        };
        if length == 0 || !usable(request) {
            continue;
        }
        let entry = opcode::Read::new(types::Fd(file), request.buffer.as_mut_ptr(), length)
            .offset(request.offset)
            .build()
            .user_data(index);
        // SAFETY: the buffer is borrowed mutably by `requests` until this function returns, and
        // `batch` waits for the kernel before that, also when it is dropped by unwinding
        // (invariant 1). The file stays open, for the caller borrows it as long.
        if unsafe { batch.ring.submission().push(&entry) }.is_err() {
            break;
        }
        batch.queued += 1;
    }
    batch.finish(meanwhile)
}

/// The reads of one call. Dropping it waits for those in flight.
struct Batch<'a> {
    ring: &'a mut IoUring,
    /// The number of reads put into the ring.
    queued: usize,
    /// The number of reads the kernel has finished.
    completed: usize,
    filled: &'a mut [usize; RING_ENTRIES],
}

impl Batch<'_> {
    /// Submits, calls `meanwhile`, and waits for all reads; false if the kernel did not accept all
    /// of them.
    fn finish(mut self, meanwhile: &mut dyn FnMut()) -> bool {
        // Reads not accepted here are submitted again below.
        if self.queued > 0 && self.ring.submit().is_ok() {
            meanwhile();
        }
        while self.completed < self.queued {
            let outcome = self.ring.submit_and_wait(self.queued - self.completed);
            self.collect();
            match outcome {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // Out of memory or forbidden: `drop` waits for reads in flight.
                Err(_) => return self.ring.submission().is_empty(),
            }
        }
        true
    }

    /// The number of reads that the kernel accepted and has not finished.
    fn in_flight(&mut self) -> usize {
        let waiting = self.ring.submission().len();
        (self.queued - self.completed).saturating_sub(waiting)
    }

    /// Collects completions.
    fn collect(&mut self) {
        for completion in self.ring.completion() {
            self.completed += 1;
            let place = usize::try_from(completion.user_data()).unwrap_or(usize::MAX);
            if let Some(filled) = self.filled.get_mut(place) {
                // Negative results are errors: no valid bytes.
                *filled = usize::try_from(completion.result()).unwrap_or(0);
            }
        }
    }
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        loop {
            self.collect();
            let in_flight = u32::try_from(self.in_flight()).unwrap_or(u32::MAX);
            if in_flight == 0 {
                return;
            }
            let flags = EnterFlags::GETEVENTS.bits();
            // SAFETY: submits nothing, waits for what is in flight, and passes no argument.
            let outcome = unsafe { self.ring.submitter().enter::<u64>(0, in_flight, flags, None) };
            if outcome.is_err() {
                // Completions also arrive at the end of any other system call of this thread.
                std::thread::yield_now();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;
    use std::os::fd::AsFd as _;

    #[test]
    fn a_batch_fills_what_is_usable_and_the_ring_is_used_again() {
        if IoUring::new(RING_ENTRIES_U32).is_err() {
            return;
        }
        let mut file = tempfile::tempfile().unwrap();
        let content: Vec<u8> = (0..=255).cycle().take(10_000).collect();
        file.write_all(&content).unwrap();
        let rings = Rings::default();
        for _ in 0..3 {
            let mut buffers = vec![vec![0; 100]; RING_ENTRIES];
            let mut requests: Vec<_> = (0_u64..)
                .zip(&mut buffers)
                .map(|(index, buffer)| ReadRequest { offset: index * 157, buffer })
                .collect();
            // The last one ends past the end of the file, the first must be left alone.
            requests[RING_ENTRIES - 1].offset = 9_950;
            let mut filled = [0; RING_ENTRIES];
            let mut called = 0;
            let usable = |request: &ReadRequest<'_>| request.offset > 0;
            rings.read(file.as_fd(), &mut requests, &mut filled, usable, &mut || called += 1);
            assert_eq!(called, 1);
            assert_eq!((filled[0], filled[1], filled[RING_ENTRIES - 1]), (0, 100, 50));
            assert_eq!(buffers[5], content[5 * 157..][..100]);
            assert_eq!(buffers[RING_ENTRIES - 1][..50], content[9_950..]);
            assert_eq!(rings.idle.lock().len(), 1);
        }
    }

    #[test]
    fn a_batch_that_is_dropped_waits_for_its_reads() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[7; 4096]).unwrap();
        let Ok(mut ring) = IoUring::new(RING_ENTRIES_U32) else { return };
        let mut buffer = vec![0; 4096];
        let mut filled = [0; RING_ENTRIES];
        let mut batch = Batch { ring: &mut ring, queued: 0, completed: 0, filled: &mut filled };
        let entry = opcode::Read::new(types::Fd(file.as_raw_fd()), buffer.as_mut_ptr(), 4096)
            .build()
            .user_data(3);
        // SAFETY: the buffer lives until the batch was dropped, which waits.
        unsafe { batch.ring.submission().push(&entry) }.unwrap();
        batch.queued = 1;
        batch.ring.submit().unwrap();
        drop(batch);
        assert_eq!(filled[3], 4096);
        assert!(buffer.iter().all(|byte| *byte == 7));
        assert!(ring.completion().is_empty());
    }
}
