//! Homes: fixed places of pages that are updated where they are, for storage that compresses.
//!
//! A page has a *home*: two slots that hold whole images of it, and two delta blocks that hold what
//! has changed since the image in one of the slots [3.1, 3.2]. They are written in turn: each
//! update of a page writes a place that no version needs. Neighboring homes are one extent, a
//! *region*.
//!
//! ```text
//!   region   [ home 0 | home 1 | ... | home n ]
//!   home     [ slot 0 | delta 0 | delta 1 | slot 1 ]       place 0, 1, 2, 3
//!              2 blocks  1 block   1 block  2 blocks       with pages of 8 KiB
//!
//! block    0  checksum, kind (see `storage/block.rs`); bytes 9 to 15 are zero
//!         16    8  stamp of the write (`stamps.rs`); the checksum is seeded with it as generation
//!         24    8  generation of the region
//!         32 4064  a part of the page (`slotted.rs`), or the delta (`segments.rs`)
//! ```
//!
//! No page table says which image is valid. A version finds the newest image that it believes by
//! the stamps: the newest slot, and the newest delta of that slot. It is found on the first read of
//! a home, and remembered in memory ([`Region`]). Blocks without the region's generation are of
//! another use of the space; a region is allocated as zeros, so that places that were never written
//! are known from those that cannot be read.
//!
//! A place that cannot be read may be a write that a crash cut off, or a damaged image that is
//! needed. Both look alike: then the stamps of all pages of the node decide, whose sum the
//! directory has ([`sum_of`]). So a write that the device lost is found by a check of the whole
//! node, by `verify` and scrub, and by the process that made it; the first read after an open sees
//! the image before, unless a delta of the lost image is there: then that read fails.
//!
//! Without shadowing (`shadow: false`, the paper's baseline) a home is one slot, and each update of
//! a page moves it to another home.
//!
//! | module | contents |
//! | --- | --- |
//! | `stamps` | which stamps a version believes, and which are still needed |
//! | `slotted` | records in a page |
//! | `change` | changes of a page in memory |
//! | `segments` | deltas |
//! | `places` | the places of one home: the image of a version, and what may be overwritten |
//! | `region` | [`Region`]: what is known of the homes of an extent, and their cached pages |
//! | `read`, `write` | homes from and to the device |
//!
//! Invariants:
//! 1. A place is written only while no version that exists believes what is in it and needs it.
//! 2. The knowledge of a home is complete for the time that it says ([`Region::image`]).

mod change;
mod places;
mod read;
mod region;
pub mod segments;
pub mod slotted;
mod stamps;
#[cfg(test)]
mod tests;
mod write;

pub use change::{Changed, PageMut};
pub use places::Image;
pub use read::{HomeRead, Wanted, clear_dead, read_bytes, read_homes};
pub use region::{HOMES_MAX, Region};
pub use segments::Segments;
pub use slotted::{Page, PageBytes};
pub use stamps::{DeadStamps, HeldStamp, HeldStamps, View};
pub use write::Writes;

use crate::base::checksum::identity;
use crate::base::ids::{BlockNo, Generation};
use crate::base::limits::BLOCK_BYTES;
use std::ops::Range;

/// Bytes of a block before the part of the page: those of every block, the stamp, the generation
/// of the region.
const PART_START: usize = 32;

/// Bytes of a page, or of a delta, in a block.
pub const PART_BYTES: usize = BLOCK_BYTES - PART_START;

// Records begin at even offsets, and their places are two bytes.
const _: () = assert!(PART_BYTES.is_multiple_of(2) && PART_BYTES < BLOCK_BYTES);

/// Number of places of a home.
pub const PLACES: usize = 4;

/// The sizes of homes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HomeLayout {
    /// Blocks of a page.
    pub page_blocks: u32,
    /// True if pages have two slots and deltas.
    pub shadow: bool,
}

impl HomeLayout {
    /// Blocks of a home.
    #[must_use]
    pub fn home_blocks(self) -> u32 {
        if self.shadow { 2 * self.page_blocks + 2 } else { self.page_blocks }
    }

    /// The blocks of a place within its home; none if homes do not have it.
    #[must_use]
    pub fn blocks_of(self, place: u8) -> Range<u32> {
        let pages = self.page_blocks;
        match (place, self.shadow) {
            (0, _) => 0..pages,
            (1, true) => pages..pages + 1,
            (2, true) => pages + 1..pages + 2,
            (3, true) => pages + 2..2 * pages + 2,
            _ => 0..0,
        }
    }
}

/// The term of a page in the sum of its node, of the place of its home and the stamp of its image.
#[must_use]
pub fn sum_of(home: BlockNo, stamp: Generation) -> u64 {
    identity([home.0, stamp.0, 0])
}
