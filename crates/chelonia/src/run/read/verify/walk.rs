//! Reads the spans of a run front to back from the device, and steps over what is damaged.

use crate::base::check::CheckReport;
use crate::base::error::{Error, Result};
use crate::base::limits::BLOCK_BYTES;
use crate::base::stream::{Dictionary, Update};
use crate::kernels::prefix::common_prefix;
use crate::memory::budget::{Charge, Use};
use crate::run::block::{
    KeyBuffer, PREFIX_LEN_MAX, SortedBlock, is_of, join_in_place, joined_bytes, overflow_blocks,
    span_of,
};
use crate::run::read::lookup::Run;
use crate::run::reference::BlockSpan;
use crate::storage::block::BlockKind;
use crate::storage::io::AlignedBuffer;
use std::collections::BTreeSet;
use std::ops::Range;

/// Read size in blocks: 256 KiB.
const AHEAD_BLOCKS: u32 = 64;

/// Reads a run front to back from the device, in large pieces. Each damaged block is reported once.
pub(in crate::run) struct Ahead<'a> {
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
    pub fn block(&mut self, index: u32, report: &mut dyn CheckReport) -> Option<&[u8]> {
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

    /// A joined span, in the part of the run that ends at `end`; `None` if it is damaged. Behind it
    /// are the blocks of its overflow, unless one of them is damaged.
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
            let overflow = first + span..first + span + overflow_blocks(&bytes)?;
            if overflow.end > self.run.reference().extent.blocks {
                return Err(Error::corrupt("an entry goes on past the end of its run"));
            }
            for block in overflow {
                match self.block(block, report) {
                    Some(block) => bytes.extend_from_slice(block),
                    None => {
                        bytes.truncate(joined_bytes(span));
                        break;
                    }
                }
            }
            Ok(Some(bytes))
        });
        joined.map_err(self.run.blame(first)).unwrap_or_else(|error| {
            report.finding(error);
            None
        })
    }

    /// Head of the next span after the one at `first` and its overflow: the last block of that, if
    /// it is a head.
    fn after_overflow(
        &mut self,
        first: u32,
        overflow: u32,
        end: u32,
        report: &mut dyn CheckReport,
    ) -> u32 {
        let last = first + overflow;
        match self.block(last, report) {
            Some(bytes) if is_of(bytes, BlockKind::Data) => last,
            Some(_) => last + 1,
            // It may have been a head that overflows too.
            None => self.next_head(last, BlockKind::Data, end, report),
        }
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
pub(in crate::run) type VisitSpan<'a> =
    dyn FnMut(BlockSpan, Option<&[u8]>, &mut dyn CheckReport) + 'a;

/// Calls `visit` with every joined span of `kind` in these blocks of a run, with its location; with
/// `None` for each that is damaged.
pub(in crate::run) fn visit_spans(
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
        let overflow = bytes.as_ref().and_then(|bytes| overflow_blocks(bytes).ok());
        first = match (span, overflow) {
            (Some(span), Some(0)) => first + span,
            (Some(_), Some(overflow)) => ahead.after_overflow(first, overflow, blocks.end, report),
            _ => ahead.next_head(first, kind, blocks.end, report),
        };
    }
}

/// Visits all entries of a joined span, and checks the properties that lookups rely on: prefix,
/// heads and slots are those that the builder would have written. Compressed values come with
/// `dictionary`. False if the last entry was not visited, because it overflows and the blocks of
/// that are not behind the span.
pub(in crate::run) fn visit_entries(
    block: &SortedBlock<'_>,
    dictionary: Option<&Dictionary>,
    visit: &mut dyn FnMut(&[u8], Update<'_>) -> Result<()>,
) -> Result<bool> {
    let count = block.layout().count();
    let mut overflowing = Vec::new();
    let mut is_whole = true;
    let mut key = KeyBuffer::default();
    let mut first = Vec::new();
    key.set_prefix(block);
    for place in 0..count {
        let entry = block.entry(place)?;
        key.set(block, place, &entry);
        if block.search(key.as_slice())? != Ok(place) || !block.is_tidy(place, &entry) {
            return Err(Error::corrupt("the layout of a sorted block is invalid"));
        }
        let behind = block.bytes().get(BLOCK_BYTES..).unwrap_or_default();
        if entry.overflow == 0 {
            visit(key.as_slice(), entry.update(block.bytes(), dictionary)?)?;
        } else if behind.is_empty() {
            is_whole = false;
        } else {
            entry.gather(block.bytes(), behind.chunks_exact(BLOCK_BYTES), &mut overflowing)?;
            visit(key.as_slice(), entry.update_with(&overflowing, dictionary)?)?;
        }
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
    Ok(is_whole)
}
