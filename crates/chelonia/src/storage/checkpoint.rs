//! Checkpoints: make a new state durable, catalog first, then superblock.
//!
//! ```text
//!   catalog -> fresh extent -> sync of the data file (with everything that engines wrote)
//!           -> superblock, older copy -> sync -> other copy -> sync -> old catalog's extent spare
//! ```
//!
//! The extent of the previous catalog is kept for the next one, so that a completely full device
//! does not prevent the checkpoint that would free space.
//!
//! Invariants:
//! 1. Until the first copy of the new superblock is written, nothing of the old state is touched;
//!    until both are, nothing that only the old state refers to is free.
//! 2. If a superblock write fails, it is unknown which superblock a later open will find: this open
//!    writes no further one (enforced by [`DataFile::make_durable`]).
//!
//! [`DataFile::make_durable`]: crate::storage::data_file::DataFile::make_durable
//!
//! Thread-safety: checkpoints exclude each other.

use super::Storage;
use crate::base::error::{Error, Result};
#[cfg(any(test, feature = "internals"))]
use crate::base::ids::Extent;
use crate::base::logs::LogMark;
use crate::runtime::coverage::{Mark, mark};
use crate::storage::block::BLOCK_PAYLOAD_BYTES;
use crate::storage::data_file::catalog::{self, Catalog};
use crate::storage::data_file::superblock::{CatalogLocation, Superblock, Superblocks};

impl Storage {
    /// The superblock that is durable now.
    #[must_use]
    pub fn superblock(&self) -> Superblock {
        *self.root.lock().current()
    }

    /// Makes `catalog`, everything written before this call, and the log position durable. When
    /// this returns, extents that only the previous superblock referred to may be freed.
    ///
    /// `NoSpace` changes nothing; after any other failure the database must not be written any
    /// more.
    pub fn checkpoint(&self, catalog: &Catalog, log: LogMark) -> Result<Superblock> {
        self.file.check_writable()?;
        let mut root = self.root.lock();
        self.file.check_syncs()?;
        let bytes = catalog.encode()?;
        let mut blocks = catalog::to_blocks(&bytes);
        let too_long = |_| Error::internal("the catalog exceeds its maximum length");
        let count = u32::try_from(bytes.len().div_ceil(BLOCK_PAYLOAD_BYTES)).map_err(too_long)?;
        let length = u32::try_from(bytes.len()).map_err(too_long)?;
        let mut spare = self.spare.lock();
        let allocation = match spare.take_if(|spare| spare.blocks >= count) {
            Some(kept) => self.space.lock().renew(kept, count)?,
            None => self.allocate_uncounted(count)?,
        };
        let (extent, generation) = (allocation.extent, allocation.generation);
        if let Err(error) = self.write_blocks(extent.start, generation, &mut blocks) {
            self.free(extent)?;
            return Err(error);
        }
        let before = root.current().catalog;
        let location = CatalogLocation { extent, generation, bytes: length };
        let next = Superblock { catalog: Some(location), log, ..*root.current() };
        self.write_superblock(&mut root, next)?;
        // A spare extent that was too short is not needed any more.
        let short = std::mem::replace(&mut *spare, before.map(|before| before.extent));
        if let Some(short) = short {
            mark(Mark::CatalogOutgrew);
            self.free(short)?;
        }
        Ok(*root.current())
    }

    /// Makes another log position durable with the catalog unchanged: the mark of a clean close.
    pub fn mark_log(&self, log: LogMark) -> Result<Superblock> {
        self.file.check_writable()?;
        let mut root = self.root.lock();
        let next = Superblock { log, ..*root.current() };
        self.write_superblock(&mut root, next)?;
        Ok(*root.current())
    }

    fn write_superblock(&self, root: &mut Superblocks, mut next: Superblock) -> Result<()> {
        next.file_blocks = self.space.lock().superblock_length();
        self.file.make_durable(|file| root.write(file, next))?;
        self.space.lock().superblock_written(next.file_blocks);
        Ok(())
    }

    /// Rereads and checks both copies of the superblock and the catalog; returns the number of
    /// blocks read.
    pub fn verify_root(&self) -> Result<u64> {
        let root = self.root.lock();
        let blocks = Superblocks::verify(self.file.file())?;
        match root.current().catalog {
            Some(location) => {
                catalog::read(&self.file, &location)?;
                Ok(blocks + u64::from(location.extent.blocks))
            }
            None => Ok(blocks),
        }
    }

    /// The extent of the durable catalog, which belongs to no engine.
    #[cfg(any(test, feature = "internals"))]
    #[must_use]
    pub fn catalog_extent(&self) -> Option<Extent> {
        self.root.lock().current().catalog.map(|location| location.extent)
    }

    /// The extent that is kept for the next catalog.
    #[cfg(any(test, feature = "internals"))]
    #[must_use]
    pub fn spare_extent(&self) -> Option<Extent> {
        *self.spare.lock()
    }
}
