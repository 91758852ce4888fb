//! Verifies a run: every checksum, every invariant, every count.
//!
//! The walk reads the device, not the cache. Each damaged block is one finding, and the walk
//! continues after it; checks that depend on a damaged block are skipped. Memory used meanwhile is
//! charged to the budget.

use crate::base::check::CheckReport;
use crate::base::error::{Error, Result};
use crate::base::limits::{BLOCK_BYTES, BLOCK_BYTES_U64};
use crate::base::stream::{LargeRef, Update};
use crate::kernels::prefix::common_prefix;
use crate::memory::budget::{Charge, Use};
use crate::run::block::{
    KeyBuffer, PREFIX_LEN_MAX, SortedBlock, join_in_place, joined_bytes, span_of,
};
use crate::run::read::lookup::Run;
use crate::run::reference::BlockSpan;
use crate::storage::block::{BlockKind, DATA_FILE, expect_kind};
use crate::storage::io::AlignedBuffer;
use std::collections::BTreeSet;
use std::ops::Range;

/// Summary of the data blocks read.
#[derive(Default)]
struct Seen {
    /// True if no block was damaged.
    is_complete: bool,
    spans: Vec<BlockSpan>,
    /// First and last key of each span.
    edges: Vec<(Vec<u8>, Vec<u8>)>,
    hashes: Vec<u64>,
    large: Vec<LargeRef>,
    entries: u64,
    tombstones: u64,
    user_bytes: u64,
    /// Bytes of the keys in `edges`.
    edge_bytes: u64,
}

impl Seen {
    /// Heap memory of the summary, in bytes.
    fn heap_bytes(&self) -> u64 {
        let lists = self.spans.capacity() * size_of::<BlockSpan>()
            + self.edges.capacity() * size_of::<(Vec<u8>, Vec<u8>)>()
            + self.hashes.capacity() * size_of::<u64>()
            + self.large.capacity() * size_of::<LargeRef>();
        lists as u64 + self.edge_bytes
    }
}

/// Read size in blocks: 256 KiB.
const AHEAD_BLOCKS: u32 = 64;

/// Reads a run front to back from the device, in large pieces. Each damaged block is reported once.
pub(super) struct Ahead<'a> {
    run: &'a Run,
    bytes: AlignedBuffer,
    held: Range<u32>,
    damaged: BTreeSet<u32>,
    /// Blocks before this one have been counted.
    counted: u32,
    _charge: Charge,
}

impl<'a> Ahead<'a> {
    pub fn new(run: &'a Run) -> Self {
        let blocks = run.reference().extent.blocks.min(AHEAD_BLOCKS);
        let bytes = AlignedBuffer::new(blocks as usize * BLOCK_BYTES);
        let _charge = run.storage().budget().charge(Use::Work, bytes.len() as u64);
        Self { run, bytes, held: 0..0, damaged: BTreeSet::new(), counted: 0, _charge }
    }

    /// A block of the run; `None` if it is damaged.
    fn block(&mut self, index: u32, report: &mut dyn CheckReport) -> Option<&[u8]> {
        if !self.held.contains(&index) {
            self.fill(index, report);
        }
        if self.damaged.contains(&index) {
            return None;
        }
        let start = index.checked_sub(self.held.start)? as usize * BLOCK_BYTES;
        self.bytes.get(start..start + BLOCK_BYTES)
    }

    /// Loads the blocks from `first` on.
    fn fill(&mut self, first: u32, report: &mut dyn CheckReport) {
        let most = u32::try_from(self.bytes.len() / BLOCK_BYTES).unwrap_or(0);
        let until = self.run.reference().extent.blocks.min(first.saturating_add(most));
        let count = until.saturating_sub(first) as usize;
        let bytes = &mut self.bytes[..count * BLOCK_BYTES];
        if load(self.run, first, bytes).is_err() {
            // Some of them are damaged: find out which.
            for (block, bytes) in (first..).zip(bytes.chunks_exact_mut(BLOCK_BYTES)) {
                if let Err(error) = load(self.run, block, bytes)
                    && self.damaged.insert(block)
                {
                    report.finding(error);
                }
            }
        }
        self.held = first..until;
        let fresh = first.max(self.counted)..until;
        report.blocks((fresh.len() - self.damaged.range(fresh).count()) as u64);
        self.counted = self.counted.max(until);
    }

    /// A joined span, in the part of the run that ends at `end`; `None` if it is damaged.
    fn span(
        &mut self,
        first: u32,
        kind: BlockKind,
        end: u32,
        report: &mut dyn CheckReport,
    ) -> Option<Vec<u8>> {
        let mut bytes = self.block(first, report)?.to_vec();
        let joined = span_of(&bytes, kind).and_then(|span| {
            if span > end - first {
                return Err(Error::corrupt("a span extends past its part of the run"));
            }
            for more in first + 1..first + span {
                let Some(block) = self.block(more, report) else { return Ok(None) };
                bytes.extend_from_slice(block);
            }
            join_in_place(&mut bytes)?;
            bytes.truncate(joined_bytes(span));
            Ok(Some(bytes))
        });
        joined.map_err(self.run.blame(first)).unwrap_or_else(|error| {
            report.finding(error);
            None
        })
    }

    /// Head of the next span after the one at `first`, which could not be read.
    fn next_head(
        &mut self,
        first: u32,
        kind: BlockKind,
        end: u32,
        report: &mut dyn CheckReport,
    ) -> u32 {
        let mut heads = first + 1..end;
        let is_head = |bytes: &[u8]| span_of(bytes, kind).is_ok();
        heads.find(|block| self.block(*block, report).is_some_and(is_head)).unwrap_or(end)
    }
}

fn load(run: &Run, first: u32, bytes: &mut [u8]) -> Result<()> {
    run.storage().read_blocks(run.block_no(first), run.reference().generation, bytes)
}

/// Called with each span, its bytes if they could be read, and the report for findings.
pub(super) type VisitSpan<'a> = dyn FnMut(BlockSpan, Option<&[u8]>, &mut dyn CheckReport) + 'a;

/// Calls `visit` with every joined span of `kind` in these blocks of a run, with its location; with
/// `None` for each that is damaged.
pub(super) fn visit_spans(
    ahead: &mut Ahead<'_>,
    blocks: Range<u32>,
    kind: BlockKind,
    report: &mut dyn CheckReport,
    visit: &mut VisitSpan<'_>,
) {
    let mut first = blocks.start;
    while first < blocks.end {
        let bytes = ahead.span(first, kind, blocks.end, report);
        let span = bytes.as_ref().and_then(|bytes| span_of(bytes, kind).ok());
        visit(BlockSpan { first, blocks: span.unwrap_or(1) }, bytes.as_deref(), report);
        first = match span {
            Some(span) => first + span,
            None => ahead.next_head(first, kind, blocks.end, report),
        };
    }
}

impl Run {
    /// Reads the whole run and checks it: block checksums and kinds, the order of keys, prefixes
    /// and heads, counts, the index against the data, every key in the filter, the list of large
    /// values.
    pub fn verify(&self, report: &mut dyn CheckReport) -> Result<()> {
        let mut ahead = Ahead::new(self);
        let mut charge = self.storage().budget().charge(Use::Work, 0);
        let seen = self.verify_data(&mut ahead, &mut charge, report);
        report.entries(seen.entries);
        let reference = self.reference();
        let counted = (seen.entries, seen.tombstones, seen.user_bytes);
        if seen.is_complete
            && counted != (reference.entries, reference.tombstones, reference.user_bytes)
        {
            report.finding(
                self.wrong(0, "the content of a run does not match the totals of its reference"),
            );
        }
        self.verify_index(&mut ahead, &seen, report);
        self.verify_filter(&mut ahead, &seen, report);
        self.verify_large(&mut ahead, &seen, report);
        Ok(())
    }

    fn wrong(&self, block: u32, what: &str) -> Error {
        let offset = self.block_no(block).0.saturating_mul(BLOCK_BYTES_U64);
        Error::corrupt(what).at(DATA_FILE, offset)
    }

    fn verify_data(
        &self,
        ahead: &mut Ahead<'_>,
        charge: &mut Charge,
        report: &mut dyn CheckReport,
    ) -> Seen {
        let mut seen = Seen { is_complete: true, ..Seen::default() };
        let blocks = 0..self.reference().data_blocks;
        visit_spans(ahead, blocks, BlockKind::Data, report, &mut |span, bytes, report| {
            let checked = bytes.map(|bytes| self.verify_span(span.first, bytes, &mut seen));
            seen.is_complete &= matches!(checked, Some(Ok(())));
            charge.resize(seen.heap_bytes());
            if let Some(Err(error)) = checked {
                report.finding(self.blame(span.first)(error));
            }
        });
        seen
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
        let edges = (edges.unwrap_or_default(), last.unwrap_or_default());
        seen.edge_bytes += (edges.0.capacity() + edges.1.capacity()) as u64;
        seen.edges.push(edges);
        Ok(())
    }

    /// Checks the index. The lowest level must name exactly the data spans, each with a key that
    /// divides it from those before; upper levels must name exactly the spans of the level below.
    /// After damage only the blocks themselves can be checked.
    fn verify_index(&self, ahead: &mut Ahead<'_>, seen: &Seen, report: &mut dyn CheckReport) {
        let reference = self.reference();
        let blocks = reference.data_blocks..reference.filter_start();
        let mut levels = Levels { is_complete: seen.is_complete, ..Levels::new(seen) };
        // A level takes no more memory than the spans it divides.
        let budget = self.storage().budget();
        let _charge = budget.charge(Use::Work, seen.heap_bytes());
        visit_spans(ahead, blocks, BlockKind::Index, report, &mut |span, bytes, report| {
            let checked = bytes.map(|bytes| match levels.is_complete {
                true => levels.take(self, span, bytes, seen),
                false => SortedBlock::parse(bytes, BlockKind::Index).map(|_| ()),
            });
            levels.is_complete &= matches!(checked, Some(Ok(())));
            if let Some(Err(error)) = checked {
                report.finding(self.blame(span.first)(error));
            }
        });
        if !levels.is_complete {
            return;
        }
        let root = match reference.index_levels {
            0 => seen.spans.last(),
            _ => levels.expected.last(),
        };
        let whole = levels.below.is_empty()
            && levels.level == reference.index_levels + 1
            && levels.expected.len() == 1
            && root == Some(&reference.root());
        if !whole {
            report.finding(self.wrong(reference.data_blocks, "an index is incomplete"));
        }
        self.verify_descents(seen, report);
    }

    /// Checks that the first key of every span leads a lookup to that span, through all levels.
    fn verify_descents(&self, seen: &Seen, report: &mut dyn CheckReport) {
        for (span, (first, last)) in seen.spans.iter().zip(&seen.edges) {
            for key in [first, last] {
                match self.locate(key) {
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

    /// Checks that the filter denies no key whose entry could be read.
    fn verify_filter(&self, ahead: &mut Ahead<'_>, seen: &Seen, report: &mut dyn CheckReport) {
        let reference = self.reference();
        let (start, count) = (reference.filter_start(), reference.filter.blocks());
        let mut blocks = Vec::new();
        let bytes = u64::from(count) * BLOCK_BYTES_U64;
        let _charge = self.storage().budget().charge(Use::Work, bytes);
        for block in start..start + count {
            let bytes = ahead.block(block, report).map(<[u8]>::to_vec);
            let kind = bytes.as_deref().map_or(Ok(()), |bytes| {
                expect_kind(bytes, BlockKind::Filter, self.block_no(block))
            });
            blocks.push(if kind.is_ok() { bytes } else { None });
            if let Err(error) = kind {
                report.finding(error);
            }
        }
        for hash in &seen.hashes {
            let hash = crate::base::checksum::KeyHash(*hash);
            let Some(block) = reference.filter.block_of(hash) else { return };
            let bytes = blocks.get(block as usize).and_then(Option::as_deref);
            if bytes.is_some_and(|bytes| !reference.filter.may_contain(bytes, hash)) {
                let what = "a filter denies a key of its run";
                return report.finding(self.wrong(start + block, what));
            }
        }
    }

    fn verify_large(&self, ahead: &mut Ahead<'_>, seen: &Seen, report: &mut dyn CheckReport) {
        let start = self.reference().large_start();
        let (mut listed, mut is_complete) = (Vec::new(), seen.is_complete);
        for block in start..start + self.reference().large_blocks {
            let Some(bytes) = ahead.block(block, report) else {
                is_complete = false;
                continue;
            };
            match self.decode_list(block, bytes) {
                Ok(mut more) => listed.append(&mut more),
                Err(error) => {
                    is_complete = false;
                    report.finding(error);
                }
            }
        }
        if is_complete && listed != seen.large {
            let what = "the list of large values does not match the entries";
            report.finding(self.wrong(start, what));
        }
    }
}

/// The levels of an index, as far as they were read.
struct Levels {
    /// True while nothing was damaged, so that spans can be compared with those read before.
    is_complete: bool,
    /// The level that is being read; level 1 comes first.
    level: u8,
    /// The spans it names, with the separators.
    below: Vec<(Vec<u8>, BlockSpan)>,
    /// Its own spans.
    spans: Vec<BlockSpan>,
    /// The spans it must name: a level ends where it has named all of the level below.
    expected: Vec<BlockSpan>,
}

impl Levels {
    fn new(seen: &Seen) -> Self {
        let expected = seen.spans.clone();
        Self { is_complete: true, level: 1, below: Vec::new(), spans: Vec::new(), expected }
    }

    /// Processes the next span.
    fn take(&mut self, run: &Run, span: BlockSpan, bytes: &[u8], seen: &Seen) -> Result<()> {
        self.below.extend(run.index_children(bytes, span, self.level)?);
        self.spans.push(span);
        if self.below.len() < self.expected.len() {
            return Ok(());
        }
        let named = self.below.iter().map(|(_, span)| *span);
        if !named.eq(self.expected.iter().copied()) {
            return Err(Error::corrupt("an index level does not match the spans below it"));
        }
        if self.level == 1 && !separators_divide(&self.below, seen) {
            return Err(Error::corrupt("a separator does not divide the keys of its run"));
        }
        self.expected = std::mem::take(&mut self.spans);
        self.below.clear();
        self.level += 1;
        Ok(())
    }
}

/// True if every separator is greater than all keys before its span and not greater than any in it.
fn separators_divide(below: &[(Vec<u8>, BlockSpan)], seen: &Seen) -> bool {
    let mut before: Option<&[u8]> = None;
    below.iter().zip(&seen.edges).all(|((separator, _), (first, last))| {
        let divides = before.is_none_or(|before| before < separator.as_slice())
            && separator.as_slice() <= first.as_slice();
        before = Some(last);
        divides
    })
}

/// Visits all entries of a joined span, and checks the properties that lookups rely on: prefix,
/// heads and slots are those that the builder would have written.
pub(super) fn visit_entries(
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
            return Err(Error::corrupt("the layout of a sorted block is invalid"));
        }
        visit(key.as_slice(), entry.update(block.bytes())?)?;
        if place == 0 {
            first.extend_from_slice(key.as_slice());
        }
    }
    let shared = common_prefix(&first, key.as_slice()).min(PREFIX_LEN_MAX);
    if shared != block.layout().prefix_len() {
        return Err(Error::corrupt(
            "the prefix of a sorted block differs from the common prefix of its keys",
        ));
    }
    Ok(())
}
