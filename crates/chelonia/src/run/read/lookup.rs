//! An open run: point lookups, in one call or in steps.
//!
//! ```text
//!   filter block -> (maybe) -> index spans, root first -> data span -> entry
//! ```
//!
//! All blocks are read through the block cache. A lookup in memory uses the caller's guard. A
//! lookup that may read from the device pins only while it searches, and its caller must hold no
//! guard: a read may take long, and would delay the release of memory meanwhile. The steps exist so
//! that a tree can do the first step for many keys, read missing blocks together, and continue.
//!
//! Thread-safety: a `Run` is immutable; everything may be called from any thread.

use crate::base::bytes::Value;
use crate::base::codec::Decoder;
use crate::base::error::{Error, Result};
use crate::base::ids::BlockNo;
use crate::base::limits::{BLOCK_BYTES, BLOCK_BYTES_U64};
use crate::base::stream::{Dictionary, DictionaryId, Found, Update};
use crate::kernels::bloom::LINE_BYTES;
use crate::kernels::prefetch::prefetch_read;
use crate::memory::epoch::Guard;
use crate::run::block::{EntryKind, SPAN_BLOCKS_MAX, SortedBlock, join_in_place, span_of};
use crate::run::dictionary;
use crate::run::read::filter::RunFilter;
use crate::run::reference::{BlockSpan, RunRef};
use crate::runtime::sync::{Arc, OnceLock};
use crate::storage::Storage;
use crate::storage::block::{BlockKind, DATA_FILE, expect_kind};
use crate::storage::cache::{CachedBlock, CachedExtent, Heat, Presence, Priority};

/// Number of cache lines of header, heads and slots in a block of typical records.
const HEADER_LINES: usize = 4;

/// Result of a lookup in a run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RunHit {
    /// The key has a value.
    Found(Found),
    /// The key is deleted.
    Tombstone,
}

impl RunHit {
    /// The value found, if there is one.
    #[must_use]
    pub fn found(self) -> Option<Found> {
        match self {
            RunHit::Found(found) => Some(found),
            RunHit::Tombstone => None,
        }
    }
}

impl TryFrom<Update<'_>> for RunHit {
    type Error = Error;

    fn try_from(update: Update<'_>) -> Result<Self> {
        Ok(match update {
            Update::Put(value) => RunHit::Found(Found::Value(Value::copy_from(value))),
            Update::PutCompressed(value) => RunHit::Found(Found::Value(value.to_value()?)),
            Update::PutLarge(large) => RunHit::Found(Found::Large(large)),
            Update::Delete => RunHit::Tombstone,
        })
    }
}

/// Result of an index lookup in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Located {
    /// The only blocks that can have the key.
    Span(BlockSpan),
    /// These index blocks must be loaded first.
    Missing(BlockSpan),
    /// The key is less than every key of the run.
    Absent,
}

/// An open run.
pub struct Run {
    storage: Arc<Storage>,
    cached: CachedExtent,
    filter: RunFilter,
    reference: RunRef,
    /// The dictionary, once it was needed.
    dictionary: OnceLock<Dictionary>,
}

impl Run {
    /// Opens the run of `reference`. Does no I/O.
    #[must_use]
    pub fn open(storage: &Arc<Storage>, reference: RunRef) -> Arc<Self> {
        let cached = storage.cached(reference.extent, reference.generation, reference.data_blocks);
        let filter = RunFilter::new(&reference, &cached);
        let dictionary = OnceLock::new();
        Arc::new(Self { storage: Arc::clone(storage), cached, filter, reference, dictionary })
    }

    /// The reference that it was opened with.
    pub fn reference(&self) -> &RunRef {
        &self.reference
    }

    /// Approximate memory of the open run, without cached blocks.
    pub fn footprint_bytes(&self) -> u64 {
        const OWN_BYTES: u64 = 256;
        const SLOT_BYTES: u64 = 4;
        OWN_BYTES + SLOT_BYTES * u64::from(self.reference.extent.blocks)
    }

    /// The dictionary of its compressed values, if it has any. Read from the device if no run with
    /// this dictionary was read since the open: the one read of a lookup that may come under a
    /// guard.
    #[inline]
    pub fn dictionary(&self) -> Result<Option<&Dictionary>> {
        let Some(name) = self.reference.dictionary else { return Ok(None) };
        if let Some(known) = self.dictionary.get() {
            return Ok(Some(known));
        }
        let load = || self.read_dictionary(name);
        let loaded = self.storage.dictionaries().get(name, load)?;
        Ok(Some(self.dictionary.get_or_init(|| loaded)))
    }

    /// Reads the dictionary with this name from the device.
    pub(in crate::run) fn read_dictionary(&self, name: DictionaryId) -> Result<Dictionary> {
        let block = self.reference.dictionary_start();
        let number = self.block_no(block);
        let mut bytes = vec![0; BLOCK_BYTES];
        self.storage.read_blocks(number, self.reference.generation, &mut bytes)?;
        self.decode_dictionary(&bytes, name)
    }

    /// Decodes the block of the dictionary with this name.
    pub(in crate::run) fn decode_dictionary(
        &self,
        bytes: &[u8],
        name: DictionaryId,
    ) -> Result<Dictionary> {
        let block = self.reference.dictionary_start();
        expect_kind(bytes, BlockKind::Dictionary, self.block_no(block))?;
        dictionary::decode(bytes, name).map_err(self.blame(block))
    }

    /// The dictionary, if it was needed before.
    #[inline]
    pub(in crate::run) fn known_dictionary(&self) -> Option<&Dictionary> {
        self.dictionary.get()
    }

    /// Its blocks in the cache, to load many at once.
    pub fn cached(&self) -> &CachedExtent {
        &self.cached
    }

    /// Pins the epoch of the database.
    #[inline]
    pub(in crate::run) fn pin(&self) -> Guard {
        self.storage.epochs().pin()
    }

    pub(in crate::run) fn storage(&self) -> &Arc<Storage> {
        &self.storage
    }

    /// The number of a block of the run in the data file.
    pub(in crate::run) fn block_no(&self, block: u32) -> BlockNo {
        BlockNo(self.reference.extent.start.0 + u64::from(block))
    }

    /// Adds the location of a block of the run to an error.
    pub(in crate::run) fn blame(&self, block: u32) -> impl Fn(Error) -> Error {
        let offset = self.block_no(block).0.saturating_mul(BLOCK_BYTES_U64);
        move |error| error.at(DATA_FILE, offset)
    }

    /// Its filter.
    pub fn filter(&self) -> &RunFilter {
        &self.filter
    }

    /// Prefetches the memory where an index lookup begins.
    #[inline]
    pub fn prefetch_root(&self, guard: &Guard) {
        if let Some(bytes) = self.cached.cached(self.reference.root().first, guard) {
            prefetch_read(bytes.as_ptr());
            prefetch_read(bytes[LINE_BYTES..].as_ptr());
        }
    }

    /// The span that can have `key`; `None` if the key is less than every key of the run. Reads
    /// index blocks if necessary; the caller must hold no guard.
    pub fn locate(&self, key: &[u8]) -> Result<Option<BlockSpan>> {
        let mut span = self.reference.root();
        for level in (1..=self.reference.index_levels).rev() {
            let child = self.read_span(span, BlockKind::Index, |block, _| {
                self.child_of(&block, key, span, level)
            })?;
            match child {
                Some(child) => span = child,
                None => return Ok(None),
            }
        }
        Ok(Some(span))
    }

    /// As [`Run::locate`], without reading from the device. A caller that loads missing blocks and
    /// retries should do so at most once per index level and then call [`Run::locate`]: a cache
    /// under pressure may not keep loaded blocks.
    pub fn locate_cached(&self, key: &[u8], guard: &Guard) -> Result<Located> {
        let mut span = self.reference.root();
        for level in (1..=self.reference.index_levels).rev() {
            let child = self.show_cached(span, BlockKind::Index, guard, |block, _| {
                self.child_of(&block, key, span, level)
            })?;
            span = match child {
                None => return Ok(Located::Missing(span)),
                Some(None) => return Ok(Located::Absent),
                Some(Some(child)) => child,
            };
        }
        Ok(Located::Span(span))
    }

    /// The span below an index block that can have `key`; `None` if the key is less than all of its
    /// keys.
    fn child_of(
        &self,
        block: &SortedBlock<'_>,
        key: &[u8],
        parent: BlockSpan,
        level: u8,
    ) -> Result<Option<BlockSpan>> {
        let place = match block.search(key)? {
            Ok(place) => place,
            Err(0) => return Ok(None),
            Err(place) => place - 1,
        };
        self.child(block, place, parent, level).map(Some)
    }

    /// The span that entry `place` of an index block refers to. The block is `parent`, at `level`;
    /// the span must come before it, so that no walk can cycle.
    pub(in crate::run) fn child(
        &self,
        block: &SortedBlock<'_>,
        place: usize,
        parent: BlockSpan,
        level: u8,
    ) -> Result<BlockSpan> {
        let entry = block.entry(place)?;
        let payload = &block.bytes()[entry.payload..entry.end];
        let mut decoder = Decoder::new(payload, "an index entry of a run");
        let span = BlockSpan { first: decoder.varint_u32()?, blocks: decoder.varint_u32()? };
        decoder.finish()?;
        let data = self.reference.data_blocks;
        let home = if level == 1 { 0..data } else { data..parent.first };
        let right = (1..=SPAN_BLOCKS_MAX).contains(&span.blocks)
            && home.contains(&span.first)
            && span.end() <= home.end;
        if !right {
            return Err(decoder.damaged("it refers to blocks outside of its level"));
        }
        Ok(span)
    }

    /// The presence of the blocks of `span`: the least of them.
    pub fn presence(&self, span: BlockSpan) -> Presence {
        let blocks = (span.first..span.end()).map(|block| self.cached.presence(block));
        blocks.min().unwrap_or_default()
    }

    /// The heat of the block that would have `key`, if that block and the index above it are in
    /// memory.
    pub fn heat(&self, key: &[u8], guard: &Guard) -> Option<Heat> {
        match self.locate_cached(key, guard) {
            Ok(Located::Span(span)) => self.cached.heat(span.first),
            // Damage is reported by readers of the block.
            Ok(Located::Missing(_) | Located::Absent) | Err(_) => None,
        }
    }

    /// The entry of `key`, and where its blocks were before the read. Call it after the filter
    /// answered maybe. Reads missing blocks; the caller must hold no guard.
    pub fn find(&self, key: &[u8]) -> Result<(Option<RunHit>, Presence)> {
        let Some(span) = self.locate(key)? else { return Ok((None, Presence::Settled)) };
        let presence = self.presence(span);
        Ok((self.find_in(span, key)?, presence))
    }

    /// As [`Run::find`], without reading from the device: `None` if blocks are missing.
    pub fn find_cached(
        &self,
        key: &[u8],
        guard: &Guard,
    ) -> Result<Option<(Option<RunHit>, Presence)>> {
        let span = match self.locate_cached(key, guard)? {
            Located::Span(span) => span,
            Located::Missing(_) => return Ok(None),
            Located::Absent => return Ok(Some((None, Presence::Settled))),
        };
        let presence = self.presence(span);
        let hit = self.show_cached(span, BlockKind::Data, guard, |block, overflow| {
            self.find_entry(&block, overflow, key)
        })?;
        Ok(hit.map(|hit| (hit, presence)))
    }

    /// The entry of `key` in the blocks that `locate` returned. Reads them if necessary; the caller
    /// must hold no guard.
    pub fn find_in(&self, span: BlockSpan, key: &[u8]) -> Result<Option<RunHit>> {
        self.read_span(span, BlockKind::Data, |block, overflow| {
            self.find_entry(&block, overflow, key)
        })
    }

    /// As [`Run::find_in`], in blocks of the span that were loaded already.
    pub fn find_loaded(
        &self,
        span: BlockSpan,
        key: &[u8],
        blocks: &[CachedBlock<'_>],
    ) -> Result<Option<RunHit>> {
        self.show(span, BlockKind::Data, blocks, |block, overflow| {
            self.find_entry(&block, overflow, key)
        })
    }

    /// The entry of `key` in a block; `overflow` are the blocks of its last entry's overflow.
    fn find_entry(
        &self,
        block: &SortedBlock<'_>,
        overflow: &[CachedBlock<'_>],
        key: &[u8],
    ) -> Result<Option<RunHit>> {
        let Some(entry) = block.find(key)? else { return Ok(None) };
        let dictionary = match entry.kind {
            EntryKind::Compressed => self.dictionary()?,
            EntryKind::Value | EntryKind::Tombstone | EntryKind::Large => None,
        };
        if entry.overflow == 0 {
            return entry.update(block.bytes(), dictionary)?.try_into().map(Some);
        }
        let mut payload = Vec::new();
        entry.gather(block.bytes(), overflow.iter().map(|block| &block[..]), &mut payload)?;
        match entry.update_with(&payload, dictionary)? {
            Update::Put(_) => Ok(Some(RunHit::Found(Found::Value(Value::from(payload))))),
            other => other.try_into().map(Some),
        }
    }

    /// Passes the span in `blocks` to `read`, and the blocks of its last entry's overflow.
    fn show<T>(
        &self,
        span: BlockSpan,
        kind: BlockKind,
        blocks: &[CachedBlock<'_>],
        read: impl FnOnce(SortedBlock<'_>, &[CachedBlock<'_>]) -> Result<T>,
    ) -> Result<T> {
        let shown = match blocks {
            [head, overflow @ ..]
                if overflow.is_empty() || span_of(head, kind).is_ok_and(|it| it == 1) =>
            {
                // Heads and slots of typical records: prefetched together, not line by line.
                for line in head.chunks(LINE_BYTES).take(HEADER_LINES) {
                    prefetch_read(line.as_ptr());
                }
                let right = |block: &SortedBlock<'_>| {
                    let whole = block.layout().overflow_blocks() as usize;
                    block.span() == 1 && (overflow.is_empty() || overflow.len() == whole)
                };
                checked(head, kind, right).and_then(|block| read(block, overflow))
            }
            _ => {
                let mut bytes = Vec::with_capacity(blocks.len() * BLOCK_BYTES);
                for block in blocks {
                    bytes.extend_from_slice(block);
                }
                join_in_place(&mut bytes)
                    .and_then(|()| checked(&bytes, kind, |block| block.span() == span.blocks))
                    .and_then(|block| read(block, &[]))
            }
        };
        shown.map_err(self.blame(span.first))
    }

    /// Reads a span and passes it to `read`, with the blocks of its last entry's overflow.
    pub(in crate::run) fn read_span<T>(
        &self,
        span: BlockSpan,
        kind: BlockKind,
        read: impl FnOnce(SortedBlock<'_>, &[CachedBlock<'_>]) -> Result<T>,
    ) -> Result<T> {
        let guard = self.pin();
        if let Some(blocks) = self.blocks_cached(span, &guard) {
            return self.show(span, kind, &blocks, read);
        }
        drop(guard);
        if span.blocks == 1 {
            let block = self.cached.load(span.first, priority(kind))?;
            return self.show(span, kind, &[block], read);
        }
        let wanted: Vec<_> = (span.first..span.end()).map(|index| (&self.cached, index)).collect();
        let blocks = self.storage.load_many(&wanted, priority(kind))?;
        self.show(span, kind, &blocks, read)
    }

    /// As [`Run::read_span`], without reading from the device; `None` if blocks are missing.
    fn show_cached<T>(
        &self,
        span: BlockSpan,
        kind: BlockKind,
        guard: &Guard,
        read: impl FnOnce(SortedBlock<'_>, &[CachedBlock<'_>]) -> Result<T>,
    ) -> Result<Option<T>> {
        if span.blocks == 1 {
            let Some(block) = self.cached.cached(span.first, guard) else { return Ok(None) };
            return self.show(span, kind, &[block], read).map(Some);
        }
        let Some(blocks) = self.blocks_cached(span, guard) else { return Ok(None) };
        self.show(span, kind, &blocks, read).map(Some)
    }

    /// The blocks of a span, if all are in memory.
    fn blocks_cached<'g>(
        &'g self,
        span: BlockSpan,
        guard: &'g Guard,
    ) -> Option<Vec<CachedBlock<'g>>> {
        (span.first..span.end()).map(|index| self.cached.cached(index, guard)).collect()
    }
}

/// The joined span `bytes`; fails unless it is `right`.
fn checked(
    bytes: &[u8],
    kind: BlockKind,
    right: impl FnOnce(&SortedBlock<'_>) -> bool,
) -> Result<SortedBlock<'_>> {
    let block = SortedBlock::parse(bytes, kind)?;
    if right(&block) {
        return Ok(block);
    }
    Err(Error::corrupt("a span of a run has another length than its index says"))
}

fn priority(kind: BlockKind) -> Priority {
    if kind == BlockKind::Index { Priority::Index } else { Priority::Data }
}
