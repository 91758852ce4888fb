//! Checks a run against itself: every checksum, every invariant, every count.
//!
//! The walk reads the device, not the cache. A damaged block is a finding, and the walk goes on
//! behind it where that is possible; what can't be told any more because of it is not reported
//! again.

use crate::base::error::{Error, Result};
use crate::base::limits::{BLOCK_BYTES, BLOCK_BYTES_U64};
use crate::base::stream::{LargeRef, Update};
use crate::kernels::prefix::common_prefix;
use crate::run::block::{
    KeyBuffer, PREFIX_LEN_MAX, SortedBlock, join_in_place, joined_bytes, span_of,
};
use crate::run::large_list;
use crate::run::read::lookup::Run;
use crate::run::reference::BlockSpan;
use crate::storage::block::{BlockKind, DATA_FILE, expect_kind};
use crate::storage::io::AlignedBuffer;
use std::ops::Range;

/// Where a verification tells what it saw.
pub trait RunReport {
    /// So many blocks were read and checked.
    fn blocks(&mut self, count: u64);
    /// So many entries were seen.
    fn entries(&mut self, count: u64);
    /// Something is wrong.
    fn finding(&mut self, error: Error);
}

/// What the data blocks hold.
#[derive(Default)]
struct Seen {
    spans: Vec<BlockSpan>,
    /// Of each span: its first and last key.
    edges: Vec<(Vec<u8>, Vec<u8>)>,
    hashes: Vec<u64>,
    large: Vec<LargeRef>,
    entries: u64,
    tombstones: u64,
    user_bytes: u64,
}

/// How much is read at a time, in blocks: 256 KiB.
const AHEAD_BLOCKS: u32 = 64;

/// Reads a run front to back from the device, in large pieces.
struct Ahead<'a> {
    run: &'a Run,
    bytes: AlignedBuffer,
    held: Range<u32>,
}

impl<'a> Ahead<'a> {
    fn new(run: &'a Run) -> Self {
        let blocks = run.reference().extent.blocks.min(AHEAD_BLOCKS);
        Self { run, bytes: AlignedBuffer::new(blocks as usize * BLOCK_BYTES), held: 0..0 }
    }

    /// Blocks of the run; a finding if they are damaged.
    fn read(&mut self, first: u32, blocks: u32, report: &mut dyn RunReport) -> Option<Vec<u8>> {
        let bytes = match self.held_or_read(first, blocks) {
            Some(place) => self.bytes[place].to_vec(),
            // One of them or one behind them is damaged: these alone.
            None => {
                let mut bytes = vec![0; blocks as usize * BLOCK_BYTES];
                if let Err(error) = self.load(first, &mut bytes) {
                    report.finding(error);
                    return None;
                }
                bytes
            }
        };
        report.blocks(blocks.into());
        Some(bytes)
    }

    /// Where in the buffer the blocks are, if they could be brought there.
    fn held_or_read(&mut self, first: u32, blocks: u32) -> Option<Range<usize>> {
        let end = first.checked_add(blocks)?;
        if first < self.held.start || end > self.held.end {
            let most = u32::try_from(self.bytes.len() / BLOCK_BYTES).unwrap_or(0);
            let until = self.run.reference().extent.blocks.min(first.saturating_add(most));
            if end > until {
                return None;
            }
            self.held = 0..0;
            let mut bytes = std::mem::replace(&mut self.bytes, AlignedBuffer::new(0));
            let loaded = self.load(first, &mut bytes[..(until - first) as usize * BLOCK_BYTES]);
            self.bytes = bytes;
            loaded.ok()?;
            self.held = first..until;
        }
        let start = (first - self.held.start) as usize * BLOCK_BYTES;
        Some(start..start + blocks as usize * BLOCK_BYTES)
    }

    fn load(&self, first: u32, bytes: &mut [u8]) -> Result<()> {
        let generation = self.run.reference().generation;
        self.run.storage().read_blocks(self.run.block_no(first), generation, bytes)
    }
}

impl Run {
    /// Reads the whole run and checks it: block checksums and kinds, the order of keys, prefixes
    /// and heads, counts, the index against the data, every key in the filter, the list of large
    /// values.
    pub fn verify(&self, report: &mut dyn RunReport) -> Result<()> {
        let mut ahead = Ahead::new(self);
        let whole = self.verify_data(&mut ahead, report);
        let Some(seen) = whole else { return Ok(()) };
        report.entries(seen.entries);
        let reference = self.reference();
        let counted = (seen.entries, seen.tombstones, seen.user_bytes);
        if counted != (reference.entries, reference.tombstones, reference.user_bytes) {
            report.finding(self.wrong(0, "a run does not hold what its reference counts"));
        }
        self.verify_index(&mut ahead, &seen, report);
        self.verify_filter(&mut ahead, &seen, report);
        self.verify_large(&seen, report);
        Ok(())
    }

    fn wrong(&self, block: u32, what: &str) -> Error {
        let offset = self.block_no(block).0.saturating_mul(BLOCK_BYTES_U64);
        Error::corrupt(what).at(DATA_FILE, offset)
    }

    /// A span from the device, joined.
    fn read_joined(
        &self,
        ahead: &mut Ahead<'_>,
        first: u32,
        kind: BlockKind,
        end: u32,
        report: &mut dyn RunReport,
    ) -> Option<Vec<u8>> {
        let mut bytes = ahead.read(first, 1, report)?;
        let joined = span_of(&bytes, kind).and_then(|span| {
            if span > end - first {
                return Err(Error::corrupt("a span reaches past the part of the run it is in"));
            }
            if span > 1 {
                let Some(more) = ahead.read(first + 1, span - 1, report) else {
                    return Ok(None);
                };
                bytes.extend_from_slice(&more);
            }
            join_in_place(&mut bytes)?;
            bytes.truncate(joined_bytes(span));
            Ok(Some(bytes))
        });
        joined.map_err(self.blame(first)).unwrap_or_else(|error| {
            report.finding(error);
            None
        })
    }

    /// Walks all spans; `None` if a damaged one makes the rest untellable.
    fn verify_data(&self, ahead: &mut Ahead<'_>, report: &mut dyn RunReport) -> Option<Seen> {
        let end = self.reference().data_blocks;
        let mut seen = Seen::default();
        let mut next = 0;
        let mut damaged = false;
        while next < end {
            let Some(bytes) = self.read_joined(ahead, next, BlockKind::Data, end, report) else {
                damaged = true;
                // The next head that can be read is where the walk goes on.
                next += 1;
                while next < end && !self.is_data_head(next) {
                    next += 1;
                }
                continue;
            };
            let checked = self.verify_span(next, &bytes, &mut seen);
            if let Err(error) = checked.map_err(self.blame(next)) {
                report.finding(error);
                damaged = true;
            }
            let span = span_of(&bytes, BlockKind::Data).unwrap_or(1);
            next += span;
        }
        (!damaged).then_some(seen)
    }

    fn is_data_head(&self, block: u32) -> bool {
        let mut bytes = vec![0; BLOCK_BYTES];
        let generation = self.reference().generation;
        self.storage().read_blocks(self.block_no(block), generation, &mut bytes).is_err()
            || span_of(&bytes, BlockKind::Data).is_ok()
    }

    fn verify_span(&self, first: u32, bytes: &[u8], seen: &mut Seen) -> Result<()> {
        let block = SortedBlock::parse(bytes, BlockKind::Data)?;
        let mut last: Option<Vec<u8>> = seen.edges.last().map(|(_, last)| last.clone());
        let mut edges: Option<Vec<u8>> = None;
        visit_entries(&block, &mut |key, update| {
            if last.as_deref().is_some_and(|last| key <= last) {
                return Err(Error::corrupt("the keys of a run do not ascend"));
            }
            seen.entries += 1;
            seen.tombstones += u64::from(update.is_delete());
            seen.user_bytes += (key.len() + update.inline_bytes()) as u64;
            seen.hashes.push(self.storage().key_hash(key).0);
            if let Update::PutLarge(large) = update {
                seen.large.push(large);
            }
            edges.get_or_insert_with(|| key.to_vec());
            let last = last.get_or_insert_default();
            last.clear();
            last.extend_from_slice(key);
            Ok(())
        })?;
        seen.spans.push(BlockSpan { first, blocks: block.span() });
        seen.edges.push((edges.unwrap_or_default(), last.unwrap_or_default()));
        Ok(())
    }

    /// The lowest level must name exactly the data spans, each with a key that divides it from
    /// those before; upper levels must name exactly the spans of the level below.
    fn verify_index(&self, ahead: &mut Ahead<'_>, seen: &Seen, report: &mut dyn RunReport) {
        let reference = self.reference();
        let mut below: Vec<(Vec<u8>, BlockSpan)> = Vec::new();
        let mut level_spans: Vec<BlockSpan> = Vec::new();
        let mut next = reference.data_blocks;
        let end = reference.filter_start();
        // Level 1 lies first; a level ends where its spans have named all of the level below.
        let mut expected: Vec<BlockSpan> = seen.spans.clone();
        let mut level = 1;
        while next < end {
            let Some(bytes) = self.read_joined(ahead, next, BlockKind::Index, end, report) else {
                return;
            };
            let span =
                BlockSpan { first: next, blocks: span_of(&bytes, BlockKind::Index).unwrap_or(1) };
            let children = self.index_children(&bytes, span, level).map_err(self.blame(next));
            match children {
                Ok(children) => below.extend(children),
                Err(error) => return report.finding(error),
            }
            level_spans.push(span);
            next = span.end();
            if below.len() < expected.len() {
                continue;
            }
            let named = below.iter().map(|(_, span)| *span);
            if !named.eq(expected.iter().copied()) {
                let what = "a level of an index does not name the spans below it";
                return report.finding(self.wrong(span.first, what));
            }
            if level == 1 && !separators_divide(&below, seen) {
                let what = "a separator does not divide the keys of its run";
                return report.finding(self.wrong(span.first, what));
            }
            expected = std::mem::take(&mut level_spans);
            below.clear();
            level += 1;
        }
        let root = if reference.index_levels == 0 { seen.spans.last() } else { expected.last() };
        let whole = below.is_empty()
            && level == reference.index_levels + 1
            && expected.len() == 1
            && root == Some(&reference.root());
        if !whole {
            report.finding(self.wrong(reference.data_blocks, "an index is not whole"));
        }
        self.verify_descents(seen, report);
    }

    /// The first key of every span must lead a lookup to that span, through all levels.
    fn verify_descents(&self, seen: &Seen, report: &mut dyn RunReport) {
        let guard = crossbeam_epoch::pin();
        for (span, (first, last)) in seen.spans.iter().zip(&seen.edges) {
            for key in [first, last] {
                match self.locate(key, &guard) {
                    Ok(Some(found)) if found == *span => {}
                    Ok(_) => {
                        let what = "the index of a run does not lead to its keys";
                        return report.finding(self.wrong(span.first, what));
                    }
                    Err(error) => return report.finding(error),
                }
            }
        }
    }

    fn index_children(
        &self,
        bytes: &[u8],
        span: BlockSpan,
        level: u8,
    ) -> Result<Vec<(Vec<u8>, BlockSpan)>> {
        let block = SortedBlock::parse(bytes, BlockKind::Index)?;
        let mut children = Vec::with_capacity(block.layout().count());
        let mut key = KeyBuffer::default();
        key.set_prefix(&block);
        for place in 0..block.layout().count() {
            key.set(&block, place, &block.entry(place)?);
            let child = self.child(&block, place, span, level)?;
            children.push((key.as_slice().to_vec(), child));
        }
        if !children.is_sorted_by(|a, b| a.0 < b.0) {
            return Err(Error::corrupt("the separators of an index block do not ascend"));
        }
        Ok(children)
    }

    fn verify_filter(&self, ahead: &mut Ahead<'_>, seen: &Seen, report: &mut dyn RunReport) {
        let reference = self.reference();
        let (start, count) = (reference.filter_start(), reference.filter.blocks());
        let mut blocks = Vec::new();
        for block in 0..count {
            let Some(bytes) = ahead.read(start + block, 1, report) else { return };
            if let Err(error) = expect_kind(&bytes, BlockKind::Filter, self.block_no(start + block))
            {
                return report.finding(error);
            }
            blocks.push(bytes);
        }
        for hash in &seen.hashes {
            let hash = crate::base::checksum::KeyHash(*hash);
            let Some(block) = reference.filter.block_of(hash) else { return };
            let bytes = blocks.get(block as usize);
            if !bytes.is_some_and(|bytes| reference.filter.may_contain(bytes, hash)) {
                let what = "a filter denies a key of its run";
                return report.finding(self.wrong(start + block, what));
            }
        }
    }

    fn verify_large(&self, seen: &Seen, report: &mut dyn RunReport) {
        let mut listed = Vec::new();
        let start = self.reference().large_start();
        let visited = self.large_refs(&mut |large| {
            listed.push(large);
            Ok(())
        });
        report.blocks(self.reference().large_blocks.into());
        match visited {
            Ok(()) if listed == seen.large => {}
            Ok(()) => report.finding(
                self.wrong(start, "the list of large values is not what the entries refer to"),
            ),
            Err(error) => report.finding(error),
        }
    }

    /// Visits the large values that the run refers to, in key order. Reads the list only.
    pub fn large_refs(&self, visit: &mut dyn FnMut(LargeRef) -> Result<()>) -> Result<()> {
        let reference = self.reference();
        let mut bytes = vec![0; BLOCK_BYTES];
        let start = reference.large_start();
        for block in start..start + reference.large_blocks {
            let number = self.block_no(block);
            self.storage().read_blocks(number, reference.generation, &mut bytes)?;
            expect_kind(&bytes, BlockKind::LargeRefs, number)?;
            large_list::decode(&bytes, visit).map_err(self.blame(block))?;
        }
        Ok(())
    }
}

/// Every separator must be greater than all keys before its span and not greater than any in it.
fn separators_divide(below: &[(Vec<u8>, BlockSpan)], seen: &Seen) -> bool {
    let mut before: Option<&[u8]> = None;
    below.iter().zip(&seen.edges).all(|((separator, _), (first, last))| {
        let divides = before.is_none_or(|before| before < separator.as_slice())
            && separator.as_slice() <= first.as_slice();
        before = Some(last);
        divides
    })
}

/// Visits all entries of a joined span, and checks what a lookup takes on trust: that prefix, heads
/// and places are those that the builder would have written.
fn visit_entries(
    block: &SortedBlock<'_>,
    visit: &mut dyn FnMut(&[u8], Update<'_>) -> Result<()>,
) -> Result<()> {
    let count = block.layout().count();
    let mut key = KeyBuffer::default();
    let mut first = Vec::new();
    key.set_prefix(block);
    for place in 0..count {
        let entry = block.entry(place)?;
        key.set(block, place, &entry);
        if block.search(key.as_slice())? != Ok(place) || !block.is_tidy(place, &entry) {
            return Err(Error::corrupt("a sorted block is not laid out as it must be"));
        }
        visit(key.as_slice(), entry.update(block.bytes())?)?;
        if place == 0 {
            first.extend_from_slice(key.as_slice());
        }
    }
    let shared = common_prefix(&first, key.as_slice()).min(PREFIX_LEN_MAX);
    if shared != block.layout().prefix_len() {
        return Err(Error::corrupt("the prefix of a sorted block is not what its keys share"));
    }
    Ok(())
}
