//! Ctrl-C during a long command.
//!
//! ```text
//!   first signal    the command ends at the next record; its work so far is stored
//!   second signal   the process ends at once, as without this module
//! ```
//!
//! SIGINT, SIGTERM and SIGHUP are treated alike, unless the program was started with them ignored,
//! as `nohup` does. A read that waits for input (a pipe, a terminal) is interrupted too. Commands
//! that do not use this module end at the first signal.

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::{flag, low_level::pipe};
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// The exit code of a process ended by a signal is this plus the number of the signal.
const CODE_BASE: u8 = 128;

/// Signals received.
#[derive(Clone, Debug)]
pub struct Interrupt {
    /// The number of the last signal, 0 if there was none.
    signal: Arc<AtomicUsize>,
    /// Contains a byte for each signal.
    pipe: Arc<UnixStream>,
}

impl Interrupt {
    /// Handles signals, from now on to the end of the process.
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

    /// An instance that receives no signals, and a function that acts like the first signal.
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

    /// The exit code, if a signal was received.
    pub fn code(&self) -> Option<u8> {
        let signal = u8::try_from(self.signal.load(Ordering::Relaxed)).unwrap_or(0);
        (signal != 0).then_some(CODE_BASE | signal)
    }

    /// Wraps `input`: after a signal its reads return an error, even if they are waiting.
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

/// An input whose reads return an error after a signal.
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
                // Not `Interrupted`, after which callers would retry.
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
        // The input is empty, and its other end stays open.
        signal();
        for _ in 0..2 {
            assert_eq!(input.read(&mut buffer).unwrap_err().to_string(), "interrupted");
        }
        assert_eq!(interrupt.code(), Some(130));
    }
}
