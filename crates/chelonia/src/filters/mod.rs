//! Filters: exclude a run that does not have a key, at the cost of one block.
//!
//! A filter is a number of blocks of kind `Filter` ([`crate::storage::block`] shows the header);
//! the hash of a key chooses the block, so a probe reads exactly one block, and in it one line
//! (Bloom) or two (quotient) of 64 bytes:
//!
//! ```text
//! offset size
//!      0   16  block header (checksum, kind; bytes 9 to 15 are zero)
//!     16   48  zero, so that lines are aligned to cache lines
//!     64 4032  63 lines of 64 bytes
//! ```
//!
//! A filter is built once, for a known number of keys ([`sizing`]), and never changes. Its
//! parameters are its [`FilterSpec`], which is stored in the reference of its run.
//!
//! | file | content |
//! | --- | --- |
//! | `bloom`, `quotient` | the two kinds |
//! | `maplet` | a filter over several runs, which names those that may have the key |
//! | `sizing` | size of a filter, from keys and bits per key |
//!
//! Invariants:
//! 1. No false negatives: a key that was built in is never denied. A full quotient line answers
//!    "maybe" to everything.
//! 2. Any bytes can be probed safely: invalid bytes give a wrong answer at most. (Blocks are
//!    verified before they get here.)
//!
//! Thread-safety: plain functions over bytes.

use crate::base::checksum::KeyHash;
use crate::base::codec::{Decoder, put_varint};
use crate::base::error::Result;
use crate::base::limits::BLOCK_BYTES;
use crate::kernels::bloom::{LINE_BYTES, Line};
use crate::kernels::prefetch::prefetch_read;

mod bloom;
#[cfg(any(test, feature = "internals"))]
pub mod maplet;
mod quotient;
pub mod sizing;

/// Offset of the first line in a block.
pub const LINES_OFFSET: usize = 64;

/// Number of lines in a block.
pub const LINES_PER_BLOCK: u32 = 63;

const _: () = assert!(LINES_OFFSET + LINES_PER_BLOCK as usize * LINE_BYTES == BLOCK_BYTES);

/// Maximum number of blocks of a filter (16 GiB, far beyond any run).
pub const FILTER_BLOCKS_MAX: u32 = 1 << 22;

/// The kind of filter that a keyspace builds. The numbers are on disk.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[non_exhaustive]
#[repr(u8)]
pub enum FilterKind {
    /// A blocked Bloom filter: one cache line per probe; the faster one.
    #[default]
    Bloom = 1,
    /// A quotient filter of cache lines, two candidate lines per key: fewer false positives than a
    /// Bloom filter of the same size from about 14 bits per key on, but a probe takes several times
    /// as long.
    Quotient = 2,
}

impl FilterKind {
    /// The number on disk.
    #[must_use]
    pub(crate) fn number(self) -> u8 {
        self as u8
    }

    /// The kind of this number.
    #[must_use]
    pub(crate) fn from_number(number: u8) -> Option<Self> {
        match number {
            1 => Some(FilterKind::Bloom),
            2 => Some(FilterKind::Quotient),
            _ => None,
        }
    }
}

/// The parameters of a filter: all that a probe needs besides the block.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum FilterSpec {
    /// No filter: every key may be present.
    None,
    /// A Bloom filter: bits in one line per key.
    Bloom {
        /// Number of blocks.
        blocks: u32,
        /// Bits per key.
        probes: u8,
    },
    /// A quotient filter: remainders in one of two lines per key.
    Quotient {
        /// Number of blocks.
        blocks: u32,
        /// Number of remainders that fit into a line.
        slots: u8,
        /// Bits of a remainder.
        remainder_bits: u8,
    },
}

/// The number of [`FilterSpec::None`] on disk.
const KIND_NONE: u8 = 0;

impl FilterSpec {
    /// Number of blocks of the filter.
    #[must_use]
    pub fn blocks(&self) -> u32 {
        match *self {
            FilterSpec::None => 0,
            FilterSpec::Bloom { blocks, .. } | FilterSpec::Quotient { blocks, .. } => blocks,
        }
    }

    /// The block (from 0) that answers for `hash`; `None` if there is no filter.
    #[inline]
    #[must_use]
    pub fn block_of(&self, hash: KeyHash) -> Option<u32> {
        match *self {
            FilterSpec::None => None,
            FilterSpec::Bloom { blocks, .. } | FilterSpec::Quotient { blocks, .. } => {
                Some(line_of(hash, blocks) / LINES_PER_BLOCK)
            }
        }
    }

    /// Prefetches the line of `block` that [`FilterSpec::may_contain`] reads first.
    #[inline]
    pub fn prefetch(&self, block: &[u8], hash: KeyHash) {
        let (FilterSpec::Bloom { blocks, .. } | FilterSpec::Quotient { blocks, .. }) = *self else {
            return;
        };
        if let Some(line) = line(block, line_of(hash, blocks) % LINES_PER_BLOCK) {
            prefetch_read(line.as_ptr());
        }
    }

    /// False if the key of `hash` is certainly not in the filter. `block` is the complete block
    /// that [`FilterSpec::block_of`] names.
    #[inline]
    #[must_use]
    pub fn may_contain(&self, block: &[u8], hash: KeyHash) -> bool {
        match *self {
            FilterSpec::None => true,
            FilterSpec::Bloom { blocks, probes } => bloom::may_contain(blocks, probes, block, hash),
            FilterSpec::Quotient { blocks, slots, remainder_bits } => {
                let shape = quotient::shape(slots, remainder_bits, 0);
                quotient::values(blocks, shape, block, hash) != 0
            }
        }
    }

    /// Builds the filter of `hashes` into `out`, replacing its content with exactly the blocks of
    /// the filter, unsealed.
    pub fn build(&self, hashes: &[u64], out: &mut Vec<u8>) {
        clear(self.blocks(), out);
        match *self {
            FilterSpec::None => {}
            FilterSpec::Bloom { blocks, probes } => bloom::build(blocks, probes, hashes, out),
            FilterSpec::Quotient { blocks, slots, remainder_bits } => {
                let shape = quotient::shape(slots, remainder_bits, 0);
                quotient::build(blocks, shape, hashes.iter().map(|hash| (*hash, 0)), out);
            }
        }
    }

    /// Appends the spec: kind, then the numbers of the kind.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match *self {
            FilterSpec::None => out.push(KIND_NONE),
            FilterSpec::Bloom { blocks, probes } => {
                out.push(FilterKind::Bloom as u8);
                put_varint(out, u64::from(blocks));
                out.push(probes);
            }
            FilterSpec::Quotient { blocks, slots, remainder_bits } => {
                out.push(FilterKind::Quotient as u8);
                put_varint(out, u64::from(blocks));
                out.extend([slots, remainder_bits]);
            }
        }
    }

    /// Decodes a spec and checks that probes are safe with it.
    pub fn decode(decoder: &mut Decoder<'_>) -> Result<Self> {
        let kind = decoder.u8()?;
        if kind == KIND_NONE {
            return Ok(FilterSpec::None);
        }
        let blocks = decoder.varint_u32()?;
        if blocks == 0 || blocks > FILTER_BLOCKS_MAX {
            return Err(decoder.damaged("the block count of a filter is out of range"));
        }
        match FilterKind::from_number(kind) {
            Some(FilterKind::Bloom) => {
                let probes = decoder.u8()?;
                if !(1..=sizing::PROBES_MAX).contains(&probes) {
                    return Err(
                        decoder.damaged("the number of probes of a Bloom filter is out of range")
                    );
                }
                Ok(FilterSpec::Bloom { blocks, probes })
            }
            Some(FilterKind::Quotient) => {
                let (slots, remainder_bits) = (decoder.u8()?, decoder.u8()?);
                if !sizing::quotient_shape_fits(slots, remainder_bits, 0) {
                    return Err(decoder.damaged("the slots of a quotient filter do not fit a line"));
                }
                Ok(FilterSpec::Quotient { blocks, slots, remainder_bits })
            }
            None => Err(decoder.damaged("a filter has an unknown kind")),
        }
    }
}

/// The number of `BlockKind::Filter` of [`crate::storage::block`], which filters do not import; a
/// test of `run` checks that both are equal.
pub const BLOCK_KIND_FILTER: u8 = 4;

/// Replaces the content of `out` with this many empty blocks.
fn clear(blocks: u32, out: &mut Vec<u8>) {
    out.clear();
    out.resize(blocks as usize * BLOCK_BYTES, 0);
    for block in out.chunks_exact_mut(BLOCK_BYTES) {
        block[8] = BLOCK_KIND_FILTER;
    }
}

/// The first line of a hash, counted over all blocks: the upper half, scaled.
#[inline]
fn line_of(hash: KeyHash, blocks: u32) -> u32 {
    let lines = u64::from(blocks) * u64::from(LINES_PER_BLOCK);
    scale(hash.0 >> 32, lines, 32)
}

/// Scales `value` (of `bits` bits) to `0..count`; `count` has at most 32 bits.
#[inline]
fn scale(value: u64, count: u64, bits: u32) -> u32 {
    u32::try_from((value * count) >> bits).unwrap_or(0)
}

/// The lower half of a number.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "the upper half is meant to go")]
fn low_half(value: u64) -> u32 {
    value as u32
}

/// A line of a block; `None` if the block is too short.
#[inline]
fn line(block: &[u8], index: u32) -> Option<&Line> {
    block.get(LINES_OFFSET + index as usize * LINE_BYTES..)?.first_chunk()
}

/// A mutable line of the blocks of a filter, for building.
#[inline]
fn line_mut(blocks: &mut [u8], index: u32) -> Option<&mut Line> {
    let block = (index / LINES_PER_BLOCK) as usize * BLOCK_BYTES;
    let start = block + LINES_OFFSET + (index % LINES_PER_BLOCK) as usize * LINE_BYTES;
    blocks.get_mut(start..)?.first_chunk_mut()
}

#[cfg(test)]
mod tests;
