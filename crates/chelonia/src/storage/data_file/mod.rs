//! The data file: write-once blocks, verified on every read.
//!
//! ```text
//! block 0        1        2 ...
//!       | copy A | copy B | extents: catalog, engine structure, runs, large values, free space |
//! ```
//!
//! [`superblock`] has the location of everything, [`catalog`] the list of keyspaces. Every other
//! block is sealed and verified here, by [`DataFile`]; no other module reads or writes the file.
//!
//! Invariants:
//! 1. Every block that [`DataFile::read_blocks`] returns was written to this place in this use of
//!    the place.
//! 2. A write of blocks never reaches the superblocks. The writer must ensure that it stays within
//!    its own extent.
//! 3. After a failed sync none succeeds any more: the system reports the failure once, to one of
//!    the callers, and it may cover data of another (docs/durability.md, promise 5).
//! 4. A file that is open read-only is not changed. After [`DataFile::continue_in`] writes go to a
//!    scratch file, in the same way as to the file itself.
//! 5. After [`DataFile::close`] has returned the file is not changed any more, even by threads
//!    still at work; a sync and the superblock write that depends on it are done completely, or not
//!    begun.
//!
//! Thread-safety: every method may be called from any thread; writes to the same block must be
//! ordered by the caller, who owns the extent.

pub mod catalog;
pub mod superblock;

use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::{BlockNo, Extent, Generation};
use crate::base::limits::{BLOCK_BYTES, BLOCK_BYTES_U64};
use crate::runtime::sync::{
    Arc, AtomicBool, AtomicU64, Mutex, OnceLock, Ordering, RwLock, RwLockReadGuard,
};
use crate::storage::block::{BlockKind, DATA_FILE, seal_all, verify, verify_all};
use crate::storage::io::continued::ContinuedFile;
use crate::storage::io::{AlignedBuffer, File, LockGuard, ReadRequest, WriteRequest};
use std::ops::Deref;
use superblock::FIRST_BLOCK;

/// The number of block kinds; index 0 counts blocks without a kind (`BlockKind`).
pub const BLOCK_KINDS: usize = BlockKind::Dictionary as usize + 1;

/// I/O statistics of the data file since it was opened.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct DataFileStats {
    /// Blocks read, by the number of their kind.
    pub blocks_read: [u64; BLOCK_KINDS],
    /// Blocks written, by the number of their kind.
    pub blocks_written: [u64; BLOCK_KINDS],
    /// Reads issued.
    pub reads: u64,
    /// Writes issued.
    pub writes: u64,
    /// Syncs done.
    pub syncs: u64,
}

/// The live counters of [`DataFileStats`].
#[derive(Default, Debug)]
struct Counters {
    blocks_read: [AtomicU64; BLOCK_KINDS],
    blocks_written: [AtomicU64; BLOCK_KINDS],
    reads: AtomicU64,
    writes: AtomicU64,
    syncs: AtomicU64,
}

/// The data file, with the salt for its checksums.
#[derive(Debug)]
pub struct DataFile {
    file: Arc<dyn File>,
    salt: u64,
    read_only: bool,
    /// The file with its scratch continuation.
    continued: OnceLock<Arc<dyn File>>,
    /// The file's lock, until it is closed.
    lock: Mutex<Option<Box<dyn LockGuard>>>,
    /// Held shared over every change of the file, exclusively by the close. True inside: closed.
    closed: RwLock<bool>,
    /// Held over every sync. True inside: one failed.
    sync_failed: Mutex<bool>,
    /// True once a write has failed.
    write_failed: AtomicBool,
    counters: Counters,
}

/// The right to change the file, which delays a close while held.
pub struct Writing<'a> {
    file: &'a Arc<dyn File>,
    _open: RwLockReadGuard<'a, bool>,
}

impl Deref for Writing<'_> {
    type Target = dyn File;

    fn deref(&self) -> &(dyn File + 'static) {
        &**self.file
    }
}

/// Consecutive blocks to read.
#[derive(Debug)]
pub struct BlockRead<'a> {
    /// The first of them.
    pub first: BlockNo,
    /// The generation they must have been sealed with.
    pub generation: Generation,
    /// Memory for all of them, a multiple of the block size.
    pub buffer: &'a mut [u8],
}

/// Consecutive blocks to write.
#[derive(Debug)]
pub struct BlockWrite<'a> {
    /// The first of them.
    pub first: BlockNo,
    /// The generation to seal them with.
    pub generation: Generation,
    /// All of them, a multiple of the block size.
    pub blocks: &'a mut [u8],
}

impl DataFile {
    /// Creates the data file over `file`, which is held by `lock`.
    #[must_use]
    pub fn new(file: Arc<dyn File>, lock: Box<dyn LockGuard>, salt: u64, read_only: bool) -> Self {
        Self {
            file,
            lock: Mutex::new(Some(lock)),
            salt,
            read_only,
            continued: OnceLock::new(),
            closed: RwLock::new(false),
            sync_failed: Mutex::new(false),
            write_failed: AtomicBool::new(false),
            counters: Counters::default(),
        }
    }

    /// The salt of the database.
    #[must_use]
    pub fn salt(&self) -> u64 {
        self.salt
    }

    /// Continues a file that is open read-only in `scratch`, which is empty, from block `end` on.
    pub fn continue_in(&self, scratch: Arc<dyn File>, end: BlockNo) -> Result<()> {
        if !self.read_only {
            return Err(Error::internal("a writable file needs no scratch file"));
        }
        let end = end.0.saturating_mul(BLOCK_BYTES_U64);
        let continued = ContinuedFile::new(Arc::clone(&self.file), end, scratch);
        self.continued
            .set(Arc::new(continued))
            .map_err(|_| Error::internal("the data file has a scratch file already"))
    }

    /// The file that blocks are read from and written to.
    fn whole(&self) -> &Arc<dyn File> {
        self.continued.get().unwrap_or(&self.file)
    }

    /// The file itself, for inspection.
    #[must_use]
    pub fn file(&self) -> &dyn File {
        &*self.file
    }

    /// Fails with `ReadOnly` if the file must not be written.
    pub fn check_writable(&self) -> Result<()> {
        if self.read_only && self.continued.get().is_none() {
            return Err(Error::new(ErrorKind::ReadOnly, "the database is open read-only"));
        }
        Ok(())
    }

    /// The right to change the file: `ReadOnly` if it must not be changed, `Stopped` if it is
    /// closed. A thread may hold one at a time, for the time of a call.
    pub fn writing(&self) -> Result<Writing<'_>> {
        self.check_writable()?;
        let open = self.closed.read();
        if *open {
            return Err(Error::new(ErrorKind::Stopped, "the database was closed; reopen it"));
        }
        Ok(Writing { file: self.whole(), _open: open })
    }

    /// Waits for changes in progress, refuses all later ones, and unlocks the file. Reads continue
    /// until the fence around the directory is shut (`storage/io/fence.rs`).
    pub fn close(&self) {
        *self.closed.write() = true;
        *self.lock.lock() = None;
    }

    /// Fills `buffer` (complete blocks) from block `first` on and verifies every block.
    pub fn read_blocks(
        &self,
        first: BlockNo,
        generation: Generation,
        buffer: &mut [u8],
    ) -> Result<()> {
        let offset = byte_range(first, buffer.len())?;
        self.whole().read_at(buffer, offset)?;
        self.counters.reads.fetch_add(1, Ordering::Relaxed);
        count_kinds(&self.counters.blocks_read, buffer);
        verify_all(buffer, self.salt, generation, first)
    }

    /// Verifies that `block` was sealed as block `number`.
    pub fn verify(&self, number: BlockNo, generation: Generation, block: &[u8]) -> Result<()> {
        verify(block, self.salt, generation, number)
    }

    /// Fills `buffer` (complete blocks) from block `first` on and passes each to `take`, verified
    /// or with its error.
    pub fn read_each(
        &self,
        first: BlockNo,
        generation: Generation,
        buffer: &mut [u8],
        take: &mut dyn FnMut(Result<&[u8]>),
    ) -> Result<()> {
        let offset = byte_range(first, buffer.len())?;
        self.whole().read_at(buffer, offset)?;
        self.counters.reads.fetch_add(1, Ordering::Relaxed);
        count_kinds(&self.counters.blocks_read, buffer);
        for (block, number) in buffer.chunks_exact(BLOCK_BYTES).zip(first.0..) {
            let verified = verify(block, self.salt, generation, BlockNo(number));
            take(verified.map(|()| block));
        }
        Ok(())
    }

    /// Reads several block ranges without verifying them, in parallel where the system supports it.
    pub fn read_unverified(&self, reads: &mut [BlockRead<'_>]) -> Result<()> {
        self.fetch(reads, &mut || {})
    }

    /// Reads and verifies several block ranges, in parallel where the system supports it.
    pub fn read_many(&self, reads: &mut [BlockRead<'_>]) -> Result<()> {
        self.read_many_while(reads, &mut || {})
    }

    /// Like [`DataFile::read_many`]; `meanwhile` is called once, during the reads if possible.
    pub fn read_many_while(
        &self,
        reads: &mut [BlockRead<'_>],
        meanwhile: &mut dyn FnMut(),
    ) -> Result<()> {
        self.fetch(reads, meanwhile)?;
        for read in reads.iter() {
            verify_all(read.buffer, self.salt, read.generation, read.first)?;
        }
        Ok(())
    }

    /// Reads several block ranges and counts them.
    fn fetch(&self, reads: &mut [BlockRead<'_>], meanwhile: &mut dyn FnMut()) -> Result<()> {
        let mut requests = Vec::with_capacity(reads.len());
        for read in reads.iter_mut() {
            let offset = byte_range(read.first, read.buffer.len())?;
            requests.push(ReadRequest { offset, buffer: &mut *read.buffer });
        }
        self.whole().read_many_while(&mut requests, meanwhile)?;
        drop(requests);
        self.counters.reads.fetch_add(reads.len() as u64, Ordering::Relaxed);
        reads.iter().for_each(|read| count_kinds(&self.counters.blocks_read, read.buffer));
        Ok(())
    }

    /// Seals `blocks` and writes them from block `first` on.
    pub fn write_blocks(
        &self,
        first: BlockNo,
        generation: Generation,
        blocks: &mut [u8],
    ) -> Result<()> {
        let file = self.writing()?;
        let offset = written_range(first, blocks.len())?;
        seal_all(blocks, self.salt, generation, first);
        file.write_at(blocks, offset).inspect_err(|_| self.note_failed_write())?;
        self.counters.writes.fetch_add(1, Ordering::Relaxed);
        count_kinds(&self.counters.blocks_written, blocks);
        Ok(())
    }

    /// Seals several block ranges, which must not overlap, and writes them, in parallel where the
    /// system supports it, in no particular order. If it fails, any of them may have been written,
    /// wholly or partly; nothing is written if one of the ranges is invalid.
    pub fn write_many(&self, writes: &mut [BlockWrite<'_>]) -> Result<()> {
        let file = self.writing()?;
        let mut requests = Vec::with_capacity(writes.len());
        for write in writes.iter_mut() {
            let offset = written_range(write.first, write.blocks.len())?;
            seal_all(write.blocks, self.salt, write.generation, write.first);
            requests.push(WriteRequest { offset, bytes: &*write.blocks });
        }
        let written = file.write_many(&requests);
        written.inspect_err(|_| self.note_failed_write())?;
        drop(requests);
        self.counters.writes.fetch_add(writes.len() as u64, Ordering::Relaxed);
        for write in writes.iter() {
            count_kinds(&self.counters.blocks_written, write.blocks);
        }
        Ok(())
    }

    /// Writes zeros to several block ranges, like [`Self::write_many`], without sealing them.
    pub fn zero_many(&self, ranges: &[Extent]) -> Result<()> {
        let file = self.writing()?;
        let most = ranges.iter().map(|range| range.bytes()).max().unwrap_or(0);
        let zeros = AlignedBuffer::new(usize::try_from(most).unwrap_or(0));
        let mut requests = Vec::with_capacity(ranges.len());
        for range in ranges {
            let bytes = usize::try_from(range.bytes()).unwrap_or(0);
            let offset = written_range(range.start, bytes)?;
            requests.push(WriteRequest { offset, bytes: &zeros[..bytes] });
        }
        file.write_many(&requests).inspect_err(|_| self.note_failed_write())
    }

    /// Records a failed write, or any other failure that may have changed the file.
    pub fn note_failed_write(&self) {
        self.write_failed.store(true, Ordering::Relaxed);
    }

    /// True once a write has failed; later failures may have been of reads only.
    pub fn has_failed_write(&self) -> bool {
        self.write_failed.load(Ordering::Relaxed)
    }

    /// Makes all writes and the size of the file durable.
    pub fn sync(&self) -> Result<()> {
        self.make_durable(|_| Ok(()))
    }

    /// Fails if a sync has failed.
    pub fn check_syncs(&self) -> Result<()> {
        check_syncs(*self.sync_failed.lock())
    }

    /// Syncs, then runs `rest`, which writes and syncs the references to the synced data. If any of
    /// it fails, so does every later call. `NoSpace` is a failure like any other here: a sync that
    /// reports it has lost data, and a superblock may be half written.
    pub fn make_durable(&self, rest: impl FnOnce(&dyn File) -> Result<()>) -> Result<()> {
        let mut failed = self.sync_failed.lock();
        check_syncs(*failed)?;
        let file = self.writing()?;
        let done = file.sync().and_then(|()| {
            self.counters.syncs.fetch_add(1, Ordering::Relaxed);
            rest(&*file)
        });
        *failed = done.is_err();
        done.map_err(Error::not_transient)
    }

    /// I/O statistics so far.
    #[must_use]
    pub fn stats(&self) -> DataFileStats {
        let all = |counters: &[AtomicU64; BLOCK_KINDS]| {
            std::array::from_fn(|kind| counters[kind].load(Ordering::Relaxed))
        };
        DataFileStats {
            blocks_read: all(&self.counters.blocks_read),
            blocks_written: all(&self.counters.blocks_written),
            reads: self.counters.reads.load(Ordering::Relaxed),
            writes: self.counters.writes.load(Ordering::Relaxed),
            syncs: self.counters.syncs.load(Ordering::Relaxed),
        }
    }
}

fn check_syncs(failed: bool) -> Result<()> {
    if failed {
        let text = "an earlier sync of the data file failed: reopen the database";
        return Err(Error::new(ErrorKind::Stopped, text));
    }
    Ok(())
}

/// The file offset of `bytes` bytes of complete blocks from `first` on.
fn byte_range(first: BlockNo, bytes: usize) -> Result<u64> {
    if bytes == 0 || !bytes.is_multiple_of(BLOCK_BYTES) {
        return Err(Error::internal("the data file is read and written in whole blocks"));
    }
    let offset = first.0.checked_mul(BLOCK_BYTES_U64);
    match offset.and_then(|offset| offset.checked_add(bytes as u64).map(|_| offset)) {
        Some(offset) => Ok(offset),
        None => Err(Error::corrupt("block number exceeds any file length").at(DATA_FILE, u64::MAX)),
    }
}

/// Like [`byte_range`], for blocks to write: fails if they overlap the superblocks.
fn written_range(first: BlockNo, bytes: usize) -> Result<u64> {
    let offset = byte_range(first, bytes)?;
    if first.0 < FIRST_BLOCK {
        return Err(Error::internal("write overlaps the superblocks"));
    }
    Ok(offset)
}

/// Adds the blocks to the counters of their kinds, updating each counter once.
fn count_kinds(counters: &[AtomicU64; BLOCK_KINDS], blocks: &[u8]) {
    let mut counts = [0_u64; BLOCK_KINDS];
    for block in blocks.chunks_exact(BLOCK_BYTES) {
        let kind = usize::from(block[8]);
        counts[if kind < BLOCK_KINDS { kind } else { 0 }] += 1;
    }
    for (counter, count) in counters.iter().zip(counts) {
        if count > 0 {
            counter.fetch_add(count, Ordering::Relaxed);
        }
    }
}
