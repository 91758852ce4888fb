//! Copies of the data file: the blocks that some versions refer to, with a catalog and a superblock
//! of their own.
//!
//! ```text
//!   [ superblock A | superblock B | extents, where they are in the original | catalog ]
//!          written last                                                      behind them
//! ```
//!
//! Blocks keep their places, because their checksums are bound to them. Until the superblock is
//! written the file is no database. It never has the two empty blocks of a database whose creation
//! did not finish: so a copy that a crash cuts off is refused, not replaced by a new one. It has
//! the salt of the original and its number of opens: generations go on above all that were used.

use super::block::{BLOCK_PAYLOAD_BYTES, seal_all};
use super::data_file::BlockRead;
use super::data_file::catalog::{self, Catalog};
use super::data_file::superblock::{CatalogLocation, FIRST_BLOCK, Superblock, Superblocks};
use super::io::{AlignedBuffer, Directory, File, LockGuard, OpenMode};
use super::{Storage, open_locked};
use crate::base::error::{Error, Result};
use crate::base::ids::{BlockNo, Extent, Generation};
use crate::base::limits::{BLOCK_BYTES, BLOCK_BYTES_U64};
use crate::base::logs::LogMark;
use crate::memory::budget::{Charge, Use};
use crate::runtime::sync::Arc;

/// Blocks that are read and written at a time.
const PIECE_BLOCKS: u32 = 256;

/// A data file in the making.
pub struct DataFileCopy<'s> {
    storage: &'s Storage,
    file: Arc<dyn File>,
    _lock: Box<dyn LockGuard>,
    /// The first block behind all that were copied.
    end: u64,
    buffer: AlignedBuffer,
    _charge: Charge,
}

impl Storage {
    /// Begins a copy in a directory without a data file.
    pub fn begin_copy(&self, dir: &dyn Directory) -> Result<DataFileCopy<'_>> {
        let (file, lock) = open_locked(dir, OpenMode::CreateNew, true)?;
        // At once longer than a file whose creation did not finish.
        file.allocate(0, (FIRST_BLOCK + 1) * BLOCK_BYTES_U64)?;
        file.sync()?;
        let bytes = PIECE_BLOCKS as usize * BLOCK_BYTES;
        Ok(DataFileCopy {
            storage: self,
            file,
            _lock: lock,
            end: FIRST_BLOCK,
            buffer: AlignedBuffer::new(bytes),
            _charge: self.budget.charge(Use::Work, bytes as u64),
        })
    }
}

impl DataFileCopy<'_> {
    /// Copies an extent, which stays as it is meanwhile; `copied` gets the bytes of each piece.
    pub fn copy(
        &mut self,
        extent: Extent,
        copied: &mut dyn FnMut(u64) -> Result<()>,
    ) -> Result<()> {
        let end = extent.start.0 + u64::from(extent.blocks);
        self.end = self.end.max(end);
        let mut first = extent.start.0;
        while first < end {
            let blocks = (end - first).min(u64::from(PIECE_BLOCKS));
            let bytes = blocks * BLOCK_BYTES_U64;
            let piece = usize::try_from(bytes).unwrap_or(0);
            let buffer = &mut self.buffer[..piece];
            // Pages of a group are not sealed alike; the complete copy is verified at the end.
            let (first_block, generation) = (BlockNo(first), Generation(0));
            let read = BlockRead { first: first_block, generation, buffer };
            self.storage.file.read_unverified(&mut [read])?;
            self.file.write_at(&self.buffer[..piece], first * BLOCK_BYTES_U64)?;
            copied(bytes)?;
            first += blocks;
        }
        Ok(())
    }

    /// Completes the copy with this catalog, whose roots refer to copied extents only; `log` is the
    /// mark of logs without records. Durable when this returns, but for the file's name.
    pub fn finish(self, catalog: &Catalog, log: LogMark) -> Result<()> {
        let original = self.storage.superblock();
        let bytes = catalog.encode()?;
        let mut blocks = catalog::to_blocks(&bytes);
        let too_long = |_| Error::internal("the catalog exceeds its maximum length");
        let count = u32::try_from(bytes.len().div_ceil(BLOCK_PAYLOAD_BYTES)).map_err(too_long)?;
        let extent = Extent::new(self.end, count);
        let generation = original.catalog.map_or(Generation(0), |catalog| catalog.generation);
        seal_all(&mut blocks, original.salt, generation, extent.start);
        self.file.write_at(&blocks, extent.offset())?;
        self.file.sync()?;
        let bytes = u32::try_from(bytes.len()).map_err(too_long)?;
        let catalog = Some(CatalogLocation { extent, generation, bytes });
        let file_blocks = self.end + u64::from(count);
        Superblocks::write_first(&*self.file, Superblock { catalog, log, file_blocks, ..original })
    }
}
