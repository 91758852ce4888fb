//! An open run: point lookups, at once or in steps.
//!
//! ```text
//!   filter block -> (maybe) -> index spans, root first -> data span -> entry
//! ```
//!
//! All blocks come through the block cache. A lookup in memory alone takes the caller's guard. One
//! that may read from the device pins only while it looks, and its caller must hold no guard: a
//! read may take long, and memory that is given up meanwhile would wait for it. The steps exist so
//! that a tree can do the first step for many keys, read what is missing together, and go on.
//!
//! Thread-safety: a `Run` is immutable; everything may be called from any thread.

use crate::base::bytes::Value;
use crate::base::codec::Decoder;
use crate::base::error::{Error, Result};
use crate::base::ids::BlockNo;
use crate::base::limits::{BLOCK_BYTES, BLOCK_BYTES_U64};
use crate::base::stream::{Found, Update};
use crate::kernels::bloom::LINE_BYTES;
use crate::kernels::prefetch::prefetch_read;
use crate::memory::epoch::Guard;
use crate::run::block::{SPAN_BLOCKS_MAX, SortedBlock, join_in_place};
use crate::run::read::filter::RunFilter;
use crate::run::reference::{BlockSpan, RunRef};
use crate::runtime::sync::Arc;
use crate::storage::Storage;
use crate::storage::block::{BlockKind, DATA_FILE};
use crate::storage::cache::{CachedBlock, CachedExtent, Heat, Presence, Priority};

/// The lines that header, heads and slots of a block of usual records take.
const HEADER_LINES: usize = 4;

/// What a lookup in a run found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RunHit {
    /// The key has a value.
    Found(Found),
    /// The key is deleted.
    Tombstone,
}

impl RunHit {
    /// What the key has, if anything.
    #[must_use]
    pub fn found(self) -> Option<Found> {
        match self {
            RunHit::Found(found) => Some(found),
            RunHit::Tombstone => None,
        }
    }
}

impl From<Update<'_>> for RunHit {
    fn from(update: Update<'_>) -> Self {
        match update {
            Update::Put(value) => RunHit::Found(Found::Value(Value::copy_from(value))),
            Update::PutLarge(large) => RunHit::Found(Found::Large(large)),
            Update::Delete => RunHit::Tombstone,
        }
    }
}

/// Where a key would be, as far as the index is in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Located {
    /// In these blocks, if anywhere.
    Span(BlockSpan),
    /// These blocks of the index must be loaded to know.
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
}

impl Run {
    /// The run of `reference`. Does no I/O.
    #[must_use]
    pub fn open(storage: &Arc<Storage>, reference: RunRef) -> Arc<Self> {
        let cached = storage.cached(reference.extent, reference.generation, reference.data_blocks);
        let filter = RunFilter::new(&reference, &cached);
        Arc::new(Self { storage: Arc::clone(storage), cached, filter, reference })
    }

    /// What it was opened with.
    pub fn reference(&self) -> &RunRef {
        &self.reference
    }

    /// What it takes in memory while it is open, without the blocks that are cached, about.
    pub fn footprint_bytes(&self) -> u64 {
        const OWN_BYTES: u64 = 256;
        const SLOT_BYTES: u64 = 4;
        OWN_BYTES + SLOT_BYTES * u64::from(self.reference.extent.blocks)
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

    /// Adds the place of a block of the run to an error.
    pub(in crate::run) fn blame(&self, block: u32) -> impl Fn(Error) -> Error {
        let offset = self.block_no(block).0.saturating_mul(BLOCK_BYTES_U64);
        move |error| error.at(DATA_FILE, offset)
    }

    /// Its filter.
    pub fn filter(&self) -> &RunFilter {
        &self.filter
    }

    /// Asks for the memory that a walk through the index begins with.
    #[inline]
    pub fn prefetch_root(&self, guard: &Guard) {
        if let Some(bytes) = self.cached.cached(self.reference.root().first, guard) {
            prefetch_read(bytes.as_ptr());
            prefetch_read(bytes[LINE_BYTES..].as_ptr());
        }
    }

    /// The span that has `key` if any has; `None` if the key is less than every key of the run.
    /// Reads index blocks if need be; the caller holds no guard meanwhile.
    pub fn locate(&self, key: &[u8]) -> Result<Option<BlockSpan>> {
        let mut span = self.reference.root();
        for level in (1..=self.reference.index_levels).rev() {
            let child = self.read_span(span, BlockKind::Index, |block| {
                self.child_of(&block, key, span, level)
            })?;
            match child {
                Some(child) => span = child,
                None => return Ok(None),
            }
        }
        Ok(Some(span))
    }

    /// The same without reading anything. Whoever loads what is missing and asks again should do so
    /// once per level of the index at most and then call [`Run::locate`]: a cache under pressure
    /// may not keep what was loaded.
    pub fn locate_cached(&self, key: &[u8], guard: &Guard) -> Result<Located> {
        let mut span = self.reference.root();
        for level in (1..=self.reference.index_levels).rev() {
            let child = self.show_cached(span, BlockKind::Index, guard, |block| {
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

    /// The span below an index block that has `key`; `None` if the key is less than all of it.
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
    /// what it refers to must come before it, so that no walk ever goes in circles.
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
            return Err(decoder.damaged("it refers to blocks that it must not"));
        }
        Ok(span)
    }

    /// Where the blocks of `span` are: the least of them.
    pub fn presence(&self, span: BlockSpan) -> Presence {
        let blocks = (span.first..span.end()).map(|block| self.cached.presence(block));
        blocks.min().unwrap_or_default()
    }

    /// How hot the block is that would have `key`, if it is in memory, and the index that says so.
    pub fn heat(&self, key: &[u8], guard: &Guard) -> Option<Heat> {
        match self.locate_cached(key, guard) {
            Ok(Located::Span(span)) => self.cached.heat(span.first),
            // Damage is told to who reads it.
            Ok(Located::Missing(_) | Located::Absent) | Err(_) => None,
        }
    }

    /// The entry of `key`, and where the blocks were before that have it or not. For whoever was
    /// told by the filter that it may be there. Reads what is missing; the caller holds no guard
    /// meanwhile.
    pub fn find(&self, key: &[u8]) -> Result<(Option<RunHit>, Presence)> {
        let Some(span) = self.locate(key)? else { return Ok((None, Presence::Settled)) };
        let presence = self.presence(span);
        Ok((self.find_in(span, key)?, presence))
    }

    /// The same without reading anything: `None` if blocks are missing.
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
        let hit = self.show_cached(span, BlockKind::Data, guard, |block| find(&block, key))?;
        Ok(hit.map(|hit| (hit, presence)))
    }

    /// The entry of `key` in the blocks that `locate` named. Reads them if need be; the caller
    /// holds no guard meanwhile.
    pub fn find_in(&self, span: BlockSpan, key: &[u8]) -> Result<Option<RunHit>> {
        self.read_span(span, BlockKind::Data, |block| find(&block, key))
    }

    /// The same in the blocks of the span, which were loaded.
    pub fn find_loaded(
        &self,
        span: BlockSpan,
        key: &[u8],
        blocks: &[CachedBlock<'_>],
    ) -> Result<Option<RunHit>> {
        self.show(span, BlockKind::Data, blocks, |block| find(&block, key))
    }

    /// Joins the blocks of a span and shows it to `read`.
    fn show<T>(
        &self,
        span: BlockSpan,
        kind: BlockKind,
        blocks: &[CachedBlock<'_>],
        read: impl FnOnce(SortedBlock<'_>) -> Result<T>,
    ) -> Result<T> {
        let show = |bytes: &[u8]| {
            let block = SortedBlock::parse(bytes, kind)?;
            if block.span() != span.blocks {
                return Err(Error::corrupt(
                    "a span of a run has another length than its index says",
                ));
            }
            read(block)
        };
        if let [block] = blocks {
            // Heads and slots of usual records: their lines arrive together, not one by one.
            for line in block.chunks(LINE_BYTES).take(HEADER_LINES) {
                prefetch_read(line.as_ptr());
            }
            return show(block).map_err(self.blame(span.first));
        }
        let mut bytes = Vec::with_capacity(blocks.len() * BLOCK_BYTES);
        for block in blocks {
            bytes.extend_from_slice(block);
        }
        join_in_place(&mut bytes).and_then(|()| show(&bytes)).map_err(self.blame(span.first))
    }

    /// Brings a span together and shows it to `read`.
    pub(in crate::run) fn read_span<T>(
        &self,
        span: BlockSpan,
        kind: BlockKind,
        read: impl FnOnce(SortedBlock<'_>) -> Result<T>,
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

    /// Shows a span to `read`; `None` if it is not in memory.
    fn show_cached<T>(
        &self,
        span: BlockSpan,
        kind: BlockKind,
        guard: &Guard,
        read: impl FnOnce(SortedBlock<'_>) -> Result<T>,
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

fn find(block: &SortedBlock<'_>, key: &[u8]) -> Result<Option<RunHit>> {
    let Some(entry) = block.find(key)? else { return Ok(None) };
    entry.update(block.bytes()).map(|update| Some(RunHit::from(update)))
}

fn priority(kind: BlockKind) -> Priority {
    if kind == BlockKind::Index { Priority::Index } else { Priority::Data }
}
