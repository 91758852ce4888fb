//! Verifies a run: every checksum, every invariant, every count.
//!
//! The walk reads the device, not the cache. Each damaged block is one finding, and the walk
//! continues after it; checks that depend on a damaged block are skipped. Memory used meanwhile is
//! charged to the budget.

use crate::base::check::CheckReport;
use crate::base::error::{Error, Result};
use crate::base::limits::{BLOCK_BYTES, BLOCK_BYTES_U64};
use crate::base::stream::{Dictionary, LargeRef, Update};
use crate::memory::budget::{Charge, Use};
use crate::run::block::overflow::receives;
use crate::run::block::{KeyBuffer, SortedBlock, is_of};
use crate::run::read::lookup::Run;
use crate::run::reference::BlockSpan;
use crate::storage::block::{BlockKind, DATA_FILE, expect_kind};

mod walk;

pub(in crate::run) use walk::{Ahead, visit_entries, visit_spans};

/// Summary of the data blocks read.
#[derive(Default)]
struct Seen {
    /// True if no block was damaged.
    is_complete: bool,
    /// The spans, as the index must name them: those with an overflow a second time, with the
    /// blocks of it.
    spans: Vec<BlockSpan>,
    /// First and last key of each.
    edges: Vec<(Vec<u8>, Vec<u8>)>,
    hashes: Vec<u64>,
    large: Vec<LargeRef>,
    dictionary: Option<Dictionary>,
    /// The dictionary could not be read: values are not decoded.
    is_undecodable: bool,
    decoded: Vec<u8>,
    entries: u64,
    tombstones: u64,
    user_bytes: u64,
    /// Bytes of the keys in `edges`.
    edge_bytes: u64,
    /// The head in which the overflow of the last span must end, if in one.
    receiver: Option<u32>,
}

/// The first key of a span, the last, and the one before it.
#[derive(Default)]
struct Edges {
    first: Option<Vec<u8>>,
    before: Vec<u8>,
    last: Vec<u8>,
}

impl Edges {
    fn add(&mut self, key: &[u8]) {
        if self.first.is_none() {
            self.first = Some(key.to_vec());
        }
        std::mem::swap(&mut self.before, &mut self.last);
        self.last.clear();
        self.last.extend_from_slice(key);
    }
}

impl Seen {
    /// Heap memory of the summary, in bytes.
    fn heap_bytes(&self) -> u64 {
        let lists = self.spans.capacity() * size_of::<BlockSpan>()
            + self.edges.capacity() * size_of::<(Vec<u8>, Vec<u8>)>()
            + self.hashes.capacity() * size_of::<u64>()
            + self.large.capacity() * size_of::<LargeRef>()
            + self.decoded.capacity();
        lists as u64 + self.edge_bytes
    }

    /// Adds what the index must name, with its first and last key.
    fn name(&mut self, span: BlockSpan, first: Vec<u8>, last: Vec<u8>) {
        self.spans.push(span);
        self.edge_bytes += (first.capacity() + last.capacity()) as u64;
        self.edges.push((first, last));
    }
}

impl Run {
    /// Reads the whole run and checks it: block checksums and kinds, the order of keys, prefixes
    /// and heads, counts, the index against the data, every key in the filter, the list of large
    /// values, every compressed value.
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
        self.verify_dictionary(&mut ahead, report);
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
        // From the device, as all that is verified; `verify_dictionary` reports what is wrong.
        if let Some(name) = self.reference().dictionary {
            let read = self.read_dictionary(name);
            seen.is_undecodable = read.is_err();
            seen.dictionary = Some(read.unwrap_or_else(|_| Dictionary::lz4(Vec::new())));
        }
        let blocks = 0..self.reference().data_blocks;
        visit_spans(ahead, blocks, BlockKind::Data, report, &mut |span, bytes, report| {
            let checked = bytes.map(|bytes| self.verify_span(span.first, bytes, &mut seen));
            seen.is_complete &= matches!(checked, Some(Ok(true)));
            charge.resize(seen.heap_bytes());
            if let Some(Err(error)) = checked {
                report.finding(self.blame(span.first)(error));
            }
        });
        seen
    }

    /// Checks a span; false if its overflow cannot be read.
    fn verify_span(&self, first: u32, bytes: &[u8], seen: &mut Seen) -> Result<bool> {
        let block = SortedBlock::parse(bytes, BlockKind::Data)?;
        if seen.is_complete && receives(bytes)? != (seen.receiver == Some(first)) {
            return Err(Error::corrupt(
                "a block has the end of an entry that does not go on there",
            ));
        }
        let before = seen.edges.last().map(|(_, last)| last.clone());
        let mut edges = Edges::default();
        let dictionary = seen.dictionary.clone();
        let is_whole = visit_entries(&block, dictionary.as_ref(), &mut |key, update| {
            let last = if edges.first.is_some() { Some(&edges.last) } else { before.as_ref() };
            if last.is_some_and(|last| key <= last.as_slice()) {
                return Err(Error::corrupt("the keys of a run do not ascend"));
            }
            seen.entries += 1;
            seen.tombstones += u64::from(update.is_delete());
            seen.user_bytes += (key.len() + update.inline_bytes()) as u64;
            seen.hashes.push(self.storage().key_hash(key).0);
            match update {
                Update::PutLarge(large) => seen.large.push(large),
                Update::PutCompressed(value) if !seen.is_undecodable => {
                    value.decode(&mut seen.decoded)?;
                }
                Update::Put(_) | Update::PutCompressed(_) | Update::Delete => {}
            }
            edges.add(key);
            Ok(())
        })?;
        let Edges { first: key, before, last } = edges;
        let key = key.unwrap_or_default();
        let (span, overflow) = (block.span(), block.layout().overflow_blocks());
        seen.receiver = None;
        if overflow == 0 || !is_whole {
            seen.name(BlockSpan { first, blocks: span }, key, last);
            return Ok(is_whole);
        }
        if is_of(&bytes[bytes.len() - BLOCK_BYTES..], BlockKind::Data) {
            seen.receiver = Some(first + overflow);
        }
        if block.layout().count() > 1 {
            seen.name(BlockSpan { first, blocks: span }, key, before);
        }
        seen.name(BlockSpan { first, blocks: span + overflow }, last.clone(), last);
        Ok(true)
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

    /// Checks that the first and last key of every span lead a lookup to that span, through all
    /// levels.
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

    fn verify_dictionary(&self, ahead: &mut Ahead<'_>, report: &mut dyn CheckReport) {
        let Some(name) = self.reference().dictionary else { return };
        let block = self.reference().dictionary_start();
        if let Some(bytes) = ahead.block(block, report)
            && let Err(error) = self.decode_dictionary(bytes, name)
        {
            report.finding(error);
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
