//! Batched reads and writes through `io_uring`, from a pool of small rings.
//!
//! A ring has [`RING_ENTRIES`] entries and belongs to one batch at a time: the batch, of reads or
//! of writes, is queued, submitted with one system call, and waited for to the last request; in
//! between the caller of reads may do other work. Where the kernel or a sandbox refuses rings,
//! [`Rings::read`] and [`Rings::write`] do nothing, and the caller reads or writes one by one.
//!
//! ```text
//!    queued ---- io_uring_enter ----> in flight ---- kernel ----> completed
//!      |                                  (the kernel fills the buffer, or takes bytes from it)
//!      '-- submission refused: the ring is discarded, so that nothing queued is ever submitted
//! ```
//!
//! Invariants:
//! 1. Between calls of [`Rings::read`] and [`Rings::write`] no request is in flight: the call (also
//!    when it unwinds) waits for every request that the kernel accepted. So no buffer is released
//!    or changed while the kernel uses it.
//! 2. A ring in the pool has nothing queued and no unread completion.
//!
//! Thread-safety: any thread may call; each call has a ring of its own. A forked process must not
//! use inherited rings (they are not mapped there); it opens its own directory.
//!
//! Results are not interpreted here: a failed or short request reports how many bytes were
//! transferred, and the caller reads or writes the rest, which also yields the typed error.

#![expect(unsafe_code, reason = "an island: the kernel uses buffers that are queued here")]

use super::{ReadRequest, WriteRequest};
use crate::runtime::sync::{AtomicBool, Mutex, Ordering};
use io_uring::{EnterFlags, IoUring, opcode, squeue, types};
use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// The most requests of one batch: deeper queues gain nothing on the devices measured.
pub const RING_ENTRIES: usize = 64;

/// [`RING_ENTRIES`] as `u32`, for the system call.
const RING_ENTRIES_U32: u32 = 64;

const _: () = assert!(RING_ENTRIES_U32 as usize == RING_ENTRIES);

/// The most idle rings kept: each is a file descriptor and two pages.
const IDLE_RINGS_MAX: usize = 16;

/// The longest request that goes through a ring, in bytes; longer ones gain nothing from it.
const RING_REQUEST_BYTES_MAX: usize = 1 << 30;

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
        let descriptor = types::Fd(file.as_raw_fd());
        let entries = requests.iter_mut().map(|request| {
            let length = length_of(request.offset, request.buffer.len())?;
            usable(request).then(|| {
                opcode::Read::new(descriptor, request.buffer.as_mut_ptr(), length)
                    .offset(request.offset)
                    .build()
            })
        });
        // SAFETY: the buffers are borrowed mutably by `requests`, and the file by `file`, until
        // this function returns.
        unsafe { self.transfer(entries, filled, meanwhile) }
    }

    /// Writes those of `requests` (at most [`RING_ENTRIES`] of them) for which `usable` holds, and
    /// sets `written` to the number of bytes written of each, which may be zero.
    pub fn write(
        &self,
        file: BorrowedFd<'_>,
        requests: &[WriteRequest<'_>],
        written: &mut [usize; RING_ENTRIES],
        usable: impl Fn(&WriteRequest<'_>) -> bool,
    ) {
        let descriptor = types::Fd(file.as_raw_fd());
        let entries = requests.iter().map(|request| {
            let length = length_of(request.offset, request.bytes.len())?;
            usable(request).then(|| {
                opcode::Write::new(descriptor, request.bytes.as_ptr(), length)
                    .offset(request.offset)
                    .build()
            })
        });
        // SAFETY: the bytes are borrowed by `requests`, and the file by `file`, until this function
        // returns; the kernel only reads them.
        unsafe { self.transfer(entries, written, &mut || {}) }
    }

    /// Does the requests of `entries` (at most [`RING_ENTRIES`]; `None` is left alone) in one
    /// batch, and sets `done` to the number of bytes transferred for each.
    ///
    /// # Safety
    ///
    /// Until this function returns or unwinds, the file and the memory of every entry must stay
    /// valid, and nothing else may access memory that is read into, or change memory that is
    /// written from.
    unsafe fn transfer(
        &self,
        entries: impl Iterator<Item = Option<squeue::Entry>>,
        done: &mut [usize; RING_ENTRIES],
        meanwhile: &mut dyn FnMut(),
    ) {
        *done = [0; RING_ENTRIES];
        let Some(mut ring) = self.take() else { return };
        // SAFETY: as the caller of this function ensures.
        if unsafe { run(&mut ring, entries, done, meanwhile) } {
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

/// The length of a request of `bytes` bytes at `offset` in a ring, if it may go through one. An
/// offset that no file has does not: to the kernel `u64::MAX` is the position of the descriptor.
fn length_of(offset: u64, bytes: usize) -> Option<u32> {
    if bytes == 0 || bytes > RING_REQUEST_BYTES_MAX || i64::try_from(offset).is_err() {
        return None;
    }
    u32::try_from(bytes).ok()
}

/// Runs one batch; false if the ring must not be used again.
///
/// # Safety
///
/// As of [`Rings::transfer`].
unsafe fn run(
    ring: &mut IoUring,
    entries: impl Iterator<Item = Option<squeue::Entry>>,
    done: &mut [usize; RING_ENTRIES],
    meanwhile: &mut dyn FnMut(),
) -> bool {
    let mut batch = Batch { ring, queued: 0, completed: 0, done };
    for (index, entry) in (0_u64..).zip(entries.take(RING_ENTRIES)) {
        let Some(entry) = entry else { continue };
        let entry = entry.user_data(index);
        // SAFETY: the caller ensures that file and memory are valid until this function returns,
        // and `batch` waits for the kernel before that, also when it is dropped by unwinding
        // (invariant 1).
        if unsafe { batch.ring.submission().push(&entry) }.is_err() {
            break;
        }
        batch.queued += 1;
    }
    batch.finish(meanwhile)
}

/// The requests of one call. Dropping it waits for those in flight.
struct Batch<'a> {
    ring: &'a mut IoUring,
    /// The number of requests put into the ring.
    queued: usize,
    /// The number of requests the kernel has finished.
    completed: usize,
    /// The number of bytes transferred for each request.
    done: &'a mut [usize; RING_ENTRIES],
}

impl Batch<'_> {
    /// Submits, calls `meanwhile`, and waits for all requests; false if the kernel did not accept
    /// all of them.
    fn finish(mut self, meanwhile: &mut dyn FnMut()) -> bool {
        // Requests not accepted here are submitted again below.
        if self.queued > 0 && self.ring.submit().is_ok() {
            meanwhile();
        }
        while self.completed < self.queued {
            let outcome = self.ring.submit_and_wait(self.queued - self.completed);
            self.collect();
            match outcome {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // Out of memory or forbidden: `drop` waits for requests in flight.
                Err(_) => return self.ring.submission().is_empty(),
            }
        }
        true
    }

    /// The number of requests that the kernel accepted and has not finished.
    fn in_flight(&mut self) -> usize {
        let waiting = self.ring.submission().len();
        (self.queued - self.completed).saturating_sub(waiting)
    }

    /// Collects completions.
    fn collect(&mut self) {
        for completion in self.ring.completion() {
            self.completed += 1;
            let place = usize::try_from(completion.user_data()).unwrap_or(usize::MAX);
            if let Some(done) = self.done.get_mut(place) {
                // Negative results are errors: no bytes were transferred for certain.
                *done = usize::try_from(completion.result()).unwrap_or(0);
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
    use std::io::{Read as _, Seek as _, Write as _};
    use std::os::fd::AsFd as _;

    const RING_ENTRIES_U8: u8 = 64;

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
    fn a_batch_writes_what_is_usable_and_the_ring_is_used_again() {
        if IoUring::new(RING_ENTRIES_U32).is_err() {
            return;
        }
        let mut file = tempfile::tempfile().unwrap();
        let rings = Rings::default();
        for round in 1..4 {
            file.set_len(0).unwrap();
            let buffers: Vec<_> = (0..RING_ENTRIES_U8).map(|at| vec![round + at; 100]).collect();
            let mut requests: Vec<_> = (0_u64..)
                .zip(&buffers)
                .map(|(index, bytes)| WriteRequest { offset: index * 157, bytes })
                .collect();
            // The last one has no place in a file, the first must be left alone.
            requests[RING_ENTRIES - 1].offset = u64::MAX;
            let mut written = [9; RING_ENTRIES];
            rings.write(file.as_fd(), &requests, &mut written, |request| request.offset > 0);
            assert_eq!((written[0], written[1], written[RING_ENTRIES - 1]), (0, 100, 0));
            let mut content = Vec::new();
            file.rewind().unwrap();
            file.read_to_end(&mut content).unwrap();
            assert_eq!(content.len(), (RING_ENTRIES - 2) * 157 + 100);
            assert_eq!(content[..157], [0; 157]);
            assert_eq!(content[5 * 157..][..100], buffers[5]);
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
        let mut batch = Batch { ring: &mut ring, queued: 0, completed: 0, done: &mut filled };
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
