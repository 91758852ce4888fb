//! An open file of the real directory, read and written around the page cache.
//!
//! Every file has one descriptor through the page cache and, where it is opened with
//! `Access::Direct` and the file system has `O_DIRECT`, a second one around it:
//!
//! | what | goes through |
//! | --- | --- |
//! | block-aligned reads and writes | the direct descriptor |
//! | reads that are not aligned | the direct descriptor and an aligned copy |
//! | whole blocks from an address that is not aligned | the direct descriptor and an aligned copy |
//! | parts of blocks that are written | the page cache |
//! | sizes, allocation, holes, zeroing, sync, mapping | the descriptor through the page cache |
//!
//! The kernel keeps the two coherent: a direct read or write first writes back, and a direct write
//! drops, cached pages of its range; `fdatasync` covers the file, whichever descriptor wrote.
//! Partial blocks go through the page cache because a read-modify-write of the block here would
//! undo concurrent writes of other threads to the rest of it.
//!
//! Invariants:
//! 1. Interrupted calls are repeated, short ones completed. A request that failed in a ring is
//!    repeated once by itself, which yields its error. Nothing else is retried; a failed
//!    `fdatasync` in particular is reported once, and the data it covered must count as lost.
//!
//! Thread-safety: every method may be called from any thread. Concurrent writes to overlapping
//! ranges leave the bytes of either.

use super::{holders, lock_file};
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::limits::{BLOCK_BYTES, BLOCK_BYTES_U64};
use crate::runtime::clock::Clock;
use crate::runtime::sync::{Arc, AtomicBool, Ordering};
use crate::storage::io::buffer::{AlignedBuffer, is_aligned};
use crate::storage::io::buffered_file::{BufferedFile, pwrite_once};
use crate::storage::io::ring::{RING_ENTRIES, Rings};
use crate::storage::io::{
    File, LockGuard, ReadRequest, Region, WriteRequest, mapped, write_zeros_in_pieces,
};
use rustix::fs::{FallocateFlags, SeekFrom, fallocate, fstat, ftruncate, seek};
use rustix::io::{Errno, pread, retry_on_intr};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// How often, and after which time, a lock is tried again that the last writes of a killed process
/// hold: for five seconds.
const LOCK_TRIES: u32 = 500;
/// See [`LOCK_TRIES`].
const LOCK_INTERVAL: Duration = Duration::from_millis(10);

/// The most bytes copied at a time for a caller whose buffer is not aligned.
const COPY_BYTES_MAX: usize = 1 << 20;

fn pread_once(file: BorrowedFd<'_>, buffer: &mut [u8], offset: u64) -> rustix::io::Result<usize> {
    retry_on_intr(|| pread(file, &mut *buffer, offset))
}

/// An open file.
#[derive(Debug)]
pub struct DirectFile {
    /// The descriptor through the page cache.
    pub buffered: Arc<BufferedFile>,
    /// The direct descriptor of the same file, if there is one.
    pub direct: Option<OwnedFd>,
    /// Whether windows of the file may be mapped.
    pub mapped_log: bool,
    /// Rings for batched reads and writes.
    pub rings: Arc<Rings>,
    /// False once the file system has refused to zero a range.
    pub zeroes_ranges: AtomicBool,
}

impl DirectFile {
    /// The descriptor of block-aligned reads and writes.
    fn block_descriptor(&self) -> BorrowedFd<'_> {
        self.direct.as_ref().map_or_else(|| self.buffered.descriptor(), AsFd::as_fd)
    }

    /// Whether memory and offset of a request suit [`DirectFile::block_descriptor`] as they are.
    fn needs_no_copy(&self, bytes: &[u8], offset: u64) -> bool {
        self.direct.is_none() || is_aligned(bytes, offset)
    }

    /// Locks the open file of [`DirectFile::block_descriptor`] without waiting.
    fn try_lock(&self, exclusive: bool) -> Result<Box<dyn LockGuard>> {
        let file = self.block_descriptor().try_clone_to_owned();
        let file = file.map_err(|error| Error::io("lock", self.name(), error))?;
        lock_file(file, self.name(), exclusive)
    }

    /// Reads some bytes, at least one unless the file ends.
    fn read_some(&self, buffer: &mut [u8], offset: u64) -> rustix::io::Result<usize> {
        let Some(direct) = &self.direct else {
            return pread_once(self.buffered.descriptor(), buffer, offset);
        };
        if is_aligned(buffer, offset) {
            return pread_once(direct.as_fd(), buffer, offset);
        }
        let skip = usize::try_from(offset % BLOCK_BYTES_U64).map_err(|_| Errno::OVERFLOW)?;
        let wanted = buffer.len().min(COPY_BYTES_MAX - skip);
        let mut copy = AlignedBuffer::new((skip + wanted).next_multiple_of(BLOCK_BYTES));
        let bytes = pread_once(direct.as_fd(), &mut copy, offset - skip as u64)?;
        let useful = bytes.saturating_sub(skip).min(wanted);
        buffer[..useful].copy_from_slice(&copy[skip..skip + useful]);
        Ok(useful)
    }

    /// Writes some bytes, at least one.
    fn write_some(&self, bytes: &[u8], offset: u64) -> rustix::io::Result<usize> {
        let Some(direct) = &self.direct else {
            return pwrite_once(self.buffered.descriptor(), bytes, offset);
        };
        if is_aligned(bytes, offset) {
            return pwrite_once(direct.as_fd(), bytes, offset);
        }
        let within = usize::try_from(offset % BLOCK_BYTES_U64).map_err(|_| Errno::OVERFLOW)?;
        if within != 0 || bytes.len() < BLOCK_BYTES {
            let part = bytes.len().min(BLOCK_BYTES - within);
            return pwrite_once(self.buffered.descriptor(), &bytes[..part], offset);
        }
        let blocks = bytes.len() / BLOCK_BYTES * BLOCK_BYTES;
        let copy = AlignedBuffer::copy_from(&bytes[..blocks.min(COPY_BYTES_MAX)]);
        pwrite_once(direct.as_fd(), &copy, offset)
    }

    /// The error for a read at `offset` that returned nothing.
    fn ends_before(&self, offset: u64) -> Error {
        let name = self.buffered.name();
        match self.buffered.size() {
            Ok(size) if size <= offset => {
                Error::corrupt("read past the end of the file").at(name, offset)
            }
            Ok(_) => {
                let error =
                    io::Error::other("the system read zero bytes before the end of the file");
                Error::io("read", name, error).at(name, offset)
            }
            Err(error) => error,
        }
    }

    /// Unshares a range of a mappable file: blocks shared with a copy (a reflink) are allocated,
    /// yet a write to them needs new ones.
    fn unshare(&self, offset: u64, bytes: u64) -> Result<()> {
        if !self.mapped_log || self.direct.is_some() {
            return Ok(());
        }
        let file = self.buffered.descriptor();
        match retry_on_intr(|| fallocate(file, FallocateFlags::UNSHARE_RANGE, offset, bytes)) {
            // A file system without this call shares nothing.
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => Ok(()),
            Err(error) => Err(self.buffered.error("unshare", error).at(self.name(), offset)),
        }
    }

    /// Writes zeros after the end, for a file system that cannot allocate. Bytes before the end are
    /// left alone: these file systems guarantee nothing for them anyway.
    fn allocate_by_writing(&self, offset: u64, end: u64) -> Result<()> {
        let start = self.buffered.size()?.max(offset).min(end);
        write_zeros_in_pieces(self, start, end - start)
    }
}

impl File for DirectFile {
    fn name(&self) -> &str {
        self.buffered.name()
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        let mut done = 0;
        while done < buffer.len() {
            let at = self.buffered.place(offset, done)?;
            match self.read_some(&mut buffer[done..], at) {
                Ok(0) => return Err(self.ends_before(at)),
                Ok(bytes) => done += bytes,
                Err(error) => {
                    return Err(self.buffered.error("read", error).at(self.name(), at));
                }
            }
        }
        Ok(())
    }

    fn read_many(&self, requests: &mut [ReadRequest<'_>]) -> Result<()> {
        self.read_many_while(requests, &mut || {})
    }

    fn read_many_while(
        &self,
        requests: &mut [ReadRequest<'_>],
        meanwhile: &mut dyn FnMut(),
    ) -> Result<()> {
        let mut waiting = Some(meanwhile);
        let mut meanwhile = || waiting.take().map_or((), |meanwhile| meanwhile());
        let mut filled = [0; RING_ENTRIES];
        for requests in requests.chunks_mut(RING_ENTRIES) {
            filled.fill(0);
            if requests.len() > 1 {
                let file = self.block_descriptor();
                let usable =
                    |request: &ReadRequest<'_>| self.needs_no_copy(request.buffer, request.offset);
                self.rings.read(file, requests, &mut filled, usable, &mut meanwhile);
            }
            for (request, filled) in requests.iter_mut().zip(filled) {
                let filled = filled.min(request.buffer.len());
                let at = self.buffered.place(request.offset, filled)?;
                self.read_at(&mut request.buffer[filled..], at)?;
            }
        }
        meanwhile();
        Ok(())
    }

    fn data_from(&self, offset: u64) -> Result<Option<u64>> {
        match seek(self.buffered.descriptor(), SeekFrom::Data(offset)) {
            Ok(place) => Ok(Some(place)),
            Err(Errno::NXIO) => Ok(None),
            // Not every file system reports holes.
            Err(_) => Ok((offset < self.size()?).then_some(offset)),
        }
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<()> {
        self.buffered.check_writable()?;
        let mut done = 0;
        while done < bytes.len() {
            let at = self.buffered.place(offset, done)?;
            done += self.buffered.written(self.write_some(&bytes[done..], at), at)?;
        }
        Ok(())
    }

    fn write_many(&self, requests: &[WriteRequest<'_>]) -> Result<()> {
        self.buffered.check_writable()?;
        let mut written = [0; RING_ENTRIES];
        for requests in requests.chunks(RING_ENTRIES) {
            written.fill(0);
            if requests.len() > 1 {
                let usable =
                    |request: &WriteRequest<'_>| self.needs_no_copy(request.bytes, request.offset);
                self.rings.write(self.block_descriptor(), requests, &mut written, usable);
            }
            for (request, written) in requests.iter().zip(written) {
                let written = written.min(request.bytes.len());
                let at = self.buffered.place(request.offset, written)?;
                self.write_at(&request.bytes[written..], at)?;
            }
        }
        Ok(())
    }

    fn write_zeros(&self, offset: u64, bytes: u64) -> Result<()> {
        self.buffered.check_writable()?;
        if bytes == 0 {
            return Ok(());
        }
        if self.zeroes_ranges.load(Ordering::Relaxed) {
            let file = self.buffered.descriptor();
            match retry_on_intr(|| fallocate(file, FallocateFlags::ZERO_RANGE, offset, bytes)) {
                Ok(()) => return Ok(()),
                Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
                    self.zeroes_ranges.store(false, Ordering::Relaxed);
                }
                Err(error) => {
                    return Err(self.buffered.error("write zeros", error).at(self.name(), offset));
                }
            }
        }
        write_zeros_in_pieces(self, offset, bytes)
    }

    fn sync(&self) -> Result<()> {
        self.buffered.sync()
    }

    fn size(&self) -> Result<u64> {
        self.buffered.size()
    }

    fn set_size(&self, size: u64) -> Result<()> {
        self.buffered.check_writable()?;
        retry_on_intr(|| ftruncate(self.buffered.descriptor(), size))
            .map_err(|error| self.buffered.error("set the size", error))
    }

    fn allocate(&self, offset: u64, bytes: u64) -> Result<()> {
        self.buffered.check_writable()?;
        let Some(end) = offset.checked_add(bytes) else {
            return Err(Error::internal("an offset is beyond what files have"));
        };
        if bytes == 0 {
            return Ok(());
        }
        let file = self.buffered.descriptor();
        match retry_on_intr(|| fallocate(file, FallocateFlags::empty(), offset, bytes)) {
            Ok(()) => self.unshare(offset, bytes),
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => self.allocate_by_writing(offset, end),
            Err(error) => Err(self.buffered.error("allocate", error).at(self.name(), offset)),
        }
    }

    fn punch_hole(&self, offset: u64, bytes: u64) -> Result<()> {
        self.buffered.check_writable()?;
        if bytes == 0 {
            return Ok(());
        }
        let file = self.buffered.descriptor();
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        match retry_on_intr(|| fallocate(file, flags, offset, bytes)) {
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
            Err(error) => Err(self.buffered.error("free", error).at(self.name(), offset)),
        }
    }

    fn allocated_bytes(&self) -> Result<u64> {
        let stat = fstat(self.buffered.descriptor())
            .map_err(|error| self.buffered.error("get the size", error))?;
        // The unit of this field is 512 bytes, whatever the block size of the file system.
        Ok(u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(512))
    }

    fn lock(&self, exclusive: bool) -> Result<Box<dyn LockGuard>> {
        // The same open file as that of batched writes: the lock is released by its guard, or by
        // the kernel when the process has died and its last write is done, which is soon.
        for _ in 0..LOCK_TRIES {
            match self.try_lock(exclusive) {
                Err(error)
                    if error.kind() == ErrorKind::AlreadyOpen
                        && holders::are_gone(self.block_descriptor()) =>
                {
                    Clock::real().sleep(LOCK_INTERVAL);
                }
                locked => return locked,
            }
        }
        self.try_lock(exclusive)
    }

    fn map(&self, offset: u64, bytes: usize) -> Result<Box<dyn Region>> {
        self.buffered.check_writable()?;
        mapped::map(&self.buffered, offset, bytes, self.mapped_log)
    }
}
