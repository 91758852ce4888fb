//! The reference to a run: [`RunRef`], all that is needed to read it.

use crate::base::codec::{Decoder, put_varint};
use crate::base::error::Result;
use crate::base::ids::{Extent, Generation};
use crate::base::stream::DictionaryId;
use crate::filters::FilterSpec;
use crate::run::block::SPAN_BLOCKS_MAX;
use crate::run::totals::{COUNT_MAX, Totals};

/// Consecutive blocks of a run's extent that hold one sorted block.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct BlockSpan {
    /// The first block, counted from the start of the extent.
    pub first: u32,
    /// Number of blocks.
    pub blocks: u32,
}

impl BlockSpan {
    /// The block after the last one.
    #[must_use]
    pub fn end(self) -> u32 {
        self.first.saturating_add(self.blocks)
    }
}

/// Maximum number of index levels: each has at most half as many spans as the one below.
pub const INDEX_LEVELS_MAX: u8 = 32;

/// Flag in the byte of `index_levels`: the run has a dictionary.
const HAS_DICTIONARY: u8 = 0x80;

const _: () = assert!(INDEX_LEVELS_MAX < HAS_DICTIONARY);

/// A reference to a run: its location, layout and totals.
///
/// Encoded as varints in the order of the fields, except that `index_levels` and `root_blocks` are
/// one byte each and the filter has its own encoding ([`FilterSpec::encode`]). If there is a
/// dictionary, `index_levels` is 128 more, and the eight bytes of its name come last.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RunRef {
    /// The blocks.
    pub extent: Extent,
    /// The generation they were sealed with.
    pub generation: Generation,
    /// Blocks of entries, at the start of the extent.
    pub data_blocks: u32,
    /// Blocks of separators, after the data.
    pub index_blocks: u32,
    /// Levels of the index; 0 when all entries are in one span, which then is the root.
    pub index_levels: u8,
    /// Size of the root in blocks: the last ones of the index (of the data without an index).
    pub root_blocks: u8,
    /// The filter, after the index.
    pub filter: FilterSpec,
    /// Blocks that list large values, after the filter.
    pub large_blocks: u32,
    /// The dictionary of its compressed values, if it has any: one block, at the end.
    pub dictionary: Option<DictionaryId>,
    /// Entries, tombstones included.
    pub entries: u64,
    /// Tombstones.
    pub tombstones: u64,
    /// Bytes of keys and of inline values before they were compressed.
    pub user_bytes: u64,
}

impl RunRef {
    /// The span in which a lookup begins.
    #[must_use]
    pub fn root(&self) -> BlockSpan {
        let blocks = u32::from(self.root_blocks);
        let end = self.data_blocks.saturating_add(self.index_blocks);
        BlockSpan { first: end.saturating_sub(blocks), blocks }
    }

    /// The first block of the filter.
    #[must_use]
    pub fn filter_start(&self) -> u32 {
        self.data_blocks.saturating_add(self.index_blocks)
    }

    /// The first block that lists large values.
    #[must_use]
    pub fn large_start(&self) -> u32 {
        self.filter_start().saturating_add(self.filter.blocks())
    }

    /// The number of blocks of the dictionary.
    #[must_use]
    pub fn dictionary_blocks(&self) -> u32 {
        u32::from(self.dictionary.is_some())
    }

    /// The block of the dictionary, if there is one.
    #[must_use]
    pub fn dictionary_start(&self) -> u32 {
        self.large_start().saturating_add(self.large_blocks)
    }

    /// The totals of the run.
    #[must_use]
    pub fn totals(&self) -> Totals {
        Totals { entries: self.entries, tombstones: self.tombstones, bytes: self.user_bytes }
    }

    /// Appends the encoded reference.
    pub fn encode(&self, out: &mut Vec<u8>) {
        put_varint(out, self.extent.start.0);
        put_varint(out, u64::from(self.extent.blocks));
        put_varint(out, self.generation.0);
        put_varint(out, u64::from(self.data_blocks));
        put_varint(out, u64::from(self.index_blocks));
        let flag = if self.dictionary.is_some() { HAS_DICTIONARY } else { 0 };
        out.extend([self.index_levels | flag, self.root_blocks]);
        self.filter.encode(out);
        put_varint(out, u64::from(self.large_blocks));
        put_varint(out, self.entries);
        put_varint(out, self.tombstones);
        put_varint(out, self.user_bytes);
        if let Some(dictionary) = self.dictionary {
            out.extend(dictionary.0.to_le_bytes());
        }
    }

    /// Decodes a reference; the parts must fill the extent exactly.
    pub fn decode(decoder: &mut Decoder<'_>) -> Result<Self> {
        let (start, blocks) = (decoder.varint()?, decoder.varint_u32()?);
        let generation = Generation(decoder.varint()?);
        let (data_blocks, index_blocks) = (decoder.varint_u32()?, decoder.varint_u32()?);
        let levels = decoder.u8()?;
        let mut reference = Self {
            extent: Extent::new(start, blocks),
            generation,
            data_blocks,
            index_blocks,
            index_levels: levels & !HAS_DICTIONARY,
            root_blocks: decoder.u8()?,
            filter: FilterSpec::decode(decoder)?,
            large_blocks: decoder.varint_u32()?,
            entries: decoder.varint()?,
            tombstones: decoder.varint()?,
            user_bytes: decoder.varint()?,
            dictionary: None,
        };
        if levels & HAS_DICTIONARY != 0 {
            reference.dictionary = Some(DictionaryId(decoder.u64()?));
        }
        if let Some(reason) = reference.contradiction() {
            return Err(decoder.damaged(reason));
        }
        Ok(reference)
    }

    /// The reason why this cannot be the reference of a run, if there is one.
    fn contradiction(&self) -> Option<&'static str> {
        let parts = [
            self.data_blocks,
            self.index_blocks,
            self.filter.blocks(),
            self.large_blocks,
            self.dictionary_blocks(),
        ];
        let sum: u64 = parts.iter().map(|blocks| u64::from(*blocks)).sum();
        let root = u32::from(self.root_blocks);
        let has_index = self.index_blocks > 0;
        let root_home = if has_index { self.index_blocks } else { self.data_blocks };
        let bytes_end = self.extent.start.0.checked_add(u64::from(self.extent.blocks));
        if sum != u64::from(self.extent.blocks) {
            return Some("the parts of a run do not fill its extent");
        }
        if bytes_end.is_none_or(|end| end > u64::MAX / crate::base::limits::BLOCK_BYTES_U64) {
            return Some("a run lies beyond the maximum file size");
        }
        if self.data_blocks == 0 || self.entries == 0 || self.tombstones > self.entries {
            return Some("a run has no entries, or more tombstones than entries");
        }
        if self.entries > COUNT_MAX || self.user_bytes > COUNT_MAX {
            return Some("the totals of a run are out of range");
        }
        if has_index != (self.index_levels > 0) || self.index_levels > INDEX_LEVELS_MAX {
            return Some("the height of a run's index is out of range");
        }
        if root == 0 || root > SPAN_BLOCKS_MAX || root > root_home {
            return Some("the root size of a run's index is out of range");
        }
        (!has_index && root != self.data_blocks)
            .then_some("a run without an index has several spans")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> RunRef {
        RunRef {
            extent: Extent::new(1 << 33, 520),
            generation: Generation(77 << 40 | 5),
            data_blocks: 500,
            index_blocks: 7,
            index_levels: 2,
            root_blocks: 1,
            filter: FilterSpec::Bloom { blocks: 12, probes: 8 },
            large_blocks: 1,
            entries: 15_500,
            tombstones: 12,
            user_bytes: 1 << 40,
            dictionary: None,
        }
    }

    fn with_dictionary() -> RunRef {
        let mut reference = sample();
        reference.extent.blocks += 1;
        RunRef { dictionary: Some(DictionaryId(u64::MAX - 7)), ..reference }
    }

    fn decode(bytes: &[u8]) -> Result<RunRef> {
        let mut decoder = Decoder::new(bytes, "run");
        let reference = RunRef::decode(&mut decoder)?;
        decoder.finish().map(|()| reference)
    }

    #[test]
    fn references_come_back() {
        assert_eq!(with_dictionary().dictionary_start(), 520);
        for reference in [sample(), with_dictionary()] {
            let mut bytes = Vec::new();
            reference.encode(&mut bytes);
            assert_eq!(decode(&bytes).unwrap(), reference);
            assert_eq!(reference.root(), BlockSpan { first: 506, blocks: 1 });
            for cut in 0..bytes.len() {
                assert!(decode(&bytes[..cut]).is_err());
            }
        }
    }

    #[test]
    fn contradictions_are_refused() {
        let wrongs: [fn(&mut RunRef); 12] = [
            |r| r.dictionary = Some(DictionaryId(1)),
            |r| r.extent.blocks += 1,
            |r| r.data_blocks = 0,
            |r| r.entries = 0,
            |r| r.tombstones = r.entries + 1,
            |r| r.index_levels = 0,
            |r| r.index_levels = INDEX_LEVELS_MAX + 1,
            |r| r.root_blocks = 0,
            |r| r.root_blocks = 8,
            |r| r.extent.start.0 = u64::MAX - 3,
            |r| r.entries = COUNT_MAX + 1,
            |r| r.user_bytes = COUNT_MAX + 1,
        ];
        for wrong in wrongs {
            let mut reference = sample();
            wrong(&mut reference);
            let mut bytes = Vec::new();
            reference.encode(&mut bytes);
            assert!(decode(&bytes).is_err(), "{reference:?}");
        }
    }
}
