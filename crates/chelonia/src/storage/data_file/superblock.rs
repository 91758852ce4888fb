//! The superblock: the root of the database, with the location of everything else.
//!
//! It exists twice, as copy A in block 0 and copy B in block 1 of the data file.
//!
//! ```text
//! offset size
//!      0    8  checksum: XXH3-64 of bytes 8..4096, seeded with magic and number of the copy
//!      8    8  magic: the letters CHELONIA
//!     16    4  format number
//!     20    4  number of the copy: 0 for A, 1 for B
//!     24    8  feature bits: an open fails if it does not know one that is set
//!     32    8  salt of the database, seed of every checksum and key hash
//!     40    8  generation of the superblock: grows with each write
//!     48    4  opens for writing so far: the upper 24 bits of the extent generations to come
//!     52    4  blocks of the catalog; 0 if there is none
//!     56    8  first block of the catalog
//!     64    8  generation of the catalog's extent
//!     72    4  bytes of the catalog
//!     76    4  chain of the log position
//!     80    8  log position: replay starts at this Lsn
//!     88    8  Lsn up to which the log is known to be durable
//!     96    8  last seqno before the log position
//!    104    8  blocks that the file has at least
//!    112    4  further logs: 0 to 15
//!    116   20  of each: chain (4), log position (8), Lsn up to which it is known to be durable (8)
//!      . ....  zeros
//! ```
//!
//! The first 24 bytes and the rule of the checksum are the same in every format, so that an older
//! build can distinguish a newer format from damage. The content fits one sector, so a torn write
//! leaves the old copy or the new one.
//!
//! Protocol of a write (`Superblocks::write`): everything that the new superblock refers to was
//! written and synced before; then the older copy is overwritten and synced, then the other one
//! with the same content. Space that only the old superblock refers to is free after that.
//!
//! ```text
//!   both at g --write older--> g+1 and g --write other--> both at g+1
//!                  crash: one copy torn, g valid      crash: one copy torn, g+1 valid
//! ```
//!
//! Invariants:
//! 1. At any moment at least one copy is valid, and everything the valid copy with the highest
//!    generation refers to is untouched: while a copy is being overwritten the other one is valid;
//!    if that is the old one, nothing it refers to has been freed yet.
//! 2. After an open for writing both copies are the same again before anything is allocated: the
//!    open counts itself by a write, and that overwrites the older or damaged copy first.
//! 3. A copy that was written to the other one's place does not verify.
//!
//! Thread-safety: a value; the writer is guarded by its owner.

use crate::base::checksum::{checksum, identity};
use crate::base::codec::Decoder;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::{BlockNo, Extent, Generation, Lsn, SeqNo};
use crate::base::limits::{BLOCK_BYTES, BLOCK_BYTES_U64, LOGS_MAX};
use crate::base::logs::{LogMark, LogPosition, PerLog};
use crate::runtime::coverage::{Mark, mark};
use crate::storage::block::{BLOCK_PAYLOAD_BYTES, DATA_FILE};
use crate::storage::io::{AlignedBuffer, File};

/// The format this build reads and writes.
pub const FORMAT: u32 = 1;

/// The feature of a database with several logs.
const FEATURE_LOGS: u64 = 1;

/// The feature bits this build knows.
pub const FEATURES: u64 = FEATURE_LOGS;

/// How many copies of the superblock there are, each one block, at the start of the file.
pub const COPIES: usize = 2;

/// The first block that is not a superblock.
pub const FIRST_BLOCK: u64 = COPIES as u64;

/// The upper bound of [`Superblock::opens`]: a read-only open uses the next number, in 24 bits.
pub const OPENS_MAX: u32 = (1 << 24) - 2;

/// The most blocks of a file: its length in bytes is a number of 64 bits.
const FILE_BLOCKS_MAX: u64 = u64::MAX / BLOCK_BYTES_U64;

/// Counters start at 0 and never get here; increments from it do not overflow.
const COUNTER_MAX: u64 = u64::MAX / 2;

const MAGIC: [u8; 8] = *b"CHELONIA";

const CHECKSUM_AT: usize = 0;
const MAGIC_AT: usize = 8;
const FORMAT_AT: usize = 16;
const COPY_AT: usize = 20;
const FEATURES_AT: usize = 24;
const SALT_AT: usize = 32;
const GENERATION_AT: usize = 40;
const OPENS_AT: usize = 48;
const CATALOG_BLOCKS_AT: usize = 52;
const CATALOG_START_AT: usize = 56;
const CATALOG_GENERATION_AT: usize = 64;
const CATALOG_BYTES_AT: usize = 72;
const LOG_CHAIN_AT: usize = 76;
const LOG_LSN_AT: usize = 80;
const LOG_DURABLE_AT: usize = 88;
const SEQNO_AT: usize = 96;
const FILE_BLOCKS_AT: usize = 104;
const FURTHER_LOGS_AT: usize = 112;
const FURTHER_LOG_AT: usize = 116;
const FURTHER_LOG_BYTES: usize = 20;
const CONTENT_END: usize = FURTHER_LOG_AT + (LOGS_MAX - 1) * FURTHER_LOG_BYTES;

const _: () = assert!(CONTENT_END <= crate::base::limits::SECTOR_BYTES);

/// Rewrites the format number in both superblocks of a data file's content, as a newer build would.
/// For tests.
#[cfg(any(test, feature = "internals"))]
pub fn set_format(file: &mut [u8], format: u32) {
    for (copy, block) in file.chunks_exact_mut(BLOCK_BYTES).take(COPIES).enumerate() {
        block[FORMAT_AT..FORMAT_AT + 4].copy_from_slice(&format.to_le_bytes());
        reseal(block, copy);
    }
}

/// Recomputes the checksum of a copy, whatever its content. For tests.
#[cfg(any(test, feature = "internals"))]
pub fn reseal(block: &mut [u8], copy: usize) {
    let sum = checksum(&block[MAGIC_AT..], copy_seed(copy));
    block[..MAGIC_AT].copy_from_slice(&sum.to_le_bytes());
}

/// The location of the catalog.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CatalogLocation {
    /// Its blocks.
    pub extent: Extent,
    /// The generation they were sealed with.
    pub generation: Generation,
    /// Its length in bytes.
    pub bytes: u32,
}

/// The content of a superblock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Superblock {
    /// Random per database.
    pub salt: u64,
    /// Grows with each write of the superblock.
    pub generation: u64,
    /// The number of opens for writing.
    pub opens: u32,
    /// The catalog, if one was ever written.
    pub catalog: Option<CatalogLocation>,
    /// The logs.
    pub log: LogMark,
    /// The minimum length of the file in blocks.
    pub file_blocks: u64,
}

/// The result of inspecting a data file.
#[derive(Debug)]
pub enum Found {
    /// A database.
    Database(Box<Superblocks>),
    /// A file whose creation did not finish; it never held data.
    Unfinished,
}

/// The superblock of an open data file, and which copy is overwritten first.
#[derive(Clone, Debug)]
pub struct Superblocks {
    current: Superblock,
    older_copy: usize,
}

impl Superblock {
    /// The superblock of an empty database.
    #[must_use]
    pub fn new(salt: u64) -> Self {
        Self {
            salt,
            generation: 0,
            opens: 0,
            catalog: None,
            log: LogMark::default(),
            file_blocks: FIRST_BLOCK,
        }
    }

    /// The block that holds this superblock as copy number `copy`.
    #[must_use]
    pub fn encode(&self, copy: usize) -> AlignedBuffer {
        let mut block = AlignedBuffer::new(BLOCK_BYTES);
        let mut put = |at: usize, bytes: &[u8]| block[at..at + bytes.len()].copy_from_slice(bytes);
        put(MAGIC_AT, &MAGIC);
        put(FORMAT_AT, &FORMAT.to_le_bytes());
        put(COPY_AT, &copy_number(copy).to_le_bytes());
        put(FEATURES_AT, &self.features().to_le_bytes());
        put(SALT_AT, &self.salt.to_le_bytes());
        put(GENERATION_AT, &self.generation.to_le_bytes());
        put(OPENS_AT, &self.opens.to_le_bytes());
        if let Some(catalog) = self.catalog {
            put(CATALOG_BLOCKS_AT, &catalog.extent.blocks.to_le_bytes());
            put(CATALOG_START_AT, &catalog.extent.start.0.to_le_bytes());
            put(CATALOG_GENERATION_AT, &catalog.generation.0.to_le_bytes());
            put(CATALOG_BYTES_AT, &catalog.bytes.to_le_bytes());
        }
        let mut logs = self.log.begin.iter().zip(self.log.durable.iter());
        if let Some((begin, durable)) = logs.next() {
            put(LOG_CHAIN_AT, &begin.chain.to_le_bytes());
            put(LOG_LSN_AT, &begin.lsn.0.to_le_bytes());
            put(LOG_DURABLE_AT, &durable.0.to_le_bytes());
        }
        put(FURTHER_LOGS_AT, &further_logs(&self.log).to_le_bytes());
        for (number, (begin, durable)) in logs.enumerate() {
            let at = FURTHER_LOG_AT + number * FURTHER_LOG_BYTES;
            put(at, &begin.chain.to_le_bytes());
            put(at + 4, &begin.lsn.0.to_le_bytes());
            put(at + 12, &durable.0.to_le_bytes());
        }
        put(SEQNO_AT, &self.log.seqno.0.to_le_bytes());
        put(FILE_BLOCKS_AT, &self.file_blocks.to_le_bytes());
        let sum = checksum(&block[MAGIC_AT..], copy_seed(copy)).to_le_bytes();
        block[CHECKSUM_AT..MAGIC_AT].copy_from_slice(&sum);
        block
    }

    /// The feature bits of this database.
    fn features(&self) -> u64 {
        if self.log.begin.len() > 1 { FEATURE_LOGS } else { 0 }
    }

    /// Decodes the block that should hold copy number `copy`.
    pub fn decode(block: &[u8], copy: usize) -> Result<Self> {
        let place = copy as u64 * BLOCK_BYTES_U64;
        Self::decode_fields(block, copy).map_err(|error| error.at(DATA_FILE, place))
    }

    fn decode_fields(block: &[u8], copy: usize) -> Result<Self> {
        let mut decoder = Decoder::new(block, "the superblock");
        let sum = decoder.u64()?;
        if block.len() != BLOCK_BYTES || sum != checksum(&block[MAGIC_AT..], copy_seed(copy)) {
            return Err(decoder.damaged("checksum mismatch"));
        }
        if decoder.array::<8>()? != MAGIC {
            return Err(decoder.damaged("wrong magic number"));
        }
        let format = decoder.u32()?;
        if format != FORMAT {
            let text = format!("the database has format {format}; this build knows {FORMAT}");
            return Err(Error::new(ErrorKind::Unsupported, text));
        }
        if decoder.u32()? != copy_number(copy) {
            return Err(decoder.damaged("wrong copy number"));
        }
        let features = decoder.u64()?;
        if features & !FEATURES != 0 {
            let text =
                format!("the database uses features {features:#x}; this build knows {FEATURES:#x}");
            return Err(Error::new(ErrorKind::Unsupported, text));
        }
        let (salt, generation, opens) = (decoder.u64()?, decoder.u64()?, decoder.u32()?);
        let blocks = decoder.u32()?;
        let extent = Extent { start: BlockNo(decoder.u64()?), blocks };
        let location = CatalogLocation {
            extent,
            generation: Generation(decoder.u64()?),
            bytes: decoder.u32()?,
        };
        let mut logs = vec![decode_log(&mut decoder)?];
        let seqno = SeqNo(decoder.u64()?);
        let file_blocks = decoder.u64()?;
        let further = decoder.u32()? as usize;
        if further >= LOGS_MAX || (further > 0) != (features & FEATURE_LOGS != 0) {
            return Err(decoder.damaged("invalid number of logs"));
        }
        for _ in 0..further {
            logs.push(decode_log(&mut decoder)?);
        }
        let content = FURTHER_LOG_AT + further * FURTHER_LOG_BYTES;
        if decoder.take(BLOCK_BYTES - content)?.iter().any(|byte| *byte != 0) {
            return Err(decoder.damaged("reserved bytes are not zero"));
        }
        let positions = logs.iter().flat_map(|(begin, durable)| [begin.lsn.0, durable.0]);
        let mut counters = positions.chain([generation, seqno.0]);
        if opens > OPENS_MAX
            || !(FIRST_BLOCK..=FILE_BLOCKS_MAX).contains(&file_blocks)
            || counters.any(|counter| counter > COUNTER_MAX)
        {
            return Err(decoder.damaged("number exceeds its limit"));
        }
        let catalog = (blocks > 0).then_some(location);
        if !location_is_sound(&location, file_blocks) {
            return Err(decoder.damaged("invalid catalog location"));
        }
        let begin = PerLog::collect(logs.iter().map(|(begin, _)| *begin));
        let durable = PerLog::collect(logs.iter().map(|(_, durable)| *durable));
        let log = LogMark { begin, durable, seqno };
        Ok(Self { salt, generation, opens, catalog, log, file_blocks })
    }
}

/// Decodes where replay begins in a log, and how far it is durable.
fn decode_log(decoder: &mut Decoder<'_>) -> Result<(LogPosition, Lsn)> {
    let (chain, lsn) = (decoder.u32()?, Lsn(decoder.u64()?));
    Ok((LogPosition { lsn, chain }, Lsn(decoder.u64()?)))
}

fn further_logs(log: &LogMark) -> u32 {
    u32::try_from(log.begin.len() - 1).unwrap_or(0)
}

/// True if there is no catalog, or it lies within the file and its length fits its blocks.
fn location_is_sound(location: &CatalogLocation, file_blocks: u64) -> bool {
    let Extent { start, blocks } = location.extent;
    if blocks == 0 {
        return start.0 == 0 && location.bytes == 0 && location.generation.0 == 0;
    }
    let capacity = u64::from(blocks) * BLOCK_PAYLOAD_BYTES as u64;
    let end = start.0.checked_add(u64::from(blocks));
    start.0 >= FIRST_BLOCK
        && end.is_some_and(|end| end <= file_blocks)
        && location.bytes > 0
        && u64::from(location.bytes) <= capacity
}

fn copy_number(copy: usize) -> u32 {
    u32::from(copy != 0)
}

fn copy_seed(copy: usize) -> u64 {
    identity([u64::from_le_bytes(MAGIC), copy as u64, 0])
}

fn copy_offset(copy: usize) -> u64 {
    copy as u64 * BLOCK_BYTES_U64
}

impl Superblocks {
    /// Inspects a file and returns the valid copy with the highest generation, if it is a database.
    ///
    /// Fails with `InvalidArgument` if the file never was a database, with `Corrupt` if no copy is
    /// valid, with `Unsupported` if its format is newer.
    pub fn read(file: &dyn File) -> Result<Found> {
        let found = Self::read_of_any_length(file)?;
        if let Found::Database(superblocks) = &found {
            let size = file.size()?;
            if size / BLOCK_BYTES_U64 < superblocks.current.file_blocks {
                let text = "the file is shorter than its superblock says";
                return Err(Error::corrupt(text).at(DATA_FILE, size));
            }
        }
        Ok(found)
    }

    /// Like [`Superblocks::read`], for a file that may have been truncated.
    pub fn read_of_any_length(file: &dyn File) -> Result<Found> {
        let size = file.size()?;
        if size == 0 {
            return Ok(Found::Unfinished);
        }
        let mut blocks = AlignedBuffer::new(COPIES * BLOCK_BYTES);
        let there = usize::try_from(size).unwrap_or(usize::MAX).min(blocks.len());
        file.read_at(&mut blocks[..there], 0)?;
        let copies: [Result<Superblock>; COPIES] = std::array::from_fn(|copy| {
            Superblock::decode(&blocks[copy * BLOCK_BYTES..][..BLOCK_BYTES], copy)
        });
        let superblocks = match copies {
            [Ok(a), Ok(b)] => Self::newest_of(a, b)?,
            // One copy of a newer format suffices: writing one copy is what upgrades a database.
            [Err(error), _] | [_, Err(error)] if error.kind() == ErrorKind::Unsupported => {
                return Err(error);
            }
            [Ok(current), Err(_)] => Self::with_damaged_copy(current, 1),
            [Err(_), Ok(current)] => Self::with_damaged_copy(current, 0),
            [Err(error), Err(_)] => return Self::explain_damage(&blocks, size, error),
        };
        Ok(Found::Database(Box::new(superblocks)))
    }

    /// The superblocks if only one copy is valid.
    fn with_damaged_copy(current: Superblock, damaged: usize) -> Self {
        mark(Mark::SuperblockCopyDamaged);
        Self { current, older_copy: damaged }
    }

    fn newest_of(a: Superblock, b: Superblock) -> Result<Self> {
        if a.salt != b.salt || (a.generation == b.generation && a != b) {
            return Err(
                Error::corrupt("the two superblock copies are inconsistent").at(DATA_FILE, 0)
            );
        }
        let a_is_newer = a.generation > b.generation;
        let (current, older_copy) = if a_is_newer { (a, 1) } else { (b, 0) };
        Ok(Self { current, older_copy })
    }

    /// The result if no copy is valid: an unfinished creation, some other file, or damage.
    fn explain_damage(blocks: &[u8], size: u64, error: Error) -> Result<Found> {
        let (first, second) = blocks.split_at(BLOCK_BYTES);
        // A creation writes copy B only after copy A is durable; before, the file has two blocks.
        if size == FIRST_BLOCK * BLOCK_BYTES_U64 && second.iter().all(|byte| *byte == 0) {
            mark(Mark::CreationUnfinished);
            return Ok(Found::Unfinished);
        }
        let ours = |block: &[u8]| block[MAGIC_AT..FORMAT_AT] == MAGIC;
        if ours(first) || ours(second) {
            return Err(error);
        }
        let text = format!("the file {DATA_FILE} is no Chelonia database");
        Err(Error::new(ErrorKind::InvalidArgument, text))
    }

    /// Writes the superblock of a new database into an empty file; durable when this returns (but
    /// for the file's name).
    pub fn create(file: &dyn File, salt: u64) -> Result<Self> {
        file.allocate(0, FIRST_BLOCK * BLOCK_BYTES_U64)?;
        let mut superblocks = Self { current: Superblock::new(salt), older_copy: 0 };
        superblocks.write(file, superblocks.current)?;
        Ok(superblocks)
    }

    /// Writes the first superblock of a file whose other blocks are complete and synced; durable
    /// when this returns (but for the file's name).
    pub fn write_first(file: &dyn File, first: Superblock) -> Result<()> {
        Self { current: first, older_copy: 0 }.write(file, first)
    }

    /// Fails unless both copies are valid; returns the number of copies.
    pub fn verify(file: &dyn File) -> Result<u64> {
        let mut block = AlignedBuffer::new(BLOCK_BYTES);
        for copy in 0..COPIES {
            file.read_at(&mut block, copy_offset(copy))?;
            Superblock::decode(&block, copy)?;
        }
        Ok(COPIES as u64)
    }

    /// The newest superblock.
    #[must_use]
    pub fn current(&self) -> &Superblock {
        &self.current
    }

    /// Makes `next` the superblock, by the protocol at the head of this file. The generation is set
    /// here. After a failure it is unknown which superblock a later open will find.
    pub fn write(&mut self, file: &dyn File, mut next: Superblock) -> Result<()> {
        next.generation = self.current.generation + 1;
        for copy in [self.older_copy, 1 - self.older_copy] {
            file.write_at(&next.encode(copy), copy_offset(copy))?;
            file.sync()?;
        }
        (self.current, self.older_copy) = (next, 0);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
