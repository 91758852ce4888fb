//! The standard descriptors that were closed when the program started.
//!
//! The standard library opens `/dev/null` in place of closed ones, so that no file of the program
//! gets their numbers. Then `get DB KEY >&-` would print to nowhere and `put DB KEY <&-` would
//! store an empty value, both without an error. So the descriptors are checked before.

#![expect(unsafe_code, reason = "an island: a function that runs before the standard library's")]

use rustix::io::{Errno, fcntl_getfd};
use std::io;
use std::os::fd::{BorrowedFd, RawFd};
use std::sync::atomic::{AtomicU8, Ordering};

/// Standard input.
pub const INPUT: RawFd = 0;

/// Standard output.
pub const OUTPUT: RawFd = 1;

/// A bit for each descriptor that was closed.
static CLOSED: AtomicU8 = AtomicU8::new(0);

/// The system's loader calls the functions in this section before `main` and the standard library.
// SAFETY: the section contains addresses of functions of this kind, and nothing else.
#[used]
#[unsafe(link_section = ".init_array")]
static BEFORE_MAIN: extern "C" fn() = look;

extern "C" fn look() {
    for number in [INPUT, OUTPUT] {
        // SAFETY: the call does not change the file; the system returns EBADF if none is open.
        let descriptor = unsafe { BorrowedFd::borrow_raw(number) };
        if fcntl_getfd(descriptor) == Err(Errno::BADF) {
            CLOSED.fetch_or(1 << number, Ordering::Relaxed);
        }
    }
}

/// True if the program was started with this standard descriptor closed.
pub fn is_closed(number: RawFd) -> bool {
    CLOSED.load(Ordering::Relaxed) & 1 << number != 0
}

/// The error of reading or writing a closed descriptor.
pub fn closed() -> io::Error {
    io::Error::other("it is closed")
}
