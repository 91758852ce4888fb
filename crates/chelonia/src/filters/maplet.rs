//! The maplet: one filter over several runs, which names those that may have a key.
//!
//! Bender et al. (2021) call a filter with a value for each key a maplet; the later code of
//! SplinterDB has one over the branches of each bundle. A lookup asks it once instead of the filter
//! of each run, and gets the set of runs that may have the key:
//!
//! ```text
//! keys of run 0, of run 1, ...  --build-->  lines of entries | run | remainder |  (`quotient`)
//! hash  --runs_of-->  { 1, 4 }: no other run has the key
//! ```
//!
//! It is built once from the hashes of all keys, and never changes; the blocks are those of a
//! filter. A key takes an entry for each run that has it. Where more keys share a line than it has
//! room for, the answer is the set of all runs.

use super::quotient;
use super::{BLOCK_BYTES, FILTER_BLOCKS_MAX, LINES_PER_BLOCK, clear, line, line_of, sizing};
use crate::base::checksum::KeyHash;
use crate::base::codec::{Decoder, put_varint};
use crate::base::error::Result;
use crate::kernels::prefetch::prefetch_read;
use crate::kernels::quotient::Shape;

/// Most runs of a maplet.
pub const RUNS_MAX: usize = 1 << sizing::VALUE_BITS_MAX;

/// The parameters of a maplet: all that a probe needs besides the block.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct MapletSpec {
    /// Number of blocks.
    pub blocks: u32,
    /// Number of entries that fit into a line.
    pub slots: u8,
    /// Bits of a remainder.
    pub remainder_bits: u8,
    /// Bits of the number of a run.
    pub value_bits: u8,
}

impl MapletSpec {
    /// The maplet over `runs` runs that have `entries` keys together, `bits_per_entry` each or as
    /// many as the number of a run needs.
    #[must_use]
    pub fn for_runs(runs: usize, entries: u64, bits_per_entry: u32) -> Self {
        let value_bits = runs.clamp(1, RUNS_MAX).next_power_of_two().trailing_zeros();
        let value_bits = u8::try_from(value_bits).unwrap_or(sizing::VALUE_BITS_MAX);
        let least = sizing::BITS_PER_KEY_MIN + u32::from(value_bits);
        let blocks = sizing::blocks_for(bits_per_entry.max(least), entries);
        let lines = u64::from(blocks) * u64::from(LINES_PER_BLOCK);
        let (slots, remainder_bits) = sizing::quotient_shape(entries.max(1), lines, value_bits);
        Self { blocks, slots, remainder_bits, value_bits }
    }

    /// The block (from 0) that answers for `hash`.
    #[inline]
    #[must_use]
    pub fn block_of(&self, hash: KeyHash) -> u32 {
        line_of(hash, self.blocks) / LINES_PER_BLOCK
    }

    /// Prefetches the line of `block` that [`MapletSpec::runs_of`] reads first.
    #[inline]
    pub fn prefetch(&self, block: &[u8], hash: KeyHash) {
        if let Some(line) = line(block, line_of(hash, self.blocks) % LINES_PER_BLOCK) {
            prefetch_read(line.as_ptr());
        }
    }

    /// The set of runs that may have the key of `hash`: bit `r` for run `r`. Bits beyond the last
    /// run mean nothing. `block` is the complete block that [`MapletSpec::block_of`] names.
    #[inline]
    #[must_use]
    pub fn runs_of(&self, block: &[u8], hash: KeyHash) -> u64 {
        quotient::values(self.blocks, self.shape(), block, hash)
    }

    /// Builds the maplet of pairs of a key's hash and the number of a run that has it into `out`,
    /// replacing its content with exactly the blocks of the maplet, unsealed.
    pub fn build(&self, entries: impl IntoIterator<Item = (u64, u8)>, out: &mut Vec<u8>) {
        clear(self.blocks, out);
        let known = |(hash, run): (u64, u8)| {
            debug_assert!(run >> self.value_bits == 0, "a run's number fits its bits");
            (hash, run)
        };
        quotient::build(self.blocks, self.shape(), entries.into_iter().map(known), out);
    }

    #[inline]
    fn shape(&self) -> Shape {
        quotient::shape(self.slots, self.remainder_bits, self.value_bits)
    }

    /// Bytes of the maplet.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        u64::from(self.blocks) * BLOCK_BYTES as u64
    }

    /// Appends the spec: its numbers in order.
    pub fn encode(&self, out: &mut Vec<u8>) {
        put_varint(out, u64::from(self.blocks));
        out.extend([self.slots, self.remainder_bits, self.value_bits]);
    }

    /// Decodes a spec and checks that probes are safe with it.
    pub fn decode(decoder: &mut Decoder<'_>) -> Result<Self> {
        let blocks = decoder.varint_u32()?;
        if blocks == 0 || blocks > FILTER_BLOCKS_MAX {
            return Err(decoder.damaged("the block count of a maplet is out of range"));
        }
        let (slots, remainder_bits, value_bits) = (decoder.u8()?, decoder.u8()?, decoder.u8()?);
        if !sizing::quotient_shape_fits(slots, remainder_bits, value_bits) {
            return Err(decoder.damaged("the slots of a maplet do not fit a line"));
        }
        Ok(Self { blocks, slots, remainder_bits, value_bits })
    }
}
