//! The call that shuts a file system down.

#![expect(unsafe_code, reason = "an island: a call to the kernel that has no safe door")]

use rustix::ioctl::{Setter, ioctl, opcode};
use std::fs::File;
use std::io;
use std::path::Path;

/// Supported by ext4 and XFS: stop all I/O now (`XFS_IOC_GOINGDOWN`, `EXT4_IOC_SHUTDOWN`).
const SHUT_DOWN: u32 = opcode::read::<u32>(b'X', 125);

/// Without writing the journal: everything not synced is lost.
const WITHOUT_FLUSH: u32 = 2;

/// Shuts down the file system mounted at `at`, like a power failure.
pub fn shut_down(at: &Path) -> io::Result<()> {
    let directory = File::open(at)?;
    // SAFETY: the kernel reads a u32 behind the pointer, as `Setter` passes it, and writes nothing.
    unsafe { ioctl(&directory, Setter::<SHUT_DOWN, u32>::new(WITHOUT_FLUSH))? };
    Ok(())
}
