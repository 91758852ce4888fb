//! The memory for the pieces that a merge reads of a run: a slab, or less when memory is short.
//!
//! A merge of many runs holds a piece of each. A piece is a slab, unless that is more than a fixed
//! part of the memory that pieces and other work leave unused. So pieces shrink as there are more
//! of them, and all together stay below a part of the budget, as long as the least pieces do.

use crate::base::error::{Error, Result};
use crate::base::limits::{BLOCK_BYTES, BLOCK_BYTES_U64, SLAB_BYTES};
use crate::memory::budget::{Budget, Use};
use crate::memory::slab::{OwnedPages, OwnedSlab};
use crate::runtime::sync::Arc;

/// Blocks of a slab.
const SLAB_BLOCKS: u32 = 64;

const _: () = assert!(SLAB_BLOCKS as usize * BLOCK_BYTES == SLAB_BYTES);

/// Blocks of the least piece.
const BLOCKS_MIN: u32 = 4;

/// Work may use this fraction of the budget (1/8), where more than the least pieces is held.
const WORK_PART: u64 = 8;

/// A piece takes at most this fraction of what is left of it (1/8).
const PIECE_PART: u64 = 8;

/// Memory for a piece of a run; counted as work.
pub(super) enum Piece {
    Slab(OwnedSlab),
    Small(OwnedPages),
}

impl Piece {
    /// Takes memory for a piece; fails if the system refuses it.
    pub fn take(budget: &Arc<Budget>) -> Result<Self> {
        let left = (budget.limit() / WORK_PART).saturating_sub(budget.used_by(Use::Work));
        let blocks = u32::try_from(left / PIECE_PART / BLOCK_BYTES_U64).unwrap_or(u32::MAX);
        if blocks >= SLAB_BLOCKS {
            return Ok(Self::Slab(budget.take_work_slab()?));
        }
        Self::small(budget, blocks.max(BLOCKS_MIN))
    }

    fn small(budget: &Arc<Budget>, blocks: u32) -> Result<Self> {
        let pages = OwnedPages::take(blocks as usize * BLOCK_BYTES, budget, Use::Work);
        pages.map(Self::Small).ok_or_else(Error::out_of_memory)
    }

    /// The number of blocks that fit.
    pub fn blocks(&self) -> u32 {
        match self {
            Self::Slab(_) => SLAB_BLOCKS,
            Self::Small(pages) => {
                u32::try_from(pages.bytes().len() / BLOCK_BYTES).unwrap_or(u32::MAX)
            }
        }
    }

    /// Makes room for `blocks` blocks, and keeps the content; fails if the system refuses memory.
    pub fn reach(&mut self, blocks: u32, budget: &Arc<Budget>) -> Result<()> {
        if blocks > self.blocks() {
            let mut larger = Self::small(budget, blocks)?;
            let before = self.bytes();
            larger.bytes_mut()[..before.len()].copy_from_slice(before);
            *self = larger;
        }
        Ok(())
    }

    /// The memory.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Slab(slab) => slab.bytes(),
            Self::Small(pages) => pages.bytes(),
        }
    }

    /// The memory, to write.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Slab(slab) => slab.bytes_mut(),
            Self::Small(pages) => pages.bytes_mut(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_shrink_as_there_are_more_of_them() {
        let budget = Budget::new(64 << 20);
        let pieces: Vec<_> = (0..300).map(|_| Piece::take(&budget).unwrap()).collect();
        let blocks: Vec<u32> = pieces.iter().map(Piece::blocks).collect();
        assert_eq!((blocks[0], blocks[299]), (SLAB_BLOCKS, BLOCKS_MIN));
        assert!(blocks.is_sorted_by(|one, next| one >= next), "{blocks:?}");
        assert!(budget.used() < (8 << 20) + 300 * u64::from(BLOCKS_MIN) * BLOCK_BYTES_U64);
    }

    #[test]
    fn a_piece_can_grow() {
        let budget = Budget::new(1 << 20);
        let mut piece = Piece::take(&budget).unwrap();
        assert_eq!(piece.blocks(), BLOCKS_MIN);
        piece.bytes_mut().fill(7);
        piece.reach(BLOCKS_MIN, &budget).unwrap();
        piece.reach(40, &budget).unwrap();
        let kept = BLOCKS_MIN as usize * BLOCK_BYTES;
        assert!(piece.blocks() == 40 && piece.bytes()[..kept].iter().all(|byte| *byte == 7));
        assert_eq!(budget.used(), 40 * BLOCK_BYTES_U64);
        drop(piece);
        assert_eq!(budget.used(), 0);
    }
}
