//! Builds runs: takes sorted entries, writes one extent.
//!
//! ```text
//!   add    -> block builder -> (span full) -> blocks in memory, separator to the index builder
//!   finish -> last span, index levels, filter, large refs, dictionary -> exact extent allocated
//!          -> sealed and written in large pieces -> RunRef; the builder is empty again
//! ```
//!
//! Nothing is written to the device before `finish`. A builder is reused for one run after another,
//! so that its memory is touched once; slabs return to the budget between runs.
//!
//! Invariants:
//! 1. Keys ascend strictly; a key that does not is a `Corrupt` error and the run is lost.
//! 2. When `finish` fails, nothing stays allocated, and the builder is empty.

pub(in crate::run) mod blocks;
pub(in crate::run) mod index;
mod sorted;
mod warm;

use blocks::Blocks;
pub use sorted::{Added, BlockBuilder};
pub use warm::WasCached;

use crate::base::error::{Error, Result};
use crate::base::keys::separator;
use crate::base::limits::{BLOCK_BYTES, KEY_BYTES_MAX, LARGE_VALUE_BYTES_MIN};
use crate::base::stream::{
    COMPRESSED_VALUE_BYTES_MIN, Compressed, Dictionary, LargeRef, NewValues, Update,
};
use crate::filters::sizing::{BITS_PER_KEY_DEFAULT, spec_for};
use crate::filters::{FilterKind, FilterSpec};
use crate::memory::budget::{Charge, Use};
use crate::run::block::EntryKind;
use crate::run::build::index::IndexBuilder;
use crate::run::read::Run;
use crate::run::reference::RunRef;
use crate::run::{dictionary, large_list};
use crate::runtime::sync::Arc;
use crate::storage::Storage;
use crate::storage::block::BlockKind;
use crate::storage::quota::Quota;

/// Options of new runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RunOptions {
    /// The kind of filter.
    pub filter: FilterKind,
    /// Filter bits per key; 0 for no filter.
    pub bits_per_key: u32,
}

impl Default for RunOptions {
    fn default() -> Self {
        Self { filter: FilterKind::Bloom, bits_per_key: BITS_PER_KEY_DEFAULT }
    }
}

/// After this many values in a row that did not get smaller only one of as many is tried.
const MISSES_MAX: u64 = 16;

/// Builds one run after another.
pub struct RunBuilder {
    storage: Arc<Storage>,
    options: RunOptions,
    /// The open span.
    block: BlockBuilder,
    /// Closed spans; at the end also index, filter and large references.
    blocks: Blocks,
    index: IndexBuilder,
    /// Hashes of all keys, for the filter.
    hashes: Vec<u64>,
    large: Vec<LargeRef>,
    first_key: Vec<u8>,
    /// The last key of the span closed last.
    last_key: Vec<u8>,
    scratch: Vec<u8>,
    /// Compresses the values of the run, if there is one.
    dictionary: Option<Dictionary>,
    /// True if the dictionary of the first compressed value is taken, if there is none.
    adopts: bool,
    /// True if a value of the run is compressed.
    has_compressed: bool,
    /// Values in a row that did not get smaller.
    misses: u64,
    /// Buffer for a value of another dictionary.
    decoded: Vec<u8>,
    entries: u64,
    tombstones: u64,
    user_bytes: u64,
    charge: Charge,
}

impl RunBuilder {
    /// Creates an empty builder.
    #[must_use]
    pub fn new(storage: &Arc<Storage>, options: RunOptions) -> Self {
        Self {
            storage: Arc::clone(storage),
            options,
            block: BlockBuilder::with_overflows(),
            blocks: Blocks::new(storage.budget()),
            index: IndexBuilder::default(),
            hashes: Vec::new(),
            large: Vec::new(),
            first_key: Vec::new(),
            last_key: Vec::new(),
            scratch: Vec::new(),
            dictionary: None,
            adopts: false,
            has_compressed: false,
            misses: 0,
            decoded: Vec::new(),
            entries: 0,
            tombstones: 0,
            user_bytes: 0,
            charge: storage.budget().charge(Use::Work, 0),
        }
    }

    /// Sets the filter bits per key of the runs finished from now on.
    pub fn set_bits_per_key(&mut self, bits: u32) {
        self.options.bits_per_key = bits;
    }

    /// Sets how the values of the following runs are stored. There must be no open run.
    pub fn set_values(&mut self, values: NewValues<'_>) {
        debug_assert!(self.is_empty(), "a run has one dictionary");
        let (dictionary, adopts) = match values {
            NewValues::Plain => (None, false),
            NewValues::Compressed(dictionary) => (dictionary, dictionary.is_none()),
        };
        (self.dictionary, self.adopts, self.misses) = (dictionary.cloned(), adopts, 0);
    }

    /// Appends an entry; its key must be greater than the last one's.
    #[inline]
    pub fn add(&mut self, key: &[u8], update: Update<'_>) -> Result<()> {
        self.check_order(key)?;
        match update {
            Update::Put(value) if value.len() < LARGE_VALUE_BYTES_MIN => {
                self.add_value(key, value)?;
            }
            Update::PutCompressed(value) => self.add_compressed(key, value)?,
            Update::Put(_) => return Err(Error::internal("a value is too large for a run")),
            Update::Delete => {
                self.add_entry(key, EntryKind::Tombstone, &[])?;
                self.tombstones += 1;
            }
            Update::PutLarge(large) => self.add_large(key, large)?,
        }
        self.hashes.push(self.storage.key_hash(key).0);
        self.entries += 1;
        self.user_bytes += (key.len() + update.inline_bytes()) as u64;
        Ok(())
    }

    /// Adds a value, compressed if this run compresses and the value gets smaller.
    #[inline]
    fn add_value(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        if self.dictionary.is_none() || value.len() < COMPRESSED_VALUE_BYTES_MIN {
            return self.add_entry(key, EntryKind::Value, value);
        }
        let is_tried = self.misses < MISSES_MAX || self.entries.is_multiple_of(MISSES_MAX);
        self.compress(key, value, is_tried)
    }

    fn compress(&mut self, key: &[u8], value: &[u8], is_tried: bool) -> Result<()> {
        let mut payload = std::mem::take(&mut self.scratch);
        let is_smaller = is_tried
            && self.dictionary.as_ref().is_some_and(|own| own.compress(value, &mut payload));
        let added = if is_smaller {
            (self.has_compressed, self.misses) = (true, 0);
            self.add_entry(key, EntryKind::Compressed, &payload)
        } else {
            self.misses += u64::from(is_tried);
            self.add_entry(key, EntryKind::Value, value)
        };
        self.scratch = payload;
        added
    }

    /// Adds a value that another run has compressed: as it is if this run has the same dictionary.
    fn add_compressed(&mut self, key: &[u8], value: Compressed<'_>) -> Result<()> {
        if self.adopts && self.dictionary.is_none() {
            self.dictionary = Some(value.dictionary().clone());
        }
        let own = self.dictionary.as_ref().map(Dictionary::id);
        if own == Some(value.dictionary().id()) {
            self.has_compressed = true;
            return self.add_entry(key, EntryKind::Compressed, value.payload());
        }
        let mut decoded = std::mem::take(&mut self.decoded);
        let added = value.decode(&mut decoded).and_then(|()| match self.dictionary {
            None => self.add_entry(key, EntryKind::Value, &decoded),
            // It got smaller before: a merge must not make it large again.
            Some(_) => self.compress(key, &decoded, true),
        });
        self.decoded = decoded;
        added
    }

    fn add_large(&mut self, key: &[u8], large: LargeRef) -> Result<()> {
        let mut encoded = std::mem::take(&mut self.scratch);
        encoded.clear();
        large.encode(&mut encoded);
        let result = self.add_entry(key, EntryKind::Large, &encoded);
        self.scratch = encoded;
        self.large.push(large);
        result
    }

    #[inline]
    fn add_entry(&mut self, key: &[u8], kind: EntryKind, payload: &[u8]) -> Result<()> {
        // A block that begins with the end of an overflow may have no space for any entry: then the
        // next one has.
        for _ in 0..2 {
            match self.block.add(key, kind, payload)? {
                Added::Fits => return Ok(()),
                Added::Overflows => return self.close_span(),
                Added::Full => self.close_span()?,
            }
        }
        Err(Error::internal("an entry does not fit an empty span of a run"))
    }

    #[inline]
    fn check_order(&mut self, key: &[u8]) -> Result<()> {
        if self.entries == 0 {
            self.first_key.clear();
            self.first_key.extend_from_slice(key);
        } else if self.last_key().is_some_and(|last| key <= last) {
            // Each source of a merge ascends, so unordered entries come from a node with wrong
            // references.
            let text = "merged entries do not ascend: a node refers to wrong key ranges; run \
                        `chelonia verify`";
            return Err(Error::corrupt(text));
        }
        if key.len() > KEY_BYTES_MAX {
            return Err(Error::internal("a key is too long for a run"));
        }
        Ok(())
    }

    /// Lays out the open span and adds its separators to the index: one, and another for a last
    /// entry that overflows behind others, with the blocks of that.
    fn close_span(&mut self) -> Result<()> {
        let place = self.blocks.count();
        if let Some(first) = self.block.first_key() {
            let span = self.block.span()?;
            let whole = span + self.block.overflow_blocks();
            let overflowing = self.block.overflowing();
            let own = if overflowing.is_some() { span } else { whole };
            match place {
                0 => self.index.add(first, place, own)?,
                _ => self.index.add(&separator(&self.last_key, first), place, own)?,
            }
            if let Some((before, last)) = overflowing {
                self.index.add(&separator(before, last), place, whole)?;
            }
            self.last_key.clear();
            self.last_key.extend_from_slice(self.block.last_key().unwrap_or_default());
        }
        let blocks = &mut self.blocks;
        self.block.lay_out(BlockKind::Data, &mut |block| blocks.push(block))?;
        self.block.clear();
        self.count_memory();
        Ok(())
    }

    /// Updates the budget's charge for this builder's heap memory.
    fn count_memory(&mut self) {
        let heap = self.block.heap_bytes()
            + self.index.heap_bytes()
            + self.hashes.capacity() * size_of::<u64>()
            + self.large.capacity() * size_of::<LargeRef>()
            + self.scratch.capacity()
            + self.decoded.capacity()
            + self.first_key.capacity()
            + self.last_key.capacity();
        if self.charge.bytes() != heap as u64 {
            self.charge.resize(heap as u64);
        }
    }

    /// True if nothing was added.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries == 0
    }

    /// Number of entries added.
    #[must_use]
    pub fn entries(&self) -> u64 {
        self.entries
    }

    /// Bytes of keys and inline values added, before compression.
    #[must_use]
    pub fn user_bytes(&self) -> u64 {
        self.user_bytes
    }

    /// The first key added.
    #[must_use]
    pub fn first_key(&self) -> Option<&[u8]> {
        (self.entries > 0).then_some(self.first_key.as_slice())
    }

    /// The last key added.
    #[inline]
    #[must_use]
    pub fn last_key(&self) -> Option<&[u8]> {
        self.block.last_key().or_else(|| (self.entries > 0).then_some(self.last_key.as_slice()))
    }

    /// Writes the run within `quota` and resets the builder; there must be at least one entry.
    pub fn finish(&mut self, quota: &Quota<'_>) -> Result<RunRef> {
        let result = self.write(quota);
        self.reset();
        result
    }

    /// As [`RunBuilder::finish`]; `open` opens the written run, and its blocks with entries that
    /// `was_cached` reports are put into the cache.
    pub fn finish_warm(
        &mut self,
        quota: &Quota<'_>,
        open: impl FnOnce(RunRef) -> Arc<Run>,
        was_cached: &WasCached<'_>,
    ) -> Result<Arc<Run>> {
        let written = self.write(quota).map(open);
        let kept = match &written {
            Ok(run) => warm::keep_warm(run, &self.blocks, was_cached),
            Err(_) => Ok(()),
        };
        self.reset();
        kept.and(written)
    }

    fn write(&mut self, quota: &Quota<'_>) -> Result<RunRef> {
        if self.is_empty() {
            return Err(Error::internal("a run must have at least one entry"));
        }
        while !self.block.is_empty() {
            self.close_span()?;
        }
        let data_blocks = block_count(self.blocks.count())?;
        let (index_levels, root_blocks) = self.index.build(&mut self.blocks)?;
        let index_blocks = block_count(self.blocks.count())? - data_blocks;
        let filter = self.build_filter(data_blocks)?;
        let large_blocks = large_list::encode(&self.large, &mut self.blocks)?;
        let dictionary = self.dictionary.as_ref().filter(|_| self.has_compressed);
        if let Some(dictionary) = dictionary {
            self.blocks.push(&dictionary::encode(dictionary)?)?;
        }
        let dictionary = dictionary.map(Dictionary::id);
        let allocation = self.storage.allocate(block_count(self.blocks.count())?, quota)?;
        if let Err(error) = self.blocks.write(&self.storage, &allocation) {
            // The first error is more informative than an error of freeing.
            let _ = self.storage.free(allocation.extent);
            return Err(error);
        }
        Ok(RunRef {
            extent: allocation.extent,
            generation: allocation.generation,
            data_blocks,
            index_blocks,
            index_levels,
            root_blocks,
            filter,
            large_blocks,
            dictionary,
            entries: self.entries,
            tombstones: self.tombstones,
            user_bytes: self.user_bytes,
        })
    }

    /// A single data block is read as cheaply as a filter block, so it gets no filter.
    fn build_filter(&mut self, data_blocks: u32) -> Result<FilterSpec> {
        if data_blocks == 1 {
            return Ok(FilterSpec::None);
        }
        let spec = spec_for(self.options.filter, self.options.bits_per_key, self.entries);
        spec.build(&self.hashes, &mut self.scratch);
        for block in self.scratch.chunks_exact(BLOCK_BYTES) {
            self.blocks.push(block)?;
        }
        Ok(spec)
    }

    /// Removes all entries; the memory and the dictionary are kept for the next run.
    pub fn reset(&mut self) {
        if self.adopts {
            self.dictionary = None;
        }
        self.has_compressed = false;
        self.block.reset();
        self.blocks.clear();
        self.index.clear();
        self.hashes.clear();
        self.large.clear();
        self.first_key.clear();
        self.last_key.clear();
        self.entries = 0;
        self.tombstones = 0;
        self.user_bytes = 0;
        self.count_memory();
    }
}

/// Converts a count of blocks to the width used by references.
fn block_count(blocks: usize) -> Result<u32> {
    u32::try_from(blocks).map_err(|_| Error::internal("a run exceeds the maximum number of blocks"))
}
