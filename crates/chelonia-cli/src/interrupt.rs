//! Ctrl-C: what a command that takes long does about it.
//!
//! ```text
//!   first signal    noted; the command ends at the next record, and keeps what it has done
//!   second signal   the process ends at once, as without any of this
//! ```
//!
//! SIGINT, SIGTERM and SIGHUP are treated alike, unless the program was started so that it ignores
//! them, as `nohup` does. A read that waits for its input (a pipe, a
//! terminal) is interrupted too. A command that does not ask for it ends at the first signal.

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::{flag, low_level::pipe};
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// What a shell makes of a process that a signal ended: this and the signal's number.
const CODE_BASE: u8 = 128;

/// Whether a signal came.
#[derive(Clone, Debug)]
pub struct Interrupt {
    /// The number of the last one, 0 if there was none.
    signal: Arc<AtomicUsize>,
    /// Holds a byte for each.
    pipe: Arc<UnixStream>,
}

impl Interrupt {
    /// Takes the signals, from now on to the end of the process.
    pub fn catch() -> io::Result<Self> {
        let (pipe, written) = UnixStream::pair()?;
        let signal = Arc::new(AtomicUsize::new(0));
        let is_second = Arc::new(AtomicBool::new(false));
        let ignored = ignored();
        for number in
            [SIGINT, SIGTERM, SIGHUP].into_iter().filter(|it| ignored >> (it - 1) & 1 == 0)
        {
            // In this order, so that the first signal does not end the process itself.
            flag::register_conditional_default(number, Arc::clone(&is_second))?;
            flag::register(number, Arc::clone(&is_second))?;
            let value = usize::try_from(number).unwrap_or(0);
            flag::register_usize(number, Arc::clone(&signal), value)?;
            pipe::register(number, written.try_clone()?)?;
        }
        Ok(Self { signal, pipe: Arc::new(pipe) })
    }

    /// One that no signal comes to, and what has the effect of the first.
    #[cfg(test)]
    pub fn by_hand() -> io::Result<(Self, impl FnMut())> {
        let (pipe, mut written) = UnixStream::pair()?;
        let interrupt = Self { signal: Arc::default(), pipe: Arc::new(pipe) };
        let signal = Arc::clone(&interrupt.signal);
        let interrupt_now = move || {
            signal.store(usize::try_from(SIGINT).unwrap(), Ordering::Relaxed);
            std::io::Write::write_all(&mut written, b"x").unwrap();
        };
        Ok((interrupt, interrupt_now))
    }

    /// The exit code, if a signal came.
    pub fn code(&self) -> Option<u8> {
        let signal = u8::try_from(self.signal.load(Ordering::Relaxed)).unwrap_or(0);
        (signal != 0).then_some(CODE_BASE | signal)
    }

    /// `input`, whose reads end with an error once a signal came, also those that wait.
    pub fn over<R: Read + AsFd>(&self, input: R) -> Interruptible<R> {
        Interruptible { input, interrupt: self.clone() }
    }
}

/// The signals that this process ignores, a bit for each; 1 is the lowest.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

/// An input whose reads end with an error once a signal came.
#[derive(Debug)]
pub struct Interruptible<R> {
    input: R,
    interrupt: Interrupt,
}

impl<R: Read + AsFd> Read for Interruptible<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let mut waited = [
                PollFd::new(&self.input, PollFlags::IN),
                PollFd::new(&*self.interrupt.pipe, PollFlags::IN),
            ];
            match poll(&mut waited, None) {
                Ok(_) if waited[1].revents().is_empty() => return self.input.read(buffer),
                // Of this kind, since those who read go on at `Interrupted`.
                Ok(_) => return Err(io::Error::other("interrupted")),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn a_read_ends_when_a_signal_comes() {
        let (interrupt, mut signal) = Interrupt::by_hand().unwrap();
        let (input, mut other) = UnixStream::pair().unwrap();
        let mut input = interrupt.over(input);
        other.write_all(b"abc").unwrap();
        let mut buffer = [0; 8];
        assert_eq!((input.read(&mut buffer).unwrap(), interrupt.code()), (3, None));
        // Nothing more is in the input, and its other end stays open.
        signal();
        for _ in 0..2 {
            assert_eq!(input.read(&mut buffer).unwrap_err().to_string(), "interrupted");
        }
        assert_eq!(interrupt.code(), Some(130));
    }
}
